"""What scikit-learn asks of an estimator: tags, routing of weights, kinds of output."""

from __future__ import annotations

import inspect
import sys
from collections.abc import Mapping
from types import MappingProxyType
from typing import Any, Self

import numpy as np

from streampca.errors import InvalidInputError
from streampca.kernels import Array
from streampca.models.contract.parameters import RunningParameters
from streampca.models.results.result import Result

OUTPUTS = ("default", "pandas", "polars")


class ScikitLearnContract(RunningParameters):
    """The part of an estimator that pipelines, searches and ``set_output`` use."""

    _estimator_type = "transformer"
    _requested: Mapping[str, bool | str | None] = MappingProxyType({})  # sample_weight by method

    def _fitted(self) -> Result:
        """The result. Raises NotFittedError."""
        raise NotImplementedError

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

    def set_fit_request(self, *, sample_weight: bool | str | None) -> Self:
        """Whether scikit-learn's meta-estimators hand ``sample_weight`` on to ``fit``.

        sample_weight : True, False, None (an error where it is given), or another name of it.
        Needs ``sklearn.set_config(enable_metadata_routing=True)``.
        """
        return self._request_metadata("fit", sample_weight)

    def _request_metadata(self, method: str, sample_weight: bool | str | None) -> Self:
        if "sample_weight" not in inspect.signature(getattr(self, method)).parameters:
            raise InvalidInputError(f"{type(self).__name__}.{method} takes no sample_weight")
        self._requested = {**self._requested, method: sample_weight}
        return self

    def get_metadata_routing(self) -> Any:
        """What the methods take beside X, for scikit-learn's meta-estimators."""
        from sklearn.utils.metadata_routing import MetadataRequest

        found = MetadataRequest(owner=self)
        for method in ("fit", "partial_fit"):
            if "sample_weight" in inspect.signature(getattr(self, method, len)).parameters:
                alias = self._requested.get(method)
                getattr(found, method).add_request(param="sample_weight", alias=alias)
        return found

    def set_output(self, *, transform: str | None = None) -> Self:
        """What ``transform`` returns for arrays and data frames: one of OUTPUTS.

        "default" is NumPy. Where nothing was set, ``sklearn.set_config(transform_output=...)``
        holds. Of a Dask data frame: a lazy Dask array, or with "pandas" a lazy data frame with the
        same index. Raises InvalidInputError.
        """
        if transform is not None and transform not in OUTPUTS:
            raise InvalidInputError(f"transform={transform!r}; expected one of {OUTPUTS}")
        if transform is not None:
            self._output = transform
        return self

    def get_feature_names_out(self, input_features: Any = None) -> Array:
        """(k,) names of the components, as scikit-learn makes them: pca0, pca1, ..."""
        stem = type(self).__name__.lower()
        k = self._fitted().n_components
        return np.asarray([f"{stem}{i}" for i in range(k)], dtype=object)

    @property
    def _n_features_out(self) -> int:
        return self._fitted().n_components

    @property
    def _table(self) -> str:
        """What scores come out as: as it was set here, else as scikit-learn is configured."""
        own, configured = vars(self).get("_output"), sys.modules.get("sklearn")
        if own is None and configured is not None:
            return str(configured.get_config()["transform_output"])
        return own or "default"
