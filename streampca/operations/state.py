"""The present source of a job, and what changed in it since a version was made."""

from __future__ import annotations

import contextlib
import hashlib
import json
import math
import os
import re
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from streampca.errors import (
    ChangingSourceError,
    DamagedSourceError,
    NonFiniteError,
    SourceError,
    hide_secrets,
)
from streampca.model_store.history import History
from streampca.model_store.model_store import ModelStore, Version
from streampca.models.contract.registry import kind_named
from streampca.operations.config import Job
from streampca.sources import open as open_source
from streampca.sources.ledger import NOTHING, RELAID, VANISHED, Ledger, Seen
from streampca.sources.local_files import files_checksum
from streampca.sources.tables.ledger import FileLedger, FileSource
from streampca.sources.zarr.chunks import carries_checksum
from streampca.sources.zarr.ledger import LedgerSource
from streampca.sources.zarr.looks import Look, look_at
from streampca.sources.zarr.watermark import Rows, declaring, rows_written
from streampca.store import check_fields, understood

LOOK = "last_look.json"  # in the model store: what the last look left for the next one
SCANNED_NBYTES = 16 << 20  # read at a time in search of a cell that is no number


def last_look(store: ModelStore, source: LedgerSource) -> Look | None:
    """What the last refresh saw of an array like this one."""
    return Look.from_json(store.backend.get(LOOK) or b"{}", source)


def keep_look(store: ModelStore, look: Look | None) -> None:
    """Store a look for the next refresh, once there is a store, before anything is published: a
    removed row must not count if this refresh dies. Cost: a read, a write if it is new."""
    if look is None or not store.exists():
        return
    text = look.to_json().encode()
    if store.backend.get(LOOK) != text:
        store.backend.put(LOOK, text)


FIRST, SETTINGS, OTHER = "first", "settings", "other"  # kinds of change besides those of a ledger


@dataclass
class State:
    """The present state of the source.

    matrix : ends with the last usable row.  source, seen, written : None without a ledger.
    stat : digest of the settings and of the chunks' lengths and times.  key : digest of the
    settings and the data, as exactly as they are known.  content : digest of all files, for a
    source without a ledger under the full check.  changed : ranges (first, last) of old rows in
    changed chunks.  lengthened : whether the array's length may have changed too.  look : for the
    next refresh.  same_rows : whether the rows of the promoted version are known to be there as
    they were.
    """

    matrix: Any
    source: LedgerSource | FileSource | None
    seen: Seen | None
    rows: int
    stat: str
    key: str = ""
    content: str | None = None
    changed: tuple[tuple[int, int], ...] = ()
    lengthened: bool = False
    written: Rows | None = None
    look: Look | None = None
    same_rows: bool = False

    @property
    def note(self) -> str:
        """Why rows are not used; "" if all are."""
        return "" if self.written is None else self.written.why

    @property
    def behind(self) -> int:
        """How many existing samples are not used."""
        if self.written is None or self.source is None:
            return 0
        return self.written.behind * self.source.inner

    def blank_row(self, again: bool = False) -> int | None:
        """The first row that was read and may never have been written; None if there is none.

        Old rows are checked if chunks changed and the array's length may have, which drops rows.
        Raises DamagedSourceError if the promoted version contains the row: it was written once.
        """
        if self.written is None or not isinstance(self.source, LedgerSource):
            return None
        row = self.written.first_in_doubt(self.source, again)
        if self.lengthened:
            lost = (self.written.first_lost(self.source, span, again) for span in self.changed)
            if (first := next((one for one in lost if one is not None), None)) is not None:
                raise DamagedSourceError(
                    f"row {first} of the source, which the promoted version has, holds only the "
                    f"fill value now. Write it again; or, if that is what it holds, "
                    f"{declaring(self.source)}"
                )
        return row

    def likely_blank(self, noted: int | None) -> int | None:
        """As ``blank_row``, of the rows of chunks where a writer that died may have left it: the
        last one, and that of the sample ``noted`` by an earlier refresh.

        Cost: a read of these, if no writer vouches for them.
        """
        if self.written is None or not isinstance(self.source, LedgerSource):
            return None
        step, rows = self.source.step, [self.rows - 1]
        if noted is not None and noted // self.source.inner < self.rows:
            rows.insert(0, noted // self.source.inner)
        for start in (row // step * step for row in rows):
            span = max(start, self.written.known), min(start + step, self.rows)
            if (row := self.written.first_in_doubt(self.source, within=span)) is not None:
                return row
        return None

    def __post_init__(self) -> None:
        self.key = self.key or self.stat


def look(
    job: Job, store: ModelStore, old: Ledger | None, limit: int | None = None, keep: bool = True
) -> State:
    """Open the source and list its chunks; read only those at the end of the old rows.

    store : of the job.  old : the ledger of its promoted version.  limit : a row that may never
    have been written.  keep : the look, for the next refresh.
    Raises SourceError and ChangingSourceError if there is no row yet.
    """
    matrix = _opened(job)
    source = LedgerSource.of(matrix)
    if source is None:
        return _of_files(job, matrix, old)
    seen = source.look()
    if old is not None and old.layout != source.layout():
        old = None
    source.keep_checksums()
    this_look = look_at(source, seen, last_look(store, source))
    if keep:
        keep_look(store, this_look)
    written = rows_written(source, seen, old, job.settle, limit, this_look)
    rows = written.count
    if rows == 0:
        why = f": {written.why}" if written.why else ""
        kind = ChangingSourceError if written.waiting else SourceError
        raise kind(f"{job.source['path']} has no row yet{why}")
    part = tuple(slice(0, n) for n in source.grid(rows))
    listed = (seen.nbytes[part].tobytes(), seen.version[part].tobytes())
    pinned = (seen.snapshot,) if seen.snapshot else ()
    stat = digest_of(settings_of(job), source.layout(), rows, *listed, *pinned)
    return State(source.first_rows(rows), source, seen, rows, stat, written=written, look=this_look)


def _opened(job: Job) -> Any:
    """The source. Raises ChangingSourceError for a damaged one that a writer may be busy with."""
    options = {name: value for name, value in job.source.items() if name != "path"}
    try:
        return open_source(job.source["path"], **options)
    except SourceError as error:
        paths = job.source["path"]
        age = _age_of(paths if isinstance(paths, list) else [paths])
        if isinstance(error, ChangingSourceError) or not abs(age) < job.settle:
            raise
        raise ChangingSourceError(
            f"{error}; it was written {age:.0f} s ago, and a writer may be busy (settle: "
            f"{job.settle:g} s). Try again later"
        ) from error


def _age_of(paths: Sequence[str]) -> float:
    """Seconds since a local file of a source, or one in a folder of it, was last written."""
    times = [math.nan]
    for path in paths:
        with contextlib.suppress(OSError, ValueError):
            folder = os.path.isdir(path)
            inside = [os.path.join(path, name) for name in os.listdir(path)] if folder else []
            times += [os.stat(one).st_mtime for one in (path, *inside) if os.path.isfile(one)]
    return time.time() - float(np.nanmax(times)) if len(times) > 1 else math.inf


def _of_files(job: Job, matrix: Any, old: Ledger | None) -> State:
    """The state of a source that is no Zarr array: a table in files has a ledger of these."""
    rows, source = matrix.shape[0], FileSource.of(matrix)
    if source is None:
        return State(matrix, None, None, rows, stamp_of(job, matrix))
    source = source if old is None else source.after(old)
    seen = source.look()
    listed = (seen.nbytes.tobytes(), seen.version.tobytes())
    stat = digest_of(settings_of(job), source.layout(), rows, *source.files, *listed)
    return State(source.matrix, source, seen, rows, stat)


def change_of(
    job: Job, found: State, recorded: Mapping[str, Any] | None, old: Ledger | None, mode: str
) -> tuple[str, str, int]:
    """(kind of change, description, bytes read to find out).

    recorded : the job in the promoted version's record, None without a version.  old : its ledger.
    mode : "stat" or "full". Raises DamagedSourceError if old chunks are gone.
    """
    if recorded is None:
        text = "the store has no promoted version"
        zarr = found.source if isinstance(found.source, LedgerSource) else None
        if zarr is not None and not carries_checksum(zarr.reader.array):
            text += (
                "; the source's chunks have no checksums, so damage from before today cannot be "
                "found (from now on the ledger finds it)"
            )
        return FIRST, text, 0
    if recorded.get("settings") != settings_of(job):
        return SETTINGS, "the settings are not those of the promoted version", 0
    if found.source is None or found.seen is None or old is None:
        return _change_of_files(found, recorded, mode)
    change = found.source.compare(old, found.rows, found.seen, mode == "full")
    if change.kind == VANISHED and found.source.reader.guard.missing == "error":
        raise DamagedSourceError(
            f"{job.source['path']}: {change}. Restore them, or source.missing_chunks: fill or mask"
        )
    if change.kind == RELAID and found.written is not None:
        _check_stored_anew(job, found.written, old.rows)
    if change.content:  # times may be equal: the content decides whether a version has it
        found.key = digest_of(found.key, repr(change.content))
    found.changed, found.same_rows = change.where, change.same_rows
    found.lengthened = found.seen.written != old.written or found.seen.snapshot != old.snapshot
    stat = "by the diff of their snapshots" if found.seen.snapshot else "by length and time"
    how = {"stat": stat, "full": "byte by byte"}[change.checked]
    return change.kind, f"{change}; old chunks were checked {how}", change.read


def _check_stored_anew(job: Job, written: Rows, served: int) -> None:
    """Raise an error for an array that is long enough for the served rows and does not have them
    yet: whoever writes it anew is not done, or died."""
    if written.mark.decides or not written.count < served <= written.there:
        return
    finding = (
        f"{job.source['path']} was stored anew, and {written.count} of its {written.there} rows "
        f"count, where the promoted version has {served}: {written.why}"
    )
    if written.waiting:
        raise ChangingSourceError(f"{finding}. Try again later")
    raise DamagedSourceError(
        f"{finding}. Write all rows, or shorten the array to those that it has"
    )


def _change_of_files(found: State, recorded: Mapping[str, Any], mode: str) -> tuple[str, str, int]:
    """As ``change_of``, for a source without a ledger."""
    if recorded.get("stat") != found.stat:
        return OTHER, "the source is not what it was (this kind has no ledger of chunks)", 0
    paths = found.matrix.paths()
    if mode != "full" or not paths:
        return NOTHING, "the files are as they were, by size and time", 0
    found.content, read = files_checksum(paths)
    if recorded.get("content") == found.content:
        return NOTHING, "the files are as they were, byte by byte", read
    found.key = digest_of(found.key, found.content)
    if recorded.get("content") is None:
        return OTHER, "no checksum of the promoted version's files was kept", read
    return OTHER, "the files hold something else under the same sizes and times", read


def settings_of(job: Job) -> str:
    """The settings of a job that affect its result, as JSON."""
    source = {name: value for name, value in job.source.items() if name != "path"}
    return json.dumps([job.model, source], sort_keys=True)


def place_of_source(job: Job, found: State) -> str:
    """Where the source of a job lies, without credentials."""
    if isinstance(found.source, LedgerSource):
        return found.source.place
    paths = job.source["path"]
    named = [str(one) for one in (paths if isinstance(paths, list) else [paths])]
    whole = [one if "://" in one else os.path.abspath(one) for one in named]
    return ", ".join(map(hide_secrets, whole))


def stamp_of(job: Job, matrix: Any) -> str:
    """A digest of a source without a ledger: its settings, and the size and time of its files."""
    return digest_of(settings_of(job), matrix.content_stamp())


def digest_of(*parts: str | bytes | int) -> str:
    """SHA-256 of several values, each with its length."""
    digest = hashlib.sha256()
    for part in parts:
        data = part if isinstance(part, bytes) else str(part).encode()
        digest.update(len(data).to_bytes(8) + data)
    return digest.hexdigest()


# Cells that are no numbers, in the words of a job file.


def in_words_of_job(error: NonFiniteError, job: Job, matrix: Any, first: int) -> NonFiniteError:
    """The error of a pass, with the sample of the source and the line of the job file.

    first : the first sample that the pass has read.  Cost: reads on from there to that sample.
    """
    takes = "missing" in kind_named(job.model["kind"]).parameters
    repair = "model.missing: mean takes the mean of its feature; or fill" if takes else "Fill"
    infinite = f"Replace it by NaN{', which model.missing: mean takes' * takes}"
    step = max(1, SCANNED_NBYTES // max(1, matrix.shape[1] * 8))
    for start in range(first, matrix.shape[0], step):
        values = matrix.read(0, start, min(start + step, matrix.shape[0]))
        values = values.toarray() if hasattr(values, "toarray") else np.asarray(values)
        wrong = np.argwhere(~np.isfinite(values))
        if len(wrong):
            row, column = start + int(wrong[0, 0]), int(wrong[0, 1])
            labels, value = matrix.labels, values[tuple(wrong[0])]
            advice = infinite if np.isinf(value) else f"{repair} such cells before they are read"
            named = f" ({labels.samples.name(row)})" if labels.samples.named else ""
            problem = (
                f"sample {row}{named} holds {'NaN' if np.isnan(value) else 'infinity'} in "
                f"{labels.features.name(column)}. {advice}"
            )
            break
    else:
        problem = re.sub(r"(\w+)='(\w+)'", r"model.\1: \2", str(error))
    return NonFiniteError(f"{hide_secrets(str(job.source['path']))}: {problem}")


def ledger_of(version: Version) -> Ledger:
    """The ledger of the data that a version was fitted to, checked. Raises SourceError."""
    where = f"the ledger of version {version.number}"
    with understood(where):
        arrays, document = version.read("ledger")
        kind = FileLedger if "files" in document else Ledger
        ledger = kind.from_saved(arrays, document)
        check_fields(ledger, where)
    return ledger


def computed_before(
    found: State,
    job: Job,
    versions: Sequence[Version],
    served: Version | None,
    history: History,
    mode: str,
) -> Version | None:
    """A candidate, or a version that was rolled back, with the same data and settings.

    Only versions newer than the served one count, and of candidates only those compared with it:
    data or settings that return to those of an older version are computed again. If only the times
    of chunks differ (files that were restored), the bytes decide. A damaged version does not
    count: it is computed again.

    versions : those of ``history`` that can be read.  served : that one of them.
    """
    parent, first = (served.id, served.number) if served else (None, 0)
    there = [
        one
        for one in reversed(versions)
        if one.number > first and (one.id in history.served or _parent(one) == parent)
    ]
    same = [one for one in there if one.entry.key == found.key]
    for version in [*same, *there]:
        with contextlib.suppress(SourceError):  # the version is damaged
            if version in same or _same_bytes(version, found, job, mode):
                version.verify()
                return version
    return None


def _same_bytes(version: Version, found: State, job: Job, mode: str) -> bool:
    """Whether a version was made with these settings of the bytes that are there."""
    if version.record.get("job", {}).get("settings") != settings_of(job):
        return False
    if found.source is None or found.seen is None or "ledger" not in version.parts:
        return False
    ledger = ledger_of(version)
    if ledger.rows != found.rows:
        return False
    return found.source.compare(ledger, found.rows, found.seen, mode == "full").kind == NOTHING


def _parent(version: Version) -> str | None:
    """The version that was served when this one was made; "" if that is damaged."""
    try:
        return version.parent
    except SourceError:
        return ""
