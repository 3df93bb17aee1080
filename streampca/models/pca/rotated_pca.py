"""Rotated principal components as an estimator: fit, rotate, project new rows."""

from __future__ import annotations

import copy
from typing import Any, Self

from streampca.errors import InvalidInputError
from streampca.kernels import Array
from streampca.models.decomposition import Decomposition
from streampca.models.linear import LinearModel, attach
from streampca.models.pca.pca import PCA
from streampca.models.rotated import RotatedDecomposition


class RotatedPCA(LinearModel):
    """PCA whose first k components are rotated by varimax or promax.

    pca : the :class:`PCA` that is fitted first; its settings hold.
    method : "varimax" (orthogonal) or "promax" (oblique).
    k : how many components to rotate; None = all that were kept and vary.
    normalize : Kaiser's row normalisation during the varimax part.
    power : of promax.

    ``result_`` is a :class:`RotatedDecomposition`: loadings, rotation, correlations (phi) of the
    scores, explained variance of each rotated component.
    Cost: that of the PCA, then no more reading; see ``solvers.rotation.varimax``.
    Source: Kaiser 1958; Hendrickson and White 1964; Richman 1986, J. Climatol. 6, for EOFs.
    """

    def __init__(
        self,
        pca: PCA | None = None,
        method: str = "varimax",
        k: int | None = None,
        *,
        normalize: bool = True,
        power: float = 4.0,
    ) -> None:
        self.pca = pca
        self.method = method
        self.k = k
        self.normalize = normalize
        self.power = power

    def fit(self, X: Any, y: Any = None, *, dim: Any = None, **options: Any) -> Self:
        """Fit the PCA to X, and rotate. Further options go to ``PCA.fit``."""
        base = copy.copy(self._base()).fit(X, dim=dim, **options)
        self._rotate(base.result_)
        self.plan_, self.cost_, self.dim_ = base.plan_, base.cost_, dim
        return self

    def _rotate(self, result: Decomposition) -> None:
        rotated = RotatedDecomposition.of(
            result, self.method, self.k, normalize=self.normalize, power=self.power
        )
        attach(self, rotated)

    # -- the settings of the PCA ----------------------------------------------------------------

    def _base(self) -> PCA:
        return PCA() if self.pca is None else self.pca

    @property
    def whiten(self) -> bool:  # type: ignore[override]
        """As the PCA has it: scores with variance 1."""
        return self._base().whiten

    @property
    def missing(self) -> str:  # type: ignore[override]
        """As the PCA has it."""
        return self._base().missing

    @property
    def missing_value(self) -> float | None:  # type: ignore[override]
        """As the PCA has it."""
        return self._base().missing_value

    @property
    def memory_limit(self) -> int | str | None:  # type: ignore[override]
        """As the PCA has it."""
        return self._base().memory_limit

    @property
    def scheduler(self) -> Any:
        """As the PCA has it."""
        return self._base().scheduler

    @property
    def progress(self) -> Any:
        """As the PCA has it."""
        return self._base().progress

    # -- of the space, which rotation leaves as it was ------------------------------------------

    def unrotated(self) -> PCA:
        """The PCA that was rotated, fitted, with its first k components."""
        model = copy.copy(self._base())
        result = self._fitted()
        assert isinstance(result, RotatedDecomposition)
        attach(model, result.unrotated())
        model.dim_ = self.dim_
        return model

    def r2_curve(self, X: Any = None, *, remove: Any = None) -> Array:
        """That of the unrotated components."""
        return self.unrotated().r2_curve(X, remove=remove)

    def reconstruction_error(self, X: Any, *, remove: Any = None) -> float:
        """As of the unrotated components: the reconstruction is the same."""
        return self.unrotated().reconstruction_error(X, remove=remove)

    def score_samples(self, X: Any, *, remove: Any = None) -> Array:
        """As of the unrotated components: the model is the same."""
        return self.unrotated().score_samples(X, remove=remove)

    def get_covariance(self) -> Array:
        """As of the unrotated components: the model is the same."""
        return self.unrotated().get_covariance()

    def get_precision(self) -> Array:
        """As of the unrotated components: the model is the same."""
        return self.unrotated().get_precision()


def rotate(
    source: Any,
    method: str = "varimax",
    k: int | None = None,
    *,
    normalize: bool = True,
    power: float = 4.0,
) -> Any:
    """Rotate a fitted model or result towards simple structure; no data are read.

    source : a fitted PCA (or another estimator of ours), which gives a fitted
        :class:`RotatedPCA`; or a Decomposition, which gives a :class:`RotatedDecomposition`.
    method : "varimax", or "promax" (factors may correlate).
    k : how many leading components to rotate; None = all that vary. The answer depends on it.
    normalize : Kaiser's row normalisation: features count the same, however much they share.
    power : of promax's target.

    The start is the unrotated loadings, always: the same input gives the same answer. Components
    are ordered by the variance that they explain, and have the sign rule of all components.
    Raises InvalidInputError. Warns (AccuracyWarning) where the iteration does not converge.
    Source: Kaiser 1958, Psychometrika 23; Hendrickson and White 1964, Br. J. Stat. Psych. 17.
    """
    if isinstance(source, Decomposition):
        return source.rotate(method, k, normalize=normalize, power=power)
    result = getattr(source, "result_", None)
    if not isinstance(result, Decomposition):
        raise InvalidInputError(
            f"got {type(source).__name__}; expected a fitted model: streampca.rotate(pca.fit(X))"
        )
    parameters = {name: v for name, v in source.get_params().items() if name in PCA.parameters}
    model = RotatedPCA(PCA(**parameters), method, k, normalize=normalize, power=power)
    model._rotate(result)
    model.dim_ = getattr(source, "dim_", None)
    return model


def rotated_from(result: RotatedDecomposition) -> RotatedPCA:
    """The estimator of a rotated result that was saved."""
    model = RotatedPCA(PCA.restored(result.settings), result.method, result.n_components)
    attach(model, result)
    return model
