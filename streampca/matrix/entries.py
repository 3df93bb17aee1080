"""The entries of a sparse block: implicitly standardised, or the only observed cells."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from streampca.errors import InvalidInputError, NonFiniteError
from streampca.kernels import Array, ColumnStats, computed_once, reciprocal, sums_at

# The stored entries of a sparse block, centred and scaled implicitly: nothing is made dense.


@dataclass
class Entries:
    """A compressed block with z = (x - center) / scale, missing cells 0.

    data, indices, indptr : of the block's CSR (samples streamed) or CSC (features streamed) form;
        indices increase within each line, none twice.
    missing_value : a stored value that means missing, in addition to NaN.
    weights : (rows,) or None.
    center, scale of the methods : (columns,) or None. A scale of 0 makes the column 0.

    Cost of a product with l columns: 2 l flops per stored entry.
    """

    data: Array
    indices: Array
    indptr: Array
    shape: tuple[int, int]
    by_feature: bool
    missing_value: float | None = None
    weights: Array | None = None

    @classmethod
    def of(cls, values: Any, axis: int, missing_value: float | None, weights: Any) -> Entries:
        """The entries of a scipy.sparse block."""
        values = canonical(values, axis)
        rows, columns = values.shape
        return cls(
            values.data,
            values.indices,
            values.indptr,
            (int(rows), int(columns)),
            axis == 1,
            missing_value,
            weights,
        )

    @computed_once
    def stats(self) -> ColumnStats:
        """Column statistics, implicit zeros counted."""
        from streampca.kernels.sparse import sparse_stats

        return sparse_stats(
            self.data,
            self.indices,
            self.indptr,
            self.shape,
            self.by_feature,
            self.missing_value,
            self.weights,
        )

    @computed_once
    def _all_finite(self) -> bool:
        """Whether no value is NaN or infinite; False may be wrong, of large ones."""
        if self.data.dtype.kind != "f":
            return True
        with np.errstate(over="ignore", invalid="ignore"):
            return bool(np.isfinite(np.dot(self.data, self.data)))

    @computed_once
    def holes(self) -> Array | None:
        """(entries,) True = missing; None if there is none."""
        hole = np.isnan(self.data) if self.data.dtype.kind == "f" else None
        if self.missing_value is not None:
            coded = self.data == self.missing_value
            hole = coded if hole is None else hole | coded
        return hole if hole is not None and hole.any() else None

    @computed_once
    def hole_counts(self) -> Array:
        """(columns,) int64 missing cells of every column."""
        if self.holes is None:
            return np.zeros(self.shape[1], np.int64)
        return np.bincount(self.columns_of(self.holes), minlength=self.shape[1])

    @computed_once
    def row_holes(self) -> Array:
        """(rows,) int64 missing cells of every row."""
        if self.holes is None:
            return np.zeros(self.shape[0], np.int64)
        lines = self._lines_of(self.holes)
        rows = self.indices[self.holes] if self.by_feature else lines
        return np.bincount(rows, minlength=self.shape[0])

    def columns_of(self, selected: Array) -> Array:
        """The columns of the selected entries (boolean)."""
        return self._lines_of(selected) if self.by_feature else np.asarray(self.indices[selected])

    def _lines_of(self, selected: Array) -> Array:
        places = np.flatnonzero(selected)
        return np.asarray(np.searchsorted(self.indptr, places, side="right") - 1)

    # -- products ---------------------------------------------------------------------------

    def product(self, q: Array, center: Array | None = None, scale: Array | None = None) -> Array:
        """Z q, (rows, l) float64, for q (columns, l). Weights do not enter."""
        from streampca.kernels.sparse import add_cross_product, line_products

        q = q if scale is None else q * _factors(scale, self.shape[1])[:, None]
        data = self._filled(center)
        if self.by_feature:
            z = np.zeros((self.shape[0], q.shape[1]))
            add_cross_product(data, self.indices, self.indptr, q, z)
        else:
            z = line_products(data, self.indices, self.indptr, q)
        return z if center is None else z - center @ q

    def cross(self, y: Array, center: Array | None = None, scale: Array | None = None) -> Array:
        """Z'y, (columns, l) float64, for y (rows, l). Weights do not enter."""
        from streampca.kernels.sparse import add_cross_product, line_products

        data = self._filled(center)
        if self.by_feature:
            z = line_products(data, self.indices, self.indptr, y)
        else:
            z = np.zeros((self.shape[1], y.shape[1]))
            add_cross_product(data, self.indices, self.indptr, y, z)
        if center is not None:
            z -= np.multiply.outer(center, y.sum(axis=0, dtype=np.float64))
        return z if scale is None else z * _factors(scale, self.shape[1])[:, None]

    def two_products(
        self,
        q: Array,
        into: Array,
        sums: Array,
        center: Array | None = None,
        scale: Array | None = None,
        shift: Array | None = None,
    ) -> Array:
        """Both products of a Krylov step in one loop over the entries; adds to into and sums.

        Samples streamed: q (columns, l) is ALREADY divided by scale, and scale must be None.
            Returns y = X q - center'q (rows, l); into (columns, l) += X'W y; sums (l,) += 1'W y.
            Over all blocks Z'W Z q0 = (into - center sums') / scale, with q = q0 / scale.
        Features streamed: q is (rows, l), its rows times the root of their weights. Returns
            y = Z'q (columns, l); into (rows, l) += X (y / scale); sums += center'(y / scale).
            Over all blocks Z Z'q = into - 1 sums', each row times the root of its weight.
        into, sums : float64.  q : float64, or float32: then so is the arithmetic within a few
            thousand lines, and y.
        shift : center'q (samples) or 1'q (features), if the caller has computed it.
        """
        from streampca.kernels.sparse import two_products

        if not self.by_feature and scale is not None:
            raise InvalidInputError("two_products of samples expects q divided by scale, no scale")
        lines = self.shape[1] if self.by_feature else self.shape[0]
        ones, l = np.ones(lines), q.shape[1]  # noqa: E741
        if shift is None:
            total = q.sum(axis=0, dtype=np.float64) if self.by_feature else None
            shift = total if self.by_feature else np.zeros(l) if center is None else center @ q
        offset, factor, weight = ones, ones, ones
        if self.by_feature:
            offset = np.zeros(lines) if center is None else np.asarray(center, np.float64)
            factor = weight = ones if scale is None else _factors(scale, lines)
        elif self.weights is not None:
            weight = np.asarray(self.weights, np.float64)
        shift = np.asarray(shift, np.float64)
        return two_products(
            self._filled(center),
            self.indices,
            self.indptr,
            q,
            shift,
            offset,
            factor,
            weight,
            into,
            sums,
        )

    def row_norms(self, center: Array | None = None, scale: Array | None = None) -> Array:
        """(rows,) float64 sum of z^2: that of a row of zeros, corrected by the entries."""
        from streampca.kernels.sparse import add_row_norms

        p = self.shape[1]
        factor = np.ones(p) if scale is None else _factors(scale, p)
        c = np.zeros(p) if center is None else np.asarray(center, np.float64)
        norms = np.full(self.shape[0], float(np.sum((c * factor) ** 2)))
        add_row_norms(
            self._filled(center), self.indices, self.indptr, self.by_feature, c, factor, norms
        )
        return np.asarray(np.maximum(norms, 0.0))

    def _filled(self, center: Array | None) -> Array:
        """The values with holes replaced by the center of their column, so that z is 0 there."""
        if self.missing_value is None and self._all_finite:
            return self.data
        infinite = self.data.dtype.kind == "f" and not np.isfinite(self.data).all()
        if infinite and np.isinf(self.data).any():
            raise NonFiniteError("infinity in sparse values; expected finite ones, or NaN")
        if self.holes is None:
            return self.data
        filled = self.data.astype(np.float64)
        filled[self.holes] = 0.0 if center is None else center[self.columns_of(self.holes)]
        return filled


def _factors(scale: Array, columns: int) -> Array:
    scale = np.asarray(scale, np.float64)
    if scale.shape != (columns,):
        raise InvalidInputError(f"scale of shape {scale.shape} for {columns} columns")
    return reciprocal(scale)


def canonical(values: Any, axis: int) -> Any:
    """A scipy.sparse block as CSR (axis 0) or CSC, with increasing unique indices in each line."""
    wanted = "csc" if axis == 1 else "csr"
    if getattr(values, "in_order", False) and values.format == wanted:
        return values  # lines of a matrix that was checked
    values = values if values.format == wanted else values.asformat(wanted)
    check_compressed(values.indices, values.indptr, values.shape[1 - axis], "the block")
    if not values.has_canonical_format:
        values = values.copy()
        values.sum_duplicates()
    return values


def lines_of(matrix: Any, start: int, stop: int) -> Any:
    """Lines of a canonical matrix, which are views of its arrays."""
    first, last = matrix.indptr[start], matrix.indptr[stop]
    parts = matrix.data[first:last], matrix.indices[first:last]
    other = matrix.shape[matrix.format == "csr"]
    lines = stop - start
    shape = (lines, other) if matrix.format == "csr" else (other, lines)
    view = type(matrix)((*parts, matrix.indptr[start : stop + 1] - first), shape, copy=False)
    view.has_canonical_format = view.in_order = True
    return view


def check_compressed(indices: Array, indptr: Array, size: int, what: str) -> None:
    """Refuse index arrays that would read out of bounds; ``size`` is the length of a line.

    Raises InvalidInputError, which names the wrong array and the fault.
    """
    if len(indptr) == 0 or np.any(np.diff(indptr) < 0):
        raise InvalidInputError(f"{what}: indptr is not increasing; the file or matrix is damaged")
    first, last = int(indptr[0]), int(indptr[-1])
    if first < 0 or last > len(indices):
        raise InvalidInputError(
            f"{what}: indptr ends at {last}, and there are {len(indices)} indices; the file or "
            "matrix is cut off or damaged"
        )
    used = indices[first:last]
    low, high = (int(used.min()), int(used.max())) if len(used) else (0, -1)
    if low < 0 or high >= size:
        wrong = low if low < 0 else high
        raise InvalidInputError(
            f"{what}: an index is {wrong}, expected 0 to {size - 1}; the file or matrix is damaged"
        )


def spans_of(indptr: Array, edges: Array, itemsize: int, index_size: int) -> Array:
    """(blocks,) int64 bytes of a compressed matrix between consecutive edges along its lines."""
    entries = np.diff(np.asarray(indptr)[edges].astype(np.int64))
    return np.asarray(
        entries * (itemsize + index_size) + (np.diff(edges) + 1) * np.asarray(indptr).itemsize
    )


def sparse_nbytes(values: Any) -> int:
    """Bytes of a compressed scipy.sparse matrix."""
    return int(values.data.nbytes + values.indices.nbytes + values.indptr.nbytes)


# The observed cells of a sparse block whose unstored cells are missing: ratings.


@dataclass
class Observed:
    """The stored cells, line by line; a stored zero is data.

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
        """The cells of a scipy.sparse block, without NaN and the missing code."""
        values = canonical(values, axis)
        rows, columns = values.shape
        found = cls(
            values.data, values.indices, values.indptr, (int(rows), int(columns)), axis == 1
        )
        hole = np.isnan(values.data) if values.data.dtype.kind == "f" else None
        if missing_value is not None:
            coded = values.data == missing_value
            hole = coded if hole is None else hole | coded
        return found if hole is None or not hole.any() else found.without(hole)

    def without(self, removed: Array) -> Observed:
        """The cells without some entries (boolean)."""
        kept = ~removed
        before = np.concatenate([[0], np.cumsum(kept)])
        indptr = before[self.indptr]
        return replace(self, data=self.data[kept], indices=self.indices[kept], indptr=indptr)

    @property
    def lines(self) -> Array:
        """(entries,) the line of each entry."""
        return np.repeat(np.arange(len(self.indptr) - 1), np.diff(self.indptr))

    @property
    def columns(self) -> Array:
        """(entries,) the column of each entry in the block."""
        return self.lines if self.by_feature else self.indices

    @property
    def rows(self) -> Array:
        """(entries,) the row of each entry in the block."""
        return self.indices if self.by_feature else self.lines

    def standardized(self, center: Array | None, scale: Array | None) -> Array:
        """(entries,) float64 (x - center) / scale by column; a scale of 0 gives 0."""
        z, columns = self.data.astype(np.float64), self.columns
        if center is not None:
            z -= center[columns]
        return z if scale is None else z * reciprocal(np.asarray(scale, np.float64))[columns]

    def entries(self, z: Array) -> Entries:
        """The sparse matrix that holds z in these cells and 0 in all others, for products."""
        return Entries(z, self.indices, self.indptr, self.shape, self.by_feature)

    @computed_once
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
