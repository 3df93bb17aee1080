"""Principal component analysis, exact, in one pass (two for a wide matrix); with holes completed.

With ``missing="impute"`` the components are those of the matrix that they complete:
min |W (X - 1 m' - S V)|^2 over means m, scores S and components V. Where its gradient is 0, the
matrix completed by the model has the column means m, and V spans its leading components (Kiers
1997, "Weighted least squares fitting using ordinary least squares algorithms", section 2; Josse and
Husson 2012, "Handling missing values in exploratory multivariate data analysis methods", section
3.1, the iterative PCA algorithm).
"""

from __future__ import annotations

import os
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from streampca.errors import InvalidInputError
from streampca.matrix import ChunkedMatrix
from streampca.models.contract import shared_parameters as shared
from streampca.models.contract.estimator import WeighsSamples, attach
from streampca.models.contract.linear import LinearModel
from streampca.models.contract.parameters import parameter
from streampca.models.contract.preprocessing import warn_of_counts
from streampca.models.contract.registry import estimator
from streampca.models.contract.request import Request, iteration_limits, no_tolerance
from streampca.models.decompose.assemble import assemble
from streampca.models.decompose.empty_samples import ScoresEmptySamples
from streampca.models.decompose.routes import WarmStart, pca_candidates, quick_candidates
from streampca.models.results.decomposition import Decomposition
from streampca.passes import Candidate, Outcome

if TYPE_CHECKING:
    from streampca.models.completion.impute import HardImpute
    from streampca.models.completion.trace import Sweep

IMPUTE = "impute"
GENES = ("var",)  # the axis of the features of an AnnData, and of the terms of texts


def completing() -> Any:
    """What only ``missing="impute"`` needs: a module that loads with the first such fit."""
    from streampca.models.pca import completing

    return completing


def is_bounded(max_passes: int | None, iterated_power: Any) -> bool:
    """Whether the user bounds the passes of an iteration."""
    return max_passes is not None or iterated_power != "auto"


def iterated(model: Any, solver: str, iterated_power: Any, **fixed: Any) -> Request:
    """The request of a model whose iteration is bounded by these parameters of scikit-learn's."""
    tol, max_passes = iteration_limits(model.tol, model.max_passes, iterated_power, solver)
    bounded = is_bounded(model.max_passes, iterated_power)
    iterate = bounded or not no_tolerance(model.tol)
    limits = {"tol": tol, "max_passes": max_passes, "iterate": iterate}
    return Request.of(model, solver=solver, may_go_over=not bounded, **limits, **fixed)


@estimator
class PCA(ScoresEmptySamples, WeighsSamples, LinearModel):
    """Exact PCA of a matrix that need not fit in memory.

    Attributes
    ----------
    components_ (k, p), explained_variance_ (k,), explained_variance_ratio_ (k,) of the TOTAL
    variance, singular_values_ (k,), mean_ (p,), scale_, noise_variance_, rank_, n_samples_,
    certificate_, plan_ (what was planned), cost_ (what each pass cost), result_ (all of it, as a
    :class:`Decomposition`). None of them reads data. Signs: v'h > 0 for a fixed pseudo-random h.

    Cost
    ----
    Tall: one pass, n p^2 flops, p^2 float64 and a few blocks of memory. Wide: one pass and n^2 p
    flops for scores and spectrum, a second pass for ``components_``.

    Source: Jolliffe 2002, "Principal Component Analysis", 2nd ed., sections 3.1 and 3.5.

    Examples
    --------
    >>> import numpy as np
    >>> from streampca import PCA
    >>> X = np.random.default_rng(0).normal(size=(50, 4))
    >>> model = PCA(2).fit(X)
    >>> model.components_.shape, model.transform(X).shape
    ((2, 4), (50, 2))
    """

    n_components: int | float | str | None = parameter(
        default=None,
        kw_only=False,
        counts_components=True,
        meaning="""int, share (0 < x < 1: the smallest k whose share of the variance reaches x),
            "gap" (before the largest ratio of a variance to the next one, among the drops
            that stand above sampling error), "mle" (Minka's most probable number; n >= p, and
            a solver that knows the whole spectrum) or None (all). 0 gives the mean and the
            total variance alone (solvers "scatter", "tsqr" and "gram").""",
    )
    copy: bool = shared.COPY
    whiten: bool = shared.WHITEN
    solver: str = shared.SOLVER
    svd_solver: str | None = shared.other_name("solver")
    center: bool = shared.CENTER
    scale: str | None = shared.SCALE
    ddof: int = shared.DDOF
    missing: str = parameter(
        default="raise",
        meaning=""""raise"; "mean": a hole holds its column's mean; or "impute": it holds what the
            components say, and they are those of the matrix that they complete (a
            :class:`HardImpute` at rank ``n_components`` with fitted means: a pass per
            sweep, until a sweep changes less than ``tol``, at most ``max_passes``, or 60).
            ``transform`` then scores rows by what they observe, ``impute`` fills their
            holes; cells that sparse data do not store are missing under "impute", and 0
            under the others. Columns without any observation are dropped, and named, under
            each. Samples of an xarray field without any are left out under "raise", with a
            warning that counts them (``result_.fitted`` is False there), and their scores are
            NaN; to find them takes a pass, and the fit begins again, only where a hole was
            met.""",
    )
    components: bool = parameter(
        default=True,
        meaning="""False saves the second pass of a wide fit; it then has scores and spectrum
            only.""",
    )
    tol: float | None = shared.TOL
    max_passes: int | None = parameter(
        default=None,
        meaning="""reads of the data that "randomized" may take, 8 where None; then it warns of
            what is uncertain. "auto" reads on while that costs less than an exact solver: at
            most 400 times in memory, 24 from a local disk, 8 over a network.""",
    )
    iterated_power: int | str = parameter(
        default="auto",
        meaning="""scikit-learn's name for that limit: q means max_passes = q + 2; "auto" leaves it
            to max_passes.""",
    )
    n_oversamples: int = shared.N_OVERSAMPLES
    power_iteration_normalizer: str = shared.POWER_ITERATION_NORMALIZER
    random_state: Any = shared.RANDOM_STATE
    rates: Any = shared.RATES
    weights: Any = shared.WEIGHTS
    remove: Any = shared.REMOVE
    warm_start: bool = shared.WARM_START

    @property
    def _solver(self) -> str:
        return str(self.either("solver", "svd_solver"))

    # The flow of every estimator; with "impute" by the passes of a completion.

    def _opened(self, X: Any, dim: Any) -> Any:
        if self.missing == IMPUTE:
            return completing().completion_of(self)._opened(X, dim)
        return super()._opened(X, dim)

    def _request(self, matrix: ChunkedMatrix, *, sample_weight: Any = None, seed: int = 0) -> Any:
        """The checked parameters and the side data of this matrix.  seed : drawn by a fit."""
        request = iterated(self, self._solver, self.iterated_power, random_state=seed)
        if self.missing == IMPUTE:
            replace(request, missing="mean").check(matrix.shape)
            return completing().request_of(self, matrix, sample_weight, seed)
        if self.remove is not None and not self.center:
            raise InvalidInputError("remove= needs center=True: the mean goes with what is removed")
        return request.with_side_data(
            matrix, weights=self.weights, remove=self.remove, sample_weight=sample_weight
        )

    def _candidates(self, matrix: ChunkedMatrix, request: Any) -> list[Candidate[Any]]:
        if self.missing == IMPUTE:
            return completing().ways_to_complete(self, matrix, request)
        return pca_candidates(matrix, request)

    def _quick(self, matrix: ChunkedMatrix, request: Any) -> list[Candidate[Any]]:
        return [] if self.missing == IMPUTE else quick_candidates(matrix, request)

    def _remark(self, matrix: ChunkedMatrix, request: Any) -> None:
        if self.missing != IMPUTE and request.center and matrix.labels.features.dims == GENES:
            warn_of_counts(matrix)

    def _warm_start(self, matrix: ChunkedMatrix, request: Request) -> WarmStart | None:
        self._kept: WarmStart | None = getattr(self, "_kept", None) or WarmStart()
        if not self.warm_start:
            self._kept = None
            return None
        self._kept.turn_to(matrix, request)
        return self._kept

    def _result(self, matrix: ChunkedMatrix, request: Any, done: Outcome[Any]) -> Decomposition:
        if self.missing == IMPUTE:
            self.gap_ = None
            settings = self.stored_params() | self._resolved(request.seed)
            described = self._described(matrix, done)
            result: Decomposition = completing().pca_of(self, matrix, done, described, settings)
            return result
        self.gap_ = done.answer.gap
        described = self._described(matrix, done, **self._resolved(request.random_state))
        return assemble(done.answer, request, described)

    def _resolved(self, seed: int) -> dict[str, Any]:
        """Settings as they were used, where that is not as they were set."""
        if self.iterated_power == "auto":
            return {"random_state": seed}
        most = iteration_limits(iterated_power=self.iterated_power)[1]
        return {"random_state": seed, "max_passes": most}

    @property
    def trace_(self) -> list[Sweep]:
        """Objective and change of every sweep, after ``missing="impute"``. Raises AttributeError
        after another fit."""
        if not isinstance(result := self._fitted(), completing().CompletedDecomposition):
            raise AttributeError("a fit without missing='impute' makes no sweeps")
        trace: list[Sweep] = result.trace
        return trace

    def impute(
        self,
        X: Any,
        *,
        dim: Any = None,
        out: str | os.PathLike[str] | None = None,
        overwrite: bool = False,
    ) -> Any:
        """X, (n, p), with its holes filled, after ``missing="impute"``: see ``HardImpute``.

        Imputed values stay between the smallest and largest cell of the fit; for none of these
        bounds:
        ``HardImpute(k, center="fitted", bounds=None)``. Cost: one pass. Raises InvalidInputError.
        """
        if self.missing != IMPUTE:
            raise InvalidInputError(
                f"impute() after missing={self.missing!r}; fit with PCA(missing='impute')"
            )
        return self._completing().impute(X, dim=dim, out=out, overwrite=overwrite)

    def _completing(self) -> HardImpute:
        model: HardImpute = attach(completing().completion_of(self), self._fitted())
        model.dim_ = self.dim_
        return model

    @classmethod
    def from_covariance(
        cls,
        covariance: Any,
        n_samples: int | None = None,
        *,
        n_components: int | float | str | None = None,
        mean: Any = None,
        names: Any = None,
    ) -> PCA:
        """A fitted PCA from a covariance or correlation matrix alone.

        covariance : (p, p) symmetric.  n_samples : rows behind it, if known; without it
        ``singular_values_`` are NaN.  mean : (p,) or None (0).  names : of the features.
        """
        from streampca.models.decompose.covariance import pca_from_covariance

        result: PCA = pca_from_covariance(cls(n_components), covariance, mean, n_samples, names)
        return result
