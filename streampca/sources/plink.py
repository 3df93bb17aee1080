"""PLINK 1 filesets: .bed (two bits a call, variant-major), .bim (variants), .fam (samples).

One fileset or several, say one per chromosome, are one matrix of samples x variants; values are
copies of the first allele of the .bim (A1), -1 where a call is missing. The files are read by
position, never mapped: resident memory does not grow with them.
Source: PLINK 1.9 reference, "File formats": .bed, .bim, .fam.
"""

from __future__ import annotations

import copy
import glob
import hashlib
import os
import re
import threading
import warnings
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import islice, pairwise
from pathlib import Path
from typing import Any

import numpy as np

from streampca.errors import IncompleteSourceWarning, InvalidInputError, SourceError, shorten
from streampca.matrix import ChunkedMatrix, Labels, ReadCount, select
from streampca.matrix.text import Text, as_text, compact, joined
from streampca.sources.stacked import Index, Reader, StackedMatrix
from streampca.sources.variants import MISSING_CALL, NO_PARENT, sample_labels, variant_labels

MAGIC = b"\x6c\x1b"
LINES = 8192  # of a .bim that are split at once
PROBED = 256  # variants whose padding is looked at, in all files together


@dataclass(frozen=True)
class Fileset:
    """The three files of one PLINK 1 fileset, by the path without suffix."""

    stem: str

    @classmethod
    def of(cls, path: str) -> Fileset:
        """From the path of any of the three, or of what they have in common."""
        stem, suffix = os.path.splitext(path)
        return cls(stem if suffix in (".bed", ".bim", ".fam") else path)

    def file(self, suffix: str) -> str:
        """Path of one of the three. Raises SourceError where it is not there."""
        path = f"{self.stem}.{suffix}"
        if not os.path.isfile(path):
            raise SourceError(f"{path}: no such file; a PLINK fileset is .bed, .bim and .fam")
        return path


class BedReader(Reader):
    """Calls of variants x samples from one or more .bed files that follow one another."""

    loads = ("numba",)
    into_buffer = True
    dtype = np.dtype(np.int8)

    def __init__(self, paths: Sequence[str], variants: Sequence[int], n_samples: int) -> None:
        self.files = [os.path.abspath(path) for path in paths]
        self.offsets = np.cumsum([0, *variants])
        self.shape = (int(self.offsets[-1]), n_samples)
        self.stride = -(-n_samples // 4)
        for path, count in zip(self.files, variants, strict=True):
            _check_bed(path, count, self.stride)
            _check_padding(path, count, n_samples, max(16, PROBED // len(paths)))
        self._count, self._counting = ReadCount(), threading.Lock()
        self._local = threading.local()

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_counting": None, "_local": None}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self._counting, self._local = threading.Lock(), threading.local()

    def read(self, index: Index, buffer: Any = None) -> np.ndarray[Any, Any]:
        from streampca.kernels.calls import BED_TABLE, unpack_bed

        start, stop = index[0].start, index[0].stop
        m, n = stop - start, self.shape[1]
        if buffer is None or len(buffer) < m * n:
            buffer = np.empty(m * n, np.uint8)
        calls = buffer[: m * n].view(np.int8).reshape(m, n)
        for path, first, last, at in self._runs(start, stop):
            packed = self._packed(path, first, last)
            unpack_bed(packed, BED_TABLE, calls[at : at + last - first])
        with self._counting:
            self._count += ReadCount(1, m * n, m * self.stride)
        return calls[:, index[1]]

    def _runs(self, start: int, stop: int) -> Iterator[tuple[str, int, int, int]]:
        """(file, first and last variant within it, place in the result) of a range."""
        for path, (low, high) in zip(self.files, pairwise(self.offsets.tolist()), strict=True):
            first, last = max(start, low), min(stop, high)
            if first < last:
                yield path, first - low, last - low, first - start

    def _packed(self, path: str, first: int, last: int) -> np.ndarray[Any, Any]:
        """(variants, stride) packed bytes, in a buffer that this thread uses again."""
        size = (last - first) * self.stride
        held = getattr(self._local, "packed", None)
        if held is None or len(held) < size:
            held = self._local.packed = np.empty(size, np.uint8)
        view = memoryview(held)[:size]  # type: ignore[arg-type]
        done, place = 0, len(MAGIC) + 1 + first * self.stride
        try:
            file = os.open(path, os.O_RDONLY)
        except OSError as error:
            raise SourceError(f"{path}: {error.strerror or error}") from None
        try:
            while done < size and (got := os.preadv(file, [view[done:]], place + done)):
                done += got
        finally:
            os.close(file)
        if done < size:
            raise SourceError(f"{path} ends {size - done} bytes before variant {last - 1} does")
        return held[:size].reshape(last - first, self.stride)

    def edges(self, dim: int) -> np.ndarray[Any, Any] | None:
        return None if dim == 0 else np.array([0, self.shape[1]])

    def scratch_nbytes(self, index: Index) -> int:
        return (index[0].stop - index[0].start) * self.stride

    def fingerprint(self) -> str:
        text: list[Any] = [self.shape]
        for path in self.files:
            stat = os.stat(path)
            text += [os.path.basename(path), stat.st_size, stat.st_mtime_ns]
        return hashlib.sha256(repr(text).encode()).hexdigest()

    def content_stamp(self) -> str:
        stats = [(os.stat(path).st_size, os.stat(path).st_mtime_ns) for path in self.paths()]
        return hashlib.sha256(f"{self.fingerprint()} {stats}".encode()).hexdigest()

    def paths(self) -> tuple[str, ...]:
        stems = [os.path.realpath(path)[:-4] for path in self.files]
        return tuple(f"{stem}.{suffix}" for stem in stems for suffix in ("bed", "bim", "fam"))

    def reads(self) -> ReadCount:
        with self._counting:
            return copy.copy(self._count)

    def restart_counts(self) -> None:
        self._count = ReadCount()


def _check_bed(path: str, variants: int, stride: int) -> None:
    """Refuse what is not a whole variant-major .bed of this size."""
    with open(path, "rb") as file:
        head = file.read(3)
    if head[:2] != MAGIC:
        raise SourceError(
            f"{path} does not begin with the two bytes of a PLINK 1 .bed (6c 1b); got "
            f"{head[:2].hex(' ') or 'nothing'}"
        )
    if head[2:] == b"\x00":
        raise SourceError(
            f"{path} is sample-major, a layout of 2008; rewrite it: "
            f"plink1.9 --bfile {path[:-4]} --make-bed --out NEW"
        )
    if head[2:] != b"\x01":
        raise SourceError(f"{path}: layout byte {head[2:].hex() or 'absent'}; expected 01")
    expected, found = 3 + variants * stride, os.path.getsize(path)
    if found != expected:
        kind = "truncated" if found < expected else "longer than its .bim and .fam say"
        raise SourceError(
            f"{path} is {kind}: {found} bytes, expected {expected} (3 + {variants} variants x "
            f"{stride} bytes)"
        )


def _check_padding(path: str, variants: int, n_samples: int, probed: int) -> None:
    """Refuse calls behind the last sample, which a .bed of up to 3 more samples than its .fam has.

    Such a .bed is as long as it should be. The reverse cannot be seen: the padding of 60 samples
    reads as calls of a 61st, all homozygous.
    """
    stride, used = -(-n_samples // 4), n_samples % 4
    if not used or not variants:
        return
    with open(path, "rb", buffering=0) as file:
        for j in np.unique(np.linspace(0, variants - 1, probed).astype(np.int64)).tolist():
            (last,) = os.pread(file.fileno(), 1, len(MAGIC) + (j + 1) * stride)
            if last >> 2 * used:
                raise SourceError(
                    f"{path} has calls behind the last of {n_samples} samples (variant {j}): it "
                    f"holds more samples than {path[:-4]}.fam names"
                )


def open_plink(sources: str | Sequence[str]) -> ChunkedMatrix:
    """One or more PLINK 1 filesets as samples x variants, int8 copies of A1, -1 = missing.

    sources : paths of .bed files (or without suffix), or a glob pattern such as "chr*.bed".
        Several must have the same samples in the same order, and come in the order given
        (a glob: by the numbers in the names).

    Raises SourceError for files that are absent, damaged or do not belong together, and
    InvalidInputError for duplicate samples or variants. A .fam with too few lines is refused, by
    the length of the .bed or by its padding bits; one with up to 3 too many, in the same number
    of bytes (61 for 60, not for 64), cannot be told.
    Variants with a negative position are left out, as PLINK does, with an
    IncompleteSourceWarning.
    """
    filesets = [Fileset.of(path) for path in expand(sources)]
    samples = _read_fam(filesets[0].file("fam"))
    for other in filesets[1:]:
        _check_same_samples(samples, _read_fam(other.file("fam")), filesets[0], other)
    tables = [_read_bim(one.file("bim")) for one in filesets]
    counts = [len(table[0]) for table in tables]
    reader = BedReader([one.file("bed") for one in filesets], counts, len(samples[1]))
    columns = [joined([t[i] for t in tables]) if tables[1:] else tables[0][i] for i in range(5)]
    kept = np.flatnonzero(columns[2] >= 0)
    if len(kept) < len(columns[2]):
        _warn_of_ignored(columns[1], columns[2], filesets)
        columns = [column[kept] for column in columns]
    labels = Labels(sample_labels(*samples), variant_labels(*columns))
    if len(kept) == reader.shape[0]:
        return StackedMatrix(reader, (1,), (0,), labels, missing_value=MISSING_CALL)
    unnamed = Labels.plain((reader.shape[1], reader.shape[0]))
    whole = StackedMatrix(reader, (1,), (0,), unnamed, missing_value=MISSING_CALL)
    matrix = select(whole, features=kept)
    matrix.labels = labels
    return matrix


def _warn_of_ignored(names: Text, position: np.ndarray[Any, Any], filesets: list[Fileset]) -> None:
    """Name the variants that have a negative position; all of them cannot be."""
    ignored = np.flatnonzero(position < 0)
    where = f"{filesets[0].stem}.bim" + (" and others" if filesets[1:] else "")
    if len(ignored) == len(position):
        raise SourceError(f"{where}: all {len(position)} positions are negative: nothing is left")
    warnings.warn(
        f"{where}: {len(ignored)} of {len(position)} variants have a negative position and are "
        f"left out, as PLINK does: {shorten([str(names[i]) for i in ignored[:4]], len(ignored))}",
        IncompleteSourceWarning,
        stacklevel=5,
    )


def expand(sources: str | Sequence[str]) -> list[str]:
    """Paths of a list or a glob pattern. Raises SourceError where nothing matches.

    Warns IncompleteSourceWarning where the files of a pattern are numbered, with a few left out.
    """
    listed = [sources] if isinstance(sources, (str, os.PathLike)) else list(sources)
    paths: list[str] = []
    for source in map(os.fspath, listed):
        if not glob.has_magic(source) or os.path.exists(source):
            paths.append(source)
        elif found := sorted(glob.glob(source), key=_natural):
            _warn_of_holes(source, found)
            paths += found
        else:
            raise SourceError(f"{source}: no file matches")
    if not paths:
        raise SourceError("an empty list of paths; name at least one file")
    if len(set(paths)) < len(paths):
        twice = sorted({path for path in paths if paths.count(path) > 1})
        raise InvalidInputError(f"{shorten(twice)} is named twice")
    return paths


def _warn_of_holes(pattern: str, paths: Sequence[str]) -> None:
    """Name the numbers that are left out, unless they are many or left out at even steps."""
    families: dict[tuple[str, ...], list[list[int]]] = {}
    for path in paths:
        parts = re.split(r"([0-9]+)", Path(path).name)
        families.setdefault(tuple(parts[::2]), []).append([int(d) for d in parts[1::2]])
    for text, numbers in families.items():
        varying = [sorted(set(one)) for one in zip(*numbers, strict=True) if len(set(one)) > 1]
        if len(varying) != 1 or varying[0][-1] - varying[0][0] >= 2 * len(varying[0]):
            continue
        there = varying[0]
        if len(there) > 2 and len(set(np.diff(there).tolist())) == 1:
            continue  # every second year, say
        if holes := sorted(set(range(there[0], there[-1] + 1)) - set(there)):
            warnings.warn(
                f"{pattern}: {len(there)} files from {there[0]} to {there[-1]} of the form "
                f"{'*'.join(text)}, without {shorten([str(i) for i in holes], len(holes))}. If "
                "that is meant, give a list of the files.",
                IncompleteSourceWarning,
                stacklevel=5,
            )


def _natural(path: str) -> list[tuple[int, str]]:
    """A sort key that puts chr2 before chr10."""
    digits = "".join(c if c.isdigit() else " " for c in Path(path).name).split()
    return [*((int(d), "") for d in digits), (0, path)]


def _read_fam(path: str) -> tuple[Text, Text, dict[str, Text]]:
    """(family ids, individual ids, ids of father and mother where any are known)."""
    rows = [line.split() for line in Path(path).read_text().splitlines() if line.strip()]
    for i, row in enumerate(rows):
        if len(row) < 6:
            raise SourceError(f"{path}, line {i + 1}: {len(row)} fields, a .fam has 6")
    if not rows:
        raise SourceError(f"{path} is empty")
    family, individual, father, mother = (as_text([row[i] for row in rows]) for i in range(4))
    known = np.any((father != NO_PARENT) | (mother != NO_PARENT))
    return family, individual, {"father": father, "mother": mother} if known else {}


def _check_same_samples(
    first: tuple[Any, ...], second: tuple[Any, ...], one: Fileset, other: Fileset
) -> None:
    same = len(first[1]) == len(second[1])
    if not same or not all(np.array_equal(first[i], second[i]) for i in (0, 1)):
        where = f"{len(first[1])} and {len(second[1])} samples"
        if same:
            at = int(np.flatnonzero((first[0] != second[0]) | (first[1] != second[1]))[0])
            where = f"sample {at + 1} is {first[1][at]} in one and {second[1][at]} in the other"
        raise SourceError(
            f"{one.stem}.fam and {other.stem}.fam differ: {where}. Filesets that are opened "
            "together need the same samples in the same order."
        )


def _read_bim(path: str) -> list[np.ndarray[Any, Any]]:
    """[chromosome, id, position, A1, A2] of every variant."""
    parts: list[list[Any]] = []
    with open(path) as file:
        while lines := list(islice(file, LINES)):
            tokens = "".join(lines).split()
            if len(tokens) != 6 * len(lines):
                _refuse_line(path, len(parts) * LINES, lines)
            try:
                position = np.array(tokens[3::6], dtype=np.int64)
            except (ValueError, OverflowError):
                raise SourceError(f"{path}: a position (column 4) is not a number") from None
            named = [compact(tokens[i::6]) for i in (0, 1, 4, 5)]
            parts.append([*named[:2], position, *named[2:]])
    if not parts:
        raise SourceError(f"{path} is empty")
    table = []
    for i in range(5):  # one column at a time: the pieces of each are freed as it is joined
        table.append(joined([part[i] for part in parts]))
        for part in parts:
            part[i] = None
    commas = [np.strings.find(alleles, ",") >= 0 for alleles in table[3:]]
    several = np.flatnonzero(commas[0] | commas[1])
    if several.size:
        names = shorten([str(table[1][i]) for i in several[:4]], len(several))
        raise SourceError(
            f"{path}: {len(several)} variants have more than two alleles ({names}); a .bed holds "
            "two. Split or drop them: plink2 --max-alleles 2 --make-bed"
        )
    return table


def _refuse_line(path: str, before: int, lines: list[str]) -> None:
    for i, line in enumerate(lines):
        if len(line.split()) != 6:
            raise SourceError(
                f"{path}, line {before + i + 1}: {len(line.split())} fields, a .bim has 6"
            )


def is_plink(source: Any) -> bool:
    """Whether ``streampca.open`` should read this as PLINK 1 filesets."""
    listed = source if isinstance(source, (list, tuple)) else [source]
    suffixes = (".bed", ".bim", ".fam")
    return bool(listed) and all(
        isinstance(one, (str, os.PathLike)) and os.fspath(one).endswith(suffixes) for one in listed
    )
