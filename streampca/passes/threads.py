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
_known: tuple[int, list[Any]] | None = None  # (modules imported when looked, what was found)


@contextmanager
def single_threaded_blas() -> Iterator[None]:
    """One BLAS thread while inside, for the whole process; nests, and is safe across threads.

    Parallelism comes from lanes. Skinny products, QR and eigh are not bit-equal on different
    thread counts, so nothing here runs on more than one.
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
    """The BLAS libraries of this process, looked for again only after something was imported:
    the look takes as long as a small decomposition."""
    global _known
    imported = len(sys.modules)
    if _known is None or _known[0] != imported:
        found = threadpoolctl.ThreadpoolController().select(user_api="blas")
        _known = (imported, found.lib_controllers)
    return _known[1]


def _set(counts: list[tuple[Any, int]]) -> None:
    """Set thread counts, from whichever thread this is.

    From 3.8 on threadpoolctl lets one thread at a time change OpenBLAS, the first that asked,
    and ignores all others without a word: a task of a Dask worker, or the last lane to leave,
    would change nothing. So the right to change is taken before and given up after.
    """
    openblas = getattr(threadpoolctl, "OpenBLASController", None)
    release = getattr(openblas, "clear_controlling_thread", lambda force: None)
    release(force=True)
    for library, count in counts:
        library.set_num_threads(count)
    release(force=True)
