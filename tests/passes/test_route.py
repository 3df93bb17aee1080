"""A route: it yields its passes, and is handed their results."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from pass_matrices import ToyMatrix

from streampca.accumulators import CrossProduct, Moments
from streampca.passes import (
    Candidate,
    Execution,
    Pass,
    Route,
    SolverInput,
    follow,
    make_plan,
    pass_spec,
)

X = np.random.default_rng(0).standard_normal((60, 8)) + 1.0


def look_and_power(matrix: Any, steps: int) -> list[Candidate]:
    """A look, and at most so many steps of a power method."""
    look = pass_spec("look", matrix, 0, {"columns": Moments(), "again": Moments()})
    product = CrossProduct(y="zq", center="center", width=3)
    step = replace(pass_spec("step", matrix, 0, {"product": product}), times=steps)
    return [Candidate("power", "", (look, step))]


def centred_image(block: Any) -> Any:
    return (block.values - block["center"]) @ block["q"]


def power(inputs: SolverInput[int]) -> Any:
    center = (yield Pass("look", changed={"again": None}))["columns"].columns().mean
    q = np.eye(len(center))[:, :1]
    for number in range(1, inputs.request + 1):
        done = yield Pass(
            "step",
            number,
            changed={"product": {"width": 1}},
            operands={"q": q, "center": center},
            maps={"zq": centred_image},
        )
        q = done.accumulators.pop("product").product
        q /= np.linalg.norm(q)
    return q[:, 0]


def follow_power(solve: Any, execution: Execution, steps: int = 60) -> Any:
    matrix = ToyMatrix(X, 20)
    plan = make_plan(matrix, "toy", look_and_power(matrix, steps))
    return follow(Route(look_and_power, solve), SolverInput(plan, matrix, steps), execution)


def test_a_route_is_handed_what_its_passes_sum() -> None:
    execution = Execution(scheduler="threads", first_pass=2)
    found = follow_power(power, execution)
    wanted = np.linalg.svd(X - X.mean(axis=0))[2][0]
    assert abs(found @ wanted) > 1 - 1e-6
    assert [one.name for one in execution.costs[:3]] == ["look", "step 1", "step 2"]
    assert execution.pass_number == 2 + 61


def test_an_interrupted_route_is_closed() -> None:
    closed = []

    def failing(inputs: SolverInput[int]) -> Any:
        try:
            yield Pass("look")
            yield Pass("step", maps={"zq": lambda block: 1 / 0})
        finally:
            closed.append(True)

    with pytest.raises(ZeroDivisionError):
        follow_power(failing, Execution(scheduler="threads"))
    assert closed == [True]


def test_what_the_plan_does_not_declare_is_refused() -> None:
    def misspelt(inputs: SolverInput[int]) -> Any:
        yield Pass("look", changed={"colums": {}})

    with pytest.raises(KeyError, match="colums"):
        follow_power(misspelt, Execution(scheduler="threads"))
