"""Sparse components by reads: each multiplies by the covariance, which is not held."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np

from streampca.accumulators import FeatureProjection, SubspaceStep
from streampca.errors import InvalidInputError
from streampca.kernels import Array, symmetrize
from streampca.matrix import ChunkedMatrix, select, work_dtype
from streampca.models.decompose.assemble import Fitted
from streampca.models.decompose.gram import gram_candidates
from streampca.models.decompose.krylov import krylov_candidates
from streampca.models.decompose.panels import panel_candidates
from streampca.models.decompose.scatter import scaled_lower, scatter_candidates
from streampca.models.sparse.routes import Alternation, SparseFit, SparseRequest, leading_components
from streampca.passes import (
    Candidate,
    Pass,
    PassSpec,
    Planned,
    Steps,
    easier_axis,
    pass_spec,
    single_threaded_blas,
)
from streampca.solvers.sparse_components import Penalty, Trace, directions

STARTS = (gram_candidates, panel_candidates, krylov_candidates)  # ways to the first components
WORKING = 1000  # features, at least, whose covariance is held
SPARE = 4  # times the loadings that are wanted
ROUNDS = 20  # reads of other features for one regression
SLACK = 1e-9  # relative: how far a condition may be missed by rounding


@dataclass(frozen=True)
class SweepPasses:
    """The reads that follow the components.

    product : with the covariance.  scores : where features are streamed.  columns : the covariance
    of some features, where loadings are regressed.  most : reads of all of these, at most.
    """

    product: PassSpec
    scores: PassSpec | None
    columns: PassSpec | None
    most: int

    def all(self) -> tuple[PassSpec, ...]:
        """Those that there are."""
        return tuple(one for one in (self.product, self.scores, self.columns) if one is not None)


def sweep_candidates(matrix: ChunkedMatrix, request: SparseRequest) -> list[Candidate[SparseFit]]:
    """A PCA by one of its ways, and reads that multiply by the covariance, which is not held."""
    if not request.thresholds and easier_axis(matrix) == 1:
        return []  # columns of a working set would be read in blocks of all samples
    made = []
    (n, p), k, axis = matrix.shape, request.width, easier_axis(matrix)
    held = {"loadings and their products": 12 * p * k * 8 + 4 * n * k * 8}
    step = {"step": SubspaceStep(streamed=axis, width=k, images=axis == 1)}
    for one in [one for way in STARTS for one in way(matrix, request.pca)]:
        most = max(3, request.max_passes - sum(spec.times for spec in one.passes))
        often = {"times": most, "likely": min(most, 12), "work": "skinny"}
        product = pass_spec(
            "product", matrix, axis, step, kept=held, stored=True, flops=4.0 * n * p * k, **often
        )
        scores = columns = None
        if axis == 1:
            sums = {"scores": FeatureProjection(width=k, missing=request.pca.missing)}
            scores = pass_spec(
                "scores", matrix, 1, sums, kept=held, stored=True, flops=2.0 * n * p * k, **often
            )
        if not request.thresholds:
            columns = columns_spec(matrix, request, most)
        passes = SweepPasses(product, scores, columns, most)
        candidate = Candidate(
            f"sweeps after {one.solver}",
            f"components by {one.solver}, then products with the covariance, each a read",
            (*one.passes, *passes.all()),
            one.solve_nbytes,
            one.solve_flops,
            {**one.sizes, "most": most},
            solve=partial(by_sweeps, request=request, components=one, passes=passes),
        )
        made.append(candidate.weighted(None, request.pca.side.weights))
    return made


def by_sweeps(
    planned: Planned[Any],
    *,
    request: SparseRequest,
    components: Candidate[Fitted],
    passes: SweepPasses,
) -> Steps[SparseFit]:
    """Each iteration multiplies loadings and directions by the covariance."""
    fitted = yield from components.solve(planned)
    divisor = request.pca.divisor(fitted.weight)
    total, start = fitted.spectrum.total / divisor, leading_components(fitted)
    work, r, chosen = _Products(planned.matrix, passes, fitted, divisor), start.shape[1], None
    if passes.columns is not None:
        size = working_size(planned.matrix.shape[1], request.penalties)
        chosen = WorkingSet(planned.matrix, passes.columns, size, fitted.features.divisors, divisor)
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
        still = [
            run.look(*(one[:, part] for one in (a, sa, b, sb)))
            for run, part in zip(live, parts, strict=True)
        ]
        if chosen is not None and not chosen.complete:
            for run in live:
                run.trace.still = False
            still = [False] * len(live)
        if all(still) or work.exhausted:
            break
        a, turn = _next_directions(live, still, r)
        live = [run for run, done in zip(live, still, strict=True) if not done]
        sa = yield from work.of_directions(a, turn)
    return SparseFit(fitted, [run.normalised() for run in runs])


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

    Streamed samples give Z'(Z q). Streamed features give Z'u of scores u, and with it Z Z'u,
    scores of the next directions, which are a product of what was multiplied.
    """

    def __init__(
        self, matrix: ChunkedMatrix, passes: SweepPasses, fitted: Fitted, divisor: float
    ) -> None:
        self.passes, self.divisor, self.axis = passes, divisor, passes.product.axis
        self.made = self.summed = 0
        self.gathered = 0  # reads of the columns of a working set
        self.dtype = work_dtype(matrix.dtype)
        self.operands = {"center": np.asarray(fitted.features.mean, np.float64)}
        if fitted.features.divisors is not None:
            self.operands["scale"] = fitted.features.divisors
        self.scored: Array  # (n, k) Z Z'u

    @property
    def exhausted(self) -> bool:
        """Whether an iteration more would take more reads than allowed."""
        return self.made + self.summed + self.gathered + 2 + self.axis > self.passes.most

    def of_loadings(self, b: Array) -> Steps[Array]:
        """S b."""
        if self.passes.scores is None:
            step = yield from self._product(b)
            return step.finished() / self.divisor
        self.summed += 1
        scale = "scale" if "scale" in self.operands else None
        operands = {**self.operands, "components": np.ascontiguousarray(b.T)}
        changed = {"scores": {"scale": scale, "width": b.shape[1]}}
        wanted = Pass(self.passes.scores, self.summed, operands=operands, changed=changed)
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
        done = yield Pass(self.passes.product, self.made, operands=operands, changed=changed)
        step: SubspaceStep = done.accumulators.pop("step")
        return step


# Elastic nets without the covariance of all features: that of those that matter, and a check.


def working_size(p: int, penalties: tuple[Penalty, ...]) -> int:
    """Features whose covariance is held."""
    asked = [penalty.nonzero.sum() for penalty in penalties if penalty.nonzero is not None]
    return int(min(p, max(WORKING, SPARE * max(asked, default=0))))


def columns_spec(matrix: ChunkedMatrix, request: SparseRequest, times: int) -> PassSpec:
    """The read of the covariance of some features. The solver names them."""
    m = working_size(matrix.shape[1], request.penalties)
    some = select(matrix, features=np.arange(m))
    plain = request.pca.bound(side=replace(request.pca.side, weights=None))
    (one,) = scatter_candidates(some, plain)
    (spec,) = one.passes
    kept = {"covariance of some features": 4 * m * m * 8}
    return replace(spec, name="columns", matrix=some, times=times, likely=2, kept=kept)


class WorkingSet:
    """Features that may have loadings, whose covariance is held. The others are checked.

    A solution for these features is one for all where each other feature has a slope of at most
    the level of the penalty, which the product with the covariance shows. Those that do not are
    taken up, their covariance is read, and the regression is repeated.
    Raises InvalidInputError where loadings fill the working set, or other features never fit.
    Source: Tibshirani et al. 2012, JRSS B 74(2), section 7 (strong sets and their violations).
    """

    def __init__(
        self, matrix: ChunkedMatrix, spec: PassSpec, size: int, scale: Array | None, divisor: float
    ) -> None:
        self.matrix, self.spec, self.size = matrix, spec, size
        self.scale, self.divisor = scale, divisor
        self.features: Array = np.zeros(0, np.int64)
        self.covariance: Array = np.zeros((0, 0))
        self.complete = True  # False where reads ended before all features were met

    def regressed(self, sa: Array, penalty: Penalty, work: _Products) -> Steps[tuple[Array, Array]]:
        """(B, S B) from S A: the elastic nets of all features."""
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
            "ridge=float('inf') or solver='covariance'"
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
        done = yield Pass(self.spec, work.gathered, some)
        scale = None if self.scale is None else self.scale[self.features]
        lower = done.accumulators.pop("scatter").lower()
        lower = scaled_lower(lower, scale, np.arange(self.size))
        self.covariance = symmetrize(np.array(lower))
        self.covariance /= self.divisor
