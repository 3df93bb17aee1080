"""The files of a log: its entries, and ``_head.json``."""

from __future__ import annotations

import datetime
import hashlib
import re
from dataclasses import dataclass

from streampca.errors import NewerFormatError, SourceError
from streampca.store.backend import Backend
from streampca.store.history import Checkpoint, Entry
from streampca.store.signed import unsign

FOLDER = "_log/"
HEAD = "_head.json"
FORMAT_VERSION = 1
NUMBERED = re.compile(FOLDER + r"(\d{20})\.json")


def entry_name(n: int) -> str:
    """The file of entry n."""
    return f"{FOLDER}{n:020d}.json"


@dataclass(frozen=True)
class Line:
    """An entry as it is stored.

    digest : of its bytes.  previous : of the entry before it, as its writer saw that.
    checkpoint : where it is one.  mended : files whose damage it has made good.
    """

    entry: Entry
    digest: str
    previous: str
    checkpoint: Checkpoint | None
    mended: tuple[str, ...]

    @classmethod
    def parse(cls, text: bytes, n: int, place: str) -> Line:
        """Entry number n. Raises SourceError where it is damaged, NewerFormatError."""
        where = f"{place}/{entry_name(n)}"
        whole = unsign(text, where, FORMAT_VERSION)
        try:
            if whole["n"] != n:
                raise SourceError(f"{where} is entry {whole['n']!r:.40} of a log")
            fields = {name: whole[name] for name in Entry.__dataclass_fields__ if name in whole}
            entry = Entry(**{**fields, "removed": tuple(fields["removed"])})
            checkpoint = None
            if (told := whole.get("checkpoint")) is not None:
                row = told["serving"]
                checkpoint = Checkpoint(n, str(told["table"]), entry.current, row and tuple(row))
            mended = tuple(map(str, whole.get("mended", ())))
            return cls(entry, hashlib.sha256(text).hexdigest(), whole["previous"], checkpoint,
                       mended)  # fmt: skip
        except (KeyError, TypeError, ValueError) as error:
            raise SourceError(f"{where} is damaged: {error!r}") from None


@dataclass(frozen=True)
class Head:
    """What ``_head.json`` says: n, checkpoint : numbers of entries.  entry : digest of entry n.
    current : promoted there; None in what 0.1.0 wrote, and where none is."""

    n: int = 0
    checkpoint: int = 0
    entry: str = ""
    current: str | None = None

    @classmethod
    def read(cls, backend: Backend) -> Head | None:
        """None where there is none. Raises SourceError where it is damaged."""
        text = backend.get(HEAD)
        if text is None:
            return None
        where = f"{backend.place}/{HEAD}"
        try:
            whole = unsign(text, where, FORMAT_VERSION)
            current = whole.get("current")
            return cls(int(whole["n"]), int(whole.get("checkpoint", 0)),
                       str(whole.get("entry", "")), current and str(current))  # fmt: skip
        except NewerFormatError:
            raise
        except (SourceError, KeyError, TypeError, ValueError) as error:
            raise SourceError(
                f"{error}. It can be made again from the log: streampca models verify --mend"
            ) from None


def now() -> str:
    """UTC, for people: nothing is decided by it."""
    return datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds")
