"""The calls of a block as small integers, and the error where it holds anything else."""

from __future__ import annotations

from typing import Any

import numpy as np

from streampca.errors import InvalidInputError, shorten
from streampca.kernels import Array
from streampca.matrix.standardize import coding_repair


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


def not_calls(
    block: Any, values: Array, code: int, method: str, assumed: bool = False
) -> InvalidInputError:
    """The error for cells that are not calls.

    values, code : of :func:`calls_of`.  assumed : nobody stated the code of missing ones.
    """
    bad = (values != code) & ((values < 0) | (values > 2))
    columns = np.flatnonzero(bad.any(axis=0))
    dense = block.dense()
    found = np.unique(dense[bad])
    examples = shorten([f"{value:g}" for value in found.tolist()])
    seen = dense[values != code]
    if np.all(found == np.rint(found)):
        repair = coding_repair(seen.min(), seen.max(), 2, assumed and bool(np.any(values == code)))
    else:
        repair = "Round dosages: np.rint(X)."
    return InvalidInputError(
        f"{block.describe()}, {block.name_columns(columns)} hold {examples}; {method} needs "
        f"calls 0, 1 or 2 (copies of an allele) or missing. {repair}"
    )
