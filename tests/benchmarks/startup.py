"""What a fresh process costs before it works: ``python -m tests.benchmarks.startup``.

Each figure is the median of five processes, CPU seconds and wall, beside ``import numpy`` and a
target. A target holds for wall time on an idle machine with two cores; CPU seconds tell of a busy
one. "Cold" begins without anything in the caches of Numba and Matplotlib, as after installation;
bytecode is there, which installing writes. ``--repeats N`` and names of figures choose less.
"""

from __future__ import annotations

import argparse
import os
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

import numpy as np

import streampca

ROOT = Path(streampca.__file__).parents[1]
CALLS = "np.random.default_rng(0).integers(0, 3, (1000, 20_000)).astype('i1')"
GENOTYPES = f"import numpy as np, streampca; streampca.GenotypePCA(5, progress=False).fit({CALLS})"
DENSE = (
    "import numpy as np; from streampca import PCA; "
    "PCA(5, progress=False).fit(np.random.default_rng(0).standard_normal((1000, 1000)))"
)
CLI = ["-m", "streampca"]


@dataclass(frozen=True)
class Figure:
    """What a process runs, and the seconds that it may take.  cold : without caches."""

    argv: list[str]
    target: float | None = None
    cold: bool = False
    repeats: int | None = None


FIGURES = {
    "import numpy": Figure(["-c", "import numpy"]),
    "import streampca": Figure(["-c", "import streampca"], 0.35),
    "from streampca import PCA": Figure(["-c", "from streampca import PCA"]),
    "streampca --help": Figure([*CLI, "--help"], 0.5),
    "streampca info X.npy": Figure([*CLI, "info", "x.npy"], 0.5),
    "streampca info MODEL": Figure([*CLI, "info", "model"], 0.5),
    "streampca plan X.npy": Figure([*CLI, "plan", "x.npy"]),
    "PCA(5) of 1000 x 1000": Figure(["-c", DENSE], 1.5),
    "genotypes 1000 x 20,000, cold": Figure(["-c", GENOTYPES], 6.0, cold=True),
    "genotypes 1000 x 20,000": Figure(["-c", GENOTYPES], 2.5),
    "streampca demo, cold": Figure([*CLI, "demo"], 20.0, cold=True, repeats=1),
}


def seconds(figure: Figure, folder: Path, repeats: int) -> tuple[float, float]:
    """Median (CPU, wall) seconds of its processes, after one that writes bytecode."""
    if not figure.cold:
        _once(figure, folder)
    found = [_once(figure, folder) for _ in range(figure.repeats or repeats)]
    cpu, wall = zip(*found, strict=True)
    return statistics.median(cpu), statistics.median(wall)


def _once(figure: Figure, folder: Path) -> tuple[float, float]:
    with tempfile.TemporaryDirectory() as empty:
        caches = Path(empty) if figure.cold else folder
        environment = {
            **os.environ,
            "PYTHONPATH": str(ROOT),
            "NUMBA_CACHE_DIR": str(caches / "numba"),
            "MPLCONFIGDIR": str(caches / "matplotlib"),
        }
        environment.pop("PYTHONDONTWRITEBYTECODE", None)
        before, start = resource.getrusage(resource.RUSAGE_CHILDREN), time.perf_counter()
        subprocess.run(
            [sys.executable, *figure.argv],
            cwd=folder,
            env=environment,
            check=True,
            stdout=subprocess.DEVNULL,
        )
        wall = time.perf_counter() - start
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime, wall


def main() -> None:
    """Print all figures, or those that were named."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("names", nargs="*", choices=[*FIGURES, []], default=[])
    parser.add_argument("--repeats", type=int, default=5)
    arguments = parser.parse_args()
    print(f"{'':32}{'CPU s':>8}{'wall s':>8}{'target':>8}{'x numpy':>9}")
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place)
        x = np.random.default_rng(0).standard_normal((500, 100))
        np.save(folder / "x.npy", x)
        streampca.PCA(5, progress=False).fit(x).save(folder / "model")
        bare = seconds(FIGURES["import numpy"], folder, arguments.repeats)[0]
        for name in arguments.names or FIGURES:
            cpu, wall = seconds(FIGURES[name], folder, arguments.repeats)
            target = "" if FIGURES[name].target is None else f"{FIGURES[name].target:.2f}"
            print(f"{name:32}{cpu:8.2f}{wall:8.2f}{target:>8}{cpu / bare:9.1f}", flush=True)


if __name__ == "__main__":
    main()
