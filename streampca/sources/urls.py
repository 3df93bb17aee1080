"""Credentials in URLs, which no message, plan or result may show."""

from __future__ import annotations

import re

# scheme, user and password, host and path, query and fragment; wherever it stands in a text
URL = re.compile(r"([A-Za-z][\w+.-]*://)(?:[^\s/?#]*@)?([^\s?#<>'\"]*)(?:[?#][^\s<>'\")]*)?")


def hide_secrets(text: str) -> str:
    """A URL, or any text with URLs in it, without users, passwords and queries."""
    return URL.sub(r"\1\2", text)
