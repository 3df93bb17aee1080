"""Who folds a pass: lanes, threads that fold whole spans, and helpers that do pieces of their work.

Bits depend on the spans alone, so both may be any number. Memory decides: where the accumulators of
a span are small, every thread is a lane with its own. Where they are large, the lanes of the plan
are all that there are, and further threads help them: with squares of a symmetric update, with
tiles, with statistics (:func:`streampca.kernels.each`). Each thread beyond the lanes of the plan
then adds a share of a block that is read ahead.
"""

from __future__ import annotations

from dataclasses import dataclass

from streampca.passes.memory import THREAD_NBYTES, MiB
from streampca.passes.records import PassPlan, Plan

OWN_NBYTES = 16 * MiB  # of the accumulators of a span, up to which every thread has its own
HELPER_NBYTES = 3 * MiB  # of a helper: its stack, arena and BLAS buffers; 2.3 measured
HELPERS_PER_READER = 8  # decoding takes about an eighth of a symmetric update of 2000 rows


@dataclass(frozen=True)
class Crew:
    """lanes : threads that fold spans.  helpers : beside them.  ahead : blocks, of each lane."""

    lanes: int
    helpers: int
    ahead: tuple[int, ...]

    @classmethod
    def of(cls, plan: PassPlan, lanes: int, ahead: int, threads: int, n_spans: int) -> Crew:
        """For a pass of so many spans.

        lanes, ahead : of the whole plan. A single lane stays alone: blocks may be needed in order.
        threads : in all, beside those that wait for storage to read ahead.
        """
        most = threads if lanes > 1 and own_lanes(plan.partial_nbytes) else min(lanes, threads)
        found = max(1, min(most, n_spans))
        helpers = max(0, threads - found)
        more = helpers // HELPERS_PER_READER if ahead else 0
        share = [ahead + (more + i) // found for i in range(found)]
        return cls(found, helpers, tuple(n if i < lanes else 0 for i, n in enumerate(share)))


def own_lanes(partial_nbytes: int) -> bool:
    """Whether every thread has accumulators of its own."""
    return partial_nbytes <= OWN_NBYTES


def thread_nbytes(lanes: int, partial_nbytes: int, of_lane: int, of_reader: int) -> int:
    """Bytes of one thread beyond the lanes of a plan.

    of_lane : that one lane takes with a single block.  of_reader : one block that is read ahead.
    """
    if lanes > 1 and own_lanes(partial_nbytes):
        return THREAD_NBYTES + of_lane
    return HELPER_NBYTES + -(-(of_reader + THREAD_NBYTES) // HELPERS_PER_READER)


def affordable(plan: Plan, threads: int, room: int | None) -> int:
    """As many threads as asked for, but no more than fit: those of the plan fit in any case.

    room : bytes for all of the plan, or None where nobody knows.
    """
    more = max(0, threads - plan.lanes)
    if room is not None and more:
        more = min(more, max(0, room - plan.peak_nbytes) // max(1, plan.thread_nbytes))
    return min(threads, plan.lanes) + more
