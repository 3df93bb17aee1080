"""Zarr arrays and groups by path, archive or URL, and which array of a group is meant."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Iterator
from typing import Any

import zarr
import zarr.storage
from zarr.api import asynchronous
from zarr.core.sync import sync

from streampca.errors import DamagedSourceError, InvalidInputError, SourceError, StreamPCAError
from streampca.remote import plain_errors
from streampca.shown import hide_secrets
from streampca.sources.hints import in_folder
from streampca.sources.zarr_guard import default_timeout, no_answer
from streampca.sources.zarr_metadata import store_at


def open_array(
    source: str,
    storage_options: dict[str, Any] | None = None,
    read_timeout: float | None = None,
) -> Any:
    """The Zarr array or group at a path or URL. Raises SourceError where there is none."""
    timeout = read_timeout or default_timeout()
    try:
        with understood(source):
            return _open(source, storage_options, timeout)
    except TimeoutError:
        raise no_answer("its metadata", source, timeout) from None
    except (
        FileNotFoundError,
        KeyError,
        zarr.errors.GroupNotFoundError,
        zarr.errors.ArrayNotFoundError,
        zarr.errors.NodeNotFoundError,
    ) as error:
        raise SourceError(
            f"no Zarr array or group at {hide_secrets(source)}{in_folder(source)}"
        ) from error


def _open(source: str, storage_options: dict[str, Any] | None, timeout: float) -> Any:
    store = store_at(source, storage_options)
    if isinstance(store, zarr.storage.ZipStore):
        try:
            return zarr.open(store, mode="r")
        except ValueError:  # consolidated metadata that name a data type Zarr does not know
            return zarr.open_group(store, mode="r", use_consolidated=False)

    async def opened() -> Any:
        async with asyncio.timeout(timeout):  # of ``sync``, it would leave the request under way
            return await asynchronous.open(store=store, mode="r")

    with plain_errors():
        node = sync(opened())
    return zarr.Array(node) if isinstance(node, zarr.AsyncArray) else zarr.Group(node)


@contextlib.contextmanager
def understood(source: str) -> Iterator[None]:
    """What Zarr makes of metadata that it does not take, as our error."""
    try:
        yield
    except (StreamPCAError, FileNotFoundError):  # some of Zarr's are a ValueError too
        raise
    except (ValueError, TypeError, zarr.errors.UnknownCodecError) as error:
        raise DamagedSourceError(
            f"{hide_secrets(source)}: its metadata are damaged, or of a kind that is not read: "
            f"{error}"
        ) from error


def pick_array(node: Any, variable: str | None, source: str) -> Any:
    """The array itself, the named one of a group, or its only matrix; says which there are.

    Coordinates and cell bounds, as xarray writes them, are no data; of several arrays the only one
    with two dimensions or more is meant.
    """
    if not isinstance(node, zarr.Group):
        return node
    arrays: dict[str, Any] = {
        name: array
        for name, array in node.members(max_depth=None)
        if not isinstance(array, zarr.Group)
    }
    if variable in arrays:
        return arrays[variable]
    named = {n for one in (node, *arrays.values()) for n in _beside(dict(one.attrs))}
    data = [n for n, a in arrays.items() if not (n in named or _is_coordinate(n, a))]
    wide = [n for n in data if arrays[n].ndim >= 2]
    for found in (data, wide):
        if variable is None and len(found) == 1:
            return arrays[found[0]]
    shown = ", ".join(f"{name} {array.shape}" for name, array in sorted(arrays.items())) or "none"
    example = min(wide, default=next(iter(arrays), "X"))
    asked = "does not say which array" if variable is None else f"has no array {variable!r}"
    raise InvalidInputError(
        f"{source} is a Zarr group and the call {asked}; it holds: {shown}. "
        f"Use streampca.open({source!r}, variable={example!r})."
    )


def _beside(attributes: dict[str, Any]) -> list[str]:
    """Names of the coordinates and cell bounds that attributes tell of."""
    return f"{attributes.get('coordinates', '')} {attributes.get('bounds', '')}".split()


def _is_coordinate(name: str, array: Any) -> bool:
    """Whether an array is the coordinate of its own dimension, as xarray writes them."""
    dims = getattr(array.metadata, "dimension_names", None) or array.attrs.get("_ARRAY_DIMENSIONS")
    return array.ndim == 1 and dims is not None and tuple(dims) == (name.rpartition("/")[2],)
