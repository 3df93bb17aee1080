"""BLAS and LAPACK for the inner loops. No other module calls them per block.

SciPy's public BLAS wrappers hold the GIL, so a second thread would gain nothing. Here the same
routines come from ``scipy.linalg.cython_blas`` and are called through ctypes, which
releases the GIL. Symmetric matrices are kept in C order with the lower triangle valid
(Fortran's upper); :func:`symmetrize` mirrors it when a result is read.
"""

from __future__ import annotations

import contextlib
import ctypes
import mmap
import sys
from functools import cache, partial
from importlib import import_module
from math import prod
from typing import Any

import numpy as np
import scipy

from streampca.errors import InvalidInputError
from streampca.kernels.team import each

Array = np.ndarray[Any, np.dtype[Any]]


@cache
def _routine(library: str, name: str, n_arguments: int) -> Any | None:
    """A GIL-free BLAS/LAPACK routine with 32-bit integers, or None where SciPy has none."""
    module = import_module(f"scipy.linalg.cython_{library}")  # with the first product
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


_CTYPES: dict[str, Any] = {"s": ctypes.c_float, "d": ctypes.c_double}

# NumPy's product of a matrix with its transpose, a symmetric update too, takes less than SciPy's
# ssyrk of this triangle where there are no fewer terms than rows of c: half the time for 20 rows,
# eight tenths for 600. The product takes as much memory as c: more rows would need it in plans.
FEW = 512  # rows
PART = 768  # rows of the squares of a symmetric matrix that threads update


def _int(value: int) -> Any:
    return ctypes.byref(ctypes.c_int(value))


def rank_k_update(c: Array, z: Array, *, rows: bool) -> None:
    """Add z'z (``rows=True``) or zz' (``rows=False``) to the lower triangle of c, in place.

    c : (m, m) C-ordered float32 or float64; z : same dtype, (r, m) or (m, r), C or F order.
    """
    if not z.flags.c_contiguous and z.flags.f_contiguous:
        z, rows = z.T, not rows
    kind = "s" if c.dtype == np.float32 else "d"
    if not len(c) or not z.size:
        return
    terms = z.shape[0 if rows else 1]
    if len(c) <= FEW and terms >= len(c):
        with np.errstate(over="ignore", invalid="ignore"):
            c += z.T @ z if rows else z @ z.T  # the whole, which is quicker than one triangle
        return
    # C order seen as Fortran order is the transpose: z'z needs no transposition there.
    if _routine("blas", kind + "syrk", 10) is None:
        public = scipy.linalg.blas.ssyrk if kind == "s" else scipy.linalg.blas.dsyrk
        public(1.0, z.T, beta=1.0, c=c.T, trans=not rows, lower=0, overwrite_c=1)
        return
    z = z.T if rows else z
    each(partial(_update_part, c, z), _parts_of_triangle(len(c)))


def _parts_of_triangle(n: int) -> list[tuple[slice, slice]]:
    """(rows, columns) of the squares of a lower triangle, those on its diagonal last."""
    parts = [slice(i, min(i + PART, n)) for i in range(0, n, PART)]
    below = [(rows, columns) for i, rows in enumerate(parts) for columns in parts[:i]]
    return below + [(part, part) for part in parts]


def _update_part(c: Array, z: Array, part: tuple[slice, slice]) -> None:
    """Add one square of zz'; of a square on the diagonal the lower triangle."""
    rows, columns = part
    if rows != columns:
        add_product(c[part], z[rows], z[columns].T)
        return
    kind = "s" if c.dtype == np.float32 else "d"
    one = ctypes.byref(_CTYPES[kind](1.0))
    own, c = z[rows], c[part]
    layout, lead = _layout(own)
    syrk: Any = _routine("blas", kind + "syrk", 10)
    syrk(
        b"U",
        b"T" if layout == b"N" else b"N",
        _int(len(c)),
        _int(own.shape[1]),
        one,
        own.ctypes.data,
        _int(lead),
        one,
        c.ctypes.data,
        _int(_lead(c)),
    )


def add_product(c: Array, a: Array, b: Array) -> None:
    """Add a b to c, in place.

    c : (m, n), its rows contiguous; a : (m, k), b : (k, n) in C or F order, or parts of such; all
    float32, or all float64.
    """
    kind = "s" if c.dtype == np.float32 else "d"
    (m, k), n = a.shape, b.shape[1]
    if not c.size or not k:
        return
    if (gemm := _routine("blas", kind + "gemm", 13)) is None:
        c += a @ b
        return
    # C order seen as Fortran order is the transpose: c' = c' + b' a'.
    one = ctypes.byref(_CTYPES[kind](1.0))
    b_layout, b_lead = _layout(b)
    a_layout, a_lead = _layout(a)
    gemm(
        b_layout,
        a_layout,
        _int(n),
        _int(m),
        _int(k),
        one,
        b.ctypes.data,
        _int(b_lead),
        a.ctypes.data,
        _int(a_lead),
        one,
        c.ctypes.data,
        _int(_lead(c)),
    )


def _lead(c: Array) -> int:
    """Entries from one row of a part of a C-ordered matrix to the next."""
    return int(max(c.strides[0] // c.itemsize if len(c) > 1 else 0, c.shape[1]))


def _layout(x: Array) -> tuple[bytes, int]:
    """(whether Fortran must transpose x to see x', its leading dimension)."""
    rows, columns = x.shape
    if x.strides[1] == x.itemsize and (rows == 1 or x.strides[0] >= columns * x.itemsize):
        return b"N", max(x.strides[0] // x.itemsize if rows > 1 else columns, 1)
    if x.strides[0] == x.itemsize or rows == 1:
        return b"T", max(x.strides[1] // x.itemsize if columns > 1 else rows, 1)
    raise InvalidInputError(f"strides {x.strides} of a {x.shape} operand; expected C or F order")


def rank_one_update(c: Array, x: Array, alpha: float) -> None:
    """Add alpha x x' to the lower triangle of c (float64, C order), in place."""
    if not x.size or alpha == 0.0:
        return
    x = np.ascontiguousarray(x, dtype=np.float64)
    if (syr := _routine("blas", "dsyr", 7)) is None:
        scipy.linalg.blas.dsyr(alpha, x, a=c.T, lower=0, overwrite_a=1)
        return
    syr(
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
        if (geqrf := _routine("lapack", "dgeqrf", 8)) is None:
            stack = scipy.linalg.lapack.dgeqrf(stack, overwrite_a=1)[0]
        else:
            geqrf(
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
    """A full symmetric float64 copy of c (n, n), whose lower triangle is valid."""
    full = np.array(c, dtype=np.float64, order="C")
    mirror_lower(full)
    return full


def mirror_lower(c: Array) -> None:
    """Copy the lower triangle of c (n, n) onto the upper one, in place."""
    for i in range(0, len(c), BLOCK_ROWS):
        j = min(i + BLOCK_ROWS, len(c))
        c[i:j, j:] = c[j:, i:j].T
        corner = c[i:j, i:j]
        np.copyto(corner, corner.T.copy(), where=UPPER[: j - i, : j - i])


BLOCK_ROWS = 256  # of a triangle that are expanded at a time
UPPER = np.tri(BLOCK_ROWS, k=-1, dtype=bool).T  # of such a block, above the diagonal
ADDED_NBYTES = 1 << 22  # of a sum that one thread adds to


ROWS_TOGETHER = 8  # rows of a product that kernels of BLAS compute together, or a divisor of it


def row_product(rows: Array, matrix: Array) -> Array:
    """(n, k) rows (n, p) @ matrix (p, k), every row with the same bits however many there are.

    BLAS sums the last of an odd number of rows in another order.
    """
    whole = len(rows) - len(rows) % ROWS_TOGETHER
    out = np.empty((len(rows), matrix.shape[1]), np.result_type(rows, matrix))
    np.matmul(rows[:whole], matrix, out=out[:whole])
    if whole < len(rows):
        last = np.zeros((ROWS_TOGETHER, rows.shape[1]), rows.dtype)
        last[: len(rows) - whole] = rows[whole:]
        out[whole:] = (last @ matrix)[: len(rows) - whole]
    return out


def lower_product(c: Array, v: Array) -> Array:
    """(m, k) float64 c v for a symmetric c (m, m) given by its lower triangle, float32 or float64.

    Sums are float64.
    """
    out = np.zeros((len(c), v.shape[1]))
    v = np.asarray(v, dtype=np.float64)
    parts = [slice(i, min(i + BLOCK_ROWS, len(c))) for i in range(0, len(c), BLOCK_ROWS)]
    run = BLOCK_ROWS if v.shape[1] == 1 else len(c)  # products with one column are not blocked

    def rows(own: slice) -> None:
        left = c[own, : own.start].astype(np.float64, copy=False)
        corner = c[own, own].astype(np.float64)
        np.copyto(corner, corner.T, where=UPPER[: len(corner), : len(corner)])
        out[own] += left @ v[: own.start] + corner @ v[own]
        for start in range(own.stop, len(c), run):
            below = c[start : start + run, own].astype(np.float64, copy=False)
            out[own] += below.T @ v[start : start + run]

    with np.errstate(over="ignore", invalid="ignore"):
        each(rows, parts)
    return out


def add_in_place(total: Array, part: Array) -> None:
    """total += part, for arrays of one shape, by rows on the threads of the team."""

    def add(rows: slice) -> None:
        total[rows] += part[rows]

    step = max(1, ADDED_NBYTES // max(1, total[:1].nbytes))
    each(add, [slice(i, i + step) for i in range(0, len(total), step)])


# Memory that is returned to the system as soon as it is freed.
#
# ``malloc`` may keep freed memory per thread: unused blocks and partial accumulators of tens of MiB
# accumulated with every span.

LARGE_NBYTES = 1 << 20  # smaller arrays are allocated by malloc


def pages(nbytes: int) -> np.ndarray[Any, np.dtype[np.uint8]]:
    """``nbytes`` zero bytes in separate pages."""
    return np.frombuffer(mmap.mmap(-1, max(nbytes, 1)), np.uint8)


def give_back(freed: int = LARGE_NBYTES) -> None:
    """Return freed memory to the system: glibc's malloc keeps some for each thread, Arrow too.

    freed : bytes; of fewer than LARGE_NBYTES nothing is returned.
    Cost: about a millisecond; up to 15 where long use has left many gaps. Without glibc and Arrow
    this does nothing.
    """
    if freed < LARGE_NBYTES:
        return
    if "pyarrow" in sys.modules:
        with contextlib.suppress(AttributeError):  # Arrow is just being imported elsewhere
            sys.modules["pyarrow"].default_memory_pool().release_unused()
    with contextlib.suppress(AttributeError, OSError, TypeError):
        ctypes.CDLL(None).malloc_trim(0)


def zeros(shape: tuple[int, ...], dtype: Any = float, spare: Array | None = None) -> Array:
    """``np.zeros(shape)``; a large array gets its own pages.

    spare : an array to overwrite, if it fits: allocating new pages costs more than clearing.
    """
    if spare is not None and (spare.shape, spare.dtype) == (shape, np.dtype(dtype)):
        spare.fill(0)
        return spare
    nbytes = prod(shape) * np.dtype(dtype).itemsize
    if nbytes < LARGE_NBYTES:
        return np.zeros(shape, dtype)
    return np.asarray(pages(nbytes)[:nbytes].view(dtype).reshape(shape))
