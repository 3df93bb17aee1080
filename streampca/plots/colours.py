"""Colours of labelled samples: categories with a legend, numbers and dates with a colourbar.

Very many points become one image: how many lie in each cell, and of which colour.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from numbers import Integral, Real
from typing import TYPE_CHECKING, Any

import numpy as np

from streampca.errors import InvalidInputError, InvalidTypeError
from streampca.matrix import AxisLabels
from streampca.matrix.alignment import along
from streampca.plots.canvas import INK, MUTED, PALETTE, beside

if TYPE_CHECKING:
    from matplotlib.axes import Axes

MARKERS = ("o", "^", "s", "D", "v", "P")  # each is combined with every colour
MOST_CATEGORIES = len(PALETTE) * len(MARKERS)
MOST_WHOLE_NUMBERS = 12  # up to so many different integers are categories (clusters, say)
MISSING, MISSING_COLOUR = "missing", "#b5b5b5"
Array = np.ndarray[Any, Any]


@dataclass(frozen=True)
class Categories:
    """names : in the order of the legend.  codes : (n,) index into names, -1 = missing.

    missing : what the legend calls those.
    """

    title: str
    names: tuple[str, ...]
    codes: np.ndarray[Any, Any]
    missing: str = MISSING

    def take(self, order: np.ndarray[Any, Any]) -> Categories:
        """The labels of some samples; the legend keeps all."""
        return replace(self, codes=self.codes[order])

    def draw(
        self, ax: Axes, points: np.ndarray[Any, Any], style: dict[str, Any], legend: bool = True
    ) -> None:
        """Scatter with a colour and marker per category, and the legend."""
        from matplotlib.colors import to_rgba

        table = np.array([to_rgba(self.colour(i)) for i in (*range(len(self.names)), -1)])
        kinds = np.where(self.codes < 0, 0, self.codes // len(PALETTE))
        for kind in np.unique(kinds):
            here = kinds == kind
            look = style | {"c": table[self.codes[here]], "marker": MARKERS[kind]}
            ax.scatter(*points[:, here], **look)
        if legend:
            self.draw_legend(ax)

    def draw_legend(self, ax: Axes, markers: bool = True) -> None:
        """The legend.  markers : False for squares of colour, where no markers are drawn."""
        from matplotlib.lines import Line2D

        shown = [*range(len(self.names)), *([-1] if (self.codes < 0).any() else [])]
        handles = [
            Line2D(
                [],
                [],
                linestyle="",
                marker=MARKERS[max(i, 0) // len(PALETTE)] if markers else "s",
                markersize=6,
                markeredgewidth=0,
                color=self.colour(i),
            )
            for i in shown
        ]
        beside(
            ax,
            handles,
            [self.missing if i < 0 else self.names[i] for i in shown],
            title=self.title or None,
            bbox_to_anchor=(1.02, 0.9 if ax.name == "3d" else 1.0),
            handletextpad=0.3,
            ncols=1 + len(shown) // 20,
        )

    @staticmethod
    def colour(code: int) -> str:
        """Of a category, or of missing labels (-1)."""
        return MISSING_COLOUR if code < 0 else PALETTE[code % len(PALETTE)]


@dataclass(frozen=True)
class Continuous:
    """values : (n,) float64, NaN = missing.  dates : they are Matplotlib's days."""

    title: str
    values: np.ndarray[Any, Any]
    dates: bool

    def take(self, order: np.ndarray[Any, Any]) -> Continuous:
        """The labels of some samples."""
        return Continuous(self.title, self.values[order], self.dates)

    def draw(self, ax: Axes, points: np.ndarray[Any, Any], style: dict[str, Any]) -> None:
        """Scatter coloured along one scale, and the colourbar."""
        look = style | {"c": self.values, "cmap": self.colours(), "plotnonfinite": True}
        self.draw_bar(ax, ax.scatter(*points, **look), len(points))

    @staticmethod
    def colours() -> Any:
        """The colour map."""
        from matplotlib import colormaps

        return colormaps["viridis"].with_extremes(bad=MISSING_COLOUR)

    def draw_bar(self, ax: Axes, drawn: Any, dimensions: int) -> None:
        """The colourbar of what is drawn."""
        from matplotlib.dates import AutoDateLocator, ConciseDateFormatter

        space = dimensions == 3
        bar: Any = ax.figure.colorbar(
            drawn, ax=ax, aspect=30, pad=0.12 if space else 0.02, shrink=0.7 if space else 1.0
        )
        if self.dates:
            locator = AutoDateLocator()
            bar.ax.yaxis.set_major_locator(locator)
            bar.ax.yaxis.set_major_formatter(ConciseDateFormatter(locator))
        bar.set_label(self.title, color=INK, parse_math=False)
        bar.ax.tick_params(colors=MUTED, labelcolor=INK, labelsize="small", length=3)
        bar.outline.set_visible(False)
        if bar.solids is not None:
            bar.solids.set_alpha(1.0)


def colouring(labels: Any, samples: AxisLabels) -> Categories | Continuous:
    """Labels of samples as categories, or as a scale if they are dates or many numbers.

    labels : by name or by number, see ``matrix.alignment``. Samples that they do not name are
        missing.

    Raises InvalidInputError unless there is one label per sample, and for more categories than can
    be distinguished; InvalidTypeError for anything but text, numbers, booleans and dates.
    """
    values = along(labels, samples, "labels", partly=True)
    name = getattr(labels, "name", None)
    title = name if isinstance(name, str) else ""
    kind: str = values.dtype.kind
    if kind == "O":
        values, kind = _from_objects(values)
    if kind == "M":
        from matplotlib.dates import date2num

        return Continuous(title, np.asarray(date2num(values), dtype=np.float64), dates=True)
    if kind == "f":
        return Continuous(title, values.astype(np.float64), dates=False)
    if kind not in "iubUST":
        raise InvalidTypeError(
            f"labels has dtype {values.dtype}; expected text, numbers, booleans or dates"
        )
    found, codes = np.unique(values, return_inverse=True)
    if kind in "iu" and len(found) > MOST_WHOLE_NUMBERS:
        return Continuous(title, values.astype(np.float64), dates=False)
    names = [one.decode(errors="replace") if isinstance(one, bytes) else str(one) for one in found]
    return _categories(title, names, codes)


def _categories(title: str, names: list[str], codes: np.ndarray[Any, Any]) -> Categories:
    """Categories in the given order, with empty text as missing."""
    absent = names.index("") if "" in names else None
    if absent is not None:
        codes = np.where(codes == absent, -1, codes - (codes > absent))
        names = names[:absent] + names[absent + 1 :]
    if len(names) > MOST_CATEGORIES:
        raise InvalidInputError(
            f"labels has {len(names)} different values; at most {MOST_CATEGORIES} can be told "
            "apart. Group them, or pass numbers: labels=values.astype(float)"
        )
    return Categories(title, tuple(names), codes)


def _from_objects(values: np.ndarray[Any, Any]) -> tuple[np.ndarray[Any, Any], str]:
    """Python objects as numbers if all are numbers, else as text; None and NaN are missing."""
    entries = values.tolist()
    gone = [_absent(one) for one in entries]
    real = [one for one, no in zip(entries, gone, strict=True) if not no]
    if real and all(isinstance(one, Real) and not isinstance(one, bool) for one in real):
        if len(real) == len(entries) and all(isinstance(one, Integral) for one in real):
            return np.array(entries, dtype=np.int64), "i"
        numbers = [np.nan if no else float(one) for one, no in zip(entries, gone, strict=True)]
        return np.array(numbers), "f"
    text = ["" if no else str(one) for one, no in zip(entries, gone, strict=True)]
    return np.array(text, dtype=np.str_), "U"


def _absent(one: Any) -> bool:
    """None, NaN, or pandas' NA and NaT, which must not be compared."""
    if one is None or (isinstance(one, float) and one != one):
        return True
    return type(one).__name__ in ("NAType", "NaTType")


# Very many points.

CELLS = (480, 360)  # along x and y
FAINTEST = 0.35  # opacity of a cell with one point: single samples stay visible
CHI2_95 = 5.991464547107979  # 95 % quantile of chi-squared with two degrees of freedom


def draw_density(
    ax: Axes, points: Array, colours: Categories | Continuous | None, key: bool = True
) -> None:
    """Draw (2, n) points as an image; opacity is the logarithm of their number in a cell.

    key : whether to draw the legend or the colourbar.

    A cell of several categories has the mean of their colours, weighted by their numbers; of
    values that are coloured along a scale, their mean.
    Cost: one pass over the points for each category; 12 MB.
    """
    low, high = _limits(points)
    inside = np.asarray(np.isfinite(points).all(axis=0))
    cell = _cells(points[:, inside], low, high)
    counts = np.bincount(cell, minlength=CELLS[0] * CELLS[1]).astype(np.float64)
    image = np.zeros((len(counts), 4))
    image[:, :3] = _colour_of_cells(cell, counts, colours, inside)
    most = np.log1p(counts.max(initial=1.0))
    strength = FAINTEST + (1 - FAINTEST) * np.log1p(counts) / most
    image[:, 3] = np.where(counts > 0, strength, 0.0)
    ax.imshow(
        image.reshape(CELLS[1], CELLS[0], 4),
        extent=(low[0], high[0], low[1], high[1]),
        origin="lower",
        aspect="auto",
        interpolation="nearest",
        zorder=1,
    )
    if key and isinstance(colours, Categories):
        colours.draw_legend(ax, markers=False)
    elif key and isinstance(colours, Continuous):
        colours.draw_bar(ax, _scale_of(cell, colours.values[inside])[1], 2)


def _limits(points: Array) -> tuple[Array, Array]:
    """The corners of the image, a little beyond the points."""
    low, high = np.nanmin(points, axis=1), np.nanmax(points, axis=1)
    room = np.where(high > low, 0.03 * (high - low), 0.5)
    return low - room, high + room


def _cells(points: Array, low: Array, high: Array) -> Array:
    """(n,) the number of the cell of each point."""
    scale = np.array(CELLS) / (high - low)
    column, row = (
        np.minimum(((points[d] - low[d]) * scale[d]).astype(np.int64), CELLS[d] - 1) for d in (0, 1)
    )
    return np.asarray(row * CELLS[0] + column)


def _colour_of_cells(
    cell: Array, counts: Array, colours: Categories | Continuous | None, inside: Array
) -> Array:
    """(cells, 3) mean colour of the points of each."""
    from matplotlib.colors import to_rgb

    filled = np.maximum(counts, 1.0)[:, None]
    if colours is None:
        return np.broadcast_to(to_rgb(PALETTE[0]), (len(counts), 3))
    if isinstance(colours, Categories):
        codes, total = colours.codes[inside], np.zeros((len(counts), 3))
        for code in np.unique(codes):
            own = np.bincount(cell[codes == code], minlength=len(counts))
            total += own[:, None] * np.array(to_rgb(colours.colour(int(code))))
        return np.asarray(total / filled)
    mean, drawn = _scale_of(cell, colours.values[inside])
    return np.asarray(drawn.to_rgba(mean)[:, :3])


def _scale_of(cell: Array, values: Array) -> tuple[Array, Any]:
    """(cells,) the mean value in each, and the colour scale of them."""
    from matplotlib.cm import ScalarMappable
    from matplotlib.colors import Normalize

    known, cells = np.isfinite(values), CELLS[0] * CELLS[1]
    total = np.bincount(cell[known], weights=values[known], minlength=cells)
    number = np.bincount(cell[known], minlength=cells)
    mean = np.divide(total, number, out=np.full(cells, np.nan), where=number > 0)
    shown = mean[number > 0]
    limits = (shown.min(), shown.max()) if len(shown) else (0.0, 1.0)
    return mean, ScalarMappable(Normalize(*limits), Continuous.colours())


def draw_ellipses(ax: Axes, points: Array, groups: Categories) -> None:
    """The ellipse of each category that holds 95 % of a normal distribution, and its name.

    Categories of fewer than 3 points have none.
    """
    from matplotlib.patches import Ellipse
    from matplotlib.patheffects import withStroke

    for code, name in enumerate(groups.names):
        own = points[:, groups.codes == code]
        own = own[:, np.isfinite(own).all(axis=0)]
        if own.shape[1] < 3:
            continue
        values, vectors = np.linalg.eigh(np.cov(own))
        width, height = 2 * np.sqrt(CHI2_95 * np.maximum(values[::-1], 0.0))
        angle = np.degrees(np.arctan2(vectors[1, 1], vectors[0, 1]))
        centre = own.mean(axis=1)
        ax.add_patch(
            Ellipse(
                tuple(centre),
                width,
                height,
                angle=angle,
                fill=False,
                linewidth=1.4,
                edgecolor=groups.colour(code),
                zorder=3,
            )
        )
        ax.annotate(
            name,
            (centre[0], centre[1] + np.sqrt(CHI2_95 * np.cov(own)[1, 1])),
            (0, 2),
            textcoords="offset points",
            ha="center",
            va="bottom",
            zorder=4,
            color=INK,
            fontsize="small",
            path_effects=[withStroke(linewidth=2.5, foreground="white")],
            parse_math=False,
        )
