"""Blocks in order, read by other threads before they are asked for."""

from __future__ import annotations

import threading
import time
from collections.abc import Generator, Iterator
from concurrent.futures import Future, wait
from contextlib import AbstractContextManager, closing
from functools import partial
from typing import Any, Protocol
from weakref import WeakSet

from streampca.errors import NoAnswerError
from streampca.kernels import pages
from streampca.matrix import Block, SpanCache, reading_with
from streampca.passes.readers import Readers
from streampca.passes.work import Work


class Stopped(Exception):
    """The pass was told to stop; not an error of its own."""


class Order(Protocol):
    """The numbers of the blocks to read, one by one."""

    def next(self, wait: bool) -> int | None:
        """The next block; None when there is none, or none yet and ``wait`` is False."""

    def begins_span(self, block: int) -> bool:
        """Whether this block, the last that ``next`` gave, is the first of a span."""


class InOrder:
    """Consecutive blocks."""

    def __init__(self, blocks: range) -> None:
        self._blocks, self._first = iter(blocks), blocks[:1]

    def next(self, wait: bool) -> int | None:
        return next(self._blocks, None)

    def begins_span(self, block: int) -> bool:
        return block in self._first


class ReadAhead:
    """Blocks in order, read by ``ahead`` threads before they are asked for.

    At most ``ahead + 1`` raw blocks are alive: the one handed out and those ahead of it.
    patience : seconds that a block is waited for; then NoAnswerError, and the thread that reads it
    is left to itself. None waits for ever.
    """

    def __init__(self, work: Work, order: Order, ahead: int, stop: threading.Event,
                 patience: float | None = None) -> None:  # fmt: skip
        self._work, self._order, self._ahead, self._stop = work, order, ahead, stop
        self._patience = patience
        self._lock = threading.Lock()
        self._live = self.most_live = 0
        self._free: list[Any] = []  # block buffers that no block uses at present
        self._scratch: dict[Any, Any] = {}  # tile buffers of this lane
        self._cache = SpanCache()  # of the span whose blocks were asked for last
        self._caches = WeakSet([self._cache])  # and of those before it that something still holds

    def blocks(self) -> AbstractContextManager[Iterator[Block]]:
        """The blocks in order; at the end nothing is read or kept any more, after an error too."""
        return closing(self._blocks())

    def _blocks(self) -> Generator[Block, None, None]:
        if not self._ahead:
            try:
                while (i := self._order.next(wait=True)) is not None:
                    cache = self._cache_for(i)
                    apart = self._patience is not None
                    block = self._read_apart(cache, i) if apart else self._read(cache, i)
                    yield block
                    self._release(block)
                    del block
            finally:
                self._end_caches()
            return
        readers = Readers(self._ahead)
        waiting: list[tuple[int, Future[Block]]] = []
        try:
            self._fill(readers, waiting, wait=True)
            while waiting:
                block = self._result(*waiting.pop(0))
                self._fill(readers, waiting, wait=False)
                yield block
                self._release(block)
                del block
                if not waiting:
                    self._fill(readers, waiting, wait=True)
        finally:
            for _, future in waiting:
                future.cancel()
            readers.close()
            self._end_caches()

    def _cache_for(self, i: int) -> SpanCache:
        """What sources keep for the next blocks of the span that block i is of."""
        if self._order.begins_span(i):
            self._cache = SpanCache()
            self._caches.add(self._cache)
        return self._cache

    def _end_caches(self) -> None:
        """Let go of what they keep: the traceback of an error may hold one."""
        for cache in self._caches:
            cache.end()

    def _read_apart(self, cache: SpanCache, i: int) -> Block:
        """Read in another thread, which may be left to itself."""
        readers = Readers(1)
        try:
            return self._result(i, readers.submit(partial(self._read, cache), i))
        finally:
            readers.close()

    def _fill(self, readers: Readers, waiting: list[tuple[int, Future[Block]]],
              wait: bool) -> None:  # fmt: skip
        while len(waiting) < self._ahead and (i := self._order.next(wait)) is not None:
            waiting.append((i, readers.submit(partial(self._read, self._cache_for(i)), i)))
            wait = False

    def _result(self, i: int, future: Future[Block]) -> Block:
        """The block, unless the pass is stopped, or patience ends, while it is waited for."""
        begun = time.monotonic()
        while not wait([future], timeout=0.2).done:
            if self._stop.is_set():
                raise Stopped
            if self._patience is not None and time.monotonic() - begun > self._patience:
                raise NoAnswerError(
                    f"{self._which(i)} was not read within {self._patience:g} s. Wait longer: "
                    'dask.config.set({"streampca.read-timeout": seconds})'
                )
        return future.result()

    def _which(self, i: int) -> str:
        matrix = self._work.matrix
        kind = ("samples", "features")[matrix.streamed_axis]
        return f"block {i} ({kind} {matrix.edges[i]} to {matrix.edges[i + 1] - 1})"

    def _read(self, cache: SpanCache, i: int) -> Block:
        if self._stop.is_set():
            raise Stopped
        buffer = None
        with self._lock:
            self._live += 1
            self.most_live = max(self.most_live, self._live)
            if self._work.matrix.into_buffer:
                buffer = self._free.pop() if self._free else None
        if buffer is None and self._work.matrix.into_buffer:
            buffer = pages(self._work.matrix.block_nbytes)
        try:
            with reading_with(cache):
                block = self._work.read(i, buffer)
        except Exception as error:
            error.add_note(f"while reading {self._which(i)}")
            raise
        block.buffer, block.scratch = buffer, self._scratch
        return block

    def _release(self, block: Block) -> None:
        """The block handed out last is no longer in use; its buffer serves another."""
        with self._lock:
            self._live -= 1
            if block.buffer is not None:
                self._free.append(block.buffer)
