"""Whether a new version may take the place of the promoted one."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import numpy as np

from streampca.errors import InvalidInputError
from streampca.models.decomposition import Decomposition
from streampca.models.drift import align, compare
from streampca.sources.ledger import APPENDED, CHANGED

JUMP = 20.0  # of the total variance, either way, where a job says nothing


def against(
    old: Decomposition | None, new: Decomposition, error: float | None, how: str
) -> tuple[Decomposition, dict[str, Any] | None]:
    """(the new result, aligned to the old one, and its drift as JSON takes it).

    error : mean squared error of the new rows under the old result.  how : see ``align``.
    """
    if old is None:
        return new, None
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
