"""Memory that goes back to the system as soon as it is let go.

What ``malloc`` has given to threads it may keep: blocks and partial accumulators of tens of MiB
lay unused beside those in use, more with every span.
"""

from __future__ import annotations

import contextlib
import ctypes
import mmap
from math import prod
from typing import Any

import numpy as np

from streampca.kernels.blas import Array

LARGE_NBYTES = 1 << 20  # smaller arrays are left to malloc


def pages(nbytes: int) -> np.ndarray[Any, np.dtype[np.uint8]]:
    """So many bytes of pages of their own, zero."""
    return np.frombuffer(mmap.mmap(-1, max(nbytes, 1)), np.uint8)


def give_back() -> None:
    """Give the system what malloc keeps of arrays that are gone; glibc keeps it for each thread.

    Cost: about a millisecond. Where there is no such function, nothing happens.
    """
    with contextlib.suppress(AttributeError, OSError, TypeError):
        ctypes.CDLL(None).malloc_trim(0)


def zeros(shape: tuple[int, ...], dtype: Any = float, spare: Array | None = None) -> Array:
    """``np.zeros``; where large, in pages of its own.

    spare : an array that nobody needs any more, taken where it fits: new pages cost more to come
    by than to be filled.
    """
    if spare is not None and (spare.shape, spare.dtype) == (shape, np.dtype(dtype)):
        spare.fill(0)
        return spare
    nbytes = prod(shape) * np.dtype(dtype).itemsize
    if nbytes < LARGE_NBYTES:
        return np.zeros(shape, dtype)
    return np.asarray(pages(nbytes)[:nbytes].view(dtype).reshape(shape))
