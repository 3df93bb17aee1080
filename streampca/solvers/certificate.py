"""How far each returned component can be from the true one."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from streampca.html import card, table
from streampca.kernels import CONFIDENCE, Array, lower_product, sum_error
from streampca.solvers.spectrum import Spectrum

SAFETY = 3.0  # Ritz bounds and the floor are about equal to the true error: tripled
FIRST_ORDER = 0.5  # largest sine that is reported; beyond it second-order terms are not small
ALIKE = 18.0  # relative error of a sum of equal terms, in eps
UNDETERMINED = 1.0  # radians: a component whose angle has only a larger bound may point anywhere
MARGIN = 2.0  # residuals by which the largest remaining eigenvalue may exceed its Ritz value


@dataclass(frozen=True, repr=False)
class Certificate:
    """Bounds for every component, in units of explained variance and radians. Prints as a sentence.

    residual : (k,) ||C v - value v|| for the accumulated covariance C. Where the component is
        C v instead of v, which is more accurate, this is still the residual of v.
    floor : approximate spectral norm of the rounding error in C, from the pass and the solver.
    variance_bound : (k,) bound on the error of explained_variance: the residual, or its square
        over the gap where that is smaller, plus the effect of rounding.
    gap : (k,) distance to the nearest other known eigenvalue.
    angle_bound : (k,) bound on the angle between the component and the true one; pi/2 where
        nothing can be said (a cluster of equal values).

    An exact solver sees all directions, so none can be missed. The effect of rounding on each
    component is measured while the sums are formed (:mod:`streampca.kernels.columns`), or bounded
    by the longest sum (:func:`sum_floor`). Neither depends on the order in which a BLAS adds.
    Source: Parlett 1998, "The Symmetric Eigenvalue Problem", theorems 11.7.1 and 11.7.2.
    """

    residual: Array
    floor: float
    variance_bound: Array
    gap: Array
    angle_bound: Array
    passes: int = 1
    beyond: float = 0.0  # the largest variance that a direction outside the searched space can have

    @property
    def determined(self) -> Array:
        """(k,) whether the direction of each component is determined: to less than a radian."""
        return np.asarray(self.angle_bound < UNDETERMINED)

    def in_words(self) -> str:
        """One sentence: how many directions are determined, and to what angle."""
        count, known = len(self.angle_bound), int(self.determined.sum())
        if not known:
            return f"No direction of {count} components is determined"
        worst = float(self.angle_bound[self.determined].max())
        many = f"all {count} components" if known == count else f"{known} of {count} components"
        return f"The directions of {many} are determined, to {worst:.1g} radians or better"

    def __repr__(self) -> str:
        worst = float(self.variance_bound.max(initial=0.0))
        return f"<Certificate: {self.in_words()}; variances to {worst:.1g} or better>"

    def _repr_html_(self) -> str:
        rows = zip(
            range(1, len(self.gap) + 1),
            self.variance_bound,
            self.angle_bound,
            self.gap,
            strict=True,
        )
        shown = [(i, f"{v:.2g}", f"{a:.2g}", f"{g:.3g}") for i, v, a, g in rows]
        head = ("component", "error of the variance ≤", "angle ≤ (radians)", "gap")
        return card("Certificate", self.in_words(), [], {"all bounds": table(head, shown)})

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
    """The certificate of components Z'u / s that were computed in the dtype ``work``.

    Each entry is a sum whose terms may all round in the same direction (:data:`ALIKE`).
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
    """A certificate from residual norms and rounding bounds, all in units of the spectrum.

    residual : (k,).  floor : error of the solver, the same for all components.
    rounding : (k,) bounds of |E v| for the error E of the matrix; None where it is exact.
    divisor : n - ddof, which converts the spectrum to units of variance.
    rank : components after it are rounding or filler, so their direction is undetermined.
    """
    values = spectrum.values
    rounding = np.zeros(len(values)) if rounding is None else np.array(rounding)
    rounding[rank:] = rounding.max(initial=0.0)  # there the order of the values is rounding too
    own = residual + floor + rounding
    neighbours = np.maximum(np.append(own[1:], own[-1:]), np.append(own[:1], own[:-1]))
    error = np.maximum(own, neighbours)  # the neighbours move too
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

    For every s the space is split into the s leading Ritz vectors and the rest. The largest
    eigenvalue tau of the rest is at most the remaining trace. It is assumed to be at most the
    largest value + residual of the Ritz pairs after s. This is the one condition: no direction was
    missed, for which start blocks have random columns. An eigenvector then deviates from Ritz
    vector i by r_i / (value_i - tau) towards the rest, and by the second-order coupling
    r_i |r| / (value_i - tau), over the gap, towards the other leading vectors. The best s counts.

    S x / value corrects most of the deviation of x towards the rest. With C the restriction of S
    to the rest, 1 / (value - C) - 1 / value remains of it, the share |C r| / (value |r|). C maps
    r, which is orthogonal to all Ritz vectors, to the Ritz vectors after s by their residuals, and
    is bounded by the least tau elsewhere. Orthogonalising such vectors changes them by no more
    than the second-order coupling.

    values, residual : (d,).  total : trace of the whole matrix.
    floor, divisor, passes : as for :func:`certify`.
    relative : further error of every value, relative to it.
    multiplied : (k,) True where the component is S x / value and not the Ritz vector x.
    rounding : (d,) bounds of the error of S x, which also turns x towards its neighbours.
    Source: Parlett 1998, "The Symmetric Eigenvalue Problem", theorems 11.7.1 and 11.8.1;
    Stewart and Sun 1990, "Matrix Perturbation Theory", theorem V.2.7.
    """
    unit = float(values.max(initial=0.0)) or 1.0  # squares of small numbers would vanish
    rounding = np.zeros(len(values)) if rounding is None else rounding / unit
    values, residual = values / unit, residual / unit
    total, floor, divisor = total / unit, floor / unit, divisor / unit
    left = max(total - float(np.sum(values)), 0.0)
    angle, bound, gap = np.full(k, np.pi / 2), np.full(k, left), np.zeros(k)
    rests = _rests(values, residual, total)
    for s, tau in enumerate(rests, 1):
        if values[s - 1] <= tau:  # no gap here: part of a cluster may have been missed
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


def _rests(values: Array, residual: Array, total: float) -> list[float]:
    """Bounds on the largest eigenvalue outside the span of the s leading Ritz vectors, s = 1 to d.

    The last Ritz values have not converged and are not used: there the bound is the trace.
    """
    trusted = len(values) - max(4, len(values) // 4)
    largest = np.maximum.accumulate((values + MARGIN * residual)[::-1])[::-1]
    traces = [max(total - float(np.sum(values[:s])), 0.0) for s in range(1, len(values) + 1)]
    return [
        trace if s > trusted else min(trace, float(largest[s])) for s, trace in enumerate(traces, 1)
    ]


def _nearest(values: Array, i: int) -> float:
    """Distance of values[i] to the nearest other one; infinity where it is alone."""
    others = np.abs(np.delete(values, i) - values[i])
    return float(others.min(initial=np.inf))


def _shares(values: Array, residual: Array, i: int, less: float) -> float:
    """Norm of the other residuals over their distances to values[i], each reduced by ``less``."""
    distance = np.abs(np.delete(values, i) - values[i]) - less
    return float(np.linalg.norm(np.delete(residual[: len(values)], i) / distance))


def residual_norms(lower: Array, spectrum: Spectrum) -> Array:
    """(k,) ||S v - value v|| for a symmetric S given by its lower triangle, in float64."""
    v = spectrum.vectors
    return np.asarray(np.linalg.norm(lower_product(lower, v) - v * spectrum.values, axis=0))


def solver_floor(values: Array, m: int) -> float:
    """Rounding error of eigenvalues (k,) from dense float64 algebra on vectors of length m."""
    return float(
        4.0 * float(np.finfo(np.float64).eps) * np.sqrt(m) * float(values[:1].max(initial=0.0))
    )


def sum_floor(work: np.dtype[Any], spectrum: Spectrum, terms: int) -> float:
    """A bound of |E v| where no sum was measured.

    Errors of entries are assumed independent, and as large as in a sum of ``terms`` equal terms.
    terms : outer products added in ``work`` before they are folded into float64.
    """
    largest = float(spectrum.values[:1].max(initial=0.0))
    total = max(spectrum.total, 0.0)
    return sum_error(work, terms) * float(np.sqrt(total) * np.sqrt(largest))


def rank_floor(work: np.dtype[Any], spectrum: Spectrum, terms: int, rounding: Array) -> float:
    """Approximate norm of the rounding error of the sums: values near it are rounding themselves.

    rounding : (k,) bounds of |E v|. Rows that were added and removed again count in these bounds,
    but not in the result.
    """
    level = float(rounding.max(initial=0.0)) / CONFIDENCE
    return min(level, sum_floor(work, spectrum, terms))


def coherent_rounding(work: np.dtype[Any]) -> float:
    """Relative rounding of a value whose sums have equal terms (repeated columns, rank one).

    BLAS adds about 256 terms one after the other. Where the sum only grows, each addition rounds
    in proportion to the partial sum, and the random walk of roundings reaches about 18 eps.
    """
    return ALIKE * float(np.finfo(work).eps)


def entry_rounding(work: np.dtype[Any]) -> float:
    """Relative error of a value because entries are centred, scaled and weighted in ``work``.

    The measured error of the sums does not include it. It dominates where sums are short.
    """
    return 2.0 * float(np.finfo(work).eps)


def product_floor(
    work: np.dtype[Any], values: Array, total: float, shape: tuple[int, int], terms: int
) -> float:
    """Norm of the rounding error of S v, for one vector v whose products are formed in ``work``.

    Errors of single entries are independent. Their effect on S v is eps times the largest value
    where v is concentrated in a few entries, and eps sqrt(trace value / size) where v is spread.
    values : (k,) eigenvalues.  total : their sum, of all of S.
    terms : entries of the streamed axis that are added in ``work``.
    """
    eps = float(np.finfo(work).eps)
    growth = 1.0 + np.sqrt(max(terms, 1) / 256.0) / 4.0
    largest = float(values[:1].max(initial=0.0))
    spread = np.sqrt(total * largest / max(min(shape), 1))
    rounding = float(eps * growth * (largest + spread) + solver_floor(values, max(shape)))
    return rounding + _underflow(work, *shape)


def rounding_floor(work: np.dtype[Any], spectrum: Spectrum, terms: int) -> float:
    """Spectral norm of the rounding error of a sum of outer products in ``work``.

    terms : outer products added in ``work`` before they are folded into float64 (one span).
    The error of an entry is about eps sqrt(terms / 256) times its column norms (BLAS sums 256
    terms in registers before it rounds to memory). The errors are independent, so the norm of
    their matrix grows with the square root of trace times the largest value.
    """
    eps = float(np.finfo(work).eps)
    growth = 1.0 + np.sqrt(max(terms, 1) / 256.0) / 4.0
    largest = np.sqrt(spectrum.values[:1].max(initial=0.0))
    spread = float(np.sqrt(max(spectrum.total, 0.0)) * largest)
    return float(eps * growth * spread + _underflow(work, terms, len(spectrum.vectors)))


def _underflow(work: np.dtype[Any], terms: int, size: int) -> float:
    """Spectral norm of the underflow of products in ``work``: each loses half the smallest number.

    (In float32, squares of values below 1e-19 underflow.)
    """
    return 0.5 * float(np.finfo(work).smallest_subnormal) * max(terms, 1) * size
