"""The outcome of a refresh as one line of JSON, and since when its job lags behind its source."""

from __future__ import annotations

import contextlib
import datetime
import json
import logging
from dataclasses import dataclass, field
from typing import Any

from streampca.matrix.labels import json_of
from streampca.model_store.garbage import sizes_of_versions
from streampca.model_store.history import now
from streampca.model_store.model_store import ModelStore

logger = logging.getLogger(__name__)
UNCHANGED, PUBLISHED, REFUSED, PLANNED = "unchanged", "published", "refused", "planned"
ALREADY = "already"  # another refresh has published the same meanwhile
OVERDUE = "overdue"  # in addition to a status: samples have waited longer than allowed
# 79 is the first code after those of sysexits.h
EXIT = {UNCHANGED: 0, PUBLISHED: 0, ALREADY: 0, REFUSED: 65, PLANNED: 0, OVERDUE: 79}


NAME = "behind.json"  # in the model store, only while a job lags behind


@dataclass
class Outcome:
    """What a refresh did, printed as one line of JSON.

    status : "unchanged", "published", "already" (another refresh, ``by``, published the same
    meanwhile), "refused" (by the gate; the candidate is kept) or "planned" (a dry run).
    change, why : what was found.  how : what was done ("nothing", "append", "spans", "full",
    "scores").  checked : how old chunks were checked.  verified_bytes : read for that.
    """

    status: str
    store: str
    change: str = ""
    why: str = ""
    how: str = "nothing"
    checked: str = ""
    version: int | None = None
    previous: int | None = None
    served: int | None = None  # the version that readers get now
    samples: int = 0
    new_samples: int = 0
    chunk_reads: int = 0
    bytes: int = 0
    verified_bytes: int = 0
    resumed_blocks: int = 0  # taken from an interrupted refresh
    passes: int = 0
    peak_bytes: int | None = None  # memory that the fit took at most
    planned_bytes: int | None = None  # and its plan
    retries: int = 0  # times that it began again, because the source was being written
    seconds: float = 0.0
    note: str = ""  # why existing samples are not used
    behind: int = 0  # how many
    behind_since: str = ""  # when a refresh first found that, ISO 8601
    overdue: bool = False
    by: str = ""  # host, process and time of the refresh that has published the version
    gate: str = ""  # why the gate refused
    drift: dict[str, Any] | None = None
    scores: dict[str, Any] | None = None
    removed: int = 0  # files of old versions; in a dry run those that would go
    run: str = ""  # its id, as in logs and notes
    removed_bytes: int = 0
    removed_versions: list[int] = field(default_factory=list)

    @property
    def exit_code(self) -> int:
        """The exit code of the process."""
        return EXIT[self.status] or (EXIT[OVERDUE] if self.overdue else 0)

    def log(self) -> None:
        """Log how the refresh ended: a warning if it was refused, or leaves samples behind."""
        attention = self.status == REFUSED or self.behind
        text = f"{self.status}: {self.gate or self.why}"
        if self.behind:
            text += f"; {self.behind} samples are not taken, since {self.behind_since}: {self.note}"
        level = logging.WARNING if attention else logging.INFO
        kept = ("status", "change", "how", "samples", "new_samples", "chunk_reads", "bytes")
        names = (*kept, "behind", "behind_since", "gate", "removed", "seconds")
        logger.log(level, text, extra={name: getattr(self, name) for name in names})

    def to_json(self) -> str:
        """One line of JSON."""
        return json_of({**vars(self), "exit": self.exit_code})


def collect(store: ModelStore, keep: int | None, outcome: Outcome, dry_run: bool = False) -> None:
    """Remove what ``keep:`` lets go; or note what would go once a version is published."""
    if keep is None:
        return
    numbers = {one.id: one.number for one in store.versions()}
    files = store.gc(keep, dry_run=dry_run, coming=dry_run, reason=f"keep: {keep}")
    removed = sizes_of_versions(files)
    outcome.removed, outcome.removed_bytes = len(files), sum(one.nbytes for one in files)
    outcome.removed_versions = sorted(numbers[one] for one in removed if one in numbers)


# Since when a job has not used rows that exist: stored in its model store.


def behind_since(place: str, first: int, behind: int) -> str:
    """When a refresh first found that sample ``first`` is not used: ISO 8601, UTC; or "".

    place : of the model store.  behind : how many samples are not used. Writes nothing.
    """
    if not behind:
        return ""
    noted = _noted(ModelStore(place))
    return str(noted["since"]) if noted.get("first") == first else now()


def first_behind(place: str) -> int | None:
    """The first sample that the last refresh did not use, if it noted one."""
    first = _noted(ModelStore(place)).get("first")
    return first if type(first) is int and first >= 0 else None


def note_behind(place: str, first: int, behind: int) -> str:
    """As ``behind_since``, and stored for the next refresh. Cost: a read, a write if it changed."""
    store = ModelStore(place)
    if not store.exists():
        return behind_since(place, first, behind)
    noted = _noted(store)
    since = behind_since(place, first, behind)
    if not behind and noted:
        store.backend.delete(NAME)
    elif behind and noted != {"first": first, "since": since}:
        store.backend.put(NAME, json.dumps({"first": first, "since": since}).encode())
    return since


def seconds_since(since: str) -> float:
    """Seconds since an ISO 8601 time; 0.0 for ""."""
    if not since:
        return 0.0
    begun = datetime.datetime.fromisoformat(since)
    return (datetime.datetime.now(datetime.UTC) - begun).total_seconds()


def _noted(store: ModelStore) -> dict[str, Any]:
    """What was stored; {} if nothing was, or it is malformed."""
    with contextlib.suppress(ValueError, TypeError):
        noted = json.loads(store.backend.get(NAME) or b"{}")
        if isinstance(noted, dict) and isinstance(noted.get("since"), str):
            seconds_since(noted["since"])
            return noted
    return {}
