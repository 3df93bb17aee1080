"""EM of a linear Gaussian model, one read for each step, until nothing is left to gain."""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from streampca.accumulators import LatentEquations
from streampca.errors import AccuracyWarning
from streampca.kernels import Array
from streampca.matrix import ChunkedMatrix
from streampca.passes import (
    Candidate,
    Execution,
    Plan,
    make_plan,
    pass_spec,
    run,
    single_threaded_blas,
)
from streampca.solvers import LatentState, expanded_step

LIKELY = 8  # steps that are usually enough, for the prediction of time
SLOWEST = 0.5  # rate of convergence that is always allowed for
ROUNDING = 1e-14  # of the log-likelihood


@dataclass(frozen=True)
class EmResult:
    """Parameters whose log-likelihood is known, and how it came there.

    seen : (p,) weights of the observed cells.
    trace : (passes,) log-likelihood at each pass; the last is that of ``state``.
    gain : what it may still lack, extrapolated.
    """

    state: LatentState
    seen: Array
    trace: Array
    gain: float
    converged: bool


def em_plan(
    matrix: ChunkedMatrix, k: int, max_passes: int, memory_limit: Any, scaled: bool
) -> Plan:
    """The plan of at most so many steps for k factors."""
    n, p = matrix.shape
    sums = LatentEquations(scale="scale" if scaled else None, width=k)
    spec = pass_spec(
        "em",
        matrix,
        0,
        [sums],
        flops=2.0 * n * p * k * (k + 4) + 4.0 * n * k**3,
        kept_nbytes=p * (3 * k + 6) * 8,  # the parameters, those before, and a copy of them
    )
    spec = replace(spec, times=max_passes, likely=min(max_passes, LIKELY))
    solve = spec.total_nbytes + p * ((k + 1) * (k + 3) + 4 * k + 8) * 8
    reason = f"one read for each step of EM, at most {max_passes}"
    return make_plan(matrix, "EM", [Candidate("em", reason, (spec,), solve)], memory_limit)


def joined_plan(first: Plan, second: Plan, method: str) -> Plan:
    """One plan of the passes of two, which run one after the other."""
    memory: dict[str, dict[str, int]] = {"process": {}}
    for term in {**first.memory["process"], **second.memory["process"]}:
        both = [one.memory["process"].get(term, 0) for one in (first, second)]
        memory["process"][term] = max(both)
    memory |= {name: dict(terms) for name, terms in first.memory.items() if name != "process"}
    for name, terms in second.memory.items():
        if name != "process":
            memory[f"{second.solver} solver" if name == "solver" else name] = dict(terms)
    return replace(
        first,
        method=method,
        solver=f"{first.solver}, {second.solver}",
        reason=f"{first.reason}; where there are holes, {second.reason}",
        passes=first.passes + second.passes,
        memory=memory,
        solve_flops=first.solve_flops + second.solve_flops,
    )


def run_em(
    plan: Plan,
    matrix: ChunkedMatrix,
    state: LatentState,
    *,
    scale: Array | None,
    shared: bool,
    lower: float,
    tol: float,
    execution: Execution,
    weights: Array | None,
) -> EmResult:
    """EM from ``state``, one read a step; the trace is the log-likelihood of the data.

    plan : of the steps alone; ``execution.n_passes`` counts those before it too.
    scale : (p,) divisors of the columns, 0 for those that are left out, or None.
    weights : (n,) of the samples, or None.  shared, lower : as :func:`expanded_step`.
    Warns (AccuracyWarning) where the likelihood may still gain more than ``tol``.
    """
    most = plan.passes[0].times
    before = execution.n_passes - most
    operands: dict[str, Any] = {} if scale is None else {"scale": scale}
    width = state.loadings.shape[1]
    empty = LatentEquations(scale=None if scale is None else "scale", width=width)

    def step(number: int, here: LatentState) -> LatentEquations:
        execution.pass_number = before + number
        sums: LatentEquations = run(
            replace(plan.passes[0], name=f"em {number}"),
            matrix,
            accumulators={"sums": empty},
            operands=operands | vars(here),
            weights=weights,
            execution=execution,
        )["sums"]
        return sums

    found = iterate(step, state, scale=scale, shared=shared, lower=lower, tol=tol, max_passes=most)
    execution.finished()
    if not found.converged:
        warnings.warn(
            f"EM has not converged in max_passes={most}: the log-likelihood may still gain about "
            f"{found.gain:.2g} (tol={tol:g})",
            AccuracyWarning,
            stacklevel=4,
        )
    if scale is None:
        return found
    logs = np.log(scale, out=np.zeros_like(scale), where=scale > 0)
    return replace(found, trace=found.trace - float(found.seen @ logs))


def iterate(
    step: Callable[[int, LatentState], LatentEquations],
    state: LatentState,
    *,
    scale: Array | None,
    shared: bool,
    lower: float,
    tol: float,
    max_passes: int,
) -> EmResult:
    """EM from ``state`` until the log-likelihood has at most ``tol`` to gain.

    step : folds pass number i under these parameters.  The rest as :func:`expanded_step`.
    The gain is extrapolated from the last two: a rate a leaves a / (1 - a) times the last one.
    A likelihood that fell, which only rounding can do, ends it at the state before.
    """
    trace: list[float] = []
    before = state
    while True:
        sums = step(len(trace) + 1, state)
        if trace and sums.likelihood < trace[-1]:  # by rounding alone
            gain = trace[-1] - sums.likelihood
            return EmResult(before, sums.seen, np.array(trace), gain, gain <= tol)
        trace.append(sums.likelihood)
        gain = _left_to_gain(trace)
        if gain <= tol or len(trace) >= max_passes:
            return EmResult(state, sums.seen, np.array(trace), gain, gain <= tol)
        before = state
        with single_threaded_blas():
            state = expanded_step(sums, state, scale, shared, lower)


def _left_to_gain(trace: list[float]) -> float:
    """By extrapolation; infinite after fewer than three passes."""
    if len(trace) < 3:
        return math.inf
    before, last = trace[-2] - trace[-3], trace[-1] - trace[-2]
    if last <= ROUNDING * abs(trace[-1]):
        return last
    rate = min(max(last / before if before > 0 else 1.0, SLOWEST), 0.999)
    return last * rate / (1.0 - rate)
