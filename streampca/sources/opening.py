"""``streampca.open``: any source as a ChunkedMatrix, its format recognised by name or content."""

from __future__ import annotations

import copy
import glob
import math
import numbers
import os
import sys
from collections.abc import Sequence
from typing import Any

import zarr

from streampca.errors import (
    InvalidInputError,
    InvalidTypeError,
    SourceError,
    UncountedRowsWarning,
    hide_secrets,
    warn_caller,
)
from streampca.imported import weighing
from streampca.matrix import ChunkedMatrix, concat_features
from streampca.matrix.kinds import is_sparse
from streampca.paths import PLINK, paths_end, refuse_special
from streampca.sources.files.array_files import NpyReader
from streampca.sources.files.images import are_images, open_images
from streampca.sources.genotypes.plink import open_plink
from streampca.sources.memory.arrays import from_array
from streampca.sources.memory.lazy import LazyReader, is_dask_frame
from streampca.sources.several import (
    TABLES,
    expand,
    from_table,
    join_files,
    refuse_options,
    table_of,
)
from streampca.sources.sparse.anndata import from_anndata, open_h5ad
from streampca.sources.sparse.feature_types import of_feature_types
from streampca.sources.sparse.files import open_matrix_market, open_npz
from streampca.sources.sparse.sparse import from_sparse
from streampca.sources.stacked import Dim, StackedMatrix, sample_dims, stack, with_code
from streampca.sources.tables.frames import is_frame
from streampca.sources.zarr.nodes import from_zarr
from streampca.sources.zarr.opening import (
    Snapshots,
    Which,
    how_to_convert,
    is_repository,
    metadata_errors,
    open_array,
    suggestion,
)
from streampca.sources.zarr.reader import ZarrReader
from streampca.urls import check_readable, plain_errors

# The format of a path, a URL or a Zarr node.


def open_path(
    path: str,
    variable: str | None,
    dim: Dim,
    policy: tuple[str, str, float | None],
    storage_options: dict[str, Any] | None,
    external_links: bool = False,
    group: str | None = None,
) -> ChunkedMatrix:
    remote, name = "://" in path, path.lower()
    check_readable(path)
    if not remote and not os.path.exists(path):
        whole, _, _inner = path.rpartition(".zarr/")
        if not (whole and os.path.isdir(whole + ".zarr")):
            raise SourceError(f"{path}: no such file or directory{suggestion(path)}")
    if group and name.endswith((".npy", ".mtx", ".mtx.gz", ".npz")):
        raise InvalidInputError(f"{path} has no groups; leave group= out")
    if name.endswith(".npy"):
        return stack(NpyReader(path), dim)
    if name.endswith((".mtx", ".mtx.gz")):
        return open_matrix_market(path, dim)
    if name.endswith((".h5ad", ".h5", ".hdf5", ".he5")):
        return open_h5ad(path, variable, external_links, dim, group)
    if name.endswith(".npz"):
        return open_npz(path, variable, dim)
    if name.endswith((".nc", ".nc4", ".cdf", ".h5netcdf")):
        from streampca.sources.labelled.labelled import from_netcdf

        return from_netcdf(path, variable, dim, group)
    if not remote and os.path.isfile(path) and not name.endswith(".zip"):
        raise SourceError(f"{path}: {how_to_convert(path)}")
    node = open_array(path, storage_options, external_links=external_links)
    with metadata_errors(path):
        return from_zarr(node, variable, dim, policy, path, group)


# ``streampca.open``: any source as a ChunkedMatrix.


@weighing()
def open(
    source: Any,
    *,
    variable: str | Sequence[str] | None = None,
    group: str | None = None,
    dim: Dim = None,
    missing_value: float | None = None,
    missing_chunks: str = "error",
    multiallelic: str = "error",
    branch: str | None = None,
    tag: str | None = None,
    snapshot: str | None = None,
    storage_options: dict[str, Any] | None = None,
    external_links: bool = False,
    columns: Sequence[str] | None = None,
    index: str | None = None,
    categorical: str | None = None,
    header: bool | None = None,
    na_values: Sequence[str] | str | None = None,
    decimal: str | None = None,
    thousands: str | None = None,
    strip: str | None = None,
    comment: str | None = None,
    delimiter: str | None = None,
    encoding: str | None = None,
    join: str | None = None,
    feature_types: str | Sequence[str] | None = None,
) -> ChunkedMatrix:
    """Open any source as a matrix of samples x features that is read in blocks.

    source : a path or URL of a Zarr array or group (one that is an AnnData, or a sparse matrix as
        AnnData writes it, too), a NetCDF, HDF5, ``.npy`` or ``.npz`` file; ``.h5ad``, 10x ``.h5``,
        ``.mtx``; images (a folder of them, see ``open_images``); Parquet (a file, a folder), Arrow
        or text (``.csv``, ``.tsv``, ``.tab``, ``.txt``, ``.data``; ``.gz``, ``.bz2``, ``.xz``
        too); an AnnData in memory; PLINK 1 filesets by the path of a ``.bed``; a list of paths or a
        pattern (``chr*.bed``, ``sst_*.nc``), see ``join``; a ``zarr.Array`` or ``zarr.Group``
        (one with ``call_genotype`` is a VCF Zarr); an xarray DataArray or Dataset; a Dask array
        (any graph, persisted or not) or data frame; a ``distributed.Future`` of an array or a data
        frame, or a list of them, stacked by rows; NumPy, lists; data frames of pandas, polars
        (lazy, too) and pyarrow; scipy.sparse and ``sparse``; or a ChunkedMatrix.
    variable : the array of a group or file ("layers/counts" or "raw/X" of an AnnData);
        a list of them gives the features of all, side by side.
    group : of a NetCDF, HDF5 or Zarr source, where the variable is; "PRODUCT/no2" says both.
    dim : the sample dimension(s), by name or number; the others are stacked into features.
        Required for anything that is not 2-D. Default: the first of two, or "time" if there is a
        dimension of that name.
    missing_value : a number that means "missing" (-1, -9), in addition to NaN.
    missing_chunks : "error" refuses a Zarr chunk that is absent; "fill" reads its fill value;
        "mask" reads missing cells, which ``missing=`` of the model decides about (integers need a
        ``missing_value`` for that).
    multiallelic : variants of more than two alleles in a VCF Zarr: "error", or "drop".
    branch, tag, snapshot : of an Icechunk repository, at most one. The same snapshot is read
        throughout, even if others commit meanwhile. For a local repository, which is recognised,
        the default is the head of "main"; for an ``s3://`` URL one is required.
    storage_options : for remote stores; never kept in results.
        A read fails after 300 s without an answer, or after ``async.timeout`` of ``zarr.config``
        (``ZARR_ASYNC__TIMEOUT``).
    columns, index : of a table, the features (default: all numbers, a warning names the others),
        and the column with the names of the samples.
    categorical : "onehot" makes a feature of each category.
    header, na_values, decimal, thousands, comment, delimiter, encoding : of text, as of
        ``pandas.read_csv``. Recognised by default: whether the first line holds names (a warning
        says what was decided where it may be data), the delimiter, UTF-16 with a byte order mark;
        numbers in another form are refused with the option that reads them.
    strip : of text, characters that do not belong to numbers, such as "$%": "12%" is 12.
    join : what several files have more of, "samples" or "features". Default: what fits.
    feature_types : of a 10x file or an AnnData with ``var["feature_types"]``: a type, several, or
        "all". Default: of a 10x file "Gene Expression", as scanpy does; of an AnnData all.
    external_links : accept an ``.h5ad`` or ``.h5`` whose data are in other files, and a Zarr store
        with symbolic links out of it. Such a source can name any file of this machine, and is
        refused by default.

    Cost: metadata only, and one column of a Dask data frame that does not know its number of rows
    (Parquet does).
    Raises InvalidInputError, InvalidTypeError (dtype) or SourceError (absent, unreadable).
    """
    number = isinstance(missing_value, numbers.Real) and not isinstance(missing_value, bool)
    if missing_value is not None and not number:
        raise InvalidTypeError(f"missing_value={missing_value!r}; expected a number such as -9")
    options: dict[str, Any] = {
        "dim": dim,
        "missing_value": missing_value,
        "missing_chunks": missing_chunks,
        "multiallelic": multiallelic,
        "storage_options": storage_options,
        "branch": branch,
        "tag": tag,
        "snapshot": snapshot,
        "external_links": external_links,
        "columns": columns,
        "index": index,
        "categorical": categorical,
        "join": join,
        "header": header,
        "na_values": na_values,
        "decimal": decimal,
        "thousands": thousands,
        "strip": strip,
        "comment": comment,
        "delimiter": delimiter,
        "encoding": encoding,
        "feature_types": feature_types,
        "group": group,
    }
    which = {"branch": branch, "tag": tag, "snapshot": snapshot}
    if not (variable is None or isinstance(variable, str)):
        parts = [open(source, variable=name, **options) for name in variable]
        return concat_features(*parts, variables=variable)
    if is_path := isinstance(source, (str, os.PathLike)):
        refuse_special(os.fspath(source))
    if not paths_end(source, (".zarr",)) and are_images(source):
        refuse_options(source, options)
        return of_feature_types(open_images(source), feature_types, "a folder of images")
    paths = None if paths_end(source, PLINK) else _several_paths(source)
    if (table := table_of(source, paths, options)) is not None:
        return of_feature_types(from_table(table, options), feature_types, "a table")
    if paths is not None:
        parts = [open(path, variable=variable, **options) for path in paths]
        return join_files(paths, parts, join)
    refuse_options(source, options)
    if isinstance(source, ChunkedMatrix):
        if variable is not None or dim is not None:
            raise InvalidInputError("opened already: say dim= and variable= to streampca.open")
        return with_code(source, missing_value)
    if is_path and not paths_end(source, PLINK):
        path = os.fspath(source)
        if any(which.values()) or is_repository(path):
            return _open_repository(path, which, options, variable)
    matrix = _of_one(source, variable, options)
    if matrix is None:
        return of_feature_types(from_array(source, dim, missing_value), feature_types, "an array")
    shown = hide_secrets(str(source)) if is_path else "the source"
    matrix = of_feature_types(matrix, feature_types, shown)
    if missing_value is not None:
        matrix.missing_value = missing_value
    return matrix


def _of_one(source: Any, variable: str | None, options: dict[str, Any]) -> ChunkedMatrix | None:
    """The matrix of one file, store or object; None of plain arrays, and what is like them."""
    dim, group = options["dim"], options["group"]
    policy = (options["missing_chunks"], options["multiallelic"], options["missing_value"])
    if paths_end(source, PLINK):
        return open_plink(source)
    if isinstance(source, (str, os.PathLike)):
        storage, links = options["storage_options"], options["external_links"]
        return open_path(os.fspath(source), variable, dim, policy, storage, links, group)
    if isinstance(source, zarr.Array | zarr.Group):
        return from_zarr(source, variable, dim, policy, str(source.store), group)
    if _is(source, "xarray"):
        from streampca.sources.labelled.labelled import from_xarray

        return from_xarray(source, variable, dim)
    if "distributed" in sys.modules and (found := _of_futures(source, dim)) is not None:
        return found
    if _is(source, "dask"):
        from streampca.sources.dask.frame import from_dask_collection

        return from_dask_collection(source, is_dask_frame(source), dim)
    if is_sparse(source):
        return from_sparse(source, dim)
    return from_anndata(source, variable, open) if _is(source, "anndata") else None


def _open_repository(
    path: str, which: Which, options: dict[str, Any], variable: str | None
) -> ChunkedMatrix:
    """A fixed snapshot of an Icechunk repository."""
    check_readable(path)
    snapshots = Snapshots(path, options["storage_options"])
    rest = {
        name: value for name, value in options.items() if name not in (*which, "storage_options")
    }
    with metadata_errors(path), plain_errors():
        matrix = open(snapshots.open(which), variable=variable, **rest)
    if isinstance(matrix, StackedMatrix) and isinstance(matrix.reader, ZarrReader):
        matrix.reader.pin(snapshots)
    return matrix


def as_matrix(source: Any, *, dim: Dim = None, missing_value: float | None = None) -> ChunkedMatrix:
    """:func:`open` with the checks of an estimator, for ``fit`` and ``transform``."""
    path = os.fspath(source) if isinstance(source, (str, os.PathLike)) else ""
    if path.lower().endswith(TABLES) if path else is_frame(source):
        from streampca.sources.ratings.tables import refuse_ratings

        refuse_ratings(source)
    matrix = open(source, dim=dim, missing_value=missing_value)
    for size, name in zip(matrix.shape, ("sample(s)", "feature(s)"), strict=True):
        if size == 0:
            raise InvalidInputError(
                f"Found array with 0 {name} (shape={matrix.shape}) while a minimum of 1 is "
                "required."
            )
    return matrix


def _several_paths(source: Any) -> list[str] | None:
    """The paths that a list of paths, or a pattern such as "chr*.zarr", stands for; else None.

    Those of a pattern come in the order of the numbers in their names.
    """
    if isinstance(source, (list, tuple)):
        named = bool(source) and all(isinstance(one, (str, os.PathLike)) for one in source)
        return expand(source) if named else None
    if not isinstance(source, (str, os.PathLike)):
        return None
    path = os.fspath(source)
    pattern = glob.has_magic(path) and "://" not in path and not os.path.exists(path)
    return expand(path) if pattern else None


def _of_futures(source: Any, dim: Dim) -> ChunkedMatrix | None:
    """The matrix of a future, or of a list of them; None of anything else."""
    from streampca.sources.dask.arrays import from_futures, futures_given

    return from_futures(futures, dim) if (futures := futures_given(source)) else None


def _is(source: Any, package: str) -> bool:
    """Whether an object comes from a package, without importing that package."""
    return package in sys.modules and any(
        base.__module__.split(".")[0] == package for base in type(source).__mro__
    )


def counted(X: Any) -> Any:
    """X, or a Dask array with known chunk sizes in place of one without. X is not changed.

    Cost: all of such an array is computed once, by Dask, chunk by chunk, and dropped.
    Warns with UncountedRowsWarning in that case.
    """
    if not hasattr(X, "compute_chunk_sizes") or not any(math.isnan(n) for n in X.shape):
        return X
    warn_caller(
        f"the chunk sizes of this Dask array are not known (shape {X.shape}): it is computed once "
        "more to count its rows. X = X.compute_chunk_sizes(), or to_dask_array(lengths=True) of a "
        "data frame, does that once for all fits.",
        UncountedRowsWarning,
    )
    return copy.copy(X).compute_chunk_sizes()


def lazy_matrix(X: Any, dim: Dim = None) -> ChunkedMatrix:
    """The shape and labels of a lazy X, without traversing its graph or computing anything.

    dim : as for ``streampca.open``, which raises the same errors.
    """
    if not type(X).__module__.startswith("xarray."):
        if any(math.isnan(n) for n in X.shape):
            raise InvalidInputError(
                f"the chunk sizes of this Dask array are not known (shape {X.shape}). "
                "Use X = X.compute_chunk_sizes(), which reads it once."
            )
        return StackedMatrix(LazyReader(X), sample_dims(X.shape, dim))
    from streampca.sources.labelled.labelled import from_xarray

    return from_xarray(X, dim=dim, lazily=True)
