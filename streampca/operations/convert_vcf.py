"""VCF and BCF to VCF Zarr, by vcf2zarr of bio2zarr, and what that will take."""

from __future__ import annotations

import contextlib
import io
import os
import shutil
import time
import zlib
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from streampca.errors import (
    DamagedSourceError,
    InvalidInputError,
    MemoryLimitError,
    MissingDependencyError,
    SourceError,
)
from streampca.passes.memory import parse_nbytes, size
from streampca.passes.settings import usable_cores
from streampca.sources.genotypes.formats import format_of
from streampca.sources.genotypes.vcf import INDEXES, check_whole
from streampca.sources.genotypes.vcf_zarr import stored_layout
from streampca.sources.joining import expand
from streampca.store.places import (
    discard,
    exists_already,
    occupied,
    refuse_inside,
    set_aside,
    unfinished_name,
)

SAMPLED = 1 << 20  # bytes that are decompressed to see how many times a file grows
RATE = 6e6  # bytes of decompressed VCF, or BCF, a second, of one core
SMALL = 64e6  # decompressed bytes for which no processes are started
TEMPORARY, STORED = 1.5, 1.0  # bytes for each of a compressed file


def vcf_files(source: Any) -> list[str]:
    """The paths that a source names, if all are of VCF or BCF; else []."""
    if isinstance(source, (str, os.PathLike, list, tuple)):
        kind = format_of(source)
        if kind is not None and kind.opener == "vcf:open_vcf":
            return expand(source)  # type: ignore[arg-type]
    return []


@dataclass(frozen=True)
class VcfCost:
    """What a conversion will take, from the size of the files and of their first MiB.

    nbytes : of the files.  text_nbytes : of what they hold.  temporary, stored : bytes on disk.
    """

    nbytes: int
    text_nbytes: float
    processes: int
    free: int
    folder: str

    @property
    def seconds(self) -> float:
        """Of a machine of 2025."""
        return self.text_nbytes / RATE / max(1, self.processes)

    @property
    def packed(self) -> float:
        """Bytes of the files, compressed."""
        return min(self.nbytes, self.text_nbytes / 8)

    def __str__(self) -> str:
        minutes = self.seconds / 60
        shown = f"{minutes:.0f} min" if minutes >= 2 else f"{max(1, self.seconds):.0f} s"
        return (
            f"vcf2zarr takes about {shown} on {max(1, self.processes)} of the cores, and about "
            f"{size(TEMPORARY * self.packed)} of temporary disk in {self.folder}, where "
            f"{size(self.free)} are free; it writes about {size(STORED * self.packed)}"
        )


def vcf_cost(paths: Sequence[str], output: str) -> VcfCost:
    """What converting these files to ``output`` will take. Cost: reads 1 MiB of each."""
    nbytes, text, parts = 0, 0.0, 0
    for path in paths:
        stored = os.path.getsize(path)
        nbytes += stored
        text += stored * _growth(path)
        parts += 1 if not _is_indexed(path) else 1 << 10
    folder = os.path.dirname(os.path.abspath(output))
    while not os.path.isdir(folder):
        folder = os.path.dirname(folder)
    processes = min(parts, usable_cores()) if text > SMALL else 0
    return VcfCost(
        nbytes, text, processes if processes > 1 else 0, shutil.disk_usage(folder).free, folder
    )


def _is_indexed(path: str) -> bool:
    return any(os.path.isfile(path + end) for end in INDEXES)


def _growth(path: str) -> float:
    """How many times longer than stored a file is, by its beginning."""
    with open(path, "rb") as file:
        head = file.read(SAMPLED)
    if head[:2] != b"\x1f\x8b":
        return 1.0
    rest, done = head, 0
    while rest[:2] == b"\x1f\x8b":  # the members of a BGZF file
        member = zlib.decompressobj(wbits=31)
        try:
            done += len(member.decompress(rest))
        except zlib.error:
            break
        rest = member.unused_data
    return max(1.0, done / (len(head) - len(rest)))


def convert_vcf(
    paths: Sequence[str],
    output: str,
    *,
    overwrite: bool = False,
    memory_limit: int | str | None = None,
    progress: bool = False,
) -> tuple[tuple[int, int], tuple[int, int], float]:
    """Write a VCF Zarr of these files by vcf2zarr; (shape, chunks, seconds).

    overwrite : replace a VCF Zarr at ``output``; nothing else is ever replaced.
    memory_limit : of the buffers of each process that encodes.

    Cost: see ``vcf_cost``. An unfinished output and the intermediate files lie next to ``output``
    under a name that ends in .partial, and are removed.
    Raises OccupiedError if something is there; SourceError for damaged files.
    """
    if "://" in output:
        raise InvalidInputError(f"{output}: vcf2zarr writes to a local disk; name a path")
    explode, encode = _vcf2zarr()
    begun = time.perf_counter()
    refuse_inside(output, list(paths), "the output")
    if occupied(output) and not (overwrite and stored_layout(output)):
        raise exists_already(output)
    for path in paths:
        check_whole(path)
    limit, cost = parse_nbytes(memory_limit), vcf_cost(paths, output)
    place = unfinished_name(output)
    common = {"worker_processes": cost.processes, "show_progress": progress}
    try:
        store = os.path.join(place, "store")
        with contextlib.redirect_stdout(io.StringIO()):
            with _plain(paths):
                explode(os.path.join(place, "icf"), list(paths), **common)
            try:
                encode(os.path.join(place, "icf"), store, max_memory=limit, **common)
            except ValueError as error:
                if "memory" not in str(error):
                    raise
                raise MemoryLimitError(f"memory_limit={memory_limit}: {error}") from None
        if occupied(output):
            discard(set_aside(output))
        elif os.path.isdir(output):
            os.rmdir(output)
        os.rename(store, output)
    finally:
        discard(place)
    made = stored_layout(output)
    assert made is not None
    return *made, time.perf_counter() - begun


@contextlib.contextmanager
def _plain(paths: Sequence[str]) -> Any:
    """Errors of vcf2zarr for a damaged file as ours."""
    try:
        yield
    except (OSError, MemoryError, KeyboardInterrupt):
        raise
    except ValueError as error:
        raise SourceError(f"{', '.join(paths)}: vcf2zarr refuses it: {error}") from None
    except Exception as error:
        raise DamagedSourceError(
            f"{', '.join(paths)}: truncated or damaged, or its index is ({error})"
        ) from None


def _vcf2zarr() -> tuple[Any, Any]:
    try:
        from bio2zarr.vcf import encode, explode
    except ImportError as error:
        raise MissingDependencyError(
            f"vcf2zarr is part of bio2zarr ({error}): pip install 'streampca[vcf]'"
        ) from None
    return explode, encode
