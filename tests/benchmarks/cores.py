"""What further cores gain: ``python -m tests.benchmarks.cores``.

Each benchmark runs in fresh processes with one thread and with two. Efficiency is the time of one
over twice that of two. The serial part is measured by timers in the run with one thread: all that
is neither in a pass, outside the merging of its spans, nor in a piece that a solver divides. From
both come the seconds that 4, 16 and 64 cores should take: by the serial part alone (Amdahl), and
with what the second thread lost beside it, which more threads lose as well (Karp and Flatt). The
serial part and the efficiency "by CPU" are of CPU seconds: what two idle cores would take, where
others keep the machine busy.
``--threads`` measures other numbers on a machine that has them. plink2 runs beside, where it is
installed.
"""

from __future__ import annotations

import argparse
import shutil
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable
from functools import partial
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np
import scipy.sparse
import zarr

import streampca as sp
from streampca.kernels import band, blas
from streampca.passes import fold, limited_threads
from streampca.sources.simulate import GenotypeRecipe
from tests.benchmarks.genotypes import plink, timed, write
from tests.benchmarks.measure import child, measure

PREDICTED = (4, 16, 64)
GOAL, SERIAL = 0.93, 0.015

Data = Callable[[Path], Any]
Work = Callable[[Any], Any]


# -- data, written once ---------------------------------------------------------------


def array(name: str, shape: tuple[int, int], chunks: tuple[int, int], folder: Path) -> str:
    """The path of float32 numbers with a decaying spectrum, in Zarr."""
    path = folder / name
    if not path.exists():
        rng = np.random.default_rng(0)
        made = zarr.create_array(str(path), shape=shape, chunks=chunks, dtype="f4")
        across = rng.standard_normal((8, shape[1]), dtype=np.float32)
        for start in range(0, shape[0], 4096):
            rows = min(4096, shape[0] - start)
            scores = rng.standard_normal((rows, 8), dtype=np.float32) * 0.7 ** np.arange(8)
            noise = rng.standard_normal((rows, shape[1]), dtype=np.float32)
            made[start : start + rows] = (3 * scores.astype("f4") @ across + noise).round(1)
    return str(path)


def genotypes(folder: Path) -> str:
    """The path of 3192 x 20,000 calls, as .bed too."""
    if not (folder / "x.fam").exists():
        write(folder, GenotypeRecipe(3192, 20_000))
    return str(folder / "x.zarr")


def entries(folder: Path) -> Any:
    """60,000 x 5000, a fiftieth of its cells stored."""
    rng = np.random.default_rng(1)
    return scipy.sparse.random(60_000, 5000, 0.02, "csr", np.float32, rng)


def holed(folder: Path) -> Any:
    """8000 x 1000 of rank 8 and noise, a third of its cells missing."""
    rng = np.random.default_rng(2)
    x = rng.standard_normal((8000, 8)) @ rng.standard_normal((8, 1000))
    x += 0.1 * rng.standard_normal(x.shape)
    x[rng.random(x.shape) < 0.3] = np.nan
    return x.astype(np.float32)


tall = partial(array, "tall.zarr", (300_000, 500), (4000, 500))
square = partial(array, "square.zarr", (8000, 6000), (1000, 6000))
wide = partial(array, "wide.zarr", (1500, 40_000), (1500, 1000))


# -- benchmarks -----------------------------------------------------------------------


def pca(solver: str, x: Any, **more: Any) -> Any:
    """A fit with progress off."""
    return sp.PCA(10, svd_solver=solver, progress=False, **more).fit(x)


def written(x: Any) -> None:
    """Scores in a Zarr array."""
    with tempfile.TemporaryDirectory() as folder:
        _MODEL[0].transform(x, out=f"{folder}/scores.zarr")


_MODEL: list[Any] = []

CASES: dict[str, tuple[Data, Work]] = {
    "genotypes, gram": (
        genotypes, lambda x: sp.GenotypePCA(10, components=False, progress=False).fit(x)),
    "tall, scatter": (tall, lambda x: pca("scatter", x)),
    "tall, tsqr": (tall, lambda x: pca("tsqr", x)),
    "wide, gram": (wide, lambda x: pca("gram", x, components=False)),
    "square, krylov": (square, lambda x: pca("randomized", x, max_passes=3)),
    "sparse, krylov": (entries, lambda x: pca("randomized", x, max_passes=3)),
    "hard impute": (
        holed, lambda x: sp.HardImpute(5, max_passes=5, progress=False).fit(x)),
    "scores in Zarr": (tall, written),
    "pruning": (
        genotypes, lambda x: sp.prune_ld(x, window=50, step=5, missing_value=-1, progress=False)),
}  # fmt: skip


# -- one run, in a process of its own -------------------------------------------------


def timers() -> Counter[str]:
    """CPU seconds of one thread in passes, in merging, and in what solvers divide, from now on."""
    found: Counter[str] = Counter()
    inside: list[str] = []

    def watch(owner: Any, name: str, label: str) -> None:
        plain = getattr(owner, name)

        def watched(*args: Any, **named: Any) -> Any:
            outermost = not inside or (label != "divided" and label not in inside)
            inside.append(label)
            begun = time.process_time()
            try:
                return plain(*args, **named)
            finally:
                inside.pop()
                found[label] += (time.process_time() - begun) * outermost

        setattr(owner, name, watched)

    watch(import_module("streampca.passes.run"), "run_on_lanes", "passes")
    watch(fold.Fold, "take", "merging")
    for owner in (band, blas):
        watch(owner, "each", "divided")
    return found


def one_run(name: str, threads: int, path: str) -> dict[str, Any]:
    """Seconds, and the part of them that is serial."""
    import warnings

    warnings.simplefilter("ignore")
    folder = Path(path)
    data, work = CASES[name]
    x = data(folder)
    with limited_threads(threads), tempfile.TemporaryDirectory() as small:
        if name == "scores in Zarr":
            _MODEL.append(pca("scatter", x))
        work(_warm(x, Path(small)))  # what is loaded and compiled at first
        found, begun, used = timers(), time.perf_counter(), time.process_time()
        work(x)
        cpu, seconds = time.process_time() - used, time.perf_counter() - begun
    parallel = found["passes"] - found["merging"] + found["divided"]
    return {"seconds": seconds, "cpu": cpu, "serial": 1 - parallel / cpu}


def _warm(x: Any, folder: Path) -> Any:
    """The first rows and columns of the same kind."""
    if not isinstance(x, str):
        return x[:500]
    source = zarr.open_array(x, mode="r")
    columns = 500 if source.shape[1] > 10_000 else source.shape[1]
    part = source[:1500, :columns]
    zarr.create_array(str(folder / "small.zarr"), data=part)
    return str(folder / "small.zarr")


# -- the table ------------------------------------------------------------------------


def predicted(one: float, serial: float, efficiency: float, cores: int) -> tuple[float, float]:
    """Seconds on so many cores: by the serial part, and with what the second thread lost."""
    lost = max(serial, 2 / (2 * min(efficiency, 1.0)) - 1)  # 1 / S = f + (1 - f) / 2
    return one * (serial + (1 - serial) / cores), one * (lost + (1 - lost) / cores)


def best(name: str, threads: int, folder: Path, runs: int) -> dict[str, Any]:
    """The fastest of a few fresh processes."""
    rows = [
        measure("tests.benchmarks.cores", f"{name}@{threads}", str(folder)) for _ in range(runs)
    ]
    failed = [row for row in rows if "error" in row]
    if failed:
        return failed[0]
    found = min(rows, key=lambda row: row["seconds"])
    least = min(rows, key=lambda row: row["cpu"])
    return found | {"cpu": least["cpu"], "serial": least["serial"]}


def line(name: str, rows: dict[int, dict[str, Any]]) -> str:
    """One line of the table."""
    for row in rows.values():
        if "error" in row:
            return f"{name:<18} not run: {row['error']}"
    one, two = rows[1]["seconds"], rows[2]["seconds"]
    serial, efficiency = rows[1].get("serial", 0.0), one / (2 * two)
    text = f"{name:<18}{one:>8.2f}{two:>8.2f}{efficiency:>7.2f}"
    if "cpu" in rows[1]:
        least, most = rows[1]["cpu"], rows[2]["cpu"]
        kept = least / (serial * least + most)  # s + (cpu - s) / 2 seconds on two idle cores
        text += f"{kept:>9.2f}{100 * serial:>8.1f}%"
    for cores in PREDICTED:
        low, high = predicted(one, serial, efficiency, cores)
        text += f"{f'{low:.2f}-{high:.2f}':>14}"
    for threads in sorted(set(rows) - {1, 2}):
        text += f"  {threads}: {rows[threads]['seconds']:.2f}"
    below = [f"efficiency below {GOAL}"] if efficiency < GOAL else []
    below += [f"serial part above {SERIAL:.1%}"] if serial > SERIAL else []
    return text + ("  " + ", ".join(below) if below else "")


def beside(folder: Path, threads: tuple[int, ...]) -> str:
    """The same genotypes by plink2."""
    if shutil.which("plink2") is None:
        return "plink2 --pca       not run: plink2 is not there (apt-get install plink2)"
    rows: dict[int, dict[str, Any]] = {}
    for count in threads:
        command = plink(folder, "meanimpute")
        command[command.index("--threads") + 1] = str(count)
        rows[count] = timed(command, 1800)
    return line("plink2 --pca", rows)


def main() -> None:
    """Run all, or those named."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--child", nargs=2, help=argparse.SUPPRESS)
    parser.add_argument("--only", nargs="*", choices=list(CASES))
    parser.add_argument("--threads", nargs="*", type=int, default=[], help="beside 1 and 2")
    parser.add_argument("--runs", type=int, default=3, help="fresh processes, of which the fastest")
    parser.add_argument("--folder", help="keep the data here, and use them again")
    arguments = parser.parse_args()
    if arguments.child:
        name, threads = arguments.child[0].split("@")
        child(partial(one_run, name, int(threads)), arguments.child[1])
        return
    threads = tuple(sorted({1, 2, *arguments.threads}))
    head = f"{'':<18}{'1':>8}{'2':>8}{'eff.':>7}{'by CPU':>9}{'serial':>9}"
    print(head + "".join(f"{f'{cores} cores':>14}" for cores in PREDICTED), flush=True)
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(arguments.folder or temporary)
        folder.mkdir(parents=True, exist_ok=True)
        for name in arguments.only or CASES:
            CASES[name][0](folder)
            rows = {count: best(name, count, folder, arguments.runs) for count in threads}
            print(line(name, rows), flush=True)
        print(beside(folder, threads))


if __name__ == "__main__":
    sys.exit(main())
