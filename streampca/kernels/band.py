"""The leading eigenpairs of a large symmetric matrix, by way of a band, on the threads of a team.

LAPACK reduces to three diagonals, and half of that work reads the whole matrix for every column:
it is bound by memory, and its bits depend on the number of threads. A band needs one read for WIDTH
columns. Its eigenvalues then cost 6 m^2 WIDTH flops, on one thread.

Source: Bischof, Lang and Sun 2000, "A framework for symmetric band reduction", ACM TOMS 26,
section 2; Schreiber and Van Loan 1989, "A storage-efficient WY representation", for products of
reflections.
"""

from __future__ import annotations

import ctypes
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import scipy

from streampca.kernels.blas import Array, _int, _lead, _routine, add_product
from streampca.kernels.team import each

STEPS = 4  # of inverse iteration; two are enough, but for a start that is nearly orthogonal
ALLOWED = 4.0  # residual, in units of eps times the norm and the square root of the size


def leading_pairs(a: Array, count: int) -> tuple[Array, Array, float] | None:
    """(values ascending, vectors (m, count), sum of the third powers of all eigenvalues in units of
    the largest), or None where they do not pass the check.

    a : (m, m) C-ordered float64, of which the upper triangle is read and overwritten.
    The eigenvalues are those of bisection, none of which can be missed. The vectors are those of
    inverse iteration, orthonormal, and turned so that they diagonalise the matrix. They pass where
    their residuals and the differences from the eigenvalues are rounding.
    Cost: 4/3 m^3 flops on all threads, 6 m^2 WIDTH on one.
    Source: Parlett 1998, "The Symmetric Eigenvalue Problem", sections 4.5 and 11.
    """
    if (band := band_of(a)) is None:
        return None
    m, stored = len(a), band.stored()
    values = scipy.linalg.eig_banded(
        stored,
        lower=True,
        eigvals_only=True,
        select="i",
        select_range=(m - count, m - 1),
        check_finite=False,
    )
    if len(values) < count:  # bisection loses some among equal ones
        return None
    size = max(abs(float(values[-1])), float(np.abs(stored[0]).max()))
    if (vectors := _vectors(stored, values, size)) is None:
        return None
    small = vectors.T @ band.times(vectors)
    found, rotation = np.linalg.eigh((small + small.T) / 2)
    vectors = vectors @ rotation
    residual = band.times(vectors) - vectors * found
    error = max(float(np.linalg.norm(residual, axis=0).max()), float(np.abs(found - values).max()))
    if not error <= ALLOWED * np.sqrt(m) * np.finfo(np.float64).eps * size:
        return None
    return found, band.turned(np.ascontiguousarray(vectors)), band.cubes(float(found[-1]) or 1.0)


def _vectors(stored: Array, values: Array, size: float) -> Array | None:
    """(m, count) orthonormal, by inverse iteration with each value as the shift."""
    m, count = stored.shape[1], len(values)
    start = np.random.default_rng(0).standard_normal((m, count))
    out = np.empty((m, count))
    general = np.zeros((3 * WIDTH + 1, m))  # a general band, with room for the pivots
    for d in range(WIDTH + 1):
        general[2 * WIDTH + d, : m - d] = stored[d, : m - d]
        general[2 * WIDTH - d, d:] = stored[d, : m - d]
    for i in range(count - 1, -1, -1):  # the largest first
        shifted = general.copy()
        shifted[2 * WIDTH] -= values[i] + (count - i) * np.finfo(np.float64).eps * size
        factors, pivots, info = scipy.linalg.lapack.dgbtrf(shifted, WIDTH, WIDTH, overwrite_ab=1)
        if info < 0:
            return None
        x, known = start[:, i], out[:, i + 1 :]
        for _ in range(STEPS):
            x = x - known @ (known.T @ x)
            x = x / np.linalg.norm(x)
            x = scipy.linalg.lapack.dgbtrs(factors, WIDTH, WIDTH, x, pivots)[0]
            x = x / np.abs(x).max()
        for _ in range(2):
            x = x - known @ (known.T @ x)
            x = x / np.linalg.norm(x)
        if not np.isfinite(x).all():
            return None
        out[:, i] = x
    return out


# The band.

WIDTH = 48  # diagonals below the main one
STRIP = 256  # rows that one thread updates at a time
ROUTINES = {"dsymm": ("blas", 12), "dsyr2k": ("blas", 12), "dgeqrf": ("lapack", 8)}


def _named(name: str) -> Any:
    """A routine, or None where SciPy has none."""
    library, n_arguments = ROUTINES[name]
    return _routine(library, name, n_arguments)


@dataclass(frozen=True)
class Band:
    """Q'AQ, block tridiagonal.

    diagonal : square blocks, symmetric.  right : the block to the right of each but the last.
    reflections : where the upper triangle of A was.  factors : of the products of reflections.
    """

    diagonal: list[Array]
    right: list[Array]
    reflections: Array
    factors: list[Array]

    def times(self, x: Array) -> Array:
        """The band times x (m, k)."""
        out, first = np.zeros_like(x), 0
        for i, block in enumerate(self.diagonal):
            stop = first + len(block)
            out[first:stop] += block @ x[first:stop]
            if i < len(self.right):
                end = stop + self.right[i].shape[1]
                out[first:stop] += self.right[i] @ x[stop:end]
                out[stop:end] += self.right[i].T @ x[first:stop]
            first = stop
        return out

    def stored(self) -> Array:
        """(WIDTH + 1, m) the diagonals, the main one first, as LAPACK stores a lower band."""
        m = len(self.reflections)
        out, first = np.zeros((WIDTH + 1, m)), 0
        for i, block in enumerate(self.diagonal):
            whole = np.hstack([block, self.right[i]]) if i < len(self.right) else block
            for row in range(len(block)):
                line = whole[row, row : row + WIDTH + 1]
                out[: len(line), first + row] = line
            first += len(block)
        return out

    def cubes(self, unit: float) -> float:
        """The trace of the third power, its entries in this unit."""
        diagonal = [block / unit for block in self.diagonal]
        total = sum(float(np.vdot(block @ block, block)) for block in diagonal)
        for block, right, after in zip(diagonal, self.right, diagonal[1:], strict=False):
            right = right / unit
            total += 3.0 * float(np.vdot(block, right @ right.T) + np.vdot(after, right.T @ right))
        return total

    def turned(self, x: Array) -> Array:
        """Q x, in place of x (m, k)."""
        for number in range(len(self.factors) - 1, -1, -1):
            v, part = _reflections(self.reflections, number * WIDTH), x[(number + 1) * WIDTH :]
            part -= v @ (self.factors[number] @ (v.T @ part))
        return x


def band_of(a: Array) -> Band | None:
    """The band of a symmetric matrix; None where SciPy lacks a routine.

    a : (m, m) C-ordered float64; its upper triangle and diagonal are overwritten.
    Cost: 4/3 m^3 flops, 7 m WIDTH float64 of memory. Bits do not depend on the number of threads.
    """
    if any(_named(name) is None for name in ROUTINES):
        return None
    m, start = len(a), 0
    diagonal, right, factors = [], [], []
    while True:
        inner = start + WIDTH
        here = slice(start, min(inner, m))
        block = np.triu(a[here, here])
        diagonal.append(block + np.triu(block, 1).T)
        if inner >= m:
            break
        factors.append(_factor_panel(a, start))
        right.append(np.tril(a[here, inner : inner + WIDTH]))
        _apply(a[inner:, inner:], _reflections(a, start), factors[-1])
        start = inner
    return Band(diagonal, right, a, factors)


def _reflections(a: Array, start: int) -> Array:
    """(rows, WIDTH or fewer) V of the panel that begins there, unit lower trapezoidal."""
    rows = len(a) - start - WIDTH
    v = np.array(a[start : start + min(WIDTH, rows), start + WIDTH :].T, order="C")
    v[:WIDTH] = np.tril(v[:WIDTH], -1)
    np.fill_diagonal(v[:WIDTH], 1.0)
    return v


def _factor_panel(a: Array, start: int) -> Array:
    """T of I - V T V', of the QR of what lies right of a diagonal block, in its place."""
    inner = start + WIDTH
    panel, tau, work = a[start:inner, inner:], np.empty(WIDTH), np.empty(64 * WIDTH)
    info = ctypes.c_int(0)
    _named("dgeqrf")(
        _int(panel.shape[1]),
        _int(WIDTH),
        panel.ctypes.data,
        _int(_lead(panel)),
        tau.ctypes.data,
        work.ctypes.data,
        _int(work.size),
        ctypes.byref(info),
    )
    v = _reflections(a, start)
    count = v.shape[1]
    gram, t = v.T @ v, np.zeros((count, count))
    for i in range(count):
        t[:i, i] = -tau[i] * (t[:i, :i] @ gram[:i, i])
        t[i, i] = tau[i]
    return t


def _apply(a: Array, v: Array, t: Array) -> None:
    """a = Q'aQ for Q = I - V T V', in its upper triangle."""
    strips = [slice(i, min(i + STRIP, len(a))) for i in range(0, len(a), STRIP)]
    image = np.zeros_like(v)
    each(partial(_add_image, a, v, image), strips)
    w = image @ t
    w -= 0.5 * (v @ (t.T @ (v.T @ w)))
    pair, crossed = np.hstack([-v, -w]), np.hstack([w, v])
    each(partial(_update, a, v, w, pair, crossed), strips)


def _add_image(a: Array, v: Array, image: Array, rows: slice) -> None:
    """image[rows] += (a v)[rows], from the upper triangle of a."""
    own, out = a[rows, rows], image[rows]
    one = ctypes.byref(ctypes.c_double(1.0))
    _named("dsymm")(  # C order seen as Fortran order: image' += v' a
        b"R",
        b"L",
        _int(v.shape[1]),
        _int(len(out)),
        one,
        own.ctypes.data,
        _int(_lead(a)),
        v[rows].ctypes.data,
        _int(v.shape[1]),
        one,
        out.ctypes.data,
        _int(v.shape[1]),
    )
    add_product(out, a[rows, rows.stop :], v[rows.stop :])
    add_product(out, a[: rows.start, rows].T, v[: rows.start])


def _update(a: Array, v: Array, w: Array, pair: Array, crossed: Array, rows: slice) -> None:
    """Subtract v w' + w v' from the upper triangle of some rows."""
    own = a[rows, rows]
    _named("dsyr2k")(
        b"L",
        b"T",
        _int(len(own)),
        _int(v.shape[1]),
        ctypes.byref(ctypes.c_double(-1.0)),
        v[rows].ctypes.data,
        _int(v.shape[1]),
        w[rows].ctypes.data,
        _int(v.shape[1]),
        ctypes.byref(ctypes.c_double(1.0)),
        own.ctypes.data,
        _int(_lead(a)),
    )
    add_product(a[rows, rows.stop :], pair[rows], crossed[rows.stop :].T)
