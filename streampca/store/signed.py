"""JSON documents that carry their own SHA-256, so that any altered byte is noticed."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from typing import Any

from streampca.errors import NewerFormatError, SourceError

UNSIGNED = "0" * 64  # stands where the digest of the document itself goes, while it is taken


def sign(document: Mapping[str, Any]) -> bytes:
    """The document as JSON with ``sha256`` of all its bytes but those of the digest itself."""
    text = json.dumps({**document, "sha256": UNSIGNED}, indent=1, sort_keys=True)
    head, _, tail = text.rpartition(UNSIGNED)
    return (head + hashlib.sha256(text.encode()).hexdigest() + tail).encode()


def unsign(text: bytes, what: str, *formats: int) -> dict[str, Any]:
    """The document of ``sign``, checked. Its format version is looked at first.

    what : its name, for messages.  formats : that are read. Raises SourceError where it is damaged,
    NewerFormatError where it is whole and of another format.
    """
    try:
        whole = json.loads(text)
        version, digest = whole.get("format_version"), whole.get("sha256")
    except (ValueError, AttributeError) as error:
        raise SourceError(f"{what} is damaged: {error}") from None
    head, found, tail = text.rpartition(str(digest).encode())
    unsigned = head + UNSIGNED.encode() + tail
    whole_bytes = found and hashlib.sha256(unsigned).hexdigest() == digest
    if version not in formats or isinstance(version, bool):
        raise (NewerFormatError if whole_bytes else SourceError)(
            f"{what} has format {version!r}; this streampca reads "
            f"{' and '.join(map(str, formats))}. "
            "Upgrade streampca to read newer ones."
        )
    if not whole_bytes:
        raise SourceError(f"{what} is damaged; restore it from a backup")
    return dict(whole)
