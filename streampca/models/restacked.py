"""Features that the fit had stacked to one dimension and that come as a grid, or the reverse."""

from __future__ import annotations

from typing import Any

import numpy as np

from streampca.matrix import AxisLabels


def restacked(X: Any, features: AxisLabels) -> Any:
    """An xarray object whose feature dimensions are stacked as in the fit, where names tell how.

    ``X.stack(space=("lat", "lon"))`` of the fit may come as lat and lon, or stacked in another
    order; and a grid of the fit may come stacked. Anything else stays as it is, and so do arrays
    that would have to be read from a file for it.
    """
    if features.parts:
        for part in features.parts.values():
            X = restacked(X, part)
        return X
    if len(features.dims) > 1:
        return _unstacked(X, set(features.dims))
    dim = features.dims[0]
    levels = _levels(features)
    if not levels or not _at_hand(X):
        return X
    if dim not in X.dims and set(levels) <= set(X.dims):
        X = X.stack({dim: levels})
    elif dim in X.indexes and list(X.indexes[dim].names) != levels:
        if set(X.indexes[dim].names) != set(levels):
            return X
        X = X.reorder_levels({dim: levels})
    return _in_order(X, dim, levels, features)


def _levels(features: AxisLabels) -> list[str]:
    """Names of the dimensions that were stacked to one; none where it is no stack."""
    from streampca.sources.labelled_results import LEVELS

    return list(features.attrs.get(features.dims[0], {}).get(LEVELS, []))


def _unstacked(X: Any, dims: set[str]) -> Any:
    """X with the dimension unstacked that was stacked from these."""
    for dim in X.dims:
        if dim in X.indexes and set(X.indexes[dim].names) == dims and _at_hand(X):
            return X.unstack(dim)
    return X


def _in_order(X: Any, dim: str, levels: list[str], features: AxisLabels) -> Any:
    """X with the entries of a stacked dimension in the order of the fit, if they are the same."""
    known = [features.extra[level] for level in levels if level in features.extra]
    if dim not in X.indexes or len(known) < len(levels) or len(features) != X.sizes[dim]:
        return X
    places = X.indexes[dim].get_indexer(list(zip(*known, strict=True)))
    if np.array_equal(places, np.arange(len(places))) or len(set(places) - {-1}) < len(places):
        return X
    return X.isel({dim: places})


def _at_hand(X: Any) -> bool:
    """Whether all values lie in memory or in a Dask graph: others would be read to be stacked."""
    each = X.data_vars.values() if hasattr(X, "data_vars") else [X]
    return all(one.variable._in_memory or one.chunks is not None for one in each)
