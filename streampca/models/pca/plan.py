"""The ways to compute a PCA, with their passes and costs, cheapest first."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

import numpy as np

from streampca.accumulators import (
    Accumulator,
    Gram,
    MeanImputedScatter,
    RFactor,
    RowMissing,
    Scatter,
)
from streampca.errors import InvalidInputError
from streampca.matrix import ChunkedMatrix, work_dtype
from streampca.models.pca.feature_summary import statistics_nbytes
from streampca.models.pca.gram_outputs import streamed_nbytes
from streampca.models.pca.krylov_plan import krylov_candidates
from streampca.models.pca.panel_plan import panel_candidates
from streampca.models.pca.removal import beside_design
from streampca.models.pca.sketch_plan import sketch_candidate
from streampca.models.pca.solve_cost import (
    eigh_cost,
    kept_count,
    scatter_cost,
    vectors_nbytes,
    with_kept_sums,
)
from streampca.models.request import Request
from streampca.passes import Candidate, PassSpec, Plan, Rates, larger, make_plan, pass_spec

SOLVERS = ("auto", "scatter", "tsqr", "gram", "randomized", "sketch")
ALIASES = {"covariance_eigh": "scatter", "full": "tsqr", "arpack": "randomized"}  # scikit-learn's
# Up to (seconds, times the iterative solver), one pair of them, an exact solver is taken at once,
AFFORDABLE = ((2.0, np.inf), (10.0, 4.0), (np.inf, 1.25))
GO_OVER = ((120.0, np.inf), (np.inf, 4.0))  # or gone over to where an iteration cannot certify


def plan_pca(
    matrix: ChunkedMatrix, request: Request, everyone: ChunkedMatrix | None = None
) -> Plan:
    """The plan of a PCA with these request (the estimator's parameters).

    everyone : the matrix that the pass for the loadings reads, where it has more samples.
    Raises InvalidInputError for a solver that does not suit, MemoryLimitError where none fits.
    """
    solver = ALIASES.get(request.svd_solver, request.svd_solver)
    if solver not in SOLVERS:
        raise InvalidInputError(f"svd_solver={solver!r}; expected one of {SOLVERS}")
    if solver == "tsqr" and request.missing == "mean":
        raise InvalidInputError(
            "svd_solver='tsqr' cannot put means into holes in one pass; use svd_solver='scatter'"
        )
    holes_removed = request.missing == "mean" and request.side.basis is not None
    if holes_removed and solver not in ("auto", "gram", "randomized"):
        raise InvalidInputError(
            f"missing='mean' with remove= and svd_solver={solver!r}: a hole holds what the design "
            "says there, which streamed samples cannot know in one pass. Use svd_solver='gram', "
            "which streams features"
        )
    if request.relationship is not None or request.loadings is not None:
        if solver not in ("auto", "gram"):
            raise InvalidInputError(
                f"relationship= and loadings= need the matrix of the samples, which "
                f"svd_solver={solver!r} does not form; use svd_solver='gram'"
            )
        candidates = [_gram(matrix, request, everyone)]
        return make_plan(matrix, "PCA", candidates, request.memory_limit)
    families = {
        "scatter": lambda: [_scatter(matrix, request)],
        "tsqr": lambda: [_tsqr(matrix, request)],
        "gram": lambda: [
            _gram(matrix, request, everyone),
            *([] if holes_removed else panel_candidates(matrix, request)),
        ],
        "randomized": lambda: krylov_candidates(matrix, request),
        "sketch": lambda: [sketch_candidate(matrix, request)],
    }
    wanted: tuple[str, ...] = ("scatter", "gram") if solver == "auto" else (solver,)
    if holes_removed:
        wanted = tuple(name for name in wanted if name not in ("scatter", "tsqr"))
    candidates = [c for name in wanted for c in families[name]()]
    if solver == "randomized" and (what := _needs_gram(request, everyone)):
        raise InvalidInputError(f"svd_solver='randomized' does not give {what}; use 'gram'")
    if solver == "auto" and _may_iterate(request) and not _needs_gram(request, everyone):
        candidates += families["randomized"]()
    if request.warm_start:
        candidates = [with_kept_sums(one) for one in candidates]
    return make_plan(matrix, "PCA", _ordered(matrix, request, candidates), request.memory_limit)


def _may_iterate(request: Request) -> bool:
    """Whether the iterative solver can answer: the number of components is known."""
    return request.count is not None and request.count > 0


def _needs_gram(request: Request, everyone: ChunkedMatrix | None) -> str:
    """What of the request only the solver through the Gram matrix gives, in words."""
    if everyone is not None:
        return "scores of other samples in the same fit (fit_samples)"
    return "loadings that are streamed to Zarr (loadings=)" if request.loadings else ""


def _ordered(
    matrix: ChunkedMatrix, request: Request, candidates: list[Candidate]
) -> list[Candidate]:
    """Exact solvers that are affordable, then the iterative one, then the other exact ones.

    Each by predicted time; of equal ones the more generous. An iteration that may go over to an
    exact solver comes before one that may not.
    """
    rates = Rates.of(request.rates)
    timed = [replace(c, seconds=rates.seconds(matrix, c)) for c in candidates]
    timed.sort(key=lambda one: one.seconds)
    exact = [one for one in timed if one.solver != "krylov"]
    iterative = [one for one in timed if one.solver == "krylov"]
    if not exact or not iterative or request.exact_first:
        return exact + iterative
    quickest = iterative[0].seconds
    last_resorts = [one for one in exact if within(GO_OVER, one.seconds, quickest)]
    if not request.may_go_over:
        last_resorts = []
    iterative = [replace(one, then=then) for then in (*last_resorts, None) for one in iterative]
    if request.iterate:
        return iterative + exact
    first = [one for one in exact if within(AFFORDABLE, one.seconds, quickest)]
    return first + iterative + [one for one in exact if one not in first]


def within(rule: Iterable[tuple[float, float]], seconds: float, quickest: float) -> bool:
    """Whether an exact solver of so many predicted seconds is within one pair of the rule.

    quickest : predicted seconds of the iterative solver.
    """
    return any(seconds <= most and seconds <= times * quickest for most, times in rule)


def _scatter(matrix: ChunkedMatrix, request: Request) -> Candidate:
    n, p = matrix.shape
    k = kept_count(matrix, request)
    imputed = request.missing == "mean"
    accumulator = MeanImputedScatter() if imputed else Scatter(center=request.center)
    solve, flops = scatter_cost(p, request, k)
    read = matrix
    if (basis := request.side.basis) is not None:
        read = beside_design(matrix, basis)
        solve["scatter of residuals"] = p * p * 8
    flops_of_pass = (4.0 if imputed else 1.0) * n * p * p
    spec = pass_spec("scatter", read, 0, {"scatter": accumulator}, flops=flops_of_pass)
    spec = replace(spec, matrix=read)
    reason = "one pass; p x p scatter, then eigh; eigenvalues to about {} of the largest".format(
        "1e-7" if str(work_dtype(matrix.dtype)) == "float32" else "1e-15"
    )
    if imputed:
        reason = "one pass with Z'Z, Z'M and M'M, so that holes hold the mean exactly"
    return Candidate("scatter", reason, (spec,), {"scatter": spec.total_nbytes} | solve, flops)


def _tsqr(matrix: ChunkedMatrix, request: Request) -> Candidate:
    n, p = matrix.shape
    basis = request.side.basis
    read = matrix if basis is None else beside_design(matrix, basis)
    accumulators = {"r": RFactor(center=request.center)}
    spec = pass_spec("tsqr", read, 0, accumulators, flops=2.0 * n * p * p, work="factor")
    spec = replace(spec, matrix=read)
    reason = "one pass; R factor, then its SVD: singular values to about 1e-14 of the largest"
    return Candidate("tsqr", reason, (spec,), {"R factor and its SVD": 6 * p * p * 8}, 22.0 * p**3)


def _gram(matrix: ChunkedMatrix, request: Request, everyone: ChunkedMatrix | None) -> Candidate:
    n, p = matrix.shape
    k = kept_count(matrix, request)
    standardize = request.standardize
    sums: dict[str, Accumulator] = {"gram": Gram(standardize=standardize, missing=request.missing)}
    if request.missing == "mean" and (everyone is None or not request.components):
        sums["rows"] = RowMissing()
    solve, flops = eigh_cost(n, request, k)
    streamed = request.loadings is not None
    held = {} if streamed else {"statistics of features": statistics_nbytes(matrix, request)}
    first = pass_spec("gram", matrix, 1, sums, flops=float(p) * n * n, kept=held)
    reason = "one pass over features; n x n Gram, then eigh"
    passes: tuple[PassSpec, ...] = (first,)
    if request.components:
        rows = n if everyone is None else everyone.shape[0]
        vectors = vectors_nbytes(matrix, request, k)
        components = {} if streamed else {"components": k * p * 8}
        others = 0 if everyone is None else 4 * k * rows * 8
        itemsize = work_dtype(matrix.dtype).itemsize

        def scratch(length: int) -> int:
            written = streamed_nbytes(k, itemsize, length) if streamed else 0
            return k * (rows + 2 * length) * 8 + written

        loadings = PassSpec(
            "loadings",
            1,
            0,
            0,
            scratch=scratch,
            kept_nbytes=others,
            kept=held | components | {"eigenvectors and scores": vectors},
            flops=(2.0 if everyone is None else 4.0) * rows * p * k,
            matrix=everyone,
        )
        passes += (loadings,)
        to = " to Zarr" if streamed else ""
        reason += f"; a second pass for the components{to} (components=False saves it)"
    if (basis := request.side.basis) is not None:
        passes = tuple(replace(one, matrix=matrix.without(basis)) for one in passes)
    solving = {"Gram matrix": first.total_nbytes} | solve
    if request.components and not streamed:  # when they are completed, the Gram matrix is gone
        solving = larger(solving, {"components": k * p * 8, "features of no use": 16 * p})
    terms = {**solving, **held, "scores": 2 * n * k * 8}
    return Candidate("gram", reason, passes, terms, flops)
