"""New rows that are lazy: what a model makes of them is a Dask array, and nothing is computed."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from streampca.kernels import Array
from streampca.matrix import RAW, Block, ChunkedMatrix, Preprocessing, residual_block
from streampca.models.labelled_rows import is_xarray, variables_of
from streampca.models.new_rows import OfPrepared, steps_left
from streampca.models.restacked import restacked
from streampca.sources.lazy import (
    frame_rows,
    is_dask_array,
    is_dask_frame,
    is_lazy,
    lazy_rows,
    map_rows,
)
from streampca.sources.opening import lazy_matrix

if TYPE_CHECKING:
    from streampca.models.linear import LinearModel


@dataclass(frozen=True)
class LazyRows:
    """Rows as a Dask array, and what they lack of what the fit did to its own.

    rows : (n, p), raw.  matrix : their labels; None for a plain Dask array, which has none.
    steps : of the preprocessing, that the rows have not had.
    basis : (n, r) of what the fit removed, at these rows, and removed : (1 + r, p) what that takes
        away; or None.
    missing_value : means "missing".
    """

    rows: Any
    matrix: ChunkedMatrix | None
    steps: Preprocessing
    basis: Array | None
    removed: Array | None
    missing_value: float | None

    def map(self, function: Callable[..., Any], width: int, dtype: Any) -> Any:
        """(n, width) of a function of (rows, p) arrays that are as those of the fit were."""
        return map_rows(self.rows, self.whole(function), width, dtype, self.basis)

    def whole(self, function: Callable[..., Any]) -> Callable[..., Any]:
        """The function, after what these rows lack."""
        if self.removed is not None:
            function = OfResiduals(function, self.removed, self.missing_value)
        if self.steps:
            function = OfPrepared(function, self.steps, self.missing_value)
        return function


@dataclass(frozen=True)
class OfResiduals:
    """A function of rows in memory, applied to what a design leaves of them."""

    function: Callable[[Any], Any]
    removed: Array
    missing_value: float | None

    def __call__(self, values: Any, basis: Array) -> Any:
        block = Block(values, 0, 0, values.shape[0], missing_value=self.missing_value)
        return self.function(residual_block(block, basis, self.removed).values)


def lazy_rows_of(model: LinearModel, X: Any, dim: Any, remove: Any) -> LazyRows | None:
    """The rows of X, where it is lazy; None for anything else.

    Raises InvalidInputError for other features than those of the fit.
    """
    result = model.result_
    if not is_lazy(X):
        return None
    if is_dask_frame(X):
        model._check_names(X)
        X = frame_rows(X)
    plain = remove is False or (remove is None and result.design is None)
    if is_dask_array(X) and X.ndim == 2 and dim in (None, 0) and plain:
        steps = model._steps_of_raw(X.shape)
        return LazyRows(X, None, steps, None, None, model._missing_code(X.dtype))
    if is_dask_array(X) and any(np.isnan(n) for n in X.shape):
        return None  # refused, or counted, by whoever opens it
    dim = model._dim_for(X) if dim is None else dim
    if is_xarray(X):
        X = restacked(variables_of(X, model._feature_labels()), model._feature_labels())
    matrix = lazy_matrix(X, dim)
    steps = steps_left(RAW, result.preprocessing, matrix.shape[1], result.n_features)
    if steps:  # which change no label of a row, whatever its sums are
        model._checked_features(X, steps.apply(matrix, _no_sums))
    else:
        matrix = model._checked_features(X, matrix)
    basis = result.design_rows(matrix, remove)
    removed = None if basis is None else np.vstack([result.mean, np.asarray(result.removed)])
    code = model._missing_code(matrix.dtype)
    return LazyRows(lazy_rows(matrix), matrix, steps, basis, removed, code)


def _no_sums(matrix: ChunkedMatrix, squares: bool) -> Array:
    """In place of the sums of rows, where only labels are asked for."""
    return np.ones(matrix.shape[0])
