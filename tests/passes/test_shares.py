"""How computed chunks are shared out: by their number, the same on any number of workers."""

from __future__ import annotations

import time
from typing import Any

import dask
import dask.array as da
import numpy as np
import pytest
import zarr

import streampca
from streampca import PCA
from streampca.passes import block_edges
from streampca.passes.records import blocks_per_span, shares, span_length


def costly(block: Any) -> Any:
    time.sleep(0.25)
    return block


def blocks(matrix: Any, axis: int = 0) -> int:
    return len(block_edges(matrix, axis)) - 1


def test_small_chunks_that_are_computed_are_blocks_of_their_own() -> None:
    x = da.ones((400, 8), chunks=(10, 8)).map_blocks(np.sqrt)
    matrix = streampca.open(x)
    assert matrix.computes
    assert blocks(matrix) == 40
    assert blocks_per_span(matrix, 0, np.arange(41)) == 1


def test_plain_reads_go_by_bytes(tmp_path: Any) -> None:
    array = zarr.create_array(tmp_path / "x.zarr", shape=(400, 8), chunks=(10, 8), dtype="f8")
    array[:] = 1.0
    for x in (da.from_zarr(array), da.from_zarr(array)[5:], da.from_array(np.ones((400, 8)), 10)):
        matrix = streampca.open(x)
        assert not matrix.computes
        assert blocks(matrix) == 1
    assert streampca.open(da.from_zarr(array) + 1).computes


def test_many_small_chunks_make_a_bounded_number_of_blocks() -> None:
    x = da.ones((3000, 8), chunks=(1, 8)) + 1
    matrix = streampca.open(x)
    edges = block_edges(matrix, 0)
    assert len(edges) - 1 <= 256
    assert np.diff(edges).max() == -(-3000 // 256)


@pytest.mark.parametrize(("across", "expected"), [(10, 256), (1024, 128), (4096, 32)])
def test_shares_cost_at_most_a_gibibyte_of_merging(across: int, expected: int) -> None:
    assert shares(across) == expected


def test_views_and_joins_tell_what_they_read() -> None:
    computed = streampca.open(da.ones((40, 4), chunks=(4, 4)) + 1)
    plain = streampca.open(np.ones((40, 4)))
    assert streampca.concat_features(plain, computed).computes
    assert not streampca.concat_features(plain, plain).computes
    assert plain.carried_nbytes == 40 * 4 * 8
    assert blocks_per_span(plain, 0, np.arange(101)) == span_length(100, plain.shape[1]) == 2


@pytest.mark.slow
def test_costly_chunks_are_shared_by_all_workers(two_processes: Any) -> None:
    """The acceptance: 40 chunks of .25 s, at most 1.2 times what Dask takes for their sum."""
    values = np.random.default_rng(0).standard_normal((40, 20, 8))
    pieces = [da.from_delayed(late(block), (20, 8), float) for block in values]
    D = da.concatenate(pieces)
    PCA(2, progress=False, scheduler=two_processes).fit(D[:40])  # imports
    begun = time.perf_counter()
    two_processes.compute(D.sum()).result()
    theirs = time.perf_counter() - begun
    begun = time.perf_counter()
    model = PCA(2, progress=False, scheduler=two_processes).fit(D)
    ours = time.perf_counter() - begun
    assert ours <= 1.2 * theirs
    here = PCA(2, progress=False, scheduler="threads").fit(D)
    np.testing.assert_array_equal(model.components_, here.components_)


def late(block: Any) -> Any:
    return dask.delayed(costly, pure=True)(block)
