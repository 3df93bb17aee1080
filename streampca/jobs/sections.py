"""What a job file may hold: the table :data:`SECTIONS`.

It is what is checked, what ``streampca config schema`` prints, and what the defaults are.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from streampca.models.parameters import Parameter
from streampca.models.registry import KINDS


@dataclass(frozen=True)
class Entry:
    """One entry of a section.

    kinds : JSON types that it may have.  least, above : bounds of a number (at least, more than).
    """

    kinds: tuple[str, ...]
    words: str
    default: Any = None
    required: bool = False
    choices: tuple[Any, ...] = ()
    least: float | None = None
    above: float | None = None
    place: bool = False  # a path or URL
    scheduler: bool = False  # the address of one
    nbytes: bool = False  # a number of bytes, or words for it
    also: tuple[Any, ...] = ()  # what is taken beside addresses or bytes
    inner: Mapping[str, Entry] | None = None  # of an object: its entries, None leaves them open


TEXT, NUMBER, WHOLE, OBJECT = ("string",), ("number",), ("integer",), ("object",)
FILES = {
    name: Entry(TEXT, f"{what} of TLS, a file")
    for name, what in {
        "tls_ca_file": "the authority",
        "tls_client_cert": "the client's certificate", "tls_client_key": "its key",
        "tls_scheduler_cert": "the scheduler's certificate", "tls_scheduler_key": "its key",
        "tls_worker_cert": "the workers' certificate", "tls_worker_key": "its key",
    }.items()
}  # fmt: skip
SECTIONS: dict[str, dict[str, Entry]] = {
    "": {
        "store": Entry(TEXT, "the model store: a directory or URL", required=True, place=True),
        "verify": Entry(
            TEXT, "how old chunks are checked: by length and time, or every byte", "stat",
            choices=("stat", "full"),
        ),
        "settle": Entry(
            NUMBER, "seconds without a write after which an append is taken to be over", 60.0,
            least=0,
        ),
        "keep": Entry(WHOLE, "versions that stay; older ones are removed", least=1),
        "align": Entry(
            TEXT, "turn and reorder components as the promoted version has them", "order",
            choices=("order", "sign", "none"),
        ),
        "spans": Entry(
            ("string", "integer"), "most bytes of sums kept for spans of rows, so that a changed "
            "chunk costs its span and not a full fit; 0 keeps none", "64MiB", nbytes=True,
            also=(0, "0"),
        ),
        "memory_limit": Entry(("string", "integer"), "such as 512MiB", nbytes=True),
        "scheduler": Entry(TEXT, "a Dask scheduler, tcp://host:port", scheduler=True,
                           also=("threads",)),
    },
    "source": {
        "path": Entry(("string", "array"), "what is read: path, URL, or a list", required=True,
                      place=True),
        "variable": Entry(("string", "array"), "which array of a group or file"),
        "dim": Entry(("string", "integer", "array"), "sample dimension(s)"),
        "missing_value": Entry(NUMBER, "a number that means missing"),
        "missing_chunks": Entry(TEXT, "what an absent chunk is: its fill value, or missing cells",
                                "error", choices=("error", "fill", "mask")),
        "branch": Entry(TEXT, "of an Icechunk repository; its head is pinned; main if not said"),
        "tag": Entry(TEXT, "of an Icechunk repository"),
        "snapshot": Entry(TEXT, "of an Icechunk repository"),
        "multiallelic": Entry(TEXT, "variants of more than two alleles", "error",
                              choices=("error", "drop")),
    },
    "model": {
        "kind": Entry(TEXT, "the estimator; the rest are its parameters", "IncrementalPCA"),
    },
    "gate": {
        "max_angle": Entry(NUMBER, "radians between the old span and the new one", above=0),
        "max_error_ratio": Entry(
            NUMBER, "error of the new rows under the old model over that of its own rows", above=0
        ),
        "max_variance_ratio": Entry(
            NUMBER, "total variance of the new version over that of the old one, or the inverse, "
            "where rows were appended or changed; 20 where nothing is said", above=1
        ),
    },
    "scores": {
        "path": Entry(TEXT, "where a copy is put, a Zarr array; {version} becomes the number",
                      place=True),
        "rows": Entry(TEXT, "which rows are scored with the new model", "all",
                      choices=("all", "new")),
    },
    "cluster": {
        "address": Entry(TEXT, "a running Dask scheduler: tcp://host:port or tls://host:port",
                         scheduler=True),
        "class": Entry(TEXT, "of Dask clusters, started for the job: LocalCluster, "
                       "dask_jobqueue.SLURMCluster, dask_kubernetes.operator.KubeCluster"),
        "arguments": Entry(OBJECT, "of the class, passed on as they are"),
        "workers": Entry(WHOLE, "how many are started", least=1),
        "adapt": Entry(OBJECT, "workers come and go with the work", inner={
            "minimum": Entry(WHOLE, "workers that stay", least=0),
            "maximum": Entry(WHOLE, "workers at most", required=True, least=1),
        }),
        "security": Entry(OBJECT, "certificates; without it Dask's own configuration", inner=FILES),
        "read_timeout": Entry(NUMBER, "seconds that a worker waits for one block", above=0),
        "pause_timeout": Entry(
            NUMBER, "seconds that a worker with work may be paused, or not heard of", above=0
        ),
        "span_timeout": Entry(NUMBER, "seconds that a span may take", above=0),
        "span_retries": Entry(WHOLE, "times that one is given to another worker then", least=0),
        "worker_timeout": Entry(NUMBER, "seconds that a pass waits while it has none", above=0),
    },
}  # fmt: skip
OPTIONAL = ("gate", "scores", "cluster")


def schema() -> dict[str, Any]:
    """The JSON Schema of job files, for editors."""
    whole = _of(SECTIONS[""])
    whole["properties"] |= {
        name: _of(SECTIONS[name], more=name == "model") for name in SECTIONS if name
    }
    model = whole["properties"]["model"]
    model["properties"]["kind"]["enum"] = sorted(KINDS)
    model["allOf"] = [_of_kind(name, one.parameters) for name, one in sorted(KINDS.items())]
    whole["required"] += [name for name in SECTIONS if name and name not in OPTIONAL]
    return {"$schema": "https://json-schema.org/draft/2020-12/schema",
            "title": "A refresh job of streampca", **whole}  # fmt: skip


def _of(table: Mapping[str, Entry], more: bool = False) -> dict[str, Any]:
    """The schema of one section.  more : other entries are taken too."""
    properties = {}
    for name, entry in table.items():
        one: dict[str, Any] = {"description": entry.words, "type": list(entry.kinds)}
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
    return {"type": "object", "properties": properties, "required": required,
            "additionalProperties": more}  # fmt: skip


def _of_kind(kind: str, parameters: Mapping[str, Parameter]) -> dict[str, Any]:
    """What the section of the model may hold besides, where it is of this kind."""
    properties: dict[str, Any] = {}
    for name, one in parameters.items():
        if one.process:
            continue
        properties[name] = {"description": one.meaning}
        if one.choices:
            properties[name]["enum"] = list(one.choices)
        if isinstance(one.default, (bool, int, float, str)):
            properties[name]["default"] = one.default
    chosen = {"properties": {"kind": {"const": kind}}, "required": ["kind"]}
    return {"if": chosen, "then": {"properties": properties}}
