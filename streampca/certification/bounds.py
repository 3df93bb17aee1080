"""What products with a symmetric matrix prove about vectors that may be its eigenvectors.

S is Z'Z, or Z Z'. Nothing here depends on how the vectors were computed. With the residual
r = |S v - rho v| of a unit vector v, rho = v'S v:

- an eigenvalue lies within r of rho (Parlett 1998, theorem 4.5.1), and within r^2 / gap (Kato 1949,
  Temple 1928: Parlett, theorem 11.7.1);
- v is off the eigenvector by at most the angle with the sine r / gap (Davis and Kahan 1970,
  section 2; Parlett, theorem 11.7.1).

The gap is proved, too. In a basis of the vectors and the rest, S = [A R'; R B]. Eigenvalue j is at
least that of A (Cauchy), and at most the smallest t > beta with
lambda_j(A + R'R / (t - beta)) <= t (Haynsworth's inertia of t - S), where beta bounds the largest
eigenvalue of B. That is what a missed direction could hold: at most the trace of B, or what random
probes W say: the top eigenvector b of B has |b'B W| = beta |b'W|, and |b'W|^2 is chi-square. Some
direction is missed for certain where the Nystroem approximation of B, which is at most B, is larger
than rho (Tropp, Yurtsever, Udell and Cevher 2017, section 2).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import scipy

from streampca.kernels import Array

DOUBT = 1e-6  # probability that a bound by random probes is too small
HALVINGS = 10  # of twelve decades: to 3 %
DISTINCT = 1e-6  # share of a unit vector that the others do not explain
LEADING = 1e-3  # of the largest singular value of powers of the probes: smaller ones are left out
EPS = float(np.finfo(np.float64).eps)


@dataclass(frozen=True)
class Remainder:
    """What lies outside the span of the vectors.

    largest : no direction there has a larger value.  least : values that directions there have for
    certain, falling.  by : what says so.
    """

    largest: float
    least: Array
    by: str


@dataclass(frozen=True)
class Pairs:
    """What is proved about k vectors, in the units of S. Arrays are (k,) unless said otherwise.

    value : v'S v.  residual : |S v - value v|.  number : of the eigenvector, from 1, by the values.
    value_bound : an eigenvalue is that near.  gap : to the other eigenvalues, 0 where none is
    proved.  angle_bound : radians.  sure : the gap is proved without the condition
    that no missed direction holds more than the last of the vectors.
    missed : directions that certainly hold more.  remainder : what a missed direction could hold.
    entries : (d, k) S v - value v.  outside : its part outside of the span.
    overlap : largest cosine with another of the vectors.
    distinct : (k,) False for a vector that the others before it explain.
    ritz, vectors : (r,) and (d, r) eigenpairs of A.  total : trace.  floor : rounding of S v.
    """

    value: Array
    residual: Array
    number: Array
    value_bound: Array
    gap: Array
    angle_bound: Array
    sure: Array
    missed: Array
    remainder: Remainder
    entries: Array
    outside: Array
    overlap: Array
    distinct: Array
    ritz: Array
    vectors: Array
    total: float
    floor: float


def rounding_of(total: float, terms: int) -> float:
    """Bound of |error of S v|, v a unit vector, by float64 products in runs of at most ``terms``.

    Both sums of Z'(Z v) err by at most terms eps / 2 times the sum of their terms' sizes, which is
    at most the trace of S (Higham 2002, section 3.1). Runs are of a tile, and are added up in turn:
    that is the square root in practice, and here.
    """
    return float((16.0 + np.sqrt(terms)) * EPS * total)


def basis_of(vectors: Array) -> tuple[Array, Array]:
    """((d, r) orthonormal basis of unit vectors (d, k), (k,) those that the ones before them do not
    explain)."""
    r = np.linalg.qr(vectors, mode="r")
    distinct = np.zeros(vectors.shape[1], bool)
    distinct[: len(r)] = np.abs(np.diagonal(r)) > DISTINCT
    return np.linalg.qr(vectors[:, distinct])[0], distinct


def judge(
    vectors: Array,
    basis: Array,
    image: Array,
    rest: Remainder,
    total: float,
    floor: float,
    proofs: bool = True,
) -> Pairs:
    """What is proved about unit vectors (d, k).

    basis, image : (d, r) of their span, and S times that.  proofs : False leaves out the gaps.
    Cost: 40 k eigenvalue problems of size r for those.
    """
    inner = basis.T @ image
    inner = (inner + inner.T) / 2.0
    outside = image - basis @ (basis.T @ image)
    ritz, turned = (one[..., ::-1] for one in np.linalg.eigh(inner))
    inside = basis.T @ vectors
    value = np.einsum("ij,ij->j", inside, inner @ inside) / np.einsum("ij,ij->j", inside, inside)
    entries = image @ inside - value * vectors
    residual = np.linalg.norm(entries, axis=0) + floor
    place = np.argsort(np.argsort(-value, kind="stable"), kind="stable")
    missed = np.count_nonzero(rest.least[:, None] > value + residual, axis=0)
    gap, sure = np.zeros(len(value)), np.zeros(len(value), bool)
    if proofs:
        known = np.where(missed, len(ritz), place)
        gap, sure = _gaps(value, known, ritz, inner, outside, rest, floor)
    with np.errstate(divide="ignore", invalid="ignore"):
        sine = np.where(gap > residual, residual / gap, 1.0)
        squared = np.where(sure & (gap > residual), residual * (residual / gap) + floor, np.inf)
    cosines = np.abs(vectors.T @ vectors) - np.eye(vectors.shape[1])
    return Pairs(
        value=value,
        residual=residual,
        number=place + 1 + missed,
        missed=missed,
        value_bound=np.minimum(residual, squared),
        gap=gap,
        angle_bound=np.arcsin(np.minimum(sine, 1.0)),
        sure=sure,
        remainder=rest,
        entries=entries,
        outside=outside @ inside,
        overlap=cosines.max(axis=0, initial=0.0),
        distinct=np.ones(vectors.shape[1], bool),
        ritz=ritz,
        vectors=basis @ turned,
        total=total,
        floor=floor,
    )


def _gaps(
    value: Array,
    place: Array,
    ritz: Array,
    inner: Array,
    outside: Array,
    rest: Remainder,
    floor: float,
) -> tuple[Array, Array]:
    """((k,) distance of each value to the other eigenvalues, (k,) whether that is proved).

    place : (k,) of each among the Ritz values, from 0; those beyond have no gap.
    The eigenvalue above is at least its Ritz value; the one below is at most its upper bound.
    Without proof it is assumed that no missed direction holds more than the last vector.
    """
    r, largest = len(ritz), rest.largest
    assumed = min(largest, float(ritz[-1]))
    sharp = np.append(_upper_values(inner, outside, ritz, assumed), assumed)
    proved = np.append(_upper_values(inner, outside, ritz, largest), largest)
    gap, sure = np.zeros(len(value)), np.zeros(len(value), bool)
    for i, at in enumerate(place):
        if at >= r:
            continue
        above = ritz[at - 1] - value[i] if at else np.inf
        below = value[i] - proved[at + 1]
        sure[i] = below > 0
        if not sure[i]:
            below = value[i] - sharp[at + 1] if at + 1 < r else 0.0
        gap[i] = max(min(above, below) - floor, 0.0)
    return gap, sure


def _upper_values(inner: Array, outside: Array, ritz: Array, beta: float) -> Array:
    """(r,) bounds of the r largest eigenvalues of S, by bisection of the distance to ``start``."""
    coupling = outside.T @ outside
    norm = float(np.sqrt(max(np.linalg.eigvalsh(coupling)[-1], 0.0)))
    bounds = np.maximum(ritz, beta) + norm
    if norm == 0.0:
        return bounds
    for j, start in enumerate(np.maximum(ritz, beta)):
        low, high = 1e-12 * norm, norm
        for _ in range(HALVINGS):
            step = np.sqrt(low * high)
            t = start + step
            if t <= beta:
                break
            above = np.linalg.eigvalsh(inner + coupling / (t - beta))[::-1][j]
            low, high = (low, step) if above <= t else (step, high)
        bounds[j] = start + high
    return bounds


def remainder_of_all(basis: Array, whole: Array, floor: float) -> Remainder:
    """Of a matrix that is known: S (d, d)."""
    outside = whole - basis @ (basis.T @ whole)
    outside -= (outside @ basis) @ basis.T
    values = np.linalg.eigvalsh((outside + outside.T) / 2.0)[::-1]
    values = values[: max(len(values) - basis.shape[1], 0)]
    largest = float(values.max(initial=0.0))
    return Remainder(max(largest, 0.0) + floor, values - floor, "all directions")


def remainder_of_probes(
    basis: Array,
    image: Array,
    probes: Array,
    probed: Array,
    total: float,
    floor: float,
    passes: int,
    multiply: Callable[[Array], Array],
) -> Remainder:
    """From random probes (d, m), standard normal and drawn after the vectors, and S times those.

    passes : powers of B that are applied.  multiply : S times a matrix (d, m), for more than one.
    """
    m = probes.shape[1]

    def outside(y: Array) -> Array:
        return np.asarray(y - basis @ (basis.T @ y))

    y = outside(probed - image @ (basis.T @ probes))
    trace = max(total - float(np.sum(basis * image)), 0.0) + basis.shape[1] * floor
    w, bound, by = outside(probes), trace, "the trace"
    if m:
        share = 2.0 * scipy.special.gammaincinv(m / 2.0, DOUBT)  # of chi-square, m degrees
        error = floor * float(np.linalg.norm(w))
        for power in range(1, passes + 1):  # y is the power of B times the probes
            size = float(np.linalg.norm(y, 2)) + error
            if (probably := (size / np.sqrt(share)) ** (1.0 / power)) < bound:
                bound, by = probably, f"{m} random probes"
            if power < passes:
                w, error = y, bound * error + floor * float(np.linalg.norm(y))
                y = outside(multiply(w))
    return Remainder(bound, _nystroem(w, y, trace, floor), by)


def _nystroem(w: Array, y: Array, trace: float, floor: float) -> Array:
    """Values that B has at least, falling.

    w, y : (d, m) probes outside the basis, and B times those.
    """
    if not w.shape[1]:
        return np.zeros(0)
    shift = 1e-12 * trace + floor / LEADING  # as large as the error of y / sizes, or larger
    left, sizes, right = np.linalg.svd(w, full_matrices=False)
    kept = sizes > LEADING * sizes[0]
    w, y = left[:, kept], (y @ right[kept].T) / sizes[kept]
    y = y + shift * w
    core = w.T @ y
    try:
        lower = np.linalg.cholesky((core + core.T) / 2.0)
    except np.linalg.LinAlgError:
        return np.zeros(0)
    spread = np.linalg.svd(scipy.linalg.solve_triangular(lower, y.T, lower=True), compute_uv=False)
    return np.asarray(np.maximum(spread**2 - 4.0 * shift, 0.0))
