"""The spectrum: shares of the variance, variances with their bounds, numbers of dimensions."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from streampca.errors import InvalidInputError, InvalidTypeError
from streampca.plots.canvas import (
    FAINT,
    INK,
    MUTED,
    PALETTE,
    at_most,
    beside,
    checked_axes,
    counting_ticks,
    drawing_axes,
    logarithmic,
    state,
)
from streampca.plots.subjects import Subject, carried, result_of

if TYPE_CHECKING:
    from matplotlib.axes import Axes

Array = np.ndarray[Any, Any]

# Scree plot: the variance share of each component.

# of an axis of shares; each has five round steps
SHARE_TOPS = (0.01, 0.015, 0.025, 0.05, 0.075, 0.1, 0.15, 0.25, 0.5, 0.75, 1.0)
SHOWN = 50  # components by default: more would be too thin


def scree(result: Any, ax: Axes | None = None, *, n: int | None = None) -> Axes:
    """Share of the TOTAL variance of each component, as bars on one axis.

    result : a fitted estimator or a Decomposition. Of a CCA canonical correlations are drawn, of an
        MCA shares of the squared covariance.
    n : how many components from the first; None shows at most 50.

    The axis is scaled to the shares, so that an elbow among small ones is visible. The title says
    what they add up to; ``plots.r2`` draws their running sum.
    Raises InvalidInputError, InvalidTypeError, NotFittedError; MissingDependencyError.

    Source: Cattell 1966, "The scree test for the number of factors".
    """
    from matplotlib.ticker import PercentFormatter

    found, count = _shown(result, n)
    checked_axes(ax)
    shares, name = _shares(found)
    shares = shares[:count]
    correlations = name.endswith("correlation")
    bars = drawing_axes(ax, (7.0, 4.0))
    bars.grid(axis="y", color=FAINT, linewidth=0.7)
    bars.bar(np.arange(1, count + 1), shares, width=0.75, color=PALETTE[0])
    largest = shares.max(initial=0.0)
    top = next((top for top in SHARE_TOPS if top >= largest > 0), 1.0)
    bars.set_ylim(0.0, top)
    bars.set_yticks(np.linspace(0.0, top, 6))
    if not correlations:
        bars.yaxis.set_major_formatter(PercentFormatter(xmax=1.0, symbol=" %"))
    _name_components(bars, found, count)
    bars.set_ylabel(name)
    if correlations:
        state(bars, f"{found.method}: the largest canonical correlation is {largest:.3f}")
        return bars
    things = "pairs" if "covariance" in name else "components"
    many = f"The first {count} {things} carry" if count > 1 else f"The first {things[:-1]} carries"
    rest = " that levels of rows and columns leave" * (getattr(found, "row_mean", None) is not None)
    state(bars, f"{many} {carried(found, list(range(count)))}{rest}")
    return bars


def _shares(found: Any) -> tuple[Array, str]:
    """(k,) heights of the bars, and what they are. Refused where there is no total."""
    if isinstance(found, Subject) and found.shares is not None:
        return found.shares
    return found.explained_variance_ratio, "Share of total variance"


def _shown(result: Any, n: int | None) -> tuple[Any, int]:
    """The result, and how many of its components to show. Raises InvalidInputError."""
    found = result_of(result)
    count = at_most(SHOWN if n is None else n, found.n_components, "components")
    if not count:
        raise InvalidInputError(
            "the result has no components to show; fit with n_components=1 or more. For a "
            "completion, plots.validation shows why it keeps none"
        )
    return found, count


def _name_components(ax: Axes, found: Any, count: int) -> None:
    ax.set_xlim(0.4, count + 0.6)
    ax.set_xticks(counting_ticks(1, count))
    all_shown = count == found.n_components
    ax.set_xlabel(
        "Component" if all_shown else f"Component (first {count} of {found.n_components:,})"
    )


# Variances, how certain they are, and the noise below them.


def spectrum(result: Any, ax: Axes | None = None, *, n: int | None = None) -> Axes:
    """Variance of each component on a logarithmic axis, with its certificate and the noise level.

    result : a fitted estimator or a Decomposition.
    n : how many components from the first; None shows at most 50.

    Bars are the certificate's bounds on the error of each variance. A hollow point is a component
    whose direction is not determined: the bound on its angle is a radian or more. The dashed line
    is the noise variance, the mean of the directions that were left out; the dotted one is the
    rounding of the sums, where it lies within the picture.
    Raises InvalidInputError, InvalidTypeError, NotFittedError; MissingDependencyError.

    Source: for the bounds, :class:`streampca.solvers.Certificate`; for the noise, Tipping and
    Bishop 1999, "Probabilistic principal component analysis", eq. 3.8.
    """
    found, count = _shown(result, n)
    checked_axes(ax)
    axes = drawing_axes(ax, (7.0, 4.0))
    axes.grid(axis="y", color=FAINT, linewidth=0.7)
    logarithmic(axes)
    numbers, variance = np.arange(1, count + 1), found.explained_variance[:count]
    certain, shown = _certain(found)[:count], variance > 0
    axes.plot(numbers[shown], variance[shown], color=PALETTE[0], linewidth=1.2, zorder=2)
    handles = []
    for own, face, name in (
        (certain, PALETTE[0], "direction determined"),
        (~certain, "white", "direction not determined"),
    ):
        if (own & shown).any():
            handles += axes.plot(
                numbers[own & shown],
                variance[own & shown],
                "o",
                markersize=6,
                color=PALETTE[0],
                markerfacecolor=face,
                zorder=3,
                label=name,
            )
    handles += _draw_bounds(axes, found, numbers[shown], variance[shown])
    handles += _draw_levels(axes, found, variance[shown])
    _name_components(axes, found, count)
    axes.set_ylabel(found.value if isinstance(found, Subject) else "Variance")
    beside(axes, handles, [str(one.get_label()) for one in handles])
    certificate = found.certificate
    none = f"{found.n_components} components; this result has no certificate"
    state(axes, none if certificate is None else certificate.in_words())
    return axes


def _certain(found: Any) -> Array:
    """(k,) whether the direction of each component is determined; all, without a certificate."""
    if found.certificate is None:
        return np.ones(found.n_components, dtype=np.bool_)
    return np.asarray(found.certificate.determined)


def _draw_bounds(ax: Axes, found: Any, numbers: Array, variance: Array) -> list[Any]:
    if found.certificate is None or not len(variance):
        return []
    bound = found.certificate.variance_bound[numbers - 1]
    below = np.minimum(bound, variance * (1 - 1e-3))  # a logarithmic axis has no 0
    bars = ax.errorbar(
        numbers,
        variance,
        yerr=[below, bound],
        fmt="none",
        ecolor=PALETTE[4],
        elinewidth=1.4,
        capsize=4,
        zorder=2.5,
        label="bound on its error",
    )
    return [bars]


def _draw_levels(ax: Axes, found: Any, variance: Array) -> list[Any]:
    """Lines of the noise, and of the rounding where it is not far below."""
    lines, noise = [], found.noise_variance
    least = float(variance.min(initial=np.inf))
    if noise > 0:
        lines.append(
            ax.axhline(
                noise, color=INK, linewidth=1.0, linestyle="--", label=f"noise variance {noise:.3g}"
            )
        )
    floor = 0.0 if found.certificate is None else found.certificate.floor
    if floor > 1e-3 * min(least, noise or least):
        lines.append(
            ax.axhline(
                floor, color=MUTED, linewidth=1.0, linestyle=":", label=f"rounding {floor:.2g}"
            )
        )
    return lines


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
    axes.semilogy(
        np.arange(1, len(variance) + 1),
        variance,
        color=PALETTE[0],
        marker="o",
        markersize=4,
        linewidth=1.5,
    )
    lines = (
        (found.flat, "flat space", PALETTE[4], "--"),
        (found.dimension, f"{found.method}: {found.dimension:.3g}", INK, "-"),
    )
    for place, name, colour, style in lines:
        if np.isfinite(place):
            axes.axvline(place, color=colour, linewidth=1.2, linestyle=style, label=name)
    axes.set_xlabel("Component")
    axes.set_ylabel("Variance")
    handles, names = axes.get_legend_handles_labels()
    beside(axes, handles, names)
    state(axes, found.verdict)
    return axes
