"""An array in memory on a cluster: each span's part goes to one worker, once for all passes."""

from __future__ import annotations

from typing import Any

import numpy as np

from streampca.matrix import ChunkedMatrix
from streampca.passes.parcel import Parcel
from streampca.passes.work import Work

SHARE = 0.5  # of the memory of all workers that X may take for all passes


def in_memory(matrix: ChunkedMatrix) -> bool:
    """Whether most of a matrix lies in this process, and would travel with its tasks."""
    carried = matrix.carried_nbytes
    return carried > 0 and (matrix.sparse or 2 * carried >= matrix.nbytes)


class Scattered:
    """The parts of X that were sent to workers.

    They are kept there where a fit makes several passes and they take no more than half of the
    memory of all workers. Else each is sent with its span, and forgotten with it. Parts go straight
    to workers, and through the scheduler where these cannot be reached.
    """

    def __init__(self) -> None:
        self._parts: dict[Any, Any] = {}
        self._direct = True

    def part(self, client: Any, work: Work, span: range, workers: list[str], keep: bool,
             ) -> tuple[Any, int]:  # fmt: skip
        """(the future of a parcel of the matrix of a span, bytes that were sent for it now).

        workers : that may get it; consecutive spans go to different ones.
        """
        matrix, axis = work.matrix, work.matrix.streamed_axis
        edges = matrix.edges[span[0] : span[-1] + 2]
        name = (client.id, matrix.fingerprint(), axis, edges.tobytes())
        if (known := self._parts.get(name)) is not None and known.status == "finished":
            return known, 0
        parcel = Parcel(work.cut(span).matrix)
        future = self._sent(client, parcel, workers[span[0] // len(span) % len(workers)])
        if keep:
            self._parts[name] = future
        return future, int(matrix.spans_nbytes(axis, np.array([edges[0], edges[-1]])).sum())

    def _sent(self, client: Any, parcel: Parcel, worker: str) -> Any:
        try:
            return client.scatter(
                parcel, workers=[worker], hash=False, direct=self._direct, broadcast=False
            )
        except OSError:
            if not self._direct:
                raise
            self._direct = False
            return self._sent(client, parcel, worker)


def worth_keeping(client: Any, matrix: ChunkedMatrix, n_passes: int) -> bool:
    """Whether another pass can use the parts, and the workers have room for them."""
    workers = client.scheduler_info(n_workers=-1)["workers"].values()
    limits = [int(one.get("memory_limit") or 0) for one in workers]
    return n_passes > 1 and (not all(limits) or matrix.carried_nbytes <= SHARE * sum(limits))
