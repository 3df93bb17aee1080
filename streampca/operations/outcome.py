"""What a refresh did, in one line of JSON; whether its version may be promoted."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from streampca.errors import InvalidInputError
from streampca.models.decomposition import Decomposition
from streampca.models.drift import align, compare
from streampca.models.result import Result
from streampca.models.saved_labels import plain
from streampca.sources.zarr.ledger import APPENDED, CHANGED

# --------------------------------------------------------------------------------------------------
# What a refresh did, in one line of JSON for whoever started it.

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


# --------------------------------------------------------------------------------------------------
# Whether a new version may take the place of the promoted one.

JUMP = 20.0  # of the total variance, either way, where a job says nothing


def against(
    old: Result | None, new: Result, error: float | None, how: str
) -> tuple[Result, dict[str, Any] | None]:
    """(the new result, aligned to the old one, and its drift as JSON takes it).

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


def refusal(gate: Mapping[str, float], drift: Mapping[str, Any] | None) -> str:
    """Why the gate refuses, or ""."""
    if not gate or drift is None:
        return ""
    if "not_comparable" in drift:
        return f"cannot be compared with the promoted version: {drift['not_comparable']}"
    for name, value in (("max_angle", "max_angle"), ("max_error_ratio", "error_ratio")):
        limit, found = gate.get(name), drift.get(value, 0.0)
        if limit is None:
            continue
        if isinstance(found, bool) or not isinstance(found, (int, float)) or math.isnan(found):
            return f"{value.replace('_', ' ')} is {found!r:.40}, no number; gate.{name} {limit:g}"
        if found > limit:
            return f"{value.replace('_', ' ')} {found:.4g} is over gate.{name} {limit:g}"
    return ""


def jump(gate: Mapping[str, float], drift: Mapping[str, Any] | None, change: str) -> str:
    """Why new or changed rows are not believed, or "": the total variance is another order.

    Rows of zeros among data far from zero look so, and other units. This gate is there unless
    ``gate.max_variance_ratio`` says otherwise. Columns that were constant are no jump.
    """
    if drift is None or "total_ratio" not in drift or change not in (APPENDED, CHANGED):
        return ""
    limit, ratio = gate.get("max_variance_ratio", JUMP), drift["total_ratio"]
    if ratio == math.inf or 1 / limit <= ratio <= limit:
        return ""
    return f"total variance x {ratio:.4g} is over gate.max_variance_ratio {limit:g}"
