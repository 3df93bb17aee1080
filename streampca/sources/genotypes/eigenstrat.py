"""Genotypes of EIGENSOFT: EIGENSTRAT (text) and PACKEDANCESTRYMAP (binary; transposed too).

Values are copies of the reference allele, the fifth column of the .snp, which smartpca counts. It
is the first allele of a .bim that convertf has converted: the numbers of both are the same.
Source: EIGENSOFT, CONVERTF/README.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import Any

import numpy as np

from streampca.errors import IncompleteSourceWarning, SourceError, shorten, warn_caller
from streampca.matrix import ChunkedMatrix, Labels, ReadCount, select
from streampca.sources.genotypes.allele_counts import DIPLOID, MISSING_CALL, PLOIDY
from streampca.sources.genotypes.eigenstrat_tables import IGNORED, read_ind, read_snp
from streampca.sources.genotypes.two_bits import CallsReader, TwoBitReader, read_at
from streampca.sources.genotypes.variants import sample_labels, variant_labels
from streampca.sources.stacked import Index, StackedMatrix, room_for
from streampca.sources.text_files import marked

SHORTEST = 48  # bytes of a header, and of a variant
PACKED, TRANSPOSED = b"GENO", b"TGENO"
CONVERT = "convertf with outputformat: PACKEDANCESTRYMAP"
PIECE_NBYTES = 1 << 19  # of calls that are transposed at a time
CALLS = (".geno", ".eigenstratgeno", ".packedancestrymapgeno")
TABLES = (".snp", ".ind")


@dataclass(frozen=True)
class GenoFiles:
    """The three files, as absolute paths."""

    geno: str
    snp: str
    ind: str

    @classmethod
    def of(cls, path: str, variant_file: str | None, sample_file: str | None) -> GenoFiles:
        """From the path of any of them. Raises SourceError for one that does not exist."""
        stem, end = os.path.splitext(path)
        geno = path
        if end.lower() in TABLES:
            names = [stem + suffix for suffix in CALLS]
            geno = next((name for name in names if os.path.isfile(name)), names[0])
        options = ("variant_file", variant_file, ".snp"), ("sample_file", sample_file, ".ind")
        found = [geno]
        for option, given, suffix in options:
            found.append(given or (path if end.lower() == suffix else stem + suffix))
            if not os.path.isfile(found[-1]) and not given:
                raise SourceError(
                    f"{found[-1]}: no such file; the genotypes of EIGENSOFT are .geno, .snp and "
                    f".ind. If it lies elsewhere: {option}='PATH'"
                )
        for one in found:
            if not os.path.isfile(one):
                raise SourceError(f"{one}: no such file")
        return cls(*map(os.path.abspath, found))


class _OfThree:
    """A reader of three files."""

    three: GenoFiles

    def paths(self) -> tuple[str, ...]:
        return self.three.geno, self.three.snp, self.three.ind


class PackedReader(_OfThree, TwoBitReader):
    """Calls of a PACKEDANCESTRYMAP: the header takes the place of a variant."""

    table = "GENO_TABLE"

    def __init__(self, three: GenoFiles, n_variants: int, n_samples: int) -> None:
        stride = max(SHORTEST, -(-n_samples // 4))
        super().__init__([three.geno], [n_variants], n_samples, stride, stride)
        self.three = three
        _check_size(three, stride * (n_variants + 1), f"{n_variants} variants x {stride} bytes")


class TransposedReader(_OfThree, CallsReader):
    """Calls of a transposed PACKEDANCESTRYMAP, individual after individual.

    A read of some variants reads a piece of every individual.
    """

    def __init__(self, three: GenoFiles, n_variants: int, n_samples: int) -> None:
        super().__init__([three.geno], n_variants, n_samples)
        self.three, self.stride = three, -(-n_variants // 4)
        size = SHORTEST + n_samples * self.stride
        _check_size(three, size, f"{n_samples} individuals x {self.stride} bytes")

    def read(self, index: Index, buffer: Any = None) -> np.ndarray[Any, Any]:
        from streampca.kernels.calls import GENO_TABLE, unpack_bed

        start, stop = index[0].start, index[0].stop
        m, n = stop - start, self.shape[1]
        calls = room_for((m, n), self.dtype, buffer)
        low, high = start // 4, -(-stop // 4)
        rows = self._rows(high - low)
        packed = self.buffers.take("packed", rows * (high - low)).reshape(rows, high - low)
        room = self.buffers.take("calls", packed.size * 4).view(np.int8).reshape(rows, -1)
        for first in range(0, n, rows):
            some = packed[: min(rows, n - first)]
            for i, one in enumerate(some, first):
                if read_at(self.files[0], SHORTEST + i * self.stride + low, one) < len(one):
                    raise SourceError(f"{self.files[0]} ends before individual {i} does")
            here = room[: len(some)]
            unpack_bed(some, GENO_TABLE, here)
            calls[:, first : first + len(some)] = here[:, start - 4 * low :][:, :m].T
        self.tally.add(ReadCount(1, m * n, n * (high - low)))
        return calls[:, index[1]]

    def _rows(self, nbytes: int) -> int:
        """Individuals that are read at a time."""
        return max(1, min(self.shape[1], PIECE_NBYTES // (4 * max(nbytes, 1))))

    def scratch_nbytes(self, index: Index) -> int:
        nbytes: int = -(-(index[0].stop - index[0].start) // 4) + 1
        return 5 * nbytes * self._rows(nbytes)


class DigitReader(_OfThree, CallsReader):
    """Calls of an EIGENSTRAT: a line of digits 0, 1, 2 and 9 (missing) for each variant."""

    def __init__(self, three: GenoFiles, n_variants: int, n_samples: int) -> None:
        super().__init__([three.geno], n_variants, n_samples)
        self.three, self.start = three, marked(three.geno)
        self.stride = self._width_of_lines(n_samples)
        found, blanks = os.path.getsize(three.geno) - self.start, self.stride - n_samples
        expected = n_variants * self.stride
        if not expected - blanks <= found <= expected + 2:
            lines = (found + blanks) // self.stride
            raise SourceError(
                f"{three.geno} has {lines} lines of {n_samples} calls, {found} bytes, and "
                f"{three.snp} names {n_variants} variants ({expected} bytes): one of them is "
                "truncated, or they do not belong together"
            )

    def _width_of_lines(self, n_samples: int) -> int:
        """Bytes of the first line, by which all are read."""
        with open(self.three.geno, "rb") as file:
            file.seek(self.start)
            line = file.readline(n_samples + SHORTEST)
        calls = line.rstrip()
        if calls.translate(None, b"0129") or not calls:
            raise SourceError(
                f"{self.three.geno} begins with {calls[:40]!r}, no line of digits 0, 1, 2 and 9 "
                f"(EIGENSTRAT), nor {PACKED.decode()} (PACKEDANCESTRYMAP). Write it again: "
                f"{CONVERT}"
            )
        if len(calls) != n_samples or not line.endswith(b"\n"):
            more = "more than " * (not line.endswith(b"\n"))
            raise SourceError(
                f"{self.three.geno} has {more}{len(calls)} calls in a line, and {self.three.ind} "
                f"names {n_samples} individuals: they do not belong together"
            )
        return len(line)

    def read(self, index: Index, buffer: Any = None) -> np.ndarray[Any, Any]:
        from streampca.kernels.calls import DIGIT_TABLE, unpack_digits

        start, stop = index[0].start, index[0].stop
        m, n = stop - start, self.shape[1]
        calls = room_for((m, n), self.dtype, buffer)
        text = self.buffers.take("text", m * self.stride)
        done = read_at(self.files[0], self.start + start * self.stride, text)
        if done < len(text) - (self.stride - n if stop == self.shape[0] else 0):
            raise SourceError(f"{self.files[0]} ends before variant {stop - 1} does")
        text[done:] = ord("\n")  # a last line without an end
        lines = text.reshape(m, self.stride)
        wrong = unpack_digits(lines, DIGIT_TABLE, calls)
        if wrong or np.any(lines[:, n:-1] > ord(" ")) or np.any(lines[:, -1] != ord("\n")):
            raise self._not_digits(lines, start)
        self.tally.add(ReadCount(1, m * n, m * self.stride))
        return calls[:, index[1]]

    def _not_digits(self, lines: np.ndarray[Any, Any], first: int) -> SourceError:
        n = self.shape[1]
        digits = np.isin(lines[:, :n], np.frombuffer(b"0129", np.uint8)).all(axis=1)
        ends = (lines[:, n:-1] <= ord(" ")).all(axis=1) & (lines[:, -1] == ord("\n"))
        at = int(np.argmin(digits & ends))
        other = lines[at, :n].tobytes().translate(None, b"0129")
        what = f"{other[:8]!r} among its calls" if other else f"more than {n} calls"
        return SourceError(
            f"{self.files[0]}, line {first + at + 1}: {what}; expected {n} digits 0, 1, 2 or 9"
        )

    def scratch_nbytes(self, index: Index) -> int:
        return int((index[0].stop - index[0].start) * self.stride)


def open_eigenstrat(
    path: str, *, variant_file: str | None = None, sample_file: str | None = None
) -> ChunkedMatrix:
    """EIGENSTRAT or PACKEDANCESTRYMAP as samples x variants, int8 copies of the reference allele.

    path : of the .geno, .snp or .ind.  variant_file, sample_file : .snp and .ind that have other
        names.

    The population of the .ind is the label "population" of a sample. Individuals of the population
    "Ignore" are left out, as EIGENSOFT does, with an IncompleteSourceWarning.
    Raises SourceError for files that are absent, damaged or do not belong together, by the digests
    of ids in the header of a packed .geno; InvalidInputError for an individual that occurs twice.

    Cost: one read of the .snp. Labels of more than 65,536 variants are read on demand.
    """
    three = GenoFiles.of(path, variant_file, sample_file)
    names, extra, of_samples = read_ind(three.ind)
    table, of_variants = read_snp(three.snp)
    kind = _kind(three.geno)
    if kind is not None:
        _check_header(three, (len(names), of_samples), (table.count, of_variants))
    readers: dict[Any, Any] = {PACKED: PackedReader, TRANSPOSED: TransposedReader}
    reader: CallsReader = readers.get(kind, DigitReader)(three, table.count, len(names))
    variants = variant_labels(*table.columns, unnamed=table.unnamed)
    labels = Labels(sample_labels(None, names, extra), variants, attrs={PLOIDY: DIPLOID})
    matrix = StackedMatrix(reader, (1,), (0,), labels, missing_value=MISSING_CALL)
    kept = np.flatnonzero(extra["population"] != IGNORED)
    if len(kept) == len(names):
        return matrix
    left_out = [str(name) for name in np.delete(names, kept)[:4]]
    ignored = len(names) - len(kept)
    if not len(kept):
        raise SourceError(f"{three.ind}: all {ignored} individuals are of population {IGNORED}")
    warn_caller(
        f"{three.ind}: {ignored} of {len(names)} individuals are of population {IGNORED} and are "
        f"left out, as EIGENSOFT does: {shorten(left_out, ignored)}",
        IncompleteSourceWarning,
    )
    return select(matrix, samples=kept)


def _kind(path: str) -> bytes | None:
    """The first word of a packed .geno; None of others."""
    with open(path, "rb") as file:
        word = file.read(len(TRANSPOSED) + 1).split(b" ")[0]
    return word if word in (PACKED, TRANSPOSED) else None


def _check_header(three: GenoFiles, samples: tuple[int, int], variants: tuple[int, int]) -> None:
    """Raise SourceError where the header is of other individuals or variants.

    samples, variants : number and digest of those in the tables.
    """
    with open(three.geno, "rb") as file:
        head = file.read(SHORTEST)
    if len(head) < SHORTEST:
        raise SourceError(f"{three.geno} is truncated: {len(head)} bytes of a header of {SHORTEST}")
    words = head.split(b"\0")[0].split()
    try:
        numbers = [int(word) for word in words[1:3]]
        digests = [int(word, 16) for word in words[3:5]]
        n, m, of_samples, of_variants = *numbers, *digests
    except ValueError:
        raise SourceError(
            f"{three.geno}: the header is {b' '.join(words)!r}; expected {words[0].decode()}, the "
            "numbers of individuals and SNPs, and two digests"
        ) from None
    for path, (number, digest), stated, known, what in (
        (three.ind, samples, n, of_samples, "individuals"),
        (three.snp, variants, m, of_variants, "SNPs"),
    ):
        if number != stated:
            raise SourceError(
                f"{three.geno} holds {stated} {what}, and {path} names {number}: they do not "
                "belong together"
            )
        if known and digest != known:  # 0: the writer computed none
            raise SourceError(
                f"{three.geno} was written for other {what} than {path} names, or in another "
                f"order (digest {known:x}, not {digest:x}). If only names were changed since: "
                f"{CONVERT} and hashcheck: NO"
            )


def _check_size(three: GenoFiles, expected: int, why: str) -> None:
    """Raise SourceError for a packed .geno of another size."""
    found = os.path.getsize(three.geno)
    if found != expected:
        kind = "truncated" if found < expected else "longer than its header says"
        raise SourceError(
            f"{three.geno} is {kind}: {found} bytes, expected {expected} (a header and {why})"
        )
