"""Kernels of OpenBLAS that this processor can run: ``python tests/openblas_kernels.py``.

They add in different orders, so that numeric tests are run under each (OPENBLAS_CORETYPE). That
for Zen is the one for Haswell in the builds that come with NumPy and SciPy.
"""

from __future__ import annotations

from pathlib import Path

NEEDS = {
    "Haswell": {"avx2", "fma"},
    "SkylakeX": {"avx512f", "avx512dq", "avx512bw", "avx512vl"},
}


def kernels() -> list[str]:
    """Their names; none where the processor is not known."""
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return []
    flags = {flag for line in lines if line.startswith("flags") for flag in line.split()}
    return [name for name, needed in NEEDS.items() if needed <= flags]


if __name__ == "__main__":
    print("\n".join(kernels()))
