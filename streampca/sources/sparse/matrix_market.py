"""Sparse matrices in files: MatrixMarket, converted once, and ``.npz`` of scipy or NumPy."""

from __future__ import annotations

import gzip
import os
import shutil
import warnings
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, BinaryIO

import numpy as np

from streampca.errors import InvalidInputError, SourceError
from streampca.matrix import AxisLabels, ChunkedMatrix, Labels
from streampca.sources.local_files import ScratchFolder, append_to
from streampca.sources.npy import NpyReader, new_npy
from streampca.sources.sparse.feature_types import TenxColumns, unique_names
from streampca.sources.sparse.matrices import CompressedMatrix

# MatrixMarket coordinate files (``.mtx``, ``.mtx.gz``), converted once into a scratch folder.
#
# Text cannot be read by slices. A file sorted by rows or by columns becomes a compressed matrix on
# disk while it is parsed, in bounded memory. Other files are refused, with a remedy.
# Source: Boisvert, Pozo and Remington 1996, "The Matrix Market exchange formats", section 3.

TEXT_NBYTES = 4 << 20  # of text that is parsed at a time
LINE_NBYTES = 1 << 20
DTYPES = {"integer": np.int32, "real": np.float64, "pattern": np.int8}
NAMES = ("rows", "columns")
COMPANIONS = (("barcodes.tsv",), ("features.tsv", "genes.tsv"))  # of a 10x folder: columns, rows


@dataclass(frozen=True)
class Header:
    """The header of a file: rows and columns, number and kind of the entries."""

    shape: tuple[int, int]
    entries: int
    field: str


def open_matrix_market(path: str, dim: Any = None) -> ChunkedMatrix:
    """A coordinate file as a matrix; dim : 0 where its rows are samples, 1 where its columns are.

    None is 1 for the ``matrix.mtx`` of a 10x folder, whose columns are cells, else 0. The names
    next to such a file, of barcodes and of features, become labels.

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
    turned = dim == 1 or (dim is None and all(_companion(path, names) for names in COMPANIONS))
    shape = (header.shape[1], header.shape[0]) if turned else header.shape
    labels, types = _companion_labels(path, shape, turned)
    data, indices = (
        NpyReader(os.path.join(folder.path, f"{name}.npy")) for name in ("data", "indices")
    )
    axis = 1 - lines if turned else lines
    matrix = CompressedMatrix(data, indices, indptr, axis, shape, labels, path)
    matrix.origin = (os.path.realpath(path), os.stat(path).st_size, os.stat(path).st_mtime_ns)
    matrix.folder = folder
    if turned and types is not None:
        matrix.annotations = TenxColumns(types)
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
    if len(sizes) != 3 or not all(size.isdigit() for size in sizes):
        raise SourceError(f"{path}: the line of sizes is {line[:60]!r}, expected three numbers")
    rows, columns, entries = (int(size) for size in sizes)
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
        new_npy(os.path.join(folder, f"{name}.npy"), kind, header.entries)
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
            raise SourceError(f"{path}: a line after entry {done} does not have {wide} numbers")
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


def _companion(path: str, names: tuple[str, ...]) -> str | None:
    """The first of these files next to the matrix of a 10x folder, compressed or not."""
    folder, name = os.path.split(path)
    if not name.startswith("matrix.mtx"):
        return None
    paths = [os.path.join(folder, one + end) for one in names for end in (".gz", "")]
    return next(filter(os.path.exists, paths), None)


def _companion_labels(path: str, shape: tuple[int, ...], turned: bool) -> tuple[Labels | None, Any]:
    """(barcodes and features next to the matrix of a 10x folder, types of the features or None).

    Features go by their symbols, a repeated one with -1, -2, ..., as in scanpy.
    """
    found = [_companion(path, names) for names in (COMPANIONS if turned else COMPANIONS[::-1])]
    if found == [None, None]:
        return None, None
    axes, types = [], None
    for axis, companion in enumerate(found):
        names = []
        if companion is not None:
            with _open(companion) as file:
                rows = [line.decode().strip().split("\t") for line in file]
            genes = not companion.removesuffix(".gz").endswith(COMPANIONS[0])
            names = [row[min(len(row) - 1, 1)] if genes else row[0] for row in rows]
            names = unique_names(names) if genes else names
            if genes and len(rows) == shape[axis] and all(len(row) > 2 for row in rows):
                types = np.array([row[2] for row in rows], np.dtypes.StringDType())
        fits = companion is not None and len(names) == shape[axis]
        dim = ("obs", "var")[axis]
        text: Any = np.array(names, np.dtypes.StringDType()) if fits else None
        axes.append(AxisLabels.plain(dim, shape[axis], text))
    return Labels(axes[0], axes[1]), types


# ``.npz`` files of ``scipy.sparse.save_npz``, and of one or several arrays.
