"""Zarr arrays and groups by path, archive, URL or Icechunk snapshot."""

from __future__ import annotations

import asyncio
import contextlib
import os
from collections.abc import Iterator, Mapping
from typing import Any
from urllib.parse import urlsplit

import zarr
import zarr.storage
from zarr.api import asynchronous
from zarr.core.sync import sync

from streampca.errors import (
    DamagedSourceError,
    InvalidInputError,
    MissingDependencyError,
    SourceError,
    StreamPCAError,
    hide_secrets,
)
from streampca.sources.labelled.cf import related
from streampca.sources.zarr.guard import default_timeout, no_answer, store_at
from streampca.urls import any_credentials, first_line, loopback_over_http, plain_errors, s3_options

# Suggestions of what to open instead of a path that is not a matrix: files in it or next to it.

OPENED = (
    ".bed",
    ".zarr",
    ".vcz",
    ".zarr.zip",
    ".nc",
    ".nc4",
    ".h5ad",
    ".h5",
    ".npy",
    ".npz",
    ".mtx",
    ".mtx.gz",
    ".parquet",
    ".feather",
    ".arrow",
    ".csv",
    ".tsv",
    ".csv.gz",
    ".hdf5",
)
CONVERSIONS = {
    ".pgen": "plink2 --pfile {stem} --make-bed --out {stem}",
    ".bgen": "plink2 --bgen {path} ref-first --make-bed --out {stem}",
    ".ped": "plink1.9 --file {stem} --make-bed --out {stem}",
    **{
        suffix: "vcf2zarr convert {path} {stem}.vcz, or plink2 --vcf {path} --make-bed --out {stem}"
        for suffix in (".vcf", ".vcf.gz", ".bcf")
    },
}
JOINED = (".bed", ".zarr", ".vcz")  # several of these are opened as one, by a pattern
SHOWN = 5  # names of a folder that a message repeats


def how_to_convert(path: str) -> str:
    """The command that converts or loads a file of an unsupported format."""
    for suffix, command in CONVERSIONS.items():
        if path.lower().endswith(suffix):
            stem = path[: -len(suffix)]
            made = command.format(path=path, stem=stem)
            return f"a {suffix} is not read directly; convert it: {made}"
    known = ".bed, .nc, .npy, .npz, .h5, .h5ad, .mtx, .parquet, .feather or .csv"
    found = suggestion(os.path.splitext(path)[0])
    return f"not a format that streampca opens; expected a Zarr directory, {known}{found}"


def suggestion(path: str) -> str:
    """``; did you mean data.bed?`` if such files are next to ``data``; else ""."""
    stem = path.rstrip("/")
    found = [stem + suffix for suffix in (*OPENED, *CONVERSIONS) if os.path.exists(stem + suffix)]
    return f"; did you mean {' or '.join(found)}?" if found else ""


def folder_contents(path: str) -> str:
    """What a folder without a Zarr store contains, and the line that opens it; "" for others."""
    if "://" in path or not os.path.isdir(path):
        return ""
    names = sorted(name for name in os.listdir(path) if not name.startswith("."))
    if not names:
        return f": the folder is empty; expected a store, images or tables{suggestion(path)}"
    more = f" and {len(names) - SHOWN} more" if len(names) > SHOWN else ""
    held = f": the folder holds {', '.join(names[:SHOWN])}{more}"
    return held + _line_for(path, names) + suggestion(path)


def _line_for(path: str, names: list[str]) -> str:
    """``. Use streampca.open(...)``, for the first kind of file that is known."""
    for suffix in (*OPENED, *CONVERSIONS):
        found = [name for name in names if name.endswith(suffix)]
        if not found:
            continue
        one = os.path.join(path, found[0])
        if suffix not in OPENED:
            return f". {one}: {how_to_convert(one)}"
        if suffix in JOINED and len(found) > 1:
            return f". Use streampca.open({os.path.join(path, '*' + suffix)!r}), or one of them"
        return f". Use streampca.open({one!r})"
    if any(name.endswith((".txt", ".md")) for name in names):
        return f". Of texts: streampca.LSA().fit({path!r}), or streampca lsa fit {path}"
    return ""


# Icechunk repositories as sources: a snapshot is pinned, and two of them can be compared.
#
# A commit to Icechunk is seen whole or not at all, and a snapshot never changes: what is read is
# one state of the data even if others commit meanwhile, and ``diff`` names the chunks that were
# written between two snapshots. It names none that a shorter array has lost, and fails where a
# snapshot has expired; then all is looked at.

Which = Mapping[str, str | None]  # at most one of branch, tag, snapshot


def is_repository(path: str) -> bool:
    """Whether a local directory holds an Icechunk repository, of the first or second format."""
    return os.path.isdir(os.path.join(path, "snapshots")) and (
        os.path.isdir(os.path.join(path, "refs")) or os.path.isfile(os.path.join(path, "repo"))
    )


class Snapshots:
    """An Icechunk repository at a path or an ``s3://`` URL, opened on first use.

    options : for S3, as :func:`streampca.urls.open_objects` takes them.
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
                "Of others give the zarr.Array of a session"
            )
        parts = urlsplit(self.place)
        given = s3_options(self.options)
        if not any_credentials(self.place, given):
            given["skip_signature"] = True
        return icechunk.s3_storage(
            bucket=parts.hostname,
            prefix=parts.path.strip("/") or None,
            region=given.get("region"),
            endpoint_url=given.get("endpoint"),
            allow_http=loopback_over_http(given),
            force_path_style=bool(given.get("endpoint")),
            access_key_id=given.get("access_key_id"),
            secret_access_key=given.get("secret_access_key"),
            anonymous=bool(given.get("skip_signature")) or None,
            from_env=None if "access_key_id" in given or "skip_signature" in given else True,
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


# Zarr arrays and groups by path, archive or URL, and which array of a group is meant.


def open_array(
    source: str,
    storage_options: dict[str, Any] | None = None,
    read_timeout: float | None = None,
    external_links: bool = False,
) -> Any:
    """The Zarr array or group at a path or URL. Raises SourceError where there is none.

    external_links : also read files to which links in the store lead out of it.
    """
    timeout = read_timeout or default_timeout()
    try:
        with metadata_errors(source):
            return _open(store_at(source, storage_options, external_links), timeout)
    except TimeoutError:
        raise no_answer("its metadata", source, timeout) from None
    except (
        FileNotFoundError,
        KeyError,
        zarr.errors.GroupNotFoundError,
        zarr.errors.ArrayNotFoundError,
        zarr.errors.NodeNotFoundError,
    ) as error:
        raise SourceError(
            f"no Zarr array or group at {hide_secrets(source)}{folder_contents(source)}"
        ) from error


def _open(store: Any, timeout: float) -> Any:
    if isinstance(store, zarr.storage.ZipStore):
        try:
            return zarr.open(store, mode="r")
        except ValueError:  # consolidated metadata that name a data type Zarr does not know
            return zarr.open_group(store, mode="r", use_consolidated=False)

    async def opened() -> Any:
        async with asyncio.timeout(timeout):  # a timeout of ``sync`` leaves the request running
            return await asynchronous.open(store=store, mode="r")

    with plain_errors():
        node = sync(opened())
    return zarr.Array(node) if isinstance(node, zarr.AsyncArray) else zarr.Group(node)


@contextlib.contextmanager
def metadata_errors(source: str) -> Iterator[None]:
    """Turn Zarr's errors about invalid metadata into a DamagedSourceError."""
    try:
        yield
    except (StreamPCAError, FileNotFoundError):  # some of Zarr's are a ValueError too
        raise
    except (ValueError, TypeError, zarr.errors.UnknownCodecError) as error:
        newer = "; a newer Zarr may read it: pip install -U zarr" * ("Unknown c" in str(error))
        raise DamagedSourceError(
            f"{hide_secrets(source)}: its metadata are damaged, or of a kind that is not read: "
            f"{error}{newer}"
        ) from error


def pick_array(node: Any, variable: str | None, source: str) -> Any:
    """The array itself, the named one of a group, or its only matrix; says which there are.

    Coordinates and cell bounds, as xarray writes them, are not data. Of several arrays, the only
    one with two or more dimensions is taken.
    """
    if not isinstance(node, zarr.Group):
        return node
    if variable and isinstance(found := node.get(variable), zarr.Array):
        return found
    arrays: dict[str, Any] = {
        name: array
        for name, array in node.members(max_depth=None)
        if not isinstance(array, zarr.Group)
    }
    named = related(dict(node.attrs)).union(*(_described(n, a) for n, a in arrays.items()))
    data = [n for n, a in arrays.items() if not (n in named or _is_coordinate(n, a))]
    wide = [n for n in data if arrays[n].ndim >= 2]
    for some in (data, wide):
        if variable is None and len(some) == 1:
            return arrays[some[0]]
    shown = ", ".join(f"{name} {array.shape}" for name, array in sorted(arrays.items())) or "none"
    example = min(wide, default=next(iter(arrays), "X"))
    source = hide_secrets(source)
    asked = "does not say which array" if variable is None else f"has no array {variable!r}"
    raise InvalidInputError(
        f"{source} is a Zarr group and the call {asked}; it holds: {shown}. "
        f"Use streampca.open({source!r}, variable={example!r})."
    )


def _described(name: str, array: Any) -> set[str]:
    """Names of the arrays that describe this one, such as cell bounds, as its group has them."""
    folder = name.rpartition("/")[0]
    return {f"{folder}/{one}" if folder else one for one in related(dict(array.attrs))}


def _is_coordinate(name: str, array: Any) -> bool:
    """Whether an array is the coordinate of its own dimension, as xarray writes them."""
    dims = getattr(array.metadata, "dimension_names", None) or array.attrs.get("_ARRAY_DIMENSIONS")
    return array.ndim == 1 and dims is not None and tuple(dims) == (name.rpartition("/")[2],)
