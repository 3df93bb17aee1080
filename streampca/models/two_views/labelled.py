"""A model of two views as one labelled Dataset."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np

from streampca.matrix import VIEWS, AxisLabels
from streampca.models.results.value_attributes import of_correlation, of_map


def to_dataset_of_views(result: Any) -> Any:
    """The ``xarray.Dataset`` of a :class:`TwoViewResult`; see its ``to_xarray``."""
    from streampca.sources.labelled.to_xarray import to_dataset

    component = result.component_axis
    tables: dict[str, Any] = {"values": (result.values, [component])}
    attrs: dict[str, Any] = {"values": {"long_name": _meaning(result)}}
    if not result.correlates:
        shares = np.asarray(result.values) ** 2 / (result.total or 1.0)
        tables["squared_covariance_fraction"] = (shares, [component])
    for name, values in result.redundancy._asdict().items():
        of, by = name.split("_by_")
        tables[f"variance_fraction_{name}"] = (values, [component])
        attrs[f"variance_fraction_{name}"] = {
            "long_name": f"mean share of the variance of {of.upper()} by scores of {by.upper()}"
        }
    axes = apart(*(result.view(name).labels.features for name in VIEWS))
    for name, features in zip(VIEWS, axes, strict=True):
        view, scores = result.view(name), getattr(result, f"{name}_scores")
        if scores is not None:
            tables[f"scores_{name}"] = (scores, [result.labels.samples, component])
        for what, values in result.tables_of_features().items():
            array = np.array(result.part(name, values).T)
            array[:, view.absent] = np.nan
            tables[f"{what}_{name}"] = (array, [component, features])
            described = partial(of_correlation, view)
            if what not in ("loadings", "cross_loadings"):
                described = partial(of_map, view, what=f"{what} of", power=0)
            attrs[f"{what}_{name}"] = described
    about = {"method": result.method, "n_samples": result.n_samples}
    return to_dataset(tables, about, attrs)


def _meaning(result: Any) -> str:
    if rotated := getattr(result, "rotated_by", ""):
        return f"{'correlations' if result.correlates else 'covariances'} of scores, by {rotated}"
    return "canonical correlations" if result.correlates else "singular values of the covariance"


def apart(x: AxisLabels, y: AxisLabels) -> tuple[AxisLabels, AxisLabels]:
    """The features of both views, with ``_x`` and ``_y`` after the dimensions and coordinates of
    the same name that differ."""
    differ = _differing(x, y)
    return _named(x, {name: f"{name}_x" for name in differ}), _named(
        y, {name: f"{name}_y" for name in differ}
    )


def _differing(x: AxisLabels, y: AxisLabels) -> set[str]:
    """Names that mean one thing in X and another in Y."""
    first, second = (
        {name: found for part in _parts(axis) for name, found in _meanings(part).items()}
        for axis in (x, y)
    )
    unlike = {n for n in first.keys() & second.keys() if not _same(first[n], second[n])}
    for axis in (x, y):  # what lies along a renamed dimension is another one too
        for part in _parts(axis):
            unlike |= {n for n, (dims, _) in part.grids.items() if set(dims) & unlike} & {
                *first.keys() & second.keys()
            }
            if unlike & set(part.dims):
                unlike |= set(part.extra) & (first.keys() & second.keys())
    return unlike


def _parts(axis: AxisLabels) -> list[AxisLabels]:
    return [*axis.parts.values()] or [axis]


def _meanings(axis: AxisLabels) -> dict[str, tuple[Any, ...]]:
    """Name of a dimension or a coordinate -> its sizes or dimensions, and its values."""
    sizes = zip(axis.dims, axis.sizes, strict=True)
    found: dict[str, tuple[Any, ...]] = {d: (n, axis.coords.get(d)) for d, n in sizes}
    found |= {name: (axis.dims, values) for name, values in axis.extra.items()}
    return found | dict(axis.grids)


def _same(first: tuple[Any, ...], second: tuple[Any, ...]) -> bool:
    (along, a), (other, b) = first, second
    known = along == other and a is not None and b is not None
    return known and bool(np.array_equal(np.asarray(a), np.asarray(b)))


def _named(axis: AxisLabels, names: Mapping[str, str]) -> AxisLabels:
    """The axis with other names of dimensions and coordinates."""

    def new(one: Mapping[str, Any]) -> dict[str, Any]:
        return {names.get(name, name): value for name, value in one.items()}

    return replace(
        axis,
        dims=tuple(names.get(d, d) for d in axis.dims),
        coords=new(axis.coords),
        attrs=new(axis.attrs),
        extra=new(axis.extra),
        grids={
            n: (tuple(names.get(d, d) for d in ds), v) for n, (ds, v) in new(axis.grids).items()
        },
        parts={name: _named(part, names) for name, part in axis.parts.items()},
    )
