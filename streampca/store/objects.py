"""An object store (S3, Google Cloud Storage, Azure) as the place of a model store, by obstore."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from streampca.errors import InvalidInputError
from streampca.remote import OBJECTS, open_objects, plain_errors
from streampca.store.backend import MOST, Backend, Listed, check_object_name, too_long
from streampca.store.local import LocalBackend

SCHEMES = (*OBJECTS, "memory")


class ObjectBackend:
    """The five verbs on an ``obstore`` store.

    ``put_if_absent`` is a conditional put (``If-None-Match: *``), of which a store that honours it
    lets exactly one win. obstore tries again what failed for a moment; a put that succeeded
    without an answer then looks taken, which is why the log compares what is there with its own.
    """

    def __init__(self, store: Any, place: str) -> None:
        self.store, self.place = store, place

    def get(self, name: str, most: int = MOST) -> bytes | None:
        try:
            with plain_errors():
                found = self.store.get(check_object_name(name))
                if found.meta["size"] > most:
                    raise too_long(self.place, name, most)
                return bytes(found.bytes())
        except FileNotFoundError:
            return None

    def put(self, name: str, data: bytes) -> None:
        with plain_errors():
            self.store.put(check_object_name(name), data)

    def put_if_absent(self, name: str, data: bytes) -> bool:
        from obstore.exceptions import AlreadyExistsError, PreconditionError

        with plain_errors():
            try:
                self.store.put(check_object_name(name), data, mode="create", use_multipart=False)
            except (AlreadyExistsError, PreconditionError):
                return False
        return True

    def list(self, prefix: str) -> Iterator[Listed]:
        batches = iter(self.store.list(prefix.rstrip("/") or None))
        while True:
            with plain_errors():
                batch = next(batches, ())
            if not batch:
                break
            for about in batch:
                yield Listed(about["path"], about["size"], about["last_modified"].timestamp())

    def delete(self, name: str) -> None:
        try:
            with plain_errors():
                self.store.delete(check_object_name(name))
        except FileNotFoundError:
            return


def open_backend(place: str, options: dict[str, Any] | None = None) -> Backend:
    """The backend of a local path, or of a URL of an object store.

    options : see :func:`streampca.remote.open_objects`.
    Raises InvalidInputError for another scheme, MissingDependencyError without obstore.
    """
    scheme, found, rest = place.partition("://")
    if not found:
        return LocalBackend(place)
    if scheme == "file":
        return LocalBackend(rest)
    if scheme not in SCHEMES:
        raise InvalidInputError(
            f"{scheme}:// cannot hold a model store; expected a path, or one of "
            f"{', '.join(f'{one}://' for one in SCHEMES)}"
        )
    plain = place.partition("?")[0].partition("#")[0]
    host = plain.partition("://")[2].rpartition("@")[2] if "@" in plain else None
    shown = plain if host is None else f"{scheme}://{host}"
    return ObjectBackend(open_objects(place, options), shown)
