"""How a matrix is read: plan, run, checkpoints, progress. The only room that schedules work.

Every method is a short sequence of passes. A pass walks the matrix once, block by block, and feeds
accumulators: mergeable summaries far smaller than the data. A small dense solver turns what was
accumulated into a decomposition.

**Memory.** The peak is interpreter + libraries + X, if it is in memory + (lanes x blocks ahead) +
tiles + accumulators + solver; `plan` prints it term by term. `memory_limit` shrinks blocks and
lanes until it fits, or refuses with the smallest limit that would do. It is the limit of a process
that does nothing else: other arrays of a notebook count against the machine, not against it. The
plan is the same on every machine, except that `sparse`, which Dask and xarray load where it is
installed, is counted there. Libraries that weigh more in this process than the plan allows for are
weighed as they are imported, and the fit is refused if they do not fit. Passes that take more than
their plan warn, of a fit or of any other operation; `result_.provenance["peak_bytes"]` is what a
fit took. A store chunked across its features is handled by panels of rows.

**Clusters.** `cluster:` in a job file, or in a file of options of `fit` and `impute`, names a
running scheduler (`address`), a `LocalCluster`, or any class of Dask clusters with its `arguments`,
`workers` or `adapt`: `configs/slurm.yaml`, `configs/kubernetes.yaml`. `--cluster FILE` takes the
section from any file. It is started when there is work and closed after it. A LocalCluster listens
on 127.0.0.1 alone and has no dashboard. TLS is Dask's own (`security:`, or its configuration). In
Python: `scheduler="tcp://127.0.0.1:8786"`, a `Client`, or the ambient one.

Hand over a path or URL that every worker sees: each reads its own chunks, and little else travels.
A lazy Dask or xarray object sends its graph too; the chunks of a persisted one are folded on the
workers where they lie. NumPy, data frames and sparse matrices in memory are folded here, even
if there is an ambient client; `scheduler=` that names a cluster sends them there once.

A relative path is that of the client. Each worker compares what it finds there (shape, chunks,
metadata, a sample of the chunks) with what the client sees; another store, or none, is refused by
name. What only the client can read (`memory://`, Zarr in memory) is read by the client, with a
warning; an open file is refused. Inside a task a model runs on that worker alone. A model that is
pickled leaves its `Client` behind. What workers hold before the first block, and the share of their
memory at which Dask pauses them, count when a plan is checked against their memory.

`streampca plan --client tcp://host:8786` says what each worker would take: memory, spans, bytes.
Dask's dashboard names the tasks of a pass, such as `scatter_pass_1`.

**What ends how** (exit code 69 on the command line; a `checkpoint` resumes). P is `pause-timeout`.

- Workers of other versions of streampca, NumPy, SciPy, Numba or Python (3.x) are refused by
  name before anything is read: bits would depend on who folds a block. So are workers with less
  memory than the plan needs, with the memory that would do. Those of either kind that join later
  get no work, with a warning.
- A worker dies: its spans (up to 16 blocks each) are folded again. It is paused for lack of memory,
  or stuck in a read: after P they go to another worker, at most `span-retries` times. It is silent
  (no heartbeat for P, 3 s at least): the others go on without it. All with a warning that names it.
- All workers are paused or silent, or silent ones alone have chunks of a persisted X: a warning,
  and `ClusterError` after 3 P, with the names.
- There is no worker: the pass waits `worker-timeout`, with a warning after P. An adaptive cluster
  with none starts some, because a task waits. Where the cluster object says that all of its workers
  have ended (jobs at the end of their time, closed nannies), they are started again, once. If
  these end too, or none was requested: `ClusterError` at once.
- The connection to the scheduler is lost (a network that is down, a scheduler that died): a
  warning, and `ClusterError` after 3 P. If a scheduler answers at the same address before, this one
  or a new one, the pass goes on from what was merged here. A `Client` looks for it so long during a
  pass, whatever its `timeout` is. Chunks of a persisted X go with the connection: `ClusterError`.
- The scheduler is connected and does not answer for P (5 s at least): `ClusterError`.

Partial sums are merged, in the order of the plan, on a worker that has room for the total. The
client fetches it once per checkpoint interval, and before the last spans in flight, which it merges
itself; if that worker dies, what came since is folded again. What sinks on the client write (scores
held in memory) comes to it.

**Settings of a machine** are Dask's, under `streampca:` in `~/.config/dask/*.yaml`, as
`DASK_STREAMPCA__MEMORY_LIMIT=1GiB`, or in `dask.config.set({"streampca.memory-limit": "1GiB"})`:
`memory-limit`, `scheduler`, `threads` (where a call says nothing), `checkpoint-interval` (60 s),
`read-timeout` (600 s for a block), `pause-timeout` (60 s), `span-timeout` (3600 s), `span-retries`
(2), `worker-timeout` (1800 s without any worker).
"""

from streampca.passes.blocks import block_edges, easier_axis
from streampca.passes.candidates import (
    Candidate,
    Planned,
    Steps,
    choose,
    choose_axis,
    choose_pass,
    only_pass,
    pass_spec,
)
from streampca.passes.cluster.clients import cluster_class, find_client, is_client, started
from streampca.passes.cluster.worker_memory import check_workers
from streampca.passes.execute import Outcome, execute, one_pass, run, small_pass, with_arrays
from streampca.passes.execution import Advance, Execution, Running, client_for, resolve
from streampca.passes.memory import MemoryUse, in_memory, parse_nbytes, size
from streampca.passes.plan import Plan, larger
from streampca.passes.rates import Rates
from streampca.passes.records import Pass, PassCost, PassPlan, PassResult, PassSpec
from streampca.passes.settings import (
    all_threads,
    limited_threads,
    on_threads,
    setting,
    single_threaded_blas,
    thread_count,
)

__all__ = [
    "Advance",
    "Candidate",
    "Execution",
    "MemoryUse",
    "Outcome",
    "Pass",
    "PassCost",
    "PassPlan",
    "PassResult",
    "PassSpec",
    "Plan",
    "Planned",
    "Rates",
    "Running",
    "Steps",
    "all_threads",
    "block_edges",
    "check_workers",
    "choose",
    "choose_axis",
    "choose_pass",
    "client_for",
    "cluster_class",
    "easier_axis",
    "execute",
    "find_client",
    "in_memory",
    "is_client",
    "larger",
    "limited_threads",
    "on_threads",
    "one_pass",
    "only_pass",
    "parse_nbytes",
    "pass_spec",
    "resolve",
    "run",
    "setting",
    "single_threaded_blas",
    "size",
    "small_pass",
    "started",
    "thread_count",
    "with_arrays",
]
