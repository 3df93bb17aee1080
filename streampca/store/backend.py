"""The place where a model store lies: five verbs, of a directory or of an object store."""

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
from streampca.regular_file import BINARY, no_file, read_inside
from streampca.remote import OBJECTS, open_objects, plain_errors
from streampca.store.places import NO_LINKS, hold, in_use, release

# --------------------------------------------------------------------------------------------------
# What a model store needs of the place where it lies: five verbs.
#
# A backend keeps named byte strings. Names are relative, with "/" between parts. Whatever offers
# these verbs can hold a model store: a directory (:class:`streampca.store.backend.LocalBackend`),
# an
# object store (:class:`streampca.store.backend.ObjectBackend`).

MOST = 1 << 30  # bytes of one object, where nothing says how long it is
NAME = re.compile(r"[A-Za-z0-9_][\w.@+-]*")


@dataclass(frozen=True)
class Listed:
    """One object: its name, size, and when it was written (seconds since 1970)."""

    name: str
    nbytes: int
    modified: float


class Backend(Protocol):
    """Named byte strings. What returns has been kept: it survives loss of power.

    A failing verb raises OSError; what it was to write is then there whole or not at all.
    """

    place: str  # for messages; holds no credentials

    def get(self, name: str, most: int = MOST) -> bytes | None:
        """The bytes of that name, or None where there are none.

        most : that are read. Raises SourceError where there are more.
        """

    def put(self, name: str, data: bytes) -> None:
        """Keep the bytes under that name. Readers see the old ones or the new ones, whole."""

    def put_if_absent(self, name: str, data: bytes) -> bool:
        """Keep them if the name is free. Of any number of callers at once one gets True."""

    def list(self, prefix: str) -> Iterator[Listed]:
        """All whose names begin with ``prefix``, which is "" or ends with "/", in any order."""

    def delete(self, name: str) -> None:
        """Forget the name. None of that name is no error."""


def check_object_name(name: str) -> str:
    """The name, if every part of it is a plain one. Raises InvalidInputError."""
    if not all(NAME.fullmatch(part) for part in name.split("/")):
        raise InvalidInputError(f"{name!r} cannot name a file of a model store")
    return name


def too_long(place: str, name: str, most: int) -> DamagedSourceError:
    """The refusal of an object that is longer than what names it says."""
    return DamagedSourceError(
        f"{place}: {name} has more than {most} bytes, and is not read; restore it from a backup"
    )


# --------------------------------------------------------------------------------------------------
# A directory as the place of a model store: every write is flushed, and whole or absent.

STAGED = "_staged"  # files on their way; what a killed process left here is swept by gc
CLAIM = ".claim"
OPENS_FOLDERS = hasattr(os, "O_DIRECTORY")  # Windows does not, and flushes only open for writing


class LocalBackend:
    """Files below one directory.

    A file is written under another name, flushed, then renamed (``put``) or linked
    (``put_if_absent``) into its place, and the directory flushed: at every moment, also after a
    crash, a name has the old bytes, the new bytes, or none. ``os.link`` fails where the name is
    taken, which is what makes commits atomic.
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
        """While a process is at it, others can tell that it is alive; see ``abandoned``."""
        path = self._path(f"{STAGED}/{name}{CLAIM}")
        self._folder(path.parent)
        place = str(path)
        new = f"{place}.new"
        with open(new, "xb"):  # locked before it has the name that others look for
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

    @contextlib.contextmanager
    def _staged(self, data: bytes) -> Iterator[Path]:
        """A flushed file of these bytes that goes away unless it is moved."""
        path = self._path(f"{STAGED}/{uuid.uuid4().hex}")
        self._folder(path.parent)
        try:
            with open(path, "xb") as file:
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
        except FileNotFoundError:  # gc found the folder empty and removed it
            self._folder(target.parent)
            os.replace(staged, target)
        fsync(target.parent)

    def _folder(self, folder: Path) -> None:
        """Make it and its parents, flushing every one that gets a new entry."""
        if folder.is_dir():
            return
        self._folder(folder.parent)
        with contextlib.suppress(FileExistsError):
            folder.mkdir()
        fsync(folder.parent)

    def path(self, name: str) -> str:
        """Where the file or folder of that name lies. Raises SourceError behind a link."""
        return str(self._path(name))

    def _path(self, name: str) -> Path:
        """Where the file of that name lies, or will. Raises SourceError behind a link."""
        path = self.root / check_object_name(name)
        for folder in path.parents:
            if folder == self.root:
                return path
            if folder.is_symlink():
                raise no_file(str(folder))
        return path


def abandoned(backend: LocalBackend) -> list[str]:
    """What processes had claimed that are dead now."""
    there = (one for one in backend.list(f"{STAGED}/") if one.name.endswith(CLAIM))
    names = [one.name.removeprefix(f"{STAGED}/").removesuffix(CLAIM) for one in there]
    ours = (name for name in names if NAME.fullmatch(name))
    return sorted(name for name in ours if not in_use(backend.path(f"{STAGED}/{name}{CLAIM}")))


def disclaim(backend: LocalBackend, name: str) -> None:
    """Nothing is left of what a dead process had claimed."""
    Path(backend.path(f"{STAGED}/{name}{CLAIM}")).unlink(missing_ok=True)


def remove_folder(backend: LocalBackend, name: str) -> None:
    """A folder with all that is in it, empty folders too."""
    shutil.rmtree(backend.path(name), ignore_errors=True)


def fsync(path: Path) -> None:
    """Flush a file, or the entries of a directory where the system can. Raises OSError."""
    if not OPENS_FOLDERS and path.is_dir():
        return
    handle = os.open(path, os.O_RDONLY if OPENS_FOLDERS else os.O_RDWR | BINARY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


# --------------------------------------------------------------------------------------------------
# An object store (S3, Google Cloud Storage, Azure) as the place of a model store, by obstore.

SCHEMES = (*OBJECTS, "memory")


class ObjectBackend:
    """The five verbs on an ``obstore`` store.

    ``put_if_absent`` is a conditional put (``If-None-Match: *``), of which a store that honours it
    lets exactly one win. obstore tries again what failed for a moment; a put that succeeded
    without an answer then looks taken, which is why the log compares what is there with its own.
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

    options : see :func:`streampca.remote.open_objects`.
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
