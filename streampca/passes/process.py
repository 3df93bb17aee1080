"""What a process takes before its first pass: the interpreter, and libraries that a source needs.

These terms are projections: a plan depends on nothing that is measured. They are the same on every
machine, but for a library that others load where it is installed (``brought``). That one counts
where it is, and never decides which schedule is chosen. What libraries really weigh is looked at
when a fit begins (``door``).
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from importlib.util import find_spec

from streampca.imported import weight_of
from streampca.matrix import ChunkedMatrix, work_dtype
from streampca.passes.nbytes import MiB
from streampca.passes.specs import Candidate, PassSpec

INTERPRETER_NBYTES = 96 * MiB  # Python with NumPy, SciPy and Zarr: 80 MiB measured, command line 96
LIBRARY_NBYTES = {  # beyond those that it needs itself
    "pandas": 66 * MiB,  # 30 measured, 63 with pyarrow, which it loads where it is installed
    "xarray": 20 * MiB,  # 9 measured with cftime, 14 with what opens a file
    "dask": 16 * MiB,  # 11 measured
    "dask.dataframe": 24 * MiB,  # 18 measured: what reads the files of pyarrow
    "polars": 28 * MiB,  # 24 measured
    "h5py": 16 * MiB,  # 11 measured
    "numba": 56 * MiB,  # 54 measured
    "sparse": 8 * MiB,  # 7 measured, beside Numba, which it loads
}
WORKER_NBYTES = 56 * MiB  # distributed, its server and connections, in a worker of a cluster
NEEDS = {"xarray": ("pandas",), "dask": ("xarray", "pandas")}
BROUGHT = {"xarray": "sparse", "dask": "sparse"}  # what they load where it is installed
KERNELS_NBYTES = 104 * MiB  # compiled by Numba: 54 measured from its cache, 97 where compiled now
THREAD_NBYTES = 7 * MiB // 2  # stack and arena of a lane or of its reader
PACKED_ROWS = 384  # of an operand that OpenBLAS lays out anew for a product
PACKED_NBYTES = 10 * MiB  # at most, for each lane
SKINNY_NBYTES = 4 * MiB  # where one operand is narrow


def process_terms(matrix: ChunkedMatrix, candidate: Candidate, lanes: int) -> dict[str, int]:
    """Bytes that live as long as the fit, by term; each library is one."""
    names = libraries(matrix, candidate)
    more = {BROUGHT[name] for name in names if name in BROUGHT} - set(names)
    with_numba = 0 if "numba" in names else LIBRARY_NBYTES["numba"]
    return {
        "interpreter": INTERPRETER_NBYTES,
        **{name: LIBRARY_NBYTES[name] for name in names},
        **{name: LIBRARY_NBYTES[name] + with_numba for name in more if installed(name)},
        "compiled kernels": KERNELS_NBYTES if "numba" in names else 0,
        "threads": 2 * lanes * THREAD_NBYTES,
        "BLAS buffers": lanes
        * max((_packed(matrix, spec) for spec in candidate.passes), default=0),
        "labels": matrix.labels.samples.nbytes + matrix.labels.features.nbytes,
        "source": matrix.resident_nbytes,
        "X in memory": matrix.given_nbytes,
    }


def _packed(matrix: ChunkedMatrix, spec: PassSpec) -> int:
    """What BLAS packs of a tile in one lane."""
    if spec.work == "skinny":
        return SKINNY_NBYTES
    width = matrix.shape[1 - spec.axis]
    return min(PACKED_ROWS * width * work_dtype(matrix.dtype).itemsize, PACKED_NBYTES)


def libraries(matrix: ChunkedMatrix, candidate: Candidate) -> list[str]:
    """Heavy libraries that the passes bring into memory: the source's, and compiled kernels."""
    small = matrix.dtype.kind in "iu" and matrix.dtype.itemsize == 1
    compiled = small and any(spec.axis == 1 for spec in candidate.passes)
    loads = {*matrix.loads, *(["numba"] if compiled else [])}
    return sorted(loads.union(*(NEEDS.get(name, ()) for name in loads)))


@cache
def installed(name: str) -> bool:
    """Whether a library is there to be imported; it is not imported."""
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
    """Bytes by which libraries that are loaded weigh more than the plan counts for all of them."""
    projected = imports(process)
    return max(0, weight_of(projected) - sum(projected.values()))
