"""Loadings: which features a component is made of."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from streampca.models.decomposition import Decomposition
from streampca.plots.canvas import FAINT, MUTED, PALETTE, checked_axes, drawing_axes
from streampca.plots.checks import at_most, component_index, component_name, result_of

if TYPE_CHECKING:
    from matplotlib.axes import Axes

LONGEST_NAME = 40  # characters beside a bar; the table has names whole


def loadings(result: Any, *, component: int = 1, n: int = 15, ax: Axes | None = None) -> Axes:
    """The features with the largest |loading| on one component, as horizontal bars.

    result : a fitted estimator or a Decomposition.
    component : its number, from 1.  n : how many features, or all where there are fewer.

    A loading is the component's entry times the square root of its variance: in the units of the
    feature (a correlation, where the features were scaled to unit variance).
    Raises InvalidInputError, InvalidTypeError, NotFittedError; MissingDependencyError.

    Source: Jolliffe 2002, "Principal Component Analysis", 2nd ed., section 2.3.
    """
    found = result_of(result)
    index = component_index(component, found)
    count = at_most(n, found.n_features, "features")
    names, values = _largest(found, index, count)
    checked_axes(ax)

    drawn = drawing_axes(ax, (6.0, 1.0 + 0.24 * count))
    drawn.grid(axis="x", color=FAINT, linewidth=0.7)
    places = np.arange(count)
    colours = [PALETTE[0] if value >= 0 else PALETTE[4] for value in values]
    drawn.barh(places, values, height=0.7, color=colours)
    drawn.axvline(0.0, color=MUTED, linewidth=0.8)
    drawn.set_yticks(places, labels=[_short(name) for name in names], parse_math=False)
    drawn.tick_params(axis="y", length=0)
    drawn.spines["left"].set_visible(False)
    drawn.set_ylim(count - 0.4, -0.6)  # the largest on top
    drawn.set_xlabel(f"Loading on {component_name(index, found)}")
    return drawn


def loadings_table(result: Any, n: int = 10) -> np.ndarray[Any, Any]:
    """The features with the largest |loading| on every component, as a structured array.

    result : a fitted estimator or a Decomposition.  n : features per component.

    Returns (k * n,) rows of ``component`` (from 1), ``rank`` (from 1), ``feature`` (its name) and
    ``loading``; ``pandas.DataFrame(table)`` takes it as it is.
    Raises InvalidInputError, InvalidTypeError, NotFittedError.
    """
    found = result_of(result)
    count = at_most(n, found.n_features, "features")
    rows = [
        (index + 1, rank, name, value)
        for index in range(found.n_components)
        for rank, (name, value) in enumerate(zip(*_largest(found, index, count), strict=True), 1)
    ]
    width = max((len(row[2]) for row in rows), default=1)
    columns = [
        ("component", np.int64),
        ("rank", np.int64),
        ("feature", f"U{max(width, 1)}"),
        ("loading", np.float64),
    ]
    return np.array(rows, dtype=columns)


def _largest(found: Decomposition, index: int, count: int) -> tuple[list[str], list[float]]:
    """Names and loadings of one component; (p, k) loadings are never formed for it."""
    row = found.require_components()[index]
    column = np.asarray(row, dtype=np.float64) * np.sqrt(found.explained_variance[index])
    order = np.argsort(-np.abs(column), kind="stable")[:count]
    return found.labels.features.names(order.tolist()), column[order].tolist()


def _short(name: str) -> str:
    """Both ends: names that differ only in a number differ at one of them."""
    if len(name) <= LONGEST_NAME:
        return name
    tail = LONGEST_NAME // 2
    return f"{name[: LONGEST_NAME - tail - 1]}…{name[-tail:]}"
