"""How far each returned component can be from the true one."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from streampca.kernels import CONFIDENCE, Array, lower_product, sum_error
from streampca.solvers.spectrum import Spectrum

SAFETY = 3.0  # bounds of Ritz pairs, and the floor, come out about equal to the error: tripled
FIRST_ORDER = 0.5  # the largest sine that is stated: beyond it second orders are not small
ALIKE = 18.0  # eps: about what sums of equal terms are off
MARGIN = 2.0  # residuals by which the largest value of the rest may exceed what is seen of it


@dataclass(frozen=True)
class Certificate:
    """Bounds for every component, in units of explained variance and radians.

    residual : (k,) ||C v - value v|| for the accumulated covariance C; where C v was taken for
        its vector, which is nearer, still that of v.
    floor : what the arithmetic of the pass and of the solver leaves uncertain in C: about its
        spectral norm.
    variance_bound : (k,) on the error of explained_variance: the residual, or its square over
        the gap where that is smaller, and what rounding can add to it.
    gap : (k,) distance to the nearest other eigenvalue that is known.
    angle_bound : (k,) on the angle between the component and the true one; pi/2 where nothing
        can be said (a cluster of equal values).

    An exact solver sees all directions, so nothing can be missed. What rounding of the sums does
    to each component is measured while they are made (:mod:`streampca.kernels.columns`), or
    bounded by the longest sum (:func:`sum_floor`): neither depends on how a BLAS adds.
    Source: Parlett 1998, "The Symmetric Eigenvalue Problem", theorems 11.7.1 and 11.7.2.
    """

    residual: Array
    floor: float
    variance_bound: Array
    gap: Array
    angle_bound: Array
    passes: int = 1
    beyond: float = 0.0  # the largest variance that a direction outside the searched space can have

    def to_dict(self) -> dict[str, Any]:
        """JSON-ready form."""
        return {
            "residual": self.residual.tolist(),
            "floor": self.floor,
            "variance_bound": self.variance_bound.tolist(),
            "gap": self.gap.tolist(),
            "angle_bound": self.angle_bound.tolist(),
            "passes": self.passes,
            "beyond": self.beyond,
        }

    @classmethod
    def from_dict(cls, saved: Mapping[str, Any]) -> Certificate:
        """The inverse of ``to_dict``."""
        arrays = {
            k: np.asarray(saved[k]) for k in ("residual", "variance_bound", "gap", "angle_bound")
        }
        return cls(
            floor=float(saved["floor"]),
            passes=int(saved["passes"]),
            beyond=float(saved.get("beyond", 0.0)),
            **arrays,
        )


def of_products(certificate: Certificate, spectrum: Spectrum, work: np.dtype[Any]) -> Certificate:
    """The certificate of components Z'u / s, products that are rounded in ``work``.

    Each of their entries is a sum whose terms may round alike (:data:`ALIKE`).
    """
    values = np.maximum(spectrum.values[: len(certificate.angle_bound)], 1e-300)
    share = ALIKE * float(np.finfo(work).eps) * np.sqrt(spectrum.total / values)
    return replace(certificate, angle_bound=np.minimum(certificate.angle_bound + share, np.pi / 2))


def undetermined_after(certificate: Certificate, rank: int) -> Certificate:
    """The certificate of components that are rounding, or filler, after the first ``rank``."""
    angle = certificate.angle_bound.copy()
    angle[rank:] = np.pi / 2
    return replace(certificate, angle_bound=angle)


def certify(
    residual: Array,
    spectrum: Spectrum,
    floor: float,
    divisor: float,
    passes: int,
    rank: int,
    rounding: Array | None = None,
) -> Certificate:
    """A certificate from residual norms and what rounding leaves, all in units of the spectrum.

    floor : of the solver, the same for all.  rounding : (k,) bounds of |E v| for the error E of
    the matrix that was solved; None where it is exact.
    divisor : n - ddof, which turns them into units of variance.
    rank : components after it are rounding, or filler: nothing is said about their direction.
    """
    values = spectrum.values
    rounding = np.zeros(len(values)) if rounding is None else np.array(rounding)
    rounding[rank:] = rounding.max(initial=0.0)  # there the order of the values is rounding too
    own = residual + floor + rounding
    beside = np.maximum(np.append(own[1:], own[-1:]), np.append(own[:1], own[:-1]))
    error = np.maximum(own, beside)  # the neighbours move too
    below = np.append(values[1:], spectrum.next_value)
    above = np.concatenate([[np.inf], values[:-1]])
    gap = np.minimum(above - values, values - below)
    with np.errstate(divide="ignore", invalid="ignore"):
        angle = np.where(gap > 2 * error, np.arcsin(np.minimum(1.0, 2 * error / gap)), np.pi / 2)
        quadratic = np.where(gap > 2 * error, residual * (residual / gap), np.inf)
    angle[rank:] = np.pi / 2
    bound = np.minimum(residual, quadratic) + SAFETY * floor + rounding
    level = floor + float(rounding.max(initial=0.0)) / CONFIDENCE
    return Certificate(
        residual / divisor, level / divisor, bound / divisor, gap / divisor, angle, passes
    )


def certify_ritz(
    values: Array,
    residual: Array,
    k: int,
    total: float,
    floor: float,
    divisor: float,
    passes: int,
    relative: float = 0.0,
    multiplied: Array | None = None,
    rounding: Array | None = None,
) -> Certificate:
    """A certificate for the k leading of d Ritz pairs (d,), from their residual norms.

    For every s the space is parted into the s leading Ritz vectors and all the rest, whose
    largest eigenvalue tau is at most the trace that is left, and is taken to be at most the
    largest value + residual of the Ritz pairs after s (that is the condition: no missed
    direction; start blocks have random columns for it). An eigenvector then leaves Ritz vector i
    by r_i / (value_i - tau) into the rest, and by the second-order coupling
    r_i |r| / (value_i - tau), over the gap, into the other leading ones. The best s counts.

    Of what x leaves into the rest, C, S x / value has all but 1 / (value - C) - 1 / value, the
    share |C r| / value |r|: C takes r, which no Ritz vector has a part in, to those after s by
    their residuals, and else by the least tau. To make such vectors orthogonal changes them by no
    more than the second-order coupling.

    total : trace of the whole matrix.  floor, divisor, passes, relative : as for :func:`certify`.
    multiplied : (k,) True where not Ritz vector x but S x / value is what the angle is of.
    rounding : (d,) bounds of the error of S x, which turns x towards its neighbours too.
    Source: Parlett 1998, "The Symmetric Eigenvalue Problem", theorems 11.7.1 and 11.8.1;
    Stewart and Sun 1990, "Matrix Perturbation Theory", theorem V.2.7.
    """
    unit = float(values.max(initial=0.0)) or 1.0  # squares of small numbers would vanish
    rounding = np.zeros(len(values)) if rounding is None else rounding / unit
    values, residual = values / unit, residual / unit
    total, floor, divisor = total / unit, floor / unit, divisor / unit
    left = max(total - float(np.sum(values)), 0.0)
    angle, bound, gap = np.full(k, np.pi / 2), np.full(k, left), np.zeros(k)
    rests = [_rest(values, residual, s, total) for s in range(1, len(values) + 1)]
    for s, tau in enumerate(rests, 1):
        if values[s - 1] <= tau:  # no gap here: what was found of a cluster may not be all of it
            continue
        coupling = float(np.linalg.norm(residual[:s]))
        for i in range(min(s, k)):
            apart, near = values[i] - tau, _nearest(values[:s], i)
            if apart <= 0:
                continue
            bound[i] = min(bound[i], coupling**2 / apart)
            shift, room = residual[i] * coupling / apart, near - coupling**2 / apart
            if room <= shift:
                continue
            inside = shift / room
            outside = (residual[i] + coupling * inside) / apart
            if multiplied is not None and multiplied[i]:
                taken = float(np.hypot(min(rests), np.linalg.norm(residual[s:])))
                missed = min(1.0, (min(tau, taken) + coupling**2 / apart) / values[i])
                share = _shares(values[:s], residual, i, coupling**2 / apart)
                inside = 2.0 * residual[i] * share / apart
                outside = (residual[i] * missed + coupling * inside) / apart
            sine = SAFETY * (float(np.hypot(inside, outside)) + floor / min(near, apart))
            sine += 2.0 * float(rounding[max(i - 1, 0) : i + 2].max()) / min(near, apart)
            if sine < min(np.sin(angle[i]), FIRST_ORDER):
                angle[i], gap[i] = np.arcsin(sine), min(near, apart)
            bound[i] = min(bound[i], residual[i] ** 2 / apart + shift**2 / room)
    level = floor + float(rounding[:k].max(initial=0.0)) / CONFIDENCE
    room = SAFETY * floor + rounding[:k] + relative * values[:k]
    return Certificate(
        residual[:k] / divisor,
        level / divisor,
        (np.minimum(SAFETY * bound, left) + room) / divisor,
        gap / divisor,
        angle,
        passes,
        left / divisor,
    )


def _rest(values: Array, residual: Array, s: int, total: float) -> float:
    """The largest eigenvalue that what is not among the s leading Ritz vectors may have.

    The last Ritz values stand for whatever the space happens to hold, and are no guide.
    """
    trace = max(total - float(np.sum(values[:s])), 0.0)
    if s > len(values) - max(4, len(values) // 4):
        return trace
    return min(trace, float(np.max(values[s:] + MARGIN * residual[s:])))


def _nearest(values: Array, i: int) -> float:
    """Distance of values[i] to the nearest other one; infinity where it is alone."""
    others = np.abs(np.delete(values, i) - values[i])
    return float(others.min(initial=np.inf))


def _shares(values: Array, residual: Array, i: int, less: float) -> float:
    """Norm of residuals over distances, which are ``less``, to values[i] of the other values."""
    distance = np.abs(np.delete(values, i) - values[i]) - less
    return float(np.linalg.norm(np.delete(residual[: len(values)], i) / distance))


def residual_norms(lower: Array, spectrum: Spectrum) -> Array:
    """(k,) ||S v - value v|| for a symmetric S given by its lower triangle, in float64."""
    v = spectrum.vectors
    return np.asarray(np.linalg.norm(lower_product(lower, v) - v * spectrum.values, axis=0))


def solver_floor(values: Array, m: int) -> float:
    """What small dense algebra in float64 leaves uncertain in values of vectors of length m."""
    return float(
        4.0 * float(np.finfo(np.float64).eps) * np.sqrt(m) * float(values[:1].max(initial=0.0))
    )


def sum_floor(work: np.dtype[Any], spectrum: Spectrum, terms: int) -> float:
    """A bound of |E v| where no sum was measured: errors of entries are as large as sums of so
    many equal terms can make them, and independent of each other.

    terms : outer products added in ``work`` before they are folded into float64.
    """
    largest = float(spectrum.values[:1].max(initial=0.0))
    total = max(spectrum.total, 0.0)
    return sum_error(work, terms) * float(np.sqrt(total) * np.sqrt(largest))


def rank_floor(work: np.dtype[Any], spectrum: Spectrum, terms: int, rounding: Array) -> float:
    """About the norm of what rounding of the sums left: values near it are rounding themselves.

    rounding : (k,) bounds of |E v|. What sums of larger rows left, that were removed again, is not
    counted: it is in the bounds.
    """
    level = float(rounding.max(initial=0.0)) / CONFIDENCE
    return min(level, sum_floor(work, spectrum, terms))


def coherent_rounding(work: np.dtype[Any]) -> float:
    """Relative rounding of a value whose sums have terms that agree (columns that repeat each
    other, rank one).

    BLAS adds some 256 terms one after the other; where the sum only grows, each addition rounds
    by its size so far, and the walk of roundings reaches about 18 eps.
    """
    return ALIKE * float(np.finfo(work).eps)


def entry_rounding(work: np.dtype[Any]) -> float:
    """Relative rounding of a value by that of the entries, centred, scaled and weighted in
    ``work``: no measure of the sums sees it, and it is larger where they are short."""
    return 2.0 * float(np.finfo(work).eps)


def product_floor(
    work: np.dtype[Any], values: Array, total: float, shape: tuple[int, int], terms: int
) -> float:
    """Norm of the rounding in S v, for one vector v whose products are taken in ``work``.

    The errors of single entries are independent: they reach v's image as eps times the largest
    value where v is concentrated in a few entries, and as eps sqrt(trace value / size) where it
    is spread.  terms : of the streamed axis that are added in ``work``.
    """
    eps = float(np.finfo(work).eps)
    growth = 1.0 + np.sqrt(max(terms, 1) / 256.0) / 4.0
    largest = float(values[:1].max(initial=0.0))
    spread = np.sqrt(total * largest / max(min(shape), 1))
    rounding = float(eps * growth * (largest + spread) + solver_floor(values, max(shape)))
    return rounding + _underflow(work, *shape)


def rounding_floor(work: np.dtype[Any], spectrum: Spectrum, terms: int) -> float:
    """Spectral norm of the rounding that summing outer products in ``work`` leaves.

    terms : outer products added in ``work`` before they are folded into float64 (one span).
    Each entry carries about eps sqrt(terms / 256) of its column norms (BLAS sums 256 terms in
    registers before it rounds to memory); the errors are independent, so their matrix has a
    norm that grows with the square root of trace times the largest value.
    """
    eps = float(np.finfo(work).eps)
    growth = 1.0 + np.sqrt(max(terms, 1) / 256.0) / 4.0
    largest = np.sqrt(spectrum.values[:1].max(initial=0.0))
    spread = float(np.sqrt(max(spectrum.total, 0.0)) * largest)
    return float(eps * growth * spread + _underflow(work, terms, len(spectrum.vectors)))


def _underflow(work: np.dtype[Any], terms: int, size: int) -> float:
    """Spectral norm of what products lose that are too small for ``work``: each half the smallest
    number. (Float32 squares of values below 1e-19.)"""
    return 0.5 * float(np.finfo(work).smallest_subnormal) * max(terms, 1) * size
