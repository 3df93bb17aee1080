"""Futures in a Dask graph: chunks of a persisted or scattered array, which lie on a cluster."""

from __future__ import annotations

import operator
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import dask
import dask.array.chunk
from dask._task_spec import Alias, DataNode, GraphNode, Task
from dask.sizeof import sizeof

from streampca.errors import NoAnswerError
from streampca.matrix.held import Held, laid_out

Key = Any
SLICES = (operator.getitem, dask.array.chunk.getitem)
READ_TIMEOUT = 600.0  # seconds, where Dask's configuration names none


class Fetch(Held):
    """A future of this process. In a task it belongs to the client of the worker."""

    def __init__(self, future: Any) -> None:
        super().__init__(future)
        self.bind()

    def bind(self) -> None:
        """Know whether this is a task. What is unpickled before one is asked again in it."""
        from distributed import get_client, get_worker

        try:
            get_worker()
        except ValueError:
            return
        self.in_task = True
        if self.future.client is None:  # nobody told the scheduler that this client wants it
            client = get_client()
            self.future.bind_client(client)
            client._send_to_scheduler({"op": "client-desires-keys", "keys": [self.future.key]})

    def __call__(self) -> Any:
        if self.future.client is None:
            self.bind()
        return super().__call__()

    def __reduce__(self) -> Any:
        return Fetch, (self.future,)


def is_future(node: Any) -> bool:
    """Whether this is a ``distributed.Future``; ``distributed`` is not loaded to find out."""
    return "distributed" in sys.modules and isinstance(node, sys.modules["distributed"].Future)


def has_futures(node: Any) -> bool:
    """Whether a node is a future, or a task that is given one."""
    held = node.value if isinstance(node, DataNode) else node
    return next(_futures(held), None) is not None


def with_held(nodes: Mapping[Key, Any]) -> dict[Key, Any]:
    """The nodes, with tasks that fetch in place of futures, and such tasks for those in arguments.

    ``dask.delayed(f)(future)`` names its future without a node of that name.
    """
    made = dict(nodes)
    for key, node in nodes.items():
        held = node.value if isinstance(node, DataNode) else node
        if is_future(held):
            made[key] = (Fetch(held),)
        elif not isinstance(node, GraphNode) or not node.dependencies <= nodes.keys():
            for future in _futures(node):
                made.setdefault(future.key, (Fetch(future),))
    return _sliced_apart(made)


def _sliced_apart(nodes: dict[Key, Any]) -> dict[Key, Any]:
    """Each slice of a value on a cluster gets a node of it for itself.

    Strips that share a stored chunk are read together, or it would be read twice. What lies in
    memory is sliced as often as one likes.
    """
    held = held_of(nodes)
    made = dict(nodes)
    for key, node in nodes.items():
        target = node
        while isinstance(target, Alias) and target.target != target.key:
            target = nodes.get(target.target)
        if isinstance(node, Alias) and is_held(target):
            made[key] = held[key] = target
    for key, node in nodes.items():
        if isinstance(node, Task) and node.func in SLICES:
            for used in node.dependencies & held.keys():
                own = (f"{used}-of", key)
                made[own] = made[used]
                made[key] = made[key].substitute({used: own})
    return made


def held_of(nodes: Mapping[Key, Any]) -> dict[Key, Held]:
    """The nodes that are values on a cluster."""
    return {key: node[0] for key, node in nodes.items() if is_held(node)}


def is_held(node: Any) -> bool:
    """Whether a node is a value on a cluster."""
    return type(node) is tuple and len(node) == 1 and isinstance(node[0], Held)


class Fetches:
    """The same nodes, told what they bring: ``moved`` bytes crossed a wire."""

    def __init__(self, nodes: Mapping[Key, Any]) -> None:
        self.moved = 0
        self.nodes = dict(nodes)
        for key, held in held_of(nodes).items():
            self.nodes[key] = (self._get, held)

    def _get(self, held: Held) -> Any:
        value = held()
        self.moved += held.moved(int(sizeof(value)))
        return value


def computed_there(
    nodes: Mapping[Key, Any], keys: list[Key], take: Callable[[int], None]
) -> list[Any] | None:
    """These results, computed on the cluster that holds what they are made of; they alone come.

    None where nothing lies on a cluster, or where a task of that cluster asks: it must not wait for
    others.  take : is told their bytes before they come, and may refuse them.
    """
    held = held_of(nodes)
    if not held or any(one.in_task for one in held.values()):
        return None
    client = next(iter(held.values())).future.client
    graph = {**nodes, **{key: one.future for key, one in held.items()}}
    futures = client.get(graph, keys, sync=False)
    await_all(client, futures, "operands that all strips of X share")
    sizes = client.nbytes(keys=[one.key for one in futures], summary=False)
    take(sum(sizes.values()))
    return [laid_out(value) for value in client.gather(futures)]


def await_all(client: Any, futures: Sequence[Any], what: str) -> None:
    """Wait until these are computed, or have failed.

    Raises NoAnswerError where none of them is in the time that a worker has for one block.
    """
    from distributed import wait

    patience = float(dask.config.get("streampca.read-timeout", None) or READ_TIMEOUT)
    todo = list(futures)
    with client.as_current():
        while todo:
            try:
                todo = list(wait(todo, timeout=patience, return_when="FIRST_COMPLETED").not_done)
            except TimeoutError:
                raise NoAnswerError(
                    f"{what} were not computed within {patience:g} s on the cluster that holds X "
                    f"({client.scheduler.address}). Wait longer: "
                    'dask.config.set({"streampca.read-timeout": seconds})'
                ) from None


def _futures(node: Any) -> Iterator[Any]:
    """The futures among the arguments of a task, nested ones too."""
    if is_future(node):
        yield node
    elif isinstance(node, GraphNode):
        yield from _futures(getattr(node, "args", ()))
        yield from _futures(getattr(node, "kwargs", {}) or {})
    elif isinstance(node, (list, tuple)):
        for part in node:
            yield from _futures(part)
    elif isinstance(node, dict):
        for part in node.values():
            yield from _futures(part)
