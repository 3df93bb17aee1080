"""What documents of a store must hold before anything in them is used: names, types, digests.

Their own digests say that they are as somebody wrote them, not who that was. So no name in them is
opened, and no number of them is allocated, unless it is one that this package would have written.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from streampca.errors import DamagedSourceError
from streampca.store.backend import NAME

NAME_OF_ARRAY = re.compile(r"[^/\\\x00-\x1f\x7f]+")
FILE = re.compile(rf"arrays/({NAME_OF_ARRAY.pattern})/(?:zarr\.json|c(?:/[0-9]{{1,19}})*)")
PART = re.compile(r"[A-Za-z0-9_-]{1,64}")
SHA256 = re.compile(r"[0-9a-f]{64}")
INDEX = "bundle.json"  # of a bundle, which lists the others
Types = Mapping[str, tuple[type, ...]]

BUNDLE: Types = {"files": (dict,), "document": (dict,)}
MANIFEST: Types = {"files": (dict,), "record": (dict,)}
RECORD: Types = dict.fromkeys(
    ("lineage", "source", "job", "gate", "settings", "drift", "scores", "cost"), (dict,)
)  # sections of a record, where it has them
ENTRY: Types = {
    "n": (int,), "previous": (str,), "action": (str,), "version": (str,), "time": (str,),
    "current": (str, type(None)), "removed": (list,),
}  # fmt: skip
ENTRY_MAY_HAVE: Types = {
    "reason": (str,), "number": (int,), "manifest": (str,), "key": (str,), "mended": (list,),
    "checkpoint": (dict,),
}  # fmt: skip
TOLD: Types = {
    "n": (int,), "number": (int,), "reason": (str,), "key": (str,), "current": (str,)
}  # fmt: skip
TABLE: Types = {
    "count": (int,), "published": (list,), "promoted": (list,), "served": (list,),
    "unknown": (list,),
}  # fmt: skip
ROW = {
    "version": str, "number": int, "n": int, "time": str, "reason": str, "manifest": str,
    "key": str,
}  # fmt: skip  # of a version in a table, in this order
KINDS = list(ROW.values())


def check_index(whole: Mapping[str, Any], where: str) -> None:
    """``bundle.json``: plain names of files with their digests. Raises DamagedSourceError."""
    _check_types(whole, BUNDLE, where)
    for name, digest in whole["files"].items():
        check_file_name(name, where)
        _check_digest(digest, f"{where}: {name!r:.200}")


def check_file_name(name: str, where: str) -> None:
    """A file of a bundle, beside its index. Raises DamagedSourceError."""
    found = FILE.fullmatch(name)
    if not found or found[1] in (".", ".."):
        raise DamagedSourceError(
            f"{where} names a file {name!r:.200}; expected arrays/<name>/zarr.json or a chunk "
            "beside it"
        )


def check_manifest(whole: Mapping[str, Any], where: str) -> None:
    """``manifest.json`` of a version: files of its parts with digest and size.

    Raises DamagedSourceError.
    """
    _check_types(whole, MANIFEST, where)
    sections = {name: whole["record"].get(name) for name in RECORD}
    _check_types(sections, RECORD, f"{where}: record", absent=True)
    for name, one in whole["files"].items():
        part, _, inner = name.partition("/")
        if not PART.fullmatch(part):
            raise DamagedSourceError(f"{where} names a file {name!r:.200}, of no part")
        if inner != INDEX:
            check_file_name(inner, where)
        _check_file(one, f"{where}: {name!r:.200}")
    if any(one.get("packed") for one in whole["files"].values()) or "pack" in whole:
        _check_file(whole.get("pack"), f"{where}: pack")
    told = whole.get("log", {})
    if not isinstance(told, dict):
        raise DamagedSourceError(f"{where} is damaged: log is {told!r:.80}, expected dict")
    _check_types(told, TOLD, f"{where}: log", absent=True)
    _check_versions([told["current"]] if told.get("current") else [], f"{where}: log")
    for name in ("n", "number"):
        check_number(told.get(name, 0), f"{where}: log: {name}")


def check_entry(whole: Mapping[str, Any], where: str) -> None:
    """An entry of the log. Raises DamagedSourceError."""
    _check_types(whole, ENTRY, where)
    _check_types(whole, ENTRY_MAY_HAVE, where, absent=True)
    check_number(whole["n"], f"{where}: n")
    check_number(whole.get("number") or 0, f"{where}: number")
    if whole["version"] or whole["action"] == "publish":
        _check_versions([whole["version"]], where)
    if whole["current"] is not None:
        _check_versions([whole["current"]], where)
    if odd := [one for one in whole["removed"] if not isinstance(one, str)]:
        raise DamagedSourceError(f"{where} removes {odd[0]!r:.80}; expected the id of a version")
    if odd := [one for one in whole.get("mended") or () if not isinstance(one, str)]:
        raise DamagedSourceError(f"{where} mends {odd[0]!r:.80}; expected the name of a file")
    if (told := whole.get("checkpoint")) is not None:
        _check_types(told, {"table": (str,)}, f"{where}: checkpoint")
        if (row := told.get("serving")) is not None:
            check_row(row, f"{where}: checkpoint: serving")


def check_head(whole: Mapping[str, Any], where: str) -> None:
    """``_head.json``. Raises DamagedSourceError."""
    check_number(whole.get("n"), f"{where}: n")
    check_number(whole.get("checkpoint", 0), f"{where}: checkpoint")
    _check_types({"entry": "", **whole}, {"entry": (str,)}, where)
    if (current := whole.get("current")) is not None:
        _check_versions([current], where)


def check_table(whole: Any, where: str) -> None:
    """The table of all versions in a checkpoint. Raises DamagedSourceError."""
    if not isinstance(whole, dict):
        raise DamagedSourceError(f"{where} is damaged: it holds no object")
    _check_types(whole, TABLE, where)
    check_number(whole["count"], f"{where}: count")
    for row in whole["published"]:
        check_row(row, where)
    for name in ("promoted", "served", "unknown"):
        _check_versions(whole[name], f"{where}: {name}")


def check_row(row: Any, where: str) -> None:
    """A version in such a table. Raises DamagedSourceError."""
    if not isinstance(row, list) or [*map(type, row)] != KINDS:
        raise DamagedSourceError(f"{where} has the row {row!r:.200}; expected {', '.join(ROW)}")
    _check_versions(row[:1], where)
    check_number(row[1], where)
    check_number(row[2], where)


def _check_versions(names: list[Any], where: str) -> None:
    for one in names:
        if not isinstance(one, str) or not NAME.fullmatch(one):
            raise DamagedSourceError(f"{where} names a version {one!r:.80}; expected its id")


def check_number(value: Any, where: str, most: int = 2**63) -> int:
    """A count that a document states. Raises DamagedSourceError."""
    if type(value) is not int or not 0 <= value < most:
        raise DamagedSourceError(f"{where} is {value!r:.80}; expected a number from 0 on")
    return int(value)


def _check_types(
    whole: Mapping[str, Any], types: Types, where: str, *, absent: bool = False
) -> None:
    for name, kinds in types.items():
        value = whole.get(name)
        if value is None and absent:
            continue
        if name not in whole or not isinstance(value, kinds) or isinstance(value, bool):
            words = " or ".join(one.__name__ for one in kinds)
            raise DamagedSourceError(
                f"{where} is damaged: {name} is {value!r:.80}, expected {words}"
            )


def _check_digest(value: Any, where: str) -> None:
    if not (isinstance(value, str) and SHA256.fullmatch(value)):
        raise DamagedSourceError(f"{where} has the digest {value!r:.80}; expected SHA-256")


def _check_file(one: Any, where: str) -> None:
    if not isinstance(one, dict):
        raise DamagedSourceError(f"{where} is {one!r:.80}; expected a digest and a size")
    _check_digest(one.get("sha256"), where)
    check_number(one.get("nbytes"), f"{where}: nbytes")
