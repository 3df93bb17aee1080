"""The spectrum: shares of the variance, variances with their bounds, numbers of dimensions."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from streampca.errors import InvalidInputError, InvalidTypeError
from streampca.plots.canvas import (
    INK,
    MUTED,
    PALETTE,
    counting_ticks,
    drawing_axes,
    legend_beside,
    logarithmic,
    state,
)
from streampca.plots.presented import at_most, certain_of, presented, refuse_other
from streampca.report.presentation import Presentation

if TYPE_CHECKING:
    from matplotlib.axes import Axes

Array = np.ndarray[Any, Any]

# Scree plot: the variance share of each component.

# of an axis of shares; each has five round steps
SHARE_TOPS = (0.01, 0.015, 0.025, 0.05, 0.075, 0.1, 0.15, 0.25, 0.5, 0.75, 1.0)
SHOWN = 50  # components by default: more would be too thin


def scree(
    result: Any,
    ax: Axes | None = None,
    *,
    n: int | None = None,
    certainty: Any = None,
    noise: Any = None,
) -> Axes:
    """Share of the TOTAL variance of each component, as bars on one axis.

    result : a fitted estimator or a Decomposition. Of a CCA canonical correlations are drawn, of an
        MCA shares of the squared covariance.
    n : how many components from the first; None shows at most 50.
    certainty : what :func:`streampca.bootstrap` returned: lines over the bars are 95 % intervals
        of the sample.
    noise : what :func:`streampca.noise_test` returned: the grey steps are the 95 % quantiles of
        the shares of noise, and bars that do not rise above them are pale.

    The axis is scaled to the shares, so that an elbow among small ones is visible. The title says
    what they add up to; ``plots.r2`` draws their running sum.
    Raises InvalidInputError, InvalidTypeError, NotFittedError; MissingDependencyError.

    Source: Cattell 1966, "The scree test for the number of factors".

    Examples
    --------
    >>> import numpy as np
    >>> from streampca import PCA, plots
    >>> X = np.random.default_rng(0).normal(size=(50, 6)) * [3, 3, 2, 1, 1, 1]
    >>> model = PCA(3).fit(X)
    >>> plots.scree(model).get_title('left')
    'The first 3 components carry 89.3 % of the variance'
    """
    from matplotlib.ticker import PercentFormatter

    shown, count = _shown(result, n)
    values, name, add_up = shown.scree
    values = values[:count]
    bars = drawing_axes(ax, (7.0, 4.0), grid="y")
    drawn = bars.bar(np.arange(1, count + 1), values, width=0.75, color=PALETTE[0])
    ends = values
    if noise is not None:
        ends = _draw_noise(bars, drawn, values, noise)
    if (sure := certain_of(shown, certainty)) is not None:
        ends = np.append(_draw_sample(bars, values, sure.shares), ends)
    if noise is not None or sure is not None:
        bars.legend(frameon=False, fontsize="small")
    largest = max(values.max(initial=0.0), ends.max(initial=0.0))
    top = next((top for top in SHARE_TOPS if top >= largest > 0), 1.0)
    bars.set_ylim(0.0, top)
    bars.set_yticks(np.linspace(0.0, top, 6))
    _name_components(bars, shown, count)
    bars.set_ylabel(name)
    if not add_up:
        state(bars, f"{shown.method}: the largest {name.lower()} is {largest:.3f}")
        return bars
    bars.yaxis.set_major_formatter(PercentFormatter(xmax=1.0, symbol=" %"))
    first = f"{count} {shown.plural} carry" if count > 1 else f"{shown.plural[:-1]} carries"
    state(bars, f"The first {first} {shown.carries(range(count))}")
    return bars


def _draw_noise(ax: Axes, bars: Any, values: Array, noise: Any) -> Array:
    """Draw quantiles of noise over the bars, and return them.

    Raises InvalidInputError, InvalidTypeError.
    """
    if not hasattr(noise, "quantile") or not hasattr(noise, "p_values"):
        raise InvalidTypeError(
            f"noise is a {type(noise).__name__}; expected what streampca.noise_test(model) returns"
        )
    known = min(len(values), len(noise.shares))
    if not np.array_equal(noise.shares[:known], values[:known]):
        raise InvalidInputError("noise is of another model than the picture")
    ends: Array = noise.quantile()[:known]
    for bar, value, end in zip(bars, values, ends, strict=False):
        bar.set_alpha(1.0 if value > end else 0.35)
    ax.hlines(
        ends,
        np.arange(known) + 0.55,
        np.arange(known) + 1.45,
        color=MUTED,
        linewidth=1.6,
        label=f"{noise.kind} noise, 95 %",
        zorder=2.6,
    )
    return ends


def _shown(result: Any, n: int | None) -> tuple[Presentation, int]:
    """The presentation, and how many of its components to show. Raises InvalidInputError."""
    shown = presented(result)
    count = at_most(SHOWN if n is None else n, shown.n_components, "components")
    if not count:
        raise InvalidInputError(
            "the result has no components to show; fit with n_components=1 or more. For a "
            "completion, plots.validation shows why it keeps none"
        )
    return shown, count


def _name_components(ax: Axes, shown: Presentation, count: int) -> None:
    ax.set_xlim(0.4, count + 0.6)
    ax.set_xticks(counting_ticks(1, count))
    some = "" if count == shown.n_components else f" (first {count} of {shown.n_components:,})"
    ax.set_xlabel(f"Component{some}")


# Variances, how certain they are, and the noise below them.


def spectrum(
    result: Any, ax: Axes | None = None, *, n: int | None = None, certainty: Any = None
) -> Axes:
    """Variance of each component on a logarithmic axis, with its certificate and the noise level.

    result : a fitted estimator or a Decomposition.
    n : how many components from the first; None shows at most 50.
    certainty : what :func:`streampca.bootstrap` returned: wide bars are 95 % intervals of the
        sample.

    Bars are the certificate's bounds on the error of each variance. A hollow point is a component
    whose direction is not determined: the bound on its angle is a radian or more. The dashed line
    is the noise variance, the mean of the directions that were left out; the dotted one is the
    rounding of the sums, where it lies within the picture.
    Raises InvalidInputError, InvalidTypeError, NotFittedError; MissingDependencyError.

    Source: for the bounds, :class:`streampca.solvers.Certificate`; for the noise, Tipping and
    Bishop 1999, "Probabilistic principal component analysis", eq. 3.8.

    Examples
    --------
    >>> import numpy as np
    >>> from streampca import PCA, plots
    >>> X = np.random.default_rng(0).normal(size=(50, 6)) * [3, 3, 2, 1, 1, 1]
    >>> model = PCA(3).fit(X)
    >>> plots.spectrum(model)
    <Axes: ...>
    """
    shown, count = _shown(result, n)
    variance = shown.required(shown.variances, "variances")[:count]
    axes = drawing_axes(ax, (7.0, 4.0), grid="y")
    logarithmic(axes)
    numbers, positive, sure = np.arange(1, count + 1), variance > 0, shown.certainty
    certain = np.ones(count, np.bool_) if sure is None else np.asarray(sure.determined[:count])
    axes.plot(numbers[positive], variance[positive], color=PALETTE[0], linewidth=1.2, zorder=2)
    for own, face, name in (
        (certain & positive, PALETTE[0], "direction determined"),
        (~certain & positive, "white", "direction not determined"),
    ):
        if own.any():
            axes.plot(
                numbers[own],
                variance[own],
                "o",
                markersize=6,
                color=PALETTE[0],
                markerfacecolor=face,
                zorder=3,
                label=name,
            )
    if sure is not None and positive.any():
        _draw_bounds(axes, numbers[positive], variance[positive], sure.bounds[:count][positive])
    if (sampled := certain_of(shown, certainty)) is not None:
        _draw_sample(axes, variance, sampled.variances)
    floor = 0.0 if sure is None else sure.floor
    _draw_levels(axes, shown.noise_variance, floor, float(variance[positive].min(initial=np.inf)))
    _name_components(axes, shown, count)
    axes.set_ylabel(shown.variances_name)
    legend_beside(axes)
    none = f"{shown.n_components} components; this result has no certificate"
    state(axes, none if sure is None else sure.words)
    return axes


def _draw_sample(ax: Axes, values: Array, estimates: Any) -> Array:
    """Intervals of the sample, for the components that have them. Returns their ends, (m, 2)."""
    ends: Array = estimates.interval()[: len(values)]
    known = values[: len(ends)]
    ax.errorbar(
        np.arange(1, len(ends) + 1),
        known,
        yerr=np.maximum([known - ends[:, 0], ends[:, 1] - known], 0.0),
        fmt="none",
        ecolor=INK,
        elinewidth=1.0,
        capsize=2,
        zorder=2.4,
        label="95 % interval of the sample",
    )
    return ends


def _draw_bounds(ax: Axes, numbers: Array, variance: Array, bounds: Array) -> None:
    below = np.minimum(bounds, variance * (1 - 1e-3))  # a logarithmic axis has no 0
    ax.errorbar(
        numbers,
        variance,
        yerr=[below, bounds],
        fmt="none",
        ecolor=PALETTE[4],
        elinewidth=1.4,
        capsize=4,
        zorder=2.5,
        label="bound on its error",
    )


def _draw_levels(ax: Axes, noise: float, floor: float, least: float) -> None:
    """Lines of the noise, and of the rounding where it is not far below the least variance."""
    lines = [(noise, f"noise variance {noise:.3g}", INK, "--")] if noise > 0 else []
    if floor > 1e-3 * min(least, noise or least):
        lines.append((floor, f"rounding {floor:.2g}", MUTED, ":"))
    for level, name, colour, style in lines:
        ax.axhline(level, color=colour, linewidth=1.0, linestyle=style, label=name)


# The spectrum, with the numbers of dimensions of the flat space and of the data.


def dimension(found: Any, ax: Axes | None = None) -> Axes:
    """Variances of the components on a logarithmic axis, with rank and intrinsic dimension.

    found : what :func:`streampca.intrinsic_dimension` returned; its verdict is the title.
    Returns the Axes. Raises InvalidTypeError, InvalidInputError; MissingDependencyError.

    Examples
    --------
    >>> import numpy as np
    >>> from streampca import intrinsic_dimension, plots
    >>> X = np.random.default_rng(0).normal(size=(200, 2)) @ np.ones((2, 5))
    >>> X[:, 0] += np.linspace(0, 9, 200)
    >>> plots.dimension(intrinsic_dimension(X, 'rank'))
    <Axes: ...>
    """
    refuse_other(found, "dimension", "intrinsic_dimension(X)")
    variance = found.explained_variance[found.explained_variance > 0]
    axes = drawing_axes(ax, (7.0, 4.0), grid="y")
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
    legend_beside(axes)
    state(axes, found.verdict)
    return axes
