"""What every fitted linear Gaussian model can do: posteriors, likelihoods, samples."""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np

from streampca.accumulators import Moments
from streampca.errors import InvalidInputError
from streampca.kernels import Array
from streampca.kernels.least_squares import unpacked_triangle
from streampca.matrix import AxisLabels, ChunkedMatrix
from streampca.models.latent.result import LatentDecomposition
from streampca.models.linear import LinearModel
from streampca.models.row_passes import plan_one_pass
from streampca.models.value_attributes import of_values
from streampca.passes import Execution, PassCost, easier_axis, pass_spec, run


class LatentModel(LinearModel):
    """x = mean + scale * (W f + e), f and e Gaussian: PPCA and factor analysis.

    A hole is left out of the likelihood of its row, exactly, wherever ``missing`` allows holes.
    """

    scores: str = "regression"

    def _latent(self) -> LatentDecomposition:
        result = self._fitted()
        assert isinstance(result, LatentDecomposition)
        return result

    def _has_holes(
        self, matrix: ChunkedMatrix, features: Array, weights: Array | None, costs: list[PassCost]
    ) -> bool:
        """Whether samples that count have holes: where some weigh 0, one more read says it.

        features : numbers of those that have missing cells in any sample.
        """
        if not len(features) or weights is None or weights.all():
            return len(features) > 0
        spec = pass_spec("holes", matrix, easier_axis(matrix), {"columns": Moments()}, stored=True)
        plan = plan_one_pass(matrix, spec, self.memory_limit)
        execution = Execution.begun(plan, matrix, self.scheduler, self.progress)
        counts = (weights > 0).astype(np.float64)
        done = run(plan.passes[0], matrix, weights=counts, execution=execution)
        costs += execution.costs
        seen = done["columns"].columns().weight[features]
        return bool(np.any((seen > 0) & (seen < counts.sum())))

    # -- rows -------------------------------------------------------------------------------

    def posterior(self, X: Any, *, dim: Any = None, remove: Any = None) -> tuple[Array, Array]:
        """What each row says of its factors: (means (n, k), covariances (n, k, k)).

        The covariance of a row depends on which features it observes, not on their values. Units
        are those of ``transform``; of regression scores, whatever ``scores`` says.
        X, dim, remove : as for ``transform``.
        Cost: one pass; 8 n k (k + 3) / 2 bytes beside a few blocks.
        """
        result = self._latent()
        matrix, k = self._matrix(X, dim, remove), result.n_components
        factor = np.ones(k) if self.whiten else result.factor_scale
        scale = factor[:, None] * factor[None, :]
        rows = self._passes(matrix)
        packed = rows.table("posterior", result.posterior_of(rows.options))
        return packed[:, :k] * factor, unpacked_triangle(packed[:, k:], k) * scale

    # -- the model itself -------------------------------------------------------------------

    @property
    def log_likelihood_(self) -> float:
        """Of the rows of the fit, in the units of the data."""
        return self._latent().log_likelihood

    @property
    def aic_(self) -> float:
        """Akaike's criterion of the fit; smaller is better."""
        return self._latent().aic

    @property
    def bic_(self) -> float:
        """Schwarz's criterion of the fit; smaller is better."""
        return self._latent().bic

    def sample(self, n_samples: int = 1, random_state: Any = None) -> Any:
        """(n_samples, p) rows drawn from the model, in the units of the data.

        Labelled xarray where the features have names, else NumPy. Features that never vary hold
        their mean, those without any observation NaN.
        random_state : as :class:`PCA` takes it; the same seed gives the same rows.
        """
        if isinstance(n_samples, bool) or n_samples != int(n_samples) or n_samples < 1:
            raise InvalidInputError(f"n_samples={n_samples!r}; expected 1 or more")
        result = self._latent()
        model, count = result.factor_model, int(n_samples)
        rng = np.random.default_rng(random_state)
        factors = rng.standard_normal((count, result.n_components))
        if model.correlations is not None:
            factors = factors @ np.linalg.cholesky(model.correlations).T
        rows = factors @ model.loadings.T
        rows += rng.standard_normal(rows.shape) * np.sqrt(model.noise)
        if result.divisors is not None:
            rows *= result.divisors
        rows += result.mean
        rows[:, result.dropped] = np.nan
        features = result.labels.features
        if not features.named:
            return rows
        from streampca.sources.labelled_results import to_dataarray

        return to_dataarray(
            rows,
            [AxisLabels.plain("sample", count), features],
            "sample",
            partial(of_values, result.labels),
        )
