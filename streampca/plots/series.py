"""Principal components as time series."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from streampca.plots.canvas import (
    FAINT,
    INK,
    MUTED,
    PALETTE,
    beside,
    checked_axes,
    component_index,
    drawing_axes,
    sheet,
    state,
)
from streampca.plots.samples import both_scores, column_of, scores_of
from streampca.plots.subjects import carried, component_name, is_pair, result_of

if TYPE_CHECKING:
    from matplotlib.axes import Axes

Array = np.ndarray[Any, Any]


def pcs(
    result: Any,
    mode: int | Sequence[int] = (1, 2, 3),
    scores: Any = None,
    *,
    view: str | None = None,
    ax: Axes | None = None,
) -> Axes:
    """Principal components as time series of unit variance, one below the other.

    result : a fitted estimator or a Decomposition; a model of two views, of which both series are
        drawn; or complex modes, of which the real part and the amplitude are.
    mode : numbers from 1; those that it has.
    scores : (n, k) from ``transform``; None takes those of the training rows, if the fit kept them.
        Of two views those of both, ``model.transform(X, Y)``.
    view : "x" or "y": of a model of two views that one alone.

    Dates are those of the samples; without them samples are counted. Samples of several dimensions,
    such as (member, time), have a line for each member.
    Returns the Axes; of several modes the frame, whose series are ``ax.child_axes``.
    Raises InvalidInputError, InvalidTypeError, NotFittedError; MissingDependencyError.
    """
    found = result_of(result, view)
    numbers = np.atleast_1d(np.asarray(mode)).tolist()
    if not isinstance(mode, (int, np.integer)):
        numbers = [one for one in numbers if one <= found.n_components] or numbers
    indices = [component_index(number, found) for number in numbers]
    given = found.scores if scores is None else scores  # refused where such a model has none
    both = is_pair(result) and view is None
    sources = both_scores(result, scores) if both else [scores_of(found, given)]
    shape = _shape(found, sources[0], scores)
    times, label = _times(found, None if both else scores, shape)
    panels: list[Axes] = []
    if len(indices) == 1:
        checked_axes(ax)
        drawn = drawing_axes(ax, (8.0, 2.8))
    else:
        drawn, panels = sheet(ax, len(indices), (8.0, 1.7), 1, (0.0, 0.25))
    for index, panel in zip(indices, panels or [drawn], strict=True):
        lines = _lines(found, sources, index, shape)
        _draw(drawing_axes(panel, (1, 1)), times, lines)
        panel.set_ylabel(component_name(index, found), fontsize="small")
        panel.tick_params(labelbottom=panel is (panels or [drawn])[-1])
    (panels or [drawn])[-1].set_xlabel(label)
    _legend((panels or [drawn])[0], found, shape, both, bool(np.iscomplexobj(sources[0])))
    names = [component_name(one, found).split(" (")[0] for one in indices]
    what = f"{names[0]} carries" if len(indices) == 1 else f"{len(indices)} PCs carry"
    said = carried(found, indices)
    if both or not said:
        what = f"{len(indices)} series" if not both else "Both views"
    state(drawn, f"{what}{': ' if both else ' '}{said}; in standard deviations".replace(" ;", ";"))
    return drawn


def _shape(found: Any, source: Any, scores: Any) -> tuple[int, ...]:
    """(lines, times) of samples of two dimensions, in this order or turned; else (n,)."""
    dims = tuple(str(one) for one in getattr(scores, "dims", ()))[:-1]
    own = tuple(int(one) for one in source.shape[:-1])
    if len(own) == 2 and dims:
        return own
    axis = found.labels.samples
    return (
        axis.sizes
        if len(axis.dims) == 2 and len(axis) == int(np.prod(own))
        else (int(np.prod(own)),)
    )


def _times(found: Any, scores: Any, shape: tuple[int, ...]) -> tuple[Array, str]:
    """Dates or numbers along the samples, and what they are."""
    axis = found.labels.samples
    coords = getattr(scores, "coords", None)
    known = axis.coords if coords is None else coords
    if scores is not None and coords is None and len(shape) == 1:  # rows of an array: of any time
        known = {}
    dims = axis.dims if coords is None else tuple(str(one) for one in scores.dims[:-1])
    dim, n = dims[_time_dim(dims, known, shape)], shape[_time_dim(dims, known, shape)]
    times = known.get(dim)
    values = None if times is None or len(dims) != len(shape) else np.asarray(times)
    if values is None or values.shape != (n,):
        return np.arange(1, n + 1), "Sample"
    if values.dtype.kind == "O" and n and hasattr(values[0], "timetuple"):  # cftime
        return np.array([_year(one) for one in values]), dim
    if values.dtype.kind not in "Miuf":
        return np.arange(1, n + 1), "Sample"
    return values, dim


def _time_dim(dims: Sequence[str], known: Any, shape: tuple[int, ...]) -> int:
    """The number of the dimension along which lines run: of dates, "time", or the last one."""
    if len(shape) == 1 or len(dims) != len(shape):
        return 0
    for d, dim in enumerate(dims):
        values = np.asarray(known.get(dim, ()))
        dated = values.dtype.kind == "M" or (values.size and hasattr(values.flat[0], "timetuple"))
        if dated or dim == "time":
            return d
    return len(shape) - 1


def _lines(found: Any, sources: list[Any], index: int, shape: tuple[int, ...]) -> list[Array]:
    """(times,) each, in standard deviations."""
    lines = []
    for source in sources:
        values = np.asarray(source[..., index]).ravel()
        if np.iscomplexobj(values):
            deviation = np.sqrt(found.explained_variance[index]) or 1.0
            return [values.real / deviation, np.abs(values) / deviation]
        values = column_of(source, index)
        if len(sources) == 2 or "homogeneous" in getattr(found, "fields", {}):
            deviation = float(np.nanstd(values, ddof=1)) or 1.0
        else:
            deviation = np.sqrt(found.explained_variance[index]) or 1.0
        values = values / deviation
        if len(shape) == 1:
            lines.append(values)
            continue
        axis = found.labels.samples
        along = _time_dim(axis.dims, axis.coords, shape)
        lines += [*np.moveaxis(values.reshape(shape), along, -1)]
    return lines


def _draw(ax: Axes, times: Array, lines: list[Array]) -> None:
    """One series filled by its sign, or several as lines of their own."""
    if len(lines) == 1:
        _draw_series(ax, times, lines[0])
        return
    ax.grid(axis="y", color=FAINT, linewidth=0.7)
    ax.axhline(0.0, color=MUTED, linewidth=0.8)
    for i, values in enumerate(lines):
        ax.plot(
            times,
            values,
            color=PALETTE[i % len(PALETTE)],
            linewidth=0.9,
            linestyle="-" if i < len(PALETTE) else "--",
            alpha=0.9 if len(lines) < 9 else 0.5,
            rasterized=len(values) > 20_000,
        )
    ax.margins(x=0.01)


def _legend(ax: Axes, found: Any, shape: tuple[int, ...], both: bool, imaginary: bool) -> None:
    """Names of several lines, where they are few."""
    own = [line for line in ax.get_lines() if len(np.atleast_1d(line.get_xdata())) > 2]
    names: list[str] = []
    if both:
        names = ["scores of X", "scores of Y"]
    elif imaginary:
        names = ["real part", "amplitude"]
    elif len(shape) == 2:
        axis = found.labels.samples
        if len(axis.dims) == 2:
            other = axis.dims[1 - _time_dim(axis.dims, axis.coords, shape)]
            values = axis.coords.get(other, np.arange(1, len(own) + 1))
            names = [f"{other} {one}" for one in np.asarray(values).tolist()]
    if len(names) == len(own) and 1 < len(names) <= 9:
        beside(ax, own, names)


def _year(date: Any) -> float:
    """A date of any calendar as a year with its fraction."""
    return float(date.year + (date.timetuple().tm_yday - 1 + date.hour / 24) / 365.25)


def _draw_series(ax: Axes, times: Array, values: Array) -> None:
    """A line, filled by its sign where it is short enough to show that."""
    ax.grid(axis="y", color=FAINT, linewidth=0.7)
    ax.axhline(0.0, color=MUTED, linewidth=0.8)
    if len(values) <= 2000:
        ax.fill_between(
            times,
            values,
            where=values > 0,
            color=PALETTE[4],
            alpha=0.6,
            linewidth=0,
            interpolate=True,
        )
        ax.fill_between(
            times,
            values,
            where=values < 0,
            color=PALETTE[0],
            alpha=0.6,
            linewidth=0,
            interpolate=True,
        )
    ax.plot(times, values, color=INK, linewidth=0.7, rasterized=len(values) > 20_000)
    ax.margins(x=0.01)
