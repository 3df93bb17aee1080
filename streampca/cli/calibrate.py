"""``streampca calibrate``: measure the speeds of this machine, for ``--rates``."""

from __future__ import annotations

import argparse
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import scipy

from streampca.accumulators import RFactor, Scatter, SubspaceStep
from streampca.cli.commands import Parser
from streampca.cli.options import print_answer
from streampca.cli.terminal import announce, shown
from streampca.kernels import Array
from streampca.matrix import Block
from streampca.matrix.labels import json_of
from streampca.passes import Rates, all_threads, limited_threads, single_threaded_blas, thread_count
from streampca.solvers import eigh_lower
from streampca.sources import as_matrix
from streampca.store import ZarrSink
from streampca.store.bundle import whole_file


def add_options(parsers: Mapping[str, Parser], argv: Sequence[str]) -> None:
    """Add the options of the command."""
    parser = parsers["calibrate"]
    parser.add_argument(
        "--threads", type=int, metavar="N", help="default: as many as a fit uses, and one alone"
    )
    parser.add_argument("-o", "--output", metavar="FILE", help="JSON file (default: print it)")
    parser.set_defaults(run=_calibrate, limited=limited_threads)


def _calibrate(arguments: argparse.Namespace) -> int:
    threads = thread_count()
    found = calibrate(threads)
    text = json_of(found.to_dict(), indent=1)
    if threads > 1:
        announce(_gain(calibrate(1), found, threads), head="")
    if arguments.output is None:
        print(text)
        return 0
    with whole_file(arguments.output) as file:
        file.write(f"{text}\n".encode())
    place = shown(arguments.output)
    print_answer(arguments, {"output": place}, f"{place}: use it with --rates {place}")
    return 0


def _gain(one: Rates, found: Rates, threads: int) -> str:
    """What all threads reach of as many times one."""
    shares = (
        f"{name} {value / one.to_dict()[name] / threads:.0%}"
        for name, value in found.to_dict().items()
        if name != "double"
    )
    return f"{threads} threads, of {threads} times the speed of one: {', '.join(shares)}"


# The measurements.

ROWS, COLUMNS, WIDTH = 4096, 1024, 32
REPEATS = 5


def calibrate(threads: int) -> Rates:
    """Rates of this machine with so many threads, each the median of a few runs.

    Cost: about ten seconds, 0.2 GB of memory and 0.1 for each thread, 16 MiB of temporary disk.
    """
    rng = np.random.default_rng(0)
    single = rng.standard_normal((ROWS, COLUMNS), dtype=np.float32)
    cells = float(single.size)
    with single_threaded_blas(), ThreadPoolExecutor(threads) as pool:

        def once(work: Callable[[], Any]) -> float:
            """Median seconds of ``work`` while all threads do the same."""
            work()
            return _median(lambda: list(pool.map(lambda _: work(), range(threads))))

        tiles = once(lambda: _tiles(single))
        update = once(lambda: Scatter(center=False).update(_block(single))) - tiles
        double = single.astype(np.float64)
        slow = once(lambda: Scatter(center=False).update(_block(double))) - once(
            lambda: _tiles(double)
        )
        step = once(lambda: _step(_block(single))) - tiles
        factor = once(lambda: RFactor(center=False).update(_block(double)))
        sparse = scipy.sparse.random_array(
            (ROWS, 4 * COLUMNS), density=0.05, format="csr", rng=rng, dtype=np.float32
        )
        stored = once(lambda: _step(_block(sparse)))
        read = _read(single, once)
    with limited_threads(threads), all_threads():
        dense = _alone(lambda: eigh_lower(_symmetric(COLUMNS), 20))
    of_thread = {
        "read": cells * 4 / read,
        "cells": cells / tiles,
        "update": cells * COLUMNS / max(update, 1e-6),
        "skinny": 4.0 * cells * WIDTH / max(step, 1e-6),
        "factor": 2.0 * cells * COLUMNS / factor,
        "stored": 4.0 * sparse.nnz * WIDTH / stored,
    }
    found = {name: threads * value for name, value in of_thread.items()}
    found["double"] = min(1.0, max(update, 1e-6) / max(slow, 1e-6))
    found["factor"] /= found["double"]  # QR is always float64
    found["dense"] = 4 / 3 * COLUMNS**3 / dense
    return Rates(**{name: float(f"{value:.2g}") for name, value in found.items()})


def _block(values: Any) -> Block:
    m = values.shape[1]
    q = np.ones((m, WIDTH), np.float64 if scipy.sparse.issparse(values) else values.dtype)
    return Block(values, 0, 0, values.shape[0], arrays={"q": q, "center": np.zeros(m)}, scratch={})


def _tiles(values: Array) -> None:
    center = np.ones(values.shape[1])
    for _ in _block(values).tiles(values.dtype, center=center):
        pass


def _step(block: Block) -> None:
    SubspaceStep(streamed=0, width=WIDTH).update(block)


def _symmetric(m: int) -> Array:
    z = np.random.default_rng(1).standard_normal((m, m))
    return np.asarray(z @ z.T)


def _read(values: Array, once: Callable[[Callable[[], Any]], float]) -> float:
    """Seconds of one thread to read and decode a store of such values."""
    with tempfile.TemporaryDirectory() as folder:
        path = str(Path(folder) / "x.zarr")
        whole = np.round(values, 1)  # compressible like measurements
        sink = ZarrSink(path, ROWS, COLUMNS, np.float32, chunk=ROWS // 8)
        sink.write(0, whole)
        sink.finish()
        matrix = as_matrix(path)
        return once(lambda: [matrix.read(0, i, i + ROWS // 8) for i in range(0, ROWS, ROWS // 8)])


def _alone(work: Callable[[], Any]) -> float:
    work()
    return _median(work)


def _median(work: Callable[[], Any]) -> float:
    seconds = []
    for _ in range(REPEATS):
        begun = time.perf_counter()
        work()
        seconds.append(time.perf_counter() - begun)
    return float(np.median(seconds))
