"""Maximum covariance analysis (PLS-SVD): the singular vectors of a cross-covariance."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from streampca.errors import InvalidInputError
from streampca.kernels import CONFIDENCE, Array, norm_estimate
from streampca.matrix import Pair
from streampca.models.contract.parameters import Kept, parameter
from streampca.models.contract.registry import estimator
from streampca.models.contract.request import feature_weights
from streampca.models.two_views.request import Method, Samples, Solved, Sums
from streampca.models.two_views.two_views import TwoViewModel
from streampca.solvers import numerical_rank, singular_pairs

EPS = float(np.finfo(np.float64).eps)


@dataclass(frozen=True)
class Covarying:
    """MCA as the ways ask for it: see :class:`streampca.models.two_views.request.Method`."""

    n_components: int | None
    scale: str | None
    folds: int = 0
    weighs: bool = False
    shapes: bool = False

    def of_sums(self, sums: Sums) -> Solved:
        p, m = sums.joint.p, len(sums.deviations)
        between = sums.joint.between(np.eye(p), np.eye(m - p))
        values, x, y = singular_pairs(between, self.n_components)
        raw = sums.raw(x, slice(0, p)), sums.raw(y, slice(p, m))
        bound = _measured(sums, *raw) + 4.0 * EPS * np.sqrt(m) * values[0]
        return self._solved(values, x, y, bound, sums.freedom)

    def of_samples(self, x: Samples, y: Samples, freedom: float) -> Solved:
        between = x.s[:, None] * (x.u.T @ y.u) * y.s
        values, left, right = singular_pairs(between, self.n_components)
        k = left.shape[1]
        a, b = (
            (one.s[:, None] ** 2 * turn**2).sum(axis=0) for one, turn in ((x, left), (y, right))
        )
        # of b'E b and a'E a over twice the value, a and b the scores
        bound = CONFIDENCE * (x.error * b + y.error * a) / (2.0 * np.maximum(values[:k], 1e-300))
        return self._solved(values, left, right, bound, freedom)

    def _solved(self, values: Array, x: Array, y: Array, bound: Array, freedom: float) -> Solved:
        """Without pairs of mere rounding, but for the first."""
        rank = numerical_rank(values, len(values), float(np.max(bound)) / CONFIDENCE)
        k, total = max(rank, 1), float(np.sum((values / freedom) ** 2))
        ranks = (rank, rank)
        return Solved(values / freedom, x[:, :k], y[:, :k], bound[:k] / freedom, ranks, total=total)


@estimator
class MCA(TwoViewModel):
    """Pairs of patterns that covary most: ``MCA(5).fit(X, Y)``, rows paired by label.

    Attributes
    ----------
    singular_values_ (k,) of the cross-covariance X'Y / (n - 1); x_patterns_ (p, k) and
    y_patterns_ (q, k), its singular vectors, which are x_weights_ and y_weights_ too: scores are
    (X - mean) times them, of the weighted columns with ``weights``; with ``rotation`` weights and
    patterns differ; squared_covariance_fraction_ (k,); homogeneous maps x_loadings_,
    y_loadings_ and heterogeneous maps x_cross_loadings_, y_cross_loadings_: correlations of
    features with scores of the same, or of the other view; value_bound_: certificate; plan_, cost_,
    result_.

    ``result_.to_xarray()`` has all of it labelled. Features without any
    observation (land) are left out.
    Cost: one read of both and (p + q)^2 float64; or n x n matrices, a read of each view (streamed
    samples: (P + 1) / 2 for P panels) and one more for the patterns, whichever is quicker. By
    "krylov" two reads of both and one a step; the sum of squared covariances is then an estimate
    (``result_.estimated``).
    ``remove`` (cycles, trends, covariates) is projected out of both views in the same reads.
    Raises InvalidInputError, NonFiniteError (holes), MemoryLimitError.
    Source: Bretherton, Smith and Wallace 1992, Journal of Climate 5(6), section 2.

    Examples
    --------
    >>> import numpy as np
    >>> from streampca import MCA
    >>> rng = np.random.default_rng(0)
    >>> series = rng.standard_normal((500, 1))
    >>> X = series * [1.0, 1.0, 0.0] + 0.1 * rng.standard_normal((500, 3))
    >>> Y = series * [1.0, -1.0] + 0.1 * rng.standard_normal((500, 2))
    >>> model = MCA(1).fit(X, Y)
    >>> model.y_patterns_.round(1).ravel()  # up to its sign
    array([ 0.7, -0.7])
    """

    weights: Any = parameter(
        default=None,
        kept=Kept.NAME,
        needs_data=True,
        meaning="""multiply the centred and scaled features: "coslat", the root of the cosine of
            their latitude, of both views; or a pair, of X and of Y, each an array, a DataArray,
            the name of a column of the features, "coslat" or None.""",
    )
    solver: str = parameter(
        default="auto",
        choices=("auto", "scatter", "samples", "krylov"),
        meaning=""""scatter" (joint scatter), "samples" (n x n), "krylov" (a read of both for each
            of a few steps, until patterns are certain to 1e-4 radians), or "auto": the quicker of
            the first two that fits the memory, "krylov" only where neither does.""",
    )

    def _method(self, pair: Pair) -> Method:
        return Covarying(self.n_components, self.scale)

    def _weights(self, pair: Pair) -> tuple[Array | None, Array | None]:
        asked = self.weights
        if asked is None or isinstance(asked, str):
            asked = (asked, asked)
        if not isinstance(asked, (tuple, list)) or len(asked) != 2:
            raise InvalidInputError(
                "weights= of two views; expected 'coslat', or a pair: weights=('coslat', None)"
            )
        return feature_weights(asked[0], pair.x), feature_weights(asked[1], pair.y)

    def _ways(self, method: Method) -> dict[str, str | None]:
        ways = ("scatter", "samples", "krylov") if self.solver == "auto" else (self.solver,)
        return dict.fromkeys(ways)

    @property
    def singular_values_(self) -> Array:
        """(k,) of the cross-covariance, descending."""
        return self.result_.values

    @property
    def value_bound_(self) -> Array:
        """(k,) bounds of the error of each by rounding."""
        return self.result_.bound

    @property
    def squared_covariance_fraction_(self) -> Array:
        """(k,) squares of the singular values over their sum, all pairs included.

        By "krylov" that sum is an estimate (``result_.estimated``), and these are too.
        """
        total = self.result_.total
        return np.asarray(self.singular_values_**2 / total if total > 0 else self.singular_values_)


def _measured(sums: Sums, x: Array, y: Array) -> Array:
    """(k,) bounds of the error of x' S_xy y for raw weights (p, k), (q, k)."""
    p, spread = len(x), np.linalg.norm(x, axis=0) * np.linalg.norm(y, axis=0)
    entries = sums.entry * (np.abs(x).T @ sums.read[:p]) * (np.abs(y).T @ sums.read[p:])
    if sums.probed is None:
        return np.asarray(entries)
    errors = [
        norm_estimate(one.T @ part) * np.linalg.norm(other, axis=0)
        for one, other, part in ((x, y, sums.probed[:p]), (y, x, sums.probed[p:]))
    ]
    return np.asarray(np.minimum(np.minimum(*errors) + sums.drift * spread, entries))
