"""A Zarr array or group as a matrix: which array, how it is decoded, and its labels."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import zarr

from streampca.errors import (
    InvalidInputError,
    SourceError,
    StaleMetadataWarning,
    hide_secrets,
    warn_caller,
)
from streampca.matrix import AxisLabels, ChunkedMatrix
from streampca.matrix.kinds import check_dtype
from streampca.sources.columns import GroupColumns
from streampca.sources.genotypes.vcf_zarr import GENOTYPES, is_vcf_zarr, open_vcf_zarr
from streampca.sources.labelled.cf import Decoding
from streampca.sources.sparse.anndata import is_anndata, is_sparse_group, open_group
from streampca.sources.stacked import Dim, stack
from streampca.sources.zarr.labels import coded_attributes, dims_of, group_labels, plain_code
from streampca.sources.zarr.opening import pick_array
from streampca.sources.zarr.reader import ZarrReader


def from_zarr(
    node: Any,
    variable: str | None,
    dim: Dim,
    policy: tuple[str, str, float | None],
    source: str,
    group: str | None = None,
) -> ChunkedMatrix:
    """policy : for absent chunks and multi-allelic variants, and the missing code."""
    missing_chunks, multiallelic, missing_value = policy
    if group:
        node = _inner(node, group, source)
    grouped = isinstance(node, zarr.Group)
    if grouped and (is_sparse_group(node) or (is_anndata(node) and dim in (None, 0))):
        found = (node.get(name) for name in (variable or "X", "X/data", "data"))
        node = _up_to_date(node, next(filter(_is_array, found), None), source)
        return open_group(node, variable, dim, hide_secrets(source), missing_chunks)
    if grouped and variable is None:
        if is_vcf_zarr(node) and dim in (None, 1, "samples", "sample"):
            return open_vcf_zarr(
                _up_to_date(node, node[GENOTYPES], source),
                source,
                multiallelic=multiallelic,
                missing_chunks=missing_chunks,
            )
        variable = node.attrs.get("streampca_array")
    array = pick_array(node, variable, source)
    node, array = _up_to_date(node, array, source), described_by_itself(array)
    _check_array(array, source)
    dim = array.attrs.get("streampca_samples") if dim is None else dim
    names = dims_of(array)
    by_xarray = bool(names) and all(names) and not is_vcf_zarr(node)
    attributes = coded_attributes(array, by_xarray)
    code = plain_code(attributes, np.dtype(array.dtype), by_xarray)
    decoding = None if code is not None else Decoding.of(attributes, np.dtype(array.dtype))
    hole = code if missing_value is None else missing_value
    reader = ZarrReader(array, missing_chunks, decoding, hole=hole)
    check_dtype(reader.dtype, kind="zarr")
    matrix = stack(reader, dim, names or None)
    matrix.missing_value = code
    if grouped:
        matrix.beside = GroupColumns(node)
        if names:
            matrix.labels = group_labels(node, array, names, matrix.dims)
    if grid := array.attrs.get("streampca_grid"):  # dimensions that were stacked, without names
        dims, sizes = zip(*grid, strict=True)
        matrix.labels = replace(matrix.labels, features=AxisLabels(dims, sizes))
    return matrix


def _inner(node: Any, group: str, source: str) -> Any:
    """A group of a group, by its path."""
    found = node.get(group.strip("/")) if isinstance(node, zarr.Group) else None
    if isinstance(found, zarr.Group):
        return found
    held = (
        [name for name, one in node.members() if isinstance(one, zarr.Group)]
        if (isinstance(node, zarr.Group))
        else []
    )
    shown = ", ".join(sorted(held)) or "none"
    raise InvalidInputError(f"{hide_secrets(source)} has no group {group!r}; its groups: {shown}")


def _is_array(node: Any) -> bool:
    return isinstance(node, zarr.Array)


def _check_array(array: Any, source: str) -> None:
    """Refuse a dtype, a chunk grid and an array that are not read."""
    check_dtype(np.dtype(array.dtype), kind="zarr")
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


# Consolidated metadata: copies in a group, which some writers do not renew.


def described_by_itself(array: Any) -> Any:
    """The same ``zarr.Array`` as its own metadata describe it now. Cost: one read."""
    kind = array.metadata.zarr_format
    return zarr.open_array(array.store, path=array.path, mode="r", zarr_format=kind)


def _up_to_date(node: Any, array: Any, source: str) -> Any:
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
