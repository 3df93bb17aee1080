"""What a method asks for: its passes, and the ways to its result among which a plan chooses."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from streampca.accumulators import Accumulator
from streampca.matrix import ChunkedMatrix


@dataclass(frozen=True)
class PassSpec:
    """What a method asks of one pass; :func:`make_plan` turns it into a :class:`PassPlan`.

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
    """

    name: str
    axis: int
    total_nbytes: int
    partial_nbytes: int
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


@dataclass(frozen=True)
class Candidate:
    """One way to reach the result: its passes and the memory that solving needs after them.

    solve_nbytes : of the solver phase, by what they are: arrays that live at the same time.
    sizes : numbers by which the method knows this candidate again when it runs the plan.
    seconds : predicted, for ordering; 0 where it was not asked.
    then : what the fit goes over to where this one cannot certify its answer.
    """

    solver: str
    reason: str
    passes: tuple[PassSpec, ...]
    solve_nbytes: Mapping[str, int] = field(default_factory=dict)
    solve_flops: float = 0.0
    sizes: Mapping[str, int] = field(default_factory=dict)
    seconds: float = 0.0
    then: Candidate | None = None
