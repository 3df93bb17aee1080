"""What further cores gain: ``python -m tests.benchmarks.cores``.

Each benchmark runs in fresh processes with one thread and with two. Efficiency is the time of one
over twice that of two. The serial part is measured by timers in the run with one thread: all that
is neither in a pass, outside the merging of its spans, nor in a piece that a solver divides. From
both come the seconds that 4, 16 and 64 cores should take: by the serial part alone (Amdahl), and
with what the second thread lost beside it, which more threads lose as well (Karp and Flatt). The
serial part and the efficiency "by CPU" are of CPU seconds: what two idle cores would take, where
others keep the machine busy.

"Machine" is what the machine itself leaves to its second core: the same process with one thread,
alone, over its time beside a copy of itself, which shares nothing with it but memory and caches. No
threads do better; the goal for the efficiency is taken of it.
``--threads`` measures other numbers on a machine that has them. plink2 runs beside, where it is
installed.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np
import scipy.sparse
import zarr

import streampca as sp
from streampca.kernels import band, blas
from streampca.passes import execution, limited_threads
from streampca.sources.genotypes.simulate import GenotypeRecipe
from tests.benchmarks.genotypes import absent, plink, timed, write
from tests.benchmarks.measure import child, measure, record, recordable

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
        for start in range(0, shape[0], chunks[0]):
            rows = min(chunks[0], shape[0] - start)
            scores = rng.standard_normal((rows, 8), dtype=np.float32) * 0.7 ** np.arange(8)
            noise = rng.standard_normal((rows, shape[1]), dtype=np.float32)
            made[start : start + rows] = (3 * scores.astype("f4") @ across + noise).round(1)
    return str(path)


def genotypes(folder: Path) -> str:
    """The path of 3192 x 60,000 calls, as .bed too."""
    if not (folder / "x.fam").exists():
        write(folder, GenotypeRecipe(3192, 60_000))
    return str(folder / "x.zarr")


def entries(folder: Path) -> Any:
    """400,000 x 5000, a fiftieth of its cells stored."""
    rng = np.random.default_rng(1)
    part = scipy.sparse.random(50_000, 5000, 0.02, "csr", np.float32, rng)
    return scipy.sparse.vstack([part] * 8, "csr")


def holed(folder: Path) -> Any:
    """40,000 x 1000 of rank 8 and noise, a third of its cells missing."""
    rng = np.random.default_rng(2)
    x = rng.standard_normal((40_000, 8)) @ rng.standard_normal((8, 1000))
    x += 0.1 * rng.standard_normal(x.shape)
    x[rng.random(x.shape) < 0.3] = np.nan
    return x.astype(np.float32)


tall = partial(array, "tall.zarr", (1_000_000, 500), (4000, 500))
square = partial(array, "square.zarr", (24_000, 6000), (1000, 6000))
wide = partial(array, "wide.zarr", (1500, 160_000), (1500, 1000))


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
        genotypes,
        lambda x: sp.GenotypePCA(10, components=False, progress=False).fit(x),
    ),
    "tall, scatter": (tall, lambda x: pca("scatter", x)),
    "tall, tsqr": (tall, lambda x: pca("tsqr", x)),
    "wide, gram": (wide, lambda x: pca("gram", x, components=False)),
    "square, krylov": (square, lambda x: pca("randomized", x, max_passes=3)),
    "sparse, krylov": (entries, lambda x: pca("randomized", x, max_passes=3)),
    "hard impute": (holed, lambda x: sp.HardImpute(5, max_passes=5, progress=False).fit(x)),
    "scores in Zarr": (tall, written),
    "pruning": (
        genotypes,
        lambda x: sp.prune_ld(x, window=50, step=5, missing_value=-1, progress=False),
    ),
}


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

    watch(import_module("streampca.passes.execute"), "run_on_lanes", "passes")
    watch(execution.Fold, "take", "merging")
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
    with limited_threads(threads):
        if name == "scores in Zarr":
            _MODEL.append(pca("scatter", x))
        work(x)  # what is loaded and compiled at first
        found, begun, used = timers(), time.perf_counter(), time.process_time()
        work(x)
        cpu, seconds = time.process_time() - used, time.perf_counter() - begun
    parallel = found["passes"] - found["merging"] + found["divided"]
    return {"seconds": seconds, "cpu": cpu, "serial": 1 - parallel / cpu}


# -- the table ------------------------------------------------------------------------


def predicted(one: float, serial: float, efficiency: float, cores: int) -> tuple[float, float]:
    """Seconds on so many cores: by the serial part, and with what the second thread lost."""
    lost = max(serial, 2 / (2 * min(efficiency, 1.0)) - 1)  # 1 / S = f + (1 - f) / 2
    return one * (serial + (1 - serial) / cores), one * (lost + (1 - lost) / cores)


def one_process(name: str, threads: int, folder: Path) -> dict[str, Any]:
    """One fresh process."""
    return measure("tests.benchmarks.cores", f"{name}@{threads}", str(folder))


def best(name: str, threads: int, folder: Path, runs: int) -> dict[str, Any]:
    """The fastest of a few fresh processes."""
    rows = [one_process(name, threads, folder) for _ in range(runs)]
    failed = [row for row in rows if "error" in row]
    if failed:
        return failed[0]
    found = min(rows, key=lambda row: row["seconds"])
    least = min(rows, key=lambda row: row["cpu"])
    return found | {"cpu": least["cpu"], "serial": least["serial"]}


def beside_itself(name: str, folder: Path, runs: int) -> float:
    """Seconds of one of two processes at once, each with one thread: the fastest pair."""
    pairs = []
    for _ in range(runs):
        with ThreadPoolExecutor(2) as pool:
            rows = pool.map(lambda _: one_process(name, 1, folder), range(2))
            pairs.append(sum(row["seconds"] for row in rows) / 2)
    return min(pairs)


def row_of(name: str, rows: dict[int, dict[str, Any]], twice: float | None) -> dict[str, Any]:
    """What the table says of a benchmark.  twice : seconds beside a copy of itself."""
    for row in rows.values():
        if "error" in row:
            return {"name": name, "error": row["error"]}
    one, two = rows[1], rows[2]
    made = {"name": name, "efficiency": one["seconds"] / (2 * two["seconds"])}
    made |= {f"seconds_{count}": row["seconds"] for count, row in rows.items()}
    if twice is not None:
        serial = one["serial"]
        made |= {"serial": serial, "machine": one["seconds"] / twice}
        # s + (cpu - s) / 2 seconds on two idle cores
        made["by_cpu"] = one["cpu"] / (serial * one["cpu"] + two["cpu"])
    for cores in PREDICTED:
        low, high = predicted(one["seconds"], made.get("serial", 0.0), made["efficiency"], cores)
        made |= {f"least_{cores}": low, f"most_{cores}": high}
    return made


def line(row: dict[str, Any]) -> str:
    """One line of the table."""
    if "error" in row:
        return f"{row['name']:<18} not run: {row['error']}"
    text = f"{row['name']:<18}{row['seconds_1']:>8.2f}{row['seconds_2']:>8.2f}"
    text += f"{row['efficiency']:>7.2f}"
    if "serial" in row:
        text += f"{row['machine']:>9.2f}{row['by_cpu']:>8.2f}{100 * row['serial']:>8.1f}%"
    for cores in PREDICTED:
        text += f"{row[f'least_{cores}']:>9.2f}-{row[f'most_{cores}']:.2f}"
    reached = row["efficiency"] / row.get("machine", 1.0)
    below = [f"{reached:.2f} of the machine's"] if reached < GOAL else []
    below += [f"serial part above {SERIAL:.1%}"] if row.get("serial", 0.0) > SERIAL else []
    return text + ("  " + ", ".join(below) if below else "")


def beside(folder: Path, threads: tuple[int, ...]) -> dict[str, Any]:
    """The same genotypes by plink2."""
    if missing := absent("plink2 --pca", "plink2"):
        return {"name": "plink2 --pca", **missing}
    rows: dict[int, dict[str, Any]] = {}
    for count in threads:
        command = plink(folder, "meanimpute")
        command[command.index("--threads") + 1] = str(count)
        rows[count] = timed(command, 1800)
    return row_of("plink2 --pca", rows, None)


def main() -> None:
    """Run all, or those named."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--child", nargs=2, help=argparse.SUPPRESS)
    parser.add_argument("--only", nargs="*", choices=list(CASES))
    parser.add_argument("--threads", nargs="*", type=int, default=[], help="beside 1 and 2")
    parser.add_argument("--runs", type=int, default=3, help="fresh processes, of which the fastest")
    recordable(parser, __file__)
    parser.add_argument("--folder", help="keep the data here, and use them again")
    arguments = parser.parse_args()
    if arguments.child:
        name, threads = arguments.child[0].split("@")
        child(partial(one_run, name, int(threads)), arguments.child[1])
        return
    threads = tuple(sorted({1, 2, *arguments.threads}))
    head = f"{'':<18}{'1':>8}{'2':>8}{'eff.':>7}{'machine':>9}{'by CPU':>8}{'serial':>9}"
    print(head + "".join(f"{f'{cores} cores':>14}" for cores in PREDICTED), flush=True)
    table = []
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(arguments.folder or temporary)
        folder.mkdir(parents=True, exist_ok=True)
        for name in arguments.only or CASES:
            CASES[name][0](folder)
            rows = {count: best(name, count, folder, arguments.runs) for count in threads}
            table.append(row_of(name, rows, beside_itself(name, folder, arguments.runs)))
            print(line(table[-1]), flush=True)
        if not arguments.only:
            table.append(beside(folder, threads))
            print(line(table[-1]))
    record(arguments.record, table, "plink2")


if __name__ == "__main__":
    sys.exit(main())
