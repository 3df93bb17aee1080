"""What every fitted linear decomposition can do with data: project, reconstruct, score."""

from __future__ import annotations

import os
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any, ClassVar, Self

import numpy as np

from streampca.errors import InvalidInputError
from streampca.kernels import Array
from streampca.matrix import RAW, ChunkedMatrix, Preprocessing
from streampca.models.decomposition import Decomposition
from streampca.models.eof_views import mode_indices
from streampca.models.labelled_rows import (
    is_xarray,
    lazy_rows_of_scores,
    project_scaled,
    rows_of_scores,
    variables_of,
)
from streampca.models.lazy_rows import LazyRows, lazy_rows_of
from streampca.models.model_covariance import covariance_of, precision_of
from streampca.models.new_rows import prepared, steps_left
from streampca.models.projection import score_dtype, whitening
from streampca.models.restacked import restacked
from streampca.models.row_passes import RowPasses
from streampca.models.value_attributes import of_series
from streampca.passes import PassCost, Plan
from streampca.sources import as_matrix
from streampca.sources.lazy import frame_of_rows, is_dask_array, is_dask_frame, is_lazy, lazily_held


class LinearModel(RowPasses):
    """Everything that needs a fitted result but no fit: project, reconstruct, score."""

    reconstructs: ClassVar[bool] = True  # rows from scores, with an error that is least
    dim_: Any = None
    plan_: Plan
    cost_: list[PassCost]

    @classmethod
    def from_result(cls, result: Decomposition) -> Any:
        """A fitted model with a result that was saved, and the parameters that made it."""
        model = cls.restored(result.settings)
        attach(model, result)
        return model

    def fit(self, X: Any, y: Any = None, *, dim: Any = None) -> Self:
        """Fit to X; every model says how."""
        raise NotImplementedError

    def fit_transform(self, X: Any, y: Any = None, *, dim: Any = None) -> Any:
        """Fit, and the scores of X, (n, k): a second pass."""
        return self.fit(X, dim=dim).transform(X, dim=dim)

    def _scores_of_fit(self, X: Any, dim: Any, remove: Any = None) -> Any:
        """Scores of the rows just fitted: those that the fit has, or by a second pass."""
        scores = self._fitted().scores
        if scores is None or is_dask_frame(X):  # which has an index to keep
            return self.transform(X, dim=dim, remove=remove)
        matrix = as_matrix(X, dim=dim, missing_value=self.missing_value)
        values = np.array(scores, dtype=score_dtype(matrix.dtype))
        if self.whiten:
            values = values / self._score_deviation().astype(values.dtype)
        return self._wrap_scores(X, matrix, values)

    def _score_deviation(self) -> Array:
        """(k,) by which whitening divides scores."""
        return whitening(self._fitted())

    # -- projection -----------------------------------------------------------------------------

    def transform(
        self,
        X: Any,
        *,
        dim: Any = None,
        out: str | os.PathLike[str] | None = None,
        overwrite: bool = False,
        remove: Any = None,
    ) -> Any:
        """Scores of rows on the components, (n, k).

        X : anything that ``fit`` takes: raw rows, where the fit was of a matrix that
            ``streampca.preprocess`` gave, for its steps are applied to them with the numbers of
            the fit; or rows that have had these steps, as that room gives them. An array in memory
            counts as raw. A Dask array or data frame gives a lazy Dask array (a data frame after
            ``set_output(transform="pandas")``), xarray gives labelled xarray, lazy where X holds
            Dask arrays; anything else is computed. Named dimensions may come in any
            order.
        dim : the sample dimension(s). Default: those of the fit for xarray, paths and
            N-dimensional arrays; the first of two.
        out : path of a new Zarr array to write block by block; it is returned, opened.
        remove : after a fit that removed arrays, those of these rows; cycles and trends follow
            from their coordinate, named columns from those of the same name. False: the rows are
            anomalies, and nothing is removed.

        Cost: one pass, and one for each step of the preprocessing that scales rows by their sums;
        memory of a few blocks, and of the scores where they are returned.
        """
        k = self._fitted().n_components
        lazy = None if out is not None else lazy_rows_of(self, X, dim, remove)
        if lazy is not None:
            projection = self._projection(lazy.basis is None)
            scores_of = partial(projection.apply, missing_value=lazy.missing_value)
            return self._lazy_scores(X, lazy, scores_of, k)
        matrix = self._matrix(X, dim, remove)
        projection = self._projection(matrix.design is None)
        if out is not None:
            return self._transform_into(out, overwrite, matrix, projection)
        scores = self._project(matrix, projection)
        return self._wrap_scores(X, matrix, scores)

    def _lazy_scores(self, X: Any, lazy: LazyRows, scores_of: Any, k: int) -> Any:
        """(n, k) lazy scores of X, as the kind of object that it is.  scores_of : an array."""
        dtype = score_dtype(lazy.rows.dtype)
        if is_dask_frame(X) and self._as_pandas and lazy.basis is None:
            names = self.get_feature_names_out()
            return frame_of_rows(X, lazy.whole(scores_of), names, dtype)
        return self._wrap_scores(X, lazy.matrix, lazy.map(scores_of, k, dtype))

    @property
    def _as_pandas(self) -> bool:
        return bool(getattr(self, "_output", "default") == "pandas")

    def _wrap_scores(self, X: Any, matrix: ChunkedMatrix | None, scores: Any) -> Any:
        """Scores as the kind of object that came in.  matrix : its labels, where it has any."""
        if matrix is not None and is_lazy(X) and not is_dask_array(scores):
            scores = lazily_held(scores, X, matrix.labels.samples)
        if is_xarray(X):
            from streampca.sources.labelled_results import to_dataarray

            assert matrix is not None
            axes = [matrix.labels.samples, self._fitted().component_axis]
            told = of_series(self._fitted(), "scores of", 0 if self.whiten else 1)
            return to_dataarray(scores, axes, "scores", told)
        if is_dask_array(scores):
            return scores
        if self._as_pandas:
            import pandas as pd

            index = getattr(X, "index", None)
            return pd.DataFrame(scores, index=index, columns=self.get_feature_names_out())
        return scores

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
        back = self._back_projection(remove is not False)
        mapped = partial(self._mapped, "inverse transform")
        return rows_of_scores(
            self._fitted(), mapped, X, back, out=out, overwrite=overwrite, remove=remove
        )

    def project(self, X: Any, scaling: int = 0, *, dim: Any = None, remove: Any = None) -> Any:
        """Scores of other fields with the scalings of EOF analysis, (n, k).

        X : as for ``transform``; or one xarray field without the sample dimension.
        scaling : 0 as ``transform`` gives them (never whitened), 1 divided by the standard
            deviation of the PC in the fit, 2 multiplied by it.

        remove : as for ``transform``. The mean of the fit is subtracted. Cost: as ``transform``.
        """
        return project_scaled(self, X, scaling, dim, remove)

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
        if scores is None:
            scores = result.eof.pcs(1 if self.whiten else 0)
        again = mean and remove is not False
        back = self._back_projection(again).of_modes(chosen, mean)
        if lazy:
            return lazy_rows_of_scores(result, scores, back, remove)
        mapped = partial(self._mapped, "reconstruction")
        return rows_of_scores(
            result, mapped, scores, back, out=out, overwrite=overwrite, remove=remove
        )

    # -- how good is it -------------------------------------------------------------------------

    def r2_curve(self, X: Any = None, *, remove: Any = None) -> Array:
        """(k + 1,) share of the variance about the mean that 0, 1, ..., k components carry.

        X : rows to measure on, one pass; None gives the training rows, from the spectrum.
        remove : as for ``transform``, also below.
            Where chunks hold all samples, features are streamed, and what is left of a row is
            the difference of two sums: shares are right to 2e-6 in float32, 4e-15 in float64.
        """
        result = self._fitted()
        if X is None:
            return np.concatenate([[0.0], np.cumsum(result.explained_variance_ratio)])
        errors, _ = self._errors(self._matrix(X, remove=remove))
        return np.asarray(1.0 - errors / errors[0]) if errors[0] > 0 else np.zeros(len(errors))

    def reconstruction_error(self, X: Any, *, remove: Any = None) -> float:
        """Mean over rows of ||x - reconstruction||^2, in standardised units where scaled.

        On the training rows this is (n - ddof) / n times the sum of the dropped eigenvalues.
        Precision and cost: as ``r2_curve``.
        """
        errors, count = self._errors(self._matrix(X, remove=remove))
        return float(errors[-1]) / count

    def score_samples(self, X: Any, *, remove: Any = None) -> Array:
        """(n,) log-likelihood of each row under the probabilistic PCA model.

        Source: Tipping and Bishop 1999, "Probabilistic principal component analysis", eq. 2.9.
        Cost: one pass; no p x p matrix is formed. Precision: as ``r2_curve``.
        """
        return self._log_likelihoods(self._matrix(X, remove=remove))

    def score(self, X: Any, y: Any = None, *, remove: Any = None) -> float:
        """Mean log-likelihood of the rows."""
        return float(np.mean(self.score_samples(X, remove=remove)))

    def get_covariance(self) -> Array:
        """(p, p) covariance of the model, V'(L - s2 I)V + s2 I, in the units of the data."""
        return covariance_of(self._fitted())

    def get_precision(self) -> Array:
        """(p, p) inverse of ``get_covariance``, V'L^-1 V + (I - V'V) / s2, in the data's units.

        0 beside features that the model leaves out. Raises InvalidInputError where that
        covariance is singular: components for all of the variance, and fewer than features.
        """
        return precision_of(self._fitted())

    # -- at rest --------------------------------------------------------------------------------

    def save(self, path: str | os.PathLike[str]) -> Path:
        """Write the fitted model to a directory; ``streampca.load`` opens it."""
        return self._fitted().save(path)

    # -- inside ---------------------------------------------------------------------------------

    def _steps_of_raw(self, shape: tuple[int, ...]) -> Preprocessing:
        """The preprocessing of the fit that raw rows of this shape lack. Checks their width."""
        result = self._fitted()
        steps = steps_left(RAW, result.preprocessing, shape[-1], result.n_features)
        self._check_width(shape, steps.width)
        return steps

    def _check_width(self, shape: tuple[int, ...], raw: int | None = None) -> None:
        p = self._fitted().n_features if raw is None else raw
        if len(shape) != 2 or shape[1] != p:
            raise InvalidInputError(
                f"X has {shape[-1]} features, but {type(self).__name__} is expecting {p} features "
                "as input"
            )

    def _matrix(self, X: Any, dim: Any = None, remove: Any = None) -> ChunkedMatrix:
        """New data as samples x features, the features checked against those of the fit.

        They are preprocessed as the rows of the fit were, and what the fit removed is removed from
        them too: see ``transform``.
        """
        dim = self._dim_for(X) if dim is None else dim
        if is_xarray(X):
            X = restacked(variables_of(X, self._feature_labels()), self._feature_labels())
        matrix = as_matrix(X, dim=dim, missing_value=self.missing_value)
        if matrix.missing_value is None and (code := self._missing_code(matrix.dtype)) is not None:
            matrix = as_matrix(matrix, missing_value=code)
        result = self._fitted()
        limits = {name: getattr(self, name) for name in ("memory_limit", "scheduler", "progress")}
        matrix = prepared(matrix, result.preprocessing, result.n_features, **limits)
        matrix = self._checked_features(X, matrix)
        basis = result.design_rows(matrix, remove)
        if basis is None:
            return matrix
        return matrix.without(basis, np.vstack([result.mean, np.asarray(result.removed)]))

    def _missing_code(self, dtype: np.dtype[Any]) -> float | None:
        """What means "missing" in new data of this dtype that do not say it themselves."""
        return self.missing_value

    def _dim_for(self, X: Any) -> Any:
        """The sample dimensions of the fit, where X has names for its dimensions, or many."""
        if is_xarray(X):
            dims = self._sample_dims()
            return dims if all(d in X.dims for d in dims) else self.dim_
        stored = isinstance(X, (str, os.PathLike))
        return self.dim_ if stored or getattr(X, "ndim", 2) > 2 else None

    def _sample_dims(self) -> tuple[str, ...]:
        return self._fitted().labels.samples.dims


def attach(model: LinearModel, result: Decomposition) -> LinearModel:
    """Give a model a result that was made elsewhere (loaded, merged, from a covariance)."""
    model.result_ = result
    model.n_features_in_ = result.n_features
    return model
