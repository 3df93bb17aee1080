"""Backends of model stores: a directory or an object store, each with five operations."""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import uuid
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from streampca.errors import DamagedSourceError, InvalidInputError, SourceError
from streampca.object_storage import open_objects
from streampca.paths import BINARY, OBJECTS, no_file, plain_errors, read_inside
from streampca.store.places import NO_LINKS, Lock, hold, in_use, release, share, writing

# The five operations that a model store needs.
#
# A backend keeps named byte strings. Names are relative, with "/" between parts. Any class with
# these operations can hold a model store: :class:`LocalBackend`, :class:`ObjectBackend`.

MOST = 1 << 30  # bytes of one object of unknown length
NAME = re.compile(r"[A-Za-z0-9_][\w.@+-]*")


@dataclass(frozen=True)
class Listed:
    """One object: its name, size, and when it was written (seconds since 1970)."""

    name: str
    nbytes: int
    modified: float


class Backend(Protocol):
    """Named byte strings. Once a call returns, its effect survives loss of power.

    A call that fails raises OSError; the data are then there completely or not at all.
    """

    place: str  # for messages; holds no credentials

    def get(self, name: str, most: int = MOST) -> bytes | None:
        """The bytes of that name, or None if there are none.

        most : the most bytes to read. Raises SourceError if there are more.
        """

    def put(self, name: str, data: bytes) -> None:
        """Store bytes under a name. Readers see either all old or all new bytes."""

    def put_if_absent(self, name: str, data: bytes) -> bool:
        """Store bytes if the name is free. Of several concurrent callers one gets True."""

    def list(self, prefix: str) -> Iterator[Listed]:
        """All objects whose names begin with ``prefix``, "" or ending with "/", in any order."""

    def delete(self, name: str) -> None:
        """Remove an object, if there is one of that name."""


def check_object_name(name: str) -> str:
    """The name, if all its parts are plain names. Raises InvalidInputError."""
    if not all(NAME.fullmatch(part) for part in name.split("/")):
        raise InvalidInputError(f"{name!r} cannot name a file of a model store")
    return name


def too_long(place: str, name: str, most: int) -> DamagedSourceError:
    """The error for an object that is longer than recorded."""
    return DamagedSourceError(
        f"{place}: {name} has more than {most} bytes, and is not read; restore it from a backup"
    )


# A directory as a backend: every write is flushed and atomic.

STAGED = "_staged"  # unfinished files; gc removes what a killed process left here
CLAIM = ".claim"
OPENS_FOLDERS = hasattr(os, "O_DIRECTORY")  # not Windows, which flushes only files open for writing


class LocalBackend:
    """Files below one directory.

    A file is written under another name, flushed, and then renamed (``put``) or linked
    (``put_if_absent``) into its place, and the directory is flushed. At every moment, also after a
    crash, a name has the old bytes, the new bytes, or none. ``os.link`` fails if the name is taken;
    that makes commits atomic.
    """

    def __init__(self, root: str | os.PathLike[str]) -> None:
        self.root = Path(root)
        self.place = str(self.root)

    def get(self, name: str, most: int = MOST) -> bytes | None:
        try:
            return read_inside(self.root, check_object_name(name), most)
        except (FileNotFoundError, NotADirectoryError):
            return None

    def put(self, name: str, data: bytes) -> None:
        target = self._path(name)
        with self._staged(data) as staged:
            self._move(staged, target)

    def put_if_absent(self, name: str, data: bytes) -> bool:
        target = self._path(name)
        if target.exists():
            return False
        with self._staged(data) as staged:
            self._folder(target.parent)
            try:
                os.link(staged, target)
            except FileExistsError:
                return False
            except OSError as error:
                if error.errno not in NO_LINKS:
                    raise
                if _can_be_linked(staged):  # the folder of the log may not be changed
                    raise OSError(error.errno, error.strerror, str(target)) from None
                raise SourceError(
                    f"{self.place}: this file system has no hard links, and commits would not be "
                    "safe. Put the model store on a local disk, or into an object store."
                ) from None
            fsync(target.parent)
        return True

    def list(self, prefix: str) -> Iterator[Listed]:
        folders = [self.root / prefix]
        while folders:
            try:
                entries = sorted(os.scandir(folders.pop()), key=lambda entry: entry.name)
            except (FileNotFoundError, NotADirectoryError):
                continue
            for entry in entries:
                if entry.is_dir(follow_symlinks=False):
                    folders.append(Path(entry.path))
                    continue
                with contextlib.suppress(FileNotFoundError):  # deleted meanwhile
                    about = entry.stat(follow_symlinks=False)
                    name = Path(entry.path).relative_to(self.root).as_posix()
                    yield Listed(name, about.st_size, about.st_mtime)

    def delete(self, name: str) -> None:
        path = self._path(name)
        path.unlink(missing_ok=True)
        for folder in path.parents:
            if folder == self.root:
                break
            try:
                folder.rmdir()
            except OSError:  # not empty, or gone
                break

    @contextlib.contextmanager
    def claim(self, name: str) -> Iterator[None]:
        """Hold a lock by which others see that this process is alive; see ``claims``."""
        path = self._path(f"{STAGED}/{name}{CLAIM}")
        self._folder(path.parent)
        place = str(path)
        new = f"{place}.new"
        with open(new, "xb"):  # locked before it gets the name that others look for
            pass
        try:
            lock = hold(new)
        except BaseException:
            os.unlink(new)
            raise
        os.rename(new, place)
        try:
            yield
        finally:
            with contextlib.suppress(OSError):
                path.unlink(missing_ok=True)
            if lock is not None:
                release(new, lock)

    def reading(self, name: str) -> Lock | None:
        """A lock by which gc sees that this process reads a file; None where there are none."""
        try:
            return share(self.path(name))
        except OSError:  # the file is gone, or a link: reading it says so
            return None

    @contextlib.contextmanager
    def unread(self, name: str) -> Iterator[bool]:
        """Whether no process reads the file of that name; none begins to within this context."""
        try:
            lock = share(self.path(name), exclusive=True)
        except BlockingIOError:
            yield False
            return
        except OSError:
            lock = None
        try:
            yield True
        finally:
            if lock is not None:
                lock.give_back()

    @contextlib.contextmanager
    def _staged(self, data: bytes) -> Iterator[Path]:
        """A flushed file with these bytes, which is removed at the end unless it was moved."""
        path = self._path(f"{STAGED}/{uuid.uuid4().hex}")
        self._folder(path.parent)
        try:
            with writing(self.root), open(path, "xb") as file:
                file.write(data)
                file.flush()
                os.fsync(file.fileno())
            yield path
        finally:
            with contextlib.suppress(OSError):
                path.unlink(missing_ok=True)

    def _move(self, staged: Path, target: Path) -> None:
        self._folder(target.parent)
        try:
            os.replace(staged, target)
        except FileNotFoundError:  # gc removed the empty folder meanwhile
            self._folder(target.parent)
            os.replace(staged, target)
        fsync(target.parent)

    def _folder(self, folder: Path) -> None:
        """Make a folder and its parents, and flush each that gets a new entry."""
        if folder.is_dir():
            return
        self._folder(folder.parent)
        with contextlib.suppress(FileExistsError):
            folder.mkdir()
        fsync(folder.parent)

    def path(self, name: str) -> str:
        """The path of the file or folder of that name. Raises SourceError behind a link."""
        return str(self._path(name))

    def _path(self, name: str) -> Path:
        path = self.root / check_object_name(name)
        for folder in path.parents:
            if folder == self.root:
                return path
            if folder.is_symlink():
                raise no_file(str(folder))
        return path


def _can_be_linked(file: Path) -> bool:
    """Whether this file system has hard links."""
    other = file.with_name(f"{file.name}-link")
    try:
        os.link(file, other)
        other.unlink()
    except OSError:
        return False
    return True


def claims(backend: LocalBackend, alive: bool) -> list[str]:
    """The names that were claimed by processes that are alive, or that have died."""
    there = (one for one in backend.list(f"{STAGED}/") if one.name.endswith(CLAIM))
    names = [one.name.removeprefix(f"{STAGED}/").removesuffix(CLAIM) for one in there]
    ours = (name for name in names if NAME.fullmatch(name))
    return sorted(name for name in ours if in_use(backend.path(f"{STAGED}/{name}{CLAIM}")) == alive)


def disclaim(backend: LocalBackend, name: str) -> None:
    """Remove the claim of a dead process."""
    Path(backend.path(f"{STAGED}/{name}{CLAIM}")).unlink(missing_ok=True)


def remove_folder(backend: LocalBackend, name: str) -> None:
    """Remove a folder with everything in it."""
    shutil.rmtree(backend.path(name), ignore_errors=True)


def fsync(path: str | os.PathLike[str]) -> None:
    """Flush a file, or a directory if the system can. Raises OSError."""
    if not OPENS_FOLDERS and os.path.isdir(path):
        return
    handle = os.open(path, os.O_RDONLY if OPENS_FOLDERS else os.O_RDWR | BINARY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


# An object store (S3, Google Cloud Storage, Azure) as a backend, by obstore.

SCHEMES = (*OBJECTS, "memory")


class ObjectBackend:
    """The five operations on an ``obstore`` store.

    ``put_if_absent`` is a conditional put (``If-None-Match: *``), of which exactly one succeeds.
    obstore retries after brief failures; if a put succeeded but its answer was lost, the retry
    finds the name taken. The log therefore compares what is there with its own entry.
    """

    def __init__(self, store: Any, place: str) -> None:
        self.store, self.place = store, place

    def get(self, name: str, most: int = MOST) -> bytes | None:
        try:
            with plain_errors():
                found = self.store.get(check_object_name(name))
                if found.meta["size"] > most:
                    raise too_long(self.place, name, most)
                return bytes(found.bytes())
        except FileNotFoundError:
            return None

    def put(self, name: str, data: bytes) -> None:
        with plain_errors():
            self.store.put(check_object_name(name), data)

    def put_if_absent(self, name: str, data: bytes) -> bool:
        from obstore.exceptions import AlreadyExistsError, PreconditionError

        with plain_errors():
            try:
                self.store.put(check_object_name(name), data, mode="create", use_multipart=False)
            except (AlreadyExistsError, PreconditionError):
                return False
        return True

    def list(self, prefix: str) -> Iterator[Listed]:
        batches = iter(self.store.list(prefix.rstrip("/") or None))
        while True:
            with plain_errors():
                batch = next(batches, ())
            if not batch:
                break
            for about in batch:
                yield Listed(about["path"], about["size"], about["last_modified"].timestamp())

    def delete(self, name: str) -> None:
        try:
            with plain_errors():
                self.store.delete(check_object_name(name))
        except FileNotFoundError:
            return


def open_backend(place: str, options: dict[str, Any] | None = None) -> Backend:
    """The backend of a local path, or of a URL of an object store.

    options : see :func:`streampca.object_storage.open_objects`.
    Raises InvalidInputError for another scheme, MissingDependencyError without obstore.
    """
    scheme, found, rest = place.partition("://")
    if not found:
        return LocalBackend(place)
    if scheme == "file":
        return LocalBackend(rest)
    if scheme not in SCHEMES:
        raise InvalidInputError(
            f"{scheme}:// cannot hold a model store; expected a path, or one of "
            f"{', '.join(f'{one}://' for one in SCHEMES)}"
        )
    plain = place.partition("?")[0].partition("#")[0]
    host = plain.partition("://")[2].rpartition("@")[2] if "@" in plain else None
    shown = plain if host is None else f"{scheme}://{host}"
    return ObjectBackend(open_objects(place, options), shown)
