"""How computed chunks are shared out: by their number, the same on any number of workers."""

from __future__ import annotations

import importlib
import os
import time
from collections import Counter
from pathlib import Path
from typing import Any

import dask
import dask.array as da
import numpy as np
import pytest
import zarr

import streampca
from streampca import PCA
from streampca.passes import block_edges
from streampca.passes.blocks import blocks_per_span, shares, span_length


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
def test_costly_chunks_are_shared_by_all_workers(two_processes: Any, tmp_path: Path) -> None:
    """Each of 40 chunks is computed once, about half of them by each of two workers."""
    values = np.random.default_rng(0).standard_normal((40, 20, 8))
    pieces = [late(block, i, str(tmp_path)) for i, block in enumerate(values)]
    D = da.concatenate([da.from_delayed(one, (20, 8), float) for one in pieces])
    two_processes.run(importlib.import_module, "streampca.passes.records")
    model = PCA(2, progress=False, scheduler=two_processes).fit(D)
    found = [line.split() for one in tmp_path.iterdir() for line in one.read_text().splitlines()]
    assert sorted(int(chunk) for chunk, _ in found) == list(range(40))
    by_worker = Counter(worker for _, worker in found)
    assert len(by_worker) == 2
    assert min(by_worker.values()) >= 10
    here = PCA(2, progress=False, scheduler="threads").fit(np.concatenate(values))
    np.testing.assert_allclose(model.components_, here.components_, atol=1e-12)


@dask.delayed(pure=True)  # type: ignore[untyped-decorator]
def late(block: Any, i: int, folder: str) -> Any:
    """A chunk that tells where it is computed, and takes much longer than to be sent there."""
    with open(f"{folder}/{os.getpid()}", "a") as file:
        file.write(f"{i} {os.getpid()}\n")
    time.sleep(0.1)
    return block
