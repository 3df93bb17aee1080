"""Where data lie: files, of which only regular ones are read back, URLs, and their errors."""

from __future__ import annotations

import contextlib
import errno
import glob
import os
import re
import stat
import tempfile
import threading
from collections.abc import Iterator
from typing import Any

from streampca.errors import DamagedSourceError, InvalidInputError, SourceError

# Safe reading of files: only regular files, of a bounded size, and not through links.
#
# A FIFO or a device in place of a file would hang its reader, or never end. A link would lead the
# reader out of its folder.
#
# Windows lacks some flags, and calls that take a folder's handle or a position in a file; the
# substitutes for them are here too.

PARQUET = (".parquet", ".parq", ".pq")  # how the names of such files end
TEXTS = tuple(  # of tables that are text
    one + packed
    for packed in ("", ".gz", ".bz2", ".xz")
    for one in (".csv", ".tsv", ".tab", ".txt", ".data")
)

_BRACES = re.compile(r"\{(?:[0-9]+\.\.[0-9]+|[^{},/]+(?:,[^{},/]+)+)\}")

BINARY = getattr(os, "O_BINARY", 0)  # without it Windows changes line ends
NO_LINK = getattr(os, "O_NOFOLLOW", 0)
FOLDER = os.O_RDONLY | getattr(os, "O_DIRECTORY", 0)
AT_ONCE = getattr(os, "O_NONBLOCK", 0)  # opening a FIFO does not wait
FILE = os.O_RDONLY | AT_ONCE | getattr(os, "O_NOCTTY", 0) | BINARY
BY_HANDLE = os.open in os.supports_dir_fd
JUNCTION = 0xA0000003  # the reparse tag of a Windows folder that links to another
IN_THE_WAY = (errno.ELOOP, errno.ENOTDIR, errno.ENXIO, errno.ENODEV, errno.EISDIR)

_seeking = threading.Lock()  # threads share the position of a handle


def read_inside(folder: str | os.PathLike[str], name: str, most: int) -> bytes:
    """The bytes of the regular file ``folder/name``, which may have at most ``most`` bytes.

    The folder may be a link; nothing below it may. ``name`` has "/" between its parts; the caller
    must check it for "..".
    Raises FileNotFoundError; DamagedSourceError for a link, a special file, or a longer file.
    """
    handle = _open_inside(folder, name)
    try:
        check_regular(handle, f"{os.fspath(folder)}/{name}")
        return _read(handle, f"{os.fspath(folder)}/{name}", most)
    finally:
        os.close(handle)


def read_regular(path: str | os.PathLike[str], most: int) -> bytes:
    """The bytes of a file that may be reached through links. Raises as ``read_inside``."""
    shown = os.fspath(path)
    handle = open_at_once(shown)
    try:
        check_regular(handle, shown)
        return _read(handle, shown, most)
    finally:
        os.close(handle)


def open_at_once(path: str, flags: int = 0) -> int:
    """A handle for reading; does not wait for a FIFO. An ``opener`` for Python's ``open``."""
    try:
        return os.open(path, flags | FILE)
    except OSError as error:
        if error.errno in (errno.ENXIO, errno.ENODEV):  # a socket, or a device without driver
            raise no_file(path) from None
        raise


def read_at(handle: int, into: memoryview, place: int) -> int:
    """Fill a buffer from a position in an open file, as far as one system call does.

    Returns the number of bytes, 0 at the end of the file. Threads may share the handle.
    Raises OSError.
    """
    if hasattr(os, "preadv"):
        return os.preadv(handle, [into], place)
    with _seeking:
        os.lseek(handle, place, os.SEEK_SET)
        data = os.read(handle, len(into))
    into[: len(data)] = data
    return len(data)


def read_fully(handle: int, into: memoryview, place: int) -> int:
    """Fill a buffer from a position in an open file. Returns the bytes read: fewer at its end."""
    done = 0
    while done < len(into) and (got := read_at(handle, into[done:], place + done)):
        done += got
    return done


def check_regular(handle: int, shown: str) -> int:
    """The size of an open file. Raises DamagedSourceError if it is not a regular file."""
    about = os.fstat(handle)
    if not stat.S_ISREG(about.st_mode):
        raise no_file(shown)
    return about.st_size


def paths_end(source: Any, suffixes: tuple[str, ...]) -> bool:
    """Whether this is a path, or a list of paths, of one of these suffixes."""
    listed = source if isinstance(source, (list, tuple)) else [source]
    return bool(listed) and all(
        isinstance(one, (str, os.PathLike)) and os.fspath(one).lower().endswith(suffixes)
        for one in listed
    )


def is_pattern(path: str) -> bool:
    """Whether a path of this machine stands for several: a glob, or with braces."""
    several = glob.has_magic(path) or _BRACES.search(path) is not None
    return several and "://" not in path and not os.path.exists(path)


def without_braces(path: str) -> list[str]:
    """The names that a path with braces stands for."""
    if (found := _BRACES.search(path)) is None or "://" in path or os.path.exists(path):
        return [path]
    before, inside, after = path[: found.start()], found[0][1:-1], path[found.end() :]
    names = inside.split(",")
    if ".." in inside:
        first, last = map(int, inside.split(".."))
        step, width = (1, -1)[last < first], len(inside.split("..")[0]) * inside.startswith("0")
        names = [str(i).zfill(width) for i in range(first, last + step, step)]
    return [path for name in names for path in without_braces(before + name + after)]


def refuse_special(path: str | os.PathLike[str]) -> None:
    """Raise DamagedSourceError if a FIFO, a device or a socket is at this path."""
    try:
        mode = os.stat(path).st_mode
    except (OSError, ValueError):  # opening it will tell
        return
    if not (stat.S_ISREG(mode) or stat.S_ISDIR(mode)):
        raise no_file(os.fspath(path))


ZARR = ("zarr.json", ".zgroup", ".zarray")  # a folder with one of them is a node of a Zarr store


def refuse_links_out(path: str | os.PathLike[str], root: str | os.PathLike[str]) -> None:
    """Raise DamagedSourceError for a file of a Zarr store that links put outside of it.

    root : the group or array that was opened, or a link to it; its store may be larger.
    """
    real, top = os.path.realpath(path), os.path.realpath(root)
    if real.startswith(os.path.join(top, "")):
        return
    while any(os.path.isfile(os.path.join(os.path.dirname(top), name)) for name in ZARR):
        top = os.path.dirname(top)
    if not real.startswith(os.path.join(top, "")):
        raise DamagedSourceError(
            f"{os.fspath(path)} lies outside the store, in {real!r:.200}, which is not opened: "
            "links lead there. If that is meant: streampca.open(..., external_links=True)"
        )


def no_file(shown: str) -> DamagedSourceError:
    """The error for something in place of a regular file."""
    return DamagedSourceError(
        f"{shown} is a link, a folder or a special file; expected a regular file. Restore it from "
        "a backup"
    )


def _open_inside(folder: str | os.PathLike[str], name: str) -> int:
    if not BY_HANDLE:
        return _open_by_name(os.fspath(folder), name)
    *parents, last = name.split("/")
    at = os.open(folder, FOLDER)
    try:
        for part in parents:
            inner = os.open(part, FOLDER | NO_LINK, dir_fd=at)
            os.close(at)
            at = inner
        return os.open(last, FILE | NO_LINK, dir_fd=at)
    except OSError as error:
        if error.errno in IN_THE_WAY:
            raise no_file(f"{os.fspath(folder)}/{name}") from None
        raise
    finally:
        os.close(at)


def _open_by_name(folder: str, name: str) -> int:
    """Without handles of folders: check each part first. A link made in between is followed."""
    *parents, last = name.split("/")
    path = folder
    for part, right in [*((parent, stat.S_ISDIR) for parent in parents), (last, stat.S_ISREG)]:
        path = os.path.join(path, part)
        about = os.lstat(path)
        if not right(about.st_mode) or getattr(about, "st_reparse_tag", 0) == JUNCTION:
            raise no_file(f"{folder}/{name}")
    return os.open(path, FILE)


def _read(handle: int, shown: str, most: int) -> bytes:
    """The whole file. The size it reports is checked, but not relied on."""
    size, done = os.fstat(handle).st_size, 0
    parts: list[bytes] = []
    while size <= most and done <= most:
        part = os.read(handle, min(most + 1 - done, max(size - done, 1 << 16)))
        if not part:
            return b"".join(parts)
        parts.append(part)
        done += len(part)
    raise DamagedSourceError(
        f"{shown} has {max(size, done)} bytes or more where at most {most} are expected; restore "
        "it from a backup"
    )


# URLs.

NO_BUCKET = re.compile("NoSuchBucket|ContainerNotFound|bucket does not exist", re.IGNORECASE)
OBJECTS = ("s3", "gs", "gcs", "az", "abfs", "abfss")  # opened by obstore
READ = (*OBJECTS, "https", "http", "file", "memory")  # supported for reading


def scheme_of(url: str) -> str:
    """ "s3" for ``s3://bucket/key``, "" for a path. Raises InvalidInputError for chained URLs."""
    scheme, found, _ = url.partition("://")
    if found and "::" in scheme:
        raise InvalidInputError(
            f"{scheme.partition('::')[0]}:: chained URLs are not taken; open the Zarr store "
            "yourself, and give the zarr.Array"
        )
    return scheme if found else ""


def check_readable(url: str) -> None:
    """Raise InvalidInputError for a URL whose scheme is not supported."""
    scheme = scheme_of(url)
    if scheme and scheme not in READ:
        raise InvalidInputError(
            f"{scheme}:// is not read; expected a path, or one of "
            f"{', '.join(f'{one}://' for one in READ)}. Of anything else open the Zarr store "
            "yourself, and give the zarr.Array"
        )


@contextlib.contextmanager
def plain_errors() -> Iterator[None]:
    """A context in which errors of obstore and Icechunk become an OSError of one line.

    Raises SourceError for a bucket that does not exist.
    """
    try:
        yield
    except Exception as error:
        if not type(error).__module__.startswith(("obstore", "icechunk")):
            raise
        if NO_BUCKET.search(str(error)):
            raise SourceError(
                f"the bucket of this URL does not exist: make it, or correct the URL "
                f"({first_line(error)})"
            ) from error
        if isinstance(error, FileNotFoundError):
            raise FileNotFoundError(errno.ENOENT, first_line(error)) from error
        raise OSError(errno.EIO, first_line(error)) from error


def first_line(error: Exception) -> str:
    """The first line of a message; the rest is for the developers of those libraries.

    Of the XML that a server answers with, its code.
    """
    text = str(error).strip()
    line = re.split(r"\n|<\?xml|<Error>", text)[0].strip()
    code = re.search(r"<Code>(\w+)</Code>", text)
    return f"{line} {code[1]}" if code and code[1] not in line else line


# Full disks.

FULL = (errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.EFBIG)


@contextlib.contextmanager
def full_disk_noted(*places: str | None) -> Iterator[None]:
    """Add to an error for a full disk that names no file what was being written."""
    try:
        yield
    except OSError as error:
        if error.errno in FULL and error.filename is None and not hasattr(error, "__notes__"):
            named = ", ".join(place for place in places if place)
            error.add_note(
                f"while writing {f'{named}, or ' * bool(named)}temporary files in "
                f"{tempfile.gettempdir()} (TMPDIR)"
            )
        raise
