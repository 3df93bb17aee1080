"""One fit of a large store inside a memory control group set at its projection.

``python -m tests.benchmarks.memory --gigabytes 8`` writes the store, makes a control group whose
limit is exactly what the plan projects, and runs the fit in it: the kernel would kill it at the
first page too many. Needs the right to make control groups (root, v1 or v2).
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np
import zarr

V1, V2 = Path("/sys/fs/cgroup/memory"), Path("/sys/fs/cgroup")


def write(path: str, gigabytes: float, p: int = 1000, chunk: int = 4096) -> int:
    """float32, p columns; random blocks drawn from a small pool, so that writing is quick."""
    n = int(gigabytes * 1e9 / (4 * p))
    rng = np.random.default_rng(0)
    pool = [rng.standard_normal((chunk, p), dtype=np.float32) + 5 for _ in range(7)]
    store = zarr.create_array(path, shape=(n, p), chunks=(chunk, p), dtype="f4")
    for i in range(0, n, chunk):
        m = min(chunk, n - i)
        store[i : i + m] = pool[(i // chunk) % 7][:m]
    return n


class ControlGroup:
    """A memory control group for child processes, removed at the end."""

    def __init__(self, limit: int) -> None:
        v1 = V1.is_dir()
        own = next(
            line.split(":", 2)[2]
            for line in Path("/proc/self/cgroup").read_text().splitlines()
            if (":memory:" in line if v1 else line.startswith("0::"))
        )
        self.path = (V1 if v1 else V2) / own.lstrip("/") / f"streampca-{os.getpid()}"
        self.path.mkdir()
        name = "memory.limit_in_bytes" if v1 else "memory.max"
        (self.path / name).write_text(str(limit))
        self.peak_file = self.path / ("memory.max_usage_in_bytes" if v1 else "memory.peak")
        self.failures = self.path / ("memory.failcnt" if v1 else "memory.events")

    def enter(self) -> None:
        """In the child: join."""
        (self.path / "cgroup.procs").write_text(str(os.getpid()))

    def remove(self) -> None:
        """At the end."""
        self.path.rmdir()


CHILD = """
import sys, streampca
from streampca.passes.memory import peak_nbytes
model = streampca.PCA(5, progress=False).fit(sys.argv[1])
print("resident peak", peak_nbytes(), "projected", model.plan_.peak_nbytes,
      "seconds", sum(c.seconds for c in model.cost_), "reads", model.plan_.reads)
"""


def main() -> None:
    """Write, project, confine, fit."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--gigabytes", type=float, default=8.0)
    arguments = parser.parse_args()
    import streampca

    with tempfile.TemporaryDirectory() as folder:
        path = str(Path(folder) / "large.zarr")
        n = write(path, arguments.gigabytes)
        projected = streampca.PCA(5).plan(path).peak_nbytes
        group = ControlGroup(-(-projected // 4096) * 4096)
        try:
            begun = time.perf_counter()
            done = subprocess.run(
                [sys.executable, "-c", CHILD, path],
                preexec_fn=group.enter,
                capture_output=True,
                text=True,
                check=False,
            )
            print(
                f"{n} x 1000 float32, control group of {projected / 1e6:.0f} MB: "
                f"exit {done.returncode} after {time.perf_counter() - begun:.1f} s"
            )
            print(done.stdout.strip() or done.stderr.strip()[-2000:])
        finally:
            group.remove()


if __name__ == "__main__":
    main()
