"""The ways to a completion, and their passes: one look, then a sweep each until nothing changes.

Where rows and columns are centred, the look makes the first turn, and passes of their own the
others, before the sweeps begin.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from streampca.accumulators import HeldOutError
from streampca.errors import InvalidInputError
from streampca.kernels import Array, ColumnStats
from streampca.matrix import ChunkedMatrix, Scaling, stored_eps
from streampca.models.completion.als import (
    AlternatingSweeps,
    BiasedSweeps,
    first_directions,
    lengths_of_factors,
)
from streampca.models.completion.filled import Completed, FilledSweeps
from streampca.models.completion.plan import (
    CompletionPasses,
    columns_outside,
    completions,
    mean_of_all,
    observed_range,
    penalties_of,
    with_penalties,
)
from streampca.models.completion.request import CompletionRequest, bounds_of
from streampca.models.completion.trace import (
    FLOOR,
    LineFactors,
    SavedSweeps,
    Sweep,
    hopeless,
    next_sweep,
    settled,
    stops_early,
)
from streampca.models.completion.two_way import TwoWay
from streampca.models.completion.withheld import Withhold
from streampca.passes import (
    Candidate,
    Outcome,
    Pass,
    PassResult,
    PassSpec,
    Planned,
    Running,
    Steps,
    choose,
    execute,
    single_threaded_blas,
)
from streampca.solvers import singular_form

GIVING_BACK = 10  # sweeps that are left for the held-out cells, once they are given back
Sweeps = type[AlternatingSweeps] | type[FilledSweeps]
SWEEPS: dict[str, Sweeps] = {
    "als": AlternatingSweeps,
    "impute": FilledSweeps,
    "exact": FilledSweeps,
}


@dataclass(frozen=True)
class Completion:
    """The solver of a candidate: its passes, and what is asked; ``planned.start`` is its state."""

    request: CompletionRequest
    passes: CompletionPasses

    def __call__(self, planned: Planned[Any]) -> Steps[Completed]:
        """Look, turn and sweep until nothing changes."""
        return complete(planned.start)


def completion_candidates(
    matrix: ChunkedMatrix, request: CompletionRequest
) -> list[Candidate[Completed]]:
    """The ways to a completion; they make the same passes, and what a sweep sums differs."""
    made = completions(matrix, request)
    return [replace(one, solve=Completion(request, passes)) for passes, one in made]


def choose_completion(
    matrix: ChunkedMatrix, method: str, request: CompletionRequest
) -> Planned[Completed]:
    """The way that fits the memory. Raises MemoryLimitError where nothing does."""
    return choose(matrix, method, completion_candidates(matrix, request), request.memory_limit)


def fit_completion(
    planned: Planned[Completed], running: Running, scratch: Callable[[], str]
) -> Outcome[Completed]:
    """Run the plan, from where an interrupted fit of the same request and data was.

    scratch : makes the folder for factors of lines that do not fit into memory.
    """
    solver = planned.candidate.solve
    assert isinstance(solver, Completion)
    request = solver.request
    saved = SavedSweeps.of(running.checkpoint, planned.plan, planned.matrix, request)
    work = _Fit(planned, request, solver.passes, saved, scratch)
    return execute(planned, running, start=work, first_pass=work.resume(), keeps=False)


def complete(work: _Fit) -> Steps[Completed]:
    """Look, unless an interrupted fit has; turn, and sweep, until nothing changes."""
    if not work.resumed:
        yield from work.look()
    while (yield from work.turn()):
        pass
    while not work.finished:
        yield from work.advance()
    if work.request.gives_back:
        yield from work.give_back()
        while not work.finished:
            yield from work.advance()
    return work.completed()


class _Fit:
    """The state of one fit: column statistics, the factors on both sides, and the trace."""

    def __init__(
        self,
        planned: Planned[Completed],
        request: CompletionRequest,
        passes: CompletionPasses,
        saved: SavedSweeps | None,
        scratch: Callable[[], str],
    ) -> None:
        self.plan, self.matrix, self.request, self.saved = (
            planned.plan,
            planned.matrix,
            request,
            saved,
        )
        self.passes, plan, matrix = passes, planned.plan, planned.matrix
        one = planned.blocks(passes.sweep)
        self.axis, self.most = one.axis, one.times
        lines, m = matrix.shape[self.axis], matrix.shape[1 - self.axis]
        dtype = np.float32 if matrix.dtype == np.float32 else np.float64
        self.factors = LineFactors(
            lines, request.total, dtype, one.edges, scratch() if passes.scratch else None
        )
        kind = BiasedSweeps if request.biases else SWEEPS[plan.solver]
        self.sweeps = kind(request, m, matrix.absent, np.dtype(plan.work_dtype))
        self.withhold = Withhold.of(request.validation, request.seed, matrix, self.axis)
        self.effects = None
        if request.both:
            self.effects = TwoWay(matrix.shape, self.axis, request.both_scaled)
        self.start: Any = None  # (m, width) where to begin, until there is a center
        self.all_sweeps = self.most
        self.most -= request.gives_back * min(GIVING_BACK, self.most // 2)  # the rest is for it
        self.number = 0  # of sweeps made
        self.finished = self.stopped = self.resumed = False
        self.trace: list[Sweep] = []
        self.stats: ColumnStats
        self.scaling: Scaling

    # -- passes -----------------------------------------------------------------------------

    def _pass(self, spec: PassSpec, number: int = 1, **more: Any) -> Pass:
        maps: dict[str, Any] = {} if self.withhold is None else {"held": self.withhold}
        return Pass(spec, number, maps=maps, weighted=spec is not self.passes.sweep, **more)

    def look(self) -> Steps[None]:
        """The first pass: column statistics, and directions to begin with."""
        operands: dict[str, Any] = {}
        if self.matrix.absent:
            start: Any = self.passes.look.accumulators["start"]
            rng, m = np.random.default_rng(self.request.seed), self.matrix.shape[1 - self.axis]
            operands["q"] = rng.standard_normal((m, start.width))
        if self.effects is None:
            done = yield self._pass(self.passes.look, operands=operands)
        else:
            done = yield from self._turn(self.passes.look, operands)
        stats = done["columns"].columns()
        rows = done["rows"] if self.request.biases else None
        self._take_request(with_penalties(self.request, stats, rows))
        self._take_stats(stats)
        directions, sizes = done["start"].directions()
        self.start = np.ascontiguousarray(directions)
        if not self.request.both:
            self._begin(sizes if self.request.biases else None)
        self._save()

    def _turn(self, spec: PassSpec, operands: dict[str, Any]) -> Steps[PassResult]:
        """A pass that turns the effects of rows and columns."""
        assert self.effects is not None
        sink, (beside, sides) = self.effects.sink(), self.effects.standardisation()
        number = len(self.effects.changes) + 1
        done = yield self._pass(
            spec, number, operands=operands | beside, side_inputs=sides, sinks={"effects": sink}
        )
        eps = float(np.finfo(self.plan.work_dtype).eps)
        self.effects.take(done["effects"], sink.values, eps, self.request.weights)
        return done

    def turn(self) -> Steps[bool]:
        """One turn of the effects of rows and columns. False where none is needed."""
        if self.effects is None or self.start is None:
            return False
        if self.turns < self.request.turns and not self.effects.changes[-1] <= self.request.tol:
            assert self.passes.turn is not None
            yield from self._turn(self.passes.turn, {})
            self._save()
            return True
        self.start = self.effects.directions(self.start)
        self._take_stats(self.stats)
        self._begin()
        self._save()
        return False

    @property
    def turns(self) -> int:
        """The number of turns so far; the first pass counts as one."""
        return 1 if self.effects is None else len(self.effects.changes)

    def _begin(self, sizes: Array | None = None) -> None:
        """Begin the sweeps.  sizes : the singular values of the start; factors have their roots."""
        m, rng = self.matrix.shape[1 - self.axis], np.random.default_rng((self.request.seed, 1))
        if isinstance(self.sweeps, BiasedSweeps):
            self.sweeps.begin_about(self.scaling.center, mean_of_all(self.stats))
        with single_threaded_blas():
            start = first_directions(self.start, m, max(self.request.ranks), rng)
            if sizes is not None:
                share = float(self.stats.count.sum()) / math.prod(self.matrix.shape)
                start = start * lengths_of_factors(sizes, start.shape[1], share)
            self.sweeps.begin(start)
            if self.request.init is not None:
                self._begin_with(*self.request.init)
        self.start = None

    def _take_request(self, request: CompletionRequest) -> None:
        """The request with the penalties that the first pass determined."""
        self.request = self.sweeps.request = request

    def _take_stats(self, stats: ColumnStats) -> None:
        self.stats = stats
        if (effects := self.effects) is None:
            scaling = self.request.standardize.resolve(
                stats, stored_eps(self.matrix.dtype), self.request.column_weights
            )
            if self.request.standardize.center:  # empty columns get the mean of all cells
                center = np.where(stats.count > 0, scaling.center, mean_of_all(stats))
                scaling = replace(scaling, center=center)
            self.scaling = scaling
            return
        scale = effects.scale if effects.scaled else None
        nothing = np.zeros_like(effects.still)
        self.scaling = Scaling(effects.center, scale, effects.still, nothing)

    def _begin_with(self, scores: Array | None, loadings: Array | None) -> None:
        if scores is not None and (roots := self.request.roots) is not None:
            scores = scores * roots[:, None]
        if loadings is not None:
            outside = columns_outside(self.stats, self.scaling, self.request)
            loadings = np.where(outside[:, None], 0.0, loadings)
        lines, across = (loadings, scores) if self.axis else (scores, loadings)
        first = self.sweeps.begin_with(lines, across)
        if first is not None:
            self.factors.begin_with(first)

    def give_back(self) -> Steps[None]:
        """A second look, at all cells; the candidate that is kept goes on with them, alone."""
        if self.withhold is not None:
            self.withhold = None
            self.sweeps.fitted = np.arange(len(self.request.ranks)) == self.trace[-1].chosen
            self.most = self.all_sweeps
            done = yield self._pass(self.passes.look, 2, changed={"start": None})
            stats = done["columns"].columns()
            self._take_request(with_penalties(self.request, stats, done["rows"]))
            self._take_stats(stats)
            assert isinstance(self.sweeps, BiasedSweeps)
            self.sweeps.go_on_about(self.scaling.center)
            self.finished = False
            self._save()

    def advance(self) -> Steps[None]:
        """One sweep."""
        operands = self.sweeps.operands() | {"center": self.center()}
        if self.scaling.scale is not None:
            operands["scale"] = self.scaling.scale
        judged = self.withhold is not None and self.sweeps.judged
        changed: dict[str, Any] = {"step": penalties_of(self.request)}
        fitted = {"fitted": tuple(self.sweeps.fitted.tolist())}
        if not self.request.filled:
            changed["step"] |= fitted
        if judged:
            bounds = self._bounds() or (-np.inf, np.inf)
            changed["judge"] = {"bounds": bounds} | fitted
        elif self.request.validation is not None:
            changed["judge"] = None
        reads = self.request.filled
        sides: dict[str, Any] = {"u_old": self.factors.values} if reads else {}
        beside, along = self._rows()
        operands, sides = operands | beside, sides | along
        sink = self.factors.sink(self.number + 1, both=reads)
        done = yield self._pass(
            self.passes.sweep,
            self.number + 1,
            changed=changed,
            operands=operands,
            side_inputs=sides,
            sinks={"u": sink},
        )
        self.number += 1
        self.factors.written(self.number)
        with single_threaded_blas():
            told = self.sweeps.take(done["step"])
        if told is not None:
            self._record(told, done["judge"] if judged else None, done.cost.seconds)
        self._decide(done["step"].squares)
        # the last sweep is made again: what is saved has not always the factors of the lines
        if not self.finished or (self.request.gives_back and not self.given_back):
            self._save()

    def _rows(self) -> tuple[dict[str, Array], dict[str, Array]]:
        """(operands, side inputs) that standardise rows and multiply them by roots of weights."""
        operands, sides = ({}, {}) if self.effects is None else self.effects.standardisation()
        if (roots := self.request.roots) is not None:
            into = operands if self.axis else sides
            with np.errstate(divide="ignore"):  # a row of weight 0 is 0: over infinity
                into["row_scale"] = into.get("row_scale", 1.0) / roots
        return operands, sides

    def center(self) -> Array:
        """(p,) what is subtracted from the columns: means, and their changes by the sweeps."""
        if not self.request.means:
            return self.scaling.center
        scale = self.scaling.scale
        shift = self.sweeps.shift if scale is None else self.sweeps.shift * scale
        return np.asarray(self.scaling.center + shift)

    def _bounds(self) -> tuple[float, float] | None:
        return bounds_of(self.request.bounds, observed_range(self.stats))

    def _record(self, told: dict[str, Any], held: HeldOutError | None, seconds: float) -> None:
        if held is not None and not held.cells:
            raise InvalidInputError(
                "validation holds out no observed cell, so that nothing can be judged; expected a "
                "larger share, for example validation=0.2, or other cells"
            )
        one = next_sweep(self.trace, told, self.sweeps.fitted, held, self.request.simplest)
        passes = self.turns + self.number + self.given_back
        self.trace.append(replace(one, passes=passes, seconds=seconds))

    def _decide(self, squares: float) -> None:
        """Whether this sweep was the last, and which candidates take part in the next one."""
        self.stopped = False
        if not self.trace:
            return
        floor = FLOOR[self.plan.work_dtype] * squares
        done = settled(self.trace, self.request.tol, floor, self.most - self.number)
        done |= ~self.sweeps.fitted
        early = self.request.early_stop and not self.given_back
        early = early and stops_early(self.trace, self.request.ranks)
        chosen = self.trace[-1].chosen
        self.stopped = early or bool(done[chosen])
        self.finished = early or bool(done.all()) or self.number >= self.most
        if self.withhold is not None and self.request.tol > 0 and not self.request.filled:
            leaves = hopeless(self.trace, balanced=self.request.biases)
            leaves[[0, chosen]] = False  # the first one is the simplest
            self.sweeps.fitted = self.sweeps.fitted & ~leaves

    # -- at rest ----------------------------------------------------------------------------

    def _save(self) -> None:
        """Save between sweeps, so that an interrupted fit resumes with the sweep it was in."""
        if self.saved is not None:
            held = self.factors if self.request.filled else None
            state = self.sweeps.state() if self.start is None else {"start": self.start}
            state = state | {"ridges": np.array(self.request.ridges)}
            state |= {"bias ridges": np.array(self.request.bias_ridges)}
            state |= {"ends": np.array([self.finished, self.stopped, self.given_back])}
            self.saved.write(self.number, self.stats, state, self.trace, held, self.effects)

    def resume(self) -> int:
        """Restore an interrupted fit of the same request and data; returns the passes it made."""
        if self.saved is None or (found := self.saved.read(self.factors, self.effects)) is None:
            return 0
        self.resumed = True
        self.number, stats, state, self.trace = found
        ridges = tuple(state.pop("ridges").tolist())
        biases = tuple(state.pop("bias ridges").tolist())
        self.finished, self.stopped, given_back = state.pop("ends").tolist()
        if given_back:
            self.withhold, self.most = None, self.all_sweeps
        self._take_request(replace(self.request, ridges=ridges, bias_ridges=biases, relative=False))
        self._take_stats(stats)
        self.start = state.pop("start", None)
        if self.start is None:
            self.sweeps.restore(state)
        return self.turns + self.number + self.given_back

    @property
    def given_back(self) -> bool:
        """Whether the held-out cells are fitted, too."""
        return self.request.gives_back and self.withhold is None

    def completed(self) -> Completed:
        """The best candidate in its singular form."""
        c = self.trace[-1].chosen
        gram, v = self.sweeps.estimate(c)
        with single_threaded_blas():
            values, vectors, turn = singular_form(gram, v)
        if self.saved is not None:
            self.saved.clear()
        part = self.sweeps.factors(c)
        return Completed(
            c,
            values,
            vectors,
            turn,
            self.sweeps.offset[part],
            self.center() + self.sweeps.added(c),
            self.factors,
            part,
            self.stats,
            self.scaling,
            self.trace,
            self.stopped,
            self.axis,
            self.request,
            self.effects,
        )
