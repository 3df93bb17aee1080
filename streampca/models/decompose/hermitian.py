"""PCA of complex matrices: the passes of real ones over the parts, and Hermitian eigenproblems.

Z is read as R, in which the two parts of each feature lie side by side
(:mod:`streampca.matrix.complex`). The sums over R hold those over Z, so its passes, plans and
bounds of rounding are those of a real matrix of the same bytes. Components c are rows of V^H where
Z = U S V^H: Z is the mean + scores times components, and scores are (Z - mean) c^H.
"""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np

from streampca.accumulators import PairedGram, RFactor, RowMissing
from streampca.kernels import Array, norm_estimate, reciprocal
from streampca.matrix import ChunkedMatrix, Resolution, found, work_dtype
from streampca.matrix.complex import PairedStandardize, PartsMatrix, joined, of_pairs, packed
from streampca.models.contract.request import Request
from streampca.models.decompose.assemble import FeatureSummary, Fitted, finish_components
from streampca.models.decompose.eigenproblem import (
    SUMMED,
    RowsSink,
    SampleSpace,
    count_components,
    fitted_from_samples,
    kept_count,
)
from streampca.models.decompose.gram import VARIANCE, FeatureStatistics, statistics_nbytes
from streampca.models.decompose.scatter import (
    Solved,
    entries_bound,
    longest_sum,
    scaled_lower,
    scatter_candidates,
    solve_accumulator,
    stats_of_sums,
    tsqr_candidates,
    with_explained,
)
from streampca.models.results.projection import FeatureLoadings
from streampca.models.side_data.design import Removed
from streampca.passes import (
    Candidate,
    Pass,
    PassSpec,
    Planned,
    Steps,
    all_threads,
    pass_spec,
    single_threaded_blas,
)
from streampca.solvers import (
    entry_rounding,
    numerical_rank,
    rank_floor,
    signs,
    solver_floor,
    sum_floor,
    svd_of_r,
)
from streampca.solvers.hermitian import hermitian_residuals, solve_hermitian
from streampca.store import ColumnsSink, MemorySink

# Samples streamed: the scatter of the parts, or its R factor.


def hermitian_scatter_candidates(
    matrix: ChunkedMatrix, request: Request
) -> list[Candidate[Fitted]]:
    """One pass that sums the scatter matrix of the parts.  matrix : complex (n, p)."""
    p = matrix.shape[1]
    return _of_sums(scatter_candidates(PartsMatrix(matrix), request), 88 * p * p, 12.0 * p**3)


def hermitian_tsqr_candidates(matrix: ChunkedMatrix, request: Request) -> list[Candidate[Fitted]]:
    """One pass that keeps the R factor of the parts."""
    p = matrix.shape[1]
    return _of_sums(tsqr_candidates(PartsMatrix(matrix), request), 220 * p * p, 150.0 * p**3)


def _of_sums(some: list[Candidate[Fitted]], nbytes: int, flops: float) -> list[Candidate[Fitted]]:
    """The candidates of the parts, solved as complex.  nbytes, flops : of that."""
    made = []
    for one in some:
        spec = one.passes[0]
        terms = {"sums of the parts": spec.total_nbytes, "Hermitian eigenproblem": nbytes}
        reason = one.reason.replace("p x p scatter", "Hermitian scatter")
        solve = partial(_halving, solve=partial(one.solve, solve=solve_sums))  # type: ignore[call-arg]
        made.append(replace(one, reason=reason, solve_nbytes=terms, solve_flops=flops, solve=solve))
    return made


def _halving(planned: Planned[Any], *, solve: Any) -> Steps[Fitted]:
    """A missing cell counted once, and not for both its parts."""
    fitted: Fitted = yield from solve(planned)
    if fitted.missing_by_sample is not None:
        fitted.missing_by_sample = fitted.missing_by_sample // 2
    return fitted


def solve_sums(
    sums: Any, request: Request, resolution: Resolution, limit: int, removed: Removed | None = None
) -> Fitted:
    """A complex PCA from a Scatter, MeanImputedScatter or RFactor of the parts (2p columns)."""
    if removed is not None:
        removed = Removed(as_complex(removed.coefficients), as_complex(removed.explained))
    p = len(sums.mean) // 2
    stats = of_pairs(stats_of_sums(sums))
    solve = _solve_factor if isinstance(sums, RFactor) else _solve_scatter
    return solve_accumulator(
        sums, request, resolution, min(limit, p), removed, stats=stats, solve=solve
    )


def as_complex(parts: Array) -> Array:
    """(..., p) complex of (..., 2p) parts."""
    return np.ascontiguousarray(parts, np.float64).view(np.complex128)


def hermitian_scatter(lower: Array) -> Array:
    """(p, p) complex128 Z^T conj(Z), whose eigenvectors are components, of R'R (2p, 2p).

    lower : its lower triangle is valid.
    """
    h = np.tril(lower[::2, ::2] + lower[1::2, 1::2]).astype(np.complex128)
    h.imag = np.tril(lower[1::2, ::2] - lower[::2, 1::2], -1)
    h += np.tril(h, -1).conj().T
    return h


def _solve_scatter(
    sums: Any,
    request: Request,
    scale: Array | None,
    live: Array,
    resolution: Resolution,
    limit: int,
    explained: Array | None,
) -> Solved:
    h = scaled_lower(hermitian_scatter(sums.lower()), scale, live)
    with all_threads():
        spectrum, known, everything = solve_hermitian(h, request.n_components, limit)
        residual = hermitian_residuals(h, spectrum)
    summed = with_explained(spectrum, explained)
    work, terms = longest_sum(sums, resolution)
    longest = sum_floor(work, summed, terms)
    both, columns = None if scale is None else np.repeat(scale, 2), _columns(live)
    vectors = packed(np.ascontiguousarray(spectrum.vectors))
    rounding = _of_both(entries_bound(sums, both, columns, vectors, longest))
    floor = solver_floor(summed.values, 2 * len(h))
    level = rank_floor(work, summed, terms, rounding)
    rank = min(numerical_rank(known, 2 * len(h), floor + level), limit)
    return Solved(spectrum, known, everything, residual, floor, rank, rounding)


def _columns(features: Array) -> Array:
    """The columns of the parts of some features."""
    return (2 * features[:, None] + np.arange(2)).ravel()


def _of_both(bounds: Array) -> Array:
    """(k,) bounds of |E v| of complex v, of those of the two real vectors (2k,) that stand for it:
    each complex entry joins one of either product."""
    return np.asarray(np.sqrt(2.0) * np.hypot(*np.split(bounds, 2)))


def _solve_factor(
    sums: RFactor,
    request: Request,
    scale: Array | None,
    live: Array,
    resolution: Resolution,
    limit: int,
    explained: Array | None,
) -> Solved:
    r = sums.r_factor()
    factor = (r[:, ::2] - 1j * r[:, 1::2])[:, live]
    if scale is not None:
        factor *= reciprocal(scale[live])
    with single_threaded_blas():
        spectrum = svd_of_r(factor)
        v = spectrum.vectors
        image = factor @ v
        residual = np.linalg.norm(factor.conj().T @ image - v * spectrum.values, axis=0)
    floor = solver_floor(with_explained(spectrum, explained).values, len(r))
    rank = min(numerical_rank(np.sqrt(spectrum.values), max(sums.count, len(r))), limit)
    return Solved(spectrum, spectrum.values, True, residual, floor, rank)


# Features streamed: the Gram matrix of the samples.


def hermitian_gram_candidates(matrix: ChunkedMatrix, request: Request) -> list[Candidate[Fitted]]:
    """One pass that sums the Gram matrix, and one for the components.  matrix : complex (n, p)."""
    (n, p), parts = matrix.shape, PartsMatrix(matrix)
    k, request = kept_count(matrix, request), of_columns(request)
    sums: dict[str, Any] = {
        "gram": PairedGram(standardize=request.standardize, missing=request.missing)
    }
    if request.missing == "mean":
        sums["rows"] = RowMissing()
    held = {"statistics of features": statistics_nbytes(parts, request)}
    first = pass_spec("gram", parts, 1, sums, flops=4.0 * p * n * n, kept=held)
    read = parts if request.side.basis is None else parts.without(request.side.basis)
    passes: tuple[PassSpec, ...] = (replace(first, matrix=read),)
    reason = "one pass over features; Hermitian n x n Gram, then eigh"
    vectors = 16 * n * (k + 1) * 4
    loadings: PassSpec | None = None
    if request.components:
        reason += "; a second pass for the components (components=False saves it)"
        loadings = PassSpec(
            "loadings",
            1,
            0,
            0,
            scratch=lambda length: 16 * k * (n + 3 * length),
            kept={**held, "components": 16 * k * p, "eigenvectors and scores": vectors},
            flops=8.0 * n * p * k,
            matrix=read,
        )
        passes += (loadings,)
    terms = {"Gram matrix of parts": first.total_nbytes, "Hermitian eigenproblem": 64 * n * n}
    terms |= {**held, "eigenvectors and scores": vectors}
    if request.components:
        terms["components"] = 16 * k * p
    solver = partial(_gram, matrix=read, request=request, specs=passes)
    return [Candidate("gram", reason, passes, terms, 16 / 3 * float(n) ** 3, solve=solver)]


def of_columns(request: Request) -> Request:
    """A request of complex features for the columns that hold their parts."""
    plain, side = request.standardize, request.side
    weights = None if side.weights is None else np.repeat(side.weights, 2)
    return request.bound(
        standardize=PairedStandardize(plain.center, plain.scale, plain.ddof),
        side=replace(side, weights=weights),
    )


def _gram(
    planned: Planned[Any], *, matrix: ChunkedMatrix, request: Request, specs: tuple[PassSpec, ...]
) -> Steps[Fitted]:
    """matrix : of the parts, without what a design explains.  request : of its columns."""
    statistics = FeatureStatistics.of(matrix, request, 1.0)
    sinks: dict[str, Any] = {"statistics": ColumnsSink(matrix.shape[1], len(statistics.names))}
    maps: dict[str, Any] = {"statistics": statistics}
    if matrix.design is not None:
        sinks["removed"] = MemorySink(matrix.shape[1], 1 + matrix.design.shape[1])
        maps["removed"] = found
    first = (yield Pass(specs[0], maps=maps, sinks=sinks)).accumulators
    space = _sample_space(first.pop("gram"), request, matrix)
    divisor = request.divisor(request.side.count(matrix.shape[0]))
    sinks["statistics"].values[statistics.names.index(VARIANCE)] /= divisor
    summary = statistics.held(sinks["statistics"])
    if "removed" in sinks:
        summary = summary.without(sinks["removed"].values.T)
    summary = _of_features(summary)
    components: Array | None = None
    if request.components:
        components = np.empty((space.k, matrix.shape[1] // 2), np.complex128)
        yield _loadings(specs[1], request, space, components)
        components = finish_components(components, space.rank, summary, request.center)
    fitted = fitted_from_samples(space, summary, matrix, request, 1)
    fitted.components = components
    if request.missing == "mean":
        fitted.missing_by_sample = first["rows"].counts() // 2
    return fitted


def _sample_space(gram: PairedGram, request: Request, matrix: ChunkedMatrix) -> SampleSpace:
    """The Hermitian eigenproblem of the samples, solved.  matrix : of the parts."""
    n, used = matrix.shape[0], gram.n_used
    request.refuse_unused(used, matrix.shape[1] // 2)
    g, real = gram.hermitian(), gram.z_probe
    z_probe, probed = real[:n] + 1j * real[n:], gram.rounding()
    gram.g = None  # freed
    if request.center:
        _remove_mean(g, z_probe, request.side.sample_weight)
    limit = min(n, max(used, 1) if request.center else matrix.shape[1] // 2)
    with all_threads():
        spectrum, values, everything = solve_hermitian(g, request.n_components, limit)
        residual = hermitian_residuals(g, spectrum)
    work, floor = work_dtype(matrix.dtype), solver_floor(spectrum.values, 2 * n)
    u = spectrum.vectors
    rows = np.concatenate([np.vstack([u.real, u.imag]), np.vstack([u.imag, -u.real])], axis=1)
    rounding = _of_both(norm_estimate(rows.T @ probed))
    level = rank_floor(work, spectrum, min(matrix.shape[1], SUMMED), rounding)
    rank = numerical_rank(values, 2 * n, floor + level)
    count = n - request.side.rank
    k, gap = count_components(request, values, spectrum, count, limit, rank)
    rounding = rounding + entry_rounding(work) * spectrum.values
    orientation = signs(u[:, :k].conj().T @ z_probe)
    return SampleSpace(
        spectrum, values, everything, residual, k, gap, rank, orientation, floor, rounding
    )


def _remove_mean(g: Array, z_probe: Array, sample_weight: Array | None) -> None:
    """As ``eigenproblem.remove_mean`` of the whole of a Hermitian matrix, in place."""
    q = np.ones(len(g)) if sample_weight is None else np.sqrt(sample_weight)
    q = q / np.linalg.norm(q)
    with np.errstate(over="ignore", invalid="ignore"):  # who solves looks at overflow
        image = g @ q
        a = image - 0.5 * (q @ image) * q
        g -= np.multiply.outer(q, a.conj())
        g -= np.multiply.outer(a, q)
        z_probe -= (q @ z_probe) * q


def _of_features(columns: FeatureSummary) -> FeatureSummary:
    """The summary of complex features from that of the columns that hold their parts."""

    def half(values: Any) -> Any:
        return None if values is None else np.asarray(values)[::2]

    places = {
        name: half(getattr(columns, name)) // 2 for name in ("dropped", "constant", "filtered")
    }
    variance = np.asarray(columns.feature_variance)
    return FeatureSummary(
        as_complex(columns.mean),
        half(columns.divisors),
        half(columns.scale),
        variance[::2] + variance[1::2],
        as_complex(columns.feature_mean),
        half(columns.missing),
        **places,
        removed=None if columns.removed is None else as_complex(columns.removed),
    )


class JoinedSink(RowsSink):
    """A sink of complex rows, one of each two of the streamed axis: see :func:`joined`."""

    def write(self, start: int, values: Array) -> None:
        super().write(start // 2, joined(values))


def _loadings(spec: PassSpec, request: Request, space: SampleSpace, components: Array) -> Pass:
    """The second pass.  components : (k, p) complex, to be filled."""
    real = np.where(np.arange(space.k) < space.rank, space.s, np.inf)
    u = space.u
    return Pass(
        spec,
        operands={"u": np.hstack([u.real, u.imag]), "s": np.append(real, real)},
        maps={"loadings": FeatureLoadings(request.standardize)},
        sinks={"loadings": JoinedSink(components.T, 0)},
    )
