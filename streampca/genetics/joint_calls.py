"""How many variants are called in both of every two samples, counted while blocks pass."""

from __future__ import annotations

from typing import Any, Self

import numpy as np

from streampca.accumulators import Accumulator
from streampca.genetics.counts import enough_calls
from streampca.kernels import Array, each
from streampca.matrix import Standardize

EVERY = Standardize()
PIECE = 4096  # variants counted at a time
ROWS = 64  # samples that a thread counts at a time


class JointCalls(Accumulator):
    """Variants that both of two samples have calls of, exact for any number of workers.

    wanted : which variants count, by frequencies and missing calls; those of one allele do.
    pairwise : False counts the variants alone, as if no call were missing.
    part : of the blocks, which a map makes; None counts them whole.
    ``lost_both`` stays None while no call is missing.
    """

    axis = 1
    settings = ("wanted", "pairwise", "part")
    fields = ("lost_both", "n_variants", "n_samples")

    def __init__(
        self, *, wanted: Standardize = EVERY, pairwise: bool = True, part: str | None = None
    ) -> None:
        self.wanted, self.pairwise, self.part = wanted, pairwise, part
        self.lost_both: Any = None  # (n, n) int32, lower: variants missing in both
        self.n_variants = 0
        self.n_samples = 0

    @classmethod
    def of(cls, maf: float, max_missing: float, assumed: bool) -> Self:
        """Of the variants that pass these filters.  assumed : that nothing says how calls are
        coded."""
        wanted = Standardize(scale="hwe", maf=maf, max_missing=max_missing, code_assumed=assumed)
        return cls(wanted=wanted)

    def update(self, block: Any) -> None:
        self._check(block)
        block = block.part(self.part)
        self._check_samples(block.shape[0])
        kept = np.ones(block.length, np.bool_)
        if self.wanted.filters:
            kept = enough_calls(block.stats, self.wanted)
        self.n_variants += int(np.count_nonzero(kept))
        if not self.pairwise:
            return
        columns = np.flatnonzero(kept & (block.stats.missing > 0))
        for start in range(0, len(columns), PIECE):
            self._count(*_by_variant(block, columns[start : start + PIECE]))

    def _count(self, calls: Array, code: Any) -> None:
        """Count calls (m, n)."""
        from streampca.genetics import kinship_kernels as kernels

        m, n = calls.shape
        if self.lost_both is None:
            self.lost_both = np.zeros((n, n), np.int32)
        bits = np.empty((-(-m // 64), n), np.uint64)
        kernels.missing_bits(calls, code, bits)
        # the last samples have the most pairs: whoever shares the work begins with them
        rows = [(i, min(i + ROWS, n)) for i in range(0, n, ROWS)][::-1]
        each(lambda part: kernels.count_common(bits, *part, self.lost_both), rows)

    def _check_samples(self, n: int) -> None:
        if self.n_samples:
            self._check_width(np.empty(self.n_samples, np.bool_), n)
        self.n_samples = n

    def merge(self, other: Self) -> None:
        if not other.n_samples:
            return
        self._check_samples(other.n_samples)
        if self.lost_both is None:
            self.lost_both = None if other.lost_both is None else other.lost_both.copy()
        elif other.lost_both is not None:
            self.lost_both += other.lost_both  # in place: it is large
        self.n_variants += other.n_variants

    def projected_nbytes(self, shape: tuple[int, int], itemsize: int) -> int:
        return 4 * shape[0] ** 2 if self.pairwise else 0

    def scratch_nbytes(self, shape: tuple[int, int], block_length: int) -> int:
        """The calls of a piece, which of a block are missing, and the bits."""
        n, piece = shape[0], min(PIECE, block_length)
        return n * (block_length + 2 * piece + piece // 8 + 8)

    def shared(self, i: int) -> Array:
        """(i + 1,) int64 variants that sample i and each sample up to it both have calls of."""
        return variants_of_both(self.lost_both, self.n_variants, i)


def variants_of_both(lost_both: Array | None, n_variants: int, i: int) -> Array:
    """(i + 1,) int64 variants that sample i and each sample up to it both have calls of.

    lost_both : (n, n) of which the lower triangle holds the variants missing in both; None = none.
    """
    if lost_both is None:
        return np.full(i + 1, n_variants)
    lost = np.diagonal(lost_both)[: i + 1].astype(np.int64)
    return np.asarray(n_variants - lost[i] - lost + lost_both[i, : i + 1])


def _by_variant(block: Any, columns: Array) -> tuple[Array, Any]:
    """(cells of these columns, (m, n), variants one after another; what marks a missing one)."""
    if block.compiled:  # one has calls missing, hence a code
        values = block.values
        return np.ascontiguousarray(values.T[columns]), values.dtype.type(block.missing_value)
    holes = np.ascontiguousarray(block.mask.T[columns])
    return holes.view(np.int8), np.int8(1)
