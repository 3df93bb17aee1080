"""The plan: what will be read, how, and in how much memory, before anything is read.

A plan is a function of the source and the settings alone. Free memory, core counts and
timings never enter it; they can only lead to its refusal (``Plan.check_machine``).
"""

from __future__ import annotations

import hashlib
import html
import json
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from itertools import pairwise
from typing import Any

import numpy as np

from streampca.accumulators import OPEN_BLOCKS, Accumulator
from streampca.errors import InvalidInputError, MemoryLimitError
from streampca.matrix import ChunkedMatrix, ReadCount, regular_edges, work_dtype
from streampca.matrix.block import tile_length
from streampca.matrix.residual import PIECE_NBYTES
from streampca.passes import machine

MiB = 1024 * 1024
INTERPRETER_NBYTES = 96 * MiB  # Python with NumPy, SciPy and Zarr: 80 MiB measured
# numba: 108 MiB with its kernels from the cache, 151 where they are compiled; xarray 37, dask 49
LIBRARY_NBYTES = {"numba": 160 * MiB, "xarray": 40 * MiB, "dask": 56 * MiB,
                  "h5py": 16 * MiB}  # fmt: skip
THREAD_NBYTES = 3 * MiB  # stack, allocator arena and BLAS buffer that one lane or reader touches
BLOCK_NBYTES = 16 * MiB  # of a block in the working dtype, where chunks allow it
BLOCK_LENGTH = 512  # fewer streamed rows than this cost more in merging than they save
DEFAULT_BUDGET = 4096 * MiB  # without a memory_limit: the first candidate that fits in this
LANES = 2
SHARED_NBYTES = 64 * MiB  # operands that strips of a Dask graph share: refused beyond this

# (lanes, blocks read ahead per lane, block size as a share of BLOCK_NBYTES): most generous first
SCHEDULES = ((2, 1, 1.0), (2, 1, 0.25), (1, 1, 0.25), (1, 1, 0.0), (1, 0, 0.0))


@dataclass(frozen=True)
class PassSpec:
    """What a method asks of one pass; :func:`make_plan` turns it into a :class:`PassPlan`.

    axis : streamed, 0 for samples.
    total_nbytes : the folded accumulators.  partial_nbytes : those of one span.
    scratch : of the length of a block, bytes that maps and accumulators need beside it.
    kept_nbytes : arrays of the caller that live during the pass (operands, results in memory).
    rows : (first, last) of the streamed axis that are read, or None for all.
    ordered : one lane takes all blocks in order and nothing is merged (``run`` with a halo).
    matrix : what this pass reads, where it is not the plan's.
    stored : of sparse blocks the stored entries alone are taken, none is expanded: blocks are as
        long as their stored bytes allow.
    work : kind of its arithmetic, for the prediction of time: "update", "skinny" or "factor".
    thin : tiles are thin, see :func:`streampca.matrix.block.tile_length`.
    times : how often at most it is made, each time with other operands.  likely : how often it
        usually is, for predictions of time.
    """

    name: str
    axis: int
    total_nbytes: int
    partial_nbytes: int
    scratch: Callable[[int], int] = lambda length: 0
    kept_nbytes: int = 0
    flops: float = 0.0
    rows: tuple[int, int] | None = None
    ordered: bool = False
    matrix: ChunkedMatrix | None = None
    stored: bool = False
    work: str = "update"
    thin: bool = False
    times: int = 1
    likely: int = 1


@dataclass(frozen=True)
class Candidate:
    """One way to reach the result: its passes and the memory that its dense solver needs.

    sizes : numbers by which the method knows this candidate again when it runs the plan.
    seconds : predicted, for ordering; 0 where it was not asked.
    """

    solver: str
    reason: str
    passes: tuple[PassSpec, ...]
    solve_nbytes: int = 0
    solve_flops: float = 0.0
    sizes: Mapping[str, int] = field(default_factory=dict)
    seconds: float = 0.0


@dataclass(frozen=True)
class PassPlan:
    """One pass: which axis, which blocks, what it reads.

    edges : (blocks + 1,) where blocks begin and end.  span : blocks that one task folds.
    reads, nbytes, flops : stored chunks, their decoded bytes and arithmetic, each time.
    ordered, times : as in :class:`PassSpec`.
    """

    name: str
    axis: int
    edges: np.ndarray[Any, Any] = field(compare=False)
    span: int
    reads: int
    nbytes: int
    flops: float
    ordered: bool = False
    times: int = 1

    @property
    def n_blocks(self) -> int:
        """Blocks in this pass."""
        return len(self.edges) - 1

    @property
    def spans(self) -> list[range]:
        """Consecutive blocks that one task folds."""
        step = self.n_blocks if self.ordered else self.span
        return [
            range(i, min(i + step, self.n_blocks)) for i in range(0, self.n_blocks, max(step, 1))
        ]

    def to_dict(self) -> dict[str, Any]:
        """JSON-ready form; the edges by their count, longest block and digest."""
        digest = hashlib.sha256(np.ascontiguousarray(self.edges, dtype="<i8").tobytes())
        return {
            "name": self.name,
            "streamed_axis": ("samples", "features")[self.axis],
            "from": int(self.edges[0]),
            "to": int(self.edges[-1]),
            "blocks": self.n_blocks,
            "block_length": int(np.diff(self.edges).max(initial=0)),
            "edges_sha256": digest.hexdigest()[:16],
            "blocks_per_span": self.n_blocks if self.ordered else self.span,
            "reads": self.reads,
            "bytes": self.nbytes,
            "flops": self.flops,
            "times_at_most": self.times,
        }


@dataclass(frozen=True, repr=False)
class Plan:
    """What a fit will do. Prints as text, as HTML in Jupyter; ``to_json`` for machines.

    ``considered`` lists (solver, predicted seconds) of all candidates in the order in which they
    were tried. ``memory`` gives the projected bytes by phase and term; ``peak_nbytes`` is the
    interpreter plus the largest phase.
    """

    method: str
    solver: str
    reason: str
    shape: tuple[int, int]
    dtype: str
    work_dtype: str
    source: str
    lanes: int
    blocks_ahead: int
    passes: tuple[PassPlan, ...]
    memory: Mapping[str, Mapping[str, int]]
    memory_limit: int | None = None
    solve_flops: float = 0.0
    prepare_reads: int = 0  # before the first pass: what all strips of a Dask graph share
    prepare_nbytes: int = 0
    rejected: tuple[str, ...] = ()
    considered: tuple[tuple[str, float], ...] = ()
    sizes: Mapping[str, int] = field(default_factory=dict)
    note: str = ""  # of the source

    @property
    def peak_nbytes(self) -> int:
        """Projected peak of the process."""
        return _peak(self.memory)

    @property
    def reads(self) -> int:
        """Stored chunks read, all passes together; of repeated ones the most."""
        return sum(p.times * p.reads for p in self.passes) + self.prepare_reads

    @property
    def n_passes(self) -> int:
        """How many passes there are at most."""
        return sum(p.times for p in self.passes)

    @property
    def nbytes(self) -> int:
        """Decoded bytes read, all passes together."""
        return sum(p.times * p.nbytes for p in self.passes) + self.prepare_nbytes

    @property
    def flops(self) -> float:
        """Estimated arithmetic, passes and solver."""
        return sum(p.times * p.flops for p in self.passes) + self.solve_flops

    def named(self, name: str) -> PassPlan:
        """The pass of that name."""
        return next(p for p in self.passes if p.name == name)

    def check_machine(self) -> None:
        """Refuse a plan that this machine, or the control group around it, cannot hold."""
        available = machine.available_nbytes()
        if available is not None and self.peak_nbytes > available:
            raise MemoryLimitError(
                f"the plan needs {size(self.peak_nbytes)} and this machine (or its control group) "
                f"gives {size(available)}. Set memory_limit={_limit(available)!r} to look for a "
                "smaller plan, or use a larger machine."
            )

    def to_dict(self) -> dict[str, Any]:
        """JSON-ready form."""
        fields = asdict(self)
        fields["passes"] = [p.to_dict() for p in self.passes]
        fields["shape"] = list(self.shape)
        fields["rejected"] = list(self.rejected)
        fields["sizes"] = dict(self.sizes)
        fields["considered"] = [list(one) for one in self.considered]
        fields["memory"] = {phase: dict(terms) for phase, terms in self.memory.items()}
        fields |= {"reads": self.reads, "bytes": self.nbytes, "flops": self.flops}
        return fields | {"peak_bytes": self.peak_nbytes}

    def to_json(self) -> str:
        """The same bytes for the same source and settings, on every machine."""
        return json.dumps(self.to_dict(), sort_keys=True, indent=1)

    def __repr__(self) -> str:
        return (
            f"<Plan: {self.method} by {self.solver}, {self.n_passes} passes, {self.reads} chunk "
            f"reads, {size(self.peak_nbytes)}>"
        )

    def __str__(self) -> str:
        n, p = self.shape
        nbytes = size(n * p * np.dtype(self.dtype).itemsize)
        lines = [
            f"{self.method} of {n} samples x {p} features ({self.dtype}, {nbytes})",
            f"solver    {self.solver}: {self.reason}",
        ]
        first = 1
        for one in self.passes:
            what = one.to_dict()
            number = f"{first}" if one.times == 1 else f"{first}-{first + one.times - 1}"
            first += one.times
            lines.append(
                f"pass {number}/{self.n_passes}  {one.name}: {one.n_blocks} blocks of "
                f"{what['block_length']} {what['streamed_axis']}, {one.reads} chunk reads, "
                f"{size(one.nbytes)}, {one.flops:.2g} flop"
            )
        limit = "none" if self.memory_limit is None else size(self.memory_limit)
        lanes = max((min(self.lanes, len(one.spans)) for one in self.passes), default=1)
        lines.append(
            f"runs on   {lanes} lane{'s' if lanes > 1 else ''}, {self.blocks_ahead} block read "
            f"ahead in each, "
            f"arithmetic in {self.work_dtype}"
        )
        lines.append(f"memory    {size(self.peak_nbytes)} projected peak (limit: {limit})")
        largest = max(self.memory, key=lambda phase: _terms(self.memory, phase))
        for phase, terms in self.memory.items():
            if phase in ("process", largest):
                words = ", ".join(f"{name} {size(value)}" for name, value in terms.items() if value)
                lines.append(f"          {phase}: {words}")
        lines += [f"not taken {why}" for why in self.rejected]
        if len(self.considered) > 1:
            words = ", ".join(f"{name} {seconds:.3g} s" for name, seconds in self.considered)
            lines.append(f"predicted {words}")
        lines += [f"source    {self.note}"] if self.note else []
        return "\n".join(lines)

    def _repr_html_(self) -> str:
        return f"<pre>{html.escape(str(self))}</pre>"


def make_plan(matrix: ChunkedMatrix, method: str, candidates: Sequence[Candidate],
              memory_limit: int | str | None = None) -> Plan:  # fmt: skip
    """The first candidate, with the most generous schedule, that fits the limit.

    Without a limit, the first candidate that fits DEFAULT_BUDGET, else the smallest.
    Raises MemoryLimitError, naming the smallest limit that would do.
    """
    limit = parse_nbytes(memory_limit)
    budget = DEFAULT_BUDGET if limit is None else limit
    rejected: list[str] = []
    considered: dict[str, float] = {}
    for candidate in candidates:
        if candidate.seconds:
            considered.setdefault(candidate.solver, float(f"{candidate.seconds:.3g}"))
    smallest: Plan | None = None
    for candidate in candidates:
        least: Plan | None = None
        for lanes, ahead, share in SCHEDULES:
            plan = _schedule(matrix, method, candidate, lanes, ahead, share, limit, tuple(rejected))
            plan = replace(plan, considered=tuple(considered.items()))
            if plan.peak_nbytes <= budget:
                return plan
            if least is None or plan.peak_nbytes < least.peak_nbytes:
                least = plan
        assert least is not None
        rejected.append(f"{candidate.solver}: needs at least {size(least.peak_nbytes)}")
        if smallest is None or least.peak_nbytes < smallest.peak_nbytes:
            smallest = least
    if smallest is None:
        raise InvalidInputError(f"{method}: no solver fits this input")
    if limit is None:
        return smallest
    phase = max(smallest.memory, key=lambda name: _terms(smallest.memory, name))
    term, nbytes = max(smallest.memory[phase].items(), key=lambda item: item[1])
    raise MemoryLimitError(
        f"memory_limit={size(limit)} is too small for {method} of {matrix.shape[0]} x "
        f"{matrix.shape[1]}. The smallest limit that would do is "
        f"memory_limit={_limit(smallest.peak_nbytes, up=True)!r} (solver {smallest.solver}; the "
        f"largest term is {term}, {size(nbytes)}, in {phase})." + _advice(matrix, candidates)
    )


def _advice(matrix: ChunkedMatrix, candidates: Sequence[Candidate]) -> str:
    """What the source says of the axes that would be streamed, as sentences."""
    axes = sorted({spec.axis for candidate in candidates for spec in candidate.passes})
    return "".join(f" {advice}" for axis in axes if (advice := matrix.advice(axis)))


def _schedule(matrix: ChunkedMatrix, method: str, candidate: Candidate, lanes: int, ahead: int,
              share: float, limit: int | None, rejected: tuple[str, ...]) -> Plan:  # fmt: skip
    work = work_dtype(matrix.dtype)
    passes: list[PassPlan] = []
    memory: dict[str, dict[str, int]] = {
        "process": {
            "interpreter": INTERPRETER_NBYTES,
            "libraries": sum(LIBRARY_NBYTES[name] for name in _libraries(matrix, candidate)),
            "threads": 2 * lanes * THREAD_NBYTES,
            "labels": matrix.labels.samples.nbytes + matrix.labels.features.nbytes,
            "source": matrix.resident_nbytes,
        }
    }
    for spec in candidate.passes:
        source = matrix if spec.matrix is None else spec.matrix
        by_entries = spec.stored and source.design is None  # residuals are dense
        edges = block_edges(source, spec.axis, share, spec.rows, by_entries)
        longest = int(np.diff(edges).max(initial=0))
        across = source.shape[1 - spec.axis]
        blocks = source.spans_nbytes(spec.axis, edges)
        block = int(blocks.max(initial=0))
        reads = sum(source.count_chunks(spec.axis, int(a), int(b)) for a, b in pairwise(edges))
        nbytes = int(blocks.sum())
        one = PassPlan(spec.name, spec.axis, edges, span_length(len(edges) - 1), reads, nbytes,
                       spec.flops, spec.ordered, spec.times)  # fmt: skip
        passes.append(one)
        active = min(lanes, max(1, len(one.spans)))
        tile = tile_length(longest, across, work.itemsize, spec.thin) * across * work.itemsize
        if source.sparse:  # a tile is expanded in the stored dtype first; masks of the entries
            tile = 0 if by_entries else tile * (1 + source.dtype.itemsize // work.itemsize)
            tile += block
        memory[spec.name] = {
            "blocks": min(active * (ahead + 1), len(edges) - 1) * block,
            "decoding": active * max(1, ahead) * source.read_scratch_nbytes(spec.axis, longest),
            "tiles": active * tile,
            "partial accumulators": active * spec.partial_nbytes,
            "folded accumulators": spec.total_nbytes,
            "scratch": active * spec.scratch(longest),
            "kept arrays": spec.kept_nbytes,
        }
        if source.design is not None:
            removed = (1 + source.design.shape[1]) * source.shape[1] * 8
            memory[spec.name]["residuals"] = active * longest * across * work.itemsize
            memory[spec.name]["design"] = source.design.nbytes + removed + 4 * PIECE_NBYTES
    axes = {spec.axis for spec in candidate.passes}
    prepare = sum((matrix.prepare_reads(axis) for axis in sorted(axes)), ReadCount())
    if prepare.chunks:
        for spec in candidate.passes:
            memory[spec.name]["shared operands"] = SHARED_NBYTES
    memory["solver"] = {"dense solver": candidate.solve_nbytes}
    return Plan(
        method, candidate.solver, candidate.reason, matrix.shape, str(matrix.dtype), str(work),
        matrix.fingerprint()[:16], lanes, ahead, tuple(passes), memory, limit,
        candidate.solve_flops, prepare.chunks, prepare.nbytes, rejected,
        sizes=candidate.sizes, note=matrix.note,
    )  # fmt: skip


def _libraries(matrix: ChunkedMatrix, candidate: Candidate) -> set[str]:
    """Heavy libraries that the passes bring into memory: the source's, and compiled kernels."""
    small = matrix.dtype.kind in "iu" and matrix.dtype.itemsize == 1
    compiled = small and any(spec.axis == 1 for spec in candidate.passes)
    return {*matrix.loads, *(["numba"] if compiled else [])}


def span_length(n_blocks: int) -> int:
    """Blocks per span: long enough that merging is cheap, short enough that lanes end together."""
    return 1 if n_blocks < 8 else min(OPEN_BLOCKS, max(2, n_blocks // 16))


def block_edges(matrix: ChunkedMatrix, axis: int, share: float = 1.0,
                rows: tuple[int, int] | None = None,
                stored: bool = False) -> np.ndarray[Any, Any]:  # fmt: skip
    """Block boundaries along axis: whole chunks, about BLOCK_NBYTES each.

    share : of BLOCK_NBYTES; 0 gives the smallest blocks that read each chunk once.
    stored : of a sparse matrix, by the stored entries and not by the cells.
    """
    length = matrix.shape[axis]
    stride = max(1.0, matrix.shape[1 - axis] * work_dtype(matrix.dtype).itemsize)
    if stored:
        stride = max(1.0, matrix.row_nbytes(axis))
    least = int(min(BLOCK_LENGTH if share else 64, 4 * BLOCK_NBYTES // stride))
    wanted = max(1, least, int(BLOCK_NBYTES * share // stride))
    edges = matrix.chunk_edges(axis)
    start, stop = rows or (0, length)
    if edges is None:
        return start + regular_edges(stop - start, wanted)
    edges = np.asarray(edges, dtype=np.int64)
    edges = edges[(edges >= start) & (edges <= stop)]
    edges = np.unique(np.concatenate([[start], edges, [stop]]))
    grouped = [start]
    while grouped[-1] < stop:
        nearest = int(np.searchsorted(edges, grouped[-1] + wanted, side="right")) - 1
        after = int(np.searchsorted(edges, grouped[-1], side="right"))
        grouped.append(int(edges[max(nearest, after)]))
    return np.array(grouped, dtype=np.int64)


def pass_spec(name: str, matrix: ChunkedMatrix, axis: int, accumulators: Sequence[Accumulator],
              **more: Any) -> PassSpec:  # fmt: skip
    """A PassSpec with the memory of these accumulators."""
    itemsize = work_dtype(matrix.dtype).itemsize
    shape = matrix.shape
    total = sum(a.projected_nbytes(shape, itemsize) for a in accumulators)
    edges = block_edges(matrix, axis, rows=more.get("rows"), stored=more.get("stored", False))
    longest = span_length(len(edges) - 1) * int(np.diff(edges).max(initial=0))
    seen = min(longest, shape[axis])  # of the streamed axis, in one span
    span = (shape[0], seen) if axis else (seen, shape[1])
    partial = sum(a.partial_nbytes(span, itemsize) for a in accumulators)

    def scratch(length: int) -> int:
        return max((a.scratch_nbytes(shape, length) for a in accumulators), default=0)

    return PassSpec(name, axis, total, partial, scratch, **more)


def _terms(memory: Mapping[str, Mapping[str, int]], phase: str) -> int:
    return sum(memory[phase].values()) if phase != "process" else 0


def _peak(memory: Mapping[str, Mapping[str, int]]) -> int:
    return sum(memory["process"].values()) + max(_terms(memory, phase) for phase in memory)


UNITS = {"": 1, "b": 1, "kb": 10**3, "mb": 10**6, "gb": 10**9, "tb": 10**12,
         "kib": 2**10, "mib": 2**20, "gib": 2**30, "tib": 2**40}  # fmt: skip


def parse_nbytes(limit: int | float | str | None) -> int | None:
    """``"512MiB"``, ``"2 GB"`` or a number of bytes, as an integer."""
    if limit is None:
        return None
    if isinstance(limit, str):
        match = re.fullmatch(r"\s*([0-9]+\.?[0-9]*|\.[0-9]+)\s*([a-zA-Z]*)\s*", limit)
        if match is None or match[2].lower() not in UNITS:
            raise InvalidInputError(f"memory_limit={limit!r}; expected such as '512MiB' or '2GB'")
        limit = float(match[1]) * UNITS[match[2].lower()]
    if isinstance(limit, bool) or not isinstance(limit, (int, float, np.integer, np.floating)):
        raise InvalidInputError(f"memory_limit={limit!r}; expected bytes, or such as '512MiB'")
    if not 1 <= limit < np.inf:
        raise InvalidInputError(f"memory_limit={limit!r}; expected a positive number of bytes")
    return int(limit)


def size(nbytes: float) -> str:
    """Bytes in words: ``1.5 GiB``."""
    for unit in ("B", "KiB", "MiB", "GiB"):
        if nbytes < 1024 or unit == "GiB":
            break
        nbytes /= 1024
    return f"{nbytes:.0f} {unit}" if nbytes >= 100 or unit == "B" else f"{nbytes:.1f} {unit}"


def _limit(nbytes: int, up: bool = False) -> str:
    return f"{-(-nbytes // MiB) if up else nbytes // MiB}MiB"
