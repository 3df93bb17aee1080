"""Probabilistic PCA: the closed form without holes, EM pass by pass with them."""

from __future__ import annotations

from dataclasses import replace
from numbers import Real
from typing import Any

import numpy as np

from streampca.accumulators import Reconstruction
from streampca.errors import InvalidInputError
from streampca.kernels import Array
from streampca.matrix import ChunkedMatrix
from streampca.models.contract import shared_parameters as shared
from streampca.models.contract.estimator import WeighsSamples
from streampca.models.contract.parameters import parameter
from streampca.models.contract.preprocessing import warn_of_counts
from streampca.models.contract.registry import estimator
from streampca.models.contract.request import iteration_limits, whole_number
from streampca.models.decompose.empty_samples import LeavesOutEmptySamples
from streampca.models.latent.latent import LatentModel
from streampca.models.latent.ppca_fit import (
    PpcaRequest,
    ProbabilisticDecomposition,
    bic_of,
    mean_log_likelihood,
    ppca_candidates,
)
from streampca.models.pca.pca import GENES
from streampca.models.results.projection import Projection
from streampca.passes import Candidate, Outcome

BIC = "bic"


@estimator
class PPCA(LeavesOutEmptySamples, WeighsSamples, LatentModel):
    """Probabilistic PCA: x = mean + V's + e, factors s and noise e Gaussian, e the same everywhere.

    Attributes
    ----------
    components_ (k, p), explained_variance_ (k,) of the model, noise_variance_, mean_, scale_,
    log_likelihood_ of the rows of the fit, aic_, bic_, trace_ (the log-likelihood at every pass of
    EM), converged_, plan_, cost_, result_ (a :class:`ProbabilisticDecomposition`).
    noise_variance_ is the mean of the p - k variances left out; scikit-learn divides by
    min(n, p) - k, which differs, and is less likely, where n < p.

    Cost: without holes that of a :class:`PCA`; the noise follows from the total variance. Where
    there may be holes, the plan has steps of EM; without holes none is made. With holes a
    :class:`PCA` of the mean-filled matrix as a start, and one read for each EM step, of about
    2 n p k (k + 4) flops, with p (k + 2)^2 float64 of sums. Warns (AccuracyWarning) where EM
    has not converged in ``max_passes``.
    Source: Tipping and Bishop 1999, "Probabilistic principal component analysis", J. R. Statist.
    Soc. B 61, sections 3.2, 3.3 and appendix B.

    Examples
    --------
    >>> import numpy as np
    >>> from streampca import PPCA
    >>> rng = np.random.default_rng(0)
    >>> X = rng.standard_normal((100, 1)) @ rng.standard_normal((1, 5))
    >>> model = PPCA(1).fit(X + 0.1 * rng.standard_normal(X.shape))
    >>> round(model.noise_variance_, 3)
    0.009
    """

    n_components: int | float | str | None = parameter(
        default=2,
        kw_only=False,
        counts_components=True,
        meaning="""as :class:`PCA`, or "bic": the number with the smallest ``bic_``; with holes the
            first from which one more makes it larger, each with an EM of its own, and at
            most 32.""",
    )
    whiten: bool = parameter(
        default=False,
        meaning="""scores with a prior variance of 1, E[z | x] of Tipping and Bishop; else they are
            in the units of the data: those of a PCA, drawn towards 0 by the noise.""",
    )
    solver: str = shared.SOLVER
    scale: str | None = shared.SCALE
    ddof: int = parameter(
        default=1,
        meaning="""variances divide by n - ddof. The likelihood is largest with ddof=0; with ddof=1
            variances are n / (n - 1) times those.""",
    )
    missing: str = parameter(
        default="em", meaning=""""em" leaves holes out of the likelihood, exactly; "raise"."""
    )
    tol: float = parameter(
        default=0.01,
        meaning="""EM stops when the log-likelihood of all rows has at most this to gain, by
            extrapolation, which can be several times too small where there are more
            components than the data hold. They make the likelihood flat and EM slow (100
            reads where the right number takes 6): choose fewer, or a larger tol.""",
    )
    max_passes: int = parameter(default=100, meaning="steps of EM at most, one read each.")
    random_state: Any = shared.RANDOM_STATE
    rates: Any = shared.RATES
    weights: Any = shared.WEIGHTS
    remove: Any = shared.REMOVE

    def _iterates(self, matrix: ChunkedMatrix) -> bool:
        """Whether EM may be needed: holes are allowed, and there may be some."""
        possible = matrix.dtype.kind == "f" or matrix.missing_value is not None
        return self.missing == "em" and self.remove is None and possible

    def _request(
        self, matrix: ChunkedMatrix, *, sample_weight: Any = None, seed: int = 0
    ) -> PpcaRequest:
        """The checked parameters and the side data of this matrix.  seed : drawn by a fit."""
        if self.missing not in ("raise", "em"):
            raise InvalidInputError(f"missing={self.missing!r}; expected 'raise' or 'em'")
        by_bic, iterates = self.n_components == BIC, self._iterates(matrix)
        more: dict[str, Any] = {"missing": "raise"}
        if iterates:
            tol, most = self.tol, whole_number("max_passes", self.max_passes)
            if isinstance(tol, bool) or not isinstance(tol, Real) or not tol >= 0:
                raise InvalidInputError(f"tol={tol!r}; expected a log-likelihood from 0")
            more = {"missing": "mean", "em_tol": tol, "em_passes": most}
        tol, max_passes = iteration_limits(solver=self.solver)
        request = PpcaRequest.of(
            self,
            n_components=None if by_bic else self.n_components,
            tol=tol,
            max_passes=max_passes,
            random_state=seed,
            by_bic=by_bic,
            iterates=iterates,
            **more,
        )
        return request.with_side_data(
            matrix, weights=self.weights, remove=self.remove, sample_weight=sample_weight
        )

    def _candidates(self, matrix: ChunkedMatrix, request: PpcaRequest) -> list[Candidate[Any]]:
        return ppca_candidates(matrix, request)

    def _remark(self, matrix: ChunkedMatrix, request: PpcaRequest) -> None:
        if matrix.labels.features.dims == GENES:
            warn_of_counts(matrix)

    def _result(
        self, matrix: ChunkedMatrix, request: PpcaRequest, done: Outcome[Any]
    ) -> ProbabilisticDecomposition:
        self.result_: ProbabilisticDecomposition
        found: ProbabilisticDecomposition = done.answer
        return replace(found, **self._described(matrix, done, random_state=request.random_state))

    @property
    def trace_(self) -> Array:
        """(passes,) log-likelihood at every pass of EM; empty where the form is closed."""
        return self._fitted().trace

    @property
    def converged_(self) -> bool:
        """Whether EM did; True where the form is closed."""
        return self._fitted().converged

    def _fitted(self) -> ProbabilisticDecomposition:
        return self._result_as(ProbabilisticDecomposition)

    def likelihood_curve(self, X: Any = None) -> Array:
        """(k + 1,) mean log-likelihood of a row under 0, 1, ..., k components, in one pass.

        X : rows to measure on, such as held-out ones; None takes those of the fit, and reads
            nothing. The largest entry of held-out rows chooses k.
        Without noise, from the rank of the data on, it is inf, and -inf for other rows.
        Raises InvalidInputError after a fit by EM, whose models of fewer components are others.
        """
        result = self._fitted()
        if len(result.trace):
            raise InvalidInputError(
                "with holes each number of components has an EM of its own: compare "
                "PPCA(k).fit(X).bic_, or score(X) of held-out rows"
            )
        counts = range(result.n_components + 1)
        if X is None:
            means = [mean_log_likelihood(result, k) for k in counts]
        else:
            matrix = self._matrix(X)
            rows = self._passes(matrix)
            options = replace(rows.options, missing="raise")
            operands, settings = Projection.of(result, options).operands()
            total = {"total": Reconstruction(**settings)}
            sums = rows.fold("likelihood", 0, total, operands)["total"]
            errors, captured = sums.errors() / sums.count, sums.captured / sums.count
            means = [mean_log_likelihood(result, k, (captured, errors[k])) for k in counts]
        return np.array(means) + result.log_jacobian

    def bic_curve(self) -> Array:
        """(k + 1,) Schwarz's criterion of 0, 1, ..., k components; the smallest chooses k.

        -inf where no noise is left, from the rank of the data on: no choice.

        Raises InvalidInputError after a fit by EM.
        """
        result = self._fitted()
        count = np.arange(result.n_components + 1)
        likelihood = result.weight * self.likelihood_curve()
        return bic_of(likelihood, count, result.n_dimensions, result.weight)
