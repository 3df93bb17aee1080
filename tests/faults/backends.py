"""Places for a model store that fail on purpose."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator

from streampca.store import Backend, Listed
from streampca.store.backend import MOST, too_long


class Killed(BaseException):
    """The process died here: nothing after it ran, ``except Exception`` included."""


class MemoryBackend:
    """The five verbs on a dictionary."""

    def __init__(self) -> None:
        self.objects: dict[str, tuple[bytes, float]] = {}
        self.place = "memory"
        self._lock = threading.Lock()

    def get(self, name: str, most: int = MOST) -> bytes | None:
        found = self.objects.get(name)
        if found is not None and len(found[0]) > most:
            raise too_long(self.place, name, most)
        return None if found is None else found[0]

    def put(self, name: str, data: bytes) -> None:
        self.objects[name] = (data, time.time())

    def put_if_absent(self, name: str, data: bytes) -> bool:
        with self._lock:
            if name in self.objects:
                return False
            self.put(name, data)
        return True

    def list(self, prefix: str) -> Iterator[Listed]:
        for name, (data, modified) in list(self.objects.items()):
            if name.startswith(prefix):
                yield Listed(name, len(data), modified)

    def delete(self, name: str) -> None:
        self.objects.pop(name, None)


class FaultyBackend:
    """Another backend whose verb number ``at`` (from 0) fails, before it acts or after.

    after : the verb has acted when it fails, as where an answer is lost on its way.
    for_ever : so do all that follow.  error : what is raised.
    """

    def __init__(
        self,
        base: Backend,
        at: int,
        error: BaseException,
        after: bool = False,
        for_ever: bool = False,
        verbs: tuple[str, ...] = ("get", "put", "put_if_absent", "list", "delete"),
    ) -> None:
        self.base, self.at, self.error, self.after = base, at, error, after
        self.for_ever, self.verbs = for_ever, verbs
        self.place, self.count = base.place, 0

    def _due(self, verb: str) -> bool:
        if verb not in self.verbs:
            return False
        self.count += 1
        number = self.count - 1
        return number == self.at or (self.for_ever and number > self.at)

    def _do(self, verb: str, *arguments: object) -> object:
        due = self._due(verb)
        if due and not self.after:
            raise self.error
        result = getattr(self.base, verb)(*arguments)
        if due:
            raise self.error
        return result

    def get(self, name: str, most: int = MOST) -> bytes | None:
        return self._do("get", name, most)  # type: ignore[return-value]

    def put(self, name: str, data: bytes) -> None:
        self._do("put", name, data)

    def put_if_absent(self, name: str, data: bytes) -> bool:
        return bool(self._do("put_if_absent", name, data))

    def list(self, prefix: str) -> Iterator[Listed]:
        return self._do("list", prefix)  # type: ignore[return-value]

    def delete(self, name: str) -> None:
        self._do("delete", name)
