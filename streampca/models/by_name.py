"""Arrays along one axis of a matrix: broadcast by dimension name, checked, flattened."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from streampca.errors import InvalidInputError, shorten
from streampca.kernels import Array
from streampca.matrix import AxisLabels, ChunkedMatrix
from streampca.matrix.places import RADIANS, latitude
from streampca.models.cycles import CYCLES, is_date, places_by_dates, same_groups


def weights_along(weights: Any, axis: AxisLabels, name: str) -> Array:
    """(len(axis),) float64 weights, finite and not negative, at least one of them positive.

    weights : a sequence of that length, an array with the shape of the stacked dimensions, or a
        DataArray over some of them, aligned by its coordinates and repeated along the others.
    name : of the argument, for messages.
    """
    values = along(weights, axis, name)
    try:
        values = np.array(values, dtype=np.float64)
    except (TypeError, ValueError):
        raise InvalidInputError(f"{name} holds {values.dtype}; expected numbers") from None
    bad = np.flatnonzero(~np.isfinite(values) | (values < 0))
    if bad.size:
        where = shorten([axis.name(int(i)) for i in bad[:3]], len(bad))
        raise InvalidInputError(
            f"{name} is {values[bad[0]]:g} at {where}; expected finite weights >= 0. A weight of 0 "
            f"leaves out: {name}=np.nan_to_num({name}), or .fillna(0)"
        )
    if not np.any(values > 0):
        raise InvalidInputError(f"{name} is zero everywhere; expected at least one positive weight")
    return values


def along(values: Any, axis: AxisLabels, name: str) -> Array:
    """One value for every entry of an axis, (len(axis),); see :func:`weights_along`.

    Of the features of several variables, ``values`` may hold an array or a number for each, by
    its name.
    """
    if axis.parts and (by_dims(values) or hasattr(values, "keys")):
        each = values if hasattr(values, "keys") else dict.fromkeys(axis.parts, values)
        if absent := [part for part in axis.parts if part not in each]:
            raise InvalidInputError(f"{name} has nothing for the variable {absent[0]!r}")
        return np.concatenate([_of_part(each[part], one, name) for part, one in axis.parts.items()])
    if by_dims(values):
        return _broadcast(values, axis, name)
    refuse_masked(values, name)
    array = np.asarray(values)
    if array.shape not in ((len(axis),), axis.sizes):
        raise InvalidInputError(
            f"{name} has shape {array.shape}; expected one for each of {len(axis)} "
            f"({' x '.join(axis.dims)})"
        )
    return array.reshape(-1)


def refuse_masked(values: Any, name: str) -> None:
    """Refuse a masked array with masked entries: every value is needed."""
    if np.ma.is_masked(values):
        raise InvalidInputError(
            f"{name} is a masked array with {int(np.ma.count_masked(values))} masked entries; "
            f"expected a value everywhere: {name}.filled(...)"
        )


def _of_part(values: Any, axis: AxisLabels, name: str) -> Array:
    """The values of one variable; a single number applies to all of its features, and so may
    "coslat"."""
    if isinstance(values, str) and values == "coslat":
        return root_cosine_of_latitude(axis)
    return np.full(len(axis), values) if np.ndim(values) == 0 else along(values, axis, name)


def by_dims(values: Any) -> bool:
    """Whether values are one array with named dimensions (an xarray.DataArray)."""
    return all(hasattr(values, name) for name in ("dims", "coords", "values")) and not hasattr(
        values, "keys"
    )


def root_cosine_of_latitude(axis: AxisLabels) -> Array:
    """(len(axis),) sqrt(cos(latitude)): cells of a regular grid count by their area.

    The latitude is a coordinate of one dimension or two, with CF attributes (standard_name
    latitude, units degrees_north, or axis Y where that is no distance) or named lat, latitude or
    nav_lat; in degrees, or radians where its units say so. Rounding below 0 at a pole is 0.
    """
    if axis.parts:
        return np.concatenate([root_cosine_of_latitude(part) for part in axis.parts.values()])
    dim = latitude(axis)
    degrees = None if dim is None else axis.coordinate(dim)
    if dim is None or degrees is None:
        raise InvalidInputError(
            f"weights='coslat' found no latitude among the features ({', '.join(axis.dims)}): "
            "expected a coordinate lat, latitude or nav_lat, or one with units degrees_north, "
            "standard_name latitude or axis Y: X.y.attrs['units'] = 'degrees_north'. "
            "Or give the array: weights=np.sqrt(np.cos(np.deg2rad(lat)).clip(0)), a DataArray over "
            "the dimensions it has"
        )
    if str(axis.attrs.get(dim, {}).get("units", "")).lower() in RADIANS:
        degrees = np.rad2deg(degrees)
    if degrees.dtype.kind not in "iuf" or not np.all(np.abs(degrees) <= 90.0 + 1e-3):
        raise InvalidInputError(
            f"weights='coslat' expects degrees from -90 to 90 in {dim!r}; found {degrees[:2]}, ..."
        )
    cosine = np.cos(np.deg2rad(degrees.astype(np.float64)))
    return np.asarray(np.sqrt(np.maximum(cosine, 0.0)))


def _broadcast(values: Any, axis: AxisLabels, name: str) -> Array:
    """A DataArray over some of the dimensions of an axis."""
    dims = tuple(str(d) for d in values.dims)
    if not dims or not set(dims) <= set(axis.dims):
        raise InvalidInputError(
            f"{name} has dimensions {dims}; expected some of {axis.dims}. Rename them, or pass "
            f"{name}.values"
        )
    array = np.asarray(values.values)
    for d, dim in enumerate(dims):
        known = values.coords[dim].values if dim in values.coords else None
        size = axis.sizes[axis.dims.index(dim)]
        array = np.take(array, _matched(axis.coords.get(dim), known, size, dim, name, array, d), d)
    return axis.spread(array, dims)


def _matched(
    wanted: Array | None, known: Array | None, size: int, dim: str, name: str, array: Array, d: int
) -> Array:
    """Positions along ``dim`` of the entries that match the data, by coordinate."""
    if wanted is None or known is None:
        if array.shape[d] != size:
            raise InvalidInputError(f"{name} has {array.shape[d]} along {dim!r}; expected {size}")
        return np.arange(size)
    return match(np.asarray(wanted), np.asarray(known), f"{name} along {dim!r}")


def match(wanted: Array, known: Array, what: str) -> Array:
    """(len(wanted),) positions of the wanted coordinates among the known ones."""
    if np.array_equal(wanted, known):
        return np.arange(len(wanted))
    if len(known):
        try:
            order = np.argsort(known, kind="stable")
            place = np.minimum(np.searchsorted(known, wanted, sorter=order), len(known) - 1)
            if np.array_equal(found := order[place], found) and np.all(known[found] == wanted):
                return np.asarray(found)
            absent = wanted[known[found] != wanted]
        except TypeError:  # coordinates that cannot be compared: text and numbers
            absent = wanted
    else:
        absent = wanted
    raise InvalidInputError(
        f"{what} has no entry for {shorten([str(one) for one in absent[:3]], len(absent))}; "
        "expected the coordinates of the data. Use .reindex_like(X), or .values to go by position"
    )


# --------------------------------------------------------------------------------------------------
# Columns of the samples by their names.

WORDS = (*CYCLES, "trend", "linear")
EXPECTED = (
    f"{', '.join(map(repr, CYCLES))}, 'trend', an array of (n_samples, columns), a list of such"
)


@dataclass(frozen=True)
class Named:
    """A column with the name by which it was requested."""

    name: str
    values: Any
    ndim = 1


def named_column(matrix: ChunkedMatrix, axis: int, argument: str, expected: str, name: str) -> Any:
    """The column of a matrix of that name.  argument, expected : for the message."""
    if (found := matrix.column(axis, name)) is not None:
        return found
    known = matrix.column_names(axis)
    what = ("samples", "features")[axis]
    has = f"which are {', '.join(known)}" if known else "which have none here"
    raise InvalidInputError(
        f"{argument}={name!r}; expected {expected}, or the name of a column of the {what}, {has}"
    )


@dataclass(frozen=True)
class Find:
    """Finds columns of the samples of a matrix, for ``remove``."""

    matrix: ChunkedMatrix

    def __call__(self, name: str) -> Any:
        """Raises InvalidInputError where there is none."""
        return named_column(self.matrix, 0, "remove", EXPECTED, name)

    def get(self, name: str) -> Any:
        """None where there is none."""
        return self.matrix.column(0, name)


def with_columns(remove: Any, find: Find, samples: AxisLabels) -> Any:
    """``remove`` with names of columns replaced by what they hold.

    A cycle is that of a column of its name, or else of the dates. A list of as many texts that are
    no names as there are samples holds the level of each.
    """
    if isinstance(remove, str):
        return _named(find, remove, samples)
    if not isinstance(remove, (list, tuple)) or not any(isinstance(one, str) for one in remove):
        return remove
    texts = all(isinstance(one, str) for one in remove)
    try:
        return [_named(find, one, samples) if isinstance(one, str) else one for one in remove]
    except InvalidInputError:
        if texts and len(remove) == len(samples) and not set(remove) <= set(WORDS):
            return np.asarray(remove)
        raise


def _named(find: Find, name: str, samples: AxisLabels) -> str | Named:
    """A word as it is where it follows from dates, else the column of that name."""
    if name in CYCLES:
        return _cycle(find, name, samples)
    if name in WORDS:
        return name
    values = find(name)
    if np.asarray(values).dtype.kind == "M":
        raise InvalidInputError(
            f"remove={name!r} holds dates; expected numbers or levels. Of dates remove "
            f"{', '.join(map(repr, CYCLES))} or 'trend'"
        )
    return Named(name, values)


def _cycle(find: Find, word: str, samples: AxisLabels) -> str | Named:
    """The column of the name of a cycle; the word where the dates say the same, or have none."""
    column = find.get(word)
    values = None if column is None else along(column, samples, f"remove={word!r}")
    if values is None or is_date(values):
        return word
    dated = places_by_dates(word, samples)
    if dated is None:
        return Named(word, values)
    if same_groups(dated, values):
        return word
    raise InvalidInputError(
        f"remove={word!r} could be the column {word!r} of the samples or the {word} of their "
        f"dates, and these differ. Say which: remove=X[{word!r}].values.astype(str) for the "
        f"column (on the command line a file of it, --remove {word}.csv), or drop the column, "
        f"X.drop_vars({word!r})"
    )
