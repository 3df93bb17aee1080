"""An estimate U V' of low rank, known by U'U and V: its singular form, and how far it moved."""

from __future__ import annotations

import numpy as np

from streampca.kernels import Array

LEAST = 1e-6  # of the first singular value: what a direction counts at least in balanced factors


def singular_form(gram: Array, v: Array) -> tuple[Array, Array, Array]:
    """(values (r,) descending, vectors (m, r) orthonormal, turn (r, r)) of U V'.

    gram : (r, r) U'U.  v : (m, r).  U V' = (U turn) vectors', and the columns of U turn are
    orthogonal with norms ``values``. Values are resolved to about 1e-8 of the largest.
    """
    q, upper = np.linalg.qr(np.asarray(v, np.float64))
    spread, e = np.linalg.eigh(gram)
    root = np.sqrt(np.maximum(spread, 0.0))[:, None] * e.T
    _, values, right = np.linalg.svd(root @ upper.T)
    return values, q @ right.T, upper.T @ right.T


def balanced(values: Array, vectors: Array) -> Array:
    """(m, r) V S^(1/2): with it, ridge (|U|^2 + |V|^2) / 2 is ridge times the nuclear norm."""
    floor = LEAST * float(values[0]) if len(values) and values[0] > 0 else 1.0
    return np.asarray(vectors * np.sqrt(np.maximum(values, floor)))


def relative_change(gram: Array, before: Array, after: Array) -> float:
    """|U (after - before)'| / |U after'| in the Frobenius norm; 0 where both are 0."""
    difference = after - before
    moved = float(np.sum((difference @ gram) * difference))
    size = float(np.sum((after @ gram) * after))
    return float(np.sqrt(max(moved, 0.0) / size)) if size > 0 else float(moved > 0)


def change_of_both(old: tuple[Array, Array], new: tuple[Array, Array], cross: Array) -> float:
    """|U_new V_new' - U_old V_old'| / |U_new V_new'| from (U'U, V) of both and U_old'U_new.

    The squares of two estimates are subtracted: changes below 1e-8 come out as noise.
    """
    (old_gram, old_v), (new_gram, new_v) = old, new
    size = float(np.sum((new_v @ new_gram) * new_v))
    before = float(np.sum((old_v @ old_gram) * old_v))
    joint = float(np.sum((old_v @ cross) * new_v))
    moved = max(size + before - 2.0 * joint, 0.0)
    return float(np.sqrt(moved / size)) if size > 0 else float(moved > 0)
