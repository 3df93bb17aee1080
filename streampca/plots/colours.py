"""Colours of labelled samples: categories with a legend, numbers and dates with a colourbar."""

from __future__ import annotations

from dataclasses import dataclass, replace
from numbers import Integral, Real
from typing import TYPE_CHECKING, Any

import numpy as np

from streampca.errors import InvalidInputError, InvalidTypeError
from streampca.matrix import AxisLabels
from streampca.matrix.alignment import along
from streampca.plots.canvas import PALETTE, legend_beside, style_bar

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
    codes: Array
    missing: str = MISSING

    def take(self, order: Array) -> Categories:
        """The labels of some samples; the legend keeps all."""
        return replace(self, codes=self.codes[order])

    def draw(self, ax: Axes, points: Array, style: dict[str, Any], legend: bool = True) -> None:
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
        legend_beside(
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
    values: Array
    dates: bool

    def take(self, order: Array) -> Continuous:
        """The labels of some samples."""
        return Continuous(self.title, self.values[order], self.dates)

    def draw(self, ax: Axes, points: Array, style: dict[str, Any]) -> None:
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
        style_bar(bar, self.title)
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


def _categories(title: str, names: list[str], codes: Array) -> Categories:
    """Categories in this order, with empty text as missing."""
    absent = names.index("") if "" in names else None
    if absent is not None:
        codes = np.where(codes == absent, -1, codes - (codes > absent))
        names = names[:absent] + names[absent + 1 :]
    if len(names) > MOST_CATEGORIES:
        raise InvalidInputError(
            f"labels has {len(names)} different values; at most {MOST_CATEGORIES} can be "
            "distinguished. Group them, or pass numbers: labels=values.astype(float)"
        )
    return Categories(title, tuple(names), codes)


def _from_objects(values: Array) -> tuple[Array, str]:
    """Python objects as numbers if all are numbers, else as text; None and NaN are missing."""
    entries = values.tolist()
    gone = [_absent(entry) for entry in entries]
    real = [entry for entry, no in zip(entries, gone, strict=True) if not no]
    if real and all(isinstance(one, Real) and not isinstance(one, bool) for one in real):
        if len(real) == len(entries) and all(isinstance(one, Integral) for one in real):
            return np.array(entries, dtype=np.int64), "i"
        numbers = [np.nan if no else float(entry) for entry, no in zip(entries, gone, strict=True)]
        return np.array(numbers), "f"
    text = ["" if no else str(entry) for entry, no in zip(entries, gone, strict=True)]
    return np.array(text, dtype=np.str_), "U"


def _absent(one: Any) -> bool:
    """None, NaN, or pandas' NA and NaT, which must not be compared."""
    if one is None or (isinstance(one, float) and one != one):
        return True
    return type(one).__name__ in ("NAType", "NaTType")
