"""Every picture of the package, made from data that this script makes.

``python -m tests.plots.gallery FOLDER`` writes one png for each; ``--format svg`` or ``pdf``.
"""

from __future__ import annotations

import argparse
import time
import warnings
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path
from typing import Any

import matplotlib

matplotlib.use("Agg")

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
import xarray as xr

import streampca
from streampca import GenotypePCA, HardImpute, plots
from streampca.errors import DroppedFeaturesWarning, LocalComponentWarning
from streampca.matrix import AxisLabels, Labels
from streampca.models.results.decomposition import Decomposition

# The data: each realistic in its shape, all of them seeded.


@cache
def sea(days: int = 360) -> xr.DataArray:
    """Sea surface temperature on a grid with land: two waves, and noise."""
    rng = np.random.default_rng(1)
    lat, lon = np.arange(-58.0, 60, 4), np.arange(122.0, 290, 4)
    y, x = np.deg2rad(lat)[:, None], np.deg2rad(lon)[None, :]
    modes = [
        np.exp(-8 * y**2) * np.cos(1.5 * (x - 3.8)),
        np.sin(3 * y) * np.cos(x),
        np.sin(2 * x + y),
    ]
    time = pd.date_range("1991-01-01", periods=days, freq="MS")
    series = [
        a * np.convolve(rng.normal(size=days + 11), np.ones(12) / 3.4, "valid") for a in (2, 1, 0.6)
    ]
    values = sum(s[:, None, None] * m for s, m in zip(series, modes, strict=True))
    values = values + 0.3 * rng.normal(size=values.shape)
    land = (lon[None, :] > 235 - 0.9 * lat[:, None]) & (np.abs(lat[:, None]) < 45)
    land |= (lon[None, :] < 150) & (lat[:, None] < -12) & (lat[:, None] > -38)
    return xr.DataArray(
        np.where(land, np.nan, values),
        coords={"time": time, "lat": lat, "lon": lon},
        dims=("time", "lat", "lon"),
        name="sst",
        attrs={"units": "K", "long_name": "sea surface temperature"},
    )


@cache
def climate() -> Any:
    """EOFs of that field."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DroppedFeaturesWarning)  # the land
        return streampca.PCA(6, weights="coslat").fit(sea(), dim="time")


POPULATIONS = ("Northern", "Southern", "Island", "Highland")


@cache
def genome(samples: int = 600, variants: int = 20_000) -> tuple[Any, np.ndarray[Any, Any]]:
    """(a GenotypePCA with positions, the population of each sample); one region is inverted."""
    rng = np.random.default_rng(2)
    group = rng.integers(0, 4, samples)
    chromosome = np.sort(rng.choice(np.arange(1, 23), variants, p=np.arange(22, 0, -1) / 253))
    position = np.concatenate(
        [
            np.sort(rng.integers(1, 4_000_000 * (30 - c), (chromosome == c).sum()))
            for c in range(1, 23)
        ]
    )
    ancestral = rng.uniform(0.1, 0.9, variants)
    own = np.clip(ancestral + 0.09 * rng.normal(size=(4, variants)), 0.02, 0.98)
    calls = rng.binomial(2, own[group]).astype(np.int8)
    inverted = np.flatnonzero((chromosome == 8) & (position > 2e7) & (position < 3e7))
    carried = rng.binomial(2, 0.4, samples)
    calls[:, inverted] = rng.binomial(2, 0.05 + 0.45 * carried[:, None], (samples, len(inverted)))
    calls[rng.random(calls.shape) < 0.01] = -1
    matrix = streampca.sources.as_matrix(calls, missing_value=-1)
    names = np.array([f"rs{i}" for i in range(variants)])
    features = AxisLabels(
        ("variant",),
        (variants,),
        {"variant": names},
        extra={"chromosome": chromosome.astype(str), "position": position},
    )
    people = AxisLabels(
        ("sample",), (samples,), {"sample": np.array([f"S{i:04}" for i in range(samples)])}
    )
    matrix.labels = Labels(people, features)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", LocalComponentWarning)  # the inversion
        return GenotypePCA(6).fit(matrix), np.array(POPULATIONS)[group]


@cache
def cells(n: int = 4000) -> tuple[Any, pd.DataFrame, np.ndarray[Any, Any]]:
    """(a PCA, the table that it fits, cell types) of named genes."""
    rng = np.random.default_rng(3)
    genes = ["CD3E", "CD8A", "MS4A1", "CD79A", "LYZ", "CD14", "NKG7", "GNLY", "PPBP", "FCGR3A"]
    genes += [f"GENE{i}" for i in range(90)]
    kinds = np.array(["T cell", "B cell", "Monocyte", "NK cell"])
    kind = rng.integers(0, 4, n)
    centre = np.zeros((4, 100))
    for i in range(4):
        centre[i, 2 * i : 2 * i + 2] = 3.0
    values = rng.gamma(1.0, 0.7, (n, 100)) + centre[kind] * rng.gamma(4, 0.25, (n, 1))
    frame = pd.DataFrame(np.log1p(values), columns=genes)
    return streampca.PCA(8).fit(frame), frame, kinds[kind]


@cache
def ratings() -> Any:
    """A completion of a low-rank table of which one cell in five is known."""
    rng = np.random.default_rng(4)
    table = rng.normal(size=(400, 6)) @ rng.normal(size=(6, 120)) + 0.5 * rng.normal(
        size=(400, 120)
    )
    table[rng.random(table.shape) < 0.8] = np.nan
    return HardImpute([2, 4, 6, 8], validation=0.1, tol=1e-3).fit(table)


@cache
def million() -> tuple[Decomposition, np.ndarray[Any, Any], np.ndarray[Any, Any]]:
    """(a result, scores of a million samples, their group)."""
    rng = np.random.default_rng(5)
    group = rng.choice(5, 1_000_000, p=[0.4, 0.3, 0.2, 0.08, 0.02])
    centre = np.array([[0, 0], [4, 1], [-3, 3], [1, -4], [6, -3.0]])
    points = centre[group] + rng.normal(size=(1_000_000, 2)) * np.array([1.0, 0.6])
    points = np.hstack([points, rng.normal(size=(1_000_000, 2)) * 0.4])
    result = streampca.PCA(4, scale="std").fit(points[::100]).result_
    return result, points, np.array(list("ABCDE"))[group]


# The pictures.


def pictures() -> Iterator[tuple[str, Callable[[], Any]]]:
    """(name, what draws it) of every picture."""
    yield "map", lambda: plots.map(climate(), 1)
    yield "map-sheet", lambda: plots.map(climate(), [1, 2, 3, 4], kind="correlation")
    yield "map-covariance", lambda: plots.map(climate(), 1, kind="covariance")
    months = climate().transform(sea(), dim="time")
    yield "hovmoeller", lambda: plots.hovmoeller(climate().reconstruct(2, months, mean=False))
    yield "pcs", lambda: plots.pcs(climate(), (1, 2, 3), months)
    yield "manhattan", lambda: plots.manhattan(genome()[0], component=4)
    yield "manhattan-ancestry", lambda: plots.manhattan(genome()[0])
    yield "populations", lambda: plots.scores(genome()[0], labels=genome()[1], ellipses=True)
    yield "pairs", lambda: plots.pairs(genome()[0], labels=genome()[1])
    yield "projected", _projected
    yield "spectrum", lambda: plots.spectrum(genome()[0])
    yield "spectrum-cells", lambda: plots.spectrum(cells()[0])
    yield "scree", lambda: plots.scree(cells()[0])
    yield "loadings", lambda: plots.loadings(cells()[0])
    yield (
        "biplot",
        lambda: plots.biplot(cells()[0], cells()[0].transform(cells()[1]), labels=cells()[2]),
    )
    yield "correlation-circle", lambda: plots.correlation_circle(cells()[0])
    yield "scores-number", lambda: _coloured_by_number()
    yield (
        "scores-space",
        lambda: plots.scores(genome()[0], components=(1, 2, 3), labels=genome()[1]),
    )
    yield "r2", _held_out
    yield "validation", lambda: plots.validation(ratings())
    yield "sweeps", lambda: plots.sweeps(ratings())
    yield "density", lambda: plots.scores(million()[0], million()[1])
    yield "density-groups", lambda: plots.scores(*million()[:2], labels=million()[2], ellipses=True)
    yield "density-number", lambda: plots.scores(*million()[:2], labels=_depth())
    yield "baselines", lambda: plots.baselines(streampca.r2_baselines(cells()[1], 20))
    yield "dimension", _dimension
    yield "images", _images
    yield "texts", _texts


def _projected() -> Any:
    model, groups = genome()
    new = model.scores_[::20] + np.random.default_rng(0).normal(size=(30, 6)) * 2
    new[3] = np.nan
    return plots.projected(model, new, labels=groups)


def _coloured_by_number() -> Any:
    model, frame, _ = cells()
    return plots.scores(model, model.transform(frame), labels=frame["LYZ"])


def _depth() -> pd.Series:
    """A number of each of a million samples."""
    points = million()[1]
    return pd.Series(points[:, 0] + points[:, 1] + points[:, 2], name="depth")


def _held_out() -> Any:
    _, frame, _ = cells()
    model = streampca.PCA(60).fit(frame.iloc[:120])
    return plots.r2(model, held_out=model.r2_curve(frame.iloc[200:1200]))


def _dimension() -> Any:
    rng = np.random.default_rng(6)
    turn = rng.uniform(0, 3, (1500, 2))
    roll = np.column_stack([np.cos(turn[:, 0]) * 2, np.sin(turn[:, 0]) * 2, turn[:, 1]])
    flat = np.hstack([roll, 0.01 * rng.normal(size=(1500, 7))])
    return plots.dimension(streampca.intrinsic_dimension(flat))


def _images() -> Any:
    rng = np.random.default_rng(7)
    y, x = np.mgrid[-1:1:24j, -1:1:20j]
    place = rng.normal(scale=0.3, size=(300, 2, 1, 1))
    blobs = np.exp(-8 * ((y - place[:, 0]) ** 2 + (x - place[:, 1]) ** 2))
    seen = (blobs + 0.05 * rng.normal(size=blobs.shape)).reshape(300, -1)
    model = streampca.PCA(60).fit(seen)
    return plots.images(model, seen[:3], shape=(24, 20))


def _texts() -> Any:
    rng = np.random.default_rng(8)
    subjects = {
        "sea": "wave tide salt harbour ship sail",
        "sky": "star moon comet orbit planet dust",
        "field": "wheat plough barn rain seed soil",
    }
    of = rng.choice([*subjects], 200)
    said = [
        " ".join([*rng.choice(subjects[one].split(), 6), *rng.choice(("day", "night"), 2)])
        for one in of
    ]
    names = [f"{one}/{i:03}.txt" for i, one in enumerate(of)]
    return plots.texts(streampca.LSA(5, progress=False).fit(said, names=names), n=18)


def main() -> None:
    """Write all of them, and how long each took."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--format", default="png", choices=("png", "svg", "pdf"))
    parser.add_argument("--only", nargs="+", default=())
    arguments = parser.parse_args()
    arguments.folder.mkdir(parents=True, exist_ok=True)
    for name, draw in pictures():
        if arguments.only and name not in arguments.only:
            continue
        begun = time.process_time()
        ax = draw()
        path = arguments.folder / f"{name}.{arguments.format}"
        ax.figure.savefig(path, dpi=110, bbox_inches="tight")
        plt.close("all")
        seconds = time.process_time() - begun
        print(f"{name:20} {path.stat().st_size / 1e3:8.0f} kB {seconds:6.1f} CPU s", flush=True)


if __name__ == "__main__":
    main()
