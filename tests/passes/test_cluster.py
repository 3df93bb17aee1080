"""The same pass on worker processes: same bits, and nothing lost with a worker."""

from __future__ import annotations

import _thread
import os
import random
import signal
import sys
import threading
import time
import uuid
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import dask
import numpy as np
import pytest
import zarr
from pass_matrices import Sum, ToyMatrix, Unread, by_hand, run, same_bits, toy_plan, wild
from test_checkpoint import goes_on

import streampca.sources
from streampca import PCA
from streampca.accumulators import CrossProduct, RFactor, Scatter
from streampca.errors import (
    ClusterError,
    InvalidInputError,
    MemoryLimitError,
    MemoryPlanWarning,
    NonFiniteError,
)
from streampca.passes import Advance, PassResult, check_workers, find_client
from streampca.passes.cluster import clients, cluster
from streampca.passes.cluster.parcel import Parcel
from streampca.passes.cluster.worker_memory import too_small
from streampca.passes.records import KEPT


@pytest.fixture
def submitted(monkeypatch: Any) -> list[str]:
    """Keys of all tasks that any client submits."""
    from distributed import Client

    keys: list[str] = []
    submit = Client.submit

    def spy(self: Any, *args: Any, **kwargs: Any) -> Any:
        keys.append(kwargs["key"])
        return submit(self, *args, **kwargs)

    monkeypatch.setattr(Client, "submit", spy)
    return keys


def fitted(source: Any, scheduler: Any = "threads", **more: Any) -> dict[str, Any]:
    model = PCA(**{"n_components": 3, "scheduler": scheduler, "progress": False} | more).fit(source)
    return {
        "components": model.components_,
        "variance": model.explained_variance_,
        "mean": model.mean_,
        "reads": [c.reads for c in model.cost_],
        "nbytes": [c.nbytes for c in model.cost_],
        "blocks": [c.blocks for c in model.cost_],
        "stored": [c.stored for c in model.cost_],
    }


# -- the same bits -----------------------------------------------------------------------------

FITS: dict[str, tuple[tuple[int, int], dict[str, Any]]] = {
    "scatter": ((6000, 24), {"svd_solver": "scatter"}),
    "scatter, scaled": ((6000, 24), {"svd_solver": "scatter", "scale": "std"}),
    "tsqr": ((6000, 24), {"svd_solver": "tsqr"}),
    "imputed": ((6000, 24), {"missing": "mean"}),
    "gram": ((30, 5000), {"svd_solver": "gram"}),
    "randomized": ((600, 500), {"svd_solver": "randomized", "scale": "std"}),
    "randomized, wide": ((500, 600), {"svd_solver": "randomized"}),
}


def data(shape: tuple[int, int], more: dict[str, Any]) -> np.ndarray:
    rng = np.random.default_rng(0)
    x = (rng.normal(size=shape) * rng.uniform(0.5, 3, size=shape[1]) + 5).astype(np.float32)
    if more.get("missing") == "mean":
        x[rng.random(shape) < 0.05] = np.nan
    return x


@pytest.mark.filterwarnings("ignore::streampca.errors.AccuracyWarning")  # it is noise
@pytest.mark.parametrize(
    ("kind", "name"),
    [
        *(("zarr", one) for one in FITS),
        ("numpy", "scatter"),
        ("numpy", "gram"),
        ("numpy", "randomized"),
    ],
)
def test_fit_gives_the_same_bits(
    one_process: Any, two_processes: Any, tmp_path: Path, kind: str, name: str, small_blocks: None
) -> None:
    shape, more = FITS[name]
    x = data(shape, more)
    source: Any = x
    if kind == "zarr":
        source = str(tmp_path / "x.zarr")
        zarr.create_array(
            source,
            data=x,
            chunks=(shape[0], shape[1] // 12)
            if shape[0] < shape[1]
            else (shape[0] // 12, shape[1]),
        )
    here = fitted(source, **more)
    assert here["blocks"][0] >= 5
    assert same_bits(here, fitted(source, one_process, **more))
    assert same_bits(here, fitted(source, two_processes, **more))


def test_a_pass_of_threads_goes_on_in_processes(two_processes: Any, tmp_path: Path) -> None:
    goes_on(tmp_path, 2, {"scheduler": two_processes})


@pytest.mark.parametrize(
    "runs", [pytest.param(5, marks=pytest.mark.slow), pytest.param(20, marks=pytest.mark.soak)]
)
def test_every_run_gives_the_same_bits(two_processes: Any, small_blocks: None, runs: int) -> None:
    x = data((6000, 24), {})
    here = fitted(x, svd_solver="tsqr")
    for _ in range(runs):
        assert same_bits(here, fitted(x, two_processes, svd_solver="tsqr"))


def test_threads_of_one_worker_give_the_same_bits(one_process: Any, small_blocks: None) -> None:
    """Tasks that share a process share its BLAS, and its thread count."""
    assert list(one_process.nthreads().values()) == [3]
    x = data((6000, 24), {})
    assert same_bits(fitted(x), fitted(x, one_process))
    assert same_bits(fitted(x, svd_solver="tsqr"), fitted(x, one_process, svd_solver="tsqr"))


def test_a_matrix_in_memory_travels_without_a_warning(two_processes: Any) -> None:
    x = np.random.default_rng(0).normal(size=(40_000, 64))  # 20 MB: distributed warns at 10
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert same_bits(fitted(x), fitted(x, two_processes))


@dataclass(frozen=True)
class Wide:
    """A map that carries an array, as a projection does."""

    q: np.ndarray

    def __call__(self, block: Any) -> np.ndarray:
        return block.dense() @ self.q


def test_arrays_arrive_aligned_and_layout_does_not_matter(everywhere: Any) -> None:
    """Arrays at odd addresses, or with gaps, go past BLAS, which rounds otherwise."""
    rng = np.random.default_rng(0)
    x, q = wild(120, 57), rng.normal(size=(57, 20, 2))[:, ::2, 1]  # with gaps
    side, turn = np.asfortranarray(rng.normal(size=(120, 50))), rng.normal(size=(50, 10))
    assert not q.flags.forc

    def program(execution: Any) -> dict[str, Any]:
        matrix = ToyMatrix(x)
        maps = {"y": operand_and_side, "z": Wide(q.copy())}
        done = run(
            toy_plan(matrix, step=7),
            matrix,
            operands={"q": q, "turn": turn},
            maps=maps,
            side_inputs={"side": side},
            execution=execution(),
            accumulators={
                "y": CrossProduct(y="y"),
                "z": CrossProduct(y="z"),
                "side": CrossProduct(y="side"),
            },
        )
        return {name: a.cross_product() for name, a in done.accumulators.items()}

    found = everywhere(program)
    size = np.abs(x.T) @ np.abs(x) @ np.abs(q)
    assert np.all(np.abs(found["y"] - x.T @ (x @ q + side @ turn)) < 1e-12 * size)
    assert np.all(np.abs(found["z"] - x.T @ (x @ q)) < 1e-12 * size)


def operand_and_side(block: Any) -> np.ndarray:
    assert block["q"].flags.aligned
    return block.dense() @ block["q"] + block["side"] @ block["turn"]


# -- which cluster -----------------------------------------------------------------------------


def test_ambient_client_is_used_and_threads_override_it(
    two_processes: Any, submitted: list[str], small_blocks: None, tmp_path: Path
) -> None:
    from distributed import Client

    x = str(tmp_path / "x.zarr")  # an array in memory would stay here
    zarr.create_array(x, data=data((2000, 24), {}), chunks=(500, 24))
    here = fitted(x, None)
    assert not submitted  # there is none
    with Client(two_processes.cluster.scheduler_address) as ambient:
        assert find_client(None) is ambient
        assert same_bits(here, fitted(x, None))
        assert submitted
        submitted.clear()
        assert find_client("threads") is None
        assert same_bits(here, fitted(x, "threads"))
        assert not submitted
    assert find_client(None) is None


def test_client_and_address(
    two_processes: Any, submitted: list[str], small_blocks: None, no_kept_clients: None
) -> None:
    x = data((2000, 24), {})
    here = fitted(x)
    assert same_bits(here, fitted(x, two_processes))
    assert submitted
    submitted.clear()
    address = two_processes.cluster.scheduler_address
    assert same_bits(here, fitted(x, address))
    assert submitted
    client = find_client(address)
    assert find_client(address) is client  # one connection, not one per pass
    assert find_client(None) is None  # and it does not become the ambient one
    client.close()
    assert find_client(address).status == "running"


@pytest.mark.parametrize(
    "bad", ["nowhere", "127.0.0.1:8786", "processes", 5, True, ["threads"]], ids=repr
)
def test_bad_scheduler(bad: Any) -> None:
    matrix = ToyMatrix(np.ones((20, 2)))
    with pytest.raises(InvalidInputError, match="expected None, 'threads', an address such as"):
        PCA(1, scheduler=bad).fit(matrix)
    assert not matrix.log


def test_inside_a_task_the_worker_is_the_machine(two_processes: Any) -> None:
    x = data((2000, 24), {})
    found = two_processes.submit(fitted, x, None, key=f"fit-{uuid.uuid4()}").result()
    assert same_bits(found, fitted(x))


# -- when a worker dies ------------------------------------------------------------------------


def killer(client: Any, every: bool = False) -> Callable[[Advance], None]:
    """A progress callback that kills one worker, or all, after the first span."""
    victims = list(client.run(os.getpid).values())[: None if every else 1]

    def kill(advance: Advance) -> None:
        while victims:
            os.kill(victims.pop(), signal.SIGKILL)

    return kill


def slow_pass(scheduler: Any, progress: Any = None, sleep: float = 0.02) -> PassResult:
    matrix = ToyMatrix(wild(240, 6), sleep=sleep)
    q = np.random.default_rng(0).normal(size=(6, 2))
    return run(
        toy_plan(matrix, step=10, span=2),
        matrix,
        operands={"q": q},
        maps={"xq": image},
        accumulators={"sum": Sum(), "s": Scatter(), "r": RFactor(), "z": CrossProduct(y="xq")},
        execution=by_hand(scheduler=scheduler, progress=progress),
    )


def image(block: Any) -> np.ndarray:
    return block.dense() @ block["q"]


def states(done: PassResult) -> dict[str, Any]:
    return {f"{n}.{k}": v for n, a in done.accumulators.items() for k, v in a.state().items()}


@pytest.mark.slow
@pytest.mark.parametrize("workers", [pytest.param(1, marks=pytest.mark.soak), 2])
def test_killed_worker(new_client: Any, workers: int) -> None:
    """With one worker the operands die too: nobody else held them."""
    client = new_client(workers)
    before = set(client.run(os.getpid).values())
    here = slow_pass("threads", sleep=0.0)
    seen: list[int] = []
    kill = killer(client)

    def progress(advance: Advance) -> None:
        seen.append(advance.blocks_done)
        kill(advance)

    there = slow_pass(client, progress)
    assert same_bits(states(here), states(there))
    assert there.cost.blocks == 24
    assert there.cost.reads == 240
    assert seen == [2 * i for i in range(1, 13)]
    client.wait_for_workers(workers)
    assert set(client.run(os.getpid).values()) != before  # it did die


@pytest.mark.slow
def test_killed_worker_during_a_fit(new_client: Any, small_blocks: None) -> None:
    client = new_client(2)
    matrix = ToyMatrix(data((4000, 24), {}), sleep=0.01)
    here = fitted(matrix)
    there = fitted(matrix, client, progress=killer(client))
    assert same_bits(here, there)


@pytest.mark.soak
def test_all_workers_killed_at_once(new_client: Any) -> None:
    client = new_client(2)
    here = slow_pass("threads", sleep=0.0)
    assert same_bits(states(here), states(slow_pass(client, killer(client, every=True))))


def test_operands_wait_for_a_worker() -> None:
    """All died, and it takes longer until one comes than Dask waits for one.

    In this process, where a worker is there at once: half a second is what is waited for.
    """
    from distributed import Client, LocalCluster

    with (
        LocalCluster(
            n_workers=0,
            processes=False,
            threads_per_worker=1,
            memory_limit=0,
            dashboard_address="127.0.0.1:0",
        ) as inside,
        Client(inside, set_as_default=False) as client,
    ):
        patience, client._timeout = client._timeout, 0.05
        timer = threading.Timer(0.5, inside.scale, [1])
        timer.start()
        stored = cluster._stored(client, Parcel({"q": 3}))
        assert client.submit(lambda common: common.content["q"], stored).result() == 3
        timer.join()
        client._timeout = patience


@pytest.mark.soak
def test_fifty_rounds_of_dying_workers(new_client: Any, monkeypatch: Any) -> None:
    """F9: one or all die, once or twice in a pass; in every tenth round a block kills them."""
    import distributed  # noqa: F401  (its settings, before one of them is changed)

    # LocalCluster closes a nanny whose worker, however often it came back, is not there 15 s
    # after a death
    monkeypatch.setitem(dask.config.get("distributed.deploy"), "lost-worker-timeout", "1h")
    client, draw = new_client(2), random.Random(9)
    here, passes, deaths, slowest = states(slow_pass("threads", sleep=0.0)), 0, 0, 0.0
    for round_ in range(50):
        if round_ % 10 == 9:
            begun = time.monotonic()
            operands = {"q": np.ones(3)} if round_ % 20 == 9 else {}
            with pytest.raises(ClusterError, match=r"blocks 4 to 5: .*died"):
                deadly(client, operands)
            slowest = max(slowest, time.monotonic() - begun)
            continue
        due = sorted(draw.sample(range(2, 23), draw.choice((1, 2))))
        died: list[int] = []

        def strike(advance: Advance, due: list[int] = due, died: list[int] = died) -> None:
            started = [n.process for n in client.cluster.workers.values() if n.process is not None]
            # Dask's nanny gives up where a worker dies while it starts
            alive = [one.pid for one in started if one.status.name == "running"]
            if not due or advance.blocks_done < due[0] or not alive:
                return
            del due[0]
            for victim in alive if draw.random() < 0.25 else alive[:1]:
                os.kill(victim, signal.SIGKILL)
                died.append(victim)

        there = slow_pass(client, strike, sleep=0.005)
        assert same_bits(here, states(there))
        assert (there.cost.blocks, there.cost.reads) == (24, 240)
        assert died
        passes, deaths = passes + 1, deaths + len(died)
    print(f"{deaths} deaths in {passes} passes; a deadly block was named within {slowest:.0f} s")


# -- memory of the workers ---------------------------------------------------------------------


class Crowd:
    """Workers of these (memory limits, threads)."""

    def __init__(self, *workers: tuple[int | None, int]) -> None:
        self.workers = workers

    def scheduler_info(self, n_workers: int = 5) -> dict[str, Any]:
        assert n_workers == -1  # all, not the first five
        return {
            "workers": {
                f"tcp://worker:{i}": {"memory_limit": limit, "nthreads": threads, "last_seen": 0.0}
                for i, (limit, threads) in enumerate(self.workers)
            }
        }

    def sync(self, *args: Any) -> dict[str, Any]:
        return {}  # none says what it holds


def test_worker_too_small_for_the_plan() -> None:
    GiB = 2**30
    plan = PCA(5, svd_solver="scatter").plan(Unread((200_000, 4000), "float32", (1000, 4000)))
    check_workers(Crowd((GiB, 1), (4 * GiB, 2), (None, 64), (0, 64)), plan)
    with pytest.raises(
        MemoryLimitError, match=r"worker tcp://worker:1 may use 1.0 GiB.* 16 threads"
    ):
        check_workers(Crowd((GiB, 1), (GiB, 16)), plan)
    with pytest.raises(MemoryLimitError, match="tcp://worker:5"):
        check_workers(Crowd(*[(GiB, 1)] * 5, (200 * 2**20, 1)), plan)


def test_a_worker_that_joins_and_is_too_small_gets_no_work() -> None:
    GiB = 2**30
    plan = PCA(5, svd_solver="scatter").plan(Unread((200_000, 4000), "float32", (1000, 4000)))
    crowd = Crowd((4 * GiB, 1), (200 << 20, 1), (None, 64))
    with pytest.warns(MemoryPlanWarning, match="worker:1 may use 200 MiB.* is left out of this"):
        assert too_small(crowd, plan) == {"tcp://worker:1"}
    assert too_small(crowd, plan) == {"tcp://worker:1"}  # and no second warning
    with pytest.raises(MemoryLimitError, match="worker:0 may use 200 MiB"):
        too_small(Crowd((200 << 20, 1)), plan)


def test_worker_holds_all_operands() -> None:
    """A worker holds them whole, however many lanes share them."""
    plan = PCA(200, svd_solver="gram").plan(Unread((2000, 200_000), "float32", (2000, 1000)))
    kept = sum(plan.memory["loadings"].get(name, 0) for name in KEPT)
    assert kept > 300 * 2**20
    with pytest.raises(MemoryLimitError):
        check_workers(Crowd((kept, 1)), plan)


def test_fit_is_refused_by_a_small_worker_before_reading(new_client: Any) -> None:
    client = new_client(1, memory_limit="500MiB")
    address = next(iter(client.scheduler_info()["workers"]))
    matrix = Unread((10_000, 6000), "float64", (100, 6000))
    with pytest.raises(MemoryLimitError, match=f"worker {address} may use"):
        PCA(3, svd_solver="scatter", scheduler=client).fit(matrix)
    assert not matrix.log


# -- errors ------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Counted:
    """Notes every trial at one block, and fails there: always, or the first time only."""

    folder: str
    error: type[Exception] | None
    times: int = 10**9

    def __call__(self, block: Any) -> np.ndarray:
        if block.index == 4:
            trial = len(os.listdir(self.folder))
            Path(self.folder, str(trial)).touch()
            if trial < self.times and self.error is not None:
                raise self.error("this block is poison")
        return block.dense()


def poisoned(client: Any, tmp_path: Path, error: type[Exception], times: int = 10**9) -> PassResult:
    matrix = ToyMatrix(wild(100, 2))
    return run(
        toy_plan(matrix, span=2),
        matrix,
        maps={"m": Counted(str(tmp_path), error, times)},
        accumulators={"s": Sum("m")},
        execution=by_hand(scheduler=client),
    )


def test_an_error_reaches_the_caller_with_type_and_block(
    two_processes: Any, tmp_path: Path
) -> None:
    with pytest.raises(ZeroDivisionError, match="poison") as caught:
        poisoned(two_processes, tmp_path, ZeroDivisionError)
    assert caught.value.__notes__ == ["while folding block 4 (samples 40 to 49)"]


def test_an_error_of_ours_is_not_tried_again(two_processes: Any, tmp_path: Path) -> None:
    with pytest.raises(NonFiniteError, match="poison") as caught:
        poisoned(two_processes, tmp_path, NonFiniteError)
    assert caught.value.__notes__ == ["while folding block 4 (samples 40 to 49)"]
    assert len(list(tmp_path.iterdir())) == 1


def test_a_passing_failure_is_tried_again(two_processes: Any, tmp_path: Path) -> None:
    done = poisoned(two_processes, tmp_path, ConnectionError, times=2)
    assert len(list(tmp_path.iterdir())) == 3
    assert done["s"].rows == 100
    assert done.cost.reads == 100  # what was read in vain is not in the result


class Dies(Sum):
    """Takes its process with it."""

    def update(self, block: Any) -> None:
        if block.index == 4:
            os.kill(os.getpid(), signal.SIGKILL)
        super().update(block)


def deadly(client: Any, operands: dict[str, Any]) -> PassResult:
    matrix = ToyMatrix(wild(100, 2))
    return run(
        toy_plan(matrix, span=2),
        matrix,
        accumulators={"s": Dies()},
        operands=operands,
        execution=by_hand(scheduler=client),
    )


@pytest.mark.soak
@pytest.mark.filterwarnings("ignore::streampca.errors.NoWorkerWarning")  # both may be dead at once
@pytest.mark.parametrize("operands", [{}, {"q": np.ones(3)}], ids=["no operands", "operands"])
def test_a_block_that_kills_workers_is_named(new_client: Any, operands: dict[str, Any]) -> None:
    with pytest.raises(ClusterError, match=r"blocks 4 to 5: .*died") as caught:
        deadly(new_client(2), operands)
    if not isinstance(caught.value.__cause__, cluster.NotStored):  # no worker in time for another
        assert caught.value.__notes__ == ["while blocks 4 to 5 were folded on a worker"]


def test_nan_names_block_and_columns(two_processes: Any, small_blocks: None) -> None:
    x = data((6000, 24), {})
    x[5000, 7] = np.nan
    with pytest.raises(NonFiniteError, match=r"block \d+ \(samples .*columns feature 7"):
        PCA(3, scheduler=two_processes, progress=False).fit(x)


def test_keyboard_interrupt_leaves_a_usable_cluster(two_processes: Any) -> None:
    def press(advance: Advance) -> None:
        if advance.blocks_done == 4:
            _thread.interrupt_main()

    with pytest.raises(KeyboardInterrupt):
        slow_pass(two_processes, press)
    assert same_bits(states(slow_pass("threads")), states(slow_pass(two_processes)))


# -- what is in flight -------------------------------------------------------------------------


OF_SUBMIT = {"pure", "retries", "priority", "workers", "allow_other_workers"}  # Dask's own


class FakeFuture:
    def __init__(self, client: FakeClient, task: Callable[[], Any], key: str) -> None:
        self.client, self.task, self.key, self.state = client, task, key, "pending"

    def result(self) -> Any:
        if self.client.loses and (error := self.client.loses.pop(0)):
            raise error
        return self.task()

    def release(self) -> None:
        self.state = "released"
        self.client.flying.discard(self)

    def cancel(self) -> None:
        self.state = "cancelled"
        self.client.flying.discard(self)


class FakeClient:
    """A client that works when asked for results, and counts what is outstanding."""

    status = "running"

    def __init__(self, loses: list[Exception | None] | None = None) -> None:
        self.flying: set[FakeFuture] = set()
        self.futures: list[FakeFuture] = []
        self.most = self.scatters = 0
        self.loses = loses or []

    def nthreads(self) -> dict[str, int]:
        return {"a": 2, "b": 1}

    def scheduler_info(self, n_workers: int = 5) -> dict[str, Any]:
        return {"workers": {one: {"last_seen": 0.0} for one in self.nthreads()}}

    def stored(self, common: Any) -> Any:
        self.scatters += 1
        return common

    def gather(self, future: FakeFuture, asynchronous: bool) -> Any:
        return future.result

    def submit(self, function: Any, *args: Any, key: str, **kwargs: Any) -> FakeFuture:
        assert key not in {future.key for future in self.futures}
        named = {name: kwargs[name] for name in kwargs.keys() - OF_SUBMIT}
        future = FakeFuture(self, lambda: function(*args, **named), key)
        self.futures.append(future)
        self.flying.add(future)
        self.most = max(self.most, len(self.flying))
        return future


def lost() -> Exception:
    from distributed.client import FutureCancelledError

    return FutureCancelledError(key="x", reason="lost dependencies")


@pytest.fixture
def fake(monkeypatch: Any) -> FakeClient:
    client = FakeClient()
    # the package's attribute of that name is the function, not the module
    module = sys.modules["streampca.passes.execute"]
    monkeypatch.setattr(module, "client_for", lambda scheduler, matrix: client)
    monkeypatch.setattr(module, "refuse_other_versions", lambda client: None)
    monkeypatch.setattr(cluster, "_stored", FakeClient.stored)
    monkeypatch.setattr(
        "streampca.passes.cluster.flight.other_versions", lambda client, again=False: set()
    )
    monkeypatch.setattr("streampca.passes.cluster.flight.finished", lambda future, seconds: True)
    monkeypatch.setattr(
        "streampca.passes.cluster.flight.answer_of", lambda client, call, *rest: call()
    )
    monkeypatch.setattr(
        "streampca.passes.cluster.merging.memory_used_where_room", lambda *asked: {}
    )
    return client


def test_few_spans_in_flight(fake: FakeClient) -> None:
    first, again = slow_pass(None, sleep=0.0), slow_pass(None, sleep=0.0)
    assert fake.most == 6  # twice the lanes of all workers
    assert len(fake.futures) == 24  # no span twice, and no key twice in two passes
    assert {future.state for future in fake.futures} == {"released"}
    assert same_bits(states(first), states(again))


def test_an_error_cancels_what_is_in_flight(fake: FakeClient, tmp_path: Path) -> None:
    with pytest.raises(ZeroDivisionError):
        poisoned(None, tmp_path, ZeroDivisionError)
    assert not fake.flying
    assert [future.state for future in fake.futures].count("cancelled") == 3


def test_lost_operands_are_sent_again(fake: FakeClient) -> None:
    here = states(slow_pass(None, sleep=0.0))
    fake.scatters = 0
    fake.loses = [None, None, lost(), None, lost(), lost()]  # never three times without progress
    assert same_bits(here, states(slow_pass(None, sleep=0.0)))
    assert fake.scatters == 4
    fake.loses = [None, lost(), lost(), lost()]
    with pytest.raises(ClusterError, match="3 times in a row the workers died"):
        slow_pass(None, sleep=0.0)
    assert not fake.flying


def test_without_operands_nothing_is_stored_and_a_cancelled_pass_stays_so(fake: FakeClient) -> None:
    matrix = ToyMatrix(wild(100, 2))
    run(toy_plan(matrix), matrix, accumulators={"s": Sum()})
    assert fake.scatters == 0
    fake.loses = [lost()]
    with pytest.raises(Exception, match="lost dependencies"):
        run(toy_plan(matrix), matrix, accumulators={"s": Sum()})


def test_operands_of_the_same_name_do_not_meet(two_processes: Any) -> None:
    """The scheduler's names are one space for all passes and all clients."""
    from distributed import Client

    matrix = ToyMatrix(wild(60, 6))

    def product(client: Any, q: np.ndarray) -> np.ndarray:
        return run(
            toy_plan(matrix),
            matrix,
            operands={"q": q},
            maps={"xq": image},
            accumulators={"z": CrossProduct(y="xq")},
            execution=by_hand(scheduler=client),
        )["z"].cross_product()

    rng = np.random.default_rng(0)
    with Client(two_processes.cluster.scheduler_address, set_as_default=False) as other:
        for client in (two_processes, other, two_processes, two_processes):
            q = rng.normal(size=(6, 2))
            assert same_bits(product(client, q), product("threads", q))


def test_zarr_of_a_grid_is_read_once(
    two_processes: Any, tmp_path: Path, small_blocks: None
) -> None:
    x = data((3000, 24), {})
    zarr.create_array(str(tmp_path / "x.zarr"), data=x, chunks=(100, 5))
    model = PCA(3, scheduler=two_processes, progress=False)
    plan = model.plan(str(tmp_path / "x.zarr"))
    model.fit(streampca.sources.open(str(tmp_path / "x.zarr")))
    assert [c.reads for c in model.cost_] == [p.reads for p in plan.passes] == [30 * 5]
    assert all(c.most_live_blocks <= plan.blocks_ahead + 1 for c in model.cost_)


def test_a_scheduler_that_does_not_answer(monkeypatch: Any) -> None:
    monkeypatch.setattr(clients, "CONNECT_SECONDS", 1)
    with pytest.raises(ClusterError, match=r"no Dask scheduler answers at tcp://127.0.0.1:9 .*1 s"):
        find_client("tcp://127.0.0.1:9")
