"""Icechunk repositories: a snapshot is pinned, and two of them can be compared."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any
from urllib.parse import urlsplit

import zarr

from streampca.errors import InvalidInputError, MissingDependencyError, SourceError, hide_secrets
from streampca.object_storage import any_credentials, loopback_over_http, s3_options
from streampca.paths import first_line
from streampca.sources.zarr.stores import metadata_errors

Which = Mapping[str, str | None]  # at most one of branch, tag, snapshot


class Snapshots:
    """An Icechunk repository at a path or an ``s3://`` URL, opened on first use.

    options : for S3, as :func:`streampca.object_storage.open_objects` takes them.
    """

    def __init__(self, place: str, options: Mapping[str, Any] | None = None) -> None:
        self.place, self.options = place, dict(options or {})

    def open(self, which: Which) -> Any:
        """The Zarr group (or array) at the head of a branch ("main"), at a tag, or in a snapshot.

        Raises InvalidInputError for more than one of them, SourceError where it is not there.
        """
        named = {name: value for name, value in which.items() if value is not None}
        if len(named) > 1:
            raise InvalidInputError(f"{', '.join(named)}: expected one of them")
        name, value = next(iter(named.items()), ("branch", "main"))
        key = "snapshot_id" if name == "snapshot" else name
        icechunk, repository = _icechunk(), self._repository()
        try:
            session = repository.readonly_session(**{key: value})
        except (icechunk.IcechunkError, ValueError) as error:
            raise SourceError(
                f"{hide_secrets(self.place)}: no {name} {value!r}: {_first_line(error)}"
            ) from None
        with metadata_errors(self.place):
            try:
                return zarr.open(session.store, mode="r")
            except (FileNotFoundError, zarr.errors.NodeNotFoundError) as error:
                where = hide_secrets(self.place)
                raise SourceError(f"no Zarr array or group at the root of {where}") from error

    def changed(self, path: str, old: str, new: str) -> list[tuple[int, ...]] | None:
        """Places of the chunks of one array that were written from one snapshot to another.

        None if unknown: a snapshot has expired, or one is not an ancestor of the other.
        """
        if old == new:
            return []
        icechunk, repository = _icechunk(), self._repository()
        try:
            found = repository.diff(from_snapshot_id=old, to_snapshot_id=new)
        except (icechunk.IcechunkError, ValueError):
            return None
        key = f"/{path}"
        if key in found.new_arrays or key in found.deleted_arrays:
            return None
        return [tuple(place) for place in found.updated_chunks.get(key, [])]

    def _repository(self) -> Any:
        icechunk = _icechunk()
        try:
            return icechunk.Repository.open(self._storage(icechunk))
        except icechunk.IcechunkError as error:
            raise SourceError(
                f"no Icechunk repository at {hide_secrets(self.place)}: {_first_line(error)}"
            ) from None

    def _storage(self, icechunk: Any) -> Any:
        scheme, found, rest = self.place.partition("://")
        if not found or scheme == "file":
            return icechunk.local_filesystem_storage(os.path.abspath(rest or scheme))
        if scheme != "s3":
            raise InvalidInputError(
                f"{scheme}:// is not read as an Icechunk repository; expected a path, or s3://. "
                "For other storage pass the zarr.Array of a session"
            )
        parts = urlsplit(self.place)
        options = s3_options(self.options)
        if not any_credentials(self.place, options):
            options["skip_signature"] = True
        return icechunk.s3_storage(
            bucket=parts.hostname,
            prefix=parts.path.strip("/") or None,
            region=options.get("region"),
            endpoint_url=options.get("endpoint"),
            allow_http=loopback_over_http(options),
            force_path_style=bool(options.get("endpoint")),
            access_key_id=options.get("access_key_id"),
            secret_access_key=options.get("secret_access_key"),
            anonymous=bool(options.get("skip_signature")) or None,
            from_env=None if "access_key_id" in options or "skip_signature" in options else True,
        )


def _icechunk() -> Any:
    try:
        import icechunk
    except ImportError:
        raise MissingDependencyError(
            "Icechunk repositories need icechunk: pip install 'streampca[icechunk]'"
        ) from None
    if "ICECHUNK_LOG" not in os.environ:  # it warns of local commits, on stdout; none are made
        icechunk.set_logs_filter("icechunk=error")
    return icechunk


def _first_line(error: Exception) -> str:
    return first_line(error).removeprefix("x ")
