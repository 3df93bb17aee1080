"""The analytic signal of every feature, in the real form of complex matrices."""

from __future__ import annotations

import copy
import hashlib
import itertools
from dataclasses import replace
from typing import Any

import numpy as np
import scipy

from streampca.errors import InvalidInputError, NonFiniteError
from streampca.kernels import Array
from streampca.matrix.block import work_dtype
from streampca.matrix.chunked_matrix import ChunkedMatrix, regular_edges
from streampca.matrix.derived import ComputedView
from streampca.matrix.labels import AxisLabels

PART, SCORE_PART, PARTS = "part", "score_part", ("real", "imaginary")
STRIP = 1024  # features that are transformed at a time where samples are streamed
DECAY = 0.2  # of exponential padding, in lengths of the series


class AnalyticMatrix(ComputedView):
    """[[X, -H], [H, X]] of centred X + iH, where H is the Hilbert transform of each feature.

    (2n, 2p): rows are the real, then the imaginary part; so are features. Each singular value of
    X + iH is there twice. Features are read whole, each once for either part; samples can be
    streamed in a single block alone.
    """

    computes = True

    def __init__(self, base: ChunkedMatrix, padding: str | None) -> None:
        self.base, self.padding = base, padding
        self.shape = (2 * base.shape[0], 2 * base.shape[1])
        self.dtype = work_dtype(base.dtype)
        self.loads, self.note = base.loads, base.note
        self.resident_nbytes, self.given_nbytes = base.resident_nbytes, base.given_nbytes
        labels = base.labels
        self.labels = replace(
            labels, samples=_doubled(labels.samples, SCORE_PART),
            features=_doubled(labels.features, PART),
        )  # fmt: skip

    def read(self, axis: int, start: int, stop: int, buffer: Any = None) -> Any:
        if axis == 1:
            return self._columns(start, stop)
        out = np.empty((stop - start, self.shape[1]), self.dtype)
        for first in range(0, self.shape[1], STRIP):
            last = min(first + STRIP, self.shape[1])
            out[:, first:last] = self._columns(first, last)[start:stop]
        return out

    def _columns(self, start: int, stop: int) -> Array:
        n, p = self.base.shape
        out = np.empty((stop - start, 2 * n), self.dtype).T
        middle = min(max(p, start), stop)
        if start < middle:
            real, imaginary = self._signal(start, middle)
            out[:n, : middle - start], out[n:, : middle - start] = real, imaginary
        if middle < stop:
            real, imaginary = self._signal(middle - p, stop - p)
            out[:n, middle - start :], out[n:, middle - start :] = -imaginary, real
        return out

    def _signal(self, start: int, stop: int) -> tuple[Array, Array]:
        """(n, features) float64 X and H, both centred."""
        values = self.base.read(1, start, stop)
        dense = values if isinstance(values, np.ndarray) else values.toarray()
        x = dense.astype(np.float64, order="F")
        if (code := self.base.missing_value) is not None:
            x[dense == code] = np.nan
        holes = np.isnan(x).sum(axis=0)
        if (partly := np.flatnonzero((holes > 0) & (holes < len(x)))).size:
            name = self.base.labels.features.name(start + int(partly[0]))
            raise NonFiniteError(
                f"{holes[partly[0]]} missing cells in feature {name}; the Hilbert transform of a "
                "series needs all of it. Fill them first, such as X.interpolate_na('time')"
            )
        x -= x.mean(axis=0)
        h = hilbert_transform(x, self.padding)
        h -= h.mean(axis=0)
        return x, h

    def chunk_edges(self, axis: int) -> Array | None:
        if axis == 0:
            return np.array([0, self.shape[0]])
        below = self.base.chunk_edges(1)
        return None if below is None else np.unique([*below, *(below + self.base.shape[1])])

    def _inside(self, edges: Array) -> list[Array]:
        """The positions in the base of features at these edges, of either part."""
        edges, p = np.asarray(edges, np.int64), self.base.shape[1]
        return [np.unique(np.clip(edges - o, 0, p)) for o in (0, p)]

    def count_chunks(self, axis: int, start: int, stop: int) -> int:
        return self.count_span(axis, np.array([start, stop]))

    def count_span(self, axis: int, edges: Array) -> int:
        if axis == 0:
            whole = regular_edges(self.shape[1], STRIP)
            return sum(self.count_chunks(1, int(a), int(b)) for a, b in itertools.pairwise(whole))
        return sum(
            self.base.count_chunks(1, int(a), int(b))
            for inside in self._inside(edges)
            for a, b in itertools.pairwise(inside)
        )

    def reach(self, axis: int) -> int:
        return self.base.reach(1) if axis == 1 else 0

    def entry_points(self, axis: int) -> Array | None:
        return None

    def prepare_reads(self, axis: int) -> Any:
        return self.base.prepare_reads(1)

    def advice(self, axis: int) -> str:
        return self.base.advice(1)

    def read_scratch_nbytes(self, axis: int, length: int) -> int:
        """The series, their transforms with padding, and both parts."""
        many = min(length if axis == 1 else STRIP, self.base.shape[1])
        series = 8 * self.base.shape[0] * many
        made = (5 + 3 * (3 if self.padding else 1)) * series
        strip = 2 * self.shape[0] * many * self.dtype.itemsize if axis == 0 else 0
        return made + strip + self.base.read_scratch_nbytes(1, many)

    def part(self, axis: int, start: int, stop: int) -> ChunkedMatrix:
        return copy.copy(self)

    def column(self, axis: int, name: str) -> Any:
        return self.labels.axis(axis).coordinate(name)

    def _digest(self, base: str) -> str:
        return hashlib.sha256(f"{base} analytic {self.padding}".encode()).hexdigest()


def _doubled(own: AxisLabels, name: str) -> AxisLabels:
    """The axis of the real part, then that of the imaginary one."""
    if own.parts:
        raise InvalidInputError(
            "the analytic signal of several variables: open one of them, variable=..., or stack "
            "them as features of one array"
        )
    extra = {key: (own.dims, np.asarray(values)) for key, values in own.extra.items()}
    return replace(
        own, dims=(name, *own.dims), sizes=(2, *own.sizes),
        coords={name: np.array(PARTS), **own.coords}, extra={}, grids={**own.grids, **extra},
    )  # fmt: skip


def hilbert_transform(x: Array, padding: str | None = None) -> Array:
    """(n, p) the Hilbert transform of each column, by its Fourier transform.

    padding : "exp" continues each column on both sides, by n rows, along its straight line: what
        its first and last value lie off the line decays by exp(-t / (DECAY n)). None: columns are
        taken as periodic.
    """
    n = len(x)
    long = _padded(x) if padding == "exp" else x
    spectrum = scipy.fft.rfft(long, axis=0)
    spectrum[0] = 0
    if len(long) % 2 == 0:
        spectrum[-1] = 0
    spectrum *= -1j
    found = scipy.fft.irfft(spectrum, n=len(long), axis=0)
    return np.asarray(found[n : 2 * n] if padding == "exp" else found)


def _padded(x: Array) -> Array:
    n = len(x)
    time = np.arange(-n, 2 * n) - (n - 1) / 2
    inner = time[n : 2 * n]
    mean, slope = x.mean(axis=0), inner @ x / (inner @ inner)
    out = np.multiply.outer(time, slope) + mean
    fading = np.exp(-np.arange(n) / (n * DECAY))[:, None]
    first, last = x[0] - out[n], x[-1] - out[2 * n - 1]
    out[:n] += fading[::-1] * first
    out[2 * n :] += fading * last
    out[n : 2 * n] = x
    return np.asarray(out)
