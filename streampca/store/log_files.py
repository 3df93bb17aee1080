"""The files of a log: its entries, and ``_head.json``."""

from __future__ import annotations

import datetime
import hashlib
import re
from dataclasses import dataclass
from typing import Any

from streampca.errors import NewerFormatError, SourceError
from streampca.store.backend import Backend
from streampca.store.checked import check_entry, check_head
from streampca.store.history import Checkpoint, Entry
from streampca.store.signed import MOST_BYTES, unsign

FOLDER = "_log/"
HEAD = "_head.json"
FORMAT_VERSION = 1
MOST_HEAD = 64 << 10  # bytes of ``_head.json``, and of the file that says that a store is there
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
        check_entry(whole, where)
        if whole["n"] != n:
            raise SourceError(f"{where} is entry {whole['n']} of a log")
        fields: dict[str, Any] = {
            name: whole[name] for name in Entry.__dataclass_fields__
            if whole.get(name) is not None or name == "current"
        }  # fmt: skip
        entry = Entry(**{**fields, "removed": tuple(fields["removed"])})
        checkpoint = None
        if (told := whole.get("checkpoint")) is not None:
            row = told.get("serving")
            checkpoint = Checkpoint(n, told["table"], entry.current, row and tuple(row), where)
        return cls(entry, hashlib.sha256(text).hexdigest(), whole["previous"], checkpoint,
                   tuple(whole.get("mended") or ()))  # fmt: skip


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
        where = f"{backend.place}/{HEAD}"
        try:
            text = backend.get(HEAD, MOST_HEAD)
            if text is None:
                return None
            whole = unsign(text, where, FORMAT_VERSION)
            check_head(whole, where)
            return cls(whole["n"], whole.get("checkpoint", 0), whole.get("entry", ""),
                       whole.get("current"))  # fmt: skip
        except NewerFormatError:
            raise
        except SourceError as error:
            raise SourceError(
                f"{error}. It can be made again from the log: streampca models verify --mend"
            ) from None


def read_entry(backend: Backend, n: int) -> bytes | None:
    """The bytes of entry n. Raises SourceError where no file of that length can be one."""
    return backend.get(entry_name(n), MOST_BYTES)


def now() -> str:
    """UTC, for people: nothing is decided by it."""
    return datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds")
