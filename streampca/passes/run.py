"""One pass: every block is read once, and folded in a fixed order."""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Any

import numpy as np

from streampca.accumulators import Accumulator
from streampca.errors import InvalidInputError
from streampca.kernels import give_back
from streampca.matrix import ChunkedMatrix, spot_checks
from streampca.passes.cluster.cluster import run_on_cluster
from streampca.passes.cluster.workers import await_worker, refuse_other_versions
from streampca.passes.costs import PassCost, PassResult
from streampca.passes.door import warn_of_excess
from streampca.passes.execution import Execution, client_for
from streampca.passes.fold import Fold, run_on_lanes
from streampca.passes.records import PassPlan
from streampca.passes.settings import single_threaded_blas
from streampca.passes.work import Map, Work, workers_can_read
from streampca.store import Sink


def run(
    plan: PassPlan,
    matrix: ChunkedMatrix,
    *,
    accumulators: Mapping[str, Accumulator] | None = None,
    operands: Mapping[str, Any] | None = None,
    side_inputs: Mapping[str, Any] | None = None,
    maps: Mapping[str, Map] | None = None,
    sinks: Mapping[str, Sink] | None = None,
    weights: Any = None,
    execution: Execution | None = None,
    more_follow: bool = False,
) -> PassResult:
    """Walk the matrix once as planned.

    accumulators : empty accumulators by name in place of those of the plan; they are not changed,
        the result holds others.
    operands : small arrays that every block needs: ``block["Q"]``.
    side_inputs : arrays aligned with the streamed axis; ``block["scores"]`` is the slice.
    maps : name -> function of a block; its result is ``block[name]`` for what follows.
    sinks : name of a map, or of rows that an accumulator makes -> where they are written.
        Idempotent.
    weights : (samples,) row weights.
    more_follow : other passes of the same fit; its memory is compared with its plan after them.

    Bits depend on the plan alone, not on lanes, workers or the order in which they finish.
    Ctrl-C stops it within a block. Raises what reading, maps and accumulators raise.
    """
    execution = execution or Execution()
    client = client_for(execution.scheduler, matrix)
    if client is not None and not workers_can_read(matrix):
        client = None
    if client is not None:
        await_worker(client)
        refuse_other_versions(client)
    operands = dict(operands or {})
    if matrix.removed is not None:
        operands["removed"] = matrix.removed
    work = Work(
        matrix.without(None).streamed(plan.axis, plan.edges),
        dict(plan.accumulators if accumulators is None else accumulators),
        {name: _laid_out(value) for name, value in operands.items()},
        dict(side_inputs or {}),
        dict(maps or {}),
        dict(sinks or {}),
        weights,
        design=matrix.design,
    )
    _check(work)
    give_back()  # what came before: a solver, another pass
    cost = PassCost(plan.name)
    begun = time.perf_counter()
    shared = matrix.prepared()
    fold = Fold(plan, work, cost, execution, begun)
    todo = list(enumerate(plan.spans))[fold.next :]
    try:
        with single_threaded_blas():  # on a cluster too: spans are merged here
            if todo and client is not None:
                work.checks = spot_checks(work.matrix.locations())
                run_on_cluster(client, work, fold, execution)
            elif todo:
                run_on_lanes(work, todo, execution, fold)
    except BaseException as error:
        fold.interrupted(error)
        raise
    fold.finish()
    give_back()
    shared = matrix.prepared() - shared
    cost.reads += shared.chunks
    cost.nbytes += shared.nbytes
    cost.seconds = time.perf_counter() - begun
    execution.costs.append(cost)
    if not more_follow:
        warn_of_excess(execution.whole, execution.memory)
    return PassResult(fold.total, cost)


def _laid_out(operand: Any) -> Any:
    """The operand without gaps in memory: travelling closes them, and BLAS rounds otherwise."""
    gaps = isinstance(operand, np.ndarray) and not operand.flags.forc
    return np.ascontiguousarray(operand) if gaps else operand


def _check(work: Work) -> None:
    axis = work.matrix.streamed_axis
    for name, accumulator in work.accumulators.items():
        if accumulator.axis not in (None, axis):
            streamed, wanted = (("samples", "features")[a] for a in (axis, accumulator.axis))
            raise InvalidInputError(f"{name!r} needs blocks of {wanted}; this pass has {streamed}")
    length, edges = work.matrix.shape[axis], work.matrix.edges
    if edges[0] < 0 or edges[-1] > length:
        raise InvalidInputError(f"the plan is for another matrix: {edges[-1]} rows, here {length}")
    names = [*work.operands, *work.side_inputs, *work.maps]
    if len(set(names)) < len(names):
        raise InvalidInputError(f"operands, side inputs and maps share a name: {sorted(names)}")
    for name, values in work.side_inputs.items():
        if (rows := np.shape(values)[0]) != length:
            raise InvalidInputError(f"side input {name!r} has {rows} rows, not {length}")
    if work.design is not None:
        if len(work.design) != work.matrix.shape[0]:
            raise InvalidInputError(
                f"a design of {len(work.design)} rows for {work.matrix.shape[0]} samples"
            )
        if axis == 0 and "removed" not in work.operands:
            raise InvalidInputError("streamed samples need to know what the design removes")
    if work.weights is not None and len(work.weights) != work.matrix.shape[0]:
        raise InvalidInputError(
            f"{len(work.weights)} weights for {work.matrix.shape[0]} samples; expected one each"
        )
    sources = set(work.matrix.paths())
    for sink in work.sinks.values():
        if same := sources.intersection(sink.paths()):
            raise InvalidInputError(f"{same.pop()} is what is read; choose another output")
    made = {name for one in work.accumulators.values() for name in one.makes}
    if missing := set(work.sinks) - set(work.maps) - made:
        raise InvalidInputError(f"sinks {sorted(missing)} have no map of that name")
