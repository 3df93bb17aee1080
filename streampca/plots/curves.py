"""Curves over the number of components: scree plot, R^2, and the error on held-out cells."""

from __future__ import annotations

import textwrap
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from streampca.errors import InvalidInputError, InvalidTypeError
from streampca.plots.canvas import (
    FAINT,
    INK,
    MUTED,
    PALETTE,
    at_most,
    checked_axes,
    counting_ticks,
    drawing_axes,
    has_result,
    result_of,
)

if TYPE_CHECKING:
    from matplotlib.axes import Axes


# --------------------------------------------------------------------------------------------------
# Scree plot: the variance share of each component, and their running sum.

SHARE_TOPS = (0.01, 0.02, 0.025, 0.05, 0.1, 0.2, 0.25, 0.5, 1.0)  # each has five round steps
BAR = "#7fb8d8"  # the palette's blue, pale enough for the line to show on it
SHOWN = 50  # bars by default: more would be too thin


def scree(result: Any, ax: Axes | None = None, *, n: int | None = None) -> Axes:
    """Share of the TOTAL variance of each component as bars, their running sum as a line.

    result : a fitted estimator or a Decomposition.
    n : how many components from the first; None shows at most 50.

    The left axis is scaled to the shares, so that an elbow among small ones is visible; the line
    has the right axis, 0 to 100 %, on the same grid. Returns the left Axes; the right one is
    ``ax.figure.axes[-1]``.
    Raises InvalidInputError, InvalidTypeError, NotFittedError; MissingDependencyError.

    Source: Cattell 1966, "The scree test for the number of factors".
    """
    found = result_of(result)
    count = at_most(SHOWN if n is None else n, found.n_components, "components")
    checked_axes(ax)
    if not count:
        raise InvalidInputError(
            "the result has no components to show; fit with n_components=1 or more. For a "
            "completion, plots.validation shows why it keeps none"
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
    """Draw the running sum on an axis of its own, and write its last value."""
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
    # a running sum never falls, so the line leaves the space above its last point free
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


# --------------------------------------------------------------------------------------------------
# R^2 over the number of components, for one or several sets of rows.

STYLES = ("-", "--", ":", "-.")  # besides colour, for print and for colour-blind readers


def r2(curve: Any, ax: Axes | None = None) -> Axes:
    """Share of the variance that 0, 1, ..., k components explain.

    curve : (k + 1,) from ``pca.r2_curve(X)``; a fitted estimator or a Decomposition (for its
        training rows); or several of these by name: ``{"training": pca, "new": pca.r2_curve(X)}``.

    For new rows a curve may fall below 0. Lengths may differ.
    Raises InvalidInputError, InvalidTypeError, NotFittedError; MissingDependencyError.
    """
    named = curve if isinstance(curve, Mapping) else {"": curve}
    if not named:
        raise InvalidInputError("no curve; expected one or more: {'new': pca.r2_curve(X)}")
    curves = {str(name): _checked(one, str(name)) for name, one in named.items()}
    checked_axes(ax)

    drawn = drawing_axes(ax, (6.0, 4.0))
    drawn.grid(axis="y", color=FAINT, linewidth=0.7)
    last = max(len(values) for values in curves.values()) - 1
    lines = []
    for i, values in enumerate(curves.values()):
        lines += drawn.plot(
            np.arange(len(values)),
            values,
            color=PALETTE[i % len(PALETTE)],
            linewidth=1.6,
            linestyle=STYLES[i % len(STYLES)],
            marker="o" if last <= 30 else "",
            markersize=4,
            clip_on=False,
        )
    lowest = min(float(values.min()) for values in curves.values())
    if lowest < 0:
        drawn.axhline(0.0, color=MUTED, linewidth=0.8)
    drawn.set_ylim(1.05 * lowest if lowest < 0 else 0.0, 1.0)
    drawn.set_xlim(0, max(last, 1))
    drawn.set_xticks(counting_ticks(0, last))
    drawn.set_xlabel("Number of components")
    drawn.set_ylabel("R² (share of variance carried)")
    if isinstance(curve, Mapping):
        legend = drawn.legend(
            lines, list(curves), loc="lower right", frameon=False, labelcolor=INK, fontsize="small"
        )
        for text in legend.get_texts():
            text.set_parse_math(False)
    return drawn


def baselines(found: Any, ax: Axes | None = None) -> Axes:
    """R^2 of PCA beside random projection, random features and highest-variance features.

    found : what :func:`streampca.r2_baselines` returned. A band of one standard deviation lies
        around what was drawn at random.
    Returns the Axes. Raises InvalidTypeError; MissingDependencyError.
    """
    if not hasattr(found, "curves") or not hasattr(found, "spread"):
        raise InvalidTypeError(
            f"found is a {type(found).__name__}; expected what r2_baselines(X) returns"
        )
    drawn = r2(found.curves, ax)
    for i, (name, curve) in enumerate(found.curves.items()):
        if name in found.spread:
            low, high = curve - found.spread[name], curve + found.spread[name]
            band = np.clip([low, high], 0.0, 1.0)
            colour = PALETTE[i % len(PALETTE)]
            drawn.fill_between(np.arange(len(curve)), *band, color=colour, alpha=0.15, linewidth=0)
    drawn.set_xlabel("Numbers kept of each row")
    drawn.set_title(f"Rows made again by {found.reconstruction}", fontsize="small", loc="left")
    return drawn


def _checked(curve: Any, name: str) -> np.ndarray[Any, Any]:
    """One curve as float64. Raises InvalidInputError, InvalidTypeError, NotFittedError."""
    said = f"curve {name!r}" if name else "curve"
    if has_result(curve):
        return np.concatenate([[0.0], np.cumsum(result_of(curve).explained_variance_ratio)])
    values = np.asarray(curve)
    if values.dtype.kind not in "iuf":
        raise InvalidTypeError(
            f"{said} is a {type(curve).__name__} of {values.dtype}; expected the numbers of "
            "pca.r2_curve(X), or a fitted estimator"
        )
    if values.ndim != 1 or len(values) < 2:
        raise InvalidInputError(
            f"{said} has shape {values.shape}; expected (k + 1,), from 0 to k components: "
            "pca.r2_curve(X)"
        )
    if not np.isfinite(values).all():
        raise InvalidInputError(f"{said} contains NaN or infinity; expected pca.r2_curve(X)")
    if abs(values[0]) > 1e-6 or values.max() > 1 + 1e-6:
        raise InvalidInputError(
            f"{said} runs from {values[0]:.4g} up to {values.max():.4g}; expected R^2 of 0, 1, "
            "..., k components, which begins with 0 and stays under 1: pca.r2_curve(X)"
        )
    return values.astype(np.float64)


# --------------------------------------------------------------------------------------------------
# The error of a completion on held-out cells, by rank and penalty.


def validation(source: Any, ax: Axes | None = None) -> Axes:
    """Held-out error over the rank, a line for each penalty; for one rank, over the penalty.

    source : a fitted ``HardImpute`` or ``SoftImpute`` with ``validation=``, or its Decomposition.

    A dashed line shows the error without components, by means or biases alone. The chosen candidate
    is marked.
    Raises InvalidInputError, InvalidTypeError, NotFittedError; MissingDependencyError.
    """
    result = result_of(source)
    curve = result.provenance.get("validation") or []
    if not curve or any(one["held_out"] != one["held_out"] for one in curve):
        raise InvalidInputError(
            "no cells were held out of this fit; fit with HardImpute([1, 2, 3], validation=0.05)"
        )
    checked_axes(ax)
    kept = _kept(result, curve)
    without = next((one for one in curve if one["rank"] == 0), None)
    some = [one for one in curve if one["rank"]]
    by_rank = len({one["rank"] for one in some}) != 1 or len(some) == 1
    along, group_by = ("rank", "penalty") if by_rank else ("penalty", "rank")

    drawn = drawing_axes(ax, (6.0, 4.0))
    drawn.grid(axis="y", color=FAINT, linewidth=0.7)
    groups = sorted({one[group_by] for one in some})
    for i, group in enumerate(groups):
        line = sorted((one[along], one["held_out"]) for one in some if one[group_by] == group)
        drawn.plot(*zip(*line, strict=True), color=PALETTE[i % len(PALETTE)], marker="o",
                   markersize=4, linewidth=1.6, label=f"{group_by} {group:.4g}")  # fmt: skip
    if without is not None:
        drawn.axhline(without["held_out"], color=INK, linewidth=1.0, linestyle="--",
                      label="no components")  # fmt: skip
    drawn.plot([kept[along]], [kept["held_out"]], "o", markersize=11, fillstyle="none", color=INK)
    if by_rank:
        drawn.set_xticks(sorted({one["rank"] for one in curve}))
    drawn.set_xlabel("Rank" if by_rank else "Penalty")
    drawn.set_ylabel("Root mean square error, held-out cells")
    if len(groups) > 1 or without is not None:
        drawn.legend(frameon=False, labelcolor=INK, fontsize="small")
    return drawn


def _kept(result: Any, curve: list[dict[str, Any]]) -> dict[str, Any]:
    """The candidate that the fit chose."""
    kept = (result.settings["rank"], result.penalty)
    least = min(curve, key=lambda one: one["held_out"])
    return next((one for one in curve if (one["rank"], one["penalty"]) == kept), least)


# --------------------------------------------------------------------------------------------------
# The spectrum, with the numbers of dimensions of the flat space and of the data.


def dimension(found: Any, ax: Axes | None = None) -> Axes:
    """Variances of the components on a logarithmic axis, with rank and intrinsic dimension.

    found : what :func:`streampca.intrinsic_dimension` returned; its verdict is the title.
    Returns the Axes. Raises InvalidTypeError, InvalidInputError; MissingDependencyError.
    """
    if not hasattr(found, "verdict"):
        raise InvalidTypeError(
            f"found is a {type(found).__name__}; expected what intrinsic_dimension(X) returns"
        )
    checked_axes(ax)
    variance = found.explained_variance[found.explained_variance > 0]
    axes = drawing_axes(ax, (7.0, 4.0))
    axes.grid(axis="y", color=FAINT, linewidth=0.7)
    axes.semilogy(np.arange(1, len(variance) + 1), variance, color=PALETTE[0], marker="o",
                  markersize=4, linewidth=1.5)  # fmt: skip
    lines = ((found.flat, "flat space", PALETTE[4], "--"),
             (found.dimension, f"{found.method}: {found.dimension:.3g}", INK, "-"))  # fmt: skip
    for place, name, colour, style in lines:
        if np.isfinite(place):
            axes.axvline(place, color=colour, linewidth=1.2, linestyle=style, label=name)
    axes.set_xlabel("Component")
    axes.set_ylabel("Variance")
    axes.legend(frameon=False)
    axes.set_title("\n".join(textwrap.wrap(found.verdict, 80)), fontsize="small", loc="left")
    return axes
