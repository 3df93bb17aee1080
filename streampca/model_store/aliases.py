"""Aliases of versions, such as "champion": names that move from one version to another."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from streampca.errors import DamagedSourceError, InvalidInputError, SourceError, printable_name
from streampca.model_store.history import ALIAS, UNALIAS, Entry, History
from streampca.store.checked import MOST_ALIASES, NAME_OF_ALIAS

RESERVED = ("latest", "promoted", "served", "current", "none")
LIKE_VERSIONS = re.compile(r"v?\d+|[0-9a-f]{6,}", re.IGNORECASE)  # numbers, beginnings of ids


def check_alias(name: str) -> str:
    """The name, if a version may have it as an alias. Raises InvalidInputError."""
    if not isinstance(name, str) or not NAME_OF_ALIAS.fullmatch(name):
        raise InvalidInputError(
            f"{printable_name(name)!r:.80} cannot be an alias; expected up to 64 letters, digits "
            "and _.- with a letter or _ first, such as champion"
        )
    if LIKE_VERSIONS.fullmatch(name) or name.lower() in RESERVED:
        raise InvalidInputError(
            f"{name} cannot be an alias: it could be the number, the id or the state of a version; "
            "expected another name, such as champion"
        )
    return name


def with_alias(history: History, name: str, version: str, place: str) -> Mapping[str, Any] | None:
    """Fields of the log entry that gives an alias to a version; None if it has it.

    place : of the store, for messages. Raises InvalidInputError; SourceError if aliases were lost.
    """
    _check_known(history)
    aliases = {**history.aliases, name: version}
    if any(one.startswith(name) for one in history.published):
        raise InvalidInputError(f"{name} cannot be an alias: it begins the id of a version")
    if len(aliases) > MOST_ALIASES:
        raise InvalidInputError(f"{place} has {MOST_ALIASES} aliases; remove one first")
    if aliases == history.aliases:
        return None
    return {"action": ALIAS, "version": version, "alias": name, "aliases": aliases}


def without_alias(history: History, name: str, place: str) -> Mapping[str, Any]:
    """Fields of the log entry that removes an alias.  place : see ``with_alias``.

    Raises InvalidInputError if there is none of that name; SourceError if aliases were lost.
    """
    _check_known(history)
    aliases = dict(history.aliases)
    if name not in aliases:
        there = ", ".join(sorted(aliases)) or "none"
        raise InvalidInputError(f"{place} has no alias {printable_name(name)}; it has {there}")
    version = aliases.pop(name)
    return {"action": UNALIAS, "version": version, "alias": name, "aliases": aliases}


def aliased(history: History, name: str, where: str) -> Entry:
    """The publication of the version with that alias.

    where : the store and what is damaged in it, for messages. Raises SourceError if the version is
    not known.
    """
    _check_known(history)
    entry = history.published.get(history.aliases[name])
    if entry is None or entry.version in history.removed:
        raise DamagedSourceError(
            f"{where}: version {history.aliases[name]}, which has the alias {name}, cannot be "
            f"found. Give it to another: streampca models alias STORE {name} VERSION"
        )
    return entry


def _check_known(history: History) -> None:
    if history.unsure:
        raise SourceError(history.unsure)
