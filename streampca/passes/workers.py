"""The workers of a cluster: whether there are any, which of them may be used, which answer."""

from __future__ import annotations

import asyncio
import sys
import uuid
from typing import Any
from weakref import WeakKeyDictionary

from streampca.errors import ClusterError, MemoryLimitError, shorten
from streampca.passes.nbytes import size
from streampca.passes.plan import LIBRARY_NBYTES
from streampca.passes.records import PassPlan, Plan
from streampca.passes.settings import setting

VERSION_SECONDS = 5.0  # that a worker has to say which version it has
THEIRS = "__import__('streampca').__version__"  # evaluated there, where nothing of ours may be

_known: WeakKeyDictionary[Any, set[str]] = WeakKeyDictionary()  # client -> workers of our version


def our_version() -> str:
    """Of this process."""
    return str(sys.modules["streampca"].__version__)


def await_worker(client: Any) -> None:
    """Wait for the first worker of a cluster. Raises ClusterError after ``worker-timeout``."""
    if client.nthreads():
        return
    # adaptive clusters start workers for tasks alone
    future = client.submit(int, key=f"streampca-first-{uuid.uuid4().hex}", pure=False)
    try:
        if not finished(future, setting("worker-timeout")):
            raise no_worker()
    finally:
        future.cancel()


def finished(future: Any, seconds: float) -> bool:
    """Wait so long for a task to end, well or not, or to be given up."""
    from distributed import CancelledError, wait

    try:
        with future.client.as_current():
            wait(future, timeout=seconds)
    except TimeoutError:
        return False
    except CancelledError:  # its result raises it too, in the words that are known
        return True
    return True


def no_worker() -> ClusterError:
    """The error where none comes."""
    return ClusterError(
        f"the cluster has had no worker for {setting('worker-timeout'):g} s. Start some; or wait "
        "longer: worker_timeout in a job's cluster section, streampca.worker-timeout in Dask's "
        "configuration."
    )


def refuse_strangers(client: Any, again: bool = False) -> None:
    """Refuse workers that have another version of streampca, or none.

    Each is asked once, for at most VERSION_SECONDS; one that does not answer by then is asked
    again at the next pass, and every task compares versions too. again : ask all of them.
    Raises ClusterError.
    """
    known = _known.setdefault(client, set())
    new = [address for address in client.nthreads() if again or address not in known]
    if not new:
        return
    ours, wrong = our_version(), []
    for address, answer in client.sync(_ask, client, new).items():
        if answer == ours:
            known.add(address)
        elif isinstance(answer, str):
            wrong.append(f"worker {address} has streampca {answer}")
        elif isinstance(answer, ImportError):
            wrong.append(f"worker {address} has none ({answer})")
    if wrong:
        raise other_version(shorten(wrong))


def other_version(who: str) -> ClusterError:
    """The error, in which ``who`` says which worker has what."""
    ours = our_version()
    return ClusterError(
        f"this process has streampca {ours}; {who}. Install the same everywhere "
        f"(pip install streampca=={ours}), or leave these workers out."
    )


async def _ask(client: Any, addresses: list[str]) -> dict[str, Any]:
    """What each worker says, or why it does not."""

    async def one(address: str) -> Any:
        asked = client.run(eval, THEIRS, workers=[address], on_error="return")
        try:
            return (await asyncio.wait_for(asked, VERSION_SECONDS)).get(address)
        except Exception as error:
            return error

    return dict(zip(addresses, await asyncio.gather(*map(one, addresses))))


def running(client: Any) -> dict[str, str]:
    """Address -> "" for workers that take tasks; else what keeps them: "paused", "silent", ..."""
    workers = client.scheduler_info(n_workers=-1)["workers"]
    newest = max((one["last_seen"] for one in workers.values()), default=0.0)
    patience = setting("pause-timeout")
    found = {}
    for address, one in workers.items():
        status = one.get("status", "running")
        silent = newest - one["last_seen"] > patience
        found[address] = "silent" if silent else "" if status == "running" else str(status)
    return found


def check_workers(client: Any, plan: Plan) -> None:
    """Refuse a plan whose lanes do not fit into the workers' memory."""
    process = plan.memory["process"]
    interpreter = process["interpreter"] + process["libraries"] + LIBRARY_NBYTES["dask"]
    for address, worker in client.scheduler_info(n_workers=-1)["workers"].items():
        limit, lanes = worker.get("memory_limit"), worker["nthreads"]
        need = interpreter + max((_on_worker(plan, one, lanes) for one in plan.passes), default=0)
        if limit and need > limit:
            raise MemoryLimitError(
                f"worker {address} may use {size(limit)}, and the plan needs {size(need)} on its "
                f"{lanes} threads. Start workers with fewer threads or more memory, "
                "or set memory_limit to look for a smaller plan."
            )


def _on_worker(plan: Plan, one: PassPlan, lanes: int) -> int:
    """Bytes of one pass on a worker of so many lanes: no folded accumulators, all operands."""
    terms = dict(plan.memory[one.name])
    planned = max(1, min(plan.lanes, len(one.spans)))
    partial = terms.pop("partial accumulators") // planned
    kept = terms.pop("kept arrays")
    del terms["folded accumulators"]
    # per lane: its blocks, the span that it folds, and one that waits to be fetched
    return kept + lanes * (sum(terms.values()) // planned + 2 * partial)
