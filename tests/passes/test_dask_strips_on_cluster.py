"""Dask graphs whose strips share chunks, on worker processes."""

import dask.array as da
import numpy as np
import pytest

import streampca
from streampca.passes import blocks

pytestmark = pytest.mark.slow


def overlapped(x):
    """Rows with their neighbours two rows away."""

    def spread(block):
        padded = np.pad(block, ((2, 2), (0, 0)))
        return padded[:-4] + padded[2:-2] + padded[4:]

    return da.map_overlap(spread, x, depth={0: 2, 1: 0}, boundary="none")


def by_columns(x):
    return x.rechunk((40, 8)).map_blocks(np.sort, axis=0).rechunk((40, 16))


GRAPHS = {
    "rows": lambda x: x.rechunk((60, -1)),
    "columns": lambda x: x.rechunk((-1, 5)) * 2,
    "between workers": lambda x: x.rechunk((60, 5), method="p2p"),
    "between workers, in the middle": lambda x: x.rechunk((60, 5), method="p2p").map_blocks(
        np.sort
    ),
    "overlap": overlapped,
    "rechunked and overlapped": lambda x: overlapped(by_columns(x)),
    "standardised overlap": lambda x: (lambda y: (y - y.mean(0)) / y.std(0))(overlapped(x)),
    "running sum": lambda x: x.cumsum(0),
}


@pytest.mark.parametrize("name", GRAPHS)
def test_the_same_bits_and_reads_on_workers(name, monkeypatch, two_processes):
    monkeypatch.setattr(blocks, "BLOCK_NBYTES", 40 * 16 * 8)
    monkeypatch.setattr(blocks, "BLOCK_LENGTH", 1)
    x = da.random.RandomState(3).normal(size=(800, 16), chunks=(25, 16))
    x = GRAPHS[name](x)
    here = streampca.PCA(3, progress=False).fit(x)
    there = streampca.PCA(3, progress=False, scheduler=two_processes).fit(x)
    np.testing.assert_array_equal(here.components_, there.components_)
    np.testing.assert_array_equal(here.explained_variance_, there.explained_variance_)
    shared = here.plan_.prepare_reads
    for fit in (here, there):
        assert fit.cost_[0].reads == here.plan_.passes[0].reads + shared
    assert here.plan_.passes[0].reads <= 2 * 33
    with two_processes.as_current():
        values = x.compute()
    variances = np.linalg.eigvalsh(np.cov(values.T))[::-1][:3]
    np.testing.assert_allclose(here.explained_variance_, variances, rtol=1e-12)
