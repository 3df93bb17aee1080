"""The passes of each solver of a PCA, and what is made of their sums."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any, cast

import numpy as np

from streampca.matrix import ChunkedMatrix
from streampca.models.fitted import Cohort, Fitted, Resolution, Runner
from streampca.models.pca.carried import Carried
from streampca.models.pca.dual import count_missing
from streampca.models.pca.gram import gram_by_features
from streampca.models.pca.krylov import krylov
from streampca.models.pca.panels import gram_by_panels
from streampca.models.pca.removal import beside_design, factor_without, scatter_without
from streampca.models.pca.sketch import sketch
from streampca.models.pca.solve import solve_accumulator
from streampca.models.request import Request
from streampca.passes import Execution, PassResult, Plan, run
from streampca.store import MemorySink


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
    if plan.solver == "gram" and beside.basis is not None:
        matrix = matrix.without(beside.basis)

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

    if plan.solver == "gram":
        return gram_by_features(plan, matrix, request, step, cohort)
    solvers: dict[str, Callable[..., Fitted]] = {
        "scatter": _by_scatter,
        "tsqr": _by_tsqr,
        "gram by panels": gram_by_panels,
        "krylov": partial(krylov, carried=carried),
        "sketch": sketch,
    }
    fitted = solvers[plan.solver](plan, matrix, request, step)
    execution.finished()
    return fitted


def _by_scatter(plan: Plan, matrix: ChunkedMatrix, request: Request, step: Runner) -> Fitted:
    more: dict[str, Any] = {}
    counts = MemorySink(matrix.shape[0], 1, np.int64)
    if request.missing == "mean":
        more = {"maps": {"missing": count_missing}, "sinks": {"missing": counts}}
    resolution, removed = Resolution.of(matrix.dtype), None
    if (basis := request.side.basis) is not None:
        more["matrix"] = beside_design(matrix, basis)
    done = step("scatter", **more)["scatter"]
    if basis is not None:
        done, removed = scatter_without(done, basis.shape[1])
        resolution = replace(resolution, work=np.dtype(np.float64))
    fitted = solve_accumulator(done, request, resolution, min(matrix.shape), removed)
    if request.missing == "mean":
        fitted.missing_by_sample = counts.values[:, 0]
    return fitted


def _by_tsqr(plan: Plan, matrix: ChunkedMatrix, request: Request, step: Runner) -> Fitted:
    removed = None
    resolution, limit = Resolution.of(matrix.dtype), min(matrix.shape)
    if (basis := request.side.basis) is None:
        done = step("tsqr")["r"]
    else:
        joint = beside_design(matrix, basis)
        done = step("tsqr", matrix=joint)["r"]
        done, removed = factor_without(done, basis.shape[1])
    return solve_accumulator(done, request, resolution, limit, removed)
