"""Whether a plan fits into the memory of this machine, and into that of the workers."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib import import_module
from typing import Any, Self
from weakref import WeakKeyDictionary

from streampca.errors import MemoryLimitError, MemoryPlanWarning, warn_caller
from streampca.imported import weighing
from streampca.kernels import give_back
from streampca.passes import door, memory
from streampca.passes.cluster.calls import call_seconds, identities
from streampca.passes.cluster.workers import ask_each, await_worker, refuse_other_versions, unheard
from streampca.passes.memory import (
    WORKER_NBYTES,
    MiB,
    as_limit,
    brought,
    code_nbytes,
    imports,
    size,
    unforeseen,
)
from streampca.passes.records import KEPT, PassPlan, Plan

# Whether a plan fits here: the memory of its libraries in this process, and that of the machine.
#
# Measurements never change a plan, which is the same on every machine. They only refuse it, or warn
# afterwards that a fit took more.

HELD = ("labels", "source", "X in memory")  # terms of a process that exist before a fit
SLACK_NBYTES = 4 * MiB  # the kernel counts pages of each thread in batches
# library -> the module to import, where it is not the package itself
MODULES = {"dask": "dask.array", "sklearn": "sklearn.feature_extraction.text"}
SOLVING = (  # modules that any fit needs
    "scipy.linalg.cython_blas",
    "scipy.linalg.cython_lapack",
    "scipy.special",
    "scipy.sparse",
)


def check_room(plan: Plan) -> None:
    """Refuse a plan that this process, this machine or its control group cannot hold.

    The libraries that the plan needs are imported and counted by their measured memory, within the
    memory limit. Everything else that the process holds must fit into the machine beside the plan.
    Raises MemoryLimitError that names the smallest limit that would do.
    """
    load(plan.memory["process"])
    check_limit(plan)
    check_machine(plan)


def load(process: Mapping[str, int]) -> None:
    """Import the libraries that a plan counts, and measure the memory of new ones.

    What every fit needs beside them is part of the interpreter, and loads first.
    """
    for name in SOLVING:
        import_module(name)
    for name in imports(process):
        with weighing(), contextlib.suppress(ImportError):  # reported where it is needed
            import_module(MODULES.get(name, name))


def check_limit(plan: Plan) -> None:
    """Refuse a plan that exceeds its limit with the measured memory of the libraries."""
    more, limit = unforeseen(plan.memory["process"]), plan.memory_limit
    if limit is None or plan.peak_nbytes + more <= limit:
        return
    smallest = enough_for(plan)
    raise MemoryLimitError(
        f"memory_limit={size(limit)} is too small for {plan.method} in this process: the plan "
        f"needs {size(plan.peak_nbytes)}, and {', '.join(imports(plan.memory['process']))} with "
        f"what they load take {size(more)} more here than it counts. The smallest limit that "
        f"would do is memory_limit={as_limit(smallest, up=True)!r}.",
        smallest,
    )


def enough_for(plan: Plan) -> int:
    """The smallest limit whose plan, perhaps another one, holds its libraries as they weigh here.

    They are imported: a limit that leaves them out would be refused in its turn when a fit begins.
    """
    process = plan.memory["process"]
    load(process)
    return enough((*plan.passed_over, plan.portable_nbytes), unforeseen(process) + brought(process))


def enough(peaks: Sequence[int], more: int) -> int:
    """The smallest limit such that the first peak within it leaves ``more`` bytes to spare.

    peaks : of the schedules in the order in which they are tried. A larger limit may choose a more
    generous schedule, which then needs a larger limit again.
    """
    limits = sorted(-(-(peak + more) // MiB) * MiB for peak in peaks)
    fits = (one for one in limits if next(p for p in peaks if p <= one) + more <= one)
    return next(fits)


def check_machine(plan: Plan) -> None:
    """Refuse a plan that does not fit into this machine or its control group."""
    available = memory.available_nbytes()
    if available is None:
        return
    other = other_nbytes(plan, memory.resident_nbytes())
    if plan.peak_nbytes + other <= available:
        return
    rest = available - other if available > other else available
    holds = f" beside the {size(other)} that this process holds already" if other else ""
    raise MemoryLimitError(
        f"the plan needs {size(plan.peak_nbytes)}{holds} and this machine (or its control group) "
        f"gives {size(available)}. Set memory_limit={as_limit(rest)!r} to look for a smaller plan, "
        "or use a larger machine."
    )


def room_for(plan: Plan) -> int | None:
    """Bytes that a plan may grow to here: within its limit, and what the machine has; or None."""
    available, room = memory.available_nbytes(), []
    if available is not None:
        room.append(available - other_nbytes(plan, memory.resident_nbytes()))
    if plan.memory_limit is not None:
        room.append(plan.memory_limit - unforeseen(plan.memory["process"]))
    return min(room, default=None)


def other_nbytes(plan: Plan, resident: int) -> int:
    """Bytes that a process with so many resident bytes holds and the plan does not count."""
    return _beside(plan.memory["process"], resident)


def own_peak(memory: Mapping[str, Mapping[str, int]], peak: int, held: int | None) -> int:
    """The peak of a fit without what its process held before that the plan does not count.

    memory : of the plan, by part and term.  peak, held : resident bytes, at most and before.
    """
    return peak - (0 if held is None or not memory else _beside(memory["process"], held))


def _beside(process: Mapping[str, int], resident: int) -> int:
    counted = code_nbytes(process) + sum(process[name] for name in HELD)
    return max(0, resident - counted)


@dataclass
class MemoryUse:
    """Resident bytes of this process: ``held`` when the fit began, ``sampled`` the most since.

    high : the process's high-water mark at the beginning. It is never reset: other observers of
        the process use it too.
    more : of threads beyond the lanes of the plan.
    warned : whether the caller was.
    """

    held: int
    high: int
    sampled: int
    more: int = 0
    warned: bool = False

    @classmethod
    def begun(cls) -> Self:
        """The state at the beginning of a fit."""
        held = memory.resident_nbytes()
        return cls(held, memory.peak_nbytes(), held)

    def sample(self) -> None:
        """Measure again; called after every block."""
        self.sampled = max(self.sampled, memory.resident_nbytes())

    def peak_nbytes(self) -> int:
        """The most so far: the high-water mark if it rose, else the largest sample."""
        high = memory.peak_nbytes()
        self.sample()
        return high if high > self.high else self.sampled

    def of_plan(self, plan: Plan) -> int:
        """The peak without what the process held before and the plan does not count."""
        return self.peak_nbytes() - other_nbytes(plan, self.held)


def warn_of_excess(plan: Plan | None, use: MemoryUse) -> None:
    """Warn, once, if what ran with a memory limit took more than its plan."""
    if plan is None or plan.memory_limit is None or use.warned:
        return
    taken = use.of_plan(plan) - use.more
    if taken <= plan.peak_nbytes + SLACK_NBYTES:
        return
    use.warned = True
    warn_caller(
        f"{plan.method} took {size(taken)} of memory and had planned {size(plan.peak_nbytes)} for "
        f"memory_limit={as_limit(plan.memory_limit)!r}. The result is right. For a machine that "
        f"has no more than the limit, plan for less: memory_limit="
        f"{as_limit(max(MiB, plan.memory_limit - (taken - plan.peak_nbytes)))!r}.",
        MemoryPlanWarning,
    )


# Whether a plan fits into the memory of workers, beside what they hold before the first block.

MEASURE_SECONDS = 15.0  # that a worker has to load libraries and report its memory


@dataclass(frozen=True)
class AtRest:
    """The memory of a worker before the first block.

    held : resident bytes with the libraries of a plan, without data that it may spill to disk.
    pause : the share of its memory limit at which it stops taking tasks; 1 if it never does.
    """

    held: int = 0
    pause: float = 1.0


_known: WeakKeyDictionary[Any, dict[str, AtRest]] = WeakKeyDictionary()  # client -> worker -> last


def check_workers(client: Any, plan: Plan) -> None:
    """Refuse a plan whose lanes need more memory than workers have before they pause.

    Waits for a worker; those that are too small to begin with may never take tasks, and are refused
    as soon as the scheduler knows of them. What the workers already hold is measured. Cost: they
    import the libraries of the plan. Raises MemoryLimitError, and ClusterError as ``await_worker``.
    """
    await_worker(client, seen=lambda: _check_all(plan, _limited(client), {}))
    refuse_other_versions(client)
    limited = _limited(client)
    heard = [address for address in limited if address not in unheard(client)]
    measured: dict[str, AtRest] = {}
    if heard:
        libraries = list(imports(plan.memory["process"]))
        measured = client.sync(_ask, client, heard, libraries)
        _known.setdefault(client, {}).update(measured)
    _check_all(plan, limited, measured)


def _limited(client: Any) -> dict[str, Any]:
    """The workers that have a memory limit."""
    return {one: worker for one, worker in identities(client).items() if worker.get("memory_limit")}


def _check_all(
    plan: Plan, workers: Mapping[str, Mapping[str, Any]], measured: Mapping[str, AtRest]
) -> None:
    each: Plan | None = plan
    while each is not None:
        for address, worker in workers.items():
            _check(each, address, worker, measured.get(address, AtRest()))
        each = each.then


def _check(plan: Plan, address: str, worker: Mapping[str, Any], rest: AtRest) -> None:
    limit, lanes = int(worker["memory_limit"]), worker["nthreads"]
    code = max(_code(plan), rest.held)
    spans = max((_spans(plan, one, lanes) for one in plan.passes), default=0)
    if code + spans <= limit * rest.pause:
        return
    pauses = ""
    if rest.pause < 1:
        pauses = f", takes no more tasks above {size(int(limit * rest.pause))} of it"
    holds = f", holds {size(rest.held)} before the first block" if rest.held else ""
    enough = as_limit(int((code + spans) / rest.pause), up=True)
    raise MemoryLimitError(
        f"worker {address} may use {size(limit)}{pauses}{holds}, and the plan needs "
        f"{size(code + spans)} on its {lanes} threads: a memory limit of {enough} would do. Start "
        "workers with fewer threads or more memory, or set memory_limit to look for a smaller plan."
    )


def memory_used_where_room(client: Any, plan: Plan | None, one: PassPlan) -> dict[str, int]:
    """Worker -> bytes in use, for workers with room for the total of a pass beside their lanes."""
    measured = _known.get(client, {})
    found = {}
    for address, worker in identities(client).items():
        limit, rest = worker.get("memory_limit"), measured.get(address, AtRest())
        if not limit or plan is None or _with_total(plan, one, worker, rest) <= limit * rest.pause:
            found[address] = int(worker.get("metrics", {}).get("memory", 0))
    return found


def _with_total(plan: Plan, one: PassPlan, worker: Mapping[str, Any], rest: AtRest) -> int:
    named = (one,) if one.name in plan.memory else plan.passes  # "step 2" of "step"
    spans = max(_spans(plan, each, worker["nthreads"], total=True) for each in named)
    return max(_code(plan), rest.held) + spans


def _code(plan: Plan) -> int:
    """Projected bytes of a worker's process, its kernels compiled."""
    process = plan.memory["process"]
    return code_nbytes(process) + process["compiled kernels"] + WORKER_NBYTES


def _spans(plan: Plan, one: PassPlan, lanes: int, total: bool = False) -> int:
    """Bytes of one pass on a worker with so many lanes and all operands.

    total : also keep the total: with a copy to send, and a received span with its pickled form.
    """
    terms = dict(plan.memory[one.name])
    planned = max(1, min(plan.lanes, len(one.spans)))
    partial = terms.pop("partial accumulators") // planned
    kept, folded = sum(terms.pop(n, 0) for n in KEPT), terms.pop("folded accumulators")
    # per lane: its blocks, the span that it folds, and one that waits to be fetched
    need = kept + lanes * (sum(terms.values()) // planned + 2 * partial)
    return need + (2 * (folded + partial) if total else 0)


async def _ask(client: Any, addresses: Sequence[str], libraries: list[str]) -> dict[str, AtRest]:
    """The memory of each worker, without those that do not answer."""
    seconds = min(MEASURE_SECONDS, call_seconds())
    answers = await ask_each(client, addresses, seconds, at_rest, libraries)
    return {one: answer for one, answer in answers.items() if isinstance(answer, AtRest)}


async def at_rest(libraries: list[str], dask_worker: Any) -> AtRest:
    """The memory of this worker, after loading the libraries outside its event loop."""
    await asyncio.to_thread(door.load, dict.fromkeys(libraries, 0))
    give_back()
    manager = dask_worker.memory_manager
    spills = getattr(manager, "memory_target_fraction", False) or getattr(
        manager, "memory_spill_fraction", False
    )
    pause = getattr(manager, "memory_pause_fraction", False)
    spillable = _in_memory(dask_worker) if spills else 0
    return AtRest(max(0, memory.resident_nbytes() - spillable), float(pause or 1.0))


def _in_memory(worker: Any) -> int:
    """Bytes of task results in its memory, by Dask's count, without those spilled to disk."""
    spilled = getattr(getattr(worker, "data", None), "spilled_total", None)
    return max(0, int(worker.state.nbytes) - int(getattr(spilled, "memory", 0)))
