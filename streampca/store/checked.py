"""JSON documents with their own SHA-256, and checks of their content before it is used."""

from __future__ import annotations

import contextlib
import hashlib
import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import fields
from typing import Any

import numpy as np

from streampca.errors import (
    DamagedSourceError,
    InvalidInputError,
    NewerFormatError,
    SourceError,
    StreamPCAError,
)
from streampca.store.backend import NAME

# JSON documents that carry their own SHA-256, so that any altered byte is noticed.
#
# The digest finds damage. It does not authenticate the author, so the length, number of values and
# depth of a document are bounded before it is used.

FORMAT_VERSION = 1  # of everything that is saved: bundles, versions, logs
UNSIGNED = "0" * 64  # in place of the document's own digest, while it is computed
MOST_BYTES = 16 << 20
MOST_VALUES = 1 << 20  # each takes up to 100 bytes of memory
MOST_DEPTH = 64


def sign(document: Mapping[str, Any]) -> bytes:
    """The document and its format as JSON, with the SHA-256 of all its other bytes."""
    whole = {"format_version": FORMAT_VERSION, **document, "sha256": UNSIGNED}
    text = json.dumps(whole, indent=1, sort_keys=True)
    head, _, tail = text.rpartition(UNSIGNED)
    return (head + hashlib.sha256(text.encode()).hexdigest() + tail).encode()


def sign_readable(document: Mapping[str, Any], what: str) -> bytes:
    """As :func:`sign`. Raises InvalidInputError for what :func:`unsign` would refuse."""
    text = sign(document)
    try:
        parse(text, what)
    except SourceError as error:
        raise InvalidInputError(f"{error}; leave arrays and long texts out of the record") from None
    return text


def unsign(text: bytes, what: str) -> dict[str, Any]:
    """The document of ``sign``, checked.

    what : its name, for messages.
    Raises SourceError if it is damaged, or exceeds MOST_BYTES, MOST_VALUES or MOST_DEPTH;
    NewerFormatError if it is intact and of another format.
    """
    whole = parse(text, what)
    if not isinstance(whole, dict):
        raise SourceError(f"{what} is damaged: it holds no object")
    version, digest = whole.get("format_version"), whole.get("sha256")
    signed = isinstance(digest, str) and digest.isascii()
    head, found, tail = text.rpartition(str(digest).encode() if signed else b"\0")
    unsigned = head + UNSIGNED.encode() + tail
    intact = found and hashlib.sha256(unsigned).hexdigest() == digest
    if type(version) is not int or version != FORMAT_VERSION:
        raise (NewerFormatError if intact else SourceError)(
            f"{what} has format {version!r:.80}; this streampca reads {FORMAT_VERSION}. "
            "Upgrade streampca, or fit and save again with this one"
        )
    if not intact:
        raise SourceError(f"{what} is damaged; restore it from a backup")
    return whole


def parse(text: bytes, what: str) -> Any:
    """Parse JSON of unknown origin. Raises SourceError if it is invalid, too large or too deep."""
    if not readable(text):
        raise DamagedSourceError(
            f"{what} has {len(text)} bytes and up to {_values(text)} values; expected at most "
            f"{MOST_BYTES} and {MOST_VALUES}"
        )
    try:
        whole = json.loads(str(text, "utf-8"))
    except (ValueError, RecursionError) as error:
        raise SourceError(f"{what} is damaged: {error}") from None
    level, depth = [whole] if isinstance(whole, (dict, list)) else [], 0
    while level:
        depth += 1
        if depth > MOST_DEPTH:
            raise DamagedSourceError(f"{what} is damaged: it is nested deeper than {MOST_DEPTH}")
        level = [inner for one in level for inner in _inside(one)]
    return whole


def readable(text: bytes) -> bool:
    """Whether a document is small enough to be parsed."""
    return len(text) <= MOST_BYTES and _values(text) <= MOST_VALUES


def _values(text: bytes) -> int:
    """An upper bound of the number of values in a document: strings are counted too."""
    return sum(map(text.count, (b",", b"[", b"{"))) + 1


def _inside(value: Any) -> Any:
    """The lists and objects in a list or an object."""
    values = value.values() if isinstance(value, dict) else value
    return [one for one in values if isinstance(one, (dict, list))] if values else ()


# Making objects of saved documents: malformed ones raise one kind of error, which names them.

NUMBERS = "biuf"  # dtype kinds of numbers
MALFORMED = (LookupError, TypeError, ValueError, AttributeError, ArithmeticError, RecursionError)


@contextlib.contextmanager
def understood(where: str) -> Iterator[None]:
    """A context for code that makes an object of a saved document: its errors become SourceError.

    Absent entries, and wrong types and shapes, raise many kinds of exceptions. Errors of our own
    pass through.
    """
    try:
        yield
    except StreamPCAError:
        raise
    except MALFORMED as error:
        raise DamagedSourceError(
            f"{where} is damaged, or was not saved by streampca: {type(error).__name__}: "
            f"{error!s:.300}"
        ) from error


def check_fields(made: Any, where: str, complex_values: bool = False) -> None:
    """Check that the plain fields of a dataclass have the types that it declares.

    Arrays must hold numbers, complex ones only where that is expected. Fields of other types are
    not checked. Raises DamagedSourceError.
    """
    numbers = NUMBERS + "c" * complex_values
    for field in fields(made):
        value, declared = getattr(made, field.name), str(field.type)
        if value is None and declared.endswith("| None"):
            continue
        if not _is(value, declared.removesuffix(" | None"), numbers):
            raise DamagedSourceError(
                f"{where} is damaged: {field.name} is {value!r:.80}, expected {declared}"
            )


def check_shapes(made: Any, shapes: dict[str, tuple[int | None, ...]], where: str) -> None:
    """Check the shapes of an object's arrays. Raises DamagedSourceError.

    shapes : name -> shape, with None for any length. Attributes that are no arrays are skipped.
    """
    for name, shape in shapes.items():
        value = getattr(made, name, None)
        if not isinstance(value, np.ndarray):
            continue
        same = value.ndim == len(shape) and all(
            n in (None, m) for n, m in zip(shape, value.shape, strict=True)
        )
        if not same:
            raise DamagedSourceError(
                f"{where} is damaged: {name} has the shape {value.shape}, expected {shape}"
            )


def _is(value: Any, declared: str, numbers: str = NUMBERS) -> bool:
    if declared == "Array":
        return isinstance(value, np.ndarray) and value.dtype.kind in numbers
    if declared == "float":
        return isinstance(value, (int, float)) and not isinstance(value, bool)
    if declared == "Mapping[str, Any]":
        return isinstance(value, dict)
    plain = {"int": int, "str": str, "bool": bool}
    return declared not in plain or type(value) is plain[declared]


# The content of a store's documents: names, types and digests, checked before use.
#
# Their digests show that they are unchanged, not who wrote them. So no name in them is opened, and
# no number in them allocated, unless this package could have written it.

NAME_OF_ARRAY = re.compile(r"[^/\\\x00-\x1f\x7f]+")
FILE = re.compile(rf"arrays/({NAME_OF_ARRAY.pattern})/(?:zarr\.json|c(?:/[0-9]{{1,19}})*)")
PART = re.compile(r"[A-Za-z0-9_-]{1,64}")
SHA256 = re.compile(r"[0-9a-f]{64}")
INDEX = "bundle.json"  # lists the other files of a bundle
Types = Mapping[str, tuple[type, ...]]

BUNDLE: Types = {"files": (dict,), "document": (dict,)}
MANIFEST: Types = {
    "files": (dict,),
    "pack": (dict,),
    "record": (dict,),
    "created": (str,),
    "log": (dict,),
}
RECORD: Types = dict.fromkeys(
    ("lineage", "source", "job", "gate", "settings", "drift", "scores", "cost"), (dict,)
)  # optional sections of a record
ENTRY: Types = {
    "n": (int,),
    "previous": (str,),
    "action": (str,),
    "version": (str,),
    "time": (str,),
    "current": (str, type(None)),
    "removed": (list,),
    "reason": (str,),
    "manifest": (str,),
    "key": (str,),
}
ENTRY_MAY_HAVE: Types = {
    "mended": (list,),
    "checkpoint": (dict,),
    "by": (str,),
    "run": (str,),
    "alias": (str,),
}
LOG: Types = {"reason": (str,), "key": (str,), "current": (str, type(None))}
LOG_MAY_HAVE: Types = {"by": (str,), "run": (str,)}
HEAD: Types = {"entry": (str,), "current": (str, type(None))}
TABLE: Types = {
    "count": (int,),
    "published": (list,),
    "promoted": (list,),
    "served": (list,),
    "unknown": (list,),
}
ROW = {
    "version": str,
    "number": int,
    "n": int,
    "time": str,
    "reason": str,
    "manifest": str,
    "key": str,
}  # the columns of a table of versions, in this order
KINDS = list(ROW.values())
NAME_OF_ALIAS = re.compile(r"[A-Za-z_][A-Za-z0-9_.-]{0,63}")
MOST_ALIASES = 100  # every entry of the log, and its head, have all of them


def check_index(whole: Mapping[str, Any], where: str) -> None:
    """Check ``bundle.json``: names of files, and their digests. Raises DamagedSourceError."""
    _check_types(whole, BUNDLE, where)
    for name, digest in whole["files"].items():
        check_file_name(name, where)
        _check_digest(digest, f"{where}: {name!r:.200}")


def check_file_name(name: str, where: str) -> None:
    """Check the name of a file of a bundle, other than its index. Raises DamagedSourceError."""
    found = FILE.fullmatch(name)
    if not found or found[1] in (".", ".."):
        raise DamagedSourceError(
            f"{where} names a file {name!r:.200}; expected arrays/<name>/zarr.json, or a chunk in "
            "that folder"
        )


def check_manifest(whole: Mapping[str, Any], where: str) -> None:
    """Check ``manifest.json`` of a version: the files of its parts, with digests and sizes.

    Raises DamagedSourceError.
    """
    _check_types(whole, MANIFEST, where)
    sections = {name: whole["record"].get(name) for name in RECORD}
    _check_types(sections, RECORD, f"{where}: record", absent=True)
    for name, file in whole["files"].items():
        part, _, inner = name.partition("/")
        if not PART.fullmatch(part):
            raise DamagedSourceError(f"{where} names a file {name!r:.200}, of no part")
        if inner != INDEX:
            check_file_name(inner, where)
        _check_file(file, f"{where}: {name!r:.200}")
    _check_file(whole["pack"], f"{where}: pack")
    log, where = whole["log"], f"{where}: log"
    _check_types(log, LOG, where)
    _check_types(log, LOG_MAY_HAVE, where, absent=True)
    _check_current(log, where)
    for name in ("n", "number"):
        check_number(log.get(name), f"{where}: {name}", least=1)


def check_entry(whole: Mapping[str, Any], where: str) -> None:
    """Check an entry of the log. Raises DamagedSourceError."""
    _check_types(whole, ENTRY, where)
    _check_types(whole, ENTRY_MAY_HAVE, where, absent=True)
    check_number(whole["n"], f"{where}: n")
    check_number(whole.get("number"), f"{where}: number")
    if whole["version"] or whole["action"] == "publish":
        _check_versions([whole["version"]], where)
    _check_current(whole, where)
    if odd := [one for one in whole["removed"] if not isinstance(one, str)]:
        raise DamagedSourceError(f"{where} removes {odd[0]!r:.80}; expected the id of a version")
    if odd := [one for one in whole.get("mended") or () if not isinstance(one, str)]:
        raise DamagedSourceError(f"{where} mends {odd[0]!r:.80}; expected the name of a file")
    if (checkpoint := whole.get("checkpoint")) is not None:
        _check_types(checkpoint, {"table": (str,)}, f"{where}: checkpoint")
        if (row := checkpoint.get("serving")) is not None:
            check_row(row, f"{where}: checkpoint: serving")


def check_head(whole: Mapping[str, Any], where: str) -> None:
    """Check ``_head.json``. Raises DamagedSourceError."""
    check_number(whole.get("n"), f"{where}: n")
    check_number(whole.get("checkpoint"), f"{where}: checkpoint")
    _check_types(whole, HEAD, where)
    _check_current(whole, where)


def check_table(whole: Any, where: str) -> None:
    """Check the table of all versions in a checkpoint. Raises DamagedSourceError."""
    if not isinstance(whole, dict):
        raise DamagedSourceError(f"{where} is damaged: it holds no object")
    _check_types(whole, TABLE, where)
    check_number(whole["count"], f"{where}: count")
    for row in whole["published"]:
        check_row(row, where)
    for name in ("promoted", "served", "unknown"):
        _check_versions(whole[name], f"{where}: {name}")


def check_row(row: Any, where: str) -> None:
    """Check a row of the table of versions. Raises DamagedSourceError."""
    if not isinstance(row, list) or [*map(type, row)] != KINDS:
        raise DamagedSourceError(f"{where} has the row {row!r:.200}; expected {', '.join(ROW)}")
    _check_versions(row[:1], where)
    check_number(row[1], where)
    check_number(row[2], where)


def _check_versions(names: list[Any], where: str) -> None:
    for name in names:
        if not isinstance(name, str) or not NAME.fullmatch(name):
            raise DamagedSourceError(f"{where} names a version {name!r:.80}; expected its id")


def _check_current(whole: Mapping[str, Any], where: str) -> None:
    if whole["current"] is not None:
        _check_versions([whole["current"]], where)
    aliases = whole.get("aliases", {})
    if not isinstance(aliases, dict) or len(aliases) > MOST_ALIASES:
        raise DamagedSourceError(
            f"{where} has the aliases {aliases!r:.80}; expected at most {MOST_ALIASES}, each with "
            "the id of a version"
        )
    for name in aliases:
        if not NAME_OF_ALIAS.fullmatch(name):
            raise DamagedSourceError(f"{where} has the alias {name!r:.80}; expected a name")
    _check_versions(list(aliases.values()), f"{where}: aliases")


def check_number(value: Any, where: str, least: int = 0) -> None:
    """Check a count in a document. Raises DamagedSourceError."""
    if type(value) is not int or not least <= value < 2**63:
        raise DamagedSourceError(f"{where} is {value!r:.80}; expected a number from {least} on")


def _check_types(
    whole: Mapping[str, Any], types: Types, where: str, *, absent: bool = False
) -> None:
    for name, kinds in types.items():
        value = whole.get(name)
        if value is None and absent:
            continue
        if name not in whole or not isinstance(value, kinds) or isinstance(value, bool):
            expected = " or ".join(kind.__name__ for kind in kinds)
            raise DamagedSourceError(
                f"{where} is damaged: {name} is {value!r:.80}, expected {expected}"
            )


def _check_digest(value: Any, where: str) -> None:
    if not (isinstance(value, str) and SHA256.fullmatch(value)):
        raise DamagedSourceError(f"{where} has the digest {value!r:.80}; expected SHA-256")


def _check_file(one: Any, where: str) -> None:
    if not isinstance(one, dict):
        raise DamagedSourceError(f"{where} is {one!r:.80}; expected a digest and a size")
    _check_digest(one.get("sha256"), where)
    check_number(one.get("nbytes"), f"{where}: nbytes")
