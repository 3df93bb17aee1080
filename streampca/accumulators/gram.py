"""The Gram matrix G = sum over features of z z', n x n, of features standardised as they pass."""

from __future__ import annotations

from typing import Any, Self

import numpy as np

from streampca.accumulators.base import OPEN_BLOCKS, Accumulator, refuse_incomplete
from streampca.errors import InvalidInputError
from streampca.kernels import (
    PROBES,
    Array,
    lower_product,
    probe,
    probe_vectors,
    probed_product,
    rank_k_update,
    symmetrize,
    zeros,
)


class Gram(Accumulator):
    """Gram matrix of streamed features. A block holds whole columns, so their statistics are
    final when the block arrives: centring and scaling cost no pass of their own.

    standardize : how columns are centred and scaled (:class:`streampca.matrix.Standardize`).
    missing : "raise", or "mean" (a hole is 0 after centring). A column without any
    observation contributes nothing. Weights of features are the side input "feature_weights".
    What rounding of the sums loses is measured (:mod:`streampca.kernels.probing`):
    :meth:`rounding`.
    """

    axis = 1
    reuses = "_product"
    settings = ("standardize", "missing")
    fields = ("g", "z_probe", "n_features", "n_used", "probed")

    def __init__(self, *, standardize: Any, missing: str = "raise") -> None:
        self.standardize = standardize
        self.missing = missing
        self.g: Any = None  # (n, n) float64, lower: sum of z z'
        self.z_probe: Any = None  # (n,) Z h, with h of kernels.probe
        self.n_features = 0
        self.n_used = 0  # neither constant, nor filtered, nor without observation
        self.probed: Any = None  # (n, PROBES) g H in short sums
        self._product: Any = None  # (n, n) working dtype, lower, of the open span
        self._blocks = 0

    def update(self, block: Any) -> None:
        self._check(block)
        n = block.shape[0]
        self._check_width(self.g if self.g is not None else self._product, n)
        stats = block.stats
        if self.missing == "raise":
            refuse_incomplete(block)
        dtype = block.work_dtype
        scaling = self.standardize.resolve(stats, block.eps, block.arrays.get("feature_weights"))
        full = self._blocks >= OPEN_BLOCKS  # settled late: a whole span stays float32 alone
        if full or (self._product is not None and self._product.dtype != dtype):
            self.settle()
        if self._product is None:
            self._product, self._spare = zeros((n, n), dtype, self._spare), None
        if self.z_probe is None:
            self.z_probe = np.zeros(n)
        if self.probed is None:
            self.probed = np.zeros((n, PROBES))
        h = probe_vectors(n)
        for tile in block.tiles(dtype, center=scaling.center, scale=scaling.scale):
            rank_k_update(self._product, tile.values, rows=False)
            beside = probe(tile.start, tile.stop).astype(dtype)[:, None]
            made = probed_product(tile.values, h, rows=False, beside=beside)
            self.probed += made[:, :PROBES]
            self.z_probe += made[:, PROBES]
        self.n_features += block.length
        unused = scaling.constant | scaling.filtered | (stats.count == 0)
        self.n_used += block.length - int(np.count_nonzero(unused))
        self._blocks += 1

    def settle(self) -> None:
        if self._product is not None:
            self.g = zeros(self._product.shape) if self.g is None else self.g
            self.g += self._product
        self._product, self._blocks = None, 0

    def merge(self, other: Self) -> None:
        self.settle()
        for part in (other.g, other._product):
            if part is not None:
                self._check_width(self.g, len(part))
                self.g = zeros(part.shape) if self.g is None else self.g
                self.g += part
        if other.z_probe is not None:
            mine = self.z_probe
            self.z_probe = other.z_probe.copy() if mine is None else mine + other.z_probe
        if other.probed is not None:
            self.probed = other.probed.copy() if self.probed is None else self.probed + other.probed
        self.n_features += other.n_features
        self.n_used += other.n_used

    def projected_nbytes(self, shape: tuple[int, int], itemsize: int) -> int:
        n = shape[0]
        return n * n * 8 + (1 + 2 * PROBES) * n * 8

    def partial_nbytes(self, shape: tuple[int, int], itemsize: int) -> int:
        n = shape[0]
        return n * n * itemsize + (1 + 2 * PROBES) * n * 8

    # -- results ----------------------------------------------------------------------------

    def lower(self) -> Array:
        """(n, n) float64 with the lower triangle valid: the state itself, not a copy."""
        self.settle()
        if self.g is None:
            raise InvalidInputError("Gram has seen no block")
        return np.asarray(self.g)

    def rounding(self) -> Array:
        """(n, PROBES) float64 E H: the error E of the sums times the random vectors H."""
        lower = self.lower()
        with np.errstate(invalid="ignore"):  # who solves looks at what overflowed
            return np.asarray(lower_product(lower, probe_vectors(len(lower))) - self.probed)

    def gram(self) -> Array:
        """(n, n) float64 symmetric."""
        return symmetrize(self.copied().lower())
