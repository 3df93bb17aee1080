"""New rows of a fit, processed like the rows of the fit.

:class:`NewRows` serves ``transform`` and its like: it opens the data, arranges and checks the
features, applies the steps of preprocessing that they lack, and removes what the fit removed.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import numpy as np

from streampca.errors import InvalidInputError, PreprocessingWarning, warn_caller
from streampca.kernels import Array
from streampca.matrix import (
    RAW,
    AxisLabels,
    Block,
    ChosenFeatures,
    ChunkedMatrix,
    Labels,
    Preprocessing,
    residual_block,
)
from streampca.matrix.alignment import axis_names, shared_places
from streampca.matrix.block import refuse_complex
from streampca.matrix.complex import complex_dtype, real_parts
from streampca.matrix.select import select
from streampca.models.results.result import Result
from streampca.models.results.row_maps import RowMap
from streampca.models.rows.line_sums import RUNNING, row_sums, row_sums_in_memory
from streampca.models.side_data.feature_names import (
    arranged,
    check_column_names,
    check_same_features,
    is_xarray,
    variants_hint,
)
from streampca.passes import PassCost, Running
from streampca.sources import as_matrix, open
from streampca.sources.dask.lazy import (
    frame_rows,
    is_dask_array,
    is_dask_frame,
    is_lazy,
    lazy_rows,
    map_rows,
)
from streampca.sources.genotypes.allele_counts import with_assumed_code
from streampca.sources.opening import lazy_matrix
from streampca.sources.tables.row_names import called_id, known_features


@dataclass(frozen=True)
class NewRows:
    """Opens data as rows like those of a fit.

    estimator : its name, for messages.  labels : of the fit.
    result : of the fit; None while a fit goes on, which has removed nothing yet.
    dim : the argument ``dim`` of the fit.
    missing_value : means "missing" in the data.  missing_code : does so in data of a dtype that do
        not say it themselves.
    running : of passes that steps take.  takes_complex : whether X may hold complex numbers.
    """

    estimator: str
    labels: Labels
    result: Result | None
    dim: Any
    missing_value: float | None
    missing_code: Callable[[np.dtype[Any]], float | None]
    running: Running
    takes_complex: bool = False

    @property
    def features(self) -> AxisLabels:
        """Those of the fit; new data must have the same."""
        labels = self.labels.features
        p = len(labels) if self.result is None else self.result.n_features
        return labels if len(labels) == p else AxisLabels.plain("feature", p)

    def matrix(
        self, X: Any, dim: Any = None, remove: Any = None, of_fit: bool = False
    ) -> ChunkedMatrix:
        """New data as samples x features, in the order of the fit, after what it did to its own.

        of_fit : X holds the rows of the fit: samples and features that it left out are left out.
        Raises InvalidInputError for other features than those of the fit.
        """
        dim = self.dim_for(X) if dim is None else dim
        with known_features():
            matrix = as_matrix(
                arranged(X, self.features),
                dim=dim,
                missing_value=self.missing_value,
                complex_values=self.takes_complex,
            )
        if matrix.missing_value is None and (code := self.missing_code(matrix.dtype)) is not None:
            matrix = with_assumed_code(matrix, code)
        if of_fit:
            matrix = self._fitted_part(matrix)
        p = len(self.features)
        matrix = prepared(matrix, self.labels.preprocessing, p, self.running)
        matrix = self.checked(X, matrix)
        gone = None if self.result is None else self.result.removed_from(matrix, remove)
        return matrix if gone is None else matrix.without(*gone)

    def lazy(self, X: Any, dim: Any = None, remove: Any = None) -> LazyRows | None:
        """The rows of X if it is lazy; None for anything else. Raises as ``matrix``."""
        if not is_lazy(X):
            return None
        if is_dask_frame(X):
            check_column_names(X, self.features)
            X = frame_rows(X)
        if not self.takes_complex:
            refuse_complex(getattr(X, "dtype", float))
        if is_dask_array(X) and X.ndim == 2 and dim in (None, 0) and not self._removes(remove):
            steps = self._steps_of_raw(X.shape)
            return LazyRows(X, None, steps, None, None, self.missing_code(X.dtype))
        if is_dask_array(X) and any(np.isnan(n) for n in X.shape):
            return None  # the caller refuses or counts it
        matrix = lazy_matrix(arranged(X, self.features), self.dim_for(X) if dim is None else dim)
        steps = steps_left(RAW, self.labels.preprocessing, matrix.shape[1], len(self.features))
        if steps:  # the values of sums do not affect labels
            self.checked(X, steps.apply(matrix, _no_sums))
        else:
            matrix = self.checked(X, matrix)
        gone = None if self.result is None else self.result.removed_from(matrix, remove)
        design, removed = (None, None) if gone is None else gone
        code = self.missing_code(matrix.dtype)
        return LazyRows(lazy_rows(matrix), matrix, steps, design, removed, code)

    def dim_for(self, X: Any) -> Any:
        """The sample dimensions of the fit, if X has named dimensions or more than two."""
        if is_xarray(X):
            dims = self.labels.samples.dims
            return dims if all(d in X.dims for d in dims) else self.dim
        stored = isinstance(X, (str, os.PathLike))
        return self.dim if stored or getattr(X, "ndim", 2) > 2 else None

    def checked(self, X: Any, matrix: ChunkedMatrix) -> ChunkedMatrix:
        """X, opened as a matrix, with its features stacked as in the fit; refuses others."""
        fitted = self.features
        matrix = _without_identifiers(matrix.arranged(fitted), fitted)
        p = len(fitted)
        if matrix.shape[1] != p:
            raise InvalidInputError(
                f"X has {matrix.shape[1]} features, but {self.estimator} is expecting {p} "
                f"features as input{variants_hint(matrix.labels.features, fitted)}"
            )
        shape: tuple[int, ...] = getattr(X, "shape", ())
        if len(shape) == 2 and shape[1] == p:  # features may have been chosen among more
            check_column_names(X, fitted)
        check_same_features(matrix.labels.features, fitted)
        return matrix

    def _fitted_part(self, matrix: ChunkedMatrix) -> ChunkedMatrix:
        """The samples and features of the fit, by name, in the order of the matrix; samples without
        names by their numbers. Raises InvalidInputError for samples that it lacks."""
        fitted, samples = getattr(self.result, "fitted", None), self.labels.samples
        samples = samples if fitted is None else samples.pick(fitted)
        rows, columns = shared_places(samples, matrix.labels.samples, "samples of the fit"), None
        if rows is None and fitted is not None and len(fitted) == matrix.shape[0]:
            rows = np.flatnonzero(fitted)
        if len(own := matrix.labels.features) > len(self.features):
            columns = shared_places(self.features, own, "features of the fit")
        if rows is None and columns is None:
            return matrix
        rows, columns = (None if one is None else np.sort(one) for one in (rows, columns))
        return select(matrix, samples=rows, features=columns)

    def _removes(self, remove: Any) -> bool:
        """Whether a removal from the rows applies, or has to be refused."""
        if remove is False or self.result is None:
            return False
        return remove is not None or self.result.removes

    def _steps_of_raw(self, shape: tuple[int, ...]) -> Preprocessing:
        """The preprocessing of the fit that raw rows of this shape lack. Checks their width."""
        p = len(self.features)
        steps = steps_left(RAW, self.labels.preprocessing, shape[-1], p)
        width = p if steps.width is None else steps.width
        if len(shape) != 2 or shape[1] != width:
            raise InvalidInputError(
                f"X has {shape[-1]} features, but {self.estimator} is expecting {width} features "
                "as input"
            )
        return steps


def _without_identifiers(matrix: ChunkedMatrix, fitted: AxisLabels) -> ChunkedMatrix:
    """A table without columns that name its rows, where only these are more than the fit had."""
    own, known = axis_names(matrix.labels.features), axis_names(fitted)
    if own is None or known is None or not hasattr(matrix.annotations, "key_names"):
        return matrix
    more = [name for name in own.tolist() if name not in set(known.tolist())]
    if len(own) != len(known) + len(more) or not more or not all(map(called_id, more)):
        return matrix
    return select(matrix, features=~np.isin(own, more))


# -- steps of preprocessing -----------------------------------------------------------------------


def prepared(
    matrix: ChunkedMatrix,
    fitted: Preprocessing,
    n_features: int | None = None,
    running: Running = RUNNING,
) -> ChunkedMatrix:
    """The matrix after those steps of a fit that it has not had, lazily.

    A matrix that remembers no step is raw. Of raw rows that hold the chosen features alone nothing
    has to be chosen.
    n_features : of the model.  running : of passes that steps take.
    Raises InvalidInputError where the matrix had other steps, or the same with other numbers: its
    rows would not be comparable with those of the fit. Warns (PreprocessingWarning) where nothing
    is known of the fit.
    """
    done = matrix.preprocessing
    left = steps_left(done, fitted, matrix.shape[1], n_features)
    return left.apply(matrix, SumsByPass(running))


def steps_left(
    done: Preprocessing, fitted: Preprocessing, width: int, n_features: int | None = None
) -> Preprocessing:
    """The remaining steps for rows of this width that have had ``done``; see :func:`prepared`."""
    left = fitted.after(done)
    if left is None and fitted:
        same = str(done) == str(fitted)
        how = "with numbers of its own" if same else f"in the fit: {fitted}"
        raise InvalidInputError(
            f"X was preprocessed otherwise than the rows of the fit ({done}; {how}), and the two "
            "are not comparable. Give the raw rows, model.transform(X): the fitted steps are "
            "applied to them. Or fit once and apply that to both, for example weighting = "
            "LogEntropy().fit(documents); weighting.transform(X)"
        )
    if left is None:
        if done.fitted:
            warn_caller(
                f"X was preprocessed ({done}), and nothing is known of how the rows of this fit "
                "were: weights that X gave itself are not those of the fit. Fit the model to what "
                "streampca.preprocess gives, and pass raw rows",
                PreprocessingWarning,  # the caller of transform
            )
        return RAW
    narrow = width == n_features and width != left.width
    chosen = all(isinstance(step, ChosenFeatures) for step in left.steps)
    return RAW if narrow and chosen else left


@dataclass(frozen=True)
class SumsByPass:
    """Sums of rows, or of their squares, each by one pass; those of a matrix are made once.

    running : of the passes.
    """

    running: Running
    made: list[tuple[ChunkedMatrix, bool, Array]] = field(default_factory=list)
    costs: list[PassCost] = field(default_factory=list)

    def __call__(self, matrix: ChunkedMatrix, squares: bool) -> Array:
        for known, squared, sums in self.made:
            if known is matrix and squared == squares:
                return sums
        sums = row_sums(matrix, squares=squares, running=self.running, costs=self.costs)
        self.made.append((matrix, squares, sums))
        return sums


def _no_sums(matrix: ChunkedMatrix, squares: bool) -> Array:
    """A substitute for row sums when only labels are needed."""
    return np.ones(matrix.shape[0])


# -- rows that stay lazy --------------------------------------------------------------------------


@dataclass(frozen=True)
class LazyRows:
    """Rows as a Dask array, and the steps of the fit that they still need.

    rows : (n, p), raw.  matrix : their labels; None for a plain Dask array, which has none.
    steps : of the preprocessing, that the rows have not had.
    design : (n, r) basis of what the fit removed, at these rows, and removed : (1 + r, p) what that
        takes away; or None.
    missing_value : means "missing".
    """

    rows: Any
    matrix: ChunkedMatrix | None
    steps: Preprocessing
    design: Array | None
    removed: Array | None
    missing_value: float | None

    def function(self, rows: RowMap) -> Callable[..., Any]:
        """The function of arrays in memory that corresponds to a map."""
        return partial(rows.apply, missing_value=self.missing_value)

    def map(self, function: Callable[..., Any], width: int, dtype: Any) -> Any:
        """(n, width) of a function of (rows, p) arrays that are as those of the fit were."""
        return map_rows(self.rows, self.whole(function), width, dtype, self.design)

    def whole(self, function: Callable[..., Any]) -> Callable[..., Any]:
        """The function applied after the steps that these rows still need."""
        if self.removed is not None:
            function = OfResiduals(function, self.removed, self.missing_value)
        if self.steps:
            function = OfPrepared(function, self.steps, self.missing_value)
        return function


@dataclass(frozen=True)
class OfResiduals:
    """A function of rows in memory, applied to their residuals of a design."""

    function: Callable[[Any], Any]
    removed: Array
    missing_value: float | None

    def __call__(self, values: Any, basis: Array) -> Any:
        if np.iscomplexobj(self.removed):
            parts, removed = real_parts(values, self.missing_value), real_parts(self.removed)
            block = residual_block(Block(parts, 0, 0, len(parts)), basis, removed)
            return self.function(block.values.view(complex_dtype(values.dtype)))
        block = Block(values, 0, 0, values.shape[0], missing_value=self.missing_value)
        return self.function(residual_block(block, basis, self.removed).values)


@dataclass(frozen=True)
class OfPrepared:
    """A function of rows in memory, applied to them after the steps of a fit."""

    function: Callable[..., Any]
    steps: Preprocessing
    missing_value: float | None

    def __call__(self, values: Any, *sides: Any) -> Any:
        matrix = open(values, missing_value=self.missing_value)
        made = self.steps.apply(matrix, row_sums_in_memory)
        return self.function(made.read(0, 0, made.shape[0]), *sides)
