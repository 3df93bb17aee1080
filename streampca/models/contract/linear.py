"""What all linear models offer: attributes, rows from scores, errors, likelihoods."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Any, ClassVar

import numpy as np

from streampca.errors import InvalidInputError
from streampca.kernels import Array
from streampca.matrix.block import score_dtype
from streampca.models.contract.estimator import Estimator
from streampca.models.results.decomposition import (
    Decomposition,
    GaussianModel,
    OrthogonalProjection,
    Reconstructing,
)
from streampca.models.results.eof_views import EofViews, mode_indices
from streampca.models.results.projection import BackProjection, whitened
from streampca.models.results.score_scaling import SCALING, scaling_factor
from streampca.models.results.value_attributes import HOW, of_series
from streampca.models.rows.labelled_rows import rows_of_scores
from streampca.models.side_data.feature_names import is_xarray
from streampca.solvers import Certificate
from streampca.sources import counted
from streampca.sources.dask.lazy import is_dask_frame

OURS = ("builtins", "numpy", "streampca")


def decomposition_of(model: Any, example: str, complex_values: bool = False) -> Decomposition:
    """The result of a fitted linear model.

    example : of a call, for the message.  complex_values : whether that of complex data will do.
    Raises InvalidInputError for anything else, NotFittedError before the fit.
    """
    if not isinstance(model, LinearModel):
        raise InvalidInputError(f"got {in_words(model)}; expected a fitted model: {example}")
    result = model._fitted()
    return result if complex_values else of_real_data(result, example)


def of_real_data(result: Decomposition, example: str) -> Decomposition:
    """The result. Raises InvalidInputError where its components are complex."""
    if result.takes_complex:
        raise InvalidInputError(
            f"a {result.method} has complex components; expected a model of real data: {example}"
        )
    return result


def in_words(thing: Any) -> str:
    """What something is, for messages: "sklearn's PCA", "int", "the class PCA"."""
    kind, what = (thing, "the class ") if isinstance(thing, type) else (type(thing), "")
    home = kind.__module__.partition(".")[0]
    return what + (kind.__name__ if home in OURS else f"{home}'s {kind.__name__}")


class LinearModel(Estimator):
    """An estimator whose result is a :class:`Decomposition`, or a kind of it."""

    result_: Decomposition
    reconstructs: ClassVar[bool] = True
    whiten: bool
    missing: str

    def _fitted(self) -> Decomposition:
        return self._result_as(Decomposition)

    def _gaussian(self, question: str) -> GaussianModel:
        """The result as a model of its rows. Raises InvalidInputError where it is none."""
        result = self._fitted()
        if not isinstance(result, GaussianModel):
            raise result.refusal(question)
        return result

    def fit_transform(
        self, X: Any, y: Any = None, *, dim: Any = None, sample_weight: Any = None
    ) -> Any:
        """Fit, and the scores of X, (n, k): those that the fit has, or by another pass.

        Scores that the fit has differ from those of ``transform`` by the residual of their
        component: rounding, unless "randomized" warned that it is not certified.
        """
        X = counted(X)
        weight = {} if sample_weight is None else {"sample_weight": sample_weight}
        result = self.fit(X, dim=dim, **weight)._fitted()
        if result.scores is None or is_dask_frame(X):  # which keeps its index
            return self.transform(X, dim=dim, remove=getattr(self, "remove", None))
        matrix = Estimator._opened(self, X, dim)
        values = np.array(result.scores, dtype=score_dtype(matrix.dtype))
        if self.whiten:
            values = whitened(values, result.score_deviation)
        return self._wrap_scores(X, matrix, values)

    # -- rows from scores -----------------------------------------------------------------------

    def inverse_transform(
        self,
        X: Any,
        *,
        out: str | os.PathLike[str] | None = None,
        overwrite: bool = False,
        remove: Any = None,
    ) -> Any:
        """Rows reconstructed from scores, (n, p). Lazy on Dask; labelled where X is xarray.

        Features without any observation in the fit are NaN.
        X : (n, k).  out : path of a new Zarr array to write block by block.
        remove : as for ``transform``: what was removed is added again, unless this is False.

        Cost: one pass over the scores; memory of the rows, or of a few blocks with ``out``.
        """
        back = self._fitted().rows_of(self.whiten)
        return self._rows_of_scores(
            "inverse transform", X, back, out, overwrite, remove, self.whiten
        )

    def project(self, X: Any, scaling: int = 0, *, dim: Any = None, remove: Any = None) -> Any:
        """Scores of other fields with the scalings of EOF analysis, (n, k).

        X : as for ``transform``; or one xarray field without the sample dimension.
        scaling : 0 as ``transform`` gives them (never whitened), 1 divided by the standard
            deviation of the PC in the fit, 2 multiplied by it.

        remove : as for ``transform``. The mean of the fit is subtracted. Cost: as ``transform``.
        """
        result = self._fitted()
        factor = scaling_factor(result, scaling)
        if self.whiten:
            factor = factor * result.score_deviation
        dims = list(result.labels.samples.dims)
        one = is_xarray(X) and not set(dims) & set(X.dims)
        if one:  # its date is kept, since what was removed follows from it
            X = X.expand_dims(dims)
        scores = self.transform(X, dim=dim, remove=remove) * factor
        if is_xarray(scores):
            attrs = of_series(result, f"PCs ({HOW[scaling]}) of", (1, 0, 2)[scaling])
            scores = scores.assign_attrs({**attrs, SCALING: scaling})
        return scores.isel(dict.fromkeys(dims, 0)) if one else scores

    def reconstruct(
        self,
        modes: int | Sequence[int],
        scores: Any = None,
        *,
        mean: bool = True,
        lazy: bool = False,
        out: str | os.PathLike[str] | None = None,
        overwrite: bool = False,
        remove: Any = None,
    ) -> Any:
        """The field that some modes make, (n, p): labelled where the fit or the scores are.

        modes : how many leading ones, or a list of their numbers, from 1.
        scores : (n, k) as ``transform`` gives them; None takes those of the training rows, where
            the fit kept them.
        mean : False leaves the mean of the fit out, and what else was removed: anomalies.
        lazy : a Dask array (in xarray where labelled), computed by blocks of rows when needed.
        out : path of a new Zarr array to write block by block.
        remove : as for ``inverse_transform``.

        Cost: as ``inverse_transform``. Raises InvalidInputError.
        """
        result = self._fitted()
        chosen = mode_indices(modes, result.n_components)
        whitened = self.whiten and scores is not None
        scores = result.eof.pcs() if scores is None else scores
        back = result.rows_of(whitened).of_modes(chosen, mean)
        remove = remove if mean else False
        return self._rows_of_scores(
            "reconstruction", scores, back, out, overwrite, remove, whitened, lazy
        )

    def _rows_of_scores(
        self,
        name: str,
        scores: Any,
        back: BackProjection,
        out: Any,
        overwrite: bool,
        remove: Any,
        whitened: bool,
        lazy: bool = False,
    ) -> Any:
        return rows_of_scores(
            self._fitted(),
            self._passes,
            name,
            scores,
            back,
            out=out,
            overwrite=overwrite,
            remove=remove,
            whitened=whitened,
            lazy=lazy,
        )

    # -- quality of the fit ---------------------------------------------------------------------

    def r2_curve(self, X: Any = None, *, remove: Any = None) -> Array:
        """(k + 1,) share of the variance about the mean that 0, 1, ..., k components carry.

        X : rows to measure on, one pass; None gives the training rows, from the spectrum.
        remove : as for ``transform``, also below.
            Where chunks hold all samples, features are streamed, and what is left of a row is
            the difference of two sums: shares are right to 2e-6 in float32, 4e-15 in float64.

        Raises InvalidInputError for other rows after a completion or a factor analysis.
        """
        result = self._fitted()
        if X is None:
            return result.r2_curve()
        if not isinstance(result, OrthogonalProjection):
            raise result.refusal("r2_of")
        return result.r2_of(self._passes(self._matrix(X, remove=remove)))

    def reconstruction_error(self, X: Any, *, remove: Any = None) -> float:
        """Mean over rows of X, (n, p), of ||x - reconstruction||^2, standardised where scaled.

        On the training rows this is (n - ddof) / n times the sum of the dropped eigenvalues.
        Precision: as ``r2_curve``. Cost: one pass. Raises InvalidInputError after a factor
        analysis, whose factors are no projection.
        """
        result = self._fitted()
        if not isinstance(result, Reconstructing):
            raise result.refusal("reconstruction_error")
        return result.reconstruction_error(self._passes(self._matrix(X, remove=remove)))

    def score_samples(self, X: Any, *, remove: Any = None) -> Array:
        """(n,) log-likelihood of each row under the probabilistic PCA model.

        Source: Tipping and Bishop 1999, "Probabilistic principal component analysis", eq. 2.9.
        Cost: one pass; no p x p matrix is formed. Precision: as ``r2_curve``.
        Raises InvalidInputError after a completion, which has no likelihood, and where the
        components hold all of the variance, to rounding: the density would be infinite.
        """
        model = self._gaussian("likelihood_of")
        rows = self._passes(self._matrix(X, remove=remove))
        return rows.table("score", model.likelihood_of(rows.options))[:, 0]

    def score(self, X: Any, y: Any = None, *, remove: Any = None) -> float:
        """Mean log-likelihood of the rows of X, (n, p). Cost and errors: as ``score_samples``."""
        return float(np.mean(self.score_samples(X, remove=remove)))

    def get_covariance(self) -> Array:
        """(p, p) covariance of the model, V'(L - s2 I)V + s2 I, in the units of the data.

        Raises InvalidInputError after a completion, which is no probability model.
        """
        return self._gaussian("covariance").covariance()

    def get_precision(self) -> Array:
        """(p, p) inverse of ``get_covariance``, V'L^-1 V + (I - V'V) / s2, in the data's units.

        0 beside features that the model leaves out. Raises InvalidInputError after a completion,
        and where that covariance is singular: the components hold all of the variance.
        """
        return self._gaussian("precision").precision()

    # -- under scikit-learn's names: views of ``result_``, none of which reads data --------------

    @property
    def components_(self) -> Array:
        """(k, p) orthonormal rows."""
        return self._fitted().require_components()

    @property
    def explained_variance_(self) -> Array:
        """(k,) variance along each component."""
        return self._fitted().explained_variance

    @property
    def explained_variance_ratio_(self) -> Array:
        """(k,) share of the total variance, of all components, kept or not."""
        return self._fitted().explained_variance_ratio

    @property
    def singular_values_(self) -> Array:
        """(k,) of the centred (and scaled) matrix."""
        return self._fitted().singular_values

    @property
    def mean_(self) -> Array:
        """(p,) column means (0 with center=False)."""
        return np.asarray(self._fitted().mean)

    @property
    def scale_(self) -> Array | None:
        """(p,) column divisors, 0 for constant columns; None where nothing was scaled."""
        scale = self._fitted().scale
        return None if scale is None else np.asarray(scale)

    @property
    def eof_(self) -> EofViews:
        """EOFs and PCs with scalings, correlation and covariance maps, North's errors."""
        return self._fitted().eof

    @property
    def noise_variance_(self) -> float:
        """Mean variance of the directions left out."""
        return self._fitted().noise_variance

    @property
    def n_samples_seen_(self) -> int:
        """Rows of the fit (scikit-learn's name in IncrementalPCA)."""
        return self._fitted().n_samples

    @property
    def n_features_used_(self) -> int:
        """Features that have observations, vary, and were not filtered."""
        return self._fitted().n_features_used

    @property
    def rank_(self) -> int:
        """Numerical rank of the centred (and scaled) matrix, among the values computed.

        A fit of k components knows k + 1 values: of a larger rank it can only say "at least
        k + 1" (``result_.rank_is_exact`` is False then).
        """
        return self._fitted().rank

    @property
    def certificate_(self) -> Certificate | None:
        """How far each component can be from the true one (:class:`Certificate`)."""
        return self._fitted().certificate
