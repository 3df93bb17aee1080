"""Ledgers: the state of a source when it was read, and how it has changed since."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from typing import Any, Self

import numpy as np

from streampca.errors import SourceError
from streampca.kernels import Array

# For every chunk a ledger holds its length, what the store reports of its last writing (time or
# ETag), and a checksum of the bytes that a pass reads anyway; also how many rows counted (see
# ``zarr.watermark``), a digest of how the array is stored, and the checksum of the decoded rows of
# a last chunk that was not full.

Place = tuple[int, ...]


ABSENT = -1  # as a length: the chunk is absent
UNKNOWN = -1  # as a checksum: the chunk was never read whole
NOTHING, APPENDED, CHANGED, REMOVED, VANISHED, RELAID = (
    "nothing",
    "appended",
    "changed",
    "removed",
    "vanished",
    "relaid",
)


@dataclass(frozen=True)
class Seen:
    """The chunks of an array as they are listed now: grid-shaped arrays.

    nbytes : int64, ABSENT where there is none.  version : int64, which changes whenever the chunk
    is written again, as far as the store reports it.
    times : float64, seconds since 1970 of the last writing, NaN where the store does not say.
    written : of the array's metadata, likewise.  snapshot : of Icechunk, which says what changed.
    behind : place -> version of chunks that lie wholly behind the end of the array.
    """

    nbytes: Array
    version: Array
    times: Array
    written: float
    snapshot: str = ""
    behind: Mapping[Place, int] = field(default_factory=dict)


@dataclass(frozen=True)
class Ledger:
    """The state of a Zarr array that a fit read. Arrays have the shape of the chunk grid.

    rows : counted rows along the growing dimension ``dim``.  layout : digest of all that must
    stay the same (other sizes, chunks, dtype, codecs, fill value, names of the features).
    snapshot : of Icechunk.
    tail : checksum of the decoded rows in the last chunk, where it was not full, else UNKNOWN.
    written : when the array's metadata were, its length among them; 0.0 where that is not known.
    place : of the array, without credentials.
    calls : ids of the calls that had vouched for rows (:mod:`streampca.sources.zarr.marks`).
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
    place: str = ""
    calls: list[str] = field(default_factory=list)

    def to_saved(self) -> tuple[dict[str, Array], dict[str, Any]]:
        """(arrays, JSON-ready document), for a bundle."""
        held = {one.name: getattr(self, one.name) for one in fields(self)}
        arrays = {name: value for name, value in held.items() if isinstance(value, np.ndarray)}
        return arrays, {"kind": "ledger", **{n: v for n, v in held.items() if n not in arrays}}

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
    """A change of a source since its ledger was written.

    kind : "nothing"; "appended": only rows behind the old ones; "changed": an old chunk is
    another; "removed": fewer rows; "vanished": an old chunk is gone; "relaid": stored otherwise,
    or with other columns.
    rows : (before, now).  chunks : keys of what changed or vanished.  checked : "stat" or "full".
    read : bytes read to find out.  content : checksums of
    the changed chunks that look as before (length, time).
    where : (first, last) old rows that lie in changed chunks.
    moved : the places of the source then and now, where they differ: old rows are compared byte by
    byte then.  same_rows : whether the old rows are known to be there as they were.
    """

    kind: str
    rows: tuple[int, int]
    checked: str
    chunks: tuple[str, ...] = ()
    read: int = 0
    content: tuple[int, ...] = ()
    where: tuple[tuple[int, int], ...] = ()
    moved: tuple[str, str] | None = None
    same_rows: bool = False

    def __str__(self) -> str:
        before, now = self.rows
        if self.moved:
            rows = f"its {before} rows are there" if self.same_rows else "it holds other rows"
            return f"the source moved from {self.moved[0]} to {self.moved[1]}, and {rows}"
        words = {
            NOTHING: f"nothing changed: {now} rows",
            APPENDED: f"{now - before} rows were appended to {before}",
            CHANGED: f"{len(self.chunks)} of the chunks read before were changed",
            REMOVED: f"{before - now} of {before} rows were removed",
            VANISHED: f"{len(self.chunks)} of the chunks read before are gone",
            RELAID: "its chunks, dtype or codecs are others, or its columns",
        }
        shown = f" ({', '.join(self.chunks[:3])}{', ...' * (len(self.chunks) > 3)})"
        return words[self.kind] + shown * bool(self.chunks)


def version_number(text: str) -> int:
    """63 bits that differ whenever what a store says of a writing differs."""
    return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=8).digest()) >> 1
