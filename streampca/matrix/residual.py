"""A block without what a design explains: the rows of the design projected out of its samples."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import numpy as np

from streampca.kernels import Array, add_product, provisional_mean
from streampca.matrix.block import Block

PIECE_NBYTES = 1 << 20  # of float64 values that are worked on at a time: they stay in cache
PIECE_COLUMNS = 1024
EXPLAINED = 64 * float(np.finfo(np.float64).eps)  # of a sum of squares: less is rounding


def residual_block(block: Block, design: Array, removed: Array | None) -> Block:
    """The block with x - mean - design C in place of x, in the working dtype; holes become NaN.

    design : (rows of this block, r) with weighted columns that sum to 0 and are orthonormal over
        all samples.
    removed : (1 + r, columns of this block), the mean and C; None where features are streamed:
        every column is then regressed on the design here, over its observed samples, and
        ``block["removed"]`` of the result says what was found.

    A column that the design explains to rounding becomes 0. The arithmetic is float64.
    Cost: 4 r flops for each cell; a column with holes has normal equations of its own, 2 r^2.
    Source: Frisch and Waugh 1933, "Partial time regressions ...", Econometrica 1, 387-401.
    """
    rows, columns = block.shape
    out = np.empty((rows, columns), block.work_dtype)
    arrays = dict(block.arrays)
    if removed is None:
        arrays["removed"] = removed = np.empty((1 + design.shape[1], columns))
        w = np.ones(rows) if block.weights is None else block.weights
        basis = np.column_stack([np.full(rows, 1.0 / np.sqrt(max(w.sum(), 1e-300))), design])
        weighted = np.ascontiguousarray((basis * w[:, None]).T)
        step = max(1, PIECE_NBYTES // (8 * max(rows, 1)))
        for start in range(0, columns, step):
            part = (slice(None), slice(start, start + step))
            out[part], removed[part] = _regress(block, basis, weighted, part)
    else:
        for part in _pieces(rows, columns):
            x, hole = _piece(block, part)
            x -= removed[0, part[1]]
            add_product(x, design[part[0]], -removed[1:, part[1]])
            if hole is not None:
                x[hole] = np.nan
            out[part] = x
    return replace(block, values=out, missing_value=None, hidden=None, arrays=arrays)


def found(block: Block) -> Array:
    """(features of this block, 1 + r) what was removed from them: a map."""
    return np.asarray(block["removed"].T)


def _pieces(rows: int, columns: int) -> Iterator[tuple[slice, slice]]:
    """Parts of a block that stay in cache with the coefficients of their columns."""
    step = max(1, PIECE_NBYTES // (8 * PIECE_COLUMNS))
    for first in range(0, columns, PIECE_COLUMNS):
        for start in range(0, rows, step):
            yield slice(start, start + step), slice(first, first + PIECE_COLUMNS)


def _dense(block: Block, part: tuple[slice, slice]) -> Array:
    raw = block.values[part]
    return raw if isinstance(raw, np.ndarray) else np.asarray(raw.toarray())


def _piece(block: Block, part: tuple[slice, slice]) -> tuple[Array, Array | None]:
    """(float64 values, missing cells) of a part of the block."""
    raw = _dense(block, part)
    hole = block.holes_in(raw, part)
    x = raw.astype(np.float64, order="C")
    if hole is not None:
        x[hole] = 0.0
    return x, hole


def _regress(
    block: Block, basis: Array, weighted: Array, part: tuple[slice, slice]
) -> tuple[Array, Array]:
    """(residuals, (1 + r, columns) mean and coefficients) of some columns, whole ones.

    basis : (rows, 1 + r), orthonormal, the constant first.  weighted : its transpose, times the
        sample weights.
    """
    raw = _dense(block, part)
    hole: Array | None = None
    with np.errstate(invalid="ignore", over="ignore"):
        shift = provisional_mean(raw, None, block.weights)
        x = np.subtract(raw, shift, dtype=np.float64, order="C")
        coefficients = weighted @ x
    if block.coded or not np.isfinite(coefficients).all():
        hole = block.holes_in(raw, part)
    if hole is None:
        add_product(x, basis, -coefficients)
        after = np.einsum("ij,ij->j", x, x if block.weights is None else block.weights[:, None] * x)
        before = after + np.sum(coefficients[1:] ** 2, axis=0)
    else:
        raw = np.where(hole, 0.0, raw)
        shift = np.sum(raw * ~hole, axis=0) / np.maximum(np.sum(~hole, axis=0), 1)
        w = np.ones(len(raw)) if block.weights is None else block.weights
        x, coefficients, before, after = _regress_observed(raw - shift, ~hole, basis, w)
    root = float(basis[0, 0])  # of 1 / the sum of the weights
    coefficients[0] = coefficients[0] * root + shift
    stored = (0.5 * block.eps) ** 2 * (before + (coefficients[0] / root) ** 2)
    x[:, after <= np.maximum(stored, EXPLAINED * before)] = 0.0
    if hole is not None:
        x[hole] = np.nan
    return x, coefficients


def _regress_observed(
    x: Array, seen: Array, basis: Array, w: Array
) -> tuple[Array, Array, Array, Array]:
    """(residuals, coefficients, squares before and after) of columns some of which have holes.

    Least squares over their observed samples; coefficients that those do not determine are the
    smallest ones.
    """
    size = basis.shape[1]
    cells = seen * w[:, None]
    pairs = (basis[:, :, None] * basis[:, None, :]).reshape(len(w), -1)
    inverse = np.linalg.pinv((cells.T @ pairs).reshape(-1, size, size), 1e-10, hermitian=True)
    x = np.where(seen, x, 0.0)
    mean = np.sum(cells * x, axis=0) / np.maximum(cells.sum(axis=0), 1e-300)
    before = np.sum(cells * (x - mean) ** 2, axis=0)
    coefficients = np.zeros((size, x.shape[1]))
    for _ in range(2):
        slope = np.einsum("jab,jb->aj", inverse, (cells * x).T @ basis)
        x = np.where(seen, x - basis @ slope, 0.0)
        coefficients += slope
    return x, coefficients, before, np.sum(cells * x**2, axis=0)
