"""The cross-covariance of two wide and long views by block Krylov steps: it is never formed."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

import numpy as np
import scipy

from streampca.accumulators import Accumulator, CrossMoments, CrossProduct, Moments
from streampca.accumulators.base import refuse_partly_missing
from streampca.kernels import Array, reciprocal
from streampca.matrix import ChunkedMatrix, Resolution, Standardize, work_dtype
from streampca.models.results.projection import Projection
from streampca.models.side_data.design import residual_stats
from streampca.models.two_views.request import (
    Found,
    Solved,
    ViewRequest,
    found_of,
    refuse_still,
    side_by_side,
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

MOST = 12  # steps, a read of both views each
LIKELY = 5
OVERSAMPLES = 8  # vectors of a block in addition to the pairs that are wanted
ANGLE = 1e-4  # radians to which every pattern is certified
LEFT = 1e-10  # of a unit vector outside the space that it lies in: rounding
ROUNDINGS = 16.0  # of the largest value, in a product: the work dtype resolves no less


def krylov_candidates(matrix: ChunkedMatrix, request: ViewRequest) -> list[Candidate[Found]]:
    """A pass for the means, steps, and a pass for the maps; every pass reads both views."""
    n, m = matrix.shape
    if request.method.weighs or request.method.folds:
        return []
    width = 2 * _block(request)
    bases = 8 * m * (width * MOST + 6 * width)
    sums = {"images": CrossProduct(y="scores", center="center", scale="scale", width=width)}
    size = work_dtype(matrix.dtype).itemsize
    step, maps = (
        replace(
            pass_spec(
                name,
                matrix,
                0,
                sums,
                flops=4.0 * n * m * width,
                work="skinny",
                kept={"searched spaces": bases},
                **often,
            ),
            scratch=lambda length: 2 * size * width * (m + length),
        )
        for name, often in (("step", {"times": MOST, "likely": LIKELY}), ("maps", {}))
    )
    looked: dict[str, Accumulator] = {"columns": Moments()}
    if request.side.rank:
        looked["design"] = CrossMoments(y="design", width=request.side.rank)
    flops = (6.0 + 2.0 * request.side.rank) * n * m
    moments = pass_spec("moments", matrix, 0, looked, flops=flops)
    reason = f"both too large for exact ways: at most {MOST} steps on X'Y, certified"
    solve = {"searched spaces": bases, "weights and loadings": 8 * 8 * m * request.count}
    solver = partial(by_krylov, request=request, moments=moments, step=step, maps=maps)
    return [Candidate("krylov", reason, (moments, step, maps), solve, solve=solver)]


def _block(request: ViewRequest) -> int:
    return min(request.count + OVERSAMPLES, request.p, request.pair.y.shape[1])


@dataclass
class _Space:
    """Orthonormal vectors of one view, and what the cross-covariance makes of them."""

    basis: Array
    images: Array = field(default_factory=lambda: np.zeros((0, 0)))

    def grown(self, images: Array) -> None:
        """Take in the images of the latest block."""
        self.images = np.hstack([self.images, images]) if self.images.size else images

    def extended(self, block: Array) -> Array:
        """The block, orthonormal and orthogonal to all before; it joins them.

        Columns of which nothing is left, where the space is full, are 0.
        """
        block = block * reciprocal(np.linalg.norm(block, axis=0))
        for _ in (0, 1):
            block = block - self.basis @ (self.basis.T @ block)
        q, upper, _ = scipy.linalg.qr(block, mode="economic", pivoting=True)
        fresh = q[:, np.abs(np.diagonal(upper)) > LEFT]
        fresh = np.linalg.qr(fresh - self.basis @ (self.basis.T @ fresh))[0]
        block = np.zeros_like(block)
        block[:, : fresh.shape[1]] = fresh
        self.basis = np.hstack([self.basis, block])
        return block


def by_krylov(
    planned: Planned[Any],
    *,
    request: ViewRequest,
    moments: PassSpec,
    step: PassSpec,
    maps: PassSpec,
) -> Steps[Found]:
    """Ritz pairs of X'Y until each is certified.

    One read multiplies blocks of both sides, so that a step extends both spaces.
    Source: Golub, Luk and Overton 1981, ACM Transactions on Mathematical Software 7(2).
    """
    matrix, basis = planned.matrix, request.side.basis
    n, p = matrix.shape[0], request.p
    done = yield Pass(moments, side_inputs={} if basis is None else {"design": basis})
    stats, slopes = done.accumulators.pop("columns").columns(), None
    refuse_partly_missing(stats.missing, n)
    eps = Resolution.of(matrix.dtype).eps
    if basis is not None:
        slopes = done.accumulators.pop("design").deviations().T
        stats = residual_stats(stats, slopes, eps)
    standardize = Standardize(True, request.method.scale)
    scaling = standardize.resolve(stats, eps, request.joint_weights())
    absent = np.flatnonzero(stats.count == 0)
    divisors = np.ones(len(stats.m2)) if scaling.scale is None else scaling.scale.copy()
    divisors[absent] = 0.0
    refuse_still((divisors > 0.0) & ~scaling.constant, p)
    explained = None if slopes is None else slopes * reciprocal(divisors)
    reader = _Reader(np.array(scaling.center), divisors, tuple(absent.tolist()), explained)
    rng, b = np.random.default_rng(0), _block(request)
    alive = (divisors > 0.0)[:, None]
    start = rng.standard_normal((len(alive), b)) * alive
    x, y = _Space(np.zeros((p, 0))), _Space(np.zeros((len(alive) - p, 0)))
    with single_threaded_blas():
        left, right = x.extended(start[:p]), y.extended(start[p:])
    unit, ritz = ROUNDINGS * float(np.finfo(work_dtype(matrix.dtype)).eps), None
    for number in range(1, MOST + 1):
        images = yield from reader.images(step, number, left, right)
        with single_threaded_blas():
            x.grown(images[p:, :b])
            y.grown(images[:p, b:])
            ritz = _Ritz.of(x, y, request.count, unit)
            if ritz.certified:
                break
            left, right = x.extended(ritz.rest_x[:, :b]), y.extended(ritz.rest_y[:, :b])
    assert ritz is not None
    images = yield from reader.images(maps, 1, ritz.x, ritz.y)
    freedom = n - 1.0
    doubt = "" if ritz.certified else ritz.doubt()
    k, q = len(ritz.values), int(np.count_nonzero(alive[p:]))
    total = ritz.squares(y, b, q)
    solved = Solved(
        ritz.values / freedom,
        ritz.x,
        ritz.y,
        ritz.error / freedom,
        (k, k),
        doubt,
        total / freedom**2,
        estimated=b < q,
    )
    deviations = np.sqrt(stats.m2) * reciprocal(divisors)
    columns: dict[str, Any] = {
        "mean": reader.center,
        "scale": scaling.scale,
        "absent": absent,
        "removed": slopes,
    }
    return found_of(solved, images, deviations, freedom, **columns)


@dataclass(frozen=True)
class _Reader:
    """Passes over both views, standardised.

    explained : (r, p + q) coefficients of the design that is projected out, or None.
    """

    center: Array
    divisors: Array
    absent: tuple[int, ...]
    explained: Array | None

    def images(self, spec: PassSpec, number: int, x: Array, y: Array) -> Steps[Array]:
        """(p + q, 2 b) [X, Y]' times the scores [X x, Y y]."""
        vectors = np.ascontiguousarray(side_by_side(x, y).T)
        scores = Projection(vectors, self.center, self.divisors, None, "raise", self.absent)
        operands = {"center": self.center, "scale": self.divisors}
        done = yield Pass(
            spec,
            number,
            maps={"scores": scores},
            operands=operands,
            changed={"images": {"width": len(vectors)}},
        )
        made: Array = done.accumulators.pop("images").cross_product()
        if self.explained is not None:
            made -= self.explained.T @ (self.explained @ vectors.T)
        return made


@dataclass(frozen=True)
class _Ritz:
    """Approximate singular pairs, and how far each may be off.

    error : (k,) of values, from residual and rounding.  angle : (k,) of vectors.
    rest_x, rest_y : residuals, the directions in which the spaces grow.
    Both are conditional on no pair missed: start blocks are random.
    """

    values: Array
    x: Array
    y: Array
    error: Array
    angle: Array
    floor: float
    rest_x: Array
    rest_y: Array

    @classmethod
    def of(cls, x: _Space, y: _Space, count: int, unit: float) -> _Ritz:
        left, values, right = np.linalg.svd(x.basis.T @ y.images)
        to_x, to_y = x.basis @ left, y.basis @ right.T
        rest_x = y.images @ right.T - to_x * values
        rest_y = x.images @ left - to_y * values
        residual = np.hypot(np.linalg.norm(rest_x, axis=0), np.linalg.norm(rest_y, axis=0))
        floor = unit * float(values[0])
        error, k = residual + floor, min(count, len(values))
        above = np.concatenate([[np.inf], values[:-1] - values[1:]])
        below = np.append(values[:-1] - values[1:], values[-1])
        gap = np.maximum(np.minimum(above, below) - np.append(error[1:], error[-1:]), 1e-300)
        angle = np.arcsin(np.minimum(1.0, error / gap))
        kept = (values[:k], to_x[:, :k], to_y[:, :k], error[:k], angle[:k])
        return cls(*kept, floor, rest_x, rest_y)

    def squares(self, y: _Space, b: int, q: int) -> float:
        """Sum of the squares of all values: of those that are known, and an estimate of the rest.

        The first b vectors are random, of q features: what is left of them without the known pairs.
        Source: Meyer, Musco, Musco and Woodruff 2021, "Hutch++", section 2.
        """
        rest = y.images[:, :b] - (self.x * self.values) @ (self.y.T @ y.basis[:, :b])
        return float(np.sum(self.values**2) + np.sum(rest**2) * q / b)

    @property
    def certified(self) -> bool:
        """Whether every pair is known to ANGLE, or to what the arithmetic resolves."""
        return bool(np.all((self.angle <= ANGLE) | (self.error <= 2.0 * self.floor)))

    def doubt(self) -> str:
        """What is not certain, in words."""
        worst = int(np.argmax(self.angle))
        return (
            f"pair {worst + 1} may be off by {self.angle[worst]:.1g} radians after {MOST} steps; "
            "ask for fewer pairs, or an exact way with more memory: MCA(solver='samples')"
        )
