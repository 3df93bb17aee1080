"""Designs to project out of the samples: seasonal cycles, trends, batches, covariates."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Self

import numpy as np

from streampca.errors import InvalidInputError
from streampca.kernels import Array
from streampca.matrix import AxisLabels
from streampca.models.design_terms import Term, arrays_among, columns_of, terms_of
from streampca.models.named_columns import Find, with_columns

COLLINEAR = 1e-10  # of the largest singular value of the scaled columns
ESTIMABLE = 1e-6  # of the length of a row


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
        deviations = columns - mean
        norm = np.sqrt(w @ deviations**2)
        norm[norm <= 1e-14 * np.sqrt(w.sum()) * np.abs(columns).max(axis=0, initial=0.0)] = 0.0
        safe = np.where(norm > 0, norm, 1.0)
        unit = np.where(norm > 0, deviations / safe, 0.0)
        _, s, vt = np.linalg.svd(np.sqrt(w)[:, None] * unit, full_matrices=False)
        rank = int(np.count_nonzero(s > COLLINEAR * s.max(initial=0.0)))
        turn = np.where(norm > 0, 1.0 / safe, 0.0)[:, None] * (vt[:rank].T / s[:rank])
        basis = deviations @ turn  # orthonormal but for rounding times the condition: once more
        gram = (w[:, None] * basis).T @ basis
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
            coordinate. Raises InvalidInputError where an array is absent, or where a row cannot
            be told from the samples of the fit (a month that had none).
        find : columns of those samples by name, for those that had one in the fit.
        """
        if find is not None:
            remove = with_columns(remove, find, len(samples))
        columns = columns_of(self.terms, samples, arrays_among(remove), find)
        deviations = columns - self.mean
        safe = np.where(self.norm > 0, self.norm, 1.0)
        unit = deviations / safe
        directions = self.turn * safe[:, None]
        directions /= np.maximum(np.linalg.norm(directions, axis=0), 1e-300)
        beside = np.linalg.norm(unit - unit @ directions @ directions.T, axis=1)
        strange = np.flatnonzero(beside > ESTIMABLE * (1.0 + np.linalg.norm(unit, axis=1)))
        if strange.size:
            raise InvalidInputError(
                f"what to remove from {samples.name(int(strange[0]))} (and {strange.size - 1} "
                "others) does not follow from the samples of the fit: a month, level or "
                "combination of covariates that it never saw. Leave them out, fit with them, or "
                "use remove=False for anomalies"
            )
        return self._basis(deviations)

    def _basis(self, deviations: Array) -> Array:
        return np.ascontiguousarray(deviations @ self.turn)

    # -- at rest ------------------------------------------------------------------------------

    def arrays(self) -> dict[str, Array]:
        """The arrays, for a bundle."""
        return {"design-mean": self.mean, "design-norm": self.norm, "design-turn": self.turn}

    def to_dict(self) -> list[dict[str, Any]]:
        """The terms, JSON-ready."""
        return [term.to_dict() for term in self.terms]

    @classmethod
    def from_saved(cls, saved: Sequence[Mapping[str, Any]], arrays: dict[str, Array]) -> Self:
        """The inverse of both; takes its arrays out of ``arrays``."""
        numbers = [arrays.pop(f"design-{name}") for name in ("mean", "norm", "turn")]
        return cls(tuple(Term.from_dict(one) for one in saved), *numbers)
