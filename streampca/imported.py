"""The memory of libraries in this process, measured when they are imported.

Libraries load others if these are installed: pandas loads pyarrow. A plan must not depend on that;
a fit must not overlook it.
"""

from __future__ import annotations

import mmap
import sys
import threading
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from pathlib import Path

HEAVY = (
    "anndata", "dask", "dask.dataframe", "distributed", "h5py", "numba", "pandas", "polars",
    "sparse", "xarray",
)  # fmt: skip

_weights: dict[frozenset[str], int] = {}  # libraries imported together -> bytes
_open = threading.local()


def resident_nbytes(proc: Path = Path("/proc")) -> int:
    """Resident memory of this process now; 0 if the system does not tell."""
    try:
        pages = int((proc / "self" / "statm").read_text().split()[1])
    except (OSError, IndexError, ValueError):
        return 0
    return pages * mmap.PAGESIZE


@contextmanager
def weighing() -> Iterator[None]:
    """A context that measures the memory of the heavy libraries imported inside it, in total.

    Nested contexts measure nothing: the outer one does.
    """
    if getattr(_open, "depth", 0):
        yield
        return
    _open.depth = 1
    known, before = _loaded(), resident_nbytes()
    try:
        yield
    finally:
        _open.depth = 0
        if new := _loaded() - known:
            _weights[new] = max(0, resident_nbytes() - before)


def weight_of(projected: dict[str, int]) -> int:
    """Bytes of these libraries and those that they loaded: measured if possible, else projected.

    projected : library -> bytes. Libraries that other code imported were not measured.
    """
    measured = {names: nbytes for names, nbytes in _weights.items() if names & projected.keys()}
    seen: Collection[str] = frozenset().union(*measured)
    rest = sum(nbytes for name, nbytes in projected.items() if name not in seen)
    return sum(measured.values()) + rest


def _loaded() -> frozenset[str]:
    return frozenset(name for name in HEAVY if name in sys.modules)
