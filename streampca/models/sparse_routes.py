"""Ways to sparse components: with the covariance in memory, or by reads that multiply by it."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import partial

import numpy as np

from streampca.accumulators import FeatureProjection, SubspaceStep
from streampca.kernels import Array, symmetrize
from streampca.matrix import ChunkedMatrix, Resolution, work_dtype
from streampca.models.assemble import Fitted
from streampca.models.pca.routes import ROUTES as PCA_ROUTES
from streampca.models.pca.scatter import scaled_lower, solve_accumulator
from streampca.models.request import Request
from streampca.passes import (
    Candidate,
    Pass,
    Route,
    SolverInput,
    Steps,
    easier_axis,
    pass_spec,
    single_threaded_blas,
)
from streampca.solvers.sparse_components import (
    Penalty,
    Trace,
    directions,
    unit_columns,
)

ITERATIONS = 2000  # at most, in memory
STARTS = ("gram", "gram by panels", "krylov")  # ways to the components that sweeps begin with


@dataclass(frozen=True)
class SparseRequest:
    """What is asked of one matrix.  max_passes : reads, where the covariance is not held."""

    pca: Request
    penalty: Penalty
    tol: float
    max_passes: int


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


def alternated(covariance: Array, start: Array, request: SparseRequest) -> Alternated:
    """With the covariance in memory.  start : (p, r) its leading eigenvectors, r <= rank."""
    penalty, total = request.penalty.of_first(start.shape[1]), float(np.trace(covariance))
    trace, a = Trace(request.tol), start
    for _ in range(ITERATIONS):
        sa = covariance @ a
        b = penalty.thresholded(sa) if penalty.thresholds else penalty.regressed(covariance, sa)
        sb = covariance @ b
        if trace.look(b, penalty.objective(total, float(np.sum(a * sb)), float(np.sum(b * sb)), b)):
            break
        a, _ = directions(sb)
    unit = unit_columns(b)
    return Alternated(unit, unit.T @ covariance @ unit, trace)


def by_covariance(inputs: SolverInput[SparseRequest]) -> Steps[tuple[Fitted, Alternated]]:
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
    found = []
    (n, p), k, axis = matrix.shape, request.pca.count or 1, easier_axis(matrix)
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
        reason = f"components by {one.solver}, then products with the covariance, each a read"
        found.append(replace(one, solver=f"sweeps after {name}", reason=reason,
                             passes=(*one.passes, *passes),
                             sizes={**one.sizes, "most": most}))  # fmt: skip
    return found


def by_sweeps(name: str, inputs: SolverInput[SparseRequest]) -> Steps[tuple[Fitted, Alternated]]:
    """Each iteration multiplies loadings and directions by the covariance."""
    request, plan = inputs.request, inputs.plan
    fitted = yield from PCA_ROUTES[name].route.solve(SolverInput(plan, inputs.matrix, request.pca))
    divisor = request.pca.divisor(fitted.weight)
    total, trace, a = fitted.spectrum.total / divisor, Trace(request.tol), _start(fitted)
    work, penalty = _Products(inputs, fitted, divisor), request.penalty.of_first(a.shape[1])
    sa = a * (fitted.spectrum.values[: a.shape[1]] / divisor)
    while True:
        b = penalty.thresholded(sa)
        sb = yield from work.of_loadings(b)
        objective = penalty.objective(total, float(np.sum(a * sb)), float(np.sum(b * sb)), b)
        if trace.look(b, objective) or work.exhausted:
            break
        a, turn = directions(sb)
        sa = yield from work.of_directions(a, turn)
    lengths = np.linalg.norm(b, axis=0)
    lengths[lengths == 0] = 1.0
    return fitted, Alternated(b / lengths, (b.T @ sb) / np.outer(lengths, lengths), trace)


class _Products:
    """Products with the covariance of the standardised matrix, which is read for each.

    Streamed samples give Z'(Z q). Streamed features give Z'u of scores u, and Z Z'u beside it:
    scores of the next directions, which are a product of what was multiplied.
    """

    def __init__(self, inputs: SolverInput[SparseRequest], fitted: Fitted, divisor: float) -> None:
        self.divisor, self.axis = divisor, inputs.plan.named("product").axis
        self.most, self.made, self.summed = inputs.plan.sizes["most"], 0, 0
        self.dtype = work_dtype(inputs.matrix.dtype)
        self.operands = {"center": np.asarray(fitted.mean, np.float64)}
        if fitted.scale is not None:
            self.operands["scale"] = fitted.scale
        self.scored: Array  # (n, k) Z Z'u

    @property
    def exhausted(self) -> bool:
        """Whether an iteration more would take more reads than allowed."""
        return self.made + self.summed + 2 + self.axis > self.most

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


ROUTES: dict[str, Route[SparseRequest, tuple[Fitted, Alternated]]] = {
    "scatter": Route(covariance_candidates, by_covariance)
} | {
    f"sweeps after {name}": Route(partial(sweep_candidates, name), partial(by_sweeps, name))
    for name in STARTS
}
