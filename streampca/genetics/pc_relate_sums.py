"""The sums of PC-Relate over blocks of variants: products of residuals, and what they divide by."""

from __future__ import annotations

from typing import Any, Self

import numpy as np

from streampca.accumulators import Accumulator
from streampca.genetics.counts import enough_calls
from streampca.genetics.sample_scores import SumsLayout
from streampca.kernels import Array, mirror_lower, rank_k_update, set_zero
from streampca.matrix import Block, Standardize
from streampca.matrix.tiles import tile_length

EVERY = Standardize()
FLOAT = np.dtype(np.float64)
COUNTS = SumsLayout(0, 2, False, False)  # values that are copies of an allele


class AdjustedSums(Accumulator):
    """Sums of r r' and d d' over the variants, lower triangles, and how many each pair has.

    r = g - 2 mu, d = sqrt(mu (1 - mu)), with mu = (mean + basis predictor' (g - mean)) / 2; both
    are 0 where the call is missing or mu is not within the limits. Needs the operands "predictor"
    and "basis", (n, k + 1).

    wanted : which variants count, by the calls of these samples.  least_frequency : limit of mu.
    """

    axis = 1
    settings = ("wanted", "least_frequency")
    fields = ("products", "deviations", "seen", "n_complete", "n_variants")

    def __init__(self, *, wanted: Standardize = EVERY, least_frequency: float = 0.01) -> None:
        self.wanted = wanted
        self.least_frequency = least_frequency
        self.products: Any = None  # (n, n) float64, lower: sum of r r'
        self.deviations: Any = None  # (n, n) float64, lower: sum of d d'
        self.seen: Any = None  # (n, n) int32, lower: variants that both have, if some lack any
        self.n_complete = 0  # variants that all samples have, not counted in ``seen``
        self.n_variants = 0

    def update(self, block: Block) -> None:
        self._check(block)
        n, stats = block.shape[0], block.stats
        self._check_width(self.products, n)
        if self.products is None:
            self.products, self.deviations = np.zeros((n, n)), np.zeros((n, n))
        COUNTS.check(block, stats.mean, np.ones(block.length))
        if self.wanted.code_assumed and stats.missing.any():
            self.wanted.refuse_other_counts(stats)
        kept = enough_calls(stats, self.wanted)
        seen: Array | None = None
        for tile in block.tiles(FLOAT, center=stats.mean):
            part = slice(tile.start - block.start, tile.stop - block.start)
            calls, lost, mean = tile.values.T, tile.mask, stats.mean[part]
            lost = np.zeros(calls.shape, bool) if lost is None else lost.T
            if not (some := kept[part]).all():
                calls, lost, mean = calls[some], lost[some], mean[some]
            have = self._add(np.ascontiguousarray(calls), np.array(lost, order="C"), mean, block)
            if have.all():
                self.n_complete += len(have)
                continue
            if seen is None:
                seen = block.borrow("seen", (n, n), np.dtype(np.float32))
                seen[...] = 0.0
            rank_k_update(seen, have.astype(np.float32), rows=True)  # exact: fewer than 2^24
        if seen is not None:
            self.seen = np.zeros((n, n), np.int32) if self.seen is None else self.seen
            np.add(self.seen, seen, out=self.seen, casting="unsafe")
        self.n_variants += int(np.count_nonzero(kept))

    def _add(self, calls: Array, lost: Array, mean: Array, block: Block) -> Array:
        """Add variants, a line each; (m, n) True where a sample has one.

        calls : (m, n) deviations from the mean, 0 where missing; overwritten.  lost : (m, n) True =
        missing; overwritten.  mean : (m,).
        """
        fitted = (calls @ block["predictor"]) @ block["basis"].T
        calls -= fitted
        mu = fitted
        mu += mean[:, None]
        mu *= 0.5
        lost |= mu < self.least_frequency
        lost |= mu > 1.0 - self.least_frequency
        mu -= mu * mu
        for values in (calls, mu):
            set_zero(values, lost)
        np.sqrt(mu, out=mu)
        rank_k_update(self.products, calls, rows=True)
        rank_k_update(self.deviations, mu, rows=True)
        return ~lost

    def ratio(self) -> Array:
        """(n, n) symmetric kinship, nan without a variant. The sums are used up."""
        phi, self.products = self.products, None
        self.deviations *= 4.0
        with np.errstate(invalid="ignore", divide="ignore"):
            phi /= self.deviations
        self.deviations = None
        mirror_lower(phi)
        return np.asarray(phi)

    def nsnp(self) -> Array:
        """(n, n) symmetric int32: variants that both samples have. The counts are used up."""
        seen, self.seen = self.seen, None
        seen = np.zeros(self.products.shape, np.int32) if seen is None else seen
        seen += np.int32(self.n_complete)
        mirror_lower(seen)
        return seen

    def merge(self, other: Self) -> None:
        if other.products is None:
            return
        self._check_width(self.products, len(other.products))
        for name in ("products", "deviations", "seen"):  # in place: they are large
            mine, theirs = getattr(self, name), getattr(other, name)
            if mine is not None and theirs is not None:
                mine += theirs
            elif theirs is not None:
                setattr(self, name, theirs.copy())
        self.n_complete += other.n_complete
        self.n_variants += other.n_variants

    def projected_nbytes(self, shape: tuple[int, int], itemsize: int) -> int:
        return shape[0] ** 2 * 20

    def scratch_nbytes(self, shape: tuple[int, int], block_length: int) -> int:
        n = shape[0]
        tile = tile_length(block_length, n, FLOAT.itemsize) * n
        return n * n * 4 + tile * (5 * FLOAT.itemsize + 8)
