"""The windows that LD pruning walks: where they begin and end on each chromosome."""

from __future__ import annotations

import re
from typing import Any

import numpy as np

from streampca.errors import InvalidInputError, shorten
from streampca.kernels import Array
from streampca.matrix import AxisLabels
from streampca.matrix.text import as_text, repeated

UNPLACED = "0"  # the chromosome of variants without a position: PLINK leaves them out


def default_step(window: int | str) -> int:
    """A tenth of a window in variants, 1 of one in kilobases."""
    length, in_bases = window_length(window)
    return 1 if in_bases else max(1, length // 10)


def window_length(window: Any) -> tuple[int, bool]:
    """(length, whether it is in base pairs) of 50, "50" or "1000kb". Raises InvalidInputError."""
    if isinstance(window, str):
        match = re.fullmatch(r"\s*([0-9]+\.?[0-9]*|\.[0-9]+)\s*(kb)?\s*", window, re.IGNORECASE)
        if match is not None and match[2] is not None and float(match[1]) > 0:
            return int(float(match[1]) * 1000 * (1 + 2.0**-44)), True
        window = int(match[1]) if match is not None and match[1].isdigit() else window
    if isinstance(window, bool) or not isinstance(window, (int, np.integer)) or window < 2:
        raise InvalidInputError(
            f"window={window!r}; expected at least 2 variants, such as 50, or such as '1000kb'"
        )
    return int(window), False


def windows(
    chromosome: Array, position: Array | None, length: int, step: int
) -> tuple[Array, Array]:
    """(starts, stops) of the windows in order, as variant numbers [start, stop).

    chromosome : (p,).  position : (p,) base pairs where the length is in them, else None: a
    window then moves on as far as brings in another variant. A variant alone on its chromosome
    (or further than the length from all others) is in no window, and is kept, as by PLINK.
    """
    first, last = runs(chromosome)
    if split := repeated(as_text(chromosome[first])):
        raise InvalidInputError(
            f"the variants of chromosome {shorten(split, len(split))} do not lie "
            "together; sort them by chromosome and position (plink2 --make-pgen --sort-vars)"
        )
    starts, stops = [], []
    for a, b in zip(first, last):
        if chromosome[a] == UNPLACED:
            continue
        if position is None:
            start = np.arange(a, max(a, b - length + step - 1) + 1, step)
            stop = np.minimum(start + length, b)
        else:
            place = np.asarray(position[a:b], dtype=np.int64)
            if np.any(np.diff(place) < 0):
                raise InvalidInputError(
                    f"the positions on chromosome {chromosome[a]} do not increase; sort the "
                    "variants (plink2 --make-pgen --sort-vars), or give a window in variants"
                )
            stop, start = np.unique(
                np.searchsorted(place, place + length, side="right"), return_index=True
            )
            start, stop = start + a, stop + a
        several = stop - start > 1
        starts.append(start[several])
        stops.append(stop[several])
    nothing = np.empty(0, np.int64)
    return np.concatenate([nothing, *starts]), np.concatenate([nothing, *stops])


def chromosomes(features: AxisLabels) -> Array:
    """(p,) names of the chromosomes; one and the same where X carries none."""
    if "chromosome" in features.extra:
        return as_text(features.extra["chromosome"])
    return np.full(len(features), "all")


def runs(chromosome: Array) -> tuple[Array, Array]:
    """(first, last + 1) of each run of variants on one chromosome."""
    borders = np.flatnonzero(chromosome[1:] != chromosome[:-1]) + 1
    ends = np.concatenate([[0], borders, [len(chromosome)]]).astype(np.int64)
    return ends[:-1], ends[1:]
