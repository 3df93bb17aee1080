"""The execution of a fit's passes: progress, checkpoints, costs, and the client they run on."""

from __future__ import annotations

import hashlib
import json
import pickle
import sys
import time
import uuid
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Protocol

import numpy as np

from streampca.accumulators import Accumulator
from streampca.errors import ClusterError, InvalidInputError, SourceError
from streampca.html import card, text
from streampca.matrix import ChunkedMatrix, ReadCount
from streampca.passes.calls import cluster_id
from streampca.passes.clients import ambient_client, find_client
from streampca.passes.door import MemoryUse, check_room, check_workers, room_for
from streampca.passes.memory import size
from streampca.passes.parcel import Scattered, in_memory
from streampca.passes.records import PassPlan, Plan
from streampca.passes.settings import Crew, in_task, read_by_a_core, setting, thread_count
from streampca.passes.work import Work
from streampca.store import is_bundle, read_bundle, remove_bundle, understood, write_bundle

# --------------------------------------------------------------------------------------------------
# Progress of a fit: pass, blocks, MB/s, time left, in a terminal or in Jupyter.


@dataclass(frozen=True)
class Advance:
    """Where a fit stands, handed to the progress callback after each block."""

    pass_name: str
    pass_number: int
    n_passes: int
    blocks_done: int
    n_blocks: int
    nbytes: int  # decoded, in this pass
    seconds: float  # since this pass began
    blocks_resumed: int = 0  # of those done, taken from a checkpoint

    def __str__(self) -> str:
        rate = self.nbytes / max(self.seconds, 1e-9)
        read = max(self.blocks_done - self.blocks_resumed, 1)
        left = self.seconds * (self.n_blocks - self.blocks_done) / read
        return (
            f"pass {self.pass_number}/{self.n_passes} {self.pass_name}  "
            f"block {self.blocks_done}/{self.n_blocks}  {rate / 1e6:.0f} MB/s  {left:.0f} s left"
        )


class Progress(Protocol):
    """Anything that can be called with an :class:`Advance`."""

    def __call__(self, advance: Advance) -> None: ...


class TerminalProgress:
    """One line on stderr, rewritten at most ten times a second; gone when its pass is done."""

    def __init__(self, stream: Any = None) -> None:
        self.stream = stream or sys.stderr
        self._last = 0.0

    def __call__(self, advance: Advance) -> None:
        now, done = time.monotonic(), advance.blocks_done == advance.n_blocks
        if not done and now - self._last < 0.1:
            return
        self._last = now
        self.stream.write("\r\x1b[K" + ("" if done else str(advance)))
        self.stream.flush()


class NotebookProgress:
    """A bar in Jupyter, updated in place."""

    def __init__(self) -> None:
        self._handle: Any = None
        self._last = 0.0

    def __call__(self, advance: Advance) -> None:
        from IPython.display import HTML, display

        now, done = time.monotonic(), advance.blocks_done == advance.n_blocks
        if not done and now - self._last < 0.2:
            return
        if self._handle is None:  # no bar for passes that end at once
            if advance.seconds < 0.5:
                return
            self._handle = display("", display_id=True)
        self._last = now
        bar = f'<progress value="{advance.blocks_done}" max="{advance.n_blocks}"></progress>'
        self._handle.update(HTML(f"{bar} {advance}"))


def resolve(progress: bool | Progress | None) -> Progress | None:
    """The callback for ``progress=``: None follows the surroundings, True and False decide."""
    if callable(progress):
        return progress
    if progress is False:
        return None
    shell = type(sys.modules["IPython"].get_ipython()).__name__ if "IPython" in sys.modules else ""
    if shell == "ZMQInteractiveShell":
        return NotebookProgress()
    if progress or (progress is None and sys.stderr.isatty()):
        return TerminalProgress()
    return None


# --------------------------------------------------------------------------------------------------
# Checkpoints: the folded state after a span, from which an interrupted fit resumes.

Array = np.ndarray[Any, Any]


class Checkpoint:
    """The checkpoint directory of one pass, keyed by what is being computed.

    It holds the accumulators and the arrays of sinks in memory. A checkpoint of another plan,
    source (by its files' sizes and times too), accumulator or operand is ignored: the pass starts
    at its beginning and overwrites it. The checkpoint of a finished pass stays until the fit ends.
    """

    def __init__(self, path: Path, key: str, every: float, held: Mapping[str, Array]) -> None:
        self.path, self.key, self.every = path, key, every
        self._held = held
        self._saved = time.monotonic()
        self._next = 0  # the first span that is not in the checkpoint on disk

    @classmethod
    def open(cls, folder: str, plan: Mapping[str, Any], work: Work, every: float) -> Checkpoint:
        """The checkpoint of this pass inside ``folder``.

        Raises InvalidInputError if something else is at its path.
        """
        path = Path(folder) / f"pass-{plan['name']}"
        if path.parent.exists() and not path.parent.is_dir():
            raise InvalidInputError(f"checkpoint={folder!r} is a file; choose a folder")
        if path.exists() and not is_bundle(path):
            raise InvalidInputError(f"{path} is not a checkpoint; choose another folder")
        held = {name: sink.held() for name, sink in work.sinks.items()}
        kept = {name: values for name, values in held.items() if values is not None}
        return cls(path, _key(plan, work, kept), every, kept)

    @staticmethod
    def can_keep(work: Work) -> bool:
        """Whether all outputs of the pass are in this process."""
        return all(sink.held() is not None for sink in work.sinks.values())

    def resume(self, blank: Mapping[str, Accumulator]) -> tuple[int, dict[str, Accumulator]]:
        """(first span still to fold, accumulators folded so far)."""
        if not is_bundle(self.path):
            return 0, dict(blank)
        try:
            arrays, document = read_bundle(self.path)
            if document.get("key") != self.key:
                return 0, dict(blank)
            with understood(str(self.path)):
                return self._restored(blank, arrays, document)
        except SourceError:  # a damaged checkpoint costs only time
            return 0, dict(blank)

    def _restored(
        self, blank: Mapping[str, Accumulator], arrays: Mapping[str, Array],
        document: Mapping[str, Any],
    ) -> tuple[int, dict[str, Accumulator]]:  # fmt: skip
        restored = {}
        for name, accumulator in blank.items():
            prefix = name + "."
            state = {k[len(prefix) :]: v for k, v in arrays.items() if k.startswith(prefix)}
            restored[name] = accumulator.from_state(state)
        for name, values in self._held.items():
            values[...] = arrays[f"sink {name}"]
        self._next = int(document["next_span"])
        return self._next, restored

    def save_if_due(self, next_span: int, total: Mapping[str, Accumulator]) -> None:
        """Write a checkpoint if the last one is old enough."""
        if time.monotonic() - self._saved >= self.every:
            self.save(next_span, total)

    def save(self, next_span: int, total: Mapping[str, Accumulator]) -> None:
        """Write a checkpoint, unless the one on disk has all these spans."""
        if next_span <= self._next:
            return
        arrays = {
            f"{name}.{field}": value
            for name, accumulator in total.items()
            for field, value in accumulator.state().items()
        }
        arrays |= {f"sink {name}": values for name, values in self._held.items()}
        self.path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)  # sums reveal the data
        write_bundle(self.path, arrays, {"key": self.key, "next_span": next_span})
        self._saved, self._next = time.monotonic(), next_span

    def clear(self) -> None:
        """Remove it."""
        remove_bundle(self.path)


def _key(plan: Mapping[str, Any], work: Work, held: Mapping[str, Array]) -> str:
    digest = hashlib.sha256(json.dumps(plan, sort_keys=True).encode())
    digest.update(work.matrix.content_stamp().encode())
    digest.update(repr([(n, v.shape, str(v.dtype)) for n, v in sorted(held.items())]).encode())
    try:
        for name, accumulator in sorted(work.accumulators.items()):
            settings = {s: getattr(accumulator, s) for s in accumulator.settings}
            digest.update(pickle.dumps((name, type(accumulator), settings)))
        digest.update(pickle.dumps(sorted(work.maps.items())))
        rows = {"w": work.weights, "design": work.design}
        for group in (work.operands, work.side_inputs, rows):
            for name, value in sorted(group.items()):
                if value is not None:
                    array = np.ascontiguousarray(value)
                    digest.update(f"{name} {array.dtype} {array.shape}".encode())
                    digest.update(array.reshape(-1).view(np.uint8).data)
    except (pickle.PicklingError, AttributeError, TypeError):
        digest.update(uuid.uuid4().bytes)  # a lambda, say: cannot be compared with the last one
    return digest.hexdigest()


# --------------------------------------------------------------------------------------------------
# The execution of a fit, and the cost of each of its passes.


@dataclass
class PassCost:
    """The measured cost of a pass.

    moved : bytes of X sent over the network: chunks of a persisted or scattered array that were
        folded on another worker, and blocks of an array in memory that were sent to a cluster.
        It excludes what Dask moved to compute a chunk, and operands that all blocks share. It
        includes a chunk that was recomputed after its worker died.
    """

    name: str
    reads: int = 0
    nbytes: int = 0
    stored: int = 0
    moved: int = 0
    seconds: float = 0.0
    blocks: int = 0
    most_live_blocks: int = 0  # raw blocks in one lane
    resumed_blocks: int = 0  # taken from a checkpoint instead of read

    def _repr_html_(self) -> str:
        rate = size(self.nbytes / self.seconds) + "/s" if self.seconds else ""
        rows = [
            ("read", text(f"{self.reads:,} chunks, {size(self.nbytes)}, {self.blocks:,} blocks")),
            ("took", text(f"{self.seconds:.2f} s {rate}".rstrip())),
            ("sent", text(size(self.moved) if self.moved else "")),
            ("resumed", text(f"{self.resumed_blocks:,} blocks" if self.resumed_blocks else "")),
        ]
        return card(f"Cost of the pass {self.name!r}", "measured", rows)

    def add(self, reads: ReadCount) -> None:
        """Count reads of X."""
        self.reads += reads.chunks
        self.stored += reads.stored
        self.moved += reads.moved


@dataclass
class PassResult:
    """Folded accumulators by name, and the cost."""

    accumulators: dict[str, Any]
    cost: PassCost

    def __getitem__(self, name: str) -> Any:
        return self.accumulators[name]


@dataclass
class Execution:
    """How the passes of one fit run, and how far they are. It never changes a result.

    scheduler : None (the ambient ``distributed.Client`` if there is one, else threads),
        "threads", an address, or a Client.
    checkpoint : directory for span checkpoints, or None.  every : seconds between them.
    pass_number, n_passes : set by the fit before each pass. After the last pass all checkpoints
        are removed.  first_pass : passes made before, by another solver or an interrupted fit.
    keeps : False if the fit saves the results of its passes itself: then a finished pass leaves
        no checkpoint.
    plan, whole : of these passes, and of everything that may run: the memory that they may take.
    scattered : the parts of an X in memory that lie on workers.
    memory : memory use of this process since this object was made.
    threads : that compute, in all; 0 stands for as many as lanes.
    costs, checkpoints : one entry for each finished pass.
    """

    lanes: int = 2
    blocks_ahead: int = 1
    scheduler: Any = None
    progress: Progress | None = None
    checkpoint: str | None = None
    every: float = field(default_factory=lambda: float(setting("checkpoint-interval")))
    pass_number: int = 1
    first_pass: int = 0
    n_passes: int = 1
    keeps: bool = True
    plan: Plan | None = None
    whole: Plan | None = None
    threads: int = 0
    scattered: Scattered = field(default_factory=Scattered)
    memory: MemoryUse = field(default_factory=MemoryUse.begun)
    costs: list[PassCost] = field(default_factory=list)
    checkpoints: list[Checkpoint] = field(default_factory=list)

    @classmethod
    def begun(
        cls,
        plan: Plan,
        matrix: ChunkedMatrix,
        scheduler: Any = None,
        progress: Any = None,
        checkpoint: str | None = None,
        *,
        whole: Plan | None = None,
    ) -> Execution:
        """The only way to start passes over a matrix; scheduler and progress as models take them.

        whole : the plan of everything that may run, if ``plan`` is only a part of it.
        Raises MemoryLimitError if the plan does not fit into this machine or a worker, ClusterError
        and InvalidInputError if the scheduler cannot be used; all before anything is read.
        """
        whole = plan if whole is None else whole
        client = client_for(scheduler, matrix)
        check_room(whole)
        if client is not None:
            check_workers(client, whole)
        made = cls(scheduler=scheduler, progress=resolve(progress), checkpoint=checkpoint)
        return replace(made.continued(plan), whole=whole)

    def continued(self, plan: Plan) -> Execution:
        """The same fit, with another plan for the passes that follow."""
        threads = plan.affordable(thread_count(), room_for(plan))
        self.memory.more = plan.peak_with(threads) - plan.peak_nbytes
        return replace(
            self, lanes=plan.lanes, blocks_ahead=plan.blocks_ahead, plan=plan, threads=threads
        )

    def crew(self, plan: PassPlan, n_spans: int, matrix: ChunkedMatrix) -> Crew:
        """Who folds a pass of so many spans here."""
        ahead = 0 if self.threads == 1 and read_by_a_core(matrix) else self.blocks_ahead
        return Crew.of(plan.partial_nbytes, self.lanes, ahead, self.threads or self.lanes, n_spans)

    def finished(self) -> None:
        """The fit is done, perhaps in fewer passes than planned: remove its checkpoints."""
        for one in self.checkpoints:
            one.clear()
        self.checkpoints.clear()


def client_for(scheduler: Any, matrix: ChunkedMatrix) -> Any | None:
    """The client for a matrix, or None for threads of this process.

    scheduler : as :func:`find_client` takes it. With None, chunks on a cluster are folded there, by
        the client that holds their futures; arrays in memory are folded here, even if there is an
        ambient client.
    Raises InvalidInputError if X is on another cluster than ``scheduler`` names. "threads" fetches
    it block by block.
    """
    futures = matrix.futures()
    asked = setting("scheduler") if scheduler is None else scheduler
    threads = asked is None or (isinstance(asked, str) and asked == "threads")
    client = None if threads and "distributed" not in sys.modules else find_client(scheduler)
    if not futures:
        ambient = client is not None and scheduler is None and client is ambient_client()
        return None if ambient and in_memory(matrix) else client
    own = futures[0].client
    if client is None:
        return None if asked == "threads" or in_task() else _open(own)
    if scheduler is not None and cluster_id(client) != cluster_id(_open(own)):
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
