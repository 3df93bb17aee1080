"""How many components: a number, a share of the variance, the largest gap, or all."""

from __future__ import annotations

import math
import numbers
from typing import Any

import numpy as np

from streampca.errors import InvalidInputError, InvalidTypeError
from streampca.kernels import Array
from streampca.solvers.minka import MLE, check_mle

TRACY_WIDOM = "tracy-widom"  # the components that are significant by that test


def check_n_components(n_components: Any, n: int, p: int, least: int = 1) -> None:
    """Refuse a setting that no data of this shape can meet, or a number under ``least``."""
    limit = min(n, p)
    if n_components is None or n_components in ("gap", TRACY_WIDOM):
        return
    if n_components == MLE:
        check_mle(p, n, p)
        return
    if isinstance(n_components, bool) or not isinstance(n_components, numbers.Real):
        raise InvalidTypeError(
            f"n_components={n_components!r}; expected an integer, a share between 0 and 1, "
            "'gap', 'mle', 'tracy-widom' or None"
        )
    if isinstance(n_components, numbers.Integral):
        if not least <= int(n_components) <= limit:
            raise InvalidInputError(
                f"n_components={n_components} must be between {least} and "
                f"min(n_samples, n_features)={limit}"
            )
    elif not 0.0 < float(n_components) < 1.0:
        raise InvalidInputError(
            f"n_components={n_components!r}; a share of variance lies between 0 and 1, a number "
            "of components is an integer"
        )


def known_count(n_components: Any, n: int, p: int) -> int | None:
    """How many components will be kept, or None where the spectrum decides."""
    if n_components is None:
        return min(n, p)
    return int(n_components) if isinstance(n_components, numbers.Integral) else None


def by_share(values: Array, total: float, share: float) -> int:
    """The smallest k whose first k values reach ``share`` of the total (>=, to rounding)."""
    if total <= 0:
        return 1
    reached = np.cumsum(values) / total
    slack = 4.0 * np.finfo(np.float64).eps * len(values)
    return min(int(np.searchsorted(reached, share - slack, side="left")) + 1, len(values))


def by_gap(values: Array, n: int | None) -> int | None:
    """The k before the largest drop between neighbouring values, or None where there is none.

    A drop counts only when it exceeds four standard errors, value sqrt(2 / n) each (North, Bell,
    Cahalan and Moeng 1982, eq. 24): equal values repel each other by two or three.
    """
    if len(values) < 2:
        return None
    drops = values[:-1] - values[1:]
    k = int(np.argmax(drops))
    noise = values[k] * (4.0 * math.sqrt(2.0 / n) if n else 1e-12)
    return k + 1 if drops[k] > noise else None


def numerical_rank(values: Array, size: int, floor: float | Array = 0.0) -> int:
    """How many leading (eigen- or singular) values stand above rounding.

    size : of the decomposed matrix; float64 decompositions leave up to size eps value[0].
    floor : rounding of the matrix itself (:func:`rank_floor`), for all or for each: an
        estimate, ten times it counts as rounding.
    """
    if not len(values) or values[0] <= 0:
        return 0
    rounding = size * float(np.finfo(np.float64).eps) * float(values[0]) + 10.0 * floor
    return int(np.count_nonzero(np.logical_and.accumulate(values > rounding)))
