"""Weights and columns along one axis of a matrix, and what a name stands for."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np

from streampca.accumulators import Moments
from streampca.errors import InvalidInputError, shorten
from streampca.kernels import Array
from streampca.matrix import AxisLabels, ChunkedMatrix
from streampca.matrix.alignment import along
from streampca.matrix.places import RADIANS, latitude
from streampca.passes import Candidate, Execution, easier_axis, make_plan, pass_spec, run
from streampca.sources import as_matrix


def weights_along(weights: Any, axis: AxisLabels, name: str) -> Array:
    """(len(axis),) float64 weights, finite and not negative, at least one of them positive.

    weights : as :func:`streampca.matrix.alignment.along` takes values: by name or by number.
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


def root_cosine_of_latitude(axis: AxisLabels) -> Array:
    """(len(axis),) sqrt(cos(latitude)): cells of a regular grid count by their area.

    The latitude is a coordinate of one dimension or two, with CF attributes (standard_name
    latitude, units degrees_north) or named lat, latitude or nav_lat; in degrees, or radians where
    its units say so. Rounding below 0 at a pole is 0.
    """
    if axis.parts:
        return np.concatenate([root_cosine_of_latitude(part) for part in axis.parts.values()])
    dim = latitude(axis)
    degrees = None if dim is None else axis.coordinate(dim)
    if dim is None or degrees is None:
        raise InvalidInputError(
            f"weights='coslat' found no latitude among the features ({', '.join(axis.dims)}): "
            "expected a coordinate lat, latitude or nav_lat, or one with units degrees_north. "
            "Give the array: weights=np.sqrt(np.cos(np.deg2rad(lat)).clip(0)), a DataArray over "
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


# --------------------------------------------------------------------------------------------------
# Weights that give every variable of a Dataset the same total variance.


def variable_weights(
    X: Any,
    *,
    dim: Any = None,
    missing_value: float | None = None,
    memory_limit: int | str | None = None,
    scheduler: Any = None,
    progress: Any = None,
) -> dict[str, float]:
    """One weight for each variable, 1 / sqrt(its total variance): ``PCA(weights=...)`` takes them.

    Each variable then has a total variance of 1, whatever its unit and number of grid cells;
    within it, features keep their proportions (``scale="std"`` gives those up as well).

    X : (n, p), a Dataset, or what ``streampca.concat_features(..., variables=...)`` returned.
    Other parameters : as in :class:`PCA`. Missing cells are left out, not refused.

    Cost: one pass, and moments of every feature.
    Raises InvalidInputError where X has no variables, or one of them does not vary.
    """
    matrix = as_matrix(X, dim=dim, missing_value=missing_value)
    slices = matrix.labels.features.slices
    if not slices:
        raise InvalidInputError(
            "X is one matrix without variables; expected a Dataset and its sample dimension: "
            "variable_weights(ds[['sst', 'slp']], dim='time')"
        )
    spec = pass_spec("moments", matrix, easier_axis(matrix), {"columns": Moments()})
    plan = make_plan(matrix, "moments", [Candidate("moments", "", (spec,))], memory_limit)
    execution = Execution.begun(plan, matrix, scheduler, progress)
    done = run(plan.passes[0], matrix, execution=execution)
    variance = done["columns"].variance()
    totals = {name: float(np.nansum(variance[where])) for name, where in slices.items()}
    if still := [name for name, total in totals.items() if not total > 0]:
        raise InvalidInputError(f"variable {still[0]!r} does not vary; leave it out: X.drop_vars")
    return {name: 1.0 / np.sqrt(total) for name, total in totals.items()}


WORDS = ("month", "season", "trend", "linear")
Find = Callable[[str], Any]  # a column by its name; raises InvalidInputError where there is none


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


def removable(matrix: ChunkedMatrix) -> Find:
    """Finds columns of the samples of a matrix for ``remove``."""
    expected = "'month', 'season', 'trend', an array of (n_samples, columns), a list of such"
    return partial(named_column, matrix, 0, "remove", expected)


def with_columns(remove: Any, find: Find, n: int) -> Any:
    """``remove`` with names of columns replaced by what they hold.

    A list of ``n`` texts that are no names holds the level of each of n samples.
    """
    if isinstance(remove, str):
        return remove if remove in WORDS else _named(find, remove)
    if not isinstance(remove, (list, tuple)) or not any(isinstance(one, str) for one in remove):
        return remove
    texts = all(isinstance(one, str) for one in remove)
    try:
        return [
            _named(find, one) if isinstance(one, str) and one not in WORDS else one
            for one in remove
        ]
    except InvalidInputError:
        if texts and len(remove) == n and not set(remove) <= set(WORDS):
            return np.asarray(remove)
        raise


def _named(find: Find, name: str) -> Named:
    values = find(name)
    if np.asarray(values).dtype.kind == "M":
        raise InvalidInputError(
            f"remove={name!r} holds dates; expected numbers or levels. Of dates remove 'month', "
            "'season' or 'trend'"
        )
    return Named(name, values)
