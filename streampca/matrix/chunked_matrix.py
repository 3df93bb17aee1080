"""The interface of all data: a 2-D matrix that is read in slices of one axis."""

from __future__ import annotations

import copy
import itertools
import threading
from abc import ABC, abstractmethod
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np

from streampca.html import card, text
from streampca.matrix.block import Block, work_dtype
from streampca.matrix.labels import AxisLabels, Labels
from streampca.matrix.location import Location
from streampca.matrix.preprocessing import Preprocessing


@dataclass
class ReadCount:
    """Counts of what has been read: stored chunks, their decoded bytes, their stored bytes.

    ``stored`` stays 0 for sources that do not know it. ``moved`` : bytes of chunks on a cluster
    that were transferred to the worker that read them.
    """

    chunks: int = 0
    nbytes: int = 0
    stored: int = 0
    moved: int = 0

    def __add__(self, other: ReadCount) -> ReadCount:
        return ReadCount(
            self.chunks + other.chunks,
            self.nbytes + other.nbytes,
            self.stored + other.stored,
            self.moved + other.moved,
        )

    def __sub__(self, other: ReadCount) -> ReadCount:
        return ReadCount(
            self.chunks - other.chunks,
            self.nbytes - other.nbytes,
            self.stored - other.stored,
            self.moved - other.moved,
        )


class ChunkedMatrix(ABC):
    """A matrix of samples x features that is never held whole.

    A source implements the abstract methods. ``streamed(axis, edges)`` sets the axis and the
    blocks in which a pass reads it; the pass calls ``read_block(i)``. Instances must have small
    pickles: they are sent to worker processes, and open their store there.

    Examples
    --------
    >>> import numpy as np
    >>> import streampca
    >>> matrix = streampca.open(np.arange(12.0).reshape(6, 2))
    >>> halves = matrix.streamed(0, np.array([0, 3, 6]))
    >>> halves.n_blocks, halves.read_block(1).dense().tolist()
    (2, [[6.0, 7.0], [8.0, 9.0], [10.0, 11.0]])
    """

    shape: tuple[int, int]
    dtype: np.dtype[Any]
    labels: Labels
    missing_value: float | None = None
    into_buffer: bool = False
    loads: tuple[str, ...] = ()  # heavy libraries that a read imports
    design: np.ndarray[Any, Any] | None = None  # every pass projects it out of the samples
    removed: np.ndarray[Any, Any] | None = None  # mean and coefficients of that, if known
    sparse: bool = False  # whether blocks come as scipy.sparse
    absent: bool = False  # whether unstored cells are missing (ratings) instead of 0
    rated: bool = False  # whether cells are ratings, with the ids of users and items as labels
    resident_nbytes: int = 0  # of arrays that the source holds while it is read (indptr)
    given_nbytes: int = 0  # of X, where the caller holds it in memory
    carried_nbytes: int = 0  # of values in this process that are sent with tasks
    computes: bool = False  # whether reading a chunk may cost more than its size suggests
    annotations: Any = None  # columns in the source, by axis and name: ``sources.annotations``
    note: str = ""  # a remark about the source, for the plan
    opening: Any = None  # what it took in this process to make the source (texts: counting)
    multiallelic: int = 0  # variants of the source that have more alleles and were left out
    streamed_axis: int = 0
    edges: np.ndarray[Any, Any]

    @abstractmethod
    def read(self, axis: int, start: int, stop: int, buffer: Any = None) -> Any:
        """Raw values of [start, stop) along axis, all of the other: ndarray or scipy.sparse.

        buffer : a uint8 array that may hold the result, where ``into_buffer`` is True. The caller
        reuses it for another block afterwards.
        """

    @abstractmethod
    def chunk_edges(self, axis: int) -> np.ndarray[Any, Any] | None:
        """Positions at which slices along axis may be cut so that no stored chunk is read twice.

        (m + 1,) increasing int64, from 0 to ``shape[axis]``; None where any position will do.
        """

    @abstractmethod
    def count_chunks(self, axis: int, start: int, stop: int) -> int:
        """How many stored chunks ``read(axis, start, stop)`` reads."""

    def hard_calls(self) -> ChunkedMatrix:
        """The calls 0, 1, 2 of a matrix of dosages of genotypes; any other matrix itself."""
        return self

    def count_span(self, axis: int, edges: np.ndarray[Any, Any]) -> int:
        """How many chunks are read when the blocks between edges, (m + 1,), are read in order.

        Less than the sum of ``count_chunks`` where consecutive blocks share chunks.
        """
        return sum(self.count_chunks(axis, int(a), int(b)) for a, b in pairwise(edges))

    def count_pass(self, axis: int, spans: Sequence[np.ndarray[Any, Any]]) -> int:
        """How many chunks a pass in one process reads.  spans : (m + 1,) edges of each.

        Less than the sum of ``count_span`` where spans share what they decode.
        """
        return sum(self.count_span(axis, edges) for edges in spans)

    def count_shared(self, axis: int, stop: int, start: int) -> int:
        """How many chunks are needed both before ``stop`` and from ``start`` on, start >= stop.

        These are read once where a block that ends at ``stop`` precedes one from ``start`` on.
        """
        return 0

    def reach(self, axis: int) -> int:
        """Most streamed rows between the first and the last block that need the same chunk.

        A longer span reads no chunk that both its neighbours read.
        """
        return 0

    def entry_points(self, axis: int) -> np.ndarray[Any, Any] | None:
        """(m,) positions from 0 on where a read need not begin earlier; None where all are such."""
        return None

    @abstractmethod
    def fingerprint(self) -> str:
        """A digest of what is read and how: cheap, for every plan, without reading any value."""

    def outline(self) -> tuple[Hashable, ...] | None:
        """All that a plan depends on, but for the fingerprint; None where a plan is to be made."""
        return None

    def content_stamp(self) -> str:
        """A digest that also changes when values change in place, as far as the source can tell.

        May stat every file of the source: for checkpoints, not for plans.
        """
        return self.fingerprint()

    def paths(self) -> tuple[str, ...]:
        """The local files and directories that are read."""
        return ()

    def futures(self) -> tuple[Any, ...]:
        """Futures of the values on a cluster that a read needs."""
        return ()

    def locations(self) -> tuple[Location, ...]:
        """Locations of the stored values; workers must find the same there as this process."""
        return ()

    @abstractmethod
    def reads(self) -> ReadCount:
        """What this object has read so far, in all threads."""

    def read_scratch_nbytes(self, axis: int, length: int) -> int:
        """Most bytes that a read of ``length`` needs in addition to the block it returns."""
        return 0

    def row_nbytes(self, axis: int) -> float:
        """Mean decoded bytes of one streamed row; of a dense row in the working dtype."""
        return float(self.shape[1 - axis] * work_dtype(self.dtype).itemsize)

    def spans_nbytes(self, axis: int, edges: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
        """(blocks,) int64 decoded bytes between consecutive edges along axis."""
        dense = np.diff(np.asarray(edges, np.int64))
        return dense * (self.shape[1 - axis] * self.dtype.itemsize)

    def advice(self, axis: int) -> str:
        """A remedy where streaming along axis needs too much memory; "" if there is none."""
        return ""

    def prepare_reads(self, axis: int) -> ReadCount:
        """Reads needed once before the first block along axis (shared subgraphs)."""
        return ReadCount()

    def prepared(self) -> ReadCount:
        """Such reads so far; ``reads`` does not count them."""
        return ReadCount()

    def part(self, axis: int, start: int, stop: int) -> ChunkedMatrix:
        """A matrix for reading [start, stop) along axis (absolute), with a smaller pickle."""
        return self

    @abstractmethod
    def restart_counts(self) -> None:
        """Reset the counts (a copy on a worker counts for itself)."""

    def checksums(self) -> dict[str, int]:
        """crc32c of the stored chunks that were read, where a ledger of them is kept."""
        return {}

    def add_checksums(self, found: Mapping[str, int]) -> None:  # noqa: B027
        """Add those of a worker. Raises SourceError where one differs from an earlier read."""

    # -- provided ---------------------------------------------------------------------------

    def streamed(self, axis: int, edges: np.ndarray[Any, Any]) -> ChunkedMatrix:
        """The same matrix, to be read along axis in blocks between consecutive edges, (m + 1,)."""
        laid = copy.copy(self)
        laid.streamed_axis, laid.edges = axis, np.asarray(edges, dtype=np.int64)
        return laid

    def without(self, design: Any, removed: Any = None) -> ChunkedMatrix:
        """The same matrix, with the design projected out of every block by a pass.

        design : (samples, r) and removed : (1 + r, features), as for ``residual_block``; streamed
        samples need both. The mean is removed too. ``read`` still returns the values as stored.
        """
        laid = copy.copy(self) if design is None else self.expanded()
        laid.design, laid.removed = design, removed
        return laid

    def observed_only(self) -> ChunkedMatrix:
        """The same sparse matrix, in which a cell that is not stored is missing."""
        laid = copy.copy(self)
        laid.absent = True
        return laid

    def seen(self) -> tuple[np.ndarray[Any, Any], np.ndarray[Any, Any]]:
        """Of ratings: (n + 1,) where the items that a user has rated begin, and their numbers."""
        raise NotImplementedError

    def expanded(self) -> ChunkedMatrix:
        """The same matrix, planned with dense blocks, for methods that expand them."""
        laid = copy.copy(self)
        laid.sparse = False
        return laid

    def column(self, axis: int, name: str) -> Any:
        """A named coordinate of an axis, or an annotation column in the source.

        (length of the axis,) values, or a DataArray over some of its dimensions; None where there
        is none. Workers have no access to columns of the source.
        """
        found = self.labels.axis(axis).coordinate(name)
        return (
            found
            if found is not None or self.annotations is None
            else self.annotations.column(axis, name)
        )

    def column_names(self, axis: int) -> list[str]:
        """The names that :meth:`column` knows."""
        labels = self.labels.axis(axis)
        own = [*labels.coords, *labels.extra, *labels.grids]
        return own + ([] if self.annotations is None else self.annotations.names(axis))

    def arranged(self, features: AxisLabels) -> ChunkedMatrix:
        """The same matrix, its features stacked in the order of these dimensions.

        Returns itself where its dimensions have other names, no names, or already that order.
        """
        return self

    @property
    def preprocessing(self) -> Preprocessing:
        """The steps from raw values to these; none for the values of a source."""
        return self.labels.preprocessing

    @property
    def n_blocks(self) -> int:
        """Number of blocks along the streamed axis."""
        return len(self.edges) - 1

    @property
    def nbytes(self) -> int:
        """Decoded size of the whole matrix."""
        return self.shape[0] * self.shape[1] * self.dtype.itemsize

    @property
    def block_nbytes(self) -> int:
        """Decoded size of the largest block."""
        return int(self.spans_nbytes(self.streamed_axis, self.edges).max(initial=0))

    def read_block(self, i: int, buffer: Any = None) -> Block:
        """Read block i of the streamed axis, into the buffer if the source supports that."""
        axis, start, stop = self.streamed_axis, int(self.edges[i]), int(self.edges[i + 1])
        values = self.read(axis, start, stop, buffer)
        return Block(
            values, axis, start, stop, i, self.labels, self.missing_value, absent=self.absent
        )

    def __repr__(self) -> str:
        n, p = self.shape
        return f"<{type(self).__name__} {n} samples x {p} features, {self.dtype}>"

    def _repr_html_(self) -> str:
        return matrix_card(self)


def regular_edges(length: int, step: int) -> np.ndarray[Any, Any]:
    """(blocks + 1,) 0, step, 2 step, ..., length."""
    return np.append(np.arange(0, length, max(1, step), dtype=np.int64), length)


def cut_lengths(lengths: Sequence[int], most: int) -> tuple[int, ...]:
    """The same chunk lengths, with those longer than ``most`` split."""
    cut = ([most] * (n // most) + [n % most] * (n % most > 0) for n in lengths)
    return tuple(itertools.chain.from_iterable(cut))


# A matrix that reads another one, and delegates questions about the source to it.


class SpanCache:
    """Cached objects by owner. Each span has a new cache, so that reads depend only on the plan.

    Thread-safe. A pickled cache is empty.
    """

    def __init__(self) -> None:
        self._things: dict[Hashable, Any] = {}
        self._ended = False
        self._lock = threading.Lock()

    def __reduce__(self) -> Any:
        return SpanCache, ()

    def of(self, owner: Hashable, make: Callable[[], Any]) -> Any:
        """The object of this owner, created by ``make`` on first use."""
        with self._lock:
            if self._ended:
                return make()
            if owner not in self._things:
                self._things[owner] = make()
            return self._things[owner]

    def end(self) -> None:
        """Drop everything, and cache nothing more: a read may still be in progress."""
        with self._lock:
            self._things.clear()
            self._ended = True


_current: ContextVar[SpanCache | None] = ContextVar("streampca_span_cache", default=None)


def current_cache() -> SpanCache | None:
    """The cache of the span that this thread is reading; None outside of a pass."""
    return _current.get()


@contextmanager
def reading_with(cache: SpanCache) -> Iterator[None]:
    """Make the cache current for the reads of this thread."""
    token = _current.set(cache)
    try:
        yield
    finally:
        _current.reset(token)


def matrix_card(matrix: Any) -> str:
    """Shape, values, chunks and names of a matrix. Reads none of its values."""
    n, p = matrix.shape
    chunks = [(matrix.chunk_edges(axis), ("samples", "features")[axis]) for axis in (0, 1)]
    cut = [f"{len(edges) - 1:,} along {name}" for edges, name in chunks if edges is not None]
    kind = f"{matrix.dtype}{', sparse' if matrix.sparse else ''}"
    rows = [
        ("shape", text(f"{n:,} samples x {p:,} features")),
        ("values", text(f"{kind}, {matrix.nbytes / 1e6:,.3g} MB")),
        ("chunks", text(", ".join(cut))),
        ("samples", text(_some(matrix.labels.samples))),
        ("features", text(_some(matrix.labels.features))),
        ("preprocessed", text(" then ".join(map(str, matrix.labels.preprocessing.steps)))),
        ("source", text(matrix.note)),
    ]
    return card(type(matrix).__name__, "nothing is read yet", rows)


def _some(axis: AxisLabels) -> str:
    """The first names of an axis, where it has names."""
    if not axis.named or not len(axis):
        return ""
    return ", ".join(axis.names(range(min(3, len(axis))))) + (", …" if len(axis) > 3 else "")
