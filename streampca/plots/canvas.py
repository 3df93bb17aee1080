"""Where a picture is drawn, and in which colours: Matplotlib on first use, one restrained look."""

from __future__ import annotations

import textwrap
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from streampca.errors import InvalidTypeError, MissingDependencyError

if TYPE_CHECKING:
    from matplotlib.axes import Axes

# Matplotlib, loaded on first use, and one style.

NORMAL_95 = 1.959963984540054  # standard errors on each side of a 95 % interval
INK, MUTED, FAINT = "#333333", "#666666", "#e2e2e2"

# Okabe and Ito 2008, "Color Universal Design", without black and without yellow (pale on white)
PALETTE = ("#0072B2", "#E69F00", "#009E73", "#CC79A7", "#D55E00", "#56B4E9")


def pyplot() -> Any:
    """``matplotlib.pyplot``. Raises MissingDependencyError that says how to install it."""
    try:
        import matplotlib.pyplot as plt
    except ImportError as error:
        raise MissingDependencyError(
            f"pictures need matplotlib ({error}). Install it: pip install 'streampca[plots]'"
        ) from error
    return plt


def checked_axes(ax: Any, *, dimensions: int = 2) -> None:
    """Raise InvalidTypeError for an ``ax`` that cannot hold the picture; None is fine."""
    plt = pyplot()
    if ax is None:
        return
    if not isinstance(ax, plt.Axes):
        raise InvalidTypeError(
            f"ax is a {type(ax).__name__}; expected one Matplotlib Axes: "
            "figure, ax = plt.subplots()"
        )
    if (ax.name == "3d") != (dimensions == 3):
        wanted = "projection='3d'" if dimensions == 3 else ""
        raise InvalidTypeError(
            f"ax has {3 if ax.name == '3d' else 2} dimensions and the picture has {dimensions}; "
            f"expected ax=plt.figure().add_subplot({wanted})"
        )


def drawing_axes(
    ax: Any, size: tuple[float, float], *, dimensions: int = 2, grid: str = ""
) -> Axes:
    """``ax``, or the Axes of a new figure of ``size`` inches, in the style of this package.

    grid : "x" or "y", the axis of its lines. Raises InvalidTypeError for another ``ax``.
    """
    checked_axes(ax, dimensions=dimensions)
    if ax is None:
        plt = pyplot()
        figure = plt.figure(figsize=size, layout="constrained")
        with plt.rc_context({"grid.color": FAINT, "grid.linewidth": 0.7}):  # 3-D grids read these
            ax = figure.add_subplot(projection="3d" if dimensions == 3 else None)
    if dimensions == 3:
        for axis in (ax.xaxis, ax.yaxis, ax.zaxis):
            axis.set_pane_color("white")
            axis.line.set_color(MUTED)
    ax.tick_params(colors=MUTED, labelcolor=INK, labelsize="small", length=3)
    ax.set_axisbelow(True)
    for side, spine in ax.spines.items():
        spine.set_visible(side in ("left", "bottom"))
        spine.set_color(MUTED)
    if grid:
        ax.grid(axis=grid, color=FAINT, linewidth=0.7)
    drawn: Axes = ax
    return drawn


def counting_ticks(first: int, last: int) -> list[int]:
    """Ticks for an axis of whole numbers: all if they are few, else in even steps."""
    if last - first < 16:
        return list(range(first, last + 1))
    step = next(s for s in (5 * 10**e * f for e in range(12) for f in (1, 2, 4)) if last <= 12 * s)
    return [first, *range(step, last + 1, step)]


def state(ax: Axes, text: str, pad: float = 6.0) -> None:
    """Write above the picture what is seen in it, in lines of about equal length."""
    figure: Any = ax.figure
    most = max(24, int(16 * ax.get_position().width * figure.get_size_inches()[0]))
    lines = -(-len(text) // most)
    wrapped = textwrap.wrap(text, min(most, len(text) // lines + 8))
    title = "\n".join(wrapped)
    ax.set_title(title, loc="left", color=INK, fontsize="medium", pad=pad, parse_math=False)


def logarithmic(ax: Axes) -> None:
    """A logarithmic y axis with plain numbers, also where it spans less than a decade."""
    from matplotlib.ticker import LogLocator, MaxNLocator, NullFormatter

    class Locator(LogLocator):
        def tick_values(self, vmin: float, vmax: float) -> Any:
            ticks = np.asarray(super().tick_values(vmin, vmax))
            few = np.count_nonzero((vmin <= ticks) & (ticks <= vmax)) < 2
            return MaxNLocator(5).tick_values(vmin, vmax) if few else ticks

    ax.set_yscale("log")
    ax.yaxis.set_major_locator(Locator(subs=(1.0, 2.0, 5.0), numticks=8))
    ax.yaxis.set_major_formatter(lambda value, _: f"{value:g}")
    ax.yaxis.set_minor_formatter(NullFormatter())


def legend_beside(
    ax: Axes, handles: Any = None, names: Sequence[str] | None = None, **options: Any
) -> Any:
    """A legend to the right of the picture, whose names are text and not mathematics.

    handles, names : None takes everything that was drawn with a label.
    """
    if handles is None or names is None:
        handles, names = ax.get_legend_handles_labels()
    look: dict[str, Any] = {
        "loc": "upper left",
        "bbox_to_anchor": (1.02, 1.0),
        "borderaxespad": 0.0,
        "frameon": False,
        "alignment": "left",
        "labelcolor": INK,
        "fontsize": "small",
        "title_fontsize": "small",
    }
    legend: Any = ax.legend(handles, list(names), **(look | options))
    for text in (*legend.get_texts(), legend.get_title()):
        text.set_parse_math(False)
    return legend


def sheet(
    ax: Any,
    count: int,
    size: tuple[float, float],
    columns: int,
    gap: tuple[float, float],
    projection: Any = None,
) -> tuple[Axes, list[Axes]]:
    """(frame, panels): an Axes without content, and so many inside it, row by row.

    size : of one panel in inches, where the figure is made here.
    gap : shares of the width and height of a panel that are left free between it and the next.
    projection : of the panels, one of cartopy's; they are then Axes of the figure.
    """
    checked_axes(ax)
    columns = min(count, columns)
    rows = -(-count // columns)
    if ax is None:
        high = size[1] * rows + 0.4
        figure = pyplot().figure(figsize=(size[0] * columns, high))
        above = max(0.08, 0.5 / high)  # room for two lines, also over a single row
        ax = figure.add_axes((0.08, 0.06, 0.78, 0.94 - above))
    ax.set_axis_off()
    width, height = 1 / (columns + (columns - 1) * gap[0]), 1 / (rows + (rows - 1) * gap[1])
    places = [divmod(i, columns) for i in range(count)]
    bounds = [
        (column * width * (1 + gap[0]), 1 - height - row * height * (1 + gap[1]), width, height)
        for row, column in places
    ]
    if projection is None:
        return ax, [ax.inset_axes(one) for one in bounds]
    at = ax.get_position()  # cartopy draws in no inset
    return ax, [
        ax.figure.add_axes(
            (at.x0 + x * at.width, at.y0 + y * at.height, w * at.width, h * at.height),
            projection=projection,
        )
        for x, y, w, h in bounds
    ]


def outlined() -> list[Any]:
    """The effects of text that stays legible over points."""
    from matplotlib.patheffects import withStroke

    return [withStroke(linewidth=2.5, foreground="white")]


def style_bar(bar: Any, label: str, **options: Any) -> None:
    """The look of a colourbar, and what it means."""
    bar.set_label(label, color=INK, parse_math=False, **options)
    bar.ax.tick_params(colors=MUTED, labelcolor=INK, labelsize="small", length=3)
    bar.outline.set_visible(False)
