"""The trace of a completion, and when its sweeps end: converged, hopeless, no longer better."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from streampca.accumulators import HeldOutError
from streampca.kernels import Array

# sweeps for which an error is assumed to fall as it did in the better of the last two: of sweeps
# that begin with directions of length 1, and with balanced ones, from which no ridge is slow
AHEAD, AHEAD_BALANCED = 8, 2
# of the least held-out error, which may rise: a candidate as near to it may yet be the best
NEAR = 0.005
PATIENCE = 2  # sweeps that the best held-out error may lie back
FLOOR = {"float32": 1e-7, "float64": 1e-14}  # of the squares of the data: an objective of rounding


@dataclass(frozen=True)
class Sweep:
    """One sweep; a number for every candidate.

    number : of the iterate, from 1.  passes : over the data until here, the look included.
    objective : sum of squared residuals over the observed cells, in standardised units.
    penalised : the objective with its penalty, which every sweep lowers.
    change : of the estimate, |Xhat - Xhat_before| / |Xhat|; by "als", of the step of the factors
        across the lines, with those of the lines held.
    held_out : root mean square error in the held-out cells, in the units of the data, of what would
        be predicted there; NaN without, and where these cells have been given back.
    chosen : number of the candidate that is kept, by these errors.
    fitted : whether each candidate was in this sweep; the numbers of others are their last.
    """

    number: int
    passes: int
    objective: tuple[float, ...]
    penalised: tuple[float, ...]
    change: tuple[float, ...]
    held_out: tuple[float, ...]
    singular: tuple[int, ...]
    seconds: float
    chosen: int = 0
    fitted: tuple[bool, ...] = ()

    def to_dict(self) -> dict[str, Any]:
        """JSON-ready form."""
        return asdict(self)

    @classmethod
    def from_dict(cls, saved: dict[str, Any]) -> Sweep:
        """The inverse of ``to_dict``."""
        known: dict[str, Any] = {
            k: tuple(v) if isinstance(v, list) else v for k, v in saved.items()
        }
        return cls(**known)


def next_sweep(
    trace: list[Sweep],
    numbers: dict[str, Any],
    fitted: Array,
    held: HeldOutError | None,
    simplest: int | None,
    **more: Any,
) -> Sweep:
    """The entry after those of ``trace``.

    numbers : by name, of every candidate.  fitted : (candidates,) which of them count.
    held : errors of the held-out cells in this sweep.  simplest : a candidate, or None.
    more : ``passes`` and ``seconds``.
    """
    errors = np.full(len(fitted), np.nan) if held is None else held.rmse()
    numbers = numbers | {"held_out": errors}
    if trace and not fitted.all():
        numbers = {
            name: np.where(fitted, one, getattr(trace[-1], name)) for name, one in numbers.items()
        }
    before = trace[-1].chosen if trace else 0
    chosen = before if held is None else held.best(simplest)
    known = {"fitted": fitted, **numbers}
    more |= {name: tuple(np.asarray(value).tolist()) for name, value in known.items()}
    return Sweep(number=len(trace) + 1, chosen=chosen, **more)


def settled(trace: list[Sweep], tol: float, floor: float, left: int = 0) -> Array:
    """(candidates,) whether each has converged, or can no longer be the best.

    It has stopped when a sweep changes neither its estimate nor its objective by more than ``tol``,
    or two sweeps its held-out error. It cannot be the best one where its held-out error would stay
    above the least if it fell in each of the ``left`` sweeps as much as in the last one.
    floor : an objective below this is rounding, and cannot fall any further.
    """
    now = trace[-1]
    change = np.array(now.change)
    if len(trace) == 1:
        return np.asarray(change == 0.0)
    before, after = np.array(trace[-2].penalised), np.array(now.penalised)
    done = (change <= tol) & ((np.abs(before - after) <= tol * after) | (after <= floor))
    held = np.array([sweep.held_out for sweep in trace[-3:]])
    if not np.isnan(held).any():
        falls, last = -np.diff(held, axis=0), held[-1]
        if len(falls) == 2:
            done |= np.all(np.abs(falls) <= tol * last, axis=0)
        done |= last - left * np.maximum(falls[-1], 0.0) > last.min()
    return np.asarray(done)


def hopeless(trace: list[Sweep], balanced: bool = False) -> Array:
    """(candidates,) whether each is too far behind for further sweeps.

    It is where its held-out error would stay above the least by a share of NEAR if it fell in AHEAD
    more sweeps as much as in the better one of the last two.
    balanced : the first sweep began with factors of the length that they come to have.
    """
    held = np.array([sweep.held_out for sweep in trace[-3:]])
    if len(held) < (2 if balanced else 3) or np.isnan(held).any():
        return np.zeros(held.shape[1], bool)
    falls = np.maximum(-np.diff(held, axis=0), 0.0).max(axis=0)
    ahead = AHEAD_BALANCED if balanced else AHEAD
    return np.asarray(held[-1] - ahead * falls > (1.0 + NEAR) * held[-1].min())


def judged(trace: list[Sweep]) -> list[Sweep]:
    """The sweeps that had held-out cells; all, where there were none."""
    return [sweep for sweep in trace if not np.isnan(sweep.held_out).any()] or trace


def stops_early(trace: list[Sweep], ranks: tuple[int, ...]) -> bool:
    """Whether the best held-out error was reached more than PATIENCE sweeps ago.

    Of candidates with components: without, the first sweeps may have the least error of all.
    """
    some = [c for c, rank in enumerate(ranks) if rank or not any(ranks)]
    best = [min(sweep.held_out[c] for c in some) for sweep in trace]
    return len(best) > PATIENCE and int(np.argmin(best)) < len(best) - PATIENCE
