"""Stores of Zarr arrays: which lies at a path, what it reads is counted, checked and timed."""

from __future__ import annotations

import asyncio
import contextlib
import copy
import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import google_crc32c
import numpy as np
import zarr
import zarr.storage
from zarr.abc.store import ByteRequest, RangeByteRequest, Store
from zarr.core.buffer import Buffer, BufferPrototype, default_buffer_prototype
from zarr.core.sync import sync
from zarr.storage import StorePath

from streampca.errors import (
    AbsentChunkError,
    DamagedSourceError,
    InvalidInputError,
    MissingDependencyError,
    NoAnswerError,
    SourceError,
    StreamPCAError,
    hide_secrets,
)
from streampca.matrix import ReadCount
from streampca.object_storage import has_obstore, no_obstore, open_objects
from streampca.paths import (
    OBJECTS,
    check_regular,
    open_at_once,
    plain_errors,
    read_regular,
    refuse_links_out,
    refuse_special,
    scheme_of,
)
from streampca.sources.stacked import Tally, ThreadBuffers
from streampca.sources.zarr.chunks import FrameLimit, ShardIndex

METADATA = (".zarray", ".zgroup", ".zattrs", ".zmetadata", "zarr.json")
READ_TIMEOUT = 300.0  # seconds after which a read without answer fails


def default_timeout() -> float:
    """Seconds: Zarr's setting ``async.timeout`` where it is set, else READ_TIMEOUT."""
    return float(zarr.config.get("async.timeout", None) or READ_TIMEOUT)


class GuardedStore(zarr.storage.WrapperStore[Any]):
    """Counts every chunk read, refuses absent and oversized ones, and limits the wait for each.

    Zarr silently reads an absent chunk, or one that was never written into its shard, as the fill
    value. Here that is an error unless the caller declares that absent chunks are fill values.
    """

    def __init__(
        self,
        store: Any,
        missing: str = "error",
        timeout: float | None = None,
        shards: ShardIndex | None = None,
        tally: Tally | None = None,
        frames: FrameLimit | None = None,
    ) -> None:
        super().__init__(store)
        self.missing, self.timeout, self.shards = missing, timeout, shards
        self.tally, self.frames = tally or Tally(), frames

    @property
    def wrapped(self) -> Any:
        """The underlying store: reads from it are neither counted nor checked."""
        return self._store

    def limited(self, dim: int, size: int) -> GuardedStore:
        """The same store for an array that ends after ``size`` along dim: chunks of a
        shard beyond that may be absent."""
        other = copy.copy(self)
        other.shards = None if self.shards is None else self.shards.limited(dim, size)
        return other

    def _with_store(self, store: Any) -> GuardedStore:
        return GuardedStore(store, self.missing, self.timeout, self.shards, self.tally, self.frames)

    async def get(
        self, key: str, prototype: BufferPrototype, byte_range: ByteRequest | None = None
    ) -> Buffer | None:
        try:
            with plain_errors():
                async with asyncio.timeout(self.timeout):
                    value: Buffer | None = await self._store.get(key, prototype, byte_range)
        except TimeoutError:
            raise no_answer(repr(key), str(self._store), self.timeout) from None
        if key.rsplit("/", 1)[-1] in METADATA:
            return value
        whole = None if value is None or byte_range is not None else value.as_numpy_array()
        self.note(key, None if value is None else len(value), whole)
        expected = (
            byte_range.end - byte_range.start if isinstance(byte_range, RangeByteRequest) else 1
        )
        if value is not None and len(value) < expected:  # of a shard, Zarr would make fill values
            raise DamagedSourceError(
                f"{key!r} in {hide_secrets(str(self._store))} ends too early, at {len(value)} of "
                f"{expected} bytes that were read of it: it was cut off. Restore it."
            )
        if value is not None and self.shards is not None:
            absent = self.shards.absent(key, value, byte_range) if self.missing == "error" else None
            if absent is not None:
                raise self._refusal(absent)
            self.shards.check_frames(key, value, byte_range)
        if value is not None and self.frames is not None:
            self.frames.check(key, value.to_bytes())
        return value

    def note(self, key: str, nbytes: int | None, encoded: Any = None) -> None:
        """Count a chunk of so many stored bytes; None for an absent one.

        encoded : the chunk, if all of it was read.
        """
        if nbytes is not None:
            self.tally.add(ReadCount(chunks=1, stored=nbytes))
            if encoded is not None and self.tally.checksums is not None:
                self.tally.keep_checksums({key: checksum(encoded)})
            return
        if self.missing == "error":
            raise self._refusal(f"chunk {key!r}")

    def _refusal(self, what: str) -> SourceError:
        return AbsentChunkError(
            f"{what} is absent from {hide_secrets(str(self._store))}. Restore it; or, "
            "if absent chunks are meant to be the fill value, "
            "streampca.open(..., missing_chunks='fill'), or 'mask' for missing cells."
        )


def checksum(encoded: Any) -> int:
    """63 bits: the crc32c of all but the last four bytes, joined with those four.

    Of all bytes it would be the same number for every chunk that ends with its own crc32c, as
    Zarr's crc32c codec makes them: that is how such a code works.
    """
    data = np.frombuffer(encoded, np.uint8)
    body = data[: max(len(data) - 4, 0)]
    body.flags.writeable = False  # a writeable buffer is not accepted
    return int(google_crc32c.value(body)) << 31 ^ int.from_bytes(data[len(body) :].tobytes())


def no_answer(what: str, store: str, timeout: float | None) -> NoAnswerError:
    return NoAnswerError(
        f"no answer for {what} from {hide_secrets(store)} within {timeout:g} s. Try again; or "
        "wait longer: zarr.config.set({'async.timeout': seconds}), ZARR_ASYNC__TIMEOUT=seconds."
    )


# Chunks as they are stored: from files on this machine, or many at once from any other store.

CONCURRENCY = 10  # chunks that Zarr fetches and decodes at once within one read (its default)
MOST_STORED_BYTES = 1 << 31  # stored bytes of one chunk


class EncodedChunks:
    """The encoded chunks of a guarded store, by their keys.

    at_once : chunks to fetch together. From a local store it is one: each thread has one buffer,
    which its next chunk overwrites.
    """

    def __init__(self, guard: GuardedStore) -> None:
        self.guard = guard
        self.is_local = isinstance(guard.wrapped, zarr.storage.LocalStore)
        self.at_once = 1 if self.is_local else CONCURRENCY
        self.buffers = ThreadBuffers()

    def fetch(self, keys: list[str]) -> list[Any]:
        """Encoded chunks, checked and counted; None for an absent one if that is allowed."""
        if self.is_local:
            return [self._read_file(key) for key in keys]
        prototype = default_buffer_prototype()

        async def gather() -> list[Any]:
            return await asyncio.gather(*(self.guard.get(key, prototype) for key in keys))

        return [None if b is None else b.to_bytes() for b in sync(gather())]

    def look(self, key: str) -> bytes | None:
        """One chunk as currently stored, without counting it; None if it is absent."""
        if self.is_local:
            try:
                return read_regular(self._file(key), MOST_STORED_BYTES)
            except (FileNotFoundError, NotADirectoryError):
                return None
        with plain_errors():
            found = sync(
                self.guard.wrapped.get(key, default_buffer_prototype()), timeout=self.guard.timeout
            )
        return None if found is None else bytes(found.to_bytes())

    def _file(self, key: str) -> Path:
        store = self.guard.wrapped
        path: Path = store.file(key) if isinstance(store, BoundedLocal) else store.root / key
        return path

    def _read_file(self, key: str) -> Any:
        """One chunk of a local store, read into the reusable buffer of this thread."""
        path = self._file(key)
        try:
            with open(path, "rb", buffering=0, opener=open_at_once) as file:
                size = check_regular(file.fileno(), str(path))
                held: Any = self.buffers.take("encoded", size, spare=size // 8)
                view = memoryview(held)
                done = 0
                while done < size and (got := file.readinto(view[done:])):
                    done += got
        except (FileNotFoundError, NotADirectoryError):
            self.guard.note(key, None)
            return None
        self.guard.note(key, done, view[:done])
        return view[:done]


# Stores that refuse metadata which would take far more memory than they have bytes.
#
# Zarr keeps the attributes of an array as Python objects, at 15 to 50 times the bytes of their
# text.

MOST_METADATA_BYTES = 8 << 20  # bytes of one zarr.json, .zattrs or .zmetadata


class _Bounded(Store):
    """Reads no more metadata than MOST_METADATA_BYTES, else raises DamagedSourceError.

    ranged : whether the store can return a part of an object; else its size is checked after
    reading.
    """

    ranged = True

    async def get(
        self,
        key: str,
        prototype: BufferPrototype | None = None,
        byte_range: ByteRequest | None = None,
    ) -> Buffer | None:
        prototype = prototype or default_buffer_prototype()
        name = key.rsplit("/", 1)[-1]
        if name in METADATA and self.ranged:
            byte_range = RangeByteRequest(0, MOST_METADATA_BYTES + 1)
        value = await super().get(key, prototype, byte_range)  # type: ignore[safe-super]
        if name in METADATA and value is not None and len(value) > MOST_METADATA_BYTES:
            raise DamagedSourceError(
                f"{key!r} in {hide_secrets(str(self))} has more than "
                f"{MOST_METADATA_BYTES >> 20} MiB, and is not "
                "opened. Take attributes out of it; or, if you trust it, open it with Zarr and "
                "give the array: streampca.open(zarr.open_array(...))."
            )
        return value


class BoundedLocal(_Bounded, zarr.storage.LocalStore):
    """A directory. Refuses special files such as pipes, which would block a reader forever.

    external_links : also read files to which links in the store lead out of it.
    """

    external_links = False
    _folder = ""  # that was looked at last: the next chunk is mostly there too

    def file(self, key: str) -> Path:
        """The path of a key. Raises DamagedSourceError where a link leads out of the store."""
        path = self.root / key
        folder = os.path.dirname(path)
        if not self.external_links and (folder != self._folder or os.path.islink(path)):
            refuse_links_out(path, self.root)
            self._folder = folder
        return path

    async def get(
        self,
        key: str,
        prototype: BufferPrototype | None = None,
        byte_range: ByteRequest | None = None,
    ) -> Buffer | None:
        refuse_special(self.file(key))
        return await super().get(key, prototype, byte_range)


class BoundedZip(_Bounded, zarr.storage.ZipStore):
    """An archive, whose metadata may be compressed."""


class BoundedObjects(_Bounded, zarr.storage.ObjectStore):  # type: ignore[type-arg]
    """A prefix of a bucket, by obstore."""


class BoundedFsspec(_Bounded, zarr.storage.FsspecStore):
    """Any other URL: a web server may not support ranges."""

    ranged = False


def store_at(
    source: str, storage_options: Mapping[str, Any] | None, external_links: bool = False
) -> Store:
    """The store at a path or URL, to be read. Raises InvalidInputError for options of a path."""
    scheme = scheme_of(source)
    if not scheme and storage_options:
        raise InvalidInputError(f"storage_options are for URLs, and {source} is a path")
    if not scheme and source.endswith(".zip"):
        return BoundedZip(os.path.abspath(source), mode="r")
    if not scheme:
        store = BoundedLocal(os.path.abspath(source), read_only=True)
        store.external_links = external_links
        return store
    options = dict(storage_options or {})
    if scheme in OBJECTS and has_obstore():
        return BoundedObjects(open_objects(source, options), read_only=True)
    try:
        return BoundedFsspec.from_url(source, storage_options=options, read_only=True)
    except ImportError as error:
        if scheme in OBJECTS:
            raise no_obstore() from None
        raise MissingDependencyError(
            f"{scheme}:// cannot be read ({error}): pip install fsspec aiohttp requests"
        ) from None


@contextlib.contextmanager
def metadata_errors(source: str) -> Iterator[None]:
    """Turn Zarr's errors about invalid metadata into a DamagedSourceError."""
    try:
        yield
    except (StreamPCAError, FileNotFoundError):  # some of Zarr's are a ValueError too
        raise
    except (ValueError, TypeError, zarr.errors.UnknownCodecError) as error:
        newer = "; a newer Zarr may read it: pip install -U zarr" * ("Unknown c" in str(error))
        raise DamagedSourceError(
            f"{hide_secrets(source)}: its metadata are damaged, or of a kind that is not read: "
            f"{error}{newer}"
        ) from error


def is_repository(path: str) -> bool:
    """Whether a local directory holds an Icechunk repository, of the first or second format."""
    return os.path.isdir(os.path.join(path, "snapshots")) and (
        os.path.isdir(os.path.join(path, "refs")) or os.path.isfile(os.path.join(path, "repo"))
    )


def rebuilt(array: Any, *, store: Any = None, metadata: Any = None) -> Any:
    """The same ``zarr.Array`` through another store, or with other metadata; nothing is written."""
    one = array.async_array
    place = one.store_path if store is None else StorePath(store, one.store_path.path)
    return zarr.Array(zarr.AsyncArray(metadata or one.metadata, place, one.config))


# Small arrays in the Zarr group of the data: labels, coordinates.


def whole(array: Any) -> np.ndarray[Any, Any]:
    """A small array in the group of the data, read whole; absent chunks are fill values.

    Anything but a ``zarr.Array`` (HDF5) gives its values. Raises DamagedSourceError.
    """
    if not isinstance(array, zarr.Array):
        return np.asarray(array[...])
    shards, limit = ShardIndex.of(array, strict=False), FrameLimit.of(array)
    guard = GuardedStore(array.store, "fill", default_timeout(), shards, frames=limit)
    try:
        return np.asarray(rebuilt(array, store=guard)[...])
    except (StreamPCAError, MemoryError, OSError):
        raise
    except Exception as error:  # every codec has errors of its own
        where = hide_secrets(f"{array.store}/{array.path}")
        raise DamagedSourceError(f"{where}: a chunk is damaged: {error}") from error


def place_of(array: Any) -> str:
    """The canonical place of a ``zarr.Array``, guarded or not, without credentials."""
    store = getattr(array.store, "wrapped", array.store)
    found = local_paths(store, array.path)
    if snapshot_of(store):
        return f"icechunk/{array.path}"  # a session does not tell which repository it is of
    return found[0] if found else hide_secrets(f"{store}/{array.path}")


def snapshot_of(store: Any) -> str:
    """The snapshot of an Icechunk store, guarded or not; "" for other stores."""
    if not type(store).__module__.startswith("icechunk"):
        store = getattr(store, "_store", None)
    if not type(store).__module__.startswith("icechunk"):
        return ""
    return str(store.session.snapshot_id)


def local_paths(store: Any, path: str) -> tuple[str, ...]:
    """(directory of the array,) or (archive,) if it is on this machine, else ()."""
    if isinstance(store, zarr.storage.LocalStore):
        return (os.path.realpath(os.path.join(store.root, path)),)
    if isinstance(store, zarr.storage.ZipStore):
        return (os.path.realpath(store.path),)
    return ()


def held_in_process(store: Any) -> str:
    """The kind of store whose chunks are in the memory of this process; "" for others."""
    store = _unwrapped(store)
    if isinstance(store, zarr.storage.MemoryStore):
        return f"a zarr {type(store).__name__}"
    if isinstance(store, zarr.storage.ObjectStore) and type(store.store).__name__ == "MemoryStore":
        return "an obstore MemoryStore"
    return "memory://" if "memory" in protocols_of(store) else ""


def absolute(store: Any) -> Any:
    """The store with an absolute path, so that a process in another folder finds it."""
    if isinstance(store, zarr.storage.LocalStore) and not store.root.is_absolute():
        store = copy.copy(store)
        store.root = store.root.absolute()
    elif isinstance(store, zarr.storage.ZipStore) and not store.path.is_absolute():
        store = copy.copy(store)
        store.path = store.path.absolute()
    return store


def local_store(store: Any) -> Any:
    """The directory on this machine that a store is, as one of Zarr's own; None of any other."""
    if type(store) is zarr.storage.LocalStore:
        return absolute(store)
    if not {"file", "local"} & set(protocols_of(store)) or not os.path.isabs(store.path):
        return None
    return zarr.storage.LocalStore(store.path, read_only=True)


def zarr_array_in(wrapper: Any) -> Any:
    """The Zarr array that xarray's wrappers around it hold, or None."""
    for _ in range(8):
        if wrapper is None or isinstance(wrapper, zarr.Array):
            return wrapper
        inner = getattr(wrapper, "_array", None)
        wrapper = getattr(wrapper, "array", None) if inner is None else inner
    return None


def protocols_of(store: Any) -> tuple[str, ...]:
    """The fsspec protocols of a store; none for other stores."""
    if not isinstance(store, zarr.storage.FsspecStore):
        return ()
    named = store.fs.protocol
    return (named,) if isinstance(named, str) else tuple(named)


def _unwrapped(store: Any) -> Any:
    while isinstance(store, zarr.storage.WrapperStore):
        store = store._store
    return store


def dims_of(array: Any) -> tuple[Any, ...]:
    """Names of the dimensions of an array, where they are stored; of Zarr 3, some may be None."""
    names: Any = getattr(array.metadata, "dimension_names", None)
    return tuple(names or array.attrs.get("_ARRAY_DIMENSIONS") or ())
