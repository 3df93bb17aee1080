"""Fits as tasks of a Dask cluster, beside each other: the convention is ``dask.delayed``."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import dask
import dask.array as da
import numpy as np
import pytest
import zarr

from streampca import PCA

RANKS = [1, 2, 3, 4]


@pytest.fixture(scope="module")
def stored(tmp_path_factory: pytest.TempPathFactory) -> str:
    rng = np.random.default_rng(0)
    x = rng.normal(size=(120, 4)) * [8, 4, 2, 1] @ rng.normal(size=(4, 9))
    path: Path = tmp_path_factory.mktemp("beside") / "x.zarr"
    store = zarr.create_array(str(path), shape=x.shape, chunks=(30, 9), dtype=x.dtype)
    store[:] = x + rng.normal(size=x.shape)
    return str(path)


def same(found: Any, direct: Any) -> None:
    for name in ("components_", "explained_variance_", "mean_"):
        np.testing.assert_allclose(getattr(found, name), getattr(direct, name), rtol=1e-12)
    assert found.n_samples_ == direct.n_samples_


def test_concurrent_fits_of_a_store(two_processes: Any, stored: str) -> None:
    futures = two_processes.compute([dask.delayed(PCA(k).fit)(stored) for k in RANKS])
    found = two_processes.gather(futures)
    workers = {one for where in two_processes.who_has(futures).values() for one in where}
    assert len(workers) == 2
    for k, model in zip(RANKS, found, strict=True):
        same(model, PCA(k).fit(stored))
        assert model.transform(stored).shape == (120, k)


def test_concurrent_fits_of_an_array_in_tasks(two_processes: Any, stored: str) -> None:
    x = da.from_zarr(stored)  # Dask computes it for them
    found = dask.compute(*[dask.delayed(PCA(k).fit)(x) for k in RANKS], scheduler=two_processes)
    for k, model in zip(RANKS, found, strict=True):
        same(model, PCA(k).fit(stored))
