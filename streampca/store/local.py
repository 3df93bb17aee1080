"""A directory as the place of a model store: every write is flushed, and whole or absent."""

from __future__ import annotations

import contextlib
import os
import shutil
import uuid
from collections.abc import Iterator
from pathlib import Path

from streampca.errors import SourceError
from streampca.regular_file import BINARY, no_file, read_inside
from streampca.store.backend import MOST, NAME, Listed, check_object_name
from streampca.store.places import NO_LINKS, hold, in_use, release

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
