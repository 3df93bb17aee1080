"""How far rounding may have moved a kernel matrix: errors of entries, and what centring adds."""

from __future__ import annotations

from typing import Any

import numpy as np

from streampca.kernels import Array, row_pieces, sum_error
from streampca.models.kernel_functions import Kernel

GIVEN = ("precomputed", "function")  # kernels whose values are taken as they come
UNIT = float(np.finfo(np.float64).eps)


def value_error(
    kernel: Kernel, values: Array, left: Array, right: Array, relative: float
) -> Array | float:
    """(a, b) bounds of the errors of kernel values, those of linear and given kernels apart.

    left, right : squared lengths of the rows.  relative : error of an inner product, relative to
    the product of the lengths.
    """
    if kernel.name in ("linear", *GIVEN):
        return 0.0
    if kernel.name in ("cosine", "laplacian"):  # t exp(-t) is at most 1 / e
        return 2.0 * relative
    if kernel.name == "rbf":
        apart = 2.0 * relative * kernel.gamma * (left[:, None] + right)
        return np.asarray(np.minimum(values * np.expm1(np.minimum(apart, 700.0)), 1.0))
    inner = abs(kernel.gamma) * np.sqrt(np.multiply.outer(left, right))
    if kernel.name == "sigmoid":  # its slope is at most 1
        return np.asarray(np.minimum(relative * inner, 2.0))
    slope = abs(kernel.degree) * (inner + abs(kernel.coef0)) ** (kernel.degree - 1.0)
    return np.asarray(slope * relative * inner)


def matrix_error(
    kernel: Kernel, lower: Array, lengths: Array, dtype: np.dtype[Any], terms: int
) -> float:
    """A bound of |E|, the error of a kernel matrix (n, n) that is centred in float64.

    lower : its lower triangle.  lengths : (n,) squared, of its rows, products of which were summed
    in ``dtype`` over at most so many ``terms``. The error of a linear kernel's products is apart:
    :func:`product_error`.
    """
    relative, squares = sum_error(dtype, terms), 0.0
    for rows in row_pieces(len(lower), 24 * len(lower)):
        values = np.tril(lower[rows], rows.start)
        made = value_error(kernel, values, lengths[rows], lengths, relative)
        errors = np.tril(made + 4.0 * UNIT * np.abs(values), rows.start)
        squares += 2.0 * float(np.sum(errors**2))  # of both triangles
    return float(np.sqrt(squares))


def product_error(
    dtype: np.dtype[Any], terms: int, lengths: Array, largest: float, total: float
) -> float:
    """A bound of |E v| for products of rows that are not quite centred.

    largest, total : eigenvalue and trace of the centred matrix. What the mean of the rows adds to
    the trace, it adds to the norm at most so: |X| <= |centred X| + sqrt(n) |mean|.
    """
    whole = float(lengths.sum())
    mean = np.sqrt(max(whole - total, 0.0))
    return float(sum_error(dtype, terms) * np.sqrt(whole) * (np.sqrt(max(largest, 0.0)) + mean))
