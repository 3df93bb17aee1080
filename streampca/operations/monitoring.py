"""The rows of a job, watched: the new ones by the promoted version, those of a fit by their own."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from streampca.errors import InvalidInputError
from streampca.model_store.model_store import MONITOR, Version
from streampca.model_store.stored_version import Part
from streampca.models.contract.registry import estimator_of
from streampca.models.explore.monitor import FIT, NEW, Monitor, monitored, watched
from streampca.models.results.result import Result
from streampca.operations.config import Job

ALPHA = 0.01  # where a job has a gate and no such section


def distances_of_fit(job: Job, result: Result, matrix: Any, scheduler: Any) -> Part:
    """T^2, SPE and missing cells of the rows of a fit, and their limits: one pass.

    They belong to the version, and do not change when rows come. Raises InvalidInputError.
    """
    model: Any = estimator_of(result)
    seen = _watched(job, model, matrix, scheduler, FIT)
    arrays = {"t2": seen.t2, "spe": seen.spe, "missing": seen.missing}
    return arrays, seen.to_dict()


def new_rows_under(job: Job, version: Version, matrix: Any, scheduler: Any) -> dict[str, Any]:
    """What the promoted version says of new rows: how many are in alarm, and by what limits.

    {"unknown": why} where it has no limits. Cost: one pass over these rows.
    """
    known = None
    if MONITOR in version.parts:
        arrays, _ = version.distances()
        known = arrays["t2"], arrays["spe"]
    try:
        seen = _watched(job, version.load(), matrix, scheduler, NEW, known)
    except InvalidInputError as error:
        why = str(error).partition(";")[0]
        return {"unknown": f"version {version.number}, made without a section monitor: {why}"}
    found = seen.to_dict()
    return {**found, "share": found["alarms"]["either"] / max(found["rows"], 1)}


def _watched(
    job: Job, model: Any, matrix: Any, scheduler: Any, rows: str, known: Any = None
) -> Monitor:
    result = monitored(model)
    model.set_params(memory_limit=job.memory_limit, scheduler=scheduler)
    alpha = float(job.monitor.get("alpha", ALPHA))
    passes = model._passes(model._matrix(matrix, of_fit=rows == FIT))
    return watched(result, passes, alpha, rows, known=known)


def refusal_of_outliers(gate: Mapping[str, float], found: Mapping[str, Any] | None) -> str:
    """Why gate.max_outliers refuses a version, or "".  found : of :func:`new_rows_under`."""
    limit = gate.get("max_outliers")
    if limit is None or found is None:
        return ""
    if not isinstance(found.get("share"), float):
        return f"the share of outliers is not known: {found.get('unknown', found)!s:.300}"
    if found["share"] <= limit:
        return ""
    alarms = found["alarms"]
    return (
        f"{alarms['either']} of {found['rows']} new rows are outliers ({alarms['t2']} by T2, "
        f"{alarms['spe']} by SPE), {found['share']:.3g}, which is over gate.max_outliers {limit:g}"
    )
