"""Named arrays and a JSON document in one directory, written whole or not at all.

Layout: ``bundle.json`` (format version, document, SHA-256 of every file, itself included) and
``arrays/<name>`` (Zarr v3 with crc32c). No pickle. Models, accumulator states and checkpoints
are all bundles.
"""

from __future__ import annotations

import ctypes
import hashlib
import json
import os
import shutil
import uuid
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import zarr
import zarr.codecs

from streampca.errors import InvalidInputError, SourceError

FORMAT_VERSION = 1
CHUNK_NBYTES = 8 * 1024 * 1024
UNSIGNED = "0" * 64  # stands where the digest of bundle.json itself goes, while it is taken


def write_bundle(
    path: str | os.PathLike[str],
    arrays: Mapping[str, np.ndarray[Any, Any]],
    document: Mapping[str, Any],
) -> Path:
    """Write a bundle beside its place, flush it to disk, and rename it into place.

    An existing bundle there is replaced; a reader sees the old or the new one, never a mixture.
    Any other existing path is refused with InvalidInputError.
    """
    target = Path(path)
    if target.exists() and not (target / "bundle.json").is_file():
        raise InvalidInputError(f"{target} exists and is not a streampca bundle; choose another")
    for name in arrays:
        if name in ("", ".", "..") or "/" in name:
            raise InvalidInputError(f"array name {name!r}; expected one that can name a directory")
    target.parent.mkdir(parents=True, exist_ok=True)
    staged = target.with_name(f".{target.name}.{uuid.uuid4().hex}.partial")
    try:
        staged.mkdir()
        for name, array in arrays.items():
            _write_array(staged / "arrays" / name, np.asarray(array))
        files = sorted(p for p in staged.rglob("*") if p.is_file())
        digests = {p.relative_to(staged).as_posix(): _sha256(p) for p in files}
        whole = {
            "format_version": FORMAT_VERSION,
            "files": digests,
            "document": dict(document),
            "sha256": UNSIGNED,
        }
        text = json.dumps(whole, indent=1, sort_keys=True)
        head, _, tail = text.rpartition(UNSIGNED)
        signed = head + hashlib.sha256(text.encode()).hexdigest() + tail
        (staged / "bundle.json").write_bytes(signed.encode())
        for file in [*files, staged / "bundle.json"]:
            _fsync(file)
        for folder in [p for p in staged.rglob("*") if p.is_dir()] + [staged]:
            _fsync(folder)
        if target.exists():
            exchange(staged, target)
        else:
            staged.rename(target)
        _fsync(target.parent)
    finally:
        shutil.rmtree(staged, ignore_errors=True)
    return target


def read_bundle(
    path: str | os.PathLike[str],
) -> tuple[dict[str, np.ndarray[Any, Any]], dict[str, Any]]:
    """(arrays, document) of a bundle, every file checked against its digest.

    Raises SourceError where it is absent, incomplete, altered or of a newer format.
    """
    target = Path(path)
    while True:
        text = _read_index(target)
        try:
            result = _read_whole(target, text)
        except Exception:
            if _read_index(target) == text:
                raise
        else:
            if _read_index(target) == text:  # else it was replaced while it was read
                return result


def _read_index(target: Path) -> bytes:
    try:
        return (target / "bundle.json").read_bytes()
    except OSError:
        raise SourceError(f"{target}: no streampca model or state there") from None


def _read_whole(
    target: Path, text: bytes
) -> tuple[dict[str, np.ndarray[Any, Any]], dict[str, Any]]:
    try:
        whole = json.loads(text)
        version, digest = whole.get("format_version"), whole.get("sha256")
    except (ValueError, AttributeError) as error:
        raise SourceError(f"{target}/bundle.json is damaged: {error}") from None
    if version != FORMAT_VERSION:
        raise SourceError(
            f"{target} has format {version!r}; this streampca reads {FORMAT_VERSION}. "
            "Upgrade streampca to read newer ones."
        )
    head, found, tail = text.rpartition(str(digest).encode())
    unsigned = head + UNSIGNED.encode() + tail
    if not found or hashlib.sha256(unsigned).hexdigest() != digest:
        raise SourceError(f"{target}/bundle.json is damaged; restore it from a backup")
    for name, digest in whole["files"].items():
        file = target / name
        if not file.is_file() or _sha256(file) != digest:
            raise SourceError(f"{target}: {name} is absent or altered; restore it from a backup")
    names = sorted({name.split("/")[1] for name in whole["files"]})
    arrays = {}
    for name in names:
        array = np.asarray(zarr.open_array(str(target / "arrays" / name), mode="r")[...])
        if array.dtype.kind == "T":
            array = array.astype(f"U{np.strings.str_len(array).max(initial=1)}")
        arrays[name] = array
    return arrays, whole["document"]


def is_bundle(path: str | os.PathLike[str]) -> bool:
    """Whether a bundle lies there."""
    return (Path(path) / "bundle.json").is_file()


def _write_array(path: Path, array: np.ndarray[Any, Any]) -> None:
    if array.dtype.kind in "OSU":  # the one string type that the Zarr v3 specification knows
        array = array.astype(np.dtypes.StringDType())
    rows = max(1, CHUNK_NBYTES // max(1, array[:1].nbytes)) if array.ndim else 1
    chunks = (
        (min(rows, array.shape[0]) or 1, *(s or 1 for s in array.shape[1:])) if array.ndim else ()
    )
    stored = zarr.create_array(
        str(path),
        shape=array.shape,
        chunks=chunks,
        dtype=array.dtype,
        zarr_format=3,
        compressors=[zarr.codecs.ZstdCodec(level=3), zarr.codecs.Crc32cCodec()],
        config={"write_empty_chunks": True},
    )
    if not array.ndim:
        stored[...] = array
        return
    for start in range(0, len(array), chunks[0]):  # all at once, it would encode all at once
        stored[start : start + chunks[0]] = array[start : start + chunks[0]]


def _sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def exchange(staged: Path, target: Path) -> None:
    """Put staged in target's place, and target in its: in one step where the system can."""
    swap = getattr(ctypes.CDLL(None), "renameat2", None)
    here, exchange = -100, 2  # AT_FDCWD, RENAME_EXCHANGE of Linux
    new, place = os.fsencode(staged), os.fsencode(target)
    if swap is not None and swap(here, new, here, place, exchange) == 0:
        return
    old = target.with_name(f".{target.name}.{uuid.uuid4().hex}.old")
    target.rename(old)
    try:
        staged.rename(target)
    except BaseException:
        old.rename(target)
        raise
    shutil.rmtree(old, ignore_errors=True)


def _fsync(path: Path) -> None:
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
