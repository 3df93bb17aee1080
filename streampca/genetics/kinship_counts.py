"""What every two samples share, counted while blocks of variants pass."""

from __future__ import annotations

from functools import partial
from typing import Any, Self

import numpy as np

from streampca.accumulators import Accumulator
from streampca.genetics.block_calls import calls_of, not_calls
from streampca.genetics.counts import enough_calls
from streampca.kernels import Array, each
from streampca.matrix import Standardize

EVERY = Standardize()
PIECE = 4096  # variants counted at a time: the bits of some samples then stay in cache


class KinshipCounts(Accumulator):
    """Counts of variants for every pair of samples, n x n int32, exact for any number of workers.

    wanted : which variants count, by the frequencies and missing calls of these samples.
    ``lost_het`` and ``lost_both`` stay None while no call is missing.
    """

    axis = 1
    settings = ("wanted",)
    fields = ("shared", "lost_het", "lost_both", "het", "lost", "n_variants")

    def __init__(self, *, wanted: Standardize = EVERY) -> None:
        self.wanted = wanted
        self.shared: Any = None  # (n, n) for j < i: heterozygous in both [i, j], IBS0 [j, i]
        self.lost_het: Any = None  # (n, n) missing in the first, heterozygous in the second
        self.lost_both: Any = None  # (n, n) missing in both
        self.het: Any = None  # (n,) int64 heterozygous calls of each sample
        self.lost: Any = None  # (n,) int64 missing calls of each sample
        self.n_variants = 0

    def update(self, block: Any) -> None:
        """Count the variants of a block, PIECE at a time.

        Raises InvalidInputError for cells that are not calls.
        """
        self._check(block)
        n = block.shape[0]
        self._check_width(self.shared, n)
        if self.shared is None:
            self.shared, self.het, self.lost = np.zeros((n, n), np.int32), *np.zeros((2, n), int)
        values, code = calls_of(block)
        by_variant = values.T
        if self.wanted.filters and not (kept := enough_calls(block.stats, self.wanted)).all():
            by_variant = by_variant[kept]
        for start in range(0, len(by_variant), PIECE):
            piece = np.ascontiguousarray(by_variant[start : start + PIECE])
            if self._count(piece, code):
                raise not_calls(block, values, code, "kinship", self.wanted.code_assumed)
        if self.wanted.code_assumed:
            self.wanted.refuse_other_counts(block.stats)
        self.n_variants += len(by_variant)

    def _count(self, calls: Array, code: int) -> int:
        """Count calls (m, n); returns the cells that are neither calls nor missing."""
        from streampca.genetics import kinship_kernels as kernels

        planes, invalid = kernels.sample_planes(calls.T, code)
        if invalid:
            return invalid
        n = calls.shape[1]
        lost = np.zeros_like(self.lost)
        kernels.count_set(planes[kernels.HET], self.het)
        kernels.count_set(planes[kernels.LOST], lost)
        self.lost += lost
        # the last samples have the most pairs: whoever shares the work begins with them
        rows = [(i, min(i + kernels.ROWS, n)) for i in range(0, n, kernels.ROWS)][::-1]
        each(lambda part: kernels.count_pairs(planes, *part, self.shared), rows)
        if lost.any():
            if self.lost_het is None:
                self.lost_het, self.lost_both = np.zeros((2, n, n), np.int32)
            missing, into = planes[kernels.LOST], (self.lost_het, self.lost_both)
            add = partial(kernels.count_lost, calls, calls.dtype.type(code), missing)
            each(lambda part: add(*part, *into), rows)
        return 0

    def merge(self, other: Self) -> None:
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

    def projected_nbytes(self, shape: tuple[int, int], itemsize: int) -> int:
        n = shape[0]
        return 3 * n * n * 4 + 2 * n * 8

    def scratch_nbytes(self, shape: tuple[int, int], block_length: int) -> int:
        """Calls of the kept variants, of odd dtypes; those of a piece, and its bits in planes."""
        n, piece = shape[0], min(PIECE, block_length)
        return n * (2 * block_length + piece + 6 * (piece // 8 + 8))
