"""From scores to rows and back, with the labels of the data."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any, Protocol

import numpy as np

from streampca.errors import InvalidInputError
from streampca.kernels import Array
from streampca.matrix import AxisLabels, Block, ChunkedMatrix
from streampca.matrix.alignment import refuse_masked
from streampca.matrix.block import refuse_complex, score_dtype
from streampca.models.results.result import Result
from streampca.models.results.row_maps import WRITTEN_NBYTES, RowPasses
from streampca.models.results.value_attributes import of_values
from streampca.models.side_data.feature_names import is_xarray
from streampca.sources import as_matrix, open
from streampca.sources.dask.lazy import (
    frame_rows,
    in_chunks,
    is_dask_array,
    is_dask_frame,
    is_lazy,
    lazy_rows,
    map_rows,
    rows_like,
)
from streampca.sources.opening import lazy_matrix
from streampca.sources.tables.frames import framed_like


class RowsOfScores(Protocol):
    """What makes rows of scores: a map of a pass, and a function of scores in memory."""

    def __call__(self, block: Block) -> Array: ...

    def apply(self, scores: Array) -> Array: ...

    def scratch_nbytes(self, matrix: ChunkedMatrix) -> Callable[[int], int]: ...


@dataclass(frozen=True)
class WithDesign:
    """Rows of scores, and what a design removed from them added again.

    coefficients : (r, p) of the columns of the side input "design".
    """

    rows: RowsOfScores
    coefficients: Array

    def __call__(self, block: Block) -> Array:
        return self.apply(block.dense(), block["design"])

    def apply(self, scores: Array, design: Array) -> Array:
        """(rows, p) of scores in memory, with the rows of the design."""
        rows = self.rows.apply(scores)
        rows += (design @ self.coefficients).astype(rows.dtype)
        return rows

    def scratch_nbytes(self, matrix: ChunkedMatrix) -> Callable[[int], int]:
        """As of the rows."""
        return self.rows.scratch_nbytes(matrix)


def rows_of_scores(
    result: Result,
    passes: Callable[[ChunkedMatrix], RowPasses],
    name: str,
    scores: Any,
    back: RowsOfScores,
    *,
    out: str | os.PathLike[str] | None,
    overwrite: bool,
    remove: Any = None,
    whitened: bool = False,
    lazy: bool = False,
) -> Any:
    """(n, p) rows made from scores (n, k), in memory or written; lazy on Dask.

    passes : over a matrix.  name : of the pass.  remove : False leaves out what the fit removed.
    whitened : ``back`` takes scores of unit variance.  lazy : a Dask array in any case.
    Raises InvalidInputError.
    """
    refuse_masked(scores, "X")
    scores = result.unscaled_scores(scores, whitened)
    scores = frame_rows(scores) if is_dask_frame(scores) else scores
    if not result.takes_complex:
        refuse_complex(getattr(scores, "dtype", float))
    p, in_graph = result.n_features, is_lazy(scores)
    lazy = out is None and (lazy or in_graph)
    adds = remove is not False and (remove is not None or result.removes)
    if lazy and is_dask_array(scores) and not adds:
        _check_width(scores.shape, result)
        return map_rows(scores, back.apply, p, score_dtype(scores.dtype))
    component = result.component_axis.dims[0]
    dims = [d for d in scores.dims if d != component] if is_xarray(scores) else None
    if lazy and in_graph:
        matrix = lazy_matrix(scores, dims)
    else:
        matrix = (partial(as_matrix, complex_values=True) if result.n_components else open)(
            scores, dim=dims
        )
    _check_width(matrix.shape, result)
    removed = result.removed_from(matrix, remove) if adds else None
    design: Array | None = None
    function: Any = back
    if removed is not None:
        design, function = removed[0], WithDesign(back, removed[1][1:])
    dtype = score_dtype(matrix.dtype)
    if lazy:
        in_memory = scores if dims is None else scores.transpose(*dims, component).data
        rows: Any = lazy_rows(matrix) if in_graph else np.reshape(in_memory, matrix.shape)
        rows = in_chunks(rows, max(1, WRITTEN_NBYTES // (8 * p)))
        made = map_rows(rows, function.apply, p, score_dtype(rows.dtype), design)
    else:
        sides = None if design is None else {"design": design}
        mapped = passes(matrix).mapped(name, function, sides)
        if out is not None:
            return mapped.written(out, p, dtype, dims=("sample", "feature"), overwrite=overwrite)
        made = mapped.in_memory(p, dtype)
    return _wrapped(result, scores, matrix.labels.samples, made)


def _wrapped(result: Result, scores: Any, samples: AxisLabels, rows: Any) -> Any:
    """Rows with the labels of the scores and of the fit, if the scores have any."""
    if not is_xarray(scores):
        return rows
    from streampca.sources.labelled.to_xarray import to_dataarray

    labels = result.labels
    features = labels.features
    if len(features) != rows.shape[1]:
        features = AxisLabels.plain("feature", rows.shape[1])
    name, attrs = labels.name or "reconstruction", partial(of_values, labels)
    return to_dataarray(rows, [samples, features], name, attrs)


def completed_like(X: Any, matrix: ChunkedMatrix, features: AxisLabels, rows: Array) -> Any:
    """Completed rows (n, p) as the same kind of object as X."""
    if is_xarray(X):
        from streampca.sources.labelled.to_xarray import to_dataarray

        axes, attrs = [matrix.labels.samples, features], partial(of_values, matrix.labels)
        return to_dataarray(rows, axes, matrix.labels.name or "filled", attrs)
    if is_dask_array(X) and X.ndim == 2:
        return rows_like(X, rows)
    return framed_like(X, rows)


def _check_width(shape: tuple[int, ...], result: Result) -> None:
    if shape[1] != result.n_components:
        raise InvalidInputError(
            f"scores have {shape[1]} columns, the model {result.n_components} components"
        )
