"""Which client runs the passes over a matrix: where its data lie decides with the user."""

from __future__ import annotations

from typing import Any

from streampca.errors import ClusterError, InvalidInputError
from streampca.matrix import ChunkedMatrix
from streampca.passes.clients import ambient_client, find_client, in_task
from streampca.passes.scattered import in_memory
from streampca.passes.settings import setting


def client_for(scheduler: Any, matrix: ChunkedMatrix) -> Any | None:
    """The client for a matrix, or None for threads of this process.

    scheduler : as :func:`find_client` takes it. Where None is said, chunks on a cluster are folded
        there, by the client that holds their futures, and arrays in memory are folded here, also
        beside an ambient client.
    Raises InvalidInputError where X lies on another cluster than ``scheduler`` names: it would have
    to travel. "threads" fetches it block by block.
    """
    futures = matrix.futures()
    client = find_client(scheduler)
    if not futures:
        ambient = scheduler is None and client is ambient_client()
        return None if ambient and in_memory(matrix) else client
    own = futures[0].client
    if client is None:
        asked = setting("scheduler") if scheduler is None else scheduler
        return None if asked == "threads" or in_task() else _open(own)
    if scheduler is not None and _cluster(client) != _cluster(_open(own)):
        raise InvalidInputError(
            f"X lies on the cluster at {own.scheduler.address}, and scheduler= names the one at "
            f"{client.scheduler.address}. Leave scheduler= out; or say scheduler='threads', and X "
            "is fetched block by block."
        )
    return _open(own)


def _open(client: Any) -> Any:
    if client is None or client.status != "running":
        raise ClusterError(
            "the client that holds the chunks of X is closed; they are gone with it. Open a client "
            "and persist X again."
        )
    return client


def _cluster(client: Any) -> str:
    """What a cluster is known by, whatever address it was reached at."""
    return str(client.scheduler_info(n_workers=0)["id"])
