"""Estimates far beyond what was observed: rows and columns that too few cells determine.

Where a row has hardly more observations than components, or such that are hardly independent, least
squares without a penalty may send all of its other cells anywhere. The last sweep knows it: the
root mean square of a whole row of the estimate, |s_i| / sqrt(p), is then more than the largest
observed value.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from streampca.kernels import Array, row_pieces
from streampca.models.completion.completed import PIECE_NBYTES, Completed


@dataclass(frozen=True)
class Extrapolation:
    """How many rows and columns are estimated beyond the data, on the root mean square.

    ratio : of the largest value in the worst of them to the largest observed one, standardised.
    """

    rows: int
    columns: int
    ratio: float


def find_extrapolations(done: Completed) -> Extrapolation | None:
    """What is far in the estimate of the last sweep; None where nothing is. Reads no data."""
    reach, vectors = _reach(done), done.vectors
    if not reach > 0.0 or not done.values.any():
        return None
    length, m = done.factors.length, len(vectors)
    far_lines, worst, size = 0, np.zeros(len(done.values)), 0.0
    for lines in row_pieces(length, 8 * done.factors.width, PIECE_NBYTES):
        s = done.rows(lines.start, lines.stop)
        root = np.sqrt(np.einsum("ij,ij->i", s, s) / m)
        far_lines += int(np.count_nonzero(root > reach))
        if len(root) and root.max() > size:
            size, worst = float(root.max()), s[int(root.argmax())]
    across = vectors * done.values
    if done.axis:
        across = done.unweighted(across, 0, m)
    root = np.sqrt(np.einsum("ij,ij->i", across, across) / length)
    far_across = int(np.count_nonzero(root > reach))
    if not far_lines + far_across:
        return None
    ratio = max(float(np.abs(vectors @ worst).max()), float(root.max())) / reach
    rows, columns = (far_across, far_lines) if done.axis else (far_lines, far_across)
    return Extrapolation(rows, columns, ratio)


def _reach(done: Completed) -> float:
    """The largest observed |z|."""
    if done.effects is not None:
        return float(done.effects.largest)
    stats, scale = done.stats, done.scaling.scale
    seen = stats.count > 0 if scale is None else (stats.count > 0) & (scale > 0)
    ends: Array = np.maximum(stats.maximum - done.center, done.center - stats.minimum)[seen]
    reach = float((ends if scale is None else ends / scale[seen]).max(initial=0.0))
    rows = done.row_mean
    return reach if rows is None else reach + float(np.abs(rows).max(initial=0.0))
