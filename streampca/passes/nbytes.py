"""Bytes in words, and words that mean bytes."""

from __future__ import annotations

import re

import numpy as np

from streampca.errors import InvalidInputError

MiB = 1024 * 1024
UNITS = {"": 1, "b": 1, "kb": 10**3, "mb": 10**6, "gb": 10**9, "tb": 10**12,
         "kib": 2**10, "mib": 2**20, "gib": 2**30, "tib": 2**40}  # fmt: skip


def parse_nbytes(limit: int | float | str | None) -> int | None:
    """``"512MiB"``, ``"2 GB"`` or a number of bytes, as an integer."""
    if limit is None:
        return None
    if isinstance(limit, str):
        match = re.fullmatch(r"\s*([0-9]+\.?[0-9]*|\.[0-9]+)\s*([a-zA-Z]*)\s*", limit)
        if match is None or match[2].lower() not in UNITS:
            raise InvalidInputError(f"memory_limit={limit!r}; expected such as '512MiB' or '2GB'")
        limit = float(match[1]) * UNITS[match[2].lower()]
    if isinstance(limit, bool) or not isinstance(limit, (int, float, np.integer, np.floating)):
        raise InvalidInputError(f"memory_limit={limit!r}; expected bytes, or such as '512MiB'")
    if not 1 <= limit < np.inf:
        raise InvalidInputError(f"memory_limit={limit!r}; expected a positive number of bytes")
    return int(limit)


def size(nbytes: float) -> str:
    """Bytes in words: ``1.5 GiB``."""
    for unit in ("B", "KiB", "MiB", "GiB"):
        if nbytes < 1024 or unit == "GiB":
            break
        nbytes /= 1024
    return f"{nbytes:.0f} {unit}" if nbytes >= 100 or unit == "B" else f"{nbytes:.1f} {unit}"


def as_limit(nbytes: int, up: bool = False) -> str:
    """Bytes as a ``memory_limit`` that one can type: ``"512MiB"``."""
    return f"{-(-nbytes // MiB) if up else nbytes // MiB}MiB"
