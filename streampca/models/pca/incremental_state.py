"""What an ``IncrementalPCA`` keeps of the rows: which accumulator, and with which settings."""

from __future__ import annotations

from numbers import Integral
from typing import Any

from streampca.accumulators import MeanImputedScatter, RFactor, Scatter, TruncatedFactor
from streampca.errors import InvalidInputError, MemoryLimitError
from streampca.models.fitted import standardization
from streampca.models.pca.plan import ALIASES
from streampca.passes import parse_nbytes, setting, size
from streampca.solvers import check_n_components

STATES = ("scatter", "tsqr", "truncated")
SOLVER_STATES = {"scatter": "scatter", "tsqr": "tsqr", "randomized": "truncated"}
DEFAULT_STATE_NBYTES = 2 << 30  # without a memory_limit, a state beyond this is refused


def state_kind(settings: dict[str, Any]) -> str:
    """The state that ``state`` or ``svd_solver`` names; both at once must agree."""
    state, given = settings["state"], settings["svd_solver"]
    solver = ALIASES.get(given, given)
    if state not in (None, *STATES):
        raise InvalidInputError(f"state={state!r}; expected one of {STATES}")
    if solver == "auto":
        return state or "scatter"
    if solver not in SOLVER_STATES:
        raise InvalidInputError(
            f"svd_solver={given!r}; expected 'auto' or one of {tuple(SOLVER_STATES)}"
        )
    if state not in (None, SOLVER_STATES[solver]):
        raise InvalidInputError(
            f"state={state!r} and svd_solver={given!r} say different things; leave one of them out"
        )
    return SOLVER_STATES[solver]


def blank_state(settings: dict[str, Any]) -> Any:
    """The accumulator of these settings, before any row."""
    kind, center = state_kind(settings), settings["center"]
    if kind == "tsqr":
        return RFactor(center=center)
    if kind == "truncated":
        return TruncatedFactor(rows=settings["max_rows"], center=center)
    return MeanImputedScatter() if settings["missing"] == "mean" else Scatter(center=center)


def check_state(settings: dict[str, Any]) -> None:
    """Refuse to scale what a truncated state cut off."""
    if state_kind(settings) == "truncated" and settings["scale"] is not None:
        raise InvalidInputError(
            f"scale={settings['scale']!r} cannot be applied to state='truncated': what it cut off "
            "is not known column by column. Use state='scatter' or 'tsqr', or scale the rows "
            "before they are taken in."
        )


def check_appending(settings: dict[str, Any], shape: tuple[int, int]) -> None:
    """Refuse settings that cannot be met for rows of this shape, before they are read.

    Raises InvalidInputError, MemoryLimitError.
    """
    check_state(settings)
    missing, rows = settings["missing"], settings["batch_size"]
    if missing not in ("raise", "mean"):
        raise InvalidInputError(f"missing={missing!r}; expected 'raise' or 'mean'")
    if rows is not None and (type(rows) is bool or not isinstance(rows, Integral) or rows < 1):
        raise InvalidInputError(f"batch_size={rows!r}; expected a number of rows, or None")
    if missing == "mean" and (state_kind(settings) != "scatter" or not settings["center"]):
        raise InvalidInputError("missing='mean' needs state='scatter' and center=True")
    standardization(settings)
    p = shape[1]
    check_n_components(settings["n_components"], p, p)
    need = blank_state(settings).projected_nbytes(shape, 8)
    limit = parse_nbytes(settings["memory_limit"] or setting("memory-limit"))
    limit = limit or DEFAULT_STATE_NBYTES
    if need > limit:
        raise MemoryLimitError(
            f"the state of {p} features needs {size(need)} (p x p), over {size(limit)}. Set "
            f"memory_limit='{-(-5 * need // (1 << 20))}MiB' if the machine has it, or use "
            "IncrementalPCA(state='truncated', max_rows=...), whose state_bound_ says what it "
            "cut off; PCA reads all rows again and needs no p x p state for n < p."
        )
