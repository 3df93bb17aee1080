"""The total of a pass lies on a worker while it goes on, and nothing is lost with it."""

from __future__ import annotations

import asyncio
import os
import signal
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import dask
import numpy as np
import pytest
from pass_matrices import Sum, ToyMatrix, Unread, by_hand, run, same_bits, toy_plan, wild

from streampca import PCA
from streampca.accumulators import Accumulator
from streampca.errors import ClusterError, InvalidInputError
from streampca.passes import Advance, PassResult
from streampca.passes.checkpoint import Checkpoint
from streampca.passes.cluster import merging, parcel
from streampca.passes.cluster.flight import Flight
from streampca.passes.cluster.merging import RemoteTotal
from streampca.passes.cluster.parcel import LostError, Parcel
from streampca.passes.cluster.worker_memory import memory_used_where_room
from streampca.passes.lanes import SpanResult

SPANS = 24  # of two blocks


class Log:
    """What went where.

    merged : spans merged on a worker.  came : spans that came whole.  keepers : workers that had
    the total.  brought : how often it came.
    """

    def __init__(self) -> None:
        self.merged: list[int] = []
        self.came: list[int] = []
        self.keepers: list[str] = []
        self.brought = 0


@pytest.fixture
def log(monkeypatch: Any) -> Log:
    seen = Log()
    merge, fetched, taken = RemoteTotal.merge, RemoteTotal.fetched, Flight._fetched

    def spy_merge(self: Any, number: int, span: Any) -> Any:
        if (result := merge(self, number, span)) is not None:
            seen.merged.append(number)
            assert not result.accumulators
        if seen.keepers[-1:] != [self.keeper]:
            seen.keepers.append(self.keeper)
        return result

    def spy_fetched(self: Any, *args: Any, **more: Any) -> Any:
        found = fetched(self, *args, **more)
        seen.brought += 1
        return found

    def spy_taken(self: Any, span: Any, patience: float) -> Any:
        seen.came.append(span.number)
        return taken(self, span, patience)

    monkeypatch.setattr(RemoteTotal, "merge", spy_merge)
    monkeypatch.setattr(RemoteTotal, "fetched", spy_fetched)
    monkeypatch.setattr(Flight, "_fetched", spy_taken)
    return seen


def summed(
    scheduler: Any, spans: int = SPANS, accumulator: Accumulator | None = None, **more: Any
) -> PassResult:
    matrix = ToyMatrix(wild(20 * spans, 6))
    return run(
        toy_plan(matrix, step=10, span=2),
        matrix,
        accumulators={"s": accumulator or Sum()},
        execution=by_hand(scheduler=scheduler, **more),
    )


def state(done: PassResult) -> dict[str, Any]:
    return done["s"].state() | {name: getattr(done.cost, name) for name in ("reads", "blocks")}


def test_traffic_to_the_client_does_not_grow_with_the_matrix(two_threads: Any, log: Log) -> None:
    """The last spans in flight, and the total once, however long the pass is."""
    lengths = (8, 24, 72)
    for spans in lengths:
        assert same_bits(state(summed("threads", spans)), state(summed(two_threads, spans)))
    assert log.merged == [i for spans in lengths for i in range(spans - 4)]
    assert log.came == [i for spans in lengths for i in range(spans - 4, spans)]
    assert log.brought == len(lengths)


def test_a_short_pass_is_merged_here(two_threads: Any, log: Log) -> None:
    assert same_bits(state(summed("threads", 4)), state(summed(two_threads, 4)))
    assert not log.merged
    assert log.came == [0, 1, 2, 3]


def test_the_total_is_fetched_once_an_interval(two_threads: Any, log: Log, tmp_path: Path) -> None:
    """And goes on where it is; a checkpoint is written each time."""
    seen: list[int] = []

    def progress(advance: Advance) -> None:
        seen.append(advance.blocks_done)

    done = summed(two_threads, checkpoint=str(tmp_path), every=0.0, progress=progress)
    assert same_bits(state(summed("threads")), state(done))
    assert log.brought == SPANS - 4 + 1
    assert len(log.keepers) == 1
    assert seen == [2 * i for i in range(1, SPANS + 1)]


failures: list[int] = []  # rows that were merged before


class FailsThere(Sum):
    """Its merge fails once, on a worker."""

    def merge(self, other: Any) -> None:
        there = threading.current_thread().name.startswith("asyncio")
        if there and not failures and self.rows > 60:
            failures.append(self.rows)
            raise MemoryError("no room on this worker")
        super().merge(other)


def test_a_merge_that_fails_on_a_worker_is_done_here(two_threads: Any, log: Log) -> None:
    """Spans that were merged or in flight are folded again; each is counted and told once."""
    failures.clear()
    seen: list[int] = []

    def progress(advance: Advance) -> None:
        seen.append(advance.blocks_done)

    done = summed(two_threads, accumulator=FailsThere(), progress=progress)
    assert same_bits(state(summed("threads")), state(done))
    first = failures[0] // 20  # spans that were in it
    assert log.merged[:first] == list(range(first))
    again = log.came[: first + 4]
    assert again == list(range(first + 4))  # here, with those in flight
    assert log.merged[first:] == list(range(first + 4, SPANS - 4))
    assert seen == [2 * i for i in range(1, SPANS + 1)]


class Refuses(Sum):
    """Its merge raises an error of ours."""

    def merge(self, other: Any) -> None:
        if self.rows > 100:
            raise InvalidInputError("no more than a hundred rows")
        super().merge(other)


def test_an_error_of_ours_is_raised_as_it_is(two_threads: Any, log: Log) -> None:
    with pytest.raises(InvalidInputError, match="no more than a hundred rows"):
        summed(two_threads, accumulator=Refuses())
    assert log.merged
    assert not log.came


def test_ctrl_c_keeps_what_was_merged(two_threads: Any, log: Log, tmp_path: Path) -> None:
    stop_at = 20

    def progress(advance: Advance) -> None:
        if advance.blocks_done == stop_at:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        summed(two_threads, checkpoint=str(tmp_path), progress=progress)
    assert log.brought == 1
    done = summed(two_threads, checkpoint=str(tmp_path))
    assert done.cost.resumed_blocks == stop_at
    assert same_bits(summed("threads")["s"].state(), done["s"].state())


def test_ctrl_c_while_a_span_is_merged_keeps_it(
    two_threads: Any, log: Log, tmp_path: Path, monkeypatch: Any
) -> None:
    merge = RemoteTotal.merge

    def interrupted(self: Any, number: int, span: Any) -> Any:
        result = merge(self, number, span)
        if number == 9:
            raise KeyboardInterrupt
        return result

    with monkeypatch.context() as patch:
        patch.setattr(RemoteTotal, "merge", interrupted)
        with pytest.raises(KeyboardInterrupt):
            summed(two_threads, checkpoint=str(tmp_path))
    done = summed(two_threads, checkpoint=str(tmp_path))
    assert done.cost.resumed_blocks == 20
    assert same_bits(summed("threads")["s"].state(), done["s"].state())


def test_a_worker_that_lost_a_total_gets_none_again(
    two_threads: Any, log: Log, monkeypatch: Any
) -> None:
    lost: list[str] = []
    merge = RemoteTotal.merge

    def fails(self: Any, number: int, span: Any) -> Any:
        if len(self.client.nthreads()) > len(lost) < 2:
            lost.append(self.keeper)
            raise LostError("gone")
        return merge(self, number, span)

    monkeypatch.setattr(RemoteTotal, "merge", fails)
    assert same_bits(state(summed("threads")), state(summed(two_threads)))
    assert sorted(lost) == sorted(two_threads.nthreads())
    assert not log.merged


def test_a_disk_that_is_full_does_not_hide_the_first_error(
    two_threads: Any, log: Log, tmp_path: Path, monkeypatch: Any
) -> None:
    def full(*args: Any) -> None:
        raise OSError(28, "No space left on device")

    def progress(advance: Advance) -> None:
        if advance.blocks_done == 20:
            raise InvalidInputError("the first error")

    monkeypatch.setattr(Checkpoint, "save", full)
    monkeypatch.setattr(Checkpoint, "save_if_due", full)
    with pytest.raises(InvalidInputError, match="the first error") as caught:
        summed(two_threads, checkpoint=str(tmp_path), progress=progress)
    assert "no checkpoint could be written" in caught.value.__notes__[0]


def test_a_span_that_comes_here_alone_is_merged_here(
    two_threads: Any, log: Log, monkeypatch: Any
) -> None:
    """The worker that merges does not reach the one that has it; nobody is blamed for it."""

    async def nothing(*args: Any) -> None:
        return None

    monkeypatch.setattr(parcel, "_brought", nothing)
    with dask.config.set({"streampca.pause-timeout": 0.1}):
        done = summed(two_threads)
    assert same_bits(state(summed("threads")), state(done))
    assert not log.merged


class KilledWorker(Exception):
    """As Dask says that workers died of a task."""


def test_the_span_that_workers_die_of_is_named(
    two_threads: Any, log: Log, monkeypatch: Any
) -> None:
    """Though the total was lost with them, and the pass is back at its beginning."""
    taken = Flight._taken

    def dies(self: Any, span: Any, *args: Any) -> Any:
        if span.number == 3:
            raise KilledWorker
        return taken(self, span, *args)

    def gone(self: Any, *args: Any, **more: Any) -> Any:
        raise LostError("gone")

    monkeypatch.setattr(Flight, "_taken", dies)
    monkeypatch.setattr(RemoteTotal, "fetched", gone)
    with pytest.raises(ClusterError, match="blocks 6 to 7: every worker that folded them died"):
        summed(two_threads)
    assert log.merged == [0, 1, 2]


@pytest.mark.slow
def test_the_worker_that_merges_dies(new_client: Any, log: Log) -> None:
    client = new_client(2, memory_limit=0)
    pids = client.run(os.getpid)

    def progress(advance: Advance) -> None:
        if advance.blocks_done == 20:
            os.kill(pids[log.keepers[0]], signal.SIGKILL)

    done = summed(client, progress=progress)
    assert same_bits(state(summed("threads")), state(done))
    assert 0 in log.merged
    assert 0 in log.came  # folded again


def held(
    client: Any, keeper: str, empty: Accumulator | None = None, patience: float = 20.0
) -> tuple[RemoteTotal, Any]:
    """A total on this worker, and two spans that are ready to be merged."""

    def result(i: int) -> Parcel:
        one = Sum()
        one.total, one.rows = np.full(3, float(i)), 1
        return Parcel(SpanResult({"s": one}, [], n_blocks=i))

    total = RemoteTotal(client, keeper, {"s": empty or Sum()}, 0, patience)
    futures = [client.submit(result, i, pure=False) for i in (0, 1)]
    for future in futures:
        future.result()
    return total, futures


def test_spans_are_taken_in_order_and_once(two_threads: Any) -> None:
    keeper = min(two_threads.nthreads())
    total, (first, second) = held(two_threads, keeper)
    with pytest.raises(LostError, match="waits for span 0, and 1 came"):
        total.merge(1, second)
    assert total.merge(0, first).n_blocks == 0  # type: ignore[union-attr]
    with pytest.raises(LostError, match="waits for span 1, and 0 came"):
        total.merge(0, first)
    with pytest.raises(LostError, match="waits for span 1, and 2 came"):
        total.fetched(2)
    before = total.fetched(1)[0]["s"]
    total.merge(1, second)
    assert before.rows == 1  # a copy: the one there goes on
    found, ahead = total.fetched(2, last=True)
    assert (found["s"].rows, ahead) == (2, None)
    with pytest.raises(LostError):
        total.fetched(2)  # not kept


def test_a_span_that_its_worker_has_not_is_not_merged(two_threads: Any) -> None:
    total, (first, _) = held(two_threads, min(two_threads.nthreads()), patience=0.5)

    def forget(key: str, dask_worker: Any) -> None:
        dask_worker.data.pop(key, None)

    two_threads.run(forget, first.key)
    assert total.merge(0, first) is None
    assert total.fetched(0)[0]["s"].rows == 0


def test_a_worker_that_is_gone_has_lost_it(two_threads: Any, monkeypatch: Any) -> None:
    monkeypatch.setattr(merging, "TOTAL_LOOK_SECONDS", 0.1)
    keeper = min(two_threads.nthreads())
    total, (first, _) = held(two_threads, keeper)
    two_threads.retire_workers([keeper])
    with pytest.raises(LostError, match=f"the total on worker {keeper}"):
        total.merge(0, first)


goes_on = threading.Event()


class Hangs(Sum):
    """Its merge takes until it is let go."""

    def merge(self, other: Any) -> None:
        goes_on.wait(30)


def test_a_worker_that_is_not_heard_of_has_lost_it(two_threads: Any, monkeypatch: Any) -> None:
    """It does not answer, and its connection is still there."""
    keeper = min(two_threads.nthreads())
    monkeypatch.setattr(merging, "TOTAL_LOOK_SECONDS", 0.1)
    monkeypatch.setattr(merging, "running", lambda client: {keeper: "silent"})
    total, (first, _) = held(two_threads, keeper, Hangs())
    try:
        with pytest.raises(LostError, match="not heard of"):
            total.merge(0, first)
    finally:
        goes_on.set()


def kept() -> set[str]:
    """Totals of all workers of this process, by their keys. Those of earlier tests may go."""
    return set().union(*list(parcel._totals.values()))


def test_a_total_that_nobody_wants_is_dropped(two_threads: Any, monkeypatch: Any) -> None:
    monkeypatch.setattr(parcel, "EXPIRY_SECONDS", 0.02)
    before = kept()
    total, (first, _) = held(two_threads, min(two_threads.nthreads()))
    total.merge(0, first)
    time.sleep(0.1)
    (mine,) = kept() - before
    total.release()
    deadline = time.monotonic() + 60
    while mine in kept():
        assert time.monotonic() < deadline
        time.sleep(0.01)


def test_nothing_is_left_on_the_workers(two_threads: Any, log: Log) -> None:
    """Neither a total nor the spans that were brought to it."""

    def spans(dask_worker: Any) -> int:
        return sum("streampca" in str(key) for key in dask_worker.data)

    before = kept()
    for _ in range(3):
        summed(two_threads)
        assert kept() <= before
    deadline = time.monotonic() + 60
    while any(two_threads.run(spans).values()):  # those that were let go of last
        assert time.monotonic() < deadline
        time.sleep(0.05)


def test_a_span_on_its_way_is_not_in_what_is_fetched(two_threads: Any, monkeypatch: Any) -> None:
    """Whoever waited for it gave up; it arrives afterwards."""
    total, (first, _) = held(two_threads, min(two_threads.nthreads()))
    begun, arrives, brought = threading.Event(), threading.Event(), parcel._brought

    async def late(*args: Any) -> Any:
        begun.set()
        while not arrives.is_set():
            await asyncio.sleep(0.01)
        return await brought(*args)

    monkeypatch.setattr(parcel, "_brought", late)
    with ThreadPoolExecutor(1) as pool:
        merging = pool.submit(total.merge, 0, first)
        assert begun.wait(60)
        found, ahead = total.fetched(0)
        arrives.set()
        assert merging.result().n_blocks == 0  # type: ignore[union-attr]
    assert (found["s"].rows, ahead) == (0, None)


half_way = threading.Event()


class Waits(Sum):
    """Its merge is in two halves, and waits between them."""

    def merge(self, other: Any) -> None:
        self.rows += other.rows
        half_way.set()
        goes_on.wait(30)
        self.rows -= other.rows
        super().merge(other)


def test_a_span_that_is_being_merged_is_in_what_is_fetched(two_threads: Any) -> None:
    """It is waited for, and what it gave comes with it."""
    goes_on.clear()
    half_way.clear()
    total, (first, _) = held(two_threads, min(two_threads.nthreads()), Waits())
    with ThreadPoolExecutor(2) as pool:
        merging = pool.submit(total.merge, 0, first)
        assert half_way.wait(60)
        fetching = pool.submit(total.fetched, 0)
        time.sleep(0.2)
        assert not fetching.done()
        goes_on.set()
        found, ahead = fetching.result()
        merging.result()
    assert found["s"].rows == 1
    assert ahead is not None
    assert ahead.n_blocks == 0


def test_a_worker_of_another_version_does_not_merge(two_threads: Any, monkeypatch: Any) -> None:
    older = {**parcel.our_versions(), "numpy": "1.0"}
    monkeypatch.setattr(parcel, "our_versions", lambda: older)
    total, (first, _) = held(two_threads, min(two_threads.nthreads()))
    with pytest.raises(LostError, match=r"it has numpy 1.0, and the client"):
        total.merge(0, first)


class Crowd:
    """Workers of these memory limits, of one thread."""

    def __init__(self, *limits: int | None) -> None:
        self.limits = limits

    def scheduler_info(self, n_workers: int = 5) -> dict[str, Any]:
        assert n_workers == -1
        return {
            "workers": {
                f"w{i}": {
                    "memory_limit": limit,
                    "nthreads": 1,
                    "last_seen": 0.0,
                    "metrics": {"memory": i * 2**20},
                }
                for i, limit in enumerate(self.limits)
            }
        }


def test_only_a_worker_with_room_holds_the_total() -> None:
    """The total, a copy of it on its way, and a span that came, beside the lane."""
    plan = PCA(5, svd_solver="scatter").plan(Unread((100_000, 4000), "float32", (1000, 4000)))
    (one,) = plan.passes
    terms, process = plan.memory[one.name], plan.memory["process"]
    planned = min(plan.lanes, len(one.spans))
    folded, partial = terms["folded accumulators"], terms["partial accumulators"] // planned
    assert folded > 64 * 2**20
    rest = sum(v for k, v in terms.items() if "accumulators" not in k and k != "kept arrays")
    lane = rest // planned + 2 * partial + terms["kept arrays"]
    least = lane + 2 * folded + 2 * partial + process["interpreter"]
    client = Crowd(least, least + 2**30, None, 0)  # Dask's own libraries are in between
    assert memory_used_where_room(client, plan, one.name) == {
        "w1": 2**20,
        "w2": 2 * 2**20,
        "w3": 3 * 2**20,
    }


def test_all_spans_are_merged_here_where_no_worker_has_room(
    two_threads: Any, log: Log, monkeypatch: Any
) -> None:
    monkeypatch.setattr("streampca.passes.cluster.merging.memory_used_where_room", lambda *args: {})
    assert same_bits(state(summed("threads")), state(summed(two_threads)))
    assert not log.merged
    assert log.came == list(range(SPANS))
