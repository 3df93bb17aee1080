"""Labels as arrays and JSON, for saved models."""

from __future__ import annotations

import importlib.util
import math
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np

from streampca.errors import DamagedSourceError
from streampca.kernels import Array
from streampca.matrix import AxisLabels, Labels, Preprocessing
from streampca.matrix.columns import textual

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
    wrong += [c for c, one in axis.extra.items() if one.shape != (total,)]
    wrong += [
        g for g, (dims, one) in axis.grids.items()
        if not set(dims) <= set(size) or one.shape != tuple(size[d] for d in dims)
    ]  # fmt: skip
    wrong += [d for d, told in axis.attrs.items() if not isinstance(told, dict)]
    if axis.parts and sum(map(len, axis.parts.values())) != total:
        wrong += list(axis.parts)
    if wrong or total >= MOST:
        raise DamagedSourceError(f"the saved labels of the {name} are damaged: {wrong[:4]!r:.200}")


def _numbered(axis: AxisLabels) -> tuple[dict[str, Array], dict[str, Any]]:
    """(coordinates, attributes): dates of other calendars as numbers with CF units."""
    coords, attrs = dict(axis.coords), {name: dict(told) for name, told in axis.attrs.items()}
    for name, values in axis.coords.items():
        calendar = getattr(values[0], "calendar", None) if len(values) else None
        if values.dtype.kind == "O" and isinstance(calendar, str):
            import cftime

            coords[name] = np.asarray(cftime.date2num(values, DATES, calendar=calendar), np.int64)
            attrs[name] = {**attrs.get(name, {}), "units": DATES, "calendar": calendar}
    return coords, attrs


def _dated(axis: AxisLabels) -> AxisLabels:
    """The inverse of ``_numbered``; without cftime the numbers stay, with their units."""
    units = {name for name, told in axis.attrs.items() if told.get("units") == DATES}
    if not units or importlib.util.find_spec("cftime") is None:
        return axis
    import cftime

    coords, attrs = dict(axis.coords), dict(axis.attrs)
    for name in units & set(coords):
        told = dict(attrs[name])
        units_of, calendar = told.pop("units"), told.pop("calendar")
        coords[name] = np.asarray(cftime.num2date(coords[name], units_of, calendar=calendar))
        attrs[name] = told
    return replace(axis, coords=coords, attrs={n: told for n, told in attrs.items() if told})


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
