"""Scores of samples from sums over their observed variants: a least-squares system for each."""

from __future__ import annotations

import warnings
from dataclasses import dataclass

import numpy as np

from streampca.errors import InvalidInputError, shorten
from streampca.kernels import Array
from streampca.matrix import AxisLabels
from streampca.models.genotypes.sums import SumsLayout
from streampca.solvers.shrinkage import oadp_scores

LEAST_SHARE = 1e-3  # of its squared loadings that every direction of the components must show
SOLVE_NBYTES = 32 << 20  # of the small systems that are solved together


class LowCoverageWarning(UserWarning):
    """Some samples show too few of the model's variants and got no scores."""


@dataclass
class SampleScores:
    """Scores before they are refused, and what they rest on."""

    scores: Array  # (n, k)
    coverage: Array  # (n,)
    seen: Array | None  # (n, k) share of the squared loadings observed
    residual: Array  # (n,) norm of what the components leave, all variants of the fit
    good: Array  # (n,)

    def unshrink(self, singular_values: Array) -> None:
        """Undo the shrinkage of samples that were not in the fit; singular values (k,) of it."""
        scores = np.where(self.good[:, None], self.scores, 0.0)
        self.scores = oadp_scores(singular_values, scores, np.where(self.good, self.residual, 0.0))

    def refuse(self, samples: AxisLabels, min_coverage: float) -> None:
        """NaN where too little is observed. Raises InvalidInputError if that is everywhere."""
        bad = np.flatnonzero(~self.good)
        if not bad.size:
            return
        self.scores[bad] = np.nan
        names = shorten([f"{samples.name(int(i))}: {self.coverage[i]:.1%}" for i in bad[:4]],
                        bad.size)  # fmt: skip
        message = (
            f"{bad.size} of {len(self.good)} samples show too few of the model's variants "
            f"({names}); min_coverage={min_coverage:g}"
        )
        if bad.size == len(self.good):
            raise InvalidInputError(f"{message}. A lower min_coverage= accepts less.")
        warnings.warn(f"{message}. Their scores are NaN.", LowCoverageWarning, stacklevel=3)


def solve_scores(
    sums: Array,
    layout: SumsLayout,
    loadings: Array,
    n_matched: int,
    n_used: int,
    min_coverage: float,
) -> SampleScores:
    """Scores from the sums over the variants that were looked for.

    sums : (n, layout.width), see :class:`SumsLayout`.  loadings : (m, k), 0 for variants of no use.
    n_matched : variants that were found.  n_used : that the fit used.

    Cost: with ``layout.gram`` n systems of k equations, SOLVE_NBYTES of them at a time.
    """
    n, k = len(sums), layout.k
    projected, observed = sums[:, :k], n_matched - sums[:, k + 1]
    coverage = observed / n_used
    good = (coverage >= min_coverage) & (observed > 0)
    if not layout.gram:
        residual = _norms(sums[:, k], projected, projected)
        return SampleScores(np.array(projected), coverage, None, residual, good)
    present = loadings.T @ loadings
    scores, seen = np.empty((n, k)), np.empty((n, k))
    step = max(1, SOLVE_NBYTES // (8 * 6 * k * k))
    for start in range(0, n, step):
        rows = slice(start, start + step)
        gram = _without(present, sums[rows, k + 2 :])
        seen[rows] = np.diagonal(gram, axis1=1, axis2=2)
        good[rows] &= np.linalg.eigvalsh(gram)[:, 0] >= LEAST_SHARE
        gram[~good[rows]] = np.eye(k)
        scores[rows] = np.linalg.solve(gram, projected[rows, :, None])[:, :, 0]
    residual = _norms(sums[:, k], scores, projected)
    residual *= np.sqrt(n_used / np.maximum(observed, 1.0))
    return SampleScores(scores, coverage, seen, residual, good)


def _without(present: Array, lost: Array) -> Array:
    """(rows, k, k) V_o'V_o: that of all variants found, less what each sample lacks."""
    rows, columns = np.triu_indices(len(present))
    gram = np.broadcast_to(present, (len(lost), *present.shape)).copy()
    gram[:, rows, columns] -= lost
    gram[:, columns, rows] = gram[:, rows, columns]
    return gram


def _norms(squares: Array, scores: Array, projected: Array) -> Array:
    """(n,) ||z - V s|| over the observed variants, where V'V s = V'z."""
    return np.asarray(np.sqrt(np.maximum(squares - np.einsum("ij,ij->i", scores, projected), 0.0)))
