"""From scores to rows and back, with the labels of the data."""

from __future__ import annotations

import os
from collections.abc import Callable
from functools import partial
from typing import Any, Protocol

from streampca.errors import InvalidInputError
from streampca.kernels import Array
from streampca.matrix import AxisLabels, Block, ChunkedMatrix
from streampca.matrix.alignment import refuse_masked
from streampca.models.results.decomposition import Decomposition
from streampca.models.results.result import Result
from streampca.models.results.row_maps import WRITTEN_NBYTES, RowPasses, score_dtype
from streampca.models.results.value_attributes import of_values
from streampca.models.side_data.feature_names import is_xarray
from streampca.sources import as_matrix, open
from streampca.sources.memory.lazy import (
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
    """What makes rows of scores: a map of a pass, and a function of scores in memory.

    removed : coefficients of a design whose part is added (``apply_with_design``), or None.
    """

    @property
    def removed(self) -> Array | None: ...

    def __call__(self, block: Block) -> Array: ...

    def apply(self, scores: Array) -> Array: ...

    def apply_with_design(self, scores: Array, design: Array) -> Array: ...

    def scratch_nbytes(self, matrix: ChunkedMatrix) -> Callable[[int], int]: ...


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
) -> Any:
    """(n, p) rows made from scores (n, k), in memory or written; lazy on Dask.

    passes : over a matrix.  name : of the pass.
    """
    refuse_masked(scores, "X")
    scores = result.unscaled_scores(scores, getattr(back, "whiten", None) is not None)
    scores = frame_rows(scores) if is_dask_frame(scores) else scores
    p = result.n_features
    if out is None and is_dask_array(scores) and back.removed is None:
        return map_rows(scores, back.apply, p, score_dtype(scores.dtype))
    if out is None and is_lazy(scores):
        return lazy_rows_of_scores(result, scores, back, remove)
    dim = [d for d in scores.dims if d != _component(result)] if is_xarray(scores) else None
    matrix = (as_matrix if result.n_components else open)(scores, dim=dim)
    _check_width(matrix.shape, result)
    basis = _design(result, matrix, remove) if back.removed is not None else None
    sides = None if basis is None else {"design": basis}
    dtype = score_dtype(matrix.dtype)
    rows = passes(matrix).mapped(name, back, sides)
    if out is not None:
        return rows.written(out, p, dtype, dims=("sample", "feature"), overwrite=overwrite)
    return _wrapped(result, scores, matrix.labels.samples, rows.in_memory(p, dtype))


def lazy_rows_of_scores(result: Result, scores: Any, back: RowsOfScores, remove: Any = None) -> Any:
    """(n, p) rows as a Dask array, inside xarray where the scores are."""
    refuse_masked(scores, "scores")
    scores = result.unscaled_scores(scores, getattr(back, "whiten", None) is not None)
    dims = [d for d in scores.dims if d != _component(result)] if is_xarray(scores) else None
    lazy = is_lazy(scores)
    matrix = lazy_matrix(scores, dims) if lazy else as_matrix(scores, dim=dims)
    _check_width(matrix.shape, result)
    rows: Any = lazy_rows(matrix) if lazy else scores
    if dims is not None and not lazy:
        rows = scores.transpose(*dims, _component(result)).data.reshape(matrix.shape)
    rows = in_chunks(rows, max(1, WRITTEN_NBYTES // (8 * result.n_features)))
    dtype = score_dtype(rows.dtype)
    basis = _design(result, matrix, remove) if back.removed is not None else None
    function: Any = back.apply if basis is None else back.apply_with_design
    made = map_rows(rows, function, result.n_features, dtype, basis)
    return _wrapped(result, scores, matrix.labels.samples, made)


def _wrapped(result: Result, scores: Any, samples: AxisLabels, rows: Any) -> Any:
    """Rows with the labels of the scores and of the fit, if the scores have any."""
    if not is_xarray(scores):
        return rows
    from streampca.sources.labelled.labelled import to_dataarray

    labels = result.labels
    features = labels.features
    if len(features) != rows.shape[1]:
        features = AxisLabels.plain("feature", rows.shape[1])
    name, attrs = labels.name or "reconstruction", partial(of_values, labels)
    return to_dataarray(rows, [samples, features], name, attrs)


def completed_like(X: Any, matrix: ChunkedMatrix, features: AxisLabels, rows: Array) -> Any:
    """Completed rows (n, p) as the same kind of object as X."""
    if is_xarray(X):
        from streampca.sources.labelled.labelled import to_dataarray

        axes, attrs = [matrix.labels.samples, features], partial(of_values, matrix.labels)
        return to_dataarray(rows, axes, matrix.labels.name or "filled", attrs)
    if is_dask_array(X) and X.ndim == 2:
        return rows_like(X, rows)
    return framed_like(X, rows)


def _design(result: Result, matrix: ChunkedMatrix, remove: Any) -> Array | None:
    assert isinstance(result, Decomposition)  # no other kind removes anything
    return result.design_rows(matrix, remove)


def _component(result: Result) -> str:
    return result.component_axis.dims[0]


def _check_width(shape: tuple[int, ...], result: Result) -> None:
    if shape[1] != result.n_components:
        raise InvalidInputError(
            f"scores have {shape[1]} columns, the model {result.n_components} components"
        )
