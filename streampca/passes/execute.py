"""From a plan to its answer: the only way in which passes run, for every method."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Mapping
from contextlib import ExitStack, closing
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, Generic

import numpy as np

from streampca.errors import InvalidInputError
from streampca.kernels import give_back
from streampca.matrix import ChunkedMatrix, spot_checks
from streampca.passes.candidates import Planned, Steps, T, choose_pass
from streampca.passes.cluster.cluster import run_on_cluster
from streampca.passes.cluster.versions import refuse_other_versions
from streampca.passes.cluster.workers import await_worker, patient, workers_can_read
from streampca.passes.execution import SMALL_NBYTES, Execution, Fold, Running, client_for, is_small
from streampca.passes.lanes import run_on_lanes
from streampca.passes.memory import MemoryUse
from streampca.passes.plan import Plan, warn_of_excess
from streampca.passes.records import Pass, PassCost, PassPlan, PassResult, PassSpec
from streampca.passes.settings import all_threads, limited_threads, single_threaded_blas

logger = logging.getLogger(__name__)
Recall = Callable[[PassPlan, Pass, Callable[[], PassResult]], PassResult]
SHARED_FLOPS = 1e9  # of a fit at once from which threads help: to start and wake them takes longer


@dataclass(frozen=True)
class Outcome(Generic[T]):
    """An answer, and how it came about.

    plan : of everything that might run.  costs : of each pass that ran.
    memory : use of this process since the first pass began.
    """

    answer: T
    plan: Plan
    costs: list[PassCost]
    memory: MemoryUse = field(repr=False)

    def after(self, earlier: Outcome[Any]) -> Outcome[T]:
        """This answer, with the passes of an earlier one, on which its plan depends."""
        plan, costs = self.plan.after(earlier.plan), [*earlier.costs, *self.costs]
        return replace(self, plan=plan, costs=costs, memory=self.memory.since(earlier.memory))


def execute(
    planned: Planned[T], running: Running, *, start: Any = None, recall: Recall | None = None
) -> Outcome[T]:
    """Make the passes of a plan, and solve; where the answer has a doubt, go over to ``then``.

    start : where the solver begins.  recall : what makes the first pass, or knows its result.

    Raises MemoryLimitError if the plan does not fit into this machine or a worker, ClusterError and
    InvalidInputError if the scheduler cannot be used, before anything is read; then what reading,
    accumulators and the solver raise.
    """
    planned = replace(planned, start=start)
    plan, matrix, begun = planned.plan, planned.matrix, time.perf_counter()
    with limited_threads(running.threads), ExitStack() as stack:
        execution = Execution.begun(plan, matrix, running)
        level = logging.DEBUG if execution.at_once else logging.INFO
        if logger.isEnabledFor(level):
            logger.log(level, *_announced(plan))
        if execution.at_once:
            shared = plan.flops >= SHARED_FLOPS
            stack.enter_context(all_threads() if shared else single_threaded_blas())
        answer = _answer(planned, execution, recall)
        while (then := planned.then) is not None and _doubt(answer):
            logger.info("%s goes over to %s: %s", plan.solver, then.plan.solver, _doubt(answer))
            planned, execution.plan = then, then.plan
            execution.first_pass = len(execution.costs)
            answer = _answer(planned, execution, recall)
        execution.finished()
        if not execution.at_once:  # which needs no more room than the array took
            warn_of_excess(plan, execution.memory)
    seconds = time.perf_counter() - begun
    logger.log(level, "%s is done after %.2f s", plan.method, seconds, extra={"seconds": seconds})
    return Outcome(answer, plan, execution.costs, execution.memory)


def _announced(plan: Plan) -> tuple[Any, ...]:
    """The line of the log before anything is read."""
    text = "%s of %d x %d by %s: at most %d passes, %d chunk reads, a peak of %.0f MB"
    counts = (plan.n_passes, plan.reads, plan.peak_nbytes / 1e6)
    return (text, plan.method, *plan.shape, plan.solver, *counts)


def one_pass(
    matrix: ChunkedMatrix,
    spec: PassSpec,
    running: Running,
    solve: Callable[[Planned[Any]], Steps[Any]] | None = None,
    **arrays: Any,
) -> Outcome[Any]:
    """A pass by itself, planned and run; its answer is its sums, or what ``solve`` returns.

    arrays : operands, side inputs, maps and sinks, as :class:`Pass` takes them; not with ``solve``.
    Raises MemoryLimitError, and what :func:`execute` raises.
    """
    if solve is not None and arrays:
        raise TypeError(f"solve= makes the pass, so that {sorted(arrays)} would not be used")
    solve = solve or partial(with_arrays, arrays=arrays)
    return execute(choose_pass(matrix, spec, running.memory_limit, solve), running)


def small_pass(
    matrix: ChunkedMatrix, spec: PassSpec, running: Running, **arrays: Any
) -> PassResult | None:
    """The sums of a pass over a small array in memory, as one block in this thread: planning it
    takes longer. None where the array is large, or the caller says how passes run.

    arrays : as :func:`one_pass` takes them.
    """
    if spec.total_nbytes + spec.partial_nbytes > SMALL_NBYTES or not is_small(matrix, running):
        return None
    edges = np.array(spec.rows or (0, matrix.shape[spec.axis]))
    blocks = PassPlan(spec.name, spec.axis, edges, 1, 1, matrix.nbytes, spec.flops)
    with single_threaded_blas():
        return fold_at_once(blocks, Pass(spec, matrix=matrix, **arrays).begun(blocks))


def with_arrays(planned: Planned[Any], *, arrays: Mapping[str, Any]) -> Steps[PassResult]:
    """The sums of the only pass of a candidate, with these arrays."""
    (spec,) = planned.candidate.passes
    return (yield Pass(spec, **arrays))


def _doubt(answer: Any) -> str:
    """What an answer leaves uncertain, in words; "" where it is certain."""
    return str(getattr(answer, "doubt", ""))


def _answer(planned: Planned[T], execution: Execution, recall: Recall | None) -> T:
    """The answer of one candidate: its solver is handed the sums of the passes that it wants."""
    execution.n_passes = execution.first_pass + planned.plan.n_passes
    number = execution.first_pass
    result: Any = None
    with closing(planned.candidate.solve(planned)) as steps:
        while True:
            try:
                wanted = [steps.send(result)]
            except StopIteration as done:
                answer: T = done.value
                return answer
            if (after := wanted[0].after) is not None:
                number, execution.keeps = after, False
            number += 1
            execution.pass_number, result = number, None
            # a result is not held in the next pass, nor operands after theirs
            result = _made(planned, wanted.pop(), execution, recall)


def _made(
    planned: Planned[Any], wanted: Pass, execution: Execution, recall: Recall | None
) -> PassResult:
    """The result of one pass."""
    spec, blocks = planned.declared(wanted.spec)
    name = blocks.name if blocks.times == 1 else f"{blocks.name} {wanted.number}"
    matrix = next(m for m in (wanted.matrix, spec.matrix, planned.matrix) if m is not None)
    wanted = replace(wanted, spec=spec, matrix=matrix)
    once = partial(run, replace(blocks, name=name), wanted, execution)
    if recall is None or blocks is not planned.plan.passes[0]:
        return once()
    return recall(blocks, wanted, once)


def run(plan: PassPlan, wanted: Pass, execution: Execution) -> PassResult:
    """Walk a matrix once, in the blocks of a plan.

    Bits depend on the plan alone, not on lanes, workers or the order in which they finish.
    Ctrl-C stops it within a block. Raises what reading, maps and accumulators raise.
    """
    matrix = wanted.matrix
    if execution.at_once and is_small(matrix, execution.running) and plan.n_blocks == 1:
        result = fold_at_once(plan, wanted.begun(plan))
        execution.costs.append(result.cost)
        return result
    client = client_for(execution.running.scheduler, matrix)
    if client is not None and not workers_can_read(matrix):
        client = None
    if client is not None:
        await_worker(client)
        refuse_other_versions(client)
    work = wanted.begun(plan)
    _check(work)
    where = "the cluster" if client is not None else "threads"
    logger.debug("pass %d %s begins in %s", execution.pass_number, plan.name, where)
    large = execution.plan.frees_much
    if large:
        give_back()  # what came before: a solver, another pass
    cost = PassCost(plan.name)
    begun = time.perf_counter()
    shared = matrix.prepared()
    fold = Fold(plan, work, cost, execution, begun)
    todo = list(enumerate(plan.spans))[fold.next :]
    try:
        with single_threaded_blas():  # on a cluster too: spans are merged here
            if todo and client is not None:
                checked = replace(work, checks=spot_checks(work.matrix.locations()))
                with patient(client):
                    run_on_cluster(client, checked, fold, execution)
            elif todo:
                run_on_lanes(work, todo, execution.crew(work, len(todo)), fold)
    except BaseException as error:
        fold.interrupted(error)
        raise
    fold.finish()
    if large:
        give_back()
    shared = matrix.prepared() - shared
    cost.reads += shared.chunks
    cost.nbytes += shared.nbytes
    cost.seconds = time.perf_counter() - begun
    execution.costs.append(cost)
    counts = (cost.blocks, cost.nbytes / 1e6, cost.seconds)
    number = (execution.pass_number, execution.n_passes)
    logger.info("pass %d/%d %s is done: %d blocks, %.1f MB in %.2f s", *number, plan.name, *counts)
    return PassResult(fold.total, cost)


def fold_at_once(plan: PassPlan, work: Pass) -> PassResult:
    """The sums of a pass of one block in memory: what lanes, merging and checkpoints come to there.

    work : it has begun.
    """
    _check(work)
    begun, before = time.perf_counter(), work.matrix.reads()
    total, cost = work.accumulators(), PassCost(plan.name, nbytes=plan.nbytes, blocks=1)
    work.process(work.read(0), total)
    for accumulator in total.values():
        accumulator.settle()
    for sink in work.sinks.values():
        sink.finish()
    cost.add(work.matrix.reads() - before)
    cost.most_live_blocks = 1
    cost.seconds = time.perf_counter() - begun
    return PassResult(total, cost)


def _check(work: Pass) -> None:
    axis = work.matrix.streamed_axis
    for name, accumulator in work.spec.accumulators.items():
        if accumulator.axis not in (None, axis):
            streamed, wanted = (("samples", "features")[a] for a in (axis, accumulator.axis))
            raise InvalidInputError(f"{name!r} needs blocks of {wanted}; this pass has {streamed}")
    length, edges = work.matrix.shape[axis], work.matrix.edges
    if edges[0] < 0 or edges[-1] > length:
        raise InvalidInputError(f"the plan is for another matrix: {edges[-1]} rows, here {length}")
    names = [*work.operands, *work.side_inputs, *work.maps]
    if len(set(names)) < len(names):
        raise InvalidInputError(f"operands, side inputs and maps share a name: {sorted(names)}")
    for name, values in work.side_inputs.items():
        if (rows := np.shape(values)[0]) != length:
            raise InvalidInputError(f"side input {name!r} has {rows} rows, not {length}")
    if work.design is not None:
        if len(work.design) != work.matrix.shape[0]:
            raise InvalidInputError(
                f"a design of {len(work.design)} rows for {work.matrix.shape[0]} samples"
            )
        if axis == 0 and "removed" not in work.operands:
            raise InvalidInputError("streamed samples need to know what the design removes")
    if work.weights is not None and len(work.weights) != work.matrix.shape[0]:
        raise InvalidInputError(
            f"{len(work.weights)} weights for {work.matrix.shape[0]} samples; expected one each"
        )
    sources = set(work.matrix.paths())
    for sink in work.sinks.values():
        if same := sources.intersection(sink.paths()):
            raise InvalidInputError(f"{same.pop()} is what is read; choose another output")
    produced = {name for one in work.spec.accumulators.values() for name in one.makes}
    if missing := set(work.sinks) - set(work.maps) - produced:
        raise InvalidInputError(f"sinks {sorted(missing)} have no map of that name")
