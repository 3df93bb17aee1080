"""Names of rows and columns of a matrix, stored as one coordinate per original dimension.

In memory first, then as a saved model holds them.
"""

from __future__ import annotations

import importlib.util
import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from streampca.errors import DamagedSourceError
from streampca.kernels import Array
from streampca.matrix.columns import Column, join, label_array, textual
from streampca.matrix.preprocessing import RAW, Preprocessing

SYMBOL = "symbol"  # a further column: of genes whose names are ids
ENCODING = "streampca_encoding"  # attribute of dates: units and calendar of the file they are of


@dataclass(frozen=True)
class AxisLabels:
    """The labels of one axis of a matrix.

    An axis may be several dimensions stacked in C order (lat x lon -> features).

    dims : name of each stacked dimension.  sizes : its length.
    coords : dimension name -> (size,) array, for those that have a coordinate.
    attrs : dimension name -> attributes of that coordinate (units, ...).
    extra : further columns along an axis of one dimension: name -> (len,) array
        (chromosome, position and alleles of a variant).
    grids : coordinates along several dimensions, or along none: name -> (their dimensions,
        array), such as latitudes of a curvilinear grid.
    parts : the axes of several variables, concatenated: name of the variable -> its labels.

    Arrays of long axes may be :class:`streampca.matrix.columns.Column`, which are read on demand.
    """

    dims: tuple[str, ...]
    sizes: tuple[int, ...]
    coords: Mapping[str, np.ndarray[Any, Any]] = field(default_factory=dict)
    attrs: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    extra: Mapping[str, np.ndarray[Any, Any]] = field(default_factory=dict)
    grids: Mapping[str, tuple[tuple[str, ...], np.ndarray[Any, Any]]] = field(default_factory=dict)
    parts: Mapping[str, AxisLabels] = field(default_factory=dict)

    @classmethod
    def plain(cls, dim: str, size: int, names: Sequence[Any] | None = None) -> AxisLabels:
        """One dimension, with names or without."""
        coords = {} if names is None else {dim: label_array(names)}
        return cls((dim,), (size,), coords)

    @classmethod
    def of_variables(cls, parts: Mapping[str, AxisLabels]) -> AxisLabels:
        """The features of several variables, each with its own labels."""
        return cls(("feature",), (sum(map(len, parts.values())),), parts=dict(parts))

    def __len__(self) -> int:
        return int(np.prod(self.sizes, dtype=np.int64))

    @property
    def nbytes(self) -> int:
        """Memory of names and further columns; columns read on demand count little."""
        columns = [*self.coords.values(), *self.extra.values()]
        columns += [values for _, values in self.grids.values()]
        own = sum(int(column.nbytes) for column in columns)
        return own + sum(part.nbytes for part in self.parts.values())

    @property
    def slices(self) -> dict[str, slice]:
        """The slice of the entries of each variable."""
        ends = np.cumsum([0, *map(len, self.parts.values())]).tolist()
        return {name: slice(*ends[i : i + 2]) for i, name in enumerate(self.parts)}

    @property
    def named(self) -> bool:
        """Whether any coordinate names the entries."""
        return bool(self.coords) or bool(self.parts)

    def name(self, i: int) -> str:
        """The name of entry i: its label, ``lat=10.0, lon=30.0``, or its number."""
        for variable, where in self.slices.items() if self.parts else ():
            if where.start <= i < where.stop:
                return f"{variable}: {self.parts[variable].name(i - where.start)}"
        index = np.unravel_index(i, self.sizes)
        if len(self.dims) == 1:
            (dim,) = self.dims
            return str(self.coords[dim][i]) if dim in self.coords else f"{dim} {i}"
        parts = zip(self.dims, index, strict=True)
        return ", ".join(f"{d}={self.coords[d][j] if d in self.coords else j}" for d, j in parts)

    def names(self, entries: Sequence[int] | None = None) -> list[str]:
        """Names of the given entries, or of all."""
        column = self.coords.get(self.dims[0]) if len(self.dims) == 1 else None
        if isinstance(column, Column):
            chosen = column if entries is None else column.gather(np.asarray(entries, np.int64))
            return [str(name) for name in chosen]
        return [self.name(int(i)) for i in (range(len(self)) if entries is None else entries)]

    def shown(self, entries: Sequence[int]) -> list[str]:
        """Names of the given entries for people: the symbols of genes that are named by ids."""
        symbols = self.extra.get(SYMBOL)
        return self.names(entries) if symbols is None else [str(symbols[i]) for i in entries]

    def coordinate(self, name: str) -> np.ndarray[Any, Any] | None:
        """(len,) a coordinate at every entry, along one or several dimensions, or along none."""
        if name in self.extra:
            return np.asarray(self.extra[name])
        if name in self.grids:
            dims, values = self.grids[name]
            return self.spread(np.asarray(values), dims)
        if name not in self.coords:
            return None
        return self.spread(np.asarray(self.coords[name]), (name,))

    def spread(self, values: np.ndarray[Any, Any], dims: Sequence[str]) -> np.ndarray[Any, Any]:
        """(len,) values over some of the stacked dimensions, repeated along the others."""
        numbers = [self.dims.index(dim) for dim in dims]
        shape = [1] * len(self.dims)
        for d in numbers:
            shape[d] = self.sizes[d]
        ordered = np.transpose(values, np.argsort(numbers)).reshape(shape)
        return np.broadcast_to(ordered, self.sizes).reshape(-1)

    def columns(self, dim: str) -> dict[str, np.ndarray[Any, Any]]:
        """All labels of the entries, by the name of the array that holds them.

        dim : name of the axis there; the array of this name holds the names of the entries, if any.
        """
        if len(self.dims) > 1 or self.parts:
            return {dim: label_array(self.names())}
        own = {dim: next(iter(self.coords.values()))} if self.named else {}
        return own | dict(self.extra)

    def take(self, start: int, stop: int) -> AxisLabels:
        """Labels of a contiguous part; stacked dimensions become plain names."""
        if (start, stop) == (0, len(self)):
            return self
        return self.pick(slice(start, stop))

    def pick(self, entries: slice | np.ndarray[Any, Any]) -> AxisLabels:
        """Labels of some entries, by slice or numbers; stacked dimensions become plain names."""
        if len(self.dims) > 1 or self.parts:
            numbers = np.arange(len(self))[entries]
            return AxisLabels.plain("-".join(self.dims), len(numbers), self.names(numbers.tolist()))
        coords = {dim: _picked(values, entries) for dim, values in self.coords.items()}
        extra = {name: _picked(values, entries) for name, values in self.extra.items()}
        size = len(np.empty(len(self), np.bool_)[entries])
        return AxisLabels(self.dims, (size,), coords, self.attrs, extra, self._without_dims())

    def _without_dims(self) -> dict[str, tuple[tuple[str, ...], np.ndarray[Any, Any]]]:
        return {name: (dims, values) for name, (dims, values) in self.grids.items() if not dims}

    @staticmethod
    def concat(parts: Sequence[AxisLabels]) -> AxisLabels:
        """The axes concatenated. Extra columns are kept where all parts have them."""
        total = sum(len(part) for part in parts)
        shared = set.intersection(*(set(part.extra) for part in parts))
        extra = {
            name: join([part.extra[name] for part in parts])
            for name in parts[0].extra
            if name in shared
        }
        if not any(part.named for part in parts):
            return AxisLabels((parts[0].dims[0],), (total,), extra=extra)
        dims = {part.dims for part in parts}
        plain = all(part.named and not part.parts for part in parts)
        if len(dims) == 1 and len(parts[0].dims) == 1 and plain:
            (dim,) = parts[0].dims
            joined = join([part.coords[dim] for part in parts])
            return AxisLabels((dim,), (total,), {dim: joined}, parts[0].attrs, extra)
        names = [name for part in parts for name in part.names()]
        dim = "-".join(parts[0].dims)
        return AxisLabels((dim,), (total,), {dim: label_array(names)}, extra=extra)


def _picked(values: Any, entries: slice | np.ndarray[Any, Any]) -> Any:
    """Some entries; entries of a Column by number are still not read."""
    if not isinstance(values, Column) or isinstance(entries, slice):
        return values[entries]
    numbers = np.flatnonzero(entries) if entries.dtype == bool else entries
    return values.pick(numbers)


@dataclass(frozen=True)
class Labels:
    """The labels of both axes, and a description of the values.

    name : of the quantity.  attrs : units and other attributes; of several variables, by variable.
    preprocessing : the steps from raw values to these.
    """

    samples: AxisLabels
    features: AxisLabels
    name: str | None = None
    attrs: Mapping[str, Any] = field(default_factory=dict)
    preprocessing: Preprocessing = RAW

    @classmethod
    def plain(
        cls,
        shape: tuple[int, int],
        features: Sequence[Any] | None = None,
        samples: Sequence[Any] | None = None,
    ) -> Labels:
        """Labels from plain sequences of names, or without names."""
        return cls(
            AxisLabels.plain("sample", shape[0], samples),
            AxisLabels.plain("feature", shape[1], features),
        )

    def with_axes(self, samples: AxisLabels, features: AxisLabels) -> Labels:
        """The same quantity on other axes. Attributes of several variables are kept only where the
        features are still these variables."""
        if self.features.parts and not features.parts:
            return Labels(samples, features, preprocessing=self.preprocessing)
        return replace(self, samples=samples, features=features)

    def attrs_of(self, variable: str) -> Mapping[str, Any]:
        """Attributes of the quantity, or of one of several variables."""
        return self.attrs.get(variable, {}) if self.features.parts else self.attrs

    @property
    def dims_named(self) -> bool:
        """Whether the dimensions of the data had names."""
        plain = (("sample",), ("feature",))
        return bool(self.features.parts) or (self.samples.dims, self.features.dims) != plain

    def axis(self, axis: int) -> AxisLabels:
        """The labels of axis 0 (samples) or 1 (features)."""
        return self.features if axis == 1 else self.samples


def encoded_dates(attributes: Mapping[str, Any]) -> dict[str, Any]:
    """The attribute that keeps how a file stores dates: ``units`` and ``calendar`` among these."""
    known = {name: str(attributes[name]) for name in ("units", "calendar") if name in attributes}
    return {ENCODING: known} if " since " in known.get("units", "") else {}


# Labels as arrays and JSON, for saved models.

MOST = 1 << 50  # entries of an axis
DATES = "microseconds since 2000-01-01"


def labels_to_saved(labels: Labels) -> tuple[dict[str, Array], dict[str, Any]]:
    """(arrays, JSON-ready description) of the labels of both axes, for a bundle."""
    arrays: dict[str, Array] = {}
    saved: dict[str, Any] = {"name": plain(labels.name), "attrs": plain(labels.attrs)}
    for name in ("samples", "features"):
        columns, saved[name] = axis_to_saved(getattr(labels, name), name)
        arrays |= columns
    if labels.preprocessing:
        columns, saved["preprocessing"] = labels.preprocessing.to_saved()
        arrays |= columns
    return arrays, saved


def labels_from_saved(saved: Mapping[str, Any], arrays: dict[str, Array]) -> Labels:
    """The inverse of ``labels_to_saved``; takes its arrays out of ``arrays``."""
    samples, features = (axis_from_saved(saved[n], n, arrays) for n in ("samples", "features"))
    steps = Preprocessing.from_saved(saved.get("preprocessing", []), arrays)
    return Labels(samples, features, saved.get("name"), saved.get("attrs", {}), steps)


def axis_to_saved(axis: AxisLabels, name: str) -> tuple[dict[str, Array], dict[str, Any]]:
    """(arrays, JSON-ready description) of the labels of one axis, for a bundle."""
    dated, attrs = _numbered(axis)
    columns = {f"label-{name}-{i}": _storable(v) for i, v in enumerate(dated.values())}
    columns |= {f"extra-{name}-{i}": _storable(v) for i, v in enumerate(axis.extra.values())}
    grids = enumerate(axis.grids.values())
    columns |= {f"grid-{name}-{i}": _storable(values) for i, (_, values) in grids}
    parts = []  # lists keep their order at rest
    for i, (variable, part) in enumerate(axis.parts.items()):
        inner, saved = axis_to_saved(part, f"{name}.{i}")
        columns |= inner
        parts.append([variable, saved])
    return columns, {
        "dims": list(axis.dims),
        "sizes": list(axis.sizes),
        "attrs": plain(attrs),
        "coords": list(axis.coords),
        "extra": list(axis.extra),
        "grids": [[name, list(dims)] for name, (dims, _) in axis.grids.items()],
        "parts": parts,
    }


def axis_from_saved(saved: Mapping[str, Any], name: str, arrays: dict[str, Array]) -> AxisLabels:
    """The inverse of ``axis_to_saved``; takes its arrays out of ``arrays``."""
    coords = {dim: arrays.pop(f"label-{name}-{i}") for i, dim in enumerate(saved["coords"])}
    extra = {c: arrays.pop(f"extra-{name}-{i}") for i, c in enumerate(saved.get("extra", []))}
    grids = {
        grid: (tuple(dims), arrays.pop(f"grid-{name}-{i}"))
        for i, (grid, dims) in enumerate(saved.get("grids", []))
    }
    parts = {
        variable: axis_from_saved(part, f"{name}.{i}", arrays)
        for i, (variable, part) in enumerate(saved.get("parts", []))
    }
    dims, sizes = tuple(saved["dims"]), tuple(saved["sizes"])
    axis = AxisLabels(dims, sizes, coords, saved["attrs"], extra, grids, parts)
    _check(axis, name)
    return _dated(axis)


def _check(axis: AxisLabels, name: str) -> None:
    """Raise DamagedSourceError if the parts of saved labels are inconsistent."""
    size = dict(zip(axis.dims, axis.sizes, strict=True))
    wrong = [*axis.dims] if len(size) != len(axis.dims) else []
    wrong += [d for d, n in size.items() if not isinstance(d, str) or type(n) is not int or n < 0]
    total = 0 if wrong else math.prod(axis.sizes)
    wrong += [d for d, one in axis.coords.items() if d not in size or one.shape != (size[d],)]
    wrong += [c for c, value in axis.extra.items() if value.shape != (total,)]
    wrong += [
        g
        for g, (dims, one) in axis.grids.items()
        if not set(dims) <= set(size) or one.shape != tuple(size[d] for d in dims)
    ]
    wrong += [d for d, own in axis.attrs.items() if not isinstance(own, dict)]
    if axis.parts and sum(map(len, axis.parts.values())) != total:
        wrong += list(axis.parts)
    if wrong or total >= MOST:
        raise DamagedSourceError(f"the saved labels of the {name} are damaged: {wrong[:4]!r:.200}")


def _numbered(axis: AxisLabels) -> tuple[dict[str, Array], dict[str, Any]]:
    """(coordinates, attributes): dates of other calendars as numbers with CF units."""
    coords, attrs = dict(axis.coords), {name: dict(own) for name, own in axis.attrs.items()}
    for name, values in axis.coords.items():
        calendar = getattr(values[0], "calendar", None) if len(values) else None
        if values.dtype.kind == "O" and isinstance(calendar, str):
            import cftime

            coords[name] = np.asarray(cftime.date2num(values, DATES, calendar=calendar), np.int64)
            attrs[name] = {**attrs.get(name, {}), "units": DATES, "calendar": calendar}
    return coords, attrs


def _dated(axis: AxisLabels) -> AxisLabels:
    """The inverse of ``_numbered``; without cftime the numbers stay, with their units."""
    units = {name for name, own in axis.attrs.items() if own.get("units") == DATES}
    if not units or importlib.util.find_spec("cftime") is None:
        return axis
    import cftime

    coords, attrs = dict(axis.coords), dict(axis.attrs)
    for name in units & set(coords):
        own = dict(attrs[name])
        units_of, calendar = own.pop("units"), own.pop("calendar")
        coords[name] = np.asarray(cftime.num2date(coords[name], units_of, calendar=calendar))
        attrs[name] = own
    return replace(axis, coords=coords, attrs={n: own for n, own in attrs.items() if own})


def _storable(values: Any) -> Any:
    """Coordinates that the store can hold: numbers, dates and spans as they are, else text."""
    if values.dtype.kind in "biufMm":
        return values
    return textual(values)


def plain(value: Any) -> Any:
    """A JSON-ready copy: NumPy numbers become Python's, anything unknown becomes text."""
    if isinstance(value, Mapping):
        return {str(k): plain(v) for k, v in value.items()}
    if isinstance(value, (list, tuple)):
        return [plain(v) for v in value]
    if isinstance(value, np.generic):
        return value.item()
    if isinstance(value, np.ndarray):
        return value.tolist()
    return value if value is None or isinstance(value, (bool, int, float, str)) else repr(value)


def json_of(value: Any, **layout: Any) -> str:
    """A copy that is ``plain``, as JSON; null stands for NaN and infinities, which JSON lacks."""
    return json.dumps(_finite(plain(value)), allow_nan=False, **layout)


def _finite(value: Any) -> Any:
    if isinstance(value, dict):
        return {name: _finite(one) for name, one in value.items()}
    if isinstance(value, list):
        return [_finite(one) for one in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value
