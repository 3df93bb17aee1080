"""JSON documents that carry their own SHA-256, so that any altered byte is noticed.

The digest finds damage. It does not vouch for whoever made the document: what is read is bounded
in length, number of values and depth before it is used.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from typing import Any

from streampca.errors import DamagedSourceError, InvalidInputError, NewerFormatError, SourceError

UNSIGNED = "0" * 64  # stands where the digest of the document itself goes, while it is taken
MOST_BYTES = 16 << 20
MOST_VALUES = 1 << 20  # each takes up to 100 bytes of memory
MOST_DEPTH = 64


def sign(document: Mapping[str, Any]) -> bytes:
    """The document as JSON with ``sha256`` of all its bytes but those of the digest itself."""
    text = json.dumps({**document, "sha256": UNSIGNED}, indent=1, sort_keys=True)
    head, _, tail = text.rpartition(UNSIGNED)
    return (head + hashlib.sha256(text.encode()).hexdigest() + tail).encode()


def sign_readable(document: Mapping[str, Any], what: str) -> bytes:
    """The same. Raises InvalidInputError for what :func:`unsign` would not read back."""
    text = sign(document)
    try:
        parse(text, what)
    except SourceError as error:
        raise InvalidInputError(f"{error}; leave arrays and long texts out of the record") from None
    return text


def unsign(text: bytes, what: str, *formats: int) -> dict[str, Any]:
    """The document of ``sign``, checked. Its format version is looked at first.

    what : its name, for messages.  formats : that are read. Raises SourceError where it is damaged,
    or larger than MOST_BYTES, MOST_VALUES or MOST_DEPTH; NewerFormatError where it is whole and of
    another format.
    """
    whole = parse(text, what)
    if not isinstance(whole, dict):
        raise SourceError(f"{what} is damaged: it holds no object")
    version, digest = whole.get("format_version"), whole.get("sha256")
    signed = isinstance(digest, str) and digest.isascii()
    head, found, tail = text.rpartition(str(digest).encode() if signed else b"\0")
    unsigned = head + UNSIGNED.encode() + tail
    intact = found and hashlib.sha256(unsigned).hexdigest() == digest
    if type(version) is not int or version not in formats:
        raise (NewerFormatError if intact else SourceError)(
            f"{what} has format {version!r:.80}; this streampca reads "
            f"{' and '.join(map(str, formats))}. "
            "Upgrade streampca to read newer ones."
        )
    if not intact:
        raise SourceError(f"{what} is damaged; restore it from a backup")
    return whole


def parse(text: bytes, what: str) -> Any:
    """JSON of unknown origin. Raises SourceError where it is none, or too large or too deep."""
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
    """Whether a document is not too large to be parsed."""
    return len(text) <= MOST_BYTES and _values(text) <= MOST_VALUES


def _values(text: bytes) -> int:
    """How many there are in a document, or more: what stands in strings is counted too."""
    return sum(map(text.count, (b",", b"[", b"{"))) + 1


def _inside(value: Any) -> Any:
    """The lists and objects in a list or an object."""
    values = value.values() if isinstance(value, dict) else value
    return [one for one in values if isinstance(one, (dict, list))] if values else ()
