"""LD pruning as an ordered scan over blocks of calls.

It is greedy and ordered, so it is no merging accumulator: one span folds all blocks, and what it
has decided travels back as the accumulator's state.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from streampca.accumulators import Accumulator
from streampca.errors import InvalidInputError
from streampca.genetics.block_calls import calls_of, not_calls
from streampca.kernels import Array
from streampca.matrix import Standardize

ORDERS = {1: False, 2: True}  # PLINK 2's --indep-order -> whether windows are walked backward


class LDScan(Accumulator):
    """The greedy walk over ordered blocks of variants. It cannot be merged with another.

    State: decisions on all variants so far, and the last window's variants as bits.
    """

    axis = 1
    settings = ("r2", "order", "starts", "stops", "missing", "code_assumed", "frequencies")
    fields = ("keep", "constant", "bits", "counts", "survivors", "entered", "seen")

    def __init__(
        self,
        *,
        r2: float,
        order: int,
        starts: Array,
        stops: Array,
        missing: float | None,
        code_assumed: bool = False,
        frequencies: Array | None = None,
    ) -> None:
        self.frequencies = frequencies  # (p,) by which the rarer is told; None: of these calls
        self.r2, self.order = r2, order
        self.starts, self.stops = np.array(starts), np.array(stops)  # writable on workers too
        self.missing, self.code_assumed = missing, code_assumed
        self.keep = np.zeros(0, bool)  # (seen,) whether the variant is kept so far
        self.constant = np.zeros(0, bool)  # (seen,) whether its observed calls are all equal
        self.bits: Array | None = None  # (w, 2, words) of the last w variants
        self.counts: Array | None = None  # (w, 3) their sums
        self.survivors = np.zeros(0, np.int64)  # numbers of the last window's kept variants
        self.entered = 0  # the first variant that no window has had yet
        self.seen = 0  # variants so far

    def update(self, block: Any) -> None:
        """Pack the block, and prune every window that is now complete."""
        self._check(block)
        from streampca.genetics.pruning_kernels import count_calls, pack_calls, prune_windows

        if block.start != self.seen:
            raise InvalidInputError(
                f"{type(self).__name__} needs blocks in order: it has seen {self.seen} variants, "
                f"and the next block holds variants {block.start} to {block.stop - 1}"
            )
        values, code = calls_of(block)
        bits, n_invalid = pack_calls(values, code)
        if n_invalid:
            raise not_calls(block, values, code, "LD pruning", self.code_assumed)
        if self.code_assumed and block.stats.missing.any():
            stated = Standardize(code_assumed=True, method="LD pruning")
            stated.refuse_other_counts(block.stats)
        counts = np.empty((len(bits), 3), np.int64)
        count_calls(bits, counts)
        self.seen = block.stop
        self.keep = np.concatenate([self.keep, np.ones(len(bits), bool)])
        constant = counts[:, 2] * counts[:, 0] <= counts[:, 1] ** 2
        self.constant = np.concatenate([self.constant, constant])
        if self.bits is not None and self.counts is not None:
            bits = np.concatenate([self.bits, bits])
            counts = np.concatenate([self.counts, counts])
        first = self.seen - len(bits)
        due, whole = np.searchsorted(self.stops, [self.entered, self.seen], side="right")
        observed = np.maximum(counts[:, 0], 1)
        share = (counts[:, 1] + counts[:, 0]) / (2.0 * observed)
        if self.frequencies is not None:
            share = self.frequencies[first : self.seen]
        rows, self.entered = prune_windows(
            self.starts[due:whole],
            self.stops[due:whole],
            first,
            self.entered,
            self.survivors - first,
            bits,
            counts,
            np.maximum(share, 1.0 - share),
            block.shape[0],
            self.r2 * (1.0 + 2.0**-44),
            ORDERS[self.order],
            self.keep[first:],
        )
        wanted = self.starts[whole] if whole < len(self.starts) else self.seen
        begin = int(min(max(wanted, first), self.seen))
        self.bits, self.counts = bits[begin - first :].copy(), counts[begin - first :].copy()
        self.survivors = rows[rows >= begin - first] + first

    def merge(self, other: LDScan) -> None:
        """Copy ``other`` into an empty scan; others cannot be merged, since the order matters."""
        if other.seen and self.seen:
            raise InvalidInputError("an LD scan is one walk in order; two cannot be merged")
        if other.seen:
            for name in self.fields:
                value = getattr(other, name)
                setattr(self, name, value.copy() if isinstance(value, np.ndarray) else value)

    def projected_nbytes(self, shape: tuple[int, int], itemsize: int) -> int:
        """The decisions, and the bits of a window."""
        longest = int(np.max(self.stops - self.starts, initial=0))
        return 2 * shape[1] + longest * (_bits_nbytes(shape[0]) + 32)

    def scratch_nbytes(self, shape: tuple[int, int], block_length: int) -> int:
        """Bits of the block and of the window joined to it, and a copy of odd calls."""
        longest = int(np.max(self.stops - self.starts, initial=0))
        bits = (2 * block_length + longest) * (_bits_nbytes(shape[0]) + 64)
        return bits + block_length * shape[0] + 2 * shape[1]


def _bits_nbytes(n: int) -> int:
    return 16 * -(-n // 64)
