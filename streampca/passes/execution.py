"""How the passes of one fit are run, and what each of them cost."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any

from streampca.errors import ClusterError, InvalidInputError
from streampca.matrix import ChunkedMatrix
from streampca.passes.checkpoint import Checkpoint
from streampca.passes.clients import ambient_client, find_client, in_task
from streampca.passes.door import MemoryUse, check_room
from streampca.passes.progress import Progress, resolve
from streampca.passes.records import Plan
from streampca.passes.scattered import Scattered, in_memory
from streampca.passes.settings import setting
from streampca.passes.worker_memory import check_workers


@dataclass
class PassCost:
    """What a pass really cost, beside what its plan promised.

    moved : bytes of X that crossed a wire: chunks of a persisted or scattered array that were
        brought to where they were folded, and blocks of an array in memory that went to a cluster.
        What Dask itself moved to compute a chunk, or an operand that all blocks share, is not in
        it. A chunk that was computed again after its worker died counts.
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


@dataclass
class PassResult:
    """Folded accumulators by name, and the cost."""

    accumulators: dict[str, Any]
    cost: PassCost

    def __getitem__(self, name: str) -> Any:
        return self.accumulators[name]


@dataclass
class Execution:
    """How the passes of one fit are run, which never changes a result, and how far they are.

    scheduler : None (the ambient ``distributed.Client`` if there is one, else threads),
        "threads", an address, or a Client.
    checkpoint : directory for span checkpoints, or None.  every : seconds between them.
    pass_number, n_passes : told by the fit before each pass. After the last one the checkpoints
        of all are dropped.  first_pass : passes that another solver made before.
    keeps : False where a fit saves what its passes give itself: a finished one leaves nothing.
    plan : of the whole fit, if there is one: it knows what a worker needs.
    scattered : what of an X in memory lies on workers.
    memory : of this process, from when this was made.
    costs, checkpoints : one more after each pass.
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
        """The one door to the passes over a matrix; scheduler and progress as the models take them.

        whole : the plan of all that may be run, where ``plan`` is a part of it.
        Raises MemoryLimitError where this machine, or a worker, has no room for it; ClusterError
        and InvalidInputError where there is no such cluster. Nothing has been read then.
        """
        whole = plan if whole is None else whole
        client = client_for(scheduler, matrix)
        check_room(whole)
        if client is not None:
            check_workers(client, whole)
        made = cls(scheduler=scheduler, progress=resolve(progress), checkpoint=checkpoint)
        return made.continued(plan)

    def continued(self, plan: Plan) -> Execution:
        """The same fit, with another plan for the passes that follow."""
        return replace(self, lanes=plan.lanes, blocks_ahead=plan.blocks_ahead, plan=plan)

    def finished(self) -> None:
        """The fit is done, perhaps in less passes than planned: drop its checkpoints."""
        for one in self.checkpoints:
            one.clear()
        self.checkpoints.clear()


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
