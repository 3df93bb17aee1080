"""Two matrices over the same samples: rows paired by label, and both read as one."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from streampca.errors import AbsentNamesWarning, InvalidInputError, shorten, warn_caller
from streampca.kernels import Array
from streampca.matrix.alignment import axis_names
from streampca.matrix.chunked_matrix import ChunkedMatrix
from streampca.matrix.derived import MatrixView
from streampca.matrix.join import JoinedMatrix
from streampca.matrix.names import comparable, reordered_numbers
from streampca.matrix.select import select

VIEWS = ("x", "y")  # variables of the joint features
APART = 4  # chunks of a part that a block may be longer than, before chunks are read twice instead


class PairedMatrix(JoinedMatrix):
    """The features of both, side by side.

    Where the chunks of the two seldom end at the same row, blocks end with those of the larger
    matrix, and some chunks of the other are read twice.
    """

    def __init__(self, pair: Pair) -> None:
        super().__init__((pair.x, pair.y), joined=1, variables=VIEWS)
        self.pair, self.note = pair, pair.note

    def chunk_edges(self, axis: int) -> Array | None:
        common = super().chunk_edges(axis)
        if common is None or axis == self.joined:
            return common
        known = [(p.nbytes, e) for p in self.parts if (e := p.chunk_edges(axis)) is not None]
        longest = max(int(np.diff(edges).max(initial=0)) for _, edges in known)
        if int(np.diff(common).max(initial=0)) <= APART * longest:
            return common
        return max(known, key=lambda one: one[0])[1]


class ReorderedMatrix(MatrixView):
    """The samples of another matrix in another order. Every block reads the chunks that it needs.

    order : (n,) numbers of the samples of the base, each at most once.
    """

    def __init__(self, base: ChunkedMatrix, order: Array) -> None:
        self.base, self.order = base, np.asarray(order, np.int64)
        self.shape = (len(order), base.shape[1])
        self.dtype, self.missing_value = base.dtype, base.missing_value
        self.loads, self.sparse = base.loads, base.sparse
        self.resident_nbytes = base.resident_nbytes + self.order.nbytes
        self.given_nbytes = base.given_nbytes
        self.labels = base.labels.with_axes(
            base.labels.samples.pick(self.order), base.labels.features
        )

    def read(self, axis: int, start: int, stop: int, buffer: Any = None) -> Any:
        if axis == 1:
            return self.base.read(1, start, stop)[self.order]
        if start >= stop:
            return self.base.read(0, 0, 0)
        places, chosen = self._sorted(start, stop)
        return chosen.read(0, 0, stop - start)[places]

    def _sorted(self, start: int, stop: int) -> tuple[Array, ChunkedMatrix]:
        """(places of the rows [start, stop), these rows) in the order of the base."""
        wanted = self.order[start:stop]
        inwards = np.argsort(wanted, kind="stable")
        places = np.empty(len(wanted), np.int64)
        places[inwards] = np.arange(len(wanted))
        return places, select(self.base, samples=wanted[inwards])

    def chunk_edges(self, axis: int) -> Array | None:
        return self.base.chunk_edges(1) if axis == 1 else None

    def count_chunks(self, axis: int, start: int, stop: int) -> int:
        if axis == 1 or start >= stop:
            return self.base.count_chunks(axis, start, stop) if axis else 0
        return self._sorted(start, stop)[1].count_chunks(0, 0, stop - start)

    def reach(self, axis: int) -> int:
        return self.base.reach(1) if axis == 1 else 0

    def row_nbytes(self, axis: int) -> float:
        return self.base.row_nbytes(axis)

    def read_scratch_nbytes(self, axis: int, length: int) -> int:
        rows = self.base.shape[0]  # of one read, a run of chunks at most
        whole = min(length * 4, rows) if axis == 0 else length
        own = 2 * length * self.shape[1 - axis] * self.dtype.itemsize
        return own + self.base.read_scratch_nbytes(axis, whole)

    def fingerprint(self) -> str:
        digest = hashlib.sha256(self.base.fingerprint().encode())
        digest.update(self.order.astype("<i8").tobytes())
        return digest.hexdigest()

    def content_stamp(self) -> str:
        text = f"{self.fingerprint()} {self.base.content_stamp()}"
        return hashlib.sha256(text.encode()).hexdigest()


@dataclass(frozen=True)
class Pair:
    """Two matrices with the same samples in the same order.

    left_out : rows of each that have no partner.  note : in words, what is not plain about it.
    """

    x: ChunkedMatrix
    y: ChunkedMatrix
    left_out: tuple[int, int]
    note: str

    def joint(self) -> PairedMatrix:
        """[X, Y], one read of both. Costs nothing."""
        return PairedMatrix(self)

    def warn_of_lost_rows(self) -> None:
        """Warn the caller where rows have no partner."""
        if any(self.left_out):
            warn_caller(self.note.partition("; rows of Y")[0], AbsentNamesWarning)


def paired(x: ChunkedMatrix, y: ChunkedMatrix) -> Pair:
    """The rows of X that Y has too, in the order of X.

    Rows are the same where their labels are; without labels on both sides, where their numbers are.
    Raises InvalidInputError where rows cannot be told apart, or none is left.
    """
    a, b = x.labels.samples, y.labels.samples
    left, right = axis_names(a), axis_names(b)
    if left is None or right is None:
        if len(a) != len(b):
            raise InvalidInputError(
                f"X has {len(a)} rows and Y {len(b)}; rows without labels are paired by their "
                "number. Give both the same rows, or labels: a DataArray with a coordinate, a data "
                "frame with an index"
            )
        if reordered_numbers(left) or reordered_numbers(right):
            which, plain = ("Y", "X") if left is None else ("X", "Y")
            raise InvalidInputError(
                f"the rows of {which} are named by the numbers from 0 in another order, and those "
                f"of {plain} have no names: expected names of both, or of neither. Put the "
                f"rows of {which} in the order of their numbers, or go by position: "
                f"{which}.to_numpy()"
            )
        return Pair(x, y, (0, 0), "")
    mine, others = comparable(left, right)
    if np.array_equal(mine, others):
        return Pair(x, y, (0, 0), "")
    places = _numbered(others, right, "Y")
    found = np.array([places.get(name, -1) for name in _numbered(mine, left, "X")], np.int64)
    rows = np.flatnonzero(found >= 0)
    if not rows.size:
        x_has, y_has = (
            shorten(list(map(repr, one[:5].tolist())), len(one)) for one in (left, right)
        )
        raise InvalidInputError(
            f"no row of X has the label of a row of Y: X has {x_has}, Y {y_has}. Label both alike, "
            "or neither"
        )
    order = found[rows]
    ordered = bool(np.all(np.diff(order) > 0))
    other = select(y, samples=order) if ordered else ReorderedMatrix(y, order)
    lost = (len(left) - len(rows), len(right) - len(rows))
    return Pair(select(x, samples=rows), other, lost, _note(lost, len(rows), ordered))


def _note(lost: tuple[int, int], n: int, ordered: bool) -> str:
    words = []
    if any(lost):
        words.append(f"{n} rows are in both; {lost[0]} of X and {lost[1]} of Y have no partner")
    if not ordered:
        words.append(
            "rows of Y come in another order than those of X: a block reads every chunk of Y that "
            "holds one of its rows"
        )
    return "; ".join(words)


def _numbered(names: Array, labels: Array, which: str) -> dict[Any, int]:
    """Label -> number of its row. Raises InvalidInputError where one stands twice.

    labels : as they came, for the message.
    """
    every: Sequence[Any] = names.tolist()
    found = {name: i for i, name in enumerate(every)}
    if len(found) < len(every):
        twice = [labels[i : i + 1].tolist()[0] for i, name in enumerate(every) if found[name] != i]
        raise InvalidInputError(
            f"rows of {which} share labels ({shorten(list(map(repr, dict.fromkeys(twice))))}), and "
            "those of X and Y are not the same one after another; expected each label once"
        )
    return found
