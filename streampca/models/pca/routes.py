"""The ways to a PCA, one row each: how it is planned, and what is made of its passes.

A plan names its solver, and runs by the same row. To add a way: a file with its two functions, and
a row here; ``auto`` takes it in by its predicted time (:mod:`streampca.models.pca.plan`).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, cast

from streampca.matrix import ChunkedMatrix
from streampca.models.fitted import Cohort, Fitted, SolverInput
from streampca.models.pca.gram import gram_by_features, gram_candidate
from streampca.models.pca.krylov import krylov
from streampca.models.pca.krylov_plan import krylov_candidates
from streampca.models.pca.panels import gram_by_panels, panel_candidates
from streampca.models.pca.scatter import (
    scatter_candidate,
    solve_scatter,
    solve_tsqr,
    tsqr_candidate,
)
from streampca.models.pca.sketch import sketch, sketch_candidate
from streampca.models.pca.warm_start import WarmStart
from streampca.models.request import Request
from streampca.passes import Candidate, Execution, PassResult, Plan, run


@dataclass(frozen=True)
class Route:
    """One way to a PCA.

    candidates : its plans for a matrix, the most generous first; the pass that declares an
        accumulator in them is the one that folds it.
    solve : runs those passes, and solves.
    """

    candidates: Callable[[ChunkedMatrix, Request], list[Candidate]]
    solve: Callable[[SolverInput], Fitted]


ROUTES = {
    "scatter": Route(lambda *asked: [scatter_candidate(*asked)], solve_scatter),
    "tsqr": Route(lambda *asked: [tsqr_candidate(*asked)], solve_tsqr),
    "gram": Route(lambda *asked: [gram_candidate(*asked)], gram_by_features),
    "gram by panels": Route(panel_candidates, gram_by_panels),
    "krylov": Route(krylov_candidates, krylov),
    "sketch": Route(lambda *asked: [sketch_candidate(*asked)], sketch),
}


def fit_pca(
    plan: Plan,
    matrix: ChunkedMatrix,
    request: Request,
    execution: Execution,
    cohort: Cohort | None = None,
    carried: WarmStart | None = None,
) -> Fitted:
    """Run the plan's passes and solve.

    cohort : all samples, where ``matrix`` holds some of them and all are to be scored in the
        pass for the loadings (solver "gram" only).
    carried : what an earlier fit of the same matrix left, and this one leaves.
    """
    execution.n_passes = plan.n_passes
    fitted = _run(plan, matrix, request, execution, cohort, carried)
    if fitted.uncertain and plan.then is not None:
        execution.first_pass = len(execution.costs)
        execution.n_passes = execution.first_pass + plan.then.n_passes
        execution.plan = plan.then
        return _run(plan.then, matrix, request, execution, cohort, carried)
    return fitted


def _run(
    plan: Plan,
    matrix: ChunkedMatrix,
    request: Request,
    execution: Execution,
    cohort: Cohort | None,
    carried: WarmStart | None,
) -> Fitted:
    """The passes of one solver, and what is made of them."""
    beside = request.side

    def step(name: str, matrix: ChunkedMatrix = matrix, number: int = 1, **more: Any) -> PassResult:
        """One pass of the plan; weights of samples, and of streamed features, come with it."""
        one = plan.named(name)
        before = sum(p.times for p in plan.passes[: plan.passes.index(one)])
        execution.pass_number = execution.first_pass + before + number
        if one.times > 1:
            one = replace(one, name=f"{name} {number}")
        if one.axis == 1 and beside.weights is not None:
            more["side_inputs"] = {**more.get("side_inputs", {}), "feature_weights": beside.weights}
        more.setdefault("weights", beside.sample_weight)
        if carried is None or one.axis != plan.passes[0].axis or one.name != plan.passes[0].name:
            return run(one, matrix, execution=execution, **more)
        once = partial(run, one, matrix, execution=execution, **more)
        return cast(PassResult, carried.recall(one, once, more))

    given = SolverInput(plan, matrix, request, step, cohort, carried)
    fitted = ROUTES[plan.solver].solve(given)
    execution.finished()
    return fitted
