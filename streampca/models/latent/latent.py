"""What every fitted linear Gaussian model can do: posteriors, likelihoods, samples."""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np

from streampca.accumulators import FeaturePosterior, Moments
from streampca.errors import InvalidInputError
from streampca.kernels import Array, reciprocal
from streampca.kernels.least_squares import posterior, unpacked_triangle
from streampca.matrix import AxisLabels, ChunkedMatrix
from streampca.models.latent.result import LatentDecomposition
from streampca.models.latent.rows import BARTLETT, FactorScores, LatentLikelihood, PosteriorRows
from streampca.models.linear import LinearModel
from streampca.models.mapped_rows import plan_one_pass
from streampca.models.projection import BackProjection
from streampca.models.value_attributes import of_values
from streampca.passes import Execution, PassCost, easier_axis, pass_spec, run
from streampca.sources import counted


class LatentModel(LinearModel):
    """x = mean + scale * (W f + e), f and e Gaussian: PPCA and factor analysis.

    A hole is left out of the likelihood of its row, exactly, wherever ``missing`` allows holes.
    """

    scores: str = "regression"

    def _latent(self) -> LatentDecomposition:
        result = self._fitted()
        assert isinstance(result, LatentDecomposition)
        return result

    def fit_transform(
        self, X: Any, y: Any = None, *, dim: Any = None, sample_weight: Any = None
    ) -> Any:
        """Fit, and the scores of X, (n, k): another pass, unless the fit has them."""
        X = counted(X)
        self.fit(X, dim=dim, sample_weight=sample_weight)  # type: ignore[call-arg]
        return self._scores_of_fit(X, dim, getattr(self, "remove", None))

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

    def _projection(self, centre: bool = True) -> FactorScores:
        result = self._latent()
        unit = self.whiten or np.all(result.factor_scale == 1.0)
        factor = None if unit else result.factor_scale
        made: FactorScores = FactorScores.of(
            result, self.missing, centre, factor=factor, kind=self.scores
        )
        return made

    def _likelihood(self, centre: bool = True) -> LatentLikelihood:
        made: LatentLikelihood = LatentLikelihood.of(self._latent(), self.missing, centre)
        return made

    def _back_projection(self, again: bool) -> BackProjection:
        result = self._latent()
        center = np.array(result.mean)
        center[result.dropped] = np.nan
        rows = result.directions
        rows = rows * result.factor_scale[:, None] if self.whiten else rows
        removed = result.removed if again else None
        return BackProjection(rows, center, result.divisors, None, removed)

    def _score_deviation(self) -> Array:
        deviation = self._latent().factor_scale
        return np.where(deviation > 0, deviation, 1.0)

    def _scores_by_features(self, matrix: ChunkedMatrix, projection: Any) -> Array:
        b, _, tables = self._feature_sums("transform", matrix)
        information = self._information(tables, len(b))
        if self.scores == BARTLETT:
            plain = information - self._latent().factor_model.prior
            means = np.einsum("ijk,ik->ij", np.linalg.pinv(plain, hermitian=True), b)
        else:
            means = posterior(information, b)[0]
        return np.asarray(means if projection.factor is None else means * projection.factor)

    def _information(self, tables: Array, rows: int) -> Array:
        """(rows, k, k) precisions of the factors, from what a pass over features summed."""
        model, k = self._latent().factor_model, self._latent().n_components
        if self.missing == "raise":
            return np.broadcast_to(model.information, (rows, k, k))
        return unpacked_triangle(tables[:, : k * (k + 1) // 2], k) + model.prior

    def _likelihood_by_features(self, matrix: ChunkedMatrix, likelihood: Any) -> Array:
        b, squares, tables = self._feature_sums("score", matrix)
        if self.missing == "raise":
            return np.asarray(likelihood.of_parts(b, squares))
        model, k = self._latent().factor_model, self._latent().n_components
        pairs = k * (k + 1) // 2
        means, _, logdet = posterior(self._information(tables, len(b)), b)
        noise, seen, jacobian = tables[:, pairs:].T
        distance = np.maximum(squares - np.einsum("ij,ij->i", b, means), 0.0)
        return np.asarray(model.constants(logdet, noise, seen) + jacobian - 0.5 * distance)

    def _feature_sums(self, name: str, matrix: ChunkedMatrix) -> tuple[Array, Array, Array]:
        """What a pass over blocks of features says of every sample."""
        result = self._latent()
        model, divisors = result.factor_model, result.divisors
        centre = result.mean if matrix.design is None else np.zeros(result.n_features)
        operands: dict[str, Any] = {
            "weighted": model.weighted, "inverse_noise": model.inverse_noise, "center": centre,
        }  # fmt: skip
        used = (model.noise > 0).astype(np.float64)
        if divisors is not None:
            operands["scale"] = divisors
        if self.missing != "raise":
            scale = np.ones_like(used) if divisors is None else divisors
            jacobian = -np.log(scale, out=np.zeros_like(used), where=scale > 0)
            operands["table"] = np.column_stack([model.pairs, model.log_noise, used, jacobian])
        total = FeaturePosterior(
            scale=None if divisors is None else "scale",
            missing=self.missing,
            absent=tuple(result.dropped.tolist()),
            width=result.n_components,
            columns=0 if self.missing == "raise" else operands["table"].shape[1],
        )
        sums: tuple[Array, Array, Array] = self._fold(name, matrix, 1, total, operands).sums()
        return sums

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
        if easier_axis(matrix) == 1:
            b, _, tables = self._feature_sums("posterior", matrix)
            means, covariances, _ = posterior(self._information(tables, len(b)), b)
            return means * factor, covariances * scale
        rows: PosteriorRows = PosteriorRows.of(result, self.missing, matrix.design is None)
        packed = self._mapped("posterior", matrix, rows).in_memory(k + k * (k + 1) // 2)
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

    def get_covariance(self) -> Array:
        """(p, p) covariance of the model in the units of the data, W C W' + noise."""
        result = self._latent()
        covariance = result.factor_model.covariance()
        if (scale := result.divisors) is not None:
            covariance *= scale[:, None] * scale[None, :]
        return covariance

    def get_precision(self) -> Array:
        """(p, p) inverse of ``get_covariance``; 0 beside features that the model leaves out.

        Raises InvalidInputError where nothing is left for the noise.
        """
        result = self._latent()
        precision = result.factor_model.precision()
        if (scale := result.divisors) is not None:
            inverse = reciprocal(scale)
            precision *= inverse[:, None] * inverse[None, :]
        return precision

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
