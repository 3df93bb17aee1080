"""The ways to compute a factor analysis, with their passes and costs."""

from __future__ import annotations

from typing import Any

from streampca.accumulators import MeanImputedScatter, Scatter
from streampca.errors import InvalidInputError
from streampca.matrix import ChunkedMatrix
from streampca.passes import Candidate, Plan, make_plan, pass_spec

SOLVERS = ("auto", "scatter")


def plan_factors(matrix: ChunkedMatrix, settings: dict[str, Any]) -> Plan:
    """The plan of a factor analysis with these settings (the estimator's parameters).

    Raises InvalidInputError for a solver that does not suit, MemoryLimitError where none fits.
    """
    solver = settings["solver"]
    if solver not in SOLVERS:
        raise InvalidInputError(f"solver={solver!r}; expected one of {SOLVERS}")
    candidates = [_scatter(matrix, settings)]
    return make_plan(matrix, "FactorAnalysis", candidates, settings["memory_limit"])


def scatter_of(settings: dict[str, Any]) -> Scatter | MeanImputedScatter:
    """The empty accumulator of these settings."""
    return MeanImputedScatter() if settings["missing"] == "mean" else Scatter()


def _scatter(matrix: ChunkedMatrix, settings: dict[str, Any]) -> Candidate:
    n, p = matrix.shape
    times = 4.0 if settings["missing"] == "mean" else 1.0
    spec = pass_spec("scatter", matrix, 0, [scatter_of(settings)], flops=times * n * p * p)
    solve = 9 * p * p * 8  # two points of the search with their vectors, two Hessians, work
    flops = 8.0 * (9.0 + 2.0 * settings["n_components"] + 4.0) * p**3
    reason = "one pass; p x p correlations, then Newton steps to the largest likelihood"
    return Candidate("scatter", reason, (spec,), spec.total_nbytes + solve, flops)
