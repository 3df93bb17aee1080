"""The entries of job files: :data:`SECTIONS`, the checks of their values, and the JSON Schema.

Job files are checked by this table, ``streampca config schema`` prints it, and defaults are here.
"""

from __future__ import annotations

import contextlib
import ipaddress
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlsplit

from streampca.errors import InvalidInputError, nearest
from streampca.models.contract.parameters import Parameter
from streampca.models.contract.registry import all_kinds
from streampca.passes import parse_nbytes
from streampca.run_context import LOG_FORMATS, LOG_LEVELS


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
    server: bool = False  # the address of a server, http:// or https://
    suffix: str = ""  # of a path on this machine
    nbytes: bool = False  # a number of bytes, or e.g. "512MiB"
    duration: bool = False  # seconds, or e.g. "26h"
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
        "keep": Entry(
            WHOLE, "versions to keep; older ones are removed, unless they have an alias", least=1
        ),
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
        "metrics": Entry(
            TEXT,
            "a file that node_exporter reads, NAME.prom: metrics of the last run",
            place=True,
            suffix=".prom",
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
        "variable": Entry(
            ("string", "array"), "which array of a group or file; of several, their features"
        ),
        "group": Entry(TEXT, "of a NetCDF, HDF5 or Zarr source, where the variable is"),
        "dim": Entry(("string", "integer", "array"), "sample dimension(s)"),
        "missing_value": Entry(NUMBER, "a number that means missing"),
        "missing_chunks": Entry(
            TEXT,
            "chunks that a Zarr store lacks: an error, its fill value, or missing cells",
            "error",
            choices=("error", "fill", "mask"),
        ),
        "external_links": Entry(
            ("boolean",),
            "accept HDF5 files whose data are in other files, and Zarr stores with links out",
        ),
        "branch": Entry(TEXT, "of an Icechunk repository; its head is pinned (default: main)"),
        "tag": Entry(TEXT, "of an Icechunk repository"),
        "snapshot": Entry(TEXT, "of an Icechunk repository"),
        "multiallelic": Entry(
            TEXT,
            "variants of more than two alleles of genotypes",
            "error",
            choices=("error", "drop"),
        ),
        "dosages": Entry(
            ("boolean",), "of genotypes: dosages, or calls (default: as PLINK 2, dosages if stored)"
        ),
        "reference_allele": Entry(
            TEXT,
            "of a BGEN, which of two alleles is the reference; the other one is counted",
            choices=("first", "last"),
        ),
        "sample_file": Entry(TEXT, "of a BGEN, its .sample; of an EIGENSTRAT, its .ind"),
        "variant_file": Entry(TEXT, "of an EIGENSTRAT or PACKEDANCESTRYMAP, its .snp"),
        "columns": Entry(("array",), "of a table, the features (default: all numbers)"),
        "index": Entry(TEXT, "of a table, the column with the names of the samples"),
        "categorical": Entry(TEXT, "of a table, a feature of each category", choices=("onehot",)),
        "header": Entry(("boolean",), "of text, whether the first line holds names"),
        "na_values": Entry(("string", "array"), "of text, cells that mean missing, in quotes"),
        "decimal": Entry(TEXT, "of text, the decimal mark, such as ,"),
        "thousands": Entry(TEXT, "of text, the mark between thousands"),
        "strip": Entry(TEXT, "of text, characters that do not belong to numbers, as $ or %"),
        "comment": Entry(TEXT, "of text, begins what is ignored of a line, such as #"),
        "delimiter": Entry(TEXT, "of text, a character, tab or blanks; of ratings any text"),
        "encoding": Entry(TEXT, "of text, such as cp1252 or utf-16"),
        "feature_types": Entry(("string", "array"), "of a 10x file or an AnnData: 'all', or some"),
        "join": Entry(
            TEXT,
            "what several files have more of: samples, or features",
            choices=("samples", "features"),
        ),
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
        "max_outliers": Entry(
            NUMBER,
            "share of appended rows that the promoted PCA does not expect, by T2 or prediction "
            "error; 1 % by each are in control (monitor.alpha)",
            least=0,
        ),
    },
    "monitor": {
        "alpha": Entry(
            NUMBER, "share of rows in control above the limit of T2, and of SPE", 0.01, above=0
        )
    },
    "scores": {
        "path": Entry(
            TEXT, "path of a copy, a Zarr array; {version} becomes the number", place=True
        ),
        "rows": Entry(
            TEXT, "which rows are scored with the new model", "all", choices=("all", "new")
        ),
    },
    "freshness": {  # for streampca status: since the last run that took all rows it could vouch for
        "warn_after": Entry(("string", "number"), "a time, e.g. 26h", duration=True),
        "error_after": Entry(("string", "number"), "a time, e.g. 50h", duration=True),
    },
    "logging": {  # as the options --log-format, --log-file and --log-level, which go before
        "format": Entry(TEXT, "of the lines", "text", choices=LOG_FORMATS),
        "file": Entry(TEXT, "is appended to, and made anew where it was moved (default: stderr)"),
        "level": Entry(TEXT, "the least that is logged", "info", choices=LOG_LEVELS),
    },
    "lineage": {  # OpenLineage events of each run
        "path": Entry(TEXT, "a file to which events are added, a line of JSON each", place=True),
        "url": Entry(
            TEXT,
            "an address that takes them, e.g. http://marquez:5000/api/v1/lineage; a key for it is "
            "in the environment, OPENLINEAGE_API_KEY",
            server=True,
        ),
        "namespace": Entry(TEXT, "of the job", "streampca"),
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
            NUMBER,
            "seconds that a worker may be paused or silent; three times that for all of them, "
            "and for a scheduler that is lost",
            above=0,
        ),
        "span_timeout": Entry(NUMBER, "seconds that a span may take", above=0),
        "span_retries": Entry(WHOLE, "times that a span moves to another worker", least=0),
        "worker_timeout": Entry(
            NUMBER, "seconds that a pass waits for a worker where none is there", above=0
        ),
    },
}
OPTIONAL = ("gate", "monitor", "scores", "freshness", "logging", "lineage", "cluster")


# What an entry may hold.

SCHEMES = ("s3", "gs", "gcs", "az", "abfs", "abfss", "https")  # of sources and stores of jobs


def wrong(entry: Entry, value: Any) -> str:
    """Why a value is refused, or ""."""
    if _json_type(value) not in entry.kinds and not (
        entry.kinds == NUMBER and _json_type(value) == "integer"
    ):
        return f"expected {' or '.join(entry.kinds)}"
    if entry.choices and value not in entry.choices:
        names = [str(one) for one in entry.choices]
        return f"expected one of {', '.join(names)}{nearest(value, names)}"
    if isinstance(value, int | float) and not isinstance(value, bool):
        if not math.isfinite(value):
            return "expected a finite number"
        if entry.least is not None and value < entry.least:
            return f"expected at least {entry.least:g}"
        if entry.above is not None and value <= entry.above:
            return f"expected more than {entry.above:g}"
    if entry.scheduler:
        return "" if value in entry.also else _bad_scheduler(value, entry.also)
    if entry.server:
        return _bad_server(value)
    if entry.suffix and ("://" in value or not value.endswith(entry.suffix)):
        return f"expected a path of this machine that ends with {entry.suffix}"
    if entry.nbytes and value not in entry.also:
        try:
            parse_nbytes(value)
        except InvalidInputError:
            return "expected bytes, such as 512MiB or 2GB" + _also(entry.also)
    if entry.duration:
        try:
            seconds_of(value)
        except InvalidInputError as error:
            return str(error)
    if entry.place:
        found = [_bad_place(one) for one in (value if isinstance(value, list) else [value])]
        return next((why for why in found if why), "")
    return ""


def seconds_of(value: Any) -> float:
    """Seconds of a number, or of a text such as 90s, 30m, 26h, 2d. Raises InvalidInputError."""
    number, factor = value, 1.0
    if isinstance(value, str):
        factor = {"s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0}.get(value.strip()[-1:], 0.0)
        number = value.strip()[:-1]
    with contextlib.suppress(TypeError, ValueError):
        if (seconds := float(number) * factor) > 0 and math.isfinite(seconds):
            return seconds
    raise InvalidInputError("expected a time, such as 90s, 30m, 26h or 2d")


def _bad_place(place: Any) -> str:
    """Why a path or URL is refused, or ""."""
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
        return f"expected a path, or one of {', '.join(f'{scheme}://' for scheme in SCHEMES)}"
    if parts.password is not None:
        return "credentials do not belong into a file; give them by the environment"
    try:
        address = ipaddress.ip_address(host)
    except ValueError:
        return "" if host != "localhost" or parts.scheme != "https" else "expected a public host"
    return "expected a host by its name" if not address.is_global else ""


def _bad_scheduler(address: str, also: Sequence[Any]) -> str:
    """Why the address of a scheduler is refused, or "".  also : accepted words, for the message."""
    try:
        parts = urlsplit(address)
        good = parts.scheme in ("tcp", "tls") and parts.hostname and parts.port
        if "@" in address:
            return "an address has no user or password; certificates go into cluster.security"
    except ValueError:
        good = False
    return "" if good else "expected tcp://host:port or tls://host:port" + _also(also)


def _bad_server(address: str) -> str:
    """Why the address of a server is refused, or ""."""
    try:
        parts = urlsplit(address)
        good = parts.scheme in ("http", "https") and parts.hostname and (parts.port or True)
    except ValueError:
        good = False
    if good and ("@" in parts.netloc or parts.query):
        return "keys do not belong into a file; give them by the environment"
    return "" if good and address.isprintable() else "expected http://host:port/path"


def _also(words: Sequence[Any]) -> str:
    return "".join(f", or {one}" for one in dict.fromkeys(map(str, words)))


def _json_type(value: Any) -> str:
    for kind, name in (
        (bool, "boolean"),
        (int, "integer"),
        (float, "number"),
        (str, "string"),
        (list, "array"),
        (dict, "object"),
    ):
        if isinstance(value, kind):
            return name
    return "null"


# The JSON Schema of job files.


def schema() -> dict[str, Any]:
    """The JSON Schema of job files, for editors."""
    whole = _of(SECTIONS[""])
    whole["properties"] |= {
        name: _of(SECTIONS[name], more=name == "model") for name in SECTIONS if name
    }
    model = whole["properties"]["model"]
    kinds = {name: one for name, one in sorted(all_kinds().items()) if one.views == 1}
    model["properties"]["kind"]["enum"] = list(kinds)
    model["allOf"] = [_of_kind(name, kind.parameters) for name, kind in kinds.items()]
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
    for name, parameter in parameters.items():
        if parameter.process:
            continue
        properties[name] = {"description": parameter.meaning}
        if parameter.choices:
            properties[name]["enum"] = list(parameter.choices)
        if isinstance(parameter.default, (bool, int, float, str)):
            properties[name]["default"] = parameter.default
    condition = {"properties": {"kind": {"const": kind}}, "required": ["kind"]}
    return {"if": condition, "then": {"properties": properties}}
