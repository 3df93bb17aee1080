"""AnnData on disk: sparse matrices written block by block, and results added to existing files."""

from __future__ import annotations

import os
import warnings
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import numpy as np
import zarr
import zarr.codecs
import zarr.errors

from streampca.errors import InvalidInputError, MissingDependencyError, OccupiedError, SourceError
from streampca.store.bundle import put_folder
from streampca.store.chunks import put
from streampca.store.places import discard, unfinished_name, writing
from streampca.store.sinks import WHOLE, Sink

# A sparse matrix in a Zarr group of AnnData's format, written block by block.

Array = np.ndarray[Any, Any]
CHUNK_ENTRIES = 1 << 19  # in a chunk of data or indices
KINDS = ("csr_matrix", "csc_matrix")
NAMES = 65536  # in a chunk
FRAME = {"encoding-type": "dataframe", "encoding-version": "0.2.0", "_index": "_index"}


class CompressedGroupSink(Sink):
    """Takes CSR blocks of samples (axis 0) or CSC blocks of features (axis 1), in order.

    Writes an AnnData with X, obs and var, under another name until it is complete.

    path : a local directory.  names : of samples and of features, or None for numbers.
    attributes : further ones of X (missing_value).
    most_entries : an upper bound of the number of entries, for the index dtype.
    chunk : entries in a chunk of data or indices.
    Raises InvalidInputError for a URL, and if something else is at ``path``.
    """

    def __init__(
        self,
        path: str,
        shape: tuple[int, int],
        dtype: Any,
        axis: int,
        names: tuple[Any, Any] = (None, None),
        attributes: Mapping[str, Any] | None = None,
        overwrite: bool = False,
        most_entries: int = 0,
        chunk: int | None = None,
    ) -> None:
        if "://" in path:
            raise InvalidInputError(f"{path}: a sparse matrix is converted into a local directory")
        self.path, self.overwrite = path, overwrite
        if os.path.lexists(path) and not (overwrite and _was_written_here(path)):
            raise OccupiedError(
                f"{path} is there already; choose another, or overwrite=True where it is what an "
                "earlier conversion left"
            )
        self.shape, self.axis, self.written = shape, axis, 0
        self.entries, self.chunk = 0, chunk or CHUNK_ENTRIES
        self._pointers = [np.zeros(1, np.int64)]
        self._waiting: dict[str, list[Array]] = {"data": [], "indices": []}
        self._beside = unfinished_name(os.fspath(path))
        root = zarr.create_group(self._beside)
        root.attrs.update(
            {"encoding-type": "anndata", "encoding-version": "0.1.0", "streampca_sparse": True}
        )
        for name, size, values in zip(("obs", "var"), shape, names, strict=True):
            _write_frame(root, name, size, values)
        self._group = root.create_group("X")
        self._group.attrs.update(
            {
                "encoding-type": KINDS[axis],
                "encoding-version": "0.1.0",
                "shape": list(shape),
                **(attributes or {}),
            }
        )
        # one dtype for both: SciPy's routines take no int32 indices with an int64 indptr
        self.dtype = np.dtype(dtype)
        self._index = np.dtype(np.int32 if max(*shape, most_entries) < 2**31 else np.int64)
        self._arrays = {
            name: self._group.create_array(
                name,
                shape=(0,),
                chunks=(self.chunk,),
                dtype=kind,
                compressors=[
                    zarr.codecs.BloscCodec(cname="lz4", clevel=5, shuffle="shuffle"),
                    zarr.codecs.Crc32cCodec(),
                ],
                config=WHOLE,
            )
            for name, kind in (("data", np.dtype(dtype)), ("indices", self._index))
        }

    def concurrent(self, edges: Array) -> bool:
        """False: a block's place depends on the entries of those before it."""
        return False

    def nbytes_in_memory(self) -> int:
        """Bytes of entries that wait for a full chunk, of their copies, and of indptr."""
        chunk = sum(self.chunk * array.dtype.itemsize for array in self._arrays.values())
        return 3 * chunk + 16 * (self.shape[self.axis] + 1)

    def paths(self) -> tuple[str, ...]:
        return (os.path.realpath(self.path),)

    def write(self, start: int, values: Any) -> None:
        """Append the block that begins at row (or column) ``start``."""
        if start != self.written:
            raise InvalidInputError(f"block {start} does not follow {self.written}")
        self.written += values.shape[self.axis]
        self._pointers.append(self._pointers[-1][-1] + values.indptr[1:].astype(np.int64))
        for name, waiting in self._waiting.items():
            waiting.append(np.array(getattr(values, name)))  # copied: the pass reuses its block
        while sum(map(len, self._waiting["data"])) >= self.chunk:
            self._flush(self.chunk)

    def _flush(self, count: int) -> None:
        for name, array in self._arrays.items():
            held = np.concatenate(self._waiting[name])
            with writing(self.path):
                array.resize((self.entries + count,))
                array[self.entries :] = held[:count]
            self._waiting[name] = [held[count:].copy()]
        self.entries += count

    def finish(self) -> None:
        """Write the remaining entries and indptr, and put the group in its place."""
        if rest := sum(map(len, self._waiting["data"])):
            self._flush(rest)
        pointers = np.concatenate(self._pointers).astype(self._index)
        made = self._group.create_array(
            "indptr", shape=pointers.shape, dtype=pointers.dtype, config=WHOLE
        )
        made[...] = pointers
        put_folder(self._beside, os.fspath(self.path), self._may_go)
        discard(self._beside)

    def _may_go(self, path: str) -> bool:
        return self.overwrite and _was_written_here(path)

    def interrupted(self) -> None:
        """Remove everything that was written."""
        discard(self._beside)


def _write_frame(root: Any, name: str, size: int, names: Any) -> None:
    """Write obs or var: an index without columns."""
    group = root.create_group(name)
    group.attrs.update({**FRAME, "column-order": []})
    text = np.dtypes.StringDType()
    made = group.create_array("_index", shape=(size,), dtype=text, chunks=(min(size, NAMES) or 1,))
    for start in range(0, size, NAMES):  # a million numbers as text would take 84 MB at once
        stop = min(start + NAMES, size)
        part = range(start, stop) if names is None else names[start:stop]
        made[start:stop] = np.array([str(one) for one in part], text)
    made.attrs.update({"encoding-type": "string-array", "encoding-version": "0.2.0"})


def _was_written_here(path: str) -> bool:
    try:
        return zarr.open_group(path, mode="r").attrs.get("streampca_sparse") is True
    except (OSError, KeyError, ValueError):
        return False


# Adding arrays and small dictionaries to an AnnData on disk: ``.h5ad`` or a Zarr group.
#
# Without the package anndata: it needs pandas before version 3, and importing it takes 1.3 s and
# 94 MB, where h5py takes 0.04 s and 12 MB. It reads what is written here, and is no faster: 23 ms
# for scores of 100 MB, 18 ms here (``python -m tests.benchmarks.libraries``).
#
# Source: anndata 0.12, "On-disk format": array 0.2.0, dict 0.1.0, numeric-scalar, string.

DICT = {"encoding-type": "dict", "encoding-version": "0.1.0"}
VERSION = "0.2.0"  # encoding version of array, numeric-scalar and string


@contextmanager
def opened_for_writing(path: str | os.PathLike[str]) -> Iterator[Any]:
    """The root group of an AnnData on disk. A Zarr store's consolidated metadata are renewed.

    Raises SourceError if there is none, MissingDependencyError without h5py.
    """
    path = os.fspath(path)
    if os.path.isfile(path) and not path.endswith(".zip"):
        try:
            import h5py
        except ImportError:
            raise MissingDependencyError(
                f"{path} is an HDF5 file and h5py is not installed: pip install 'streampca[h5ad]'"
            ) from None
        try:
            file = h5py.File(path, "r+")
        except OSError as error:
            raise SourceError(f"{path} cannot be opened for writing ({error})") from None
        with file:
            yield file
        return
    if not os.path.isdir(path):
        raise SourceError(f"{path}: no AnnData to add to; expected a .h5ad or a Zarr directory")
    root = zarr.open_group(path, mode="r+", use_consolidated=False)
    yield root
    if _was_consolidated(root, path):
        with warnings.catch_warnings():  # about Zarr format 2, which the store already had
            warnings.simplefilter("ignore", zarr.errors.ZarrUserWarning)
            zarr.consolidate_metadata(path, zarr_format=root.metadata.zarr_format)


def write_elements(root: Any, elements: Mapping[str, Any], overwrite: bool) -> None:
    """Write arrays, numbers, strings and dictionaries of them by path ("obsm/X_pca"), in order.

    Raises InvalidInputError, before anything is written, if one exists and ``overwrite`` is False.
    Elements to be replaced are all removed first, so that old and new ones are never mixed.
    """
    for path in refuse_elements(root, elements, overwrite):
        del root[path]
    for path, value in elements.items():
        parent = root
        *folders, name = path.split("/")
        for folder in folders:
            if folder not in parent:
                parent.create_group(folder).attrs.update(DICT)
            parent = parent[folder]
        _write(parent, name, value)
        if parent.attrs.get("encoding-type") == "dataframe":
            _note_column(parent, name)


def refuse_elements(root: Any, paths: Iterable[str], overwrite: bool) -> list[str]:
    """The elements that exist already.

    Raises InvalidInputError if there are any and ``overwrite`` is False, and if the file has an old
    format that cannot hold them.
    """
    paths = list(paths)
    for folder in sorted({path.partition("/")[0] for path in paths}):
        if folder in root and not hasattr(root[folder], "create_group"):
            raise InvalidInputError(
                f"{folder} of this AnnData is a table, as before version 0.7; nothing can be added "
                "to it. Write it anew: anndata.read_h5ad(path).write_h5ad(path)"
            )
    there = [path for path in paths if path in root]
    if there and not overwrite:
        raise OccupiedError(
            f"{', '.join(there)} is there already; use overwrite=True, or another key_added=..."
        )
    return there


def _write(group: Any, name: str, value: Any) -> None:
    if isinstance(value, Mapping):
        made = group.create_group(name)
        made.attrs.update(DICT)
        for key, one in value.items():
            _write(made, key, one)
        return
    in_zarr = isinstance(group, zarr.Group)
    if isinstance(value, str):
        kind, array = "string", np.asarray(value, np.dtypes.StringDType() if in_zarr else object)
    elif np.ndim(value) == 0:
        kind, array = "numeric-scalar", np.asarray(value)
    else:
        kind, array = "array", np.ascontiguousarray(value)
    if in_zarr:
        made = group.create_array(name, shape=array.shape, dtype=array.dtype, chunks=_chunks(array))
        put(made, (0,) * array.ndim, array)
    else:
        made = group.create_dataset(name, data=value if kind == "string" else array)
    made.attrs.update({"encoding-type": kind, "encoding-version": VERSION})


def _note_column(frame: Any, name: str) -> None:
    """Add a new column of a data frame to its "column-order"."""
    known = [str(one) for one in frame.attrs.get("column-order", ())]
    if name in known:
        return
    order: Any = [*known, name]
    frame.attrs["column-order"] = order if isinstance(frame, zarr.Group) else np.array(order, "O")


def _chunks(array: np.ndarray[Any, Any]) -> tuple[int, ...]:
    """Chunks of whole rows, about 16 MiB each."""
    if array.ndim == 0:
        return ()
    row = max(1, int(np.prod(array.shape[1:], dtype=np.int64)) * array.dtype.itemsize)
    return (max(1, min(len(array), (16 << 20) // row)), *(max(1, n) for n in array.shape[1:]))


def _was_consolidated(root: Any, path: str) -> bool:
    if root.metadata.zarr_format == 2:
        return os.path.exists(os.path.join(path, ".zmetadata"))
    return zarr.open_group(path, mode="r").metadata.consolidated_metadata is not None
