"""Rows that hold nothing but the fill value: that is how rows look that were never written.

A chunk is written as a whole, so one look at its content shows which of its rows a writer has
reached. The passes look at what they read anyway; nothing is read for it.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable
from typing import Any

import numpy as np

Array = np.ndarray[Any, Any]
UNSEEN = -1  # in place of a note: the chunk was not read in its full width
PROBES = 16  # cells of a row that are looked at before all of them are
PART = 1024  # rows that are searched for the fill value at a time


def note_of(values: Array, dim: int, first: int, fill: Any) -> int:
    """What is seen of one chunk, or of some of its rows, as one integer.

    values : the stored values.  dim : of the rows.  first : number of the first row in the chunk.
    fill : the fill value of the array.

    Bit 0 is set where another row holds the fill value too, bit 1 + i where row i holds nothing
    else. Notes of parts of a chunk are joined by ``|``. Cost: one cell of each row where no cell
    is the fill value.
    """
    rows = np.moveaxis(values, dim, 0)
    if not rows.size:
        return 0
    blank = _blank(rows, fill)
    if not len(blank):
        return 0
    mask = np.zeros(len(rows), bool)
    mask[blank] = True
    others = np.flatnonzero(~mask)
    parts = (others[i : i + PART] for i in range(0, len(others), PART))
    sparse = any(_equal(rows[part], fill).any() for part in parts)
    bits = int.from_bytes(np.packbits(mask, bitorder="little").tobytes(), "little")
    return bits << (first + 1) | sparse


def doubtful(notes: Iterable[int], n: int) -> int:
    """Of the chunks of one row of chunks: a bit for every row that nothing shows to be written.

    n : rows of the chunks that were looked at, from the first on.

    These are the rows that are blank in all chunks, and those that are blank in a chunk whose
    other rows never hold the fill value. A chunk that is blank as a whole (a place on land) shows
    nothing: it would not be there if nobody had written it.
    """
    whole = (1 << n) - 1
    everywhere, dense = whole, 0
    for note in notes:
        blank = note >> 1 & whole
        everywhere &= blank
        if not note & 1 and blank != whole:
            dense |= blank
    return dense | everywhere


def _blank(rows: Array, fill: Any) -> Array:
    """The numbers of the blank rows."""
    found = np.arange(len(rows))
    each = PROBES if rows.ndim == 2 else 4
    inner = [np.unique(np.linspace(0, n - 1, each, dtype=int)) for n in rows.shape[1:]]
    for cell in itertools.islice(itertools.product(*inner), PROBES):
        found = found[_equal(rows[(found, *cell)], fill)]
        if not len(found):
            return found
    whole = _equal(rows[found], fill).reshape(len(found), -1).all(axis=1)
    return found[whole]


def _equal(values: Array, fill: Any) -> Array:
    return np.isnan(values) if fill != fill else np.asarray(values == fill)
