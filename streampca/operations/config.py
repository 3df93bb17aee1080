"""Job files: every entry is checked before anything else happens. The estimator of a job."""

from __future__ import annotations

import contextlib
import math
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from streampca.errors import (
    ConfigError,
    InvalidInputError,
    InvalidTypeError,
    MemoryLimitError,
    hide_secrets,
    nearest,
)
from streampca.genetics.filters import VariantFilter
from streampca.models.contract.registry import all_kinds, kind_named
from streampca.models.pca.incremental_pca import IncrementalPCA
from streampca.models.pca.incremental_state import StateRequest
from streampca.operations.sections import OPTIONAL, SECTIONS, Entry, seconds_of, wrong
from streampca.operations.yaml_files import Origin, read_yaml
from streampca.store.places import FILES, refuse_inside

# The estimator of a job, and whether its parameters are usable.

MONITORED = ("PCA", "IncrementalPCA", "GenotypePCA")  # kinds with T2 and SPE of rows
SIDE = 64  # rows and columns of a dummy matrix


def build(kind: str, values: Mapping[str, Any], **running: Any) -> Any:
    """The unfitted estimator.

    values : of its parameters, as YAML holds them.  running : those of its passes.
    Raises InvalidInputError.
    """
    cls: Any = kind_named(kind)
    filters = {n for n, one in cls.parameters.items() if isinstance(one.default, VariantFilter)}
    made = {
        name: _filter(name, value) if name in filters and isinstance(value, Mapping) else value
        for name, value in values.items()
    }
    return cls(**made, **running)


def _filter(name: str, rules: Mapping[str, Any]) -> VariantFilter:
    try:
        return VariantFilter(**rules)
    except TypeError:
        known = ", ".join(vars(VariantFilter()))
        raise InvalidInputError(f"{name}={dict(rules)!r}; expected some of {known}") from None


def problem_of(kind: str, values: Mapping[str, Any]) -> tuple[str, str]:
    """(parameter, reason) for a value that is wrong for any data, or ("", "").

    Plans a fit of a dummy matrix; nothing is read.
    """
    parameters = kind_named(kind).parameters
    for name, parameter in parameters.items():
        if isinstance(parameter.default, bool) and not isinstance(values.get(name, True), bool):
            return name, f"{values[name]!r:.80}; expected true or false"
    try:
        build(kind, values)
        general = {n: value for n, value in values.items() if not parameters[n].needs_data}
        for name in (n for n, parameter in parameters.items() if parameter.counts_components):
            general[name] = _cut(general.get(name, parameters[name].default))
        model = build(kind, general, scheduler="threads", memory_limit="1TiB")
        with contextlib.suppress(MemoryLimitError):
            if isinstance(model, IncrementalPCA):
                StateRequest.of(model).check_appending((SIDE, SIDE))
            else:
                model.plan(np.broadcast_to(np.int8(0), (SIDE, SIDE)))
    except (InvalidInputError, InvalidTypeError) as error:
        name, _, reason = str(error).partition("=")
        return (name, reason) if name in values else ("", str(error))
    except (TypeError, ValueError, ArithmeticError) as error:
        return _of_another_type(kind, values, error)
    return "", ""


def _cut(count: Any) -> Any:
    """A number of components, or several, cut to what the dummy matrix can have."""
    if isinstance(count, list):
        return [_cut(one) for one in count]
    return min(count, SIDE) if type(count) is int else count


def _of_another_type(kind: str, values: Mapping[str, Any], error: Exception) -> tuple[str, str]:
    """(parameter, reason) for the value of a wrong type."""
    if len(values) == 1:
        ((name, value),) = values.items()
        return name, f"{value!r:.80}: {error}"
    for name, value in values.items():
        found = problem_of(kind, {name: value})
        if found[1]:
            return found
    return "", str(error)


# Job files: YAML, checked entry by entry.


@dataclass(frozen=True)
class Job:
    """A checked job file: ``streampca.operations.refresh`` runs it.  file : its path, or ""."""

    source: dict[str, Any]
    model: dict[str, Any]
    store: str
    verify: str = "stat"
    settle: float = 60.0
    keep: int | None = None
    align: str = "order"
    spans: int | str = "64MiB"
    memory_limit: int | str | None = None
    scheduler: str | None = None
    gate: dict[str, Any] = field(default_factory=dict)
    monitor: dict[str, Any] = field(default_factory=dict)
    scores: dict[str, Any] = field(default_factory=dict)
    freshness: dict[str, Any] = field(default_factory=dict)
    logging: dict[str, Any] = field(default_factory=dict)
    cluster: dict[str, Any] = field(default_factory=dict)
    metrics: str | None = None
    lineage: dict[str, Any] = field(default_factory=dict)
    file: str = ""

    def estimator(self, **running: Any) -> Any:
        """The unfitted model.  running : parameters that do not change results."""
        values = {name: value for name, value in self.model.items() if name != "kind"}
        return build(self.model["kind"], values, **running)


def read_job(path: str | os.PathLike[str]) -> Job:
    """The job of a YAML file. Raises ConfigError that names the entry and what is expected."""
    return check_job(*read_yaml(path))


def check_job(entries: Mapping[str, Any], where: str | Origin) -> Job:
    """The job of these entries, defaults filled in. Raises ConfigError."""
    origin = where if isinstance(where, Origin) else Origin(where)
    flat = {name: value for name, value in entries.items() if name not in SECTIONS}
    checked = _section("", flat, origin)
    for name in SECTIONS:
        if not name:
            continue
        section = entries.get(name)
        if section is None and name in OPTIONAL:
            continue
        if section is None:
            raise ConfigError(f"{origin.at(name)} is missing: a section of 'entry: value' lines")
        if not isinstance(section, dict):
            raise ConfigError(f"{origin.at(name)}: expected a section of 'entry: value' lines")
        check = CHECKS.get(name)
        checked[name] = check(section, origin) if check else _section(name, section, origin)
    if "cluster" in checked and "scheduler" in checked:
        raise ConfigError(
            f"{origin.at('scheduler')}: the section cluster says it; leave one of them out"
        )
    kind = checked["model"]["kind"]
    if "max_error_ratio" in checked.get("gate", {}) and not kind_named(kind).reconstructs:
        raise ConfigError(
            f"{origin.at('gate.max_error_ratio')}: a {kind} explains correlations, and has no "
            "error of its rows; leave it out, or gate by max_angle and max_variance_ratio"
        )
    for name, asked in (
        ("gate.max_outliers", "max_outliers" in checked.get("gate", {})),
        ("monitor", "monitor" in checked),
    ):
        if asked and kind not in MONITORED:
            raise ConfigError(
                f"{origin.at(name)}: {' or '.join(MONITORED)} watch rows, a {kind} does not; "
                "leave it out"
            )
    if checked.get("monitor", {}).get("alpha", 0.0) >= 1.0:
        raise ConfigError(f"{origin.at('monitor.alpha')}: expected less than 1")
    _check_places(checked, origin)
    return Job(**checked, file=origin.path)


def _check_places(checked: Mapping[str, Any], origin: Origin) -> None:
    """Refuse outputs within the source: they would become a part of it."""
    paths = checked["source"]["path"]
    sources = [paths] if isinstance(paths, str) else list(paths)
    outputs = {"store": checked["store"], "metrics": checked.get("metrics")}
    for entry in ("scores.path", "logging.file", "lineage.path"):
        section, _, name = entry.partition(".")
        outputs[entry] = checked.get(section, {}).get(name)
    for name, output in outputs.items():
        try:
            if output is not None:
                refuse_inside(output, sources, name)
        except InvalidInputError as error:
            raise ConfigError(f"{origin.at(name)}: {error}") from None


def _section(section: str, entries: Mapping[str, Any], origin: Origin) -> dict[str, Any]:
    more = [one for one in SECTIONS if one and not section]
    return _checked(SECTIONS[section], entries, origin, section and f"{section}.", more)


def _checked(
    table: Mapping[str, Entry],
    entries: Mapping[str, Any],
    origin: Origin,
    start: str,
    more: Sequence[str] = (),
) -> dict[str, Any]:
    """The entries of one section, defaults filled in.  more : further names for error messages."""
    for name in entries:
        if name not in table:
            names = [*table, *more]
            hint = nearest(name, names) or _elsewhere(name)
            raise ConfigError(
                f"{origin.at(start + name)}: unknown; expected one of {', '.join(names)}{hint}"
            )
    checked = {}
    for name, entry in table.items():
        value = entries.get(name, entry.default)
        if value is None:
            if entry.required:
                raise ConfigError(f"{origin.at(start + name)} is missing: {entry.meaning}")
            continue
        if why := wrong(entry, value):
            shown = f"{hide_secrets(repr(value)):.80}"
            raise ConfigError(f"{origin.at(start + name)}: {shown}: {why}")
        if entry.inner is not None:
            value = _checked(entry.inner, value, origin, f"{start}{name}.")
        checked[name] = value
    return checked


def _elsewhere(name: str) -> str:
    """A hint that an entry belongs in another section, or ""."""
    if name in SECTIONS[""]:
        return f"; {name} belongs outside the sections"
    sections = [one for one, table in SECTIONS.items() if one and name in table]
    sections += ["model"] * (not sections and _is_parameter(name))
    return f"; {name} belongs in the section {sections[0]}" if sections else ""


def _is_parameter(name: str) -> bool:
    return any(name in kind.parameters for kind in all_kinds().values())


def check_cluster(entries: Any, where: str | Origin) -> dict[str, Any]:
    """Check the section ``cluster``; imports and starts nothing. Raises ConfigError."""
    origin = where if isinstance(where, Origin) else Origin(where)
    if not isinstance(entries, dict):
        raise ConfigError(f"{origin.at('cluster')}: expected a section of 'entry: value' lines")
    checked = _section("cluster", entries, origin)
    if "address" in checked and (
        both := checked.keys() & {"class", "arguments", "workers", "adapt"}
    ):
        raise ConfigError(
            f"{origin.at('cluster.address')}: a running scheduler takes no {min(both)}; "
            "leave one out"
        )
    kind = checked.setdefault("class", "LocalCluster") if "address" not in checked else ""
    if kind and not all(part.isidentifier() for part in kind.split(".")):
        raise ConfigError(
            f"{origin.at('cluster.class')}: {kind!r:.80}: "
            "expected such as dask_jobqueue.SLURMCluster"
        )
    adapt = checked.get("adapt", {})
    if adapt.get("minimum", 0) > adapt.get("maximum", math.inf):
        raise ConfigError(f"{origin.at('cluster.adapt')}: minimum is more than maximum")
    return checked


def _model(entries: Mapping[str, Any], origin: Origin) -> dict[str, Any]:
    """Check the section ``model``: its entries are the parameters of the estimator."""
    kind = entries.get("kind", SECTIONS["model"]["kind"].default)
    if not isinstance(kind, str) or kind not in all_kinds():
        raise ConfigError(
            f"{origin.at('model.kind')}: {kind!r:.80}: "
            f"expected one of {', '.join(sorted(all_kinds()))}{nearest(kind, all_kinds())}"
        )
    if kind_named(kind).views == 2:
        raise ConfigError(
            f"{origin.at('model.kind')}: {kind} relates two sources, and a job follows the rows of "
            "one. Run: streampca fit x.zarr y.zarr --model NAME -o model"
        )
    values = {name: value for name, value in entries.items() if name != "kind"}
    known = [name for name, one in kind_named(kind).parameters.items() if not one.process]
    for name, value in values.items():
        at = origin.at(f"model.{name}")
        if name not in known:
            hint = nearest(name, known) or (_elsewhere(name) if name in SECTIONS[""] else "")
            raise ConfigError(
                f"{at}: {kind} has no such parameter; it has {', '.join(known)}{hint}"
            )
        if isinstance(value, float) and not math.isfinite(value):
            raise ConfigError(f"{at}: {value}; expected a finite number")
    for name in (n for n in values if kind_named(kind).parameters[n].counts_components):
        k = values[name]
        if isinstance(k, bool) or (isinstance(k, int | float) and k <= 0):
            raise ConfigError(f"{origin.at(f'model.{name}')}: {k}; expected more than 0")
    name, why = problem_of(kind, values)
    if why:
        raise ConfigError(f"{origin.at(f'model.{name}' if name else 'model')}: {why}")
    return {"kind": kind, **values}


def _scores(entries: Mapping[str, Any], origin: Origin) -> dict[str, Any]:
    """Check the section ``scores``: a local path, with or without {version}."""
    checked = _section("scores", entries, origin)
    path = checked.get("path", "")
    if "://" in path:
        raise ConfigError(f"{origin.at('scores.path')}: scores are written to disk; give a path")
    if path.lower().endswith(FILES):
        raise ConfigError(
            f"{origin.at('scores.path')}: {path!r:.80}: a Zarr array is written; expected a name "
            "such as scores.zarr"
        )
    if "{" in (rest := path.replace("{version}", "")):
        raise ConfigError(
            f"{origin.at('scores.path')}: {path!r:.80}: only {{version}} stands for something"
            + nearest(rest[rest.index("{") :], ["{version}"])
        )
    return checked


def _freshness(entries: Mapping[str, Any], origin: Origin) -> dict[str, Any]:
    """Check the section ``freshness``: a warning comes before an error."""
    checked = _section("freshness", entries, origin)
    if len(checked) == 2 and seconds_of(checked["warn_after"]) > seconds_of(checked["error_after"]):
        raise ConfigError(f"{origin.at('freshness.warn_after')}: it is more than error_after")
    return checked


def _logging(entries: Mapping[str, Any], origin: Origin) -> dict[str, Any]:
    """Check the section ``logging``: a local file."""
    checked = _section("logging", entries, origin)
    if "://" in checked.get("file", ""):
        raise ConfigError(f"{origin.at('logging.file')}: logs are written to disk; give a path")
    return checked


def _lineage(entries: Mapping[str, Any], origin: Origin) -> dict[str, Any]:
    """Check the section ``lineage``: a file, an address of a server, or both."""
    checked = _section("lineage", entries, origin)
    if not checked.keys() & {"path", "url"}:
        raise ConfigError(f"{origin.at('lineage')}: expected a path, a url, or both")
    if "://" in checked.get("path", ""):
        raise ConfigError(f"{origin.at('lineage.path')}: a file is written; an address is a url:")
    return checked


CHECKS: dict[str, Callable[[Any, Origin], dict[str, Any]]] = {
    "model": _model,
    "cluster": check_cluster,
    "scores": _scores,
    "freshness": _freshness,
    "lineage": _lineage,
    "logging": _logging,
}  # sections with a check of their own
