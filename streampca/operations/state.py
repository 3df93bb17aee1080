"""The source of a job as it is now, what became of it, and since when the job is behind it."""

from __future__ import annotations

import contextlib
import datetime
import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from streampca.errors import ChangingSourceError, DamagedSourceError, SourceError
from streampca.operations.config import Job
from streampca.operations.model_store import ModelStore
from streampca.sources import open as open_source
from streampca.sources.reading import files_checksum
from streampca.sources.zarr.chunks import carries_checksum
from streampca.sources.zarr.ledger import NOTHING, VANISHED, Ledger, LedgerSource, Seen
from streampca.sources.zarr.watermark import Rows, rows_written

# --------------------------------------------------------------------------------------------------
# Since when a job does not take rows that are there: kept in its model store from run to run.

NAME = "behind.json"  # in the model store, only while a job is behind


def behind_since(place: str, first: int, behind: int) -> str:
    """When a refresh first found the sample ``first`` not taken: ISO 8601, UTC; "" where none is.

    place : of the model store.  behind : how many samples are not taken. Changes nothing.
    """
    if not behind:
        return ""
    told = _told(ModelStore(place))
    return str(told["since"]) if told.get("first") == first else _now()


def note_behind(place: str, first: int, behind: int) -> str:
    """The same, kept for the next refresh. Cost: one read, and a write where it is another."""
    store = ModelStore(place)
    if not store.exists():
        return behind_since(place, first, behind)
    told = _told(store)
    since = behind_since(place, first, behind)
    if not behind and told:
        store.backend.delete(NAME)
    elif behind and told != {"first": first, "since": since}:
        store.backend.put(NAME, json.dumps({"first": first, "since": since}).encode())
    return since


def seconds_since(since: str) -> float:
    """From then to now; 0.0 of ""."""
    if not since:
        return 0.0
    begun = datetime.datetime.fromisoformat(since)
    return (datetime.datetime.now(datetime.UTC) - begun).total_seconds()


def _now() -> str:
    return datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds")


def _told(store: ModelStore) -> dict[str, Any]:
    """What was kept; {} where nothing was, or something else."""
    with contextlib.suppress(ValueError, TypeError):
        told = json.loads(store.backend.get(NAME) or b"{}")
        if isinstance(told, dict) and isinstance(told.get("since"), str):
            seconds_since(told["since"])
            return told
    return {}


# --------------------------------------------------------------------------------------------------
# The source of a job as it is now, and what became of it since a version was made.

FIRST, SETTINGS, OTHER = "first", "settings", "other"  # kinds of change beside those of a ledger


@dataclass
class State:
    """The source as it is now.

    matrix : ends at the rows that count.  source, seen, written : None without a ledger.
    stat : digest of the settings and of what lengths and times say.  key : of the settings and the
    data, as exactly as these are known.  content : digest of all files, of a source without a
    ledger under the full check.  changed : old rows, (first, last), that are in chunks that
    changed.  lengthened : whether the array's length may have been changed too.
    """

    matrix: Any
    source: LedgerSource | None
    seen: Seen | None
    rows: int
    stat: str
    key: str = ""
    content: str | None = None
    changed: tuple[tuple[int, int], ...] = ()
    lengthened: bool = False
    written: Rows | None = None

    @property
    def note(self) -> str:
        """Why rows do not count; "" where all do."""
        return "" if self.written is None else self.written.why

    @property
    def behind(self) -> int:
        """How many samples are there and do not count."""
        if self.written is None or self.source is None:
            return 0
        return self.written.behind * self.source.inner

    def blank_row(self, again: bool = False) -> int | None:
        """The first row that was read and is not known to have been written.

        Raises DamagedSourceError where the promoted version has it: it was written once. Old rows
        are looked at where chunks changed and the array's length may have, which drops rows.
        """
        if self.written is None or self.source is None:
            return None
        row = self.written.first_in_doubt(self.source, again)
        if self.lengthened:
            lost = (self.written.first_in_doubt(self.source, again, span) for span in self.changed)
            if (first := next((one for one in lost if one is not None), None)) is not None:
                raise DamagedSourceError(
                    f"row {first} of the source, which the promoted version has, holds only the "
                    "fill value now. Write it again; or, if that is what it holds, "
                    "streampca.commit_rows(place, rows)"
                )
        return row

    def __post_init__(self) -> None:
        self.key = self.key or self.stat


def look(job: Job, old: Ledger | None, limit: int | None = None) -> State:
    """Open the source and list its chunks; read none but those at the end of the old rows.

    old : of the promoted version.  limit : a row that is not known to have been written.
    """
    options = {name: value for name, value in job.source.items() if name != "path"}
    matrix = open_source(job.source["path"], **options)
    source = LedgerSource.of(matrix)
    if source is None:
        return State(matrix, None, None, matrix.shape[0], stamp_of(job, matrix))
    seen = source.look()
    if old is not None and old.layout != source.layout():
        old = None
    source.keep_checksums()
    written = rows_written(source, seen, old, job.settle, limit)
    rows = written.count
    if rows == 0:
        why = f": {written.why}" if written.why else ""
        kind = ChangingSourceError if written.waiting else SourceError
        raise kind(f"{job.source['path']} has no row yet{why}")
    part = tuple(slice(0, n) for n in source.grid(rows))
    listed = (seen.nbytes[part].tobytes(), seen.version[part].tobytes())
    pinned = (seen.snapshot,) if seen.snapshot else ()
    stat = digest_of(settings_of(job), source.layout(), rows, *listed, *pinned)
    return State(source.first_rows(rows), source, seen, rows, stat, written=written)


def change_of(
    job: Job, found: State, told: Mapping[str, Any] | None, old: Ledger | None, mode: str
) -> tuple[str, str, int]:
    """(kind of change, in words, bytes read to find out).

    told : what the promoted version's record says of its job, None without one.  old : its
    ledger.  mode : "stat" or "full". Raises DamagedSourceError where old chunks are gone.
    """
    if told is None:
        words = "the store has no promoted version"
        if found.source is not None and not carries_checksum(found.source.reader.array):
            words += (
                "; its chunks carry no checksum, and what was altered before today cannot be told "
                "(from now on the ledger tells)"
            )
        return FIRST, words, 0
    if told.get("settings") != settings_of(job):
        return SETTINGS, "the settings are not those of the promoted version", 0
    if found.source is None or found.seen is None or old is None:
        return _change_of_files(found, told, mode)
    change = found.source.compare(old, found.rows, found.seen, mode == "full")
    if change.kind == VANISHED and found.source.reader.guard.missing == "error":
        raise DamagedSourceError(
            f"{job.source['path']}: {change}. Restore them, or source.missing_chunks: fill or mask"
        )
    if change.content:  # times may hide it: what is there decides whether it is known
        found.key = digest_of(found.key, repr(change.content))
    found.changed = change.where
    found.lengthened = old.written not in (0.0, found.seen.written)
    stat = "by the diff of their snapshots" if found.seen.snapshot else "by length and time"
    how = {"stat": stat, "full": "byte by byte"}[change.checked]
    return change.kind, f"{change}; old chunks were checked {how}", change.read


def _change_of_files(found: State, told: Mapping[str, Any], mode: str) -> tuple[str, str, int]:
    """The same for a source without a ledger."""
    if told.get("stat") != found.stat:
        return OTHER, "the source is not what it was (this kind has no ledger of chunks)", 0
    paths = found.matrix.paths()
    if mode != "full" or not paths:
        return NOTHING, "the files are as they were, by size and time", 0
    found.content, read = files_checksum(paths)
    if told.get("content") == found.content:
        return NOTHING, "the files are as they were, byte by byte", read
    found.key = digest_of(found.key, found.content)
    if told.get("content") is None:
        return OTHER, "no checksum of the promoted version's files was kept", read
    return OTHER, "the files hold something else under the same sizes and times", read


def settings_of(job: Job) -> str:
    """What of a job decides the result."""
    source = {name: value for name, value in job.source.items() if name != "path"}
    return json.dumps([job.model, source], sort_keys=True)


def stamp_of(job: Job, matrix: Any) -> str:
    """What is known of a source without a ledger: size and time of its files."""
    return digest_of(settings_of(job), matrix.content_stamp())


def digest_of(*parts: str | bytes | int) -> str:
    """SHA-256 of several values, kept apart."""
    digest = hashlib.sha256()
    for part in parts:
        data = part if isinstance(part, bytes) else str(part).encode()
        digest.update(len(data).to_bytes(8) + data)
    return digest.hexdigest()
