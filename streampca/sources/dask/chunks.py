"""The chunks of a Dask graph: computed, checked, placed in the result, and bounded in memory."""

from __future__ import annotations

import os
import threading
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import zarr
from dask._task_spec import DataNode, GraphNode, Task, _execute_subgraph
from dask.array.core import getter, getter_inline, getter_nofancy
from dask.sizeof import sizeof

from streampca.errors import InvalidInputError, InvalidTypeError
from streampca.matrix import Location, work_dtype
from streampca.matrix.block import refuse_inexact
from streampca.matrix.kinds import CHUNKS, is_sparse, refuse_gpu
from streampca.sources.dask.graph import SLICES, Graph, Key, layer_of
from streampca.sources.dask.sharing import MiB
from streampca.sources.local_files import FileLocation
from streampca.sources.zarr.chunks import decoder_of
from streampca.sources.zarr.location import ZarrLocation
from streampca.sources.zarr.reader import ZarrReader
from streampca.sources.zarr.stores import local_store, rebuilt

# Whether a Dask graph computes, or only reads and slices stored chunks.

READS = (getter, getter_nofancy, getter_inline, *SLICES)


def computes(graph: Graph) -> bool:
    """Whether a task may cost more than its size suggests: anything but plain reads and slices.

    Chunks on a cluster count too: blocks of a few chunks are folded where they are. The tasks of a
    layer are alike, so one of each is examined.
    """
    seen: set[Key] = set()
    for key in graph.needs:
        if (layer := layer_of(key)) not in seen:
            seen.add(layer)
            if not _reads(graph.nodes[key]):
                return True
    return False


def _reads(node: Any) -> bool:
    """Whether a node is a plain read, a slice, an alias, or several of these fused."""
    if isinstance(node, Task):
        if node.func is _execute_subgraph:
            return all(map(_reads, node.args[0].values()))
        return node.func in READS
    if isinstance(node, GraphNode):
        return True
    return not (type(node) is tuple and node and callable(node[0])) or node[0] in READS


# The Zarr arrays and files that the nodes of a Dask graph read.

DEPTH = 12  # of nested tasks, and of nested wrappers of xarray


def locations_of(nodes: Iterable[Any]) -> tuple[Location, ...]:
    """Distinct Zarr arrays, and local files that xarray opened."""
    found: dict[str, Location] = {}
    for one in leaves_of(nodes):
        if (location := _location(one)) is not None:
            found.setdefault(location.name, location)
    return tuple(found.values())


def leaves_of(nodes: Iterable[Any]) -> list[Any]:
    """Distinct objects in nodes and nested tasks that may be read from."""
    known: dict[int, Any] = {}
    for node in nodes:
        for one in _leaves(node, DEPTH):
            known.setdefault(id(one), one)
    return list(known.values())


def _leaves(node: Any, depth: int) -> Iterator[Any]:
    """Objects in a node that may be read from, without plain values."""
    if not depth or node is None or isinstance(node, (str, int, float, slice)):
        return
    if isinstance(node, Task):
        parts: Iterable[Any] = (*node.args, *node.kwargs.values())
    elif isinstance(node, DataNode):
        parts = (node.value,)
    elif isinstance(node, dict):
        parts = node.values()
    elif isinstance(node, (tuple, list)):
        parts = node
    else:
        yield node
        return
    for part in parts:
        yield from _leaves(part, depth - 1)


def _location(wrapper: Any) -> Location | None:
    """Of a Zarr array or a lazily indexed file, as such or in xarray's wrappers."""
    for _ in range(DEPTH):
        if wrapper is None:
            return None
        if isinstance(wrapper, zarr.Array):
            return ZarrLocation.of(wrapper)
        path = getattr(getattr(wrapper, "datastore", None), "_filename", None)
        if isinstance(path, str) and os.path.isfile(path):
            return FileLocation(path)
        inner = getattr(wrapper, "_array", None)
        wrapper = getattr(wrapper, "array", None) if inner is None else inner
    return None


LATE = {  # remedies for a chunk of a kind that its array does not declare
    "O": "Use X.map_blocks(lambda block: block.astype('float64')).",
    "c": "Use X.map_blocks(numpy.real).",
}


@dataclass(frozen=True)
class Spot:
    """One chunk along one dimension: its number, target, source part and length."""

    block: int
    into: slice
    part: slice
    length: int


def ends_of(sizes: Sequence[int]) -> np.ndarray[Any, Any]:
    """(chunks + 1,) boundaries of chunks of these sizes."""
    return np.concatenate([[0], np.cumsum(sizes, dtype=np.int64)]).astype(np.int64)


def covering(ends: np.ndarray[Any, Any], start: int, stop: int) -> tuple[int, int]:
    """Numbers (first, after the last) of the chunks that hold [start, stop)."""
    return int(np.searchsorted(ends, start, "right")) - 1, int(np.searchsorted(ends, stop, "left"))


@dataclass(frozen=True)
class Place:
    """Writes a chunk into the result of a read, so that the graph can free it."""

    out: np.ndarray[Any, Any]
    into: tuple[slice, ...]
    part: tuple[slice, ...]
    shape: tuple[int, ...]

    def __call__(self, chunk: Any) -> None:
        check_chunk(chunk)
        check_shape(chunk, self.shape)
        if np.ma.is_masked(chunk):
            chunk = _unmasked(chunk, self.out.dtype)
        values = np.asarray(chunk)
        check_numbers(values, self.out.dtype)
        self.out[self.into] = values[self.part]


def check_shape(chunk: Any, declared: tuple[int, ...]) -> None:
    """Refuse a chunk of another shape than its array declares."""
    if tuple(np.shape(chunk)) != declared:
        raise InvalidInputError(
            f"a chunk of this Dask array computed to shape {tuple(np.shape(chunk))} and was "
            f"declared as {declared}. State the real chunks: X.map_blocks(..., chunks=...)."
        )


def check_chunk(chunk: Any) -> None:
    """Refuse chunks on a GPU, and sparse ones that are declared as arrays."""
    refuse_gpu(chunk, CHUNKS)
    if is_sparse(chunk) or hasattr(chunk, "todense"):
        raise InvalidTypeError(
            f"{CHUNKS} {type(chunk).__name__}; expected NumPy arrays, as it declares. Say what "
            "they are, X.map_blocks(lambda block: block, meta=scipy.sparse.csr_array((0, 0))), or "
            "use X.map_blocks(lambda block: block.todense(), dtype=X.dtype, "
            "meta=numpy.empty((0, 0)))."
        )


def check_numbers(values: Any, declared: np.dtype[Any]) -> None:
    """Refuse values that are not real numbers, or do not fit the declared dtype.

    Floats are rounded to the declared float. Cost: extremes, where integers are narrowed.
    """
    found: np.dtype[Any] = values.dtype
    if found.kind not in "buif" and not found.kind == declared.kind == "c":
        line = LATE.get(found.kind, "Make them numbers where the chunk is made.")
        raise InvalidTypeError(
            f"a chunk of this Dask array computed to dtype {found}, declared as {declared}; "
            f"expected real numbers. {line}"
        )
    narrowed = found.kind in "iu" and declared.kind in "iu" and not np.can_cast(found, declared)
    if not np.can_cast(found, declared, "same_kind") or (narrowed and _overflows(values, declared)):
        raise InvalidTypeError(
            f"a chunk of this Dask array computed to dtype {found}, declared as {declared}, which "
            f"does not hold its values. State it: X.map_blocks(..., dtype={str(found)!r})."
        )
    if declared.kind == "f":
        refuse_inexact(values, where="a chunk of this Dask array, which is declared as floats,")


def _overflows(values: Any, declared: np.dtype[Any]) -> bool:
    """Whether an integer is beyond the range of a narrower dtype."""
    data = values if isinstance(values, np.ndarray) else values.data
    ends = np.iinfo(declared)
    return bool(data.size) and not (ends.min <= data.min() and data.max() <= ends.max)


def _unmasked(chunk: Any, declared: np.dtype[Any]) -> Any:
    """The chunk with NaN where it is masked."""
    if declared.kind not in "fc":
        raise InvalidTypeError(
            f"a chunk of this Dask array has masked cells, and was declared as {declared}, which "
            f"has no NaN for what is missing. Say so: X.map_blocks(lambda block: block, "
            f"meta=numpy.ma.masked_array(numpy.empty((0, 0), {str(declared)!r}))); or name a code: "
            "X.map_blocks(numpy.ma.filled, -9) and missing_value=-9."
        )
    if chunk.dtype.kind not in "buifc":
        return chunk.data  # refused for that
    refuse_inexact(chunk.compressed(), where="a chunk of this Dask array")
    return chunk.astype(np.result_type(chunk.dtype, declared)).filled(np.nan)


def floats_of_masked(array: Any) -> Any:
    """A Dask array of masked integers as one of floats, lazily; others are unchanged.

    float32 where that holds every integer of the dtype, else float64.
    """
    if not isinstance(array._meta, np.ma.MaskedArray) or array.dtype.kind not in "biu":
        return array
    dtype = work_dtype(array.dtype)
    meta = np.ma.masked_array(np.empty((0,) * array.ndim, dtype))
    return array.map_blocks(_as_floats, dtype=dtype, meta=meta)


def _as_floats(chunk: Any) -> Any:
    """Masked integers as floats that are NaN where masked."""
    dtype = work_dtype(chunk.dtype)
    refuse_inexact(np.ma.compressed(chunk), where="a chunk of this Dask array")
    return np.ma.filled(chunk.astype(dtype), np.nan)


class Room:
    """Passes results on while all of them together fit."""

    def __init__(self, limit: int) -> None:
        self.limit = self.left = limit
        self._lock = threading.Lock()

    def __call__(self, value: Any) -> Any:
        self.take(int(sizeof(value)))
        return value

    def take(self, nbytes: int) -> None:
        """Take so much of it. Raises InvalidInputError where that is not left."""
        with self._lock:
            self.left -= nbytes
            if self.left < 0:
                raise InvalidInputError(
                    f"the operands that all strips of this Dask graph share are larger than "
                    f"{self.limit // MiB} MiB and cannot be kept. Write the array down first, "
                    "X.to_zarr('scratch.zarr'), and use streampca.open('scratch.zarr'); or, if it "
                    "fits into memory, X = X.persist()."
                )


# Zarr arrays in a graph: decoded by the thread that computes the strip.
#
# Zarr decodes in threads of its own, and malloc keeps chunks of several MiB for each of them.


class StoredArrays:
    """What is read in place of the Zarr arrays in a graph. A pickled one is empty."""

    def __init__(self) -> None:
        self._known: dict[int, tuple[Any, StoredArray | None]] = {}

    def __reduce__(self) -> Any:
        return StoredArrays, ()

    def put_into(self, nodes: dict[Key, Any]) -> None:
        """In place of the arrays that can be decoded here, as nodes or as arguments of a read."""
        for key, node in nodes.items():
            held = node.value if isinstance(node, DataNode) else node
            if isinstance(held, zarr.Array) and (found := self._of(held)) is not None:
                nodes[key] = DataNode(key, found)
            elif (
                isinstance(node, Task) and node.func in READS and isinstance(node.args[0], DataNode)
            ):
                inner = node.args[0].value
                if isinstance(inner, zarr.Array) and (found := self._of(inner)) is not None:
                    nodes[key] = Task(key, node.func, found, *node.args[1:], **node.kwargs)

    def _of(self, array: Any) -> StoredArray | None:
        if id(array) not in self._known:
            self._known[id(array)] = (array, StoredArray.of(array))
        return self._known[id(array)][1]


class StoredArray:
    """A Zarr array on this machine. Absent chunks are its fill value, as they are to Zarr."""

    def __init__(self, array: Any, reader: ZarrReader) -> None:
        self.array, self.reader = array, reader
        self.shape, self.dtype, self.ndim = array.shape, array.dtype, array.ndim

    @classmethod
    def of(cls, array: Any) -> StoredArray | None:
        """None where Zarr must read it: in another place, or of codecs that only Zarr knows."""
        store = local_store(array.store)
        if store is None or decoder_of(array) is None:
            return None
        return cls(array, ZarrReader(rebuilt(array, store=store), "fill"))

    def __getitem__(self, index: Any) -> Any:
        parts = index if isinstance(index, tuple) else (index,)
        if len(parts) != self.ndim or not all(isinstance(part, slice) for part in parts):
            return self.array[index]
        bounds = [part.indices(n) for part, n in zip(parts, self.shape, strict=True)]
        if any(step != 1 or start >= stop for start, stop, step in bounds):
            return self.array[index]
        try:
            return self.reader.read(tuple(slice(start, stop) for start, stop, _ in bounds))
        finally:
            self.reader.free_buffers()  # what a graph computes needs that memory next
