"""Held-out cells, by which ranks and penalties are selected."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import scipy

from streampca.errors import InvalidInputError
from streampca.kernels import Array
from streampca.kernels.columns import chosen, line_keys
from streampca.matrix import Block, ChunkedMatrix
from streampca.matrix.alignment import table_along


@dataclass(frozen=True)
class HeldCells:
    """The held-out observed cells of one block.

    rows, columns : (cells,) in the block.  values : as stored.
    """

    rows: Array
    columns: Array
    values: Array


@dataclass(frozen=True)
class Withhold:
    """Hides held-out cells of a block before anything else reads it. A map.

    share, seed : of a random choice by a hash of each cell's place; or
    cells : (samples, features) boolean CSR (CSC where features are streamed) of chosen ones.
    """

    share: float = 0.0
    seed: int = 0
    cells: Any = None

    @classmethod
    def of(cls, validation: Any, seed: int, matrix: ChunkedMatrix, axis: int) -> Withhold | None:
        """From a share, a boolean (n, p) mask (by name, where it has names), or (rows, columns).
        Raises InvalidInputError."""
        shape = matrix.shape
        if validation is None:
            return None
        if isinstance(validation, (int, float, np.number)) and not isinstance(validation, bool):
            if not 0.0 < float(validation) < 1.0:
                raise InvalidInputError(f"validation={validation!r}; expected a share in (0, 1)")
            return cls(float(validation), seed)
        if isinstance(validation, tuple) and len(validation) == 2:
            rows, columns = (np.asarray(one) for one in validation)
            if rows.shape != columns.shape or rows.ndim != 1:
                raise InvalidInputError(
                    f"validation=(rows, columns) of shapes {rows.shape} and {columns.shape}; "
                    "expected two lists of the same length"
                )
            if len(rows) and (
                rows.min() < 0
                or columns.min() < 0
                or rows.max() >= shape[0]
                or columns.max() >= shape[1]
            ):
                raise InvalidInputError(f"validation names cells outside the matrix, {shape}")
            there = np.ones(len(rows), bool)
            cells = scipy.sparse.coo_matrix((there, (rows, columns)), shape)
        else:
            validation = table_along(validation, matrix.labels, "validation")
            if np.shape(validation) != tuple(shape):
                raise InvalidInputError(
                    f"validation of shape {np.shape(validation)} for a matrix of {shape}; expected "
                    "a share, a boolean mask of that shape, or (rows, columns)"
                )
            cells = scipy.sparse.coo_matrix(np.asarray(validation, bool))
        return cls(cells=cells.asformat("csc" if axis else "csr"))

    def __call__(self, block: Block) -> HeldCells:
        """Hide the held-out cells of this block; returns the observed ones."""
        return self._of_observed(block) if block.absent else self._of_dense(block)

    def _of_dense(self, block: Block) -> HeldCells:
        here = self._mask(block)
        values = block.dense()
        held = here & ~_missing(values, block.missing_value)
        block.hidden = here if block.hidden is None else here | block.hidden
        rows, columns = np.nonzero(held)
        return HeldCells(rows, columns, values[held])

    def _mask(self, block: Block) -> Array:
        rows, columns = block.shape
        part = slice(block.start, block.stop)
        if self.cells is not None:
            inside = self.cells[:, part] if block.axis else self.cells[part]
            return np.asarray(inside.toarray(), bool)
        row, column = self._keys(block, np.arange(rows), np.arange(columns))
        return chosen(row[:, None], column, self.share)

    def _keys(self, block: Block, rows: Array, columns: Array) -> tuple[Array, Array]:
        """Keys of rows and columns of the block, by their places in the whole matrix."""
        first_row, first_column = (0, block.start) if block.axis else (block.start, 0)
        return (
            line_keys(rows + first_row, self.seed, 0),
            line_keys(columns + first_column, self.seed, 1),
        )

    def _of_observed(self, block: Block) -> HeldCells:
        observed = block.observed
        lines, others = observed.lines, observed.indices
        rows, columns = (others, lines) if block.axis else (lines, others)
        if self.cells is not None:
            part = slice(block.start, block.stop)
            inside = self.cells[:, part] if block.axis else self.cells[part]
            held = np.asarray(inside.tocsr()[rows, columns], bool).ravel()
        else:
            row, column = self._keys(block, np.arange(block.shape[0]), np.arange(block.shape[1]))
            held = chosen(row[rows], column[columns], self.share)
        found = HeldCells(rows[held], columns[held], observed.data[held])
        left = observed.without(held)
        kind = scipy.sparse.csc_matrix if block.axis else scipy.sparse.csr_matrix
        block.values = kind((left.data, left.indices, left.indptr), shape=block.shape)
        block.__dict__["observed"] = replace(left)
        return found


def _missing(values: Array, code: float | None) -> Array:
    hole = np.isnan(values) if values.dtype.kind == "f" else np.zeros(values.shape, bool)
    return hole if code is None else hole | (values == code)
