"""What a method asks for: its passes, and the ways to its result among which a plan chooses.

A :class:`Candidate` is one way to an answer. It declares its passes, with the accumulators that
they fold, and carries the function that solves. What was learned when it was made (the matrix, the
request, sizes, the passes themselves) is bound in that function, by ``functools.partial``.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Generic, TypeVar

import numpy as np

from streampca.accumulators import Accumulator
from streampca.matrix import ChunkedMatrix
from streampca.passes.costs import PassResult
from streampca.passes.records import PassPlan, Plan
from streampca.passes.work import Map
from streampca.store import Sink

T = TypeVar("T")


@dataclass(frozen=True)
class PassSpec:
    """What a method asks of one pass; a plan cuts it into blocks, a :class:`PassPlan`.

    It is declared before the memory is known, and nothing in it is data of a block.

    axis : streamed, 0 for samples.
    accumulators : empty, by name: what is planned is what ``run`` folds, unless it is given others.
    total_nbytes : the folded accumulators.  partial_nbytes : those of one span.
    scratch : of the length of a block, bytes that maps and accumulators need beside it.
    kept_nbytes : arrays of the caller that live during the pass (operands, results in memory).
    kept : further ones by their names, each of KEPT.
    rows : (first, last) of the streamed axis that are read, or None for all.
    longest : of a block on the streamed axis, where chunks are no longer; None leaves it to bytes.
    ordered : one lane takes all blocks in order and nothing is merged.
    matrix : what this pass reads, where it is not the plan's.
    stored : of sparse blocks the stored entries alone are taken, none is expanded: blocks are as
        long as their stored bytes allow.
    work : kind of its arithmetic, for the prediction of time: "update", "skinny" or "factor".
    thin : tiles are thin, see :func:`streampca.matrix.tiles.tile_length`.
    times : how often at most it is made, each time with other operands.  likely : how often it
        usually is, for predictions of time.
    final : it follows an answer without doubt: of a candidate and its ``then`` one alone makes it.
    weights : (samples,) how often each sample counts, or None.
    feature_weights : (features,) a side input of streamed features, or None.
    key : the pass keeps it under ``dataclasses.replace``: a composition may rename a pass, or plan
        more memory for it, and the solver that declared it still asks for the same one.
    """

    name: str
    axis: int
    total_nbytes: int = 0
    partial_nbytes: int = 0
    scratch: Callable[[int], int] = lambda length: 0
    accumulators: Mapping[str, Accumulator] = field(default_factory=dict)
    kept_nbytes: int = 0
    kept: Mapping[str, int] = field(default_factory=dict)
    flops: float = 0.0
    rows: tuple[int, int] | None = None
    longest: int | None = None
    ordered: bool = False
    matrix: ChunkedMatrix | None = None
    stored: bool = False
    work: str = "update"
    thin: bool = False
    times: int = 1
    likely: int = 1
    final: bool = False
    weights: Any = field(default=None, repr=False, compare=False)
    feature_weights: Any = field(default=None, repr=False, compare=False)
    key: object = field(default_factory=object, repr=False, compare=False)


@dataclass(frozen=True)
class Pass:
    """A pass that a solver wants next: one that its candidate declares, and the arrays for it.

    spec : as it was declared.  number : which of its repetitions it is, from 1.
    matrix : what is read, where it is not what ``spec`` names.
    changed : by accumulator, settings that differ from those declared; None leaves it out.
    operands : small arrays that every block needs: ``block["Q"]``.
    side_inputs : arrays aligned with the streamed axis; ``block["scores"]`` is the slice.
    maps : name -> function of a block; its result is ``block[name]`` for what follows.
    sinks : name of a map, or of rows that an accumulator makes -> where they are written.
    weighted : whether the weights of the samples count.
    after : passes made before it, of a fit that saves its state itself, and may have been
        interrupted: then a finished pass leaves no checkpoint.
    """

    spec: PassSpec
    number: int = 1
    matrix: ChunkedMatrix | None = None
    changed: Mapping[str, Mapping[str, Any] | None] = field(default_factory=dict)
    operands: Mapping[str, Any] = field(default_factory=dict)
    side_inputs: Mapping[str, Any] = field(default_factory=dict)
    maps: Mapping[str, Map] = field(default_factory=dict)
    sinks: Mapping[str, Sink] = field(default_factory=dict)
    weighted: bool = True
    after: int | None = None

    def accumulators(self) -> dict[str, Accumulator]:
        """Those that were declared as this pass wants them, empty."""
        known = self.spec.accumulators
        named = {**{name: {} for name in known}, **self.changed}
        return {name: known[name].blank(**new) for name, new in named.items() if new is not None}


Steps = Generator[Pass, PassResult, T]  # what yields passes, is handed results, and returns a T


@dataclass(frozen=True)
class Planned(Generic[T]):
    """A candidate with its plan: what ``execute`` runs, and what the candidate solves.

    start : where the solver begins, such as what earlier fits left; or None.
    """

    candidate: Candidate[T]
    plan: Plan
    matrix: ChunkedMatrix
    start: Any = None

    def declared(self, spec: PassSpec) -> tuple[PassSpec, PassPlan]:
        """A pass as it is planned, and its blocks.  spec : as whoever solves has it."""
        pairs = zip(self.candidate.passes, self.plan.passes, strict=True)
        return next(pair for pair in pairs if pair[0].key is spec.key)

    def blocks(self, spec: PassSpec) -> PassPlan:
        """The blocks of a pass."""
        return self.declared(spec)[1]

    @property
    def then(self) -> Planned[T] | None:
        """What is gone over to where the answer leaves a doubt."""
        candidate, plan = self.candidate.then, self.plan.then
        if candidate is None or plan is None:
            return None
        return Planned(candidate, plan, self.matrix, self.start)


def only_pass(planned: Planned[Any]) -> Steps[PassResult]:
    """The sums of the one pass of a candidate: its answer where it names no other."""
    (spec,) = planned.candidate.passes
    return (yield Pass(spec))


@dataclass(frozen=True)
class Candidate(Generic[T]):
    """One way to an answer: its passes, the memory that solving needs after them, and the solver.

    solve_nbytes : of the solver phase, by what they are: arrays that live at the same time.
    sizes : numbers that the plan prints.
    seconds : predicted, for ordering; 0 where it was not asked.
    then : what the fit goes over to where this one's answer has a ``doubt``.
    solve : yields the passes that it needs, is handed their sums, and returns the answer. Results
        that it holds no longer than it must are taken out of ``accumulators``.
    """

    solver: str
    reason: str
    passes: tuple[PassSpec, ...]
    solve_nbytes: Mapping[str, int] = field(default_factory=dict)
    solve_flops: float = 0.0
    sizes: Mapping[str, int] = field(default_factory=dict)
    seconds: float = 0.0
    then: Candidate[T] | None = None
    solve: Callable[[Planned[Any]], Steps[T]] = field(
        default=only_pass,  # type: ignore[assignment]
        repr=False,
        compare=False,
    )

    def __post_init__(self) -> None:
        keys = [one.key for one in self.passes]
        if len(set(map(id, keys))) < len(keys):
            raise ValueError(
                f"two passes of {self.solver!r} were made from one by replace(); give the second a "
                "key of its own: key=object()"
            )

    def passes_within(self, seconds: float) -> int:
        """How many of its passes are predicted to take so many seconds together."""
        usual = sum(one.likely for one in self.passes)
        return (
            int(min(seconds * usual / self.seconds, np.iinfo(np.int32).max)) if self.seconds else 0
        )

    def weighted(self, weights: Any, feature_weights: Any = None) -> Candidate[T]:
        """The candidate whose passes count samples, and weigh features, so."""
        passes = tuple(
            replace(one, weights=weights, feature_weights=feature_weights if one.axis else None)
            for one in self.passes
        )
        return replace(self, passes=passes)
