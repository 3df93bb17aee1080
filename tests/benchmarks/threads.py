"""How many threads work, and what sixteen take: ``python -m tests.benchmarks.threads``.

Each row is a fresh process. The first table counts threads that fold blocks at the same time, where
the process is confined: by affinity, a CPU quota, OMP_NUM_THREADS, ``--threads``. The quota is read
from control groups that the script writes into a folder, of a machine said to have eight cores.

The second has the peak memory of sixteen threads, however few cores there are, beside what the plan
says of them; beside that, the plan of two, its blocks, and what each further thread adds: its own
blocks, tiles, and accumulators where these are small. "Times" is the plan of sixteen over that of
two with its blocks; the goal is 1.15. Exits with 1 where other threads work than should, or a peak
is above its plan.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import threading
import warnings
from collections.abc import Callable
from contextlib import redirect_stdout
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import scipy.sparse
import zarr

import streampca as sp
from streampca.passes import limited_threads, memory
from streampca.passes.execution import Execution
from streampca.passes.memory import peak_nbytes
from streampca.passes.records import Pass
from tests.benchmarks.cores import array

THREADS = 16
GOAL = 1.15

Fit = Callable[[str], Any]


# -- data, written by the parent --------------------------------------------------------


def numbers(folder: Path) -> str:
    """120,000 x 300 float32."""
    return array("tall.zarr", (120_000, 300), (4000, 300), folder)


def wide(folder: Path) -> str:
    """1500 x 40,000 float32."""
    return array("wide.zarr", (1500, 40_000), (1500, 1000), folder)


def written(name: str, x: np.ndarray[Any, Any], chunks: tuple[int, int], folder: Path) -> str:
    """The path of an array in Zarr."""
    if not (path := folder / name).exists():
        zarr.create_array(str(path), data=x, chunks=chunks)
    return str(path)


def calls(folder: Path) -> str:
    """3192 x 14,000 genotypes."""
    x = np.random.default_rng(0).integers(0, 3, (3192, 14_000)).astype(np.int8)
    return written("calls.zarr", x, (3192, 1000), folder)


def holed(folder: Path, shape: tuple[int, int] = (60_000, 300)) -> str:
    """Rank 4 and noise in float32, a tenth missing."""
    rng = np.random.default_rng(0)
    x = rng.standard_normal((shape[0], 4)) @ rng.standard_normal((4, shape[1]))
    x = (x + 0.1 * rng.standard_normal(shape)).astype(np.float32)
    x[rng.random(shape) < 0.1] = np.nan
    chunks = (4000, shape[1]) if shape[0] > shape[1] else (shape[0], 1000)
    return written(f"holed-{shape[0]}.zarr", x, chunks, folder)


def entries(folder: Path) -> str:
    """200,000 x 2000, a fiftieth of its cells stored."""
    if not (path := folder / "x.npz").exists():
        x = scipy.sparse.random(200_000, 2000, 0.02, "csr", np.float32, np.random.default_rng(0))
        scipy.sparse.save_npz(path, x, compressed=False)
    return str(path)


# -- fits -------------------------------------------------------------------------------


def pca(solver: str, path: str, **more: Any) -> Any:
    """Five components."""
    return sp.PCA(5, svd_solver=solver, progress=False, **more).fit(path)


def pruned(path: str) -> None:
    """Genotypes that are pruned, then fitted."""
    sp.prune_ld(path, window=50, step=5, progress=False)
    sp.GenotypePCA(5, progress=False, components=False).fit(path)


def scores(path: str) -> None:
    """Scores in a Zarr array."""
    with tempfile.TemporaryDirectory() as folder:
        pca("scatter", path).transform(path, out=f"{folder}/scores.zarr")


CASES: dict[str, tuple[Callable[[Path], str], Fit]] = {
    "scatter": (numbers, partial(pca, "scatter")),
    "tsqr": (numbers, partial(pca, "tsqr")),
    "gram, int8": (calls, partial(pca, "gram", components=False)),
    "gram, float32": (wide, partial(pca, "gram", components=False)),
    "gram with holes": (
        partial(holed, shape=(1500, 20_000)),
        partial(pca, "gram", components=False, missing="mean"),
    ),
    "krylov": (numbers, partial(pca, "randomized", max_passes=3)),
    "krylov, sparse": (
        entries,
        lambda path: pca("randomized", scipy.sparse.load_npz(path), max_passes=3),
    ),
    "HardImpute": (holed, lambda path: sp.HardImpute(4, max_passes=4, progress=False).fit(path)),
    "PPCA": (numbers, lambda path: sp.PPCA(4, progress=False).fit(path)),
    "GenotypePCA, pruned": (calls, pruned),
    "scores in Zarr": (numbers, scores),
}
CONFINED = {
    "free": None,
    "affinity": 1,
    "quota of 150 %": 2,
    "OMP_NUM_THREADS=1": 1,
    "--threads 1": 1,
}


# -- in a process of its own --------------------------------------------------------------


def peaks(name: str, path: str) -> dict[str, int]:
    """Bytes that the fit took with sixteen threads, and its largest plan."""
    plans = []
    plain = Execution.begun

    def begun(plan: Any, *rest: Any, **more: Any) -> Execution:
        plans.append(plan)
        return plain(plan, *rest, **more)

    Execution.begun = begun  # type: ignore[assignment, method-assign]
    with limited_threads(THREADS):
        CASES[name][1](path)
    blocks = max(terms.get("blocks", 0) for one in plans for terms in one.memory.values())
    return {
        "peak": peak_nbytes(),
        "planned": max(one.peak_with(THREADS) for one in plans),
        "two": max(one.peak_nbytes for one in plans),
        "blocks": blocks,
        "each": max(one.thread_nbytes for one in plans),
    }


def busy(name: str, path: str) -> dict[str, int]:
    """Threads that fold blocks at the same time, at most."""
    inside, most, lock = [0], [0], threading.Lock()
    plain = Pass.process

    def process(*args: Any) -> Any:
        with lock:
            inside[0] += 1
            most[0] = max(most[0], inside[0])
        try:
            return plain(*args)
        finally:
            with lock:
                inside[0] -= 1

    Pass.process = process  # type: ignore[method-assign]
    command = ["fit", path, "-k", "2", "--solver", "scatter", "--json"]
    if name == "affinity":
        os.sched_setaffinity(0, [min(os.sched_getaffinity(0))])
    if name.startswith("quota"):
        folder = Path(path).parent
        for file, text in {
            "proc/self/cgroup": "0::/job",
            "group/job/cpu.max": "150000 100000",
        }.items():
            (folder / file).parent.mkdir(parents=True, exist_ok=True)
            (folder / file).write_text(text + "\n")
        memory.PROC, memory.CGROUP = folder / "proc", folder / "group"
        os.sched_getaffinity = lambda pid: set(range(8))  # type: ignore[assignment, misc]
    if name.startswith("--"):
        command += name.split()
    from streampca.cli.commands import main as cli

    with open(os.devnull, "w") as nothing, redirect_stdout(nothing):
        cli(command)
    return {"busy": most[0]}


def process(what: str, name: str, path: str) -> dict[str, int]:
    """Run one of the two above in a fresh process."""
    environment = {**os.environ, "PYTHONWARNINGS": "ignore"}
    environment.pop("OMP_NUM_THREADS", None)
    if name.startswith("OMP"):
        environment["OMP_NUM_THREADS"] = "1"
    command = [sys.executable, "-m", "tests.benchmarks.threads", "--child", what, name, path]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
    found: dict[str, int] = json.loads(done.stdout.splitlines()[-1])
    return found


# -- the tables ---------------------------------------------------------------------------


def counted(folder: Path) -> bool:
    """Print the first table; whether all is as it should be."""
    path, right = numbers(folder), True
    for name, wanted in CONFINED.items():
        found = process("busy", name, path)["busy"]
        wanted = len(os.sched_getaffinity(0)) if wanted is None else wanted
        right &= found == wanted
        print(f"{name:<22}{found:>4} threads fold at once, expected {wanted}", flush=True)
    return right


def measured(folder: Path, names: list[str]) -> bool:
    """Print the second table; whether no peak is above its plan."""
    columns, right = ("peak", "planned", "two", "blocks", "each"), True
    print(f"\n{'MB':<22}" + "".join(f"{column:>9}" for column in columns) + f"{'times':>9}")
    for name in names:
        one = process("peaks", name, CASES[name][0](folder))
        times = one["planned"] / (one["two"] + one["blocks"])
        right &= one["peak"] <= one["planned"]
        text = "".join(f"{one[column] / 1e6:>9.0f}" for column in columns) + f"{times:>9.2f}"
        text += "  above the plan" if one["peak"] > one["planned"] else ""
        print(f"{name:<22}{text}{'  above the goal' if times > GOAL else ''}", flush=True)
    return right


def main() -> int:
    """Both tables."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--child", nargs=3, help=argparse.SUPPRESS)
    parser.add_argument("--only", nargs="*", choices=list(CASES), help="fits of the second table")
    arguments = parser.parse_args()
    if arguments.child:
        warnings.simplefilter("ignore")
        what, name, path = arguments.child
        print(json.dumps({"peaks": peaks, "busy": busy}[what](name, path)))
        return 0
    with tempfile.TemporaryDirectory() as folder:
        right = counted(Path(folder))
        right &= measured(Path(folder), arguments.only or list(CASES))
    return 0 if right else 1


if __name__ == "__main__":
    sys.exit(main())
