"""Results as labelled xarray objects, their stacked dimensions unstacked."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import xarray

from streampca.errors import InvalidInputError
from streampca.matrix import AxisLabels
from streampca.matrix.labels import ENCODING

Attributes = Mapping[str, Any] | Callable[[str | None], Mapping[str, Any]]


LEVELS = "streampca_levels"  # attribute of a stacked dimension: names of its MultiIndex
OF_OTHERS = ("bounds", "climatology")  # attributes that name variables which a result lacks


def to_dataarray(
    values: Any,
    axes: Sequence[AxisLabels | tuple[str, Any]],
    name: str | None = None,
    attrs: Attributes | None = None,
) -> xarray.DataArray | xarray.Dataset:
    """A result with labels, its stacked dimensions unstacked.

    values : one dimension per entry of ``axes``; NumPy or Dask.
    axes : AxisLabels give their dimensions, coordinates and attributes; a pair (name, coord) gives
        one dimension, with the coordinate unless that is None. An axis of several variables gives
        a Dataset of them.
    attrs : of the array, or a function from the name of a variable (None if there is only one) to
        its attributes.
    """
    for number, axis in enumerate(axes):
        if isinstance(axis, AxisLabels) and axis.parts:
            arrays = {}
            for variable, where in axis.slices.items():
                index = (slice(None),) * number + (where,)
                own = [*axes[:number], axis.parts[variable], *axes[number + 1 :]]
                described = attrs(variable) if callable(attrs) else attrs
                arrays[variable] = to_dataarray(values[index], own, variable, described)
            return xarray.Dataset(arrays, attrs={"name": name} if name else {})
    described = attrs(None) if callable(attrs) else attrs
    return _unstacked(values, axes, name, dict(described or {}))


def to_dataset(
    tables: Mapping[str, tuple[np.ndarray[Any, Any], Sequence[AxisLabels]]],
    attrs: Mapping[str, Any],
    described: Mapping[str, Attributes] | None = None,
) -> xarray.Dataset:
    """Several labelled arrays (values and the labels of their axes, by name) as one Dataset.

    described : attributes of the arrays, as :func:`to_dataarray` takes them.
    Along an axis of several variables there is one for each of them: ``components_sst``.
    """
    arrays: dict[str, xarray.DataArray] = {}
    for name, (values, axes) in tables.items():
        made = to_dataarray(values, axes, name, (described or {}).get(name))
        if isinstance(made, xarray.Dataset):
            arrays |= {f"{name}_{variable}": value for variable, value in made.data_vars.items()}
        else:
            arrays[name] = made
    return merged(arrays, attrs)


def merged(arrays: Mapping[str, xarray.DataArray], attrs: Mapping[str, Any]) -> xarray.Dataset:
    """Arrays as variables of one Dataset; a "_" is added to names that are coordinates."""
    taken = {str(name) for array in arrays.values() for name in (*array.dims, *array.coords)}
    named = {f"{name}_" if name in taken else name: array for name, array in arrays.items()}
    return xarray.Dataset(named, attrs=dict(attrs))


def _unstacked(
    values: Any, axes: Sequence[AxisLabels | tuple[str, Any]], name: str | None, attrs: Any
) -> xarray.DataArray:
    """One array whose axes have no variables."""
    dims: list[str] = []
    sizes: list[int] = []
    coords: dict[str, Any] = {}
    levels: dict[str, list[str]] = {}
    for axis, length in zip(axes, np.shape(values), strict=True):
        if not isinstance(axis, AxisLabels):
            axis = AxisLabels.plain(axis[0], length, axis[1])
        if len(axis) != length:
            raise InvalidInputError(
                f"labels of {' x '.join(map(str, axis.sizes))} entries for an axis of {length}"
            )
        dims += axis.dims
        sizes += axis.sizes
        described = {
            n: {name: value for name, value in a.items() if name not in OF_OTHERS}
            for n, a in axis.attrs.items()
        }
        known = {d: ((d,), c) for d, c in axis.coords.items()} | dict(axis.grids)
        known |= {n: ((axis.dims[0],), c) for n, c in axis.extra.items()}
        for d in axis.dims:
            names = described.get(d, {}).pop(LEVELS, [])
            if names and set(names) <= set(known):
                levels[d] = names
                del known[d]
        for n, (along, c) in known.items():
            own = described.get(n, {})
            coords[n] = xarray.Variable(along, np.asarray(c), own, own.pop(ENCODING, None))
    if len(set(dims)) != len(dims):
        raise InvalidInputError(
            f"dimension names {dims} are not unique; rename one: X.rename({dims[0]}='...')"
        )
    array = xarray.DataArray(
        np.reshape(values, sizes), coords=coords, dims=dims, name=name, attrs=attrs
    )
    return array.set_index(levels) if levels else array
