"""How many rows of a Zarr array have been written: ``shape[0]`` is no mark of that.

``Array.append`` first makes the array longer and then writes the rows, so that a reader sees rows
of zeros in between, or for ever where the writer died. Rows count here where all chunks that hold
them are there, and none of them can be from before the array was made longer.
"""

from __future__ import annotations

import time

import numpy as np

from streampca.sources.ledger import ABSENT, Ledger, Seen
from streampca.sources.ledger_source import LedgerSource

COMMITTED = "streampca_rows_committed"  # an attribute that the writer sets last
SETTLE = 60.0  # seconds without a write after which an append is taken to be over


def rows_written(
    source: LedgerSource, seen: Seen, old: Ledger | None = None, settle: float = SETTLE
) -> tuple[int, str]:
    """(rows of the growing dimension that were written, why not all; "" where all).

    old : the ledger of the last fit, if there was one.  settle : seconds.

    The attribute ``streampca_rows_committed``, where it is there, decides. Else: the chunk that
    was last written before the array was made longer may have been full, or not and then waits to
    be written again. With a ledger that is known. Without one, or where it was written in
    between, the rows in it and behind it count once nothing was written for ``settle`` seconds.
    """
    size, dim, step = source.shape[source.dim], source.dim, source.step
    told = source.reader.array.attrs.get(COMMITTED)
    if isinstance(told, int) and not isinstance(told, bool):
        rows = max(0, min(told, size))
        return rows, "" if rows == size else f"{COMMITTED} says {told} of {size}"
    others = tuple(d for d in range(seen.nbytes.ndim) if d != dim)
    limit, why = size, ""
    if source.reader.guard.missing == "error":
        absent = np.flatnonzero((seen.nbytes == ABSENT).any(axis=others))
        if len(absent):
            limit = int(absent[0]) * step
            why = f"chunks of rows {limit} to {size - 1} are absent"
    before = np.flatnonzero(seen.times.min(axis=others)[: -(-limit // step)] <= seen.written)
    if not len(before):
        return limit, why
    doubtful = int(before[-1])
    known = 0 if old is None else old.rows
    if known >= min((doubtful + 1) * step, limit):
        return limit, why
    waiting = f"rows from {max(doubtful * step, known)} on may still be being written"
    if old is not None and known > doubtful * step:
        part = (slice(None),) * dim + (doubtful,)
        if np.array_equal(seen.version[part], old.version[part]):
            return known, f"rows from {known} on have not been written"
    age = time.time() - max(float(np.nanmax(seen.times)), seen.written)
    if age < settle:
        return min(max(doubtful * step, known), limit), waiting
    return limit, why
