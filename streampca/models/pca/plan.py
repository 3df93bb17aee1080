"""Which way to a PCA is planned: those that suit, the cheapest that fits first."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

import numpy as np

from streampca.errors import InvalidInputError
from streampca.matrix import ChunkedMatrix
from streampca.models.pca.gram import gram_candidate
from streampca.models.pca.routes import ROUTES
from streampca.models.pca.solve_cost import with_kept_sums
from streampca.models.request import Request
from streampca.passes import Candidate, Plan, Rates, make_plan

TAKEN = {  # by svd_solver: the routes among which the cheapest is taken
    "auto": ("scatter", "gram", "gram by panels"),  # and "krylov", where it can answer
    "scatter": ("scatter",),
    "tsqr": ("tsqr",),
    "gram": ("gram", "gram by panels"),
    "randomized": ("krylov",),
    "sketch": ("sketch",),
}
SOLVERS = tuple(TAKEN)
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
        only = [gram_candidate(matrix, request, everyone)]
        return make_plan(matrix, "PCA", only, request.memory_limit)
    names = TAKEN[solver]
    if holes_removed:  # samples that are streamed cannot know what the design says there
        names = tuple(name for name in names if name in ("gram", "krylov"))
    candidates: list[Candidate] = []
    for name in names:
        if name == "gram":
            candidates.append(gram_candidate(matrix, request, everyone))
        else:
            candidates += ROUTES[name].candidates(matrix, request)
    if solver == "randomized" and (what := _needs_gram(request, everyone)):
        raise InvalidInputError(f"svd_solver='randomized' does not give {what}; use 'gram'")
    if solver == "auto" and _may_iterate(request) and not _needs_gram(request, everyone):
        candidates += ROUTES["krylov"].candidates(matrix, request)
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
