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
CACHED_NBYTES = 512 * 1024  # of a panel that is multiplied twice, or one run where runs are larger
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


def probed_product(z: Array, h: Array, *, rows: bool, beside: Array | None = None) -> Array:
    """z'(z h) for z (r, m) (``rows=True``), or z (z'h) for z (m, r): (m, PROBES) float64.

    beside : (r, c) more columns that z' (or z) is multiplied with: c more columns of the result.
    No sum over r in the dtype of z is longer than SHORT. The two products with a panel of z follow
    each other while it is in the cache.
    Cost: 4 r m PROBES flops; 4 r m PROBES / SHORT bytes.
    """
    if not rows and not z.flags.c_contiguous:
        z, rows = z.T, True
    r, m = z.shape if rows else z.shape[::-1]
    beside = np.empty((r, 0), z.dtype) if beside is None else beside
    h = h.astype(z.dtype, copy=False)
    out = np.zeros((m, PROBES + beside.shape[1]))
    step = SHORT * max(1, CACHED_NBYTES // max(1, SHORT * m * z.itemsize))
    with np.errstate(over="ignore", invalid="ignore"):  # who solves looks at what overflowed
        for first in range(0, r, step):
            panel = z[first : first + step] if rows else z[:, first : first + step].T
            inner = np.empty((len(panel), out.shape[1]), z.dtype)
            np.matmul(panel, h, out=inner[:, :PROBES])
            inner[:, PROBES:] = beside[first : first + step]
            whole = len(panel) - len(panel) % SHORT
            out += _of_runs(panel[:whole], inner[:whole], SHORT)
            out += _of_runs(panel[whole:], inner[whole:], len(panel) - whole)
    return out


def _of_runs(panel: Array, inner: Array, run: int) -> Array:
    """panel' inner, (m, columns) float64, with sums over its rows in runs of that length."""
    if len(panel) == 0:
        return np.zeros((panel.shape[1], inner.shape[1]))
    if len(panel) == run:
        return panel.T @ inner
    factors = inner.reshape(-1, run, inner.shape[1]).transpose(0, 2, 1)
    parts = np.matmul(factors, panel.reshape(-1, run, panel.shape[1]))
    return np.asarray(parts.sum(axis=0, dtype=np.float64).T)


def sum_error(dtype: np.dtype[Any], terms: int) -> float:
    """Most that a BLAS sum of so many terms can be off, as a share of the sum of their sizes.

    Source: Higham 2002, section 4.2: a sum of n terms in runs of b has an error of (b + n / b) u.
    """
    unit = float(np.finfo(dtype).eps) / 2
    return unit * (min(terms, CHAIN) + terms / PANEL + 2)
