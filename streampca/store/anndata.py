"""Arrays and small dictionaries written into an AnnData on disk: ``.h5ad`` or a Zarr group.

Source: anndata 0.12, "On-disk format": array 0.2.0, dict 0.1.0, numeric-scalar, string.
"""

from __future__ import annotations

import os
import warnings
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import numpy as np
import zarr
import zarr.errors

from streampca.errors import InvalidInputError, MissingDependencyError, SourceError

DICT = {"encoding-type": "dict", "encoding-version": "0.1.0"}
VERSION = "0.2.0"  # of array, numeric-scalar and string


@contextmanager
def opened_for_writing(path: str | os.PathLike[str]) -> Iterator[Any]:
    """The root group of an AnnData on disk. Consolidated metadata of a Zarr are made anew."""
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
        raise SourceError(f"{path}: no AnnData to write into; expected a .h5ad or a Zarr directory")
    root = zarr.open_group(path, mode="r+", use_consolidated=False)
    yield root
    if _was_consolidated(root, path):
        with warnings.catch_warnings():  # of a format that the store had before
            warnings.simplefilter("ignore", zarr.errors.ZarrUserWarning)
            zarr.consolidate_metadata(path, zarr_format=root.metadata.zarr_format)


def write_elements(root: Any, elements: Mapping[str, Any], overwrite: bool) -> None:
    """Arrays, numbers, strings and dictionaries of them, by path ("obsm/X_pca"), in this order.

    Raises InvalidInputError, before anything is written, where one is there and may not be
    replaced. What is to be replaced goes first, so that old and new never lie side by side.
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
    """Those of these elements that are there. Raises InvalidInputError if they may not be, or where
    the file is of a form that has no place for them.
    """
    paths = list(paths)
    for folder in sorted({path.partition("/")[0] for path in paths}):
        if folder in root and not hasattr(root[folder], "create_group"):
            raise InvalidInputError(
                f"{folder} of this AnnData is a table, as before version 0.7, which nothing can be "
                "added to; write it anew: anndata.read_h5ad(path).write_h5ad(path)"
            )
    there = [path for path in paths if path in root]
    if there and not overwrite:
        raise InvalidInputError(
            f"{', '.join(there)} is there already; use overwrite=True, or key_added= another name"
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
        made[...] = array
    else:
        made = group.create_dataset(name, data=value if kind == "string" else array)
    made.attrs.update({"encoding-type": kind, "encoding-version": VERSION})


def _note_column(frame: Any, name: str) -> None:
    """Enter a new column of a data frame into the order of its columns."""
    known = [str(one) for one in frame.attrs.get("column-order", ())]
    if name in known:
        return
    order: Any = [*known, name]
    frame.attrs["column-order"] = order if isinstance(frame, zarr.Group) else np.array(order, "O")


def _chunks(array: np.ndarray[Any, Any]) -> tuple[int, ...]:
    """About 16 MiB of whole rows."""
    if array.ndim == 0:
        return ()
    row = max(1, int(np.prod(array.shape[1:], dtype=np.int64)) * array.dtype.itemsize)
    return (max(1, min(len(array), (16 << 20) // row)), *(max(1, n) for n in array.shape[1:]))


def _was_consolidated(root: Any, path: str) -> bool:
    if root.metadata.zarr_format == 2:
        return os.path.exists(os.path.join(path, ".zmetadata"))
    return zarr.open_group(path, mode="r").metadata.consolidated_metadata is not None
