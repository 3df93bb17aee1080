"""Whether a plan fits: into the memory of this machine, and into that of workers."""

from __future__ import annotations

import asyncio
import contextlib
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib import import_module
from typing import Any, Self
from weakref import WeakKeyDictionary

from streampca.errors import MemoryLimitError, MemoryPlanWarning
from streampca.imported import weighing
from streampca.kernels import give_back
from streampca.passes import door
from streampca.passes import memory as machine
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
from streampca.passes.workers import scheduler_answers

# --------------------------------------------------------------------------------------------------
# Whether a plan fits here: what its libraries weigh in this process, and what the machine gives.
#
# What is measured never changes a plan: it is one for every machine. It only refuses it, and says
# afterwards where a fit took more.

HELD = ("labels", "source", "X in memory")  # terms of a process that are there before a fit
SLACK_NBYTES = 4 * MiB  # the kernel counts pages of each thread in batches
MODULES = {"dask": "dask.array"}  # what is imported of a library, where that is not its top


def check_room(plan: Plan) -> None:
    """Refuse a plan that this process, this machine or its control group cannot hold.

    The libraries that it needs are imported, and count as what they weigh here: with them the
    limit must do. What else the process holds must fit the machine beside the plan.
    Raises MemoryLimitError, naming the smallest limit that would do.
    """
    load(plan.memory["process"])
    check_limit(plan)
    check_machine(plan)


def load(process: Mapping[str, int]) -> None:
    """Import the libraries that a plan counts, and weigh those that are new."""
    for name in imports(process):
        with weighing(), contextlib.suppress(ImportError):  # who needs it says that it is missing
            import_module(MODULES.get(name, name))


def check_limit(plan: Plan) -> None:
    """Refuse a plan that, with the libraries as they are here, does not keep its limit."""
    more, limit = unforeseen(plan.memory["process"]), plan.memory_limit
    if limit is None or plan.peak_nbytes + more <= limit:
        return
    raise MemoryLimitError(
        f"memory_limit={size(limit)} is too small for {plan.method} in this process: the plan "
        f"needs {size(plan.peak_nbytes)}, and {', '.join(imports(plan.memory['process']))} with "
        f"what they load weigh {size(more)} more here than it counts. The smallest limit that "
        f"would do is memory_limit={as_limit(enough_for(plan, more), up=True)!r}."
    )


def enough_for(plan: Plan, more: int = 0) -> int:
    """The smallest limit at which the plan, whatever it then is, has so many bytes to spare."""
    more += brought(plan.memory["process"])
    return enough((*plan.passed_over, plan.portable_nbytes), more)


def enough(peaks: Sequence[int], more: int) -> int:
    """The smallest limit at which the first of these peaks that it allows has bytes to spare.

    peaks : in the order in which they are tried. A larger limit may choose a more generous
    schedule, which needs a larger limit again.
    """
    limits = sorted(-(-(peak + more) // MiB) * MiB for peak in peaks)
    fits = (one for one in limits if next(p for p in peaks if p <= one) + more <= one)
    return next(fits)


def check_machine(plan: Plan) -> None:
    """Refuse a plan for which this machine, or the control group around it, has no room."""
    available = machine.available_nbytes()
    if available is None:
        return
    beside = held_beside(plan, machine.resident_nbytes())
    if plan.peak_nbytes + beside <= available:
        return
    rest = available - beside if available > beside else available
    holds = f" beside the {size(beside)} that this process holds already" if beside else ""
    raise MemoryLimitError(
        f"the plan needs {size(plan.peak_nbytes)}{holds} and this machine (or its control group) "
        f"gives {size(available)}. Set memory_limit={as_limit(rest)!r} to look for a smaller plan, "
        "or use a larger machine."
    )


def held_beside(plan: Plan, resident: int) -> int:
    """What a process of so many resident bytes holds that the plan does not count."""
    process = plan.memory["process"]
    counted = code_nbytes(process) + sum(process[name] for name in HELD)
    return max(0, resident - counted)


@dataclass
class MemoryUse:
    """Resident bytes of this process: ``held`` when the fit began, ``sampled`` the most since.

    high : the high-water mark of the process at the beginning. Nothing sets it back, since it is
        also that of whoever watches the process.
    """

    held: int
    high: int
    sampled: int

    @classmethod
    def begun(cls) -> Self:
        """Now."""
        held = machine.resident_nbytes()
        return cls(held, machine.peak_nbytes(), held)

    def sample(self) -> None:
        """Look again; after every block."""
        self.sampled = max(self.sampled, machine.resident_nbytes())

    def peak_nbytes(self) -> int:
        """The most so far: the high-water mark where it rose, else the largest sample."""
        high = machine.peak_nbytes()
        self.sample()
        return high if high > self.high else self.sampled

    def of_plan(self, plan: Plan) -> int:
        """That peak without what the process held that the plan does not count."""
        return self.peak_nbytes() - held_beside(plan, self.held)


def warn_of_excess(plan: Plan, use: MemoryUse) -> None:
    """Warn where a fit was given a limit and took more than its plan."""
    taken = use.of_plan(plan)
    if plan.memory_limit is None or taken <= plan.peak_nbytes + SLACK_NBYTES:
        return
    warnings.warn(
        f"{plan.method} took {size(taken)} of memory and had planned {size(plan.peak_nbytes)} for "
        f"memory_limit={as_limit(plan.memory_limit)!r}. The result is right. For a machine that "
        f"has no more than the limit, plan for less: memory_limit="
        f"{as_limit(max(MiB, plan.memory_limit - (taken - plan.peak_nbytes)))!r}.",
        MemoryPlanWarning,
        stacklevel=4,
    )


# --------------------------------------------------------------------------------------------------
# Whether a plan fits into the memory of workers, beside what they hold before the first block.

MEASURE_SECONDS = 15.0  # that a worker has to load libraries and to say what it holds


@dataclass(frozen=True)
class AtRest:
    """A worker before the first block.

    held : resident bytes with the libraries of a plan, without data that it may spill to disk.
    pause : the share of its memory limit at which it takes no more tasks; 1 where it never does.
    """

    held: int = 0
    pause: float = 1.0


_known: WeakKeyDictionary[Any, dict[str, AtRest]] = WeakKeyDictionary()  # client -> worker -> last


def check_workers(client: Any, plan: Plan) -> None:
    """Refuse a plan whose lanes do not fit into the workers' memory, below where they pause.

    What they hold is measured. Cost: the workers import the libraries of the plan.
    Raises MemoryLimitError.
    """
    workers = _workers(client)
    limited = [address for address, worker in workers.items() if worker.get("memory_limit")]
    measured: dict[str, AtRest] = {}
    if limited:
        libraries = list(imports(plan.memory["process"]))
        measured = client.sync(_ask, client, limited, libraries)
        _known.setdefault(client, {}).update(measured)
    for each in _one_after_another(plan):
        for address in limited:
            _check(each, address, workers[address], measured.get(address, AtRest()))


def _one_after_another(plan: Plan) -> list[Plan]:
    return [plan] if plan.then is None else [plan, *_one_after_another(plan.then)]


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


def roomy(client: Any, plan: Plan | None, one: PassPlan) -> dict[str, int]:
    """Workers that may hold the total of a pass beside their lanes, and bytes that each uses."""
    measured = _known.get(client, {})
    found = {}
    for address, worker in _workers(client).items():
        limit, rest = worker.get("memory_limit"), measured.get(address, AtRest())
        if not limit or plan is None or _with_total(plan, one, worker, rest) <= limit * rest.pause:
            found[address] = int(worker.get("metrics", {}).get("memory", 0))
    return found


def _with_total(plan: Plan, one: PassPlan, worker: Mapping[str, Any], rest: AtRest) -> int:
    named = (one,) if one.name in plan.memory else plan.passes  # "step 2" of "step"
    spans = max(_spans(plan, each, worker["nthreads"], total=True) for each in named)
    return max(_code(plan), rest.held) + spans


@scheduler_answers()
def _workers(client: Any) -> dict[str, Any]:
    return dict(client.scheduler_info(n_workers=-1)["workers"])


def _code(plan: Plan) -> int:
    """Projected bytes of a worker's process, its kernels compiled."""
    process = plan.memory["process"]
    return code_nbytes(process) + process["compiled kernels"] + WORKER_NBYTES


def _spans(plan: Plan, one: PassPlan, lanes: int, total: bool = False) -> int:
    """Bytes of one pass on a worker of so many lanes, which holds all operands.

    total : and merges: the total, a copy of it to be sent, and the span that came, pickled too.
    """
    terms = dict(plan.memory[one.name])
    planned = max(1, min(plan.lanes, len(one.spans)))
    partial = terms.pop("partial accumulators") // planned
    kept, folded = sum(terms.pop(n, 0) for n in KEPT), terms.pop("folded accumulators")
    # per lane: its blocks, the span that it folds, and one that waits to be fetched
    need = kept + lanes * (sum(terms.values()) // planned + 2 * partial)
    return need + (2 * (folded + partial) if total else 0)


# -- what workers say ----------------------------------------------------------------------------


async def _ask(client: Any, addresses: Sequence[str], libraries: list[str]) -> dict[str, AtRest]:
    """What each worker holds; without those that do not say."""

    async def one(address: str) -> Any:
        asked = client.run(at_rest, libraries, workers=[address], on_error="return")
        try:
            return (await asyncio.wait_for(asked, MEASURE_SECONDS)).get(address)
        except Exception as error:
            return error

    answers = zip(addresses, await asyncio.gather(*map(one, addresses)), strict=True)
    return {address: answer for address, answer in answers if isinstance(answer, AtRest)}


async def at_rest(libraries: list[str], dask_worker: Any) -> AtRest:
    """Of this worker, once it has loaded the libraries, beside its event loop."""
    await asyncio.to_thread(door.load, dict.fromkeys(libraries, 0))
    give_back()
    manager = dask_worker.memory_manager
    spills = getattr(manager, "memory_target_fraction", False) or getattr(
        manager, "memory_spill_fraction", False
    )
    pause = getattr(manager, "memory_pause_fraction", False)
    spillable = _in_memory(dask_worker) if spills else 0
    return AtRest(max(0, machine.resident_nbytes() - spillable), float(pause or 1.0))


def _in_memory(worker: Any) -> int:
    """Bytes of results of tasks that it holds, by Dask's count, less what lies on its disk."""
    spilled = getattr(getattr(worker, "data", None), "spilled_total", None)
    return max(0, int(worker.state.nbytes) - int(getattr(spilled, "memory", 0)))
