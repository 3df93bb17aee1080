"""64-bit integers that float64 cannot hold: refused wherever they would be rounded."""

from __future__ import annotations

from typing import Any

import numpy as np

from streampca.errors import InvalidTypeError
from streampca.kernels import Array

LARGEST = 2**53  # up to here float64 holds every integer


def inexact(values: Any, missing_value: float | None = None) -> Array | None:
    """Which of these values float64 would round: boolean, of the stored entries of sparse ones.

    None where it holds all of them. The missing code may be any number.
    Cost: nothing but for 64-bit integers, whose largest and smallest value are found.
    """
    if values.dtype.kind not in "iu" or values.dtype.itemsize < 8:
        return None
    data = values if isinstance(values, np.ndarray) else values.data
    if not data.size or (data.max() <= LARGEST and data.min() >= -LARGEST):
        return None
    large = (data > LARGEST) | (data < -LARGEST)
    if missing_value is not None:
        large &= data != missing_value
    return large if large.any() else None


def refuse_inexact(values: Any, missing_value: float | None = None, where: str = "X") -> None:
    """Raise InvalidTypeError where float64 would round a value.  where : for the message."""
    if (large := inexact(values, missing_value)) is None:
        return
    data = values if isinstance(values, np.ndarray) else values.data
    example = int(data[large][0])
    raise InvalidTypeError(
        f"{where} holds the {values.dtype} {example}; expected integers up to 2**53 in size, since "
        "float64 rounds larger ones. Subtract the smallest of each column first, "
        "X - X.min(axis=0); or, where rounding does not matter, X.astype('float64')"
    )
