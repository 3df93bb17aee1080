"""``streampca.open``: anything as a ChunkedMatrix."""

from __future__ import annotations

import copy
import numbers
import os
import sys
from collections.abc import Hashable, Sequence
from typing import Any

import numpy as np
import scipy.sparse
import zarr

from streampca.errors import InvalidInputError, InvalidTypeError, SourceError
from streampca.matrix import AxisLabels, ChunkedMatrix, Labels, concat_features
from streampca.remote import check_readable, plain_errors
from streampca.sources.anndata import (
    from_anndata,
    is_anndata,
    is_sparse_group,
    open_anndata,
    open_h5ad,
    open_sparse_group,
)
from streampca.sources.cf import plain_code
from streampca.sources.icechunk_repository import Snapshots, Which, is_repository
from streampca.sources.matrix_market import open_matrix_market
from streampca.sources.memory import ArrayReader, NpyReader, from_sparse
from streampca.sources.plink import is_plink as _names_plink
from streampca.sources.plink import open_plink
from streampca.sources.several import join_stores, several_paths
from streampca.sources.sparse_npz import open_sparse_npz
from streampca.sources.stacked import Reader, StackedMatrix, check_dtype, check_rank
from streampca.sources.urls import hide_secrets
from streampca.sources.vcf_zarr import is_vcf_zarr, open_vcf_zarr
from streampca.sources.zarr_coordinates import group_labels
from streampca.sources.zarr_opening import open_array, pick_array, understood
from streampca.sources.zarr_store import ZarrReader

CONVERSIONS = {
    ".pgen": "plink2 --pfile {stem} --make-bed --out {stem}",
    ".bgen": "plink2 --bgen {path} ref-first --make-bed --out {stem}",
    ".ped": "plink1.9 --file {stem} --make-bed --out {stem}",
    **{
        suffix: "vcf2zarr convert {path} {stem}.vcz, or plink2 --vcf {path} --make-bed --out {stem}"
        for suffix in (".vcf", ".vcf.gz", ".bcf")
    },
}

Dim = Hashable | Sequence[Hashable] | None


def open(
    source: Any,
    *,
    variable: str | Sequence[str] | None = None,
    dim: Dim = None,
    missing_value: float | None = None,
    missing_chunks: str = "error",
    multiallelic: str = "error",
    branch: str | None = None,
    tag: str | None = None,
    snapshot: str | None = None,
    storage_options: dict[str, Any] | None = None,
) -> ChunkedMatrix:
    """Open anything as a matrix of samples x features that is read in blocks.

    source : a path or URL of a Zarr array or group (one that is an AnnData, or a sparse matrix as
        AnnData writes it, too), a NetCDF or ``.npy`` file; ``.h5ad``, 10x ``.h5``, MatrixMarket
        ``.mtx``, sparse ``.npz``; an AnnData in memory; PLINK 1 filesets
        by the path of a ``.bed``; a list of paths or a pattern (``chr*.bed``, ``chr*.zarr``):
        the same samples, the features of all; a ``zarr.Array`` or ``zarr.Group`` (one with
        ``call_genotype`` is a VCF Zarr); an xarray DataArray or Dataset; a Dask array (any
        graph); NumPy, lists, data frames; scipy.sparse; or a ChunkedMatrix.
    variable : which array of a group or file ("layers/counts" or "raw/X" of an AnnData);
        a list of them gives the features of all, side by side.
    dim : the sample dimension(s), by name or number; the rest is stacked into features. Needed
        for anything that is not 2-D. Default: the first of two, or "time" where a dimension is
        called so.
    missing_value : a number that means "missing" (-1, -9), beside NaN.
    missing_chunks : "error" refuses a Zarr chunk that is absent; "fill" reads its fill value;
        "mask" reads missing cells, which ``missing=`` of the model decides about (integers need a
        ``missing_value`` for that).
    multiallelic : variants of more than two alleles in a VCF Zarr: "error", or "drop".
    branch, tag, snapshot : of an Icechunk repository, at most one: which snapshot is read, all the
        time, whoever commits meanwhile. A local repository is known as one, and without them the
        head of "main" is taken; at an ``s3://`` URL say which.
    storage_options : for remote stores; never kept in results.
        A read without an answer for 300 s fails, or for what ``zarr.config`` has as
        ``async.timeout`` (``ZARR_ASYNC__TIMEOUT``).

    Cost: metadata only; nothing is read.
    Raises InvalidInputError, InvalidTypeError (dtype) or SourceError (not there, unreadable).
    """
    number = isinstance(missing_value, numbers.Real) and not isinstance(missing_value, bool)
    if missing_value is not None and not number:
        raise InvalidTypeError(f"missing_value={missing_value!r}; expected a number such as -9")
    options: dict[str, Any] = {
        "dim": dim, "missing_value": missing_value, "missing_chunks": missing_chunks,
        "multiallelic": multiallelic, "storage_options": storage_options,
        "branch": branch, "tag": tag, "snapshot": snapshot,
    }  # fmt: skip
    which = {"branch": branch, "tag": tag, "snapshot": snapshot}
    if not (variable is None or isinstance(variable, str)):
        parts = [open(source, variable=name, **options) for name in variable]
        return concat_features(*parts, variables=variable)
    if isinstance(source, ChunkedMatrix):
        return _opened_before(source, variable, dim, missing_value)
    if _names_plink(source):
        matrix: ChunkedMatrix = open_plink(source)
    elif (paths := several_paths(source)) is not None:
        return join_stores(paths, [open(path, variable=variable, **options) for path in paths])
    elif isinstance(source, (str, os.PathLike)):
        policy = (missing_chunks, multiallelic, missing_value)
        path = os.fspath(source)
        if any(which.values()) or is_repository(path):
            return _open_repository(path, which, options, variable)
        matrix = _open_path(path, variable, dim, policy, storage_options)
    elif isinstance(source, zarr.Array | zarr.Group):
        policy = (missing_chunks, multiallelic, missing_value)
        matrix = _from_zarr(source, variable, dim, policy, str(source.store))
    elif _is(source, "xarray"):
        from streampca.sources.labelled import from_xarray

        matrix = from_xarray(source, variable, dim)
    elif _is(source, "dask"):
        from streampca.sources.dask_array import from_dask

        matrix = from_dask(source, dim)
    elif scipy.sparse.issparse(source):
        matrix = from_sparse(source, dim)
    elif _is(source, "anndata"):
        matrix = from_anndata(source, variable)
    else:
        matrix = from_array(source, dim)
    if missing_value is not None:
        matrix.missing_value = missing_value
    return matrix


def _open_repository(
    path: str, which: Which, options: dict[str, Any], variable: str | None
) -> ChunkedMatrix:
    """A snapshot of an Icechunk repository; which one it is does not change any more."""
    check_readable(path)
    snapshots = Snapshots(path, options["storage_options"])
    rest = {name: value for name, value in options.items()
            if name not in (*which, "storage_options")}  # fmt: skip
    with understood(path), plain_errors():
        matrix = open(snapshots.open(which), variable=variable, **rest)
    if isinstance(matrix, StackedMatrix) and isinstance(matrix.reader, ZarrReader):
        matrix.reader.pin(snapshots)
    return matrix


def _opened_before(
    matrix: ChunkedMatrix, variable: str | None, dim: Dim, missing_value: float | None
) -> ChunkedMatrix:
    """A matrix that was opened already, with a missing code if one is new. It is not changed."""
    if variable is not None or dim is not None:
        raise InvalidInputError(
            "this matrix was opened already: say dim= and variable= to streampca.open"
        )
    if missing_value is None or missing_value == matrix.missing_value:
        return matrix
    if matrix.missing_value is not None:
        raise InvalidInputError(
            f"missing_value={missing_value:g} contradicts the matrix, which was opened with "
            f"missing_value={matrix.missing_value:g}"
        )
    coded = copy.copy(matrix)
    coded.missing_value = missing_value
    return coded


def as_matrix(source: Any, *, dim: Dim = None, missing_value: float | None = None) -> ChunkedMatrix:
    """What ``fit`` and ``transform`` call: :func:`open` with the checks of an estimator."""
    matrix = open(source, dim=dim, missing_value=missing_value)
    n, p = matrix.shape
    if n == 0:
        raise InvalidInputError(
            f"Found array with 0 sample(s) (shape={matrix.shape}) while a minimum of 1 is required."
        )
    if p == 0:
        raise InvalidInputError(
            f"Found array with 0 feature(s) (shape={matrix.shape}) while a minimum of 1 is "
            "required."
        )
    return matrix


def from_array(array: Any, dim: Dim = None) -> ChunkedMatrix:
    """NumPy, a list of lists, or a data frame."""
    names, samples = None, None
    if hasattr(array, "columns") and hasattr(array, "to_numpy"):
        columns = list(array.columns)
        names = columns if all(isinstance(c, str) for c in columns) else None
        index = getattr(array, "index", None)
        samples = [str(i) for i in index] if index is not None and index.dtype == object else None
        values = array.to_numpy()
    else:
        values = np.asarray(array)
    if values.dtype.kind == "O":
        values = _numbers(values)
    check_dtype(values.dtype)
    dims = _dims(values.ndim, dim, None)
    if dims is None:
        check_rank(values.shape)
        dims = (0,)
    matrix = StackedMatrix(ArrayReader(values), dims)
    if names is not None or samples is not None:
        matrix.labels = Labels.plain(matrix.shape, names, samples)
    return matrix


def _numbers(values: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """An object array whose entries are all numbers, as float64 (as scikit-learn accepts)."""
    try:
        return values.astype(np.float64)
    except (TypeError, ValueError) as error:
        raise InvalidTypeError(
            f"dtype object cannot be used: {error}; argument must be a string or a number. "
            "Convert with X.astype('float64')."
        ) from None


def _open_path(
    path: str,
    variable: str | None,
    dim: Dim,
    policy: tuple[str, str, float | None],
    storage_options: dict[str, Any] | None,
) -> ChunkedMatrix:
    remote = "://" in path
    check_readable(path)
    if not remote and not os.path.exists(path):
        whole, _, _inner = path.rpartition(".zarr/")
        if not (whole and os.path.isdir(whole + ".zarr")):
            raise SourceError(f"{path}: no such file or directory")
    if path.endswith(".npy"):
        return _stack(NpyReader(path), dim, None)
    if path.endswith((".mtx", ".mtx.gz")):
        return open_matrix_market(path, dim)
    if path.endswith((".h5ad", ".h5", ".npz")):
        return _oriented(path, dim, variable)
    if path.endswith((".nc", ".nc4", ".cdf", ".h5netcdf")):
        from streampca.sources.labelled import from_netcdf

        return from_netcdf(path, variable, dim)
    if not remote and os.path.isfile(path) and not path.endswith(".zip"):
        raise SourceError(f"{path}: {_how_to_convert(path)}")
    node = open_array(path, storage_options)
    with understood(path):
        return _from_zarr(node, variable, dim, policy, path)


def _oriented(path: str, dim: Dim, variable: str | None) -> ChunkedMatrix:
    """Files whose rows are samples by their format."""
    if dim not in (None, 0):
        raise InvalidInputError(f"dim={dim!r}; the rows of {path} are its samples")
    if path.endswith(".npz"):
        return open_sparse_npz(path)
    return open_h5ad(path, variable)


def _how_to_convert(path: str) -> str:
    """What to do with a file that is not opened here."""
    for suffix, command in CONVERSIONS.items():
        if path.endswith(suffix):
            stem = path.removesuffix(suffix)
            made = command.format(path=path, stem=stem)
            return f"a {suffix} is not read directly; convert it: {made}"
    known = ".bed, .nc, .npy, .npz, .h5ad or .mtx"
    return f"not a format that streampca opens; expected a Zarr directory, {known}"


def _from_zarr(
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
    matrix = _stack(reader, dim, None if names is None else tuple(names))
    matrix.missing_value = code
    if names is not None and isinstance(node, zarr.Group):
        matrix.labels = group_labels(node, array, tuple(names), matrix.dims)
    return matrix


def _stack(reader: Reader, dim: Dim, names: tuple[Hashable, ...] | None) -> StackedMatrix:
    if dim is None and len(reader.shape) > 2 and "time" in (names or ()):
        dim = "time"
    dims = _dims(len(reader.shape), dim, names)
    if dims is None:
        check_rank(reader.shape)
        dims = (0,)
    matrix = StackedMatrix(reader, dims)
    if names is not None and all(isinstance(n, str) for n in names):
        rows, columns = (
            AxisLabels(tuple(str(names[d]) for d in ds), tuple(reader.shape[d] for d in ds))
            for ds in matrix.dims
        )
        matrix.labels = Labels(rows, columns)
    return matrix


def _dims(ndim: int, dim: Dim, names: tuple[Hashable, ...] | None) -> tuple[int, ...] | None:
    """Sample dimension numbers from names or numbers; None where nothing was said."""
    if dim is None:
        return None
    wanted = [dim] if isinstance(dim, str) or not isinstance(dim, Sequence) else list(dim)
    found = []
    for one in wanted:
        if isinstance(one, (int, np.integer)) and not isinstance(one, bool):
            number = int(one)
        elif names is not None and one in names:
            number = names.index(one)
        else:
            number = ndim
        if not -ndim <= number < ndim:
            known = f"dimensions {list(names)}" if names else f"dimensions 0 to {ndim - 1}"
            raise InvalidInputError(f"dim={one!r} is not there; the array has {known}")
        found.append(number % ndim)
    if len(set(found)) != len(found) or len(found) == ndim:
        raise InvalidInputError(f"dim={dim!r} must leave at least one dimension for the features")
    return tuple(found)


def _is(source: Any, package: str) -> bool:
    """Whether an object comes from a package, without importing that package."""
    return package in sys.modules and any(
        base.__module__.split(".")[0] == package for base in type(source).__mro__
    )
