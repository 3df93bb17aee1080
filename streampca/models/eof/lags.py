"""Extended EOFs: the rows of a matrix joined to earlier and later ones, for any method."""

from __future__ import annotations

import copy
import hashlib
import threading
from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import scipy

from streampca.errors import InvalidInputError
from streampca.kernels import Array
from streampca.matrix.chunked_matrix import ChunkedMatrix, current_cache
from streampca.matrix.derived import ComputedView
from streampca.matrix.join import JoinedMatrix
from streampca.matrix.labels import AxisLabels
from streampca.sources import as_matrix, counted


def lagged(X: Any, lags: Iterable[int], *, dim: Any = None) -> ChunkedMatrix:
    """Each row of X joined to those of other times, lazily: a matrix for any method.

    X : (n, p), anything that ``streampca.open`` takes; rows in order of time.  dim : as there.
    lags : (L,) distinct integers. Row t of the result holds x[t - lag] for each, in this order:
        (0, 1, 2) is a row and the two before it; negative lags are later rows.

    Rows t for which some x[t - lag] is not there are left out: n - (max(lags, 0) - min(lags, 0))
    are left, with the labels of t. Features are (lag, those of X). A PCA of this is an extended
    EOF analysis (multichannel singular spectrum analysis), its patterns (component, lag, ...)::

        model = PCA(4).fit(streampca.lagged(sst, range(0, 60, 5), dim="time"))
        model.result_.to_xarray().components  # (component, lag, lat, lon)

    New rows are lagged alike before ``transform``. xeofs' ``ExtendedEOF(tau=5, embedding=12)`` has
    ``lags=range(0, -60, -5)``: it labels rows by the first time of each.

    Cost: nothing here. A pass over samples reads each chunk once, and again what lies before the
    first row of a span; one over features reads each L times. A pass takes L times the flops or
    more of one over X: a scatter is (L p) x (L p), a Gram matrix n x n.
    Raises InvalidInputError.
    Source: Weare and Nasstrom 1982, Monthly Weather Review 110, section 2.

    Examples
    --------
    >>> import numpy as np
    >>> from streampca import lagged
    >>> X = np.arange(12.0).reshape(6, 2)
    >>> lags = lagged(X, (0, 2))
    >>> lags.shape
    (4, 4)
    >>> lags.read(0, 0, 1)
    array([[4., 5., 0., 1.]])
    """
    wanted = [_lag(one) for one in ([lags] if isinstance(lags, (int, str)) else lags)]
    if not wanted or len(set(wanted)) < len(wanted):
        raise InvalidInputError(f"lags={wanted!r}; expected distinct integers, such as (0, 1, 2)")
    return lagged_rows(as_matrix(counted(X), dim=dim), wanted)


def _lag(value: Any) -> int:
    if not isinstance(value, (int, np.integer)) or isinstance(value, bool):
        raise InvalidInputError(f"lags has {value!r}; expected integers, such as range(0, 12, 3)")
    return int(value)


LAG = "lag"


class LaggedMatrix(ComputedView):
    """Rows t - lag of another matrix for each lag, side by side, wherever all of them exist.

    lags : (L,) distinct integers, in the order of the features: all features of the first lag, then
        all of the second.

    A block of samples reads the rows from its first minus the largest lag to its last minus the
    smallest. Of these it keeps what the next block of its span needs too.
    Where features are streamed, every feature is read once for each lag.
    """

    def __init__(self, base: ChunkedMatrix, lags: Sequence[int]) -> None:
        self.base, self.lags = base, np.asarray(lags, np.int64)
        low, high = int(self.lags.min()), int(self.lags.max())
        self.first = max(high, 0)  # the row of the base that labels the first row here
        self.before, self.behind = self.first - high, self.first - low
        length = base.shape[0] + min(low, 0) - self.first
        self.shape = (length, len(self.lags) * base.shape[1])
        self.dtype, self.missing_value = base.dtype, base.missing_value
        self.loads, self.sparse, self.note = base.loads, base.sparse, base.note
        self.resident_nbytes, self.given_nbytes = base.resident_nbytes, base.given_nbytes
        rows = base.labels.samples.take(self.first, self.first + length)
        self.labels = replace(base.labels, samples=rows, features=self._features())

    def _features(self) -> AxisLabels:
        own = self.base.labels.features
        return replace(
            own,
            dims=(LAG, *own.dims),
            sizes=(len(self.lags), *own.sizes),
            coords={LAG: self.lags, **own.coords},
            extra={},
            grids={**own.grids, **{name: (own.dims, values) for name, values in own.extra.items()}},
        )

    # -- values -----------------------------------------------------------------------------------

    def read(self, axis: int, start: int, stop: int, buffer: Any = None) -> Any:
        if axis == 1:
            return self._columns(start, stop)
        length = max(0, stop - start)
        rows = self._rows(start + self.before, start + length + self.behind)
        places = (self.first - self.before - self.lags).tolist()
        return _side_by_side([rows[place : place + length] for place in places], 0)

    def _rows(self, start: int, stop: int) -> Any:
        """Rows of the base, those that the block before has read too not again."""
        cache, kept = current_cache(), self.behind - self.before
        if cache is None or not kept:
            return self.base.read(0, start, stop)
        tail = cache.of((LAG, id(self)), _Tail)
        with tail.lock:
            if tail.stop == start + kept and tail.stop <= stop:
                fresh = self.base.read(0, tail.stop, stop)
                rows = _stacked([tail.rows, fresh])
            else:
                rows = self.base.read(0, start, stop)
            tail.stop, tail.rows = stop, rows[rows.shape[0] - kept :].copy()
        return rows

    def _columns(self, start: int, stop: int) -> Any:
        pieces = []
        for number, first, last in self._pieces(start, stop):
            row = self.first - int(self.lags[number])
            pieces.append(self.base.read(1, first, last)[row : row + self.shape[0]])
        if not pieces:
            return self.base.read(1, 0, 0)[: self.shape[0]]
        return _side_by_side(pieces, 1)

    def _pieces(self, start: int, stop: int) -> list[tuple[int, int, int]]:
        """(number of a lag, first, last feature of the base) of the features [start, stop)."""
        p = self.base.shape[1]
        numbers = range(start // p, -(-stop // p)) if stop > start else range(0)
        return [(i, max(start - i * p, 0), min(stop - i * p, p)) for i in numbers]

    # -- chunks -----------------------------------------------------------------------------------

    def chunk_edges(self, axis: int) -> Array | None:
        """Of samples: a block, with what the one before keeps, ends with chunks of the base."""
        below = self.base.chunk_edges(axis)
        if below is None:
            return None
        if axis == 1:
            return np.unique(np.add.outer(self._offsets(), below))
        n = self.shape[0]
        return np.unique(np.clip(np.append(below - self.behind, [0, n]), 0, n))

    def _offsets(self) -> Array:
        return np.arange(len(self.lags)) * self.base.shape[1]

    def entry_points(self, axis: int) -> Array | None:
        below = self.base.entry_points(axis)
        if below is None:
            return None
        if axis == 1:
            return np.unique(np.add.outer(self._offsets(), below))
        return np.unique(np.clip(below - self.before, 0, self.shape[0] - 1))

    def count_chunks(self, axis: int, start: int, stop: int) -> int:
        if start >= stop:
            return 0
        if axis == 0:
            return self.base.count_chunks(0, start + self.before, stop + self.behind)
        return sum(self.base.count_chunks(1, a, b) for _, a, b in self._pieces(start, stop))

    def count_span(self, axis: int, edges: Array) -> int:
        edges = np.asarray(edges, np.int64)
        if axis == 0:
            first = int(edges[0]) + self.before
            return self.base.count_span(0, np.append(first, edges[1:] + self.behind))
        p = self.base.shape[1]
        inside = [np.unique(np.clip(edges - o, 0, p)) for o in self._offsets()]
        return sum(self.base.count_span(1, one) for one in inside)

    def count_shared(self, axis: int, stop: int, start: int) -> int:
        """Rows that a block keeps serve the next one alone."""
        if axis == 1:
            p = self.base.shape[1]
            same = stop > 0 and (stop - 1) // p == start // p
            return self.base.count_shared(1, (stop - 1) % p + 1, start % p) if same else 0
        first, last = start + self.before, stop + self.behind
        if first >= last:
            return self.base.count_shared(0, last, first)
        if start > stop:
            return 0
        again = self.base.count_chunks(0, last, last + 1) - self.base.count_shared(0, last, last)
        return self.base.count_chunks(0, first, last + 1) - again

    def reach(self, axis: int) -> int:
        return self.base.reach(axis) + (self.behind - self.before if axis == 0 else 0)

    def row_nbytes(self, axis: int) -> float:
        if not self.sparse:
            return super().row_nbytes(axis)
        return self.base.row_nbytes(axis) * (len(self.lags) if axis == 0 else 1)

    def spans_nbytes(self, axis: int, edges: Array) -> Array:
        if not self.sparse:
            return super().spans_nbytes(axis, edges)
        edges, p = np.asarray(edges, np.int64), self.base.shape[1]
        if axis == 0:
            moved = [edges + self.first - lag for lag in self.lags.tolist()]
        else:
            moved = [np.clip(edges - o, 0, p) for o in self._offsets().tolist()]
        return np.asarray(sum(self.base.spans_nbytes(axis, one) for one in moved))

    def read_scratch_nbytes(self, axis: int, length: int) -> int:
        """The rows of the base, those that are kept, and both of them as one array."""
        row = int(np.ceil(self.base.row_nbytes(axis)))
        if axis == 1:
            length = min(length, self.base.shape[1])
            return 2 * length * row + self.base.read_scratch_nbytes(1, length)
        kept = self.behind - self.before
        whole = min(length + kept, self.base.shape[0])
        return (2 * whole + kept) * row + self.base.read_scratch_nbytes(0, whole)

    def part(self, axis: int, start: int, stop: int) -> ChunkedMatrix:
        if axis == 1:
            return self
        smaller = copy.copy(self)
        smaller.base = self.base.part(0, start + self.before, stop + self.behind)
        return smaller

    def column(self, axis: int, name: str) -> Any:
        found = self.base.column(axis, name)
        if axis == 1 or not isinstance(found, np.ndarray):
            return self.labels.axis(axis).coordinate(name)
        return found[self.first : self.first + self.shape[0]]

    def _digest(self, base: str) -> str:
        return hashlib.sha256(f"{base} lags {self.lags.tolist()}".encode()).hexdigest()


class _Tail:
    """The last rows of the base that a block read.  stop : the number behind them."""

    def __init__(self) -> None:
        self.stop, self.rows, self.lock = -1, None, threading.Lock()


def _side_by_side(pieces: list[Any], axis: int) -> Any:
    if not isinstance(pieces[0], np.ndarray):
        return scipy.sparse.hstack(pieces, format="csc" if axis == 1 else "csr")
    if axis == 1 and all(piece.flags.f_contiguous for piece in pieces):
        return np.concatenate([piece.T for piece in pieces]).T
    return np.concatenate(pieces, axis=1)


def _stacked(pieces: list[Any]) -> Any:
    if not isinstance(pieces[0], np.ndarray):
        return scipy.sparse.vstack(pieces, format="csr")
    return np.concatenate(pieces)


def lagged_rows(matrix: ChunkedMatrix, lags: Sequence[int]) -> ChunkedMatrix:
    """The lagged matrix; of several variables each on its own, side by side.

    Raises InvalidInputError where rows have no order or too few are left.
    """
    names = tuple(matrix.labels.features.parts)
    if names and isinstance(matrix, JoinedMatrix):
        parts = [lagged_rows(part, lags) for part in matrix.parts]
        return JoinedMatrix(parts, joined=1, variables=names)
    if names:
        raise InvalidInputError(
            "rows of several variables, of which some were selected, cannot be lagged; lag first, "
            "and select then"
        )
    dims, n = matrix.labels.samples.dims, matrix.shape[0]
    if len(dims) > 1:
        raise InvalidInputError(
            f"samples are {' x '.join(dims)}; lags need one dimension of samples, such as "
            f"dim={dims[0]!r}"
        )
    if LAG in (*dims, *matrix.labels.features.dims):
        raise InvalidInputError(f"X has a dimension {LAG!r} already; rename it")
    span = max(0, *lags) - min(0, *lags)
    if n - span < 2:
        raise InvalidInputError(
            f"lags {list(lags)} of {n} rows leave {max(0, n - span)}; expected at least 2"
        )
    return LaggedMatrix(matrix, lags)
