"""What tells an iterative solver how far to go, and where to begin."""

from __future__ import annotations

from numbers import Integral
from typing import Any

import numpy as np

from streampca.errors import InvalidInputError

TOL = 1e-4  # radians
MAX_PASSES = 8


def iteration_limits(
    tol: Any = None, max_passes: Any = None, iterated_power: Any = "auto"
) -> tuple[float, int]:
    """(tol, max_passes), where they are None those of the product, as ``iterated_power`` says.

    q steps of a power method multiply q + 1 times by X'X: a look and q + 1 steps here.
    Raises InvalidInputError for what no iteration can do: a look and one step are the least.
    """
    tol = TOL if tol is None else tol
    most = MAX_PASSES if max_passes is None else max_passes
    if isinstance(tol, bool) or not isinstance(tol, (int, float, np.number)) or not 0 < tol < 1:
        raise InvalidInputError(f"tol={tol!r}; expected an angle in radians between 0 and 1")
    if not _is_count(most) or most < 2:
        raise InvalidInputError(f"max_passes={most!r}; expected 2 or more: a look and a step")
    if isinstance(iterated_power, str) and iterated_power == "auto":
        return float(tol), int(most)
    if not _is_count(iterated_power):
        raise InvalidInputError(f"iterated_power={iterated_power!r}; expected 'auto', 0 or more")
    return float(tol), int(iterated_power) + 2


def seed_of(random_state: Any) -> int:
    """The seed of one fit: a number as it is; from a generator, or None, one drawn.

    Raises InvalidInputError where it is none of these.
    """
    if random_state is None:
        random_state = np.random.default_rng()
    if isinstance(random_state, np.random.Generator):
        return int(random_state.integers(1 << 32))
    if isinstance(random_state, np.random.RandomState):
        return int(random_state.randint(1 << 31))
    if not _is_count(random_state):
        raise InvalidInputError(
            f"random_state={random_state!r}; expected a number from 0, a numpy.random.Generator "
            "or RandomState, or None"
        )
    return int(random_state)


def _is_count(value: Any) -> bool:
    return isinstance(value, Integral) and not isinstance(value, bool) and int(value) >= 0
