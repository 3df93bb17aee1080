"""Truncated singular value decomposition: the components of an uncentred matrix."""

from __future__ import annotations

from typing import Any

import numpy as np

from streampca.errors import InvalidInputError
from streampca.kernels import Array
from streampca.matrix import ChunkedMatrix
from streampca.models.contract import shared_parameters as shared
from streampca.models.contract.estimator import WeighsSamples
from streampca.models.contract.linear import LinearModel
from streampca.models.contract.parameters import parameter
from streampca.models.contract.registry import estimator
from streampca.models.contract.request import Request
from streampca.models.decompose.assemble import Fitted, assemble
from streampca.models.decompose.routes import pca_candidates, quick_candidates
from streampca.models.pca.pca import iterated
from streampca.models.results.decomposition import PrincipalComponents
from streampca.passes import Candidate, Outcome

SOLVERS = ("auto", "randomized", "arpack", "scatter", "gram", "tsqr")


@estimator
class TruncatedSVD(WeighsSamples, LinearModel):
    """Leading singular vectors, uncentred: latent semantic analysis, sparse counts.

    Attributes
    ----------
    components_ (k, p), singular_values_ (k,), and, as scikit-learn has them, explained_variance_
    (k,): the variance of each column of scores about its mean (divisor n), not its mean square;
    explained_variance_ratio_ : its share of the variance of all columns. certificate_, plan_,
    cost_, result_ as of a :class:`PCA` with center=False and ddof=0.

    Cost: that of such a PCA; sparse blocks are never expanded by "randomized".
    Source: Halko, Martinsson and Tropp 2011, SIAM Review 53(2), section 1.4; certificates Parlett
    1998, "The Symmetric Eigenvalue Problem", chapter 4.

    Examples
    --------
    >>> import numpy as np
    >>> from streampca import TruncatedSVD
    >>> X = np.random.default_rng(0).normal(size=(50, 4))
    >>> TruncatedSVD(2).fit_transform(X).shape
    (50, 2)
    """

    n_components: int = parameter(
        default=2, kw_only=False, counts_components=True, meaning="k, a number."
    )
    solver: str = parameter(
        default="auto",
        meaning="""as :class:`PCA`: "auto", "randomized" (block Krylov), "arpack" (that accuracy),
            "scatter", "gram" or "tsqr".""",
    )
    algorithm: str | None = shared.other_name("solver")
    n_iter: int | str = parameter(default="auto", meaning="as ``iterated_power`` of :class:`PCA`.")
    n_oversamples: int = shared.N_OVERSAMPLES
    power_iteration_normalizer: str = shared.POWER_ITERATION_NORMALIZER
    tol: float | None = shared.TOL
    max_passes: int | None = parameter(default=None, meaning="as :class:`PCA`.")
    random_state: Any = shared.RANDOM_STATE

    whiten = False
    missing = "raise"

    def _request(
        self, matrix: ChunkedMatrix, *, sample_weight: Any = None, seed: int = 0
    ) -> Request:
        """Of the PCA of the uncentred matrix.  seed : drawn by a fit."""
        solver = self.either("solver", "algorithm")
        if solver not in SOLVERS:
            raise InvalidInputError(f"solver={solver!r}; expected one of {SOLVERS}")
        whole = isinstance(self.n_components, (int, np.integer))
        if not whole or isinstance(self.n_components, bool):
            raise InvalidInputError(f"n_components={self.n_components!r}; expected a number")
        fixed = {"center": False, "ddof": 0, "random_state": seed}
        request = iterated(self, solver, self.n_iter, **fixed)
        return request.with_side_data(matrix, sample_weight=sample_weight)

    def _candidates(self, matrix: ChunkedMatrix, request: Request) -> list[Candidate[Fitted]]:
        return pca_candidates(matrix, request)

    def _quick(self, matrix: ChunkedMatrix, request: Request) -> list[Candidate[Fitted]]:
        return quick_candidates(matrix, request)

    def _result(
        self, matrix: ChunkedMatrix, request: Request, done: Outcome[Fitted]
    ) -> PrincipalComponents:
        fixed = {"center": False, "ddof": 0, "random_state": request.random_state}
        return assemble(done.answer, request, self._described(matrix, done, **fixed))

    # -- as scikit-learn defines them -----------------------------------------------------------

    @property
    def components_(self) -> Array:
        """(k, p) orthonormal rows."""
        return self._fitted().require_components()

    @property
    def singular_values_(self) -> Array:
        """(k,) of the matrix."""
        return self._fitted().singular_values

    @property
    def explained_variance_(self) -> Array:
        """(k,) variance of the scores about their mean, divisor n.

        The difference of their mean square and squared mean: where means of columns are 1000
        times their deviations, it keeps 6 digits less (of float32, none): then take ``PCA``.
        """
        result = self._fitted()
        means = result.require_components() @ self._feature_mean()
        return np.asarray(np.maximum(result.explained_variance - means**2, 0.0))

    @property
    def explained_variance_ratio_(self) -> Array:
        """(k,) share of the variance of all columns about their means."""
        whole = self._fitted().total_variance - float(np.sum(self._feature_mean() ** 2))
        variance = self.explained_variance_
        return variance / whole if whole > 0 else np.zeros(len(variance))

    def _feature_mean(self) -> Array:
        result = self._fitted()
        mean = result.feature_mean if isinstance(result, PrincipalComponents) else None
        if mean is None:
            raise InvalidInputError("this result was not made by TruncatedSVD: it has no means")
        return mean
