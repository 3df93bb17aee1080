"""Lazy selection of rows and columns: sample lists, chromosomes, pruned variants."""

from __future__ import annotations

import copy
import hashlib
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any

import numpy as np
import scipy

from streampca.errors import InvalidInputError
from streampca.kernels import Array
from streampca.matrix.chunked_matrix import ChunkedMatrix, regular_edges
from streampca.matrix.derived import MatrixView
from streampca.matrix.preprocessing import RowSums, Step

PIECE = 1024  # entries that are read at a time from a source without chunks
DIGESTED = 65536  # numbers that are hashed at a time


class SelectedMatrix(MatrixView):
    """Some samples and features of another matrix, in its order.

    samples, features : increasing numbers, or None for all.  Chunks without a selected entry
    are not read.
    chosen_by : the method that chose the features. The selection is then a preprocessing step,
        which a model of this matrix also applies to raw rows. (It always is where the base has been
        preprocessed.)
    """

    def __init__(
        self,
        base: ChunkedMatrix,
        samples: Array | None = None,
        features: Array | None = None,
        *,
        chosen_by: str = "",
    ) -> None:
        self.base, self.chosen_by = base, chosen_by
        self.chosen = tuple(
            None if one is None else _increasing(one, base.shape[axis], axis)
            for axis, one in enumerate((samples, features))
        )
        sizes = [
            base.shape[axis] if one is None else len(one) for axis, one in enumerate(self.chosen)
        ]
        self.shape = (sizes[0], sizes[1])
        self.dtype, self.missing_value = base.dtype, base.missing_value
        self.loads, self.sparse, self.note = base.loads, base.sparse, base.note
        chosen = sum(one.nbytes for one in self.chosen if one is not None)
        self.resident_nbytes, self.given_nbytes = base.resident_nbytes + chosen, base.given_nbytes
        rows_of, columns_of = self.chosen
        together = rows_of is None or int(rows_of[-1]) - int(rows_of[0]) + 1 == len(rows_of)
        self.into_buffer = base.into_buffer and together and columns_of is None
        rows, columns = (
            base.labels.axis(axis) if one is None else base.labels.axis(axis).pick(one)
            for axis, one in enumerate(self.chosen)
        )
        self.labels = base.labels.with_axes(rows, columns)
        if columns_of is not None and (chosen_by or base.preprocessing):
            done = base.preprocessing.then(ChosenFeatures(columns_of, base.shape[1], chosen_by))
            self.labels = replace(self.labels, preprocessing=done)

    def read(self, axis: int, start: int, stop: int, buffer: Any = None) -> Any:
        across = self.chosen[1 - axis]
        pieces = []
        for first, last, inside in self._runs(axis, start, stop):
            place = buffer if self.into_buffer and axis == 0 else None
            piece = self.base.read(axis, first, last, place)
            if inside is not None:
                piece = _take(piece, inside, axis)
            if across is not None:
                piece = _take(piece, across, 1 - axis)
            pieces.append(piece)
        if len(pieces) == 1:
            return pieces[0]
        if not pieces:
            return self.base.read(axis, 0, 0)
        if not isinstance(pieces[0], np.ndarray):
            stack = scipy.sparse.hstack if axis == 1 else scipy.sparse.vstack
            return stack(pieces, format="csc" if axis == 1 else "csr")
        if axis == 1 and pieces[0].flags.f_contiguous:
            return np.concatenate([piece.T for piece in pieces]).T
        return np.concatenate(pieces, axis=axis)

    def hard_calls(self) -> ChunkedMatrix:
        base = self.base.hard_calls()
        if base is self.base:
            return self
        return SelectedMatrix(base, *self.chosen, chosen_by=self.chosen_by)

    def column(self, axis: int, name: str) -> Any:
        chosen, found = self.chosen[axis], self.base.column(axis, name)
        if chosen is None or found is None:
            return found
        flat = isinstance(found, np.ndarray)
        return found[chosen] if flat else self.labels.axis(axis).coordinate(name)

    def _runs(self, axis: int, start: int, stop: int) -> list[tuple[int, int, Array | None]]:
        """(first, last, entries among them or None for all) of the base, for [start, stop)."""
        chosen = self.chosen[axis]
        if start >= stop:
            return []
        if chosen is None:
            return [(start, stop, None)]
        wanted = chosen[start:stop]
        edges = self._base_edges(axis)
        chunk = np.searchsorted(edges, wanted, side="right") - 1
        apart = (np.diff(chunk) > 0) & (np.diff(wanted) > 1)
        breaks = np.flatnonzero(apart) + 1
        runs = []
        for part in np.split(np.arange(len(wanted)), breaks):
            mine = wanted[part]
            low, high = int(mine[0]), int(mine[-1]) + 1
            whole = high - low == len(mine)
            runs.append((low, high, None if whole else mine - low))
        return runs

    def _base_edges(self, axis: int) -> Array:
        edges = self.base.chunk_edges(axis)
        return regular_edges(self.base.shape[axis], PIECE) if edges is None else np.asarray(edges)

    def chunk_edges(self, axis: int) -> Array | None:
        chosen = self.chosen[axis]
        if chosen is None or self.base.chunk_edges(axis) is None:
            return self.base.chunk_edges(axis) if chosen is None else None
        return np.unique(np.searchsorted(chosen, self._base_edges(axis)))

    def entry_points(self, axis: int) -> Array | None:
        chosen, entries = self.chosen[axis], self.base.entry_points(axis)
        if chosen is None or entries is None:
            return entries
        return np.unique([0, *np.searchsorted(chosen, entries)])

    def count_chunks(self, axis: int, start: int, stop: int) -> int:
        return self.count_span(axis, np.array([start, stop]))

    def count_span(self, axis: int, edges: Array) -> int:
        runs = [run[:2] for a, b in pairwise(edges) for run in self._runs(axis, int(a), int(b))]
        total = sum(self.base.count_chunks(axis, first, last) for first, last in runs)
        return total - sum(
            self.base.count_shared(axis, last, first) for (_, last), (first, _) in pairwise(runs)
        )

    def count_pass(self, axis: int, spans: Sequence[Array]) -> int:
        if self.chosen[axis] is None:
            return self.base.count_pass(axis, spans)
        return super().count_pass(axis, spans)

    def streamed(self, axis: int, edges: Array) -> ChunkedMatrix:
        if self.chosen[axis] is None:
            return self.streamed_below(axis, edges)
        return super().streamed(axis, edges)

    def row_nbytes(self, axis: int) -> float:
        return min(super().row_nbytes(axis), self.base.row_nbytes(axis))

    def spans_nbytes(self, axis: int, edges: Array) -> Array:
        if not self.sparse:
            return super().spans_nbytes(axis, edges)
        chosen = self.chosen[axis]
        places = np.asarray(edges)
        if chosen is not None:  # everything between the first and the last entry of a block
            places = np.append(chosen, self.base.shape[axis])[places]
        return self.base.spans_nbytes(axis, places)

    def read_scratch_nbytes(self, axis: int, length: int) -> int:
        """The largest piece as it is read, and all pieces before they are joined."""
        spread = length
        if self.chosen[axis] is not None:
            gap = int(np.diff(self._base_edges(axis)).max(initial=1))
            spread = min(length + 2 * gap, self.base.shape[axis])
        whole = spread * self.base.shape[1 - axis] * self.dtype.itemsize
        taken = length * self.shape[1 - axis] * self.dtype.itemsize
        return whole + taken + self.base.read_scratch_nbytes(axis, spread)

    def part(self, axis: int, start: int, stop: int) -> ChunkedMatrix:
        smaller = copy.copy(self)
        runs = self._runs(axis, start, stop)
        if runs:
            smaller.base = self.base.part(axis, runs[0][0], runs[-1][1])
        return smaller

    def fingerprint(self) -> str:
        digest = hashlib.sha256(self.base.fingerprint().encode())
        for one in self.chosen:
            if one is None:
                digest.update(b"all")
                continue
            for start in range(0, len(one), DIGESTED):
                digest.update(one[start : start + DIGESTED].astype("<i8").tobytes())
        return digest.hexdigest()

    def content_stamp(self) -> str:
        return hashlib.sha256(
            f"{self.fingerprint()} {self.base.content_stamp()}".encode()
        ).hexdigest()


def _take(values: Any, numbers: Array, axis: int) -> Any:
    """Some rows or columns, in the layout of the values."""
    if isinstance(values, np.ndarray) and not values.flags.c_contiguous:
        return np.take(values.T, numbers, axis=1 - axis).T
    if isinstance(values, np.ndarray):
        return np.take(values, numbers, axis=axis)
    return values[:, numbers] if axis == 1 else values[numbers]


@dataclass(frozen=True)
class ChosenFeatures(Step, kind="chosen features"):
    """Some of the features.

    numbers : (k,) increasing, of ``n_features``.  by : the method that chose them.
    """

    numbers: Array
    n_features: int
    by: str = ""

    @property
    def width(self) -> int:
        return self.n_features

    def same(self, other: Step) -> bool:
        return (
            isinstance(other, ChosenFeatures)
            and self.n_features == other.n_features
            and np.array_equal(self.numbers, other.numbers)
        )

    def __str__(self) -> str:
        return f"{len(self.numbers)} {self.by or 'chosen'} of {self.n_features} features"

    def apply(self, matrix: ChunkedMatrix, row_sums: RowSums) -> ChunkedMatrix:
        return select(matrix, features=self.numbers, chosen_by=self.by or "a fit")


def select(
    matrix: ChunkedMatrix,
    samples: Array | None = None,
    features: Array | None = None,
    *,
    chosen_by: str = "",
) -> ChunkedMatrix:
    """Some samples and features, read lazily.

    samples, features : boolean masks (n,) and (p,), or increasing numbers; None takes all.
    chosen_by : as :class:`SelectedMatrix`.
    Raises InvalidInputError where nothing is left, or numbers are out of range or out of order.
    """
    chosen = []
    for axis, one in enumerate((samples, features)):
        if one is not None and np.asarray(one).dtype == bool:
            if len(one) != matrix.shape[axis]:
                raise InvalidInputError(f"mask of {len(one)} for an axis of {matrix.shape[axis]}")
            one = None if np.all(one) else np.flatnonzero(one)
        elif one is not None and len(one) == matrix.shape[axis]:
            one = None if np.array_equal(one, np.arange(len(one))) else one
        chosen.append(one)
    if chosen[0] is None and chosen[1] is None:
        return matrix
    if isinstance(matrix, SelectedMatrix):
        chosen = [_compose(old, new) for old, new in zip(matrix.chosen, chosen, strict=True)]
        chosen_by, matrix = chosen_by or matrix.chosen_by, matrix.base
    return SelectedMatrix(matrix, chosen[0], chosen[1], chosen_by=chosen_by)


def _compose(old: Array | None, new: Array | None) -> Array | None:
    if old is None or new is None:
        return new if old is None else old
    return np.asarray(old[np.asarray(new)])


def _increasing(numbers: Any, size: int, axis: int) -> Array:
    chosen = np.asarray(numbers, dtype=np.int64)
    name = ("samples", "features")[axis]
    if not chosen.size:
        raise InvalidInputError(f"no {name} are left of {size}")
    if chosen[0] < 0 or chosen[-1] >= size or np.any(np.diff(chosen) <= 0):
        raise InvalidInputError(f"selected {name} must increase within 0 to {size - 1}")
    return chosen if size > np.iinfo(np.int32).max else chosen.astype(np.int32)
