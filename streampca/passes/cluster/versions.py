"""The versions of streampca and of what it computes with: the same on all workers of a pass.

A result has the same bits on any number of workers. Another version of NumPy, SciPy or Numba may
round otherwise, and other Pythons do not understand each other's functions.
"""

from __future__ import annotations

import asyncio
import functools
from collections.abc import Callable, Mapping, Sequence
from concurrent import futures
from typing import Any
from weakref import WeakKeyDictionary

from streampca.errors import ClusterError, OtherVersionWarning, shorten, warn_caller
from streampca.passes.cluster.calls import retrieved, threads
from streampca.passes.settings import setting

VERSION_SECONDS = 5.0  # that a worker has to report its versions
# evaluated on workers, which may lack streampca; by their metadata nothing is imported there
THEIRS = """{
    'streampca': __import__('streampca').__version__,
    **{one: __import__('importlib.metadata').metadata.version(one)
       for one in ('numpy', 'scipy', 'numba')},
    'Python': '%d.%d' % __import__('sys').version_info[:2],
}"""

Versions = Mapping[str, str]  # name -> version

# client -> worker -> name -> the version of it that differs from ours, in words
_known: WeakKeyDictionary[Any, dict[str, dict[str, str]]] = WeakKeyDictionary()
# client -> worker -> the call that asks it
_calls: WeakKeyDictionary[Any, dict[str, futures.Future[Any]]] = WeakKeyDictionary()


@functools.cache
def our_versions() -> Versions:
    """The versions in this process."""
    found: Versions = eval(THEIRS)
    return found


def differences(theirs: Versions, ours: Versions) -> dict[str, str]:
    """Name -> the version of it that differs from ours, in words."""
    return {one: f"{one} {theirs.get(one)}" for one, v in ours.items() if theirs.get(one) != v}


def refuse_other_versions(client: Any) -> None:
    """Refuse a cluster with workers of other versions, or without streampca.

    Once a cluster was accepted, such workers only get no work: :func:`other_versions`.
    Raises ClusterError.
    """
    if {} in _known.get(client, {}).values():
        other_versions(client)
    elif wrong := _asked(client, again=True):
        del _known[client]  # the cluster was not accepted
        raise other_version(wrong)


def other_versions(client: Any, again: bool = False) -> set[str]:
    """The workers of other versions, or without streampca. Warns of new ones.

    again : ask all workers, known ones too. Raises ClusterError if no other workers are left.
    """
    before = dict(_known.get(client, {}))
    wrong = _asked(client, again)
    if not wrong:
        return set()
    if not set(threads(client)) - set(wrong):
        raise other_version(wrong)
    if new := {one: what for one, what in wrong.items() if not before.get(one)}:
        warn_caller(f"{_said(new, our_versions())}: left out of this work", OtherVersionWarning)
    return set(wrong)


def _asked(client: Any, again: bool) -> dict[str, dict[str, str]]:
    """Worker -> what differs there from our versions, for workers where anything does.

    New workers have VERSION_SECONDS to answer. One that takes longer is not waited for again: its
    answer is taken when it comes, and every task compares versions too.
    """
    known, calls = _known.setdefault(client, {}), _calls.setdefault(client, {})
    there = threads(client)
    new = [one for one in there if (again or one not in known) and one not in calls]
    for address in new:
        calls[address] = asyncio.run_coroutine_threadsafe(
            _run(client, address, eval, THEIRS), client.loop.asyncio_loop
        )
        calls[address].add_done_callback(retrieved)
    futures.wait([calls[one] for one in new], min(VERSION_SECONDS, setting("pause-timeout")))
    for address in [one for one, call in calls.items() if call.done() or one not in there]:
        call = calls.pop(address)
        failed = not call.done() or call.cancelled() or call.exception()
        answer = None if failed else call.result()
        if isinstance(answer, Mapping):
            known[address] = differences(answer, our_versions())
        elif isinstance(answer, ImportError):
            known[address] = {"streampca": f"no streampca ({answer})"}
        call.cancel()
    return {address: known[address] for address in there if known.get(address)}


def unheard(client: Any) -> set[str]:
    """The workers that have not reported their versions yet: they may be stopped."""
    return set(_calls.get(client, {}))


def other_version(
    wrong: Mapping[str, Mapping[str, str]], ours: Versions | None = None
) -> ClusterError:
    """The error for other versions.

    wrong : worker -> what differs there, as of :func:`differences`.  ours : of the client.
    """
    ours = ours or our_versions()
    names = _names(wrong, ours)
    packages = [f"{one}=={ours[one]}" for one in names if one != "Python"]
    advice = [f"pip install {' '.join(packages)}"] if packages else []
    advice += [f"Python {ours['Python']}"] if "Python" in names else []
    return ClusterError(
        f"{_said(wrong, ours)}. Bits would depend on who folds a block. Install the same "
        f"everywhere ({', with '.join(advice)}), or leave these workers out."
    )


def _said(wrong: Mapping[str, Mapping[str, str]], ours: Versions) -> str:
    here = ", ".join(f"{one} {ours[one]}" for one in _names(wrong, ours))
    there = [f"worker {one} has {', '.join(what.values())}" for one, what in wrong.items()]
    return f"this process has {here}; {shorten(there)}"


def _names(wrong: Mapping[str, Mapping[str, str]], ours: Versions) -> list[str]:
    return [one for one in ours if any(one in what for what in wrong.values())]


async def ask_each(
    client: Any, addresses: Sequence[str], seconds: float, function: Callable[..., Any], *args: Any
) -> dict[str, Any]:
    """Worker -> what the function returned there, or the exception if it did not within seconds."""

    async def one(address: str) -> Any:
        try:
            return await asyncio.wait_for(_run(client, address, function, *args), seconds)
        except Exception as error:
            return error

    return dict(zip(addresses, await asyncio.gather(*map(one, addresses)), strict=True))


async def _run(client: Any, address: str, function: Callable[..., Any], *args: Any) -> Any:
    """What a function returned on a worker, or the exception that it raised there."""
    answers = await client.run(function, *args, workers=[address], on_error="return")
    return answers.get(address)
