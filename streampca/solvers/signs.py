"""The one sign rule: a component v points so that v'h > 0, for a fixed pseudo-random h.

Every path knows v'h after its first pass: directly where it has v, and as u'(Zh) / s where it
has only the other side (Z v = s u). So signs do not change when loadings arrive later.
"""

from __future__ import annotations

import numpy as np

from streampca.kernels import Array, probe


def signs_of_components(vectors: Array) -> Array:
    """(k,) of +1 and -1 for the columns of vectors (p, k)."""
    return signs(vectors.T @ probe(0, len(vectors)))


def signs(projections: Array) -> Array:
    """(k,) of +1 and -1 from v'h; 0 counts as positive."""
    return np.where(projections < 0, -1.0, 1.0)
