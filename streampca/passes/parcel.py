"""What travels between a pass and its workers, and the task that they do."""

from __future__ import annotations

import asyncio
import pickle
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from streampca.errors import StreamPCAError
from streampca.passes.placement import Lay, unpacked
from streampca.passes.span import fold_span
from streampca.passes.threads import single_threaded_blas
from streampca.passes.workers import other_version, our_version


class Parcel:
    """What travels, pickled in one piece.

    Distributed sends arrays beside the pickle, and they arrive wherever they lie in the message,
    often at odd addresses. NumPy then leaves BLAS aside and rounds otherwise.
    """

    def __init__(self, content: Any) -> None:
        self.content = content

    def __reduce__(self) -> Any:
        return _unpack, (dumps(self.content),)


async def placed(client: Any, parcel: Parcel, workers: list[str] | None, broadcast: bool) -> Any:
    """The future of a parcel that lies on workers, named by nothing but itself.

    A bare dictionary would name the data on the scheduler by its keys, where another pass, or
    another client, has a "v" of its own. Given up on its way, it becomes a future nevertheless: or
    nobody would ever release the data.
    """
    found = client.scatter([parcel], workers=workers, broadcast=broadcast, hash=False)
    (future,) = await asyncio.shield(found)
    return future


def dumps(content: Any) -> bytes:
    """Pickled in one piece, by cloudpickle where it must be."""
    from distributed.protocol import pickle as theirs

    return bytes(theirs.dumps(content))


def _unpack(data: bytes) -> Parcel:
    return Parcel(pickle.loads(data))


@dataclass(frozen=True)
class Terms:
    """How spans are read: by which version, blocks ahead, seconds that one is waited for."""

    version: str
    ahead: int
    patience: float


def fold_on_worker(work: Parcel, span: range, terms: Terms, common: Parcel,
                   values: Sequence[Any] = (), lay: Lay | None = None,
                   part: Parcel | None = None) -> Parcel:  # fmt: skip
    """The task: read and fold one span on a worker, on one BLAS thread.

    values : those on the cluster that the work needs, which is then packed without them.  lay :
    where they lay when the task was sent.  part : of an X in memory, which then is not in the work.

    Errors of our own are returned: they are the same at every trial, and what a task raises is
    tried again (a store may fail for a moment). They know which worker it was.
    """
    try:
        if terms.version != our_version():  # a worker that came later
            raise other_version(f"worker {_here()} has streampca {our_version()}")
        mine = work.content if lay is None else unpacked(work.content, values, lay, _here())
        mine = replace(mine, **common.content)
        mine = mine if part is None else replace(mine, matrix=part.content)
        mine.matrix.restart_counts()
        with single_threaded_blas():
            result = fold_span(mine, span, terms.ahead, patience=terms.patience)
        result.checksums = mine.matrix.checksums()
        return Parcel(result)
    except StreamPCAError as error:
        error.worker = _here()  # type: ignore[attr-defined]
        return Parcel(error)


def _here() -> str:
    from distributed import get_worker

    try:
        return str(get_worker().address)
    except ValueError:
        return ""
