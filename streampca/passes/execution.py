"""The execution of the passes of a fit: where they run, how far they are, and what they cost."""

from __future__ import annotations

import sys
from dataclasses import dataclass, field
from typing import Any

from streampca.errors import ClusterError, InvalidInputError
from streampca.matrix import ChunkedMatrix
from streampca.passes.checkpoint import Checkpoint
from streampca.passes.cluster.calls import cluster_id
from streampca.passes.cluster.clients import ambient_client, find_client
from streampca.passes.cluster.parcel import Scattered, in_memory
from streampca.passes.costs import PassCost
from streampca.passes.door import MemoryUse, check_room, check_workers, room_for
from streampca.passes.progress import Progress, resolve
from streampca.passes.records import PassPlan, Plan
from streampca.passes.settings import Crew, in_task, read_by_a_core, setting, thread_count


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
    ) -> Execution:
        """The only way to start passes over a matrix; scheduler and progress as models take them.

        Raises MemoryLimitError if the plan does not fit into this machine or a worker, ClusterError
        and InvalidInputError if the scheduler cannot be used; all before anything is read.
        """
        client = client_for(scheduler, matrix)
        check_room(plan)
        if client is not None:
            check_workers(client, plan)
        threads = plan.affordable(thread_count(), room_for(plan))
        made = cls(
            lanes=plan.lanes,
            blocks_ahead=plan.blocks_ahead,
            scheduler=scheduler,
            progress=resolve(progress),
            checkpoint=checkpoint,
            plan=plan,
            whole=plan,
            threads=threads,
        )
        made.memory.more = plan.peak_with(threads) - plan.peak_nbytes
        return made

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
