"""What a model store needs of the place where it lies: five verbs.

A backend keeps named byte strings. Names are relative, with "/" between parts. Whatever offers
these verbs can hold a model store: a directory (:class:`streampca.store.local.LocalBackend`), an
object store (:class:`streampca.store.objects.ObjectBackend`).
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Protocol

from streampca.errors import DamagedSourceError, InvalidInputError

MOST = 1 << 30  # bytes of one object, where nothing says how long it is
NAME = re.compile(r"[A-Za-z0-9_][\w.@+-]*")


@dataclass(frozen=True)
class Listed:
    """One object: its name, size, and when it was written (seconds since 1970)."""

    name: str
    nbytes: int
    modified: float


class Backend(Protocol):
    """Named byte strings. What returns has been kept: it survives loss of power.

    A failing verb raises OSError; what it was to write is then there whole or not at all.
    """

    place: str  # for messages; holds no credentials

    def get(self, name: str, most: int = MOST) -> bytes | None:
        """The bytes of that name, or None where there are none.

        most : that are read. Raises SourceError where there are more.
        """

    def put(self, name: str, data: bytes) -> None:
        """Keep the bytes under that name. Readers see the old ones or the new ones, whole."""

    def put_if_absent(self, name: str, data: bytes) -> bool:
        """Keep them if the name is free. Of any number of callers at once one gets True."""

    def list(self, prefix: str) -> Iterator[Listed]:
        """All whose names begin with ``prefix``, which is "" or ends with "/", in any order."""

    def delete(self, name: str) -> None:
        """Forget the name. None of that name is no error."""


def check_object_name(name: str) -> str:
    """The name, if every part of it is a plain one. Raises InvalidInputError."""
    if not all(NAME.fullmatch(part) for part in name.split("/")):
        raise InvalidInputError(f"{name!r} cannot name a file of a model store")
    return name


def too_long(place: str, name: str, most: int) -> DamagedSourceError:
    """The refusal of an object that is longer than what names it says."""
    return DamagedSourceError(
        f"{place}: {name} has more than {most} bytes, and is not read; restore it from a backup"
    )
