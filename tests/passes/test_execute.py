"""A candidate: its solver yields passes, and is handed their results."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from pass_matrices import ToyMatrix

from streampca.accumulators import CrossProduct, Moments
from streampca.passes import (
    Advance,
    Candidate,
    Outcome,
    Pass,
    PassSpec,
    Running,
    choose,
    execute,
    pass_spec,
)

X = np.random.default_rng(0).standard_normal((60, 8)) + 1.0
HERE = Running(scheduler="threads")


def look_and_power(matrix: Any, solve: Any, steps: int) -> Candidate[Any]:
    """A look, and at most so many steps of a power method."""
    look = pass_spec("look", matrix, 0, {"columns": Moments(), "again": Moments()})
    product = CrossProduct(y="zq", center="center", width=3)
    step = replace(pass_spec("step", matrix, 0, {"product": product}), times=steps)
    solver = partial(solve, look=look, step=step, steps=steps)
    return Candidate("power", "", (look, step), solve=solver)


def centred_image(block: Any) -> Any:
    return (block.values - block["center"]) @ block["q"]


def power(
    planned: Any, *, look: PassSpec, step: PassSpec, steps: int, after: int | None = None
) -> Any:
    center = (yield Pass(look, changed={"again": None}, after=after))["columns"].columns().mean
    q = np.eye(len(center))[:, :1]
    for number in range(1, steps + 1):
        done = yield Pass(
            step,
            number,
            changed={"product": {"width": 1}},
            operands={"q": q, "center": center},
            maps={"zq": centred_image},
        )
        q = done.accumulators.pop("product").product
        q /= np.linalg.norm(q)
    return q[:, 0]


def fit(solve: Any, running: Running = HERE, steps: int = 60, **more: Any) -> Outcome[Any]:
    matrix = ToyMatrix(X, 20)
    return execute(choose(matrix, "toy", [look_and_power(matrix, solve, steps)]), running, **more)


def test_a_solver_is_handed_what_its_passes_sum() -> None:
    seen: list[Advance] = []
    done = fit(partial(power, after=2), replace(HERE, progress=seen.append))
    wanted = np.linalg.svd(X - X.mean(axis=0))[2][0]
    assert abs(done.answer @ wanted) > 1 - 1e-6
    assert [one.name for one in done.costs[:3]] == ["look", "step 1", "step 2"]
    assert seen[-1].pass_number == 2 + 61  # two passes were made before


def test_an_interrupted_solver_is_closed() -> None:
    closed = []

    def failing(planned: Any, *, look: PassSpec, step: PassSpec, steps: int) -> Any:
        try:
            yield Pass(look)
            yield Pass(step, maps={"zq": lambda block: 1 / 0})
        finally:
            closed.append(True)

    with pytest.raises(ZeroDivisionError):
        fit(failing)
    assert closed == [True]


def test_a_pass_with_an_undeclared_accumulator_is_refused() -> None:
    def misspelt(planned: Any, *, look: PassSpec, step: PassSpec, steps: int) -> Any:
        yield Pass(look, changed={"colums": {}})

    with pytest.raises(KeyError, match="colums"):
        fit(misspelt)


def test_a_composition_finds_the_passes_of_its_parts() -> None:
    """Under the names, and with the memory, that the composition gives them."""
    matrix = ToyMatrix(X, 20)
    inner = look_and_power(matrix, power, 3)
    renamed = tuple(
        replace(one, name=f"X {one.name}", kept={"more": 1 << 20}) for one in inner.passes
    )

    def outer(planned: Any) -> Any:
        return (yield from inner.solve(planned)), "and more"

    whole = Candidate("outer", "", renamed, solve=outer)
    done = execute(choose(matrix, "toy", [whole]), HERE)
    assert np.array_equal(done.answer[0], fit(power, steps=3).answer)
    assert [one.name for one in done.costs] == ["X look", "X step 1", "X step 2", "X step 3"]
    assert done.plan.memory["X step"]["more"] == 1 << 20


@dataclass
class Answer:
    value: float
    doubt: str = ""


def test_a_doubtful_answer_goes_over_to_the_second_candidate() -> None:
    matrix = ToyMatrix(X, 20)

    def solver(planned: Any, *, spec: PassSpec, doubt: str) -> Any:
        done = yield Pass(spec)
        return Answer(float(done["columns"].columns().mean[0]), doubt)

    def way(name: str, doubt: str, **more: Any) -> Candidate[Answer]:
        spec = pass_spec(name, matrix, 0, {"columns": Moments()})
        return Candidate(name, "", (spec,), solve=partial(solver, spec=spec, doubt=doubt), **more)

    sure = way("sure", "")
    for doubt, names in (("no", ["quick", "sure"]), ("", ["quick"])):
        done = execute(choose(matrix, "toy", [way("quick", doubt, then=sure)]), HERE)
        assert [one.name for one in done.costs] == names
        assert done.answer == Answer(X[:, 0].mean(), "")
        assert (done.plan.solver, done.plan.then.solver, done.plan.n_passes) == ("quick", "sure", 2)


def test_what_cannot_be_run_is_refused_when_it_is_declared() -> None:
    matrix = ToyMatrix(X, 20)
    spec = pass_spec("look", matrix, 0, {"columns": Moments()})
    for passes in ((), (spec, replace(spec, key=object())), (replace(spec, name="solver"),)):
        with pytest.raises(ValueError, match="expected different names"):
            Candidate("toy", "", passes)

    def other(planned: Any) -> Any:
        yield Pass(replace(spec, name="other", key=object()))

    with pytest.raises(ValueError, match="'toy' declares no pass 'other'"):
        execute(choose(matrix, "toy", [Candidate("toy", "", (spec,), solve=other)]), HERE)


def test_checkpoints_stay_until_the_second_candidate_has_answered(tmp_path: Path) -> None:
    matrix, fails = ToyMatrix(X, 20), True
    specs = [pass_spec(name, matrix, 0, {"columns": Moments()}) for name in ("quick", "sure")]

    def solver(planned: Any, *, spec: PassSpec, doubt: str) -> Any:
        if fails and not doubt:
            raise OSError("the second way could not begin")
        done = yield Pass(spec)
        return Answer(float(done["columns"].columns().mean[0]), doubt)

    sure = Candidate("sure", "", (specs[1],), solve=partial(solver, spec=specs[1], doubt=""))
    quick = Candidate(
        "quick", "", (specs[0],), then=sure, solve=partial(solver, spec=specs[0], doubt="no")
    )
    running = replace(HERE, checkpoint=str(tmp_path))
    with pytest.raises(OSError, match="could not begin"):
        execute(choose(matrix, "toy", [quick]), running)
    fails = False
    done = execute(choose(matrix, "toy", [quick]), running)
    assert [one.resumed_blocks for one in done.costs] == [1, 0]  # all of the first pass
    assert done.answer == Answer(X[:, 0].mean(), "")
    assert not list(tmp_path.iterdir())
