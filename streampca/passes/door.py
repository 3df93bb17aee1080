"""Whether a plan fits here: what its libraries weigh in this process, and what the machine gives.

What is measured never changes a plan: it is one for every machine. It only refuses it, and says
afterwards where a fit took more.
"""

from __future__ import annotations

import contextlib
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib import import_module
from typing import Self

from streampca.errors import MemoryLimitError, MemoryPlanWarning
from streampca.imported import weighing
from streampca.passes import machine
from streampca.passes.nbytes import MiB, as_limit, size
from streampca.passes.process import brought, code_nbytes, imports, unforeseen
from streampca.passes.records import Plan

HELD = ("labels", "source", "X in memory")  # terms of a process that are there before a fit
SLACK_NBYTES = 4 * MiB  # the kernel counts pages of each thread in batches
MODULES = {"dask": "dask.array"}  # what is imported of a library, where that is not its top


def check_room(plan: Plan) -> None:
    """Refuse a plan that this process, this machine or its control group cannot hold.

    The libraries that it needs are imported, and count as what they weigh here: with them the
    limit must do. What else the process holds must fit the machine beside the plan.
    Raises MemoryLimitError, naming the smallest limit that would do.
    """
    load(plan.memory["process"])
    check_limit(plan)
    check_machine(plan)


def load(process: Mapping[str, int]) -> None:
    """Import the libraries that a plan counts, and weigh those that are new."""
    for name in imports(process):
        with weighing(), contextlib.suppress(ImportError):  # who needs it says that it is missing
            import_module(MODULES.get(name, name))


def check_limit(plan: Plan) -> None:
    """Refuse a plan that, with the libraries as they are here, does not keep its limit."""
    more, limit = unforeseen(plan.memory["process"]), plan.memory_limit
    if limit is None or plan.peak_nbytes + more <= limit:
        return
    raise MemoryLimitError(
        f"memory_limit={size(limit)} is too small for {plan.method} in this process: the plan "
        f"needs {size(plan.peak_nbytes)}, and {', '.join(imports(plan.memory['process']))} with "
        f"what they load weigh {size(more)} more here than it counts. The smallest limit that "
        f"would do is memory_limit={as_limit(enough_for(plan, more), up=True)!r}."
    )


def enough_for(plan: Plan, more: int = 0) -> int:
    """The smallest limit at which the plan, whatever it then is, has so many bytes to spare."""
    more += brought(plan.memory["process"])
    return enough((*plan.passed_over, plan.portable_nbytes), more)


def enough(peaks: Sequence[int], more: int) -> int:
    """The smallest limit at which the first of these peaks that it allows has bytes to spare.

    peaks : in the order in which they are tried. A larger limit may choose a more generous
    schedule, which needs a larger limit again.
    """
    limits = sorted(-(-(peak + more) // MiB) * MiB for peak in peaks)
    fits = (one for one in limits if next(p for p in peaks if p <= one) + more <= one)
    return next(fits)


def check_machine(plan: Plan) -> None:
    """Refuse a plan for which this machine, or the control group around it, has no room."""
    available = machine.available_nbytes()
    if available is None:
        return
    beside = held_beside(plan, machine.resident_nbytes())
    if plan.peak_nbytes + beside <= available:
        return
    rest = available - beside if available > beside else available
    holds = f" beside the {size(beside)} that this process holds already" if beside else ""
    raise MemoryLimitError(
        f"the plan needs {size(plan.peak_nbytes)}{holds} and this machine (or its control group) "
        f"gives {size(available)}. Set memory_limit={as_limit(rest)!r} to look for a smaller plan, "
        "or use a larger machine."
    )


def held_beside(plan: Plan, resident: int) -> int:
    """What a process of so many resident bytes holds that the plan does not count."""
    process = plan.memory["process"]
    counted = code_nbytes(process) + sum(process[name] for name in HELD)
    return max(0, resident - counted)


@dataclass
class MemoryUse:
    """Resident bytes of this process: ``held`` when the fit began, ``sampled`` the most since.

    high : the high-water mark of the process at the beginning. Nothing sets it back, since it is
        also that of whoever watches the process.
    """

    held: int
    high: int
    sampled: int

    @classmethod
    def begun(cls) -> Self:
        """Now."""
        held = machine.resident_nbytes()
        return cls(held, machine.peak_nbytes(), held)

    def sample(self) -> None:
        """Look again; after every block."""
        self.sampled = max(self.sampled, machine.resident_nbytes())

    def peak_nbytes(self) -> int:
        """The most so far: the high-water mark where it rose, else the largest sample."""
        high = machine.peak_nbytes()
        self.sample()
        return high if high > self.high else self.sampled

    def of_plan(self, plan: Plan) -> int:
        """That peak without what the process held that the plan does not count."""
        return self.peak_nbytes() - held_beside(plan, self.held)


def warn_of_excess(plan: Plan, use: MemoryUse) -> None:
    """Warn where a fit was given a limit and took more than its plan."""
    taken = use.of_plan(plan)
    if plan.memory_limit is None or taken <= plan.peak_nbytes + SLACK_NBYTES:
        return
    warnings.warn(
        f"{plan.method} took {size(taken)} of memory and had planned {size(plan.peak_nbytes)} for "
        f"memory_limit={as_limit(plan.memory_limit)!r}. The result is right. For a machine that "
        f"has no more than the limit, plan for less: memory_limit="
        f"{as_limit(max(MiB, plan.memory_limit - (taken - plan.peak_nbytes)))!r}.",
        MemoryPlanWarning,
        stacklevel=4,
    )
