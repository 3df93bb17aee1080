"""Continuum power CCA: pairs between those of CCA and those of MCA, by partial whitening."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from streampca.errors import InvalidInputError
from streampca.kernels import Array, reciprocal
from streampca.matrix import Pair
from streampca.models.contract.parameters import parameter
from streampca.models.contract.registry import estimator
from streampca.models.two_views.cca import principal_counts
from streampca.models.two_views.mca import MCA
from streampca.models.two_views.request import Method, Samples, Solved, Sums
from streampca.solvers import singular_pairs


@dataclass(frozen=True)
class PartlyWhitened:
    """CPCCA as the ways ask for it: see :class:`streampca.models.two_views.request.Method`.

    degrees : alpha of X and of Y.  pca : components of each, or None: all of them.
    """

    n_components: int | None
    scale: str | None
    degrees: tuple[float, float]
    pca: tuple[int, int] | None = None
    folds: int = 0
    weighs: bool = False
    shapes: bool = True

    def of_sums(self, sums: Sums) -> Solved:
        p, m = sums.joint.p, len(sums.deviations)
        counts = self.pca or (p, m - p)
        bases, inverses = [], []
        for i, view in enumerate((slice(0, p), slice(p, m))):
            whitened = sums.joint.principal(view, counts[i]).matrix
            roots = 1.0 / np.linalg.norm(whitened, axis=0)
            powers = self._powers(i, roots, sums.freedom)
            bases.append(whitened * roots * powers)
            inverses.append(whitened * roots / powers)
        x, y = bases
        values, left, right = singular_pairs(sums.joint.between(x, y), self.n_components)
        patterns = inverses[0] @ left, inverses[1] @ right
        ranks = x.shape[1], y.shape[1]
        return self._solved(values / sums.freedom, x @ left, y @ right, patterns, ranks)

    def of_samples(self, x: Samples, y: Samples, freedom: float) -> Solved:
        counts = self.pca or (len(x.s), len(y.s))
        powers = []
        for i, one in enumerate((x, y)):
            taken = np.arange(len(one.s)) < counts[i]
            powers.append(np.where(taken, self._powers(i, one.s, freedom), 0.0))
        between = (powers[0] * x.s)[:, None] * (x.u.T @ y.u) * (powers[1] * y.s)
        values, left, right = singular_pairs(between, self.n_components)
        ranks = min(counts[0], len(x.s)), min(counts[1], len(y.s))
        turns = tuple(zip(powers, (left, right), strict=True))
        to_x, to_y = (power[:, None] * turn for power, turn in turns)
        of_x, of_y = (reciprocal(power)[:, None] * turn for power, turn in turns)
        return self._solved(values / freedom, to_x, to_y, (of_x, of_y), ranks)

    def _powers(self, i: int, roots: Array, freedom: float) -> Array:
        """(r,) variances of components to the power (alpha - 1) / 2, from singular values."""
        return np.asarray((roots / np.sqrt(freedom)) ** (self.degrees[i] - 1.0))

    def _solved(
        self,
        values: Array,
        x: Array,
        y: Array,
        patterns: tuple[Array, Array],
        ranks: tuple[int, int],
    ) -> Solved:
        """ranks : of the views; of pairs that covary there are as many as the least of them."""
        if not any(self.degrees):
            values, total = np.minimum(values, 1.0), float("nan")
        else:
            total, ranks = float(np.sum(values**2)), (min(ranks), min(ranks))
        bound = np.full(x.shape[1], np.inf)
        return Solved(values, x, y, bound, ranks, total=total, patterns=patterns)


@estimator
class CPCCA(MCA):
    """Continuum power CCA, between CCA and MCA: ``CPCCA(5, alpha=0.2).fit(X, Y)``.

    Each view is whitened in part, X C^((alpha - 1) / 2) with its covariance C, and the pairs are
    those of an MCA. ``alpha=0`` is CCA, 1 is MCA, (0, 1) redundancy analysis (RDA): the patterns
    of Y that X predicts best.

    Attributes
    ----------
    singular_values_ (k,) of the cross-covariance of the whitened views, correlations with
    ``alpha=0``; x_weights_ (p, k) and y_weights_ (q, k): scores are (X - mean) times them, of the
    weighted columns with ``weights``; x_patterns_ and y_patterns_: C^((1 - alpha) / 2) times the
    singular vectors, what a score of 1 adds to these columns (``components`` of xeofs);
    squared_covariance_fraction_ (k,) of the whitened views (xeofs' is of the unwhitened ones), NaN
    with ``alpha=0``; the other attributes are those of MCA; ``value_bound_`` is not determined.

    Cost: as for MCA, and an eigendecomposition of both covariances, p^3 + q^3 flops, or n^3.
    Raises InvalidInputError, NonFiniteError (holes), MemoryLimitError.
    Source: Swenson 2015, Journal of Climate 28(3), section 2.

    Examples
    --------
    >>> import numpy as np
    >>> from streampca import CPCCA
    >>> rng = np.random.default_rng(0)
    >>> shared = rng.standard_normal((500, 1))
    >>> X = shared + rng.standard_normal((500, 3))
    >>> Y = shared + rng.standard_normal((500, 2))
    >>> CPCCA(1, alpha=0).fit(X, Y).singular_values_.round(1)
    array([0.7])
    """

    alpha: Any = parameter(
        default=0.2,
        meaning="""degree of whitening from 0 (whole) to 1 (none), of both views, or a pair
            (a1, a2).""",
    )
    pca: Any = parameter(
        default=None,
        meaning="(k1, k2): of the leading principal components of X and Y, in the same read.",
    )
    solver: str = parameter(
        default="auto",
        choices=("auto", "scatter", "tsqr", "samples"),
        meaning=""""scatter" (joint scatter), "tsqr" (R factor of [X, Y], whose condition is not
            squared), "samples" (n x n), or "auto": the quicker of the first and the last.""",
    )

    def _method(self, pair: Pair) -> Method:
        (n, p), q = pair.x.shape, pair.y.shape[1]
        degrees, pca = degrees_of(self.alpha), principal_counts(self.pca, n, (p, q))
        for name, width, degree in zip("XY", (p, q), degrees, strict=True):
            if width >= n and not degree and pca is None:
                raise InvalidInputError(
                    f"{name} has {width} features and {n} rows: wholly whitened, they fit anything."
                    f" Take alpha={self.alpha!r} with pca=(10, 10), or a larger alpha=0.2"
                )
        return PartlyWhitened(self.n_components, self.scale, degrees, pca)

    def _ways(self, method: Method) -> dict[str, str | None]:
        ways = ("scatter", "samples") if self.solver == "auto" else (self.solver,)
        return dict.fromkeys(ways)


def degrees_of(value: Any) -> tuple[float, float]:
    """The degrees of both views. Raises InvalidInputError."""
    pair = value if isinstance(value, (tuple, list, np.ndarray)) else (value, value)
    try:
        numbers = [float(one) for one in pair]
    except (TypeError, ValueError):
        numbers = []
    if len(numbers) != 2 or not all(0.0 <= number <= 1.0 for number in numbers):
        raise InvalidInputError(
            f"alpha={value!r}; expected a number from 0 (CCA) to 1 (MCA), or two: (0, 1)"
        )
    return numbers[0], numbers[1]
