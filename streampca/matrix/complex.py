"""Complex matrices read as real ones: the two parts of every feature, one after the other.

Z (n, p) is read as R (n, 2p) with the columns Re z_0, Im z_0, Re z_1, ...: the same bytes, so every
real pass (tiles, centring, weights, sums) serves complex data. With a feature's pair
(a, b) = (Re z, Im z), and c = conj(u)'z for a complex u over the samples:

- R'R holds a'a, a'b and b'b of all pairs of features, hence the Hermitian scatter Z^H Z;
- R'[Re u, Im u] holds c: :func:`joined`;
- R times the two parts of w and of iw is Re and Im of Z conj(w): :func:`packed`.
"""

from __future__ import annotations

import copy
import hashlib
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from streampca.errors import InvalidTypeError
from streampca.kernels import Array, ColumnStats
from streampca.matrix.block import work_dtype
from streampca.matrix.chunked_matrix import ChunkedMatrix
from streampca.matrix.derived import ComputedView
from streampca.matrix.labels import AxisLabels
from streampca.matrix.standardize import Scaling, Standardize

PART, PARTS = "part", ("real", "imaginary")
PIECES = 1 << 14  # positions at which the features of an array in memory may be cut, about


def complex_dtype(dtype: Any) -> np.dtype[Any]:
    """complex64 for what float32 holds exactly, else complex128."""
    dtype = np.dtype(dtype)
    single = dtype == np.complex64 or (dtype.kind != "c" and work_dtype(dtype) == np.float32)
    return np.dtype(np.complex64 if single else np.complex128)


def real_parts(values: Array, missing_value: float | None = None) -> Array:
    """(rows, 2 columns) of rows in memory, a view where they are complex and contiguous.

    A cell is missing where one of its parts is NaN, or it is the missing code: both are NaN then.
    """
    if isinstance(values, np.ma.MaskedArray):
        values = np.ma.filled(values.astype(complex_dtype(values.dtype)), np.nan)
    z = np.ascontiguousarray(values, complex_dtype(values.dtype))
    parts = z.view(z.real.dtype)
    with np.errstate(over="ignore", invalid="ignore"):
        whole = missing_value is None and bool(np.isfinite(parts.sum()))
    if whole:
        return parts
    hole = np.isnan(z) if missing_value is None else np.isnan(z) | (z == missing_value)
    return np.where(np.repeat(hole, 2, axis=1), parts.dtype.type(np.nan), parts)


class PartsMatrix(ComputedView):
    """R (n, 2p) of a complex matrix (n, p), the base; real values are complex ones, too.

    Features are cut between pairs alone, so a block has whole ones.
    """

    def __init__(self, base: ChunkedMatrix) -> None:
        if base.sparse:
            raise InvalidTypeError(
                "this sparse matrix is to be read as complex, which takes a dense one: X.toarray()"
            )
        self.base = base
        n, p = base.shape
        self.shape = (n, 2 * p)
        self.dtype = np.empty(0, complex_dtype(base.dtype)).real.dtype
        self.loads, self.note = base.loads, base.note
        self.resident_nbytes, self.given_nbytes = base.resident_nbytes, base.given_nbytes
        self.labels = replace(base.labels, features=_of_parts(base.labels.features))
        self.design = base.design
        self.removed = None if base.removed is None else real_parts(base.removed)

    def read(self, axis: int, start: int, stop: int, buffer: Any = None) -> Any:
        first, last = self._below(axis, start, stop)
        parts = real_parts(self.base.read(axis, first, last), self.base.missing_value)
        skip = start - 2 * first
        return parts[:, skip : skip + stop - start] if axis else parts

    def _below(self, axis: int, start: int, stop: int) -> tuple[int, int]:
        """Positions in the base."""
        return (start // 2, -(-stop // 2)) if axis else (start, stop)

    def _edges(self, axis: int, edges: Array) -> Array:
        edges = np.asarray(edges, np.int64)
        return np.unique(-(-edges // 2)) if axis else edges

    def chunk_edges(self, axis: int) -> Array | None:
        edges = self.base.chunk_edges(axis)
        if axis == 0:
            return edges
        if edges is None:
            p = self.base.shape[1]
            edges = np.append(np.arange(0, p, 1 + p // PIECES), p)
        return 2 * np.asarray(edges, np.int64)

    def count_chunks(self, axis: int, start: int, stop: int) -> int:
        return self.base.count_chunks(axis, *self._below(axis, start, stop))

    def count_span(self, axis: int, edges: Array) -> int:
        return self.base.count_span(axis, self._edges(axis, edges))

    def count_pass(self, axis: int, spans: Sequence[Array]) -> int:
        return self.base.count_pass(axis, [self._edges(axis, edges) for edges in spans])

    def count_shared(self, axis: int, stop: int, start: int) -> int:
        below = stop if axis == 0 else -(-stop // 2)
        return self.base.count_shared(axis, below, start if axis == 0 else start // 2)

    def reach(self, axis: int) -> int:
        return (1 + axis) * self.base.reach(axis)

    def entry_points(self, axis: int) -> Array | None:
        found = self.base.entry_points(axis)
        return None if found is None else (1 + axis) * found

    def streamed(self, axis: int, edges: Array) -> ChunkedMatrix:
        laid = copy.copy(self)
        laid.base = self.base.streamed(axis, self._edges(axis, edges))
        laid.streamed_axis, laid.edges = axis, np.asarray(edges, dtype=np.int64)
        return laid

    def part(self, axis: int, start: int, stop: int) -> ChunkedMatrix:
        smaller = copy.copy(self)
        smaller.base = self.base.part(axis, *self._below(axis, start, stop))
        return smaller

    def read_scratch_nbytes(self, axis: int, length: int) -> int:
        """What the base needs, and a copy of its block where cells are missing, or the order of
        the values is another."""
        below = -(-length // 2) if axis else length
        copied = length * self.shape[1 - axis] * (self.dtype.itemsize + 1)
        return self.base.read_scratch_nbytes(axis, below) + copied

    def column(self, axis: int, name: str) -> Any:
        return self.base.column(axis, name) if axis == 0 else None

    def _digest(self, base: str) -> str:
        return hashlib.sha256(f"{base} parts".encode()).hexdigest()


def _of_parts(own: AxisLabels) -> AxisLabels:
    """Names of the parts, for messages."""
    if own.parts or PART in own.dims:
        return AxisLabels.plain("feature", 2 * len(own))
    coords = {**own.coords, PART: np.array(PARTS)}
    return AxisLabels((*own.dims, PART), (*own.sizes, 2), coords)


# Features whose parts lie side by side, and complex ones.


def of_pairs(stats: ColumnStats) -> ColumnStats:
    """Statistics of complex features from those of their parts: complex means, joint squares."""
    mean = np.asarray(stats.mean, np.float64)
    low = stats.mean_low
    return replace(
        stats,
        count=stats.count[::2],
        missing=stats.missing[::2],
        weight=stats.weight[::2],
        mean=np.ascontiguousarray(mean).view(np.complex128),
        m2=stats.m2[::2] + stats.m2[1::2],
        minimum=np.full(len(mean) // 2, np.nan),
        maximum=np.full(len(mean) // 2, np.nan),
        mean_low=np.ascontiguousarray(low).view(np.complex128) if np.ndim(low) else 0.0,
    )


class PairedStandardize(Standardize):
    """:class:`Standardize` of complex features, applied to columns that are their parts."""

    def resolve(self, stats: ColumnStats, eps: float, weights: Array | None = None) -> Scaling:
        one = super().resolve(of_pairs(stats), eps, None if weights is None else weights[::2])
        return Scaling(
            np.ascontiguousarray(one.center, np.complex128).view(np.float64),
            _twice(one.scale),
            np.repeat(one.constant, 2),
            np.repeat(one.filtered, 2),
            _twice(one.deviation),
        )


def _twice(values: Array | None) -> Array | None:
    return None if values is None else np.repeat(values, 2)


def packed(w: Array) -> Array:
    """(2p, 2k) real, whose product R packed(w) holds Re and Im of Z conj(w).  w : (p, k)."""
    k = w.shape[1]
    out = np.empty((2 * len(w), 2 * k), w.real.dtype)
    out[::2, :k], out[1::2, :k] = w.real, w.imag
    out[::2, k:], out[1::2, k:] = -w.imag, w.real
    return out


def joined(products: Array) -> Array:
    """(p, k) complex conj(u)'z of each feature.  products : (2p, 2k) real, R'[Re u, Im u]."""
    re, im = np.split(products, 2, axis=1)
    return np.asarray((re[::2] + im[1::2]) + 1j * (re[1::2] - im[::2]))
