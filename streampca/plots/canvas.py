"""Where a picture is drawn, and in which colours: Matplotlib on first use, one restrained look."""

from __future__ import annotations

import textwrap
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from streampca.errors import InvalidInputError, InvalidTypeError, MissingDependencyError, not_fitted
from streampca.models.decomposition import Decomposition

if TYPE_CHECKING:
    from matplotlib.axes import Axes
from dataclasses import dataclass
from numbers import Integral, Real

# --------------------------------------------------------------------------------------------------
# Checks of the input, before anything is drawn.


def result_of(source: Any) -> Decomposition:
    """A Decomposition, or that of a fitted estimator. Raises NotFittedError, InvalidTypeError."""
    if isinstance(source, Decomposition):
        return source
    result = getattr(source, "result_", None)
    if isinstance(result, Decomposition):
        return result
    if hasattr(source, "fit") and not isinstance(source, type):
        raise not_fitted(type(source).__name__)
    raise InvalidTypeError(
        f"got {_kind(source)}; expected a fitted estimator or a Decomposition: PCA().fit(X)"
    )


def has_result(source: Any) -> bool:
    """Whether ``result_of`` applies: to a Decomposition, or any estimator."""
    return isinstance(source, Decomposition) or hasattr(source, "fit")


def component_index(number: Any, result: Decomposition) -> int:
    """Index from 0 of a component that is numbered from 1. Raises InvalidInputError."""
    k = result.n_components
    have = "1 component" if k == 1 else f"components 1 to {k}"
    if not _is_count(number):
        raise InvalidInputError(f"component={number!r}; expected a whole number from 1")
    if number < 1:
        raise InvalidInputError(
            f"component={number}; components are numbered from 1, and the result has {have}"
        )
    if number > k:
        raise InvalidInputError(
            f"component={number} is not there; the result has {have}. "
            f"Fit again with n_components={number}, or choose another."
        )
    return int(number) - 1


def at_most(n: Any, available: int, what: str) -> int:
    """The smaller of n and what is available. Raises InvalidInputError."""
    if not _is_count(n) or n < 1:
        raise InvalidInputError(f"n={n!r}; expected how many {what} to show, 1 or more")
    return min(int(n), available)


def component_name(index: int, result: Decomposition, what: str = "PC") -> str:
    """``PC1 (12.3 %)``."""
    return f"{what}{index + 1} ({100 * result.explained_variance_ratio[index]:.1f} %)"


def _is_count(number: Any) -> bool:
    return isinstance(number, (int, np.integer)) and not isinstance(number, bool)


def _kind(source: Any) -> str:
    return f"the class {source.__name__}" if isinstance(source, type) else type(source).__name__


# --------------------------------------------------------------------------------------------------
# Matplotlib, loaded on first use, and one style.

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


def drawing_axes(ax: Any, size: tuple[float, float], *, dimensions: int = 2) -> Axes:
    """``ax``, or the Axes of a new figure of ``size`` inches, in the style of this package."""
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
    from matplotlib.ticker import LogLocator, NullFormatter

    ax.set_yscale("log")
    ax.yaxis.set_major_locator(LogLocator(subs=(1.0, 2.0, 5.0), numticks=8))
    ax.yaxis.set_major_formatter(lambda value, _: f"{value:g}")
    ax.yaxis.set_minor_formatter(NullFormatter())


def beside(ax: Axes, handles: Any, names: Sequence[str], **options: Any) -> Any:
    """A legend to the right of the picture, whose names are text and not mathematics."""
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
    ax: Any, count: int, size: tuple[float, float], columns: int, gap: tuple[float, float]
) -> tuple[Axes, list[Axes]]:
    """(frame, panels): an Axes without content, and so many inside it, row by row.

    size : of one panel in inches, where the figure is made here.
    gap : shares of the width and height of a panel that are left free beside and above it.
    """
    checked_axes(ax)
    columns = min(count, columns)
    rows = -(-count // columns)
    if ax is None:
        figure = pyplot().figure(figsize=(size[0] * columns, size[1] * rows + 0.4))
        ax = figure.add_axes((0.08, 0.06, 0.84, 0.86))
    ax.set_axis_off()
    width, height = 1 / (columns + (columns - 1) * gap[0]), 1 / (rows + (rows - 1) * gap[1])
    places = [divmod(i, columns) for i in range(count)]
    panels = [
        ax.inset_axes((
            column * width * (1 + gap[0]), 1 - height - row * height * (1 + gap[1]), width, height
        ))
        for row, column in places
    ]  # fmt: skip
    return ax, panels


MARKERS = ("o", "^", "s", "D", "v", "P")  # each is combined with every colour
MOST_CATEGORIES = len(PALETTE) * len(MARKERS)
MOST_WHOLE_NUMBERS = 12  # up to so many different integers are categories (clusters, say)
MISSING, MISSING_COLOUR = "missing", "#b5b5b5"


@dataclass(frozen=True)
class Categories:
    """names : in the order of the legend.  codes : (n,) index into names, -1 = missing."""

    title: str
    names: tuple[str, ...]
    codes: np.ndarray[Any, Any]

    def take(self, order: np.ndarray[Any, Any]) -> Categories:
        """The labels of some samples; the legend keeps all."""
        return Categories(self.title, self.names, self.codes[order])

    def draw(self, ax: Axes, points: np.ndarray[Any, Any], style: dict[str, Any]) -> None:
        """Scatter with a colour and marker per category, and the legend."""
        from matplotlib.colors import to_rgba

        table = np.array([to_rgba(self.colour(i)) for i in (*range(len(self.names)), -1)])
        kinds = np.where(self.codes < 0, 0, self.codes // len(PALETTE))
        for kind in np.unique(kinds):
            here = kinds == kind
            look = style | {"c": table[self.codes[here]], "marker": MARKERS[kind]}
            ax.scatter(*points[:, here], **look)
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
            [MISSING if i < 0 else self.names[i] for i in shown],
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


def colouring(labels: Any, n: int) -> Categories | Continuous:
    """Labels of n samples as categories, or as a scale if they are dates or many numbers.

    Raises InvalidInputError unless there is one label per sample, and for more categories than can
    be distinguished; InvalidTypeError for anything but text, numbers, booleans and dates.
    """
    values = np.asarray(labels)
    if values.shape != (n,):
        came = f"{len(values)} entries" if values.ndim == 1 else f"shape {values.shape}"
        raise InvalidInputError(f"labels has {came}; expected one label per sample, ({n},)")
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
