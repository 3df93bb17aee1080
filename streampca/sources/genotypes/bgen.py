"""BGEN 1.2 and 1.3: probabilities of genotypes, as hard calls or dosages of one allele.

Decompressed by zlib or zstd and decoded by a kernel of this package, which hold no lock of Python.
Source: BGEN specification 1.2; PLINK 2, "--bgen" and "--hard-call-threshold".
"""

from __future__ import annotations

import copy
import hashlib
import os
import struct
import zlib
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from streampca.errors import DamagedSourceError, InvalidInputError, SourceError, StreamPCAError
from streampca.matrix import Labels, Location, ReadCount
from streampca.paths import BINARY, read_fully
from streampca.sources.genotypes.bgen_index import (
    BGI,
    Header,
    identifying,
    places_of,
    read_header,
    several_shown,
    variant_columns,
)
from streampca.sources.genotypes.dosages import DosageMatrix, DosageReader, hard_calls
from streampca.sources.genotypes.oxford_samples import labels_of_samples
from streampca.sources.genotypes.variants import variant_labels
from streampca.sources.local_files import FileLocation
from streampca.sources.stacked import Index, Reader, Tally, ThreadBuffers, room_for

GROUP_NBYTES = 1 << 20  # of neighbouring variants that are read at once
MOST_NBYTES = 4  # of a probability
REFERENCES = ("first", "last")


class BgenReader(DosageReader):
    """Dosages of an allele, (variants, samples), of the biallelic variants of one BGEN.

    starts, ends : (p,) places of the kept variants.
    first : the first allele is counted; else the second.
    others : files that belong to it.
    """

    loads = ("numba",)
    into_buffer = True
    dtype: np.dtype[Any] = DosageReader.dtype
    begin = 0  # number of the variant that ``starts`` begins with

    def __init__(
        self,
        path: str,
        header: Header,
        starts: np.ndarray[Any, Any],
        ends: np.ndarray[Any, Any],
        *,
        first: bool,
        others: tuple[str, ...],
    ) -> None:
        self.path, self.compression, self.others = os.path.abspath(path), header.compression, others
        self.starts, self.ends, self.first = starts, ends, first
        self.shape = (len(starts), header.n_samples)
        self.stored_as: Callable[[Any], Any] = as_they_are
        self.largest = int((ends - starts).max(initial=0))
        self.tally, self.buffers = Tally(), ThreadBuffers()

    def calls(self) -> Reader:
        reader = copy.copy(self)
        reader.dtype, reader.stored_as = np.dtype(np.int8), hard_calls
        return reader

    def read(self, index: Index, buffer: Any = None) -> np.ndarray[Any, Any]:
        from streampca.kernels.probabilities import copies_of

        start, stop = index[0].start, index[0].stop
        copies = room_for((stop - start, self.shape[1]), self.dtype, buffer)
        nbytes = 0
        for j, raw in self._variants(start, stop):
            nbytes += len(raw)
            try:
                block = self._block(raw)
                copies_of(block, self.shape[1], self.first, self.stored_as, copies[j - start])
            except (struct.error, zlib.error, RuntimeError) as error:
                raise DamagedSourceError(f"{self._named(j, raw)}: {error}") from None
            except StreamPCAError as error:
                raise type(error)(f"{self._named(j, raw)}: {error}") from None
        self.tally.add(ReadCount(1, copies.nbytes, nbytes))
        return copies[:, index[1]]

    def _named(self, j: int, raw: Any) -> str:
        """A variant, for a message."""
        try:
            (chromosome, name, *_), position, _ = identifying(raw, 0)
        except struct.error:
            return f"{self.path}, variant {j + 1}"
        text = f"{name.decode(errors='replace')} at {chromosome.decode(errors='replace')}"
        return f"{self.path}, variant {j + 1} ({text}:{position})"

    def _variants(self, start: int, stop: int) -> Iterator[tuple[int, memoryview]]:
        """(number, stored bytes) of each variant, in a buffer that this thread reuses."""
        starts = self.starts[start - self.begin : stop - self.begin].tolist()
        ends = self.ends[start - self.begin : stop - self.begin].tolist()
        try:
            handle = os.open(self.path, os.O_RDONLY | BINARY)
        except OSError as error:
            raise SourceError(f"{self.path}: {error.strerror or error}") from None
        try:
            j = 0
            while j < len(starts):
                last = j + 1
                while last < len(starts) and ends[last] - starts[j] <= GROUP_NBYTES:
                    last += 1
                size = ends[last - 1] - starts[j]
                room: Any = self.buffers.take("stored", size, GROUP_NBYTES)
                raw = memoryview(room)[:size]
                if read_fully(handle, raw, starts[j]) < size:
                    raise DamagedSourceError(f"{self.path} ends before variant {start + last} does")
                for i in range(j, last):
                    yield start + i, raw[starts[i] - starts[j] : ends[i] - starts[j]]
                j = last
        finally:
            os.close(handle)

    def _block(self, raw: memoryview) -> np.ndarray[Any, Any]:
        """(bytes,) the genotypes of a variant, decompressed."""
        _, _, place = identifying(raw, 0)
        (size,) = struct.unpack_from("<I", raw, place)
        if place + 4 + size != len(raw):
            raise DamagedSourceError("its genotypes do not end where the next variant begins")
        if self.compression == "none":
            return np.frombuffer(raw[place + 4 :], np.uint8)
        (length,) = struct.unpack_from("<I", raw, place + 4)
        if length > self._most():
            raise InvalidInputError(
                f"its genotypes take {length} bytes, expected at most {self._most()}: up to two "
                "copies of two alleles"
            )
        stored = raw[place + 8 :]
        if self.compression == "zlib":
            whole = zlib.decompressobj().decompress(stored, length + 1)
        else:
            from numcodecs.zstd import decompress

            whole = decompress(stored, self.buffers.take("genotypes", length))
        if len(whole) != length:
            raise DamagedSourceError("its genotypes do not decompress to their stated length")
        return np.frombuffer(whole, np.uint8)

    def _most(self) -> int:
        """Bytes of the genotypes of a variant, at most."""
        return 10 + self.shape[1] * (1 + 2 * MOST_NBYTES)

    def edges(self, dim: int) -> np.ndarray[Any, Any] | None:
        return None if dim == 0 else np.array([0, self.shape[1]])

    def scratch_nbytes(self, index: Index) -> int:
        read = max(GROUP_NBYTES, self.largest) + GROUP_NBYTES
        return read + 2 * self._most() + 16 * self.shape[1]

    def part(self, dim: int, start: int, stop: int) -> Reader:
        if dim:
            return self
        smaller = copy.copy(self)
        smaller.starts = self.starts[start - self.begin : stop - self.begin]
        smaller.ends = self.ends[start - self.begin : stop - self.begin]
        smaller.begin = start
        return smaller

    def fingerprint(self) -> str:
        stat = os.stat(self.path)
        text = (self.shape, str(self.dtype), self.first, os.path.basename(self.path))
        return hashlib.sha256(repr((*text, stat.st_size, stat.st_mtime_ns)).encode()).hexdigest()

    def content_stamp(self) -> str:
        stats = [(os.stat(path).st_size, os.stat(path).st_mtime_ns) for path in self.others]
        return hashlib.sha256(f"{self.fingerprint()} {stats}".encode()).hexdigest()

    def locations(self) -> tuple[Location, ...]:
        return (FileLocation(self.path),)  # labels are read by the client alone

    def paths(self) -> tuple[str, ...]:
        return (self.path, *self.others)


def as_they_are(dosages: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """What a reader of dosages stores."""
    return dosages


def open_bgen(
    path: str,
    *,
    reference_allele: str | None = None,
    sample_file: str | None = None,
    multiallelic: str = "error",
) -> DosageMatrix:
    """A BGEN 1.2 or 1.3 as samples x variants: dosages of the allele that is not the reference.

    reference_allele : "first", the default, as in UK Biobank and ``plink2 --export bgen-1.2
        ref-first``; or "last", as ``plink2 --export bgen-1.2``. PLINK counts the other one.
    sample_file : its .sample; default: the one of the same name next to it, else the identifiers
        within.
    multiallelic : "error" refuses variants of another number of alleles than two, "drop" leaves
        them out. No tool splits them in a BGEN: bcftools norm -m -any does in the VCF before.

    Of phased variants the haplotypes are added. A haploid call counts twice, as in a .bed.
    Cost: the bgenix index PATH.bgi is read where there is one; else the headers of all variants
    are, 3 us and one read of 512 bytes each. 16 bytes a variant are held; labels of more than
    65,536 variants are read from the file on demand.
    Raises SourceError for files that are absent, damaged or do not belong together, and for BGEN
    1.1; InvalidInputError, when they are read, for samples of more than two copies.
    """
    reference_allele = reference_allele or REFERENCES[0]
    if reference_allele not in REFERENCES:
        raise InvalidInputError(f"reference_allele={reference_allele!r}; expected first or last")
    if multiallelic not in ("error", "drop"):
        raise InvalidInputError(f"multiallelic={multiallelic!r}; expected 'error' or 'drop'")
    header = read_header(path)
    samples, sample_path = labels_of_samples(path, header.n_samples, header.sample_ids, sample_file)
    places = places_of(path, header)
    if len(places.several) and multiallelic == "error":
        raise InvalidInputError(
            f"{path}: {len(places.several)} of {header.n_variants} variants have not two alleles "
            f"({several_shown(path, places)}). Leave them out, streampca.open({path!r}, "
            "multiallelic='drop'), or split them before a VCF is made a BGEN: bcftools norm -m -any"
        )
    if len(places.several) == header.n_variants:
        raise InvalidInputError(f"{path}: none of {header.n_variants} variants has two alleles")
    kept: Any = slice(None)
    if len(places.several):
        kept = np.delete(np.arange(header.n_variants), places.several)
    first = reference_allele == "last"
    others = [name for name in (sample_path, path + BGI) if name and os.path.isfile(name)]
    reader = BgenReader(
        path,
        header,
        places.starts[:-1][kept],
        places.starts[1:][kept],
        first=first,
        others=tuple(map(os.path.abspath, others)),
    )
    chromosome, name, position, one, two = variant_columns(path, places, kept)
    both = (one, two) if first else (two, one)
    variants = variant_labels(chromosome, name, position, *both, unnamed=places.unnamed)
    matrix = DosageMatrix(reader, Labels(samples, variants))
    matrix.resident_nbytes = reader.starts.nbytes + reader.ends.nbytes
    matrix.multiallelic = len(places.several)
    notes = [] if places.by_index else [f"{path} has no bgenix index; its headers were scanned"]
    if len(places.several):
        notes.append(
            f"{len(places.several)} of {header.n_variants} variants have not two alleles and are "
            "left out"
        )
    matrix.note = "; ".join(notes)
    return matrix
