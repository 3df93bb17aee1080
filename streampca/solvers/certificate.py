"""How far each returned component can be from the true one."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from streampca.kernels import Array
from streampca.solvers.spectrum import Spectrum


@dataclass(frozen=True)
class Certificate:
    """Bounds for every component, in units of explained variance and radians.

    residual : (k,) ||C v - value v|| for the accumulated covariance C.
    floor : what the arithmetic of the pass leaves uncertain in C (its spectral norm).
    variance_bound : (k,) on the error of explained_variance: residual + floor, or its square
        over the gap where that is smaller (never under the floor).
    gap : (k,) distance to the nearest other eigenvalue that is known.
    angle_bound : (k,) on the angle between the component and the true one; pi/2 where nothing
        can be said (a cluster of equal values).

    An exact solver sees all directions, so nothing can be missed; the floor is a statistical
    estimate of rounding (errors of many sums add up as their square root), not a worst case.
    Source: Parlett 1998, "The Symmetric Eigenvalue Problem", theorems 11.7.1 and 11.7.2.
    """

    residual: Array
    floor: float
    variance_bound: Array
    gap: Array
    angle_bound: Array
    passes: int = 1

    def to_dict(self) -> dict[str, Any]:
        """JSON-ready form."""
        return {
            "residual": self.residual.tolist(),
            "floor": self.floor,
            "variance_bound": self.variance_bound.tolist(),
            "gap": self.gap.tolist(),
            "angle_bound": self.angle_bound.tolist(),
            "passes": self.passes,
        }

    @classmethod
    def from_dict(cls, saved: Mapping[str, Any]) -> Certificate:
        """The inverse of ``to_dict``."""
        arrays = {
            k: np.asarray(saved[k]) for k in ("residual", "variance_bound", "gap", "angle_bound")
        }
        return cls(floor=float(saved["floor"]), passes=int(saved["passes"]), **arrays)


def certify(
    residual: Array, spectrum: Spectrum, floor: float, divisor: float, passes: int, rank: int
) -> Certificate:
    """A certificate from residual norms and the floor, both in units of the spectrum.

    divisor : n - ddof, which turns them into units of variance.
    rank : components after it are rounding, or filler: nothing is said about their direction.
    """
    values = spectrum.values
    error = residual + floor
    below = np.append(values[1:], spectrum.next_value)
    above = np.concatenate([[np.inf], values[:-1]])
    gap = np.minimum(above - values, values - below)
    with np.errstate(divide="ignore", invalid="ignore"):
        angle = np.where(gap > 2 * error, np.arcsin(np.minimum(1.0, 2 * error / gap)), np.pi / 2)
        quadratic = np.where(gap > 2 * error, residual**2 / gap, np.inf)
    angle[rank:] = np.pi / 2
    bound = np.minimum(residual, quadratic) + floor
    return Certificate(
        residual / divisor, floor / divisor, bound / divisor, gap / divisor, angle, passes
    )


def residual_norms(lower: Array, spectrum: Spectrum, step: int = 256) -> Array:
    """(k,) ||S v - value v|| for a symmetric S given by its lower triangle, in float64."""
    v = spectrum.vectors
    product = np.zeros_like(v)
    for i in range(0, len(lower), step):
        j = min(i + step, len(lower))
        corner = np.tril(lower[i:j, i:j])
        product[i:j] += lower[i:j, :i] @ v[:i] + (corner + np.tril(corner, -1).T) @ v[i:j]
        product[:i] += lower[i:j, :i].T @ v[i:j]
    return np.linalg.norm(product - v * spectrum.values, axis=0)


def rounding_floor(work: np.dtype[Any], spectrum: Spectrum, terms: int) -> float:
    """Spectral norm of the rounding that summing outer products in ``work`` leaves.

    terms : outer products added in ``work`` before they are folded into float64 (one span).
    Each entry carries about eps sqrt(terms / 256) of its column norms (BLAS sums 256 terms in
    registers before it rounds to memory); the errors are independent, so their matrix has a
    norm that grows with the square root of trace times the largest value.
    """
    eps = float(np.finfo(work).eps)
    growth = 1.0 + np.sqrt(max(terms, 1) / 256.0) / 4.0
    return (
        eps * growth * float(np.sqrt(spectrum.total * max(spectrum.values[:1].max(initial=0), 0)))
    )
