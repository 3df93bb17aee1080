"""What a refresh did, in one line of JSON for whoever started it."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any

from streampca.models.saved_labels import plain

UNCHANGED, PUBLISHED, REFUSED, PLANNED = "unchanged", "published", "refused", "planned"
OVERDUE = "overdue"  # beside a status: samples wait longer than whoever started it puts up with
# 79 is the first code behind those of sysexits.h
EXIT = {UNCHANGED: 0, PUBLISHED: 0, REFUSED: 65, PLANNED: 0, OVERDUE: 79}


@dataclass
class Outcome:
    """What a refresh did: one line of JSON for whoever started it.

    status : "unchanged", "published", "refused" (by the gate; the candidate is kept) or "planned"
    (a dry run).  change, why, how : what was found, and what was done ("nothing", "append",
    "spans", "full").  checked : how old chunks were.  verified_bytes : read to check them.
    """

    status: str
    store: str
    change: str = ""
    why: str = ""
    how: str = "nothing"
    checked: str = ""
    version: int | None = None
    previous: int | None = None
    served: int | None = None  # the version that readers get, whatever was done
    samples: int = 0
    new_samples: int = 0
    chunk_reads: int = 0
    bytes: int = 0
    verified_bytes: int = 0
    resumed_blocks: int = 0  # taken from an interrupted refresh
    seconds: float = 0.0
    note: str = ""  # why samples that are there are not taken
    behind: int = 0  # how many
    behind_since: str = ""  # when a refresh first found so, ISO 8601
    overdue: bool = False
    gate: str = ""  # why it refused
    drift: dict[str, Any] | None = None
    scores: dict[str, Any] | None = None
    removed: int = 0  # files of old versions

    @property
    def exit_code(self) -> int:
        """Of the process."""
        return EXIT[self.status] or (EXIT[OVERDUE] if self.overdue else 0)

    def to_json(self) -> str:
        """One line."""
        return json.dumps({**vars(self), "exit": self.exit_code}, default=plain)
