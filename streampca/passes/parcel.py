"""What travels between a pass and its workers, and the task that they do."""

from __future__ import annotations

import asyncio
import contextlib
import pickle
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

from streampca.errors import ClusterError, StreamPCAError
from streampca.passes.placement import Lay, unpacked
from streampca.passes.span import fold_span
from streampca.passes.spot_checks import confirm
from streampca.passes.threads import single_threaded_blas
from streampca.passes.workers import other_version, our_version


class Parcel:
    """What travels, pickled in one piece.

    Distributed sends arrays beside the pickle, and they arrive wherever they lie in the message,
    often at odd addresses. NumPy then leaves BLAS aside and rounds otherwise.

    It is unpickled where its content is asked for: in a task, whose errors reach the client. Where
    messages are read, a module that is not there would end the worker's connection.
    """

    def __init__(self, content: Any) -> None:
        self._content, self._packed = content, b""

    @classmethod
    def sealed(cls, content: Any) -> Parcel:
        """Pickled now. Raises ClusterError for what cannot be."""
        try:
            return cls.received(dumps(content))
        except Exception as error:  # every library has errors of its own
            raise ClusterError(
                f"the source, or a function that is applied to it, cannot be sent to workers: "
                f"{type(error).__name__}: {error}. Give a path in place of an open file or a "
                "connection; or use scheduler='threads'."
            ) from error

    @classmethod
    def received(cls, packed: bytes) -> Parcel:
        """One that is still pickled."""
        parcel = cls(None)
        parcel._packed = packed
        return parcel

    @property
    def content(self) -> Any:
        """What is in it, unpickled once."""
        if packed := self._packed:  # threads may both unpickle it, and either result will do
            self._content, self._packed = pickle.loads(packed), b""
        return self._content

    @content.setter
    def content(self, content: Any) -> None:
        self._content, self._packed = content, b""

    def __reduce__(self) -> Any:
        return Parcel.received, (self._packed or dumps(self._content),)


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
    """Pickled in one piece, by cloudpickle where it must be or modules are to be sent by value."""
    import cloudpickle
    from distributed.protocol import pickle as theirs

    if cloudpickle.list_registry_pickle_by_value():  # plain pickle would name them all the same
        return bytes(cloudpickle.dumps(content))
    return bytes(theirs.dumps(content))


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
        with _unpickling():
            mine = work.content if lay is None else unpacked(work.content, values, lay, _here())
            mine = replace(mine, **common.content)
            mine = mine if part is None else replace(mine, matrix=part.content)
        confirm(mine.checks.values(), _here())
        mine.matrix.restart_counts()
        with single_threaded_blas():
            result = fold_span(mine, span, terms.ahead, patience=terms.patience)
        result.checksums = mine.matrix.checksums()
        return Parcel(result)
    except StreamPCAError as error:
        error.worker = _here()  # type: ignore[attr-defined]
        return Parcel(error)


@contextlib.contextmanager
def _unpickling() -> Iterator[None]:
    """Raise ClusterError where this worker lacks what a parcel is made of."""
    try:
        yield
    except ModuleNotFoundError as error:
        raise ClusterError(
            f"worker {_here()} has no module {error.name!r}, which a function or a source of this "
            "fit comes from. Install it on the workers; or send it: client.upload_file(its .py "
            "file), or cloudpickle.register_pickle_by_value(the module) before the fit."
        ) from error
    except Exception as error:  # what libraries of another version raise
        raise ClusterError(
            f"worker {_here()} cannot unpickle what it is to work on: {type(error).__name__}: "
            f"{error}. Install the same libraries everywhere, and give paths that every worker "
            "can open."
        ) from error


def _here() -> str:
    from distributed import get_worker

    try:
        return str(get_worker().address)
    except ValueError:
        return ""
