"""Components of resampled rows, exactly, from the scores of the rows alone.

Where n x r scores span the rows, a resample is scores times the same r components. Its covariance
is V' C V for the weighted covariance C of the scores, (r, r), and its components are those of C
times V. No row is read again, and nothing has the length of a row.

Source: Fisher, Caffo, Schwartz and Zipunnikov 2016, "Fast, Exact Bootstrap Principal Component
Analysis for p > 1 Million", J. Am. Stat. Assoc. 111, 846, section 3.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

import numpy as np
import scipy

from streampca.kernels import Array, reciprocal

MATCHES = ("order", "sign", "procrustes")
SURE = np.sqrt(0.5)  # cosines above it on the diagonal are the best assignment


@dataclass(frozen=True)
class Units:
    """What is drawn: rows, groups of rows, or blocks of consecutive rows.

    n : rows.  groups : (n,) numbers from 0.  block : the length of blocks, which begin at any row;
    the first row follows the last, so that every row is in as many blocks.
    """

    n: int
    groups: Array | None = None
    block: int = 1

    @property
    def count(self) -> int:
        """Different units."""
        return self.n if self.groups is None else int(self.groups.max()) + 1

    @property
    def drawn(self) -> int:
        """Units of a resample."""
        return -(-self.n // self.block) if self.groups is None else self.count

    def counts(self, seed: int, number: int) -> Array:
        """(count,) how often a resample draws each unit. Depends on its number and the seed."""
        rng = np.random.default_rng([seed, number])
        drawn = rng.integers(0, self.count, self.drawn)
        return np.bincount(drawn, minlength=self.count).astype(np.float64)

    def weights(self, counts: Array) -> Array:
        """(n,) how often each row counts."""
        if self.groups is not None:
            return np.asarray(counts[self.groups])
        return counts if self.block == 1 else _windows(counts[::-1], self.block)[::-1]

    def sums(self, values: Array) -> Array:
        """(count, k) sums over the rows of each unit.  values : (n, k)."""
        if self.groups is not None:
            columns = (np.bincount(self.groups, column) for column in values.T)
            return np.stack([*columns], axis=1)
        return values if self.block == 1 else _windows(values, self.block)


def _windows(values: Array, length: int) -> Array:
    """Sums of so many consecutive values from each one on, around the end."""
    sums = np.cumsum(np.concatenate([values[:1] * 0, values, values[: length - 1]]), axis=0)
    return np.asarray(sums[length:] - sums[:-length])


class Resampled(NamedTuple):
    """variances, shares : (k,).  turns : (k, r) its components in those of the sample.
    on_scores : (k, r + 1), which times (scores of the sample, 1) are the scores on them.
    total : of all variances.  cosine : of the largest angle between the leading k components and
    those of the sample.  mean : (r,) that was subtracted."""

    variances: Array
    shares: Array
    turns: Array
    on_scores: Array
    total: float
    cosine: float
    mean: Array


@dataclass(frozen=True)
class ScoreSpace:
    """Scores of rows, and how components of a weighted sample of them are made.

    scores : (n, r) float64 on the components of the sample.  k : components that are wanted.
    rest : variance of the directions without scores; it counts in the total, as it is.
    centred : whether the mean of a sample is subtracted.  ddof : of its variances.
    match : "order", of the leading 2 k those that the components of the sample are most like (the
        assignment with the largest sum of absolute cosines); "sign", by variance; "procrustes",
        the leading k rotated onto those of the sample. All have the signs of the sample.
    axes : (r, r) the components, if columns are divided by their deviations in each sample anew.
    """

    scores: Array
    k: int
    rest: float
    centred: bool
    ddof: float
    match: str = "order"
    axes: Array | None = None

    def under(self, weights: Array) -> Resampled:
        """The components of the rows, each counted ``weights`` times, (n,).

        Cost: 2 n r^2 + 10 r^3 flops, n r memory.
        """
        number = float(weights.sum())
        mean = weights @ self.scores / number if self.centred else np.zeros(self.scores.shape[1])
        scatter = (self.scores * weights[:, None]).T @ self.scores
        scatter -= number * np.outer(mean, mean)
        covariance = scatter / max(number - self.ddof, 1.0)
        if self.axes is None:
            return self._found(covariance, mean, np.ones(len(mean)))
        times = np.sqrt(self._column_variances * reciprocal(_quadratic(covariance, self.axes)))
        scaling = (self.axes * times) @ self.axes.T
        return self._found(scaling @ covariance @ scaling, mean, scaling)

    def of_covariance(self, covariance: Array, roots: Array) -> Resampled:
        """Those of a covariance (r, r), in its terms; of some of the features, of unit vectors of
        the rows.  roots : (r,) by which these are smaller than scores.
        """
        found = self._found(covariance, np.zeros(len(covariance)), reciprocal(roots))
        return found._replace(on_scores=found.on_scores * roots[: self.k, None])

    def _found(self, covariance: Array, mean: Array, scaling: Array) -> Resampled:
        """scaling : of the scores, (r,) or (r, r) symmetric."""
        values, vectors = np.linalg.eigh(covariance)
        values, vectors = np.maximum(values[::-1], 0.0), vectors[:, ::-1]
        total = float(values.sum()) + self.rest
        cosine = float(np.linalg.svd(vectors[: self.k, : self.k], compute_uv=False)[-1])
        variances, turns = matched(values, vectors, self.k, self.match)
        on_scores = turns * scaling if scaling.ndim == 1 else turns @ scaling
        on_scores = np.column_stack([on_scores, -(on_scores @ mean)])
        shares = variances / (total or 1.0)
        return Resampled(variances, shares, turns, on_scores, total, min(cosine, 1.0), mean)

    @cached_property
    def _column_variances(self) -> Array:
        """(r,) of the columns of the sample, which each sample gets by its own divisors."""
        assert self.axes is not None
        covariance = self.scores.T @ self.scores / max(len(self.scores) - self.ddof, 1.0)
        return _quadratic(covariance, self.axes)

    def influences(self, of: Resampled, weights: Array, units: Units) -> tuple[Array, Array]:
        """(count, k) twice: the derivatives of the logarithms of variances and of shares by the
        weight of each unit, times the number of rows.

        of : the components with these weights, (n,).
        Source: Critchley 1985, "Influence in principal components analysis", Biometrika 72, 627,
        sections 3 (covariances) and 4 (correlations, whose total is constant).
        """
        change = self.scores @ of.on_scores[:, :-1].T
        change += of.on_scores[:, -1]
        change *= change
        with np.errstate(over="ignore"):
            change /= np.maximum(of.variances, np.finfo(np.float64).tiny)
        if self.axes is not None:
            columns = ((self.scores - of.mean) @ self.axes) ** 2
            columns *= max(float(weights.sum()) - self.ddof, 1.0) * reciprocal(weights @ columns)
            both = units.sums(change - columns @ ((of.turns @ self.axes) ** 2).T)
            return both, both
        of_total = self._row_squares - 2.0 * (self.scores @ of.mean) + of.mean @ of.mean + self.rest
        of_shares = change - (of_total / (of.total or 1.0))[:, None]
        change -= 1.0
        return units.sums(change), units.sums(of_shares)

    @cached_property
    def _row_squares(self) -> Array:
        """(n,) of the scores of each row."""
        return np.asarray(np.einsum("ij,ij->i", self.scores, self.scores))


def _quadratic(matrix: Array, vectors: Array) -> Array:
    """(q,) v'Av of the columns v of vectors, (r, q)."""
    return np.asarray(np.einsum("rq,rq->q", matrix @ vectors, vectors))


def matched(values: Array, vectors: Array, k: int, match: str) -> tuple[Array, Array]:
    """(k,) variances and (k, r) components, by :class:`ScoreSpace`.  vectors : (r, r) columns."""
    if match == "procrustes":
        left, _, right = np.linalg.svd(vectors[:k, :k])
        turn = left @ right
        turned = turn @ vectors[:, :k].T
        return np.asarray((turn**2) @ values[:k]), turned
    order = np.arange(k)
    if match == "order" and np.abs(np.diagonal(vectors)[:k]).min() < SURE:
        leading = vectors[
            :k, : 2 * k
        ]  # not those without variance, of which a wide sample has many
        order = scipy.optimize.linear_sum_assignment(-np.abs(leading))[1]
    turns = vectors[:, order].T
    turns = turns * np.where(turns[np.arange(k), np.arange(k)] < 0, -1.0, 1.0)[:, None]
    return values[order], turns
