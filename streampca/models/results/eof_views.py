"""A linear result in the terms of climate science: EOFs, PCs, and maps that follow from them."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np

from streampca.errors import InvalidInputError
from streampca.kernels import Array
from streampca.matrix import AxisLabels
from streampca.matrix.alignment import rows_along
from streampca.matrix.block import refuse_complex
from streampca.models.results.linear_result import LinearResult
from streampca.models.results.score_scaling import (
    SCALING,
    check_scaling,
    check_spread,
    scaling_factor,
)
from streampca.models.results.value_attributes import (
    HOW,
    of_correlation,
    of_covariance,
    of_map,
    of_series,
)


@dataclass(frozen=True)
class EofViews:
    """EOFs and PCs with the scalings of the eofs package, and maps derived from them.

    Labelled xarray where the data had named dimensions, else NumPy. Nothing here reads data.
    Scaling 0 leaves a component as it is, 1 divides by the square root of its eigenvalue (PCs:
    unit variance), 2 multiplies by it. Components count from 1. Features without any observation
    are NaN.
    Attributes: ``long_name``; ``units``, where those of the variable tell them (EOFs: 1, those of
    the variable to the power -1, or those of the variable; of standardised data always 1); with
    weights a ``comment`` that values are of the weighted variable, whose unit is given; and all
    that the variable said of itself as ``variable``, ``variable_units``, ``variable_long_name``...
    Source: Dawson 2016, "eofs: A Library for EOF Analysis ...", J. Open Res. Software 4(1), e14.
    """

    result: LinearResult

    def eofs(self, scaling: int = 0) -> Any:
        """(component, features): unit vectors (0), divided (1) or multiplied (2) by the root."""
        factor = scaling_factor(self.result, scaling)
        maps = self.result.require_components() * factor[:, None]
        what = f"EOFs ({HOW[scaling]}) of"
        attrs = partial(of_map, self.result, what=what, power=(0, -1, 1)[scaling])
        return self._maps("eofs", maps, attrs)

    def pcs(self, scaling: int = 0, scores: Any = None) -> Any:
        """(samples, component): projections (0), with unit variance (1), times the root (2).

        scores : (n, k) of the rows of the fit, where it kept none: ``pca.project(X)``. Labelled
            ones carry their scaling, or that they are whitened, which is undone first; their
            samples and components go by their labels.
        """
        scores = self.result.scores if scores is None else self._given(scores)
        if scores is None:
            raise InvalidInputError(
                "this fit keeps no scores (it streamed the samples). Make them in one pass: "
                "scores=pca.project(X)"
            )
        scaled = scores * scaling_factor(self.result, scaling)
        attrs = of_series(self.result, f"PCs ({HOW[scaling]}) of", (1, 0, 2)[scaling])
        attrs = {**attrs, SCALING: scaling}
        return self._wrap("pcs", scaled, [self.result.labels.samples, self._component()], attrs)

    def _given(self, scores: Any) -> Array:
        """(n, k) scores of the rows of the fit, unscaled, in the order of its samples."""
        result, samples = self.result, self.result.labels.samples
        scores = rows_along(result.unscaled_scores(scores), samples, "scores")
        values: Array = scores.reshape(-1, result.n_components)
        if not result.takes_complex:
            refuse_complex(values.dtype, "scores")
        if len(values) == result.n_samples == result.weight:
            check_spread(values, result)
        return values

    def as_correlation(self) -> Any:
        """(component, features): correlation of every PC with the data of every feature.

        NaN where a feature never varies, or was left out (a weight of 0).
        """
        maps = self.result.feature_correlations()
        return self._maps("eofs_as_correlation", maps, partial(of_correlation, self.result))

    def as_covariance(self, scaling: int = 1) -> Any:
        """(component, features): covariance of every PC with the data, in the data's units.

        scaling : of the PCs. Column scaling and weights are undone.
        """
        variance = self.result.explained_variance
        factor = {0: np.sqrt(variance), 1: np.ones(len(variance)), 2: variance}[
            check_scaling(scaling)
        ]
        attrs = partial(of_covariance, self.result, scaling=scaling)
        return self._maps(
            "eofs_as_covariance", self.result.feature_covariances() * factor[:, None], attrs
        )

    def eigenvalues(self) -> Any:
        """(component,) variance of every PC."""
        return self._values(
            "eigenvalues", self.result.explained_variance, "variances of the PCs of", 2
        )

    def variance_fraction(self) -> Any:
        """(component,) share of the total variance."""
        shares = self.result.explained_variance_ratio
        return self._values("variance_fraction", shares, "shares of the total variance of", 0)

    def north_errors(self, scaled: bool = False) -> Any:
        """(component,) sampling error of every eigenvalue: lambda sqrt(2 / N).

        scaled : as a share of the total variance. N is the number of samples, taken as
            independent: correlated in time, there are fewer.
        Source: North, Bell, Cahalan and Moeng 1982, Mon. Wea. Rev. 110, eq. 24.
        """
        if not self.result.principal:
            raise InvalidInputError(
                "North's rule is for unrotated components: result.unrotated().eof.north_errors()"
            )
        if not self.result.n_samples:
            raise InvalidInputError(
                "the number of samples behind this result is not known, and North's rule needs it: "
                "PCA.from_covariance(S, n_samples=...)"
            )
        values = self.result.explained_variance_ratio if scaled else self.result.explained_variance
        errors = values * np.sqrt(2.0 / self.result.n_samples)
        what = "sampling errors of the variances of the PCs of"
        return self._values("north_errors", errors, what, 0 if scaled else 2)

    def dataset(self, scaling: int = 0, pc_scaling: int = 0, *, scores: Any = None) -> Any:
        """eofs, pcs, eigenvalues, variance_fraction, north_errors as one Dataset.

        scaling, pc_scaling : of EOFs and PCs. A fit of several variables gives ``eofs_<variable>``
            for each, a rotated one no north_errors.
        scores : as for ``pcs``. Raises InvalidInputError where the data had no named dimensions.
        """
        if not self.result.labels.dims_named:
            raise InvalidInputError(
                "a Dataset needs named dimensions: fit an xarray.DataArray, a NetCDF file or a "
                "Zarr store as xarray writes it"
            )
        from streampca.sources.labelled.to_xarray import merged

        found = {
            "pcs": self.pcs(pc_scaling, scores),
            "eigenvalues": self.eigenvalues(),
            "variance_fraction": self.variance_fraction(),
        }
        if self.result.principal:
            found["north_errors"] = self.north_errors()
        eofs = self.eofs(scaling)
        maps = {"eofs": eofs}
        if self.result.labels.features.parts:
            maps = {f"eofs_{name}": value for name, value in eofs.data_vars.items()}
        attrs = {"method": self.result.method, "n_samples": int(self.result.n_samples)}
        return merged(maps | found, attrs | self._settings())

    def _settings(self) -> dict[str, str]:
        """What was done to the field, by the names of the parameters, where it has a name."""
        done = {name: self.result.settings.get(name) for name in ("weights", "remove", "scale")}
        removed = done["remove"]
        if isinstance(removed, (list, tuple)) and all(isinstance(one, str) for one in removed):
            done["remove"] = ", ".join(removed)
        return {name: value for name, value in done.items() if isinstance(value, str) and value}

    # -- inside ---------------------------------------------------------------------------------

    def _component(self) -> AxisLabels:
        return self.result.component_axis

    def _values(self, name: str, values: Array, what: str, power: int) -> Any:
        return self._wrap(name, values, [self._component()], of_series(self.result, what, power))

    def _maps(self, name: str, maps: Array, attrs: Any) -> Any:
        """attrs : the attributes of the maps of a variable."""
        maps[:, self.result.dropped] = np.nan
        return self._wrap(name, maps, [self._component(), self.result.labels.features], attrs)

    def _wrap(self, name: str, values: Any, axes: list[AxisLabels], attrs: Any) -> Any:
        """The values with labels, if the data had named dimensions."""
        if not self.result.labels.dims_named:
            return values
        from streampca.sources.labelled.to_xarray import to_dataarray

        return to_dataarray(values, axes, name, attrs)


def mode_indices(modes: Any, k: int) -> Array:
    """Indices of modes that are counted from 1; a number stands for so many leading modes.

    Raises InvalidInputError.
    """
    if isinstance(modes, (int, np.integer)) and not isinstance(modes, bool):
        chosen = np.arange(1, int(modes) + 1)
    else:
        chosen = np.asarray(modes)
    whole = chosen.ndim == 1 and chosen.dtype.kind in "iu" and len(chosen) > 0
    if not whole or chosen.min() < 1 or chosen.max() > k or len(set(chosen.tolist())) < len(chosen):
        raise InvalidInputError(
            f"modes={modes!r}; expected a number of leading modes, or different numbers from 1 to "
            f"{k} such as [1, 3]"
        )
    return np.asarray(chosen - 1)
