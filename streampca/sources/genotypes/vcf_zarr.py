"""VCF Zarr, as bio2zarr and sgkit write it: ``call_genotype`` (variants, samples, ploidy).

Values are copies of the first alternate allele, -1 where a call is missing. After ``plink2 --vcf
--make-bed`` the first allele of the .bim (A1), whose copies a .bed holds, is the alternate one:
the same calls through a .bed are the same numbers. A haploid call counts twice, as there, also
where all are haploid. A half call, such as ./1, is missing, as of plink2 --vcf-half-call missing.
Source: VCF Zarr specification 0.4: call_genotype, call_genotype_mask, missing and fill values.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from itertools import pairwise
from typing import Any

import numpy as np
import zarr

from streampca.errors import InvalidInputError, SourceError, hide_secrets, shorten
from streampca.matrix import AxisLabels, Labels, Location, ReadCount
from streampca.matrix.columns import Text, as_text
from streampca.sources.genotypes.allele_counts import DIPLOID, MISSING_CALL, PLOIDY
from streampca.sources.genotypes.variants import UNNAMED, sample_labels, variant_labels
from streampca.sources.stacked import Index, Reader, StackedMatrix, ThreadBuffers, room_for
from streampca.sources.zarr.labels import contigs, first_two, or_unnamed
from streampca.sources.zarr.reader import ZarrReader
from streampca.sources.zarr.stores import whole

GENOTYPES = "call_genotype"
MASK = "call_genotype_mask"
NEEDED = ("sample_id", "variant_contig", "variant_position", "variant_allele")


class VcfZarrReader(Reader):
    """Allele counts of (variants, samples) from the alleles of (variants, samples, ploidy).

    dropped : increasing numbers of the stored variants that are left out.
    Alleles are read and summed one row of chunks at a time, which is all the scratch memory.
    """

    loads = ("numba",)
    into_buffer = True
    dtype = np.dtype(np.int8)

    def __init__(
        self, genotypes: ZarrReader, mask: ZarrReader | None, dropped: np.ndarray[Any, Any]
    ) -> None:
        self.genotypes, self.mask, self.dropped = genotypes, mask, dropped
        variants, samples, self.ploidy = genotypes.shape
        self.shape = (variants - len(dropped), samples)
        self.stored_edges = [self._shared_edges(dim) for dim in (0, 1)]
        self.buffers = ThreadBuffers()
        self.__setstate__({})

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_kept": None}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        every = np.arange(self.genotypes.shape[0]) if len(self.dropped) else None
        self._kept = None if every is None else np.delete(every, self.dropped)

    @property
    def _readers(self) -> list[ZarrReader]:
        return [self.genotypes] if self.mask is None else [self.genotypes, self.mask]

    def _shared_edges(self, dim: int) -> np.ndarray[Any, Any]:
        """Chunk boundaries of the genotypes; those that the mask shares, where they suffice."""
        edges = np.asarray(self.genotypes.edges(dim))
        if self.mask is None:
            return edges
        shared = np.intersect1d(edges, np.asarray(self.mask.edges(dim)))
        return shared if 4 * len(shared) >= len(edges) else edges

    def _segments(self, index: Index) -> Iterator[Index]:
        """The stored ranges of one read, in order."""
        start, stop = index[0].start, index[0].stop
        if start == stop:
            return
        if self._kept is not None:
            start, stop = int(self._kept[start]), int(self._kept[stop - 1]) + 1
        inner = self.stored_edges[0]
        cuts = [start, *inner[(inner > start) & (inner < stop)].tolist(), stop]
        for low, high in pairwise(cuts):
            yield slice(low, high), index[1], slice(0, self.ploidy)

    def read(self, index: Index, buffer: Any = None) -> np.ndarray[Any, Any]:
        copies = room_for([part.stop - part.start for part in index], self.dtype, buffer)
        done = 0
        for segment in self._segments(index):
            done += self._sum(segment, copies[done:])
        return copies

    def _sum(self, segment: Index, out: np.ndarray[Any, Any]) -> int:
        """Sum the alleles of stored variants into the first rows of ``out``; the number of rows."""
        rows = self._rows(segment[0])
        self._count(segment, rows, self._stored("calls", segment, rows, self.genotypes), out)
        return len(rows)

    def _rows(self, part: slice) -> np.ndarray[Any, Any]:
        """(m,) numbers of the stored variants of a range that are not left out."""
        if self._kept is None:
            return np.arange(part.start, part.stop)
        low, high = np.searchsorted(self._kept, [part.start, part.stop])
        return self._kept[low:high]

    def _stored(
        self, name: str, segment: Index, rows: np.ndarray[Any, Any], reader: ZarrReader
    ) -> np.ndarray[Any, Any]:
        """(m, samples, ...) stored values of these variants, in C order."""
        values = np.ascontiguousarray(self._alleles(name, segment, reader))
        return values if len(rows) == len(values) else values[rows - segment[0].start]

    def _count(
        self, segment: Index, rows: Any, calls: np.ndarray[Any, Any], out: np.ndarray[Any, Any]
    ) -> None:
        """Sum the alleles (m, samples, ploidy) into the first rows of ``out``, int8."""
        from streampca.kernels.calls import UNEVEN, sum_alleles

        masked = None
        if self.mask is not None:
            masked = self._stored("mask", segment, rows, self.mask).view(np.uint8)
        highest = sum_alleles(calls, masked, out[: len(rows)])
        if highest == UNEVEN:
            raise SourceError(
                f"{self.genotypes.place}: stored variants {rows[0]} to {rows[-1]} (from 0) have "
                f"calls whose copies do not divide the {self.ploidy} of others, which no allele "
                "count tells. Store the samples of each ploidy in a VCF Zarr of their own."
            )
        if highest > 1:
            bad = rows[np.argmax(calls.max(axis=(1, 2)) > 1)]
            raise SourceError(
                f"{self.genotypes.place}: stored variant {bad} (from 0) has calls of an allele "
                "that variant_allele does not list. Convert the VCF again."
            )

    def _alleles(self, name: str, segment: Index, reader: ZarrReader) -> np.ndarray[Any, Any]:
        """Stored values, in a reusable buffer of this thread if the reader accepts one."""
        if reader.decoder is None:
            return reader.read(segment)
        size = int(np.prod([part.stop - part.start for part in segment])) * reader.stored.itemsize
        return reader.read(segment, self.buffers.take(name, size))

    def edges(self, dim: int) -> np.ndarray[Any, Any] | None:
        if dim == 0 and self._kept is not None:
            return np.unique(np.searchsorted(self._kept, self.stored_edges[0]))
        return self.stored_edges[dim]

    def count(self, index: Index) -> int:
        """Stored chunks, of genotypes and mask, that ``read`` of this index reads."""
        count = 0
        for segment in self._segments(index):
            for reader in self._readers:
                parts = zip(segment, reader.unit, strict=False)  # dosages may have two dimensions
                count += int(np.prod([-(-s.stop // unit) - s.start // unit for s, unit in parts]))
        return count

    def scratch_nbytes(self, index: Index) -> int:
        longest = int(np.diff(self.stored_edges[0]).max(initial=0))
        if self._kept is None:  # otherwise rows that are left out are read too
            longest = min(longest, index[0].stop - index[0].start)
        segment = (slice(0, longest), index[1], slice(0, self.ploidy))
        cells = longest * (index[1].stop - index[1].start) * self.ploidy
        nbytes = self.genotypes.scratch_nbytes(segment) + cells * self.genotypes.stored.itemsize
        if self.mask is not None:
            nbytes += self.mask.scratch_nbytes(segment) + cells
        copied = 0 if self._kept is None else 2 * cells * self.genotypes.stored.itemsize
        return int(nbytes + copied)

    def fingerprint(self) -> str:
        return self._digest([reader.fingerprint() for reader in self._readers])

    def content_stamp(self) -> str:
        return self._digest([reader.content_stamp() for reader in self._readers])

    def _digest(self, readers: list[str]) -> str:
        digest = hashlib.sha256(f"{self.shape} {readers}".encode())
        digest.update(np.asarray(self.dropped, dtype="<i8").tobytes())
        return digest.hexdigest()

    def paths(self) -> tuple[str, ...]:
        return tuple(path for reader in self._readers for path in reader.paths())

    def locations(self) -> tuple[Location, ...]:
        return tuple(location for reader in self._readers for location in reader.locations())

    def reads(self) -> ReadCount:
        return sum((reader.reads() for reader in self._readers), ReadCount())

    def restart_counts(self) -> None:
        for reader in self._readers:
            reader.restart_counts()


class VcfZarrMatrix(StackedMatrix):
    """Samples x variants of a VCF Zarr; the chunks of the mask count too."""

    reader: VcfZarrReader

    def count_chunks(self, axis: int, start: int, stop: int) -> int:
        return self.reader.count(self._index(axis, start, stop)[0])


def is_vcf_zarr(node: Any) -> bool:
    """Whether a Zarr node is a group of the VCF Zarr layout."""
    return isinstance(node, zarr.Group) and GENOTYPES in node


def stored_layout(path: str) -> tuple[tuple[int, int], tuple[int, int]] | None:
    """(samples, variants) of a VCF Zarr, and of its chunks; None of anything else."""
    try:
        node: Any = zarr.open_group(path, mode="r")
    except (OSError, ValueError):  # of Zarr, for something else
        return None
    if not is_vcf_zarr(node):
        return None
    shape, chunks = node[GENOTYPES].shape, node[GENOTYPES].chunks
    return (shape[1], shape[0]), (chunks[1], chunks[0])


def open_vcf_zarr(
    group: Any,
    source: str,
    *,
    dosages: bool | None = None,
    multiallelic: str = "error",
    missing_chunks: str = "error",
) -> StackedMatrix:
    """A VCF Zarr group as samples x variants, int8 copies of the first ALT, -1 = missing.

    dosages : True: float32 of ``call_DS``, and the call where a cell has none, as ``plink2 --vcf
        ... dosage=DS``. None and False: calls.
    multiallelic : "error" refuses variants of more than two alleles, "drop" excludes them: copies
        of one alternate allele do not distinguish another from the reference.
    missing_chunks : as ``streampca.open``. Absent chunks of ``call_genotype_mask`` are its fill
        value all the same: a mask that hides nothing is often stored as nothing.

    ``variant_filter`` and ``sample_filter_mask`` are not applied. Labels: the counted allele is
    ALT, the other one REF. Cost: metadata and labels; no genotypes are read.
    Raises InvalidInputError for multi-allelic variants, SourceError for a group
    that lacks an array or whose arrays do not belong together.
    """
    if multiallelic not in ("error", "drop"):
        raise InvalidInputError(f"multiallelic={multiallelic!r}; expected 'error' or 'drop'")
    name, array = hide_secrets(source), group[GENOTYPES]
    mask = group.get(MASK)
    _check_layout(group, array, mask, name)
    alleles = as_text(whole(group["variant_allele"]))
    several = _multiallelic(alleles)
    if several.size and multiallelic == "error":
        _refuse_multiallelic(group, alleles, several, name)
    if len(several) == len(alleles) > 0:
        raise InvalidInputError(f"{name}: all {len(alleles)} variants have more than two alleles")
    kept = np.delete(np.arange(len(alleles)), several) if several.size else slice(None)
    reader = VcfZarrReader(
        ZarrReader(array, missing_chunks, hole=MISSING_CALL),
        None if mask is None else ZarrReader(mask, "fill"),
        several,
    )
    samples = sample_labels(None, as_text(whole(group["sample_id"])))
    attrs = {PLOIDY: max(reader.ploidy, DIPLOID)}
    labels = Labels(samples, _variant_labels(group, alleles, kept), attrs=attrs)
    matrix: StackedMatrix
    if dosages:
        from streampca.sources.genotypes.vcf_zarr_dosages import with_dosages

        matrix = with_dosages(reader, group, labels, name, missing_chunks)
    else:
        matrix = VcfZarrMatrix(reader, (1,), (0,), labels, missing_value=MISSING_CALL)
    if several.size:
        matrix.multiallelic = len(several)
        matrix.note = (
            f"{len(several)} of {len(alleles)} variants have more than two alleles and are left out"
        )
    return matrix


def _check_layout(group: Any, array: Any, mask: Any, name: str) -> None:
    """Refuse a group with missing arrays, or with arrays of inconsistent shapes."""
    if lacking := [one for one in NEEDED if one not in group]:
        raise SourceError(f"{name} has {GENOTYPES} but no {', '.join(lacking)}")
    shape = tuple(array.shape)
    if len(shape) != 3 or np.dtype(array.dtype).kind != "i":
        raise SourceError(
            f"{name}: {GENOTYPES} is {shape} {array.dtype}; expected signed integers of (variants, "
            "samples, ploidy)"
        )
    expected = {one: shape[1] if one == "sample_id" else shape[0] for one in NEEDED}
    wrong = [
        f"{one} has {group[one].shape[0]} entries"
        for one, size in expected.items()
        if group[one].shape[0] != size
    ]
    if mask is not None and tuple(mask.shape) != shape:
        wrong.append(f"{MASK} is {tuple(mask.shape)}")
    if wrong:
        raise SourceError(f"{name}: {GENOTYPES} is {shape}, but {', '.join(wrong)}")


def _multiallelic(alleles: Text) -> np.ndarray[Any, Any]:
    """Numbers of the variants that have more than two alleles."""
    if alleles.ndim < 2 or alleles.shape[1] < 3:
        return np.zeros(0, np.int64)
    return np.flatnonzero(np.any((alleles[:, 2:] != "") & (alleles[:, 2:] != UNNAMED), axis=1))


def _refuse_multiallelic(
    group: Any, alleles: Text, several: np.ndarray[Any, Any], name: str
) -> None:
    few = several[:4]
    chromosome, position = contigs(group), whole(group["variant_position"])
    shown = [
        f"{chromosome[i]}:{position[i]} {','.join(a for a in alleles[i].tolist() if a)}"
        for i in few.tolist()
    ]
    raise InvalidInputError(
        f"{name}: {len(several)} of {len(alleles)} variants have more than two alleles "
        f"({shorten(shown, len(several))}). Leave them out, streampca.open({name!r}, "
        "multiallelic='drop'), or split them before the VCF is converted: bcftools norm -m -any"
    )


def _variant_labels(group: Any, alleles: Text, kept: Any) -> AxisLabels:
    """Labels of some of the stored variants."""
    names = np.full(len(alleles), UNNAMED, np.dtypes.StringDType())
    if "variant_id" in group:
        names = or_unnamed(as_text(whole(group["variant_id"])))
    other, counted = first_two(alleles)
    position = whole(group["variant_position"]).astype(np.int64)
    columns = (contigs(group), names, position, counted, other)
    return variant_labels(*(column[kept] for column in columns))
