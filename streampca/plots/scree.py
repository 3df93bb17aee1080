"""Scree plot: how much each component carries, and how much they carry together."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from streampca.errors import InvalidInputError
from streampca.plots.canvas import (
    FAINT,
    INK,
    MUTED,
    PALETTE,
    checked_axes,
    counting_ticks,
    drawing_axes,
)
from streampca.plots.checks import at_most, result_of

if TYPE_CHECKING:
    from matplotlib.axes import Axes

SHARE_TOPS = (0.01, 0.02, 0.025, 0.05, 0.1, 0.2, 0.25, 0.5, 1.0)  # five even steps read well
BAR = "#7fb8d8"  # the palette's blue, pale enough for the line to be seen on it
SHOWN = 50  # bars of a picture that was not told how many: more are too thin to tell apart


def scree(result: Any, ax: Axes | None = None, *, n: int | None = None) -> Axes:
    """Share of the TOTAL variance of each component as bars, their running sum as a line.

    result : a fitted estimator or a Decomposition.
    n : how many components from the first; None shows at most 50.

    Small shares get a left axis of their own, so that an elbow among them is visible; the line has
    the right one, 0 to 100 %, on the same grid. Returns the left Axes; the right one is
    ``ax.figure.axes[-1]``.
    Raises InvalidInputError, InvalidTypeError, NotFittedError; MissingDependencyError.

    Source: Cattell 1966, "The scree test for the number of factors".
    """
    found = result_of(result)
    count = at_most(SHOWN if n is None else n, found.n_components, "components")
    checked_axes(ax)
    if not count:
        raise InvalidInputError(
            "the result has no components to show; fit with n_components=1 or more. Why a "
            "completion keeps none, plots.validation shows"
        )
    shares = found.explained_variance_ratio[:count]
    numbers = np.arange(1, count + 1)

    bars = drawing_axes(ax, (7.0, 4.0))
    bars.grid(axis="y", color=FAINT, linewidth=0.7)
    bars.bar(numbers, shares, width=0.75, color=BAR)
    bars.set_xlim(0.4, count + 0.6)
    largest = shares.max(initial=0.0)
    _as_percent(bars, next((top for top in SHARE_TOPS if top >= largest > 0), 1.0))
    bars.set_xticks(counting_ticks(1, count))
    all_shown = count == found.n_components
    of = "" if all_shown else f" (first {count} of {found.n_components:,})"
    bars.set_xlabel(f"Component{of}")
    bars.set_ylabel("Share of total variance", color=PALETTE[0])
    _draw_sum(bars, numbers, np.cumsum(shares))
    return bars


def _draw_sum(bars: Axes, numbers: np.ndarray[Any, Any], sums: np.ndarray[Any, Any]) -> None:
    """The running sum on an axis of its own, with its last value written out."""
    from matplotlib.patheffects import withStroke

    line = bars.twinx()
    colour = PALETTE[4]
    line.plot(
        numbers,
        sums,
        color=colour,
        linewidth=1.5,
        marker="o" if len(sums) <= 30 else "",
        markersize=4,
        clip_on=False,
    )
    _as_percent(line, 1.0)
    line.set_ylabel("Cumulative share", color=colour)
    line.tick_params(colors=MUTED, labelcolor=INK, labelsize="small", length=3)
    for side, spine in line.spines.items():
        spine.set_visible(side == "right")
        spine.set_color(MUTED)
    # a running sum never falls: up and left of its last point there is no line
    halo = [withStroke(linewidth=3, foreground="white")]
    line.annotate(
        f"{100 * sums[-1]:.1f} %",
        (numbers[-1], sums[-1]),
        xytext=(2, 5),
        textcoords="offset points",
        ha="right",
        va="bottom",
        color=colour,
        fontsize="small",
        annotation_clip=False,
        path_effects=halo,
    )


def _as_percent(ax: Axes, top: float) -> None:
    from matplotlib.ticker import PercentFormatter

    ax.set_ylim(0.0, top)
    ax.set_yticks(np.linspace(0.0, top, 6))
    ax.yaxis.set_major_formatter(PercentFormatter(xmax=1.0, symbol=" %"))
