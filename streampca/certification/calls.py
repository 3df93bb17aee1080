"""Sums of columns of small counts, such as genotype calls: exact, by adding bytes."""

from __future__ import annotations

import numpy as np

from streampca.certification.conventions import ColumnSums
from streampca.kernels import Array, row_pieces

MOST = 5  # largest count: TOGETHER of its squares fit a byte
TOGETHER = 8  # entries of a line that are added in a byte
PIECE_NBYTES = 1 << 20


def call_sums(values: Array, missing: float | None) -> tuple[ColumnSums, Array] | None:
    """(sums of the columns, (n,) missing cells of each row); None for values not in 0 to MOST.

    values : (n, columns) int8 or uint8, C or Fortran order.  missing : the code of such a cell.
    Cost: a twelfth of two products with 34 vectors. Memory: 3 PIECE_NBYTES, or 3 lines.
    """
    by_row = values.flags.c_contiguous
    lines = values if by_row else values.T
    code = None if missing is None or not float(missing).is_integer() else int(missing)
    along = np.zeros((3, lines.shape[1]), np.int64)  # of the columns of the lines
    inside = np.zeros((3, len(lines)), np.int64)
    parts = row_pieces(len(lines), lines.shape[1], PIECE_NBYTES)
    room = np.empty((3, parts[0].stop, lines.shape[1]), np.uint8)
    for part in parts:
        some = lines[part]
        seen, held, squares = room[:, : len(some)]
        if code is None:
            seen[:] = 1
        else:
            np.not_equal(some, code, out=seen.view(bool))
        np.multiply(some.view(np.uint8), seen, out=held)
        most = int(held.max(initial=0)) ** 2
        if most > MOST**2:
            return None
        np.multiply(held, held, out=squares)
        for i, one in enumerate((seen, held, squares)):
            if by_row or i == 0:
                along[i] += _sums_along(one, max(most, 1))
            if i == 0:
                inside[i, part] = np.bitwise_count(np.packbits(one, axis=1)).sum(axis=1)
            elif not by_row:
                inside[i, part] = _sums_inside(one)
    counts, sums, squares = along if by_row else inside
    lost = len(inside[0]) - along[0] if not by_row else len(along[0]) - inside[0]
    safe = np.maximum(counts, 1)
    about_mean = (counts * squares - sums**2) / safe  # the difference is exact
    return ColumnSums(counts.astype(np.float64), sums / safe, about_mean), lost


def _sums_along(a: Array, most: int) -> Array:
    """(columns,) of bytes (lines, columns), none above ``most``."""
    run = 255 // most
    whole = len(a) - len(a) % run
    runs = a[:whole].reshape(-1, run, a.shape[1]).sum(axis=1, dtype=np.uint8)
    return np.asarray(runs.sum(axis=0, dtype=np.int64) + a[whole:].sum(axis=0, dtype=np.int64))


def _sums_inside(a: Array) -> Array:
    """(lines,) of bytes (lines, columns)."""
    whole = a.shape[1] - a.shape[1] % TOGETHER
    runs = a[:, :whole].reshape(len(a), TOGETHER, -1).sum(axis=1, dtype=np.uint8)
    return np.asarray(runs.sum(axis=1, dtype=np.int64) + a[:, whole:].sum(axis=1, dtype=np.int64))
