"""The limit: read every block and update a symmetric product, nothing else."""

from __future__ import annotations

import itertools
import threading
import time
from collections import deque
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import scipy.linalg.cython_blas  # noqa: F401  a limit of threads holds for a BLAS that is loaded
from threadpoolctl import threadpool_limits

from streampca.kernels import rank_k_update

SETTINGS = list(itertools.product((1, 2), (1, 2), (1, 2)))  # lanes, blocks ahead, BLAS threads


def bare_loop(
    matrix: Any, axis: int, edges: Any, size: int, lanes: int, ahead: int, blas: int
) -> float:
    """Seconds to read all blocks along axis and add their products: float32, no centring."""
    starts = iter(range(len(edges) - 1))
    lock = threading.Lock()

    def read(i: int, buffer: Any) -> Any:
        return matrix.read(axis, int(edges[i]), int(edges[i + 1]), buffer), buffer

    def lane() -> None:
        total = np.zeros((size, size), np.float32)
        longest = int(np.diff(edges).max()) * matrix.shape[1 - axis] * matrix.dtype.itemsize
        free = [np.empty(longest, np.uint8) for _ in range(ahead + 1)]
        cast = np.empty(longest // matrix.dtype.itemsize, np.float32)
        waiting: deque[Any] = deque()
        with ThreadPoolExecutor(ahead) as pool:

            def fill() -> None:
                while len(waiting) < ahead:
                    with lock:
                        i = next(starts, None)
                    if i is None:
                        return
                    waiting.append(pool.submit(read, i, free.pop()))

            fill()
            while waiting:
                block, buffer = waiting.popleft().result()
                fill()
                if block.dtype != np.float32:
                    single = cast[: block.size].reshape(block.shape)
                    np.copyto(single, block)
                    block = single
                rank_k_update(total, block, rows=axis == 0)
                free.append(buffer)

    threads = [threading.Thread(target=lane) for _ in range(lanes)]
    with threadpool_limits(blas, user_api="blas"):
        begun = time.perf_counter()
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        return time.perf_counter() - begun


def best_bare_loop(matrix: Any, axis: int, edges: Any, size: int) -> tuple[float, str]:
    """The fastest of all settings of lanes, readers and BLAS threads."""
    timed = [
        (bare_loop(matrix, axis, edges, size, *setting), setting)
        for setting in SETTINGS
        if setting[0] * setting[2] <= 2
        for _ in range(2)
    ]
    seconds, (lanes, ahead, blas) = min(timed)
    return seconds, f"{lanes} lanes, {ahead} ahead, {blas} BLAS threads"
