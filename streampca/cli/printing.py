"""Standard output on which names of the data cannot do anything but be read."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Iterator
from typing import Any

from streampca.shown import printable


class Printable:
    """A text stream whose control characters are escaped. Everything else is that of the stream."""

    def __init__(self, stream: Any) -> None:
        self._stream = stream

    def write(self, text: str) -> int:
        """Write it; the length of what was given."""
        self._stream.write(printable(text))
        return len(text)

    def writelines(self, lines: Any) -> None:
        """Write them one by one."""
        for line in lines:
            self.write(line)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)


@contextlib.contextmanager
def printable_output() -> Iterator[None]:
    """Standard output as a :class:`Printable`."""
    with contextlib.redirect_stdout(Printable(sys.stdout)):
        yield
