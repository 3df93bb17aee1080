"""Components dominated by one short region of the genome: linkage, an inversion, or an artefact."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any

import numpy as np

from streampca.kernels import Array
from streampca.matrix.columns import Runs, numbered, textual

WINDOW = 4_000_000  # base pairs
SHARE = 0.25  # of a component's squared loadings in one window
TIMES = 5  # and at least this multiple of its share of the variants
FAR = 1 << 40  # base pairs between chromosomes
COLUMNS_NBYTES = 32 << 20  # of columns that are sorted at once
SQUARES = 1 << 17  # squared loadings that are summed at once
RECENT = 8  # blocks of sums that are kept


@dataclass(frozen=True)
class LocalComponent:
    """A component (0 = the first) with an outsized share of its loadings in one window."""

    component: int
    chromosome: str
    start: int
    stop: int
    share: float

    def __str__(self) -> str:
        return (
            f"PC{self.component + 1}: {self.share:.0%} in chr{self.chromosome}:"
            f"{self.start / 1e6:.3g}-{self.stop / 1e6:.3g} Mb"
        )


def local_components(columns: Any, chromosome: Any, position: Any) -> list[LocalComponent]:
    """Components whose squared loadings concentrate in one window of the genome.

    columns : (p, k) unit columns: an array, or a Zarr array that is read once by chunks.
    chromosome, position : (p,) arrays or columns; positions in base pairs.
    A window counts if it holds over a quarter of the squared loadings and five times its share of
    the variants.
    Cost: O(k p), and the memory of a few blocks. If the variants are not sorted, a sort of p; then
    a few columns at a time are read and sorted (32 MB).
    """
    try:
        return _in_order(columns, _Genome(Runs.of(chromosome), position))
    except _Unsorted:
        _, code = numbered(textual(chromosome))
        order = np.lexsort((np.asarray(position), code))
        del code
    sorted_chromosomes = Runs.of(textual(chromosome)[order])
    genome = _Genome(sorted_chromosomes, np.asarray(position)[order])
    p, k = columns.shape
    few = max(1, COLUMNS_NBYTES // max(1, 8 * p))
    found = []
    for first in range(0, k, few):
        some = _sorted_columns(columns, order, slice(first, min(first + few, k)))
        found += [replace(one, component=one.component + first) for one in _in_order(some, genome)]
    return found


def _sorted_columns(columns: Any, order: Array, some: slice) -> Array:
    """(p, few) some columns in that order of their rows."""
    p, place = len(order), np.empty(len(order), np.int64)
    place[order] = np.arange(p)
    found = np.empty((p, some.stop - some.start), columns.dtype)
    for start, values in _chunks(columns):
        found[place[start : start + len(values)]] = values[:, some]
    return found


def _in_order(columns: Any, genome: _Genome) -> list[LocalComponent]:
    """The local components of sorted variants. Raises _Unsorted if they are not sorted."""
    heaviest, found = _heaviest(columns, genome), []
    for i, (begin, last, before, inside) in enumerate(heaviest.windows()):
        share = inside / max(float(heaviest.total[i]), 1e-300)
        if share > SHARE and share > TIMES * (last - begin + 1) / len(genome):
            begin, last = _tight(columns[begin : last + 1, i], before, begin)
            first_place, last_place = (int(genome.position[one]) for one in (begin, last))
            name = str(genome.chromosome[last])
            found.append(LocalComponent(i, name, first_place, last_place, share))
    return found


class _Unsorted(Exception):
    """The variants are not in the order of the genome."""


class _Genome:
    """Positions of the variants. Raises _Unsorted if a chromosome occurs twice."""

    def __init__(self, chromosome: Runs, position: Any) -> None:
        if len(numbered(chromosome.values)[0]) < len(chromosome.values):
            raise _Unsorted
        self.chromosome, self.position = chromosome, position

    def __len__(self) -> int:
        return len(self.position)

    def line(self, start: int, stop: int) -> Array:
        """(stop - start,) positions on one line, with gaps between chromosomes."""
        starts, entries = self.chromosome.starts, np.arange(start, stop)
        number = np.searchsorted(starts, entries, side="right") - 1
        return number * FAR + np.asarray(self.position[start:stop], dtype=np.int64)


class _Sums:
    """Sums of squared loadings from the first variant on, block by block.

    Recent blocks are cached, others are read again; the sum before each block is kept.
    """

    def __init__(self, columns: Any, genome: _Genome) -> None:
        self.columns, self.genome = columns, genome
        self.p, k = columns.shape
        self.step = max(1, min(self.p, max(1024, SQUARES // max(1, k))))
        self.n_blocks = -(-self.p // self.step)
        self.before = [np.zeros(k)]  # of each block
        self._chunk, self._rows = -1, np.empty(0)
        self.block = lru_cache(RECENT)(self._block)

    def _block(self, number: int) -> tuple[Array, Array]:
        """(line of its m variants, (m + 1, k) sums before each and after the last)."""
        start = number * self.step
        stop = min(start + self.step, self.p)
        line = self.genome.line(start, stop)
        squares = np.asarray(self._read(start, stop), np.float64) ** 2
        sums = np.cumsum(np.concatenate([self.before[number][None, :], squares]), axis=0)
        if len(self.before) == number + 1:
            self.before.append(sums[-1].copy())
        return line, sums

    def _read(self, start: int, stop: int) -> Array:
        """Rows of the columns; of a Zarr array each chunk is decoded once in a row."""
        if isinstance(self.columns, np.ndarray):
            return self.columns[start:stop]
        length, parts = self.columns.chunks[0], []
        for chunk in range(start // length, -(-stop // length)):
            first = chunk * length
            if self._chunk != chunk:
                self._rows, self._chunk = self.columns[first : first + length], chunk
            parts.append(self._rows[max(start - first, 0) : stop - first])
        return np.concatenate(parts)


@dataclass
class _Heaviest:
    """The window with the largest sum of squared loadings, for each component.

    A window ends at a variant. ``before`` is the sum before it, ``total`` that of all variants.
    """

    begin: Array
    last: Array
    before: Array
    inside: Array
    total: Array

    def windows(self) -> Iterator[tuple[int, int, float, float]]:
        """(first variant, last one, sum before it, sum inside) of each component."""
        for one in zip(self.begin, self.last, self.before, self.inside, strict=True):
            yield int(one[0]), int(one[1]), float(one[2]), float(one[3])


def _heaviest(columns: Any, genome: _Genome) -> _Heaviest:
    """Find the heaviest windows from two blocks at a time: where they end, and where they begin."""
    sums, k = _Sums(columns, genome), columns.shape[1]
    none = np.zeros(k, np.int64)
    best = _Heaviest(none, none.copy(), np.zeros(k), np.full(k, -1.0), sums.before[0])
    behind, reached = 0, -FAR
    for number in range(sums.n_blocks):
        line, after = sums.block(number)
        if line[0] < reached or np.any(np.diff(line) < 0):
            raise _Unsorted
        reached, done = int(line[-1]), 0
        while done < len(line):
            wanted = line[done:] - WINDOW
            lag, earlier = sums.block(behind)
            here = int(np.searchsorted(wanted, lag[-1], side="right"))
            low = np.searchsorted(lag, wanted[:here], side="left")
            inside = after[done + 1 : done + here + 1] - earlier[low]
            for i in range(k if here else 0):
                top = int(np.argmax(inside[:, i]))
                if inside[top, i] > best.inside[i]:
                    best.inside[i], best.before[i] = inside[top, i], earlier[low[top], i]
                    best.begin[i] = behind * sums.step + low[top]
                    best.last[i] = number * sums.step + done + top
            done += here
            behind += done < len(line)
    return replace(best, total=sums.before[-1])


def _chunks(columns: Any) -> Iterator[tuple[int, Array]]:
    """(first row, rows) of a Zarr array chunk by chunk, of an array in memory as it is."""
    chunk = getattr(columns, "chunks", columns.shape)[0]
    for start in range(0, columns.shape[0], max(1, chunk)):
        yield start, columns[start : start + chunk]


def _tight(values: Array, before: float, begin: int) -> tuple[int, int]:
    """The part of a window that holds all but 2 % of its weight, 1 % on each side.

    values : loadings in it.  before : sum of the squares before it.  begin : its first variant.
    """
    weight = np.cumsum(np.append(before, np.asarray(values, np.float64) ** 2))
    inside = weight[-1] - weight[0]
    low = int(np.searchsorted(weight, weight[0] + 0.01 * inside, side="right")) - 1
    high = int(np.searchsorted(weight, weight[-1] - 0.01 * inside, side="left")) - 1
    low, last = max(0, low), len(values) - 1
    return begin + low, begin + min(last, max(low, high))
