"""A block without what a design explains: the rows of the design projected out of its samples."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from streampca.kernels import Array
from streampca.matrix.block import Block

PIECE_NBYTES = 4 << 20  # of float64 values that are worked on at a time
ROUNDING = 16 * float(np.finfo(np.float64).eps)


def residual_block(block: Block, design: Array, removed: Array | None) -> Block:
    """The block with x - mean - design C in place of x, in the working dtype; holes become NaN.

    design : (rows of this block, r) with weighted columns that sum to 0 and are orthonormal over
        all samples.
    removed : (1 + r, columns of this block), the mean and C; None where features are streamed:
        every column is then regressed on the design here, over its observed samples, and
        ``block["removed"]`` of the result says what was found.

    A column that the design explains to rounding becomes 0. The arithmetic is float64.
    Cost: 8 r flops for each cell; a column with holes has normal equations of its own, 2 r^2.
    Source: Frisch and Waugh 1933 (the projection); Bjorck 1996, "Numerical methods for least
    squares problems", section 2.4.5 (projected twice, as orthogonal as rounding allows).
    """
    rows, columns = block.shape
    out = np.empty((rows, columns), block.work_dtype)
    arrays = dict(block.arrays)
    if removed is None:
        arrays["removed"] = removed = np.empty((1 + design.shape[1], columns))
        step = max(1, PIECE_NBYTES // (8 * max(rows, 1)))
        for start in range(0, columns, step):
            part = (slice(None), slice(start, start + step))
            out[part], removed[part] = _regress(block, design, part)
    else:
        step = max(1, PIECE_NBYTES // (8 * max(columns, 1)))
        for start in range(0, rows, step):
            part = (slice(start, start + step), slice(None))
            x, hole = _piece(block, part)
            x -= removed[0]
            x -= design[part[0]] @ removed[1:]
            if hole is not None:
                x[hole] = np.nan
            out[part] = x
    return replace(block, values=out, missing_value=None, hidden=None, arrays=arrays)


def found(block: Block) -> Array:
    """(features of this block, 1 + r) what was removed from them: a map."""
    return np.asarray(block["removed"].T)


def _piece(block: Block, part: tuple[slice, slice]) -> tuple[Array, Array | None]:
    """(float64 values, missing cells) of a part of the block."""
    raw = block.values[part]
    raw = raw if isinstance(raw, np.ndarray) else raw.toarray()
    hole = block.holes_in(raw, part)
    x = raw.astype(np.float64)
    if hole is not None:
        x[hole] = 0.0
    return x, hole


def _regress(block: Block, design: Array, part: tuple[slice, slice]) -> tuple[Array, Array]:
    """(residuals, (1 + r, columns) mean and coefficients) of some columns, whole ones."""
    x, hole = _piece(block, part)
    w = np.ones(len(x)) if block.weights is None else block.weights
    weighted = design * w[:, None]
    size = np.sqrt(w @ x**2)
    coefficients = np.zeros((1 + design.shape[1], x.shape[1]))
    for _ in range(2):
        mean = w @ x / max(w.sum(), 1e-300)
        x -= mean
        slope = weighted.T @ x
        x -= design @ slope
        coefficients[0] += mean
        coefficients[1:] += slope
    if hole is not None and (holey := np.flatnonzero(hole.any(axis=0))).size:
        raw, _ = _piece(block, part)
        x[:, holey], coefficients[:, holey] = _regress_observed(
            raw[:, holey], ~hole[:, holey], design, w
        )
    explained = np.sqrt(w @ x**2) <= max(0.5 * block.eps, ROUNDING) * size
    x[:, explained] = 0.0
    if hole is not None:
        x[hole] = np.nan
    return x, coefficients


def _regress_observed(x: Array, seen: Array, design: Array, w: Array) -> tuple[Array, Array]:
    """The same for columns with holes (0 there): least squares over their observed samples.

    Coefficients that those do not determine are the smallest ones.
    """
    root = 1.0 / np.sqrt(max(w.sum(), 1e-300))
    basis = np.column_stack([np.full(len(w), root), design])
    size = basis.shape[1]
    cells = seen * w[:, None]
    pairs = (basis[:, :, None] * basis[:, None, :]).reshape(len(w), -1)
    inverse = np.linalg.pinv((cells.T @ pairs).reshape(-1, size, size), 1e-10, hermitian=True)
    shift = np.sum(cells * x, axis=0) / np.maximum(cells.sum(axis=0), 1e-300)
    x = np.where(seen, x - shift, 0.0)
    coefficients = np.zeros((size, x.shape[1]))
    for _ in range(2):
        slope = np.einsum("jab,jb->aj", inverse, (cells * x).T @ basis)
        x = np.where(seen, x - basis @ slope, 0.0)
        coefficients += slope
    coefficients[0] = coefficients[0] * root + shift
    return x, coefficients
