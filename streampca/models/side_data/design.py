"""Designs to project out of the samples: seasonal cycles, trends, batches, covariates.

First what a design is, then how a pass with its columns becomes the sums without them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Self, TypeVar

import numpy as np
import scipy

from streampca.accumulators import RFactor, Scatter
from streampca.errors import InvalidInputError
from streampca.kernels import Array, ColumnStats, symmetrize
from streampca.matrix import AxisLabels, ChunkedMatrix, concat_features
from streampca.models.side_data.by_name import Find, with_columns
from streampca.models.side_data.design_terms import Term, arrays_among, columns_of, terms_of
from streampca.sources import as_matrix
from streampca.store import check_fields, check_shapes

WIDE = 64  # columns beyond which rows are taken in pieces: a copy of all would weigh
PIECE_ROWS = 4096
COLLINEAR = 1e-10  # of the largest singular value of the scaled columns
ESTIMABLE = 1e-6  # of the length of a row


def _pieces(n: int, columns: int) -> list[slice]:
    """The rows of a design, all at once unless it is wide."""
    if columns <= WIDE:
        return [slice(0, n)]
    return [slice(i, i + PIECE_ROWS) for i in range(0, n, PIECE_ROWS)]


def _r_factor(rows: Array) -> Array:
    return np.asarray(np.linalg.qr(rows, mode="r"))


@dataclass(frozen=True)
class Design:
    """Columns that are projected out, and how to make them for other samples.

    Before they are used the columns (n, c) are centred by ``mean`` and turned: the basis
    (columns - mean) @ turn, (n, r), has columns that sum to 0 and are orthonormal under the sample
    weights; r is the rank, so that a month without samples or covariates that repeat each other
    cost nothing.

    terms : what the columns are.  mean, norm : (c,) of the columns.  turn : (c, r).
    """

    terms: tuple[Term, ...]
    mean: Array
    norm: Array
    turn: Array

    @classmethod
    def fit(cls, remove: Any, samples: AxisLabels, weights: Array | None) -> tuple[Self, Array]:
        """(the design of ``remove`` for these samples, its basis (n, r)).

        weights : (n,) or None. Raises InvalidInputError.
        """
        terms, columns = terms_of(remove, samples)
        w = np.ones(len(columns)) if weights is None else weights
        mean = w @ columns / w.sum()
        largest = np.maximum(columns.max(axis=0, initial=0.0), -columns.min(axis=0, initial=0.0))
        columns -= mean  # in place: a cycle of 366 days is larger than many matrices
        deviations = columns
        pieces = _pieces(*columns.shape)
        norm = np.sqrt(sum(w[i] @ deviations[i] ** 2 for i in pieces))
        norm[norm <= 1e-14 * np.sqrt(w.sum()) * largest] = 0.0
        safe = np.where(norm > 0, norm, 1.0)
        unit = np.zeros((0, len(norm)))
        for i in pieces:
            piece = deviations[i] / safe
            piece[:, norm == 0] = 0.0
            piece *= np.sqrt(w[i])[:, None]
            unit = piece if len(pieces) == 1 else _r_factor(np.vstack([unit, piece]))
        _, s, vt = np.linalg.svd(unit, full_matrices=False)
        del unit, piece
        rank = int(np.count_nonzero(s > COLLINEAR * s.max(initial=0.0)))
        turn = np.where(norm > 0, 1.0 / safe, 0.0)[:, None] * (vt[:rank].T / s[:rank])
        gram = np.zeros((rank, rank))
        for i in pieces:  # orthonormal but for rounding times the condition: once more
            basis = deviations[i] @ turn
            gram += (w[i, None] * basis).T @ basis
        made = cls(terms, mean, norm, turn @ np.linalg.inv(np.linalg.cholesky(gram)).T)
        return made, made._basis(deviations)

    @property
    def rank(self) -> int:
        """r, the number of independent columns in addition to the mean."""
        return int(self.turn.shape[1])

    @property
    def names(self) -> tuple[str, ...]:
        """(c,) names of the columns."""
        return tuple(name for term in self.terms for name in term.names)

    def rows(self, samples: AxisLabels, remove: Any = None, find: Find | None = None) -> Array:
        """(n, r) the basis at other samples.

        remove : the arrays among the terms, at those samples; cycles and trends follow from the
            coordinate. Raises InvalidInputError where an array is absent, or where a row does not
            follow from the samples of the fit (a month that had none).
        find : columns of those samples by name, for those that had one in the fit.
        """
        if find is not None:
            remove = with_columns(remove, find, samples)
        columns = columns_of(self.terms, samples, arrays_among(remove), find)
        deviations = columns - self.mean
        safe = np.where(self.norm > 0, self.norm, 1.0)
        unit = deviations / safe
        directions = self.turn * safe[:, None]
        directions /= np.maximum(np.linalg.norm(directions, axis=0), 1e-300)
        outside = np.linalg.norm(unit - unit @ directions @ directions.T, axis=1)
        unknown = np.flatnonzero(outside > ESTIMABLE * (1.0 + np.linalg.norm(unit, axis=1)))
        if unknown.size:
            raise InvalidInputError(
                f"what to remove from {samples.name(int(unknown[0]))} (and {unknown.size - 1} "
                "others) does not follow from the samples of the fit: a month, level or "
                "combination of covariates that it never saw. Leave them out, fit with them, or "
                "use remove=False for anomalies"
            )
        return self._basis(deviations)

    def _basis(self, deviations: Array) -> Array:
        return np.ascontiguousarray(deviations @ self.turn)


@dataclass(frozen=True)
class Removal:
    """What a fit took out of its samples.

    coefficients : (r, p) what each column of the basis of the design adds to every feature.
    """

    design: Design
    coefficients: Array

    def __post_init__(self) -> None:
        frozen = self.coefficients.view()
        frozen.flags.writeable = False
        object.__setattr__(self, "coefficients", frozen)

    @property
    def by_column(self) -> Array:
        """(c, p) the same for each column of the design, per unit."""
        return np.asarray(self.design.turn @ self.coefficients)

    def save(self, arrays: dict[str, Array]) -> list[dict[str, Any]]:
        """The terms, JSON-ready; adds its arrays to those of a bundle."""
        design = self.design
        arrays |= {"removed": self.coefficients, "design-mean": design.mean}
        arrays |= {"design-norm": design.norm, "design-turn": design.turn}
        return [term.to_dict() for term in design.terms]

    @classmethod
    def restore(cls, saved: Sequence[Mapping[str, Any]], arrays: dict[str, Array]) -> Self:
        """The inverse; takes its arrays out of those of a bundle."""
        numbers = [arrays.pop(f"design-{name}") for name in ("mean", "norm", "turn")]
        design = Design(tuple(Term.from_dict(one) for one in saved), *numbers)
        return cls(design, arrays.pop("removed"))

    def check(self, p: int, where: str, complex_values: bool = False) -> None:
        """Check what was loaded. Raises DamagedSourceError."""
        check_fields(self, where, complex_values)
        check_shapes(self, {"coefficients": (self.design.turn.shape[1], p)}, where)


# A design projected out of a PCA: its columns join the matrix in the pass, eliminated later.

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


def basis_at(design: Design | None, matrix: ChunkedMatrix, remove: Any = None) -> Array | None:
    """(n, r) the basis of what a fit removed, at the samples of a matrix; None where nothing is.

    remove : the arrays among it, or False; columns that the fit had by name are those of the
        same name. Raises InvalidInputError.
    """
    if remove is False:
        return None
    if design is not None:
        return design.rows(matrix.labels.samples, remove, Find(matrix))
    if remove is None:
        return None
    raise InvalidInputError(
        "this fit removed nothing; fit with remove=..., or leave remove out here"
    )
