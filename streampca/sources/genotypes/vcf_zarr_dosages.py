"""Dosages of a VCF Zarr: ``call_DS``, and the call where a cell has none."""

from __future__ import annotations

from typing import Any

import numpy as np

from streampca.errors import InvalidInputError, SourceError
from streampca.matrix import Labels
from streampca.sources.genotypes.allele_counts import DIPLOID
from streampca.sources.genotypes.dosages import DosageMatrix, DosageReader
from streampca.sources.genotypes.vcf_zarr import VcfZarrMatrix, VcfZarrReader
from streampca.sources.stacked import Index
from streampca.sources.zarr.reader import ZarrReader

DOSAGE = "call_DS"


class VcfZarrDosages(VcfZarrReader, DosageReader):
    """Dosages (variants, samples) of DS (variants, samples) or (variants, samples, alternates)."""

    dtype = DosageReader.dtype

    def __init__(self, called: VcfZarrReader, stored: ZarrReader) -> None:
        self.stored = stored
        super().__init__(called.genotypes, called.mask, called.dropped)

    @property
    def _readers(self) -> list[ZarrReader]:
        return [*super()._readers, self.stored]

    def _sum(self, segment: Index, out: np.ndarray[Any, Any]) -> int:
        rows = self._rows(segment[0])
        alleles = self._stored("calls", segment, rows, self.genotypes)
        calls = np.empty(alleles.shape[:2], np.int8)
        self._count(segment, rows, alleles, calls)
        haploid = np.count_nonzero(alleles >= 0, axis=2) == 1
        haploid &= np.all((alleles >= 0) | (alleles == -2), axis=2)
        ds = self._stored("dosages", (*segment[:2], slice(0, 1))[: self._dims], rows, self.stored)
        found = ds.reshape(calls.shape) * (1 + haploid).astype(np.float32)
        known = ~np.isnan(found)
        if np.any((found[known] < 0) | (found[known] > DIPLOID)):
            bad = np.any(known & ~((found >= 0) & (found <= DIPLOID)), axis=1)
            raise SourceError(
                f"{self.stored.place}: a DS of stored variant {rows[np.argmax(bad)]} (from 0) is "
                "not between 0 and the copies"
            )
        values = out[: len(rows)]
        values[...] = calls
        values[calls < 0] = np.nan
        values[known] = found[known]
        return len(rows)

    @property
    def _dims(self) -> int:
        return len(self.stored.shape)

    def scratch_nbytes(self, index: Index) -> int:
        longest = int(np.diff(self.stored_edges[0]).max(initial=0))
        segment = (slice(0, longest), index[1], slice(0, 1))
        cells = longest * (index[1].stop - index[1].start)
        own = self.stored.scratch_nbytes(segment[: self._dims])
        return int(super().scratch_nbytes(index) + own + cells * (16 + 2 * self.ploidy))


class VcfZarrDosageMatrix(DosageMatrix):
    """Samples x variants of such dosages; the chunks of calls and mask count too."""

    reader: VcfZarrDosages

    def count_chunks(self, axis: int, start: int, stop: int) -> int:
        return VcfZarrMatrix.count_chunks(self, axis, start, stop)  # type: ignore[arg-type]


def with_dosages(
    called: VcfZarrReader, group: Any, labels: Labels, name: str, missing_chunks: str
) -> VcfZarrDosageMatrix:
    """The matrix of dosages.  called : the calls.

    Raises InvalidInputError where there are none, or calls of more than two copies.
    """
    if DOSAGE not in group:
        raise InvalidInputError(
            f"{name} has no {DOSAGE}, the dosages of its calls; for the calls leave dosages= out"
        )
    shape = tuple(group[DOSAGE].shape)
    if shape[:2] != called.genotypes.shape[:2] or len(shape) > 3 or group[DOSAGE].dtype.kind != "f":
        raise SourceError(
            f"{name}: {DOSAGE} is {shape} {group[DOSAGE].dtype}; expected floats of "
            f"{called.genotypes.shape[:2]}"
        )
    if called.ploidy > DIPLOID:
        raise InvalidInputError(
            f"{name} has calls of up to {called.ploidy} copies; dosages are read of up to 2"
        )
    stored = ZarrReader(group[DOSAGE], missing_chunks)
    return VcfZarrDosageMatrix(VcfZarrDosages(called, stored), labels)
