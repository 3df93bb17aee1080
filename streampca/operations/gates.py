"""The gates: how a new version differs from the promoted one, and whether it may replace it.

Every publication after the first passes all of them, whatever the change is called: data in other
units, cut off or exchanged come with any change of the source.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from streampca.errors import InvalidInputError
from streampca.models.results.decomposition import Decomposition
from streampca.models.results.drift import align, compare
from streampca.models.results.result import Result
from streampca.models.results.sampled_drift import sampled_drift
from streampca.models.side_data.feature_names import check_same_features
from streampca.operations.monitoring import refusal_of_outliers

JUMP = 20.0  # the default largest ratio of total variances, either way
GONE = 0.3  # the default largest share of samples that may be gone


@dataclass(frozen=True)
class Facts:
    """What the gates judge by.

    drift : from the promoted version, JSON-ready; None without one. "outliers" are of new rows.
    removed : share of the samples of the promoted version that the source no longer has.
    other_source : in what the source is another one; "" if it is not, or was accepted.
    """

    drift: Mapping[str, Any] | None = None
    removed: float = 0.0
    other_source: str = ""


def against(
    old: Result | None, new: Result, error: float | None, how: str, shared: int = 0
) -> tuple[Result, dict[str, Any] | None]:
    """(the new result aligned to the old one, its drift in JSON-ready form).

    error : mean squared error of the new rows under the old result.  how : see ``align``.
    shared : rows of the old result that the new one has too; "sampled" is what follows from them.
    """
    if old is None:
        return new, None
    if not isinstance(old, Decomposition) or not isinstance(new, Decomposition):
        kinds = f"a {old.kind} and a {new.kind} have no drift"
        return new, {"not_comparable": kinds}
    try:
        drift = compare(old, new).to_dict()
        drift["sampled"] = sampled_drift(old, new, shared).to_dict()
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


def refusal(gate: Mapping[str, float], facts: Facts) -> str:
    """Why the gates refuse a version, or ""."""
    for judge in (_of_source, _of_removed_rows, _of_drift, _of_outliers, _of_variance):
        if why := judge(gate, facts):
            return why
    return ""


def other_source(old: Result, new: Result, places: tuple[str, str], same_rows: bool) -> str:
    """In what a source is another one than that of the promoted version, or "".

    places : of the source, then and now.  same_rows : whether the old rows are known to be there.
    """
    then, now = places
    if then and then != now and not same_rows:
        return f"it is {now}, the promoted version was made of {then}"
    try:
        if len(new.labels.features) != len(old.labels.features):
            found, expected = len(new.labels.features), len(old.labels.features)
            raise InvalidInputError(f"it has {found} features, the promoted version {expected}")
        check_same_features(new.labels.features, old.labels.features)
    except InvalidInputError as problem:
        return str(problem)
    return ""


def share_gone(then: int, now: int) -> float:
    """The share of the samples of the promoted version that the source no longer has."""
    return max(then - now, 0) / max(then, 1)


def _of_source(gate: Mapping[str, float], facts: Facts) -> str:
    if not facts.other_source:
        return ""
    return f"the source is another one: {facts.other_source}; if it is meant: --accept-source"


def _of_removed_rows(gate: Mapping[str, float], facts: Facts) -> str:
    limit = gate.get("max_removed", GONE)
    if facts.removed <= limit:
        return ""
    return f"{facts.removed:.3g} of the samples are gone, which is over gate.max_removed {limit:g}"


def _of_drift(gate: Mapping[str, float], facts: Facts) -> str:
    """The limits that a job names."""
    if facts.drift is None or not set(gate) - {"max_removed", "max_outliers"}:
        return ""
    if "not_comparable" in facts.drift:
        return f"cannot be compared with the promoted version: {facts.drift['not_comparable']}"
    for name, value in (("max_angle", "max_angle"), ("max_error_ratio", "error_ratio")):
        limit, found = gate.get(name), facts.drift.get(value, 0.0)
        if limit is None:
            continue
        if isinstance(found, bool) or not isinstance(found, (int, float)) or math.isnan(found):
            return f"{value.replace('_', ' ')} is {found!r:.40}, no number; gate.{name} {limit:g}"
        if found > limit:
            return f"{value.replace('_', ' ')} {found:.4g} is over gate.{name} {limit:g}"
    return ""


def _of_outliers(gate: Mapping[str, float], facts: Facts) -> str:
    return refusal_of_outliers(gate, (facts.drift or {}).get("outliers"))


def _of_variance(gate: Mapping[str, float], facts: Facts) -> str:
    """Rows of zeros among data far from zero change the total variance, and so do other units.

    Data that did not vary before may vary as they like.
    """
    if facts.drift is None or "total_ratio" not in facts.drift:
        return ""
    limit, ratio = gate.get("max_variance_ratio", JUMP), facts.drift["total_ratio"]
    if ratio == math.inf or 1 / limit <= ratio <= limit:
        return ""
    return f"total variance x {ratio:.4g} is over gate.max_variance_ratio {limit:g}"
