"""Nystroem's kernel PCA: components in the span of some rows, for any number of rows."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, Self

import numpy as np

from streampca.errors import InvalidInputError
from streampca.kernels import Array
from streampca.matrix import Block, ChunkedMatrix
from streampca.models.contract.parameters import Kept, parameter
from streampca.models.contract.registry import estimator
from streampca.models.contract.request import whole_number
from streampca.models.kernel.functions import Kernel, Rows
from streampca.models.kernel.landmarks import (
    METHODS,
    LandmarkRequest,
    LandmarkSums,
    candidate_rows,
    landmark_candidates,
    landmark_nbytes,
    landmark_pieces,
)
from streampca.models.kernel.request import (
    KernelModelResult,
    KernelParameters,
    check_count,
    checked_kernel,
)
from streampca.models.results.result import shaped
from streampca.models.results.row_maps import RowMap, RowOptions
from streampca.passes import Candidate, Outcome
from streampca.report.presentation import Presentation, carried_share, percentages

LANDMARKS = 500  # by default
PER_COMPONENT = 10  # of them, at least


@dataclass(frozen=True)
class LandmarkScores(RowMap):
    """Scores of rows: their kernel with the landmarks, times (m, k) vectors, less (k,) a mean."""

    kernel: Kernel
    shift: Array
    landmarks: Array
    vectors: Array
    mean: Array

    @property
    def width(self) -> int:
        return len(self.mean)

    def __call__(self, block: Block) -> Array:
        rows = Rows(self.shift, np.dtype(np.float64))(block)
        out = np.empty((len(rows), self.width))
        for piece in landmark_pieces(len(rows), *self.landmarks.shape):
            values = self.kernel.of_rows(rows[piece], self.landmarks)
            out[piece] = values @ self.vectors - self.mean
        return out

    def scratch_nbytes(self, matrix: ChunkedMatrix) -> Callable[[int], int]:
        m, p = self.landmarks.shape
        return lambda length: 8 * length * (2 * p + self.width) + landmark_nbytes(length, m, p)


@dataclass(frozen=True, repr=False, kw_only=True)
class NystroemResult(KernelModelResult, kind="kernel model on landmarks"):
    """eigenvalues : (k,) of the centred kernel matrix of all rows, as the landmarks give it.

    vectors : (m, k) a component is sum_j vectors_j phi(landmark j), of length 1.
    landmarks : (m, p) rows after ``shift`` (p,), and, with a linear kernel, the direction of the
        shift itself, which the rows span.  places : (m,) their numbers.
    mean : (k,) of k(x, landmarks) vectors over all rows.
    error, error_se : mean squared distance of phi(x) of an unseen row from the span of the
        landmarks, from ``n_held_out`` rows that no landmark depends on, and its standard error;
        NaN where no such row is left.
    excess : an exact eigenvalue is at least that of ``eigenvalues``, and at most so much more: the
        sum of these distances over all rows.
    mean_length : mean of k(x, x).  total : trace of the centred kernel matrix, at most.
    """

    eigenvalues: Array = shaped("k")
    vectors: Array = shaped(None, "k")
    landmarks: Array = shaped(None, "p")
    places: Array = shaped(None)
    mean: Array = shaped("k")
    error: float
    error_se: float
    n_held_out: int
    excess: float
    mean_length: float
    total: float

    @property
    def n_components(self) -> int:
        return len(self.eigenvalues)

    @property
    def kept_nbytes(self) -> int:
        return int(self.landmarks.nbytes + self.vectors.nbytes)

    @property
    def explained_variance_ratio(self) -> Array:
        """(k,) shares of the variance in the feature space, at least."""
        return np.asarray(self.eigenvalues / (self.total or 1.0))

    def scores_of(self, options: RowOptions) -> RowMap:
        kernel = self.as_kernel()
        return LandmarkScores(kernel, self.shift, self.landmarks, self.vectors, self.mean)

    def presentation(self) -> Presentation:
        shares, variances = self.explained_variance_ratio, self.eigenvalues / max(self.n_samples, 1)
        return replace(
            super().presentation(),
            pictures="plots.scores(model, scores=model.transform(X)) or plots.scree",
            component="PC",
            remarks=percentages(shares),
            deviations=np.sqrt(variances),
            shares=shares,
            carries=carried_share(shares),
            variances=variances,
        )

    def table(self, rows: int = 10) -> str:
        shares = self.explained_variance_ratio
        shown = "\n".join(
            f"{i + 1:>9} {v:>14.6g} {share:>8.2%}"
            for i, (v, share) in enumerate(zip(self.eigenvalues[:rows], shares, strict=False))
        )
        return "\n".join([f"component     eigenvalue  at least\n{shown}", *self.notes()])

    def notes(self) -> list[str]:
        if np.isnan(self.error):
            unseen = "error on unseen rows: not determined, since every row was a candidate"
        else:
            share = self.error / (self.mean_length or 1.0)
            unseen = (
                f"error on unseen rows {self.error:.4g} +- {self.error_se:.2g} "
                f"({share:.3%} of k(x, x)), from {self.n_held_out} rows"
            )
        return [
            f"{len(self.places)} landmarks; exact eigenvalues are at most {self.excess:.4g} larger",
            unseen,
            *self.gamma_lines(),
        ]


@estimator
class NystroemPCA(KernelParameters):
    """Kernel PCA in the span of some rows, the landmarks: any number of rows, in two reads.

    It is the PCA of the projections of phi(x) on that span, centred by the mean of all rows. With
    all rows as landmarks it is :class:`KernelPCA`. (scikit-learn's ``Nystroem`` gives coordinates
    in the span, of as many landmarks as its n_components; this gives their components.)

    Attributes
    ----------
    eigenvalues_ (k,) of the centred kernel matrix, n times variances; explained_variance_ratio_
    (k,), at least; landmark_indices_ (m,); error_ and error_se_: mean squared distance of phi(x)
    of an unseen row from the span, and its standard error, of independent rows; gamma_; plan_,
    cost_, result_.

    The error comes from rows that no landmark depends on: all but the landmarks, where those are
    uniform; otherwise all but the candidates among which they are chosen, 4 m rows and at most
    half of all. It is NaN where none is left. ``result_.excess`` bounds what exact eigenvalues are
    larger by.
    Missing cells are refused, and kernels that are not positive semidefinite.
    Cost: one read of some chunks, one of all; n m (2 p + 3 m) flops and 12 m^3; memory of m (m + p)
    numbers several times, and of the candidates. Rows must be stored so that some can be read
    without all.
    Raises InvalidInputError, NonFiniteError (holes), MemoryLimitError.
    Source: Williams and Seeger 2001, NeurIPS 13, section 2; Sterge, Sriperumbudur, Rosasco and
    Rudi 2020, AISTATS, section 3.2 (kernel PCA in the span, centred).

    Examples
    --------
    >>> import numpy as np
    >>> from streampca import NystroemPCA
    >>> X = np.random.default_rng(0).standard_normal((300, 3))
    >>> model = NystroemPCA(2, n_landmarks=40, gamma=0.1).fit(X)
    >>> model.transform(X).shape, model.landmark_indices_.shape
    ((300, 2), (40,))
    >>> bool(model.error_ < 0.05)  # of k(x, x) = 1, what the landmarks leave of an unseen row
    True
    """

    n_components: int = parameter(
        default=2, kw_only=False, counts_components=True, meaning="k, at most m."
    )
    n_landmarks: int | None = parameter(
        default=None,
        meaning="m, at most n; None: 500, or ten for each component where that is more.",
    )
    landmarks: str = parameter(
        default="uniform",
        choices=tuple(METHODS),
        meaning="""how they are chosen: "uniform"; "kmeans++", far from each other in the feature
            space; "leverage", in proportion to what a row adds to the others.""",
    )
    kernel: Any = parameter(
        default="rbf",
        kept=Kept.NAME,
        meaning="""a function of two rows, or "linear", "poly", "rbf", "laplacian" or "cosine", as
            :class:`KernelPCA` has them. "sigmoid" where it is positive semidefinite.""",
    )

    def fit(self, X: Any, y: Any = None, *, dim: Any = None) -> Self:
        """Fit to X (n, p): anything that ``streampca.open`` takes. See the class for its cost."""
        self.result_: NystroemResult
        return self._fit_to(X, dim)

    def _result(
        self, matrix: ChunkedMatrix, request: LandmarkRequest, done: Outcome[LandmarkSums]
    ) -> NystroemResult:
        sums = done.answer
        values, vectors, mean = sums.components(request.count)
        features = sums.features
        return NystroemResult(
            **self._described(matrix, done, random_state=request.seed),
            eigenvalues=values,
            vectors=vectors,
            landmarks=features.landmarks,
            places=sums.places,
            shift=features.shift,
            mean=mean,
            **features.kernel.fields(),
            **sums.errors(),
        )

    @property
    def eigenvalues_(self) -> Array:
        """(k,) of the centred kernel matrix, descending; exact ones are at least these."""
        return self.result_.eigenvalues

    @property
    def explained_variance_ratio_(self) -> Array:
        """(k,) shares of the variance in the feature space, at least."""
        return self.result_.explained_variance_ratio

    @property
    def landmark_indices_(self) -> Array:
        """(m,) numbers of the rows that are landmarks, increasing."""
        return self.result_.places

    @property
    def error_(self) -> float:
        """Mean squared distance of phi(x) of an unseen row from the span of the landmarks."""
        return self.result_.error

    @property
    def error_se_(self) -> float:
        """The standard error of ``error_``."""
        return self.result_.error_se

    def _request(self, matrix: ChunkedMatrix, *, seed: int = 0) -> LandmarkRequest:
        """The parameters, checked."""
        n, k, m = matrix.shape[0], self.n_components, self.n_landmarks
        if self.landmarks not in METHODS:
            raise InvalidInputError(
                f"landmarks={self.landmarks!r}; expected one of {tuple(METHODS)}"
            )
        if k is None:
            raise InvalidInputError("n_components=None; expected a number")
        check_count(k, n)
        if m is None:
            m = min(n, max(LANDMARKS, PER_COMPONENT * k))
        m = whole_number("n_landmarks", m, k, n, "None or ", ", from the components to the rows")
        if isinstance(self.kernel, str) and self.kernel == "precomputed":
            raise InvalidInputError(
                "kernel='precomputed' is the n x n matrix that landmarks spare: KernelPCA takes it"
            )
        kernel = checked_kernel(self.kernel, self, matrix, seed)
        numbers = candidate_rows(n, int(m), self.landmarks, seed)
        return LandmarkRequest(kernel, self.landmarks, int(m), int(k), numbers, seed)

    def _candidates(
        self, matrix: ChunkedMatrix, request: LandmarkRequest
    ) -> list[Candidate[LandmarkSums]]:
        return landmark_candidates(matrix, request)
