"""The fitted result of a factor analysis."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from streampca.errors import InvalidInputError
from streampca.kernels import Array
from streampca.models.latent.latent import LatentDecomposition
from streampca.models.result import places, shaped
from streampca.models.row_passes import RowPasses
from streampca.solvers import FactorModel, TracyWidom


def degrees_of_freedom(p: int, k: int) -> int:
    """((p - k)^2 - p - k) / 2: correlations less parameters. Negative where k is too many."""
    return ((p - k) ** 2 - p - k) // 2


@dataclass(frozen=True, repr=False, kw_only=True)
class FactorDecomposition(LatentDecomposition, kind="factor model"):
    """Correlations as L C L' + diag(uniquenesses); ``scale`` has the standard deviations.

    components : (k, p) columns of L with length 1, which are not orthogonal.
    explained_variance : (k,) their squared lengths, descending (R's "SS loadings");
        total_variance : how many features vary.
    uniquenesses : (p,) shares of the variance that no factor explains; 0 in features that the
        model leaves out.
    rotation : (k, k), L = unrotated loadings @ rotation.  correlations : C (k, k) of the factors.
    heywood : numbers of the features whose uniqueness lies at ``lower``, the bound.
    discrepancy : log|Sigma| - log|S| + tr(S / Sigma) - p, NaN where S is singular or unknown.
    statistic, freedom, p_value : Bartlett's test that k factors are enough.
    steps, converged : of the iteration.  gradient : the largest of the likelihood equations at
        its end.  gain : what the log-likelihood may still lack, estimated.
    """

    uniquenesses: Array = shaped("p", empty=0)
    rotation: Array = shaped("k", "k", empty=(0, 0))
    correlations: Array = shaped("k", "k", empty=(0, 0))
    heywood: Array = places()
    trace: Array = shaped(None, empty=0)
    lower: float = 0.005
    discrepancy: float = float("nan")
    statistic: float = float("nan")
    freedom: int = 0
    p_value: float = float("nan")
    steps: int = 0
    converged: bool = True
    gradient: float = 0.0
    gain: float = 0.0

    def _factor_model(self) -> FactorModel:
        k = self.n_components
        plain = np.array_equal(self.correlations, np.eye(k))
        return FactorModel(self.loadings, self.uniquenesses, None if plain else self.correlations)

    def permuted_parts(self, order: Array, sign: Array) -> dict[str, Any]:
        """The rotation and the correlations of components that change places or signs."""
        between = self.correlations[np.ix_(order, order)] * np.multiply.outer(sign, sign)
        return {"rotation": self.rotation[:, order] * sign, "correlations": between}

    @property
    def structure(self) -> Array:
        """(p, k) correlations of features with factors: loadings @ correlations."""
        return self.loadings @ self.correlations

    @property
    def communalities(self) -> Array:
        """(p,) shares of the variance that the factors explain."""
        return np.asarray(np.sum(self.loadings * self.structure, axis=1))

    @property
    def n_parameters(self) -> int:
        """Loadings but for a rotation, uniquenesses, means and standard deviations."""
        p, k = self.n_features_used, self.n_components
        return p * k - k * (k - 1) // 2 + 2 * p

    def r2_curve(self, rows: RowPasses | None) -> Array:
        """(k + 1,) share of the variance that 0, 1, ..., k factors explain, in the fit alone."""
        if rows is not None:
            raise InvalidInputError(
                "factors are no orthogonal projection of rows; compare models by score(X), or "
                "take PCA for the variance of other rows"
            )
        return super().r2_curve(None)

    def reconstruction_error(self, rows: RowPasses) -> float:
        """Refused: factors explain correlations, not squares."""
        raise InvalidInputError("factors explain correlations; compare models by score(X)")

    def tracy_widom(self) -> TracyWidom:
        """Refused: the test is for principal components."""
        raise InvalidInputError(
            "the Tracy-Widom test is one of principal components; factors have result.statistic, "
            "result.freedom and result.p_value"
        )

    def rotate(self, *_: Any, **__: Any) -> Any:
        """Refused: factors are rotated by their fit."""
        raise InvalidInputError(
            "factors are rotated by the fit: FactorAnalysis(rotation='varimax'), 'quartimax' or "
            "'promax'"
        )
