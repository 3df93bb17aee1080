"""The one place that sets BLAS thread counts."""

from __future__ import annotations

import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import threadpoolctl

_lock = threading.Lock()
_depth = 0
_before: list[tuple[Any, int]] = []
_known: tuple[int, list[Any]] | None = None  # (number of imported modules then, libraries)


@contextmanager
def single_threaded_blas() -> Iterator[None]:
    """One BLAS thread inside the context, in the whole process. Nests, and is thread-safe.

    Parallelism comes from lanes. Skinny products, QR and eigh differ in their bits between numbers
    of threads, so nothing here uses more than one.
    """
    global _depth, _before
    with _lock:
        if _depth == 0:
            _before = [(library, library.num_threads) for library in _libraries()]
            _set([(library, 1) for library, _ in _before])
        _depth += 1
    try:
        yield
    finally:
        with _lock:
            _depth -= 1
            if _depth == 0:
                _set(_before)
                _before = []


def _libraries() -> list[Any]:
    """The BLAS libraries of this process.

    Searching takes as long as a small decomposition, so it is repeated only after an import.
    """
    global _known
    imported = len(sys.modules)
    if _known is None or _known[0] != imported:
        found = threadpoolctl.ThreadpoolController().select(user_api="blas")
        _known = (imported, found.lib_controllers)
    return _known[1]


def _set(counts: list[tuple[Any, int]]) -> None:
    """Set thread counts, from any thread.

    Since 3.8 threadpoolctl lets only the first thread that asked change OpenBLAS, and silently
    ignores all others: a task of a Dask worker, or the last lane to finish, would change nothing.
    So the controlling thread is cleared before and after.
    """
    openblas = getattr(threadpoolctl, "OpenBLASController", None)
    release = getattr(openblas, "clear_controlling_thread", lambda force: None)
    release(force=True)
    for library, count in counts:
        library.set_num_threads(count)
    release(force=True)
