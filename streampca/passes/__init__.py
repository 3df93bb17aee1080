"""How a matrix is read: plan, run, checkpoints, progress. The only room that schedules work."""

from streampca.passes.clients import find_client, is_client, started
from streampca.passes.door import MemoryUse, check_workers, warn_of_excess
from streampca.passes.execution import Advance, Execution, PassCost, PassResult, client_for
from streampca.passes.memory import parse_nbytes, size
from streampca.passes.plan import Rates, block_edges, easier_axis, make_plan, pass_spec
from streampca.passes.records import PassPlan, Plan, larger
from streampca.passes.run import Pass, Route, SolverInput, Steps, follow, run
from streampca.passes.settings import (
    all_threads,
    limited_threads,
    on_threads,
    setting,
    single_threaded_blas,
    thread_count,
)
from streampca.passes.specs import Candidate, PassSpec

__all__ = [
    "Advance",
    "Candidate",
    "Execution",
    "MemoryUse",
    "Pass",
    "PassCost",
    "PassPlan",
    "PassResult",
    "PassSpec",
    "Plan",
    "Rates",
    "Route",
    "SolverInput",
    "Steps",
    "all_threads",
    "block_edges",
    "check_workers",
    "client_for",
    "easier_axis",
    "find_client",
    "follow",
    "is_client",
    "larger",
    "limited_threads",
    "make_plan",
    "on_threads",
    "parse_nbytes",
    "pass_spec",
    "run",
    "setting",
    "single_threaded_blas",
    "size",
    "started",
    "thread_count",
    "warn_of_excess",
]
