"""The course of a completion: a look, turns of the effects of rows and columns, sweeps.

The first pass looks. Where rows and columns are centred, it makes the first turn too, and passes of
their own make the others. Then each pass is a sweep, until nothing changes.
"""

from __future__ import annotations

import math
import os
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from streampca.accumulators import HeldOutError
from streampca.errors import InvalidInputError
from streampca.kernels import Array, ColumnStats, reciprocal, row_pieces
from streampca.matrix import Scaling, stored_eps
from streampca.models.completion.plan import CompletionPasses
from streampca.models.completion.request import (
    CompletionRequest,
    bounds_of,
    mean_of_all,
    observed_range,
)
from streampca.models.completion.saved import SavedSweeps, columns_from_saved, columns_to_saved
from streampca.models.completion.sweeps import (
    AlternatingSweeps,
    BiasedSweeps,
    FilledSweeps,
    LineFactors,
    first_directions,
    lengths_of_factors,
)
from streampca.models.completion.trace import (
    FLOOR,
    Sweep,
    hopeless,
    next_sweep,
    settled,
    stops_early,
)
from streampca.models.completion.two_way import TwoWay
from streampca.models.completion.withheld import Withhold
from streampca.passes import Pass, PassResult, PassSpec, Planned, Steps, single_threaded_blas
from streampca.solvers import singular_form

GIVING_BACK = 10  # sweeps that are left for the held-out cells, once they are given back
PIECE_NBYTES = 1 << 20  # of the factors of lines that are processed together


def complete(
    planned: Planned[Any],
    *,
    passes: CompletionPasses,
    request: CompletionRequest,
    checkpoint: str | None,
    scratch: Callable[[], str],
) -> Steps[Completed]:
    """Look, turn, and sweep until nothing changes; or continue where an interrupted fit was.

    checkpoint : the folder of its state, or None.  scratch : makes the folder for factors of lines
    that do not fit into memory.
    """
    saved = None
    if checkpoint is not None:
        saved = SavedSweeps.of(checkpoint, planned.plan, planned.matrix, request)
    fit = CompletionFit(planned, request, passes, saved, scratch)
    if not fit.resume():
        yield from fit.look()
    while (yield from fit.turn()):
        pass
    while not fit.finished:
        yield from fit.sweep()
    if request.gives_back:
        yield from fit.give_back()
        while not fit.finished:
            yield from fit.sweep()
    return fit.completed()


class CompletionFit:
    """The state of a fit: column statistics, the factors on both sides, and the trace."""

    stats: ColumnStats
    scaling: Scaling

    def __init__(
        self,
        planned: Planned[Any],
        request: CompletionRequest,
        passes: CompletionPasses,
        saved: SavedSweeps | None,
        scratch: Callable[[], str],
    ) -> None:
        self.matrix, self.request, self.passes, self.saved = planned.matrix, request, passes, saved
        self.work_dtype = planned.plan.work_dtype
        blocks, matrix = planned.blocks(passes.sweep), planned.matrix
        self.axis, self.most = blocks.axis, blocks.times
        lines, m = matrix.shape[self.axis], matrix.shape[1 - self.axis]
        dtype = np.float32 if matrix.dtype == np.float32 else np.float64
        folder = scratch() if passes.scratch else None
        self.factors = LineFactors(lines, request.total, dtype, blocks.edges, folder)
        self.sweeps = _sweeps_of(request, m, matrix.absent, np.dtype(self.work_dtype))
        self.withhold: Withhold | None = None
        if request.validation is not None:
            self.withhold = Withhold.of(request.validation, request.seed, matrix, self.axis)
        self.effects = None
        if request.both:
            self.effects = TwoWay(matrix.shape, self.axis, request.both_scaled)
        self.start: Any = None  # (m, width) where to begin, until there is a center
        self.all_sweeps = self.most
        self.most -= request.gives_back * min(GIVING_BACK, self.most // 2)  # the rest is for it
        self.made = self.number = 0  # passes, and sweeps among them
        self.finished = self.stopped = False
        self.trace: list[Sweep] = []

    # Passes.

    def _pass(self, spec: PassSpec, number: int = 1, **more: Any) -> Pass:
        maps: dict[str, Any] = {} if self.withhold is None else {"held": self.withhold}
        weighted, self.made = spec is not self.passes.sweep, self.made + 1
        return Pass(spec, number, maps=maps, weighted=weighted, after=self.made - 1, **more)

    def look(self) -> Steps[None]:
        """Make the first pass: column statistics, and directions to begin with."""
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
        self._take_request(self.request.in_units_of(stats, rows))
        self._take_stats(stats)
        directions, sizes = done["start"].directions()
        self.start = np.ascontiguousarray(directions)
        if not self.request.both:
            self._begin(sizes if self.request.biases else None)
        self._save()

    def _turn(self, spec: PassSpec, operands: dict[str, Any]) -> Steps[PassResult]:
        """A pass that turns the effects of rows and columns."""
        assert self.effects is not None
        sink, (effects, sides) = self.effects.sink(), self.effects.standardisation()
        number = len(self.effects.changes) + 1
        done = yield self._pass(
            spec, number, operands=operands | effects, side_inputs=sides, sinks={"effects": sink}
        )
        eps = float(np.finfo(self.work_dtype).eps)
        self.effects.take(done["effects"], sink.values, eps, self.request.weights)
        return done

    def turn(self) -> Steps[bool]:
        """One turn of the effects of rows and columns. False where none is needed."""
        if self.effects is None or self.start is None:
            return False
        changes = self.effects.changes
        if len(changes) < self.request.turns and not changes[-1] <= self.request.tol:
            assert self.passes.turn is not None
            yield from self._turn(self.passes.turn, {})
            self._save()
            return True
        self.start = self.effects.directions(self.start)
        self._take_stats(self.stats)
        self._begin()
        self._save()
        return False

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
            outside = self.request.columns_outside(self.stats, self.scaling)
            loadings = np.where(outside[:, None], 0.0, loadings)
        lines, across = (loadings, scores) if self.axis else (scores, loadings)
        first = self.sweeps.begin_with(lines, across)
        if first is not None:
            self.factors.begin_with(first)

    def give_back(self) -> Steps[None]:
        """A second look, at all cells; the candidate that is kept continues with them, alone."""
        if self.withhold is not None:
            self.withhold = None
            self.sweeps.fitted = np.arange(len(self.request.ranks)) == self.trace[-1].chosen
            self.most = self.all_sweeps
            done = yield self._pass(self.passes.look, 2, changed={"start": None})
            stats = done["columns"].columns()
            self._take_request(self.request.in_units_of(stats, done["rows"]))
            self._take_stats(stats)
            assert isinstance(self.sweeps, BiasedSweeps)
            self.sweeps.continue_about(self.scaling.center)
            self.finished = False
            self._save()

    def sweep(self) -> Steps[None]:
        """One sweep."""
        operands = self.sweeps.operands() | {"center": self.center()}
        if self.scaling.scale is not None:
            operands["scale"] = self.scaling.scale
        judged = self.withhold is not None and self.sweeps.judged
        changed: dict[str, Any] = {"step": self.request.penalties}
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
        row_operands, row_sides = self._rows()
        operands, sides = operands | row_operands, sides | row_sides
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
            numbers = self.sweeps.take(done["step"])
        if numbers is not None:
            self._record(numbers, done["judge"] if judged else None, done.cost.seconds)
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

    def _record(self, numbers: dict[str, Any], held: HeldOutError | None, seconds: float) -> None:
        if held is not None and not held.cells:
            raise InvalidInputError(
                "validation holds out no observed cell, so that nothing can be judged; expected a "
                "larger share, for example validation=0.2, or other cells"
            )
        fitted, simplest = self.sweeps.fitted, self.request.simplest
        more = {"passes": self.made, "seconds": seconds}
        self.trace.append(next_sweep(self.trace, numbers, fitted, held, simplest, **more))

    def _decide(self, squares: float) -> None:
        """Whether this sweep was the last, and which candidates take part in the next one."""
        self.stopped = False
        if not self.trace:
            return
        floor = FLOOR[self.work_dtype] * squares
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

    # An interrupted fit.

    def _save(self) -> None:
        """Save between sweeps, so that an interrupted fit resumes with the sweep it was in."""
        if self.saved is None:
            return
        state = self.sweeps.state() if self.start is None else {"start": self.start}
        effects = {} if self.effects is None else self.effects.state()
        arrays = {f"state {name}": value for name, value in state.items()}
        arrays |= {f"effects {name}": value for name, value in effects.items()}
        arrays["columns"] = columns_to_saved(self.stats)
        document: dict[str, Any] = {
            "made": self.made,
            "number": self.number,
            "trace": [sweep.to_dict() for sweep in self.trace],
            "ridges": list(self.request.ridges),
            "bias_ridges": list(self.request.bias_ridges),
            "ends": [self.finished, self.stopped, self.given_back],
        }
        if self.request.filled and self.number and self.factors.folder is not None:
            document["factors"] = os.path.abspath(self.factors.path(self.number % 2))
        elif self.request.filled:  # the next sweep reads them
            arrays["factors"] = np.asarray(self.factors.values)
        self.saved.write(arrays, document)

    def resume(self) -> bool:
        """Restore an interrupted fit of the same request and data. False if there is none."""
        if self.saved is None or (found := self.saved.read()) is None:
            return False
        arrays, document = found
        number, factors = int(document["number"]), document.get("factors")
        if factors is not None:
            path = self.factors.path(number % 2)
            if not os.path.isdir(factors) or factors != os.path.abspath(path):
                return False
            self.factors.open(number)
        elif "factors" in arrays:
            self.factors.begin_with(arrays["factors"])
        self.made, self.number = int(document["made"]), number
        self.trace = [Sweep.from_dict(sweep) for sweep in document["trace"]]
        self.finished, self.stopped, given_back = document["ends"]
        if given_back:
            self.withhold, self.most = None, self.all_sweeps
        ridges, biases = tuple(document["ridges"]), tuple(document["bias_ridges"])
        self._take_request(replace(self.request, ridges=ridges, bias_ridges=biases, relative=False))
        if self.effects is not None:
            self.effects.restore(_named("effects ", arrays))
        self._take_stats(columns_from_saved(arrays["columns"]))
        state = _named("state ", arrays)
        self.start = state.pop("start", None)
        if self.start is None:
            self.sweeps.restore(state)
        return True

    @property
    def given_back(self) -> bool:
        """Whether the held-out cells are fitted, too."""
        return self.request.gives_back and self.withhold is None

    # The result.

    def completed(self) -> Completed:
        """The best candidate in its singular form."""
        chosen = self.trace[-1].chosen
        with single_threaded_blas():
            values, vectors, turn = singular_form(*self.sweeps.estimate(chosen))
        if self.saved is not None:
            self.saved.clear()
        center = self.center() + self.sweeps.added(chosen)
        return Completed(self, chosen, values, vectors, turn, center)


@dataclass(frozen=True)
class Completed:
    """The estimate of the last sweep.

    chosen : number of the best candidate.  values (r,), vectors (m, r), turn (r, r) : its singular
    form; the factors of the lines are those of the fit less their offset, times ``turn``.
    center : (p,) means of the columns.
    """

    fit: CompletionFit
    chosen: int
    values: Array
    vectors: Array
    turn: Array
    center: Array

    @property
    def row_mean(self) -> Array | None:
        """(n,) row means in addition to the column means; None if not requested."""
        fit = self.fit
        if fit.effects is not None:
            return fit.effects.row_center
        if not fit.request.biases:
            return None
        end = fit.sweeps.factors(self.chosen).stop
        made = np.empty(fit.factors.length)
        for lines in self.pieces():
            biases = fit.factors.rows(slice(end, end + 1), lines.start, lines.stop)
            made[lines] = self.unweighted(biases, lines.start, lines.stop)[:, 0]
        return made

    def pieces(self) -> list[slice]:
        """The lines, in pieces whose factors take PIECE_NBYTES."""
        factors = self.fit.factors
        return list(row_pieces(factors.length, 8 * factors.width, PIECE_NBYTES))

    def rows(self, start: int, stop: int) -> Array:
        """(lines, r) float64 factors of some lines, orthogonal columns."""
        fit, part = self.fit, self.fit.sweeps.factors(self.chosen)
        factors, offset = fit.factors.rows(part, start, stop), fit.sweeps.offset[part]
        if fit.axis:
            return np.asarray((factors - offset) @ self.turn)
        weights = fit.request.weights
        ones = 1.0 if weights is None else np.sqrt(weights[start:stop])[:, None]
        return self.unweighted((factors - ones * offset) @ self.turn, start, stop)

    def unweighted(self, scores: Array, start: int, stop: int) -> Array:
        """Scores of samples start..stop, of which the factors of the fit are root(weight) times."""
        if (weights := self.fit.request.weights) is None:
            return scores
        return np.asarray(scores * reciprocal(np.sqrt(weights[start:stop]))[:, None])


def _sweeps_of(
    request: CompletionRequest, m: int, compiled: bool, dtype: Any
) -> AlternatingSweeps | FilledSweeps:
    if request.filled:
        return FilledSweeps(request, m, compiled, dtype)
    return (BiasedSweeps if request.biases else AlternatingSweeps)(request, m, compiled, dtype)


def _named(prefix: str, arrays: dict[str, Array]) -> dict[str, Array]:
    """The arrays whose names begin so, without that."""
    return {k.removeprefix(prefix): v for k, v in arrays.items() if k.startswith(prefix)}
