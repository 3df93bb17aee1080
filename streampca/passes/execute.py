"""From a plan to its answer: the one way in which passes are made, for every method."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import closing
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, Generic

from streampca.matrix import ChunkedMatrix
from streampca.passes.costs import PassCost, PassResult
from streampca.passes.door import MemoryUse, warn_of_excess
from streampca.passes.execution import Execution
from streampca.passes.plan import choose
from streampca.passes.records import PassPlan, Plan
from streampca.passes.run import run
from streampca.passes.settings import limited_threads
from streampca.passes.specs import Candidate, Pass, PassSpec, Planned, Steps, T

Recall = Callable[[PassPlan, Pass, Callable[[], PassResult]], PassResult]


@dataclass(frozen=True)
class Running:
    """How passes run; it never changes a result.

    memory_limit : bytes, or text such as "2GiB", that the plan keeps to; None: no limit.
    scheduler : None (the ambient ``distributed.Client`` if there is one, else threads),
        "threads", an address, or a Client.
    progress : True, False, a callable of an :class:`Advance`, or None (a bar in a terminal).
    checkpoint : directory for span checkpoints, or None.
    threads : of passes and solvers; None: as many as this process may use.
    """

    memory_limit: int | str | None = None
    scheduler: Any = None
    progress: Any = None
    checkpoint: str | None = None
    threads: int | None = None


@dataclass(frozen=True)
class Outcome(Generic[T]):
    """An answer, and how it came about.

    plan : of everything that might run.  costs : one entry for each pass that was made.
    memory : use of this process since the first pass began.
    """

    answer: T
    plan: Plan
    costs: list[PassCost]
    memory: MemoryUse = field(repr=False)

    def after(self, earlier: Outcome[Any]) -> Outcome[T]:
        """This answer, with the passes of an earlier one, on which its plan depends."""
        plan, costs = self.plan.after(earlier.plan), [*earlier.costs, *self.costs]
        return replace(self, plan=plan, costs=costs)


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
    plan, matrix = planned.plan, planned.matrix
    with limited_threads(running.threads):
        execution = Execution.begun(
            plan, matrix, running.scheduler, running.progress, running.checkpoint
        )
        answer = _answer(planned, execution, recall)
        while (then := planned.then) is not None and _doubt(answer):
            planned, execution.plan = then, then.plan
            execution.first_pass = len(execution.costs)
            answer = _answer(planned, execution, recall)
    return Outcome(answer, plan, execution.costs, execution.memory)


def one_pass(
    matrix: ChunkedMatrix, spec: PassSpec, running: Running, **arrays: Any
) -> Outcome[PassResult]:
    """A pass by itself, planned and made; its answer are its sums.

    arrays : operands, side inputs, maps and sinks, as :class:`Pass` takes them.
    Raises MemoryLimitError, and what :func:`execute` raises.
    """
    candidate = Candidate(spec.name, "one pass", (spec,), solve=partial(with_arrays, arrays=arrays))
    return execute(choose(matrix, spec.name, [candidate], running.memory_limit), running)


def with_arrays(planned: Planned[Any], *, arrays: Mapping[str, Any]) -> Steps[PassResult]:
    """The sums of the one pass of a candidate, made with these arrays."""
    (spec,) = planned.candidate.passes
    return (yield Pass(spec, **arrays))


def _doubt(answer: Any) -> str:
    """What an answer leaves uncertain, in words; "" where it is certain."""
    return str(getattr(answer, "doubt", ""))


def _answer(planned: Planned[T], execution: Execution, recall: Recall | None) -> T:
    """The answer of one candidate: its solver is handed the sums of the passes that it wants."""
    execution.n_passes = execution.first_pass + planned.plan.n_passes
    made = execution.first_pass
    result: Any = None
    with closing(planned.candidate.solve(planned)) as steps:
        while True:
            try:
                wanted = [steps.send(result)]
            except StopIteration as done:
                warn_of_excess(execution.whole, execution.memory)
                execution.finished()
                answer: T = done.value
                return answer
            if (after := wanted[0].after) is not None:
                made, execution.keeps = after, False
            made += 1
            execution.pass_number, result = made, None
            # a result is not held in the next pass, nor operands after theirs
            result = _made(planned, wanted.pop(), execution, recall)


def _made(
    planned: Planned[Any], wanted: Pass, execution: Execution, recall: Recall | None
) -> PassResult:
    """The result of one pass."""
    spec, blocks = planned.declared(wanted.spec)
    name = blocks.name if blocks.times == 1 else f"{blocks.name} {wanted.number}"
    sides = dict(wanted.side_inputs)
    if spec.feature_weights is not None:
        sides["feature_weights"] = spec.feature_weights
    read = next(one for one in (wanted.matrix, spec.matrix, planned.matrix) if one is not None)
    once = partial(
        run,
        replace(blocks, name=name),
        read,
        accumulators=wanted.accumulators(),
        operands=wanted.operands,
        side_inputs=sides,
        maps=wanted.maps,
        sinks=wanted.sinks,
        weights=spec.weights if wanted.weighted else None,
        execution=execution,
        more_follow=True,
    )
    if recall is None or blocks is not planned.plan.passes[0]:
        return once()
    return recall(blocks, wanted, once)
