"""How much a source has read, in any number of threads."""

from __future__ import annotations

import threading
from collections.abc import Mapping
from typing import Any

from streampca.errors import ChangingSourceError
from streampca.matrix import ReadCount


class Tally:
    """What was read; all who read the same share one. It counts from zero where it was unpickled.

    checksums : crc32c of every chunk that was read whole, by its key; None unless asked for.
    blank : what the rows of a chunk look like, where some are blank: see ``blank_rows.note_of``.
    """

    def __init__(self, checksums: bool = False) -> None:
        self.lock = threading.Lock()
        self.count = ReadCount()
        self.checksums: dict[str, int] | None = {} if checksums else None
        self.blank: dict[str, int] = {}

    def __reduce__(self) -> Any:
        return Tally, (self.checksums is not None,)

    def keep_checksums(self, found: Mapping[str, int]) -> None:
        """Keep more. Raises ChangingSourceError where a chunk is not what it was when it was read
        before: two passes over different data give no result."""
        with self.lock:
            kept = self.checksums
            if kept is None:
                return
            for key, checksum in found.items():
                if kept.setdefault(key, checksum) != checksum:
                    raise ChangingSourceError(
                        f"chunk {key!r} was changed while it was read; start again"
                    )

    def keep_blank(self, found: Mapping[str, int]) -> None:
        """Keep more of what was seen of rows."""
        with self.lock:
            for key, note in found.items():
                self.blank[key] = self.blank.get(key, 0) | note

    def add(self, count: ReadCount) -> None:
        """Count more."""
        with self.lock:
            self.count = self.count + count

    def restart(self) -> None:
        """Count from zero."""
        with self.lock:
            self.count = ReadCount()
