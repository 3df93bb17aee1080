"""Bundles: named arrays and a JSON document in one directory, written atomically.

Layout: ``bundle.json`` (format version, document, SHA-256 of every file including itself) and
``arrays/<name>`` (Zarr v3 with crc32c). No pickle. Models, accumulator states, ledgers and
checkpoints are bundles, in a directory of their own or within a version of a model store.
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import hashlib
import os
from collections.abc import Callable, Iterator, Mapping
from functools import cached_property
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np

from streampca.errors import DamagedSourceError, OccupiedError, SourceError
from streampca.paths import read_inside
from streampca.store.array_files import (
    MOST_READ,
    PACK,
    Get,
    Put,
    check_growth,
    check_name,
    decode_array,
    find_array,
    unpack,
)
from streampca.store.array_files import write_array as _write_array
from streampca.store.backend import fsync as _fsync
from streampca.store.checked import INDEX, MOST_BYTES, check_index, sign_readable, unsign
from streampca.store.places import (
    NO_LINKS,
    discard,
    exists_already,
    occupied,
    release,
    set_aside,
    unfinished_name,
    writing,
)

REPLACED = 10  # attempts, if a bundle is replaced while its index is being opened


def write_files(
    put: Put, arrays: Mapping[str, np.ndarray[Any, Any]], document: Mapping[str, Any]
) -> None:
    """Pass every file of a bundle to ``put(name, bytes)``, ``bundle.json`` last."""
    for name in arrays:
        check_name(name)
    digests: dict[str, str] = {}

    def put_and_note(name: str, data: bytes) -> None:
        digests[name] = _sha256(data)
        put(name, data)

    for name, array in arrays.items():
        values = array if hasattr(array, "dtype") else np.asarray(array)
        _write_array(put_and_note, name, values)
    put(INDEX, sign_readable({"files": digests, "document": dict(document)}, INDEX))


def read_files(
    get: Get, size: Callable[[str], int], text: bytes, where: str
) -> tuple[dict[str, np.ndarray[Any, Any]], dict[str, Any]]:
    """(arrays, document) of a bundle whose files ``get(name, most)`` returns; all are checked.

    size : stored bytes of a file.  text : its ``bundle.json``.  where : its place, for messages.
    Only names that a bundle can have are passed to ``get``, and no array is decoded before the size
    of all is known. Raises SourceError.
    """
    whole = unsign(text, f"{where}/{INDEX}")
    check_index(whole, f"{where}/{INDEX}")
    digests = whole["files"]
    unread = set(digests)

    def get_checked(name: str, most: int) -> bytes:
        data = get(name, most)
        if _sha256(data) != digests[name]:
            raise altered(where, name)
        unread.discard(name)
        return data

    files: dict[str, list[str]] = {}
    for name in digests:
        files.setdefault(name.split("/")[1], []).append(name)
    found = {name: find_array(get_checked, files[name], name) for name in sorted(files)}
    stored = sum(size(file) for one in found.values() for file in one.files)
    check_growth(sum(one.nbytes for one in found.values()), stored, f"{where}: what it holds")
    arrays = {name: decode_array(get_checked, value) for name, value in found.items()}
    for name in sorted(unread):
        get_checked(name, size(name))
    return arrays, whole["document"]


def altered(where: str, name: str) -> SourceError:
    """The error for a file that is absent or not as it was written."""
    return SourceError(f"{where}: {name} is absent or altered; restore it from a backup")


def write_bundle(
    path: str | os.PathLike[str],
    arrays: Mapping[str, np.ndarray[Any, Any]],
    document: Mapping[str, Any],
) -> Path:
    """Write a bundle under another name, flush it to disk, and rename it.

    An existing bundle is replaced; a reader sees the old or the new one, never a mixture.
    Raises InvalidInputError if anything else is at ``path``.
    """
    target = Path(path)
    if target.exists() and not is_bundle(target):
        raise OccupiedError(f"{target} exists and is not a streampca bundle; choose another")
    target.parent.mkdir(parents=True, exist_ok=True)
    staged = unfinished_name(str(target))
    try:
        with writing(target):
            folders = {staged}
            put = lambda name, data: _write(os.path.join(staged, name), data, folders)  # noqa: E731
            write_files(put, arrays, document)
            for folder in folders:
                _fsync(folder)
        if target.exists():
            exchange(Path(staged), target)
        else:
            os.rename(staged, target)
        _fsync(target.parent)
    finally:
        discard(staged)
    return target


def read_bundle(
    path: str | os.PathLike[str],
) -> tuple[dict[str, np.ndarray[Any, Any]], dict[str, Any]]:
    """(arrays, document) of a bundle, every file checked against its digest.

    Raises SourceError if it is absent, incomplete, altered or of another format.
    """
    target = Path(path)
    while True:
        text = _read_index(target)
        try:
            result = _read_whole(target, text)
        except Exception:
            if _read_index(target) == text:
                raise
        else:
            if _read_index(target) == text:  # otherwise it was replaced meanwhile
                return result


def _read_index(target: Path) -> bytes:
    for _ in range(REPLACED):  # the folder may be replaced after it was opened
        try:
            return _Folder(target).get(INDEX, MOST_BYTES)
        except DamagedSourceError:
            raise
        except OSError:
            if not target.exists():
                break
    raise SourceError(f"{target}: no streampca model or state there")


def _read_whole(
    target: Path, text: bytes
) -> tuple[dict[str, np.ndarray[Any, Any]], dict[str, Any]]:
    folder = _Folder(target)

    def get(name: str, most: int) -> bytes:
        try:
            return folder.get(name, most)
        except DamagedSourceError:
            raise
        except OSError:
            raise altered(str(target), name) from None

    return read_files(get, folder.size, text, str(target))


class _Folder:
    """The files of a bundle: in its directory, or in the archive beside it (parts of a version)."""

    def __init__(self, target: Path) -> None:
        self.target = target

    def get(self, name: str, most: int) -> bytes:
        """A file of the bundle. Raises OSError."""
        try:
            return read_inside(self.target, name, most)
        except (FileNotFoundError, NotADirectoryError):
            return bytes(self._packed[f"{self.target.name}/{name}"])

    def size(self, name: str) -> int:
        """Stored bytes of a file; 0 for an absent one, for which ``get`` raises."""
        try:
            return (self.target / name).lstat().st_size
        except OSError:
            return len(self._packed.get(f"{self.target.name}/{name}", b""))

    @cached_property
    def _packed(self) -> dict[str, memoryview]:
        try:
            archive = read_inside(self.target.parent, PACK, MOST_READ)
        except (FileNotFoundError, NotADirectoryError):
            archive = b""
        return _Members(unpack(archive, str(self.target.parent / PACK)))


class _Members(dict[str, memoryview]):
    def __missing__(self, name: str) -> memoryview:
        raise FileNotFoundError(name)


def is_bundle(path: str | os.PathLike[str]) -> bool:
    """Whether a bundle is at this path."""
    return (Path(path) / INDEX).is_file()


def _write(path: str, data: bytes, folders: set[str]) -> None:
    """Write a file, and flush it.  folders : that are there; those that are made are added."""
    folder, made = os.path.dirname(path), []
    while folder not in folders:
        made.append(folder)
        folder = os.path.dirname(folder)
    for folder in reversed(made):
        os.mkdir(folder)
        folders.add(folder)
    with open(path, "wb") as file:  # buffered: a raw file takes a part of the data without a word
        file.write(data)
    _fsync(path)


def _sha256(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


def remove_bundle(path: str | os.PathLike[str]) -> None:
    """Remove a bundle if there is one. It is renamed first, so that no part of it stays visible."""
    if is_bundle(path):
        discard(set_aside(os.fspath(path)))


def exchange(staged: Path, target: Path) -> None:
    """Exchange two folders, in one step if the system can."""
    if swap(staged, target):
        return
    old = set_aside(str(target))
    try:
        staged.rename(target)
    except BaseException:
        os.rename(old, target)
        release(old)
        raise
    try:
        os.rename(old, staged)
    finally:
        release(old)


def swap(one: Path, other: Path) -> bool:
    """Exchange two files or folders in one step. False if one is absent or the system cannot."""
    try:
        rename = getattr(ctypes.CDLL(None), "renameat2", None)
    except (OSError, TypeError):  # Windows
        return False
    here, exchange = -100, 2  # AT_FDCWD, RENAME_EXCHANGE of Linux
    names = os.fsencode(one), os.fsencode(other)
    return rename is not None and rename(here, names[0], here, names[1], exchange) == 0


# Moving a finished output into its place, replacing only outputs of ours.
#
# A user may put something else at the path after it was checked. So what was there is checked
# again after it was moved away, and moved back if it is not ours.

ATTEMPTS = 10  # other processes may replace what is there at the same time


def put_folder(staged: str, path: str, ours: Callable[[str], bool]) -> None:
    """Rename a folder to ``path``; if an output of ours is there, exchange the two.

    The old output is then at ``staged``, for the caller to discard. Raises InvalidInputError if
    something at ``path`` is not ours, and leaves it there. Raises OSError.
    """
    target = os.path.realpath(path)
    for left in reversed(range(ATTEMPTS)):
        with contextlib.suppress(OSError):
            os.rename(staged, target)  # succeeds if there is nothing, or an empty folder
            return
        try:
            _exchange_ours(staged, target, path, ours)
            return
        except FileNotFoundError:
            if not left:
                raise


def _exchange_ours(staged: str, target: str, path: str, ours: Callable[[str], bool]) -> None:
    if occupied(target) and not ours(target):
        raise exists_already(path)
    exchange(Path(staged), Path(target))
    if occupied(staged) and not ours(staged):
        exchange(Path(staged), Path(target))
        raise exists_already(path)


@contextlib.contextmanager
def whole_file(path: str | os.PathLike[str], overwrite: bool = True) -> Iterator[BinaryIO]:
    """A file to write to, which is at ``path`` when the context ends without an error: all or none.

    Its folder is made if there is none. A device or a pipe is written to as it is.
    overwrite : replace an existing file, also one that was written meanwhile. Raises OccupiedError
        if it is False, or if what exists is not a file, and changes nothing then; and OSError.
    """
    place = os.path.realpath(path)
    if os.path.exists(place) and not (os.path.isfile(place) or os.path.isdir(place)):
        with open(place, "wb") as file:
            yield file
        return
    may_go = os.path.isfile if overwrite else lambda path: False
    if os.path.lexists(path) and not may_go(path):
        raise exists_already(os.fspath(path))
    os.makedirs(os.path.dirname(place), exist_ok=True)
    staged = unfinished_name(place, folder=False)
    try:
        with writing(path), open(staged, "wb") as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
        put_file(staged, place, may_go)
    finally:
        discard(staged)


def put_file(staged: str, target: str, may_go: Callable[[str], bool]) -> None:
    """Rename a file to ``target``; a file that is there is replaced in one step, if it may go.

    target : not a link; the caller resolves links before the output is made.
    Raises InvalidInputError if something else is there, and leaves it there. Raises OSError.
    """
    for _ in range(ATTEMPTS):
        if _put_new_file(staged, target):
            return
        if os.path.lexists(target) and not _is_one(target, may_go):
            raise exists_already(target)
        if swap(Path(staged), Path(target)):
            if _is_one(staged, may_go):
                return
            swap(Path(staged), Path(target))
            raise exists_already(target)
        if os.path.lexists(target):  # this system cannot exchange files
            os.replace(staged, target)
            return
    raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), target)


def _is_one(path: str, may_go: Callable[[str], bool]) -> bool:
    return os.path.isfile(path) and not os.path.islink(path) and may_go(path)


def _put_new_file(staged: str, target: str) -> bool:
    """Move a file to a free name, in one step; False if it is taken. Renaming would replace."""
    try:
        os.link(staged, target)
    except FileExistsError:
        return False
    except OSError as error:
        if error.errno not in NO_LINKS:
            raise
        if os.path.lexists(target):
            return False
        os.rename(staged, target)
        return True
    os.unlink(staged)
    return True
