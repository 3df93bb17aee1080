"""The ledger of a Zarr array: what every stored chunk was when it was read, and what it is now.

For every chunk its length, what the store says of its last writing (time or ETag), and a checksum
(see ``zarr_guard.checksum``), which is taken of the bytes that a pass reads anyway. Beside that
how many rows were there (the watermark: never ``shape[0]`` alone, which grows before the rows are
written), a digest of how the array is stored, and the checksum of the decoded rows of a last chunk
that was not full: appending writes that chunk anew.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Self

import numpy as np

from streampca.errors import SourceError

Array = np.ndarray[Any, Any]
ABSENT = -1  # as a length: no such chunk
UNKNOWN = -1  # as a checksum: it was never read whole
NOTHING, APPENDED, CHANGED, REMOVED, VANISHED, RELAID = (
    "nothing", "appended", "changed", "removed", "vanished", "relaid",
)  # fmt: skip


@dataclass(frozen=True)
class Seen:
    """The chunks of an array as they are listed now: grid-shaped arrays.

    nbytes : int64, ABSENT where there is none.  version : int64, another one whenever the chunk
    was written again, as far as the store tells.
    times : float64, seconds since 1970 of the last writing, NaN where the store does not say.
    written : of the array's metadata, likewise.  snapshot : of Icechunk, which says what changed.
    """

    nbytes: Array
    version: Array
    times: Array
    written: float
    snapshot: str = ""


@dataclass(frozen=True)
class Ledger:
    """What a fit read of one Zarr array. Arrays have the shape of the chunk grid.

    rows : of the growing dimension ``dim`` that were counted.  layout : digest of all that must
    stay the same (other sizes, chunks, dtype, codecs, fill value, names of the features).
    snapshot : of Icechunk.
    tail : checksum of the decoded rows in the last chunk, where it was not full, else UNKNOWN.
    written : when the array's metadata were, its length among them; 0.0 where that is not known.
    """

    rows: int
    dim: int
    layout: str
    nbytes: Array
    version: Array
    crc32c: Array
    tail: int = UNKNOWN
    snapshot: str = ""
    written: float = 0.0

    def to_saved(self) -> tuple[dict[str, Array], dict[str, Any]]:
        """(arrays, JSON-ready document), for a bundle."""
        arrays = {name: getattr(self, name) for name in ("nbytes", "version", "crc32c")}
        names = ("rows", "dim", "layout", "tail", "written")
        numbers = {name: getattr(self, name) for name in names}
        snapshot = {"snapshot": self.snapshot} if self.snapshot else {}
        return arrays, {"kind": "ledger", **numbers, **snapshot}

    @classmethod
    def from_saved(cls, arrays: Mapping[str, Array], document: Mapping[str, Any]) -> Self:
        """The inverse of ``to_saved``. Raises SourceError where it is something else."""
        if document.get("kind") != "ledger":
            raise SourceError("not a ledger")
        known: dict[str, Any] = {**document, **arrays}
        del known["kind"]
        return cls(**known)

    def digest(self) -> str:
        """SHA-256 of the content that was read: the same data state has the same digest."""
        text = json.dumps([self.rows, self.dim, self.layout, self.tail])
        parts = (np.ascontiguousarray(one, "<i8").tobytes() for one in (self.nbytes, self.crc32c))
        return hashlib.sha256(b"".join([text.encode(), *parts])).hexdigest()


@dataclass(frozen=True)
class Change:
    """What became of a source since its ledger was written.

    kind : "nothing"; "appended": only rows behind the old ones; "changed": an old chunk is
    another; "removed": fewer rows; "vanished": an old chunk is gone; "relaid": stored otherwise,
    or with other columns.
    rows : (before, now).  chunks : keys of what changed or vanished.  checked : "stat" or "full".
    read : bytes read to find out.  content : checksums of
    the changed chunks that look as before (length, time).
    where : (first, last) old rows that lie in changed chunks.
    """

    kind: str
    rows: tuple[int, int]
    checked: str
    chunks: tuple[str, ...] = ()
    read: int = 0
    content: tuple[int, ...] = ()
    where: tuple[tuple[int, int], ...] = ()

    def __str__(self) -> str:
        before, now = self.rows
        words = {
            NOTHING: f"nothing changed: {now} rows",
            APPENDED: f"{now - before} rows were appended to {before}",
            CHANGED: f"{len(self.chunks)} of the chunks read before were changed",
            REMOVED: f"{before - now} of {before} rows were removed",
            VANISHED: f"{len(self.chunks)} of the chunks read before are gone",
            RELAID: "it is stored otherwise, or has other columns",
        }
        shown = f" ({', '.join(self.chunks[:3])}{', ...' * (len(self.chunks) > 3)})"
        return words[self.kind] + shown * bool(self.chunks)
