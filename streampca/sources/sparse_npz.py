"""``.npz`` files as ``scipy.sparse.save_npz`` writes them."""

from __future__ import annotations

import os
import struct
import zipfile
from typing import Any

import numpy as np
import scipy.sparse

from streampca.errors import InvalidInputError, SourceError
from streampca.matrix import ChunkedMatrix
from streampca.sources.compressed import CompressedMatrix
from streampca.sources.npy import NpyReader
from streampca.sources.scipy_sparse import SparseMatrix

FORMATS = {"csr": 0, "csc": 1}
LOCAL_HEADER = 30  # bytes before the name of a member of a zip archive


def open_sparse_npz(path: str) -> ChunkedMatrix:
    """A sparse ``.npz``. Written with ``compressed=False`` it is read by slices; compressed
    members cannot be, and the matrix is held in memory, which the plan counts.

    Raises SourceError where the file is no sparse matrix, or damaged.
    """
    try:
        with zipfile.ZipFile(path) as archive:
            names = set(archive.namelist())
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
    except (zipfile.BadZipFile, EOFError, KeyError, ValueError) as error:
        if isinstance(error, InvalidInputError):
            raise
        raise SourceError(f"{path}: not a readable .npz file ({error})") from None
    matrix.resident_nbytes, matrix.given_nbytes = matrix.given_nbytes, 0
    return matrix


class MemberReader(NpyReader):
    """An uncompressed ``.npy`` inside a zip archive, read by position."""

    def __init__(self, path: str, name: str) -> None:
        self.name = name
        with open(path, "rb") as file, zipfile.ZipFile(file) as archive:
            info = archive.getinfo(name)
            file.seek(info.header_offset)
            lengths = struct.unpack("<HH", file.read(LOCAL_HEADER)[26:30])
            file.seek(info.header_offset + LOCAL_HEADER + sum(lengths))
            version = np.lib.format.read_magic(file)
            header: Any = {
                (1, 0): np.lib.format.read_array_header_1_0,
                (2, 0): np.lib.format.read_array_header_2_0,
            }[version]
            shape, _, dtype = header(file)
            self._lay(path, shape, dtype, file.tell())

    def fingerprint(self) -> str:
        return f"{super().fingerprint()} {self.name} {os.path.basename(self.path)}"
