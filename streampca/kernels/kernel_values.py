"""Compiled kernels of float32 rows: exponentials in vector registers, absolute distances.

Compiled by Numba on first use (see ``calls``). ``math.exp`` in a loop is a call for each number
unless a vector library is installed; a polynomial is not, and takes a tenth of the time of the
five sweeps that NumPy makes over a tile.
"""

from __future__ import annotations

import numpy as np
from numba import njit

from streampca.kernels.compiled import compiled

_compile = compiled(error_model="numpy", fastmath={"contract", "reassoc", "nsz"})

# exp(x) = 2^k exp(r), |r| <= log(2) / 2. Source: Cephes, ``expf``; 2 units in the last place.
_LEAST = np.float32(-87.0)  # exp of less is a subnormal number; it becomes 1.6e-38
_PER_LOG2 = np.float32(1.44269504088896341)
_LOG2_HIGH, _LOG2_LOW = np.float32(0.693359375), np.float32(-2.12194440e-4)
_C0, _C1, _C2 = (
    np.float32(1.9875691500e-4),
    np.float32(1.3981999507e-3),
    np.float32(8.3334519073e-3),
)
_C3, _C4, _C5 = (
    np.float32(4.1665795894e-2),
    np.float32(1.6666665459e-1),
    np.float32(5.0000001201e-1),
)
_HALF, _ONE, _TWO = np.float32(0.5), np.float32(1.0), np.float32(2.0)
_BIAS, _MANTISSA = np.int32(127), np.int32(23)


@njit(inline="always")
def _exp(x):  # type: ignore[no-untyped-def]
    """exp(x) for x <= 0, float32."""
    x = max(x, _LEAST)
    k = np.floor(x * _PER_LOG2 + _HALF)
    r = (x - k * _LOG2_HIGH) - k * _LOG2_LOW
    y = ((((_C0 * r + _C1) * r + _C2) * r + _C3) * r + _C4) * r + _C5
    power = np.int32((np.int32(k) + _BIAS) << _MANTISSA).view(np.float32)
    return (y * (r * r) + r + _ONE) * power


@_compile
def gaussian(products, left, right, gamma):  # type: ignore[no-untyped-def]
    """exp(-gamma |x - y|^2) in place of the inner products (a, b) of rows.

    left, right : (a,), (b,) their squared lengths.  All float32.
    """
    for i in range(products.shape[0]):
        row, own = products[i], left[i]
        for j in range(len(row)):
            row[j] = _exp(-gamma * max(own + right[j] - _TWO * row[j], np.float32(0.0)))


@_compile
def laplacian(x, columns, gamma, out):  # type: ignore[no-untyped-def]
    """out (a, b) = exp(-gamma sum |x_i - y_i|) for rows x (a, p) and ``columns`` (p, b) of rows y.

    All float32, C order.
    """
    for i in range(out.shape[0]):
        row = out[i]
        row[:] = np.float32(0.0)
        for k in range(len(columns)):
            own, theirs = x[i, k], columns[k]
            for j in range(len(row)):
                row[j] += abs(own - theirs[j])
        for j in range(len(row)):
            row[j] = _exp(-gamma * row[j])
