"""The one place that sets BLAS thread counts."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager

from threadpoolctl import ThreadpoolController

_lock = threading.Lock()
_depth = 0
_limiter: object | None = None


@contextmanager
def single_threaded_blas() -> Iterator[None]:
    """One BLAS thread while inside, for the whole process; nests, and is safe across threads.

    Parallelism comes from lanes. Skinny products, QR and eigh are not bit-equal on different
    thread counts, so nothing here runs on more than one.
    """
    global _depth, _limiter
    with _lock:
        if _depth == 0:
            _limiter = ThreadpoolController().limit(limits=1, user_api="blas")
        _depth += 1
    try:
        yield
    finally:
        with _lock:
            _depth -= 1
            if _depth == 0 and _limiter is not None:
                _limiter.restore_original_limits()  # type: ignore[attr-defined]
                _limiter = None
