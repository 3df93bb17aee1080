"""VCF and BCF, which cannot be read by slices: parsed once into a scratch file of calls.

Values are copies of the first alternate allele, as ``vcf_zarr`` has them: after ``plink2 --vcf
--make-bed`` a .bed holds the same numbers. Large files are for ``streampca convert``.
Source: VCF 4.3 specification; PLINK 2, "--vcf", "--vcf-half-call" and "dosage=DS".
"""

from __future__ import annotations

import errno
import hashlib
import os
import shutil
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import numpy as np

from streampca.errors import (
    DamagedSourceError,
    IncompleteSourceWarning,
    InvalidInputError,
    MissingDependencyError,
    SourceError,
    warn_caller,
)
from streampca.matrix import AxisLabels, ChunkedMatrix, Labels, Location
from streampca.matrix.columns import PIECE, Runs, as_text, compact, joined
from streampca.sources.genotypes.allele_counts import DIPLOID, MISSING_CALL, PLOIDY
from streampca.sources.genotypes.dosages import DosageMatrix, DosageReader
from streampca.sources.genotypes.variants import UNNAMED, sample_labels, variant_labels
from streampca.sources.local_files import FileLocation, ScratchFolder, append_to
from streampca.sources.npy import NpyReader
from streampca.sources.stacked import StackedMatrix

WRITTEN = 4 << 20  # bytes of calls that are written at a time
LARGEST = 256 << 20  # bytes of a compressed file; parsed at 1 to 6 MB/s
TEXT_TIMES = 16  # a file that is not compressed may be larger
END = bytes.fromhex("1f8b08040000000000ff0600424302001b0003000000000000000000")  # of BGZF
INDEXES = (".tbi", ".csi")
CALLS = "calls"  # name of the scratch file


class VcfReader(NpyReader):
    """Calls (variants, samples) in a scratch file, known by the VCF that they come from."""

    loads = ("cyvcf2", "numba")  # by the parse

    def __init__(
        self, folder: ScratchFolder, shape: tuple[int, int], dtype: Any, origin: str
    ) -> None:
        self._lay(os.path.join(folder.path, CALLS), shape, dtype, 0)
        self.folder = folder  # which is removed with the last reader of this process
        self.origin = os.path.abspath(origin)

    def edges(self, dim: int) -> np.ndarray[Any, Any] | None:
        return None if dim == 0 else np.array([0, self.shape[1]])

    def fingerprint(self) -> str:
        stat = os.stat(self.origin)
        text = f"{self.origin} {stat.st_size} {stat.st_mtime_ns} {self.shape} {self.dtype}"
        return hashlib.sha256(text.encode()).hexdigest()

    def paths(self) -> tuple[str, ...]:
        return (self.origin,)

    def locations(self) -> tuple[Location, ...]:
        return (FileLocation(self.path),)


class VcfDosages(VcfReader, DosageReader):
    """Dosages of DS in such a file."""


def open_vcf(
    path: str, *, dosages: bool | None = None, multiallelic: str = "error"
) -> ChunkedMatrix:
    """A VCF or BCF as samples x variants: copies of the first ALT.

    dosages : None and False: int8 calls of GT, -1 = missing, as ``plink2 --vcf``; True: float32 of
        DS, NaN = missing, and the call where a cell has none, as ``plink2 --vcf ... dosage=DS``.
    multiallelic : "error" refuses variants of more than two alleles, "drop" leaves them out.

    Phase is ignored. A haploid call counts twice, as in a .bed. A half call, such as ./1, is
    missing, as of ``plink2 --vcf-half-call missing``, with a warning. QUAL and FILTER are ignored,
    as by PLINK.
    Cost: the file is parsed once, on opening (10 to 20 million calls a second), into a scratch
    folder (in tempfile.gettempdir(), a byte a call, 4 of a dosage), which is removed with the
    matrix; labels are held. Raises SourceError for a file that is truncated or damaged, or larger
    than 256 MiB (4 GiB of text), with the line that converts it; InvalidInputError for variants of
    more than two alleles, or calls of more than two copies.
    Warns IncompleteSourceWarning of half calls.
    """
    if multiallelic not in ("error", "drop"):
        raise InvalidInputError(f"multiallelic={multiallelic!r}; expected 'error' or 'drop'")
    reader_of = _cyvcf2()
    check_whole(path)
    _check_size(path)
    try:
        file = reader_of(path)
        names = list(file.samples)
    except Exception as error:
        raise SourceError(f"{path} is no VCF or BCF ({error})") from None
    if not names:
        raise SourceError(f"{path} has no samples: its header names none")
    samples = sample_labels(None, as_text(names))
    parser = _Parser(path, file, len(names), dosages is True, multiallelic == "drop")
    folder = ScratchFolder()
    known = _indexed_records(path, file)
    _check_room(path, (known or 0) * len(names) * parser.dtype.itemsize, folder.path)
    try:
        with open(os.path.join(folder.path, CALLS), "wb", buffering=0) as out:
            for part in parser.parts():
                append_to(out, part.reshape(-1))
    except OSError as error:
        if isinstance(error, SourceError) or error.errno != errno.ENOSPC:
            raise
        raise SourceError(
            f"{path}: no room for its calls in {folder.path}. {_repair(path)}"
        ) from None
    shape, found = (parser.count, len(names)), parser.count + parser.several
    if known not in (None, found):
        raise DamagedSourceError(
            f"{path} has {found} variants, and its index counts {known}: it is truncated, or has "
            f"changed. If it is whole, write the index again: bcftools index -f {path}"
        )
    labels = Labels(samples, parser.labels())
    matrix: StackedMatrix
    if dosages:
        matrix = DosageMatrix(VcfDosages(folder, shape, parser.dtype, path), labels)
    else:
        labels = replace(labels, attrs={PLOIDY: DIPLOID})
        reader = VcfReader(folder, shape, parser.dtype, path)
        matrix = StackedMatrix(reader, (1,), (0,), labels, missing_value=MISSING_CALL)
    matrix.multiallelic = parser.several
    notes = [f"{path} was parsed once into {folder.path}, a scratch folder"]
    if parser.several:
        notes.append(
            f"{parser.several} of {parser.count + parser.several} variants have more than two "
            "alleles and are left out"
        )
    matrix.note = "; ".join(notes)
    return matrix


def _cyvcf2() -> Any:
    try:
        from cyvcf2 import VCF
    except ImportError:
        raise MissingDependencyError(
            "VCF and BCF need cyvcf2: pip install 'streampca[vcf]'"
        ) from None
    return VCF


def _repair(path: str) -> str:
    stem = path
    for suffix in (".gz", ".bgz", ".vcf", ".bcf"):
        stem = stem.removesuffix(suffix)
    return f"Convert it once: streampca convert {path} -o {stem}.zarr"


def check_whole(path: str) -> None:
    """Refuse a file that is no VCF, or cut off, as far as its end tells. Raises SourceError."""
    try:
        size = os.path.getsize(path)
    except OSError as error:
        raise SourceError(f"{path}: {error.strerror or error}") from None
    with open(path, "rb") as file:
        head = file.read(18)
        file.seek(max(0, size - len(END)))
        tail = file.read()
    packed = head[:2] == END[:2]
    if not packed and not head.startswith(b"##fileformat=VCF"):
        raise SourceError(f"{path} is no VCF or BCF: it does not begin ##fileformat=VCF")
    if head[:4] == END[:4] and head[12:14] == b"BC" and tail != END:
        raise DamagedSourceError(
            f"{path} is truncated: the empty block that ends a BGZF file is absent"
        )
    if not packed and tail[-1:] != b"\n":
        raise DamagedSourceError(f"{path} is truncated: its last line has no end")


def _check_size(path: str) -> None:
    """Refuse a large file."""
    size = os.path.getsize(path)
    with open(path, "rb") as file:
        packed = file.read(2) == END[:2]
    most = LARGEST if packed else TEXT_TIMES * LARGEST
    if size > most:
        raise SourceError(
            f"{path} has {size >> 20} MiB, more than the {most >> 20} MiB that are parsed at every "
            f"opening. {_repair(path)}"
        )


def _indexed_records(path: str, file: Any) -> int | None:
    """How many variants the index of a file counts; None without one."""
    if not any(os.path.isfile(path + end) for end in INDEXES):
        return None
    try:
        return int(file.num_records)
    except Exception:  # of an index that does not count them
        return None


def _check_room(path: str, nbytes: int, folder: str) -> None:
    """Refuse where the calls do not fit the disk."""
    free = shutil.disk_usage(folder).free
    if nbytes > free:
        raise SourceError(
            f"{path}: its calls take {nbytes >> 20} MiB of scratch in {os.path.dirname(folder)}, "
            f"where {free >> 20} MiB are free. Set TMPDIR to a larger disk, or convert it"
        )


class _Parser:
    """State of the parse.

    count : variants kept so far.  several : variants of more than two alleles, left out.
    half : half calls.
    """

    def __init__(self, path: str, file: Any, n: int, dosages: bool, drop: bool) -> None:
        self.path, self.file, self.n, self.dosages, self.drop = path, file, n, dosages, drop
        self.dtype = np.dtype(np.float32 if dosages else np.int8)
        self.count = self.several = self.half = self.with_dosages = 0
        self.columns = _Columns()

    def parts(self) -> Iterator[np.ndarray[Any, Any]]:
        """(m, n) values of the kept variants, some MiB at a time."""
        step = max(1, WRITTEN // (self.n * self.dtype.itemsize))
        part, filled = np.empty((step, self.n), self.dtype), 0
        for variant in self._variants():
            if len(variant.ALT) > 1:
                self._note_several(variant)
                continue
            self._values(variant, part[filled])
            self.columns.add(variant)
            self.count, filled = self.count + 1, filled + 1
            if filled == step:
                yield part
                filled = 0
        if filled:
            yield part[:filled]
        if not self.count:
            left = f"all {self.several} have more than two alleles" * bool(self.several)
            raise SourceError(f"{self.path} has no variants{f': {left}' if left else ''}")
        if self.dosages and not self.with_dosages:
            raise SourceError(
                f"{self.path} has no DS, the dosages of its calls; expected FORMAT/DS. For the "
                "calls leave dosages= out"
            )
        if self.half:
            warn_caller(
                f"{self.path}: half calls, such as ./1, count as missing ({self.half} of them), as of "
                "plink2 --vcf-half-call missing",
                IncompleteSourceWarning,
            )

    def _variants(self) -> Iterator[Any]:
        done = 0
        variants = iter(self.file)
        while True:
            try:
                variant = next(variants)
            except StopIteration:
                return
            except Exception as error:
                raise DamagedSourceError(
                    f"{self.path} is truncated or damaged behind variant {done} ({error})"
                ) from None
            done += 1
            yield variant

    def _values(self, variant: Any, out: np.ndarray[Any, Any]) -> None:
        calls = np.empty(self.n, np.int8)
        haploid = self._calls(variant, calls)
        if not self.dosages:
            out[:] = calls
            return
        out[:] = np.where(calls < 0, np.nan, calls)
        if "DS" not in (variant.FORMAT or ()):
            return
        self.with_dosages += 1
        stored = np.asarray(variant.format("DS"), np.float32)[:, 0] * (1 + haploid)
        known = ~np.isnan(stored)
        if np.any((stored[known] < 0) | (stored[known] > DIPLOID)):
            raise SourceError(f"{self._named(variant)}: a DS is not between 0 and the copies")
        out[known] = stored[known]

    def _calls(self, variant: Any, out: np.ndarray[Any, Any]) -> Any:
        """Fill (n,) calls; which samples have one copy, (n,) bool or False."""
        from streampca.kernels.calls import sum_alleles

        if "GT" not in (variant.FORMAT or ()):
            out[:] = MISSING_CALL
            return False
        alleles = np.ascontiguousarray(variant.genotype.array()[:, :-1], np.int8)
        if alleles.shape[1] > DIPLOID:
            raise InvalidInputError(
                f"{self._named(variant)} has calls of {alleles.shape[1]} copies; expected up to 2. "
                f"{_repair(self.path)}, then GenotypePCA(ploidy={alleles.shape[1]})"
            )
        if sum_alleles(alleles[None], None, out[None]) > 1:
            raise SourceError(f"{self._named(variant)} has calls of an allele that ALT lacks")
        if alleles.shape[1] == 1:
            return True
        lost = alleles == MISSING_CALL
        if lost.any():
            self.half += int(np.count_nonzero(lost.any(axis=1) & (alleles >= 0).any(axis=1)))
        return alleles[:, 1] < MISSING_CALL

    def _note_several(self, variant: Any) -> None:
        if not self.drop:
            raise InvalidInputError(
                f"{self._named(variant)} has more than two alleles, "
                f"{','.join([variant.REF, *variant.ALT])}. Leave such variants out, "
                f"streampca.open({self.path!r}, multiallelic='drop'), or split them: bcftools norm "
                f"-m -any {self.path} -o NEW.vcf"
            )
        self.several += 1

    def _named(self, variant: Any) -> str:
        return f"{self.path}, {variant.CHROM}:{variant.POS}"

    def labels(self) -> AxisLabels:
        """Of the kept variants."""
        return self.columns.labels()


class _Columns:
    """Chromosome, name, position, ALT and REF, as they come: text in arrays, piece by piece."""

    def __init__(self) -> None:
        self.parts: list[tuple[Any, ...]] = []
        self.rows: list[tuple[Any, ...]] = []

    def add(self, variant: Any) -> None:
        alternate = variant.ALT[0] if variant.ALT else UNNAMED
        name = variant.ID or UNNAMED
        self.rows.append((variant.CHROM, name, variant.POS, alternate, variant.REF))
        if len(self.rows) == PIECE:
            self._keep()

    def _keep(self) -> None:
        chromosome, name, position, *alleles = map(list, zip(*self.rows, strict=True))
        texts = map(compact, alleles)
        place = np.asarray(position, np.int64)
        self.parts.append((Runs.of(compact(chromosome)), as_text(name), place, *texts))
        self.rows = []

    def labels(self) -> AxisLabels:
        if self.rows:
            self._keep()
        columns = list(zip(*self.parts, strict=True))
        chromosome = Runs.of(joined([np.asarray(runs) for runs in columns[0]]))
        return variant_labels(chromosome, *(joined(list(one)) for one in columns[1:]))
