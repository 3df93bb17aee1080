"""R^2 for every number of components, of one set of rows or of several."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from streampca.errors import InvalidInputError, InvalidTypeError
from streampca.plots.canvas import (
    FAINT,
    INK,
    MUTED,
    PALETTE,
    checked_axes,
    counting_ticks,
    drawing_axes,
)
from streampca.plots.checks import has_result, result_of

if TYPE_CHECKING:
    from matplotlib.axes import Axes

STYLES = ("-", "--", ":", "-.")  # beside colour, for print and for the colour-blind


def r2(curve: Any, ax: Axes | None = None) -> Axes:
    """Share of the variance that 0, 1, ..., k components carry.

    curve : (k + 1,) as ``pca.r2_curve(X)`` gives it; a fitted estimator or a Decomposition (its
        training rows); or several of these by name: ``{"training": pca, "new": pca.r2_curve(X)}``.

    On rows that the fit has not seen a curve may lie under 0. Lengths may differ.
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


def _checked(curve: Any, name: str) -> np.ndarray[Any, Any]:
    """One curve as float64, or what is wrong with it."""
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
