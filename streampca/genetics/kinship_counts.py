"""What every two samples share, counted while blocks of variants pass."""

from __future__ import annotations

from functools import partial
from typing import Any, ClassVar, Self

import numpy as np

from streampca.accumulators import Accumulator
from streampca.genetics.block_calls import calls_of, not_calls
from streampca.genetics.counts import enough_calls
from streampca.kernels import Array, each
from streampca.matrix import Standardize

EVERY = Standardize()
PIECE = 4096  # variants counted at a time: the bits of some samples then stay in cache
PIECE_NBYTES = 128 << 20  # of their calls, at most


class KinshipCounts(Accumulator):
    """Counts of variants for every pair of samples, n x n int32, exact for any number of workers.

    wanted : which variants count, by the frequencies and missing calls of these samples.
    part : of the blocks, which a map makes; None counts them whole.
    ``lost_het`` and ``lost_both`` stay None while no call is missing.
    """

    axis = 1
    last: int | None = None  # of the samples of a block, the number that are counted
    reuses = "_open"
    settings: ClassVar[tuple[str, ...]] = ("wanted", "part")
    fields: ClassVar[tuple[str, ...]] = (
        "shared",
        "lost_het",
        "lost_both",
        "het",
        "lost",
        "n_variants",
    )

    def __init__(self, *, wanted: Standardize = EVERY, part: str | None = None) -> None:
        self.wanted, self.part = wanted, part
        self.shared: Any = None  # (n, n) for j < i: heterozygous in both [i, j], IBS0 [j, i]
        self.lost_het: Any = None  # (n, n) missing in the first, heterozygous in the second
        self.lost_both: Any = None  # (n, n) missing in both
        self.het: Any = None  # (n,) int64 heterozygous calls of each sample
        self.lost: Any = None  # (n,) int64 missing calls of each sample
        self.n_variants = 0
        self._open: Any = None  # (piece, n) int8 calls that are not counted yet, a variant a row
        self._held = 0  # variants of them

    def update(self, block: Any) -> None:
        """Count the variants of a block, PIECE at a time.

        Raises InvalidInputError for cells that are not calls.
        """
        self._check(block)
        block = block.part(self.part)
        n = self.last or block.shape[0]
        self._check_width(self.het, n)
        if self.shared is None:
            self._begin(n)
        values, code = calls_of(block)
        by_variant = values.T[:, :n]
        if self.wanted.filters and not (kept := enough_calls(block.stats, self.wanted)).all():
            by_variant = by_variant[kept]
        if self._hold(by_variant, code):
            raise not_calls(block, values, code, "kinship", self.wanted.code_assumed)
        if self.wanted.code_assumed:
            self.wanted.refuse_other_counts(block.stats)
        self.n_variants += len(by_variant)

    def _begin(self, n: int) -> None:
        """Empty counts."""
        self.shared, self.het, self.lost = np.zeros((n, n), np.int32), *np.zeros((2, n), int)

    def _hold(self, by_variant: Array, code: int) -> int:
        """Take calls (m, n), and count those of whole pieces; returns how many cells are neither
        calls nor missing."""
        from streampca.genetics.kinship_kernels import lay_calls

        if self._open is None:
            shape = (piece_of(by_variant.shape[1]), by_variant.shape[1])
            self._open, self._spare = borrowed(self._spare, shape), None
        done = 0
        while done < len(by_variant):
            room = self._open[self._held : self._held + len(by_variant) - done]
            calls = np.ascontiguousarray(by_variant[done : done + len(room)])
            if invalid := lay_calls(calls, code, room):
                return int(invalid)
            done, self._held = done + len(room), self._held + len(room)
            if self._held == len(self._open):
                self.settle()
        return 0

    def settle(self) -> None:
        """Count the calls that are held."""
        if self._held:
            self._count(self._open[: self._held])
        self._held = 0

    def _count(self, calls: Array) -> None:
        """Count calls (m, n), -1 = missing."""
        from streampca.genetics import kinship_kernels as kernels

        n, code = calls.shape[1], np.int8(-1)
        planes, _ = kernels.sample_planes(calls.T, -1)
        lost = np.zeros_like(self.lost)
        kernels.count_set(planes[kernels.HET], self.het)
        kernels.count_set(planes[kernels.LOST], lost)
        self.lost += lost
        # the last samples have the most pairs: whoever shares the work begins with them
        rows = [(i, min(i + kernels.ROWS, n)) for i in range(0, n, kernels.ROWS)][::-1]
        into = (self.shared, self.shared.T)
        each(lambda part: kernels.count_pairs(planes, *part, 0, *into), rows)
        if lost.any():
            if self.lost_het is None:
                self.lost_het, self.lost_both = np.zeros((2, n, n), np.int32)
            missing = planes[kernels.LOST]
            add = partial(kernels.count_lost, calls, code, missing)
            each(lambda part: add(*part, self.lost_het, self.lost_both), rows)

    def merge(self, other: Self) -> None:
        self.settle()
        if other.shared is None:
            return
        self._check_width(self.shared, len(other.shared))
        for name in self.fields[:-1]:  # in place: they are large
            mine, theirs = getattr(self, name), getattr(other, name)
            if mine is not None and theirs is not None:
                mine += theirs
            elif theirs is not None:
                setattr(self, name, theirs.copy())
        self.n_variants += other.n_variants
        if other._held:
            self._count(other._open[: other._held])

    def projected_nbytes(self, shape: tuple[int, int], itemsize: int) -> int:
        n = shape[0]
        return 3 * n * n * 4 + 2 * n * 8

    def scratch_nbytes(self, shape: tuple[int, int], block_length: int) -> int:
        """Calls of the kept variants, of odd dtypes; those of a piece, and its bits in planes."""
        n = shape[0]
        piece = min(piece_of(n), shape[1])
        return n * (2 * block_length + piece_of(n) + 6 * (piece // 8 + 8))


def piece_of(n: int) -> int:
    """Variants of n samples that are counted at a time: whole words of bits."""
    return int(np.clip(PIECE_NBYTES // max(n, 1), 64, PIECE)) // 64 * 64


def borrowed(spare: Any, shape: tuple[int, int]) -> Array:
    """An array of int8 of this shape, uninitialised; the spare one where that fits."""
    fits = spare is not None and spare.shape == shape
    return np.asarray(spare if fits else np.empty(shape, np.int8))
