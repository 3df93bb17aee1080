"""The dense eigenproblems of a PCA: what they need, how many components are kept, and the one
that every Gram matrix leads to."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, TypeVar

import numpy as np

from streampca.kernels import Array, lower_product, norm_estimate, row_pieces
from streampca.matrix import Block, ChunkedMatrix, work_dtype
from streampca.models.contract.request import Request
from streampca.models.decompose.assemble import FeatureSummary, Fitted, hidden_squares
from streampca.passes import Candidate, all_threads
from streampca.solvers import (
    MLE,
    TRACY_WIDOM,
    Spectrum,
    by_band,
    by_gap,
    by_mle,
    by_share,
    certify,
    count_significant,
    eigh_lower,
    entry_rounding,
    known_count,
    numerical_rank,
    of_products,
    rank_floor,
    residual_norms,
    signs,
    solver_floor,
    tracy_widom_test,
    with_rest_cubes,
)
from streampca.store import Sink

SUMMED = 1 << 14  # features whose products are added in the working dtype, about
T = TypeVar("T")
SEARCHED = ("searched space", "images of the space")  # terms of an iteration
BAND_NBYTES = 8 * 8 * 48  # of each row: eight panels of the width of the band
LEAST_WEIGHT = 1e-4  # of the largest: rounding in the scores grows with the root of its inverse
LEADING = 100  # eigenvalues that are tested for significance before all are computed


@dataclass
class SampleSpace:
    """The eigenproblem of the n x n Gram matrix, solved."""

    spectrum: Spectrum
    values: Array
    everything: bool
    residual: Array
    k: int
    gap: int | None
    rank: int  # components after it are rounding; their loadings are completed
    orientation: Array
    floor: float
    rounding: Array  # (k,) bounds of |E u| for the error E of the Gram matrix
    relatives: Any = None  # pairs of samples, as the request looks for them

    @property
    def u(self) -> Array:
        """(n, k) oriented eigenvectors."""
        return np.asarray(self.spectrum.vectors[:, : self.k] * self.orientation)

    @property
    def s(self) -> Array:
        """(k,) singular values."""
        return np.asarray(np.sqrt(self.spectrum.values[: self.k]))


def solve_sample_space(
    lower: Array, z_probe: Array, request: Request, matrix: ChunkedMatrix, used: int, probed: Array
) -> SampleSpace:
    """probed : (n, PROBES) the error of ``lower`` times the random vectors.

    used : features that vary; with none there is one component, of 0.
    """
    n = len(lower)
    request.refuse_unused(used, matrix.shape[1])
    limit = min(n, max(used, 1) if request.center else matrix.shape[1])
    with all_threads():
        spectrum, values, everything = solve_symmetric(lower, request, limit)
        residual = residual_norms(lower, spectrum)
    relatives = request.relatives_in(lower, spectrum)
    work, floor = work_dtype(matrix.dtype), solver_floor(spectrum.values, n)
    rounding = norm_estimate(spectrum.vectors.T @ probed)
    level = rank_floor(work, spectrum, min(matrix.shape[1], SUMMED), rounding)
    rank = numerical_rank(values, n, floor + level)
    count = n - request.side.rank
    k, gap = count_components(request, values, spectrum, count, limit, rank)
    rounding = rounding + entry_rounding(work) * spectrum.values
    orientation = signs(spectrum.vectors[:, :k].T @ z_probe)
    return SampleSpace(
        spectrum,
        values,
        everything,
        residual,
        k,
        gap,
        rank,
        orientation,
        floor,
        rounding,
        relatives,
    )


def remove_mean(lower: Array, z_probe: Array, sample_weight: Array | None = None) -> None:
    """Turn the Gram matrix of samples into that of centred ones, J G J, in place.

    Of features that were centred as they passed, this takes off what rounding of their means left,
    which is large beside small deviations from large means.
    lower : (n, n), only its lower triangle is valid.  z_probe : (n,) Z h of the same samples.
    sample_weight : (n,); rows of Z hold their roots.
    """
    n = len(lower)
    q = np.ones(n) if sample_weight is None else np.sqrt(sample_weight)
    q = q / np.linalg.norm(q)
    image = lower_product(lower, q[:, None])[:, 0]
    with np.errstate(over="ignore", invalid="ignore"):  # who solves looks at overflow
        a = image - 0.5 * (q @ image) * q
        for rows in row_pieces(n, 16 * n):
            part = lower[rows, : rows.stop]
            part -= q[rows, None] * a[: rows.stop]
            part -= a[rows, None] * q[: rows.stop]
        z_probe -= (q @ z_probe) * q


def fitted_from_samples(
    space: SampleSpace,
    summary: FeatureSummary,
    matrix: ChunkedMatrix,
    request: Request,
    passes: int,
) -> Fitted:
    """The result of the solver, without components."""
    side = request.side
    weight = side.count(matrix.shape[0])
    kept = space.spectrum.head(space.k)
    divisor = request.divisor(weight)
    certificate = certify(
        space.residual[: space.k],
        kept,
        space.floor,
        divisor,
        passes,
        space.rank,
        space.rounding[: space.k],
    )
    if request.components:
        hidden = hidden_squares(matrix, summary.mean, summary.divisors, weight)
        certificate = of_products(certificate, kept, work_dtype(matrix.dtype), hidden)
    return Fitted(
        spectrum=kept,
        all_values=space.values if space.everything else None,
        weight=weight,
        rank=space.rank,
        certificate=certificate,
        gap=space.gap,
        scores=unweighted_rows(space.u * space.s, side.sample_weight),
        features=summary,
        squared_in=str(work_dtype(matrix.dtype)),
        relatives=space.relatives,
    )


def unweighted_rows(values: Array, sample_weight: Array | None) -> Array | None:
    """Rows without the square roots of the sample weights; None where a weight is too small.

    (A row of weight 0 has no scores in the eigenvectors: those take the components.)
    """
    if sample_weight is None:
        return values
    if sample_weight.min() < LEAST_WEIGHT * sample_weight.max():
        return None
    return np.asarray(values / np.sqrt(sample_weight)[:, None])


def count_missing(block: Block) -> Array:
    """(rows, 1) missing cells of each row of a block: a map."""
    return block.row_missing[:, None]


@dataclass
class RowsSink(Sink):
    """A sink into an array in memory whose first row is row ``first`` of the streamed axis."""

    values: Array
    first: int

    def write(self, start: int, values: Array) -> None:
        self.values[start - self.first : start - self.first + len(values)] = values

    def concurrent(self, edges: Array) -> bool:
        return False

    def concurrent_threads(self, edges: Array) -> bool:
        return True  # blocks have different rows

    def nbytes_in_memory(self) -> int:
        return int(self.values.nbytes)


def solve_symmetric(lower: Array, request: Request, limit: int) -> tuple[Spectrum, Array, bool]:
    """(leading eigenpairs, known eigenvalues, whether those are all of them)."""
    k = known_count(request.n_components, limit, limit)
    if request.n_components == TRACY_WIDOM and len(lower) > 2 * LEADING:
        spectrum = eigh_lower(lower, LEADING)
        if significant(spectrum, len(lower) - request.center) < LEADING:
            spectrum = with_rest_cubes(lower, spectrum)
            return spectrum, np.append(spectrum.values, spectrum.next_value), False
    if k is None or k >= len(lower):
        spectrum = eigh_lower(lower)
        return spectrum, spectrum.values, True
    spectrum = eigh_lower(lower, max(k, 1))  # without any component, the largest gives the scale
    spectrum = with_rest_cubes(lower, spectrum)
    return spectrum, np.append(spectrum.values, spectrum.next_value), k + 1 >= len(lower)


def significant(spectrum: Spectrum, count: int) -> int:
    """Leading components that the Tracy-Widom test finds, of ``count`` non-zero eigenvalues."""
    test = tracy_widom_test(
        spectrum.values, total=spectrum.total, squares=spectrum.squares, count=count
    )
    return count_significant(test)


def count_components(
    request: Request, values: Array, spectrum: Spectrum, n: int | None, limit: int, rank: int
) -> tuple[int, int | None]:
    """(components to keep, the k of the gap if one was requested and found).

    values : the eigenvalues that are known.  n : rows, if known.  limit : the most components
    there can be: rows, or features that vary.  Where the Tracy-Widom test was asked, its k takes
    the place of the gap's.
    """
    wanted: Any = request.n_components
    known = known_count(wanted, limit, limit)
    if known is not None:
        return min(known, limit), None
    if wanted == "gap":
        room = limit if n is None else min(limit, n - int(request.center))
        gap = by_gap(values[:rank], n, room)
        return (max(rank, 1) if gap is None else gap), gap
    if wanted == MLE:
        return by_mle(values, limit, n, rank), None
    if wanted == TRACY_WIDOM:
        found = significant(spectrum, limit if n is None else min(n - request.center, limit))
        return max(found, 1), found or None
    return min(by_share(values, spectrum.total, float(wanted)), limit), None


def kept_count(matrix: ChunkedMatrix, request: Request) -> int:
    """The number of components that was requested; else the most that there can be."""
    n, p = matrix.shape
    return known_count(request.n_components, n, p) or min(n, p)


def eigh_cost(m: int, request: Request, k: int) -> tuple[dict[str, int], float]:
    """(bytes beside the matrix, flops) of the eigenproblem of size m."""
    everything = _all_pairs(m, request, k)
    matrices = 4 if everything else 0  # the leading ones are computed in place
    band = band_nbytes(m, k + 1)
    terms = {"eigenproblem": matrices * m * m * 8 + band, "eigenvectors": 3 * m * (k + 1) * 8}
    return terms, (9.0 if everything else 4 / 3) * m**3


def band_nbytes(m: int, count: int) -> int:
    """What ``count`` leading eigenpairs take beside the matrix; 0 where LAPACK finds them."""
    return BAND_NBYTES * m if by_band(m, count) else 0


def scatter_cost(p: int, request: Request, k: int) -> tuple[dict[str, int], float]:
    """(bytes beside the accumulator, flops) of solving a scatter matrix."""
    terms, flops = eigh_cost(p, request, k)
    filters = request.standardize.filters
    copied = request.scale or filters or request.missing == "mean"
    if copied or request.side.weights is not None:
        terms["scaled scatter"] = p * p * 8
    return terms, flops


def sample_space_nbytes(matrix: ChunkedMatrix, request: Request, k: int) -> int:
    """Bytes held while loadings are computed: eigenvectors, scores, column statistics."""
    return vectors_nbytes(matrix, request, k) + 20 * matrix.shape[1] * 8


def vectors_nbytes(matrix: ChunkedMatrix, request: Request, k: int) -> int:
    """Bytes of the eigenvectors and scores alone."""
    n = matrix.shape[0]
    vectors = n if _all_pairs(n, request, k) else k + 1
    return n * (vectors + 3 * k) * 8


def with_kept_sums(candidate: Candidate[T]) -> Candidate[T]:
    """The candidate with what ``warm_start`` keeps for the next fit: a copy of the sums of the
    first pass, and the searched space, beside the one that goes on from it."""
    first, *others = candidate.passes
    terms = candidate.solve_nbytes
    kept = first.total_nbytes + sum(first.kept.values())
    kept += sum(terms.get(name, 0) for name in SEARCHED)
    passes = (first, *(replace(one, kept_nbytes=one.kept_nbytes + kept) for one in others))
    return replace(candidate, passes=passes, solve_nbytes={**terms, "kept for the next fit": kept})


def _all_pairs(m: int, request: Request, k: int) -> bool:
    """Whether all m eigenpairs may be computed."""
    return not isinstance(request.n_components, (int, np.integer)) or k + 1 >= m
