"""Plans as records, their text and JSON; and how a pass is cut into blocks and spans."""

from __future__ import annotations

import dataclasses
import hashlib
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from streampca.accumulators import OPEN_BLOCKS, Accumulator
from streampca.html import card, memory_bar, preformatted, table, text
from streampca.matrix import ChunkedMatrix
from streampca.matrix.labels import json_of
from streampca.passes.cluster.clients import ambient_client
from streampca.passes.memory import MiB, brought, size, unforeseen
from streampca.passes.settings import thread_count

KEPT = ("kept arrays", "components", "statistics of features", "eigenvectors and scores")


@dataclass(frozen=True)
class PassPlan:
    """The plan of one pass: its axis, its blocks and its cost.

    edges : (blocks + 1,) int64, where blocks begin and end.  span : blocks that one task folds.
    reads, nbytes, flops : stored chunks read, their decoded bytes, and arithmetic, each time.
    ordered, times, final, accumulators, partial_nbytes : as in :class:`PassSpec`.
    thread_nbytes : that each thread takes beyond the lanes of the plan.
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
    final: bool = False
    accumulators: Mapping[str, Accumulator] = field(default_factory=dict, compare=False, repr=False)
    partial_nbytes: int = 0
    thread_nbytes: int = 0

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
        """JSON-ready form; of the edges their count, longest block and digest."""
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
    process plus the largest phase, in a process that does nothing else, including an X in memory.
    A limit selects by ``portable_nbytes``, the same on every machine; ``passed_over`` lists those
    of the more generous schedules that the limit ruled out.
    Measured memory is no part of a plan; ``str`` tells if libraries take more than projected.
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
    prepare_reads: int = 0  # before the first pass: what the strips of a Dask graph share
    prepare_nbytes: int = 0
    rejected: tuple[str, ...] = ()
    considered: tuple[tuple[str, float], ...] = ()
    sizes: Mapping[str, int] = field(default_factory=dict)
    note: str = ""  # of the source
    then: Plan | None = None  # the plan to follow if this one's answer cannot be certified
    passed_over: tuple[int, ...] = ()

    @property
    def peak_nbytes(self) -> int:
        """Projected peak of the process, including a following plan."""
        own = peak_of(self.memory)
        return own if self.then is None else max(own, self.then.peak_nbytes)

    @property
    def portable_nbytes(self) -> int:
        """The peak without libraries that are counted only because they are installed here."""
        own = peak_of(self.memory) - brought(self.memory["process"])
        return own if self.then is None else max(own, self.then.portable_nbytes)

    @property
    def thread_nbytes(self) -> int:
        """Bytes that each thread takes beyond the lanes, at most."""
        own = max((one.thread_nbytes for one in self.passes), default=0)
        return own if self.then is None else max(own, self.then.thread_nbytes)

    def peak_with(self, threads: int) -> int:
        """Projected peak with so many threads."""
        return self.peak_nbytes + max(0, threads - self.lanes) * self.thread_nbytes

    def affordable(self, threads: int, room: int | None) -> int:
        """As many threads as asked for, but no more than fit beside the lanes of the plan.

        room : bytes for all of the plan, or None where nobody knows.
        """
        more = max(0, threads - self.lanes)
        if room is not None and more:
            more = min(more, max(0, room - self.peak_nbytes) // max(1, self.thread_nbytes))
        return min(threads, self.lanes) + more

    @property
    def reads(self) -> int:
        """Stored chunks read, all passes together; at most, if passes repeat."""
        own = sum(p.times * p.reads for p in self._own) + self.prepare_reads
        return own if self.then is None else own + self.then.reads

    @property
    def n_passes(self) -> int:
        """The largest possible number of passes."""
        return self.own_passes + (0 if self.then is None else self.then.n_passes)

    @property
    def own_passes(self) -> int:
        """The largest possible number of passes before a following plan begins."""
        return sum(p.times for p in self._own)

    @property
    def _own(self) -> list[PassPlan]:
        """The passes, without those that the following plan makes where it is gone over to."""
        return [p for p in self.passes if self.then is None or not p.final]

    @property
    def nbytes(self) -> int:
        """Decoded bytes read, all passes together."""
        own = sum(p.times * p.nbytes for p in self._own) + self.prepare_nbytes
        return own if self.then is None else own + self.then.nbytes

    @property
    def flops(self) -> float:
        """Estimated arithmetic of passes and solver."""
        own = sum(p.times * p.flops for p in self._own) + self.solve_flops
        return own if self.then is None else own + self.then.flops

    def named(self, name: str) -> PassPlan:
        """The pass of that name."""
        return next(p for p in self.passes if p.name == name)

    def after(self, *earlier: Plan) -> Plan:
        """The plan with the passes of earlier ones before its own, each with its memory."""
        memory = dict(self.memory)
        for one in earlier:
            memory |= {each.name: one.memory[each.name] for each in one.passes}
        passes = [each for one in earlier for each in one.passes]
        return replace(self, passes=(*passes, *self.passes), memory=memory)

    def to_dict(self) -> dict[str, Any]:
        """JSON-ready form."""
        fields = {one.name: getattr(self, one.name) for one in dataclasses.fields(self)}
        if self.then is None:
            del fields["then"]
        else:
            fields["then"] = self.then.to_dict()
        fields["passes"] = [p.to_dict() for p in self.passes]
        fields["shape"] = list(self.shape)
        fields["rejected"], fields["passed_over"] = list(self.rejected), list(self.passed_over)
        fields["sizes"] = dict(self.sizes)
        fields["considered"] = [list(one) for one in self.considered]
        fields["memory"] = {phase: dict(terms) for phase, terms in self.memory.items()}
        fields |= {"reads": self.reads, "bytes": self.nbytes, "flops": self.flops}
        return fields | {"peak_bytes": self.peak_nbytes}

    def to_json(self) -> str:
        """The same bytes for the same source and settings, on every machine."""
        return json_of(self.to_dict(), sort_keys=True, indent=1)

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
        if self.then is not None:
            lines.append(
                f"then      {self.then.solver}, where a component is not certified: at most "
                f"{self.then.n_passes} passes more, {self.then.reads} chunk reads"
            )
        limit = "none" if self.memory_limit is None else size(self.memory_limit)
        lanes = max((min(self.lanes, len(one.spans)) for one in self.passes), default=1)
        lines.append(
            f"runs on   {lanes} lane{'s' if lanes > 1 else ''}, {self.blocks_ahead} block read "
            f"ahead in each, "
            f"arithmetic in {self.work_dtype}"
        )
        lines.append(
            f"threads   {thread_count()} here; each beyond {lanes} takes "
            f"{size(self.thread_nbytes)} more, and no result depends on their number"
        )
        if self.memory["process"].get("X in memory") and ambient_client() is not None:
            lines.append(
                "          X is in memory: on threads of this process, not on the cluster; "
                "scheduler= names one to send it to"
            )
        lines.append(f"memory    {size(self.peak_nbytes)} projected peak (limit: {limit})")
        memory = self.memory
        if self.then is not None and self.then.peak_nbytes > peak_of(memory):
            memory = self.then.memory
        largest = max(memory, key=lambda phase: phase_nbytes(memory, phase))
        for phase, terms in memory.items():
            if phase in ("process", largest):
                sizes = ", ".join(f"{name} {size(value)}" for name, value in terms.items() if value)
                lines.append(f"          {phase}: {sizes}")
        if (more := unforeseen(self.memory["process"])) > 0:
            lines.append(f"          libraries weigh {size(more)} more than that in this process")
        lines += [f"not taken {why}" for why in self.rejected]
        if len(self.considered) > 1:
            times = ", ".join(f"{name} {seconds:.3g} s" for name, seconds in self.considered)
            lines.append(f"predicted {times}")
        lines += [f"source    {self.note}"] if self.note else []
        return "\n".join(lines)

    def _repr_html_(self) -> str:
        memory, peak = self.memory, self.peak_nbytes
        if self.then is not None and self.then.peak_nbytes > peak_of(memory):
            memory = self.then.memory
        largest = max(memory, key=lambda phase: phase_nbytes(memory, phase))
        terms = {**memory["process"], **(memory[largest] if largest != "process" else {})}
        limit = "no limit" if self.memory_limit is None else f"limit {size(self.memory_limit)}"
        made = [
            (
                f"{one.times} x {one.name}" if one.times > 1 else one.name,
                one.n_blocks,
                one.reads,
                size(one.nbytes),
            )
            for one in self.passes
        ]
        n, p = self.shape
        rows = [
            ("data", text(f"{n:,} samples x {p:,} features, {self.dtype}")),
            ("solver", f"<b>{text(self.solver)}</b> {text(self.reason)}"),
            ("passes", text(f"{self.n_passes} at most")),
            ("chunk reads", text(f"{self.reads:,}, {size(self.nbytes)}")),
            ("memory", memory_bar(terms, self.memory_limit, f"{size(peak)} at most; {limit}")),
            ("source", text(self.note)),
        ]
        passes = table(("pass", "blocks", "chunk reads", "bytes"), made)
        details = {"passes": passes, "the whole plan": preformatted(self)}
        return card(f"Plan of a {self.method}", "reads no data until it runs", rows, details)


def phase_nbytes(memory: Mapping[str, Mapping[str, int]], phase: str) -> int:
    """Bytes of one phase, without those of the process."""
    return sum(memory[phase].values()) if phase != "process" else 0


def peak_of(memory: Mapping[str, Mapping[str, int]]) -> int:
    """Bytes of the process and the largest phase together."""
    return sum(memory["process"].values()) + max(phase_nbytes(memory, phase) for phase in memory)


def larger(*moments: dict[str, int]) -> dict[str, int]:
    """The terms of the largest among moments that follow each other."""
    return max(moments, key=lambda terms: sum(terms.values()))


# How the blocks of a pass are cut from chunks, and grouped into spans.

MERGED_NBYTES = 1024 * MiB  # of accumulators that may be merged in exchange for shorter spans
LEAST_SHARES, MOST_SHARES = 32, 256
LEAST_SPANS = 16
FEW_BLOCKS = 32


def shares(across: int) -> int:
    """The least number of blocks for a source with computed chunks, even if all fit into fewer.

    across : length of a streamed row. Each block costs one merge of accumulators with up to
    ``across ** 2`` numbers: 256 blocks up to 724 columns, 32 from 2048 on.
    """
    return int(np.clip(MERGED_NBYTES // max(1, 8 * across**2), LEAST_SHARES, MOST_SHARES))


def chunks_per_block(matrix: ChunkedMatrix, axis: int, chunks: int) -> int | None:
    """The most chunks in one block; None if only bytes count."""
    if not matrix.computes:
        return None
    return max(1, -(-chunks // shares(matrix.shape[1 - axis])))


def span_length(n_blocks: int, across: int) -> int:
    """Blocks per span: long enough for cheap merging, short enough for lanes to end together.

    across : length of a streamed row. Each span costs one merge of accumulators with up to
    ``across ** 2`` numbers: 256 spans keep many lanes busy up to 724 columns, 16 are left from 2897
    on, where further threads help the lanes with their blocks. With spans of one block each lane
    would wait for its neighbour after every block, a tenth of the time at 500 columns. With fewer
    than FEW_BLOCKS blocks, lanes that get unequal numbers of longer spans would lose more.
    """
    if n_blocks < 8:
        return 1
    spans = int(np.clip(MERGED_NBYTES // max(1, 8 * across**2), LEAST_SPANS, MOST_SHARES))
    least = 2 if n_blocks >= FEW_BLOCKS or spans == LEAST_SPANS else 1
    return min(OPEN_BLOCKS, max(least, n_blocks // spans))


def blocks_per_span(matrix: ChunkedMatrix, axis: int, edges: np.ndarray[Any, Any]) -> int:
    """Blocks that one task folds: enough that no chunk is read by three spans, and few by two.

    All blocks, if two spans would read most chunks twice.
    """
    n_blocks = len(edges) - 1
    length = _blocks_by_work(matrix, axis, n_blocks)
    if (entries := matrix.entry_points(axis)) is not None:
        return between_entries(edges, entries, length)
    if not (reach := matrix.reach(axis)):
        return length
    for rows in (4 * reach, reach):
        beyond = np.searchsorted(edges, edges[:-1] + rows, side="right")
        needed = int((beyond - np.arange(n_blocks)).max(initial=1, where=beyond <= n_blocks))
        if edges[0] + rows < edges[-1] and needed <= n_blocks // 2:
            return max(length, needed)
    return n_blocks


LENGTHS = 64  # of spans that are tried
READ_AGAIN = 0.05  # share of the rows that may be read again where spans begin


def between_entries(edges: np.ndarray[Any, Any], entries: np.ndarray[Any, Any], least: int) -> int:
    """The fewest blocks, at least so many, whose spans begin at entry points, or near to them.

    All blocks, where each span would read many rows that the one before it reads.
    """
    n_blocks = len(edges) - 1
    places = np.searchsorted(edges, entries)
    for length in sorted({int(i) for i in places if least <= i < n_blocks})[:LENGTHS]:
        begins = edges[:-1:length]
        before = entries[np.searchsorted(entries, begins, "right") - 1]
        if int((begins - before).sum()) <= READ_AGAIN * (edges[-1] - edges[0]):
            return length
    return max(1, n_blocks)


def _blocks_by_work(matrix: ChunkedMatrix, axis: int, n_blocks: int) -> int:
    """:func:`span_length`, or less if chunks are computed.

    One for chunks on a cluster, which are seldom on the same worker, unless the merged
    accumulators would be larger than X.
    """
    across = matrix.shape[1 - axis]
    usual = span_length(n_blocks, across)
    if not matrix.computes:
        return usual
    if matrix.futures() and 8 * across**2 * n_blocks <= matrix.nbytes:
        return 1
    return max(1, min(usual, n_blocks // shares(across)))
