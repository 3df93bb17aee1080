"""Two views: the request, what a method makes of sums or samples, and the answer of every way."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Protocol

import numpy as np

from streampca.accumulators import Scatter
from streampca.errors import InvalidInputError
from streampca.kernels import Array, reciprocal, symmetrize
from streampca.matrix import ChunkedMatrix, Pair
from streampca.models.contract.request import NOTHING, Request, SideData
from streampca.models.side_data.design import with_design_columns
from streampca.solvers import Joint, JointScatter, signs_of_components


@dataclass(frozen=True)
class Samples:
    """One view in the space of the samples: Z = U diag(s) V' of its standardised rows.

    u : (n, r) orthonormal.  s : (r,).  error : of Z Z', about its spectral norm.
    """

    u: Array
    s: Array
    error: float


@dataclass(frozen=True)
class Sums:
    """The joint sums of standardised rows.

    deviations : (p + q,) roots of the sums of squares.  scale : (p + q,) divisors, or None.
    read : (p + q,) the deviations of the columns as they were summed: rounding is relative to them.
    entry : rounding of a sum, relative.  probed : E H of the raw scatter, or None.
    parts : the raw sums of each fold.  removed : (r, p + q) coefficients of the design, whose
        columns come first in those; or None.
    """

    joint: Joint
    freedom: float
    deviations: Array
    scale: Array | None
    read: Array
    entry: float = 0.0
    probed: Array | None = None
    drift: float = 0.0
    parts: tuple[Scatter, ...] = ()
    removed: Array | None = None

    def folds(self) -> Iterator[Fold]:
        """Each fold, with the sums of all others."""
        for part in self.parts:
            rest = Scatter()
            for other in self.parts:
                if other is not part:
                    rest.merge(other)
            residual = (residual_scatter(one.lower(), self.removed) for one in (part, rest))
            own, others = (scaled_scatter(lower, self.scale) for lower in residual)
            joint = JointScatter(own, self.joint.p, np.zeros(len(own)))
            yield Fold(joint, others, rest.weight - 1.0)

    def raw(self, vectors: Array, view: slice) -> Array:
        """Weights of raw columns from those of standardised ones."""
        return vectors if self.scale is None else vectors * reciprocal(self.scale[view])[:, None]


@dataclass(frozen=True)
class Fold:
    """joint : of the rows of a fold.  others : (p + q, p + q) scatter of all other rows, its lower
    triangle valid, with their degrees of freedom."""

    joint: Joint
    others: Array
    freedom: float


@dataclass(frozen=True)
class Solved:
    """What a method makes of sums, or of samples: (r, k) ``x`` and ``y`` in their coordinates.

    values : all of them, descending.  bound : (k,).  ranks : of the two views.
    doubt : why the sums may not answer, in words.  total : sum of the squares of all values, NaN
    where they are correlations.  estimated : whether that is an estimate.  more : further
    numbers of the method.  patterns : what a score of 1 adds to the columns, as ``x`` and ``y``,
    where that follows neither from these nor from covariances.
    """

    values: Array
    x: Array
    y: Array
    bound: Array
    ranks: tuple[int, int]
    doubt: str = ""
    total: float = float("nan")
    estimated: bool = False
    more: Mapping[str, Any] = field(default_factory=dict)
    patterns: tuple[Array, Array] | None = None


class Method(Protocol):
    """A method of two views. Its vectors are those of standardised columns.

    folds : of the rows, that are summed apart; 0 for none.  weighs : weights have scores of
    variance 1, else vectors of length 1.  shapes : whether it says what the patterns are.
    """

    @property
    def n_components(self) -> int | None: ...

    @property
    def scale(self) -> str | None: ...

    @property
    def folds(self) -> int: ...

    @property
    def weighs(self) -> bool: ...

    @property
    def shapes(self) -> bool: ...

    def of_sums(self, sums: Sums) -> Solved:
        """From the joint sums; x and y are weights w with scores Z w."""

    def of_samples(self, x: Samples, y: Samples, freedom: float) -> Solved:
        """From both in sample space; x and y are such that weights are Z' U diag(1 / s) x."""


@dataclass(frozen=True)
class ViewRequest:
    """A fit of one pair as it was requested, checked.

    weights : of the features of each, or None.  side : weights of the samples, and what is removed.
    missing : "raise", or "mean".
    """

    pair: Pair
    method: Method
    weights: tuple[Array | None, Array | None] = (None, None)
    side: SideData = NOTHING
    missing: str = "raise"

    @property
    def p(self) -> int:
        """Features of X."""
        return self.pair.x.shape[1]

    @property
    def count(self) -> int:
        """Components, as many as there can be."""
        (n, p), q = self.pair.x.shape, self.pair.y.shape[1]
        return min(n, p, q, self.method.n_components or n)

    def joint_weights(self) -> Array | None:
        """(p + q,), or None."""
        if all(weight is None for weight in self.weights):
            return None
        sizes = (self.p, self.pair.y.shape[1])
        known = zip(self.weights, sizes, strict=True)
        return np.concatenate([np.ones(n) if w is None else w for w, n in known])

    def of_view(self, i: int) -> Request:
        """All components of one view in sample space."""
        side = replace(self.side, weights=self.weights[i])
        scale, missing = self.method.scale, self.missing
        return Request(scale=scale, missing=missing, components=False, side=side)

    def summed(self, matrix: ChunkedMatrix) -> ChunkedMatrix:
        """What the sums are of: both views, after the columns that are to be removed."""
        basis = self.side.basis
        return matrix if basis is None else with_design_columns(matrix, basis)


@dataclass(kw_only=True)
class Found:
    """The answer of any way; arrays of features are those of X, then those of Y."""

    solved: Solved
    vectors: Array  # (p + q, k) of standardised columns
    loadings: Array  # (p + q, k) correlations with the scores of the same view
    cross_loadings: Array  # with those of the other
    covariances: Array  # (p + q, k) of the columns with the scores of the same view
    between_scores: tuple[Array, Array]  # (k, k) covariances of the scores of each view
    patterns: Array | None = None  # (p + q, k), where the method says what they are
    mean: Array = field(default_factory=lambda: np.zeros(0))
    scale: Array | None = None
    absent: Array = field(default_factory=lambda: np.zeros(0, np.int64))  # never observed
    scores: tuple[Array, Array] | None = None
    removed: Array | None = None  # (r, p + q) coefficients of the design

    @property
    def doubt(self) -> str:
        """What is not certain, in words."""
        return self.solved.doubt


def refuse_still(varies: Array, p: int) -> None:
    """Refuse a view of which no feature varies.  varies : (p + q,) of X, then of Y."""
    for name, part in zip("XY", (varies[:p], varies[p:]), strict=True):
        if not part.any():
            raise InvalidInputError(
                f"none of the {len(part)} features of {name} varies over the rows of both views "
                "(they are constant, have no observation, or follow from what is removed); "
                "expected at least one that does"
            )


def side_by_side(x: Array, y: Array) -> Array:
    """(p + q, 2 k) the vectors of X, then those of Y, with 0 for the features of the other."""
    (p, k), padded = x.shape, np.zeros((len(x) + len(y), 2 * x.shape[1]))
    padded[:p, :k], padded[p:, k:] = x, y
    return padded


def found_of(
    solved: Solved,
    images: Array,
    deviations: Array,
    freedom: float,
    weighs: bool = False,
    **columns: Any,
) -> Found:
    """Weights and loadings, from S times the vectors side by side.

    weighs : as the method says.  columns : the other fields of the answer.
    """
    p, k = solved.x.shape
    factor = np.sqrt(freedom) if weighs else 1.0
    lengths = np.sqrt(np.maximum(np.sum(side_by_side(solved.x, solved.y) * images, axis=0), 0.0))
    with np.errstate(divide="ignore", invalid="ignore"):
        correlations = np.clip(images / deviations[:, None] / lengths, -1.0, 1.0)
    sign = orientation(correlations[:p, :k])
    first, second = correlations[:, :k] * sign, correlations[:, k:] * sign
    vectors = np.vstack([solved.x, solved.y]) * sign * factor
    covariances = np.vstack([images[:p, :k], images[p:, k:]]) * sign * (factor / freedom)
    return Found(
        solved=solved,
        vectors=vectors,
        loadings=np.vstack([first[:p], second[p:]]),
        cross_loadings=np.vstack([second[:p], first[p:]]),
        covariances=covariances,
        between_scores=(vectors[:p].T @ covariances[:p], vectors[p:].T @ covariances[p:]),
        patterns=None if solved.patterns is None else np.vstack(solved.patterns) * sign / factor,
        **columns,
    )


def orientation(loadings: Array) -> Array:
    """(k,) signs of the pairs, from the loadings of X: units of features do not count."""
    return signs_of_components(np.nan_to_num(loadings))


def residual_scatter(lower: Array, removed: Array | None) -> Array:
    """The scatter of residuals (lower triangle) from one of [design, X, Y] and coefficients."""
    if removed is None:
        return lower
    r = len(removed)
    cross, corner = lower[r:, :r] @ removed, symmetrize(lower[:r, :r].copy())
    return np.asarray(lower[r:, r:] - cross - cross.T + removed.T @ corner @ removed)


def scaled_scatter(lower: Array, scale: Array | None) -> Array:
    if scale is None:
        return lower
    inverse = reciprocal(scale)
    return np.asarray(lower * inverse[:, None] * inverse)
