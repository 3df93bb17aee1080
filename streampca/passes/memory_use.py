"""What the memory of this process came to while a fit ran."""

from __future__ import annotations

import warnings
from dataclasses import dataclass
from typing import Self

from streampca.errors import MemoryPlanWarning
from streampca.passes import machine
from streampca.passes.door import held_beside
from streampca.passes.nbytes import MiB, as_limit, size
from streampca.passes.records import Plan

SLACK_NBYTES = 4 * MiB  # the kernel counts pages of each thread in batches


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
