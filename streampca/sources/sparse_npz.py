"""``.npz`` files as ``scipy.sparse.save_npz`` writes them."""

from __future__ import annotations

import math
import os
import struct
import zipfile
import zlib
from typing import Any

import numpy as np
import scipy.sparse

from streampca.errors import DamagedSourceError, InvalidInputError, SourceError, StreamPCAError
from streampca.matrix import ChunkedMatrix
from streampca.sources.compressed import CompressedMatrix
from streampca.sources.npy import NpyReader
from streampca.sources.scipy_sparse import SparseMatrix

FORMATS = {"csr": 0, "csc": 1}
FREE = 64 << 20  # bytes that the members of a file may take however small it is
RATIO = 100  # times its size, which they may take beyond that: no sparse matrix shrinks so far
LOCAL_HEADER = 30  # bytes before the name of a member of a zip archive


def open_sparse_npz(path: str) -> ChunkedMatrix:
    """A sparse ``.npz``. Written with ``compressed=False`` it is read by slices; compressed
    members cannot be, and the matrix is held in memory, which the plan counts.

    Raises SourceError where the file is no sparse matrix, or damaged.
    """
    try:
        with zipfile.ZipFile(path) as archive:
            names = set(archive.namelist())
            _check_sizes(archive, os.path.getsize(path), path)
            if not {"format.npy", "shape.npy", "data.npy"} <= names:
                raise InvalidInputError(
                    f"{path} is not a sparse matrix of scipy.sparse.save_npz; it holds "
                    f"{', '.join(sorted(names))}. Use streampca.open(numpy.load({path!r})[...])."
                )
            stored = all(
                archive.getinfo(name).compress_type == zipfile.ZIP_STORED
                for name in ("data.npy", "indices.npy")
                if name in names
            )
        with np.load(path, allow_pickle=False) as members:
            kind = members["format"].item()
            kind = kind.decode() if isinstance(kind, bytes) else kind
            if stored and kind in FORMATS:
                rows, columns = (int(n) for n in members["shape"])
                data, indices = (MemberReader(path, f"{name}.npy") for name in ("data", "indices"))
                axis, shape = FORMATS[kind], (rows, columns)
                return CompressedMatrix(data, indices, members["indptr"], axis, shape, where=path)
        matrix = SparseMatrix(scipy.sparse.load_npz(path))
    except (zipfile.BadZipFile, RuntimeError, struct.error, zlib.error) as error:
        raise SourceError(f"{path}: not a readable .npz file ({error})") from None
    except (EOFError, KeyError, ValueError, TypeError, AttributeError, OverflowError) as error:
        if isinstance(error, StreamPCAError):
            raise
        raise SourceError(f"{path}: not a readable .npz file ({error})") from None
    matrix.resident_nbytes, matrix.given_nbytes = matrix.given_nbytes, 0
    return matrix


def _check_sizes(archive: zipfile.ZipFile, nbytes: int, path: str) -> None:
    """Refuse members that would swell, before one is inflated. Raises DamagedSourceError."""
    need = sum(one.file_size for one in archive.infolist())
    if need > max(FREE, RATIO * nbytes):
        raise DamagedSourceError(
            f"{path} has {nbytes} bytes and would take {need} in memory, more than {RATIO} times "
            "as many. If you trust it: streampca.open(scipy.sparse.load_npz(...))"
        )
    for one in archive.infolist():
        with archive.open(one) as member:
            if one.filename.endswith(".npy"):
                shape, _, dtype = _header(member)
                if math.prod(shape) * dtype.itemsize > one.file_size:
                    raise DamagedSourceError(f"{path}: {one.filename} is cut off, or damaged")


def _header(file: Any) -> Any:
    version = np.lib.format.read_magic(file)
    return {
        (1, 0): np.lib.format.read_array_header_1_0,
        (2, 0): np.lib.format.read_array_header_2_0,
    }[version](file)


class MemberReader(NpyReader):
    """An uncompressed ``.npy`` inside a zip archive, read by position."""

    def __init__(self, path: str, name: str) -> None:
        self.name = name
        with open(path, "rb") as file, zipfile.ZipFile(file) as archive:
            info = archive.getinfo(name)
            file.seek(info.header_offset)
            lengths = struct.unpack("<HH", file.read(LOCAL_HEADER)[26:30])
            file.seek(info.header_offset + LOCAL_HEADER + sum(lengths))
            shape, _, dtype = _header(file)
            self._lay(path, shape, dtype, file.tell())

    def fingerprint(self) -> str:
        return f"{super().fingerprint()} {self.name} {os.path.basename(self.path)}"
