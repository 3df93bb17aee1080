"""Named arrays and a JSON document in one directory, written whole or not at all.

Layout: ``bundle.json`` (format version, document, SHA-256 of every file, itself included) and
``arrays/<name>`` (Zarr v3 with crc32c). No pickle. Models, accumulator states, ledgers and
checkpoints are all bundles, in a directory of their own or within a version of a model store.
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import hashlib
import os
from collections.abc import Callable, Mapping
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from streampca.errors import DamagedSourceError, InvalidInputError, SourceError
from streampca.regular_file import read_inside
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
)

FORMAT_VERSION = 1
REPLACED = 10  # times that a bundle may be replaced between its folder and its index being opened


def write_files(
    put: Put, arrays: Mapping[str, np.ndarray[Any, Any]], document: Mapping[str, Any]
) -> None:
    """Hand every file of a bundle to ``put(name, bytes)``, ``bundle.json`` last."""
    for name in arrays:
        check_name(name)
    digests: dict[str, str] = {}

    def put_and_note(name: str, data: bytes) -> None:
        digests[name] = _sha256(data)
        put(name, data)

    for name, array in arrays.items():
        values = array if hasattr(array, "dtype") else np.asarray(array)
        _write_array(put_and_note, name, values)
    whole = {"format_version": FORMAT_VERSION, "files": digests, "document": dict(document)}
    put(INDEX, sign_readable(whole, INDEX))


def read_files(
    get: Get, size: Callable[[str], int], text: bytes, where: str
) -> tuple[dict[str, np.ndarray[Any, Any]], dict[str, Any]]:
    """(arrays, document) of a bundle whose files ``get(name, most)`` returns, each of them checked.

    size : of a file as it is stored.  text : its ``bundle.json``.  where : its place, for messages.
    Only files of the names that a bundle has are asked for, and no array is decoded before it is
    known what all of them take. Raises SourceError.
    """
    whole = unsign(text, f"{where}/{INDEX}", FORMAT_VERSION)
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
    arrays = {name: decode_array(get_checked, one) for name, one in found.items()}
    for name in sorted(unread):
        get_checked(name, size(name))
    return arrays, whole["document"]


def altered(where: str, name: str) -> SourceError:
    """The error for a file that is not what was written."""
    return SourceError(f"{where}: {name} is absent or altered; restore it from a backup")


def write_bundle(
    path: str | os.PathLike[str],
    arrays: Mapping[str, np.ndarray[Any, Any]],
    document: Mapping[str, Any],
) -> Path:
    """Write a bundle beside its place, flush it to disk, and rename it into place.

    An existing bundle there is replaced; a reader sees the old or the new one, never a mixture.
    Any other existing path is refused with InvalidInputError.
    """
    target = Path(path)
    if target.exists() and not (target / "bundle.json").is_file():
        raise InvalidInputError(f"{target} exists and is not a streampca bundle; choose another")
    target.parent.mkdir(parents=True, exist_ok=True)
    staged = Path(unfinished_name(str(target)))
    try:
        write_files(lambda name, data: _write(staged / name, data), arrays, document)
        for folder in [p for p in staged.rglob("*") if p.is_dir()] + [staged]:
            _fsync(folder)
        if target.exists():
            exchange(staged, target)
        else:
            staged.rename(target)
        _fsync(target.parent)
    finally:
        discard(str(staged))
    return target


def read_bundle(
    path: str | os.PathLike[str],
) -> tuple[dict[str, np.ndarray[Any, Any]], dict[str, Any]]:
    """(arrays, document) of a bundle, every file checked against its digest.

    Raises SourceError where it is absent, incomplete, altered or of a newer format.
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
            if _read_index(target) == text:  # else it was replaced while it was read
                return result


def _read_index(target: Path) -> bytes:
    for _ in range(REPLACED):  # the folder that was opened may be taken away, another in its place
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
    """The files of a bundle: in its directory, or packed beside it, as parts of a version are."""

    def __init__(self, target: Path) -> None:
        self.target = target

    def get(self, name: str, most: int) -> bytes:
        """A file of the bundle. Raises OSError."""
        try:
            return read_inside(self.target, name, most)
        except (FileNotFoundError, NotADirectoryError):
            return bytes(self._packed[f"{self.target.name}/{name}"])

    def size(self, name: str) -> int:
        """Of a file as it is stored; 0 of one that is not there, which ``get`` says."""
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
    """Whether a bundle lies there."""
    return (Path(path) / "bundle.json").is_file()


def _write(path: Path, data: bytes) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(data)
    _fsync(path)


def _sha256(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


def remove_bundle(path: str | os.PathLike[str]) -> None:
    """Remove a bundle, if one lies there. It is moved away first: no half of one is to be seen."""
    if is_bundle(path):
        discard(set_aside(os.fspath(path)))


def exchange(staged: Path, target: Path) -> None:
    """Put staged in target's place, and target in its: in one step where the system can."""
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
    """Exchange two files or folders in one step; False where either is absent, or on a system or
    file system that cannot."""
    try:
        rename = getattr(ctypes.CDLL(None), "renameat2", None)
    except (OSError, TypeError):  # Windows
        return False
    here, exchange = -100, 2  # AT_FDCWD, RENAME_EXCHANGE of Linux
    names = os.fsencode(one), os.fsencode(other)
    return rename is not None and rename(here, names[0], here, names[1], exchange) == 0


# --------------------------------------------------------------------------------------------------
# Putting what was made beside a path into its place, over nothing but an output of ours.
#
# What lies at the path may have changed since it was looked at: a user may have put something
# else
# there. So it is looked at once more when it is out of the way, and put back where it is not
# ours.

ATTEMPTS = 10  # others may take away, and put, what lies there at the same time


def put_folder(staged: str, path: str, ours: Callable[[str], bool]) -> None:
    """Rename a folder to ``path``; where an output of ours lies there, exchange the two.

    The old output is then at ``staged``, for the caller to discard. Raises InvalidInputError
    where something lies at ``path`` that is not ours; it stays there. Raises OSError.
    """
    target = os.path.realpath(path)
    for left in reversed(range(ATTEMPTS)):
        with contextlib.suppress(OSError):
            os.rename(staged, target)  # there is nothing, or an empty folder
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


def put_file(staged: str, target: str, may_go: Callable[[str], bool]) -> None:
    """Rename a file to ``target``; a file that lies there is replaced in one step, if it may go.

    target : no link: what a link led to when the output was looked at, before it was made.
    Raises InvalidInputError where something else lies there; it stays. Raises OSError.
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
        if os.path.lexists(target):  # this system cannot exchange: nothing may come in between
            os.replace(staged, target)
            return
    raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), target)


def _is_one(path: str, may_go: Callable[[str], bool]) -> bool:
    return os.path.isfile(path) and not os.path.islink(path) and may_go(path)


def _put_new_file(staged: str, target: str) -> bool:
    """Put it where nothing lies, in one step: renaming would replace what does."""
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
