"""Memory: sizes as text, what a machine has, what a process takes before a fit, and its peak."""

from __future__ import annotations

import contextlib
import re
import sys
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from functools import cache, lru_cache
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Self

import numpy as np

from streampca import imported
from streampca.errors import InvalidInputError
from streampca.imported import weighing, weight_of
from streampca.matrix import ChunkedMatrix

# Numbers of bytes as text, and back.

MiB = 1024 * 1024
UNITS = {
    "": 1,
    "b": 1,
    "kb": 10**3,
    "mb": 10**6,
    "gb": 10**9,
    "tb": 10**12,
    "kib": 2**10,
    "mib": 2**20,
    "gib": 2**30,
    "tib": 2**40,
}


def parse_nbytes(limit: int | float | str | None) -> int | None:
    """``"512MiB"``, ``"2 GB"`` or a number of bytes, as an integer. Raises InvalidInputError."""
    if limit is None:
        return None
    if isinstance(limit, str):
        match = re.fullmatch(r"\s*([0-9]+\.?[0-9]*|\.[0-9]+)\s*([a-zA-Z]*)\s*", limit)
        if match is None or match[2].lower() not in UNITS:
            raise InvalidInputError(f"memory_limit={limit!r}; expected e.g. '512MiB' or '2GB'")
        limit = float(match[1]) * UNITS[match[2].lower()]
    if isinstance(limit, bool) or not isinstance(limit, (int, float, np.integer, np.floating)):
        raise InvalidInputError(f"memory_limit={limit!r}; expected bytes, or e.g. '512MiB'")
    if not 1 <= limit < np.inf:
        raise InvalidInputError(f"memory_limit={limit!r}; expected a positive number of bytes")
    return int(limit)


def size(nbytes: float) -> str:
    """Bytes as text: ``1.5 GiB``."""
    for unit in ("B", "KiB", "MiB", "GiB"):
        if nbytes < 1024 or unit == "GiB":
            break
        nbytes /= 1024
    return f"{nbytes:.0f} {unit}" if nbytes >= 100 or unit == "B" else f"{nbytes:.1f} {unit}"


def as_limit(nbytes: int, up: bool = False) -> str:
    """Bytes as a ``memory_limit``, in whole MiB: ``"512MiB"``."""
    return f"{-(-nbytes // MiB) if up else nbytes // MiB}MiB"


# The memory of this machine, of its control group, and of this process.

PROC = Path("/proc")
CGROUP = Path("/sys/fs/cgroup")


def _number(path: Path) -> int | None:
    try:
        text = path.read_text().strip()
    except OSError:
        return None
    return int(text) if text.isdigit() else None


def group_folders(controller: str) -> Iterator[tuple[Path, bool]]:
    """(folder, whether of version 2) of the control groups of this process and those above them."""
    try:
        lines = (PROC / "self" / "cgroup").read_text().splitlines()
    except OSError:
        return
    for line in lines:
        if line.count(":") < 2:
            continue
        _, controllers, path = line.split(":", 2)
        if controllers and controller not in controllers.split(","):
            continue
        root = CGROUP / controller if controllers else CGROUP
        folder = root / path.lstrip("/")
        for place in [folder, *folder.parents]:
            yield place, not controllers
            if place == root:
                break


def _cgroup_limit() -> int | None:
    """The tightest memory limit among the control groups of this process (v2 or v1).

    Read again after a second: a fit that small calls make a thousand times would read a dozen files
    each time.
    """
    return _limit_of_groups(PROC, CGROUP, this_second())


def this_second() -> int:
    """A number that changes every second: what was read in this one is not read again."""
    return int(time.monotonic())


@lru_cache(maxsize=1)
def _limit_of_groups(proc: Path, cgroup: Path, second_of_clock: int) -> int | None:
    limits: list[int] = []
    for folder, second in group_folders("memory"):
        limit = _number(folder / ("memory.max" if second else "memory.limit_in_bytes"))
        if limit is not None and limit < 1 << 60:
            limits.append(limit)
    return min(limits, default=None)


def _proc_nbytes(file: str, key: str) -> int | None:
    """A line of a file below /proc that gives kilobytes, in bytes; None if it is not there."""
    try:
        with open(f"{PROC}/{file}", "rb", buffering=0) as lines:
            text = lines.read()
    except OSError:
        return None
    _, found, rest = b"\n".join((b"", text)).partition(f"\n{key}:".encode())
    return int(rest.split(None, 1)[0]) * 1024 if found else None


def resident_nbytes() -> int:
    """Resident memory of this process now; 0 if the system does not tell."""
    return imported.resident_nbytes(PROC)


def peak_nbytes() -> int:
    """Largest resident memory of this process so far, by the system; 0 if it does not tell.

    All that the process holds counts, libraries' own allocations too. Every peak that is printed
    comes from here; nothing of the package runs in processes that are children of this one.
    """
    if (high := _proc_nbytes("self/status", "VmHWM")) is not None:
        return high
    try:
        import resource
    except ImportError:  # Windows
        return imported.by_psutil("peak_wset")
    high = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return high if sys.platform == "darwin" else 1024 * high


def available_nbytes() -> int | None:
    """Memory that this process may use in total, including what it holds already.

    The smaller of the control group's limit, and what the system has available plus what is
    resident here. None if neither is known.
    """
    free = _proc_nbytes("meminfo", "MemAvailable") or imported.by_psutil("available")
    known = [_cgroup_limit(), free + resident_nbytes() if free else None]
    return min((k for k in known if k is not None), default=None)


# What a process takes before its first pass: the interpreter, and libraries that a source needs.
#
# These terms are projections: a plan depends on nothing that is measured. They are the same on
# every machine, except for a library that others load if it is installed (``brought``). It counts
# where it is installed, and never decides which schedule is chosen. The real memory of libraries is
# measured when a fit begins (``load``).

INTERPRETER_NBYTES = 96 * MiB  # Python with NumPy, SciPy and Zarr: 80 MiB measured, command line 96
LIBRARY_NBYTES = {  # each without the libraries that it needs
    "pandas": 66 * MiB,  # 30 measured, 63 with pyarrow, which it loads if it is installed
    "xarray": 20 * MiB,  # 9 measured with cftime, 14 with what opens a file
    "dask": 28 * MiB,  # 11 measured, 23 with distributed, where most of it looks for a client
    "dask.dataframe": 24 * MiB,  # 18 measured: pyarrow's file readers
    "pyarrow": 52 * MiB,  # 50 measured, with what reads Parquet and text
    "polars": 28 * MiB,  # 24 measured
    "h5py": 20 * MiB,  # 11 measured; 18 where the package was loaded on first use
    "numba": 56 * MiB,  # 54 measured
    "sparse": 8 * MiB,  # 7 measured, without Numba, which it loads
    "pgenlib": 2 * MiB,  # 1 measured
    "cyvcf2": 10 * MiB,  # 5 measured, 7 with what it parses
    "sklearn": 116 * MiB,  # its text: 49 measured, 111 with pandas, loaded if it is installed
}
WORKER_NBYTES = 56 * MiB  # distributed, its server and connections, in a worker of a cluster
NEEDS = {"xarray": ("pandas",), "dask": ("xarray", "pandas")}
BROUGHT = {"xarray": "sparse", "dask": "sparse"}  # library -> what it loads if installed
KERNELS_NBYTES = 104 * MiB  # compiled by Numba: 54 measured from its cache, 97 where compiled now
THREAD_NBYTES = 7 * MiB // 2  # stack and malloc arena of a lane or of its reader
PACKED_ROWS = 384  # of an operand, packed by OpenBLAS for a product
PACKED_NBYTES = 10 * MiB  # at most, for each lane
SKINNY_NBYTES = 4 * MiB  # if one operand is narrow


@cache
def installed(name: str) -> bool:
    """Whether a library is installed; does not import it."""
    return find_spec(name) is not None


def brought(process: Mapping[str, int]) -> int:
    """Projected bytes of libraries that count only because they are installed here."""
    return sum(process.get(name, 0) for name in set(BROUGHT.values()))


def imports(process: Mapping[str, int]) -> dict[str, int]:
    """Library -> projected bytes, of the terms of a process."""
    return {name: process[name] for name in LIBRARY_NBYTES if name in process}


def code_nbytes(process: Mapping[str, int]) -> int:
    """Projected bytes of the interpreter and the libraries, without kernels to be compiled."""
    return process["interpreter"] + sum(imports(process).values())


def unforeseen(process: Mapping[str, int]) -> int:
    """Bytes by which the loaded libraries exceed what the plan counts for them."""
    projected = imports(process)
    return max(0, weight_of(projected) - sum(projected.values()))


# What this process holds: libraries, loaded and weighed, and the most since a fit began.

HELD = ("labels", "source", "X in memory")  # terms of a process that exist before a fit
# library -> the module to import, where it is not the package itself
MODULES = {"dask": "dask.array", "sklearn": "sklearn.feature_extraction.text"}
SOLVING = (  # modules that any fit needs
    "scipy.linalg.cython_blas",
    "scipy.linalg.cython_lapack",
    "scipy.sparse",
)


def load(process: Mapping[str, int]) -> None:
    """Import the libraries that a plan counts, and measure the memory of new ones.

    What every fit needs is part of the interpreter, and loads first.
    """
    for name in SOLVING:
        import_module(name)
    for name in imports(process):
        with weighing(), contextlib.suppress(ImportError):  # reported where it is needed
            import_module(MODULES.get(name, name))


def other_nbytes(process: Mapping[str, int], resident: int) -> int:
    """Of so many resident bytes, those that a plan with these terms does not count."""
    counted = code_nbytes(process) + sum(process[name] for name in HELD)
    return max(0, resident - counted)


def own_peak(memory: Mapping[str, Mapping[str, int]], peak: int, held: int | None) -> int:
    """The peak of a fit without what its process held before that the plan does not count.

    memory : of the plan, by part and term.  peak, held : resident bytes, at most and before.
    """
    return peak - (0 if held is None or not memory else other_nbytes(memory["process"], held))


def in_memory(matrix: ChunkedMatrix) -> bool:
    """Whether most of a matrix lies in this process, and would be sent with its tasks."""
    carried = matrix.carried_nbytes
    return carried > 0 and (matrix.sparse or 2 * carried >= matrix.nbytes)


@dataclass
class MemoryUse:
    """Resident bytes of this process: ``held`` when the fit began, ``sampled`` the most since.

    high : the process's high-water mark at the beginning. It is never reset: other observers of
        the process use it too.
    more : of threads beyond the lanes of the plan.
    warned : whether the caller was.
    """

    held: int
    high: int
    sampled: int
    more: int = 0
    warned: bool = False

    @classmethod
    def begun(cls) -> Self:
        """The state at the beginning of a fit."""
        held = resident_nbytes()
        return cls(held, peak_nbytes(), held)

    def since(self, earlier: MemoryUse) -> MemoryUse:
        """The use since an earlier one began."""
        return replace(earlier, sampled=max(earlier.sampled, self.sampled), more=self.more)

    def sample(self) -> None:
        """Measure again; called after every block."""
        self.sampled = max(self.sampled, resident_nbytes())

    def peak_nbytes(self) -> int:
        """The most so far: the high-water mark if it rose, else the largest sample."""
        high = peak_nbytes()
        self.sample()
        return high if high > self.high else self.sampled
