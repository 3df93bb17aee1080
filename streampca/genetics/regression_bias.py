"""What a regression on components takes from kinship, and gives back to it."""

from __future__ import annotations

import numpy as np
import scipy.sparse

from streampca.genetics.pcair import THRESHOLD
from streampca.kernels import Array, mirror_lower

ROUNDS = 3  # after the first, for unrelated samples; the third changes no digit that is printed
ROWS = 1024  # of pairs that are looked at together


def undo_regression(phi: Array, predictor: Array, basis: Array) -> None:
    """Correct kinship for the correlation of the residuals that it was computed from, in place.

    phi : (n, n) from residuals r = A g, with A = I - basis predictor'; the lower triangle is read.
    predictor, basis : (n, k + 1), as in :func:`streampca.genetics.pc_relate.ancestry_regression`.

    The products of residuals estimate A Phi A' for a kinship Phi of the samples. What A changes in
    the best known Phi is added back: at first that of unrelated samples, then with the pairs found
    so far above the threshold of PC-AiR.

    Cost: 16 n^2 (k + 1) flops; memory of the related pairs and of some rows.
    """
    n = len(phi)
    known = scipy.sparse.identity(n, format="csr") * 0.5
    for _ in range(ROUNDS):
        known = _related(phi, *_change(known, predictor, basis))
    left, right = _change(known, predictor, basis)
    for start in range(0, n, ROWS):
        rows = slice(start, min(start + ROWS, n))
        phi[rows] += left[rows] @ right
    mirror_lower(phi)


def _change(known: scipy.sparse.csr_matrix, predictor: Array, basis: Array) -> tuple[Array, Array]:
    """Two factors, (n, 2k + 2) and (2k + 2, n), of known - A known A'."""
    product = np.asarray((known.T @ predictor).T)  # predictor' known
    rest = product - (product @ predictor) @ basis.T
    return np.hstack([basis, product.T]), np.vstack([rest, basis.T])


def _related(phi: Array, left: Array, right: Array) -> scipy.sparse.csr_matrix:
    """Corrected kinship of the pairs above the threshold, 0.5 on the diagonal, 0 elsewhere."""
    first, second, values = [], [], []
    for start in range(0, len(phi), ROWS):
        stop = min(start + ROWS, len(phi))
        part = phi[start:stop, :stop] + left[start:stop] @ right[:, :stop]
        i, j = np.nonzero(np.tril(part > THRESHOLD, start - 1))
        first.append(i + start)
        second.append(j)
        values.append(part[i, j])
    i, j, found = (np.concatenate(column) for column in (first, second, values))
    lower = scipy.sparse.coo_matrix((found, (i, j)), phi.shape)
    return (lower + lower.T + scipy.sparse.identity(len(phi)) * 0.5).tocsr()
