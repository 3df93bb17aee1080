"""Threads that help each other: one divides its work into pieces, and those without work do some.

The pieces are a function of the work alone, and each writes its own part of the output. So bits do
not depend on who does a piece, nor on how many threads there are.
"""

from __future__ import annotations

import contextvars
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Generic, Self, TypeVar, overload

T = TypeVar("T")

_mine = threading.local()  # .team: that of this thread


def each(work: Callable[[T], Any], pieces: Sequence[T]) -> None:
    """Call ``work`` with every piece: in this thread, and in those of its team without work.

    work : writes to parts of arrays that no other piece touches, and holds the GIL little.
    Raises what a piece raises; no piece is running then.
    """
    team: Team | None = getattr(_mine, "team", None)
    if team is None or len(pieces) < 2 or not team.has_help:
        for piece in pieces:
            work(piece)
    else:
        team.share(work, pieces)


class computed_once(Generic[T]):
    """A property that is computed at its first use and kept, without a lock.

    ``functools.cached_property`` of Python 3.11 has one lock for all objects of a class: while one
    thread computes the statistics of its block, those with other blocks wait. Two threads with the
    same object may both compute here, and the same value is kept.
    """

    def __init__(self, compute: Callable[[Any], T]) -> None:
        self._compute = compute
        self.__doc__ = compute.__doc__

    def __set_name__(self, owner: type, name: str) -> None:
        self._name = name

    @overload
    def __get__(self, instance: None, owner: type) -> Self: ...

    @overload
    def __get__(self, instance: object, owner: type) -> T: ...

    def __get__(self, instance: object | None, owner: type) -> Self | T:
        if instance is None:
            return self
        value = vars(instance)[self._name] = self._compute(instance)
        return value


class Team:
    """Threads that serve those who divide work.  free : how many serve.

    start : starts those that serve throughout, once there is something to divide: small work never
        is, and a thread costs as much as a small fit.
    """

    def __init__(self, start: Callable[[], None] | None = None) -> None:
        self.free = 0
        self._start = start
        self._turn = threading.Condition()
        self._jobs: list[_Job] = []
        self._over = False

    @property
    def has_help(self) -> bool:
        """Whether others serve, or would."""
        return self.free > 0 or self._start is not None

    @contextmanager
    def member(self) -> Iterator[None]:
        """What this thread divides inside the context is shared with those who serve."""
        before = getattr(_mine, "team", None)
        _mine.team = self
        try:
            yield
        finally:
            _mine.team = before

    def serve(self) -> None:
        """Do pieces of others' work until the team ends."""
        with self._turn:
            self.free += 1
        while (job := self._next()) is not None:
            job.take_part()
            del job  # else its arrays stay alive until the next one
        with self._turn:
            self.free -= 1

    def end(self) -> None:
        """Those who serve return once their piece is done."""
        with self._turn:
            self._over, self._start = True, None
            self._turn.notify_all()

    def share(self, work: Callable[[Any], Any], pieces: Sequence[Any]) -> None:
        """:func:`each`, with those who serve."""
        job = _Job(work, pieces)
        with self._turn:
            start, self._start = self._start, None
            self._jobs.append(job)
            self._turn.notify(len(pieces) - 1)
        if start is not None:
            start()
        try:
            job.take_part()
        finally:
            job.close()
            with self._turn:
                self._jobs.remove(job)
            job.idle.wait()
        if job.error is not None:
            try:
                raise job.error
            finally:
                job.error = None  # else the error and its traceback keep arrays alive

    def _next(self) -> _Job | None:
        """A job with pieces left, which is entered; None at the end."""
        with self._turn:
            while not self._over:
                for job in self._jobs:
                    if job.open:
                        return job
                self._turn.wait()
        return None


class _Job:
    """Pieces of work, taken one by one.  idle : set while no piece is running."""

    def __init__(self, work: Callable[[Any], Any], pieces: Sequence[Any]) -> None:
        self.work, self.pieces = work, pieces
        self.context = contextvars.copy_context()  # such as NumPy's treatment of warnings
        self.error: BaseException | None = None
        self.idle = threading.Event()
        self.idle.set()
        self._lock = threading.Lock()
        self._taken = self._running = 0

    @property
    def open(self) -> bool:
        """Whether pieces are left."""
        return self._taken < len(self.pieces)

    def close(self) -> None:
        """Hand out no more pieces."""
        with self._lock:
            self._taken = len(self.pieces)

    def take_part(self) -> None:
        """Do pieces until none is left, or one fails."""
        while True:
            with self._lock:
                if not self.open:
                    return
                piece = self.pieces[self._taken]
                self._taken += 1
                self._running += 1
                self.idle.clear()
            try:
                self.context.copy().run(self.work, piece)
            except BaseException as error:
                self.close()
                self.error = self.error or error
            finally:
                with self._lock:
                    self._running -= 1
                    if not self._running:
                        self.idle.set()
