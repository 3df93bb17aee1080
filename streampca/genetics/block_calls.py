"""The calls of a block as small integers, and the error where it holds anything else."""

from __future__ import annotations

from typing import Any

import numpy as np

from streampca.errors import InvalidInputError, shorten
from streampca.kernels import Array


def calls_of(block: Any) -> tuple[Array, int]:
    """(calls (n, m) as integers, the code of a missing one)."""
    values = block.values if isinstance(block.values, np.ndarray) else block.dense()
    missing = block.missing_value
    if values.dtype in (np.int8, np.uint8) and block.hidden is None:
        known = missing is not None and np.isfinite(missing) and float(missing).is_integer()
        return values, int(missing) if known else 1 << 15
    hole = block.mask
    calls = np.full(values.shape, 127, np.int8, order="C" if values.flags.c_contiguous else "F")
    for call in (0, 1, 2):
        calls[values == call] = call
    if hole is not None:
        calls[hole] = -1
    return calls, -1


def not_calls(block: Any, values: Array, code: int, method: str) -> InvalidInputError:
    """The error for cells that are not calls.  values, code : of :func:`calls_of`."""
    bad = (values != code) & ((values < 0) | (values > 2))
    columns = np.flatnonzero(bad.any(axis=0))
    found = np.unique(block.dense()[bad]).tolist()
    advice = ""
    if block.missing_value is None and len(found) == 1:
        advice = f" If {found[0]:g} means missing, say missing_value={found[0]:g}."
    examples = shorten([f"{value:g}" for value in found])
    return InvalidInputError(
        f"{block.describe()}, {block.name_columns(columns)} hold {examples}; {method} needs "
        f"calls 0, 1 or 2 (copies of an allele) or missing.{advice}"
    )
