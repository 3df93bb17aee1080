"""What libraries weigh in this process, measured as they are imported.

Libraries bring others with them, and which ones depends on what is installed: pandas brings
pyarrow where it is there. A plan must not depend on that; a fit must not overlook it.
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

_weights: dict[frozenset[str], int] = {}  # libraries that came together -> bytes
_open = threading.local()


def resident_nbytes(proc: Path = Path("/proc")) -> int:
    """Resident memory of this process now; 0 where the system does not say."""
    try:
        pages = int((proc / "self" / "statm").read_text().split()[1])
    except (OSError, IndexError, ValueError):
        return 0
    return pages * mmap.PAGESIZE


@contextmanager
def weighing() -> Iterator[None]:
    """Note what the heavy libraries that are imported meanwhile weigh, all together.

    Within another one nothing is noted: the outer one does.
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
    """Bytes of these libraries and what they brought: as measured, else as projected.

    projected : library -> bytes. Those that somebody else imported were not measured.
    """
    measured = {names: nbytes for names, nbytes in _weights.items() if names & projected.keys()}
    seen: Collection[str] = frozenset().union(*measured)
    rest = sum(nbytes for name, nbytes in projected.items() if name not in seen)
    return sum(measured.values()) + rest


def _loaded() -> frozenset[str]:
    return frozenset(name for name in HEAVY if name in sys.modules)
