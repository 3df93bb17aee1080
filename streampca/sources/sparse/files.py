"""Sparse matrices in files: MatrixMarket, converted once, and ``.npz`` of scipy or NumPy."""

from __future__ import annotations

import gzip
import math
import os
import shutil
import struct
import tempfile
import warnings
import weakref
import zipfile
import zlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, BinaryIO

import numpy as np
import scipy

from streampca.errors import DamagedSourceError, InvalidInputError, SourceError, StreamPCAError
from streampca.matrix import AxisLabels, ChunkedMatrix, Labels
from streampca.sources.columns import unique_names
from streampca.sources.files.array_files import NpyReader
from streampca.sources.memory.arrays import ArrayReader
from streampca.sources.sparse.feature_types import TenxColumns
from streampca.sources.sparse.sparse import CompressedMatrix, SparseMatrix
from streampca.sources.stacked import Dim, stack

# MatrixMarket coordinate files (``.mtx``, ``.mtx.gz``), converted once into a scratch folder.
#
# Text cannot be read by slices. A file sorted by rows or by columns becomes a compressed matrix on
# disk while it is parsed, in bounded memory. Other files are refused, with a remedy.
# Source: Boisvert, Pozo and Remington 1996, "The Matrix Market exchange formats", section 3.

TEXT_NBYTES = 4 << 20  # of text that is parsed at a time
LINE_NBYTES = 1 << 20
DTYPES = {"integer": np.int32, "real": np.float64, "pattern": np.int8}
NAMES = ("rows", "columns")
BESIDE = (("barcodes.tsv",), ("features.tsv", "genes.tsv"))  # of a 10x folder: columns, rows


@dataclass(frozen=True)
class Header:
    """The header of a file: rows and columns, number and kind of the entries."""

    shape: tuple[int, int]
    entries: int
    field: str


class ScratchFolder:
    """A folder that is removed with the last matrix that reads it, but not by unpickled copies."""

    def __init__(self) -> None:
        self.path = tempfile.mkdtemp(prefix="streampca-")
        weakref.finalize(self, shutil.rmtree, self.path, ignore_errors=True)

    def __reduce__(self) -> Any:
        return str, (self.path,)


def append_to(file: Any, values: Any) -> None:
    """Append an array of one axis to an unbuffered file. Raises OSError, which names the file.

    ``ndarray.tofile`` names neither the file nor the reason; a buffer would fail again on closing.
    """
    rest = values.view(np.uint8).data
    try:
        while len(rest):
            rest = rest[file.write(rest) :]
    except OSError as error:
        error.filename = error.filename or file.name
        raise


def open_matrix_market(path: str, dim: Any = None) -> ChunkedMatrix:
    """A coordinate file as a matrix; dim : 0 where its rows are samples, 1 where its columns are.

    None is 1 for the ``matrix.mtx`` of a 10x folder, whose columns are cells, else 0. The names
    beside such a file, of barcodes and of features, become labels.

    Cost: the text is parsed once, on opening, into a scratch folder (in tempfile.gettempdir(), 8 to
    12 bytes per entry), which is removed with the matrix.
    Raises InvalidInputError for unsorted, symmetric or complex files, SourceError for damaged ones.
    """
    if dim not in (None, 0, 1) or isinstance(dim, bool):
        raise InvalidInputError(f"dim={dim!r}; expected 0 (rows are samples) or 1 (columns are)")
    with _open(path) as file:
        header = read_header(file, path)
        folder = ScratchFolder()
        _check_room(header, folder.path, path)
        lines, indptr = _convert(file, header, folder.path, path)
    turned = dim == 1 or (dim is None and all(_beside(path, names) for names in BESIDE))
    shape = (header.shape[1], header.shape[0]) if turned else header.shape
    labels, types = _labels_beside(path, shape, turned)
    data, indices = (
        NpyReader(os.path.join(folder.path, f"{name}.npy")) for name in ("data", "indices")
    )
    axis = 1 - lines if turned else lines
    matrix = CompressedMatrix(data, indices, indptr, axis, shape, labels, path)
    matrix.origin = (os.path.realpath(path), os.stat(path).st_size, os.stat(path).st_mtime_ns)
    matrix.folder = folder
    if turned and types is not None:
        matrix.beside = TenxColumns(types)
    matrix.note = f"{path} was converted once into {folder.path}, a scratch folder"
    return matrix


def read_header(file: BinaryIO, path: str) -> Header:
    """The header of a file. Raises InvalidInputError or SourceError where it cannot be read."""
    words = file.readline(LINE_NBYTES).decode("latin-1").lower().split()
    if len(words) != 5 or words[0] != "%%matrixmarket" or words[1] != "matrix":
        raise SourceError(
            f"{path}: not a MatrixMarket file: it does not begin %%MatrixMarket matrix"
        )
    layout, field, symmetry = words[2:]
    if layout != "coordinate" or field not in DTYPES or symmetry != "general":
        raise InvalidInputError(
            f"{path} is {layout} {field} {symmetry}; streamed are coordinate integer, real or "
            f"pattern files that are general. Use streampca.open(scipy.io.mmread({path!r}))."
        )
    line = file.readline(LINE_NBYTES)
    while line.startswith(b"%") or (line and not line.strip()):
        line = file.readline(LINE_NBYTES)
    sizes = line.split()
    if len(sizes) != 3 or not all(one.isdigit() for one in sizes):
        raise SourceError(f"{path}: the line of sizes is {line[:60]!r}, expected three numbers")
    rows, columns, entries = (int(one) for one in sizes)
    return Header((rows, columns), entries, field)


def _open(path: str) -> Any:
    return gzip.open(path, "rb") if path.lower().endswith(".gz") else open(path, "rb")


def _check_room(header: Header, folder: str, path: str) -> None:
    need = header.entries * (np.dtype(DTYPES[header.field]).itemsize + 8)
    free = shutil.disk_usage(folder).free
    if need > free:
        raise SourceError(
            f"{path}: its {header.entries} entries take up to {need >> 20} MiB of scratch in "
            f"{os.path.dirname(folder)}, where {free >> 20} MiB are free. Set TMPDIR to a larger "
            "disk."
        )


def _convert(file: BinaryIO, header: Header, folder: str, path: str) -> tuple[int, Any]:
    """Write data and indices; returns the axis of the lines (0 = rows) and indptr.

    Both orders are tracked until one is ruled out.
    """
    dtype = np.dtype(DTYPES[header.field])
    counts = [np.zeros(n + 1, np.int64) for n in header.shape]
    last, open_orders = [0, 0], [True, True]
    done = 0
    files = [
        _created(folder, name, kind, header.entries)
        for name, kind in (("data", dtype), ("rows", "<i4"), ("columns", "<i4"))
    ]
    try:
        for i, j, values in _entries(file, header, path):
            done += len(i)
            for axis, major in enumerate((i, j)):
                rising = not len(major) or (
                    major[0] >= last[axis] and not np.any(np.diff(major) < 0)
                )
                open_orders[axis] &= bool(rising)
                last[axis] = int(major[-1]) if len(major) else last[axis]
                counts[axis] += np.bincount(major + 1, minlength=len(counts[axis]))
            if not any(open_orders):
                raise InvalidInputError(
                    f"{path}: its entries are sorted neither by rows nor by columns (near entry "
                    f"{done}), so that they cannot be streamed. Use "
                    f"streampca.open(scipy.io.mmread({path!r}).tocsr()), which holds it in memory; "
                    "or sort the file: sort -k1,1n -k2,2n."
                )
            if done <= header.entries:
                for one, array in zip(files, (values.astype(dtype), i, j), strict=True):
                    append_to(one, array.astype("<i4") if array.dtype == np.int64 else array)
    finally:
        for one in files:
            one.close()
    if done != header.entries:
        raise SourceError(f"{path} has {done} entries, and its header says {header.entries}")
    lines = 0 if open_orders[0] else 1
    os.rename(os.path.join(folder, f"{NAMES[1 - lines]}.npy"), os.path.join(folder, "indices.npy"))
    os.remove(os.path.join(folder, f"{NAMES[lines]}.npy"))
    return lines, np.cumsum(counts[lines])


def _created(folder: str, name: str, dtype: Any, entries: int) -> Any:
    """A new ``.npy`` file of that many entries, its header written."""
    file = open(os.path.join(folder, f"{name}.npy"), "wb", buffering=0)  # noqa: SIM115
    descr = np.lib.format.dtype_to_descr(np.dtype(dtype))
    header = {"descr": descr, "fortran_order": False, "shape": (entries,)}
    np.lib.format.write_array_header_1_0(file, header)
    return file


def _entries(file: BinaryIO, header: Header, path: str) -> Iterator[tuple[Any, Any, Any]]:
    """(rows, columns, values) from 0 on, a few million at a time, each checked."""
    wide = 2 if header.field == "pattern" else 3
    rest = b""
    done = 0
    while True:
        try:
            text = file.read(TEXT_NBYTES)
        except (EOFError, OSError) as error:
            raise SourceError(
                f"{path} is cut off or damaged after {done} entries ({error})"
            ) from None
        whole, _, left = (rest + text).rpartition(b"\n") if text else (rest, b"", b"")
        rest = left
        if len(rest) > LINE_NBYTES:
            raise SourceError(f"{path}: a line after entry {done} is longer than {LINE_NBYTES}")
        numbers = _numbers(whole, path, done)
        if len(numbers) % wide:
            raise SourceError(f"{path}: a line after entry {done} has not {wide} numbers")
        table = numbers.reshape(-1, wide)
        places = table[:, :2] - 1
        fits = (places >= 0) & (places < header.shape) & (places == np.floor(places))
        if not fits.all():
            bad = int(np.flatnonzero(~fits.all(axis=1))[0])
            raise SourceError(f"{path}: entry {done + bad + 1} lies outside {header.shape}")
        values = table[:, 2] if wide == 3 else np.ones(len(table))
        if header.field == "integer" and np.any(np.abs(values) >= 2**31):
            raise InvalidInputError(f"{path}: an integer of 2^31 or more after entry {done}")
        yield places[:, 0].astype(np.int64), places[:, 1].astype(np.int64), values
        done += len(table)
        if not text:
            return


def _numbers(text: bytes, path: str, done: int) -> Any:
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            return (
                np.fromstring(text.decode("latin-1"), np.float64, sep=" ") if text else np.empty(0)
            )
    except (ValueError, DeprecationWarning) as error:
        raise SourceError(f"{path}: not numbers after entry {done} ({error})") from None


def _beside(path: str, names: tuple[str, ...]) -> str | None:
    """The first of these files next to the matrix of a 10x folder, compressed or not."""
    folder, name = os.path.split(path)
    if not name.startswith("matrix.mtx"):
        return None
    paths = [os.path.join(folder, one + end) for one in names for end in (".gz", "")]
    return next(filter(os.path.exists, paths), None)


def _labels_beside(path: str, shape: tuple[int, ...], turned: bool) -> tuple[Labels | None, Any]:
    """(barcodes and features next to the matrix of a 10x folder, types of the features or None).

    Features go by their symbols, a repeated one with -1, -2, ..., as in scanpy.
    """
    found = [_beside(path, names) for names in (BESIDE if turned else BESIDE[::-1])]
    if found == [None, None]:
        return None, None
    axes, types = [], None
    for axis, beside in enumerate(found):
        names = []
        if beside is not None:
            with _open(beside) as file:
                rows = [line.decode().strip().split("\t") for line in file]
            genes = not beside.removesuffix(".gz").endswith(BESIDE[0])
            names = [row[min(len(row) - 1, 1)] if genes else row[0] for row in rows]
            names = unique_names(names) if genes else names
            if genes and len(rows) == shape[axis] and all(len(row) > 2 for row in rows):
                types = np.array([row[2] for row in rows], np.dtypes.StringDType())
        fits = beside is not None and len(names) == shape[axis]
        dim = ("obs", "var")[axis]
        text: Any = np.array(names, np.dtypes.StringDType()) if fits else None
        axes.append(AxisLabels.plain(dim, shape[axis], text))
    return Labels(axes[0], axes[1]), types


# ``.npz`` files of ``scipy.sparse.save_npz``, and of one or several arrays.

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
        asked = "several arrays" if variable is None else f"no array {variable!r}"
        example = next(iter(names), "x")
        raise InvalidInputError(
            f"{path} has {asked if names else 'no array'}; it holds {', '.join(names) or 'nothing'}"
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
