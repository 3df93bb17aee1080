"""The ways to a PCA: a row each, how one of them is planned, and how a plan is run.

``auto`` orders the rows by their predicted times. To add a way: a file with its candidates and its
solver (:class:`streampca.passes.Route`), and a row here.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterable
from dataclasses import replace
from typing import Any

import numpy as np

from streampca.errors import InvalidInputError
from streampca.matrix import ChunkedMatrix
from streampca.models.assemble import Fitted
from streampca.models.pca.eigenproblem import with_kept_sums
from streampca.models.pca.gram import gram_by_features, gram_candidates
from streampca.models.pca.krylov import krylov
from streampca.models.pca.krylov_plan import krylov_candidates
from streampca.models.pca.panels import gram_by_panels, panel_candidates
from streampca.models.pca.scatter import (
    scatter_candidates,
    solve_scatter,
    solve_tsqr,
    tsqr_candidates,
)
from streampca.models.pca.sketch import sketch, sketch_candidates
from streampca.models.request import Request
from streampca.passes import (
    Candidate,
    Execution,
    Pass,
    PassCost,
    PassPlan,
    PassResult,
    Plan,
    Rates,
    Route,
    SolverInput,
    follow,
    make_plan,
)
from streampca.store import MemorySink

ROUTES: dict[str, Route[Request, Fitted]] = {
    "scatter": Route(scatter_candidates, solve_scatter),
    "tsqr": Route(tsqr_candidates, solve_tsqr),
    "gram": Route(gram_candidates, gram_by_features),
    "gram by panels": Route(panel_candidates, gram_by_panels),
    "krylov": Route(krylov_candidates, krylov),
    "sketch": Route(sketch_candidates, sketch),
}
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


def plan_pca(matrix: ChunkedMatrix, request: Request) -> Plan:
    """The plan of a PCA as it is requested.

    Raises InvalidInputError for a solver that does not suit, MemoryLimitError where none fits.
    """
    solver = ALIASES.get(request.svd_solver, request.svd_solver)
    if solver not in SOLVERS:
        raise InvalidInputError(f"svd_solver={solver!r}; expected one of {SOLVERS}")
    holes_removed = request.missing == "mean" and request.side.basis is not None
    if holes_removed and solver not in ("auto", "gram", "randomized"):
        raise InvalidInputError(
            f"missing='mean' with remove= and svd_solver={solver!r}: a hole holds what the design "
            "says there, which streamed samples cannot know in one pass. Use svd_solver='gram', "
            "which streams features"
        )
    names = TAKEN[solver]
    if holes_removed:  # samples that are streamed cannot know what the design says there
        names = tuple(name for name in names if name in ("gram", "krylov"))
    if request.relationship is not None or request.loadings is not None:
        if solver not in ("auto", "gram"):
            raise InvalidInputError(
                f"relationship= and loadings= need the matrix of the samples, which "
                f"svd_solver={solver!r} does not form; use svd_solver='gram'"
            )
        names = ("gram",)
    elif solver == "auto" and request.cohort is None and _may_iterate(request):
        names = (*names, "krylov")
    candidates = [one for name in names for one in ROUTES[name].candidates(matrix, request)]
    if request.warm_start:
        candidates = [with_kept_sums(one) for one in candidates]
    return make_plan(matrix, "PCA", _ordered(matrix, request, candidates), request.memory_limit)


def _may_iterate(request: Request) -> bool:
    """Whether the iterative solver can answer: the number of components is known."""
    return request.count is not None and request.count > 0


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


def fit_pca(
    plan: Plan,
    matrix: ChunkedMatrix,
    request: Request,
    execution: Execution,
    warm_start: WarmStart | None = None,
) -> Fitted:
    """Run the plan's passes and solve; where the answer is uncertain, go over to another plan.

    warm_start : what an earlier fit of the same matrix left, and this one leaves.
    """
    inputs, side = SolverInput(plan, matrix, request, warm_start), request.side
    execution.n_passes = execution.first_pass + plan.n_passes
    fitted = follow(
        ROUTES[plan.solver],
        inputs,
        execution,
        weights=side.sample_weight,
        feature_weights=side.weights,
        recall=None if warm_start is None else warm_start.recall,
    )
    execution.finished()
    if not fitted.uncertain or plan.then is None:
        return fitted
    execution.first_pass, execution.plan = len(execution.costs), plan.then
    return fit_pca(plan.then, matrix, request, execution, warm_start)


class WarmStart:
    """Folded first passes, and the searched space of an iteration, kept in memory.

    A first pass depends on the matrix and not on how many components are asked: fitting again
    with another ``n_components`` then reads nothing (but for loadings that are computed from the
    new vectors). Only for the matrix, its content as far as its stamp tells, weights and request
    of the fit that left it.
    """

    def __init__(self) -> None:
        self._of = ""
        self._passes: dict[str, tuple[PassResult, dict[str, Any]]] = {}
        self.iteration: Any = None  # what the iterative solver left

    def turn_to(self, matrix: ChunkedMatrix, request: Request) -> None:
        """Forget everything that was left by another matrix or by another request."""
        taken = (request.svd_solver, request.standardize, request.missing, matrix.missing_value)
        digest = hashlib.sha256(repr(taken).encode())
        digest.update(matrix.content_stamp().encode())
        for name, array in vars(request.side).items():
            if isinstance(array, np.ndarray):
                digest.update(f"{name} {array.dtype} {array.shape}".encode())
                digest.update(np.ascontiguousarray(array).tobytes())
        if digest.hexdigest() != self._of:
            self._of = digest.hexdigest()
            self._passes.clear()
            self.iteration = None

    def recall(self, plan: PassPlan, wanted: Pass, run: Callable[[], PassResult]) -> PassResult:
        """The result of a first pass: the one that was kept, or that of ``run``, which is kept."""
        accumulators, sinks = wanted.accumulators(plan), wanted.sinks
        settings = [(n, repr([getattr(a, s) for s in a.settings])) for n, a in accumulators.items()]
        key = json.dumps([plan.to_dict(), settings], sort_keys=True)
        held = {n: sink.values for n, sink in sinks.items() if isinstance(sink, MemorySink)}
        if wanted.operands or len(held) < len(sinks):
            return run()
        if key not in self._passes:
            self._passes.clear()
            done = run()
            copies = {name: values.copy() for name, values in held.items()}
            self._passes[key] = (_copied(done), copies)
            return done
        kept, copies = self._passes[key]
        for name, values in copies.items():
            held[name][...] = values
        return _copied(kept)


def _copied(result: PassResult) -> PassResult:
    """A result that the caller may change; it cost nothing."""
    copies = {name: one.copied() for name, one in result.accumulators.items()}
    return PassResult(copies, PassCost(result.cost.name))
