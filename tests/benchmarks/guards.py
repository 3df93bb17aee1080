"""What safety costs a pass: the guard of the source, its ledger, and checkpoints.

    python -m tests.benchmarks.guards --folder /fast/disk [--rows 500000]

The same fit four ways, in turn, the median of each: bare (nothing is counted or checked), guarded
(every read is counted and must be there), with a ledger (the checksum of every chunk, two listings
of all), and with checkpoints. Of each the time, and the processor time of all threads: on a machine
that others use only the second can be compared. Then one checkpoint, beside the interval.
"""

from __future__ import annotations

import argparse
import shutil
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import streampca
from streampca.sources.zarr.ledger import LedgerSource
from streampca.sources.zarr.stores import GuardedStore
from streampca.store import write_bundle
from tests.benchmarks.refresh import made
from tests.passes.pass_matrices import by_hand


def fit(path: str, **more: Any) -> Any:
    return streampca.IncrementalPCA(10, **more).fit(path)


def bare(path: str, folder: Path) -> None:
    note = GuardedStore.note
    GuardedStore.note = lambda *_: None  # type: ignore[assignment, method-assign]
    try:
        fit(path)
    finally:
        GuardedStore.note = note  # type: ignore[method-assign]


def guarded(path: str, folder: Path) -> None:
    fit(path)


def with_ledger(path: str, folder: Path) -> None:
    matrix = streampca.open(path)
    source = LedgerSource.of(matrix)
    assert source is not None
    source.keep_checksums()
    seen = source.look()
    fit(matrix)  # type: ignore[arg-type]
    source.make(matrix.shape[0], seen)


def with_checkpoints(path: str, folder: Path) -> None:
    fit(path, checkpoint=str(folder / "checkpoint"))


WAYS: dict[str, Callable[[str, Path], None]] = {
    "bare": bare,
    "guarded": guarded,
    "guarded, with a ledger": with_ledger,
    "guarded, with checkpoints": with_checkpoints,
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--folder")
    parser.add_argument("--rows", type=int, default=500_000)
    parser.add_argument("--trials", type=int, default=7)
    arguments = parser.parse_args()
    folder = Path(tempfile.mkdtemp(dir=arguments.folder))
    try:
        measure(folder, arguments.rows, arguments.trials)
    finally:
        shutil.rmtree(folder)


def measure(folder: Path, rows: int, trials: int) -> None:
    path = str(folder / "x.zarr")
    made(path, rows, "f4")
    seconds: dict[str, list[float]] = {name: [] for name in WAYS}
    processor: dict[str, list[float]] = {name: [] for name in WAYS}
    guarded(path, folder)  # the files are read once, and all is imported
    for trial in range(trials):
        names = list(WAYS)
        for name in names[trial % len(names) :] + names[: trial % len(names)]:
            begun, used = time.perf_counter(), time.process_time()
            WAYS[name](path, folder)
            seconds[name].append(time.perf_counter() - begun)
            processor[name].append(time.process_time() - used)
    for name in WAYS:
        told = []
        for times in (seconds, processor):
            one, base = (statistics.median(times[which]) for which in (name, "bare"))
            spread = f"{min(times[name]):.2f} to {max(times[name]):.2f}"
            told.append(f"{one:6.2f} s ({spread}) {one / base - 1:+7.2%}")
        print(f"{name:28} {told[0]}   processor {told[1]}")
    state = fit(path).state_to_saved()
    writes = []
    for _ in range(trials):
        begun = time.perf_counter()
        write_bundle(folder / "bundle", *state)
        writes.append(time.perf_counter() - begun)
    write, every = statistics.median(writes), by_hand().every
    print(f"one checkpoint {write * 1e3:.0f} ms, every {every:g} s: {write / every:.2%} of a pass")


if __name__ == "__main__":
    main()
