"""Where the features of a matrix lie: on the globe, in a picture, or along a genome."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from streampca.errors import InvalidInputError
from streampca.matrix.labels import AxisLabels

Array = np.ndarray[Any, Any]

RADIANS = ("radian", "radians", "rad")
DEGREES = ("", "degree", "degrees", "deg", *RADIANS)  # of an axis Y or X that is no distance


@dataclass(frozen=True)
class Direction:
    """How a coordinate says that it is a latitude or a longitude.

    standard_name, units, axis : its CF attributes; the axis alone may also be a distance.
    names : its usual names, in lower case.  most : degrees.
    """

    standard_name: str
    names: tuple[str, ...]
    units: tuple[str, ...]
    axis: str
    most: float

    def described(self, attrs: Mapping[str, Any]) -> bool:
        """Whether the attributes leave no doubt."""
        known = str(attrs.get("standard_name", "")).lower() == self.standard_name
        return known or str(attrs.get("units", "")).lower() in self.units

    def along_axis(self, attrs: Mapping[str, Any], values: Array) -> bool:
        """Whether it runs along the axis of this direction, in degrees or radians."""
        units = str(attrs.get("units", "")).lower()
        if attrs.get("axis") != self.axis or units not in DEGREES or "standard_name" in attrs:
            return False  # such as projection_y_coordinate and grid_latitude
        most = np.deg2rad(self.most) if units in RADIANS else self.most
        return values.dtype.kind in "iuf" and bool(np.all(np.abs(values) <= most + 1e-3))


LATITUDE = Direction(
    "latitude",
    ("lat", "latitude", "nav_lat"),
    ("degrees_north", "degree_north", "degree_n", "degrees_n", "degreen", "degreesn"),
    "Y",
    90.0,
)
LONGITUDE = Direction(
    "longitude",
    ("lon", "long", "longitude", "nav_lon"),
    ("degrees_east", "degree_east", "degree_e", "degrees_e", "degreee", "degreese"),
    "X",
    360.0,
)


def latitude(axis: AxisLabels) -> str | None:
    """The name of the coordinate that is a latitude: by its CF attributes, its name, or axis Y."""
    return _coordinate(axis, LATITUDE)


def longitude(axis: AxisLabels) -> str | None:
    """The name of the coordinate that is a longitude."""
    return _coordinate(axis, LONGITUDE)


def _coordinate(axis: AxisLabels, wanted: Direction) -> str | None:
    known = (*axis.coords, *axis.extra, *axis.grids)
    attrs = {name: axis.attrs.get(name, {}) for name in known}
    found = [name for name in known if wanted.described(attrs[name])]
    found += [name for name in known if name.lower() in wanted.names]
    for name, values in axis.coords.items():
        if attrs[name] and wanted.along_axis(attrs[name], np.asarray(values)):
            found.append(name)
    return found[0] if found else None


def on_globe(axis: AxisLabels, indices: Array) -> bool:
    """Whether all of these features are cells of fields over latitude and longitude."""
    if axis.parts:
        places = ((part, axis.slices[name]) for name, part in axis.parts.items())
        inside = ((one, indices[(indices >= s.start) & (indices < s.stop)]) for one, s in places)
        return all(on_globe(one, few) for one, few in inside if len(few))
    return len(axis.sizes) > 1 and None not in (latitude(axis), longitude(axis))


@dataclass(frozen=True)
class Grid:
    """Two stacked dimensions of features.

    y, x : (rows,) and (columns,), or both (rows, columns) of a curvilinear grid.
    names : of y and x.  globe : whether they are latitude and longitude, in degrees.
    transposed : whether the features run along y first.
    """

    y: Array
    x: Array
    names: tuple[str, str]
    globe: bool
    transposed: bool = False

    def field(self, values: Array) -> Array:
        """(rows, columns) of (p,) values."""
        rows, columns = self.shape
        if self.transposed:
            return np.asarray(values).reshape(columns, rows).T
        return np.asarray(values).reshape(rows, columns)

    @property
    def shape(self) -> tuple[int, int]:
        """(rows, columns)."""
        if self.y.ndim == 2:
            return int(self.y.shape[0]), int(self.y.shape[1])
        return len(self.y), len(self.x)


def grid_of(axis: AxisLabels) -> Grid | None:
    """The grid of an axis of two dimensions; None for any other axis.

    Dimensions without latitude and longitude are a picture: the first runs downwards.
    """
    long = [d for d, size in enumerate(axis.sizes) if size > 1]
    if axis.parts or len(axis.sizes) < 2 or len(long) > 2:
        return None
    first, second = long if len(long) == 2 else (0, 1)
    lat, lon = latitude(axis), longitude(axis)
    if lat is not None and lon is not None:
        return _globe(axis, axis.dims[first], axis.dims[second], lat, lon)
    y, x = (_numbers(axis, d) for d in (first, second))
    return Grid(y, x, (axis.dims[first], axis.dims[second]), globe=False)


def _globe(axis: AxisLabels, first: str, second: str, lat: str, lon: str) -> Grid | None:
    degrees = [_degrees(axis, name) for name in (lat, lon)]
    shape = tuple(axis.sizes[axis.dims.index(d)] for d in (first, second))
    if {lat, lon} == {first, second}:
        return Grid(degrees[0], degrees[1], (lat, lon), globe=True, transposed=lat == second)
    y, x = (
        np.asarray(axis.spread(one, axis.grids[name][0])).reshape(shape)
        if name in axis.grids
        else None
        for name, one in zip((lat, lon), degrees, strict=True)
    )
    return None if y is None or x is None else Grid(y, x, (lat, lon), globe=True)


def _degrees(axis: AxisLabels, name: str) -> Array:
    values = axis.grids[name][1] if name in axis.grids else axis.coords[name]
    values = np.asarray(values, dtype=np.float64)
    units = str(axis.attrs.get(name, {}).get("units", "")).lower()
    return np.asarray(np.rad2deg(values) if units in RADIANS else values)


def _numbers(axis: AxisLabels, d: int) -> Array:
    """The coordinate of a dimension if it is of numbers, else counts from 0."""
    values = axis.coords.get(axis.dims[d])
    if values is None or np.asarray(values).dtype.kind not in "iuf":
        return np.arange(axis.sizes[d], dtype=np.float64)
    return np.asarray(values, dtype=np.float64)


@dataclass(frozen=True)
class Genome:
    """Variants along a genome, chromosome after chromosome.

    place : (p,) base pairs from the start of the first chromosome.
    number : (p,) index into ``names``, in the order in which they are drawn.
    centres : (chromosomes,) where to write their names.
    """

    place: Array
    number: Array
    names: tuple[str, ...]
    centres: Array


def genome_of(axis: AxisLabels) -> Genome | None:
    """Places of variants that have a chromosome and a position; None for other features."""
    if not {"chromosome", "position"} <= axis.extra.keys():
        return None
    found, number = np.unique(np.asarray(axis.extra["chromosome"]).astype(str), return_inverse=True)
    order = sorted(range(len(found)), key=lambda i: _rank(str(found[i])))
    rank = np.empty(len(found), dtype=np.int64)
    rank[order] = np.arange(len(found))
    number = rank[number]
    position = np.asarray(axis.extra["position"], dtype=np.float64)
    last = np.zeros(len(found))
    np.maximum.at(last, number, position)
    room = 0.01 * last.sum()  # between chromosomes
    start = np.concatenate([[0.0], np.cumsum(last + room)[:-1]])
    names = tuple(str(found[i]) for i in order)
    return Genome(start[number] + position, number, names, start + last / 2)


def _rank(name: str) -> tuple[int, int, str]:
    plain = name.lower().removeprefix("chr")
    return (0, int(plain), "") if plain.isdigit() else (1, 0, plain)


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
