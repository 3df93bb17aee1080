"""The picture of README.md: ``python -m tests.cover`` draws ``notebooks/streampca.png`` anew.

The populations of HapMap3, the leading EOF of ERSSTv5 (``../shared/data`` has both), and the times
of the dense benchmark as they were recorded (``tests/benchmarks/dense_tall.json``).
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import matplotlib.pyplot as plt
import numpy as np
import xarray as xr

import streampca
from tests.evidence import recorded
from tests.validation.comparing import DATA

PICTURE = Path(__file__).parents[1] / "notebooks" / "streampca.png"
INK, OURS, THEIRS = "#333333", "#d55e00", "#b0b7bf"
PEERS = {
    "streampca.PCA": "streampca",
    "sklearn PCA, in core": "scikit-learn,\nin memory",
    "dask-ml PCA, default (randomized)": "dask-ml,\nrandomized",
    "sklearn IncrementalPCA": "scikit-learn\nIncrementalPCA",
    "da.linalg.svd, centred": "dask.array\nsvd",
}


def populations(ax: Any) -> None:
    """Genotypes of eleven populations on their first two components."""
    folder = DATA / "hapmap3"
    rows = (folder / "relationships_w_pops_121708.txt").read_text().splitlines()[1:]
    population = {row.split()[1]: row.split()[6] for row in rows}
    bed = folder / "HM3_thinned_autosomal_overlap.bed"
    model = streampca.GenotypePCA(2, progress=False).fit(bed)
    names = model.result_.labels.samples.names(range(model.n_samples_seen_))
    labels = np.array([population[name] for name in names])
    streampca.plots.scores(model, labels=labels, ax=ax)
    ax.set_title("", loc="left")
    ax.set_title(f"HapMap3: {len(labels)} people x {model.n_features_used_:,} variants")


def eof(ax: Any) -> None:
    """El Niño: the leading EOF, the seasonal cycle taken out in the same pass."""
    with xr.open_dataset(DATA / "climate" / "sst.mnmean.nc") as dataset:
        field = dataset.sst.sel(time=slice("2010", "2019"), lat=slice(30, -30)).load()
    field = field.sel(lon=slice(120, 290))
    model = streampca.PCA(3, weights="coslat", remove="month", progress=False)
    pattern = model.fit(field, dim="time").eof_.eofs().isel(component=0)
    pattern = pattern * np.sign(float(pattern.sel(lat=0, lon=230)))
    ax.set_facecolor("#d9d4c7")
    most = float(abs(pattern).max())
    ax.pcolormesh(pattern.lon, pattern.lat, pattern, cmap="RdBu_r", vmin=-most, vmax=most)
    ax.set_title(f"Sea surface temperature: EOF 1, {model.explained_variance_ratio_[0]:.0%}")
    ax.set(xlabel="longitude", ylabel="latitude")


def times(ax: Any) -> None:
    """Seconds and memory of ours and of the peers, as they were recorded."""
    rows = {row["name"]: row for row in recorded("dense_tall")["rows"]}
    for place, (name, words) in enumerate(PEERS.items()):
        row, colour = rows[name], OURS if name == "streampca.PCA" else THEIRS
        ax.barh(place, row["seconds"], color=colour)
        said = f" {row['seconds']:.1f} s, {row['peak_mb'] / 1000:.1f} GB"
        ax.text(row["seconds"], place, said, va="center", color=INK)
        ax.text(-1.5, place, words, va="center", ha="right", color=INK, size=9)
    ax.set(yticks=[], xlabel="seconds", xlim=(0, 85))
    ax.invert_yaxis()
    ax.spines[["top", "right"]].set_visible(False)
    ax.set_title("500,000 x 512 on disk: time and memory")


def main() -> None:
    """Draw the three, side by side."""
    figure, axes = plt.subplots(1, 3, figsize=(15, 4.4), layout="constrained")
    for draw, ax in zip((populations, eof, times), axes, strict=True):
        draw(ax)
        ax.title.set(size=11, color=INK)
    figure.savefig(PICTURE, dpi=90, pil_kwargs={"optimize": True})


if __name__ == "__main__":
    main()
