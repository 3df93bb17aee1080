"""Pictures of scores (the samples on the components) and of loadings (a component's features)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from streampca.errors import InvalidInputError, InvalidTypeError
from streampca.models.decomposition import Decomposition
from streampca.plots.canvas import (
    FAINT,
    INK,
    MUTED,
    PALETTE,
    Categories,
    at_most,
    checked_axes,
    colouring,
    component_index,
    component_name,
    drawing_axes,
    result_of,
)

if TYPE_CHECKING:
    from matplotlib.axes import Axes


# --------------------------------------------------------------------------------------------------
# Loadings: the weights of the features in a component.

LONGEST_NAME = 40  # characters beside a bar; the table has full names


def loadings(result: Any, *, component: int = 1, n: int = 15, ax: Axes | None = None) -> Axes:
    """The features with the largest |loading| on one component, as horizontal bars.

    result : a fitted estimator or a Decomposition.
    component : its number, from 1.  n : how many features, or all if there are fewer.

    A loading is the component's entry times the square root of its variance, in the units of the
    feature (a correlation, if the features were scaled to unit variance).
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
    """Names and loadings of one component, without forming all (p, k) loadings."""
    row = found.require_components()[index]
    column = np.asarray(row, dtype=np.float64) * np.sqrt(found.explained_variance[index])
    order = np.argsort(-np.abs(column), kind="stable")[:count]
    return found.labels.features.names(order.tolist()), column[order].tolist()


def _short(name: str) -> str:
    """Shorten a name in the middle: names that differ only in a number differ at an end."""
    if len(name) <= LONGEST_NAME:
        return name
    tail = LONGEST_NAME // 2
    return f"{name[: LONGEST_NAME - tail - 1]}…{name[-tail:]}"


# --------------------------------------------------------------------------------------------------
# Scores: the samples on two or three components.

MOST_POINTS = 200_000
RASTERIZED_FROM = 2_000  # vector files with more points are slow to open


def scores(
    result_or_model: Any,
    scores: Any = None,
    *,
    components: Sequence[int] = (1, 2),
    labels: Any = None,
    ax: Axes | None = None,
) -> Axes:
    """Scatter of the samples on two components, or in space on three.

    result_or_model : a fitted estimator or a Decomposition.
    scores : (n, k) from ``transform`` (NumPy, Dask, Zarr, xarray, data frame); None takes those of
        the training rows, if the fit kept them (wide fits do).
    components : two or three numbers, from 1.
    labels : (n,) one per sample. Text, booleans and up to 12 different integers get a legend;
        other numbers and dates a colourbar. The name of a Series or DataArray is its title.

    Labelled points are drawn in a fixed shuffled order, so that no group hides another because of
    the order in the file. Of more than 200,000 points a fixed sample is drawn; the title says so.
    Raises InvalidInputError, InvalidTypeError, NotFittedError; MissingDependencyError.

    Cost: reads only the columns that it draws, and computes them if the scores are lazy.
    """
    found = result_of(result_or_model)
    indices = _component_indices(components, found)
    source = _source(found, scores)
    n = int(np.prod(source.shape[:-1]))
    checked_axes(ax, dimensions=len(indices))
    colours = None if labels is None else colouring(labels, n)
    points = np.stack([_column(source, index) for index in indices])

    random = np.random.default_rng(0)
    if n > MOST_POINTS:
        order = np.sort(random.choice(n, MOST_POINTS, replace=False))
    else:
        order = np.arange(n)
    if colours is not None:
        order = order if not isinstance(colours, Categories) else random.permutation(order)
        colours = colours.take(order)
    points = points[:, order]

    drawn = drawing_axes(ax, (6.4, 4.8), dimensions=len(indices))
    style = _style(points.shape[1]) | ({"depthshade": False} if len(indices) == 3 else {})
    if colours is None:
        drawn.scatter(*points, color=PALETTE[0], **style)
    else:
        colours.draw(drawn, points, style)
    _name_axes(drawn, [component_name(index, found) for index in indices])
    if n > MOST_POINTS:
        drawn.set_title(
            f"{MOST_POINTS:,} of {n:,} samples drawn", loc="left", color=INK, fontsize="small"
        )
    return drawn


def _component_indices(components: Sequence[int], found: Decomposition) -> list[int]:
    """Indices of two or three different components."""
    if isinstance(components, str) or not hasattr(components, "__len__"):
        raise InvalidTypeError(f"components={components!r}; expected two or three numbers: (1, 2)")
    if len(components) not in (2, 3) or len(set(components)) != len(components):
        raise InvalidInputError(
            f"components={tuple(components)}; expected two or three different numbers: (1, 2)"
        )
    return [component_index(number, found) for number in components]


def _source(found: Decomposition, scores: Any) -> Any:
    """The scores as an object of shape (..., k) whose columns can be taken one by one."""
    if scores is None:
        if found.scores is None:
            raise InvalidInputError(
                "this fit keeps no scores (it streamed the samples). Pass them: "
                "streampca.plots.scores(pca, scores=pca.transform(X))"
            )
        return found.scores
    if hasattr(scores, "columns") and hasattr(scores, "to_numpy"):
        scores = scores.to_numpy()
    elif not hasattr(scores, "shape"):
        scores = np.asarray(scores)
    shape = scores.shape
    if len(shape) < 2 or shape[-1] != found.n_components:
        raise InvalidInputError(
            f"scores has shape {tuple(shape)}; expected (n, {found.n_components}), one column per "
            "component: scores=pca.transform(X)"
        )
    if any(length != length for length in shape):  # NaN: Dask has not counted the rows
        raise InvalidInputError(
            "scores has an unknown number of rows; expected a known one: "
            "scores.compute_chunk_sizes()"
        )
    if np.dtype(scores.dtype).kind not in "iuf":
        raise InvalidTypeError(f"scores has dtype {scores.dtype}; expected numbers")
    return scores


def _column(source: Any, index: int) -> np.ndarray[Any, Any]:
    """One component, (n,) float64; several sample dimensions are flattened."""
    return np.asarray(source[..., index], dtype=np.float64).ravel()


def _style(n: int) -> dict[str, Any]:
    """Marker size and opacity, smoothly decreasing with the number of points."""
    root = np.sqrt(max(n, 1))
    return {
        "s": float(np.clip(450.0 / root, 2.0, 24.0)),
        "alpha": float(np.clip(40.0 / root, 0.25, 0.85)),
        "linewidths": 0,
        "rasterized": n > RASTERIZED_FROM,
    }


def _name_axes(ax: Axes, names: list[str]) -> None:
    ax.set_xlabel(names[0])
    ax.set_ylabel(names[1])
    if len(names) == 3:
        ax.set_zlabel(names[2])  # type: ignore[attr-defined]
        ax.set_box_aspect(None, zoom=0.92)  # type: ignore[call-arg]  # else the z label is cut
        return
    ax.axhline(0.0, color=FAINT, linewidth=0.8, zorder=0)
    ax.axvline(0.0, color=FAINT, linewidth=0.8, zorder=0)
