"""Candidates: the ways to an answer, and the plan of the first that fits into the memory.

A :class:`Candidate` is one way to an answer. It declares its passes, with the accumulators that
they fold, and carries the function that solves. What it was built from (the matrix, the
request, sizes, the passes themselves) is bound in that function, by ``functools.partial``.

A plan is a function of the source and the settings alone. Free memory, what the process holds,
core counts and timings never enter it; they can only lead to its refusal (``plan.check_room``). The
same holds for a library that X's libraries load if it is installed: it is counted, but decides
nothing.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Generator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import groupby, product
from typing import Any, Generic, NamedTuple, TypeVar

import numpy as np

from streampca.accumulators import Accumulator
from streampca.errors import InvalidInputError, MemoryLimitError
from streampca.matrix import ChunkedMatrix, ReadCount, work_dtype
from streampca.matrix.standardize import PIECE_NBYTES
from streampca.matrix.tiles import tile_length
from streampca.passes.blocks import block_edges, blocks_per_span
from streampca.passes.memory import (
    BROUGHT,
    INTERPRETER_NBYTES,
    KERNELS_NBYTES,
    LIBRARY_NBYTES,
    NEEDS,
    PACKED_NBYTES,
    PACKED_ROWS,
    SKINNY_NBYTES,
    THREAD_NBYTES,
    MiB,
    as_limit,
    installed,
    parse_nbytes,
    size,
    unforeseen,
)
from streampca.passes.plan import Plan, enough_for, phase_nbytes
from streampca.passes.records import Pass, PassPlan, PassResult, PassSpec
from streampca.passes.settings import setting, thread_nbytes

T = TypeVar("T")
Steps = Generator[Pass, PassResult, T]  # what yields passes, is handed results, and returns a T


@dataclass(frozen=True)
class Planned(Generic[T]):
    """A candidate with its plan: what ``execute`` runs, and what the candidate solves.

    start : where the solver begins, such as what earlier fits left; or None.
    """

    candidate: Candidate[T]
    plan: Plan
    matrix: ChunkedMatrix
    start: Any = None

    def declared(self, spec: PassSpec) -> tuple[PassSpec, PassPlan]:
        """A pass as it is planned, and its blocks.  spec : as whoever solves has it."""
        pairs = zip(self.candidate.passes, self.plan.passes, strict=True)
        for pair in pairs:
            if pair[0].key is spec.key:
                return pair
        raise ValueError(f"{self.candidate.solver!r} declares no pass {spec.name!r}")

    def blocks(self, spec: PassSpec) -> PassPlan:
        """The blocks of a pass."""
        return self.declared(spec)[1]

    @property
    def then(self) -> Planned[T] | None:
        """What is gone over to where the answer leaves a doubt."""
        candidate, plan = self.candidate.then, self.plan.then
        if candidate is None or plan is None:
            return None
        return Planned(candidate, plan, self.matrix, self.start)


def only_pass(planned: Planned[Any]) -> Steps[PassResult]:
    """The sums of the one pass of a candidate: its answer where it names no other."""
    (spec,) = planned.candidate.passes
    return (yield Pass(spec))


@dataclass(frozen=True)
class Candidate(Generic[T]):
    """One way to an answer: its passes, the memory that solving needs after them, and the solver.

    solve_nbytes : of the solver phase, by what they are: arrays that live at the same time.
    sizes : numbers that the plan prints.
    seconds : predicted, for ordering; 0 where nothing predicts it.
    then : what the fit goes over to where this one's answer has a ``doubt``.
    solve : yields the passes that it needs, is handed their sums, and returns the answer. Results
        that it holds no longer than it must are taken out of ``accumulators``.
    """

    solver: str
    reason: str
    passes: tuple[PassSpec, ...]
    solve_nbytes: Mapping[str, int] = field(default_factory=dict)
    solve_flops: float = 0.0
    sizes: Mapping[str, int] = field(default_factory=dict)
    seconds: float = 0.0
    then: Candidate[T] | None = None
    solve: Callable[[Planned[Any]], Steps[T]] = field(
        default=only_pass,  # type: ignore[assignment]
        repr=False,
        compare=False,
    )

    def __post_init__(self) -> None:
        keys = [one.key for one in self.passes]
        if len(set(map(id, keys))) < len(keys):
            raise ValueError(
                f"two passes of {self.solver!r} are copies of one by replace(); give the second a "
                "key of its own: key=object()"
            )
        names = [one.name for one in self.passes]
        if not names or len({*names, "process", "solver"}) < len(names) + 2:
            raise ValueError(
                f"the passes of {self.solver!r} are {names}; expected different names, none "
                "of them 'process' or 'solver', which are phases of a plan"
            )

    def passes_within(self, seconds: float) -> int:
        """How many of its passes are predicted to take so many seconds together."""
        if not self.seconds:
            return 0
        usual = sum(one.likely for one in self.passes)
        return int(min(seconds * usual / self.seconds, np.iinfo(np.int32).max))

    def weighted(self, weights: Any, feature_weights: Any = None) -> Candidate[T]:
        """The candidate whose passes count samples, and weigh features, so."""
        passes = tuple(
            replace(one, weights=weights, feature_weights=feature_weights if one.axis else None)
            for one in self.passes
        )
        return replace(self, passes=passes)


# The plan of the first candidate that fits.

DEFAULT_BUDGET = 4096 * MiB  # without a memory_limit, in addition to an X in memory
LANES = 2
OF_LANES = ("decoding", "tiles", "partial accumulators", "scratch", "residuals")  # terms of memory
SHARED_NBYTES = 64 * MiB  # the most that strips of a Dask graph may share

# (lanes, blocks read ahead per lane, block size as a share of BLOCK_NBYTES): most generous first
SCHEDULES = ((2, 1, 1.0), (2, 1, 0.25), (1, 1, 0.25), (1, 1, 0.0), (1, 0, 0.0))


class _Cut(NamedTuple):
    """blocks : a pass without a name.  longest : streamed rows of a block.  block : its bytes."""

    blocks: PassPlan
    n_spans: int
    longest: int
    block: int


Known = dict[tuple[Any, ...], _Cut]


def choose(
    matrix: ChunkedMatrix,
    method: str,
    candidates: Sequence[Candidate[T]],
    memory_limit: int | str | None = None,
    otherwise: Callable[[], Sequence[Candidate[T]]] | None = None,
) -> Planned[T]:
    """The first candidate that fits the limit, with the most generous schedule that does.

    otherwise : all candidates, which are chosen among where none of the first ones fits.

    Among candidates with the same solver and predicted time the schedule counts first: a second
    lane saves more time than the differences between them.
    Without a limit, by the call or by Dask's configuration (``streampca.memory-limit``), the first
    candidate that fits DEFAULT_BUDGET in addition to an X in memory, else the smallest.
    Raises MemoryLimitError that names the smallest limit that would do.
    """
    limit = parse_nbytes(setting("memory-limit") if memory_limit is None else memory_limit)
    budget = DEFAULT_BUDGET + matrix.given_nbytes if limit is None else limit
    rejected: list[str] = []
    passed_over: list[int] = []
    considered: dict[str, float] = {}
    for candidate in candidates:
        if candidate.seconds:
            considered.setdefault(candidate.solver, float(f"{candidate.seconds:.3g}"))
    smallest: tuple[Plan, Candidate[T]] | None = None
    known: Known = {}
    for _, alike in groupby(candidates, key=_family):
        group = list(alike)
        least: dict[int, Plan] = {}
        for (lanes, ahead, share), (i, candidate) in product(SCHEDULES, enumerate(group)):
            schedule = (lanes, ahead, share)
            plan = _schedule(matrix, method, candidate, schedule, limit, tuple(rejected), known)
            plan = replace(plan, considered=tuple(considered.items()))
            if candidate.then is not None:
                then = _schedule(matrix, method, candidate.then, schedule, limit, (), known)
                plan = replace(plan, then=then)
            if plan.portable_nbytes <= budget:
                plan = replace(plan, passed_over=tuple(passed_over))
                if limit is not None and plan.peak_nbytes > limit:
                    if otherwise is not None:
                        return choose(matrix, method, otherwise(), memory_limit)
                    raise _too_small(plan, matrix, candidates)
                return Planned(candidate, plan, matrix)
            passed_over.append(plan.portable_nbytes)
            if i not in least or plan.portable_nbytes < least[i].portable_nbytes:
                least[i] = plan
        for i, plan in least.items():
            rejected.append(f"{plan.solver}: needs at least {size(plan.portable_nbytes)}")
            if smallest is None or plan.portable_nbytes < smallest[0].portable_nbytes:
                smallest = plan, group[i]
    if otherwise is not None:
        return choose(matrix, method, otherwise(), memory_limit)
    if smallest is None:
        raise InvalidInputError(f"{method}: no solver fits this input")
    plan, candidate = smallest
    if limit is None:
        return Planned(candidate, plan, matrix)
    raise _too_small(replace(plan, passed_over=tuple(passed_over)), matrix, candidates)


def choose_pass(
    matrix: ChunkedMatrix,
    spec: PassSpec,
    memory_limit: int | str | None = None,
    solve: Callable[[Planned[Any]], Steps[T]] = only_pass,  # type: ignore[assignment]
) -> Planned[T]:
    """A pass by itself, planned. Raises MemoryLimitError.

    An X in memory does not count against the limit: whoever applies a model to rows, or sums them
    up, holds them already.
    """
    matrix = copy.copy(matrix)
    matrix.given_nbytes = 0
    candidate = Candidate(spec.name, "one pass", (spec,), solve=solve)
    return choose(matrix, spec.name, [candidate], memory_limit)


def choose_axis(
    matrix: ChunkedMatrix, by_axis: Sequence[Candidate[T]], memory_limit: int | str | None = None
) -> Planned[T]:
    """A pass along the axis that takes less memory; the limit does not decide which.

    by_axis : by samples, which are preferred, and by features.
    """
    samples, features = (
        _schedule(matrix, one.solver, one, SCHEDULES[0], None, (), {}).portable_nbytes
        for one in by_axis
    )
    best = by_axis[0 if samples <= 1.5 * features else 1]
    return choose(matrix, best.solver, [best], memory_limit)


def _too_small(
    plan: Plan, matrix: ChunkedMatrix, candidates: Sequence[Candidate[Any]]
) -> MemoryLimitError:
    """The error if this plan, the smallest, exceeds the limit."""
    phase = max(plan.memory, key=lambda name: phase_nbytes(plan.memory, name))
    term, nbytes = max(plan.memory[phase].items(), key=lambda item: item[1])
    smallest = enough_for(plan)
    held = sum(plan.memory["process"].values()) + unforeseen(plan.memory["process"])
    return MemoryLimitError(
        f"memory_limit={size(plan.memory_limit or 0)} is too small for {plan.method} of "
        f"{matrix.shape[0]} x {matrix.shape[1]}. The smallest limit that would do is "
        f"memory_limit={as_limit(smallest, up=True)!r} (solver {plan.solver}; the "
        f"largest term is {term}, {size(nbytes)}, in {phase}; the process itself takes "
        f"{size(held)}" + _in_memory(matrix) + ")." + _advice(matrix, candidates),
        smallest,
    )


def _family(candidate: Candidate[Any]) -> tuple[Any, ...]:
    """The key of candidates of one solver and predicted time, which differ in memory."""
    then = candidate.then
    return candidate.solver, candidate.seconds, then and (then.solver, then.seconds)


def _in_memory(matrix: ChunkedMatrix) -> str:
    """The memory that X itself takes, as text; "" if it is little."""
    nbytes = matrix.given_nbytes
    return f", {size(nbytes)} of it X, which is in memory" if nbytes > MiB else ""


def _advice(matrix: ChunkedMatrix, candidates: Sequence[Candidate[Any]]) -> str:
    """The source's advice on the axes that would be streamed, as sentences."""
    axes = sorted({spec.axis for candidate in candidates for spec in candidate.passes})
    return "".join(f" {advice}" for axis in axes if (advice := matrix.advice(axis)))


def _schedule(
    matrix: ChunkedMatrix,
    method: str,
    candidate: Candidate[Any],
    schedule: tuple[int, int, float],
    limit: int | None,
    rejected: tuple[str, ...],
    known: Known,
) -> Plan:
    lanes, ahead, _ = schedule
    passes: list[PassPlan] = []
    memory = {"process": process_terms(matrix, candidate, lanes)}
    for spec in candidate.passes:
        one, memory[spec.name] = _schedule_pass(matrix, spec, schedule, known)
        passes.append(one)
    axes = {spec.axis for spec in candidate.passes}
    prepare = sum((matrix.prepare_reads(axis) for axis in sorted(axes)), ReadCount())
    if prepare.chunks:
        for spec in candidate.passes:
            memory[spec.name]["shared operands"] = SHARED_NBYTES
    memory["solver"] = dict(candidate.solve_nbytes)
    # buffers of the decoding threads stay allocated as long as the threads
    memory["solver"]["decoding"] = max(memory[one.name]["decoding"] for one in candidate.passes)
    return Plan(
        method,
        candidate.solver,
        candidate.reason,
        matrix.shape,
        str(matrix.dtype),
        str(work_dtype(matrix.dtype)),
        matrix.fingerprint()[:16],
        lanes,
        ahead,
        tuple(passes),
        memory,
        limit,
        candidate.solve_flops,
        prepare.chunks,
        prepare.nbytes,
        rejected,
        sizes=candidate.sizes,
        note=matrix.note,
    )


def _by_entries(source: ChunkedMatrix, spec: PassSpec) -> bool:
    """Whether a pass takes stored entries alone; residuals of a design are dense."""
    return spec.stored and source.design is None


def _cut(source: ChunkedMatrix, spec: PassSpec, share: float, known: Known) -> _Cut:
    """The blocks of a pass, which it shares with other schedules and candidates."""
    by_entries = _by_entries(source, spec)
    key = (id(source), spec.axis, share, spec.rows, by_entries, spec.longest, spec.ordered)
    if key not in known:
        edges = block_edges(source, spec.axis, share, spec.rows, by_entries, spec.longest)
        nbytes = source.spans_nbytes(spec.axis, edges)
        span = blocks_per_span(source, spec.axis, edges)
        one = PassPlan("", spec.axis, edges, span, 0, int(nbytes.sum()), 0.0, spec.ordered)
        spans = [edges[blocks[0] : blocks[-1] + 2] for blocks in one.spans]
        reads = source.count_pass(spec.axis, spans) if spans else 0
        longest, block = int(np.diff(edges).max(initial=0)), int(nbytes.max(initial=0))
        known[key] = _Cut(replace(one, reads=reads), len(spans), longest, block)
    return known[key]


def _schedule_pass(
    matrix: ChunkedMatrix, spec: PassSpec, schedule: tuple[int, int, float], known: Known
) -> tuple[PassPlan, dict[str, int]]:
    """(the pass, its memory by term)."""
    lanes, ahead, share = schedule
    work = work_dtype(matrix.dtype)
    source = matrix if spec.matrix is None else spec.matrix
    by_entries = _by_entries(source, spec)
    cut = _cut(source, spec, share, known)
    one = replace(cut.blocks, name=spec.name, flops=spec.flops, times=spec.times, final=spec.final)
    edges, longest, block = one.edges, cut.longest, cut.block
    across = source.shape[1 - spec.axis]
    active = min(lanes, max(1, cut.n_spans))
    tile = tile_length(longest, across, work.itemsize, spec.thin) * across * work.itemsize
    if source.sparse:  # a tile is first expanded in the stored dtype; and there are entry masks
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
    if (columns := source.given_nbytes - matrix.given_nbytes) > 0:
        memory["design"] = 2 * columns  # read with X, and what they came from
    if source.design is not None:
        removed = (1 + source.design.shape[1]) * source.shape[1] * 8
        memory["residuals"] = active * longest * across * work.itemsize
        # the columns from which it was computed are as large
        memory["design"] = 2 * source.design.nbytes + removed + 4 * PIECE_NBYTES
    of_lane = sum(memory.get(name, 0) for name in OF_LANES) // active + packed_nbytes(source, spec)
    of_reader = block + memory["decoding"] // active
    more = thread_nbytes(lanes, spec.partial_nbytes, of_lane + block, of_reader)
    return replace(one, thread_nbytes=more), memory


def pass_spec(
    name: str,
    matrix: ChunkedMatrix,
    axis: int,
    accumulators: Mapping[str, Accumulator],
    expanded: Any = False,
    **more: Any,
) -> PassSpec:
    """A PassSpec with empty accumulators, and the memory that they will take.

    expanded : they expand the blocks of a sparse matrix.
    """
    itemsize = work_dtype(matrix.dtype).itemsize
    if matrix.sparse and more.get("stored"):
        itemsize = 8  # products of stored entries are float64
    shape = matrix.shape
    total = sum(a.projected_nbytes(shape, itemsize) for a in accumulators.values())
    edges = block_edges(
        matrix,
        axis,
        rows=more.get("rows"),
        stored=more.get("stored", False),
        most=more.get("longest"),
    )
    longest = blocks_per_span(matrix, axis, edges) * int(np.diff(edges).max(initial=0))
    seen = min(longest, shape[axis])  # streamed rows of one span
    span = (shape[0], seen) if axis else (seen, shape[1])
    partial = sum(a.partial_nbytes(span, itemsize) for a in accumulators.values())

    dense = shape[1 - axis] * matrix.dtype.itemsize if expanded and matrix.sparse else 0

    def scratch(length: int) -> int:
        own = max((a.scratch_nbytes(shape, length) for a in accumulators.values()), default=0)
        return own + dense * length

    return PassSpec(name, axis, total, partial, scratch, accumulators, **more)


# The memory of the process that runs a plan, by its terms.


def process_terms(matrix: ChunkedMatrix, candidate: Candidate[Any], lanes: int) -> dict[str, int]:
    """Bytes that are used throughout the fit, by term; each library is a term."""
    names = libraries(matrix, candidate)
    more = {BROUGHT[name] for name in names if name in BROUGHT} - set(names)
    with_numba = 0 if "numba" in names else LIBRARY_NBYTES["numba"]
    return {
        "interpreter": INTERPRETER_NBYTES,
        **{name: LIBRARY_NBYTES[name] for name in names},
        **{name: LIBRARY_NBYTES[name] + with_numba for name in more if installed(name)},
        "compiled kernels": KERNELS_NBYTES if "numba" in names else 0,
        "threads": 2 * lanes * THREAD_NBYTES,
        "BLAS buffers": lanes
        * max(
            packed_nbytes(matrix if spec.matrix is None else spec.matrix, spec)
            for spec in candidate.passes
        ),
        "labels": matrix.labels.samples.nbytes + matrix.labels.features.nbytes,
        "source": matrix.resident_nbytes,
        "X in memory": matrix.given_nbytes,
    }


def packed_nbytes(matrix: ChunkedMatrix, spec: PassSpec) -> int:
    """Bytes of BLAS's packing buffers in one lane.  matrix : what the pass reads."""
    if spec.work == "skinny":
        return SKINNY_NBYTES
    width = matrix.shape[1 - spec.axis]
    return min(PACKED_ROWS * width * work_dtype(matrix.dtype).itemsize, PACKED_NBYTES)


def libraries(matrix: ChunkedMatrix, candidate: Candidate[Any]) -> list[str]:
    """Heavy libraries that the passes load: those of the source, and Numba for its kernels."""
    small = matrix.dtype.kind in "iu" and matrix.dtype.itemsize == 1
    compiled = small and any(spec.axis == 1 for spec in candidate.passes)
    loads = {*matrix.loads, *(["numba"] if compiled else [])}
    return sorted(loads.union(*(NEEDS.get(name, ()) for name in loads)))
