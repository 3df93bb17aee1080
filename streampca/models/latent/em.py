"""EM of a linear Gaussian model, one read for each step, until the likelihood converges.

It begins at a fit of the mean-filled matrix, and both are one candidate.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, TypeVar

import numpy as np

from streampca.accumulators import Accumulator, LatentEquations, Moments, RowInformation
from streampca.accumulators.latent import EXTRA
from streampca.errors import AccuracyWarning, warn_caller
from streampca.kernels import Array, reciprocal
from streampca.kernels.least_squares import packed, pair_columns, posterior, unpacked_triangle
from streampca.matrix import Block, ChunkedMatrix
from streampca.passes import (
    Candidate,
    Pass,
    PassSpec,
    Planned,
    Steps,
    easier_axis,
    larger,
    pass_spec,
    single_threaded_blas,
)
from streampca.solvers import LatentState, expanded_step, expansion, solve_columns
from streampca.solvers.latent import LOG_2_PI
from streampca.store import MemorySink

LIKELY = 8  # steps that are usually enough; for predicted times
SLOWEST = 0.5  # rate of convergence that is always allowed for
SIDES = ("samples", "features")
ROUNDING = 1e-14  # of the log-likelihood
ROWS = 4096  # rows whose posteriors are computed together

T = TypeVar("T")


@dataclass(frozen=True)
class EmSizes:
    """The sizes that a plan of EM depends on.

    width : factors, at most.  max_passes : steps, one read each.  scaled : whether columns have
    divisors.
    """

    width: int
    max_passes: int
    scaled: bool


@dataclass(frozen=True, kw_only=True)
class EmRequest:
    """The request of an EM, which begins at ``state``.

    scale : (p,) divisors of the columns, 0 for those that are left out, or None.  shared, lower :
    as :func:`expanded_step`.  tol : the gain of the log-likelihood at which EM stops.
    max_passes : steps.  made : those of other EMs of the same fit, before this one.
    weights : (n,) of the samples, or None.
    """

    state: LatentState
    scale: Array | None
    shared: bool
    lower: float
    tol: float
    max_passes: int
    weights: Array | None
    made: int = 0


@dataclass(frozen=True)
class EmResult:
    """Parameters, their log-likelihood, and its trace.

    seen : (p,) weights of the observed cells.
    trace : (steps,) log-likelihood at each pass; the last is that of ``state``.
    gain : what it may still lack, extrapolated.  passes : that were made.
    """

    state: LatentState
    seen: Array
    trace: Array
    gain: float
    converged: bool
    passes: int


def em_candidates(matrix: ChunkedMatrix, sizes: EmSizes) -> list[Candidate[EmResult]]:
    """Candidates along both axes, that of the smaller blocks first; each starts at an EmRequest."""
    axes = (1, 0) if easier_axis(matrix) == 1 else (0, 1)
    return [_candidate(matrix, sizes, axis) for axis in axes]


def _candidate(matrix: ChunkedMatrix, sizes: EmSizes, axis: int) -> Candidate[EmResult]:
    k, max_passes = sizes.width, sizes.max_passes
    n, p = matrix.shape
    pairs = k * (k + 1) // 2
    sums: Accumulator = RowInformation(width=k)
    kept = 2 * p * (2 * k + EXTRA + 3) * 8 + n * (pairs + k + 2) * 8
    if axis == 0:  # the parameters, those before, and a copy of them
        sums, kept = (
            LatentEquations(scale="scale" if sizes.scaled else None, width=k),
            p * (3 * k + 6) * 8,
        )
    flops = 2.0 * n * p * k * (k + 4) + 4.0 * n * k**3
    spec = pass_spec("em", matrix, axis, {"sums": sums}, flops=flops, kept_nbytes=kept)
    spec = replace(spec, times=max_passes, likely=min(max_passes, LIKELY))
    side = (p, n)[axis]
    solve = {
        "sums": spec.total_nbytes,
        "parameters": kept,
        "normal equations": side * (2 * pairs + (k + 1) * (k + 3) + 4 * k + 8) * 8,
    }
    reason = f"one read for each step of EM, at most {max_passes}, {SIDES[axis]} streamed"
    return Candidate("em", reason, (spec,), solve, solve=partial(em, spec=spec))


def em(planned: Planned[Any], *, spec: PassSpec) -> Steps[EmResult]:
    """EM until the log-likelihood of the data has at most ``tol`` to gain, one read a step.

    The gain is extrapolated from the last two: a rate a leaves a / (1 - a) times the last one.
    A likelihood that fell, which only rounding can do, ends it at the state before.
    """
    request: EmRequest = planned.start
    stepper = (_ByFeatures if spec.axis else _BySamples)(spec, request, request.state)
    trace: list[float] = []
    passes, continues = 0, True
    while continues:
        before, passes = stepper.state, passes + 1
        likelihood = yield from stepper.step(request.made + passes)
        if trace and not likelihood >= trace[-1]:  # only by rounding
            state, gain, continues = before, trace[-1] - likelihood, False
        else:
            trace.append(likelihood)
            state, gain = stepper.state, _left_to_gain(trace)
            continues = not gain <= request.tol and passes < request.max_passes
    values = np.array(trace)
    if (scale := request.scale) is not None:
        logs = np.log(scale, out=np.zeros_like(scale), where=scale > 0)
        values = values - float(stepper.seen @ logs)
    return EmResult(state, stepper.seen, values, gain, gain <= request.tol, passes)


def warn_unless_converged(result: EmResult, request: EmRequest) -> None:
    """Warn (AccuracyWarning) where the likelihood may still gain more than ``tol``."""
    if not result.converged:
        warn_caller(
            f"EM has not converged in max_passes={request.max_passes}: the log-likelihood may "
            f"still gain about {result.gain:.2g} (tol={request.tol:g})",
            AccuracyWarning,
        )


@dataclass
class _BySamples:
    """Steps of EM over streamed samples: the equations of all columns, then their solution."""

    spec: PassSpec
    request: EmRequest
    state: LatentState
    sums: LatentEquations | None = None

    def step(self, number: int) -> Steps[float]:
        """Go to the next parameters, unless these are the first; their log-likelihood."""
        request, scale = self.request, self.request.scale
        if self.sums is not None:
            with single_threaded_blas():
                self.state = expanded_step(
                    self.sums, self.state, scale, request.shared, request.lower
                )
        self.sums = None
        width = self.state.loadings.shape[1]
        sizes = {"width": width, "scale": None if scale is None else "scale"}
        operands = _operands(scale) | vars(self.state)
        done = yield Pass(self.spec, number, changed={"sums": sizes}, operands=operands)
        sums: LatentEquations = done["sums"]
        self.sums = sums
        return sums.likelihood

    @property
    def seen(self) -> Array:
        """(p,) weights of the observed cells."""
        assert self.sums is not None
        return np.asarray(self.sums.seen)


@dataclass
class _ByFeatures:
    """Steps of EM over streamed features: a column is solved for, and used, in one read."""

    spec: PassSpec
    request: EmRequest
    state: LatentState
    rows: RowPosteriors | None = None
    seen: Array = field(default_factory=lambda: np.zeros(0))

    def step(self, number: int) -> Steps[float]:
        """Go to the next parameters, unless these are the first; their log-likelihood."""
        request, (p, k) = self.request, self.state.loadings.shape
        table = MemorySink(p, k + EXTRA)
        done = yield Pass(
            self.spec,
            number,
            changed={"sums": {"width": k}},
            operands=_operands(request.scale) | ({} if self.rows is None else self.rows.operands),
            side_inputs=vars(self.state),
            maps={"columns": ColumnStep(request.shared, request.lower)},
            sinks={"columns": table},
        )
        sums, noise = done["sums"], None
        if request.shared and self.rows is None:
            noise = float(self.state.noise.max(initial=0.0)) or 1.0
        elif request.shared:
            noise = max(sums.rest / max(sums.cells, 1e-300), request.lower)
        self.state = state_of(table.values, self.state, noise)
        with single_threaded_blas():
            self.rows = posteriors_of(sums, self.state, noise, request.weights, request.lower)
        self.seen = table.values[:, k + 3]
        return self.rows.likelihood


def _operands(scale: Array | None) -> dict[str, Any]:
    return {} if scale is None else {"scale": scale}


def _left_to_gain(trace: list[float]) -> float:
    """The remaining gain, extrapolated; infinite after fewer than three passes."""
    if len(trace) < 3:
        return math.inf
    before, last = trace[-2] - trace[-3], trace[-1] - trace[-2]
    if last <= ROUNDING * abs(trace[-1]):
        return last
    rate = min(max(last / before if before > 0 else 1.0, SLOWEST), 0.999)
    return last * rate / (1.0 - rate)


# A fit of the mean-filled matrix, and EM from there where cells are missing.


@dataclass(frozen=True)
class EmAfter:
    """The passes that may follow those of a first fit.

    steps : of EM.  look : what tells whether samples that count have holes, where others weigh 0.
    """

    steps: Candidate[EmResult]
    look: PassSpec | None = None

    @property
    def passes(self) -> tuple[PassSpec, ...]:
        """All of them."""
        return (*(() if self.look is None else (self.look,)), *self.steps.passes)

    def needed(self, features: Array) -> Steps[bool]:
        """Whether samples of positive weight have holes; where some weigh 0, by another read.

        features : numbers of those that have missing cells in any sample.
        """
        if not len(features) or self.look is None:
            return len(features) > 0
        seen = (yield Pass(self.look))["columns"].columns().weight[features]
        return bool(np.any((seen > 0) & (seen < float(self.look.weights.sum()))))

    def run(self, planned: Planned[Any], request: EmRequest) -> Steps[EmResult]:
        """EM, as a part of a planned fit."""
        return self.steps.solve(replace(planned, start=request))


def em_after(matrix: ChunkedMatrix, sizes: EmSizes, weights: Array | None) -> list[EmAfter]:
    """EM along both axes, that of the smaller blocks first.  weights : (n,) of samples, or None."""
    look = None
    if weights is not None and not weights.all():
        look = pass_spec("holes", matrix, easier_axis(matrix), {"columns": Moments()}, stored=True)
        look = replace(look, weights=(weights > 0).astype(np.float64))
    return [EmAfter(one.weighted(weights), look) for one in em_candidates(matrix, sizes)]


def followed(
    first: Candidate[Any], after: EmAfter | None, solve: Callable[..., Steps[T]]
) -> Candidate[T]:
    """A fit, and EM after it.  after : None where there can be no holes.

    solve : takes what is planned, ``first`` and ``after``. Where the answer of ``first`` has a
        doubt, and another way follows, its own has that doubt, and no pass of EM is made.
    """
    made = replace(first, solve=partial(solve, first=first, after=after))
    if first.then is not None:
        made = replace(made, then=followed(first.then, after, solve))
    if after is None:
        return made
    return replace(
        made,
        reason=f"{first.reason}; where there are holes, {after.steps.reason}",
        passes=(*first.passes, *(replace(one, final=True) for one in after.passes)),
        solve_nbytes=larger(dict(first.solve_nbytes), dict(after.steps.solve_nbytes)),
    )


def around_holes(
    first: Sequence[Candidate[Any]], after: Sequence[EmAfter], solve: Callable[..., Steps[T]]
) -> list[Candidate[T]]:
    """Every first fit with every EM after it, in this order.  after : empty where no EM is needed.

    Candidates have the names of the first fits, by which a plan compares them.
    """
    return [followed(one, then, solve) for one in first for then in after or (None,)]


# EM over streamed features: the loadings of a block are updated and used while it is in memory.


@dataclass(frozen=True)
class ColumnStep:
    """The M step of a block of columns, as a map: the table that RowInformation reads.

    Side inputs: "loadings" (p, k), "noise" and "center" (p,) before the step. Operands: of the
    rows' factors "f" (n, k) and "second" (n, pairs), E[f] times the root of the weight and E[f f']
    times the weight; "root" (n,); "mean" (k,) and "turn" (k, k), which expand the factors (see
    solvers.latent_step); "scale" (p,) or none. Without "f" the table is that of the parameters as
    they are.
    shared : one noise for all columns: it is 1 in the table, and divides afterwards.
    lower : least share of a column's variance that is noise of its own.
    """

    shared: bool
    lower: float

    def __call__(self, block: Block) -> Array:
        w, noise = np.asarray(block["loadings"]), np.asarray(block["noise"])
        k = w.shape[1]
        out = np.zeros((len(w), k + EXTRA))
        out[:, :k], out[:, k] = w, block["center"]
        out[:, k + 1] = noise > 0 if self.shared else noise
        if "f" not in block.arrays:
            out[:, k + 3] = self._seen(block)
            return out
        scale = block.arrays.get("scale")
        scale = None if scale is None else scale[block.columns]
        for tile in block.tiles(np.dtype(np.float64), center=block["center"], scale=scale):
            here = slice(tile.start - block.start, tile.stop - block.start)
            self._solve(block, tile, out[here], noise[here], None if scale is None else scale[here])
        return out

    def _seen(self, block: Block) -> Array:
        """(columns,) weights of the observed cells."""
        return np.asarray(block.stats.weight, dtype=np.float64)

    def _solve(
        self, block: Block, tile: Any, out: Array, noise: Array, scale: Array | None
    ) -> None:
        """Fill the rows of the table for the columns of one tile."""
        z, root, f = tile.values, block["root"], block["f"]
        k = f.shape[1]
        right = np.column_stack([z.T @ f, z.T @ root])
        tables = np.column_stack([block["second"], f * root[:, None], root**2])
        if tile.mask is None:
            sums = np.broadcast_to(tables.sum(axis=0), (len(right), tables.shape[1]))
        else:
            sums = (~tile.mask).T.astype(np.float64) @ tables
        pairs = block["second"].shape[1]
        left = np.empty((len(right), k + 1, k + 1))
        left[:, :k, :k] = unpacked_triangle(sums[:, :pairs], k)
        left[:, :k, k] = left[:, k, :k] = sums[:, pairs : pairs + k]
        left[:, k, k] = seen = sums[:, -1]
        used = (noise > 0) & (seen > 0)
        squares, turn = np.einsum("ij,ij->j", z, z), block["turn"]
        solved, own, rest = np.zeros_like(right), *np.zeros((2, len(right)))
        share = 0.0 if self.shared else self.lower
        solved[used], own[used], rest[used] = solve_columns(
            left[used], right[used], squares[used], turn, share
        )
        shift = solved[:, k] + solved[:, :k] @ block["mean"]
        out[:, :k] = solved[:, :k] @ turn
        out[:, k] += shift if scale is None else shift * scale
        out[:, k + 1] = np.where(used, 1.0, 0.0) if self.shared else own
        out[:, k + 2], out[:, k + 3] = rest, np.where(noise > 0, seen, 0.0)


@dataclass(frozen=True)
class RowPosteriors:
    """The posterior of each row's factors, as arrays for the next step, and the log-likelihood."""

    operands: dict[str, Array]
    likelihood: float


def posteriors_of(
    sums: RowInformation,
    state: LatentState,
    noise: float | None,
    weights: Array | None,
    lower: float,
) -> RowPosteriors:
    """Finish an E step.

    state : its parameters.  noise : that of all columns where it is shared, None where each has
    its own, which is then no less than the share ``lower`` of the column's variance.
    weights : (n,) of the rows, or None.
    """
    share = lower if noise is None else 0.0
    noise = 1.0 if noise is None else noise
    information, b, squares, logs, seen = sums.sums()
    n, k = b.shape
    root = np.ones(n) if weights is None else np.sqrt(weights)
    inverse = reciprocal(root)
    f, second, likelihood = np.empty_like(b), np.empty_like(information), 0.0
    for begin in range(0, n, ROWS):
        rows = slice(begin, begin + ROWS)
        own = b[rows] * (inverse[rows, None] / noise)
        precision = unpacked_triangle(information[rows] / noise, k) + np.eye(k)
        means, covariance, logdet = posterior(precision, own)
        distance = squares[rows] * inverse[rows] ** 2 / noise
        distance = np.maximum(distance - np.einsum("ij,ij->i", own, means), 0.0)
        cells = logs[rows] + seen[rows] * (np.log(noise) + LOG_2_PI)
        likelihood -= 0.5 * float(root[rows] ** 2 @ (cells + logdet + distance))
        f[rows] = means * root[rows, None]
        second[rows] = packed(covariance) * root[rows, None] ** 2 + pair_columns(f[rows])
    total, moment = float(np.sum(root**2)), unpacked_triangle(second.sum(axis=0)[None], k)[0]
    mean, turn = expansion(root @ f, moment, total, state, share)
    operands = {"f": f, "second": second, "root": root, "mean": mean, "turn": turn}
    return RowPosteriors(operands, likelihood)


def state_of(table: Array, before: LatentState, noise: float | None) -> LatentState:
    """The parameters in the table of a pass.  noise : the shared one, or None."""
    k = before.loadings.shape[1]
    own = table[:, k + 1] if noise is None else np.where(table[:, k + 1] > 0, noise, 0.0)
    return LatentState(table[:, :k].copy(), own.copy(), table[:, k].copy())
