"""Truncated singular value decomposition: the components of an uncentred matrix."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial, wraps
from typing import Any, Self

import numpy as np

from streampca.errors import InvalidInputError
from streampca.kernels import Array
from streampca.models.contract import shared_parameters as shared
from streampca.models.contract.linear import LinearModel
from streampca.models.contract.parameters import Kept, parameter
from streampca.models.contract.registry import estimator
from streampca.models.pca.pca import PCA
from streampca.models.results.decomposition import PrincipalComponents
from streampca.passes import Plan
from streampca.sources import as_matrix, counted
from streampca.sources.dask.lazy import postponed, read_later

ALGORITHMS = ("auto", "randomized", "arpack", "scatter", "gram", "tsqr")


def _or_later(read: Callable[[Any], Array]) -> Callable[[Any], Array]:
    """What the fit has; of one that is postponed, a Dask array."""

    @wraps(read)
    def get(model: TruncatedSVD) -> Any:
        if "_later" not in vars(model):
            return read(model)
        k, p = int(model.n_components), model.n_features_in_
        shape = (k, p) if read.__name__ == "components_" else (k,)
        return read_later(model._later, read, shape)

    return get


@estimator
class TruncatedSVD(LinearModel):
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
    """

    n_components: int = parameter(
        default=2, kw_only=False, counts_components=True, meaning="k, a number."
    )
    algorithm: str = parameter(
        default="auto",
        meaning="""as ``svd_solver`` of :class:`PCA`: "auto", "randomized" (block Krylov),
            "arpack" (that accuracy), "scatter", "gram" or "tsqr".""",
    )
    n_iter: int | str = parameter(default="auto", meaning="as ``iterated_power`` of :class:`PCA`.")
    n_oversamples: int = shared.N_OVERSAMPLES
    power_iteration_normalizer: str = shared.POWER_ITERATION_NORMALIZER
    tol: float | None = shared.TOL
    max_passes: int | None = parameter(default=None, meaning="as :class:`PCA`.")
    compute: bool = parameter(
        default=True,
        kept=Kept.NOT,
        process=True,
        meaning="""False, as in dask-ml: ``fit`` plans and refuses, and ``components_``,
            ``singular_values_``, ``explained_variance_`` and ``explained_variance_ratio_`` are
            Dask arrays; those that are computed together share one fit. What else needs the
            result fits at once.""",
    )
    random_state: Any = shared.RANDOM_STATE
    missing_value: float | None = shared.MISSING_VALUE
    memory_limit: int | str | None = shared.MEMORY_LIMIT
    scheduler: Any = shared.SCHEDULER
    threads: int | None = shared.THREADS
    progress: Any = shared.PROGRESS
    checkpoint: str | None = shared.CHECKPOINT

    whiten = False
    missing = "raise"

    def _pca(self) -> PCA:
        """The PCA that computes the decomposition."""
        if self.algorithm not in ALGORITHMS:
            raise InvalidInputError(f"algorithm={self.algorithm!r}; expected one of {ALGORITHMS}")
        whole = isinstance(self.n_components, (int, np.integer))
        if not whole or isinstance(self.n_components, bool):
            raise InvalidInputError(f"n_components={self.n_components!r}; expected a number")
        settings = {n: getattr(self, n) for n in TruncatedSVD.parameters if n in PCA.parameters}
        names: dict[str, Any] = {"svd_solver": self.algorithm, "iterated_power": self.n_iter}
        return PCA(**names, center=False, ddof=0, **settings)

    def plan(self, X: Any, *, dim: Any = None) -> Plan:
        """What ``fit`` would do with X, (n, p): solver, passes, reads, memory. Reads nothing."""
        return self._plan_as("TruncatedSVD", X, dim)

    def _plan_as(self, method: str, X: Any, dim: Any = None) -> Plan:
        """The plan of a method that is this decomposition."""
        return self._pca()._plan_as(method, X, dim)

    def fit(self, X: Any, y: Any = None, *, dim: Any = None, sample_weight: Any = None) -> Self:
        """Fit to X, (n, p): anything that ``PCA.fit`` takes, and its errors.

        sample_weight : (n,) how often each sample counts, as ``PCA.fit`` takes it.
        """
        vars(self).pop("_later", None)
        if not self.compute:
            return self._postpone(X, dim, sample_weight)
        return self._fit_as("TruncatedSVD", X, dim, sample_weight)

    def _fit_as(self, method: str, X: Any, dim: Any = None, sample_weight: Any = None) -> Self:
        """Fit to X.  method : what is fitted, for plans and their refusals."""
        base = self._pca()._fit_as(method, X, dim, sample_weight)
        settings = {**base.result_.settings, "algorithm": self.algorithm, "n_iter": self.n_iter}
        self.result_ = replace(base.result_, method="TruncatedSVD", settings=settings)
        self.plan_ = replace(base.plan_, method="TruncatedSVD")
        self.cost_, self.dim_ = base.cost_, dim
        self.n_features_in_ = base.n_features_in_
        return self

    def _postpone(self, X: Any, dim: Any, sample_weight: Any) -> Self:
        """A fit that is made where its results are computed."""
        matrix = as_matrix(counted(X), dim=dim, missing_value=self.missing_value)
        self.plan_, self.dim_ = self.plan(matrix), dim
        self.n_features_in_ = matrix.shape[1]
        for name in ("result_", "cost_"):
            vars(self).pop(name, None)
        eager = self.__sklearn_clone__().set_params(compute=True)
        self._later = postponed(partial(eager.fit, X, dim=dim, sample_weight=sample_weight))
        return self

    def __getattr__(self, name: str) -> Any:
        if name not in ("result_", "cost_") or "_later" not in vars(self):
            raise AttributeError(f"{type(self).__name__} has no attribute {name!r}")
        done = self._later.compute()
        self.result_, self.cost_ = done.result_, done.cost_
        return vars(self)[name]

    # -- as scikit-learn defines them -----------------------------------------------------------

    @property
    @_or_later
    def components_(self) -> Array:
        """(k, p) orthonormal rows."""
        return self._fitted().require_components()

    @property
    @_or_later
    def singular_values_(self) -> Array:
        """(k,) of the matrix."""
        return self._fitted().singular_values

    @property
    @_or_later
    def explained_variance_(self) -> Array:
        """(k,) variance of the scores about their mean, divisor n.

        The difference of their mean square and squared mean: where means of columns are 1000
        times their deviations, it keeps 6 digits less (of float32, none): then take ``PCA``.
        """
        result = self._fitted()
        means = result.require_components() @ self._feature_mean()
        return np.asarray(np.maximum(result.explained_variance - means**2, 0.0))

    @property
    @_or_later
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
