"""How well a completion predicts the cells that were held out of it, by rank and penalty."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from streampca.errors import InvalidInputError
from streampca.plots.canvas import FAINT, INK, PALETTE, checked_axes, drawing_axes
from streampca.plots.checks import result_of

if TYPE_CHECKING:
    from matplotlib.axes import Axes


def validation(source: Any, ax: Axes | None = None) -> Axes:
    """Held-out error over the rank, a line for each penalty; over the penalty where one rank is.

    A dashed line is the error without components, by means or biases alone.

    source : a fitted ``HardImpute`` or ``SoftImpute`` with ``validation=``, or its Decomposition.
    The candidate that was kept is marked. Raises InvalidInputError, InvalidTypeError,
    NotFittedError; MissingDependencyError.
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
    along, beside = ("rank", "penalty") if by_rank else ("penalty", "rank")

    drawn = drawing_axes(ax, (6.0, 4.0))
    drawn.grid(axis="y", color=FAINT, linewidth=0.7)
    groups = sorted({one[beside] for one in some})
    for i, group in enumerate(groups):
        line = sorted((one[along], one["held_out"]) for one in some if one[beside] == group)
        drawn.plot(*zip(*line, strict=True), color=PALETTE[i % len(PALETTE)], marker="o",
                   markersize=4, linewidth=1.6, label=f"{beside} {group:.4g}")  # fmt: skip
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
    """The candidate that the fit has kept."""
    settings = result.settings
    kept = (settings["rank"], settings.get("ridge", settings.get("lambda_")))
    least = min(curve, key=lambda one: one["held_out"])
    return next((one for one in curve if (one["rank"], one["penalty"]) == kept), least)
