"""The plan: what will be read, how, and in how much memory, before anything is read.

A plan is a function of the source and the settings alone. Free memory, what the process holds,
core counts and timings never enter it; they can only lead to its refusal (``Plan.check_machine``).
So does a library that X's libraries load where it is installed: it is counted, and chooses nothing.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import replace
from itertools import groupby, product
from typing import Any

import numpy as np

from streampca.accumulators import Accumulator
from streampca.errors import InvalidInputError, MemoryLimitError
from streampca.matrix import ChunkedMatrix, ReadCount, regular_edges, work_dtype
from streampca.matrix.residual import PIECE_NBYTES
from streampca.matrix.tiles import tile_length
from streampca.passes import door
from streampca.passes.nbytes import MiB, as_limit, parse_nbytes, size
from streampca.passes.process import process_terms
from streampca.passes.records import Candidate, PassPlan, PassSpec, Plan, phase_nbytes
from streampca.passes.settings import setting
from streampca.passes.shares import blocks_per_span, chunks_per_block

BLOCK_NBYTES = 16 * MiB  # of a block in the working dtype, where chunks allow it
BLOCK_LENGTH = 512  # fewer streamed rows than this cost more in merging than they save
DEFAULT_BUDGET = 4096 * MiB  # without a memory_limit: what fits in this beside X is taken
LANES = 2
SHARED_NBYTES = 64 * MiB  # operands that strips of a Dask graph share: refused beyond this

# (lanes, blocks read ahead per lane, block size as a share of BLOCK_NBYTES): most generous first
SCHEDULES = ((2, 1, 1.0), (2, 1, 0.25), (1, 1, 0.25), (1, 1, 0.0), (1, 0, 0.0))


def make_plan(matrix: ChunkedMatrix, method: str, candidates: Sequence[Candidate],
              memory_limit: int | str | None = None) -> Plan:  # fmt: skip
    """The first candidate, with the most generous schedule, that fits the limit.

    Among candidates of one solver and one predicted time the schedule counts first: a second lane
    saves more than what makes one of them more generous than the next.
    Without a limit, of the call or of Dask's configuration (``streampca.memory-limit``), the first
    candidate that fits DEFAULT_BUDGET beside an X in memory, else the smallest.
    Raises MemoryLimitError, naming the smallest limit that would do.
    """
    limit = parse_nbytes(setting("memory-limit") if memory_limit is None else memory_limit)
    budget = DEFAULT_BUDGET + matrix.given_nbytes if limit is None else limit
    rejected: list[str] = []
    passed_over: list[int] = []
    considered: dict[str, float] = {}
    for candidate in candidates:
        if candidate.seconds:
            considered.setdefault(candidate.solver, float(f"{candidate.seconds:.3g}"))
    smallest: Plan | None = None
    for _, alike in groupby(candidates, key=_family):
        group = list(alike)
        least: dict[int, Plan] = {}
        for (lanes, ahead, share), (i, candidate) in product(SCHEDULES, enumerate(group)):
            plan = _schedule(matrix, method, candidate, lanes, ahead, share, limit, tuple(rejected))
            plan = replace(plan, considered=tuple(considered.items()))
            if candidate.then is not None:
                then = _schedule(matrix, method, candidate.then, lanes, ahead, share, limit, ())
                plan = replace(plan, then=then)
            if plan.portable_nbytes <= budget:
                plan = replace(plan, passed_over=tuple(passed_over))
                if limit is not None and plan.peak_nbytes > limit:
                    raise _too_small(plan, matrix, candidates)
                return plan
            passed_over.append(plan.portable_nbytes)
            if i not in least or plan.portable_nbytes < least[i].portable_nbytes:
                least[i] = plan
        for plan in least.values():
            rejected.append(f"{plan.solver}: needs at least {size(plan.portable_nbytes)}")
            if smallest is None or plan.portable_nbytes < smallest.portable_nbytes:
                smallest = plan
    if smallest is None:
        raise InvalidInputError(f"{method}: no solver fits this input")
    if limit is None:
        return smallest
    raise _too_small(replace(smallest, passed_over=tuple(passed_over)), matrix, candidates)


def _too_small(
    plan: Plan, matrix: ChunkedMatrix, candidates: Sequence[Candidate]
) -> MemoryLimitError:
    """What to raise where this plan, the smallest, does not keep the limit."""
    phase = max(plan.memory, key=lambda name: phase_nbytes(plan.memory, name))
    term, nbytes = max(plan.memory[phase].items(), key=lambda item: item[1])
    return MemoryLimitError(
        f"memory_limit={size(plan.memory_limit or 0)} is too small for {plan.method} of "
        f"{matrix.shape[0]} x {matrix.shape[1]}. The smallest limit that would do is "
        f"memory_limit={as_limit(door.enough_for(plan), up=True)!r} (solver {plan.solver}; the "
        f"largest term is {term}, {size(nbytes)}, in {phase}; beside it the process itself takes "
        f"{size(sum(plan.memory['process'].values()))}"
        + _in_memory(matrix)
        + ")."
        + _advice(matrix, candidates)
    )


def _family(candidate: Candidate) -> tuple[Any, ...]:
    """Candidates among which the schedule decides."""
    then = candidate.then
    return candidate.solver, candidate.seconds, then and (then.solver, then.seconds)


def _in_memory(matrix: ChunkedMatrix) -> str:
    """What of a process is the source itself, in words; "" where that is little."""
    nbytes = matrix.given_nbytes
    return f", {size(nbytes)} of it X, which is in memory" if nbytes > MiB else ""


def _advice(matrix: ChunkedMatrix, candidates: Sequence[Candidate]) -> str:
    """What the source says of the axes that would be streamed, as sentences."""
    axes = sorted({spec.axis for candidate in candidates for spec in candidate.passes})
    return "".join(f" {advice}" for axis in axes if (advice := matrix.advice(axis)))


def _schedule(matrix: ChunkedMatrix, method: str, candidate: Candidate, lanes: int, ahead: int,
              share: float, limit: int | None, rejected: tuple[str, ...]) -> Plan:  # fmt: skip
    passes: list[PassPlan] = []
    memory = {"process": process_terms(matrix, candidate, lanes)}
    for spec in candidate.passes:
        one, memory[spec.name] = _schedule_pass(matrix, spec, lanes, ahead, share)
        passes.append(one)
    axes = {spec.axis for spec in candidate.passes}
    prepare = sum((matrix.prepare_reads(axis) for axis in sorted(axes)), ReadCount())
    if prepare.chunks:
        for spec in candidate.passes:
            memory[spec.name]["shared operands"] = SHARED_NBYTES
    memory["solver"] = dict(candidate.solve_nbytes)
    # buffers of the threads that decode live as long as these
    memory["solver"]["decoding"] = max(memory[one.name]["decoding"] for one in candidate.passes)
    return Plan(
        method, candidate.solver, candidate.reason, matrix.shape, str(matrix.dtype),
        str(work_dtype(matrix.dtype)),
        matrix.fingerprint()[:16], lanes, ahead, tuple(passes), memory, limit,
        candidate.solve_flops, prepare.chunks, prepare.nbytes, rejected,
        sizes=candidate.sizes, note=matrix.note,
    )  # fmt: skip


def _schedule_pass(matrix: ChunkedMatrix, spec: PassSpec, lanes: int, ahead: int,
                   share: float) -> tuple[PassPlan, dict[str, int]]:  # fmt: skip
    """(the pass, its memory by term)."""
    work = work_dtype(matrix.dtype)
    source = matrix if spec.matrix is None else spec.matrix
    by_entries = spec.stored and source.design is None  # residuals are dense
    edges = block_edges(source, spec.axis, share, spec.rows, by_entries, spec.longest)
    longest = int(np.diff(edges).max(initial=0))
    across = source.shape[1 - spec.axis]
    blocks = source.spans_nbytes(spec.axis, edges)
    block = int(blocks.max(initial=0))
    one = PassPlan(spec.name, spec.axis, edges, blocks_per_span(source, spec.axis, edges), 0,
                   int(blocks.sum()), spec.flops, spec.ordered, spec.times)  # fmt: skip
    spans = [edges[span[0] : span[-1] + 2] for span in one.spans]
    one = replace(one, reads=sum(source.count_span(spec.axis, span) for span in spans))
    active = min(lanes, max(1, len(one.spans)))
    tile = tile_length(longest, across, work.itemsize, spec.thin) * across * work.itemsize
    if source.sparse:  # a tile is expanded in the stored dtype first; masks of the entries
        tile = 0 if by_entries else tile * (1 + source.dtype.itemsize // work.itemsize)
        tile += block
    memory = {
        "blocks": min(active * (ahead + 1), len(edges) - 1) * block,
        "decoding": active * max(1, ahead) * source.read_scratch_nbytes(spec.axis, longest),
        "tiles": active * tile,
        "partial accumulators": active * spec.partial_nbytes,
        "folded accumulators": spec.total_nbytes,
        "scratch": active * spec.scratch(longest),
        "kept arrays": spec.kept_nbytes,
        **spec.kept,
    }
    if source.design is not None:
        removed = (1 + source.design.shape[1]) * source.shape[1] * 8
        memory["residuals"] = active * longest * across * work.itemsize
        memory["design"] = source.design.nbytes + removed + 4 * PIECE_NBYTES
    return one, memory


def block_edges(matrix: ChunkedMatrix, axis: int, share: float = 1.0,
                rows: tuple[int, int] | None = None,
                stored: bool = False,
                most: int | None = None) -> np.ndarray[Any, Any]:  # fmt: skip
    """Block boundaries along axis: whole chunks, about BLOCK_NBYTES each, or few that are computed.

    share : of BLOCK_NBYTES; 0 gives the smallest blocks that read each chunk once.
    stored : of a sparse matrix, by the stored entries and not by the cells.
    most : of a block, where chunks are no longer.
    """
    length = matrix.shape[axis]
    stride = max(1.0, matrix.shape[1 - axis] * work_dtype(matrix.dtype).itemsize)
    if stored:
        stride = max(1.0, matrix.row_nbytes(axis))
    least = int(min(BLOCK_LENGTH if share else 64, 4 * BLOCK_NBYTES // stride))
    wanted = max(1, least, int(BLOCK_NBYTES * share // stride))
    wanted = wanted if most is None else min(wanted, most)
    edges = matrix.chunk_edges(axis)
    start, stop = rows or (0, length)
    if edges is None:
        return start + regular_edges(stop - start, wanted)
    edges = np.asarray(edges, dtype=np.int64)
    inside = edges[np.searchsorted(edges, start, "right") : np.searchsorted(edges, stop, "left")]
    known = np.concatenate([[start], inside, [stop]])
    most_chunks = chunks_per_block(matrix, axis, len(known) - 1) or len(known)
    grouped = [start]
    while grouped[-1] < stop:
        nearest = bisect_right(known, grouped[-1] + wanted) - 1
        after = bisect_right(known, grouped[-1])
        grouped.append(int(known[max(min(nearest, after + most_chunks - 1), after)]))
    return np.array(grouped, dtype=np.int64)


def easier_axis(matrix: ChunkedMatrix, preferred: int = 0) -> int:
    """The axis to stream where either would do: the preferred one, unless blocks of it are huge.

    That is, more than 4 times as large as those of the other axis, and than 4 million cells.
    """
    longest = (int(np.diff(block_edges(matrix, axis)).max(initial=0)) for axis in (0, 1))
    cells = [length * matrix.shape[1 - axis] for axis, length in enumerate(longest)]
    other = 1 - preferred
    return other if cells[preferred] > 4 * max(cells[other], 1 << 22) else preferred


def pass_spec(name: str, matrix: ChunkedMatrix, axis: int, accumulators: Sequence[Accumulator],
              **more: Any) -> PassSpec:  # fmt: skip
    """A PassSpec with the memory of these accumulators."""
    itemsize = work_dtype(matrix.dtype).itemsize
    if matrix.sparse and more.get("stored"):
        itemsize = 8  # products of stored entries are float64
    shape = matrix.shape
    total = sum(a.projected_nbytes(shape, itemsize) for a in accumulators)
    edges = block_edges(matrix, axis, rows=more.get("rows"), stored=more.get("stored", False),
                        most=more.get("longest"))  # fmt: skip
    longest = blocks_per_span(matrix, axis, edges) * int(np.diff(edges).max(initial=0))
    seen = min(longest, shape[axis])  # of the streamed axis, in one span
    span = (shape[0], seen) if axis else (seen, shape[1])
    partial = sum(a.partial_nbytes(span, itemsize) for a in accumulators)

    def scratch(length: int) -> int:
        return max((a.scratch_nbytes(shape, length) for a in accumulators), default=0)

    return PassSpec(name, axis, total, partial, scratch, **more)
