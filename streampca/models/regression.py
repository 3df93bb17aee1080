"""What regressions share: rows of X and y paired, one read of both, coefficients, predictions."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, ClassVar, Self

import numpy as np

from streampca.errors import AbsentNamesWarning, InvalidInputError, warn_caller
from streampca.kernels import Array
from streampca.matrix import Block, ChunkedMatrix, Pair, paired
from streampca.models.assemble import provenance
from streampca.models.estimator import Estimator, attach
from streampca.models.projection import Projection
from streampca.models.request import sample_weights
from streampca.models.result import Result, places, shaped
from streampca.models.row_passes import FeatureSums, RowMap, RowOptions
from streampca.passes import (
    Candidate,
    Execution,
    PassResult,
    PassSpec,
    Plan,
    make_plan,
    run,
    single_threaded_blas,
    warn_of_excess,
)
from streampca.sources import as_matrix, counted


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
        return FeatureSums(sums.accumulator, sums.operands,
                           lambda total, eps: sums.finish(total, eps) + self.intercept)  # fmt: skip


@dataclass(frozen=True, repr=False, kw_only=True)
class RegressionResult(Result, kind="regression"):
    """coef : (p, q).  mean : (p,) of X.  response_mean : (q,) of Y, at the mean of X.

    singular_values : of the joint matrix, each column over its noise.
    standard_errors : (p, q) or empty.  ols_coef : (p, q) by ordinary least squares.
    all_coef : (k, p q) of 1, 2, ... components.  held_out : (k + 1,) mean squared errors.
    """

    coef: Array = shaped("p", "k")
    mean: Array = shaped("p")
    response_mean: Array = shaped("k")
    ols_coef: Array = shaped("p", "k")
    singular_values: Array = shaped(None, empty=0)
    standard_errors: Array | None = shaped("p", "k", optional=True)
    all_coef: Array | None = shaped(None, None, optional=True)
    held_out: Array | None = shaped(None, optional=True)
    noise: Array | None = shaped(None, optional=True)
    absent: Array = places()
    left_out_x: int
    left_out_y: int
    freedom: float

    @property
    def n_components(self) -> int:
        return len(self.response_mean)

    @property
    def n_features(self) -> int:
        return len(self.mean)

    def scores_of(self, options: RowOptions) -> RowMap:
        rows, mean = np.ascontiguousarray(self.coef.T), np.asarray(self.mean)
        return Prediction(Projection(rows, mean, None, None, "raise", ()), self.response_mean)

    def table(self, rows: int = 10) -> str:
        errors = self.standard_errors
        lines = [f"{'feature':>16} {'coefficient':>14} {'+-':>12} {'ordinary':>14}"]
        for i, name in enumerate(
            self.labels.features.names(list(range(min(rows, len(self.mean)))))
        ):
            error = f"{errors[i, 0]:>12.4g}" if errors is not None else f"{'':>12}"
            lines.append(f"{name!s:>16.16} {self.coef[i, 0]:>14.6g} {error} "
                         f"{self.ols_coef[i, 0]:>14.6g}")  # fmt: skip
        return "\n".join(lines)

    def notes(self) -> list[str]:
        if not (self.left_out_x or self.left_out_y):
            return []
        return [f"rows       {self.left_out_x} of X and {self.left_out_y} of Y had no partner"]


class Regression(Estimator):
    """What regressions share: rows of X and Y paired, one read of both, predictions."""

    views: ClassVar[int] = 2
    _estimator_type = "regressor"
    result_: RegressionResult
    missing_value: float | None

    def _specs(self, joint: ChunkedMatrix) -> tuple[PassSpec, dict[str, int]]:
        """The pass, and what solving takes."""
        raise NotImplementedError

    def _solved(self, done: PassResult, p: int) -> dict[str, Any]:
        """Fields of the result from the sums."""
        raise NotImplementedError

    def plan(self, X: Any, y: Any = None, *, dim: Any = None) -> Plan:
        """What ``fit`` would do with X and y: one pass. Reads nothing. Raises MemoryLimitError."""
        return self._planned(self._pair(X, y, dim).joint())

    def _planned(self, joint: ChunkedMatrix) -> Plan:
        spec, terms = self._specs(joint)
        reason = "one read of both; the rest in memory"
        candidates = [Candidate(spec.name, reason, (spec,), terms)]
        return make_plan(joint, type(self).__name__, candidates, self.memory_limit)

    def fit(self, X: Any, y: Any = None, *, dim: Any = None, sample_weight: Any = None) -> Self:
        """Fit y (n,) or (n, q) to X (n, p): anything that ``streampca.open`` takes.

        Rows are paired by their labels where both have some, else by their number.
        sample_weight : (n,) how often each row counts.
        Raises InvalidInputError, MemoryLimitError before reading; NonFiniteError for holes.
        """
        pair = self._pair(X, y, dim)
        if any(pair.left_out):
            warn_caller(pair.note.partition("; rows of Y")[0], AbsentNamesWarning)
        joint = pair.joint()
        plan, weights = self._planned(joint), sample_weights(sample_weight, joint)
        execution = Execution.begun(plan, joint, self.scheduler, self.progress, self.checkpoint)
        done = run(plan.passes[0], joint, weights=weights, execution=execution)
        execution.finished()
        self.plan_, self.cost_, self.dim_ = plan, execution.costs, dim
        warn_of_excess(plan, execution.memory)
        with single_threaded_blas():
            found = self._solved(done, pair.x.shape[1])
        attach(self, RegressionResult(
            method=self.registered_name, n_samples=joint.shape[0], labels=pair.x.labels,
            settings=self.stored_params(), plan=plan.to_dict(),
            provenance=provenance(self.cost_, joint.fingerprint(), execution.memory),
            left_out_x=pair.left_out[0], left_out_y=pair.left_out[1], **found,
        ))  # fmt: skip
        self.one_response_ = getattr(y, "ndim", 2) == 1
        return self

    def _pair(self, X: Any, y: Any, dim: Any) -> Pair:
        if y is None:
            raise InvalidInputError(
                f"{type(self).__name__} needs a response; expected fit(X, y), on the command line "
                "two sources"
            )
        if isinstance(y, (list, tuple)):
            y = np.asarray(y)
        if getattr(y, "ndim", 2) == 1:
            y = _as_column(y)
        x, response = (as_matrix(counted(one), dim=dim, missing_value=self.missing_value)
                       for one in (X, y))  # fmt: skip
        return paired(x, response)

    def transform(self, X: Any, y: Any = None, **more: Any) -> Any:
        """Predictions (n, q): what ``predict`` gives, for pipelines; ``y`` does not count."""
        return super().transform(X, **more)

    def predict(self, X: Any, *, dim: Any = None, out: Any = None, overwrite: bool = False) -> Any:
        """Responses of rows of X, (n, q), or (n,) after a fit to an (n,) y. Lazy where X is.

        out : path of a new Zarr array to write block by block. Cost: one pass.
        """
        found = super().transform(X, dim=dim, out=out, overwrite=overwrite)
        flat = getattr(self, "one_response_", False) and out is None
        return found[:, 0] if flat and getattr(found, "ndim", 0) == 2 else found

    def score(self, X: Any, y: Any) -> float:
        """R^2 of the predictions, the mean over responses, as scikit-learn's regressors."""
        truth = np.asarray(y, np.float64).reshape(len(y), -1)
        left = truth - np.asarray(self.predict(X)).reshape(truth.shape)
        spread = np.sum((truth - truth.mean(axis=0)) ** 2, axis=0)
        return float(np.mean(1.0 - np.sum(left**2, axis=0) / spread))

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
        """Coefficients by ordinary least squares, from the same read, as ``coef_``."""
        coef = self.result_.ols_coef.T
        return coef[0] if len(coef) == 1 else coef


def _as_column(y: Any) -> Any:
    """(n, 1) of (n,), with its labels."""
    if hasattr(y, "to_frame") and not hasattr(y, "dims"):
        return y.to_frame()
    if hasattr(y, "expand_dims"):
        return y.expand_dims("response", axis=1)
    return y.reshape(-1, 1) if hasattr(y, "reshape") else np.asarray(y).reshape(-1, 1)
