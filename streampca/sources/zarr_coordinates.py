"""Coordinates that lie beside an array in its Zarr group, as xarray writes them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import zarr

from streampca.matrix import AxisLabels, Labels
from streampca.sources.cf import Packing, decode_times
from streampca.sources.zarr_labels import extra_columns, text
from streampca.sources.zarr_whole import whole

Array = np.ndarray[Any, Any]
PACKING = ("scale_factor", "add_offset", "missing_value", "coordinates", "grid_mapping", "dtype")


def group_labels(
    group: Any, array: Any, names: tuple[str, ...], dims: tuple[tuple[int, ...], tuple[int, ...]]
) -> Labels:
    """Labels of an array of a group: coordinates of its dimensions and those that it names.

    names : of the dimensions.  dims : numbers of those of the samples, and of the features.
    """
    parent = group[array.path.rpartition("/")[0]] if "/" in array.path else group
    sizes = dict(zip(names, array.shape, strict=True))
    beside = str(array.attrs.get("coordinates", "")).split()
    rows, columns = (
        _axis(parent, tuple(names[d] for d in ds), sizes, beside, loose=number == 1)
        for number, ds in enumerate(dims)
    )
    return Labels(rows, columns, array.path.rpartition("/")[2] or None, told_by(array))


def told_by(array: Any) -> dict[str, Any]:
    """Attributes that say what an array is, without those that say how it is stored."""
    return {
        name: value
        for name, value in dict(array.attrs).items()
        if name not in PACKING and not name.startswith(("_", "streampca_"))
    }


def _axis(
    parent: Any, dims: tuple[str, ...], sizes: Mapping[str, int], beside: list[str], loose: bool
) -> AxisLabels:
    """loose : with coordinates that have no dimension."""
    coords: dict[str, Array] = {}
    grids: dict[str, tuple[tuple[str, ...], Array]] = {}
    attrs: dict[str, dict[str, Any]] = {}
    for name in (*dims, *beside):
        array = parent.get(name)
        if not isinstance(array, zarr.Array):
            continue
        along = dims_of(array)
        expected = tuple(sizes.get(d, -1) for d in along)
        if name in dims and array.shape == (sizes[name],):
            coords[name] = decoded(array)
        elif array.shape == expected and set(along) <= set(dims) and (along or loose):
            grids[name] = (along, decoded(array))
        else:
            continue
        told = told_by(array)
        if (coords[name] if name in coords else grids[name][1]).dtype.kind == "M":
            told = {n: value for n, value in told.items() if n not in ("units", "calendar")}
        if told:
            attrs[name] = told
    extra = extra_columns(parent, dims[0], sizes[dims[0]]) if len(dims) == 1 else {}
    lengths = tuple(sizes[d] for d in dims)
    return AxisLabels(dims, lengths, coords, attrs, extra, grids)


def dims_of(array: Any) -> tuple[str, ...]:
    """Names of the dimensions of an array, where they are stored."""
    names = getattr(array.metadata, "dimension_names", None) or array.attrs.get("_ARRAY_DIMENSIONS")
    return tuple(str(name) for name in names or ())


def decoded(array: Any) -> Array:
    """A small array whole: text, packed numbers and times as what they mean."""
    values = whole(array)
    if values.dtype.kind in "SO":
        return text(values)
    attributes = dict(array.attrs)
    if (packing := Packing.from_attributes(attributes, values.dtype)) is not None:
        values = packing.decode(values)
    return decode_times(values, attributes) if _is_time(array) else values


def _is_time(array: Any) -> bool:
    return " since " in str(array.attrs.get("units", ""))
