"""scikit-learn's contract, without loading scikit-learn."""

from __future__ import annotations

from typing import Any, Self

import numpy as np

from streampca.errors import InvalidInputError, not_fitted
from streampca.kernels import Array
from streampca.matrix import AxisLabels, ChunkedMatrix
from streampca.models.decomposition import Decomposition
from streampca.models.feature_names import check_same_features, variants_hint
from streampca.models.parameters import Parameters
from streampca.sources.frames import column_names, is_frame
from streampca.sources.lazy import is_dask_frame


class Estimator(Parameters):
    """A model as scikit-learn knows them: tags, feature names, the type of what it returns."""

    _estimator_type = "transformer"
    result_: Decomposition
    n_features_in_: int

    def __sklearn_tags__(self) -> Any:
        from sklearn.utils import InputTags, Tags, TargetTags, TransformerTags

        return Tags(
            estimator_type="transformer",
            target_tags=TargetTags(required=False),
            transformer_tags=TransformerTags(preserves_dtype=["float64", "float32"]),
            input_tags=InputTags(
                sparse=True, allow_nan=getattr(self, "missing", "raise") != "raise"
            ),
        )

    def __sklearn_is_fitted__(self) -> bool:
        return hasattr(self, "result_")

    def _fitted(self) -> Decomposition:
        if not hasattr(self, "result_"):
            raise not_fitted(type(self).__name__)
        return self.result_

    def set_output(self, *, transform: str | None = None) -> Self:
        """What ``transform`` returns for arrays and data frames: "default" (NumPy) or "pandas".

        Of a Dask data frame: a lazy Dask array, or a lazy data frame with the same index.
        """
        if transform not in (None, "default", "pandas"):
            raise InvalidInputError(f"transform={transform!r}; expected 'default' or 'pandas'")
        if transform is not None:
            self._output = transform
        return self

    def get_feature_names_out(self, input_features: Any = None) -> Array:
        """Names of the components, as scikit-learn makes them: pca0, pca1, ..."""
        stem = type(self).__name__.lower()
        k = self._fitted().n_components
        return np.asarray([f"{stem}{i}" for i in range(k)], dtype=object)

    @property
    def feature_names_in_(self) -> Array:
        """(p,) names of the features of the fit, where it knows them as text (else no attribute).

        Made from the labels each time: a million variants have theirs only once.
        """
        features = self._feature_labels()
        names = features.coords.get(features.dims[0], ()) if len(features.dims) == 1 else ()
        if not len(names) or not all(isinstance(name, str) for name in names):
            raise AttributeError(f"the features of this {type(self).__name__} have no names")
        return np.asarray([str(name) for name in names], dtype=object)

    def _checked_features(self, X: Any, matrix: ChunkedMatrix) -> ChunkedMatrix:
        """New data with their features stacked as in the fit; refuses other features."""
        fitted = self._feature_labels()
        matrix = matrix.arranged(fitted)
        p = len(fitted)
        if matrix.shape[1] != p:
            raise InvalidInputError(
                f"X has {matrix.shape[1]} features, but {type(self).__name__} is expecting {p} "
                f"features as input{variants_hint(matrix.labels.features, fitted)}"
            )
        if matrix.shape[1] == _width(X):
            self._check_names(X)
        check_same_features(matrix.labels.features, fitted)
        return matrix

    def _check_names(self, X: Any) -> None:
        """Refuse a data frame of as many columns as the fit had, if they have other names."""
        known = getattr(self, "feature_names_in_", None)
        names = _frame_columns(X)
        if known is None or names is None or len(names) != len(known):
            return
        if not np.array_equal(names, known):
            raise InvalidInputError(_names_message(list(names), list(known)))

    def _feature_labels(self) -> AxisLabels:
        """The features of the fit; new data must have the same."""
        result = self._fitted()
        labels = result.labels.features
        p = result.n_features
        return labels if len(labels) == p else AxisLabels.plain("feature", p)


def _width(X: Any) -> int | None:
    """Columns of a table; features may have been chosen among them."""
    shape: tuple[int, ...] = getattr(X, "shape", ())
    return int(shape[1]) if len(shape) == 2 else None


def _frame_columns(X: Any) -> Array | None:
    if not (is_frame(X) or is_dask_frame(X)):
        return None
    names = column_names(X)
    return np.asarray(names, dtype=object) if all(isinstance(c, str) for c in names) else None


def _names_message(came: list[str], fitted: list[str]) -> str:
    """scikit-learn's words for feature names that do not match."""
    message = "The feature names should match those that were passed during fit.\n"
    unexpected, absent = sorted(set(came) - set(fitted)), sorted(set(fitted) - set(came))
    if unexpected:
        message += "Feature names unseen at fit time:\n" + "".join(
            f"- {n}\n" for n in unexpected[:5]
        )
    if absent:
        message += "Feature names seen at fit time, yet now missing:\n"
        message += "".join(f"- {n}\n" for n in absent[:5])
    if not unexpected and not absent:
        message += "Feature names must be in the same order as they were in fit.\n"
    return message
