"""The array calls of the inner loops. Nothing else touches BLAS or LAPACK per block.

scipy's public BLAS wrappers hold the GIL, so two lanes would gain nothing. The same
routines are taken here from ``scipy.linalg.cython_blas`` and called through ctypes, which
releases it. Symmetric matrices are kept in C order with the lower triangle valid
(Fortran's upper); :func:`symmetrize` mirrors it when a result is read.
"""

from __future__ import annotations

import ctypes
from dataclasses import dataclass
from typing import Any

import numpy as np
import scipy.linalg.blas
import scipy.linalg.cython_blas
import scipy.linalg.cython_lapack
import scipy.linalg.lapack

Array = np.ndarray[Any, np.dtype[Any]]

CACHE_NBYTES = 256 * 1024  # elementwise work is done in pieces that stay in a core's L2 cache


def _routine(module: Any, name: str, n_arguments: int) -> Any | None:
    """A GIL-free BLAS/LAPACK routine with 32-bit integers, or None where scipy has no such."""
    capsule = getattr(module, "__pyx_capi__", {}).get(name)
    if capsule is None:
        return None
    get_name = ctypes.pythonapi.PyCapsule_GetName
    get_name.restype, get_name.argtypes = ctypes.c_char_p, [ctypes.py_object]
    get_pointer = ctypes.pythonapi.PyCapsule_GetPointer
    get_pointer.restype, get_pointer.argtypes = ctypes.c_void_p, [ctypes.py_object, ctypes.c_char_p]
    signature = get_name(capsule)
    if b"int *" not in signature:  # a 64-bit integer build: ours would pass the wrong width
        return None
    return ctypes.CFUNCTYPE(None, *[ctypes.c_void_p] * n_arguments)(get_pointer(capsule, signature))


_SYRK = {t: _routine(scipy.linalg.cython_blas, t + "syrk", 10) for t in "sd"}
_SYR = _routine(scipy.linalg.cython_blas, "dsyr", 7)
_GEQRF = _routine(scipy.linalg.cython_lapack, "dgeqrf", 8)
_CTYPES: dict[str, Any] = {"s": ctypes.c_float, "d": ctypes.c_double}


def _int(value: int) -> Any:
    return ctypes.byref(ctypes.c_int(value))


def rank_k_update(c: Array, z: Array, *, rows: bool) -> None:
    """Add z'z (``rows=True``) or zz' (``rows=False``) to the lower triangle of c, in place.

    c : (m, m) C-ordered float32 or float64; z : C-ordered, same dtype, (r, m) or (m, r).
    """
    kind = "s" if c.dtype == np.float32 else "d"
    n = c.shape[0]
    k = z.shape[0] if rows else z.shape[1]
    if n == 0 or k == 0:
        return
    # C order seen as Fortran order is the transpose: z'z needs no transposition there.
    if (syrk := _SYRK[kind]) is None:
        public = scipy.linalg.blas.ssyrk if kind == "s" else scipy.linalg.blas.dsyrk
        public(1.0, z.T, beta=1.0, c=c.T, trans=not rows, lower=0, overwrite_c=1)
        return
    one = ctypes.byref(_CTYPES[kind](1.0))
    lead = z.strides[0] // z.itemsize if z.shape[0] > 1 else z.shape[1]
    syrk(
        b"U",
        b"N" if rows else b"T",
        _int(n),
        _int(k),
        one,
        z.ctypes.data,
        _int(lead),
        one,
        c.ctypes.data,
        _int(n),
    )


def rank_one_update(c: Array, x: Array, alpha: float) -> None:
    """Add alpha x x' to the lower triangle of c (float64, C order), in place."""
    if not x.size or alpha == 0.0:
        return
    x = np.ascontiguousarray(x, dtype=np.float64)
    if _SYR is None:
        scipy.linalg.blas.dsyr(alpha, x, a=c.T, lower=0, overwrite_a=1)
        return
    _SYR(
        b"U",
        _int(x.size),
        ctypes.byref(ctypes.c_double(alpha)),
        x.ctypes.data,
        _int(1),
        c.ctypes.data,
        _int(x.size),
    )


def triangular_factor(stack: Array) -> Array:
    """R of the QR factorisation of stack, which is overwritten.

    stack : (m, p) Fortran-ordered float64. Returns (p, p) upper triangular, Fortran-ordered.
    """
    m, p = stack.shape
    rank = min(m, p)
    if rank:
        tau = np.empty(rank)
        work = np.empty(max(1, 64 * p))
        info = ctypes.c_int(0)
        if _GEQRF is None:
            stack = scipy.linalg.lapack.dgeqrf(stack, overwrite_a=1)[0]
        else:
            _GEQRF(
                _int(m),
                _int(p),
                stack.ctypes.data,
                _int(m),
                tau.ctypes.data,
                work.ctypes.data,
                _int(work.size),
                ctypes.byref(info),
            )
    r = np.zeros((p, p), order="F")
    r[:rank] = np.triu(stack[:rank])
    return r


def symmetrize(c: Array) -> Array:
    """A full symmetric float64 copy of a matrix whose lower triangle is valid."""
    full = np.array(c, dtype=np.float64, order="C")
    step = 512
    for i in range(0, len(full), step):
        j = min(i + step, len(full))
        full[i:j, j:] = full[j:, i:j].T
        corner = full[i:j, i:j]
        corner[...] = np.tril(corner) + np.tril(corner, -1).T
    return full


def row_pieces(n_rows: int, row_nbytes: int, nbytes: int = CACHE_NBYTES) -> list[slice]:
    """Slices of consecutive rows of about ``nbytes`` each."""
    step = max(1, nbytes // max(1, row_nbytes))
    return [slice(i, min(i + step, n_rows)) for i in range(0, n_rows, step)]


def probe(start: int, stop: int) -> Array:
    """Entries start..stop of the fixed pseudo-random vector h that orients components.

    h is uniform on (0, 2), from splitmix64 of the index: it can be made anywhere, for any
    slice, without the rest. Its mean is positive, so components that are one-sided come out
    positive. (Steele, Lea and Flood 2014, "Fast splittable pseudorandom number generators".)
    """
    with np.errstate(over="ignore"):
        x = np.arange(start, stop, dtype=np.uint64) + np.uint64(1)
        x = x * np.uint64(0x9E3779B97F4A7C15)
        x = (x ^ (x >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
        x = (x ^ (x >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
        x = x ^ (x >> np.uint64(31))
    return (x >> np.uint64(11)).astype(np.float64) * (2.0 / 2**53)


@dataclass(frozen=True)
class ColumnStats:
    """Per-column summary of one set of rows; every field is (columns,) float64 or int64."""

    count: Array  # observed cells
    missing: Array
    weight: Array  # sum of the weights of the observed cells
    mean: Array  # 0 where nothing was observed
    m2: Array  # sum of w (x - mean)^2
    minimum: Array  # +inf where nothing was observed
    maximum: Array  # -inf where nothing was observed
    mean_low: Array | float = 0.0  # what rounding took off the mean


def column_stats(values: Array, mask: Array | None, weights: Array | None) -> ColumnStats:
    """Count, mean, M2, min and max of each column in one sweep, shifted before squaring.

    values : (rows, columns); mask : True = missing, or None; weights : (rows,) or None.
    """
    n, p = values.shape
    shift = provisional_mean(values, mask)
    total, square, weight = np.zeros(p), np.zeros(p), np.zeros(p)
    missing = np.zeros(p, dtype=np.int64)
    low, high = np.full(p, np.inf), np.full(p, -np.inf)
    for rows in row_pieces(n, 8 * p):
        d = np.subtract(values[rows], shift, dtype=np.float64)
        w = None if weights is None else weights[rows, None]
        if mask is not None and (hole := mask[rows]).any():
            missing += np.count_nonzero(hole, axis=0)
            seen = ~hole
            np.minimum(low, np.where(seen, values[rows], np.inf).min(axis=0), out=low)
            np.maximum(high, np.where(seen, values[rows], -np.inf).max(axis=0), out=high)
            d[hole] = 0.0
            if w is not None:
                weight += np.sum(w * seen, axis=0)
        else:
            np.minimum(low, values[rows].min(axis=0), out=low)
            np.maximum(high, values[rows].max(axis=0), out=high)
            if w is not None:
                weight += w.sum()
        weighted = d if w is None else w * d
        total += weighted.sum(axis=0)
        square += np.einsum("ij,ij->j", weighted, d)
    count = n - missing
    if weights is None:
        weight = count.astype(np.float64)
    safe = np.where(weight > 0, weight, 1.0)
    offset = total / safe
    mean, rest = add_exactly(np.where(weight > 0, shift, 0.0), offset)
    m2 = np.maximum(square - total * offset, 0.0)
    return ColumnStats(count, missing, weight, mean, m2, low, high, rest)


def add_exactly(a: Array, b: Array) -> tuple[Array, Array]:
    """a + b as the rounded sum and what rounding took off (Knuth's two-sum).

    A mean is kept as such a pair: of a mean of 1e6, float64 keeps 1e-10, and the scatter of two
    parts needs the difference of their means to all digits.
    """
    total = a + b
    virtual = total - a
    return total, (a - (total - virtual)) + (b - virtual)


def provisional_mean(values: Array, mask: Array | None) -> Array:
    """A shift near each column's mean: the mean of the observed cells among a few rows."""
    head = slice(0, min(len(values), 64))
    if mask is None or not mask[head].any():
        part = values[head].astype(np.float64)
        return part.mean(axis=0) if len(part) else np.zeros(values.shape[1])
    seen = ~mask[head]
    part = np.where(seen, values[head], 0).astype(np.float64)
    return part.sum(axis=0) / np.maximum(seen.sum(axis=0), 1)
