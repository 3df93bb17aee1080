"""Sparse PCA: components of few features, from the covariance or by products that are read."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Any

import numpy as np

from streampca.errors import AccuracyWarning, ConvergenceWarning, InvalidInputError, warn_caller
from streampca.kernels import Array
from streampca.matrix import ChunkedMatrix, Labels
from streampca.models.contract import shared_parameters as shared
from streampca.models.contract.estimator import attach
from streampca.models.contract.parameters import Kept, parameter
from streampca.models.contract.registry import estimator
from streampca.models.contract.request import Request, side_data, whole_number
from streampca.models.decompose.covariance import checked_covariance
from streampca.models.decompose.empty_samples import ObservedSamples, ScoresEmptySamples
from streampca.models.results.projection import BackProjection
from streampca.models.rows.labelled_rows import rows_of_scores
from streampca.models.side_data.by_name import named_column
from streampca.models.sparse.result import SparseResult
from streampca.models.sparse.routes import (
    Alternated,
    SparseFit,
    SparseRequest,
    alternated,
    covariance_candidates,
    each_component,
    numbered_groups,
)
from streampca.models.sparse.sweeps import sweep_candidates
from streampca.passes import Candidate, Outcome, Rates, single_threaded_blas
from streampca.solvers import eigh_lower, numerical_rank, signs_of_components
from streampca.solvers.sparse_components import Penalty, adjusted_variances

REGRESSED = 5000  # features up to which regressions are the default
SHARE = 0.1  # of the features, where nothing says how many loadings are not 0
WAYS = {"covariance": covariance_candidates, "sweeps": sweep_candidates}  # by solver=


@estimator
class SparsePCA(ScoresEmptySamples):
    """Components whose loadings are 0 for all but a few features.

    Attributes
    ----------
    components_ (k, p) of length 1, explained_variance_ (k,) and explained_variance_ratio_ (k,)
    adjusted, mean_ (p,), objective_ (iterations,), n_iter_, path_, plan_, cost_, result_.
    objective_ is what alpha or path minimise, and falls; with n_nonzero the penalty follows from
    the number of loadings at each iteration, and objective_, without it, may rise on the way.

    Loadings B and directions A, whose columns are orthonormal, minimise tr S - 2 tr A'SB + tr B'SB
    + ridge |B|^2 + sum_j alpha_j |b_j|_1, S the covariance; with ridge=inf the squares |B|^2 stand
    for the two terms before alpha.
    Scores are products with the loadings, and are correlated; the adjusted variance of a component
    is what it adds to those before it, and depends on their order.
    Cost: one read and p^2 memory where the covariance fits, 2 k p^2 flops an iteration; else the
    reads of a PCA, and two (streamed features: three) for each iteration, a few (p, k) arrays.
    Raises InvalidInputError, MemoryLimitError before reading; NonFiniteError (holes). Warns
    (ConvergenceWarning) where loadings still move at the end.
    Source: Zou, Hastie and Tibshirani 2006, J. Comput. Graph. Stat. 15(2), sections 3.3 to 4.

    Examples
    --------
    >>> import numpy as np
    >>> from streampca import SparsePCA
    >>> rng = np.random.default_rng(0)
    >>> X = rng.standard_normal((200, 8))
    >>> X[:, :3] += 3 * rng.standard_normal((200, 1))  # features that vary together
    >>> SparsePCA(1, n_nonzero=3).fit(X).components_.round(1)
    array([[0.6, 0.6, 0.6, 0. , 0. , 0. , 0. , 0. ]])
    """

    n_components: int = parameter(
        default=2, kw_only=False, counts_components=True, meaning="k, a number."
    )
    n_nonzero: Any = parameter(
        default=None,
        meaning="""loadings that are not 0, a number or one for each component. None, and no alpha:
            a tenth of the features.""",
    )
    alpha: Any = parameter(
        default=None,
        meaning="""in place of n_nonzero: penalty of the sum of absolute loadings, a number or one
            for each component, in units of variance.""",
    )
    path: Any = parameter(
        default=None,
        meaning="""in place of alpha: several, each a number or one for each component. They are
            fitted side by side, in the same reads; ``path_`` has what each gave.""",
    )
    path_share: float | None = parameter(
        default=None,
        meaning="""of path: the one with the fewest loadings is taken whose adjusted variance is at
            least this share of the largest on the path. None: the last one.""",
    )
    groups: Any = parameter(
        default=None,
        kept=Kept.NAME,
        needs_data=True,
        meaning="""(p,) labels of groups of features, which have loadings or none as a whole, or the
            name of a column of the features; n_nonzero counts groups. Takes ridge=inf.""",
    )
    ridge: float | None = parameter(
        default=None,
        meaning="""penalty of the sum of squared loadings, in units of variance; inf: loadings are
            thresholded products with the covariance. None: 1e-6 where p is at most n and 5000,
            else inf; inf with groups.""",
    )
    solver: str = parameter(
        default="auto",
        choices=("auto", *WAYS),
        meaning=""""covariance" (p x p, in memory), "sweeps" (a read for each product with it;
            with a finite ridge, of chunks that hold whole samples, and the covariance of 1000
            features, or of 4 times n_nonzero), or the one that is predicted to be quicker.""",
    )
    center: bool = shared.CENTER
    scale: str | None = shared.SCALE
    missing: str = parameter(
        default="raise",
        choices=("raise", "mean"),
        meaning="""what to do with missing cells: "raise", or "mean" to put the mean of their
            feature in their place.""",
    )
    tol: float = parameter(
        default=1e-5, meaning="change of a loading up to which it is still; zeros stay, too."
    )
    max_passes: int = parameter(
        default=30, meaning="reads of the data, at most, where the covariance is not held."
    )
    random_state: Any = shared.RANDOM_STATE
    weights: Any = shared.WEIGHTS

    @classmethod
    def from_covariance(
        cls,
        covariance: Any,
        n_samples: int | None = None,
        *,
        n_components: int = 2,
        mean: Any = None,
        names: Any = None,
        **parameters: Any,
    ) -> SparsePCA:
        """A fitted model from a covariance or correlation matrix alone.

        covariance : (p, p) symmetric.  n_samples : rows behind it, if known.  mean : (p,) or None
        (0).  names : of the features.  parameters : of the class.
        """
        model = cls(n_components, **parameters)
        matrix, center, names = checked_covariance(covariance, mean, names)
        p = len(matrix)
        labels = Labels.plain((0, p), None if names is None else list(names))
        groups = numbered_groups(model.groups, labels.features)
        request = model._checked((n_samples or p, p), Request(n_components=n_components), groups)
        with single_threaded_blas():
            spectrum = eigh_lower(np.array(matrix), n_components)
            rank = numerical_rank(spectrum.values, p)
            start = spectrum.vectors[:, : max(rank, 1)]
            found = alternated(matrix, start, request)
        result = model._found(
            request,
            found,
            method=model.registered_name,
            n_samples=n_samples or 0,
            labels=labels,
            settings=model.stored_params(),
            mean=center,
            total_variance=float(np.trace(matrix)),
        )
        attach(model, result)
        return model

    def inverse_transform(
        self, X: Any, *, out: str | os.PathLike[str] | None = None, overwrite: bool = False
    ) -> Any:
        """Rows (n, p) by least squares over the components from scores (n, k).

        out : path of a new Zarr array to write, in one pass. Lazy on Dask, labelled where X is.
        """
        result = self._result_as(SparseResult)
        rows = np.linalg.pinv(np.asarray(result.components)).T
        center = np.array(result.mean)
        center[result.dropped] = np.nan
        back = BackProjection(rows, center, result.scale, None)
        return rows_of_scores(
            result, self._passes, "inverse transform", X, back, out=out, overwrite=overwrite
        )

    components_ = property(lambda self: self.result_.components, doc="(k, p) of length 1.")
    mean_ = property(lambda self: self.result_.mean, doc="(p,) column means.")
    objective_ = property(lambda self: self.result_.objective, doc="(iterations,) of each.")
    n_iter_ = property(lambda self: len(self.result_.objective), doc="Iterations.")
    path_ = property(lambda self: self.result_.path, doc="A PathPoint for each penalty of path.")
    explained_variance_ = property(
        lambda self: self.result_.explained_variance, doc="(k,) adjusted variances."
    )
    explained_variance_ratio_ = property(
        lambda self: self.result_.explained_variance_ratio, doc="(k,) of the total variance."
    )

    # -- parts ----------------------------------------------------------------------------------

    def _request(self, matrix: ChunkedMatrix, *, seed: int = 0) -> SparseRequest:
        pca = Request(
            n_components=self.n_components,
            center=self.center,
            scale=self.scale,
            missing=self.missing,
            random_state=seed,
            memory_limit=self.memory_limit,
        )
        pca.check(matrix.shape)
        groups = self.groups
        if isinstance(groups, str):
            groups = named_column(matrix, 1, "groups", "an array of (p,)", groups)
        pca = pca.bound(side=side_data(matrix, weights=self.weights))
        return self._checked(matrix.shape, pca, numbered_groups(groups, matrix.labels.features))

    def _checked(self, shape: tuple[int, int], pca: Request, groups: Array | None) -> SparseRequest:
        (n, p), k = shape, pca.count
        if k is None or k < 1:
            raise InvalidInputError(f"n_components={self.n_components!r}; expected a number from 1")
        ridge = 1e-6 if p <= min(n, REGRESSED) and groups is None else np.inf
        ridge = ridge if self.ridge is None else float(self.ridge)
        if not ridge >= 0:
            raise InvalidInputError(f"ridge={self.ridge!r}; expected 0 or more, inf, or None")
        if groups is not None and np.isfinite(ridge):
            raise InvalidInputError(
                f"groups= with ridge={ridge:g}: groups are thresholded; give ridge=float('inf')"
            )
        asked = {"n_nonzero": self.n_nonzero, "alpha": self.alpha, "path": self.path}
        if len(several := [name for name, value in asked.items() if value is not None]) > 1:
            raise InvalidInputError(f"{'= and '.join(several)}= are given; expected one of them")
        if not 0 < self.tol < 1 or self.max_passes < 5:
            raise InvalidInputError(
                f"tol={self.tol!r}, max_passes={self.max_passes!r}; expected a change between 0 "
                "and 1, and 5 passes or more"
            )
        share = self.path_share
        if share is not None and (self.path is None or not 0 < share <= 1):
            raise InvalidInputError(
                f"path_share={share!r}; expected a share above 0, up to 1, of path="
            )
        penalties = tuple(Penalty(None, alpha, ridge, groups) for alpha in self._alphas(k)) or (
            Penalty(self._counts(k, p, groups), None, ridge, groups),
        )
        return SparseRequest(pca, penalties, self.tol, self.max_passes)

    def _alphas(self, k: int) -> list[Array]:
        """(k,) of each penalty; none where loadings are counted."""
        if self.alpha is None and self.path is None:
            return []
        name, given = ("alpha", [self.alpha]) if self.path is None else ("path", self.path)
        if (
            not isinstance(given, (Sequence, np.ndarray))
            or isinstance(given, str)
            or not len(given)
        ):
            raise InvalidInputError(f"path={given!r}; expected a sequence of alphas")
        found = [each_component(name, one, k) for one in given]
        if not all((one >= 0).all() for one in found):
            raise InvalidInputError(f"{name}={getattr(self, name)!r}; expected 0 or more")
        return found

    def _counts(self, k: int, p: int, groups: Array | None) -> Array:
        """(k,) loadings, or groups of them, that are not 0."""
        most = p if groups is None else int(groups.max()) + 1
        asked = int(np.ceil(SHARE * most)) if self.n_nonzero is None else self.n_nonzero
        nonzero = each_component("n_nonzero", asked, k)
        why = f", that of the {'features' if groups is None else 'groups'}"
        for one in np.atleast_1d(asked).tolist():
            whole_number("n_nonzero", one, 1, most, why=why)
        return nonzero

    def _candidates(
        self, matrix: ChunkedMatrix, request: SparseRequest
    ) -> list[Candidate[SparseFit]]:
        """With the covariance where that is the quicker, or the only way."""
        if self.solver not in ("auto", *WAYS):
            raise InvalidInputError(
                f"solver={self.solver!r}; expected 'auto', 'covariance' or 'sweeps'"
            )
        ways = WAYS.values() if self.solver == "auto" else [WAYS[self.solver]]
        candidates = [one for way in ways for one in way(matrix, request)]
        if not candidates:
            raise InvalidInputError(
                f"solver='sweeps' with ridge={request.penalties[0].ridge:g} takes chunks that "
                "hold whole samples, and these hold all samples of some features; give "
                "ridge=float('inf') or solver='covariance'"
            )
        return Rates.of(None).timed(matrix, candidates)

    def _bound_to(
        self, opened: Any, observed: ObservedSamples, **side: Any
    ) -> tuple[ChunkedMatrix, SparseRequest]:
        return self._bound(observed.part(opened), **side)

    def _result(
        self, matrix: ChunkedMatrix, request: SparseRequest, done: Outcome[SparseFit]
    ) -> SparseResult:
        self.result_: SparseResult
        fitted, features = done.answer.fitted, done.answer.fitted.features
        return self._found(
            request,
            done.answer.several,
            **self._described(matrix, done),
            mean=features.mean,
            scale=features.divisors,
            dropped=features.dropped,
            total_variance=fitted.spectrum.total / request.pca.divisor(fitted.weight),
        )

    def _found(
        self, request: SparseRequest, several: list[Alternated], **more: Any
    ) -> SparseResult:
        """The result, oriented; warns of what is not there."""
        k = self.n_components
        path: dict[str, Any] = {}
        variances = [_padded(adjusted_variances(one.inner), k) for one in several]
        found = several[_chosen(several, variances, self.path_share)]
        if self.path is not None:
            path = {
                "path_alpha": np.stack([np.asarray(one.alpha) for one in request.penalties]),
                "path_nonzero": np.stack([_padded(_nonzero(one), k) for one in several]),
                "path_variance": np.stack(variances),
                "path_objective": np.array([one.trace.objective[-1] for one in several]),
            }
        p, r = found.b.shape
        if r < k:
            warn_caller(
                f"{k} components were requested, and the data have rank {r}: those after it are 0",
                AccuracyWarning,
            )
        components = np.zeros((k, p))
        components[:r] = (found.b * signs_of_components(found.b)).T
        moving = [one.trace for one in several if not one.trace.still]
        if moving:
            which = f" of {len(moving)} penalties" if self.path is not None else ""
            warn_caller(
                f"loadings{which} still moved by {moving[-1].changes[-1]:.1g} after "
                f"{len(moving[-1].changes)} iterations; raise max_passes or tol",
                ConvergenceWarning,
            )
        return SparseResult(
            components=components,
            explained_variance=_padded(adjusted_variances(found.inner), k),
            objective=np.array(found.trace.objective),
            converged=found.trace.still,
            **path,
            **more,
        )


def _nonzero(found: Alternated) -> Array:
    return np.asarray(np.count_nonzero(found.b, axis=0))


def _padded(values: Array, k: int) -> Array:
    """(k,) float64, with 0 for components that the data do not have."""
    return np.append(np.asarray(values, np.float64), np.zeros(k - len(values)))


def _chosen(several: list[Alternated], variances: list[Array], share: float | None) -> int:
    """The last; or that of the fewest loadings among those that explain so much of the most."""
    if share is None:
        return len(several) - 1
    sums = np.array([one.sum() for one in variances])
    counts = np.array([_nonzero(one).sum() for one in several])
    return int(np.argmin(np.where(sums >= share * sums.max(), counts, np.inf)))
