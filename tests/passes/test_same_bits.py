"""The same bits with 1, 3 and 16 threads, for every kind of pass and solver."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import zarr

import streampca as sp
from streampca.passes import blocks, limited_threads
from tests.golden import calls, holed, numbers, sparse

THREADS = (1, 3, 16)

Fit = Callable[[Path], list[Any]]


def results(model: Any, x: Any) -> list[Any]:
    model.set_params(progress=False).fit(x)
    names = ("components_", "singular_values_", "explained_variance_", "scores_", "mean_")
    return [found for name in names if (found := getattr(model, name, None)) is not None]


def of(model: Callable[[], Any], data: Callable[[], Any]) -> Fit:
    return lambda folder: results(model(), data())


def stored_scores(folder: Path) -> list[Any]:
    """Scores of a Zarr array, in a Zarr array."""
    x = numbers(3000, 100, "f4")
    zarr.create_array(str(folder / "x.zarr"), data=x, chunks=(250, 100))
    model = sp.PCA(3, progress=False).fit(str(folder / "x.zarr"))
    model.transform(str(folder / "x.zarr"), out=str(folder / "scores.zarr"))
    found = zarr.open_array(str(folder / "scores.zarr"), mode="r")
    return [model.components_, np.asarray(found[:])]


def pruned(folder: Path) -> list[Any]:
    g = calls(90, 3000)
    kept = sp.prune_ld(g, window=50, step=5, missing_value=-1, progress=False).kept
    return [kept, *results(sp.GenotypePCA(3), g[:, kept])]


def related(folder: Path) -> list[Any]:
    found = sp.kinship(calls(300, 3000), missing_value=-1, progress=False)
    return [found.shared, found.lost_het, found.lost_both, found.het, found.lost]


def imputed(folder: Path) -> list[Any]:
    x = holed(numbers(1500, 120), 0.3)
    model = sp.HardImpute(2, max_passes=4, progress=False).fit(x)
    return [model.components_, model.transform(x)]


def pca(solver: str, **more: Any) -> Callable[[], Any]:
    return partial(sp.PCA, 4, svd_solver=solver, **more)


def int8() -> Any:
    return calls(900, 2500)


CASES: dict[str, Fit] = {
    "scatter": of(pca("scatter"), partial(numbers, 3000, 100, "f4")),
    "scatter, wide": of(pca("scatter"), partial(numbers, 2000, 1000, "f4")),
    "scatter, float64": of(pca("scatter"), partial(numbers, 1500, 900)),
    "scatter with holes": of(
        pca("scatter", missing="mean"), lambda: holed(numbers(1500, 80), 0.05)
    ),
    "tsqr": of(pca("tsqr"), partial(numbers, 3000, 100)),
    "gram, int8": of(pca("gram", missing="mean", missing_value=-1), int8),
    "gram, int8 by sample": of(pca("gram"), lambda: np.ascontiguousarray(np.abs(int8()))),
    "gram, int8 by feature": of(pca("gram"), lambda: np.asfortranarray(np.abs(int8()))),
    "gram": of(pca("gram"), partial(numbers, 900, 3000, "f4")),
    "gram with holes": of(
        pca("gram", missing="mean"), lambda: holed(numbers(900, 1500), 0.05).astype("f4")
    ),
    "gram, scaled": of(pca("gram", scale="std"), partial(numbers, 300, 3000)),
    "krylov": of(pca("randomized"), partial(numbers, 3000, 200, "f4")),
    "krylov, sparse": of(pca("randomized"), partial(sparse, 3000, 200)),
    "krylov, sparse by feature": of(pca("randomized"), partial(sparse, 200, 3000, "csc")),
    "sketch": of(pca("sketch"), partial(numbers, 3000, 200)),
    "incremental": of(partial(sp.IncrementalPCA, 3), partial(numbers, 3000, 100)),
    "hard impute": imputed,
    "ppca": of(partial(sp.PPCA, 3), partial(numbers, 3000, 100)),
    "ppca of holes": of(partial(sp.PPCA, 3, missing="em"), lambda: holed(numbers(1500, 60), 0.1)),
    "factor analysis": of(partial(sp.FactorAnalysis, 3), partial(numbers, 3000, 60)),
    "genotypes, pruned": pruned,
    "kinship": related,
    "scores in Zarr": stored_scores,
}


def digest(values: list[Any]) -> str:
    found = hashlib.sha256()
    for value in values:
        found.update(np.ascontiguousarray(value).tobytes())
    return found.hexdigest()


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::UserWarning")
@pytest.mark.parametrize("name", CASES)
def test_bits_do_not_depend_on_threads(name: str, tmp_path: Path, monkeypatch: Any) -> None:
    monkeypatch.setattr(blocks, "BLOCK_NBYTES", 1 << 17)  # many blocks, and so many spans
    found = {}
    for threads in THREADS:
        folder = tmp_path / str(threads)
        folder.mkdir()
        with limited_threads(threads):
            values = CASES[name](folder)
        assert values
        found[threads] = digest(values)
    assert len(set(found.values())) == 1, found
