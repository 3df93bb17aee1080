"""What documents of a store must hold before anything in them is used: names, types, digests.

Their own digests say that they are as somebody wrote them, not who that was. So no name in them is
opened, and no number of them is allocated, unless it is one that this package would have written.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
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
ENTRY_MAY_HAVE: Types = {"reason": (str,), "number": (int,), "manifest": (str,), "key": (str,)}


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


def check_entry(whole: Mapping[str, Any], where: str) -> None:
    """An entry of the log. Raises DamagedSourceError."""
    _check_types(whole, ENTRY, where)
    _check_types({**dict.fromkeys(ENTRY_MAY_HAVE), **whole}, ENTRY_MAY_HAVE, where, absent=True)
    for version in (whole["version"], whole["current"]):
        if version and not NAME.fullmatch(version):
            raise DamagedSourceError(f"{where} names a version {version!r:.80}; expected its id")
    if odd := [one for one in whole["removed"] if not isinstance(one, str)]:
        raise DamagedSourceError(f"{where} removes {odd[0]!r:.80}; expected the id of a version")


def check_served(entries: Iterable[Any], where: str) -> None:
    """The log as a whole: what is served was published before. Raises DamagedSourceError."""
    published = set()
    for entry in entries:
        if entry.action == "publish":
            published.add(entry.version)
        if entry.current is not None and entry.current not in published:
            raise DamagedSourceError(
                f"{where}: entry {entry.n} serves {entry.current!r:.80}, which was never published"
            )


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
