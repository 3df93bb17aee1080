"""Sparse loadings: the alternation of Zou, Hastie and Tibshirani, by products with the covariance.

min over A (p, k) with A'A = I and B (p, k):
    tr S - 2 tr A'SB + tr B'SB + ridge |B|^2 + sum_j alpha_j |b_j|_1
for the covariance S. With ridge = inf, of what is left when B is multiplied by 1 + ridge:
    tr S - 2 tr A'SB + |B|^2 + sum_j alpha_j |b_j|_1.
With groups of features, |b_j|_1 is the sum over groups g of sqrt(p_g) |b_jg|_2, p_g its features.
Source: Zou, Hastie and Tibshirani 2006, J. Comput. Graph. Stat. 15(2), eq. 3.12 and theorem 4;
Yuan and Lin 2006, JRSS B 68(1), section 2.2 (groups).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

import numpy as np
import scipy

from streampca.errors import InvalidInputError
from streampca.kernels import Array


@dataclass(frozen=True)
class Penalty:
    """What makes loadings sparse: one entry for each of k components.

    nonzero : (k,) loadings that are not 0, or None.  alpha : (k,) weights of |b_j|_1, or None.
    ridge : of |B|^2; inf: each loading is a thresholded product.
    groups : (p,) number of the group of each feature, from 0 on; ``nonzero`` counts groups then.
    held : (p, k) the features that may have loadings, and levels : (k,) of their penalty, where
        these no longer change; or None.
    """

    nonzero: Array | None
    alpha: Array | None
    ridge: float
    groups: Array | None = None
    held: Array | None = None
    levels: Array | None = None

    def holding(self, b: Array, slopes: Array) -> Penalty:
        """The features of B, (p, k), and the levels at which they are, to the end.

        With a fixed number of loadings the level changes with each step, so that nothing need fall
        and the features may go round; with both held, an objective does.
        slopes : (p, k) S A, less (S + ridge) B for a finite ridge.
        """
        if self.thresholds:
            levels = np.array([self._level(self._sizes(one), j) for j, one in enumerate(slopes.T)])
        else:
            levels = np.where(b != 0, np.abs(slopes), 0.0).max(axis=0, initial=0.0)
        return replace(self, held=b != 0, levels=levels)

    def of_first(self, k: int) -> Penalty:
        """That of the first k components."""
        nonzero, alpha = (None if one is None else one[:k] for one in (self.nonzero, self.alpha))
        return replace(self, nonzero=nonzero, alpha=alpha)

    @staticmethod
    def joined(several: Sequence[Penalty]) -> Penalty:
        """That of the components of all, side by side; they differ in their levels alone."""
        first = several[0]
        nonzero = (
            None
            if first.nonzero is None
            else np.concatenate([_given(one.nonzero) for one in several])
        )
        alpha = (
            None if first.alpha is None else np.concatenate([_given(one.alpha) for one in several])
        )
        held = levels = None
        if first.held is not None:
            held = np.hstack([_given(one.held) for one in several])
            levels = np.concatenate([_given(one.levels) for one in several])
        return replace(first, nonzero=nonzero, alpha=alpha, held=held, levels=levels)

    @property
    def thresholds(self) -> bool:
        """Whether loadings follow from products alone, cell by cell."""
        return bool(np.isinf(self.ridge))

    def thresholded(self, images: Array) -> Array:
        """(p, k) loadings from S A, where the ridge is infinite."""
        out = np.empty_like(images)
        for j, image in enumerate(images.T):
            level = self._level(self._sizes(image), j)
            image = image if self.held is None else np.where(self.held[:, j], image, 0.0)
            if self.groups is None:
                out[:, j] = soft(image, level)
                continue
            sizes, norms = self._groups_of(image)
            kept = np.maximum(norms - level * sizes, 0.0)
            shrunk = np.divide(kept, norms, out=np.zeros_like(norms), where=norms > 0)
            out[:, j] = image * shrunk[self.groups]
        return out

    def _sizes(self, image: Array) -> Array:
        """What is compared with the level: of each feature, or of each group."""
        if self.groups is None:
            return np.abs(image)
        sizes, norms = self._groups_of(image)
        return np.asarray(norms / sizes)

    def _groups_of(self, values: Array) -> tuple[Array, Array]:
        """(sqrt(p_g), |values_g|_2) of every group."""
        assert self.groups is not None
        counts = np.bincount(self.groups)
        return np.sqrt(counts), np.sqrt(np.bincount(self.groups, values**2))

    def _level(self, sizes: Array, j: int) -> float:
        """Half of alpha, or what leaves that many of these sizes."""
        if self.levels is not None:
            return float(self.levels[j])
        if self.alpha is not None:
            return float(self.alpha[j]) / 2.0
        assert self.nonzero is not None
        count = int(self.nonzero[j])
        if count >= len(sizes):
            return 0.0
        return float(np.partition(sizes, len(sizes) - count - 1)[len(sizes) - count - 1])

    def regressed(self, covariance: Array, images: Array) -> Array:
        """(p, k) loadings from S and S A, for a finite ridge: elastic nets."""
        out = np.zeros_like(images)
        for j, image in enumerate(images.T):
            if self.held is not None and self.levels is not None:
                some = np.flatnonzero(self.held[:, j])
                inside, level = covariance[np.ix_(some, some)], float(self.levels[j])
                out[some, j] = elastic_net(inside, image[some], self.ridge, len(some), level)
                continue
            count = len(image) if self.nonzero is None else int(self.nonzero[j])
            level = 0.0 if self.alpha is None else float(self.alpha[j]) / 2.0
            out[:, j] = elastic_net(covariance, image, self.ridge, count, level)
        return out

    def objective(self, total: float, cross: float, inner: float, b: Array) -> float:
        """What is minimised.  cross : tr A'SB.  inner : tr B'SB.

        Where the number of loadings is fixed, without alpha |b|_1.
        """
        squares = float(np.sum(b**2))
        found = total - 2.0 * cross
        found += squares if self.thresholds else inner + self.ridge * squares
        if self.alpha is None:
            return found
        if self.groups is None:
            return found + float(np.abs(b).sum(axis=0) @ self.alpha)
        for weight, column in zip(self.alpha, b.T, strict=True):
            found += float(weight * np.dot(*self._groups_of(column)))
        return found


def _given(values: Array | None) -> Array:
    assert values is not None
    return values


def soft(values: Array, level: Array | float) -> Array:
    """Values moved towards 0 by ``level``, those nearer than that to 0."""
    return np.asarray(np.sign(values) * np.maximum(np.abs(values) - level, 0.0))


def elastic_net(covariance: Array, image: Array, ridge: float, count: int, level: float) -> Array:
    """min b'(S + ridge) b - 2 image'b + 2 level |b|_1, or the last point with ``count`` non-zeros.

    The path of least angle regression from b = 0, where the penalty is largest, downwards: it ends
    at ``level``, or where one more loading than ``count`` would enter.
    Cost: count (p + count^2) flops for each step, of which there are about ``count``.
    Source: Zou and Hastie 2005, JRSS B 67(2), section 3.4; Efron et al. 2004, Annals of
    Statistics 32(2), section 3.1.
    """
    if count >= len(image) and level == 0.0:
        return _without_path(covariance, image, ridge)
    b, left = np.zeros(len(image)), np.array(image)
    active: list[int] = []
    left_out: list[int] = []  # what has just gone
    smallest = 1e-14 * float(np.max(np.abs(image), initial=0.0))
    for _ in range(20 * len(image)):
        others = np.ones(len(image), bool)
        others[active + left_out] = False
        inactive = np.flatnonzero(others)
        most = float(np.abs(left[active]).max() if active else np.abs(left).max(initial=0.0))
        if most <= max(level, smallest):
            break
        if not active:
            active.append(int(np.argmax(np.abs(left))))
            continue
        signs = np.sign(left[active])
        inside = covariance[np.ix_(active, active)]
        w = _without_path(inside, signs, ridge)
        a = covariance[:, active] @ w
        a[active] += ridge * w
        step, entering = most - level, None
        if inactive.size:
            with np.errstate(divide="ignore", invalid="ignore"):
                ways = np.stack(
                    [
                        (most - left[inactive]) / (1.0 - a[inactive]),
                        (most + left[inactive]) / (1.0 + a[inactive]),
                    ]
                )
            ways[~(ways > -1e-12 * most)] = np.inf  # ties enter by steps of length 0
            first = int(np.argmin(ways.min(axis=0)))
            if ways[:, first].min() < step:
                step, entering = max(float(ways[:, first].min()), 0.0), int(inactive[first])
        with np.errstate(divide="ignore", invalid="ignore"):
            crossing = -b[active] / w
        crossing[~(crossing > 1e-12 * most)] = np.inf
        leaving = int(np.argmin(crossing))
        dropped = crossing[leaving] < step
        step = float(crossing[leaving]) if dropped else step
        b[active] += step * w
        left -= step * a
        left_out = [active.pop(leaving)] if dropped else []
        if dropped:
            b[left_out] = 0.0
        elif entering is None or len(active) >= count:
            break
        else:
            active.append(entering)
    return b


def _without_path(covariance: Array, image: Array, ridge: float) -> Array:
    """(S + ridge)^-1 image. Raises InvalidInputError where S leaves it open."""
    try:
        whole = covariance + ridge * np.eye(len(image))
        return np.asarray(scipy.linalg.solve(whole, image, assume_a="pos"))
    except np.linalg.LinAlgError:
        raise InvalidInputError(
            f"{len(image)} features of one component depend on each other, and "
            f"ridge={ridge:g} leaves their loadings open; give a larger ridge, or a smaller "
            "n_nonzero"
        ) from None


def directions(images: Array) -> tuple[Array, Array]:
    """(A, M): the orthonormal A nearest to S B, and M (k, k) with A = S B M."""
    left, values, right = np.linalg.svd(images, full_matrices=False)
    live = values > 1e-14 * values.max(initial=0.0)
    inverse = np.divide(1.0, values, out=np.zeros_like(values), where=live)
    return left @ right, (right.T * inverse) @ right


def unit_columns(b: Array) -> Array:
    """Columns of length 1; those of zeros stay."""
    lengths = np.linalg.norm(b, axis=0)
    return b / np.where(lengths > 0, lengths, 1.0)


def adjusted_variances(inner: Array) -> Array:
    """(k,) variance of each score beyond those before it, from B'SB.

    Source: Zou, Hastie and Tibshirani 2006, section 3.4.
    """
    found, left = np.zeros(len(inner)), np.array(inner, dtype=np.float64)
    floor = 1e-12 * np.diagonal(left).max(initial=0.0)
    for i in range(len(inner)):
        found[i] = max(left[i, i], 0.0)
        if left[i, i] > floor:
            column = left[:, i] / left[i, i]
            left = left - np.outer(column, left[i])
    return found


@dataclass
class Trace:
    """The course of an alternation, and when it ends.

    tol : change of a loading, of columns of length 1, up to which they are still.
    objective, changes : one for each look at S B.
    """

    tol: float
    objective: list[float] = field(default_factory=list)
    changes: list[float] = field(default_factory=list)
    before: Array | None = None
    still: bool = False

    def look(self, b: Array, objective: float) -> bool:
        """Whether loadings are where they were: within tol, and with the same zeros."""
        now = unit_columns(b)
        change = np.inf
        if self.before is not None:
            change = float(np.abs(now - self.before).max(initial=0.0))
            self.still = change <= self.tol and np.array_equal(now != 0, self.before != 0)
        self.before = now
        self.objective.append(objective)
        self.changes.append(change)
        return self.still
