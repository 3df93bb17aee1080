"""Sparse PCA: components of few features, from the covariance or by products that are read."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Self

import numpy as np

from streampca.errors import (
    AccuracyWarning,
    ConvergenceWarning,
    InvalidInputError,
    NonFiniteError,
    warn_caller,
)
from streampca.kernels import Array
from streampca.matrix import ChunkedMatrix, Labels
from streampca.models import shared_parameters as shared
from streampca.models.assemble import provenance
from streampca.models.covariance import checked_covariance
from streampca.models.empty_samples import (
    ObservedSamples,
    ScoresEmptySamples,
    is_field,
    warn_of_empty,
)
from streampca.models.estimator import attach
from streampca.models.labelled_rows import rows_of_scores
from streampca.models.parameters import parameter
from streampca.models.projection import BackProjection, Projection
from streampca.models.registry import estimator
from streampca.models.request import Request, seed_of, side_data
from streampca.models.result import Result, places, shaped
from streampca.models.row_passes import RowMap, RowOptions
from streampca.models.sparse_routes import ROUTES, Alternated, SparseRequest, alternated
from streampca.passes import (
    Execution,
    Plan,
    Rates,
    SolverInput,
    follow,
    make_plan,
    single_threaded_blas,
    warn_of_excess,
)
from streampca.solvers import eigh_lower, numerical_rank, signs_of_components
from streampca.solvers.sparse_components import Penalty, adjusted_variances
from streampca.sources import as_matrix, counted

REGRESSED = 5000  # features up to which regressions are the default
SHARE = 0.1  # of the features, where nothing says how many loadings are not 0


@dataclass(frozen=True, repr=False, kw_only=True)
class SparseResult(Result, kind="sparse components"):
    """components : (k, p) of length 1; scores are their products with standardised rows.

    explained_variance : (k,) adjusted: of each score beyond those before it.
    objective : one entry for each iteration.  dropped : features without observation.
    """

    components: Array = shaped("k", "p")
    explained_variance: Array = shaped("k")
    mean: Array = shaped("p")
    scale: Array | None = shaped("p", optional=True)
    objective: Array = shaped(None)
    dropped: Array = places()
    total_variance: float
    converged: bool

    @property
    def n_components(self) -> int:
        return len(self.components)

    @property
    def n_features(self) -> int:
        return len(self.mean)

    @property
    def nonzero(self) -> Array:
        """(k,) loadings that are not 0."""
        return np.asarray(np.count_nonzero(self.components, axis=1))

    @property
    def explained_variance_ratio(self) -> Array:
        """(k,) of the total variance."""
        return self.explained_variance / (self.total_variance or 1.0)

    def scores_of(self, options: RowOptions) -> RowMap:
        absent = tuple(self.dropped.tolist())
        mean = np.asarray(self.mean)
        return Projection(self.components, mean, self.scale, None, options.missing, absent)

    def table(self, rows: int = 10) -> str:
        lines = [f"{'component':>9} {'variance':>12} {'share':>8} {'sum':>8} {'loadings':>9}"]
        shares = self.explained_variance_ratio
        for i, share in enumerate(shares[:rows]):
            lines.append(f"{i + 1:>9} {self.explained_variance[i]:>12.6g} {share:>8.2%} "
                         f"{shares[: i + 1].sum():>8.2%} {self.nonzero[i]:>9}")  # fmt: skip
        return "\n".join(lines)

    def to_xarray(self) -> Any:
        """A Dataset: components by the dimensions of the data, adjusted variances and shares."""
        from streampca.sources.labelled_results import to_dataset

        axis = self.component_axis
        tables: dict[str, Any] = {
            "components": (self.components, [axis, self.labels.features]),
            "explained_variance": (self.explained_variance, [axis]),
            "explained_variance_ratio": (self.explained_variance_ratio, [axis]),
        }
        return to_dataset(tables, {"method": self.method, "n_samples": self.n_samples})


@estimator
class SparsePCA(ScoresEmptySamples):
    """Components whose loadings are 0 for all but a few features.

    Attributes
    ----------
    components_ (k, p) of length 1, explained_variance_ (k,) and explained_variance_ratio_ (k,)
    adjusted, mean_ (p,), objective_ (iterations,), n_iter_, plan_, cost_, result_.

    Scores are products with the loadings, and are correlated; the adjusted variance of a component
    is what it adds to those before it, and depends on their order.
    Cost: one read and p^2 memory where the covariance fits, 2 k p^2 flops an iteration; else the
    reads of a PCA, and two (streamed features: three) for each iteration, a few (p, k) arrays.
    Raises InvalidInputError, MemoryLimitError before reading; NonFiniteError (holes). Warns
    (ConvergenceWarning) where loadings still move at the end.
    Source: Zou, Hastie and Tibshirani 2006, J. Comput. Graph. Stat. 15(2), sections 3.3 to 4.
    """

    n_components: int = parameter(
        default=2, kw_only=False, counts_components=True, meaning="k, a number.",
    )  # fmt: skip
    n_nonzero: Any = parameter(
        default=None,
        meaning="""loadings that are not 0, a number or one for each component. None, and no alpha:
            a tenth of the features.""",
    )
    alpha: Any = parameter(
        default=None,
        meaning="""in place of n_nonzero: weight of the sum of absolute loadings, a number or one
            for each component, in units of variance.""",
    )
    ridge: float | None = parameter(
        default=None,
        meaning="""weight of the sum of squared loadings, in units of variance; inf: loadings are
            thresholded products with the covariance. A finite one takes the covariance in memory.
            None: 1e-6 where p is at most n and 5000, else inf.""",
    )
    algorithm: str = parameter(
        default="auto", choices=("auto", "covariance", "sweeps"),
        meaning=""""covariance" (p x p, in memory), "sweeps" (a read for each product with it; needs
            ridge=inf), or the one that is predicted to be quicker.""",
    )  # fmt: skip
    center: bool = shared.CENTER
    scale: str | None = shared.SCALE
    missing: str = parameter(
        default="raise", choices=("raise", "mean"),
        meaning="""what to do with missing cells: "raise", or "mean" to put the mean of their
            feature in their place.""",
    )  # fmt: skip
    missing_value: float | None = shared.MISSING_VALUE
    tol: float = parameter(
        default=1e-5, meaning="change of a loading up to which it is still; zeros stay, too."
    )
    max_passes: int = parameter(
        default=30, meaning="reads of the data, at most, where the covariance is not held."
    )
    random_state: Any = shared.RANDOM_STATE
    weights: Any = shared.WEIGHTS
    memory_limit: int | str | None = shared.MEMORY_LIMIT
    scheduler: Any = shared.SCHEDULER
    threads: int | None = shared.THREADS
    progress: Any = shared.PROGRESS
    checkpoint: str | None = shared.CHECKPOINT
    result_: SparseResult

    def plan(self, X: Any, *, dim: Any = None) -> Plan:
        """What ``fit`` would do with X: passes, reads, memory. Reads nothing."""
        matrix = as_matrix(counted(X), dim=dim, missing_value=self.missing_value)
        return self._plan(matrix, self._request(matrix, 0))

    def fit(self, X: Any, y: Any = None, *, dim: Any = None) -> Self:
        """Fit to X (n, p): anything that ``streampca.open`` takes. See the class for its cost.

        Samples of a field without any observation are left out, with a warning that counts them.
        """
        matrix = as_matrix(counted(X), dim=dim, missing_value=self.missing_value)
        try:
            return self._fit(matrix, dim)
        except NonFiniteError:
            field = self.missing == "raise" and is_field(X, matrix.labels)
            observed = ObservedSamples.of(matrix, **self._running) if field else None
            if observed is None:
                raise
        self._fit(observed.matrix, dim)
        self.cost_ = observed.costs + self.cost_
        warn_of_empty(matrix.labels.samples, observed.rows)
        return self

    def _fit(self, matrix: ChunkedMatrix, dim: Any) -> Self:
        """Fit to this matrix."""
        request = self._request(matrix, seed_of(self.random_state))
        plan = self._plan(matrix, request)
        execution = Execution.begun(plan, matrix, self.scheduler, self.progress, self.checkpoint)
        execution.n_passes = plan.n_passes
        fitted, found = follow(
            ROUTES[plan.solver],
            SolverInput(plan, matrix, request),
            execution,
            feature_weights=request.pca.side.weights,
        )
        execution.finished()
        self.plan_, self.cost_, self.dim_ = plan, execution.costs, dim
        warn_of_excess(plan, execution.memory)
        self._finish(
            found, matrix.labels, matrix.shape[0], mean=fitted.mean, scale=fitted.scale,
            dropped=fitted.dropped, plan=plan.to_dict(),
            total_variance=fitted.spectrum.total / request.pca.divisor(fitted.weight),
            provenance=provenance(self.cost_, matrix.fingerprint(), execution.memory),
        )  # fmt: skip
        return self

    @classmethod
    def from_covariance(
        cls, S: Any, n_components: int = 2, *, mean: Any = None, n: int | None = None,
        names: Any = None, **parameters: Any,
    ) -> SparsePCA:  # fmt: skip
        """A fitted model from a covariance or correlation matrix alone.

        S : (p, p) symmetric.  mean : (p,) or None (0).  n : rows behind it, if known.
        names : of the features.  parameters : of the class.
        """
        model = cls(n_components, **parameters)
        covariance, center, names = checked_covariance(S, mean, names)
        p = len(covariance)
        request = model._checked((n or p, p), Request(n_components=n_components))
        with single_threaded_blas():
            spectrum = eigh_lower(np.array(covariance), n_components)
            rank = numerical_rank(spectrum.values, p)
            start = spectrum.vectors[:, : max(rank, 1)]
            found = alternated(covariance, start, request)
        labels = Labels.plain((0, p), None if names is None else list(names))
        model._finish(found, labels, n or 0, mean=center,
                      total_variance=float(np.trace(covariance)))  # fmt: skip
        return model

    def inverse_transform(
        self, X: Any, *, out: str | os.PathLike[str] | None = None, overwrite: bool = False
    ) -> Any:
        """Rows (n, p) by least squares over the components from scores (n, k).

        out : path of a new Zarr array to write block by block. Lazy on Dask, labelled where X is.
        """
        result = self._fitted()
        assert isinstance(result, SparseResult)
        rows = np.linalg.pinv(np.asarray(result.components)).T
        center = np.array(result.mean)
        center[result.dropped] = np.nan
        back = BackProjection(rows, center, result.scale, None)
        return rows_of_scores(result, self._passes, "inverse transform", X, back,
                              out=out, overwrite=overwrite)  # fmt: skip

    components_ = property(lambda self: self.result_.components, doc="(k, p) of length 1.")
    mean_ = property(lambda self: self.result_.mean, doc="(p,) column means.")
    objective_ = property(lambda self: self.result_.objective, doc="(iterations,) falling.")
    n_iter_ = property(lambda self: len(self.result_.objective), doc="Iterations.")
    explained_variance_ = property(
        lambda self: self.result_.explained_variance, doc="(k,) adjusted variances."
    )
    explained_variance_ratio_ = property(
        lambda self: self.result_.explained_variance_ratio, doc="(k,) of the total variance."
    )

    # -- parts ----------------------------------------------------------------------------------

    def _request(self, matrix: ChunkedMatrix, seed: int) -> SparseRequest:
        pca = Request(
            n_components=self.n_components, center=self.center, scale=self.scale,
            missing=self.missing, random_state=seed, memory_limit=self.memory_limit,
        )  # fmt: skip
        pca.check(matrix.shape)
        return self._checked(matrix.shape, pca.bound(side=side_data(matrix, weights=self.weights)))

    def _checked(self, shape: tuple[int, int], pca: Request) -> SparseRequest:
        (n, p), k = shape, pca.count
        if k is None or k < 1:
            raise InvalidInputError(f"n_components={self.n_components!r}; expected a number from 1")
        ridge = 1e-6 if p <= min(n, REGRESSED) else np.inf
        ridge = ridge if self.ridge is None else float(self.ridge)
        if not ridge >= 0:
            raise InvalidInputError(f"ridge={self.ridge!r}; expected 0 or more, inf, or None")
        if self.n_nonzero is not None and self.alpha is not None:
            raise InvalidInputError("n_nonzero= and alpha= are given; expected one of them")
        if not 0 < self.tol < 1 or self.max_passes < 5:
            raise InvalidInputError(
                f"tol={self.tol!r}, max_passes={self.max_passes!r}; expected a change between 0 "
                "and 1, and 5 passes or more"
            )
        nonzero = alpha = None
        if self.alpha is not None:
            alpha = _each("alpha", self.alpha, k)
            if not (alpha >= 0).all():
                raise InvalidInputError(f"alpha={self.alpha!r}; expected 0 or more")
        else:
            asked = int(np.ceil(SHARE * p)) if self.n_nonzero is None else self.n_nonzero
            nonzero = _each("n_nonzero", asked, k)
            if not ((nonzero >= 1) & (nonzero <= p) & (nonzero == np.floor(nonzero))).all():
                raise InvalidInputError(
                    f"n_nonzero={self.n_nonzero!r}; expected numbers from 1 to {p}"
                )
        return SparseRequest(pca, Penalty(nonzero, alpha, ridge), self.tol, self.max_passes)

    def _plan(self, matrix: ChunkedMatrix, request: SparseRequest) -> Plan:
        """With the covariance where that is the quicker, or the only way."""
        if self.algorithm not in ("auto", "covariance", "sweeps"):
            raise InvalidInputError(
                f"algorithm={self.algorithm!r}; expected 'auto', 'covariance' or 'sweeps'"
            )
        regressed = not request.penalty.thresholds
        if regressed and self.algorithm == "sweeps":
            raise InvalidInputError(
                f"algorithm='sweeps' with ridge={request.penalty.ridge:g}: a finite ridge takes "
                "the covariance in every step; give ridge=float('inf')"
            )
        names = ["scatter"] if regressed or self.algorithm == "covariance" else list(ROUTES)
        names = names[self.algorithm == "sweeps" :]
        found = [one for name in names for one in ROUTES[name].candidates(matrix, request)]
        return make_plan(
            matrix, "SparsePCA", Rates.of(None).timed(matrix, found), self.memory_limit
        )

    def _finish(self, found: Alternated, labels: Labels, n: int, **more: Any) -> None:
        """Keep the result, oriented; warn of what is not there."""
        k, (p, r) = self.n_components, found.b.shape
        if r < k:
            warn_caller(f"{k} components were asked, and the data have rank {r}: those after it "
                        "are 0", AccuracyWarning)  # fmt: skip
        components, variance = np.zeros((k, p)), np.zeros(k)
        components[:r] = (found.b * signs_of_components(found.b)).T
        variance[:r] = adjusted_variances(found.inner)
        if not found.trace.still:
            warn_caller(
                f"loadings still moved by {found.trace.changes[-1]:.1g} after "
                f"{len(found.trace.changes)} iterations; raise max_passes or tol",
                ConvergenceWarning,
            )  # fmt: skip
        attach(self, SparseResult(
            method=self.registered_name, n_samples=n, labels=labels,
            settings=self.stored_params(), components=components, explained_variance=variance,
            objective=np.array(found.trace.objective), converged=found.trace.still, **more,
        ))  # fmt: skip


def _each(name: str, value: Any, k: int) -> Array:
    """(k,) of a number, or of one for each component."""
    try:
        values = np.asarray(value, dtype=np.float64)
    except (TypeError, ValueError):
        values = np.zeros((0, 0))
    if values.ndim == 0:
        return np.full(k, float(values))
    if values.shape != (k,) or not isinstance(value, (Sequence, np.ndarray)):
        raise InvalidInputError(f"{name}={value!r}; expected a number, or {k} of them")
    return values
