"""The files of a table: where they lie, locally or in object storage, and their partition keys."""

from __future__ import annotations

import io
import os
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from typing import Any
from urllib.parse import unquote

import pyarrow as pa

from streampca.errors import SourceError, hide_secrets
from streampca.matrix import Location
from streampca.object_storage import open_objects
from streampca.paths import PARQUET, check_readable, plain_errors, refuse_special
from streampca.sources.local_files import FileLocation, number_order

SAMPLED = 8  # files of which workers check that they see the same
AT_ONCE = 8  # files whose metadata are read concurrently
HIVE_NULL = "__HIVE_DEFAULT_PARTITION__"


@dataclass(frozen=True)
class TableFile:
    """One file.  path : or URL.  stamp : size, and when it was written.

    keys : what the names of its folders say (``year=2020``): name -> text, or None.
    options : of the object storage, never part of a result.
    """

    path: str
    size: int
    version: str
    keys: Mapping[str, str | None] = field(default_factory=dict)
    options: Mapping[str, Any] | None = field(default=None, repr=False, compare=False)

    @classmethod
    def at(cls, path: str, options: Mapping[str, Any] | None = None, root: str = "") -> TableFile:
        """The file at a path or URL.  root : of the folders that name partitions."""
        keys = keys_of(path[len(root) :]) if root else {}
        if "://" in path:
            try:
                about = _head(path, options)
            except FileNotFoundError:
                raise SourceError(f"{hide_secrets(path)}: no such object") from None
            version = str(about.get("e_tag") or about["last_modified"])
            return cls(path, int(about["size"]), version, keys, options)
        path = os.path.realpath(path)
        refuse_special(path)
        stat = os.stat(path)
        return cls(path, stat.st_size, str(stat.st_mtime_ns), keys)

    def again(self) -> TableFile:
        """The file as it is now."""
        return replace(TableFile.at(self.path, self.options), keys=self.keys)

    @property
    def remote(self) -> bool:
        return "://" in self.path

    def open(self) -> Any:
        """A file of Arrow."""
        if not self.remote:
            return pa.OSFile(self.path)
        import obstore

        folder, _, name = self.path.rpartition("/")
        with plain_errors():
            reader = obstore.open_reader(open_objects(folder, self.options), name)
        return pa.PythonFile(_Handle(reader), "r")


class _Handle(io.RawIOBase):
    """A reader of obstore as Python and Arrow expect a file."""

    def __init__(self, reader: Any) -> None:
        self._reader = reader

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def seek(self, place: int, whence: int = 0) -> int:
        return int(self._reader.seek(place, whence))

    def tell(self) -> int:
        return int(self._reader.tell())

    def read(self, size: int = -1) -> bytes:
        with plain_errors():
            return bytes(self._reader.read(None if size < 0 else size))


class ObjectLocation(Location):
    """One object of object storage."""

    def __init__(self, file: TableFile) -> None:
        self.file, self.name = file, hide_secrets(file.path)

    def sample(self) -> Sequence[str]:
        return (self.name,)

    def look(self, names: Sequence[str]) -> dict[str, str]:
        try:
            about = _head(self.file.path, self.file.options)
        except OSError as error:
            return dict.fromkeys(names, f"unreadable ({error})")
        return dict.fromkeys(names, f"{about['size']} bytes, {about.get('e_tag')}")


def locations_of(files: Sequence[TableFile]) -> tuple[Location, ...]:
    """Places to check on workers: those of a few of the files."""
    chosen = files[:: max(1, len(files) // SAMPLED)]
    return tuple(ObjectLocation(one) if one.remote else FileLocation(one.path) for one in chosen)


def _head(path: str, options: Mapping[str, Any] | None) -> Mapping[str, Any]:
    folder, _, name = path.rpartition("/")
    with plain_errors():
        store = open_objects(folder, options)
        import obstore

        about: Mapping[str, Any] = obstore.head(store, name)
    return about


def files_in(
    path: str, suffixes: Sequence[str], options: Mapping[str, Any] | None = None
) -> list[TableFile]:
    """The files below a folder or URL prefix, in the order of the numbers in their names.

    Names that begin with "_" or "." do not count, nor those in such folders.
    Raises SourceError where there is none.
    """
    root = path.rstrip("/") + "/"
    names = [name for name in _below(root, options) if _counts(name, suffixes)]
    if not names:
        raise SourceError(f"{hide_secrets(path)}: the folder holds no {suffixes[0]} file")
    names.sort(key=lambda name: number_order(name.replace("/", "\0\0")))  # folder by folder
    if "://" not in path:
        return [TableFile.at(root + name, options, root) for name in names]
    with ThreadPoolExecutor(AT_ONCE) as pool:
        return list(pool.map(lambda name: TableFile.at(root + name, options, root), names))


def _below(root: str, options: Mapping[str, Any] | None) -> Iterator[str]:
    """Names below a folder, with "/" between their parts."""
    if "://" not in root:
        for folder, _, names in os.walk(root, followlinks=True):
            inner = os.path.relpath(folder, root).replace(os.sep, "/")
            yield from (name if inner == "." else f"{inner}/{name}" for name in names)
        return
    with plain_errors():
        store = open_objects(root.rstrip("/"), options)
        for page in store.list():
            yield from (str(one["path"]) for one in page)


def _counts(name: str, suffixes: Sequence[str]) -> bool:
    hidden = any(part.startswith(("_", ".")) for part in name.split("/"))
    return not hidden and name.lower().endswith(tuple(suffixes))


def keys_of(path: str) -> dict[str, str | None]:
    """``{"year": "2020"}`` of ``year=2020/part-0.parquet``."""
    found: dict[str, str | None] = {}
    for part in path.split("/")[:-1]:
        name, there, value = part.partition("=")
        if there and name:
            found[unquote(name)] = None if value == HIVE_NULL else unquote(value)
    return found


def table_file(path: str, options: Mapping[str, Any] | None) -> TableFile:
    """The file at a path or URL. Raises SourceError where there is none."""
    check_readable(path)
    if "://" not in path and not os.path.isfile(path):
        what = "is a folder; expected a file" if os.path.isdir(path) else "no such file"
        raise SourceError(f"{path}: {what}")
    return TableFile.at(path, options)


def parquet_files(path: str, options: Mapping[str, Any] | None) -> list[TableFile]:
    """The Parquet files at a path, which may be a folder."""
    if path.endswith("/") if "://" in path else os.path.isdir(path):
        return files_in(path, PARQUET, options)
    return [table_file(path, options)]
