"""Chunks of a sparse store that blocks share: decoded once in a pass, whatever its lanes."""

from __future__ import annotations

import pickle
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import scipy.sparse
import zarr

import streampca
from streampca.matrix import select
from streampca.sources.sparse.matrices import CompressedMatrix
from streampca.sources.sparse.shared_chunks import SharedChunks


def written(path: Path, values: Any, data: int, indices: int) -> str:
    """A CSR matrix as AnnData keeps it, in chunks of so many entries."""
    group = zarr.create_group(str(path))
    group.attrs["encoding-type"] = "anndata"
    x = group.create_group("X")
    x.attrs.update({"encoding-type": "csr_matrix", "encoding-version": "0.1.0"})
    x.attrs["shape"] = list(values.shape)
    for name, size in (("data", data), ("indices", indices), ("indptr", 10**6)):
        x.create_array(name, data=getattr(values, name), chunks=(size,))
    return str(path)


@pytest.fixture
def values() -> Any:
    return scipy.sparse.random_array((3000, 40), density=0.2, rng=np.random.default_rng(0)).tocsr()


@pytest.mark.parametrize(("data", "indices"), [(500, 500), (500, 130), (97, 640), (25_000, 25_000)])
@pytest.mark.parametrize("derived", [False, True])
def test_a_pass_reads_every_chunk_once(
    tmp_path: Path, values: Any, data: int, indices: int, derived: bool
) -> None:
    path = written(tmp_path / "x", values, data, indices)
    source = streampca.open(path)
    matrix = select(source, features=np.arange(3, 30)) if derived else source
    entries = len(values.data)
    chunks = -(-entries // data) + -(-entries // indices)
    for threads in (1, 2, 4):
        model = streampca.RandomProjection(5, threads=threads, progress=False).fit(matrix)
        assert model.plan_.reads == chunks
        source.restart_counts()
        scores = model.transform(matrix)
        assert source.reads().chunks == chunks
        dense = values.toarray()[:, 3:30] if derived else values.toarray()
        np.testing.assert_allclose(scores, dense @ model.components_.T, atol=1e-12)


def test_any_order_of_blocks_finds_the_same_entries(tmp_path: Path, values: Any) -> None:
    """Of blocks that begin anywhere; then each again, and what is no block."""
    source = streampca.open(written(tmp_path / "x", values, 610, 170))
    assert isinstance(source, CompressedMatrix)
    rng = np.random.default_rng(1)
    for _ in range(10):
        edges = np.unique([0, *rng.choice(2999, 12) + 1, 3000])
        laid = source.streamed(0, edges)
        laid.restart_counts()
        for again in (False, True):
            for i in rng.permutation(len(edges) - 1):
                found = laid.read(0, edges[i], edges[i + 1])
                assert (found != values[edges[i] : edges[i + 1]]).nnz == 0
            if not again:
                every = source.count_pass(0, [edges])
                assert laid.reads().chunks == every
                assert not laid.shared._kept
        assert (laid.read(0, 17, 1203) != values[17:1203]).nnz == 0


def test_what_is_kept_is_the_rest(tmp_path: Path, values: Any) -> None:
    """A block that comes before its neighbour leaves a line of it, not a chunk."""
    source = streampca.open(written(tmp_path / "x", values, 1000, 1000))
    edges = source.chunk_edges(0)
    laid = source.streamed(0, edges)
    laid.read(0, edges[3], edges[4])
    kept = sorted(len(one.values) for one in laid.shared._kept.values())
    assert kept[0] == kept[1] < 40
    assert kept[2] == kept[3] > 900
    copies = pickle.loads(pickle.dumps(laid)), laid.part(0, int(edges[4]), int(edges[5]))
    for copy in copies:
        assert isinstance(copy.shared, SharedChunks)
        assert not copy.shared._kept
        found = copy.read(0, int(edges[4]), int(edges[5]))
        assert (found != values[edges[4] : edges[5]]).nnz == 0


def test_rows_of_a_pass_that_begins_within_a_chunk(tmp_path: Path, values: Any) -> None:
    source = streampca.open(written(tmp_path / "x", values, 333, 333))
    model = streampca.PCA(3, progress=False).fit(select(source, samples=np.arange(100, 2900)))
    expected = streampca.PCA(3, progress=False).fit(values.toarray()[100:2900])
    np.testing.assert_allclose(model.explained_variance_, expected.explained_variance_)
