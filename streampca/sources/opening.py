"""``streampca.open``: anything as a ChunkedMatrix."""

from __future__ import annotations

import copy
import numbers
import os
import sys
from collections.abc import Sequence
from typing import Any

import zarr

from streampca.errors import InvalidInputError, InvalidTypeError
from streampca.imported import weighing
from streampca.matrix import ChunkedMatrix, concat_features
from streampca.matrix.kinds import is_sparse
from streampca.regular_file import refuse_special
from streampca.remote import check_readable, plain_errors
from streampca.sources.anndata import from_anndata
from streampca.sources.arrays import from_array
from streampca.sources.dimensions import Dim
from streampca.sources.icechunk_repository import Snapshots, Which, is_repository
from streampca.sources.lazy_matrix import is_dask_frame
from streampca.sources.plink import is_plink as _names_plink
from streampca.sources.plink import open_plink
from streampca.sources.scipy_sparse import from_sparse
from streampca.sources.several import join_stores, several_paths
from streampca.sources.stacked import StackedMatrix
from streampca.sources.stored import from_zarr, open_path
from streampca.sources.zarr_opening import understood
from streampca.sources.zarr_store import ZarrReader


@weighing()
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
    external_links: bool = False,
) -> ChunkedMatrix:
    """Open anything as a matrix of samples x features that is read in blocks.

    source : a path or URL of a Zarr array or group (one that is an AnnData, or a sparse matrix as
        AnnData writes it, too), a NetCDF or ``.npy`` file; ``.h5ad``, 10x ``.h5``, MatrixMarket
        ``.mtx``, sparse ``.npz``; an AnnData in memory; PLINK 1 filesets
        by the path of a ``.bed``; a list of paths or a pattern (``chr*.bed``, ``chr*.zarr``):
        the same samples, the features of all; a ``zarr.Array`` or ``zarr.Group`` (one with
        ``call_genotype`` is a VCF Zarr); an xarray DataArray or Dataset; a Dask array (any
        graph, persisted or not) or data frame; a ``distributed.Future`` of an array or a data
        frame, or a list of them, one under another; NumPy, lists; data frames of pandas, polars
        and pyarrow; scipy.sparse and ``sparse``; or a ChunkedMatrix.
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
    external_links : take an ``.h5ad`` or ``.h5`` whose data lie in other files. Such a file can
        name any file of this machine, and is refused otherwise.

    Cost: metadata only; nothing is read, but one column of a Dask data frame that does not know
    its rows (Parquet does).
    Raises InvalidInputError, InvalidTypeError (dtype) or SourceError (not there, unreadable).
    """
    number = isinstance(missing_value, numbers.Real) and not isinstance(missing_value, bool)
    if missing_value is not None and not number:
        raise InvalidTypeError(f"missing_value={missing_value!r}; expected a number such as -9")
    options: dict[str, Any] = {
        "dim": dim, "missing_value": missing_value, "missing_chunks": missing_chunks,
        "multiallelic": multiallelic, "storage_options": storage_options,
        "branch": branch, "tag": tag, "snapshot": snapshot, "external_links": external_links,
    }  # fmt: skip
    which = {"branch": branch, "tag": tag, "snapshot": snapshot}
    if not (variable is None or isinstance(variable, str)):
        parts = [open(source, variable=name, **options) for name in variable]
        return concat_features(*parts, variables=variable)
    if isinstance(source, (str, os.PathLike)):
        refuse_special(os.fspath(source))
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
        matrix = open_path(path, variable, dim, policy, storage_options, external_links)
    elif isinstance(source, zarr.Array | zarr.Group):
        policy = (missing_chunks, multiallelic, missing_value)
        matrix = from_zarr(source, variable, dim, policy, str(source.store))
    elif _is(source, "xarray"):
        from streampca.sources.labelled import from_xarray

        matrix = from_xarray(source, variable, dim)
    elif "distributed" in sys.modules and (futures := _futures(source)):
        from streampca.sources.futures import from_futures

        matrix = from_futures(futures, dim)
    elif _is(source, "dask"):
        matrix = _from_dask(source, dim)
    elif is_sparse(source):
        matrix = from_sparse(source, dim)
    elif _is(source, "anndata"):
        matrix = from_anndata(source, variable)
    else:
        return from_array(source, dim, missing_value)
    if missing_value is not None:
        matrix.missing_value = missing_value
    return matrix


def _from_dask(source: Any, dim: Dim) -> ChunkedMatrix:
    """A Dask array or data frame."""
    if is_dask_frame(source):
        from streampca.sources.dask_frame import from_dask_frame

        return from_dask_frame(source, dim)
    from streampca.sources.dask_array import from_dask

    return from_dask(source, dim)


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


def _futures(source: Any) -> list[Any]:
    """The futures that X is, or lists."""
    from streampca.sources.futures import futures_given

    return futures_given(source)


def _is(source: Any, package: str) -> bool:
    """Whether an object comes from a package, without importing that package."""
    return package in sys.modules and any(
        base.__module__.split(".")[0] == package for base in type(source).__mro__
    )
