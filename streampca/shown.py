"""Showing text from outside: without credentials, and without control characters."""

from __future__ import annotations

import re

# scheme, user and password, host and path, query and fragment; anywhere in a text
URL = re.compile(
    r"((?:[A-Za-z][\w+.-]*)?://)(?:[^\s/?#]*@|[^\s/?#:@]*:[^\s@'\"<>]*@)?([^\s?#<>'\"]*)(?:[?#][^\s<>'\")]*)?"
)

# control characters except tabs and line ends, line separators, marks of writing direction, and
# lone surrogates, which cannot be encoded
CONTROL = r"\x00-\x08\x0b-\x1f\x7f-\x9f\u2028\u2029\u200e\u200f\u202a-\u202e\u2066-\u2069"
OBEYED = re.compile(f"[{CONTROL}\ud800-\udfff]")
OBEYED_IN_NAMES = re.compile(f"[{CONTROL}\ud800-\udfff\t\n]")


def hide_secrets(text: str) -> str:
    """A URL, or any text with URLs in it, without users, passwords and queries."""
    return URL.sub(r"\1\2", text)


def printable(text: str) -> str:
    """A text of one or more lines with escaped control characters, such as ``\\x1b``."""
    return OBEYED.sub(_escaped, text)


def printable_name(name: object) -> str:
    """A name from the data on one line: tabs and line ends are escaped too."""
    return OBEYED_IN_NAMES.sub(_escaped, str(name))


def _escaped(found: re.Match[str]) -> str:
    return found[0].encode("unicode_escape").decode("ascii")
