"""``streampca.open``: any source as a ChunkedMatrix, its format recognised by name or content."""

from __future__ import annotations

import copy
import math
import numbers
import os
import sys
from collections.abc import Sequence
from typing import Any

import zarr
from zarr.abc.store import Store

from streampca.errors import (
    InvalidInputError,
    InvalidTypeError,
    MissingDependencyError,
    SourceError,
    UncountedRowsWarning,
    hide_secrets,
    warn_caller,
)
from streampca.imported import weighing
from streampca.matrix import ChunkedMatrix, concat_features
from streampca.matrix.block import refuse_complex
from streampca.matrix.kinds import is_sparse
from streampca.paths import (
    PARQUET,
    TEXTS,
    check_readable,
    is_pattern,
    paths_end,
    plain_errors,
    refuse_special,
)
from streampca.sources.dask.lazy import LazyReader, is_dask_frame
from streampca.sources.genotypes.formats import SUFFIXES, format_of
from streampca.sources.genotypes.vcf_zarr import GENOTYPES, is_vcf_zarr, open_vcf_zarr
from streampca.sources.images import are_images, open_images
from streampca.sources.joining import expand, join_files
from streampca.sources.memory.arrays import from_array
from streampca.sources.npy import NpyReader
from streampca.sources.sparse.anndata import (
    AnnDataColumns,
    from_anndata,
    is_anndata,
    is_sparse_group,
    open_group,
    open_h5ad,
)
from streampca.sources.sparse.feature_types import TenxColumns, of_feature_types
from streampca.sources.sparse.matrices import from_sparse
from streampca.sources.sparse.matrix_market import open_matrix_market
from streampca.sources.sparse.npz import open_npz
from streampca.sources.stacked import (
    Dim,
    StackedMatrix,
    refuse_uncounted,
    sample_dims,
    stack,
    with_code,
)
from streampca.sources.suggestions import how_to_convert, suggestion
from streampca.sources.tables.frames import is_frame
from streampca.sources.tables.text_options import TEXT_OPTIONS
from streampca.sources.zarr.icechunk import Snapshots, Which
from streampca.sources.zarr.opening import from_zarr, group_in, open_array, up_to_date
from streampca.sources.zarr.reader import ZarrReader
from streampca.sources.zarr.stores import is_repository, metadata_errors

TABULAR = ("columns", "index", "categorical", *TEXT_OPTIONS)  # options of tables
OF_ONE_FORMAT = ("reference_allele", "sample_file", "variant_file")  # of some formats of genotypes
TABLES = (*PARQUET, ".arrow", ".feather", ".ipc", *TEXTS)
STORES = ("zarr.json", ".zgroup", ".zarray", ".zmetadata")


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
    dosages: bool | None = None,
    reference_allele: str | None = None,
    sample_file: str | None = None,
    variant_file: str | None = None,
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
        too); an AnnData in memory; genotypes (``.bed``, ``.pgen``, ``.bgen``, ``.vcf.gz``,
        ``.bcf``, ``.geno``); a list of paths or a pattern (``chr*.bed``, ``chr{1..22}.pgen``,
        ``sst_*.nc``), see ``join``; a Zarr store, ``zarr.Array`` or ``zarr.Group``
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
    multiallelic : variants of more than two alleles of genotypes: "error", or "drop".
    dosages : of genotypes, True reads expected copies of the counted allele, float32 from 0 to 2
        and NaN where missing; False reads calls, int8. None: what PLINK 2 takes from that format,
        dosages where any are stored. Kinship and LD pruning take the calls in any case.
    reference_allele : of a BGEN, which of two alleles is the reference, "first" (the default, as in
        UK Biobank) or "last" (of ``plink2 --export bgen-1.2`` without ref-first). The other one is
        counted.
    sample_file, variant_file : of a BGEN, its ``.sample``; of an EIGENSTRAT or PACKEDANCESTRYMAP,
        its ``.ind`` and ``.snp``. Default: those of the same name next to it; for a BGEN, else the
        identifiers within.
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

    Examples:
        >>> import numpy as np
        >>> x = np.arange(24.0).reshape(4, 3, 2)
        >>> streampca.open(x, dim=1)
        <StackedMatrix 3 samples x 8 features, float64>
    """
    options = dict(locals())  # all but the source and its variable, for the parts of a source
    del options["source"], options["variable"]
    if missing_value is not None and (
        isinstance(missing_value, bool) or not isinstance(missing_value, numbers.Real)
    ):
        raise InvalidTypeError(f"missing_value={missing_value!r}; expected a number such as -9")
    if not (variable is None or isinstance(variable, str)):
        parts = [open(source, variable=name, **options) for name in variable]
        return concat_features(*parts, variables=variable)
    if is_path := isinstance(source, (str, os.PathLike)):
        refuse_special(os.fspath(source))
    images = not paths_end(source, (".zarr",)) and are_images(source)
    genotypes = format_of(source) if not images and paths_end(source, SUFFIXES) else None
    together = images or (genotypes is not None and genotypes.joins)
    paths = None if together else _several_paths(source)
    table = None if images else table_of(source, paths, options)
    if table is None and paths is not None:
        parts = [open(path, variable=variable, **options) for path in paths]
        return join_files(paths, parts, join)
    if table is None:
        refuse_options(source, options)
    if isinstance(source, ChunkedMatrix):
        if variable is not None or dim is not None:
            raise InvalidInputError("opened already: say dim= and variable= to streampca.open")
        return with_code(_as_wanted(source, dosages), missing_value)
    if is_path and not (images or table or genotypes):
        path, which = os.fspath(source), {"branch": branch, "tag": tag, "snapshot": snapshot}
        if any(which.values()) or is_repository(path):
            return _open_repository(path, which, options, variable)
    if images:
        matrix = open_images(source)
    elif table is not None:
        matrix = _of_table(table, options)
    else:
        matrix = _of_one(source, variable, options)
    if feature_types is not None or isinstance(matrix.annotations, (TenxColumns, AnnDataColumns)):
        shown = hide_secrets(str(source)) if is_path else f"a {type(source).__name__}"
        matrix = of_feature_types(matrix, feature_types, shown)
    return _as_wanted(matrix, dosages, os.fspath(source) if is_path else "")


def _as_wanted(matrix: ChunkedMatrix, dosages: bool | None, path: str = "") -> ChunkedMatrix:
    """The matrix, or its calls. Raises InvalidInputError where dosages are wanted without any."""
    if dosages is None:
        return matrix
    calls = matrix.hard_calls()
    if dosages and calls is matrix:
        raise InvalidInputError(
            f"dosages=True: {hide_secrets(path) or 'this matrix'} holds values that are not read "
            "as dosages of genotypes; leave dosages out"
        )
    return matrix if dosages else calls


def _of_one(source: Any, variable: str | None, options: dict[str, Any]) -> ChunkedMatrix:
    """The matrix of one file, store or object."""
    dim, missing_value = options["dim"], options["missing_value"]
    if isinstance(source, Store):
        source = zarr.open(source, mode="r")
    if paths_end(source, SUFFIXES) and (genotypes := format_of(source)) is not None:
        matrix = genotypes.open(source, options)
    elif isinstance(source, (str, os.PathLike)):
        matrix = _of_path(os.fspath(source), variable, options)
    elif isinstance(source, zarr.Array | zarr.Group):
        matrix = _of_node(source, variable, options, str(source.store))
    elif (found := _of_object(source, variable, dim)) is not None:
        matrix = found
    else:
        return from_array(source, dim, missing_value)
    if missing_value is not None:
        matrix.missing_value = missing_value
    return matrix


def _of_path(path: str, variable: str | None, options: dict[str, Any]) -> ChunkedMatrix:
    """The matrix of a file or store, by the end of its name."""
    remote, name, dim, group = "://" in path, path.lower(), options["dim"], options["group"]
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
        return open_h5ad(path, variable, options["external_links"], dim, group)
    if name.endswith(".npz"):
        return open_npz(path, variable, dim)
    if name.endswith((".nc", ".nc4", ".cdf", ".h5netcdf")):
        from streampca.sources.labelled.opening import from_netcdf

        return from_netcdf(path, variable, dim, group)
    if name.endswith(".json"):
        from streampca.sources.labelled.opening import from_references

        return from_references(path, variable, dim)
    if not remote and os.path.isfile(path) and not name.endswith(".zip"):
        raise SourceError(f"{path}: {how_to_convert(path)}")
    node = open_array(path, options["storage_options"], external_links=options["external_links"])
    with metadata_errors(path):
        return _of_node(node, variable, options, path)


def _of_node(
    node: Any, variable: str | None, options: dict[str, Any], source: str
) -> ChunkedMatrix:
    """The matrix of a Zarr array or group, which may be an AnnData or a VCF Zarr."""
    dim, missing_chunks = options["dim"], options["missing_chunks"]
    if options["group"]:
        node = group_in(node, options["group"], source)
    if isinstance(node, zarr.Group):
        if is_sparse_group(node) or (is_anndata(node) and dim in (None, 0)):
            found = (node.get(name) for name in (variable or "X", "X/data", "data"))
            array = next((one for one in found if isinstance(one, zarr.Array)), None)
            node = up_to_date(node, array, source)
            return open_group(node, variable, dim, hide_secrets(source), missing_chunks)
        if variable is None and is_vcf_zarr(node) and dim in (None, 1, "samples", "sample"):
            node = up_to_date(node, node[GENOTYPES], source)
            multiallelic = options["multiallelic"]
            return open_vcf_zarr(
                node,
                source,
                dosages=options["dosages"],
                multiallelic=multiallelic,
                missing_chunks=missing_chunks,
            )
    return from_zarr(node, variable, dim, missing_chunks, options["missing_value"], source)


def _of_object(source: Any, variable: str | None, dim: Dim) -> ChunkedMatrix | None:
    """The matrix of an object of another library; None of plain arrays, and what is like them."""
    if _is(source, "xarray"):
        from streampca.sources.labelled.opening import from_xarray

        return from_xarray(source, variable, dim)
    if "distributed" in sys.modules:
        from streampca.sources.dask.arrays import from_futures, futures_in

        if futures := futures_in(source):
            return from_futures(futures, dim)
    if _is(source, "dask"):
        from streampca.sources.dask.arrays import from_dask
        from streampca.sources.dask.frame import from_dask_frame

        return (from_dask_frame if is_dask_frame(source) else from_dask)(source, dim)
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


def _is(source: Any, package: str) -> bool:
    """Whether an object comes from a package, without importing that package."""
    return package in sys.modules and any(
        base.__module__.split(".")[0] == package for base in type(source).__mro__
    )


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
    return expand(path) if is_pattern(path) else None


# Tables: which sources are such, and what only they take.


def holds_parquet(path: str) -> bool:
    """Whether a folder holds Parquet files, or folders of them."""
    for _, folders, names in os.walk(path):
        if any(name.lower().endswith(PARQUET) for name in names):
            return True
        folders[:] = [name for name in sorted(folders) if "=" in name]
    return False


def table_of(source: Any, paths: list[str] | None, options: dict[str, Any]) -> Any:
    """The paths of a table, or a query or frame to be read as one; None for other sources.

    paths : that the source stands for, if several.
    """
    if paths is not None:
        one_table = all(path.lower().endswith(PARQUET) for path in paths)
        return paths if one_table and options["join"] != "features" else None
    if isinstance(source, (str, os.PathLike)):
        path = os.fspath(source)
        stored = "://" in path or any(os.path.exists(os.path.join(path, store)) for store in STORES)
        folder = not stored and os.path.isdir(path) and holds_parquet(path)
        return [path] if folder or path.rstrip("/").lower().endswith(TABLES) else None
    kind, named = type(source), any(options[name] is not None for name in TABULAR)
    query = kind.__module__.split(".")[0] in ("pyarrow", "polars") and (
        kind.__name__.endswith(("Dataset", "LazyFrame"))
    )
    return source if query or (named and is_frame(source)) else None


def refuse_options(source: Any, options: dict[str, Any]) -> None:
    """Refuse options of tables, and of files with groups, for anything else."""
    if stated := [name for name in TABULAR if options[name] is not None]:
        what = source if isinstance(source, (str, os.PathLike)) else f"a {type(source).__name__}"
        why = f"{hide_secrets(str(what))} is not a table (Parquet, Arrow, CSV, data frame)"
        raise InvalidInputError(f"{stated[0]}=: {why}; leave {stated[0]}= out")
    kind = format_of(source) if paths_end(source, SUFFIXES) else None
    for name in OF_ONE_FORMAT:
        if options[name] is not None and (kind is None or name not in kind.takes):
            raise InvalidInputError(
                f"{name}=: {hide_secrets(str(source)):.200} takes none; leave {name}= out"
            )
    files = isinstance(source, (str, os.PathLike, zarr.Group)) and kind is None
    if options["group"] is not None and not files:
        raise InvalidInputError(f"group=: a {type(source).__name__} has none; leave group= out")


def _of_table(table: Any, options: dict[str, Any]) -> ChunkedMatrix:
    """The matrix of a table, by its paths or in memory.  options : of ``streampca.open``."""
    try:
        from streampca.sources.tables.opening import open_table
    except ImportError as error:
        if "pyarrow" not in str(error):
            raise
        raise MissingDependencyError(
            "tables (Parquet, Arrow, CSV) need pyarrow: pip install 'streampca[tables]'"
        ) from None
    wanted = {name: options[name] for name in TABULAR}
    matrix = open_table(table, **wanted, dim=options["dim"], options=options["storage_options"])
    matrix.missing_value = options["missing_value"]
    return matrix


# What estimators open.


def as_matrix(
    source: Any,
    *,
    dim: Dim = None,
    missing_value: float | None = None,
    complex_values: bool = False,
) -> ChunkedMatrix:
    """:func:`open` with the checks of an estimator, for ``fit`` and ``transform``.

    complex_values : whether the method takes complex numbers, too.
    """
    path = os.fspath(source) if isinstance(source, (str, os.PathLike)) else ""
    if path.lower().endswith(TABLES) if path else is_frame(source):
        from streampca.sources.ratings.recognition import refuse_ratings

        refuse_ratings(source)
    matrix = open(source, dim=dim, missing_value=missing_value)
    if not complex_values:
        at = "" if dim is None else f", dim={dim!r}"
        refuse_complex(matrix.dtype, fit=f"ComplexEOF(2).fit(X{at})")
    for size, name in zip(matrix.shape, ("sample(s)", "feature(s)"), strict=True):
        if size == 0:
            raise InvalidInputError(
                f"Found array with 0 {name} (shape={matrix.shape}) while a minimum of 1 is "
                "required."
            )
    return matrix


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
        refuse_uncounted(X)
        return StackedMatrix(LazyReader(X), sample_dims(X.shape, dim))
    from streampca.sources.labelled.opening import from_xarray

    return from_xarray(X, dim=dim, lazily=True)
