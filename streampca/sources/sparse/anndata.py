"""AnnData at rest (Zarr groups and ``.h5ad``) and in memory, and 10x Genomics ``.h5``.

Read without the package anndata, whose import takes 94 MB (:mod:`streampca.store.anndata`).
Elements are read block by block, after links into other files have been refused.
Sparse elements are groups of data, indices and indptr.
Source: anndata 0.12, "On-disk format": csr_matrix, csc_matrix, dataframe, string-array.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import zarr

from streampca.errors import InvalidInputError, SourceError, shorten
from streampca.matrix import AxisLabels, ChunkedMatrix, Labels
from streampca.matrix.columns import as_text
from streampca.matrix.labels import SYMBOL
from streampca.sources.annotations import Annotations
from streampca.sources.hdf5 import HDF5Reader, is_group, open_dataset, open_hdf5, refuse_external
from streampca.sources.sparse.feature_types import TenxColumns, unique_names
from streampca.sources.sparse.matrices import CompressedMatrix
from streampca.sources.stacked import Dim, Reader, StackedMatrix
from streampca.sources.zarr.opening import open_array
from streampca.sources.zarr.reader import ZarrReader
from streampca.sources.zarr.stores import whole

FORMATS = {"csr_matrix": 0, "csc_matrix": 1, "csr": 0, "csc": 1}  # the lines: samples, features
TOKENS = "streampca_tokens"  # attribute of counts: how texts were split into terms, as JSON
SYMBOLS = ("feature_name", "gene_symbols")  # columns of var: of CELLxGENE, and of scanpy
INDEX_COLUMNS = ("index", "_index")  # of data frames written as one table (before 0.7)


def is_anndata(node: Any) -> bool:
    """Whether a group is an AnnData: by its attributes, or because it holds X, obs and var."""
    if not is_group(node):
        return False
    return node.attrs.get("encoding-type") == "anndata" or all(
        n in node for n in ("X", "obs", "var")
    )


def is_sparse_group(node: Any) -> bool:
    """Whether a group is one compressed matrix."""
    return is_group(node) and _format(node) is not None


def open_h5ad(
    path: str,
    variable: str | None,
    external_links: bool = False,
    dim: Dim = None,
    group: str | None = None,
) -> ChunkedMatrix:
    """A matrix of an ``.h5ad``, of a 10x Genomics ``.h5`` or of any other HDF5 file.

    external_links : also accept data in other files.  dim : of a dense dataset.  group : where it
    is. A file that a NetCDF library wrote is read as one.
    """
    with open_hdf5(path) as file:
        if not external_links:
            refuse_external(file, path)
        tenx = [name for name in file if _is_10x(file[name])]
        if not (tenx or is_anndata(file) or is_sparse_group(file)):
            place = "/".join(part.strip("/") for part in (group, variable) if part)
            if place and is_sparse_group(inner := file.get(place)):
                return _element(inner, f"{path}/{place}", None)
            return open_dataset(file, path, variable, dim, (group or "").strip("/"))
        if group:
            raise InvalidInputError(f"{path} has no groups of arrays; leave group= out")
        if dim not in (None, 0):
            raise InvalidInputError(f"dim={dim!r}; the rows of {path} are its samples")
        if tenx:
            return _open_10x(file, tenx, variable, path)
        if is_sparse_group(file):
            return _element(file, path, None)
        matrix = open_anndata(file, variable, path)
        matrix.annotations = AnnDataColumns(path, var_of(variable))
        return matrix


def open_anndata(
    group: Any, variable: str | None, source: str, missing_chunks: str = "error"
) -> ChunkedMatrix:
    """X, or the element ``variable`` ("layers/counts", "raw/X") of an AnnData group."""
    name = variable or "X"
    node = group.get(name)
    inner = f"{name.strip('/')}/X"  # "raw" is the group of raw/X, and of its own variables
    if node is not None and is_group(node) and _format(node) is None and inner in group:
        name, node = inner, group[inner]
    if node is None:
        known = ["X", *(f"layers/{layer}" for layer in group.get("layers", ()))]
        known += [one for one in ("raw/X", "raw.X") if one in group]
        raise InvalidInputError(
            f"{source} has no {name!r}; it has {', '.join(one for one in known if one in group)}. "
            f"Use streampca.open({source!r}, variable=...)."
        )
    variables = group.get(var_of(name))
    labels = [_names(group.get("obs"), "obs"), _names(variables, "var")]
    matrix = _element(node, f"{source}/{name}", labels, missing_chunks)
    matrix.annotations = AnnDataColumns(group, var_of(name))
    _keep_symbols(matrix)
    return matrix


def _keep_symbols(matrix: ChunkedMatrix) -> None:
    """Keep the symbols of genes that ids name, for pictures and tables."""
    for name in SYMBOLS:
        with contextlib.suppress(InvalidInputError):  # some are missing: the ids stand for all
            found = matrix.annotations.column(1, name)
            if found is not None and found.shape == matrix.shape[1:]:
                features = replace(matrix.labels.features, extra={SYMBOL: as_text(found)})
                matrix.labels = replace(matrix.labels, features=features)
                return


def var_of(variable: str | None) -> str:
    """The name of the data frame of the variables of an element; raw/X has its own."""
    name = variable or "X"
    return "var" if not name.startswith("raw") else "raw.var" if "." in name else "raw/var"


def open_group(
    node: Any, variable: str | None, dim: Dim, source: str, missing_chunks: str = "error"
) -> ChunkedMatrix:
    """A Zarr group that is an AnnData, or one compressed matrix."""
    if dim not in (None, 0):
        raise InvalidInputError(f"dim={dim!r}; the rows of a sparse group are its samples")
    if is_anndata(node):
        return open_anndata(node, variable, source, missing_chunks)
    return _element(node, source, None, missing_chunks)


def from_anndata(
    adata: Any, variable: str | None, open: Callable[[Any], ChunkedMatrix]
) -> ChunkedMatrix:
    """An AnnData object in memory, or backed by a file. open : its values in memory as a matrix."""
    if getattr(adata, "isbacked", False):
        return open_h5ad(str(adata.filename), variable, external_links=True)  # opened by its user
    name, obs = variable or "X", getattr(adata, "obs", None)
    if name.startswith("layers/"):
        values = adata.layers[name.removeprefix("layers/")]
    elif name == "raw/X":
        values, adata = adata.raw.X, adata.raw
    elif name == "X":
        values = adata.X
    else:
        raise InvalidInputError(f"variable={name!r}; expected 'X', 'layers/<name>' or 'raw/X'")
    matrix = open(values)
    rows, columns = (
        AxisLabels.plain(dim, len(names), names)
        for dim, names in zip(("obs", "var"), axis_names_in_memory(adata), strict=True)
    )
    matrix.labels = Labels(rows, columns)
    if obs is not None:
        matrix.annotations = AnnDataColumns({"obs": obs, "var": adata.var})
        _keep_symbols(matrix)
    return matrix


@contextlib.contextmanager
def _group_at(path: str) -> Iterator[Any]:
    """The group of an AnnData at rest, in HDF5 or Zarr."""
    if os.path.isfile(path) and not path.endswith(".zip"):
        with open_hdf5(path) as file:
            yield file
    else:
        yield open_array(path)


def axis_names(path: str) -> tuple[Any, Any]:
    """Names of the observations and variables of an AnnData on disk."""
    with _group_at(path) as group:
        return _both_names(group, path)


def stored_scores(path: str, name: str | None = None) -> tuple[Any, Any] | None:
    """(names of the observations, (n, k) values) of ``obsm[name]``, of "X_pca" by default.

    None where the path is no AnnData. Raises InvalidInputError where it has no such scores.
    """
    if not os.path.exists(path) and "://" not in path:
        raise SourceError(f"{path}: no such file or directory")
    if os.path.isfile(path) and not path.endswith((".zip", ".h5ad")):
        return None
    with _group_at(path) as group:
        known = path.endswith(".h5ad") or is_anndata(group)
        return _obsm(group, path, name) if known else None


def _obsm(group: Any, path: str, name: str | None) -> tuple[Any, Any]:
    obsm = group.get("obsm")
    known = sorted(obsm) if obsm is not None and is_group(obsm) else []
    found = obsm[name or "X_pca"] if (name or "X_pca") in known else None
    if found is None or is_group(found) or len(found.shape) != 2:
        held = f"it has {', '.join(known)}: {path}:{known[0]}" if known else "it has none at all"
        raise InvalidInputError(
            f"{path} has no scores obsm[{name or 'X_pca'!r}]; {held}. They are written by "
            "streampca fit --anndata"
        )
    return _names(group.get("obs"), "obs"), whole(found)


def axis_names_in_memory(adata: Any) -> tuple[Any, Any]:
    """Names of the observations and variables of an AnnData object."""
    if not hasattr(adata, "obs_names"):
        raise InvalidInputError(
            f"expected an AnnData, or the path of one, got {type(adata).__name__}"
        )
    return as_text(np.asarray(adata.obs_names, object)), as_text(
        np.asarray(adata.var_names, object)
    )


def _both_names(group: Any, path: str) -> tuple[Any, Any]:
    if not is_anndata(group):
        raise SourceError(f"{path} is not an AnnData: it has no X, obs and var")
    names = _names(group.get("obs"), "obs"), _names(group.get("var"), "var")
    if names[0] is None or names[1] is None:
        raise SourceError(f"{path}: obs or var has no index")
    return names


def _is_10x(node: Any) -> bool:
    """Whether a group is a count matrix of Cell Ranger: one, or before version 3 of a genome."""
    return is_group(node) and {"barcodes", "indptr", "shape"} <= {*node}


def _open_10x(file: Any, groups: list[str], variable: str | None, path: str) -> ChunkedMatrix:
    """A 10x count matrix: features x barcodes by barcodes, presented as cells x features.

    groups : those of count matrices, one for each genome before version 3.
    Features go by their symbols, a repeated one with -1, -2, ..., as in scanpy.
    """
    name = (variable or (groups[0] if len(groups) == 1 else "")).strip("/")
    if name not in groups:
        problem = "several genomes" if variable is None else f"no matrix {variable!r}"
        raise InvalidInputError(
            f"{path} has {problem}; it holds {', '.join(groups)}. "
            f"Use streampca.open({path!r}, variable={groups[0]!r})"
        )
    group = file[name]
    features, cells = (int(n) for n in group["shape"][...])
    names = group["features"]["name"] if "features" in group else group["gene_names"]
    symbols = unique_names(as_text(whole(names)).tolist())
    labels = [as_text(whole(group["barcodes"])), symbols]
    matrix = _compressed(group, path, 0, (cells, features), labels)
    if "feature_type" in group.get("features", ()):
        matrix.annotations = TenxColumns(as_text(whole(group["features"]["feature_type"])))
    return matrix


def _element(
    node: Any, source: str, names: Sequence[Any] | None, missing_chunks: str = "error"
) -> ChunkedMatrix:
    """A dense array or a compressed group as a matrix."""
    if is_group(node):
        kind = _format(node)
        if kind not in FORMATS:
            held = shorten(sorted(map(str, node))) or "nothing"
            raise InvalidInputError(
                f"{source} is a group of {held}; expected an array or a sparse matrix. Name one in "
                "it, variable='GROUP/NAME'"
            )
        shape = node.attrs.get("shape", node.attrs.get("h5sparse_shape"))
        if shape is None or len(shape) != 2:
            raise SourceError(f"{source}: shape is {shape}, expected two numbers")
        rows, columns = (int(n) for n in shape)
        return _compressed(node, source, FORMATS[kind], (rows, columns), names, missing_chunks)
    matrix = StackedMatrix(_reader(node, missing_chunks), (0,))
    matrix.labels = _labels(matrix.shape, names, source)
    return matrix


def _compressed(
    group: Any,
    source: str,
    axis: int,
    shape: tuple[int, int],
    names: Sequence[Any] | None,
    missing_chunks: str = "error",
) -> ChunkedMatrix:
    absent = [name for name in ("data", "indices", "indptr") if name not in group]
    if absent:
        raise SourceError(f"{source}: {', '.join(absent)} is absent: the matrix is incomplete")
    if missing_chunks == "mask":
        raise InvalidInputError(
            f"{source}: missing_chunks='mask' of a sparse matrix: which cells an absent chunk held "
            "is not known. Restore it, or use missing_chunks='fill'."
        )
    data, indices, pointers = (
        _reader(group[name], missing_chunks) for name in ("data", "indices", "indptr")
    )
    indptr = pointers.read((slice(0, pointers.shape[0]),))
    labels = _labels(shape, names, source)
    matrix = CompressedMatrix(data, indices, indptr, axis, shape, labels, source)
    tokens = group.attrs.get(TOKENS)
    if isinstance(tokens, str):
        matrix.labels = replace(matrix.labels, attrs={TOKENS: tokens})
    code = group.attrs.get("missing_value")  # as streampca.operations.convert notes it
    matrix.missing_value = None if code is None else float(code)
    return matrix


def _reader(node: Any, missing_chunks: str) -> Reader:
    if isinstance(node, zarr.Array):
        return ZarrReader(node, missing_chunks)
    return HDF5Reader(node)


def _format(node: Any) -> str | None:
    kind = node.attrs.get("encoding-type", node.attrs.get("h5sparse_format"))
    kind = kind.decode() if isinstance(kind, bytes) else kind
    return kind if kind in FORMATS else None


def _names(frame: Any, what: str) -> Any:
    """The index of a data frame as text; None if there is none."""
    if frame is None:
        return None
    if is_group(frame):
        index = frame.attrs.get("_index", "_index")
        column = frame.get(index.decode() if isinstance(index, bytes) else index)
        if column is not None and is_group(column):  # nullable strings: values and a mask
            column = column.get("values")
        return None if column is None else as_text(whole(column))
    fields = frame.dtype.names
    if fields is None:
        return as_text(frame[...])
    index = next((name for name in INDEX_COLUMNS if name in fields), fields[0])
    return as_text(np.asarray(frame[...])[index])


def _labels(shape: tuple[int, int], names: Sequence[Any] | None, source: str) -> Labels:
    axes = []
    for dim, size, one in zip(("obs", "var"), shape, names or (None, None), strict=True):
        if one is not None and len(one) != size:
            raise SourceError(f"{source}: {len(one)} names in {dim} for {size} of the matrix")
        axes.append(AxisLabels.plain(dim, size, one))
    return Labels(axes[0], axes[1])


# Columns of obs and var.


class AnnDataColumns(Annotations):
    """The columns of obs and var of an ``.h5ad`` (by path), a group, or a dict of data frames."""

    def __init__(self, source: Any, variables: str = "var") -> None:
        self.source, self.frames = source, ("obs", variables)

    def column(self, axis: int, name: str) -> Any:
        """(length of the axis,) numbers or text, or None. Raises where a value is missing."""
        return self._found(axis, name)[0]

    def names(self, axis: int) -> list[str]:
        return self._found(axis, "")[1]

    def _found(self, axis: int, name: str) -> tuple[Any, list[str]]:
        frame = self.frames[axis]
        if isinstance(self.source, str):
            with open_hdf5(self.source) as file:
                return annotation(file, frame, name)
        if not isinstance(self.source, dict):
            return annotation(self.source, frame, name)
        known = self.source[frame]
        if name not in known.columns:
            return None, [str(one) for one in known.columns]
        column = known[name]
        if np.asarray(column.isna()).any():
            raise InvalidInputError(
                f"{frame}[{name!r}] is missing at {frame} {int(np.argmax(column.isna()))}; "
                "expected a value for every one"
            )
        values = np.asarray(column)
        return values if values.dtype.kind in "biuf" else as_text(values), []


def annotation(group: Any, dim: str, name: str) -> tuple[Any, list[str]]:
    """(column ``name`` of obs or var, or None; the names of all): numbers, or text."""
    frame = group.get(dim)
    if frame is None or not is_group(frame):
        fields = () if frame is None else frame.dtype.names or ()
        return (frame[...][name] if name in fields else None), list(fields)
    column = frame.get(name) if name else None
    if column is None:
        return None, [one for one in frame if not one.startswith("_")]
    if not is_group(column):
        values = whole(column)
        return values if values.dtype.kind in "biuf" else as_text(values), []
    if "codes" in column:
        codes, names = whole(column["codes"]), as_text(whole(column["categories"]))
        if codes.size and codes.min() < 0:
            raise InvalidInputError(
                f"{dim}[{name!r}] is missing at {dim} {int(np.argmin(codes))}; expected a value "
                "for every one"
            )
        return names[codes], []
    return _filled(column, f"{dim}[{name!r}]"), []


def _filled(column: Any, what: str) -> Any:
    """Values of a nullable column without holes."""
    if "values" not in column:
        raise InvalidInputError(f"{what} is of a kind that is not read; expected numbers or text")
    if whole(column["mask"]).any():
        raise InvalidInputError(f"{what} has missing values; expected a value for every one")
    values = whole(column["values"])
    return values if values.dtype.kind in "biuf" else as_text(values)


# Boolean columns of var as a mask of variables: ``var["highly_variable"]``.


def variable_mask(target: Any, name: str) -> Any:
    """(variables,) bool column ``name`` of var of an AnnData, by its path or in memory, or None.

    Raises InvalidInputError where the column is not boolean.
    """
    if not isinstance(target, (str, os.PathLike)):
        return _as_mask(target.var[name], name) if name in target.var else None
    with _group_at(os.fspath(target)) as group:
        return _column(group["var"], name)


def _column(frame: Any, name: str) -> Any:
    """A column of a group, or of one table, as before version 0.7."""
    if hasattr(frame, "dtype"):
        return _as_mask(frame[...][name], name) if name in (frame.dtype.names or ()) else None
    if name not in frame:
        return None
    column = frame[name]
    if hasattr(column, "shape"):
        return _as_mask(whole(column), name)
    if "mask" not in column or "values" not in column:
        raise InvalidInputError(f"var[{name!r}] holds no booleans; use another mask_var=")
    return _as_mask(whole(column["values"]), name) & ~whole(column["mask"]).astype(bool)


def _as_mask(values: Any, name: str) -> Any:
    array = np.asarray(values)
    if array.dtype.kind not in "biu":
        raise InvalidInputError(
            f"var[{name!r}] holds {array.dtype}, no booleans; use another mask_var="
        )
    return array.astype(bool)
