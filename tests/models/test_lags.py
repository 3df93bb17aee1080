"""Extended EOFs: PCA of rows beside earlier ones, as it is of the stacked array and of xeofs."""

from __future__ import annotations

import importlib.util
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import scipy.sparse
import xarray as xr
import zarr

import streampca
from streampca import PCA, lagged
from streampca.errors import InvalidInputError
from streampca.matrix import SpanCache, reading_with

RNG = np.random.default_rng(0)
N, LAT, LON = 60, 3, 4
X = np.cumsum(RNG.standard_normal((N, LAT * LON)), axis=0)
FIELD = xr.DataArray(
    X.reshape(N, LAT, LON),
    dims=("time", "lat", "lon"),
    coords={"time": pd.date_range("2000-01-01", periods=N), "lat": [0.0, 10.0, 20.0]},
    name="sst",
    attrs={"units": "K"},
)
LAGS = [(0, 1, 2), (5, 0), (-2, 3, 1), (-4, -1), (2, 4), (0,)]
QUIET: dict[str, Any] = {"progress": False}


def stacked(x: np.ndarray, lags: tuple[int, ...]) -> tuple[np.ndarray, np.ndarray]:
    """(rows, the numbers of the times that they have)."""
    times = np.arange(len(x))
    kept = times[[all(0 <= t - lag < len(x) for lag in (0, *lags)) for t in times]]
    return np.hstack([x[kept - lag] for lag in lags]), kept


@pytest.mark.parametrize("lags", LAGS)
def test_every_block_is_that_of_the_stacked_array(tmp_path: Path, lags: tuple[int, ...]) -> None:
    zarr.create_array(str(tmp_path / "x.zarr"), data=X, chunks=(7, 5))
    expected, _ = stacked(X, lags)
    sparse = scipy.sparse.csr_array(np.where(X > 1, X, 0))
    for source, whole in (
        (str(tmp_path / "x.zarr"), expected),
        (X, expected),
        (sparse, stacked(sparse.toarray(), lags)[0]),
    ):
        matrix = lagged(source, lags)
        assert matrix.shape == expected.shape
        for axis, step in ((0, 7), (0, 2), (1, 5), (1, 9)):
            edges = np.append(np.arange(0, matrix.shape[axis], step), matrix.shape[axis])
            with reading_with(SpanCache()):
                blocks = [matrix.read(axis, int(a), int(b)) for a, b in pairwise(edges)]
            blocks += [matrix.read(axis, 3, 8)]  # of no span
            parts = [b if isinstance(b, np.ndarray) else b.toarray() for b in blocks]
            np.testing.assert_array_equal(np.concatenate(parts[:-1], axis=axis), whole)
            np.testing.assert_array_equal(parts[-1], whole[3:8] if axis == 0 else whole[:, 3:8])


def test_chunks_are_read_once_and_again_at_the_beginning_of_a_span(tmp_path: Path) -> None:
    zarr.create_array(str(tmp_path / "x.zarr"), data=X, chunks=(5, 12))
    matrix = lagged(str(tmp_path / "x.zarr"), (0, 1, 3))
    edges = matrix.chunk_edges(0)
    assert edges.tolist() == [0, *range(2, 57, 5), 57]
    with reading_with(SpanCache()):
        for a, b in pairwise(edges):
            matrix.read(0, int(a), int(b))
    assert matrix.reads().chunks == matrix.count_span(0, edges) == 12
    for span in (edges[:4], edges[3:]):
        matrix.restart_counts()
        with reading_with(SpanCache()):
            for a, b in pairwise(span):
                matrix.read(0, int(a), int(b))
        assert matrix.reads().chunks == matrix.count_span(0, span)
    apart = sum(matrix.count_chunks(0, int(a), int(b)) for a, b in pairwise(edges))
    shared = sum(matrix.count_shared(0, int(b), int(b)) for b in edges[1:-1])
    assert apart - shared == 12
    model = PCA(2, **QUIET).fit(matrix)
    assert model.cost_[0].reads == model.plan_.reads


@pytest.mark.parametrize("solver", ["auto", "scatter", "gram", "tsqr", "arpack"])
def test_a_pca_of_lags_has_maps_of_every_lag(solver: str) -> None:
    lags = (0, 2, 4)
    expected, _ = stacked(X, lags)
    model = PCA(3, svd_solver=solver, **QUIET).fit(lagged(FIELD, lags, dim="time"))
    direct = PCA(3, svd_solver="full", **QUIET).fit(expected)
    np.testing.assert_allclose(model.explained_variance_, direct.explained_variance_, rtol=1e-9)
    np.testing.assert_allclose(model.components_, direct.components_, atol=1e-8)
    found = model.result_.to_xarray()
    assert found.components.dims == ("component", "lag", "lat", "lon")
    assert found.lag.values.tolist() == list(lags)
    np.testing.assert_array_equal(found.lat, FIELD.lat)
    scores = model.transform(lagged(FIELD, lags, dim="time"))
    np.testing.assert_allclose(scores, direct.transform(expected), atol=1e-8)


def test_rows_have_the_labels_of_their_times() -> None:
    matrix = lagged(FIELD, (-1, 2), dim="time")
    _, kept = stacked(X, (-1, 2))
    np.testing.assert_array_equal(matrix.labels.samples.coords["time"], FIELD.time.values[kept])


def test_several_variables_keep_their_dimensions(tmp_path: Path) -> None:
    both = xr.Dataset({"sst": FIELD, "index": FIELD.mean("lon")})
    model = PCA(2, **QUIET).fit(lagged(both, (0, 1), dim="time"))
    found = model.result_.to_xarray()
    assert found.components_sst.dims == ("component", "lag", "lat", "lon")
    assert found.components_index.dims == ("component", "lag", "lat")
    parts = [stacked(one, (0, 1))[0] for one in (X, X.reshape(N, LAT, LON).mean(2))]
    direct = PCA(2, **QUIET).fit(np.hstack(parts))
    np.testing.assert_allclose(model.explained_variance_, direct.explained_variance_, rtol=1e-9)
    model.save(tmp_path / "m")
    assert streampca.load(tmp_path / "m").result_.labels.features.parts["sst"].dims[0] == "lag"


@pytest.mark.skipif(
    importlib.util.find_spec("xeofs") is None,
    reason="xeofs is not installed: pip install 'streampca[peers]'",
)
@pytest.mark.filterwarnings("ignore")
def test_as_extended_eofs_of_xeofs() -> None:
    from xeofs.single import ExtendedEOF

    tau, embedding = 3, 4
    theirs = ExtendedEOF(n_modes=3, tau=tau, embedding=embedding, solver="full")
    theirs.fit(FIELD, dim="time")
    lags = range(0, -tau * embedding, -tau)
    ours = PCA(3, **QUIET).fit(lagged(FIELD, lags, dim="time"))
    np.testing.assert_allclose(
        ours.explained_variance_, theirs.explained_variance().values, rtol=1e-8
    )
    maps = theirs.components().transpose("mode", "embedding", "lat", "lon").values
    mine = ours.result_.to_xarray().components.values
    signs = np.sign((maps * mine).sum(axis=(1, 2, 3), keepdims=True))
    np.testing.assert_allclose(mine * signs, maps, atol=1e-8)
    times = theirs.scores().dropna("time").time.values
    np.testing.assert_array_equal(ours.result_.labels.samples.coords["time"], times)


@pytest.mark.parametrize(
    ("lags", "message"),
    [
        ((), "expected distinct integers"),
        ((1, 1), "expected distinct integers"),
        ((0, 1.5), "has 1.5; expected integers"),
        ((0, 59), "of 60 rows leave 1; expected at least 2"),
    ],
)
def test_lags_that_make_no_rows_are_refused(lags: tuple[Any, ...], message: str) -> None:
    with pytest.raises(InvalidInputError, match=message):
        lagged(X, lags)


def test_samples_of_several_dimensions_are_refused() -> None:
    with pytest.raises(InvalidInputError, match="samples are time x lat; lags need one dimension"):
        lagged(FIELD, (0, 1), dim=["time", "lat"])
