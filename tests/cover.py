"""The picture of README.md: ``python -m tests.cover`` draws ``notebooks/streampca.png`` anew.

Five simulated populations, the leading EOF of a simulated field with land, and the times of the
dense benchmark as they were recorded (``tests/benchmarks/dense_tall.json``).
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import matplotlib.pyplot as plt
import numpy as np
import xarray as xr

import streampca
from streampca.sources.genotypes.simulate import GenotypeRecipe
from tests.evidence import recorded

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
    """Genotypes of five populations on their first two components."""
    recipe = GenotypeRecipe(1500, 20_000, missing=0.0)
    model = streampca.PCA(2, scale="hwe", progress=False).fit(recipe.block(0, 20_000))
    groups = recipe.population_of
    labels = np.array([f"population {group + 1}" for group in groups])
    streampca.plots.scores(model, labels=labels, ax=ax)
    ax.set_title("Genotypes: 1,500 samples x 20,000 variants")


def field(seed: int = 0) -> xr.DataArray:
    """Forty years of months: a tongue of warm water that comes and goes, waves, noise and land."""
    rng = np.random.default_rng(seed)
    time = np.arange("1980-01", "2020-01", dtype="datetime64[M]").astype("datetime64[ns]")
    lat, lon = np.arange(-58.0, 59.0, 2.0), np.arange(122.0, 290.0, 2.0)
    x, y = np.meshgrid(lon, lat)
    tongue = np.exp(-((y / 12) ** 2) - ((x - 230) / 45) ** 2) - 0.35 * np.exp(
        -(((abs(y) - 28) / 14) ** 2) - ((x - 180) / 50) ** 2
    )
    wave = np.sin(np.deg2rad(3 * x)) * np.cos(np.deg2rad(2 * y))
    slow = np.convolve(rng.standard_normal(len(time) + 23), np.hanning(24), "valid")
    season = np.cos(np.arange(len(time)) * np.pi / 6)
    values = slow[:, None, None] * tongue + 0.4 * rng.standard_normal((len(time), 1, 1)) * wave
    values = values + 5 * season[:, None, None] * np.sin(np.deg2rad(y))
    values += 0.3 * rng.standard_normal(values.shape)
    land = (x < 150 - 0.5 * abs(y + 25)) & (y < -10) | (x > 250 + 0.4 * abs(y - 10)) & (y > 8)
    land |= (x > 284 - 0.1 * abs(y + 20)) & (y < 8)
    values[:, land] = np.nan
    coords = {"time": time, "lat": lat, "lon": lon}
    return xr.DataArray(values, coords, ("time", "lat", "lon"), name="sst")


def eof(ax: Any) -> None:
    """The leading EOF, the seasonal cycle taken out in the same pass."""
    model = streampca.PCA(3, weights="coslat", remove="month", progress=False)
    pattern = model.fit(field(), dim="time").eof_.eofs().isel(component=0)
    pattern = pattern * np.sign(float(pattern.sel(lat=2, lon=230)))
    ax.set_facecolor("#d9d4c7")
    most = float(abs(pattern).max())
    ax.pcolormesh(pattern.lon, pattern.lat, pattern, cmap="RdBu_r", vmin=-most, vmax=most)
    ax.set_title(f"A field: EOF 1, {model.explained_variance_ratio_[0]:.0%} of the variance")
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
