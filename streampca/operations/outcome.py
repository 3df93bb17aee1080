"""The outcome of a refresh as one line of JSON, and how its version differs from the last one."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from streampca.errors import InvalidInputError
from streampca.matrix.labels import json_of
from streampca.models.results.decomposition import Decomposition
from streampca.models.results.drift import align, compare
from streampca.models.results.result import Result

# The outcome of a refresh, as one line of JSON.

UNCHANGED, PUBLISHED, REFUSED, PLANNED = "unchanged", "published", "refused", "planned"
ALREADY = "already"  # another refresh has published the same meanwhile
OVERDUE = "overdue"  # in addition to a status: samples have waited longer than allowed
# 79 is the first code after those of sysexits.h
EXIT = {UNCHANGED: 0, PUBLISHED: 0, ALREADY: 0, REFUSED: 65, PLANNED: 0, OVERDUE: 79}


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
    seconds: float = 0.0
    note: str = ""  # why existing samples are not used
    behind: int = 0  # how many
    behind_since: str = ""  # when a refresh first found that, ISO 8601
    overdue: bool = False
    by: str = ""  # host, process and time of the refresh that has published the version
    gate: str = ""  # why the gate refused
    drift: dict[str, Any] | None = None
    scores: dict[str, Any] | None = None
    removed: int = 0  # files of old versions

    @property
    def exit_code(self) -> int:
        """The exit code of the process."""
        return EXIT[self.status] or (EXIT[OVERDUE] if self.overdue else 0)

    def to_json(self) -> str:
        """One line of JSON."""
        return json_of({**vars(self), "exit": self.exit_code})


# What became of the components.


def against(
    old: Result | None, new: Result, error: float | None, how: str
) -> tuple[Result, dict[str, Any] | None]:
    """(the new result aligned to the old one, its drift in JSON-ready form).

    error : mean squared error of the new rows under the old result.  how : see ``align``.
    """
    if old is None:
        return new, None
    if not isinstance(old, Decomposition) or not isinstance(new, Decomposition):
        kinds = f"a {old.kind} and a {new.kind} have no drift"
        return new, {"not_comparable": kinds}
    try:
        drift = compare(old, new).to_dict()
        new = align(new, old, how)
    except InvalidInputError as problem:
        return new, {"not_comparable": str(problem)}
    if error is not None:
        own = max(old.total_variance - float(np.sum(old.explained_variance)), 0.0)
        own *= (old.weight - old.ddof) / max(old.weight, 1.0)
        floor = 1e-12 * max(old.total_variance, 1e-300)
        drift["new_rows_error"], drift["old_rows_error"] = error, own
        drift["error_ratio"] = max(error, floor) / max(own, floor)
    return new, drift
