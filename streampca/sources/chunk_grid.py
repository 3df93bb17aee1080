"""How many chunks an array may have: every one of them is an entry in tables of this process."""

from __future__ import annotations

import math
from collections.abc import Sequence

from streampca.errors import InvalidInputError

MOST = 1 << 26  # chunks of one array, half a gigabyte as edges


def check_grid(shape: Sequence[int], chunks: Sequence[int], where: str) -> None:
    """Raises InvalidInputError for an array of more than MOST chunks."""
    if any(step < 1 for step in chunks):
        raise InvalidInputError(f"{where}: chunks {tuple(chunks)}; expected lengths from 1 on")
    number = math.prod(-(-n // step) for n, step in zip(shape, chunks, strict=True))
    if number > MOST:
        raise InvalidInputError(
            f"{where} has {number} chunks of {tuple(chunks)}; expected at most {MOST}. Write it "
            "again with larger chunks: streampca convert"
        )
