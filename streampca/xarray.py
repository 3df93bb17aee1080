"""The accessor: ``da.streampca.pca(5, dim="time")``, ``.eof(...)``, ``.cca(Y)``, ``.plan(...)``.

Registered when both streampca and xarray are imported; importing this module does it too.
"""

from __future__ import annotations

from typing import Any

import xarray

from streampca.models.pca.pca import PCA
from streampca.models.pca.rotated_pca import rotate
from streampca.models.two_views.cca import CCA
from streampca.models.two_views.cpcca import CPCCA
from streampca.models.two_views.mca import MCA
from streampca.passes import Plan
from streampca.sources import as_matrix


class StreampcaAccessor:
    """PCA of a DataArray, or of all variables of a Dataset side by side.

    n_components, and all further keywords, are those of :class:`streampca.PCA`.
    dim : the sample dimension(s); the others are stacked into features. Default: the first of
        two, or "time".
    """

    def __init__(self, obj: Any) -> None:
        self._obj = obj

    def plan(self, n_components: Any = None, dim: Any = None, **parameters: Any) -> Plan:
        """What :meth:`pca` would do: solver, passes, reads, memory. Reads nothing.

        Examples
        --------
        >>> import numpy as np
        >>> import xarray as xr
        >>> import streampca
        >>> values = np.random.default_rng(0).normal(size=(30, 3, 4))
        >>> field = xr.DataArray(values, dims=('time', 'lat', 'lon'))
        >>> field.streampca.plan(2, dim='time').solver
        'scatter'
        """
        return PCA(n_components, **parameters).plan(self._obj, dim=self._dim(dim))

    def pca(
        self,
        n_components: Any = None,
        dim: Any = None,
        *,
        sample_weight: Any = None,
        **parameters: Any,
    ) -> PCA:
        """A fitted :class:`streampca.PCA`.

        Examples
        --------
        >>> import numpy as np
        >>> import xarray as xr
        >>> import streampca
        >>> values = np.random.default_rng(0).normal(size=(30, 3, 4))
        >>> field = xr.DataArray(values, dims=('time', 'lat', 'lon'))
        >>> field.streampca.pca(2, dim='time').transform(field).dims
        ('time', 'component')
        """
        model = PCA(n_components, **parameters)
        return model.fit(self._obj, dim=self._dim(dim), sample_weight=sample_weight)

    def eof(
        self,
        n_components: Any = None,
        dim: Any = None,
        *,
        scaling: int = 0,
        pc_scaling: int = 0,
        rotation: str | None = None,
        sample_weight: Any = None,
        remove: Any = None,
        **parameters: Any,
    ) -> xarray.Dataset:
        """EOF analysis as one Dataset: eofs, pcs, eigenvalues, variance_fraction, north_errors.

        scaling, pc_scaling : 0, 1 or 2, as in ``EofViews.eofs`` and ``EofViews.pcs``.
        rotation : None, "varimax", "quartimax" or "promax"; a rotated result has no north_errors.

        For a Dataset, the result has ``eofs_<variable>`` for each variable.
        Cost: that of the fit, and one more pass for the PCs if it streamed the samples.

        Examples
        --------
        >>> import numpy as np
        >>> import xarray as xr
        >>> import streampca
        >>> values = np.random.default_rng(0).normal(size=(30, 3, 4))
        >>> field = xr.DataArray(values, dims=('time', 'lat', 'lon'))
        >>> list(field.streampca.eof(2, dim='time'))
        ['eofs', 'pcs', 'eigenvalues', 'variance_fraction', 'north_errors']
        """
        model: Any = self.pca(
            n_components, dim, sample_weight=sample_weight, remove=remove, **parameters
        )
        if rotation is not None:
            model = rotate(model, rotation)
        scores = model.result_.scores
        if scores is None:
            matrix = as_matrix(self._obj, dim=self._dim(dim), missing_value=model.missing_value)
            scores = model.transform(matrix, remove=remove)
        result: xarray.Dataset = model.eof_.dataset(scaling, pc_scaling, scores=scores)
        return result

    def cca(self, Y: Any, n_components: Any = 2, dim: Any = None, **parameters: Any) -> CCA:
        """A fitted :class:`streampca.CCA` of this and Y, rows paired by label.

        Examples
        --------
        >>> import numpy as np
        >>> import xarray as xr
        >>> import streampca
        >>> values = np.random.default_rng(0).normal(size=(30, 3, 4))
        >>> field = xr.DataArray(values, dims=('time', 'lat', 'lon'))
        >>> field.streampca.cca(field[:, 0] + 1.0, 1, dim='time').correlations_.round(6)
        array([1.])
        """
        return CCA(n_components, **parameters).fit(self._obj, Y, dim=self._dim(dim))

    def mca(self, Y: Any, n_components: Any = 2, dim: Any = None, **parameters: Any) -> MCA:
        """A fitted :class:`streampca.MCA` of this and Y, rows paired by label.

        Examples
        --------
        >>> import numpy as np
        >>> import xarray as xr
        >>> import streampca
        >>> values = np.random.default_rng(0).normal(size=(30, 3, 4))
        >>> field = xr.DataArray(values, dims=('time', 'lat', 'lon'))
        >>> field.streampca.mca(field[:, 0] + 1.0, 2, dim='time').result_.n_components
        2
        """
        return MCA(n_components, **parameters).fit(self._obj, Y, dim=self._dim(dim))

    def cpcca(self, Y: Any, n_components: Any = 2, dim: Any = None, **parameters: Any) -> CPCCA:
        """A fitted :class:`streampca.CPCCA` of this and Y, rows paired by label.

        Examples
        --------
        >>> import numpy as np
        >>> import xarray as xr
        >>> import streampca
        >>> values = np.random.default_rng(0).normal(size=(30, 3, 4))
        >>> field = xr.DataArray(values, dims=('time', 'lat', 'lon'))
        >>> field.streampca.cpcca(field[:, 0], 2, dim='time', alpha=0.5).result_.n_components
        2
        """
        return CPCCA(n_components, **parameters).fit(self._obj, Y, dim=self._dim(dim))

    def _dim(self, dim: Any) -> Any:
        """The sample dimension: "time" for a Dataset of several variables."""
        several = isinstance(self._obj, xarray.Dataset) and len(self._obj.data_vars) > 1
        return "time" if dim is None and several else dim


if not hasattr(xarray.DataArray, "streampca"):
    xarray.register_dataarray_accessor("streampca")(StreampcaAccessor)
    xarray.register_dataset_accessor("streampca")(StreampcaAccessor)
