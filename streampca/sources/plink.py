"""PLINK 1 filesets: .bed (two bits a call, variant-major), .bim (variants), .fam (samples).

One fileset or several, say one per chromosome, are one matrix of samples x variants; values are
copies of the first allele of the .bim (A1), -1 where a call is missing.
Source: PLINK 1.9 reference, "File formats": .bed, .bim, .fam.
"""

from __future__ import annotations

import os
import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from streampca.errors import IncompleteSourceWarning, SourceError, shorten
from streampca.matrix import ChunkedMatrix, Labels, select
from streampca.matrix.columns import join
from streampca.matrix.text import Text
from streampca.sources.bed import BedReader
from streampca.sources.bim import Bim, read_bim, room_for_hashes
from streampca.sources.fam import read_fam
from streampca.sources.path_patterns import expand
from streampca.sources.stacked import StackedMatrix
from streampca.sources.variants import MISSING_CALL, sample_labels, variant_labels


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

    Cost: one read of each .bim. Labels of more than 65,536 variants are not held: they are read
    from the .bim again when they are asked for, which raises SourceError once it has changed.
    """
    filesets = [Fileset.of(path) for path in expand(sources)]
    samples = read_fam(filesets[0].file("fam"))
    for other in filesets[1:]:
        _check_same_samples(samples, read_fam(other.file("fam")), filesets[0], other)
    paths = [one.file("bim") for one in filesets]
    tables, counts, hashes = list[Bim](), list[int](), room_for_hashes(paths)
    for path in paths:
        tables.append(read_bim(path, hashes[sum(counts) :]))
        counts.append(tables[-1].count)
    reader = BedReader([one.file("bed") for one in filesets], counts, len(samples[1]))
    columns = [join([table.columns[i] for table in tables]) for i in range(5)]
    unnamed = any(table.unnamed for table in tables)
    if not any(table.n_ignored for table in tables):
        known = None if unnamed else hashes[: sum(counts)]
        labels = Labels(sample_labels(*samples), variant_labels(*columns, hashes=known))
        return StackedMatrix(reader, (1,), (0,), labels, missing_value=MISSING_CALL)
    columns = [np.asarray(column) for column in columns]
    kept = np.flatnonzero(columns[2] >= 0)
    _warn_of_ignored(columns[1], columns[2], filesets)
    labels = Labels(sample_labels(*samples), variant_labels(*(column[kept] for column in columns)))
    plain = Labels.plain((reader.shape[1], reader.shape[0]))
    whole = StackedMatrix(reader, (1,), (0,), plain, missing_value=MISSING_CALL)
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


def is_plink(source: Any) -> bool:
    """Whether ``streampca.open`` should read this as PLINK 1 filesets."""
    listed = source if isinstance(source, (list, tuple)) else [source]
    suffixes = (".bed", ".bim", ".fam")
    return bool(listed) and all(
        isinstance(one, (str, os.PathLike)) and os.fspath(one).endswith(suffixes) for one in listed
    )
