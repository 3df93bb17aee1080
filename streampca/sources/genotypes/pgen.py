"""PLINK 2 filesets: .pgen (calls and dosages), .pvar (variants), .psam (samples), by pgenlib.

Values are copies of the alternate allele, which ``plink2 --make-bed`` writes as A1: the same calls
through a .bed are the same numbers. A haploid call counts twice, as there.
Source: PLINK 2, "File format reference": .pgen, .pvar, .psam.
"""

from __future__ import annotations

import hashlib
import os
import threading
import weakref
from typing import Any

import numpy as np

from streampca.errors import InvalidInputError, MissingDependencyError, SourceError, shorten
from streampca.kernels import row_pieces
from streampca.matrix import ChunkedMatrix, Labels, Location, ReadCount
from streampca.matrix.columns import repeated
from streampca.sources.genotypes.allele_counts import DIPLOID, MISSING_CALL, PLOIDY
from streampca.sources.genotypes.dosages import DosageMatrix, DosageReader
from streampca.sources.genotypes.pgen_header import Header, read_header
from streampca.sources.genotypes.pgen_tables import read_psam, read_pvar
from streampca.sources.genotypes.plink_tables import VariantTable
from streampca.sources.genotypes.variants import sample_labels, variant_labels, warn_of_ignored
from streampca.sources.local_files import FileLocation
from streampca.sources.stacked import Index, Reader, StackedMatrix, Tally, room_for

PGEN, INDEX = ".pgen", ".pgen.pgi"
VARIANTS, SAMPLES = (".pvar", ".pvar.zst", ".bim", ".bim.zst"), (".psam", ".fam")
PIECE_NBYTES = 1 << 18  # of dosages whose missing ones are marked at a time
RECORD_NBYTES = 9  # of a variant, in pgenlib: the place and the type of its record
SAMPLE_NBYTES = 24  # of a sample, in pgenlib: one record as it is decoded


_held = threading.local()  # the last reader of pgenlib of each thread; it holds places of records


class PgenReader(Reader):
    """Calls of (variants, samples), int8 copies of the first alternate allele, -1 = missing.

    paths : of the .pgen, and of its tables.
    kept : (m,) numbers of the variants to read; None = all.
    several : numbers of the variants of more than two alleles.  n_alleles : of each of these.
    Every thread that reads has one reader of pgenlib, of the file that it read last.
    """

    loads = ("pgenlib",)
    into_buffer = True
    dtype = np.dtype(np.int8)

    def __init__(
        self,
        paths: list[str],
        header: Header,
        kept: np.ndarray[Any, Any] | None = None,
        several: np.ndarray[Any, Any] | None = None,
        n_alleles: np.ndarray[Any, Any] | None = None,
    ) -> None:
        self.files = [os.path.abspath(path) for path in paths]
        self.n_variants, self.record_nbytes = header.n_variants, header.largest
        self.kept, self.several, self.n_alleles = kept, several, n_alleles
        self.shape = (header.n_variants if kept is None else len(kept), header.n_samples)
        self.stored_nbytes = os.path.getsize(self.files[0])
        self.tally = Tally()

    def read(self, index: Index, buffer: Any = None) -> np.ndarray[Any, Any]:
        start, stop = index[0].start, index[0].stop
        values = room_for((stop - start, self.shape[1]), self.dtype, buffer)
        if start < stop:
            try:
                self._fill(self._opened(), start, stop, values)
            except RuntimeError as error:
                raise self._refused(error, f", variants {start} to {stop - 1}") from None
        stored = self.stored_nbytes * (stop - start) // max(1, self.n_variants)
        self.tally.add(ReadCount(1, values.nbytes, stored))
        return values[:, index[1]]

    def _fill(self, pgen: Any, start: int, stop: int, values: np.ndarray[Any, Any]) -> None:
        if self.kept is None:
            pgen.read_range(start, stop, values)
        else:
            pgen.read_list(self.kept[start:stop], values)
        np.maximum(values, np.int8(MISSING_CALL), out=values)  # -9 in pgenlib

    def _opened(self) -> Any:
        """The reader of this thread: the last, or a new one in its place, if it was of another."""
        held = _held.__dict__
        if "last" in held and held["last"][0]() is self:
            return held["last"][1]
        held.pop("last", None)  # closed before the next is opened
        pgen = self._open()
        held["last"] = weakref.ref(self, lambda _: held.pop("last", None)), pgen
        return pgen

    def _open(self) -> Any:
        import pgenlib

        offsets = None
        if self.several is not None and self.n_alleles is not None:
            sizes = np.full(self.n_variants, 2, np.uintp)
            sizes[self.several] = self.n_alleles
            offsets = np.concatenate([np.zeros(1, np.uintp), np.cumsum(sizes, dtype=np.uintp)])
        try:
            return pgenlib.PgenReader(
                os.fsencode(self.files[0]),
                raw_sample_ct=self.shape[1],
                variant_ct=self.n_variants,
                allele_idx_offsets=offsets,
            )
        except RuntimeError as error:
            raise self._refused(error) from None

    def _refused(self, error: RuntimeError, where: str = "") -> SourceError:
        found = error.args[0] if error.args else error
        text = found.decode(errors="replace") if isinstance(found, bytes) else str(found)
        return SourceError(
            f"{self.files[0]}{where}: damaged, or changed since it was opened; pgenlib says: "
            f"{text.strip()}"
        )

    def edges(self, dim: int) -> np.ndarray[Any, Any] | None:
        return None if dim == 0 else np.array([0, self.shape[1]])

    def scratch_nbytes(self, index: Index) -> int:
        per_variant = RECORD_NBYTES + 8 * (self.several is not None)
        per_sample = SAMPLE_NBYTES * self.shape[1]
        return int(per_variant * self.n_variants + per_sample + 2 * self.record_nbytes)

    def fingerprint(self) -> str:
        stat = os.stat(self.files[0])
        text = [self.shape, str(self.dtype), os.path.basename(self.files[0])]
        digest = hashlib.sha256(repr([*text, stat.st_size, stat.st_mtime_ns]).encode())
        if self.kept is not None:
            digest.update(self.kept.astype("<u4").tobytes())
        return digest.hexdigest()

    def content_stamp(self) -> str:
        stats = [(os.stat(path).st_size, os.stat(path).st_mtime_ns) for path in self.paths()]
        return hashlib.sha256(f"{self.fingerprint()} {stats}".encode()).hexdigest()

    def locations(self) -> tuple[Location, ...]:
        return (FileLocation(self.files[0]),)  # labels are read by the client alone

    def paths(self) -> tuple[str, ...]:
        return tuple(self.files)


class PgenDosages(PgenReader, DosageReader):
    """Dosages of (variants, samples), float32; calls where a file stores no dosage of a sample."""

    dtype = DosageReader.dtype

    def _fill(self, pgen: Any, start: int, stop: int, values: np.ndarray[Any, Any]) -> None:
        if self.kept is None:
            pgen.read_dosages_range(start, stop, values)
        else:
            pgen.read_dosages_list(self.kept[start:stop], values)
        for part in row_pieces(len(values), values[:1].nbytes, PIECE_NBYTES):
            piece = values[part]
            piece[piece < 0] = np.nan  # -9 in pgenlib

    def scratch_nbytes(self, index: Index) -> int:
        return super().scratch_nbytes(index) + PIECE_NBYTES + self.shape[1]

    def calls(self) -> Reader:
        """Those that the file stores."""
        calls = PgenReader.__new__(PgenReader)
        calls.__dict__.update(self.__dict__)
        return calls


def open_pgen(
    path: str, *, dosages: bool | None = None, multiallelic: str = "error"
) -> ChunkedMatrix:
    """A PLINK 2 fileset as samples x variants: copies of the alternate allele.

    path : of the .pgen, .pvar, .pvar.zst or .psam; the others lie next to it. Where there is no
        .pvar or .psam, the .bim or .fam of ``plink2 --make-bpgen`` is read.
    dosages : True: float32, NaN = missing; a call where no dosage is stored. False: calls, int8,
        -1 = missing. None: dosages if the file has any.
    multiallelic : "error" refuses variants of more than two alleles, "drop" leaves them out.

    PLINK's --hard-call-threshold and --dosage-erase-threshold act when a .pgen is written: its
    calls and dosages are taken as they are stored.
    Variants with a negative position are excluded, as in PLINK, with an IncompleteSourceWarning.

    Cost: the header of the .pgen, one read of its tables. Labels of more than 65,536 variants are
    read from a .pvar on demand, and held compressed of a .pvar.zst.
    Raises SourceError for files that are absent, damaged or do not belong together,
    InvalidInputError for samples that occur twice and for variants of more than two alleles;
    MissingDependencyError without pgenlib.
    """
    if multiallelic not in ("error", "drop"):
        raise InvalidInputError(f"multiallelic={multiallelic!r}; expected 'error' or 'drop'")
    files = _files(path)
    try:
        import pgenlib  # noqa: F401
    except ImportError:
        raise MissingDependencyError(
            f"{files[0]}: PGEN needs pgenlib: pip install 'streampca[pgen]'"
        ) from None
    header, (family, individual, extra) = read_header(files[0]), read_psam(files[2])
    table = read_pvar(files[1])
    _check_counts(files, header, table, len(individual))
    several = table.several if len(table.several) else None
    n_alleles = None if several is None else _count_alleles(files, table, multiallelic)
    kept = _kept(files[1], table)
    dosages = header.dosages if dosages is None else dosages
    kind = PgenDosages if dosages else PgenReader
    reader = kind(files, header, kept, several, n_alleles)
    samples = sample_labels(family, *_distinct(family, individual, extra))
    variants = variant_labels(*table.columns, unnamed=table.unnamed)
    variants = variants if kept is None else variants.pick(kept)
    labels = Labels(samples, variants, attrs={PLOIDY: DIPLOID})
    if dosages:
        matrix: StackedMatrix = DosageMatrix(reader, labels)  # type: ignore[arg-type]
    else:
        matrix = StackedMatrix(reader, (1,), (0,), labels, missing_value=MISSING_CALL)
    notes = []
    if header.dosages:
        notes.append("dosages" if dosages else "calls; the dosages of the file are not read")
    if several is not None:
        matrix.multiallelic = len(several)
        left_out = f"{len(several)} of {table.count} variants have more than two alleles"
        notes.append(f"{left_out} and are left out")
    matrix.note = "; ".join(notes)
    return matrix


def _files(path: str) -> list[str]:
    """The .pgen and its tables. Raises SourceError where one does not exist."""
    ends = (PGEN, *VARIANTS, *SAMPLES)
    end = next((one for one in sorted(ends, key=len)[::-1] if path.lower().endswith(one)), "")
    stem, named = path[: len(path) - len(end)], [path] * (end in VARIANTS)
    found = []
    for wanted in ((PGEN,), VARIANTS, SAMPLES):
        tried = [*(named if wanted is VARIANTS else []), *(stem + one for one in wanted)]
        tried += [stem + one.upper() for one in wanted]
        if (there := next(filter(os.path.isfile, tried), None)) is None:
            raise SourceError(
                f"{stem}{wanted[0]}: no such file; a PLINK 2 fileset is .pgen, .pvar (or "
                ".pvar.zst) and .psam"
            )
        found.append(there)
    return found + [found[0] + ".pgi"] * os.path.isfile(found[0] + ".pgi")


def _check_counts(files: list[str], header: Header, table: VariantTable, n_samples: int) -> None:
    """Raise SourceError where the tables are those of another .pgen."""
    pgen, variants, samples = files[:3]
    for what, count, other, stored in (
        ("samples", n_samples, samples, header.n_samples),
        ("variants", table.count, variants, header.n_variants),
    ):
        if count != stored:
            raise SourceError(
                f"{pgen} holds {stored} {what} and {other} names {count}; they do not belong "
                "together"
            )
    unknown = np.setdiff1d(header.several, table.several)
    if len(unknown):
        name = str(np.asarray(table.columns[1][unknown[:1]])[0])
        raise SourceError(
            f"{pgen} has calls of a third allele at {len(unknown)} variants for which {variants} "
            f"names two (the first is {name}); they do not belong together"
        )


def _count_alleles(
    files: list[str], table: VariantTable, multiallelic: str
) -> np.ndarray[Any, Any]:
    """How many alleles each of the variants has that have more than two."""
    several, alternate = table.several, np.asarray(table.columns[3][table.several])
    if multiallelic == "error":
        chromosome, position = (np.asarray(table.columns[i][several[:4]]) for i in (0, 2))
        other = np.asarray(table.columns[4][several[:4]])
        shown = [
            f"{chromosome[i]}:{position[i]} {other[i]},{alternate[i]}" for i in range(len(other))
        ]
        raise InvalidInputError(
            f"{files[1]}: {len(several)} of {table.count} variants have more than two alleles "
            f"({shorten(shown, len(several))}). Leave them out, streampca.open({files[0]!r}, "
            "multiallelic='drop'), or split them before: bcftools norm -m -any x.vcf.gz"
        )
    return np.asarray(2 + np.strings.count(alternate, ","), np.uintp)


def _kept(path: str, table: VariantTable) -> np.ndarray[Any, Any] | None:
    """(m,) uint32 numbers of the variants that are read; None = all."""
    if not table.n_ignored and not len(table.several):
        return None
    kept = np.ones(table.count, np.bool_)
    kept[table.several] = False
    if table.n_ignored:
        position = np.asarray(table.columns[2])
        warn_of_ignored(table.columns[1], position, path)
        kept &= position >= 0
    if not kept.any():
        raise InvalidInputError(f"{path}: none of {table.count} variants is left")
    return np.flatnonzero(kept).astype(np.uint32)


def _distinct(family: Any, individual: Any, extra: dict[str, Any]) -> tuple[Any, dict[str, Any]]:
    """Ids of individuals with the source (SID) where it alone tells samples apart."""
    names = (
        individual if family is None else np.strings.add(np.strings.add(family, ":"), individual)
    )
    if "source" in extra and repeated(names):
        individual = np.strings.add(np.strings.add(individual, ":"), extra["source"])
    return individual, extra
