"""``.npz`` files of ``scipy.sparse.save_npz``, and of one or several arrays."""

from __future__ import annotations

import math
import os
import struct
import zipfile
import zlib
from collections.abc import Mapping
from typing import Any

import numpy as np
import scipy

from streampca.errors import DamagedSourceError, InvalidInputError, SourceError, StreamPCAError
from streampca.matrix import ChunkedMatrix
from streampca.sources.memory.arrays import ArrayReader
from streampca.sources.npy import NpyReader
from streampca.sources.sparse.matrices import CompressedMatrix, SparseMatrix
from streampca.sources.stacked import Dim, stack

FORMATS = {"csr": 0, "csc": 1}
FREE = 64 << 20  # bytes that the members of any file may take, however small it is
RATIO = 100  # times the file size that larger members may take: no sparse matrix compresses more
LOCAL_HEADER = 30  # bytes before the name of a member of a zip archive
SPARSE = {"format.npy", "shape.npy", "data.npy"}  # members that every sparse file has


def open_npz(path: str, variable: str | None = None, dim: Dim = None) -> ChunkedMatrix:
    """A sparse ``.npz``, or an array of any other; read by slices if it was not compressed.

    variable : which array of several.  dim : of an array; the rows of a sparse matrix are samples.
    Compressed members cannot be sliced: the matrix is then held in memory, and the plan counts it.
    Raises SourceError where the file is damaged.
    """
    try:
        with zipfile.ZipFile(path) as archive:
            members = {one.filename: one for one in archive.infolist()}
            _check_sizes(archive, os.path.getsize(path), path)
        if members.keys() >= SPARSE:
            if dim not in (None, 0):
                raise InvalidInputError(f"dim={dim!r}; the rows of {path} are its samples")
            matrix = _sparse_npz(path, members)
        else:
            matrix = _array_npz(path, members, variable, dim)
    except (zipfile.BadZipFile, RuntimeError, struct.error, zlib.error) as error:
        raise SourceError(f"{path}: not a readable .npz file ({error})") from None
    except (EOFError, KeyError, ValueError, TypeError, AttributeError, OverflowError) as error:
        if isinstance(error, StreamPCAError):
            raise
        raise SourceError(f"{path}: not a readable .npz file ({error})") from None
    matrix.resident_nbytes, matrix.given_nbytes = matrix.resident_nbytes + matrix.given_nbytes, 0
    return matrix


def _sparse_npz(path: str, members: Mapping[str, zipfile.ZipInfo]) -> ChunkedMatrix:
    stored = all(
        members[name].compress_type == zipfile.ZIP_STORED
        for name in ("data.npy", "indices.npy")
        if name in members
    )
    with np.load(path, allow_pickle=False) as found:
        kind = found["format"].item()
        kind = kind.decode() if isinstance(kind, bytes) else kind
        if stored and kind in FORMATS:
            rows, columns = (int(n) for n in found["shape"])
            data, indices = (MemberReader(path, f"{name}.npy") for name in ("data", "indices"))
            axis, shape = FORMATS[kind], (rows, columns)
            return CompressedMatrix(data, indices, found["indptr"], axis, shape, where=path)
    return SparseMatrix(scipy.sparse.load_npz(path))


def _array_npz(
    path: str, members: Mapping[str, zipfile.ZipInfo], variable: str | None, dim: Dim
) -> ChunkedMatrix:
    names = [name.removesuffix(".npy") for name in members if name.lower().endswith(".npy")]
    if variable is None and len(names) == 1:
        variable = names[0]
    if variable not in names:
        problem = "several arrays" if variable is None else f"no array {variable!r}"
        problem = problem if names else "no array"
        example = next(iter(names), "x")
        raise InvalidInputError(
            f"{path} has {problem}; it holds {', '.join(names) or 'nothing'}"
            f". Use streampca.open({path!r}, variable={example!r})"
        )
    if members[f"{variable}.npy"].compress_type == zipfile.ZIP_STORED:
        return stack(MemberReader(path, f"{variable}.npy"), dim)
    with np.load(path, allow_pickle=False) as found:
        return stack(ArrayReader(found[variable]), dim)


def _check_sizes(archive: zipfile.ZipFile, nbytes: int, path: str) -> None:
    """Raise DamagedSourceError for members that would expand too much, before decompression."""
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
            shape, fortran, dtype = _header(file)
            self._lay(path, shape, dtype, file.tell())
            self._fortran = bool(fortran) and len(shape) > 1

    def fingerprint(self) -> str:
        return f"{super().fingerprint()} {self.name} {os.path.basename(self.path)}"
