"""Ways to sparse components: with the covariance in memory, or by reads that multiply by it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

import numpy as np

from streampca.accumulators import FeatureProjection, SubspaceStep
from streampca.errors import InvalidInputError
from streampca.kernels import Array, symmetrize
from streampca.matrix import AxisLabels, ChunkedMatrix, Resolution, select, work_dtype
from streampca.matrix.alignment import along
from streampca.models.assemble import Fitted
from streampca.models.pca.routes import ROUTES as PCA_ROUTES
from streampca.models.pca.scatter import scaled_lower, solve_accumulator
from streampca.models.request import Request
from streampca.passes import (
    Candidate,
    Pass,
    PassSpec,
    Route,
    SolverInput,
    Steps,
    easier_axis,
    pass_spec,
    single_threaded_blas,
)
from streampca.solvers.sparse_components import Penalty, Trace, directions

ITERATIONS = 2000  # at most, in memory
SETTLED = 500  # of these, after which n_nonzero keeps the features that it has
STARTS = ("gram", "gram by panels", "krylov")  # ways to the components that sweeps begin with


@dataclass(frozen=True)
class SparseRequest:
    """What is asked of one matrix.

    penalties : one, or those of a path.  max_passes : reads, where the covariance is not held.
    """

    pca: Request
    penalties: tuple[Penalty, ...]
    tol: float
    max_passes: int

    @property
    def thresholds(self) -> bool:
        """Whether loadings follow from products alone, cell by cell."""
        return self.penalties[0].thresholds

    @property
    def width(self) -> int:
        """Components of all penalties together."""
        return (self.pca.count or 1) * len(self.penalties)


def covariance_candidates(matrix: ChunkedMatrix, request: SparseRequest) -> list[Candidate]:
    """One read that sums the scatter matrix."""
    p, k = matrix.shape[1], request.pca.count or 1
    found = PCA_ROUTES["scatter"].route.candidates(matrix, request.pca)
    terms = {"covariance": p * p * 8, "loadings": 12 * p * k * 8}
    return [replace(one, solve_nbytes={**one.solve_nbytes, **terms}) for one in found]


@dataclass(frozen=True)
class Alternated:
    """b : (p, r) loadings of length 1, of as many components as the data have, at most k.
    inner : (r, r) b'Sb."""

    b: Array
    inner: Array
    trace: Trace


def alternated(covariance: Array, start: Array, request: SparseRequest) -> list[Alternated]:
    """Of each penalty, with the covariance in memory.

    start : (p, r) its leading eigenvectors, r <= rank.
    """
    return [_alternated(covariance, start, penalty, request.tol) for penalty in request.penalties]


def _alternated(covariance: Array, start: Array, penalty: Penalty, tol: float) -> Alternated:
    run = Alternation(penalty.of_first(start.shape[1]), Trace(tol), float(np.trace(covariance)))
    a = start
    for _ in range(ITERATIONS):
        sa, now = covariance @ a, run.penalty
        b = now.thresholded(sa) if now.thresholds else now.regressed(covariance, sa)
        if run.look(a, sa, b, covariance @ b):
            break
        a, _ = directions(run.sb)
    return run.found()


@dataclass
class Alternation:
    """Where the alternation for one penalty stands.  total : tr S."""

    penalty: Penalty
    trace: Trace
    total: float
    b: Array = field(default_factory=lambda: np.zeros((0, 0)))
    sb: Array = field(default_factory=lambda: np.zeros((0, 0)))  # S b

    def look(self, a: Array, sa: Array, b: Array, sb: Array) -> bool:
        """Take the loadings that belong to the directions a; whether they are still.

        Numbers of loadings that have not settled by then go on with the features that they have.
        """
        self.b, self.sb = b, sb
        cross, inner = float(np.sum(a * sb)), float(np.sum(b * sb))
        still = self.trace.look(b, self.penalty.objective(self.total, cross, inner, b))
        if len(self.trace.objective) == SETTLED and self.penalty.nonzero is not None and not still:
            rest = 0.0 if self.penalty.thresholds else sb + self.penalty.ridge * b
            self.penalty = self.penalty.holding(b, sa - rest)
        return still

    def found(self) -> Alternated:
        lengths = np.linalg.norm(self.b, axis=0)
        lengths[lengths == 0] = 1.0
        inner = (self.b.T @ self.sb) / np.outer(lengths, lengths)
        return Alternated(self.b / lengths, inner, self.trace)


def by_covariance(inputs: SolverInput[SparseRequest]) -> Steps[tuple[Fitted, list[Alternated]]]:
    """One read; then everything in memory."""
    pca = inputs.request.pca
    done = (yield Pass("scatter")).accumulators.pop("scatter")
    resolution, limit = Resolution.of(inputs.matrix.dtype), min(inputs.matrix.shape)
    fitted = solve_accumulator(done, pca, resolution, limit)
    with single_threaded_blas():
        lower = scaled_lower(done.lower(), fitted.scale, np.arange(len(fitted.mean)))
        covariance = symmetrize(np.array(lower))
        covariance /= pca.divisor(fitted.weight)
        return fitted, alternated(covariance, _start(fitted), inputs.request)


def _start(fitted: Fitted) -> Array:
    """(p, r) components, without those of mere rounding: on these an alternation never ends."""
    assert fitted.components is not None
    return np.ascontiguousarray(fitted.components[: max(fitted.rank, 1)].T)


def sweep_candidates(name: str, matrix: ChunkedMatrix, request: SparseRequest) -> list[Candidate]:
    """A PCA by one of its routes, and reads that multiply by the covariance, which is not held."""
    if not request.thresholds and easier_axis(matrix) == 1:
        return []  # columns of a working set would be read in blocks of all samples
    found = []
    (n, p), k, axis = matrix.shape, request.width, easier_axis(matrix)
    held = {"loadings and their products": 12 * p * k * 8 + 4 * n * k * 8}
    step = {"step": SubspaceStep(streamed=axis, width=k, images=axis == 1)}
    for one in PCA_ROUTES[name].route.candidates(matrix, request.pca):
        most = max(3, request.max_passes - sum(spec.times for spec in one.passes))
        often = {"times": most, "likely": min(most, 12), "work": "skinny"}
        passes = [pass_spec("product", matrix, axis, step, kept=held, stored=True,
                            flops=4.0 * n * p * k, **often)]  # fmt: skip
        if axis == 1:
            scores = {"scores": FeatureProjection(width=k, missing=request.pca.missing)}
            passes.append(pass_spec("scores", matrix, 1, scores, kept=held, stored=True,
                                    flops=2.0 * n * p * k, **often))  # fmt: skip
        if not request.thresholds:
            passes.append(columns_spec(matrix, request, most))
        reason = f"components by {one.solver}, then products with the covariance, each a read"
        found.append(replace(one, solver=f"sweeps after {name}", reason=reason,
                             passes=(*one.passes, *passes),
                             sizes={**one.sizes, "most": most}))  # fmt: skip
    return found


def by_sweeps(
    name: str, inputs: SolverInput[SparseRequest]
) -> Steps[tuple[Fitted, list[Alternated]]]:
    """Each iteration multiplies loadings and directions by the covariance."""
    request, plan = inputs.request, inputs.plan
    fitted = yield from PCA_ROUTES[name].route.solve(SolverInput(plan, inputs.matrix, request.pca))
    divisor = request.pca.divisor(fitted.weight)
    total, start = fitted.spectrum.total / divisor, _start(fitted)
    work, r = _Products(inputs, fitted, divisor), start.shape[1]
    chosen = None if request.thresholds else WorkingSet(inputs, fitted.scale, divisor)
    runs = [Alternation(one.of_first(r), Trace(request.tol), total) for one in request.penalties]
    live, a = runs, np.tile(start, len(runs))
    sa = a * np.tile(fitted.spectrum.values[:r] / divisor, len(runs))
    while True:
        penalty = Penalty.joined([run.penalty for run in live])
        if chosen is None:
            b = penalty.thresholded(sa)
            sb = yield from work.of_loadings(b)
        else:
            b, sb = yield from chosen.regressed(sa, penalty, work)
        parts = [slice(i * r, (i + 1) * r) for i in range(len(live))]
        still = [run.look(*(one[:, part] for one in (a, sa, b, sb)))
                 for run, part in zip(live, parts, strict=True)]  # fmt: skip
        if chosen is not None and not chosen.complete:
            for run in live:
                run.trace.still = False
            still = [False] * len(live)
        if all(still) or work.exhausted:
            break
        a, turn = _next_directions(live, still, r)
        live = [run for run, done in zip(live, still, strict=True) if not done]
        sa = yield from work.of_directions(a, turn)
    return fitted, [run.found() for run in runs]


def _next_directions(live: list[Alternation], still: list[bool], r: int) -> tuple[Array, Array]:
    """(A, M) of those that still move, side by side, with A = (S B) M of all."""
    going = [i for i, done in enumerate(still) if not done]
    a, turn = [], np.zeros((len(live) * r, len(going) * r))
    for j, i in enumerate(going):
        mine, turn[i * r : (i + 1) * r, j * r : (j + 1) * r] = directions(live[i].sb)
        a.append(mine)
    return np.concatenate(a, axis=1), turn


class _Products:
    """Products with the covariance of the standardised matrix, which is read for each.

    Streamed samples give Z'(Z q). Streamed features give Z'u of scores u, and Z Z'u beside it:
    scores of the next directions, which are a product of what was multiplied.
    """

    def __init__(self, inputs: SolverInput[SparseRequest], fitted: Fitted, divisor: float) -> None:
        self.divisor, self.axis = divisor, inputs.plan.named("product").axis
        self.most, self.made, self.summed = inputs.plan.sizes["most"], 0, 0
        self.gathered = 0  # reads of the columns of a working set
        self.dtype = work_dtype(inputs.matrix.dtype)
        self.operands = {"center": np.asarray(fitted.mean, np.float64)}
        if fitted.scale is not None:
            self.operands["scale"] = fitted.scale
        self.scored: Array  # (n, k) Z Z'u

    @property
    def exhausted(self) -> bool:
        """Whether an iteration more would take more reads than allowed."""
        return self.made + self.summed + self.gathered + 2 + self.axis > self.most

    def of_loadings(self, b: Array) -> Steps[Array]:
        """S b."""
        if self.axis == 0:
            step = yield from self._product(b)
            return step.finished() / self.divisor
        self.summed += 1
        scale = "scale" if "scale" in self.operands else None
        operands = {**self.operands, "components": np.ascontiguousarray(b.T)}
        changed = {"scores": {"scale": scale, "width": b.shape[1]}}
        wanted = Pass("scores", number=self.summed, operands=operands, changed=changed)
        u: Array = (yield wanted).accumulators["scores"].projected()
        step = yield from self._product(u)
        self.scored = step.finished()
        return np.asarray(step.image(), np.float64) / self.divisor

    def of_directions(self, a: Array, turn: Array) -> Steps[Array]:
        """S a, for a = (S b) turn of what was multiplied last."""
        if self.axis == 0:
            step = yield from self._product(a)
            return step.finished() / self.divisor
        step = yield from self._product(self.scored @ turn / self.divisor)
        return np.asarray(step.image(), np.float64) / self.divisor

    def _product(self, q: Array) -> Steps[SubspaceStep]:
        self.made += 1
        operands = {**self.operands, "q": np.ascontiguousarray(q, dtype=self.dtype)}
        changed = {"step": {"width": q.shape[1]}}
        done = yield Pass("product", number=self.made, operands=operands, changed=changed)
        step: SubspaceStep = done.accumulators.pop("step")
        return step


ROUTES: dict[str, Route[SparseRequest, tuple[Fitted, list[Alternated]]]] = {
    "scatter": Route(covariance_candidates, by_covariance)
} | {
    f"sweeps after {name}": Route(partial(sweep_candidates, name), partial(by_sweeps, name))
    for name in STARTS
}


def numbered_groups(groups: Any, features: AxisLabels) -> Array | None:
    """(p,) numbers of groups from 0 on, of their labels."""
    if groups is None:
        return None
    labels = along(groups, features, "groups")
    return np.asarray(np.unique(labels, return_inverse=True)[1], np.int64)


def each_component(name: str, value: Any, k: int) -> Array:
    """(k,) of a number, or of one for each component."""
    try:
        values = np.asarray(value, dtype=np.float64)
    except (TypeError, ValueError):
        values = np.zeros((0, 0))
    if values.ndim == 0:
        return np.full(k, float(values))
    if values.shape != (k,) or not isinstance(value, (Sequence, np.ndarray)):
        raise InvalidInputError(f"{name}={value!r}; expected a number, or {k} of them")
    return values


# --------------------------------------------------------------------------------------------------
# Elastic nets without the covariance of all features: that of those that matter, and a check.

WORKING = 1000  # features, at least, whose covariance is held
SPARE = 4  # times the loadings that were asked for
ROUNDS = 20  # reads of other features for one regression
SLACK = 1e-9  # relative: how far a condition may be missed by rounding


def working_size(p: int, penalties: tuple[Penalty, ...]) -> int:
    """Features whose covariance is held."""
    asked = [one.nonzero.sum() for one in penalties if one.nonzero is not None]
    return int(min(p, max(WORKING, SPARE * max(asked, default=0))))


def columns_spec(matrix: ChunkedMatrix, request: Any, times: int) -> PassSpec:
    """The read of the covariance of some features. Which ones is known when it is made."""
    m = working_size(matrix.shape[1], request.penalties)
    some = select(matrix, features=np.arange(m))
    plain = request.pca.bound(side=replace(request.pca.side, weights=None))
    (one,) = PCA_ROUTES["scatter"].route.candidates(some, plain)
    (spec,) = one.passes
    kept = {"covariance of some features": 4 * m * m * 8}
    return replace(spec, name="columns", matrix=some, times=times, likely=2, kept=kept)


class WorkingSet:
    """Features that may have loadings, whose covariance is held. The others are checked.

    A solution for these features is one for all where each other feature has a slope of at most
    the level of the penalty, which the product with the covariance shows. Those that do not are
    taken up, their covariance is read, and the regression is made again.
    Raises InvalidInputError where loadings fill the working set, or other features never fit.
    Source: Tibshirani et al. 2012, JRSS B 74(2), section 7 (strong sets and their violations).
    """

    def __init__(self, inputs: SolverInput[Any], scale: Array | None, divisor: float) -> None:
        self.matrix, self.scale, self.divisor = inputs.matrix, scale, divisor
        self.size = working_size(inputs.matrix.shape[1], inputs.request.penalties)
        self.features: Array = np.zeros(0, np.int64)
        self.covariance: Array = np.zeros((0, 0))
        self.complete = True  # False where reads ended before all features were met

    def regressed(self, sa: Array, penalty: Penalty, work: _Products) -> Steps[tuple[Array, Array]]:
        """(B, S B) for given S A: the elastic nets of all features."""
        if penalty.held is not None:  # no other feature may have loadings
            b, inside = np.zeros_like(sa), replace(penalty, held=penalty.held[self.features])
            with single_threaded_blas():
                b[self.features] = inside.regressed(self.covariance, sa[self.features])
            return b, (yield from work.of_loadings(b))
        most = np.abs(sa).max(axis=0)
        scores = (np.abs(sa) / np.where(most > 0, most, 1.0)).max(axis=1)
        if not self.features.size:
            yield from self._take(scores, work)
        for _ in range(ROUNDS):
            b = np.zeros_like(sa)
            with single_threaded_blas():
                b[self.features] = penalty.regressed(self.covariance, sa[self.features])
            levels = self._levels(sa, b, penalty)
            sb = yield from work.of_loadings(b)
            missed = np.abs(sa - sb) > levels * (1.0 + SLACK) + SLACK * most
            missed[self.features] = False
            self.complete = not missed.any()
            if self.complete or work.exhausted:
                return b, sb
            taken, needed = (b != 0).any(axis=1), missed.any(axis=1)
            if np.count_nonzero(taken) >= self.size:
                break
            yield from self._take(scores + 4.0 * taken + 2.0 * needed, work)
        raise InvalidInputError(
            f"{np.count_nonzero(taken | needed)} of {len(needed)} features may have loadings, "
            f"and the covariance of {self.size} is held; give a larger alpha, fewer n_nonzero, "
            "ridge=float('inf') or algorithm='covariance'"
        )

    def _levels(self, sa: Array, b: Array, penalty: Penalty) -> Array:
        """(k,) the slope of the loadings that are not 0: none other may have a larger one."""
        if penalty.alpha is not None:
            return penalty.alpha / 2.0
        mine = b[self.features]
        slopes = np.abs(sa[self.features] - self.covariance @ mine - penalty.ridge * mine)
        return np.asarray(np.where(mine != 0, slopes, 0.0).max(axis=0))

    def _take(self, scores: Array, work: _Products) -> Steps[None]:
        """Read the covariance of the features of the largest scores."""
        work.gathered += 1
        best = np.argpartition(-scores, self.size - 1)[: self.size]
        self.features = np.sort(best)
        some = select(self.matrix, features=self.features)
        done = yield Pass("columns", number=work.gathered, matrix=some)
        scale = None if self.scale is None else self.scale[self.features]
        lower = done.accumulators.pop("scatter").lower()
        lower = scaled_lower(lower, scale, np.arange(self.size))
        self.covariance = symmetrize(np.array(lower))
        self.covariance /= self.divisor
