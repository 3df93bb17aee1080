"""Stores that refuse metadata which would take far more memory than they have bytes.

Zarr keeps the attributes of an array as Python objects, at 15 to 50 times the bytes of their text.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any

import zarr.storage
from zarr.abc.store import ByteRequest, RangeByteRequest, Store
from zarr.core.buffer import Buffer, BufferPrototype, default_buffer_prototype

from streampca.errors import DamagedSourceError, InvalidInputError, MissingDependencyError
from streampca.regular_file import refuse_special
from streampca.remote import OBJECTS, has_obstore, open_objects, scheme_of
from streampca.shown import hide_secrets
from streampca.sources.zarr_guard import METADATA

MOST = 8 << 20  # bytes of one zarr.json, .zattrs or .zmetadata


class _Bounded(Store):
    """Reads no more than MOST bytes of metadata. Raises DamagedSourceError where there are more.

    ranged : whether a part of an object can be asked for; else it is measured when it is there.
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
            byte_range = RangeByteRequest(0, MOST + 1)
        value = await super().get(key, prototype, byte_range)  # type: ignore[safe-super]
        if name in METADATA and value is not None and len(value) > MOST:
            raise DamagedSourceError(
                f"{key!r} in {hide_secrets(str(self))} has more than {MOST >> 20} MiB, and is not "
                "opened. Take attributes out of it; or, if you trust it, open it with Zarr and "
                "give the array: streampca.open(zarr.open_array(...))."
            )
        return value


class BoundedLocal(_Bounded, zarr.storage.LocalStore):
    """A directory. What lies in the place of a file and is none would hang whoever reads it."""

    async def get(
        self,
        key: str,
        prototype: BufferPrototype | None = None,
        byte_range: ByteRequest | None = None,
    ) -> Buffer | None:
        refuse_special(self.root / key)
        return await super().get(key, prototype, byte_range)


class BoundedZip(_Bounded, zarr.storage.ZipStore):
    """An archive, whose metadata may be compressed."""


class BoundedObjects(_Bounded, zarr.storage.ObjectStore):  # type: ignore[type-arg]
    """A prefix of a bucket, by obstore."""


class BoundedFsspec(_Bounded, zarr.storage.FsspecStore):
    """Anything else by URL: a web server need not know of parts."""

    ranged = False


def store_at(source: str, storage_options: Mapping[str, Any] | None) -> Store:
    """The store at a path or URL, to be read. Raises InvalidInputError for options of a path."""
    scheme = scheme_of(source)
    if not scheme and storage_options:
        raise InvalidInputError(f"storage_options are for URLs, and {source} is a path")
    if not scheme and source.endswith(".zip"):
        return BoundedZip(os.path.abspath(source), mode="r")
    if not scheme:
        return BoundedLocal(os.path.abspath(source), read_only=True)
    options = dict(storage_options or {})
    if scheme in OBJECTS and has_obstore():
        return BoundedObjects(open_objects(source, options), read_only=True)
    try:
        return BoundedFsspec.from_url(source, storage_options=options, read_only=True)
    except ImportError as error:
        packages = "obstore" if scheme in OBJECTS else "fsspec aiohttp requests"
        raise MissingDependencyError(
            f"{scheme}:// cannot be read ({error}): pip install {packages}"
        ) from None
