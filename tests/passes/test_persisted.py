"""Chunks on a cluster of worker processes: folded where they lie, fetched by nobody else."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable
from typing import Any

import dask
import dask.array as da
import distributed
import numpy as np
import pytest

import streampca
from streampca import PCA
from streampca.errors import ClusterError, InvalidInputError, InvalidTypeError, NoAnswerError
from streampca.matrix.location import Brought, Held, laid_out
from streampca.passes import Advance
from streampca.passes.cluster import placement as placements
from streampca.passes.cluster.placement import Lay, Placement

ROWS, COLUMNS, CHUNK = 1200, 12, 100


@pytest.fixture(scope="module")
def values() -> Any:
    rng = np.random.default_rng(0)
    return rng.standard_normal((ROWS, COLUMNS)) * np.arange(1.0, COLUMNS + 1) + 5.0


@pytest.fixture
def chunked(values: Any) -> Any:
    return da.from_array(values, chunks=(CHUNK, COLUMNS))


@pytest.fixture
def nothing_fetched(monkeypatch: Any) -> None:
    """This process may not ask for a chunk."""

    def fetch(held: Held) -> Any:
        raise AssertionError(f"chunk {held.future} came to the client")

    monkeypatch.setattr(Held, "__call__", fetch)


@pytest.fixture
def workers(two_processes: Any) -> list[str]:
    return sorted(two_processes.nthreads())


def fit(X: Any, **more: Any) -> Any:
    return PCA(3, progress=False, **more).fit(X)


def same(one: Any, other: Any) -> bool:
    return all(
        np.array_equal(getattr(one, name), getattr(other, name))
        for name in ("components_", "explained_variance_", "mean_")
    )


def right(model: Any, values: Any) -> bool:
    expected = np.linalg.eigvalsh(np.cov(values.T))[::-1][:3]
    return np.allclose(model.explained_variance_, expected, rtol=1e-12)


def persisted_at(client: Any, x: Any, where: list[str]) -> Any:
    """The chunks of x, each on the worker that is said, in turn."""
    futures = [
        client.persist(x.blocks[i], workers=[where[i % len(where)]]) for i in range(x.numblocks[0])
    ]
    with client.as_current():
        distributed.wait(distributed.futures_of(futures))
    return da.concatenate(futures)


@pytest.mark.usefixtures("nothing_fetched")
def test_persisted_without_naming_a_scheduler(
    two_processes: Any, chunked: Any, values: Any
) -> None:
    """The client that holds the futures is not the ambient one, and is found."""
    model = fit(two_processes.persist(chunked))
    assert right(model, values)
    (cost,) = model.cost_
    assert (cost.reads, cost.moved) == (ROWS // CHUNK, 0)


def test_same_bits_wherever_it_is_folded(two_processes: Any, chunked: Any) -> None:
    x = two_processes.persist(chunked)
    there = fit(x, scheduler=two_processes)
    here = fit(x, scheduler="threads")
    assert same(there, here)
    (cost,) = here.cost_
    assert cost.moved == cost.nbytes == ROWS * COLUMNS * 8  # block by block, as was asked


def test_bits_follow_the_blocks_and_not_the_place(two_processes: Any, chunked: Any) -> None:
    """Chunks on a cluster are read as computed ones are: few at a time. Stored ones are not."""
    there = fit(two_processes.persist(chunked.astype("f4")))
    computed = fit(chunked.astype("f4").map_blocks(np.positive), scheduler="threads")
    assert same(there, computed)
    stored = fit(da.from_array(chunked.astype("f4").compute(), chunks=chunked.chunks))
    assert len(stored.plan_.passes) == len(there.plan_.passes) == 1
    assert there.plan_.passes[0].n_blocks == ROWS // CHUNK > stored.plan_.passes[0].n_blocks
    np.testing.assert_allclose(
        stored.explained_variance_, there.explained_variance_, rtol=4 * np.finfo("f4").eps
    )


def test_the_same_cluster_by_its_address(two_processes: Any, chunked: Any, values: Any) -> None:
    x = two_processes.persist(chunked)
    assert right(fit(x, scheduler=two_processes.scheduler.address), values)


@pytest.mark.usefixtures("nothing_fetched")
@pytest.mark.parametrize("halves", [True, False])
def test_persisted_chunks_are_folded_on_their_workers(
    two_processes: Any, chunked: Any, values: Any, workers: list[str], halves: bool
) -> None:
    where = sorted(workers * (ROWS // CHUNK // 2)) if halves else workers
    model = fit(persisted_at(two_processes, chunked, where))
    assert right(model, values)
    assert model.cost_[0].moved == 0


@pytest.mark.usefixtures("nothing_fetched")
def test_operands_of_all_strips_are_computed_there(
    two_processes: Any, chunked: Any, values: Any
) -> None:
    x = two_processes.persist(chunked)
    scaled = (values - values.mean(0)) / values.std(0)
    y = (x - x.mean(0)) / x.std(0)
    model = fit(y)
    assert right(model, scaled)
    assert model.cost_[0].moved == 0
    assert right(fit(two_processes.persist(y)), scaled)


def test_operands_that_are_too_large_are_not_brought(
    two_processes: Any, chunked: Any, monkeypatch: Any
) -> None:
    monkeypatch.setattr("streampca.sources.dask.sharing.PREPARED_NBYTES", 10)
    x = two_processes.persist(chunked)
    with pytest.raises(InvalidInputError, match="cannot be kept"):
        fit(x - x.mean(0))


@pytest.mark.usefixtures("nothing_fetched")
@pytest.mark.parametrize("kind", ["from_delayed", "dict", "nested", "sliced", "rechunked"])
def test_scattered(two_processes: Any, values: Any, kind: str) -> None:
    pieces = two_processes.scatter(np.split(values, ROWS // CHUNK), hash=False)
    (whole,) = two_processes.scatter([values], hash=False)

    def chunk(value: Any) -> Any:
        return da.from_delayed(value, (CHUNK, COLUMNS), values.dtype)

    one = da.from_delayed(whole, values.shape, values.dtype)
    sizes = ((CHUNK,) * len(pieces), (COLUMNS,))
    X = {
        "from_delayed": lambda: da.concatenate([chunk(piece) for piece in pieces]),
        "dict": lambda: da.Array(
            {("scattered", i, 0): piece for i, piece in enumerate(pieces)},
            "scattered",
            sizes,
            values.dtype,
        ),
        "nested": lambda: da.concatenate(
            [chunk(dask.delayed(first)([{"value": piece}, 1])) for piece in pieces]
        ),
        "sliced": lambda: one[::2],
        "rechunked": lambda: one.rechunk((CHUNK, -1)),
    }[kind]()
    model = fit(X)
    assert right(model, values[::2] if kind == "sliced" else values)
    if kind == "rechunked":
        assert model.plan_.passes[0].n_blocks == ROWS // CHUNK  # slices of one share nothing


def first(given: Any) -> Any:
    return given[0]["value"]


@pytest.mark.usefixtures("nothing_fetched")
def test_futures_as_x(two_processes: Any, values: Any, monkeypatch: Any) -> None:
    monkeypatch.setattr("streampca.sources.dask.arrays.PIECE_NBYTES", values.nbytes // 4)
    (whole,) = two_processes.scatter([values], hash=False)
    model = fit(whole)
    assert right(model, values)
    assert model.cost_[0].reads == 4
    assert right(fit(two_processes.scatter(np.split(values, 5), hash=False)), values)


def test_a_future_of_a_frame_keeps_its_names(two_processes: Any, values: Any) -> None:
    pd = pytest.importorskip("pandas")
    names = [f"c{i}" for i in range(COLUMNS)]
    (frame,) = two_processes.scatter([pd.DataFrame(values, columns=names)], hash=False)
    model = fit(frame)
    assert right(model, values)
    assert list(model.feature_names_in_) == names


def with_offset(chunk: Any, offset: Any = 0.0) -> Any:
    return chunk + (offset[0] if isinstance(offset, list) else offset)


@pytest.mark.parametrize("how", ["argument", "named", "in a list"])
@pytest.mark.usefixtures("nothing_fetched")
def test_a_future_among_the_arguments_of_map_blocks(
    two_processes: Any, chunked: Any, values: Any, how: str
) -> None:
    """It says where to run, as a chunk does that lies on a cluster."""
    offset = np.arange(COLUMNS, dtype=float)
    future = two_processes.scatter(offset, hash=False)
    args = [future] if how == "argument" else []
    named = {"named": {"offset": future}, "in a list": {"offset": [future]}}.get(how, {})
    model = fit(chunked.map_blocks(with_offset, *args, **named, dtype="f8"))
    assert right(model, values)
    np.testing.assert_allclose(model.mean_, values.mean(0) + offset, rtol=1e-12)


def too_slowly(chunk: Any) -> Any:
    time.sleep(1.0)
    return chunk


def test_operands_on_a_cluster_that_does_not_answer(two_processes: Any, chunked: Any) -> None:
    x = two_processes.persist(chunked)
    late = x - x.blocks[:2].map_blocks(too_slowly, dtype="f8").mean(0)
    with (
        dask.config.set({"streampca.read-timeout": 0.2}),
        pytest.raises(NoAnswerError, match=r"operands .* within 0.2 s .*streampca.read-timeout"),
    ):
        fit(late)


def test_a_future_given_as_x_that_never_comes(two_processes: Any, values: Any) -> None:
    (there,) = two_processes.scatter([values], hash=False)
    late = two_processes.submit(too_slowly, there, pure=False)
    with (
        dask.config.set({"streampca.read-timeout": 0.2}),
        pytest.raises(NoAnswerError, match=r"futures given as X .* within 0.2 s"),
    ):
        streampca.open(late)


def test_futures_are_looked_for_once(two_processes: Any, chunked: Any, monkeypatch: Any) -> None:
    matrix = streampca.open(two_processes.persist(chunked))
    assert len(matrix.futures()) == ROWS // CHUNK
    monkeypatch.setattr("streampca.sources.dask.graph.held_of", None)
    assert len(matrix.futures()) == ROWS // CHUNK


def test_futures_of_something_else(two_processes: Any, values: Any) -> None:
    (number,) = two_processes.scatter([1])
    with pytest.raises(InvalidTypeError, match=r"future of builtins.int.*client.persist"):
        streampca.open(number)
    with pytest.raises(InvalidInputError, match=r"rows of \(12,\); \(3,\)"):
        streampca.open(two_processes.scatter([values, values[:, :3]], hash=False))


def test_another_cluster_is_refused(two_processes: Any, one_process: Any, chunked: Any) -> None:
    x = two_processes.persist(chunked)
    with pytest.raises(InvalidInputError, match=r"X lies on the cluster at .* names the one at"):
        fit(x, scheduler=one_process)


def test_scattered_data_that_was_released(two_processes: Any, values: Any) -> None:
    (whole,) = two_processes.scatter([values], hash=False)
    X = da.from_delayed(whole, values.shape, values.dtype)
    whole.cancel()
    with pytest.raises(ClusterError, match=r"1 of 1 chunks of X are lost.*scatter it again"):
        fit(X)


def test_fit_in_a_task_on_a_persisted_array(two_processes: Any, chunked: Any) -> None:
    x = two_processes.persist(chunked)
    there = two_processes.submit(fit, x, pure=False).result(timeout=60)
    assert same(there, fit(x))


def test_a_matrix_of_futures_pickled_for_a_task(two_processes: Any, chunked: Any) -> None:
    matrix = streampca.open(two_processes.persist(chunked))
    sent = matrix.part(0, CHUNK, 3 * CHUNK)
    found = two_processes.submit(read, sent, CHUNK, 3 * CHUNK, pure=False).result(timeout=60)
    np.testing.assert_array_equal(found, chunked[CHUNK : 3 * CHUNK].compute(scheduler="sync"))
    there = two_processes.submit(fit, matrix, pure=False).result(timeout=60)
    assert same(there, fit(matrix))


def read(matrix: Any, start: int, stop: int) -> Any:
    return matrix.read(0, start, stop)


def test_chunks_that_two_workers_share_are_brought_once(
    two_processes: Any, values: Any, workers: list[str]
) -> None:
    """Only what is missing travels: columns lie on one worker each."""
    x = da.from_array(values, chunks=(CHUNK, COLUMNS // 2))
    left = two_processes.persist(x[:, : COLUMNS // 2], workers=workers[:1])
    right_half = two_processes.persist(x[:, COLUMNS // 2 :], workers=workers[1:])
    model = fit(da.concatenate([left, right_half], axis=1))
    assert right(model, values)
    assert model.cost_[0].moved == values.nbytes // 2


@pytest.mark.slow
def test_a_worker_that_dies_with_its_chunks(new_client: Callable[..., Any], chunked: Any) -> None:
    expected = fit(chunked.map_blocks(slowly, dtype=chunked.dtype), scheduler="threads")
    client = new_client(2)
    x = client.persist(chunked)
    victim = next(iter(client.cluster.workers.values())).pid
    kills = [victim]

    def kill(advance: Advance) -> None:
        if kills and advance.blocks_done >= 3:
            os.kill(kills.pop(), signal.SIGKILL)

    slow = x.map_blocks(slowly, dtype=x.dtype)
    model = PCA(3, progress=kill).fit(slow)
    assert not kills
    assert same(model, expected)
    client.wait_for_workers(2, timeout=60)  # a nanny that is starting one does not close


def slowly(chunk: Any) -> Any:
    time.sleep(0.1)
    return chunk


@pytest.mark.slow
def test_workers_that_leave_with_their_chunks(new_client: Callable[..., Any], chunked: Any) -> None:
    """Retired, removed by an adaptive cluster, restarted: no span waits for them."""
    expected = fit(chunked.map_blocks(slowly, dtype=chunked.dtype), scheduler="threads")
    client = new_client(3)

    def left(leave: Callable[[], Any]) -> Any:
        leaves = [leave]

        def progress(advance: Advance) -> None:
            if leaves and advance.blocks_done >= 2:
                leaves.pop()()

        model = PCA(3, progress=progress).fit(x.map_blocks(slowly, dtype=x.dtype))
        assert not leaves
        return model

    def retire() -> None:
        client.sync(client.scheduler.retire_workers, workers=[min(client.nthreads())])

    x = client.persist(chunked)
    assert same(left(retire), expected)
    x = client.persist(chunked + 0)
    assert same(left(lambda: client.cluster.adapt(minimum=1, maximum=1, interval="50ms")), expected)
    while len(client.nthreads()) > 1:
        time.sleep(0.05)
    client.cluster.adapt(minimum=2, maximum=2)
    client.wait_for_workers(2, timeout=60)
    with pytest.raises(ClusterError, match=r"of 12 chunks of X are lost on the cluster"):
        left(client.restart)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::streampca.errors.StuckWorkerWarning")  # it may seem silent
def test_a_worker_with_other_work_gives_its_spans_away(
    two_processes: Any, chunked: Any, workers: list[str]
) -> None:
    x = persisted_at(two_processes, chunked, workers)
    done = distributed.Event(client=two_processes)
    other = two_processes.submit(until, done.name, workers=workers[:1], pure=False)
    with dask.config.set({"streampca.pause-timeout": 2.0}):
        model = fit(x)
    assert other.status == "pending"
    assert model.cost_[0].moved > 0
    assert same(model, fit(x, scheduler="threads"))
    done.set()
    other.result()


def until(event: str) -> None:
    distributed.Event(event).wait()


@pytest.mark.slow
def test_workers_that_come_get_work(new_client: Callable[..., Any], chunked: Any) -> None:
    """All chunks lie on the first worker, which has more to do than its share then."""
    expected = fit(chunked.map_blocks(slowly, dtype=chunked.dtype), scheduler="threads")
    client = new_client(1)
    x = client.persist(chunked.map_blocks(slowly, dtype=chunked.dtype))
    client.cluster.scale(2)
    client.wait_for_workers(2)
    model = fit(x.map_blocks(slowly, dtype=chunked.dtype))
    assert same(model, expected)


@pytest.mark.slow
def test_most_bytes_are_folded_where_they_lie(two_processes: Any) -> None:
    """The acceptance of 95 %: 200,000 x 256, wherever Dask put the chunks."""
    x = two_processes.persist(da.random.default_rng(0).random((200_000, 256), chunks=(5000, 256)))
    model = fit(x)
    (cost,) = model.cost_
    assert cost.nbytes == 200_000 * 256 * 8
    assert cost.moved <= 0.05 * cost.nbytes


def test_values_are_laid_out_as_new_ones() -> None:
    raw = np.zeros(81, np.uint8)
    odd = raw[1:].view(np.float64)
    assert not odd.flags.aligned
    assert laid_out(odd).flags.aligned
    turned = np.asfortranarray(np.ones((3, 4)))
    assert laid_out(turned) is turned
    assert laid_out(np.ones((4, 4))[::2, ::2]).flags.c_contiguous
    assert laid_out([1]) == [1]


def test_what_is_brought_counts_once_for_a_worker() -> None:
    lay = Lay("a pass", ("x", "y"), (("a",), ("b",)))
    assert lay.missing("a") == [False, True]
    assert lay.missing("a") == [False, False]
    assert lay.missing("b") == [True, False]
    brought = Brought(np.ones(3), away=True)
    assert (brought.moved(24), brought.moved(24)) == (24, 0)


def test_what_is_brought_counts_once_for_each_of_many_workers_in_a_process() -> None:
    lay = Lay("a pass of many", ("x",), (("elsewhere",),))
    names = [f"worker {i}" for i in range(20)]
    assert [lay.missing(name) for name in names] == [[True]] * 20
    assert [lay.missing(name) for name in names] == [[False]] * 20
    for i in range(50):  # other passes: what is over is forgotten
        Lay(f"pass {i}", ("x",), ((),)).missing("a")
    assert len(placements._brought) <= placements.REMEMBERED


class Somewhere:
    """A client of workers that hold what a test says."""

    def __init__(self, where: dict[str, list[str]], threads: dict[str, int]) -> None:
        self.where, self.threads = where, threads

    def nthreads(self) -> dict[str, int]:
        return self.threads

    def who_has(self, futures: Any) -> dict[str, Any]:
        return {one: self.where[one] for one in futures}

    def nbytes(self, keys: Any, summary: bool) -> dict[str, int]:
        return dict.fromkeys(keys, 10)

    def scheduler_info(self, n_workers: int) -> dict[str, Any]:
        return {"workers": {one: {"last_seen": 0.0} for one in self.threads}}


class Key:
    status = "finished"

    def __init__(self, key: str) -> None:
        self.key = key


@pytest.fixture
def place(monkeypatch: Any) -> Callable[..., Placement]:
    monkeypatch.setattr(Placement, "_finished", lambda self: None)
    monkeypatch.setattr("streampca.passes.cluster.placement.LOOK_SECONDS", 0.0)

    def made(where: dict[str, list[str]], *workers: str) -> Placement:
        client = Somewhere(where, dict.fromkeys(workers, 1))
        return Placement(client, map(Key, where), "pass")

    return made


def choice(placement: Placement, keys: str, workers: list[str] | None = None) -> Any:
    return placement.choose(placement.lay(map(Key, keys)), workers)


def test_a_span_goes_where_most_of_it_lies(place: Callable[..., Placement]) -> None:
    placement = place({"x": ["a"], "y": ["b"], "z": ["b"]}, "a", "b")
    assert choice(placement, "xyz") == ["b"]
    assert choice(placement, "x") == ["a"]
    assert choice(placement, "x", ["b"]) == ["b"]  # a gets none any more


def test_the_scheduler_decides_where_one_worker_holds_too_much(
    place: Callable[..., Placement],
) -> None:
    placement = place({"x": ["a"], "y": ["a"], "z": ["a"]}, "a", "b")
    assert choice(placement, "x") is None


def test_chunks_of_a_worker_that_went_are_looked_for(place: Callable[..., Placement]) -> None:
    placement = place({"x": ["a"], "y": ["b"], "z": ["c"]}, "a", "b", "c")
    assert choice(placement, "x") == ["a"]
    placement.client.threads = {"b": 1, "c": 1}
    placement.client.where["x"] = []
    assert choice(placement, "x") is None
    placement.client.where["x"] = ["c"]  # computed again
    assert choice(placement, "x") == ["c"]


def test_futures_of_frames_whose_columns_differ_are_refused(two_processes: Any) -> None:
    pd = pytest.importorskip("pandas")
    one = pd.DataFrame(np.arange(12.0).reshape(6, 2), columns=["a", "b"])
    for other in (one[["b", "a"]], one.set_axis([0, 1], axis=1), one.to_numpy()):
        with pytest.raises(InvalidInputError, match="columns differ"):
            streampca.open(two_processes.scatter([one, other], hash=False))


@pytest.mark.parametrize("when", ["before", "while spans are sent"])
def test_chunks_that_the_cluster_lost_are_not_waited_for(
    two_processes: Any, when: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Dask waits for ever for what was scattered and released behind a client's back."""
    client = two_processes
    blocks = [np.random.default_rng(i).normal(size=(500, 8)) for i in range(6)]
    futures = client.scatter(blocks, hash=False)
    parts = [da.from_delayed(dask.delayed(one), (500, 8), dtype="f8") for one in futures]
    lost = [futures[-1].key]

    def lose(*_: Any) -> None:
        client._send_to_scheduler({"op": "client-releases-keys", "keys": lost, "client": client.id})
        while client.sync(client.scheduler.get_task_status, keys=lost)[lost[0]] is not None:
            time.sleep(0.05)

    if when == "before":
        lose()
    else:
        lay = Placement.lay
        monkeypatch.setattr(Placement, "lay", lambda *args: (lose(), lay(*args))[1])
    model = streampca.PCA(2, svd_solver="scatter", scheduler=client, progress=False)
    with (
        dask.config.set({"streampca.pause-timeout": 1}),
        pytest.raises(ClusterError, match=r"1 of 6 chunks of X are lost on the cluster"),
    ):
        model.fit(da.concatenate(parts))
