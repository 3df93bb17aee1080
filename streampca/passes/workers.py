"""The workers of a cluster: whether there are any, which of them may be used, which answer."""

from __future__ import annotations

import asyncio
import contextlib
import sys
import uuid
import warnings
from collections.abc import Iterator
from typing import Any
from weakref import WeakKeyDictionary

from streampca.errors import (
    ClusterError,
    MemoryLimitError,
    NoWorkerWarning,
    OtherVersionWarning,
    StreamPCAError,
    shorten,
)
from streampca.passes.nbytes import size
from streampca.passes.process import WORKER_NBYTES, code_nbytes
from streampca.passes.records import KEPT, PassPlan, Plan
from streampca.passes.settings import setting

VERSION_SECONDS = 5.0  # that a worker has to say which version it has
THEIRS = "__import__('streampca').__version__"  # evaluated there, where nothing of ours may be

# client -> worker -> "" for one of our version, else what it has
_known: WeakKeyDictionary[Any, dict[str, str]] = WeakKeyDictionary()


def our_version() -> str:
    """Of this process."""
    return str(sys.modules["streampca"].__version__)


def await_worker(client: Any) -> None:
    """Wait for the first worker of a cluster, after ``pause-timeout`` with a warning.

    Raises ClusterError after ``worker-timeout``.
    """
    if client.nthreads():
        return
    # adaptive clusters start workers for tasks alone
    future = client.submit(int, key=f"streampca-first-{uuid.uuid4().hex}", pure=False)
    most = setting("worker-timeout")
    quiet = min(most, setting("pause-timeout"))
    try:
        if finished(future, quiet):
            return
        if most > quiet:
            say_waiting()
            if finished(future, most - quiet):
                return
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


def say_waiting() -> None:
    """Warn of a pass that goes on only when a worker comes."""
    warnings.warn(
        f"the cluster has no worker; one is waited for, up to {setting('worker-timeout'):g} s "
        "(streampca.worker-timeout)", NoWorkerWarning, stacklevel=3,
    )  # fmt: skip


def no_worker() -> ClusterError:
    """The error where none comes."""
    return ClusterError(
        f"the cluster has had no worker for {setting('worker-timeout'):g} s. Start some; or wait "
        "longer: worker_timeout in a job's cluster section, streampca.worker-timeout in Dask's "
        "configuration."
    )


def refuse_strangers(client: Any) -> None:
    """Refuse workers that have another version of streampca, or none, before the first pass.

    Those that come to a cluster that was found good are left out: :func:`strangers`.
    Raises ClusterError.
    """
    if "" in _known.get(client, {}).values():
        strangers(client)
    elif wrong := _asked(client, again=True):
        del _known[client]  # it was not found good
        raise other_version(shorten(list(wrong.values())))


def strangers(client: Any, again: bool = False) -> set[str]:
    """The workers that have another version of streampca, or none; a warning names new ones.

    again : ask all of them. Raises ClusterError where there are no others.
    """
    before = dict(_known.get(client, {}))
    wrong = _asked(client, again)
    if not wrong:
        return set()
    if not set(client.nthreads()) - set(wrong):
        raise other_version(shorten(list(wrong.values())))
    if new := [words for address, words in wrong.items() if not before.get(address)]:
        warnings.warn(
            f"this process has streampca {our_version()}; {shorten(new)}: left out of this work",
            OtherVersionWarning, stacklevel=3,
        )  # fmt: skip
    return set(wrong)


@contextlib.contextmanager
def scheduler_answers() -> Iterator[None]:
    """What Dask raises where the scheduler is gone, as a ClusterError."""
    try:
        yield
    except OSError as error:
        if isinstance(error, StreamPCAError):
            raise
        raise ClusterError(f"the connection to the scheduler is lost: {error}") from error


@scheduler_answers()
def _asked(client: Any, again: bool) -> dict[str, str]:
    """Worker -> what it has, for those that have not our version.

    Each is asked once, for at most VERSION_SECONDS; one that does not answer by then is asked
    again next time, and every task compares versions too.
    """
    known = _known.setdefault(client, {})
    there = client.nthreads()
    new = [address for address in there if again or address not in known]
    if new:
        for address, answer in client.sync(_ask, client, new).items():
            if isinstance(answer, str):
                ours = answer == our_version()
                known[address] = "" if ours else f"worker {address} has streampca {answer}"
            elif isinstance(answer, ImportError):
                known[address] = f"worker {address} has none ({answer})"
    return {address: known[address] for address in there if known.get(address)}


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


@scheduler_answers()
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
    for address, worker in client.scheduler_info(n_workers=-1)["workers"].items():
        limit, lanes = worker.get("memory_limit"), worker["nthreads"]
        need = max((_on_worker(plan, one, lanes) for one in plan.passes), default=0)
        if limit and need > limit:
            raise MemoryLimitError(
                f"worker {address} may use {size(limit)}, and the plan needs {size(need)} on its "
                f"{lanes} threads. Start workers with fewer threads or more memory, "
                "or set memory_limit to look for a smaller plan."
            )
    if plan.then is not None:
        check_workers(client, plan.then)


@scheduler_answers()
def roomy(client: Any, plan: Plan | None, one: PassPlan) -> dict[str, int]:
    """Workers that may hold the total of a pass beside their lanes, and bytes that each uses."""

    def need(lanes: int) -> int:
        if plan is None:
            return 0
        named = (one,) if one.name in plan.memory else plan.passes  # "step 2" of "step"
        return max(_on_worker(plan, each, lanes, total=True) for each in named)

    return {
        address: int(worker.get("metrics", {}).get("memory", 0))
        for address, worker in client.scheduler_info(n_workers=-1)["workers"].items()
        if not (limit := worker.get("memory_limit")) or need(worker["nthreads"]) <= limit
    }


def _on_worker(plan: Plan, one: PassPlan, lanes: int, total: bool = False) -> int:
    """Bytes of one pass on a worker of so many lanes, which holds all operands.

    total : and merges: the total, a copy of it to be sent, and the span that came, pickled too.
    """
    process, terms = plan.memory["process"], dict(plan.memory[one.name])
    planned = max(1, min(plan.lanes, len(one.spans)))
    partial = terms.pop("partial accumulators") // planned
    kept, folded = sum(terms.pop(n, 0) for n in KEPT), terms.pop("folded accumulators")
    # per lane: its blocks, the span that it folds, and one that waits to be fetched
    need = kept + lanes * (sum(terms.values()) // planned + 2 * partial)
    need += 2 * (folded + partial) if total else 0
    return need + code_nbytes(process) + process["compiled kernels"] + WORKER_NBYTES
