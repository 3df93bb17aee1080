"""Elastic nets without the covariance of all features: that of those that matter, and a check."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, Protocol

import numpy as np

from streampca.errors import InvalidInputError
from streampca.kernels import Array, symmetrize
from streampca.matrix import ChunkedMatrix, select
from streampca.models.pca.routes import ROUTES as PCA_ROUTES
from streampca.models.pca.scatter import scaled_lower
from streampca.passes import Pass, PassSpec, SolverInput, Steps, single_threaded_blas
from streampca.solvers.sparse_components import Penalty

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


class Products(Protocol):
    gathered: int

    @property
    def exhausted(self) -> bool: ...

    def of_loadings(self, b: Array) -> Steps[Array]: ...


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

    def regressed(self, sa: Array, penalty: Penalty, work: Products) -> Steps[tuple[Array, Array]]:
        """(B, S B) for given S A: the elastic nets of all features."""
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

    def _take(self, scores: Array, work: Products) -> Steps[None]:
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
