"""A design projected out of a PCA: its columns join the matrix in the pass, eliminated later."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TypeVar

import numpy as np
import scipy

from streampca.accumulators import RFactor, Scatter
from streampca.kernels import Array, ColumnStats, symmetrize
from streampca.matrix import ChunkedMatrix, concat_features
from streampca.sources import as_matrix

ROWS_AT_ONCE = 256
EXPLAINED = 64 * float(np.finfo(np.float64).eps)  # of a variance: less is rounding
Joint = TypeVar("Joint", Scatter, RFactor)


def with_design_columns(matrix: ChunkedMatrix, basis: Array) -> ChunkedMatrix:
    """[basis, X]: the columns of the design first, in float64.

    (In float32 the rounding of sums of what the design explains is left among the residuals, and
    it is not random there: rows of one level are nearly equal, and round alike.)

    What is accumulated of it holds all that is needed to project them out afterwards: the
    scatter of the residuals is a Schur complement, their R factor the trailing corner.
    """
    return concat_features(as_matrix(np.ascontiguousarray(basis)), matrix)


def residual_stats(columns: ColumnStats, slopes: Array, eps: float) -> ColumnStats:
    """Column statistics without what a basis explains; the means are unchanged.

    slopes : (r, p) coefficients of the orthonormal basis.  eps : resolution of the stored values.
    A column that the basis explains to rounding becomes constant.
    """
    m2 = np.maximum(columns.m2 - np.sum(slopes**2, axis=0), 0.0)
    stored = (0.5 * eps) ** 2 * (columns.m2 + columns.weight * columns.mean**2)
    m2[m2 <= np.maximum(stored, EXPLAINED * columns.m2)] = 0.0
    return replace(columns, m2=m2)


@dataclass
class Removed:
    """The part of a matrix that a design explains.

    coefficients : (r, p).  explained : (r, p) with explained'explained the scatter taken away.
    """

    coefficients: Array
    explained: Array


def scatter_without(joint: Scatter, r: int) -> tuple[Scatter, Removed]:
    """The scatter of the residuals of all but the first r columns on those.

    joint : of [design, X]. A column that the design explains to rounding becomes 0.
    Cost: p^2 r flops and p^2 float64.
    Source: Frisch and Waugh 1933; Golub and Van Loan 2013, section 3.2.11 (Schur complement).
    """
    lower = joint.lower()
    p = len(lower) - r
    corner, cross = symmetrize(lower[:r, :r]), lower[r:, :r]
    factor = np.linalg.cholesky(corner)
    explained = scipy.linalg.solve_triangular(factor, cross.T, lower=True)
    s = np.empty((p, p))
    for i in range(0, p, ROWS_AT_ONCE):
        rows = slice(i, min(i + ROWS_AT_ONCE, p))
        s[rows] = lower[r:][rows, r:]
        s[rows, : rows.stop] -= explained[:, rows].T @ explained[:, : rows.stop]
    before = np.diagonal(lower)[r:]
    gone = np.flatnonzero(np.diagonal(s) <= EXPLAINED * before)
    s[gone] = 0.0
    s[:, gone] = 0.0
    made = _like(joint, Scatter(), r)
    made.s, made.slack = s, joint.slack
    coefficients = scipy.linalg.solve_triangular(factor, explained, lower=True, trans="T")
    return made, _about_means(made, joint, coefficients, explained)


def factor_without(joint: RFactor, r: int) -> tuple[RFactor, Removed]:
    """The R factor of the residuals of all but the first r columns on those.

    A column that the design explains to rounding becomes 0. Source: as ``scatter_without``.
    """
    whole = joint.r_factor()
    trailing = np.array(whole[r:, r:], order="F")
    rounding = 16.0 * float(np.finfo(np.float64).eps)
    before = np.linalg.norm(whole[:, r:], axis=0)
    trailing[:, np.linalg.norm(trailing, axis=0) <= rounding * before] = 0.0
    made = _like(joint, RFactor(), r)
    made.r = trailing
    explained = whole[:r, r:]
    coefficients = scipy.linalg.solve_triangular(whole[:r, :r], explained)
    return made, _about_means(made, joint, coefficients, explained)


def _like(joint: Joint, made: Joint, r: int) -> Joint:
    """``made`` with the counts and means of all but the first r columns of ``joint``."""
    made.count, made.weight = joint.count, joint.weight
    made.mean, made.mean_low = joint.mean[r:].copy(), joint.mean_low[r:].copy()
    made.missing = joint.missing[r:].copy()
    return made


def _about_means(made: Joint, joint: Joint, coefficients: Array, explained: Array) -> Removed:
    """Move the rounding of the basis, whose columns should sum to 0, into the means."""
    r = len(coefficients)
    made.mean = made.mean - joint.mean[:r] @ coefficients
    return Removed(coefficients, explained)
