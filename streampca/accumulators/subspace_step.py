"""S Q for a few columns Q, with S = Z'Z or ZZ' of the standardised matrix: a Krylov step."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Self

import numpy as np

from streampca.accumulators.base import Accumulator
from streampca.errors import InvalidInputError
from streampca.kernels import Array, add_product, probe


class SubspaceStep(Accumulator):
    """Both products of one read: Z (Z'Q) where features are streamed, Z'(Z Q) where samples are.

    The operand "q" (m, width) has a row for each entry of the axis that is not streamed. The
    operands "center" and "scale" (p,), of the whole matrix, standardise where they are given.
    Missing cells are 0, their column's mean.

    streamed : the axis that is streamed.
    images : keep the inner product too, Z'Q (p, width) or Z Q (n, width), in the working dtype.
    probe : of streamed features, sum Z h, with h of kernels.probe.

    Sums are float64; within a block they are made in the working dtype.
    Cost: 4 n p width flops.
    Source: Rokhlin, Szlam and Tygert 2009, "A randomized algorithm for PCA", section 1.
    """

    settings = ("streamed", "width", "images", "probe")
    fields = ("product", "z_probe", "starts", "table")

    def __init__(
        self, *, streamed: int, width: int, images: bool = False, probe: bool = False
    ) -> None:
        self.axis = self.streamed = streamed  # type: ignore[misc]
        self.width, self.images, self.probe = width, images, probe
        self.product: Any = None  # (m, width) float64
        self.z_probe: Any = None  # (n,) float64
        self.parts: dict[int, Array] = {}  # first streamed entry -> its rows of the image

    def update(self, block: Any) -> None:
        self._check(block)
        q = block["q"]
        m = block.shape[1 - block.axis]
        if len(q) != m:
            raise InvalidInputError(f"the operand q has {len(q)} rows; this block needs {m}")
        self._check_width(self.product, m)
        if self.product is None:
            self.product = np.zeros((m, self.width))
        partial = block.borrow("step", (m, self.width), block.work_dtype)
        partial[:] = 0.0
        image = np.empty((block.length if self.images else 0, self.width), block.work_dtype)
        for start, rows in standardised_rows(block):
            inner = rows @ q
            add_product(partial, rows.T, inner)
            if self.images:
                image[start - block.start :][: len(inner)] = inner
            if self.probe:
                h = probe(start, start + len(rows)).astype(rows.dtype)
                mine = np.zeros(m) if self.z_probe is None else self.z_probe
                self.z_probe = mine + rows.T @ h
        self.product += partial
        if self.images and block.length:
            self.parts[block.start] = image

    def merge(self, other: Self) -> None:
        if other.product is not None:
            if self.product is not None:
                self._check_width(self.product, len(other.product))
            self.product = _joined(self.product, other.product)
        if other.z_probe is not None:
            self.z_probe = _joined(self.z_probe, other.z_probe)
        self.parts.update(other.parts)

    def projected_nbytes(self, shape: tuple[int, int], itemsize: int) -> int:
        across = shape[1 - self.streamed] * (self.width + 2 * self.probe) * 8
        return across + shape[self.streamed] * self.width * itemsize * self.images

    def scratch_nbytes(self, shape: tuple[int, int], block_length: int) -> int:
        return shape[1 - self.streamed] * self.width * 8 + block_length * self.width * 8

    # -- results ----------------------------------------------------------------------------

    def result(self) -> Array:
        """(m, width) float64, a fresh array."""
        if self.product is None:
            raise InvalidInputError("SubspaceStep has seen no block")
        return np.array(self.product)

    def image(self) -> Array:
        """(length of the streamed axis, width) in the working dtype, a fresh array."""
        return np.concatenate([self.parts[start] for start in sorted(self.parts)])

    # -- state: one table instead of a field per block -----------------------------------------

    @property
    def starts(self) -> Array | None:
        lengths = [(start, len(self.parts[start])) for start in sorted(self.parts)]
        return np.array(lengths, dtype=np.int64) if lengths else None

    @property
    def table(self) -> Array | None:
        return self.image() if self.parts else None

    def from_state(self, state: Mapping[str, Array]) -> Self:
        plain = {k: v for k, v in state.items() if k not in ("starts", "table")}
        restored = super().from_state(plain)
        offset = 0
        for start, length in np.asarray(state.get("starts", ())).reshape(-1, 2):
            restored.parts[int(start)] = np.array(state["table"][offset : offset + length])
            offset += length
        return restored


def standardised_rows(block: Any) -> Iterator[tuple[int, Array]]:
    """(first streamed entry, (entries, m) values): thin tiles, the streamed axis first."""
    given = (block.arrays.get(name) for name in ("center", "scale"))
    center, scale = (None if one is None else one[block.columns] for one in given)
    for tile in block.tiles(block.work_dtype, center=center, scale=scale, thin=True):
        yield tile.start, tile.values.T if block.axis else tile.values


def _joined(mine: Array | None, theirs: Array) -> Array:
    return theirs.copy() if mine is None else mine + theirs
