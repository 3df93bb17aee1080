"""The parts of a fit: ``python -m tests.benchmarks.split [STORE] [--data ROW]``.

Reads of STORE (any path or URL that ``streampca.open`` takes), or the data of a row of
:mod:`tests.benchmarks.everyday`, are fitted in a fresh process with one BLAS thread. Every two
milliseconds a thread looks at the stacks of all threads, and charges the CPU time that the system
says each has used since then to the part to which its stack belongs: the outermost function that
is a part as a whole, such as planning, else the innermost that is part of one. What the process
used and no sample saw is a line of its own, as is the sampling. ``--first`` counts a process that
fits once, with its imports; otherwise a fit before it warms the process up.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import sys
import tempfile
import threading
import time
from collections import Counter
from contextlib import suppress
from functools import cache
from pathlib import Path
from types import FrameType
from typing import Any

# What a first fit has to import is imported nowhere here, but in the functions that need it.

INTERVAL = 0.002  # seconds between two looks
SWITCH = 1e-4  # seconds after which Python hands over to a thread that waits, as the sampler does
# Patterns of "path of the module:function". A stack belongs to the outermost WHOLE,
IMPORTS = "imports"  # whatever asks for them
WHOLE = {
    IMPORTS: r"importlib",
    "plan": r"passes/(candidates|plan|rates|blocks|memory)\.py|decompose/routes\.py|:_candidates$",
    "shift": r"accumulators/\w+\.py:_choose_shift",
    "merge": r"accumulators/\w+\.py:(merge|settle|_fold)|passes/execution\.py:take",
    "solve": r"streampca/solvers/|models/decompose/|kernels/band\.py",
}
# else to the innermost of these, else to "other"
INNERMOST = {
    "probes": r"kernels/columns\.py:(probe\w*|_of_runs|images|norm_estimate|mixed)$",
    "products": r"kernels/(blas|call_products|sparse|team)\.py",
    "centring and sums": r"streampca/matrix/(tiles|standardize)\.py|kernels/(columns|calls)\.py",
    "read and decode": r"streampca/(sources|matrix|store)/|/(zarr|numcodecs|h5py|pyarrow|pandas)/"
    r"|/asyncio/",
}
OTHER, UNSEEN, SAMPLING = "other", "not seen by a sample", "sampling"


# -- sampling -----------------------------------------------------------------------


@cache
def parts_of(path: str, function: str) -> tuple[str, str]:
    """(the part that a call is as a whole, the part that it belongs to), "" for none."""
    name = f"{path}:{function}"
    return tuple(  # type: ignore[return-value]
        next((part for part, pattern in table.items() if re.search(pattern, name)), "")
        for table in (WHOLE, INNERMOST)
    )


def part_of(frame: FrameType | None) -> str:
    """The part of a stack, by its innermost frame."""
    whole = innermost = ""
    while frame is not None:
        all_of, part = parts_of(frame.f_code.co_filename, frame.f_code.co_name)
        if all_of == IMPORTS:
            return IMPORTS
        whole, innermost = all_of or whole, innermost or part
        frame = frame.f_back
    return whole or innermost or OTHER


class Sampler:
    """CPU seconds of this process by part, while it is entered."""

    def __enter__(self) -> Counter[str]:
        self.parts: Counter[str] = Counter()
        self._end = threading.Event()
        self._before = used_by_threads()
        self._cpu, self._switch = time.process_time(), sys.getswitchinterval()
        sys.setswitchinterval(SWITCH)
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()
        return self.parts

    def __exit__(self, *error: object) -> None:
        self._end.set()
        self._thread.join()
        sys.setswitchinterval(self._switch)
        self.parts[UNSEEN] = max(0.0, time.process_time() - self._cpu - self.parts.total())

    def _run(self) -> None:
        begun = time.thread_time()
        while not self._end.wait(INTERVAL):
            self._look()
        self._look()
        self.parts[SAMPLING] = time.thread_time() - begun

    def _look(self) -> None:
        now, frames = used_by_threads(), sys._current_frames()
        native = {one.ident: one.native_id for one in threading.enumerate()}
        stacks = {native.get(ident): frame for ident, frame in frames.items()}
        for thread, used in now.items():
            if thread == threading.get_native_id():
                continue
            if (spent := used - self._before.get(thread, 0.0)) > 0:
                known = thread in stacks
                self.parts[part_of(stacks[thread]) if known else UNSEEN] += spent
        self._before = now


def used_by_threads() -> dict[int, float]:
    """CPU seconds of the threads that live."""
    used = {}
    for thread in os.listdir("/proc/self/task"):
        with suppress(OSError), open(f"/proc/self/task/{thread}/schedstat", "rb", 0) as file:
            used[int(thread)] = int(file.read().split()[0]) / 1e9  # else it has ended
    return used


# -- a fit --------------------------------------------------------------------------


def child(row: str, path: str, k: str, solver: str, first: str) -> None:
    """Inside the fresh process: sample a fit, and print one line of JSON.

    row : of the everyday benchmark, whose files are in the folder ``path``; "" for the store there.
    """
    data: Any = path
    if row:
        from tests.benchmarks.everyday import ROWS

        data = ROWS[row].make(Path(path), 1)

    def fit() -> Any:
        import streampca

        return streampca.PCA(int(k), svd_solver=solver, progress=False).fit(data)

    if not first:
        fit()
    cpu, begun = time.process_time(), time.perf_counter()
    with Sampler() as parts:
        model = fit()
    wall, cpu = time.perf_counter() - begun, time.process_time() - cpu
    plan = f"{model.plan_.solver}, {len(model.cost_)} passes"
    print("RESULT " + json.dumps({"seconds": wall, "cpu": cpu, "plan": plan, "parts": parts}))


def store(word: str) -> str:
    """A path that is there, or a URL."""
    if "://" not in word and not Path(word).exists():
        raise argparse.ArgumentTypeError(f"{word!r}: no such store; expected a path or a URL")
    return word


def main() -> None:
    """Fit in fresh processes, and print the parts of the middle one."""
    if sys.argv[1:2] == ["--child"]:
        child(*sys.argv[2:])
        return
    from tests.benchmarks.everyday import ROWS
    from tests.benchmarks.measure import ONE_THREAD, measure

    fits = [name for name in ROWS if not name.startswith(("calls", "tall-first"))]
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("store", nargs="?", type=store, metavar="STORE")
    parser.add_argument("--data", choices=fits, default=fits[0], help="where there is no STORE")
    parser.add_argument("-k", "--components", type=int, default=20)
    parser.add_argument("--solver", default="auto")
    parser.add_argument("--first", action="store_true", help="count imports and the first calls")
    parser.add_argument("--runs", type=int, default=3, help="fresh processes")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        row, path = "", arguments.store
        if path is None:
            row, path = arguments.data, folder
            made = ROWS[row].make(Path(folder), 1)
            if isinstance(made, str):  # a file: whoever fits needs not know what wrote it
                row, path = "", made
            del made
        first = "first" * arguments.first
        done = measure(
            __spec__.name,
            row,
            path,
            arguments.runs,
            environment=ONE_THREAD,
            more=(str(arguments.components), arguments.solver, first),
        )
    if "error" in done:
        sys.exit(done["error"])
    print(f"{arguments.store or arguments.data}: {done['plan']}; {done['seconds']:.2f} s wall")
    parts = done["parts"]
    cost = done["cpu"] - parts.pop(SAMPLING)
    for part, cpu in sorted(parts.items(), key=lambda one: -one[1]):
        print(f"{part:<24}{cpu:8.3f} s{cpu / cost:8.1%}")
    print(f"{'all, without sampling':<24}{cost:8.3f} s of CPU")


if __name__ == "__main__":
    main()
