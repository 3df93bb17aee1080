"""EOFs of complex fields, such as currents u + iv, and of the analytic signal of real ones."""

from __future__ import annotations

from dataclasses import dataclass, fields, replace
from typing import Any, ClassVar

import numpy as np

from streampca.errors import InvalidInputError
from streampca.kernels import Array
from streampca.matrix import ChunkedMatrix
from streampca.matrix.complex import PartsMatrix, complex_dtype
from streampca.models.contract import shared_parameters as shared
from streampca.models.contract.estimator import WeighsSamples
from streampca.models.contract.linear import LinearModel
from streampca.models.contract.parameters import parameter
from streampca.models.contract.registry import estimator
from streampca.models.contract.request import Request
from streampca.models.decompose.assemble import assemble
from streampca.models.decompose.empty_samples import ScoresEmptySamples
from streampca.models.decompose.hermitian_krylov import hermitian_candidates
from streampca.models.eof.complex_result import ComplexDecomposition
from streampca.models.pca.pca import iterated
from streampca.models.results.row_maps import RowPasses
from streampca.models.rows.new_rows import LazyRows
from streampca.passes import Candidate, Outcome


@dataclass(frozen=True)
class ComplexRowPasses(RowPasses):
    """Passes over rows that are read as their parts, and have complex scores."""

    @property
    def dtype(self) -> Any:
        """The dtype of scores of these rows."""
        return complex_dtype(super().dtype)


class OfComplexRows(ScoresEmptySamples, WeighsSamples, LinearModel):
    """An estimator of complex rows, which are read as their parts."""

    takes_complex: ClassVar[bool] = True

    def _without_empty(self, X: Any, opened: Any, request: Any) -> Any:
        observed = super()._without_empty(X, PartsMatrix(opened), request)
        return None if observed is None else replace(observed, everyone=opened.labels)

    def _lazy_scores(self, X: Any, lazy: LazyRows) -> Any:
        self._result_as(ComplexDecomposition).refuse_real(lazy.rows.dtype)
        return super()._lazy_scores(X, lazy)

    def _passes(self, matrix: ChunkedMatrix) -> RowPasses:
        plain = super()._passes(matrix)
        if matrix.dtype.kind == "c":
            return plain
        return ComplexRowPasses(**{one.name: getattr(plain, one.name) for one in fields(plain)})

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.input_tags.sparse, tags.transformer_tags.preserves_dtype = False, []
        return tags

    @property
    def amplitude_(self) -> Array:
        """(k, p) moduli of the components: where a mode is strong."""
        return np.abs(self.components_)

    @property
    def phase_(self) -> Array:
        """(k, p) arguments of the components, in radians: where a mode comes earlier or later."""
        return np.angle(self.components_)


@estimator
class ComplexEOF(OfComplexRows):
    """EOFs of a complex field, such as currents ``u + 1j * v``: an exact PCA of complex data.

    Attributes
    ----------
    components_ (k, p) complex, orthonormal rows of V^H, where the centred field is Z = U S V^H:
    the mean + scores @ components_ is the field, and scores are (Z - mean) components_^H.
    explained_variance_ (k,) real, of the moduli of the scores; explained_variance_ratio_,
    singular_values_, mean_ (p,) complex, certificate_, plan_, cost_, and result_, a
    :class:`ComplexDecomposition` with ``amplitude`` and ``phase`` (k, p) of the components.
    Each component is known up to a factor of modulus 1. It is turned so that the sum of its
    entries, with fixed positive weights, is real and positive: the same by every solver, and for
    any chunks. (The entry of the largest modulus would change with rounding where a wave is equally
    strong everywhere.)

    X : complex64 or complex128, all that ``streampca.open`` takes but sparse matrices; real data
    are complex ones without imaginary parts. A cell is missing where either part is NaN. Hilbert
    EOFs of a real field: ``ComplexEOF(3).fit(streampca.analytic(X))``.
    xeofs' ``ComplexEOF`` has conj(components_), and the same scores up to their phase.

    Cost
    ----
    A real pass over the parts of each feature, side by side. Tall: one pass, 4 n p^2 flops, 32 p^2
    bytes of sums and 88 p^2 to solve. Wide: one pass and 4 n^2 p flops for scores and spectrum, a
    second pass for ``components_``, 32 n^2 and 64 n^2 bytes: what a real PCA takes of a matrix with
    twice as many rows and columns, but for half of its flops.
    Source: Horel 1984, Journal of Climate and Applied Meteorology 23, section 2; Kundu and Allen
    1976, Journal of Physical Oceanography 6, section 4, for currents.

    Examples
    --------
    >>> import numpy as np
    >>> from streampca import ComplexEOF
    >>> t, x = np.arange(48.0)[:, None], np.arange(6.0)
    >>> currents = np.exp(1j * (2 * np.pi * t / 12 - 0.5 * x))  # they turn, and the turn travels
    >>> model = ComplexEOF(1).fit(currents)
    >>> model.explained_variance_ratio_.round(3), model.components_.dtype
    (array([1.]), dtype('complex128'))
    >>> np.diff(np.unwrap(np.angle(model.transform(currents)[:, 0])))[0].round(4)  # 2 pi / 12
    np.float64(0.5236)
    """

    n_components: int | float | str | None = parameter(
        default=None,
        kw_only=False,
        counts_components=True,
        meaning="""int, share (0 < x < 1: the smallest k whose share of the variance reaches x),
            "gap" (before the largest ratio of a variance to the next one) or None (all).""",
    )
    whiten: bool = shared.WHITEN
    solver: str = parameter(
        default="auto",
        choices=("auto", "scatter", "tsqr", "gram", "randomized"),
        meaning=""""scatter" (Hermitian p x p, samples streamed), "tsqr" (R factor; small singular
            values to 1e-14 of the largest), "gram" (Hermitian n x n, features streamed),
            "randomized" (block Krylov, for both n and p large), or "auto": as of :class:`PCA`.""",
    )
    center: bool = shared.CENTER
    scale: str | None = parameter(
        default=None,
        choices=(None, "std"),
        meaning="""None, or "std": divide features by their standard deviation, the root of the
            summed variances of both parts; constant ones become 0.""",
    )
    ddof: int = shared.DDOF
    missing: str = parameter(
        default="raise",
        choices=("raise", "mean"),
        meaning=""""raise", or "mean": a hole holds its feature's mean. Features without any
            observation are dropped and named under both, and samples of an xarray field without any
            are left out under "raise", with a warning.""",
    )
    components: bool = parameter(
        default=True,
        meaning="""False saves the second pass of a wide fit; it then has scores and spectrum
            only.""",
    )
    tol: float | None = shared.TOL
    max_passes: int | None = parameter(
        default=None, meaning="""reads of the data that "randomized" may take, 8 where None."""
    )
    random_state: Any = shared.RANDOM_STATE
    rates: Any = shared.RATES
    weights: Any = shared.WEIGHTS
    remove: Any = shared.REMOVE

    def _request(
        self, matrix: ChunkedMatrix, *, sample_weight: Any = None, seed: int = 0
    ) -> Request:
        if self.remove is not None and not self.center:
            raise InvalidInputError("remove= needs center=True: the mean goes with what is removed")
        if isinstance(self.n_components, str) and self.n_components != "gap":
            raise InvalidInputError(
                f"n_components={self.n_components!r}; expected a number, a share such as 0.9, "
                "'gap' or None: the other rules are for real data"
            )
        request = iterated(self, self.solver, "auto", random_state=seed)
        return request.with_side_data(
            matrix, weights=self.weights, remove=self.remove, sample_weight=sample_weight
        )

    def _candidates(self, matrix: ChunkedMatrix, request: Request) -> list[Candidate[Any]]:
        return hermitian_candidates(matrix, request)

    def _result(
        self, matrix: ChunkedMatrix, request: Request, done: Outcome[Any]
    ) -> ComplexDecomposition:
        self.gap_ = done.answer.gap
        described = self._described(matrix, done, random_state=request.random_state) | {
            "of_complex": matrix.dtype.kind == "c"
        }
        return assemble(done.answer, request, described, ComplexDecomposition)
