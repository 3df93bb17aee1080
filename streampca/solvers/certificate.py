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
LARGEST = 0.5  # largest sine of an iteration that is reported: of others the condition is unsafe
ALIKE = 18.0  # relative error of a sum of equal terms, in eps
AFTER_ONE = 256.0  # of equal small terms after a large one: a BLAS adds up to 512 in turn
MOST = 0.125  # of the squares of a vector in one entry: its term is large beside all others
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


def of_products(
    certificate: Certificate, spectrum: Spectrum, work: np.dtype[Any], hidden: float = 0.0
) -> Certificate:
    """The certificate of components Z'u / s that were computed in the dtype ``work``.

    Each entry is a sum whose terms may all round in the same direction (:data:`ALIKE`), more so
    after a term that is most of it (:data:`AFTER_ONE`).
    spectrum : its vectors are u.
    hidden : sum of squares of means that are subtracted after float64 products.
    """
    k = len(certificate.angle_bound)
    values = np.maximum(spectrum.values[:k], 1e-300)
    largest = np.max(spectrum.vectors[:, :k] ** 2, axis=0, initial=0.0)
    alike = np.where(largest > MOST, AFTER_ONE, ALIKE)
    share = alike * float(np.finfo(work).eps) * np.sqrt(spectrum.total / values)
    share = share + hidden_rounding(hidden, values) / values
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
    mature: int | None = None,
    noise: float = 0.0,
) -> Certificate:
    """A certificate for the k leading of d Ritz pairs (d,), from their residual norms.

    For every s the space is split into the s leading Ritz vectors and the rest, on which S is C
    and has no eigenvalue above tau. An eigenvalue above tau, lambda with the eigenvector (y, z), is
    one of D + R'(lambda - C)^-1 R, where D holds the Ritz values and the columns of R are the
    residuals r_j; z = (lambda - C)^-1 R y. The rows of a root of that term have at most the norms
    rho_j = r_j / sqrt(lambda - tau). Two bounds follow, of second order in the residuals.
    Eigenvalue i is above Ritz value i by at most the delta with
    sum over j >= i of rho_j^2 / (value_i + delta - value_j) = 1. And with
    sigma = sum over j != i of rho_j^2 / |lambda - value_j| < 1, the tangent of the angle is at most
    q sqrt(1 + sum over j != i of (r_j / (lambda - value_j))^2) / (lambda - tau), where
    q = r_i / (1 - sigma). The best s counts: a residual that points to far eigenvalues is divided
    by its distance to these, though the next eigenvalue is near.

    The one condition: tau is at most the remaining trace, and it is assumed to be at most the
    largest value + 2 residual of the Ritz pairs after s. So no direction was missed, for which
    start blocks have random columns. As Ritz pairs can only indicate tau, the bounds are tripled.

    S x / value corrects most of the deviation of x towards the rest. (theta - lambda + C) r /
    (theta (lambda - C)) remains of it, the share |C r| / (value |r|). C maps r, which is orthogonal
    to all Ritz vectors, to the Ritz vectors after s by their residuals, and is bounded by the least
    tau elsewhere. Orthogonalising such vectors changes them by no more than the second-order
    coupling.

    values, residual : (d,).  total : trace of the whole matrix.
    floor, divisor, passes : as for :func:`certify`.
    relative : further error of every value, relative to it.
    multiplied : (k,) True where the component is S x / value and not the Ritz vector x.
    rounding : (d,) bounds of the error of S x, which also turns x towards its neighbours.
    mature : pairs that a restart kept. Those after them grow from few products, their residuals
        tell nothing of the largest values, and they are not used.
    noise : of products with any vector. Values below it do not tell what was missed.
    Source: Lehmann 1963, "Optimale Eigenwerteinschliessungen"; Parlett 1998, "The Symmetric
    Eigenvalue Problem", sections 10.5 and 11.7.
    """
    unit = float(values.max(initial=0.0)) or 1.0  # squares of small numbers would vanish
    rounding = np.zeros(len(values)) if rounding is None else rounding / unit
    values, residual = values / unit, residual / unit
    total, floor, divisor = total / unit, floor / unit, divisor / unit
    unsure = rounding + relative * values  # a large value that is rounded up hides small ones
    traces = np.maximum(total - np.cumsum(values - unsure), 0.0)
    left = float(traces[-1])
    angle, bound, gap = np.full(k, np.pi / 2), np.full(k, left), np.zeros(k)
    reach = np.where(values < noise / unit, np.maximum(residual, noise / unit), residual)
    rests = _rests(values + MARGIN * reach, traces, mature)
    squares = np.cumsum((residual**2)[::-1])[::-1]
    outside = np.hypot(rests.min(initial=np.inf), np.sqrt(np.append(squares, 0.0)[1:]))
    taken = np.minimum(rests, outside)  # norm of C on a residual
    turned = turned_by_rounding(k, floor, rounding)
    for i in range(k):
        of = _Deviation(values, residual, rests, i)
        bound[i] = min(bound[i], float(of.above.min(initial=np.inf)))
        tangent = of.tangent if multiplied is None or not multiplied[i] else of.multiplied(taken)
        with np.errstate(divide="ignore"):
            sines = SAFETY * tangent + turned[i] / np.minimum(of.near, of.apart)
        if sines.min(initial=np.inf) < LARGEST:
            best = int(sines.argmin())
            angle[i], gap[i] = np.arcsin(sines[best]), min(of.near[best], of.apart[best])
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


def turned_by_rounding(k: int, floor: float, rounding: Array) -> Array:
    """(k,) by how much rounding may turn each component, times its gap.  rounding : (d,)."""
    around = np.concatenate([rounding[:1], rounding, [0.0]])
    largest = np.max([around[i : i + k] for i in range(3)], axis=0)
    return np.asarray(SAFETY * floor + 2.0 * largest)


class _Deviation:
    """How far eigenpair i may be from Ritz pair i, for every split (:func:`certify_ritz`) whose
    rest is below it. Arrays of splits are infinite where nothing is bounded.

    apart : value - tau.  near : distance to the nearest other of the s leading values.
    above : eigenvalue - value.  tangent : of the angle of the Ritz vector.
    """

    def __init__(self, values: Array, residual: Array, rests: Array, i: int) -> None:
        self.value, self.residual = values[i], residual[i]
        self.splits = i + np.flatnonzero(values[i] > rests[i:])  # s - 1
        self.apart = values[i] - rests[self.splits]
        below, squares = values[i] - values[i + 1 :], residual**2
        with np.errstate(divide="ignore", invalid="ignore"):
            one = np.cumsum(np.append(0.0, squares[i + 1 :] / below))[self.splits - i]
            two = np.cumsum(np.append(0.0, squares[i + 1 :] / below**2))[self.splits - i]
            whole = np.cumsum(squares[i:])[self.splits - i] / self.apart
            free = 1.0 - one / self.apart
            alone = np.where(free > 0, squares[i] / (self.apart * free), np.inf)
            self.above = np.fmin(whole, alone)
            over = values[:i] - (values[i] + self.above)[:, None]  # (splits, i)
            nearest = over.min(axis=1, initial=np.inf)
            one = (one + np.sum(squares[:i] / over, axis=1)) / self.apart
            two = two + np.sum(squares[:i] / over**2, axis=1)
            bounded = (nearest > 0) & (one < 1)
            rest = np.append(below, np.inf)
            self.near = np.where(self.splits > i, np.minimum(nearest, rest[0]), nearest)
            self.near = np.where(bounded & (self.near > 0), self.near, 0.0)
            self.sum = np.where(bounded, one, np.inf)
            self.turn = np.where(bounded, self.residual / (1.0 - one) / self.apart, np.inf)
            self.inside = np.where(bounded, self.turn * np.sqrt(two), np.inf)
        self.tangent = np.hypot(self.turn, self.inside)

    def multiplied(self, taken: Array) -> Array:
        """The tangents for S x / value.  taken : |C r| / |r|, at most, for every s."""
        missed = np.minimum(1.0, (taken[self.splits] + self.above) / self.value)
        outside = self.residual * missed / self.apart
        with np.errstate(invalid="ignore"):
            outside = outside + self.turn * self.sum
        return np.where(np.isfinite(self.inside), np.hypot(outside, 2.0 * self.inside), np.inf)


def _rests(reached: Array, traces: Array, mature: int | None) -> Array:
    """(d,) bounds on the largest eigenvalue outside the span of the s leading Ritz vectors.

    Half of all Ritz values, or a quarter of those that a restart kept, have not converged enough:
    there the bound is the trace.
    reached : (d,) what the eigenvalues near the Ritz values are at most.
    traces : (d,) of the matrix without these vectors, at most.
    """
    d, traces = len(reached), traces.copy()
    trusted = max(0, d - max(4, d // 2) if mature is None else mature - max(4, mature // 4))
    last = d if mature is None else trusted + 1
    largest = np.maximum.accumulate(reached[:last][::-1])[::-1]
    traces[:trusted] = np.minimum(traces[:trusted], largest[1 : trusted + 1])
    return traces


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


def hidden_rounding(hidden: float, value: Any) -> Any:
    """Rounding of S v, for v of an eigenvalue, if means are subtracted after the products.

    So it is with the stored entries of a sparse matrix. Large means hide small deviations.
    hidden : sum of squares of the means, over all cells.
    """
    return ALIKE * float(np.finfo(np.float64).eps) * np.sqrt(hidden) * np.sqrt(value)


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
