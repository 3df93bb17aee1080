"""A plan of a PCA is run: its passes, and what its route makes of them."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import Any, cast

from streampca.matrix import ChunkedMatrix
from streampca.models.fitted import Cohort, Fitted, SolverInput
from streampca.models.pca.carried import Carried
from streampca.models.pca.routes import ROUTES
from streampca.models.request import Request
from streampca.passes import Execution, PassResult, Plan, run


def fit_pca(
    plan: Plan,
    matrix: ChunkedMatrix,
    request: Request,
    execution: Execution,
    cohort: Cohort | None = None,
    carried: Carried | None = None,
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
    carried: Carried | None,
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
