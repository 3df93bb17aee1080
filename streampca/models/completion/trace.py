"""What a completion tells of its sweeps."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from streampca.kernels import Array

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
        be predicted there; NaN without.
    chosen : number of the candidate that is kept, by these errors.
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

    def to_dict(self) -> dict[str, Any]:
        """JSON-ready form."""
        return asdict(self)

    @classmethod
    def from_dict(cls, saved: dict[str, Any]) -> Sweep:
        """That of ``to_dict``."""
        known: dict[str, Any] = {
            k: tuple(v) if isinstance(v, list) else v for k, v in saved.items()
        }
        return cls(**known)


def settled(trace: list[Sweep], tol: float, floor: float, left: int = 0) -> Array:
    """(candidates,) whether each has stopped changing, or cannot be the best one any more.

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
    held = np.array([one.held_out for one in trace[-3:]])
    if not np.isnan(held).any():
        falls, last = -np.diff(held, axis=0), held[-1]
        if len(falls) == 2:
            done |= np.all(np.abs(falls) <= tol * last, axis=0)
        done |= last - left * np.maximum(falls[-1], 0.0) > last.min()
    return np.asarray(done)


def stops_early(trace: list[Sweep], ranks: tuple[int, ...], patience: int = 2) -> bool:
    """Whether the best held-out error was reached more than ``patience`` sweeps ago.

    Of candidates with components: without, the first sweeps may have the least error of all.
    """
    some = [c for c, rank in enumerate(ranks) if rank or not any(ranks)]
    best = [min(one.held_out[c] for c in some) for one in trace]
    return len(best) > patience and int(np.argmin(best)) < len(best) - patience
