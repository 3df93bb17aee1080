"""What Dask users hand over, on every kind of scheduler: right values, each chunk read once.

Rows are what is done to an array before it is given to a model; columns are where it runs. On
threads the tests are fast; those on worker processes are slow.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import nullcontext
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from typing import Any

import dask
import dask.array as da
import numpy as np
import pytest
import scipy.sparse
import xarray as xr
import zarr
from local_clusters import start_client, stop_client

import streampca
from streampca.imported import HEAVY

N, P, CHUNK, K = 360, 12, 30, 3
CHUNKS = N // CHUNK
TOL = 1e-12

# (row, column) of work that is under way elsewhere: these must fail until it is there
ON_CLUSTERS = ("one process", "two processes", "ambient client")
COLUMNS = ["threads", *ON_CLUSTERS]


def make_values() -> np.ndarray[Any, Any]:
    """(N, P) float64 whose components are far apart."""
    rng = np.random.default_rng(15)
    turn = np.linalg.qr(rng.normal(size=(P, P)))[0]
    return rng.normal(size=(N, P)) * 1.5 ** -np.arange(P) @ turn + rng.normal(size=P)


VALUES = make_values()
MASK = np.random.default_rng(16).random((N, P)) < 0.05
ZEROS = np.where(np.random.default_rng(17).random((N, P)) < 0.5, 0.0, VALUES)


def averaged(x: Any) -> Any:
    """Each row and its neighbours at a distance of 2; beyond the ends nothing is there."""
    return x[2:-2] + (x[4:] + x[:-4]) / 2


def overlapping(x: Any) -> Any:
    whole = da.map_overlap(_with_borders, x, depth={0: 2, 1: 0}, boundary="none", meta=x._meta)
    return whole[2:-2]


def _with_borders(x: Any) -> Any:
    out = np.zeros_like(x)
    out[2:-2] = averaged(x)
    return out


def rechunked(method: str, *chunks: Any) -> Callable[..., Any]:
    def build(x: Any, client: Any) -> Any:
        with dask.config.set({"array.rechunk.method": method}):
            return x.rechunk(chunks)

    return build


def persisted(x: Any, client: Any) -> Any:
    return client.persist(x)


def scattered(x: Any, client: Any) -> Any:
    """An array of futures of arrays that were sent to the workers."""
    blocks = [VALUES[i : i + CHUNK] for i in range(0, N, CHUNK)]
    futures = client.scatter(blocks, hash=False)  # Dask loses what is scattered again by name
    parts = [da.from_delayed(dask.delayed(future), (CHUNK, P), dtype="f8") for future in futures]
    return da.concatenate(parts)


def standardised(x: Any) -> Any:
    return (x - x.mean(0)) / x.std(0)


def data_frame(x: Any, client: Any) -> Any:
    pytest.importorskip("pyarrow")
    dd = pytest.importorskip("dask.dataframe")
    return dd.from_dask_array(x, columns=[f"c{i}" for i in range(P)])


def labelled(x: Any, client: Any) -> Any:
    array = xr.DataArray(x, dims=("time", "place"), coords={"place": np.arange(x.shape[1])})
    return array.rename("field")


def masked(x: Any, client: Any) -> Any:
    return da.ma.masked_array(x, da.from_array(MASK, chunks=(CHUNK, P)))


@dataclass(frozen=True)
class Row:
    """One thing that is done to an array.

    build : of the array and a client.  expected : of the values, the values that come out.
    most : times that a chunk may be read.  least : times that it must be.
    big : whether it can be planned for a large array without making that array.
    """

    build: Callable[[Any, Any], Any]
    expected: Callable[[Any], Any] = lambda values: values
    most: int = 1
    least: int = 1
    dim: Any = None
    missing: str = "raise"
    big: bool = True
    source: Any = None


ROWS: dict[str, Row] = {
    "path": Row(lambda x, client: x),
    "persisted": Row(persisted, big=False),
    "persisted, standardised": Row(
        lambda x, client: standardised(client.persist(x)), standardised, most=3, big=False
    ),
    "standardised": Row(lambda x, client: standardised(x), standardised, most=3),
    "rows by tasks": Row(rechunked("tasks", 70, -1)),
    "columns by tasks": Row(rechunked("tasks", -1, 5)),
    "both by tasks": Row(rechunked("tasks", 70, 5)),
    "rows by p2p": Row(rechunked("p2p", 70, -1)),
    "columns by p2p": Row(rechunked("p2p", -1, 5)),
    "both by p2p": Row(rechunked("p2p", 70, 5)),
    "overlap": Row(lambda x, client: overlapping(x), averaged, most=2),
    "reshape": Row(lambda x, client: x.reshape((N, 3, P // 3)), dim=0, big=False),
    "scattered": Row(scattered, big=False),
    "data frame": Row(data_frame, big=False),
    "xarray": Row(labelled),
    "masked": Row(masked, lambda values: np.where(MASK, np.nan, values), missing="mean", big=False),
    "sparse": Row(
        lambda x, client: x.map_blocks(scipy.sparse.csr_array, dtype=x.dtype),
        source=ZEROS,
        big=False,
    ),
}


@pytest.fixture(scope="module")
def two_threads() -> Iterator[Any]:
    """A client of one worker process with two threads."""
    client = start_client(1, threads_per_worker=2)
    yield client
    stop_client(client)


@pytest.fixture(autouse=True)
def _many_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Small data in many blocks and spans. Plans are made here; workers need not know."""
    monkeypatch.setattr("streampca.passes.blocks.BLOCK_NBYTES", 8 * 64 * P)
    monkeypatch.setattr("streampca.passes.blocks.BLOCK_LENGTH", 64)


@pytest.fixture
def stored(tmp_path: Path) -> Callable[[Any], da.Array]:
    """Makes a Zarr array of chunks of rows, opened by Dask."""

    def store(values: Any) -> da.Array:
        path = tmp_path / "x.zarr"
        array = zarr.create_array(path, shape=values.shape, chunks=(CHUNK, P), dtype="f8")
        array[:] = values
        return da.from_zarr(str(path))

    return store


# an ambient client is found in one place, and is then what "two processes" has; one process
# computes what two do
USUAL = ("path", "persisted", "rows by p2p", "scattered", "data frame")


def cells() -> Iterator[Any]:
    """Every row in every column."""
    for name, column in product(ROWS, COLUMNS):
        marks = [pytest.mark.slow] if column != "threads" or needs_cluster(name) else []
        if column in ("one process", "ambient client") and name not in USUAL:
            marks = [pytest.mark.soak]
        yield pytest.param(name, column, marks=marks, id=f"{name}-{column}")


def needs_cluster(name: str) -> bool:
    """Whether the data of a row lie on a cluster, wherever the model runs."""
    return name.startswith(("scattered", "persisted")) or "p2p" in name


def place(request: pytest.FixtureRequest, name: str, column: str) -> tuple[Any, Any]:
    """(the client that holds data, what the model is told)."""
    if column == "threads":
        client = request.getfixturevalue("two_processes") if needs_cluster(name) else None
        return client, "threads"
    fixture = "two_threads" if column == "one process" else "two_processes"
    client = request.getfixturevalue(fixture)
    return client, None if column == "ambient client" else client


def oracle(values: Any) -> tuple[Any, Any, Any]:
    """(mean, variances, components) by NumPy; holes are the mean of their column."""
    mean = np.nanmean(values, axis=0)
    centred = np.where(np.isnan(values), 0.0, values - mean)
    _, s, vt = np.linalg.svd(centred, full_matrices=False)
    return mean, s[:K] ** 2 / (len(values) - 1), vt[:K]


@pytest.mark.parametrize(("name", "column"), list(cells()))
def test_values_and_reads(
    name: str, column: str, request: pytest.FixtureRequest, stored: Callable[[Any], da.Array]
) -> None:
    row = ROWS[name]
    client, scheduler = place(request, name, column)
    values = VALUES if row.source is None else row.source
    mean, variances, components = oracle(row.expected(values))
    with nullcontext() if client is None else client.as_current():
        x = row.build(stored(values), client)
        model = streampca.PCA(
            K, svd_solver="scatter", missing=row.missing, scheduler=scheduler, progress=False
        )
        model.fit(x, dim=row.dim)
        np.testing.assert_allclose(model.mean_, mean, rtol=TOL, atol=TOL)
        np.testing.assert_allclose(model.explained_variance_, variances, rtol=TOL)
        cosines = np.abs(np.einsum("kp,kp->k", model.components_, components))
        np.testing.assert_allclose(cosines, 1.0, rtol=TOL)
        reads = sum(one.reads for one in model.cost_)
        assert row.least * CHUNKS <= reads <= row.most * CHUNKS
        scores = model.transform(x, dim=row.dim)
        assert dask.is_dask_collection(scores)
        with dask.config.set(scheduler="threads" if client is None else client.get):
            found = np.asarray(scores.compute())
    filled = np.where(np.isnan(row.expected(values)), mean, row.expected(values))
    expected = (filled - mean) @ model.components_.T
    np.testing.assert_allclose(found, expected, rtol=1e-10, atol=1e-10)


BIG, WIDE, TALL = 500_000, 512, 8192
RATIO = 1.5  # of the planned memory to that of the path, at most


def without_libraries(plan: streampca.Plan) -> int:
    """Planned bytes, but for those of libraries: what they bring depends on what is installed."""
    libraries = {name: n for name, n in plan.memory["process"].items() if name in HEAVY}
    return int(plan.peak_nbytes - sum(libraries.values()))


def planned() -> Iterator[Any]:
    """The rows that can be planned for an array that nobody makes."""
    for name, row in ROWS.items():
        if row.big and name != "path":
            yield name


@pytest.mark.parametrize("name", list(planned()))
def test_planned_memory_and_reads(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of an array of 1 GB whose chunks nobody has written: a plan reads nothing."""
    monkeypatch.undo()
    path = str(tmp_path / "big.zarr")
    zarr.create_array(path, shape=(BIG, WIDE), chunks=(TALL, WIDE), dtype="f4")
    model = streampca.PCA(20, svd_solver="scatter", scheduler="threads")
    plan = model.plan(path)
    if "by" in name:
        method = name.split()[-1]
        chunks = (20_000 if "columns" not in name else -1, -1 if "rows" in name else 100)
        x = rechunked(method, *chunks)(da.from_zarr(path), None)
    else:
        x = ROWS[name].build(da.from_zarr(path), None)
    found = model.plan(x)
    assert without_libraries(found) <= RATIO * without_libraries(plan)
    reads = sum(one.reads for one in found.passes)
    assert reads <= ROWS[name].most * -(-BIG // TALL)
