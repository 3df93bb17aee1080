"""Zarr arrays and groups by path, archive, URL or Icechunk snapshot."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import Any

import numpy as np
import zarr
import zarr.storage
from zarr.api import asynchronous
from zarr.core.sync import sync

from streampca.errors import (
    InvalidInputError,
    SourceError,
    StaleMetadataWarning,
    hide_secrets,
    warn_caller,
)
from streampca.matrix import AxisLabels
from streampca.matrix.block import check_dtype
from streampca.paths import plain_errors
from streampca.sources.cf import Decoding, coded_attributes, plain_code, related
from streampca.sources.genotypes.vcf_zarr import is_vcf_zarr
from streampca.sources.stacked import Dim, StackedMatrix, stack
from streampca.sources.suggestions import folder_contents
from streampca.sources.zarr.labels import GroupColumns, group_labels
from streampca.sources.zarr.reader import ZarrReader
from streampca.sources.zarr.stores import (
    default_timeout,
    dims_of,
    metadata_errors,
    no_answer,
    store_at,
)

# Zarr arrays and groups by path, archive or URL, and which array of a group is meant.


def open_array(
    source: str, storage_options: dict[str, Any] | None = None, external_links: bool = False
) -> Any:
    """The Zarr array or group at a path or URL. Raises SourceError where there is none.

    external_links : also read files to which links in the store lead out of it.
    """
    timeout = default_timeout()
    try:
        with metadata_errors(source):
            return _open(store_at(source, storage_options, external_links), timeout)
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
            f"no Zarr array or group at {hide_secrets(source)}{folder_contents(source)}"
        ) from error


def _open(store: Any, timeout: float) -> Any:
    if isinstance(store, zarr.storage.ZipStore):
        try:
            return zarr.open(store, mode="r")
        except ValueError:  # consolidated metadata that name a data type Zarr does not know
            return zarr.open_group(store, mode="r", use_consolidated=False)

    async def opened() -> Any:
        async with asyncio.timeout(timeout):  # a timeout of ``sync`` leaves the request running
            return await asynchronous.open(store=store, mode="r")

    with plain_errors():
        node = sync(opened())
    return zarr.Array(node) if isinstance(node, zarr.AsyncArray) else zarr.Group(node)


def pick_array(node: Any, variable: str | None, source: str) -> Any:
    """The array itself, the named one of a group, or its only matrix; says which there are.

    Coordinates and cell bounds, as xarray writes them, are not data. Of several arrays, the only
    one with two or more dimensions is taken.
    """
    if not isinstance(node, zarr.Group):
        return node
    if variable and isinstance(found := node.get(variable), zarr.Array):
        return found
    arrays: dict[str, Any] = {
        name: array
        for name, array in node.members(max_depth=None)
        if not isinstance(array, zarr.Group)
    }
    named = related(dict(node.attrs)).union(*(_described(n, a) for n, a in arrays.items()))
    data = [n for n, a in arrays.items() if not (n in named or _is_coordinate(n, a))]
    wide = [n for n in data if arrays[n].ndim >= 2]
    for some in (data, wide):
        if variable is None and len(some) == 1:
            return arrays[some[0]]
    shown = ", ".join(f"{name} {array.shape}" for name, array in sorted(arrays.items())) or "none"
    example = min(wide, default=next(iter(arrays), "X"))
    source = hide_secrets(source)
    problem = "does not say which array" if variable is None else f"has no array {variable!r}"
    raise InvalidInputError(
        f"{source} is a Zarr group and the call {problem}; it holds: {shown}. "
        f"Use streampca.open({source!r}, variable={example!r})."
    )


def _described(name: str, array: Any) -> set[str]:
    """Names of the arrays that describe this one, such as cell bounds, as its group has them."""
    folder = name.rpartition("/")[0]
    return {f"{folder}/{one}" if folder else one for one in related(dict(array.attrs))}


def _is_coordinate(name: str, array: Any) -> bool:
    """Whether an array is the coordinate of its own dimension, as xarray writes them."""
    return array.ndim == 1 and dims_of(array) == (name.rpartition("/")[2],)


def from_zarr(
    node: Any,
    variable: str | None,
    dim: Dim,
    missing_chunks: str,
    missing_value: float | None,
    source: str,
) -> StackedMatrix:
    """The matrix of an array, or of one array of a group."""
    grouped = isinstance(node, zarr.Group)
    if grouped and variable is None:
        variable = node.attrs.get("streampca_array")
    array = pick_array(node, variable, source)
    node, array = up_to_date(node, array, source), described_by_itself(array)
    _check_array(array, source)
    dim = array.attrs.get("streampca_samples") if dim is None else dim
    names = dims_of(array)
    by_xarray = bool(names) and all(names) and not is_vcf_zarr(node)
    stored, code, decoding = np.dtype(array.dtype), None, None
    if by_xarray or array.attrs:
        attributes = coded_attributes(array, by_xarray)
        code = plain_code(attributes, stored, by_xarray)
        decoding = None if code is not None else Decoding.of(attributes, stored)
    hole = code if missing_value is None else missing_value
    reader = ZarrReader(array, missing_chunks, decoding, hole=hole)
    check_dtype(reader.dtype)
    matrix = stack(reader, dim, names or None)
    matrix.missing_value = code
    if grouped:
        matrix.annotations = GroupColumns(node)
        if names:
            matrix.labels = group_labels(node, array, names, matrix.dims)
    if grid := array.attrs.get("streampca_grid"):  # dimensions that were stacked, without names
        dims, sizes = zip(*grid, strict=True)
        matrix.labels = replace(matrix.labels, features=AxisLabels(dims, sizes))
    return matrix


def group_in(node: Any, group: str, source: str) -> Any:
    """A group of a group, by its path."""
    found = node.get(group.strip("/")) if isinstance(node, zarr.Group) else None
    if isinstance(found, zarr.Group):
        return found
    members = node.members() if isinstance(node, zarr.Group) else ()
    held = [name for name, one in members if isinstance(one, zarr.Group)]
    shown = ", ".join(sorted(held)) or "none"
    raise InvalidInputError(f"{hide_secrets(source)} has no group {group!r}; its groups: {shown}")


def _check_array(array: Any, source: str) -> None:
    """Refuse a dtype, a chunk grid and an array that are not read."""
    check_dtype(np.dtype(array.dtype))
    try:
        array.chunks, array.shards  # noqa: B018
    except NotImplementedError:
        place = hide_secrets(source)
        line = f"zarr.create_array('regular.zarr', data=zarr.open_array({place!r})[...])"
        if array.path and all(dims_of(array)):
            line = f"xarray.open_zarr({place!r}, consolidated=False)[{array.path!r}]"
        raise InvalidInputError(
            f"{place}: the chunks of {array.path or 'this array'} have several lengths (a "
            f"rectilinear grid), and are read through xarray or after a copy: {line}"
        ) from None
    if array.attrs.get("streampca_complete") is False:
        raise SourceError(
            f"{hide_secrets(source)} was not written to its end. Run its writer again "
            "(streampca convert continues where it stopped), or remove it."
        )


def described_by_itself(array: Any) -> Any:
    """The same ``zarr.Array`` as its own metadata describe it now. Cost: one read."""
    kind = array.metadata.zarr_format
    return zarr.open_array(array.store, path=array.path, mode="r", zarr_format=kind)


def up_to_date(node: Any, array: Any, source: str) -> Any:
    """The group, without its copies of metadata where that of this array is stale; warns then.

    Shape, chunks and labels thus come from one state of the store.
    """
    if array is None or not isinstance(node, zarr.Group):
        return node
    if node.metadata.consolidated_metadata is None:
        return node
    own = described_by_itself(array)
    if _stored(own) == _stored(array):
        return node
    place = hide_secrets(source)
    warn_caller(
        f"{place}: the consolidated metadata are stale: they describe {array.path!r} as "
        f"{array.shape}, and it is {own.shape} by itself, as it is read here. Other readers may "
        f"miss rows: zarr.consolidate_metadata({place!r}), after every change",
        StaleMetadataWarning,
    )
    kind = node.metadata.zarr_format
    return zarr.open_group(
        node.store, path=node.path, mode="r", zarr_format=kind, use_consolidated=False
    )


def _stored(array: Any) -> dict[str, Any]:
    return {k: v for k, v in array.metadata.to_dict().items() if k != "attributes"}
