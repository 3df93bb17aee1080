"""Job files: YAML that is checked, entry by entry, before anything else happens."""

from __future__ import annotations

import ipaddress
import math
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from streampca.errors import InvalidInputError
from streampca.jobs.sections import MODELS, NUMBER, OPTIONAL, SECTIONS, Entry
from streampca.sources.urls import hide_secrets

MOST_BYTES = 1 << 16  # parsed in less than a second
SCHEMES = ("s3", "gs", "gcs", "az", "abfs", "abfss", "https")  # that a job may read from
RUNNING = ("memory_limit", "scheduler", "progress", "checkpoint", "warm_start", "rates")


class ConfigError(InvalidInputError):
    """A job file that cannot be used: exit code 78."""


@dataclass(frozen=True)
class Job:
    """A checked job file: ``streampca.jobs.refresh`` runs it."""

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
    scores: dict[str, Any] = field(default_factory=dict)
    cluster: dict[str, Any] = field(default_factory=dict)

    def estimator(self, **running: Any) -> Any:
        """The unfitted model.  running : parameters that change no result."""
        settings = {name: value for name, value in self.model.items() if name != "kind"}
        kind = MODELS[self.model["kind"]]
        known = kind().get_params()
        running = {name: value for name, value in running.items() if name in known}
        return kind(**settings, **running)


def read_job(path: str | os.PathLike[str]) -> Job:
    """The job that a YAML file describes. Raises ConfigError, with the entry and what it takes."""
    return check_job(read_yaml(path), str(path))


def read_yaml(path: str | os.PathLike[str]) -> dict[str, Any]:
    """The entries of a YAML file without aliases, of at most 64 KiB. Raises ConfigError."""
    import yaml

    class Loader(yaml.SafeLoader):
        def compose_node(self, parent: Any, index: Any) -> Any:
            if self.check_event(yaml.AliasEvent):
                raise ConfigError(f"{path}: aliases (*name) are not taken; write the entry out")
            return super().compose_node(parent, index)

        def construct_mapping(self, node: Any, deep: bool = False) -> dict[Any, Any]:
            seen = set()
            for node_of_key, _ in node.value:
                key = self.construct_object(node_of_key, deep=True)
                if not isinstance(key, str) or key in seen:
                    raise ConfigError(f"{path}: {key!r} is there twice, or is no name")
                seen.add(key)
            return super().construct_mapping(node, deep)

    try:
        if Path(path).stat().st_size > MOST_BYTES:
            raise ConfigError(f"{path} has more than {MOST_BYTES} bytes: no job file")
        entries = yaml.load(Path(path).read_text(encoding="utf-8"), Loader)  # a SafeLoader
    except OSError as error:
        raise ConfigError(f"{path}: {error.strerror or error}") from None
    except (yaml.YAMLError, UnicodeDecodeError, RecursionError) as error:
        raise ConfigError(f"{path} is not YAML: {error}") from None
    if not isinstance(entries, dict):
        raise ConfigError(f"{path}: expected 'entry: value' lines")
    return entries


def check_job(entries: Mapping[str, Any], where: str) -> Job:
    """The job of these entries, defaults filled in. Raises ConfigError."""
    flat = {name: value for name, value in entries.items() if name not in SECTIONS}
    checked = _section("", flat, where)
    for name in SECTIONS:
        if not name:
            continue
        given = entries.get(name)
        if given is None and name in OPTIONAL:
            continue
        if not isinstance(given, dict):
            raise ConfigError(f"{where}: {name}: expected a section of 'entry: value' lines")
        checked[name] = CHECKS.get(name, partial(_section, name))(given, where)
    if "cluster" in checked and "scheduler" in checked:
        raise ConfigError(f"{where}: scheduler: the section cluster says it; leave one of them out")
    return Job(**checked)


def _section(section: str, entries: Mapping[str, Any], where: str) -> dict[str, Any]:
    start = f"{where}: {section + '.' if section else ''}"
    more = [one for one in SECTIONS if one and not section]
    return _checked(SECTIONS[section], entries, start, more)


def _checked(
    table: Mapping[str, Entry], entries: Mapping[str, Any], start: str, more: Sequence[str] = ()
) -> dict[str, Any]:
    """The entries of one section, defaults filled in.  more : names that errors offer too."""
    for name in entries:
        if name not in table:
            names = ", ".join([*table, *more])
            raise ConfigError(f"{start}{name}: unknown; expected one of {names}")
    checked = {}
    for name, entry in table.items():
        value = entries.get(name, entry.default)
        if value is None:
            if entry.required:
                raise ConfigError(f"{start}{name} is missing: {entry.words}")
            continue
        if why := _wrong(entry, value):
            raise ConfigError(f"{start}{name}: {hide_secrets(repr(value)):.80}: {why}")
        if entry.inner is not None:
            value = _checked(entry.inner, value, f"{start}{name}.")
        checked[name] = value
    return checked


def check_cluster(entries: Any, where: str) -> dict[str, Any]:
    """The section ``cluster``: nothing is imported, started or asked. Raises ConfigError."""
    if not isinstance(entries, dict):
        raise ConfigError(f"{where}: cluster: expected a section of 'entry: value' lines")
    checked = _section("cluster", entries, where)
    if "address" in checked and (
        both := checked.keys() & {"class", "arguments", "workers", "adapt"}
    ):
        raise ConfigError(
            f"{where}: cluster.address: a running scheduler takes no {min(both)}; leave one out"
        )
    kind = checked.setdefault("class", "LocalCluster") if "address" not in checked else ""
    if kind and not all(part.isidentifier() for part in kind.split(".")):
        raise ConfigError(
            f"{where}: cluster.class: {kind!r:.80}: expected such as dask_jobqueue.SLURMCluster"
        )
    adapt = checked.get("adapt", {})
    if adapt.get("minimum", 0) > adapt.get("maximum", math.inf):
        raise ConfigError(f"{where}: cluster.adapt: minimum is more than maximum")
    return checked


def _model(entries: Mapping[str, Any], where: str) -> dict[str, Any]:
    """The model's section: its parameters are those of the estimator."""
    kind = entries.get("kind", SECTIONS["model"]["kind"].default)
    if kind not in MODELS:
        raise ConfigError(f"{where}: model.kind: {kind!r:.80}: expected one of {tuple(MODELS)}")
    known = [name for name in MODELS[kind]().get_params() if name not in RUNNING]
    for name, value in entries.items():
        if name != "kind" and name not in known:
            raise ConfigError(
                f"{where}: model.{name}: {kind} has no such parameter; it has {', '.join(known)}"
            )
        if isinstance(value, float) and not math.isfinite(value):
            raise ConfigError(f"{where}: model.{name}: {value}; expected a finite number")
    k = entries.get("n_components")
    if isinstance(k, bool) or (isinstance(k, int | float) and k <= 0):
        raise ConfigError(f"{where}: model.n_components: {k}; expected more than 0")
    return {"kind": kind, **{name: value for name, value in entries.items() if name != "kind"}}


CHECKS = {"model": _model, "cluster": check_cluster}  # sections with a check of their own


def _wrong(entry: Entry, value: Any) -> str:
    """Why a value cannot be taken, or ""."""
    if _json_type(value) not in entry.kinds and not (
        entry.kinds == NUMBER and _json_type(value) == "integer"
    ):
        return f"expected {' or '.join(entry.kinds)}"
    if entry.choices and value not in entry.choices:
        return f"expected one of {', '.join(map(str, entry.choices))}"
    if isinstance(value, int | float) and not isinstance(value, bool):
        if not math.isfinite(value):
            return "expected a finite number"
        if entry.least is not None and value < entry.least:
            return f"expected at least {entry.least:g}"
        if entry.above is not None and value <= entry.above:
            return f"expected more than {entry.above:g}"
    if entry.scheduler:
        return _bad_scheduler(value)
    if entry.place:
        found = [_bad_place(one) for one in (value if isinstance(value, list) else [value])]
        return next((why for why in found if why), "")
    return ""


def _bad_place(place: Any) -> str:
    """Why a path or URL is not taken, or ""."""
    if not isinstance(place, str) or not place or "\0" in place:
        return "expected a path or URL"
    if "::" in place:
        return "chained URLs are not taken"
    if "://" not in place:
        return ""
    try:
        parts = urlsplit(place)
        host = parts.hostname or ""
    except ValueError:
        return "expected a path or URL"
    if parts.scheme not in SCHEMES:
        return f"expected a path, or one of {', '.join(f'{one}://' for one in SCHEMES)}"
    if parts.password is not None:
        return "credentials do not belong into a file; give them by the environment"
    try:
        address = ipaddress.ip_address(host)
    except ValueError:
        return "" if host != "localhost" or parts.scheme != "https" else "expected a public host"
    return "expected a host by its name" if not address.is_global else ""


def _bad_scheduler(address: str) -> str:
    """Why the address of a scheduler is not taken, or ""."""
    try:
        parts = urlsplit(address)
        good = parts.scheme in ("tcp", "tls") and parts.hostname and parts.port
    except ValueError:
        good = False
    return "" if good else "expected tcp://host:port or tls://host:port"


def _json_type(value: Any) -> str:
    for kind, name in ((bool, "boolean"), (int, "integer"), (float, "number"), (str, "string"),
                       (list, "array"), (dict, "object")):  # fmt: skip
        if isinstance(value, kind):
            return name
    return "null"
