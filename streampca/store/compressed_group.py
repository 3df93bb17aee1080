"""A sparse matrix at rest: a Zarr group as AnnData writes it, appended to block by block."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any

import numpy as np
import zarr
import zarr.codecs

from streampca.errors import InvalidInputError
from streampca.store.places import discard, unfinished_name
from streampca.store.replacing import put_folder
from streampca.store.sinks import Sink

Array = np.ndarray[Any, Any]
CHUNK_ENTRIES = 1 << 19  # of data and of indices
KINDS = ("csr_matrix", "csc_matrix")
FRAME = {"encoding-type": "dataframe", "encoding-version": "0.2.0", "_index": "_index"}


class CompressedGroupSink(Sink):
    """Takes CSR blocks of samples (axis 0) or CSC blocks of features (axis 1), in order.

    The group lies beside its place until it is whole. It is an AnnData with X, obs and var.

    path : a local directory.  names : by axis, the names of its entries, or None (numbers).
    attributes : more of X (missing_value).  most_entries : that may come, for the index dtype.
    """

    def __init__(
        self, path: str, shape: tuple[int, int], dtype: Any, axis: int,
        names: tuple[Any, Any] = (None, None), attributes: Mapping[str, Any] | None = None,
        overwrite: bool = False, most_entries: int = 0,
    ) -> None:  # fmt: skip
        if "://" in path:
            raise InvalidInputError(f"{path}: a sparse matrix is converted into a local directory")
        self.path, self.overwrite = path, overwrite
        if os.path.lexists(path) and not (overwrite and _was_written_here(path)):
            raise InvalidInputError(
                f"{path} is there already; choose another, or overwrite=True where it is what an "
                "earlier conversion left"
            )
        self.shape, self.axis, self.written = shape, axis, 0
        self.entries = 0
        self._pointers = [np.zeros(1, np.int64)]
        self._waiting: dict[str, list[Array]] = {"data": [], "indices": []}
        self._beside = unfinished_name(os.fspath(path))
        root = zarr.create_group(self._beside)
        root.attrs.update({"encoding-type": "anndata", "encoding-version": "0.1.0",
                           "streampca_sparse": True})  # fmt: skip
        for name, size, values in zip(("obs", "var"), shape, names, strict=True):
            _write_frame(root, name, size, values)
        self._group = root.create_group("X")
        self._group.attrs.update({"encoding-type": KINDS[axis], "encoding-version": "0.1.0",
                                  "shape": list(shape), **(attributes or {})})  # fmt: skip
        # one dtype for both: scipy's routines take no int32 indices beside an int64 indptr
        self._index = np.dtype(np.int32 if max(*shape, most_entries) < 2**31 else np.int64)
        self._arrays = {
            name: self._group.create_array(
                name,
                shape=(0,),
                chunks=(CHUNK_ENTRIES,),
                dtype=kind,
                compressors=[
                    zarr.codecs.BloscCodec(cname="lz4", clevel=5, shuffle="shuffle"),
                    zarr.codecs.Crc32cCodec(),
                ],
            )
            for name, kind in (("data", np.dtype(dtype)), ("indices", self._index))
        }

    def concurrent(self, edges: Array) -> bool:
        """Never: where a block goes is known when those before it are there."""
        return False

    def nbytes_in_memory(self) -> int:
        """Entries that wait for a full chunk, twice, and indptr."""
        chunk = sum(CHUNK_ENTRIES * array.dtype.itemsize for array in self._arrays.values())
        return 3 * chunk + 16 * (self.shape[self.axis] + 1)

    def paths(self) -> tuple[str, ...]:
        return (os.path.realpath(self.path),)

    def write(self, start: int, values: Any) -> None:
        """Append the block that begins at line ``start``."""
        if start != self.written:
            raise InvalidInputError(f"block {start} does not follow {self.written}")
        self.written += values.shape[self.axis]
        self._pointers.append(self._pointers[-1][-1] + values.indptr[1:].astype(np.int64))
        for name, waiting in self._waiting.items():
            waiting.append(np.array(getattr(values, name)))  # the pass uses its block again
        while sum(map(len, self._waiting["data"])) >= CHUNK_ENTRIES:
            self._flush(CHUNK_ENTRIES)

    def _flush(self, count: int) -> None:
        for name, array in self._arrays.items():
            held = np.concatenate(self._waiting[name])
            array.resize((self.entries + count,))
            array[self.entries :] = held[:count]
            self._waiting[name] = [held[count:].copy()]
        self.entries += count

    def finish(self) -> None:
        """Write what waits, and put the group in its place."""
        if rest := sum(map(len, self._waiting["data"])):
            self._flush(rest)
        pointers = np.concatenate(self._pointers).astype(self._index)
        made = self._group.create_array("indptr", shape=pointers.shape, dtype=pointers.dtype)
        made[...] = pointers
        put_folder(self._beside, os.fspath(self.path), self._may_go)
        discard(self._beside)

    def _may_go(self, path: str) -> bool:
        return self.overwrite and _was_written_here(path)

    def interrupted(self) -> None:
        """Leave nothing."""
        discard(self._beside)


def _write_frame(root: Any, name: str, size: int, names: Any) -> None:
    """obs or var: an index and no columns."""
    group = root.create_group(name)
    group.attrs.update({**FRAME, "column-order": []})
    values = np.arange(size).astype(str) if names is None else np.asarray(names, object)
    text = values.astype(np.dtypes.StringDType())
    made = group.create_array("_index", shape=text.shape, dtype=text.dtype)
    made[...] = text
    made.attrs.update({"encoding-type": "string-array", "encoding-version": "0.2.0"})


def _was_written_here(path: str) -> bool:
    try:
        return zarr.open_group(path, mode="r").attrs.get("streampca_sparse") is True
    except (OSError, KeyError, ValueError):
        return False
