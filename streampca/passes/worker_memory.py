"""Whether a plan fits into the memory of workers, beside what they hold before the first block."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any
from weakref import WeakKeyDictionary

from streampca.errors import MemoryLimitError
from streampca.kernels import give_back
from streampca.passes import door, machine
from streampca.passes.nbytes import as_limit, size
from streampca.passes.process import WORKER_NBYTES, code_nbytes, imports
from streampca.passes.records import KEPT, PassPlan, Plan
from streampca.passes.workers import scheduler_answers

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
