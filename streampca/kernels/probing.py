"""Products with a few random vectors, in short sums: they measure what rounding does to a long sum.

A symmetric update adds many terms one after the other. Terms that are equal, or small beside one
that came before, are rounded the same way, so the error can be a hundred times that of a random
walk, and how large it is depends on the BLAS kernel. No model of it is both honest and useful.
So the sum S is multiplied, while its rows pass by, with the columns of a fixed random matrix H,
and those products are added up in float64. The error E of S then shows in
S H - sum z (z'H) = E H: for any vector v that was found without H, (E v)'h is normal with the
variance |E v|^2, which is what a bound of an eigenpair needs.
Source: Hutchinson 1990, "A stochastic estimator of the trace of the influence matrix", section 2;
Higham 2002, "Accuracy and Stability of Numerical Algorithms", section 4.2, on sums in runs.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Any

import numpy as np
from scipy.special import ndtri

from streampca.kernels.blas import Array
from streampca.kernels.splitmix import GOLDEN, mixed

PROBES = 8  # columns of H
CONFIDENCE = 6.0  # |E v| exceeds so many root mean squares of PROBES values in 6 of a million cases
SHORT = 32  # terms that are added one after the other
CHAIN = 512  # those that a BLAS kernel adds one after the other, at most
PANEL = 128  # terms between two roundings of its result to memory, at least


@lru_cache(maxsize=4)
def probe_vectors(m: int) -> Array:
    """H: (m, PROBES) float32, read-only, standard normal numbers from splitmix64 of the index."""
    with np.errstate(over="ignore"):
        x = (np.arange(m * PROBES, dtype=np.uint64) + np.uint64(1 << 40)) * GOLDEN
    uniform = ((mixed(x) >> np.uint64(11)).astype(np.float64) + 0.5) / 2**53
    vectors = ndtri(uniform).reshape(m, PROBES).astype(np.float32)
    vectors.flags.writeable = False
    return np.asarray(vectors)


def norm_estimate(probed: Array) -> Array:
    """(k,) upper estimates of |x_i| from x_i'H, (k, PROBES)."""
    unit = float(np.abs(probed).max(initial=0.0))  # squares of what is huge or tiny would be lost
    if unit == 0.0 or not np.isfinite(unit):
        return np.full(len(probed), unit)
    return np.asarray(CONFIDENCE * unit * np.sqrt(np.mean((probed / unit) ** 2, axis=1)))


def probed_product(z: Array, h: Array, *, rows: bool) -> Array:
    """z'(z h) for z (r, m) (``rows=True``), or z (z'h) for z (m, r): (m, PROBES) float64.

    No sum over r in the dtype of z is longer than SHORT.
    Cost: 4 r m PROBES flops; 4 r m PROBES / SHORT bytes.
    """
    if not rows and not z.flags.c_contiguous:
        z, rows = z.T, True
    r = len(z) if rows else z.shape[1]
    whole = r - r % SHORT
    with np.errstate(over="ignore", invalid="ignore"):  # who solves looks at what overflowed
        inner = (z if rows else z.T) @ h.astype(z.dtype, copy=False)
        out = _of_runs(z, inner, 0, whole, SHORT, rows)
        return out + _of_runs(z, inner, whole, r, r - whole, rows) if whole < r else out


def _of_runs(z: Array, inner: Array, first: int, last: int, run: int, rows: bool) -> Array:
    """The product over first..last of the summed axis, in runs of that length."""
    m, count = z.shape[1] if rows else len(z), inner.shape[1]
    if first == last:
        return np.zeros((m, count))
    factors = inner[first:last].reshape(-1, run, count)
    if rows:
        parts = np.matmul(factors.transpose(0, 2, 1), z[first:last].reshape(-1, run, m))
        return np.asarray(parts.sum(axis=0, dtype=np.float64).T)
    runs = z[:, first:last].reshape(m, -1, run).transpose(1, 0, 2)
    return np.asarray(np.matmul(runs, factors).sum(axis=0, dtype=np.float64))


def sum_error(dtype: np.dtype[Any], terms: int) -> float:
    """Most that a BLAS sum of so many terms can be off, as a share of the sum of their sizes.

    Source: Higham 2002, section 4.2: a sum of n terms in runs of b has an error of (b + n / b) u.
    """
    unit = float(np.finfo(dtype).eps) / 2
    return unit * (min(terms, CHAIN) + terms / PANEL + 2)
