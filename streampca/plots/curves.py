"""Curves: R^2 and held-out errors over the number of components, sweeps of a completion."""

from __future__ import annotations

from collections.abc import Mapping
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
from streampca.plots.presented import is_model, presented, refuse_other

if TYPE_CHECKING:
    from matplotlib.axes import Axes

Array = np.ndarray[Any, Any]

# R^2 over the number of components, for one or several sets of rows.

STYLES = ("-", "--", ":", "-.")  # besides colour, for print and for colour-blind readers
TOPS = (0.25, 0.5, 1.0)  # of an axis of shares


def r2(curve: Any, ax: Axes | None = None, *, held_out: Any = None) -> Axes:
    """Share of the variance that 0, 1, ..., k components explain.

    curve : (k + 1,) from ``pca.r2_curve(X)``; a fitted estimator or a Decomposition (for its
        training rows); or several of these by name: ``{"training": pca, "new": pca.r2_curve(X)}``.
    held_out : the curve of rows that the fit has not seen, ``pca.r2_curve(X_new)``, drawn too.

    For new rows a curve may fall below 0. Lengths may differ.
    Raises InvalidInputError, InvalidTypeError, NotFittedError; MissingDependencyError.

    Examples
    --------
    >>> import numpy as np
    >>> from streampca import PCA, plots
    >>> X = np.random.default_rng(0).normal(size=(50, 6)) * [3, 3, 2, 1, 1, 1]
    >>> model = PCA(3).fit(X)
    >>> new = np.random.default_rng(1).normal(size=(20, 6))
    >>> plots.r2({'fit': model, 'new rows': model.r2_curve(new)})
    <Axes: ...>
    """
    named = dict(curve) if isinstance(curve, Mapping) else {"": curve}
    if held_out is not None:
        named = {name or "rows of the fit": value for name, value in named.items()}
        named |= {"held-out rows": held_out}
    if not named:
        raise InvalidInputError("no curve; expected one or more: {'new': pca.r2_curve(X)}")
    curves = {str(name): _checked(value, str(name)) for name, value in named.items()}

    drawn = drawing_axes(ax, (6.0, 4.0), grid="y")
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
    largest = max(float(values.max()) for values in curves.values())
    top = next((one for one in TOPS if one >= largest), 1.0)
    drawn.set_ylim(1.05 * lowest if lowest < 0 else 0.0, top)
    drawn.set_xlim(0, max(last, 1))
    drawn.set_xticks(counting_ticks(0, last))
    drawn.set_xlabel("Number of components")
    drawn.set_ylabel("R² (share of variance explained)")
    if len(named) > 1 or "" not in named:
        legend_beside(drawn, lines, list(curves))
    state(drawn, _said(curves))
    return drawn


def _said(curves: Mapping[str, Array]) -> str:
    """What the first curve reaches, and where another is best."""
    (name, values), *others = curves.items()
    of = f" of {name}" if name else ""
    words = [f"{len(values) - 1} components carry {100 * values[-1]:.1f} % of the variance{of}"]
    for other, found in others:
        best = int(np.argmax(found))
        words.append(f"of {other} {100 * found[best]:.1f} %, with {best} of them")
    return "; ".join(words)


def baselines(found: Any, ax: Axes | None = None) -> Axes:
    """R^2 of PCA, random projection, random features and highest-variance features.

    found : what :func:`streampca.r2_baselines` returned. A band of one standard deviation lies
        around what was drawn at random.
    Returns the Axes. Raises InvalidTypeError; MissingDependencyError.

    Examples
    --------
    >>> import numpy as np
    >>> from streampca import plots, r2_baselines
    >>> X = np.random.default_rng(0).normal(size=(50, 6))
    >>> plots.baselines(r2_baselines(X, 3, n_draws=2)).get_title('left')
    'Rows made again by projection'
    """
    refuse_other(found, "baselines", "r2_baselines(X)")
    drawn = r2(found.curves, ax)
    for i, (name, curve) in enumerate(found.curves.items()):
        if name in found.spread:
            low, high = curve - found.spread[name], curve + found.spread[name]
            band = np.clip([low, high], 0.0, 1.0)
            colour = PALETTE[i % len(PALETTE)]
            drawn.fill_between(np.arange(len(curve)), *band, color=colour, alpha=0.15, linewidth=0)
    drawn.set_xlabel("Numbers kept of each row")
    state(drawn, f"Rows made again by {found.reconstruction}")
    return drawn


def _checked(curve: Any, name: str) -> Array:
    """One curve as float64. Raises InvalidInputError, InvalidTypeError, NotFittedError."""
    said = f"curve {name!r}" if name else "curve"
    if is_model(curve) or hasattr(curve, "result_"):
        shown = presented(curve)
        shares = shown.required(shown.shares, "shares of a variance")
        return np.concatenate([[0.0], np.cumsum(shares)])
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


# The error of a completion on held-out cells, by rank and penalty.


def validation(source: Any, ax: Axes | None = None) -> Axes:
    """Held-out error over the rank, a line for each penalty; for one rank, over the penalty.

    source : a fitted ``HardImpute`` or ``SoftImpute`` with ``validation=``, or its Decomposition.

    A dashed line shows the error without components, by means or biases alone. The chosen candidate
    is marked.
    Raises InvalidInputError, InvalidTypeError, NotFittedError; MissingDependencyError.

    Examples
    --------
    >>> import numpy as np
    >>> from streampca import HardImpute, plots
    >>> rng = np.random.default_rng(0)
    >>> X = np.outer(rng.normal(size=40), rng.normal(size=8)) + 0.1 * rng.normal(size=(40, 8))
    >>> X[::5, 2] = np.nan
    >>> model = HardImpute([1, 2], validation=0.1, tol=0.1, random_state=0).fit(X)
    >>> plots.validation(model).get_xlabel()
    'Rank'
    """
    candidates = presented(source).candidates
    if not candidates:
        raise InvalidInputError(
            "no cells were held out of this fit; fit with HardImpute([1, 2, 3], validation=0.05)"
        )
    chosen, without = candidates[0], next((one for one in candidates if not one["rank"]), None)
    some = [candidate for candidate in candidates if candidate["rank"]]
    by_rank = len({one["rank"] for one in some}) != 1 or len(some) == 1
    along, group_by = ("rank", "penalty") if by_rank else ("penalty", "rank")

    drawn = drawing_axes(ax, (6.0, 4.0), grid="y")
    groups = sorted({one[group_by] for one in some})
    for i, group in enumerate(groups):
        line = sorted((one[along], one["held_out"]) for one in some if one[group_by] == group)
        drawn.plot(
            *zip(*line, strict=True),
            color=PALETTE[i % len(PALETTE)],
            marker="o",
            markersize=4,
            linewidth=1.6,
            label=f"{group_by} {group:.4g}",
        )
    if without is not None:
        drawn.axhline(
            without["held_out"], color=INK, linewidth=1.0, linestyle="--", label="no components"
        )
    drawn.plot(
        [chosen[along]], [chosen["held_out"]], "o", markersize=11, fillstyle="none", color=INK
    )
    if by_rank:
        drawn.set_xticks(sorted({candidate["rank"] for candidate in candidates}))
    drawn.set_xlabel("Rank" if by_rank else "Penalty")
    drawn.set_ylabel("Root mean square error, held-out cells")
    if len(groups) > 1 or without is not None:
        legend_beside(drawn)
    state(
        drawn,
        f"The held-out error is least, {chosen['held_out']:.4g}, at rank {chosen['rank']}, "
        f"penalty {chosen['penalty']:.4g}",
    )
    return drawn


# The sweeps of a completion.


def sweeps(source: Any, ax: Axes | None = None) -> Axes:
    """The objective of a completion after each sweep, on a logarithmic axis.

    source : a fitted ``HardImpute`` or ``SoftImpute``, or its Decomposition.

    The objective is the sum of the squared residuals of the observed cells, in standardised units,
    with its penalty: every sweep lowers it. Where cells were held out, their error is the second
    line, on the same axis as a share of its first value: both begin with 1. Sweeps that use these
    cells too are not shown.
    Raises InvalidInputError, InvalidTypeError, NotFittedError; MissingDependencyError.
    Source: Mazumder, Hastie and Tibshirani 2010, JMLR 11, section 8.

    Examples
    --------
    >>> import numpy as np
    >>> from streampca import HardImpute, plots
    >>> rng = np.random.default_rng(0)
    >>> X = np.outer(rng.normal(size=40), rng.normal(size=8)) + 0.1 * rng.normal(size=(40, 8))
    >>> X[::5, 2] = np.nan
    >>> plots.sweeps(HardImpute(1, tol=0.01).fit(X)).get_xlabel()
    'Sweep'
    """
    found = presented(source).sweeps
    if found is None:
        raise InvalidInputError(
            "this fit made no sweeps; plots.sweeps shows a completion: HardImpute(5).fit(X)"
        )
    drawn = drawing_axes(ax, (6.0, 4.0), grid="y")
    logarithmic(drawn)
    for i, (name, shares) in enumerate(found.shares.items()):
        drawn.plot(
            found.numbers,
            shares,
            color=PALETTE[4 * i],
            marker="o",
            markersize=4,
            linewidth=1.6,
            linestyle=STYLES[i],
            label=name,
        )
    drawn.set_xticks(counting_ticks(1, max(found.numbers)))
    drawn.set_xlabel("Sweep")
    drawn.set_ylabel("Share of the value after the first sweep")
    legend_beside(drawn)
    state(
        drawn,
        f"{len(found.numbers)} sweeps; the last one changed the estimate by {found.change:.1g} of "
        "its norm",
    )
    return drawn
