"""Whether a plan fits into the memory of workers, with what they hold before the first block."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any
from weakref import WeakKeyDictionary

from streampca.errors import MemoryLimitError, MemoryPlanWarning, warn_caller
from streampca.kernels import give_back
from streampca.passes import memory
from streampca.passes.cluster.calls import call_seconds, identities
from streampca.passes.cluster.versions import ask_each, refuse_other_versions, unheard
from streampca.passes.cluster.workers import await_worker
from streampca.passes.memory import WORKER_NBYTES, as_limit, code_nbytes, imports, size
from streampca.passes.plan import Plan
from streampca.passes.records import KEPT, PassPlan

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
_warned: WeakKeyDictionary[Any, set[str]] = WeakKeyDictionary()  # client -> workers left out


def check_workers(client: Any, plan: Plan) -> None:
    """Refuse a plan whose lanes need more memory than workers have before they pause.

    Waits for a worker; those that are too small to begin with may never take tasks, and are refused
    as soon as the scheduler knows of them. What the workers already hold is measured. Cost: they
    import the libraries of the plan. Raises MemoryLimitError, and ClusterError as ``await_worker``.
    """
    await_worker(client, seen=lambda: _check_all(plan, _limited(client), {}))
    _measured(client, plan)


@dataclass(frozen=True)
class Share:
    """What a worker takes of a plan.

    held, planned : bytes in its memory before the first block (0: not known), and at most.
    limit : of its memory, or None.
    spans, nbytes : that it folds and reads in all passes, if all threads are as fast.
    """

    worker: str
    threads: int
    held: int
    planned: int
    limit: int | None
    spans: int
    all_spans: int
    nbytes: int

    def __str__(self) -> str:
        of = f" of its {size(self.limit)} (now {size(self.held)})" if self.limit else ""
        return (
            f"{self.worker}: {self.threads} thread{'s' if self.threads > 1 else ''}, up to "
            f"{size(self.planned)} of memory{of}, about {self.spans} of {self.all_spans} spans, "
            f"{size(self.nbytes)} to read"
        )


def shares(client: Any, plan: Plan) -> list[Share]:
    """What each worker that is there takes of a plan. Waits for none, and reads no data.

    Cost: workers import the libraries of the plan. Raises ClusterError for other versions, and
    MemoryLimitError for a worker that is too small.
    """
    measured, workers = _measured(client, plan), identities(client)
    lanes = max(1, sum(one["nthreads"] for one in workers.values()))
    n_spans = sum(one.times * len(one.spans) for each in plan.sequence for one in each.passes)
    found = []
    for address, one in sorted(workers.items()):
        rest, n = measured.get(address, AtRest()), int(one["nthreads"])
        limit = int(one.get("memory_limit") or 0) or None
        spans, nbytes = -(-n_spans * n // lanes), plan.nbytes * n // lanes
        planned = need(plan, n, rest)
        found.append(Share(address, n, rest.held, planned, limit, spans, n_spans, nbytes))
    return found


def _measured(client: Any, plan: Plan) -> dict[str, AtRest]:
    """Worker -> its memory with the libraries of a plan, for workers with a limit.

    Raises ClusterError for other versions, MemoryLimitError for a worker that is too small.
    """
    refuse_other_versions(client)
    limited = _limited(client)
    heard = [address for address in limited if address not in unheard(client)]
    measured: dict[str, AtRest] = {}
    if heard:
        libraries = list(imports(plan.memory["process"]))
        measured = client.sync(_ask, client, heard, libraries)
        _known.setdefault(client, {}).update(measured)
    _check_all(plan, limited, measured)
    return measured


def _limited(client: Any) -> dict[str, Any]:
    """The workers that have a memory limit."""
    return {one: worker for one, worker in identities(client).items() if worker.get("memory_limit")}


def _check_all(
    plan: Plan, workers: Mapping[str, Mapping[str, Any]], measured: Mapping[str, AtRest]
) -> None:
    for address, worker in workers.items():
        if lack := _lack(plan, address, worker, measured.get(address, AtRest())):
            raise MemoryLimitError(lack)


def too_small(client: Any, plan: Plan) -> set[str]:
    """The workers that joined since :func:`check_workers`, and lack the memory that a plan needs.

    Warns of new ones. Raises MemoryLimitError if no others are left.
    """
    known, warned = _known.get(client, {}), _warned.setdefault(client, set())
    workers, found = identities(client), {}
    for address, worker in workers.items():
        if lack := _lack(plan, address, worker, known.get(address, AtRest())):
            found[address] = lack
    if found and len(found) == len(workers):
        raise MemoryLimitError(min(found.values()))
    for address in sorted(found.keys() - warned):
        warn_caller(f"{found[address]} It is left out of this work.", MemoryPlanWarning)
    warned |= set(found)
    return set(found)


def need(plan: Plan, lanes: int, rest: AtRest = AtRest()) -> int:
    """Bytes that a worker of so many threads needs for a plan, and for those that may follow it."""
    return max(
        max(_code(each), rest.held)
        + max((_spans(each, one, lanes) for one in each.passes), default=0)
        for each in plan.sequence
    )


def _lack(plan: Plan, address: str, worker: Mapping[str, Any], rest: AtRest) -> str:
    """Why a worker is too small for a plan, and what would do; "" if it is not."""
    if not (limit := int(worker.get("memory_limit") or 0)):
        return ""
    lanes = worker["nthreads"]
    if (needed := need(plan, lanes, rest)) <= limit * rest.pause:
        return ""
    pauses = ""
    if rest.pause < 1:
        pauses = f", takes no more tasks above {size(int(limit * rest.pause))} of it"
    holds = f", holds {size(rest.held)} before the first block" if rest.held else ""
    enough = as_limit(int(needed / rest.pause), up=True)
    return (
        f"worker {address} may use {size(limit)}{pauses}{holds}, and the plan needs "
        f"{size(needed)} on its {lanes} threads: a memory limit of {enough} would do. Start "
        "workers with fewer threads or more memory, or set memory_limit to look for a smaller plan."
    )


def memory_used_where_room(client: Any, plan: Plan, name: str) -> dict[str, int]:
    """Worker -> bytes in use, for workers with room for the total of a pass and their lanes."""
    planned = plan.named(name)
    measured = _known.get(client, {})
    found = {}
    for address, worker in identities(client).items():
        limit, rest = worker.get("memory_limit"), measured.get(address, AtRest())
        room = max(_code(plan), rest.held) + _spans(plan, planned, worker["nthreads"], total=True)
        if not limit or room <= limit * rest.pause:
            found[address] = int(worker.get("metrics", {}).get("memory", 0))
    return found


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
    await asyncio.to_thread(memory.load, dict.fromkeys(libraries, 0))
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
