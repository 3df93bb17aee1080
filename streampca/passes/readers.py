"""Threads that read ahead, and that nothing waits for longer than a moment."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable
from concurrent.futures import Future
from queue import SimpleQueue
from typing import Any

PATIENCE = 1.0  # seconds that an interrupted pass waits for reads under way


class Readers:
    """A few daemon threads with one queue.

    A read that hangs must keep neither Ctrl-C nor the end of the interpreter waiting; the threads
    of ``concurrent.futures`` are joined at both.
    """

    def __init__(self, count: int) -> None:
        self._tasks: SimpleQueue[Any] = SimpleQueue()
        self._threads = [
            threading.Thread(target=self._work, name=f"streampca-reader-{i}", daemon=True)
            for i in range(count)
        ]
        for thread in self._threads:
            thread.start()

    def submit(self, function: Callable[[int], Any], number: int) -> Future[Any]:
        """Call function(number) on one of the threads."""
        future: Future[Any] = Future()
        self._tasks.put((future, function, number))
        return future

    def close(self) -> None:
        """No more tasks; threads that are within a read after a moment are left to themselves."""
        for _ in self._threads:
            self._tasks.put(None)
        join(self._threads, PATIENCE)

    def _work(self) -> None:
        while (task := self._tasks.get()) is not None:
            _do(*task)
            del task  # or the block that was read stays alive until there is another


def _do(future: Future[Any], function: Callable[[int], Any], number: int) -> None:
    if not future.set_running_or_notify_cancel():
        return
    try:
        result = function(number)
    except BaseException as error:
        future.set_exception(error)
    else:
        future.set_result(result)


def join(threads: Iterable[threading.Thread], patience: float) -> None:
    """Wait until all have ended, or for so many seconds in all."""
    end = time.monotonic() + patience
    for thread in threads:
        if thread.ident is not None:  # it was started
            thread.join(max(0.0, end - time.monotonic()))
