"""What lies at a path or URL, or in a Zarr node: the format is known by its name or content."""

from __future__ import annotations

import os
from typing import Any

import numpy as np
import zarr

from streampca.errors import InvalidInputError, SourceError
from streampca.matrix import ChunkedMatrix
from streampca.matrix.kinds import check_dtype
from streampca.remote import check_readable
from streampca.shown import hide_secrets
from streampca.sources.anndata import (
    is_anndata,
    is_sparse_group,
    open_anndata,
    open_h5ad,
    open_sparse_group,
)
from streampca.sources.cf import plain_code
from streampca.sources.columns import GroupColumns
from streampca.sources.dimensions import Dim
from streampca.sources.hints import how_to_convert, instead_of
from streampca.sources.matrix_market import open_matrix_market
from streampca.sources.npy import NpyReader
from streampca.sources.sparse_npz import open_sparse_npz
from streampca.sources.stacked import stack
from streampca.sources.vcf_zarr import is_vcf_zarr, open_vcf_zarr
from streampca.sources.zarr_coordinates import group_labels
from streampca.sources.zarr_opening import open_array, pick_array, understood
from streampca.sources.zarr_store import ZarrReader


def open_path(
    path: str,
    variable: str | None,
    dim: Dim,
    policy: tuple[str, str, float | None],
    storage_options: dict[str, Any] | None,
    external_links: bool = False,
) -> ChunkedMatrix:
    remote = "://" in path
    check_readable(path)
    if not remote and not os.path.exists(path):
        whole, _, _inner = path.rpartition(".zarr/")
        if not (whole and os.path.isdir(whole + ".zarr")):
            raise SourceError(f"{path}: no such file or directory{instead_of(path)}")
    if path.endswith(".npy"):
        return stack(NpyReader(path), dim)
    if path.endswith((".mtx", ".mtx.gz")):
        return open_matrix_market(path, dim)
    if path.endswith((".h5ad", ".h5", ".npz")):
        return _oriented(path, dim, variable, external_links)
    if path.endswith((".nc", ".nc4", ".cdf", ".h5netcdf")):
        from streampca.sources.labelled import from_netcdf

        return from_netcdf(path, variable, dim)
    if not remote and os.path.isfile(path) and not path.endswith(".zip"):
        raise SourceError(f"{path}: {how_to_convert(path)}")
    node = open_array(path, storage_options)
    with understood(path):
        return from_zarr(node, variable, dim, policy, path)


def _oriented(path: str, dim: Dim, variable: str | None, external_links: bool) -> ChunkedMatrix:
    """Files whose rows are samples by their format."""
    if dim not in (None, 0):
        raise InvalidInputError(f"dim={dim!r}; the rows of {path} are its samples")
    if path.endswith(".npz"):
        return open_sparse_npz(path)
    return open_h5ad(path, variable, external_links)


def from_zarr(
    node: Any, variable: str | None, dim: Dim, policy: tuple[str, str, float | None], source: str
) -> ChunkedMatrix:
    """policy : for absent chunks, for multi-allelic variants, and the number that means missing."""
    missing_chunks, multiallelic, missing_value = policy
    if is_sparse_group(node) or (is_anndata(node) and dim in (None, 0)):
        if dim not in (None, 0):
            raise InvalidInputError(f"dim={dim!r}; the rows of a sparse group are its samples")
        shown = hide_secrets(source)
        if is_anndata(node):
            return open_anndata(node, variable, shown, missing_chunks)
        return open_sparse_group(node, shown, missing_chunks)
    if isinstance(node, zarr.Group) and variable is None:
        if is_vcf_zarr(node) and dim in (None, 1, "samples", "sample"):
            return open_vcf_zarr(
                node, source, multiallelic=multiallelic, missing_chunks=missing_chunks
            )
        variable = node.attrs.get("streampca_array")  # type: ignore[assignment]
    array = pick_array(node, variable, hide_secrets(source))
    check_dtype(np.dtype(array.dtype))
    if array.attrs.get("streampca_complete") is False:
        raise SourceError(
            f"{hide_secrets(source)} was not written to its end. Start what was writing it again "
            "(streampca convert goes on where it stopped), or remove it."
        )
    dim = array.attrs.get("streampca_samples") if dim is None else dim
    code = plain_code(dict(array.attrs), np.dtype(array.dtype))
    hole = code if missing_value is None else missing_value
    reader = ZarrReader(array, missing_chunks, decode=code is None, hole=hole)
    names: Any = getattr(array.metadata, "dimension_names", None) or reader.attributes.get(
        "_ARRAY_DIMENSIONS"
    )
    matrix = stack(reader, dim, None if names is None else tuple(names))
    matrix.missing_value = code
    if names is not None and isinstance(node, zarr.Group):
        matrix.labels = group_labels(node, array, tuple(names), matrix.dims)
    if isinstance(node, zarr.Group):
        matrix.beside = GroupColumns(node)
    return matrix
