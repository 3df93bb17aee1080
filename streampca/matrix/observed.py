"""The observed cells of a sparse block in which what is not stored is missing: ratings."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np

from streampca.kernels import Array, ColumnStats, reciprocal, sums_at
from streampca.matrix.entries import Entries, canonical


@dataclass
class Observed:
    """Stored cells alone, line by line: a stored zero is data.

    data : (entries,) the values.  indices, indptr : of the block's CSR form (samples streamed, a
        line is a row) or CSC form (features streamed), increasing within each line.
    shape : of the block.
    """

    data: Array
    indices: Array
    indptr: Array
    shape: tuple[int, int]
    by_feature: bool

    @classmethod
    def of(cls, values: Any, axis: int, missing_value: float | None) -> Observed:
        """Those of a scipy.sparse block; NaN and the missing code are left out."""
        values = canonical(values, axis)
        rows, columns = values.shape
        found = cls(values.data, values.indices, values.indptr, (int(rows), int(columns)),
                    bool(axis))  # fmt: skip
        hole = np.isnan(values.data) if values.data.dtype.kind == "f" else None
        if missing_value is not None:
            coded = values.data == missing_value
            hole = coded if hole is None else hole | coded
        return found if hole is None or not hole.any() else found.without(hole)

    def without(self, gone: Array) -> Observed:
        """The same but for some entries (boolean)."""
        kept = ~gone
        before = np.concatenate([[0], np.cumsum(kept)])
        indptr = before[self.indptr]
        return replace(self, data=self.data[kept], indices=self.indices[kept], indptr=indptr)

    @property
    def lines(self) -> Array:
        """(entries,) the line of each entry."""
        return np.repeat(np.arange(len(self.indptr) - 1), np.diff(self.indptr))

    @property
    def columns(self) -> Array:
        """(entries,) the column of the block of each entry."""
        return self.lines if self.by_feature else self.indices

    @property
    def rows(self) -> Array:
        """(entries,) the row of the block of each entry."""
        return self.indices if self.by_feature else self.lines

    def standardized(self, center: Array | None, scale: Array | None) -> Array:
        """(entries,) float64 (x - center) / scale of the entries' columns; scale 0 gives 0."""
        z, columns = self.data.astype(np.float64), self.columns
        if center is not None:
            z -= center[columns]
        return z if scale is None else z * reciprocal(np.asarray(scale, np.float64))[columns]

    def entries(self, z: Array) -> Entries:
        """Products with a matrix that holds z in these cells and 0 in all others."""
        return Entries(z, self.indices, self.indptr, self.shape, self.by_feature)

    @cached_property
    def stats(self) -> ColumnStats:
        """Of every column over its observed cells."""
        return self.weighted_stats(None)

    def weighted_stats(self, weights: Array | None) -> ColumnStats:
        """Of every column over its observed cells.  weights : (rows,) or None."""
        (rows, p), columns = self.shape, self.columns
        x = self.data.astype(np.float64)
        count = np.bincount(columns, minlength=p)
        each = None if weights is None else weights[self.rows]
        total = count if each is None else sums_at(columns, each, p)
        safe = np.where(total > 0, total, 1)

        def summed(values: Array) -> Array:
            return sums_at(columns, values if each is None else values * each, p)

        mean = summed(x) / safe
        mean += summed(x - mean[columns]) / safe
        m2 = summed((x - mean[columns]) ** 2)
        low, high = np.full(p, np.inf), np.full(p, -np.inf)
        np.minimum.at(low, columns, x)
        np.maximum.at(high, columns, x)
        weight, rest = total.astype(np.float64), np.zeros(p)
        return ColumnStats(count, rows - count, weight, mean, m2, low, high, rest)
