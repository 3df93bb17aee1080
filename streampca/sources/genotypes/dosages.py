"""Dosages: expected copies of the counted allele, and the calls that belong to them.

A dosage counts wherever copies are summed, as in PLINK 2: in frequencies, ``maf``, standardisation,
components and projections. It is missing where it is NaN, by which ``max_missing`` and
``max_sample_missing`` judge (PLINK's ``--geno dosage`` and ``--mind dosage``). Kinship and LD
pruning take calls, as in PLINK 2.
Source: PLINK 2, "Input filtering" and "Standard data input": --hard-call-threshold.
"""

from __future__ import annotations

import hashlib
from dataclasses import replace
from typing import Any

import numpy as np

from streampca.kernels import row_pieces
from streampca.matrix import ChunkedMatrix, Labels, Location, ReadCount
from streampca.sources.genotypes.allele_counts import DIPLOID, MISSING_CALL, PLOIDY
from streampca.sources.stacked import Index, Reader, StackedMatrix, Tally, room_for

DOSAGES = "dosages"  # attribute of the values: expected copies of an allele
FLOAT = np.dtype(np.float32)
HARD_CALL_THRESHOLD = 0.1  # PLINK's default: a dosage further from every call is a missing one
UNITS = 16384  # of a copy, in which PLINK counts
PIECE_NBYTES = 1 << 18  # of dosages that are rounded at a time


class DosageReader(Reader):
    """Reads dosages of (variants, samples), float32 from 0 to 2, NaN = missing."""

    dtype = FLOAT

    def calls(self) -> Reader:
        """The reader of the calls: those that the file stores, or dosages rounded as PLINK does."""
        return HardCalls(self)


class HardCalls(Reader):
    """Calls 0, 1, 2 of dosages, int8; -1 where none is within ``threshold``, or it is missing."""

    dtype = np.dtype(np.int8)
    into_buffer = True

    def __init__(self, dosages: DosageReader, threshold: float = HARD_CALL_THRESHOLD) -> None:
        self.dosages, self.threshold = dosages, threshold
        self.shape, self.loads = dosages.shape, dosages.loads
        self.tally = Tally()  # the reads are those of the dosages

    def read(self, index: Index, buffer: Any = None) -> np.ndarray[Any, Any]:
        dosages = self.dosages.read(index)
        calls = room_for(dosages.shape, self.dtype, buffer)
        for part in row_pieces(len(calls), dosages[:1].nbytes, PIECE_NBYTES):
            calls[part] = hard_calls(dosages[part], self.threshold)
        return calls

    def edges(self, dim: int) -> np.ndarray[Any, Any] | None:
        return self.dosages.edges(dim)

    def scratch_nbytes(self, index: Index) -> int:
        cells = (index[0].stop - index[0].start) * (index[1].stop - index[1].start)
        pieces = 4 * (PIECE_NBYTES + FLOAT.itemsize * (index[1].stop - index[1].start))
        return int(self.dosages.scratch_nbytes(index) + cells * FLOAT.itemsize + pieces)

    def fingerprint(self) -> str:
        return self._digest(self.dosages.fingerprint())

    def content_stamp(self) -> str:
        return self._digest(self.dosages.content_stamp())

    def _digest(self, dosages: str) -> str:
        return hashlib.sha256(f"{dosages} calls within {self.threshold}".encode()).hexdigest()

    def paths(self) -> tuple[str, ...]:
        return self.dosages.paths()

    def locations(self) -> tuple[Location, ...]:
        return self.dosages.locations()

    def reads(self) -> ReadCount:
        return self.dosages.reads()

    def restart_counts(self) -> None:
        self.dosages.restart_counts()


def hard_calls(
    dosages: np.ndarray[Any, Any], threshold: float = HARD_CALL_THRESHOLD
) -> np.ndarray[Any, Any]:
    """The nearest calls of dosages, int8; -1 where none is within the threshold.

    Both are rounded to PLINK's units, by which a dosage on the threshold is still a call.
    """
    units = np.floor(dosages * np.float32(UNITS) + np.float32(0.5))
    nearest = np.rint(units / np.float32(UNITS))
    with np.errstate(invalid="ignore"):
        near = np.abs(units - nearest * np.float32(UNITS)) <= int(threshold * UNITS)
        return np.where(near, nearest, np.float32(MISSING_CALL)).astype(np.int8)


class DosageMatrix(StackedMatrix):
    """Samples x variants of dosages, and the calls that belong to them."""

    reader: DosageReader

    def __init__(self, reader: DosageReader, labels: Labels) -> None:
        attrs = {**labels.attrs, PLOIDY: DIPLOID, DOSAGES: True}
        super().__init__(reader, (1,), (0,), replace(labels, attrs=attrs))

    def hard_calls(self) -> ChunkedMatrix:
        attrs = {name: value for name, value in self.labels.attrs.items() if name != DOSAGES}
        labels = replace(self.labels, attrs=attrs)
        matrix = StackedMatrix(self.reader.calls(), (1,), (0,), labels, missing_value=MISSING_CALL)
        matrix.note, matrix.multiallelic = self.note, self.multiallelic
        matrix.resident_nbytes = self.resident_nbytes
        return matrix


def holds_dosages(matrix: ChunkedMatrix) -> bool:
    """Whether a matrix was opened as dosages, or some of its parts were."""
    return matrix.hard_calls() is not matrix
