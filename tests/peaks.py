"""Peaks that were measured, where the test needs them to be reached and not only bounded.

A plan bounds what can be held at one moment. Whether all threads hold their blocks at that moment
is a matter of scheduling, and on a busy machine they may not: one run that reaches it is enough.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from streampca.passes import Execution, Plan


def recorded_plans() -> list[Plan]:
    """Takes the plan of everything that runs in this process from now on."""
    plans: list[Plan] = []
    begun = Execution.begun

    def recording(plan: Plan, *rest: Any, **more: Any) -> Execution:
        plans.append(plan)
        return begun(plan, *rest, **more)

    Execution.begun = recording  # type: ignore[assignment, method-assign]
    return plans


def runs_until(
    enough: Callable[[dict[str, Any]], bool], measure: Callable[[], dict[str, Any]]
) -> list[dict[str, Any]]:
    """What each run found: at most three, the last being the first that was ``enough``."""
    runs = [measure()]
    while not enough(runs[-1]) and len(runs) < 3:
        runs.append(measure())
    return runs
