"""Two views by the joint sums of [X, Y]: what is asked of a pair, and what a way to it returns."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, Protocol

import numpy as np

from streampca.accumulators import Accumulator, FoldScatter, MeanImputedScatter, RFactor, Scatter
from streampca.accumulators.scatter import NARROW
from streampca.errors import InvalidInputError
from streampca.kernels import Array, reciprocal, symmetrize
from streampca.kernels.columns import sum_error
from streampca.matrix import ChunkedMatrix, Pair, Resolution, Standardize
from streampca.models.contract.request import NOTHING, Request, SideData
from streampca.models.decompose.scatter import SPAN_ROWS, stats_of_sums
from streampca.models.side_data.design import (
    Removed,
    factor_without,
    scatter_without,
    with_design_columns,
)
from streampca.passes import (
    Candidate,
    Pass,
    PassSpec,
    Planned,
    Steps,
    pass_spec,
    single_threaded_blas,
)
from streampca.solvers import Joint, JointFactor, JointScatter, signs_of_components


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
        """Each fold, beside the others."""
        for part in self.parts:
            rest = Scatter()
            for other in self.parts:
                if other is not part:
                    rest.merge(other)
            own, others = (
                _scaled(_residual(one.lower(), self.removed), self.scale) for one in (part, rest)
            )
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
    numbers of the method.
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


class Method(Protocol):
    """What is asked of two views. Vectors are those of standardised columns.

    folds : of the rows, that are summed apart; 0 for none.  weighs : weights have scores of
    variance 1, else vectors of length 1.
    """

    @property
    def n_components(self) -> int | None: ...

    @property
    def scale(self) -> str | None: ...

    @property
    def folds(self) -> int: ...

    @property
    def weighs(self) -> bool: ...

    def of_sums(self, sums: Sums) -> Solved:
        """From the joint sums; x and y are weights w with scores Z w."""

    def of_samples(self, x: Samples, y: Samples, freedom: float) -> Solved:
        """From both in sample space; x and y are such that weights are Z' U diag(1 / s) x."""


@dataclass(frozen=True)
class ViewRequest:
    """What is asked of one pair.

    weights : of the features of each, or None.  side : weights of the samples, and what is removed.
    missing : "raise", or "mean".
    """

    pair: Pair
    method: Method
    weights: tuple[Array | None, Array | None] = (None, None)
    memory_limit: int | str | None = None
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
        if all(one is None for one in self.weights):
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
    mean: Array = field(default_factory=lambda: np.zeros(0))
    scale: Array | None = None
    absent: Array = field(default_factory=lambda: np.zeros(0, np.int64))  # never observed
    scores: tuple[Array, Array] | None = None
    removed: Array | None = None  # (r, p + q) coefficients of the design

    @property
    def doubt(self) -> str:
        """What is not certain, in words."""
        return self.solved.doubt


# By the joint sums of [X, Y]: one read of both.


def sums_candidates(matrix: ChunkedMatrix, request: ViewRequest) -> list[Candidate[Found]]:
    """One pass that sums the joint scatter matrix."""
    (n, m), method, holes = matrix.shape, request.method, request.missing == "mean"
    sums: dict[str, Accumulator] = {"scatter": MeanImputedScatter() if holes else Scatter()}
    if method.folds:
        sums = {f"fold {i}": FoldScatter(fold=i, folds=method.folds) for i in range(method.folds)}
    read = request.summed(matrix)
    spec = pass_spec("scatter", read, 0, sums, flops=(4.0 if holes else 1.0) * n * m * m)
    spec = replace(spec, matrix=read)
    solve, flops = _solving(request, m)
    solve["joint scatter"] = spec.total_nbytes
    if method.folds:
        solve["sums of all folds"] = 4 * m * m * 8
    if holes or request.side.rank:
        solve["filled, or residual scatter"] = 4 * m * m * 8
    reason = "one read of both; joint scatter of their features, then an SVD"
    solver = partial(by_scatter, request=request, read=read, spec=spec)
    candidate = Candidate("scatter", reason, (spec,), solve, flops, solve=solver)
    return [candidate.weighted(request.side.sample_weight)]


def factor_candidates(matrix: ChunkedMatrix, request: ViewRequest) -> list[Candidate[Found]]:
    """One pass that keeps the R factor of both."""
    n, m = matrix.shape
    read = request.summed(matrix)
    spec = pass_spec("tsqr", read, 0, {"r": RFactor()}, flops=2.0 * n * m * m, work="factor")
    spec = replace(spec, matrix=read)
    solve, flops = _solving(request, m)
    reason = "one read of both; R factor of [X, Y], whose condition is not squared"
    solve["R factor"] = 2 * m * m * 8
    solver = partial(by_factor, request=request, spec=spec)
    candidate = Candidate("tsqr", reason, (spec,), solve, flops, solve=solver)
    return [candidate.weighted(request.side.sample_weight)]


def _solving(request: ViewRequest, m: int) -> tuple[dict[str, int], float]:
    """(bytes by term, flops) of what follows the sums."""
    p, q = request.p, m - request.p
    arrays = {
        "whitening": 3 * 8 * (p * p + q * q),
        "singular vectors": 4 * 8 * p * q,
        "weights and loadings": 6 * 8 * m * request.count,
    }
    solves = 1 + 26 * request.method.folds
    return arrays, float(solves * (2.0 * (p**3 + q**3) + 14.0 * p * q * min(p, q)))


def by_scatter(
    planned: Planned[Any], *, request: ViewRequest, read: ChunkedMatrix, spec: PassSpec
) -> Steps[Found]:
    """The joint scatter of all rows, and of each fold where folds are asked for.

    read : what the sums are of.
    """
    done = (yield Pass(spec)).accumulators
    parts = [done.pop(name) for name in list(done)]
    whole, removed = parts[0], None
    if request.method.folds:
        whole = Scatter()
        for part in parts:
            whole.merge(part)
    with single_threaded_blas():
        spread = np.sqrt(np.maximum(np.diagonal(whole.lower()), 0.0))[request.side.rank :]
        if request.side.rank:
            whole, removed = scatter_without(whole, request.side.rank)
        scale = _scale(request, planned.matrix, whole)
        sums = _scatter_sums(whole, request.p, Resolution.of(read.dtype).work, scale, spread)
        coefficients = None if removed is None else removed.coefficients
        sums = replace(sums, parts=tuple(parts), removed=coefficients)
        return _found(sums, whole, request, removed)


def by_factor(planned: Planned[Any], *, request: ViewRequest, spec: PassSpec) -> Steps[Found]:
    """The R factor of both views."""
    removed = None
    done = (yield Pass(spec)).accumulators.pop("r")
    spread = np.linalg.norm(done.r_factor(), axis=0)[request.side.rank :]
    if request.side.rank:
        done, removed = factor_without(done, request.side.rank)
    scale, factor = _scale(request, planned.matrix, done), done.r_factor()
    if scale is not None:
        factor *= reciprocal(scale)
    with single_threaded_blas():
        joint = JointFactor(factor, request.p)
        sums = Sums(joint, done.weight - 1.0, np.linalg.norm(factor, axis=0), scale, spread)
        return _found(sums, done, request, removed)


def _scale(request: ViewRequest, matrix: ChunkedMatrix, sums: Any) -> Array | None:
    """(p + q,) divisors of the columns; 0 for those that do not vary.  matrix : both views."""
    eps, stats = Resolution.of(matrix.dtype).eps, stats_of_sums(sums)
    standardize = Standardize(True, request.method.scale)
    scaling = standardize.resolve(stats, eps, request.joint_weights())
    still = scaling.constant if scaling.scale is None else scaling.scale == 0.0
    refuse_still(~still & (stats.count > 0), request.p)
    return scaling.scale


def refuse_still(varies: Array, p: int) -> None:
    """Refuse a view of which no feature varies.  varies : (p + q,) of X, then of Y."""
    for name, part in zip("XY", (varies[:p], varies[p:]), strict=True):
        if not part.any():
            raise InvalidInputError(
                f"none of the {len(part)} features of {name} varies over the rows of both views "
                "(they are constant, have no observation, or follow from what is removed); "
                "expected at least one that does"
            )


def _scatter_sums(
    scatter: Scatter | MeanImputedScatter, p: int, work: Any, scale: Array | None, read: Array
) -> Sums:
    """p : features of X.  work : dtype in which products were made.
    read : (p + q,) deviations of the columns before anything was removed."""
    lower, plain, terms = scatter.lower(), isinstance(scatter, Scatter), scatter.count
    deviations = np.sqrt(np.maximum(np.diagonal(lower), 0.0))
    if plain and work == np.float32 and len(lower) > NARROW:
        entry = sum_error(work, min(terms, SPAN_ROWS))
    else:
        entry = sum_error(np.dtype(np.float64), terms)
    probed = scatter.rounding() if isinstance(scatter, Scatter) else None
    level = entry * (read * reciprocal(deviations)) ** 2
    if probed is not None:
        rough = np.sqrt(np.mean(probed**2, axis=1)) * reciprocal(deviations) ** 2
        level = np.minimum(level, rough)
    if scale is not None:
        deviations = deviations * reciprocal(scale)
    joint = JointScatter(_scaled(lower, scale), p, level)
    drift = scatter.drift if isinstance(scatter, Scatter) else 0.0
    return Sums(joint, scatter.weight - 1.0, deviations, scale, read, entry, probed, drift)


def _residual(lower: Array, removed: Array | None) -> Array:
    """The scatter of residuals (lower triangle) from one of [design, X, Y] and coefficients."""
    if removed is None:
        return lower
    r = len(removed)
    cross, corner = lower[r:, :r] @ removed, symmetrize(lower[:r, :r].copy())
    return np.asarray(lower[r:, r:] - cross - cross.T + removed.T @ corner @ removed)


def _scaled(lower: Array, scale: Array | None) -> Array:
    if scale is None:
        return lower
    inverse = reciprocal(scale)
    return np.asarray(lower * inverse[:, None] * inverse)


def _found(sums: Sums, whole: Any, request: ViewRequest, removed: Removed | None) -> Found:
    """Weights and loadings from the joint sums."""
    solved = request.method.of_sums(sums)
    images = sums.joint.times(side_by_side(solved.x, solved.y))
    factor = np.sqrt(sums.freedom) if request.method.weighs else 1.0
    found = found_of(solved, images, sums.deviations, factor)
    absent = np.flatnonzero(whole.missing >= whole.count)
    coefficients = None if removed is None else removed.coefficients
    return replace(
        found, mean=np.array(whole.mean), scale=sums.scale, absent=absent, removed=coefficients
    )


def side_by_side(x: Array, y: Array) -> Array:
    """(p + q, 2 k) the vectors of X, then those of Y, with 0 for the features of the other."""
    (p, k), padded = x.shape, np.zeros((len(x) + len(y), 2 * x.shape[1]))
    padded[:p, :k], padded[p:, k:] = x, y
    return padded


def found_of(solved: Solved, images: Array, deviations: Array, factor: float) -> Found:
    """Weights times a factor, and loadings, from S times the vectors side by side."""
    p, k = solved.x.shape
    lengths = np.sqrt(np.maximum(np.sum(side_by_side(solved.x, solved.y) * images, axis=0), 0.0))
    with np.errstate(divide="ignore", invalid="ignore"):
        correlations = np.clip(images / deviations[:, None] / lengths, -1.0, 1.0)
    sign = orientation(correlations[:p, :k])
    first, second = correlations[:, :k] * sign, correlations[:, k:] * sign
    return Found(
        solved=solved,
        vectors=np.vstack([solved.x, solved.y]) * sign * factor,
        loadings=np.vstack([first[:p], second[p:]]),
        cross_loadings=np.vstack([second[:p], first[p:]]),
    )


def orientation(loadings: Array) -> Array:
    """(k,) signs of the pairs, from the loadings of X: units of features do not count."""
    return signs_of_components(np.nan_to_num(loadings))
