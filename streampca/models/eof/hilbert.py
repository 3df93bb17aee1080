"""The analytic signal of a field, whose complex EOFs are patterns that travel."""

from __future__ import annotations

import copy
import hashlib
import itertools
from collections.abc import Iterator
from typing import Any

import numpy as np
import scipy

from streampca.errors import InvalidInputError, NonFiniteError
from streampca.kernels import Array
from streampca.matrix.chunked_matrix import ChunkedMatrix, regular_edges
from streampca.matrix.complex import complex_dtype
from streampca.matrix.derived import ComputedView
from streampca.sources import as_matrix, counted


def analytic(X: Any, *, padding: str | None = "exp", dim: Any = None) -> ChunkedMatrix:
    """The analytic signal X + iH of each series, lazily: its complex EOFs are Hilbert EOFs.

    X : (n, p), anything that ``streampca.open`` takes; rows evenly spaced in time.  dim : as there.
    padding : "exp" continues each series on both sides before its Hilbert transform H, so that its
        ends do not meet; None takes series as periodic. As xeofs' ``HilbertEOF``.

    Both parts are centred::

        model = ComplexEOF(4).fit(streampca.analytic(sst, dim="time"))
        model.result_.to_xarray().amplitude  # (component, lat, lon)

    A mode is the real part of its scores times its component: a larger phase of the component comes
    earlier. New rows need transforms of their own: ``model.transform(streampca.analytic(X))``.
    Cost: nothing here; a Fourier transform of each feature in every pass. All samples of a feature
    are needed at once: store X in chunks of features.
    Raises InvalidInputError; NonFiniteError where a feature with holes is read (not one without
    any observation, which is left out).
    Source: Barnett 1983, Monthly Weather Review 111, section 3.

    Examples
    --------
    >>> import numpy as np
    >>> from streampca import ComplexEOF, analytic
    >>> t, x = np.arange(60.0)[:, None], np.arange(8.0)
    >>> model = ComplexEOF(1).fit(analytic(np.cos(2 * np.pi * t / 12 - 0.7 * x)))
    >>> np.diff(np.unwrap(model.phase_[0])).round(1)  # 0.7 later from place to place
    array([-0.7, -0.7, -0.7, -0.7, -0.7, -0.7, -0.7])
    """
    if padding not in (None, "exp"):
        raise InvalidInputError(f"padding={padding!r}; expected None or 'exp'")
    matrix = as_matrix(counted(X), dim=dim)
    if matrix.shape[0] < 2:
        raise InvalidInputError(f"{matrix.shape[0]} row has no phase; expected at least 2")
    return AnalyticMatrix(matrix, padding)


STRIP = 1024  # features that are transformed at a time where samples are streamed
DECAY = 0.2  # of exponential padding, in lengths of the series


class AnalyticMatrix(ComputedView):
    """X + iH, (n, p) complex, where H is the Hilbert transform of each feature; both centred.

    Features are read whole; samples can be streamed in a single block alone.
    """

    computes = True

    def __init__(self, base: ChunkedMatrix, padding: str | None) -> None:
        self.base, self.padding = base, padding
        self.shape, self.labels = base.shape, base.labels
        self.dtype = complex_dtype(base.dtype)
        self.loads, self.note = base.loads, base.note
        self.resident_nbytes, self.given_nbytes = base.resident_nbytes, base.given_nbytes

    def read(self, axis: int, start: int, stop: int, buffer: Any = None) -> Any:
        if axis == 1:
            return self._signal(start, stop)
        out = np.empty((stop - start, self.shape[1]), self.dtype)
        for first, last in self._strips():
            out[:, first:last] = self._signal(first, last)[start:stop]
        return out

    def _strips(self) -> Iterator[tuple[int, int]]:
        return itertools.pairwise(regular_edges(self.shape[1], STRIP).tolist())

    def _signal(self, start: int, stop: int) -> Array:
        """(n, features), both parts centred."""
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
        out = np.empty(x.shape, self.dtype)
        out.real, out.imag = x, h
        return out

    def chunk_edges(self, axis: int) -> Array | None:
        if axis == 0:
            return np.array([0, self.shape[0]])
        return self.base.chunk_edges(1)

    def count_chunks(self, axis: int, start: int, stop: int) -> int:
        return self.count_span(axis, np.array([start, stop]))

    def count_span(self, axis: int, edges: Array) -> int:
        read = itertools.pairwise(np.asarray(edges).tolist()) if axis == 1 else self._strips()
        return sum(self.base.count_chunks(1, first, last) for first, last in read)

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
        series = 8 * self.shape[0] * many
        made = (5 + 3 * (3 if self.padding else 1)) * series
        strip = self.shape[0] * many * self.dtype.itemsize if axis == 0 else 0
        return made + strip + self.base.read_scratch_nbytes(1, many)

    def part(self, axis: int, start: int, stop: int) -> ChunkedMatrix:
        return copy.copy(self)

    def column(self, axis: int, name: str) -> Any:
        return self.labels.axis(axis).coordinate(name)

    def _digest(self, base: str) -> str:
        return hashlib.sha256(f"{base} analytic {self.padding}".encode()).hexdigest()


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
