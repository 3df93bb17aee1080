"""Principal components as time series."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from streampca.plots.canvas import INK, MUTED, PALETTE, drawing_axes, legend_beside, sheet, state
from streampca.plots.presented import column_of, indices_of, presented, scores_of_views
from streampca.report.presentation import Presentation

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
        drawn; or of complex components, of which the real part and the amplitude are.
    mode : numbers from 1; those that it has.
    scores : (n, k) from ``transform``; None takes those of the training rows, if the fit kept them.
        Of two views those of both, ``model.transform(X, Y)``.
    view : "x" or "y": of a model of two views that one alone.

    Dates are those of the samples; without them samples are counted. Samples of several dimensions,
    such as (member, time), have a line for each member.
    Returns the Axes; of several modes the frame, whose series are ``ax.child_axes``.
    Raises InvalidInputError, InvalidTypeError, NotFittedError; MissingDependencyError.

    Examples
    --------
    >>> import numpy as np
    >>> from streampca import PCA, plots
    >>> X = np.random.default_rng(0).normal(size=(50, 6)) * [3, 3, 2, 1, 1, 1]
    >>> model = PCA(3).fit(X)
    >>> ax = plots.pcs(model, (1, 2), model.transform(X))
    >>> len(ax.child_axes)
    2
    """
    shown = presented(result, view)
    if not isinstance(mode, (int, np.integer)):  # those of them that it has
        mode = [one for one in mode if one <= shown.n_components] or mode
    indices = indices_of(mode, shown)
    both = shown.other is not None
    sources = scores_of_views(shown, scores)
    shape = _shape(shown, sources[0], scores)
    times, label = _times(shown, None if both else scores, shape)
    if len(indices) == 1:
        drawn = drawing_axes(ax, (8.0, 2.8))
        panels = [drawn]
    else:
        drawn, panels = sheet(ax, len(indices), (8.0, 1.7), 1, (0.0, 0.25))
    for index, panel in zip(indices, panels, strict=True):
        _draw(drawing_axes(panel, (1, 1), grid="y"), times, _lines(shown, sources, index, shape))
        panel.set_ylabel(shown.name(index), fontsize="small")
        panel.tick_params(labelbottom=panel is panels[-1])
    panels[-1].set_xlabel(label)
    _legend(panels[0], shown, shape, bool(np.iscomplexobj(sources[0])))
    state(drawn, f"{_what(shown, indices)}; in standard deviations")
    return drawn


def _what(shown: Presentation, indices: list[int]) -> str:
    carries = shown.carries(indices)
    if not carries:
        return f"{len(indices)} series"
    if shown.view is not None:
        which = "Both views" if shown.other is not None else f"Scores of {shown.view.upper()}"
        return f"{which}: {carries}"
    if len(indices) == 1:
        return f"{shown.short_name(indices[0])} carries {carries}"
    return f"{len(indices)} {shown.plural} carry {carries}"


def _shape(shown: Presentation, source: Any, scores: Any) -> tuple[int, ...]:
    """(lines, times) of samples of two dimensions, in this order or turned; else (n,)."""
    own = tuple(int(one) for one in source.shape[:-1])
    if len(own) == 2 and hasattr(scores, "dims"):
        return own
    axis, n = shown.labels.samples, int(np.prod(own))
    return axis.sizes if len(axis.dims) == 2 and len(axis) == n else (n,)


def _times(shown: Presentation, scores: Any, shape: tuple[int, ...]) -> tuple[Array, str]:
    """Dates or numbers along the samples, and what they are."""
    axis = shown.labels.samples
    coords = getattr(scores, "coords", None)
    known = axis.coords if coords is None else coords
    if scores is not None and coords is None and len(shape) == 1:  # rows of an array: of any time
        known = {}
    dims = axis.dims if coords is None else tuple(str(one) for one in scores.dims[:-1])
    along = _time_dim(dims, known, shape)
    dim, n = dims[along], shape[along]
    times = known.get(dim)
    values = None if times is None or len(dims) != len(shape) else np.asarray(times)
    if values is None or values.shape != (n,):
        return np.arange(1, n + 1), "Sample"
    if values.dtype.kind == "O" and n and hasattr(values[0], "timetuple"):  # cftime
        return np.array([year(value) for value in values]), dim
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


def _lines(
    shown: Presentation, sources: list[Any], index: int, shape: tuple[int, ...]
) -> list[Array]:
    """(times,) each, in standard deviations."""
    lines = []
    for source in sources:
        values = np.asarray(source[..., index]).ravel()
        if np.iscomplexobj(values):
            values = values / _deviation(shown, index, values)
            return [values.real, np.abs(values)]
        values = column_of(source, index)
        values = values / _deviation(shown, index, values)
        if len(shape) == 1:
            lines.append(values)
            continue
        axis = shown.labels.samples
        along = _time_dim(axis.dims, axis.coords, shape)
        lines += [*np.moveaxis(values.reshape(shape), along, -1)]
    return lines


def _deviation(shown: Presentation, index: int, values: Array) -> float:
    if shown.deviations is None:
        return float(np.nanstd(values, ddof=1)) or 1.0
    return float(shown.deviations[index]) or 1.0


def _draw(ax: Axes, times: Array, lines: list[Array]) -> None:
    """One series filled by its sign, or several as lines of their own."""
    ax.axhline(0.0, color=MUTED, linewidth=0.8)
    ax.margins(x=0.01)
    if len(lines) == 1:
        _draw_series(ax, times, lines[0])
        return
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


def _legend(ax: Axes, shown: Presentation, shape: tuple[int, ...], imaginary: bool) -> None:
    """Names of several lines, where they are few."""
    own = [line for line in ax.get_lines() if len(np.atleast_1d(line.get_xdata())) > 2]
    names: list[str] = []
    if shown.other is not None:
        names = ["scores of X", "scores of Y"]
    elif imaginary:
        names = ["real part", "amplitude"]
    elif len(shape) == 2:
        axis = shown.labels.samples
        if len(axis.dims) == 2:
            other = axis.dims[1 - _time_dim(axis.dims, axis.coords, shape)]
            values = axis.coords.get(other, np.arange(1, len(own) + 1))
            names = [f"{other} {one}" for one in np.asarray(values).tolist()]
    if len(names) == len(own) and 1 < len(names) <= 9:
        legend_beside(ax, own, names)


def year(date: Any) -> float:
    """A date of any calendar as a year with its fraction."""
    return float(date.year + (date.timetuple().tm_yday - 1 + date.hour / 24) / 365.25)


def _draw_series(ax: Axes, times: Array, values: Array) -> None:
    """A line, filled by its sign where it is short enough to show that."""
    if len(values) <= 2000:
        for sign, colour in ((values > 0, PALETTE[4]), (values < 0, PALETTE[0])):
            look: dict[str, Any] = {"color": colour, "alpha": 0.6, "linewidth": 0}
            ax.fill_between(times, values, where=sign, interpolate=True, **look)
    ax.plot(times, values, color=INK, linewidth=0.7, rasterized=len(values) > 20_000)
