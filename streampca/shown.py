"""Text from outside as it is shown to people: no credentials, nothing that a terminal obeys."""

from __future__ import annotations

import re

# scheme, user and password, host and path, query and fragment; wherever it stands in a text
URL = re.compile(
    r"((?:[A-Za-z][\w+.-]*)?://)(?:[^\s/?#]*@|[^\s/?#:@]*:[^\s@'\"<>]*@)?([^\s?#<>'\"]*)(?:[?#][^\s<>'\")]*)?"
)

# control characters (tabs and ends of lines apart), separators of lines, turns of the direction
# of writing, and halves of surrogate pairs, which cannot be encoded
CONTROL = r"\x00-\x08\x0b-\x1f\x7f-\x9f\u2028\u2029\u200e\u200f\u202a-\u202e\u2066-\u2069"
OBEYED = re.compile(f"[{CONTROL}\ud800-\udfff]")
OBEYED_IN_NAMES = re.compile(f"[{CONTROL}\ud800-\udfff\t\n]")


def hide_secrets(text: str) -> str:
    """A URL, or any text with URLs in it, without users, passwords and queries."""
    return URL.sub(r"\1\2", text)


def printable(text: str) -> str:
    """A text of any number of lines, its control characters as ``\\x1b`` and the like."""
    return OBEYED.sub(_escaped, text)


def printable_name(name: object) -> str:
    """A name of the data in one line: its tabs and ends of lines are escaped too."""
    return OBEYED_IN_NAMES.sub(_escaped, str(name))


def _escaped(found: re.Match[str]) -> str:
    return found[0].encode("unicode_escape").decode("ascii")
