"""Sparse components of a covariance in memory, and the alternation by which they are computed."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import numpy as np

from streampca.errors import InvalidInputError
from streampca.kernels import Array, symmetrize
from streampca.matrix import AxisLabels, ChunkedMatrix, Resolution
from streampca.matrix.alignment import along
from streampca.models.contract.request import Request
from streampca.models.decompose.assemble import Fitted
from streampca.models.decompose.scatter import scaled_lower, scatter_candidates, solve_accumulator
from streampca.passes import Candidate, Pass, PassSpec, Planned, Steps, single_threaded_blas
from streampca.solvers.sparse_components import Penalty, Trace, directions

ITERATIONS = 2000  # at most, in memory
SETTLED = 500  # of these, after which n_nonzero keeps the features that it has


@dataclass(frozen=True)
class SparseRequest:
    """A sparse PCA as it was requested, checked.

    penalties : one, or those of a path.  max_passes : reads, where the covariance is not held.
    """

    pca: Request
    penalties: tuple[Penalty, ...]
    tol: float
    max_passes: int

    @property
    def missing(self) -> str:
        """What is done with holes."""
        return self.pca.missing

    @property
    def thresholds(self) -> bool:
        """Whether loadings follow from products alone, cell by cell."""
        return self.penalties[0].thresholds

    @property
    def width(self) -> int:
        """Components of all penalties together."""
        return (self.pca.count or 1) * len(self.penalties)


def covariance_candidates(
    matrix: ChunkedMatrix, request: SparseRequest
) -> list[Candidate[SparseFit]]:
    """One read that sums the scatter matrix."""
    p, k = matrix.shape[1], request.pca.count or 1
    (one,) = scatter_candidates(matrix, request.pca)
    (spec,) = one.passes
    terms = {"covariance": p * p * 8, "loadings": 12 * p * k * 8}
    solver = partial(by_covariance, request=request, spec=spec)
    candidate = Candidate(
        one.solver,
        one.reason,
        one.passes,
        {**one.solve_nbytes, **terms},
        one.solve_flops,
        one.sizes,
        solve=solver,
    )
    return [candidate.weighted(None, request.pca.side.weights)]


@dataclass(frozen=True)
class Alternated:
    """b : (p, r) loadings of length 1, of as many components as the data have, at most k.
    inner : (r, r) b'Sb."""

    b: Array
    inner: Array
    trace: Trace


@dataclass(frozen=True)
class SparseFit:
    """fitted : the PCA.  several : the sparse components of each penalty."""

    fitted: Fitted
    several: list[Alternated]


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
    return run.normalised()


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

    def normalised(self) -> Alternated:
        lengths = np.linalg.norm(self.b, axis=0)
        lengths[lengths == 0] = 1.0
        inner = (self.b.T @ self.sb) / np.outer(lengths, lengths)
        return Alternated(self.b / lengths, inner, self.trace)


def by_covariance(
    planned: Planned[Any], *, request: SparseRequest, spec: PassSpec
) -> Steps[SparseFit]:
    """One read; then everything in memory."""
    pca, matrix = request.pca, planned.matrix
    done = (yield Pass(spec)).accumulators.pop("scatter")
    resolution, limit = Resolution.of(matrix.dtype), min(matrix.shape)
    fitted = solve_accumulator(done, pca, resolution, limit)
    with single_threaded_blas():
        features = fitted.features
        lower = scaled_lower(done.lower(), features.divisors, np.arange(len(features.mean)))
        covariance = symmetrize(np.array(lower))
        covariance /= pca.divisor(fitted.weight)
        return SparseFit(fitted, alternated(covariance, leading_components(fitted), request))


def leading_components(fitted: Fitted) -> Array:
    """(p, r) components, without those of mere rounding: on these an alternation never ends."""
    assert fitted.components is not None
    return np.ascontiguousarray(fitted.components[: max(fitted.rank, 1)].T)


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
