"""Scores of new samples without the shrinkage of a plain projection."""

from __future__ import annotations

import numpy as np

from streampca.kernels import Array

CHUNK_NBYTES = 8 << 20  # of the small matrices that are decomposed together
RESOLVED = 1e-8  # of the largest singular value: directions below it are left as they are


def oadp_scores(singular_values: Array, projected: Array, residual: Array) -> Array:
    """(n, k) scores that a decomposition together with each new sample would have given.

    The components of a fit follow the noise of its own samples, so that a new one, projected on
    them, falls short. Online augmentation, decomposition and Procrustes: put the one new sample z
    below the reference U S V', decompose that, and turn (and scale) the reference's new scores
    back onto its old ones; the new sample's scores turn with them. In the basis of V and of what
    z has beside it, the augmented matrix is [S 0; c' r] with c = V'z and r = ||z - V c||; U
    drops out of all inner products, so that neither the reference samples nor its features are
    needed.

    singular_values : (k,) of the reference.  projected : (n, k) c of each new sample.
    residual : (n,) r of each.

    Not for samples of the reference itself: their plain projections already are their scores.
    Cost: two singular value decompositions of (k + 1) x (k + 1) per sample.
    Source: Zhang, Dey and Lee 2020, "Fast and robust ancestry prediction using principal
    component analysis", Bioinformatics 36:3439, section 2 (OADP).
    """
    kept = singular_values > RESOLVED * singular_values.max(initial=0.0)
    s, k = singular_values[kept], int(np.count_nonzero(kept))
    scores = np.array(projected)
    step = max(1, CHUNK_NBYTES // (8 * 5 * (k + 1) ** 2))
    for start in range(0, len(scores) if k else 0, step):
        rows = slice(start, start + step)
        scores[rows, kept] = _augmented(s, projected[rows][:, kept], residual[rows])
    return scores


def _augmented(s: Array, c: Array, r: Array) -> Array:
    k = len(s)
    matrix = np.zeros((len(c), k + 1, k + 1))
    matrix[:, np.arange(k), np.arange(k)] = s
    matrix[:, k, :k], matrix[:, k, k] = c, r
    w = np.linalg.svd(matrix)[2].transpose(0, 2, 1)[:, :, :k]
    new = matrix[:, k : k + 1, :] @ w  # its scores in the augmented decomposition, (n, 1, k)
    old = s[:, None] * w[:, :k]  # U times this: those of the reference
    left, values, right = np.linalg.svd(s[:, None] * old)
    scale = values.sum(axis=1) / np.einsum("nij,nij->n", old, old)
    turned = new @ (left @ right).transpose(0, 2, 1)
    return np.asarray(scale[:, None] * turned[:, 0])
