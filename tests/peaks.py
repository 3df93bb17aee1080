"""Peaks of memory that programs reach in forks (:mod:`tests.forks`), and what was planned for them.

Both are compared above what the process holds when the measured part begins, after its imports and
a tiny run of the same kind, so that the plan's generous term for the interpreter hides nothing.

A plan bounds what can be held at one moment. Whether all threads hold their blocks at that moment
is a matter of scheduling, and on a busy machine they may not: one run that reaches it is enough.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest

from streampca.passes.memory import peak_nbytes
from tests.forks import forked

Found = dict[str, Any]

# What each program begins with: it ends with report(base), or report(base, plan).
PRELUDE = """
import json, sys, warnings
import numpy as np
import streampca
from streampca.passes import Execution
from streampca.passes.memory import code_nbytes, peak_nbytes, resident_nbytes

ask = json.loads(sys.argv[1])
plans = []

begun = Execution.begun

def recorded(plan, *rest):
    plans.append(plan)
    return begun(plan, *rest)

Execution.begun = recorded

def report(base, plan=None, **more):
    plan = plan or max(plans, key=lambda plan: plan.peak_nbytes)
    process = plan.memory["process"]
    print(json.dumps({
        "base": base, "peak": peak_nbytes(), "projected": plan.peak_nbytes,
        "rest": code_nbytes(process) + process["compiled kernels"],
        "memory": {phase: dict(terms) for phase, terms in plan.memory.items()}, **more,
    }))
"""

needs_proc = pytest.mark.skipif(not peak_nbytes(), reason="/proc is not there to measure with")


def measured(program: str, **ask: Any) -> Found:
    """What a program reports; it finds its questions in ``ask``."""
    found: Found = json.loads(forked(PRELUDE + program, json.dumps(ask)).splitlines()[-1])
    return found


def above_rest(found: Found) -> tuple[int, int]:
    """Bytes above the process at rest: (used, planned)."""
    held = found.get("held", 0)  # in the base, and in the plan
    return found["peak"] - found["base"], found["projected"] - found["rest"] - held


def check(found: Found) -> None:
    """The plan's terms bound what was measured above the process at rest."""
    used, planned = above_rest(found)
    assert used <= planned, f"used {used >> 20} MiB, planned {planned >> 20} MiB, {found['memory']}"
    rest = found["base"] - found.get("held", 0) - found.get("numba", 0)
    assert rest <= found["rest"], f"{rest >> 20} MiB at rest"


def runs_until(enough: Callable[[Found], bool], measure: Callable[[], Found]) -> list[Found]:
    """What each run found: at most three, the last being the first that was ``enough``."""
    runs = [measure()]
    while not enough(runs[-1]) and len(runs) < 3:
        runs.append(measure())
    return runs
