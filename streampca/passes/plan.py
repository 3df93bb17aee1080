"""The plan of a fit: its passes and its memory, as text, and whether it fits here."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from streampca.errors import MemoryLimitError, MemoryPlanWarning, warn_caller
from streampca.html import card, memory_bar, preformatted, table, text
from streampca.matrix.labels import json_of
from streampca.passes import memory as machine
from streampca.passes.cluster.clients import ambient_client
from streampca.passes.memory import (
    MemoryUse,
    MiB,
    as_limit,
    brought,
    imports,
    other_nbytes,
    size,
    unforeseen,
)
from streampca.passes.records import PassPlan
from streampca.passes.settings import thread_count

TRIMMED_NBYTES = 16 * MiB  # of the largest phase, below which freed memory is left to malloc
SLACK_NBYTES = 4 * MiB  # the kernel counts pages of each thread in batches


@dataclass(frozen=True, repr=False)
class Plan:
    """What a fit will do. Prints as text, as HTML in Jupyter; ``to_json`` for machines.

    ``considered`` lists (solver, predicted seconds) of all candidates in the order in which they
    were tried. ``memory`` gives the projected bytes by phase and term; ``peak_nbytes`` is the
    process plus the largest phase, in a process that does nothing else, including an X in memory.
    A limit selects by ``portable_nbytes``, the same on every machine; ``passed_over`` lists those
    of the more generous schedules that the limit ruled out.
    Measured memory is no part of a plan; ``str`` tells if libraries take more than projected.

    Examples
    --------
    >>> import numpy as np
    >>> from streampca import PCA
    >>> plan = PCA(2).plan(np.zeros((1000, 20)))
    >>> plan.solver, plan.n_passes, plan.passes[0].n_blocks
    ('scatter', 1, 1)
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
    def sequence(self) -> list[Plan]:
        """This plan, and those that may follow it."""
        return [self] if self.then is None else [self, *self.then.sequence]

    @property
    def peak_nbytes(self) -> int:
        """Projected peak of the process, including a following plan."""
        return max(peak_of(one.memory) for one in self.sequence)

    @property
    def portable_nbytes(self) -> int:
        """The peak without libraries that are counted only because they are installed here."""
        return max(peak_of(one.memory) - brought(one.memory["process"]) for one in self.sequence)

    @property
    def frees_much(self) -> bool:
        """Whether what a phase frees is worth a millisecond for returning it to the system."""
        return any(
            peak_of(one.memory) - sum(one.memory["process"].values()) > TRIMMED_NBYTES
            for one in self.sequence
        )

    @property
    def thread_nbytes(self) -> int:
        """Bytes that each thread takes beyond the lanes, at most."""
        passes = (one for plan in self.sequence for one in plan.passes)
        return max((one.thread_nbytes for one in passes), default=0)

    def peak_with(self, threads: int) -> int:
        """Projected peak with so many threads."""
        return self.peak_nbytes + max(0, threads - self.lanes) * self.thread_nbytes

    def affordable(self, threads: int, room: int | None) -> int:
        """As many threads as asked for, but no more than fit with the lanes of the plan.

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
        return sum(one.times for plan in self.sequence for one in plan._own)

    @property
    def _own(self) -> list[PassPlan]:
        """The passes, without those that the following plan makes where it is gone over to."""
        return [one for one in self.passes if self.then is None or not one.final]

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

    @property
    def largest_phase(self) -> tuple[Mapping[str, Mapping[str, int]], str]:
        """(the memory of the plan with the largest peak, its largest phase)."""
        memory = max((one.memory for one in self.sequence), key=peak_of)
        return memory, max(memory, key=lambda phase: phase_nbytes(memory, phase))

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
            *self._lines_of_passes(),
            *self._lines_of_threads(),
            *self._lines_of_memory(),
            *(f"not taken {why}" for why in self.rejected),
        ]
        if len(self.considered) > 1:
            times = ", ".join(f"{name} {seconds:.3g} s" for name, seconds in self.considered)
            lines.append(f"predicted {times}")
        lines += [f"source    {self.note}"] if self.note else []
        return "\n".join(lines)

    def _lines_of_passes(self) -> Iterator[str]:
        first = 1
        for one in self.passes:
            figures = one.to_dict()
            number = f"{first}" if one.times == 1 else f"{first}-{first + one.times - 1}"
            first += one.times
            yield (
                f"pass {number}/{self.n_passes}  {one.name}: {one.n_blocks} blocks of "
                f"{figures['block_length']} {figures['streamed_axis']}, {one.reads} chunk reads, "
                f"{size(one.nbytes)}, {one.flops:.2g} flop"
            )
        if self.then is not None:
            yield (
                f"then      {self.then.solver}, where a component is not certified: at most "
                f"{self.then.n_passes} passes more, {self.then.reads} chunk reads"
            )

    def _lines_of_threads(self) -> Iterator[str]:
        lanes = max((min(self.lanes, len(one.spans)) for one in self.passes), default=1)
        yield (
            f"runs on   {lanes} lane{'s' if lanes > 1 else ''}, {self.blocks_ahead} block read "
            f"ahead in each, arithmetic in {self.work_dtype}"
        )
        yield (
            f"threads   {thread_count()} here; each beyond {lanes} takes "
            f"{size(self.thread_nbytes)} more, and no result depends on their number"
        )
        if self.memory["process"].get("X in memory") and ambient_client() is not None:
            yield (
                "          X is in memory: on threads of this process, not on the cluster; "
                "scheduler= names one to send it to"
            )

    def _lines_of_memory(self) -> Iterator[str]:
        limit = "none" if self.memory_limit is None else size(self.memory_limit)
        yield f"memory    {size(self.peak_nbytes)} projected peak (limit: {limit})"
        memory, largest = self.largest_phase
        for phase, terms in memory.items():
            if phase in ("process", largest):
                sizes = ", ".join(f"{name} {size(value)}" for name, value in terms.items() if value)
                yield f"          {phase}: {sizes}"
        if (more := unforeseen(self.memory["process"])) > 0:
            yield f"          libraries weigh {size(more)} more than that in this process"

    def _repr_html_(self) -> str:
        (memory, largest), peak = self.largest_phase, self.peak_nbytes
        terms = {**memory["process"], **(memory[largest] if largest != "process" else {})}
        limit = "no limit" if self.memory_limit is None else f"limit {size(self.memory_limit)}"
        rows_of_passes = [
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
        passes = table(("pass", "blocks", "chunk reads", "bytes"), rows_of_passes)
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


# Whether a plan fits here: the memory of its libraries in this process, and that of the machine.
#
# Measurements never change a plan, which is the same on every machine. They only refuse it, or warn
# afterwards that a fit took more.


def check_room(plan: Plan) -> int | None:
    """Refuse a plan that this process, this machine or its control group cannot hold.

    The libraries that the plan needs are imported and counted by their measured memory, within the
    memory limit. The machine must hold the plan and everything else that the process holds.
    Returns the bytes that it may grow to here, or None if nobody knows.
    Raises MemoryLimitError that names the smallest limit that would do.
    """
    machine.load(plan.memory["process"])
    check_limit(plan)
    room = [check_machine(plan)]
    if plan.memory_limit is not None:
        room.append(plan.memory_limit - unforeseen(plan.memory["process"]))
    return min((nbytes for nbytes in room if nbytes is not None), default=None)


def check_limit(plan: Plan) -> None:
    """Refuse a plan that exceeds its limit with the measured memory of the libraries."""
    more, limit = unforeseen(plan.memory["process"]), plan.memory_limit
    if limit is None or plan.peak_nbytes + more <= limit:
        return
    smallest = enough_for(plan)
    raise MemoryLimitError(
        f"memory_limit={size(limit)} is too small for {plan.method} in this process: the plan "
        f"needs {size(plan.peak_nbytes)}, and {', '.join(imports(plan.memory['process']))} with "
        f"what they load take {size(more)} more here than it counts. The smallest limit that "
        f"would do is memory_limit={as_limit(smallest, up=True)!r}.",
        smallest,
    )


def enough_for(plan: Plan) -> int:
    """The smallest limit whose plan, perhaps another one, holds its libraries as they weigh here.

    They are imported: a limit that leaves them out would be refused in its turn when a fit begins.
    """
    process = plan.memory["process"]
    machine.load(process)
    return enough((*plan.passed_over, plan.portable_nbytes), unforeseen(process) + brought(process))


def enough(peaks: Sequence[int], more: int) -> int:
    """The smallest limit such that the first peak within it leaves ``more`` bytes to spare.

    peaks : of the schedules in the order in which they are tried. A larger limit may choose a more
    generous schedule, which then needs a larger limit again.
    """
    limits = sorted(-(-(peak + more) // MiB) * MiB for peak in peaks)
    fits = (one for one in limits if next(p for p in peaks if p <= one) + more <= one)
    return next(fits)


def check_machine(plan: Plan) -> int | None:
    """Refuse a plan that does not fit into this machine or its control group.

    Returns what these have for it in bytes, or None if they do not tell.
    """
    available = machine.available_nbytes()
    if available is None:
        return None
    other = other_nbytes(plan.memory["process"], machine.resident_nbytes())
    if plan.peak_nbytes + other <= available:
        return available - other
    rest = available - other if available > other else available
    holds = f" in addition to the {size(other)} that this process holds already" if other else ""
    raise MemoryLimitError(
        f"the plan needs {size(plan.peak_nbytes)}{holds} and this machine (or its control group) "
        f"gives {size(available)}. Set memory_limit={as_limit(rest)!r} to look for a smaller plan, "
        "or use a larger machine."
    )


def warn_of_excess(plan: Plan, use: MemoryUse) -> None:
    """Warn, once, if what ran with a memory limit took more than its plan."""
    if plan.memory_limit is None or use.warned:
        return
    taken = use.peak_nbytes() - other_nbytes(plan.memory["process"], use.held) - use.more
    if taken <= plan.peak_nbytes + SLACK_NBYTES:
        return
    use.warned = True
    warn_caller(
        f"{plan.method} took {size(taken)} of memory and had planned {size(plan.peak_nbytes)} for "
        f"memory_limit={as_limit(plan.memory_limit)!r}. The result is right. For a machine that "
        f"has no more than the limit, plan for less: memory_limit="
        f"{as_limit(max(MiB, plan.memory_limit - (taken - plan.peak_nbytes)))!r}.",
        MemoryPlanWarning,
    )
