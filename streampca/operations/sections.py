"""The entries of job files, in the table :data:`SECTIONS`, and reading YAML files of entries."""

from __future__ import annotations

import contextlib
import os
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from itertools import accumulate
from typing import Any

from streampca.errors import ConfigError
from streampca.models.contract.parameters import Parameter
from streampca.models.contract.registry import all_kinds
from streampca.paths import read_regular

# YAML files of entries, and the line of each entry.

MOST_BYTES = 1 << 16  # parsed in less than a second
MOST_DEPTH = 64
FLOAT = re.compile(r"[-+]?(\d+\.?\d*|\.\d+)[eE][-+]?\d+")  # 1e-4, which is text in YAML 1.1
ODD = (ValueError, LookupError, TypeError, AttributeError, ArithmeticError, RecursionError)


@dataclass(frozen=True)
class Origin:
    """The file of some entries.  lines : entry, such as "gate.max_angle", -> its line."""

    path: str
    lines: Mapping[str, int] = field(default_factory=dict)

    def at(self, entry: str) -> str:
        """``nightly.yaml:14: gate.max_angle``; for an absent entry, the line of its section."""
        inner = entry
        while inner and inner not in self.lines:
            inner = inner.rpartition(".")[0]
        line = f":{self.lines[inner]}" if inner else ""
        return f"{self.path}{line}: {entry}"


def read_yaml(path: str | os.PathLike[str], word: str = "entry") -> tuple[dict[str, Any], Origin]:
    """(entries, origin) of a YAML file of at most 64 KiB, without aliases.

    word : what messages call an entry.  Raises ConfigError.
    """
    import yaml

    class Loader(yaml.SafeLoader):  # type: ignore[misc]  # the library has no annotations
        def compose_node(self, parent: Any, index: Any) -> Any:
            if self.check_event(yaml.AliasEvent):
                line = self.peek_event().start_mark.line + 1
                raise ConfigError(
                    f"{path}:{line}: aliases (*name) are not allowed; write the entry out"
                )
            return super().compose_node(parent, index)

        def construct_mapping(self, node: Any, deep: bool = False) -> dict[Any, Any]:
            seen = set()
            for node_of_key, _ in node.value:
                key = self.construct_object(node_of_key, deep=True)
                line = node_of_key.start_mark.line + 1
                if not isinstance(key, str):
                    raise ConfigError(f"{path}:{line}: expected a name, not {key!r:.80}")
                if key in seen:
                    raise ConfigError(f"{path}:{line}: {key} is there twice; leave one out")
                seen.add(key)
            result: dict[Any, Any] = super().construct_mapping(node, deep)
            return result

    Loader.add_implicit_resolver("tag:yaml.org,2002:float", FLOAT, list("-+.0123456789"))
    try:
        loader = Loader(_text(path))
        node = loader.get_single_node()
        entries = None if node is None else loader.construct_document(node)
    except yaml.MarkedYAMLError as error:
        raise ConfigError(_no_yaml(str(path), error)) from None
    except ConfigError:
        raise
    except (yaml.YAMLError, *ODD) as error:  # e.g. the date 2020-99-99, or an empty !!int
        raise ConfigError(f"{path} is not YAML: {error}") from None
    if not isinstance(entries, dict):
        raise ConfigError(f"{path}: expected '{word}: value' lines")
    return entries, Origin(str(path), dict(_lines(node, "")))


def scalar(text: str) -> Any:
    """The value of a text as in a job file: a number, string, true, false, null, or a list."""
    import yaml

    for number in (int, float):
        with contextlib.suppress(ValueError):
            return number(text)
    try:
        return yaml.safe_load(text)
    except (yaml.YAMLError, *ODD):
        return text


def _text(path: str | os.PathLike[str]) -> str:
    """The text of a regular file of at most 64 KiB."""
    try:
        if os.stat(path).st_size > MOST_BYTES:
            raise ConfigError(f"{path} has more than {MOST_BYTES} bytes: no job file")
        text = read_regular(path, MOST_BYTES).decode("utf-8").replace("\r\n", "\n")
        deep = max(accumulate((c in "[{") - (c in "]}") for c in text), default=0)
        if deep > MOST_DEPTH:  # the parser would be very slow
            raise ConfigError(f"{path} is nested deeper than {MOST_DEPTH}: no job file")
        return text
    except OSError as error:
        raise ConfigError(f"{path}: {error.strerror or error}") from None


def _no_yaml(path: str, error: Any) -> str:
    """The message for a syntax error: where and why the parser stopped, with the line."""
    mark = error.problem_mark or error.context_mark
    context = f" {error.context}" if error.context else ""
    if mark is None:
        return f"{path} is not YAML: {error.problem}{context}"
    shown = (mark.get_snippet(indent=2) or "").partition("\n")[0].strip()
    misplaced = "block" in context or "mapping values" in str(error.problem)
    hint = "; is it indented as the lines around it?" if misplaced else ""
    return f"{path}:{mark.line + 1}: this is not YAML: {shown!r}: {error.problem}{context}{hint}"


def _lines(node: Any, start: str) -> Iterable[tuple[str, int]]:
    """(name, line) of all entries."""
    for key, value in node.value:
        yield f"{start}{key.value}", key.start_mark.line + 1
        if value.id == "mapping":
            yield from _lines(value, f"{start}{key.value}.")


# The entries of job files: :data:`SECTIONS`.
#
# Job files are checked by this table, ``streampca config schema`` prints it, and defaults are here.


@dataclass(frozen=True)
class Entry:
    """One entry of a section.

    kinds : the JSON types that it may have.  least, above : bounds of a number (>= and >).
    """

    kinds: tuple[str, ...]
    meaning: str
    default: Any = None
    required: bool = False
    choices: tuple[Any, ...] = ()
    least: float | None = None
    above: float | None = None
    place: bool = False  # a path or URL
    scheduler: bool = False  # the address of a scheduler
    nbytes: bool = False  # a number of bytes, or e.g. "512MiB"
    also: tuple[Any, ...] = ()  # accepted values besides addresses or bytes
    inner: Mapping[str, Entry] | None = None  # the entries of an object; None allows any


TEXT, NUMBER, WHOLE, OBJECT = ("string",), ("number",), ("integer",), ("object",)
FILES = {
    name: Entry(TEXT, f"{what} of TLS, a file")
    for name, what in {
        "tls_ca_file": "the authority",
        "tls_client_cert": "the client's certificate",
        "tls_client_key": "its key",
        "tls_scheduler_cert": "the scheduler's certificate",
        "tls_scheduler_key": "its key",
        "tls_worker_cert": "the workers' certificate",
        "tls_worker_key": "its key",
    }.items()
}
SECTIONS: dict[str, dict[str, Entry]] = {
    "": {
        "store": Entry(TEXT, "the model store: a directory or URL", required=True, place=True),
        "verify": Entry(
            TEXT,
            "how old chunks are checked: by length and time, or every byte",
            "stat",
            choices=("stat", "full"),
        ),
        "settle": Entry(
            NUMBER,
            "seconds without a write after which an append is taken to be complete",
            60.0,
            least=0,
        ),
        "keep": Entry(WHOLE, "number of versions to keep; older ones are removed", least=1),
        "align": Entry(
            TEXT,
            "flip and reorder components to match the promoted version",
            "order",
            choices=("order", "sign", "none"),
        ),
        "spans": Entry(
            ("string", "integer"),
            "most bytes of sums kept for spans of rows, so that a changed "
            "chunk costs its span and not a full fit; 0 keeps none",
            "64MiB",
            nbytes=True,
            also=(0, "0"),
        ),
        "memory_limit": Entry(("string", "integer"), "e.g. 512MiB", nbytes=True),
        "scheduler": Entry(
            TEXT, "a Dask scheduler, tcp://host:port", scheduler=True, also=("threads",)
        ),
    },
    "source": {
        "path": Entry(
            ("string", "array"), "the source: a path, a URL, or a list", required=True, place=True
        ),
        "variable": Entry(("string", "array"), "which array of a group or file"),
        "group": Entry(TEXT, "of a NetCDF, HDF5 or Zarr source, where the variable is"),
        "dim": Entry(("string", "integer", "array"), "sample dimension(s)"),
        "missing_value": Entry(NUMBER, "a number that means missing"),
        "missing_chunks": Entry(
            TEXT,
            "what an absent chunk means: its fill value, or missing cells",
            "error",
            choices=("error", "fill", "mask"),
        ),
        "external_links": Entry(
            ("boolean",), "accept links of an HDF5 file or a Zarr store to other files"
        ),
        "branch": Entry(TEXT, "of an Icechunk repository; its head is pinned (default: main)"),
        "tag": Entry(TEXT, "of an Icechunk repository"),
        "snapshot": Entry(TEXT, "of an Icechunk repository"),
        "multiallelic": Entry(
            TEXT, "variants of more than two alleles", "error", choices=("error", "drop")
        ),
        "columns": Entry(("array",), "of a table, the features (default: all numbers)"),
        "index": Entry(TEXT, "of a table, the column with the names of the samples"),
        "categorical": Entry(TEXT, "of a table, a feature of each category", choices=("onehot",)),
        "header": Entry(("boolean",), "of text, whether the first line holds names"),
        "na_values": Entry(("string", "array"), "of text, cells that mean missing, in quotes"),
        "decimal": Entry(TEXT, "of text, the decimal mark"),
        "thousands": Entry(TEXT, "of text, the mark between thousands"),
        "strip": Entry(TEXT, "of text, characters that do not belong to numbers"),
        "comment": Entry(TEXT, "of text, begins what is ignored of a line"),
        "delimiter": Entry(TEXT, "of text, a character, tab or blanks"),
        "encoding": Entry(TEXT, "of text, such as cp1252"),
        "feature_types": Entry(("string", "array"), "of a 10x file or an AnnData: 'all', or some"),
        "join": Entry(TEXT, "what several files have more of", choices=("samples", "features")),
    },
    "model": {"kind": Entry(TEXT, "the estimator; the rest are its parameters", "IncrementalPCA")},
    "gate": {
        "max_angle": Entry(NUMBER, "radians between the old span and the new one", above=0),
        "max_error_ratio": Entry(
            NUMBER, "error of the new rows under the old model over that of its own rows", above=0
        ),
        "max_variance_ratio": Entry(
            NUMBER,
            "total variance of the new version over that of the old one, or the inverse "
            "(default: 20)",
            above=1,
        ),
        "max_removed": Entry(
            NUMBER,
            "share of the old version's samples that the source may have lost (default: 0.3)",
            least=0,
        ),
    },
    "scores": {
        "path": Entry(
            TEXT, "path of a copy, a Zarr array; {version} becomes the number", place=True
        ),
        "rows": Entry(
            TEXT, "which rows are scored with the new model", "all", choices=("all", "new")
        ),
    },
    "cluster": {
        "address": Entry(
            TEXT, "a running Dask scheduler: tcp://host:port or tls://host:port", scheduler=True
        ),
        "class": Entry(
            TEXT,
            "a Dask cluster class, started for the job: LocalCluster, "
            "dask_jobqueue.SLURMCluster, dask_kubernetes.operator.KubeCluster",
        ),
        "arguments": Entry(OBJECT, "of the class, passed on unchanged"),
        "workers": Entry(WHOLE, "number of workers to start", least=1),
        "adapt": Entry(
            OBJECT,
            "start and stop workers as needed",
            inner={
                "minimum": Entry(WHOLE, "workers that stay", least=0),
                "maximum": Entry(WHOLE, "workers at most", required=True, least=1),
            },
        ),
        "security": Entry(OBJECT, "certificates (default: Dask's configuration)", inner=FILES),
        "read_timeout": Entry(NUMBER, "seconds that a worker waits for one block", above=0),
        "pause_timeout": Entry(
            NUMBER, "seconds that a worker, or the scheduler, may be paused or silent", above=0
        ),
        "span_timeout": Entry(NUMBER, "seconds that a span may take", above=0),
        "span_retries": Entry(WHOLE, "times that a span moves to another worker", least=0),
        "worker_timeout": Entry(NUMBER, "seconds that a pass waits for a first worker", above=0),
    },
}
OPTIONAL = ("gate", "scores", "cluster")


def schema() -> dict[str, Any]:
    """The JSON Schema of job files, for editors."""
    whole = _of(SECTIONS[""])
    whole["properties"] |= {
        name: _of(SECTIONS[name], more=name == "model") for name in SECTIONS if name
    }
    model = whole["properties"]["model"]
    kinds = {name: one for name, one in sorted(all_kinds().items()) if one.views == 1}
    model["properties"]["kind"]["enum"] = list(kinds)
    model["allOf"] = [_of_kind(name, one.parameters) for name, one in kinds.items()]
    whole["required"] += [name for name in SECTIONS if name and name not in OPTIONAL]
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": "A refresh job of streampca",
        **whole,
    }


def _of(table: Mapping[str, Entry], more: bool = False) -> dict[str, Any]:
    """The schema of one section.  more : other entries are allowed too."""
    properties = {}
    for name, entry in table.items():
        one: dict[str, Any] = {"description": entry.meaning, "type": list(entry.kinds)}
        if entry.choices:
            one["enum"] = list(entry.choices)
        if entry.default is not None:
            one["default"] = entry.default
        if entry.least is not None:
            one["minimum"] = entry.least
        if entry.above is not None:
            one["exclusiveMinimum"] = entry.above
        if entry.inner is not None:
            one |= _of(entry.inner)
        properties[name] = one
    required = [name for name, entry in table.items() if entry.required]
    return {
        "type": "object",
        "properties": properties,
        "required": required,
        "additionalProperties": more,
    }


def _of_kind(kind: str, parameters: Mapping[str, Parameter]) -> dict[str, Any]:
    """The schema of the section ``model`` for one kind of model."""
    properties: dict[str, Any] = {}
    for name, one in parameters.items():
        if one.process:
            continue
        properties[name] = {"description": one.meaning}
        if one.choices:
            properties[name]["enum"] = list(one.choices)
        if isinstance(one.default, (bool, int, float, str)):
            properties[name]["default"] = one.default
    condition = {"properties": {"kind": {"const": kind}}, "required": ["kind"]}
    return {"if": condition, "then": {"properties": properties}}
