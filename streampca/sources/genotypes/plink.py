"""PLINK 1 filesets: .bed (two bits a call, variant-major), .bim (variants), .fam (samples)."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from streampca.errors import SourceError
from streampca.matrix import ChunkedMatrix, Labels, select
from streampca.matrix.columns import join
from streampca.sources.genotypes.allele_counts import DIPLOID, MISSING_CALL, PLOIDY
from streampca.sources.genotypes.plink_tables import (
    VariantTable,
    read_bim,
    read_fam,
    room_for_hashes,
)
from streampca.sources.genotypes.two_bits import TwoBitReader
from streampca.sources.genotypes.variants import (
    refuse_shared_variants,
    sample_labels,
    variant_labels,
    warn_of_ignored,
)
from streampca.sources.joining import expand
from streampca.sources.stacked import StackedMatrix

# PLINK 1 .bed files: two bits per call, variant-major, read by position and not mapped.

MAGIC = b"\x6c\x1b"
PROBED = 256  # variants whose padding is checked, in all files together


class BedReader(TwoBitReader):
    """Calls of variants x samples from one or more .bed files, concatenated."""

    table = "BED_TABLE"

    def __init__(self, paths: Sequence[str], variants: Sequence[int], n_samples: int) -> None:
        super().__init__(paths, variants, n_samples, len(MAGIC) + 1, -(-n_samples // 4))
        for path, count in zip(self.files, variants, strict=True):
            _check_bed(path, count, self.stride)
            _check_padding(path, count, n_samples, max(16, PROBED // len(paths)))

    def paths(self) -> tuple[str, ...]:
        sets = [Fileset.of(os.path.realpath(path)) for path in self.files]
        return tuple(one.file(suffix) for one in sets for suffix in ("bed", "bim", "fam"))


def _check_bed(path: str, variants: int, stride: int) -> None:
    """Raise SourceError for anything but a complete variant-major .bed of this size."""
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
    """Refuse calls after the last sample: the .bed then has up to 3 more samples than its .fam.

    Such a .bed has the expected length. The reverse cannot be detected: the padding of 60 samples
    reads as calls of a 61st, all homozygous.
    """
    stride, used = -(-n_samples // 4), n_samples % 4
    if not used or not variants:
        return
    with open(path, "rb", buffering=0) as file:
        for j in np.unique(np.linspace(0, variants - 1, probed).astype(np.int64)).tolist():
            file.seek(len(MAGIC) + (j + 1) * stride)
            (last,) = file.read(1)
            if last >> 2 * used:
                raise SourceError(
                    f"{path} has calls behind the last of {n_samples} samples (variant {j}): it "
                    f"holds more samples than {path[:-4]}.fam names"
                )


# One or more filesets, for example one per chromosome, form a matrix of samples x variants. Values
# are copies of the first allele of the .bim (A1), -1 where a call is missing.
# Source: PLINK 1.9 reference, "File formats": .bed, .bim, .fam.


@dataclass(frozen=True)
class Fileset:
    """The three files of one PLINK 1 fileset, by the path without suffix."""

    stem: str

    @classmethod
    def of(cls, path: str) -> Fileset:
        """From the path of any of the three, or their common stem."""
        stem, suffix = os.path.splitext(path)
        return cls(stem if suffix.lower() in (".bed", ".bim", ".fam") else path)

    def file(self, suffix: str) -> str:
        """Path of one of the three. Raises SourceError where it does not exist."""
        path = f"{self.stem}.{suffix}"
        if not os.path.isfile(path) and os.path.isfile(capital := f"{self.stem}.{suffix.upper()}"):
            return capital
        if not os.path.isfile(path):
            raise SourceError(f"{path}: no such file; a PLINK fileset is .bed, .bim and .fam")
        return path


def open_plink(sources: str | Sequence[str]) -> ChunkedMatrix:
    """One or more PLINK 1 filesets as samples x variants, int8 copies of A1, -1 = missing.

    sources : paths of .bed files (or without suffix), or a glob pattern such as "chr*.bed".
        Several must have the same samples in the same order, and come in the order given
        (a glob: by the numbers in the names).

    Raises SourceError for files that are absent, damaged or do not belong together, and
    InvalidInputError for duplicate samples, or a variant of two filesets. A .fam with too few
    lines is refused, by the length of the .bed or by its padding bits. One with up to 3 too many,
    in the same number of bytes (61 for 60, not for 64), cannot be detected.
    Variants with a negative position are excluded, as in PLINK, with an IncompleteSourceWarning.

    Cost: one read of each .bim. Labels of more than 65,536 variants are not kept in memory: they
    are read from the .bim on demand, which raises SourceError once it has changed.
    """
    filesets = [Fileset.of(path) for path in expand(sources)]
    family = read_fam(filesets[0].file("fam"))
    for other in filesets[1:]:
        _check_same_samples(family, read_fam(other.file("fam")), filesets[0], other)
    samples = sample_labels(*family)
    paths = [fileset.file("bim") for fileset in filesets]
    tables, counts = list[VariantTable](), list[int]()
    hashes = room_for_hashes(paths) if len(paths) > 1 else None
    for path in paths:
        tables.append(read_bim(path, None if hashes is None else hashes[sum(counts) :]))
        counts.append(tables[-1].count)
    reader = BedReader([fileset.file("bed") for fileset in filesets], counts, len(samples))
    columns = [join([table.columns[i] for table in tables]) for i in range(5)]
    unnamed = any(table.unnamed for table in tables)
    if not any(table.n_ignored for table in tables):
        variants = variant_labels(*columns, unnamed=unnamed)
        if hashes is not None:
            refuse_shared_variants(variants, counts, None if unnamed else hashes[: sum(counts)])
        labels = Labels(samples, variants, attrs={PLOIDY: DIPLOID})
        return StackedMatrix(reader, (1,), (0,), labels, missing_value=MISSING_CALL)
    position = np.asarray(columns[2])
    kept = np.flatnonzero(position >= 0)
    where = f"{filesets[0].stem}.bim" + (" and others" if filesets[1:] else "")
    warn_of_ignored(columns[1], position, where)
    variants = variant_labels(*(np.asarray(column)[kept] for column in columns))
    left = np.diff(np.searchsorted(kept, reader.offsets)).tolist()
    if len(left) > 1:
        refuse_shared_variants(variants, left)
    labels = Labels(samples, variants, attrs={PLOIDY: DIPLOID})
    plain = Labels.plain((reader.shape[1], reader.shape[0]))
    whole = StackedMatrix(reader, (1,), (0,), plain, missing_value=MISSING_CALL)
    matrix = select(whole, features=kept)
    matrix.labels = labels
    return matrix


def _check_same_samples(
    first: tuple[Any, ...], second: tuple[Any, ...], one: Fileset, other: Fileset
) -> None:
    same = len(first[1]) == len(second[1])
    if not same or not all(np.array_equal(first[i], second[i]) for i in (0, 1)):
        where = f"{len(first[1])} and {len(second[1])} samples"
        if same:
            at = int(np.flatnonzero((first[0] != second[0]) | (first[1] != second[1]))[0])
            names = [f"{each[0][at]}:{each[1][at]}" for each in (first, second)]
            where = f"sample {at + 1} is {names[0]} in one and {names[1]} in the other"
        raise SourceError(
            f"{one.stem}.fam and {other.stem}.fam differ: {where}. Filesets that are opened "
            "together need the same samples in the same order."
        )
