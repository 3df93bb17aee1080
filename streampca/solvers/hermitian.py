"""Eigenpairs of complex Hermitian matrices, in the terms of those of real ones."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import scipy

from streampca.errors import RESCALE, NonFiniteError
from streampca.kernels import Array
from streampca.solvers.spectrum import LARGEST, Spectrum, known_count


def eigh_hermitian(h: Array, k: int | None = None) -> Spectrum:
    """Eigenpairs of a Hermitian positive semidefinite matrix (m, m) complex128; k, or all.

    Cost: 16/3 m^3 real flops for a few pairs and 40 m^2 bytes; three times both for all of them.
    Raises NonFiniteError where the sums overflowed.
    Source: LAPACK's zheevr (subset) and zheevd (all).
    """
    m = len(h)
    if not np.diagonal(h).real.max(initial=0.0) <= LARGEST:  # nor is NaN
        raise NonFiniteError(f"sums of squares overflowed the working precision; {RESCALE}")
    count = m if k is None else min(k + 1, m)
    some: dict[str, Any] = {"driver": "evd"}
    if count < m:
        some = {"driver": "evr", "subset_by_index": (m - count, m - 1)}
    values, vectors = scipy.linalg.eigh(h, check_finite=False, **some)
    values = np.maximum(values[::-1], 0.0)
    vectors = np.ascontiguousarray(vectors[:, ::-1])
    total, squares = float(np.trace(h).real), float(np.linalg.norm(h)) ** 2
    cubes = 0.0 if count >= m else math.nan
    whole = Spectrum(values, vectors, 0.0, total, squares, cubes)
    return whole if k is None else whole.head(k)


def solve_hermitian(h: Array, wanted: Any, limit: int) -> tuple[Spectrum, Array, bool]:
    """(leading eigenpairs, known eigenvalues, whether those are all of them).

    wanted : the number of components, or what it follows from.  limit : the most there are.
    """
    k = known_count(wanted, limit, limit)
    if k is None or k >= len(h):
        spectrum = eigh_hermitian(h)
        return spectrum, spectrum.values, True
    spectrum = eigh_hermitian(h, max(k, 1))
    return spectrum, np.append(spectrum.values, spectrum.next_value), k + 1 >= len(h)


def hermitian_residuals(h: Array, spectrum: Spectrum) -> Array:
    """(k,) ||h v - value v||."""
    v = spectrum.vectors
    return np.asarray(np.linalg.norm(h @ v - v * spectrum.values, axis=0))
