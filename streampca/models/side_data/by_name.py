"""Weights and columns along one axis of a matrix, and what a name stands for."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from streampca.errors import InvalidInputError, shorten
from streampca.kernels import Array
from streampca.matrix import AxisLabels, ChunkedMatrix
from streampca.matrix.alignment import along
from streampca.matrix.places import root_cosine_of_latitude
from streampca.models.side_data.cycles import CYCLES, is_date, places_by_dates, same_groups


def weights_along(weights: Any, axis: AxisLabels, name: str) -> Array:
    """(len(axis),) float64 weights, finite and not negative, at least one of them positive.

    weights : as :func:`streampca.matrix.alignment.along` takes values: by name or by number.
    name : of the argument, for messages.
    """
    if axis.parts and isinstance(weights, Mapping):
        known = [part for part in axis.parts if isinstance(weights.get(part), str)]
        latitudes = {part: axis.parts[part] for part in known if weights[part] == "coslat"}
        weights = {**weights, **{p: root_cosine_of_latitude(part) for p, part in latitudes.items()}}
    values = along(weights, axis, name)
    if np.iscomplexobj(values):
        raise InvalidInputError(f"{name} is {values.dtype}; expected real numbers: abs({name})")
    try:
        values = np.array(values, dtype=np.float64)
    except (TypeError, ValueError):
        raise InvalidInputError(f"{name} holds {values.dtype}; expected numbers") from None
    bad = np.flatnonzero(~np.isfinite(values) | (values < 0))
    if bad.size:
        where = shorten([axis.name(int(i)) for i in bad[:3]], len(bad))
        raise InvalidInputError(
            f"{name} is {values[bad[0]]:g} at {where}; expected finite weights >= 0. A weight of 0 "
            f"leaves out: {name}=np.nan_to_num({name}).clip(0), or .fillna(0).clip(0)"
        )
    if not np.any(values > 0):
        raise InvalidInputError(f"{name} is zero everywhere; expected at least one positive weight")
    return values


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


AREAS = ("areacella", "areacello", "cell_area")  # of CMIP, and CF's standard name


def root_of_area(matrix: ChunkedMatrix, name: str) -> Any:
    """The roots of the areas of cells for "area"; any other name as it is.

    Areas are the variable that ``cell_measures`` of the data names, or one of ``AREAS``.
    Raises InvalidInputError where there is none, and for areas by their own name, since weights
    multiply: cells would count by the squares of their areas.
    """
    measured = str(matrix.labels.attrs.get("cell_measures", "")).split()
    known = [*AREAS, *measured[measured.index("area:") + 1 :][:1]] if "area:" in measured else AREAS
    if name != "area":
        attrs = getattr(matrix.column(1, name), "attrs", {})
        if name in known or attrs.get("standard_name") == "cell_area":
            raise InvalidInputError(
                f"weights={name!r} holds areas, and weights multiply the features: cells would "
                "count by the squares. Use their roots: weights='area'"
            )
        return name
    names = matrix.column_names(1)
    for one in reversed([name, *known]):
        if one in names:
            column = matrix.column(1, one)
            other = one == name and getattr(column, "attrs", {}).get("standard_name") != AREAS[-1]
            if other:
                return name
            root = np.sqrt(column)  # a plain array where it is a coordinate
            return root.fillna(0.0) if hasattr(root, "fillna") else np.where(root >= 0, root, 0.0)
    raise InvalidInputError(
        f"weights='area' found no areas of cells ({', '.join(AREAS)}, or what cell_measures "
        "names). Give the array: weights=np.sqrt(areacella), a DataArray over the dimensions it has"
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
