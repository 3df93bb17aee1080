"""What a source keeps from one block to the next while a span is read."""

from __future__ import annotations

import threading
from collections.abc import Callable, Hashable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any


class SpanCache:
    """Things by owner. Every span has a new one, so that what is read depends on the plan alone.

    Threads may share it. It pickles empty.
    """

    def __init__(self) -> None:
        self._things: dict[Hashable, Any] = {}
        self._ended = False
        self._lock = threading.Lock()

    def __reduce__(self) -> Any:
        return SpanCache, ()

    def of(self, owner: Hashable, make: Callable[[], Any]) -> Any:
        """What this owner keeps; made at first."""
        with self._lock:
            if self._ended:
                return make()
            if owner not in self._things:
                self._things[owner] = make()
            return self._things[owner]

    def end(self) -> None:
        """Let go of everything, and keep nothing more: a read may still be under way."""
        with self._lock:
            self._things.clear()
            self._ended = True


_current: ContextVar[SpanCache | None] = ContextVar("streampca_span_cache", default=None)


def current_cache() -> SpanCache | None:
    """The cache of the span that this thread reads a block of; None outside of a pass."""
    return _current.get()


@contextmanager
def reading_with(cache: SpanCache) -> Iterator[None]:
    """Reads of this thread find the cache."""
    token = _current.set(cache)
    try:
        yield
    finally:
        _current.reset(token)
