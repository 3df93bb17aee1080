"""What regressions share: rows of X and y paired, one read of both, coefficients, predictions."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, ClassVar, Self

import numpy as np

from streampca.errors import InvalidInputError, NonFiniteError, shorten
from streampca.kernels import Array
from streampca.matrix import Block, ChunkedMatrix, Pair, PairedMatrix, paired
from streampca.models.contract.estimator import Estimator
from streampca.models.contract.request import sample_weights
from streampca.models.results.projection import Projection
from streampca.models.results.result import Result, shaped
from streampca.models.results.row_maps import FeatureSums, RowMap, RowOptions
from streampca.models.side_data.row_weights import refuse_few, split
from streampca.passes import (
    Candidate,
    Outcome,
    Pass,
    PassResult,
    PassSpec,
    Plan,
    Planned,
    Steps,
    single_threaded_blas,
)
from streampca.report.presentation import FeatureMap, Presentation
from streampca.sources import as_pair


@dataclass(frozen=True)
class Prediction(RowMap):
    """intercept + (x - mean) coef."""

    projection: Projection
    intercept: Array

    @property
    def width(self) -> int:
        return len(self.intercept)

    def __call__(self, block: Block) -> Array:
        made = self.projection(block)
        return np.asarray(made + self.intercept.astype(made.dtype))

    def scratch_nbytes(self, matrix: ChunkedMatrix) -> Callable[[int], int]:
        return self.projection.scratch_nbytes(matrix)

    def by_features(self) -> FeatureSums:
        sums = self.projection.by_features()
        return FeatureSums(
            sums.accumulator,
            sums.operands,
            lambda total, eps: sums.finish(total, eps) + self.intercept,
        )


@dataclass(frozen=True, repr=False, kw_only=True)
class RegressionResult(Result, kind="regression"):
    """coef : (p, q).  mean : (p,) of X.  response_mean : (q,) of Y, at the mean of X.

    singular_values : of the joint matrix, each column over its noise.
    standard_errors : (p, q) or empty.  ols_coef : (p, q) by ordinary least squares.
    all_coef : (k, p q) of 1, 2, ... components.  held_out : (h + 1,) mean squared errors, h <= k.
    noise : standard deviation of the errors; NaN where it is not estimated.
    n_used : components that ``coef`` is of; 0 where there are none.
    one_response : whether y was (n,), and predictions are.
    """

    coef: Array = shaped("p", "k")
    mean: Array = shaped("p")
    response_mean: Array = shaped("k")
    ols_coef: Array = shaped("p", "k")
    singular_values: Array = shaped(None, empty=0)
    standard_errors: Array | None = shaped("p", "k", optional=True)
    all_coef: Array | None = shaped(None, None, optional=True)
    held_out: Array | None = shaped(None, optional=True)
    noise: float = float("nan")
    n_used: int = 0
    left_out_x: int
    left_out_y: int
    freedom: float
    one_response: bool = False

    @property
    def n_components(self) -> int:
        return len(self.response_mean)

    def _headline(self) -> str:
        count = "1 response" if self.n_components == 1 else f"{self.n_components} responses"
        return f"{self.method}: {count} of {self.n_samples} samples x {self.n_features} features"

    def scores_of(self, options: RowOptions) -> RowMap:
        rows, mean = np.ascontiguousarray(self.coef.T), np.asarray(self.mean)
        return Prediction(Projection(rows, mean, None, None, "raise", ()), self.response_mean)

    def presentation(self) -> Presentation:
        coef = np.asarray(self.coef).T
        field = FeatureMap(lambda indices: coef[indices], lambda variable: "Coefficient")
        return replace(
            super().presentation(),
            pictures="plots.loadings, which shows its coefficients",
            component="response ",
            makes_scores="",
            own_loadings=coef,
            loadings_name="Coefficient of",
            maps={"coefficients": field},
        )

    def table(self, rows: int = 10) -> str:
        errors = self.standard_errors
        lines = [f"{'feature':>16} {'coefficient':>14} {'+-':>12} {'ordinary':>14}"]
        for i, name in enumerate(
            self.labels.features.names(list(range(min(rows, len(self.mean)))))
        ):
            error = f"{errors[i, 0]:>12.4g}" if errors is not None else f"{'':>12}"
            lines.append(
                f"{name!s:>16.16} {self.coef[i, 0]:>14.6g} {error} {self.ols_coef[i, 0]:>14.6g}"
            )
        return "\n".join(lines)

    def notes(self) -> list[str]:
        if not (self.left_out_x or self.left_out_y):
            return []
        return [f"rows       {self.left_out_x} of X and {self.left_out_y} of Y had no partner"]


@dataclass(frozen=True)
class RegressionRequest:
    """pair : X and y.  weights : (n,) of their rows, or None.  one_response : whether y is (n,)."""

    pair: Pair
    weights: Array | None
    one_response: bool = False


class Regression(Estimator):
    """What regressions share: rows of X and Y paired, one read of both, predictions."""

    views: ClassVar[int] = 2
    result_: RegressionResult
    missing_value: float | None

    def _specs(self, joint: ChunkedMatrix, p: int) -> tuple[PassSpec, dict[str, int]]:
        """The pass over the p columns of X and those of Y, and what solving takes."""
        raise NotImplementedError

    def _fewest(self, p: int) -> int:
        """The rows that fit exactly: more must count."""
        return 1

    def _solved(self, done: PassResult, p: int) -> dict[str, Any]:
        """Fields of the result from the sums."""
        raise NotImplementedError

    def plan(self, X: Any, y: Any = None, *, dim: Any = None, sample_weight: Any = None) -> Plan:
        """What ``fit`` would do with X (n, p) and y. Reads nothing. Raises MemoryLimitError."""
        return self._plan_for((X, y), dim, sample_weight=sample_weight)

    def fit(self, X: Any, y: Any = None, *, dim: Any = None, sample_weight: Any = None) -> Self:
        """Fit y (n,) or (n, q) to X (n, p): anything that ``streampca.open`` takes.

        Rows are paired by their labels where both have some, else by their number.
        sample_weight : (n,) how often each row counts; see :func:`streampca.relative_weights`.
        Raises InvalidInputError, MemoryLimitError before reading; NonFiniteError for holes.
        """
        flat = _is_flat(_response(y))
        return self._fit_to((X, y), dim, sample_weight=sample_weight, one_response=flat)

    def _opened(self, X: Any, dim: Any) -> PairedMatrix:
        """[X, y].  X : both."""
        X, y = X
        if y is None:
            raise InvalidInputError(
                f"{type(self).__name__} requires y to be passed, but the target y is None: "
                "fit(X, y), on the command line two sources"
            )
        y = _response(y)
        y = _as_column(y) if _is_flat(y) else y
        return paired(*as_pair(X, y, dim=dim, missing_value=self.missing_value)).joint()

    def _request(
        self, matrix: PairedMatrix, *, sample_weight: Any = None, one_response: bool = False
    ) -> RegressionRequest:
        p = matrix.pair.x.shape[1]
        weights, least = sample_weights(sample_weight, matrix), self._fewest(p)
        refuse_few(weights, least, "the columns of X and the intercept" if least > 1 else "a row")
        if weights is not None and (rows := int(np.count_nonzero(weights))) <= p:
            raise InvalidInputError(
                f"{rows} rows have a weight above 0, and X has {p} columns; expected more rows"
            )
        return RegressionRequest(matrix.pair, weights, one_response)

    def _candidates(
        self, matrix: ChunkedMatrix, request: RegressionRequest
    ) -> list[Candidate[dict[str, Any]]]:
        p = request.pair.x.shape[1]
        spec, terms = self._specs(matrix, p)
        reason = "one read of both; the rest in memory"
        solver = partial(self._steps, spec=spec, p=p)
        candidate = Candidate(spec.name, reason, (spec,), terms, solve=solver)
        return [candidate.weighted(request.weights)]

    def _steps(self, planned: Planned[Any], *, spec: PassSpec, p: int) -> Steps[dict[str, Any]]:
        """The read, and what follows from its sums."""
        done = yield Pass(spec)
        with single_threaded_blas():
            return self._solved(done, p)

    def _remark(self, matrix: ChunkedMatrix, request: RegressionRequest) -> None:
        request.pair.warn_of_lost_rows()

    def _result(
        self, matrix: ChunkedMatrix, request: RegressionRequest, done: Outcome[dict[str, Any]]
    ) -> RegressionResult:
        pair = request.pair
        return RegressionResult(
            **(self._described(matrix, done) | {"labels": pair.x.labels}),
            left_out_x=pair.left_out[0],
            left_out_y=pair.left_out[1],
            one_response=request.one_response,
            **done.answer,
        )

    def fit_transform(self, X: Any, y: Any = None, *, dim: Any = None) -> Any:
        """Fit, and predictions for X, (n, q): a second read of X."""
        return self.fit(X, y, dim=dim).transform(X, dim=dim)

    def transform(self, X: Any, y: Any = None, **more: Any) -> Any:
        """Predictions (n, q), one pass: what ``predict`` gives, for pipelines; y is not read."""
        return super().transform(X, **more)

    def predict(self, X: Any, *, dim: Any = None, out: Any = None, overwrite: bool = False) -> Any:
        """Responses of rows of X, (n, q), or (n,) after a fit to an (n,) y. Lazy where X is.

        out : path of a new Zarr array to write block by block. Cost: one pass.
        """
        found = super().transform(X, dim=dim, out=out, overwrite=overwrite)
        flat = self.result_.one_response and out is None
        return found[:, 0] if flat and getattr(found, "ndim", 0) == 2 else found

    def score(self, X: Any, y: Any, sample_weight: Any = None) -> float:
        """R^2 of the predictions for X (n, p), mean over responses, as scikit-learn's. One pass.

        Of a response that does not vary: 1 where it is met, else 0.
        """
        pair = self._opened((X, y), None).pair
        truth = np.asarray(pair.y.read(0, 0, pair.y.shape[0]), np.float64)
        left = truth - np.asarray(self.predict(pair.x)).reshape(truth.shape)
        weights = sample_weights(split(sample_weight)[0], pair.x)
        weights = np.ones(len(truth)) if weights is None else weights
        spread = weights @ (truth - np.average(truth, axis=0, weights=weights)) ** 2
        lost = weights @ left**2
        constant = np.where(lost > 0, 1.0, 0.0)
        shares = np.divide(lost, spread, out=constant, where=spread > 0)
        return float(np.mean(1.0 - shares))

    def __sklearn_tags__(self) -> Any:
        from sklearn.utils import RegressorTags, TargetTags

        target = TargetTags(required=True, multi_output=True)
        return replace(
            super().__sklearn_tags__(),
            estimator_type="regressor",
            target_tags=target,
            regressor_tags=RegressorTags(),
        )

    @property
    def coef_(self) -> Array:
        """(p,), or (q, p) of several responses, as scikit-learn has them."""
        coef = self.result_.coef.T
        return coef[0] if len(coef) == 1 else coef

    @property
    def intercept_(self) -> Any:
        """A number, or (q,) of several responses."""
        result = self.result_
        found = result.response_mean - result.mean @ result.coef
        return float(found[0]) if len(found) == 1 else found

    @property
    def ols_coef_(self) -> Array:
        """Coefficients by ordinary least squares, from the same read, in the shape of ``coef_``."""
        coef = self.result_.ols_coef.T
        return coef[0] if len(coef) == 1 else coef


def refuse_columns_of_holes(sums: Any, p: int) -> None:
    """Raise NonFiniteError for columns of X (p of them), or of y, without any observation."""
    empty = np.flatnonzero(sums.missing >= sums.count).tolist()
    if empty:
        named = [f"{i} of X" if i < p else f"{i - p} of y" for i in empty]
        raise NonFiniteError(f"no observation in column {shorten(named)}; leave it out")


def _response(y: Any) -> Any:
    """A list, or what only converts itself, as an array."""
    converts = hasattr(y, "__array__") and not (hasattr(y, "shape") or hasattr(y, "data_vars"))
    return np.asarray(y) if converts or isinstance(y, (list, tuple)) else y


def _is_flat(y: Any) -> bool:
    return len(getattr(y, "shape", (0, 0))) == 1


def _as_column(y: Any) -> Any:
    """(n, 1) of (n,), with its labels."""
    if hasattr(y, "to_frame") and not hasattr(y, "dims"):
        return y.to_frame()
    if hasattr(y, "expand_dims"):
        return y.expand_dims("response", axis=1)
    return y.reshape(-1, 1) if hasattr(y, "reshape") else np.asarray(y).reshape(-1, 1)
