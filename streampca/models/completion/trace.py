"""What a completion tells of its sweeps."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

FLOOR = {"float32": 1e-7, "float64": 1e-14}  # of the squares of the data: an objective of rounding


@dataclass(frozen=True)
class Sweep:
    """One sweep; a number for every candidate.

    number : of the iterate, from 1.  passes : over the data until here, the look included.
    objective : sum of squared residuals over the observed cells, in standardised units.
    penalised : the objective with its penalty, which every sweep lowers.
    change : of the estimate, |Xhat - Xhat_before| / |Xhat|; by "als", of the step of the factors
        across the lines, with those of the lines held.
    held_out : root mean square error in the held-out cells, in the units of the data; NaN without.
    """

    number: int
    passes: int
    objective: tuple[float, ...]
    penalised: tuple[float, ...]
    change: tuple[float, ...]
    held_out: tuple[float, ...]
    singular: tuple[int, ...]
    seconds: float

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


def converged(trace: list[Sweep], tol: float, floor: float) -> bool:
    """Whether estimate and objective of every candidate have stopped changing.

    floor : an objective below this is rounding, and cannot fall any further.
    """
    last = trace[-1]
    if max(last.change) > tol:
        return False
    if len(trace) == 1:
        return max(last.change) == 0.0
    before, now = np.array(trace[-2].penalised), np.array(last.penalised)
    return bool(np.all((np.abs(before - now) <= tol * now) | (now <= floor)))


def stops_early(trace: list[Sweep], patience: int = 2) -> bool:
    """Whether the best held-out error of all candidates was reached more than ``patience`` ago."""
    best = [min(one.held_out) for one in trace]
    return len(best) > patience and int(np.argmin(best)) < len(best) - patience
