"""The pass itself: every block once, few alive, folded in order, stopped cleanly."""

from __future__ import annotations

import _thread
import contextlib
import json
import subprocess
import sys
import textwrap
import threading
import time
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import scipy.sparse
import threadpoolctl
from pass_matrices import Fails, Sum, ToyMatrix, by_hand, run, same_bits, toy_plan, wild

import streampca.sources
from streampca import PCA
from streampca.accumulators import Gram, Moments, RFactor, Scatter
from streampca.errors import InvalidInputError, NonFiniteError
from streampca.matrix import ChunkedMatrix, Standardize
from streampca.passes import Advance, Execution, Plan, single_threaded_blas
from streampca.store import MemorySink, Sink, ZarrSink

LANES = [
    pytest.param({"lanes": 1, "blocks_ahead": 0}, id="one lane, nothing ahead"),
    pytest.param({"lanes": 1, "blocks_ahead": 2}, id="one lane, two ahead"),
    pytest.param({"lanes": 2, "blocks_ahead": 1}, id="two lanes, one ahead"),
    pytest.param({"lanes": 3, "blocks_ahead": 3}, id="three lanes, three ahead"),
]


@pytest.fixture(scope="module", autouse=True)
def two_blas_threads() -> Iterator[None]:
    """So that there is something to restrict, and to restore."""
    with threadpoolctl.threadpool_limits(2, user_api="blas"):
        yield


def here(**settings: Any) -> Execution:
    return by_hand(**{"scheduler": "threads", **settings})


def blas_threads() -> list[int]:
    blas = threadpoolctl.ThreadpoolController().select(user_api="blas")
    return [library.num_threads for library in blas.lib_controllers]


# -- what a pass gives -------------------------------------------------------------------------


@pytest.mark.parametrize("settings", LANES)
def test_several_accumulators_in_one_pass(settings: dict[str, int]) -> None:
    x = np.random.default_rng(0).normal(size=(103, 7)) + 4
    matrix = ToyMatrix(x, recycled=True)
    done = run(
        toy_plan(matrix),
        matrix,
        execution=here(**settings),
        accumulators={"s": Scatter(), "r": RFactor(), "m": Moments()},
    )
    centred = x - x.mean(axis=0)
    for name in ("s", "r"):
        np.testing.assert_allclose(done[name].scatter(), centred.T @ centred, atol=1e-11)
    np.testing.assert_allclose(done["m"].variance(), x.var(axis=0, ddof=1), rtol=1e-12)
    np.testing.assert_array_equal(done["m"].columns().minimum, x.min(axis=0))
    assert done.cost.reads == 103
    assert done.cost.nbytes == x.nbytes
    assert done.cost.blocks == 11


def test_declared_accumulators_stay_empty() -> None:
    matrix = ToyMatrix(np.ones((20, 2)))
    given = Sum()
    done = run(toy_plan(matrix), matrix, accumulators={"s": given}, execution=here())
    assert given.total is None
    assert done["s"].rows == 20


@pytest.mark.parametrize("axis", [0, 1])
def test_weights(axis: int) -> None:
    rng = np.random.default_rng(0)
    x, w = rng.normal(size=(41, 33)) + 3, rng.random(41)
    w[5:9] = 0.0
    matrix = ToyMatrix(x, recycled=True)
    accumulators: dict[str, Any] = {"m": Moments()}
    if axis == 0:
        accumulators["s"] = Scatter()
    done = run(
        toy_plan(matrix, axis=axis), matrix, accumulators=accumulators, weights=w, execution=here()
    )
    mean = w @ x / w.sum()
    columns = done["m"].columns()
    np.testing.assert_allclose(columns.weight, np.full(33, w.sum()), rtol=1e-12)
    np.testing.assert_allclose(columns.mean, mean, rtol=1e-12)
    np.testing.assert_allclose(columns.m2, w @ (x - mean) ** 2, rtol=1e-11)
    if axis == 0:
        expected = (x - mean).T @ (w[:, None] * (x - mean))
        np.testing.assert_allclose(done["s"].scatter(), expected, atol=1e-11)


@pytest.mark.parametrize("axis", [0, 1])
def test_sparse_blocks(axis: int) -> None:
    sparse = scipy.sparse.random_array(
        (60, 40), density=0.2, rng=np.random.default_rng(1), format="csr"
    )
    dense = sparse.toarray()
    matrix = streampca.sources.open(sparse)
    kind: Any = Gram(standardize=Standardize()) if axis else Scatter()
    done = run(toy_plan(matrix, axis=axis), matrix, accumulators={"a": kind}, execution=here())["a"]
    centred = dense - dense.mean(axis=0)
    found = done.gram() if axis else done.scatter()
    np.testing.assert_allclose(
        found, centred @ centred.T if axis else centred.T @ centred, atol=1e-12
    )


def test_part_of_the_streamed_axis() -> None:
    x = np.random.default_rng(0).normal(size=(90, 4))
    matrix = ToyMatrix(x, recycled=True)
    whole = toy_plan(matrix)
    plan = type(whole)("some rows", 0, np.array([20, 35, 50]), 1, 30, 960, 0.0)
    side = np.arange(90.0)[:, None]
    done = run(
        plan,
        matrix,
        accumulators={"x": Sum(), "side": Sum("side")},
        side_inputs={"side": side},
        weights=np.ones(90),
        execution=here(),
    )
    np.testing.assert_allclose(done["x"].total, x[20:50].sum(axis=0))
    assert done["side"].total == np.arange(20, 50).sum()
    assert sorted(matrix.log) == [(20, 35), (35, 50)]


def test_matrix_of_one_block_and_of_none() -> None:
    one = ToyMatrix(np.arange(6.0).reshape(3, 2))
    done = run(toy_plan(one, step=100), one, accumulators={"s": Sum()}, execution=here())
    assert done["s"].total.tolist() == [6.0, 9.0]
    assert done.cost.blocks == done.cost.most_live_blocks == 1
    none = ToyMatrix(np.empty((0, 2)))
    seen: list[Advance] = []
    nothing = run(
        toy_plan(none), none, accumulators={"s": Sum()}, execution=here(progress=seen.append)
    )
    assert nothing["s"].total is None
    assert nothing.cost.blocks == 0
    assert not seen


def test_pass_without_accumulators() -> None:
    x = np.arange(50.0).reshape(25, 2)
    matrix, sink = ToyMatrix(x, recycled=True), MemorySink(25, 2)
    done = run(
        toy_plan(matrix),
        matrix,
        maps={"twice": lambda block: 2 * block.dense()},
        sinks={"twice": sink},
        execution=here(),
    )
    assert done.accumulators == {}
    np.testing.assert_array_equal(sink.values, 2 * x)


# -- every block once, and few of them alive ---------------------------------------------------


@pytest.mark.parametrize("recycled", [False, True], ids=["new arrays", "recycled buffers"])
@pytest.mark.parametrize("settings", LANES)
def test_every_block_once_and_few_alive(settings: dict[str, int], recycled: bool) -> None:
    matrix = ToyMatrix(wild(403, 5), sleep=0.001, recycled=recycled)
    plan = toy_plan(matrix, step=10, span=4)
    cost = run(
        plan, matrix, accumulators={"s": Sum(), "m": Moments()}, execution=here(**settings)
    ).cost
    assert sorted(matrix.log) == list(zip(plan.edges[:-1], plan.edges[1:], strict=True))
    ahead = settings["blocks_ahead"]
    assert cost.most_live_blocks <= ahead + 1
    assert matrix.most_alive <= settings["lanes"] * (ahead + 1)  # told by the garbage collector


def test_a_slow_lane_bounds_the_partial_accumulators() -> None:
    """Spans are claimed only near the first unmerged one, or fast lanes would pile up partials."""
    matrix = ToyMatrix(np.ones((300, 2)))
    alive, most, lock, go_on = set(), [0], threading.Lock(), threading.Event()

    class Tracked(Sum):
        def update(self, block: Any) -> None:
            if block.index == 0:
                go_on.wait(0.2)  # the first span is late, whatever the others do
            with lock:
                alive.add(id(self))
                most[0] = max(most[0], len(alive))
            super().update(block)

        def merge(self, other: Any) -> None:
            super().merge(other)
            with lock:
                alive.discard(id(other))

    run(
        toy_plan(matrix, step=5, span=2),
        matrix,
        accumulators={"s": Tracked()},
        execution=here(lanes=2),
    )
    assert most[0] <= 3


# -- the order of folding ----------------------------------------------------------------------


def test_the_order_of_folding_shows_in_the_bits() -> None:
    """The tests below would not notice a wrong order if it made no difference."""
    x = wild(240, 3)
    spans = [x[i : i + 40].reshape(4, 10, 3) for i in range(0, 240, 40)]
    parts = []
    for span in spans:
        part = Sum()
        for block in span:
            part._add(block.sum(axis=0), 10)
        parts.append(part)
    forth, back = Sum(), Sum()
    for part in parts:
        forth.merge(part)
    for part in reversed(parts):
        back.merge(part)
    assert not same_bits(forth.total, back.total)


def test_shuffled_completion_20_of_20_runs() -> None:
    x = wild(240, 3)
    plan = toy_plan(ToyMatrix(x), span=4)

    def once(**settings: int) -> dict[str, Any]:
        matrix = ToyMatrix(x, sleep=0.004, recycled=True)
        done = run(
            plan,
            matrix,
            execution=here(**settings),
            accumulators={"sum": Sum(), "scatter": Scatter(), "r": RFactor()},
        )
        return {f"{n}.{k}": v for n, a in done.accumulators.items() for k, v in a.state().items()}

    first = once(lanes=1, blocks_ahead=0)
    for i in range(20):
        assert same_bits(first, once(lanes=1 + i % 4, blocks_ahead=i % 3)), i


# -- errors ------------------------------------------------------------------------------------


@pytest.mark.parametrize("settings", LANES)
@pytest.mark.parametrize("where", ["reading", "folding", "in a map"])
def test_an_error_stops_all_lanes(settings: dict[str, int], where: str) -> None:
    before = blas_threads()
    matrix = ToyMatrix(
        np.ones((4000, 2)), sleep=0.001, recycled=True, fails_at=57 if where == "reading" else None
    )
    more: dict[str, Any] = {"accumulators": {"s": Fails(5) if where == "folding" else Sum()}}
    if where == "in a map":
        more["maps"] = {"y": lambda block: 1 / 0 if block.index == 5 else block.dense()}
    kind = {"reading": OSError, "folding": RuntimeError, "in a map": ZeroDivisionError}[where]
    with pytest.raises(kind) as caught:
        run(toy_plan(matrix, step=10, span=3), matrix, execution=here(**settings), **more)
    notes = caught.value.__notes__
    assert len(notes) == 1
    assert "block 5" in notes[0]
    assert "samples 50 to 59" in notes[0]
    assert ("reading" in notes[0]) == (where == "reading")
    assert not [t for t in threading.enumerate() if t.name.startswith("streampca")]
    assert blas_threads() == before
    assert len(matrix.log) < 60  # of 400 blocks


def test_nan_names_block_and_columns() -> None:
    x = np.ones((400, 3))
    x[123, 1] = np.nan
    matrix = ToyMatrix(x)
    with pytest.raises(NonFiniteError, match=r"block 12 \(samples 120 to 129\), columns feature 1"):
        run(toy_plan(matrix, span=2), matrix, accumulators={"s": Scatter()}, execution=here())


def test_an_error_of_the_progress_callback_stops_the_pass() -> None:
    matrix = ToyMatrix(np.ones((4000, 2)))

    def full(advance: Advance) -> None:
        raise BrokenPipeError("nobody listens")

    with pytest.raises(BrokenPipeError):
        run(toy_plan(matrix), matrix, accumulators={"s": Sum()}, execution=here(progress=full))
    assert len(matrix.log) < 60


def test_blocks_are_freed_after_an_error() -> None:
    matrix = ToyMatrix(np.ones((400, 2)), fails_at=57)
    with contextlib.suppress(OSError):
        run(toy_plan(matrix), matrix, accumulators={"s": Sum()}, execution=here())
    assert matrix.state["alive"] == 0


@pytest.mark.parametrize(
    ("more", "message"),
    [
        ({"side_inputs": {"y": np.ones((39, 1))}}, "side input 'y' has 39 rows, not 40"),
        ({"weights": np.ones(3)}, "3 weights for 40 samples"),
        ({"sinks": {"z": MemorySink(40, 1)}}, r"sinks \['z'\] have no map"),
        ({"operands": {"y": 1}, "maps": {"y": np.shape}}, r"share a name: \['y', 'y'\]"),
        ({"accumulators": {"g": Gram(standardize=Standardize())}}, "'g' needs blocks of features"),
    ],
    ids=["side input", "weights", "sink", "names", "axis"],
)
def test_what_does_not_fit_is_refused_before_reading(more: dict[str, Any], message: str) -> None:
    matrix = ToyMatrix(np.ones((40, 3)))
    with pytest.raises(InvalidInputError, match=message):
        run(toy_plan(matrix), matrix, execution=here(), **more)
    assert not matrix.log


def test_a_plan_for_another_matrix_is_refused() -> None:
    matrix = ToyMatrix(np.ones((40, 3)))
    with pytest.raises(InvalidInputError, match="another matrix: 50 rows, here 40"):
        run(toy_plan(ToyMatrix(np.ones((50, 3)))), matrix, execution=here())
    assert not matrix.log


# -- Ctrl-C ------------------------------------------------------------------------------------


@pytest.mark.parametrize("settings", LANES)
def test_keyboard_interrupt(settings: dict[str, int]) -> None:
    before = blas_threads()
    matrix = ToyMatrix(np.ones((200_000, 1)), sleep=0.004, recycled=True)

    def press(advance: Advance) -> None:
        if advance.blocks_done == 10:
            _thread.interrupt_main()

    with pytest.raises(KeyboardInterrupt):
        run(
            toy_plan(matrix, step=10),
            matrix,
            accumulators={"s": Sum()},
            execution=here(progress=press, **settings),
        )
    assert not [t for t in threading.enumerate() if t.name.startswith("streampca")]
    assert blas_threads() == before
    assert len(matrix.log) < 1500  # of 20,000: the main thread looks five times a second
    # and the machinery is as good as new
    small = ToyMatrix(wild(50, 2))
    done = run(toy_plan(small), small, accumulators={"s": Sum()}, execution=here(**settings))
    assert done.cost.blocks == 5


PROGRAM = """
    import os, signal, sys, threading
    sys.path.insert(0, {here!r})
    import numpy as np
    from pass_matrices import Fails, Sum, ToyMatrix, toy_plan
    from streampca.passes import Execution
    from pass_matrices import by_hand, run

    def press(advance):
        if advance.blocks_done == 10:
            os.kill(os.getpid(), signal.SIGINT)  # what a terminal does for Ctrl-C

    matrix = ToyMatrix(np.ones((1_000_000, 1)), sleep=0.004, recycled=True)
    try:
        run(toy_plan(matrix, step=10), matrix, accumulators={{"s": Sum()}},
            execution=by_hand(lanes={lanes}, scheduler="threads", progress=press))
    except KeyboardInterrupt:
        print(len(matrix.log), [t.name for t in threading.enumerate()])
        sys.exit(130)
"""


@pytest.mark.slow
@pytest.mark.parametrize("lanes", [1, 2])
def test_signal_ends_the_process_cleanly(lanes: int) -> None:
    program = textwrap.dedent(PROGRAM).format(here=str(Path(__file__).parent), lanes=lanes)
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, timeout=60
    )
    assert done.returncode == 130, done.stderr
    assert done.stderr == ""
    read, threads = done.stdout.split(" ", 1)
    assert int(read) < 1500  # of 100,000
    assert threads.strip() == "['MainThread']"


HANGING = """
    import os, signal, sys, threading, time
    sys.path.insert(0, {here!r})
    import numpy as np
    from pass_matrices import Sum, ToyMatrix, toy_plan
    from streampca.passes import Execution
    from pass_matrices import by_hand, run

    read, hangs = ToyMatrix.read, threading.Event()

    def hang(self, axis, start, stop, buffer=None):
        if start >= 500:
            hangs.set()
            threading.Event().wait()
        return read(self, axis, start, stop, buffer)

    def press():
        hangs.wait()
        time.sleep(0.1)
        os.kill(os.getpid(), signal.SIGINT)

    ToyMatrix.read = hang
    matrix = ToyMatrix(np.ones((1_000, 1)))
    threading.Thread(target=press, daemon=True).start()
    try:
        run(toy_plan(matrix, step=10), matrix, accumulators={{"s": Sum()}},
            execution=by_hand(lanes={lanes}, blocks_ahead={ahead}, scheduler="threads",
                                checkpoint={folder!r}))
    except KeyboardInterrupt as error:
        print("interrupted", *getattr(error, "__notes__", []), flush=True)
        sys.exit(130)
"""


@pytest.mark.parametrize(
    ("lanes", "ahead"),
    [
        (2, 1),
        *(pytest.param(*case, marks=pytest.mark.slow) for case in [(1, 1), (2, 0)]),
        *(pytest.param(*case, marks=pytest.mark.soak) for case in [(1, 0), (2, 2)]),
    ],
)
def test_a_read_that_hangs_can_be_interrupted(lanes: int, ahead: int, tmp_path: Path) -> None:
    """And the process ends, and a checkpoint is there."""
    program = textwrap.dedent(HANGING).format(
        here=str(Path(__file__).parent), lanes=lanes, ahead=ahead, folder=str(tmp_path)
    )
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, timeout=60
    )
    assert done.returncode == 130, done.stderr
    assert done.stdout == "interrupted\n"
    assert [p.name for p in tmp_path.iterdir()] == ["pass-toy"]


# -- progress ----------------------------------------------------------------------------------


@pytest.mark.parametrize("settings", LANES)
def test_progress(settings: dict[str, int]) -> None:
    seen: list[Advance] = []
    matrix = ToyMatrix(np.ones((203, 2)), sleep=0.001)
    run(
        toy_plan(matrix),
        matrix,
        accumulators={"s": Sum()},
        execution=here(progress=seen.append, pass_number=2, n_passes=3, **settings),
    )
    assert [a.blocks_done for a in seen] == list(range(1, 22))
    assert {a.n_blocks for a in seen} == {21}
    assert {(a.pass_name, a.pass_number, a.n_passes) for a in seen} == {("toy", 2, 3)}
    assert [a.nbytes for a in seen] == sorted(a.nbytes for a in seen)
    assert seen[-1].nbytes == matrix.nbytes
    assert [a.seconds for a in seen] == sorted(a.seconds for a in seen)
    assert "pass 2/3 toy  block 21/21" in str(seen[-1])


def test_progress_in_a_log_has_lines_of_its_own(capsys: Any) -> None:
    PCA(1, progress=True).fit(np.eye(6, 3))
    lines = capsys.readouterr().err.splitlines()
    assert lines[-1].startswith("pass 1/1 scatter  block 1/1")
    assert not any("\x1b" in line for line in lines)


# -- BLAS threads ------------------------------------------------------------------------------


def test_blas_runs_on_one_thread_inside_and_is_restored() -> None:
    before = blas_threads()
    with single_threaded_blas():
        assert set(blas_threads()) == {1}
        with single_threaded_blas():
            pass
        assert set(blas_threads()) == {1}
    assert blas_threads() == before


def test_blas_that_the_first_product_loads_has_one_thread_too() -> None:
    code = """
        import numpy as np, threadpoolctl
        from streampca.kernels import add_product
        from streampca.passes import single_threaded_blas
        with single_threaded_blas():
            add_product(np.zeros((4, 4)), np.ones((4, 4)), np.ones((4, 4)))
            print({one["num_threads"] for one in threadpoolctl.threadpool_info()})
    """
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(code)], capture_output=True, text=True, check=True
    )
    assert done.stdout.strip() == "{1}"


def test_blas_limit_holds_in_any_thread() -> None:
    """threadpoolctl 3.8 lets one thread change the limit, and ignores all others in silence."""
    threadpoolctl.threadpool_limits(limits=max(blas_threads()), user_api="blas")  # this one has it
    before, inside, barrier = blas_threads(), [], threading.Barrier(2)

    def task(first: bool) -> None:
        if not first:
            barrier.wait()
        with single_threaded_blas():
            inside.append(blas_threads())
            if first:
                barrier.wait()
                barrier.wait()  # the first to enter leaves first
        if first:
            barrier.wait()

    def second() -> None:
        barrier.wait()
        with single_threaded_blas():
            barrier.wait()
            barrier.wait()
            inside.append(blas_threads())

    threads = [threading.Thread(target=task, args=(True,)), threading.Thread(target=second)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(inside) == 2
    assert {count for counts in inside for count in counts} == {1}
    assert blas_threads() == before


# -- the plan of a real fit is what runs -------------------------------------------------------


def test_counts_of_a_fit_agree_with_its_plan(tmp_path: Path) -> None:
    from streampca import PCA

    x = np.random.default_rng(0).normal(size=(3000, 20)).astype(np.float32)
    np.save(tmp_path / "x.npy", x)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        model = PCA(3, scheduler="threads", progress=False).fit(str(tmp_path / "x.npy"))
    plan: Plan = model.plan_
    assert [c.reads for c in model.cost_] == [p.reads for p in plan.passes]
    assert [c.nbytes for c in model.cost_] == [p.nbytes for p in plan.passes]
    assert json.loads(plan.to_json())["reads"] == plan.reads


def test_matrix_is_not_changed_by_a_pass() -> None:
    matrix: ChunkedMatrix = ToyMatrix(np.ones((40, 3)))
    before = set(vars(matrix))
    run(toy_plan(matrix), matrix, accumulators={"s": Sum()}, execution=here())
    assert set(vars(matrix)) == before


# -- sinks -------------------------------------------------------------------------------------


class OneAtATime(Sink):
    """A sink that says no more than the contract asks for."""

    def __init__(self) -> None:
        self.inside = self.most = 0
        self.starts: list[int] = []

    def write(self, start: int, values: np.ndarray) -> None:
        self.inside += 1
        self.most = max(self.most, self.inside)
        time.sleep(0.005)
        self.starts.append(start)
        self.inside -= 1

    def concurrent(self, edges: np.ndarray) -> bool:
        return False

    def nbytes_in_memory(self) -> int:
        return 0


@pytest.mark.parametrize("settings", LANES)
def test_a_sink_that_is_not_concurrent_is_written_in_order(settings: dict[str, int]) -> None:
    matrix, sink = ToyMatrix(wild(200, 2)), OneAtATime()
    run(
        toy_plan(matrix, step=5, span=1),
        matrix,
        maps={"z": lambda block: block.dense()},
        sinks={"z": sink},
        execution=here(**settings),
    )
    assert sink.most == 1
    assert sink.starts == list(range(0, 200, 5))


def test_the_source_is_no_output(tmp_path: Path) -> None:
    import streampca

    path = tmp_path / "x.zarr"
    first = ZarrSink(path, 100, 3)
    first.write(0, np.ones((100, 3)))
    first.finish()
    (tmp_path / "link.zarr").symlink_to(path)
    for other in (path, tmp_path / "link.zarr"):
        matrix = streampca.open(str(path))
        sink = ZarrSink(other, 100, 3, overwrite=True)
        with pytest.raises(InvalidInputError, match="is what is read"):
            run(
                toy_plan(matrix),
                matrix,
                maps={"z": lambda block: 2 * block.dense()},
                sinks={"z": sink},
                execution=here(),
            )
        del sink
    assert (streampca.open(str(path)).read(0, 0, 100) == 1).all()
    assert sorted(p.name for p in tmp_path.iterdir()) == ["link.zarr", "x.zarr"]
