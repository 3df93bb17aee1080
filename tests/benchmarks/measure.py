"""Run one candidate in a fresh process and report wall time, peak memory and its answer."""

from __future__ import annotations

import json
import math
import os
import platform
import re
import resource
import shlex
import shutil
import statistics
import subprocess
import sys
import time
from argparse import ArgumentParser
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import numpy as np

# A waiting BLAS thread spins, which is charged to whoever runs beside others on a busy machine.
ONE_THREAD = {f"{name}_NUM_THREADS": "1" for name in ("OPENBLAS", "MKL", "BLIS")}
TURN = 0.05  # CPU seconds that a turn of short calls takes


def peak_mb() -> float:
    """Largest resident memory of this process so far, MB."""
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith("VmHWM:"):
            return int(line.split()[1]) * 1024 / 1e6
    return float("nan")


def child(function: Callable[..., dict[str, Any]], path: str) -> None:
    """Inside the fresh process: run, and print one line of JSON."""
    base = peak_mb()
    begun = time.perf_counter()
    answer = function(path)
    answer.setdefault("seconds", time.perf_counter() - begun)
    answer |= {"peak_mb": peak_mb(), "base_mb": base}
    print("RESULT " + json.dumps(answer))


def measure(
    module: str,
    name: str,
    path: str,
    runs: int = 1,
    timeout: float = 1800,
    python: str = sys.executable,
    environment: Mapping[str, str] | None = None,
    more: Sequence[str] = (),
) -> dict[str, Any]:
    """Median of several fresh processes of ``python -m module --child name path``.

    environment : variables that they have besides ours.  more : words that follow.
    """
    found: list[dict[str, Any]] = []
    for _ in range(runs):
        try:
            done = subprocess.run(
                [python, "-m", module, "--child", name, path, *more],
                capture_output=True,
                text=True,
                timeout=timeout,
                env={**os.environ, "PYTHONWARNINGS": "ignore", **(environment or {})},
                check=False,
            )
        except subprocess.TimeoutExpired:
            return {"error": f"took more than {timeout:g} s"}
        line = next((x for x in done.stdout.splitlines() if x.startswith("RESULT ")), None)
        if line is None:
            last = (done.stderr.strip().splitlines() or ["no output"])[-1]
            return {"error": last[:120]}
        found.append(json.loads(line[7:]))
    found.sort(key=spent)
    middle = found[len(found) // 2]
    middle["all_seconds"] = [round(spent(one), 2) for one in found]
    return middle


def cpu_seconds() -> float:
    """User and system time of this process, its threads and its ended children so far."""
    used = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return sum(one.ru_utime + one.ru_stime for one in used)


def in_turns(
    calls: Mapping[str, Callable[[], Any]], budget: float, most: int = 7
) -> dict[str, dict[str, Any]]:
    """Median CPU and wall seconds of calls that are made in turns, in this process.

    budget : CPU seconds after which no turn begins; each call has one turn at least. A turn repeats
        a short call; the first turn of short calls says how often, and is not counted.
    Returns for each "cpu", "seconds", "turns" and "last", what it returned.
    """
    repeats = dict.fromkeys(calls, 1)
    turns: dict[str, list[tuple[float, float]]] = {name: [] for name in calls}
    last: dict[str, Any] = {}
    end = cpu_seconds() + budget
    for turn in range(most + 1):
        for name, call in calls.items():
            last.pop(name, None)
            cpu, begun = cpu_seconds(), time.perf_counter()
            for _ in range(repeats[name]):
                last[name] = call()
            taken = cpu_seconds() - cpu, time.perf_counter() - begun
            turns[name].append(tuple(one / repeats[name] for one in taken))
        if turn == 0:
            repeats = {
                name: max(1, math.ceil(TURN / max(made[0][0], 1e-6)))
                for name, made in turns.items()
            }
        if cpu_seconds() > end:
            break
    found = {}
    for name, made in turns.items():
        counted = made[1:] if repeats[name] > 1 and len(made) > 1 else made
        cpu, wall = map(statistics.median, zip(*counted, strict=True))
        found[name] = {"cpu": cpu, "seconds": wall, "turns": len(counted), "last": last[name]}
    return found


def recordable(parser: ArgumentParser, script: str) -> None:
    """Give a script the option ``--record``."""
    parser.add_argument(
        "--record",
        nargs="?",
        metavar="FILE",
        const=str(Path(script).with_suffix(".json")),
        help="keep the rows, for the tables of the page: python -m tests.evidence --write",
    )


def spent(row: dict[str, Any]) -> float:
    """Wall seconds, or those of processors where a candidate tells no others."""
    return float(row["seconds"] if "seconds" in row else row["cpu"])


def record(file: str | None, rows: list[dict[str, Any]], *peers: str) -> None:
    """Keep the rows of a run with the command, machine, day, commit and versions that made them:
    :mod:`tests.evidence` makes the tables from the file, and nobody types a figure.

    file : of ``--record``; None keeps nothing.  peers : packages whose versions are told.
    """
    if file is None:
        return
    words = [word for word in sys.argv[1:] if word not in ("--record", file)]
    changed = said("git", "status", "--porcelain", "--", "streampca", "tests/benchmarks/*.py")
    head = {
        "command": shlex.join(
            [
                "python",
                "-m",
                sys.modules["__main__"].__spec__.name.removesuffix(".__main__"),
                *words,
            ]
        ),
        "machine": f"{len(os.sched_getaffinity(0))} cores of {processor()}",
        "date": time.strftime("%Y-%m-%d", time.gmtime()),
        "commit": said("git", "rev-parse", "--short", "HEAD") + " and changes" * bool(changed),
        "versions": versions("numpy", "scipy", "zarr", *peers),
    }
    kept = [{k: v for k, v in row.items() if not isinstance(v, list)} for row in rows]
    lines = ",\n".join(json.dumps(row) for row in kept)
    Path(file).write_text(f'{json.dumps(head)[:-1]}, "rows": [\n{lines}\n]}}\n')


def versions(*names: str) -> str:
    """Those of Python and of packages and programs, where they are installed."""
    found = [f"Python {platform.python_version()}"]
    for name in names:
        with suppress(PackageNotFoundError):
            found.append(f"{name} {version(name)}")
    if "plink2" in names and shutil.which("plink2"):
        found.append(" ".join(said("plink2", "--version").split()[:2]) + f" with {plink2_blas()}")
    return ", ".join(found)


def plink2_blas() -> str:
    """The BLAS that plink2 loads: by far the most of its time is spent there."""
    linked = subprocess.run(
        ["plink2", "--version"],
        env={**os.environ, "LD_DEBUG": "libs"},
        capture_output=True,
        text=True,
        check=False,
    )
    loaded = re.findall(r"calling init: (\S+)", linked.stdout + linked.stderr)
    return blas_of([os.path.realpath(path) for path in loaded])


def blas_of(libraries: list[str]) -> str:
    """The BLAS among the files of libraries that a process loaded."""
    known = {"openblas": "OpenBLAS", "mkl": "MKL", "blis": "BLIS", "atlas": "ATLAS"}
    found = [name for word, name in known.items() if any(word in path for path in libraries)]
    if found:
        return found[0]
    return "the reference BLAS" if any("libblas" in path for path in libraries) else "its own BLAS"


def said(*words: str) -> str:
    """What a command prints."""
    return subprocess.run(words, capture_output=True, text=True, check=False).stdout.strip()


def processor() -> str:
    """What the system calls it, and its clock."""
    lines = Path("/proc/cpuinfo").read_text().splitlines()
    told = dict(reversed([x.partition(":")[::2] for x in lines if ":" in x]))
    told = {key.strip(): value.strip() for key, value in told.items()}
    clock = f" at {float(told['cpu MHz']) / 1000:.2f} GHz" if "cpu MHz" in told else ""
    return told.get("model name", "an unknown processor") + clock


def relative_error(values: Any, reference: Any) -> float:
    """Largest relative error of leading eigenvalues."""
    a, b = np.asarray(values, dtype=float), np.asarray(reference, dtype=float)
    k = min(len(a), len(b))
    return float(np.max(np.abs(a[:k] / b[:k] - 1.0)))


def table(rows: list[dict[str, Any]]) -> str:
    """Aligned text: one line per candidate, times relative to the first."""
    lines = [f"{'':<34}{'seconds':>9}{'ratio':>8}{'peak MB':>9}{'passes':>8}{'error':>10}"]
    ours = rows[0].get("seconds")
    for row in rows:
        if "error" in row and isinstance(row["error"], str):
            lines.append(f"{row['name']:<34}  not run: {row['error']}")
            continue
        error = row.get("relative_error")
        lines.append(
            f"{row['name']:<34}{row['seconds']:>9.2f}{row['seconds'] / ours:>8.2f}"
            f"{row['peak_mb']:>9.0f}{row.get('passes', '?')!s:>8}"
            + (f"{error:>10.1e}" if error is not None else f"{'':>10}")
        )
    return "\n".join(lines)
