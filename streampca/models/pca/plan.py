"""The ways to compute a PCA, with their passes and costs, cheapest first."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise
from typing import Any

import numpy as np

from streampca.accumulators import (
    Accumulator,
    CrossMoments,
    CrossProduct,
    Gram,
    MeanImputedScatter,
    Moments,
    RFactor,
    Scatter,
)
from streampca.errors import InvalidInputError
from streampca.matrix import ChunkedMatrix, work_dtype
from streampca.models.fitted import standardization
from streampca.models.given import given
from streampca.models.pca.gram_outputs import streamed_nbytes
from streampca.models.pca.krylov_plan import krylov_candidates
from streampca.models.pca.removal import beside_design
from streampca.models.pca.sketch_plan import sketch_candidate
from streampca.passes import (
    Candidate,
    PassSpec,
    Plan,
    Rates,
    block_edges,
    make_plan,
    pass_spec,
    size,
)
from streampca.solvers import known_count

SOLVERS = ("auto", "scatter", "tsqr", "gram", "randomized", "sketch")
ALIASES = {"covariance_eigh": "scatter", "full": "tsqr", "arpack": "randomized"}  # scikit-learn's
PANELS = (1, 2, 3, 4, 6, 8, 12, 16, 24, 32)
LEAST_PANEL_NBYTES = 1 << 20  # not divided further: that would read more to save next to nothing

ITERATIVE = 1.1  # an exact solver is taken where it is not slower than by this


def plan_pca(
    matrix: ChunkedMatrix, settings: dict[str, Any], everyone: ChunkedMatrix | None = None
) -> Plan:
    """The plan of a PCA with these settings (the estimator's parameters).

    everyone : the matrix that the pass for the loadings reads, where it has more samples.
    Raises InvalidInputError for a solver that does not suit, MemoryLimitError where none fits.
    """
    solver = ALIASES.get(settings["svd_solver"], settings["svd_solver"])
    if solver not in SOLVERS:
        raise InvalidInputError(f"svd_solver={solver!r}; expected one of {SOLVERS}")
    if solver == "tsqr" and settings["missing"] == "mean":
        raise InvalidInputError(
            "svd_solver='tsqr' cannot put means into holes in one pass; use svd_solver='scatter'"
        )
    holes_removed = settings["missing"] == "mean" and given(settings).basis is not None
    if holes_removed and solver not in ("auto", "gram", "randomized"):
        raise InvalidInputError(
            f"missing='mean' with remove= and svd_solver={solver!r}: a hole holds what the design "
            "says there, which streamed samples cannot know in one pass. Use svd_solver='gram', "
            "which streams features"
        )
    if any(settings.get(name) is not None for name in ("relationship", "loadings")):
        if solver not in ("auto", "gram"):
            raise InvalidInputError(
                f"relationship= and loadings= need the matrix of the samples, which "
                f"svd_solver={solver!r} does not form; use svd_solver='gram'"
            )
        candidates = [_gram(matrix, settings, everyone)]
        return make_plan(matrix, "PCA", candidates, settings["memory_limit"])
    families = {
        "scatter": lambda: [_scatter(matrix, settings)],
        "tsqr": lambda: [_tsqr(matrix, settings)],
        "gram": lambda: [
            _gram(matrix, settings, everyone),
            *([] if holes_removed else _panels(matrix, settings)),
        ],
        "randomized": lambda: krylov_candidates(matrix, settings),
        "sketch": lambda: [sketch_candidate(matrix, settings)],
    }
    wanted: tuple[str, ...] = ("scatter", "gram") if solver == "auto" else (solver,)
    if holes_removed:
        wanted = tuple(name for name in wanted if name not in ("scatter", "tsqr"))
    candidates = [c for name in wanted for c in families[name]()]
    if solver == "randomized" and (what := _needs_gram(settings, everyone)):
        raise InvalidInputError(f"svd_solver='randomized' does not give {what}; use 'gram'")
    if solver == "auto" and _may_iterate(settings) and not _needs_gram(settings, everyone):
        candidates += families["randomized"]()
    return make_plan(
        matrix, "PCA", _ordered(matrix, settings, candidates), settings["memory_limit"]
    )


def _may_iterate(settings: dict[str, Any]) -> bool:
    """Whether the iterative solver can answer: the number of components is known, and few."""
    k = settings["n_components"]
    return isinstance(k, (int, np.integer)) and int(k) > 0 and "max_passes" in settings


def _needs_gram(settings: dict[str, Any], everyone: ChunkedMatrix | None) -> str:
    """What of the settings only the solver through the Gram matrix gives, in words."""
    if everyone is not None:
        return "scores of other samples in the same fit (fit_samples)"
    return "loadings that are streamed to Zarr (loadings=)" if settings.get("loadings") else ""


def _ordered(
    matrix: ChunkedMatrix, settings: dict[str, Any], candidates: list[Candidate]
) -> list[Candidate]:
    """By predicted time; of equal solvers the more generous one first."""
    rates = Rates.of(settings.get("rates"))
    timed = [replace(c, seconds=rates.seconds(matrix, c)) for c in candidates]
    exact_first = settings.get("exact_first", False)

    def key(candidate: Candidate) -> tuple[bool, float]:
        iterative = candidate.solver == "krylov"
        return exact_first and iterative, candidate.seconds * (ITERATIVE if iterative else 1.0)

    return sorted(timed, key=key)


def _kept(matrix: ChunkedMatrix, settings: dict[str, Any]) -> int:
    n, p = matrix.shape
    return known_count(settings["n_components"], n, p) or min(n, p)


def _eigh_cost(m: int, settings: dict[str, Any], k: int) -> tuple[int, float]:
    """(bytes beside the accumulator, flops) of the eigenproblem of size m."""
    everything = _all_pairs(m, settings, k)
    matrices = 4 if everything else 0  # the leading ones are computed in place
    return matrices * m * m * 8 + 3 * m * (k + 1) * 8, (9.0 if everything else 4 / 3) * m**3


def _all_pairs(m: int, settings: dict[str, Any], k: int) -> bool:
    """Whether all m eigenpairs may be computed."""
    return not isinstance(settings["n_components"], (int, np.integer)) or k + 1 >= m


def _scatter(matrix: ChunkedMatrix, settings: dict[str, Any]) -> Candidate:
    n, p = matrix.shape
    k = _kept(matrix, settings)
    imputed = settings["missing"] == "mean"
    accumulator = MeanImputedScatter() if imputed else Scatter(center=settings["center"])
    solve, flops = _scatter_cost(p, settings, k)
    read = matrix
    if (basis := given(settings).basis) is not None:
        read, solve = beside_design(matrix, basis), solve + p * p * 8
    flops_of_pass = (4.0 if imputed else 1.0) * n * p * p
    spec = pass_spec("scatter", read, 0, [accumulator], flops=flops_of_pass)
    spec = replace(spec, matrix=read)
    reason = "one pass; p x p scatter, then eigh; eigenvalues to about {} of the largest".format(
        "1e-7" if str(work_dtype(matrix.dtype)) == "float32" else "1e-15"
    )
    if imputed:
        reason = "one pass with Z'Z, Z'M and M'M, so that holes hold the mean exactly"
    return Candidate("scatter", reason, (spec,), spec.total_nbytes + solve, flops)


def _scatter_cost(p: int, settings: dict[str, Any], k: int) -> tuple[int, float]:
    """(bytes beside the accumulator, flops) of solving a scatter matrix."""
    solve, flops = _eigh_cost(p, settings, k)
    filters = standardization(settings).filters
    copied = settings["scale"] or filters or settings["missing"] == "mean"
    copied = copied or given(settings).weights is not None
    return solve + (p * p * 8 if copied else 0), flops  # a correlation is a scaled copy


def plan_append(
    matrix: ChunkedMatrix, settings: dict[str, Any], accumulator: Accumulator, held: bool
) -> Plan:
    """The plan of taking rows into a state (``IncrementalPCA``), and of solving it.

    held : whether there is a state of earlier rows, which lives beside the new one.
    """
    n, p = matrix.shape
    state = accumulator.projected_nbytes(matrix.shape, 8)
    spec = pass_spec(
        "append",
        matrix,
        0,
        [accumulator],
        flops=float(n) * p * p,
        kept_nbytes=state if held else 0,
        longest=settings["batch_size"],
    )
    if settings["state"] == "scatter":
        solve, flops = _scatter_cost(p, settings, known_count(settings["n_components"], p, p) or p)
    else:
        rows = p if settings["state"] == "tsqr" else min(p, settings["max_rows"])
        solve, flops = 5 * rows * p * 8, 22.0 * rows * rows * p
    merge = state + accumulator.scratch_nbytes(matrix.shape, 0) if held else 0
    reason = "rows are appended to the state"
    need = spec.total_nbytes + max(solve, merge)
    candidate = Candidate(settings["state"], reason, (spec,), need, flops)
    return make_plan(matrix, "IncrementalPCA", [candidate], settings["memory_limit"])


def _tsqr(matrix: ChunkedMatrix, settings: dict[str, Any]) -> Candidate:
    n, p = matrix.shape
    basis = given(settings).basis
    read = matrix if basis is None else beside_design(matrix, basis)
    accumulators = [RFactor(center=settings["center"])]
    spec = pass_spec("tsqr", read, 0, accumulators, flops=2.0 * n * p * p, work="factor")
    spec = replace(spec, matrix=read)
    reason = "one pass; R factor, then its SVD: singular values to about 1e-14 of the largest"
    return Candidate("tsqr", reason, (spec,), 6 * p * p * 8, 22.0 * p**3)


def _gram(
    matrix: ChunkedMatrix, settings: dict[str, Any], everyone: ChunkedMatrix | None
) -> Candidate:
    n, p = matrix.shape
    k = _kept(matrix, settings)
    standardize = standardization(settings)
    gram = Gram(standardize=standardize, missing=settings["missing"])
    solve, flops = _eigh_cost(n, settings, k)
    first = pass_spec("gram", matrix, 1, [gram, Moments()], flops=float(p) * n * n)
    reason = "one pass over features; n x n Gram, then eigh"
    passes: tuple[PassSpec, ...] = (first,)
    if settings["components"]:
        rows = n if everyone is None else everyone.shape[0]
        others = 0 if everyone is None else 4 * k * rows * 8
        streamed = settings.get("loadings") is not None
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
            kept_nbytes=_dual_nbytes(matrix, settings, k) + others + (0 if streamed else k * p * 8),
            flops=(2.0 if everyone is None else 4.0) * rows * p * k,
            matrix=everyone,
        )
        passes += (loadings,)
        to = " to Zarr" if streamed else ""
        reason += f"; a second pass for the components{to} (components=False saves it)"
    if (basis := given(settings).basis) is not None:
        passes = tuple(replace(one, matrix=matrix.without(basis)) for one in passes)
    # the Gram matrix is gone when the statistics of all columns are joined
    statistics = Moments().projected_nbytes(matrix.shape, 8) + 12 * p * 8
    held = max(first.total_nbytes + solve, statistics) + 2 * n * k * 8
    return Candidate("gram", reason, passes, held, flops)


def _dual_nbytes(matrix: ChunkedMatrix, settings: dict[str, Any], k: int) -> int:
    """What is held while loadings are computed: eigenvectors, scores, statistics of the columns."""
    n, p = matrix.shape
    vectors = n if _all_pairs(n, settings, k) else k + 1
    return n * (vectors + 3 * k) * 8 + 20 * p * 8


def _panels(matrix: ChunkedMatrix, settings: dict[str, Any]) -> list[Candidate]:
    """The Gram matrix from streamed samples: P panels of rows, (P + 1) / 2 reads."""
    n, p = matrix.shape
    k = _kept(matrix, settings)
    solve, flops = _eigh_cost(n, settings, k)
    solve += n * n * 8 + 2 * n * k * 8 + 20 * p * 8
    divisions: dict[int, np.ndarray[Any, Any]] = {}
    before: list[Accumulator] = [Moments()]
    read = matrix
    if (basis := given(settings).basis) is not None:
        before.append(CrossMoments(y="design", width=basis.shape[1]))
        read = matrix.without(basis, np.broadcast_to(0.0, (1 + basis.shape[1], p)))
    for wanted in PANELS:
        bounds = panel_bounds(matrix, wanted)
        divisions.setdefault(len(bounds), bounds)
        if int(np.diff(bounds).max()) * p * work_dtype(matrix.dtype).itemsize <= LEAST_PANEL_NBYTES:
            break
    candidates = []
    for bounds in divisions.values():
        specs = []
        if needs_moments(settings):
            specs.append(pass_spec("moments", matrix, 0, before, flops=6.0 * n * p))
        first = len(specs)
        specs += _panel_passes(matrix, settings, bounds)
        if settings["components"]:
            cross = CrossProduct(y="u", center="center", width=k)
            held = _dual_nbytes(matrix, settings, k)
            specs.append(
                pass_spec("loadings", matrix, 0, [cross], flops=2.0 * n * p * k, kept_nbytes=held)
            )
        specs[first:] = [replace(one, matrix=read) for one in specs[first:]]
        count = len(bounds) - 1
        panel = int(np.diff(bounds).max()) * p * work_dtype(matrix.dtype).itemsize
        reason = (
            f"n x n Gram of streamed samples by {count} panels of rows ({size(panel)} each), "
            f"{(count + 1) / 2:g} reads, then eigh"
        )
        candidates.append(Candidate("gram by panels", reason, tuple(specs), solve, flops))
    return candidates


def _panel_passes(
    matrix: ChunkedMatrix, settings: dict[str, Any], bounds: np.ndarray[Any, Any]
) -> list[PassSpec]:
    """For each panel a pass that loads it, and one over the rows below it."""
    n, p = matrix.shape
    itemsize = work_dtype(matrix.dtype).itemsize
    longest = int(np.diff(bounds).max())
    held = longest * p * itemsize + n * n * 8 + 2 * longest**2 * 8 + 12 * p * 8
    specs = []
    for i, (start, stop) in enumerate(pairwise(bounds)):
        first, last = int(start), int(stop)
        accumulators = [] if needs_moments(settings) or i else [Moments()]
        own = pass_spec(
            f"panel {i + 1}",
            matrix,
            0,
            accumulators,
            kept_nbytes=held,
            rows=(first, last),
            flops=float(last - first) ** 2 * p * 2,
        )
        specs.append(replace(own, scratch=lambda length: length * p * itemsize))
        if last < n:
            below = pass_spec(
                f"below panel {i + 1}",
                matrix,
                0,
                accumulators,
                kept_nbytes=held,
                rows=(last, n),
                flops=2.0 * (n - last) * (last - first) * p,
            )
            specs.append(replace(below, scratch=lambda length: 3 * length * longest * 8))
    return specs


def panel_bounds(matrix: ChunkedMatrix, count: int) -> np.ndarray[Any, Any]:
    """Row bounds of about ``count`` panels, on chunk edges."""
    n = matrix.shape[0]
    edges = matrix.chunk_edges(0)
    edges = np.arange(n + 1) if edges is None else edges
    wanted = np.linspace(0, n, count + 1)
    nearest = np.searchsorted(edges, wanted - 1e-9)
    return np.unique(edges[np.clip(nearest, 0, len(edges) - 1)])


def needs_moments(settings: dict[str, Any]) -> bool:
    """Whether means or deviations must be known before products are formed."""
    filters = standardization(settings).filters
    known = settings["scale"] is None and not filters and settings["missing"] != "mean"
    beside = given(settings)
    return not known or beside.sample_weight is not None or beside.basis is not None


def transform_axis(matrix: ChunkedMatrix) -> int:
    """The axis along which blocks are smaller, where rows are projected (0 unless 1 is much so)."""
    n, p = matrix.shape
    longest = [int(np.diff(block_edges(matrix, axis)).max(initial=0)) for axis in (0, 1)]
    return 1 if longest[0] * p > 4 * max(longest[1] * n, 1 << 22) else 0
