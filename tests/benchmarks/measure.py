"""Run one candidate in a fresh process and report wall time, peak memory and its answer."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np


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
) -> dict[str, Any]:
    """Median of several fresh processes of ``python -m module --child name path``."""
    found: list[dict[str, Any]] = []
    for _ in range(runs):
        done = subprocess.run(
            [python, "-m", module, "--child", name, path],
            capture_output=True,
            text=True,
            timeout=timeout,
            env={**os.environ, "PYTHONWARNINGS": "ignore"},
            check=False,
        )
        line = next((x for x in done.stdout.splitlines() if x.startswith("RESULT ")), None)
        if line is None:
            last = (done.stderr.strip().splitlines() or ["no output"])[-1]
            return {"error": last[:120]}
        found.append(json.loads(line[7:]))
    found.sort(key=spent)
    middle = found[len(found) // 2]
    middle["all_seconds"] = [round(spent(one), 2) for one in found]
    return middle


def spent(row: dict[str, Any]) -> float:
    """Wall seconds, or those of processors where a candidate tells no others."""
    return float(row["seconds"] if "seconds" in row else row["cpu"])


RECORD = "keep the rows for the tables of README.md (then python -m tests.evidence --write)"


def record(script: str, rows: list[dict[str, Any]]) -> None:
    """Keep the rows of a run in a JSON beside its script, with the command, machine, day and commit
    that made them: :mod:`tests.evidence` makes the tables from it, and nobody types a figure."""
    said = lambda *words: subprocess.run(words, capture_output=True, text=True).stdout.strip()  # noqa: E731
    words = [word for word in sys.argv[1:] if word != "--record"]
    head = {
        "command": " ".join(["python -m tests.benchmarks." + Path(script).stem, *words]),
        "machine": f"{len(os.sched_getaffinity(0))} cores of {processor()}",
        "date": time.strftime("%Y-%m-%d", time.gmtime()),
        "commit": said("git", "rev-parse", "--short", "HEAD"),
    }
    kept = [{k: v for k, v in row.items() if not isinstance(v, list)} for row in rows]
    lines = ",\n".join(json.dumps(row) for row in kept)
    text = f'{json.dumps(head)[:-1]}, "rows": [\n{lines}\n]}}\n'
    Path(script).with_suffix(".json").write_text(text)


def processor() -> str:
    """What the system calls it."""
    lines = Path("/proc/cpuinfo").read_text().splitlines()
    return next((x.split(":")[1].strip() for x in lines if x.startswith("model name")), "unknown")


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
