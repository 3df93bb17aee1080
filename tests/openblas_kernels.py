"""Other kernels of OpenBLAS that this processor can run: ``python tests/openblas_kernels.py``.

They add in different orders: numeric tests are run under each of them (OPENBLAS_CORETYPE), and with
all others under the one that OpenBLAS chooses by itself.
"""

from __future__ import annotations

from pathlib import Path

NEEDS = {
    "Nehalem": {"sse4_2"},
    "Haswell": {"avx2", "fma"},
    "SkylakeX": {"avx512f", "avx512dq", "avx512bw", "avx512vl"},
}
# in the builds that come with NumPy and SciPy
SAME = {"Zen": "Haswell"}


def kernels() -> list[str]:
    """Their names; none where the processor is not known."""
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return []
    flags = {flag for line in lines if line.startswith("flags") for flag in line.split()}
    return [name for name, needed in NEEDS.items() if needed <= flags]


def chosen() -> set[str]:
    """Those that NumPy's and SciPy's BLAS take by themselves here."""
    import scipy.linalg  # noqa: F401  (brings a BLAS of its own)
    import threadpoolctl

    found = {str(one.get("architecture")) for one in threadpoolctl.threadpool_info()}
    return {SAME.get(name, name) for name in found}


if __name__ == "__main__":
    usual = chosen()
    print("\n".join(name for name in kernels() if {name} != usual))
