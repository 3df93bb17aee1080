"""N-dimensional arrays as samples x features: the only module that stacks dimensions."""

from __future__ import annotations

import copy
import hashlib
import math
import threading
from abc import ABC, abstractmethod
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from streampca.errors import ChangingSourceError, InvalidInputError
from streampca.matrix import AxisLabels, ChunkedMatrix, Labels, Location, ReadCount
from streampca.matrix.block import check_dtype
from streampca.sources.local_files import FileLocation

# The sample dimensions of an array.

TIME = "time"  # the default sample dimension
SAMPLES = ("samples", "sample")  # names that leave no doubt
Dim = Hashable | Sequence[Hashable] | None  # the sample dimension(s), by name or number


def sample_dims(
    shape: Sequence[int], dim: Dim, names: Sequence[Hashable] | None = None, what: str = "X"
) -> tuple[int, ...]:
    """The numbers of the sample dimensions of an array.

    dim : by name or number; None: the first of two, or "time" of more.  names : of all dimensions.
    Raises InvalidInputError where they do not exist, there is no default, or names contradict it.
    """
    if dim is not None:
        return _number_dims(len(shape), dim, names)
    if len(shape) > 2 and names is not None:
        if TIME in names:
            return (list(names).index(TIME),)
        sure = [n for n in names if n in SAMPLES]
        example = next((n for n in [*sure, *names] if isinstance(n, str)), 0)
        raise InvalidInputError(
            f"{what} has dimensions {list(names)} and the call does not say which are samples. "
            f"Use streampca.open(X, dim={example!r}); the others are stacked into features."
        )
    check_rank(shape, what)
    if names is not None and names[1] in SAMPLES and names[0] not in SAMPLES:
        raise InvalidInputError(
            f"{what} has dimensions {list(names)}, and the first of two holds the samples if "
            f"nothing is said. Use streampca.open(X, dim={names[1]!r}), or dim={names[0]!r}"
        )
    return (0,)


def _number_dims(ndim: int, dim: Dim, names: Sequence[Hashable] | None) -> tuple[int, ...]:
    """The numbers of the sample dimensions, from names or numbers.

    Raises InvalidInputError where one does not exist, or none is left for the features.
    """
    wanted = [dim] if isinstance(dim, str) or not isinstance(dim, Sequence) else list(dim)
    known: list[Any] = list(range(ndim)) if names is None else list(names)
    found = []
    for one in wanted:
        if names is not None and one in names:
            found.append(known.index(one))
        elif (
            isinstance(one, (int, np.integer))
            and not isinstance(one, bool)
            and (-ndim <= one < ndim)
        ):
            found.append(int(one) % ndim)
        else:
            raise InvalidInputError(f"dim={one!r} does not exist; the array has dimensions {known}")
    if not found or len(set(found)) != len(found) or len(found) == ndim:
        raise InvalidInputError(
            f"dim={dim!r} must name each sample dimension once and leave at least one of {known} "
            "for the features"
        )
    return tuple(found)


def check_rank(shape: Sequence[int], what: str = "X") -> None:
    """Raise InvalidInputError for an array that is not 2-D where no dimension is named."""
    if len(shape) == 2:
        return
    if len(shape) == 1:
        raise InvalidInputError(
            f"Expected 2D array, got 1D array instead: {what} has shape {tuple(shape)}. "
            "Reshape your data: X.reshape(-1, 1) for one feature, X.reshape(1, -1) for one sample."
        )
    raise InvalidInputError(
        f"Expected a 2-D {what} of samples x features, got shape {tuple(shape)}. Name the sample "
        "dimension, streampca.open(X, dim=0), and the rest is stacked into features."
    )


def refuse_uncounted(X: Any) -> None:
    """Raise InvalidInputError for a Dask array that does not know the sizes of its chunks."""
    if any(math.isnan(n) for n in X.shape):
        raise InvalidInputError(
            f"the chunk sizes of this Dask array are not known (shape {X.shape}). "
            "Use X = X.compute_chunk_sizes(), which reads it once."
        )


class Tally:
    """The reads of a source, shared by its readers. An unpickled copy starts at zero.

    checksums : crc32c of every chunk that was read whole, by its key; None where nobody needs them.
    blank : notes about chunks with blank rows, by their keys: see ``zarr.reader.note_of``.
    """

    def __init__(self, checksums: bool = False) -> None:
        self.lock = threading.Lock()
        self.count = ReadCount()
        self.checksums: dict[str, int] | None = {} if checksums else None
        self.blank: dict[str, int] = {}

    def __reduce__(self) -> Any:
        return Tally, (self.checksums is not None,)

    def keep_checksums(self, found: Mapping[str, int]) -> None:
        """Add checksums. Raises ChangingSourceError where a chunk differs from an earlier read,
        because passes over different data give no result."""
        with self.lock:
            kept = self.checksums
            if kept is None:
                return
            for key, checksum in found.items():
                if kept.setdefault(key, checksum) != checksum:
                    raise ChangingSourceError(
                        f"chunk {key!r} was changed while it was read; start again"
                    )

    def keep_blank(self, found: Mapping[str, int]) -> None:
        """Add notes about blank rows."""
        with self.lock:
            for key, note in found.items():
                self.blank[key] = self.blank.get(key, 0) | note

    def add(self, count: ReadCount) -> None:
        """Add to the counts."""
        with self.lock:
            self.count = self.count + count

    def restart(self) -> None:
        """Reset the counts."""
        with self.lock:
            self.count = ReadCount()


class ThreadBuffers:
    """Named byte arrays of each thread, which are not pickled."""

    def __init__(self) -> None:
        self._local = threading.local()

    def __reduce__(self) -> Any:
        return ThreadBuffers, ()

    def take(self, name: str, size: int, spare: int = 0) -> np.ndarray[Any, Any]:
        """(size,) uint8, uninitialised; overwrites the previous buffer of this thread and name.

        spare : extra bytes of a new allocation, for a later request that is slightly larger.
        """
        held = getattr(self._local, name, None)
        if held is None or len(held) < size:
            held = np.empty(size + spare, np.uint8)
            setattr(self._local, name, held)
        return np.asarray(held[:size])

    def free(self) -> None:
        """Free the buffers of this thread."""
        vars(self._local).clear()


MOST_CHUNKS = 1 << 26  # of one array: each is an entry of tables in this process


def check_grid(shape: Sequence[int], chunks: Sequence[int], where: str) -> None:
    """Raises InvalidInputError for an array of more than MOST_CHUNKS chunks."""
    if any(step < 1 for step in chunks):
        raise InvalidInputError(f"{where}: chunks {tuple(chunks)}; expected lengths from 1 on")
    number = math.prod(-(-n // step) for n, step in zip(shape, chunks, strict=True))
    if number > MOST_CHUNKS:
        raise InvalidInputError(
            f"{where} has {number} chunks of {tuple(chunks)}; expected at most {MOST_CHUNKS}. "
            "Write it again with larger chunks: streampca convert"
        )


# A source is a :class:`Reader`: shape, dtype, chunk boundaries per dimension, and a read of one
# hyperrectangle. :class:`StackedMatrix` does the rest, so that a new array format is one small
# class.

Index = tuple[slice, ...]


class Reader(ABC):
    """Reads hyperrectangles of an N-dimensional array. Needs a small pickle, and opens lazily."""

    shape: tuple[int, ...]
    dtype: np.dtype[Any]  # of the result of ``read``
    tally: Tally

    loads: tuple[str, ...] = ()  # heavy libraries that ``read`` imports
    given_nbytes: int = 0  # of an array that the caller holds in memory
    carried_nbytes: int = 0  # of data pickled with the reader
    computes: bool = False  # see ChunkedMatrix

    into_buffer = False  # whether ``read`` accepts a buffer for its result
    plain = False  # whether it is an array in memory, in no chunks, that is read without a copy

    @abstractmethod
    def read(self, index: Index) -> np.ndarray[Any, Any]:
        """The values of one hyperrectangle (a slice with bounds for each dimension).

        With ``into_buffer``, ``read(index, buffer)`` may store them in a uint8 array.
        """

    @abstractmethod
    def edges(self, dim: int) -> np.ndarray[Any, Any] | None:
        """Chunk boundaries along a dimension, including 0 and its size; None if there are none."""

    @abstractmethod
    def fingerprint(self) -> str:
        """A cheap digest of what is read and how, without reading any value."""

    def content_stamp(self) -> str:
        """A digest that also changes when values change in place; may stat all files."""
        return self.fingerprint()

    def paths(self) -> tuple[str, ...]:
        """The local files and directories that are read."""
        return ()

    def futures(self) -> tuple[Any, ...]:
        """See :meth:`ChunkedMatrix.futures`."""
        return ()

    def locations(self) -> tuple[Location, ...]:
        """See :meth:`ChunkedMatrix.locations`."""
        return tuple(map(FileLocation, self.paths()))

    def reads(self) -> ReadCount:
        """The reads so far."""
        return self.tally.count

    def scratch_nbytes(self, index: Index) -> int:
        """Most bytes that reading ``index`` needs in addition to its result."""
        return 0

    def part(self, dim: int, start: int, stop: int) -> Reader:
        """A reader that needs to read only [start, stop) along dim, with unchanged indices."""
        return self

    def restart_counts(self) -> None:
        """Reset the counts (a copy on a worker counts for itself)."""
        self.tally.restart()

    def checksums(self) -> dict[str, int]:
        """See :meth:`ChunkedMatrix.checksums`."""
        return {}

    def add_checksums(self, found: Mapping[str, int]) -> None:  # noqa: B027
        """See :meth:`ChunkedMatrix.add_checksums`."""


STEP_NBYTES = 64 << 20  # of a step of the first dimension that is not cut


class StackedMatrix(ChunkedMatrix):
    """A reader's dimensions split into samples and features, each stacked in C order.

    sample_dims, feature_dims : dimension numbers, slowest first. Slices run along the first
    dimension of an axis. Where one step of it is large and no chunk holds two, as of the members
    of an ensemble, they run along the second within each step.
    """

    def __init__(
        self,
        reader: Reader,
        sample_dims: Sequence[int] = (0,),
        feature_dims: Sequence[int] | None = None,
        labels: Labels | None = None,
        missing_value: float | None = None,
    ) -> None:
        if feature_dims is None:
            feature_dims = [d for d in range(len(reader.shape)) if d not in sample_dims]
        self.reader = reader
        self.dims = (tuple(sample_dims), tuple(feature_dims))
        sizes = [math.prod(reader.shape[d] for d in dims) for dims in self.dims]
        self.shape = (sizes[0], sizes[1])
        self.dtype = reader.dtype
        self.labels = labels or Labels.plain(self.shape)
        self.missing_value = missing_value
        self.into_buffer = reader.into_buffer
        self.loads, self.given_nbytes = reader.loads, reader.given_nbytes
        self.carried_nbytes, self.computes = reader.carried_nbytes, reader.computes
        check_dtype(self.dtype)

    def _inner(self, axis: int) -> int:
        """Rows (columns) per step of the first dimension of the axis."""
        return math.prod(self.reader.shape[d] for d in self.dims[axis][1:])

    def _index(self, axis: int, start: int, stop: int) -> tuple[Index, int]:
        """The hyperrectangle that contains [start, stop), and the position of start in it."""
        index = [slice(0, size) for size in self.reader.shape]
        dims = self.dims[axis]
        for number, dim in enumerate(dims):
            inner = max(1, math.prod(self.reader.shape[d] for d in dims[number + 1 :]))
            index[dim] = slice(start // inner, -(-stop // inner))
            before = index[dim].start * inner
            start, stop = start - before, stop - before
            if index[dim].stop - index[dim].start != 1:
                break
        return tuple(index), start

    def read(self, axis: int, start: int, stop: int, buffer: Any = None) -> np.ndarray[Any, Any]:
        index, skip = self._index(axis, start, stop)
        read: Any = self.reader.read
        values = read(index, buffer) if self.into_buffer else read(index)
        order = (*self.dims[0], *self.dims[1])
        if order != tuple(range(len(order))):
            values = values.transpose(order)
        rows = math.prod(values.shape[: len(self.dims[0])])
        none = stop - start if axis == 1 else self.shape[1]
        values = values.reshape(rows, -1 if values.size else none)
        if values.shape[axis] != stop - start:
            keep = slice(skip, skip + stop - start)
            values = values[:, keep] if axis == 1 else values[keep]
        by_feature = axis == 1 and values.dtype.itemsize == 1 and values.flags.f_contiguous
        return values if by_feature else np.ascontiguousarray(values)

    def arranged(self, features: AxisLabels) -> ChunkedMatrix:
        own = self.labels.features
        if own.dims == features.dims or sorted(own.dims) != sorted(features.dims):
            return self
        order = [own.dims.index(dim) for dim in features.dims]
        turned = copy.copy(self)
        turned.dims = (self.dims[0], tuple(self.dims[1][i] for i in order))
        sizes = tuple(own.sizes[i] for i in order)
        turned.labels = replace(self.labels, features=replace(own, dims=features.dims, sizes=sizes))
        return turned

    def chunk_edges(self, axis: int) -> np.ndarray[Any, Any] | None:
        dims = self.dims[axis]
        return self._edges(axis, dims) if dims else np.array([0, self.shape[axis]])

    def _edges(self, axis: int, dims: tuple[int, ...]) -> np.ndarray[Any, Any] | None:
        """Of these dimensions of the axis: steps of the first, or chunks within large steps."""
        inner = math.prod(self.reader.shape[d] for d in dims[1:])
        edges = self.reader.edges(dims[0])
        if edges is None:
            if inner == 1:
                return None
            edges = np.arange(self.reader.shape[dims[0]] + 1)
        edges = np.asarray(edges, dtype=np.int64) * inner
        step = inner * self.shape[1 - axis] * self.dtype.itemsize
        if len(dims) == 1 or step <= STEP_NBYTES or np.any(np.diff(edges) > inner):
            return edges
        within = self._edges(axis, dims[1:])
        within = np.arange(inner) if within is None else within[:-1]
        return np.append((edges[:-1, None] + within).ravel(), edges[-1:])

    def count_chunks(self, axis: int, start: int, stop: int) -> int:
        index, _ = self._index(axis, start, stop)
        count = 1
        for dim, part in enumerate(index):
            edges = self.reader.edges(dim)
            count *= 1 if edges is None else crossed(edges, part.start, part.stop)
        return count

    def read_scratch_nbytes(self, axis: int, length: int) -> int:
        index, _ = self._index(axis, 0, length)
        scratch = self.reader.scratch_nbytes(index)
        order = (*self.dims[0], *self.dims[1])
        transposed = order != tuple(range(len(order)))
        if transposed and not (axis == 1 and self.dtype.itemsize == 1):
            scratch += length * self.shape[1 - axis] * self.dtype.itemsize
        return scratch

    def part(self, axis: int, start: int, stop: int) -> ChunkedMatrix:
        if not self.dims[axis]:
            return self
        smaller = copy.copy(self)
        inner = self._inner(axis)
        smaller.reader = self.reader.part(self.dims[axis][0], start // inner, -(-stop // inner))
        return smaller

    def fingerprint(self) -> str:
        return self._digest(self.reader.fingerprint())

    def outline(self) -> tuple[Hashable, ...] | None:
        if not self.reader.plain or self.dims != ((0,), (1,)) or self.design is not None:
            return None
        labels = self.labels.samples.nbytes, self.labels.features.nbytes
        held = self.given_nbytes, self.carried_nbytes, self.resident_nbytes
        return self.shape, str(self.dtype), self.loads, *held, *labels, self.note

    def content_stamp(self) -> str:
        return self._digest(self.reader.content_stamp())

    def _digest(self, reader: str) -> str:
        text = f"{reader} {self.dims} {self.missing_value}"
        return hashlib.sha256(text.encode()).hexdigest()

    def paths(self) -> tuple[str, ...]:
        return self.reader.paths()

    def futures(self) -> tuple[Any, ...]:
        return self.reader.futures()

    def locations(self) -> tuple[Location, ...]:
        return self.reader.locations()

    def reads(self) -> ReadCount:
        return self.reader.reads()

    def restart_counts(self) -> None:
        self.reader.restart_counts()

    def checksums(self) -> dict[str, int]:
        return self.reader.checksums()

    def add_checksums(self, found: Mapping[str, int]) -> None:
        self.reader.add_checksums(found)


def stack(reader: Reader, dim: Dim, names: tuple[Hashable, ...] | None = None) -> StackedMatrix:
    """The matrix of a reader.  dim, names : as for :func:`sample_dims`."""
    matrix = StackedMatrix(reader, sample_dims(reader.shape, dim, names))
    if names is not None and all(isinstance(n, str) for n in names):
        rows, columns = (
            AxisLabels(tuple(str(names[d]) for d in ds), tuple(reader.shape[d] for d in ds))
            for ds in matrix.dims
        )
        matrix.labels = Labels(rows, columns)
    return matrix


def with_code(matrix: ChunkedMatrix, missing_value: float | None) -> ChunkedMatrix:
    """The matrix, in which this number means missing. Raises where another number does already."""
    if missing_value is None or missing_value == matrix.missing_value:
        return matrix
    if matrix.missing_value is not None:
        raise InvalidInputError(
            f"missing_value={missing_value:g} contradicts the matrix, which was opened with "
            f"missing_value={matrix.missing_value:g}"
        )
    coded = copy.copy(matrix)
    coded.missing_value = missing_value
    return coded


def room_for(shape: Sequence[int], dtype: np.dtype[Any], buffer: Any) -> np.ndarray[Any, Any]:
    """An array to read into: the beginning of the uint8 buffer if that is long enough."""
    size = math.prod(shape) * dtype.itemsize
    raw = buffer[:size] if buffer is not None and len(buffer) >= size else np.empty(size, "u1")
    return np.asarray(raw.view(dtype).reshape(shape))


def crossed(edges: np.ndarray[Any, Any], start: int, stop: int) -> int:
    """How many chunks with these boundaries hold [start, stop)."""
    first, last = np.searchsorted(edges, start, "right"), np.searchsorted(edges, stop, "left")
    return max(int(last - first) + 1, 0) if start < stop else 0
