"""Sums kept apart by groups of rows or of features, so that each can be left out."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any, Self

import numpy as np

from streampca.accumulators.base import Accumulator, OpenSum, refuse_incomplete
from streampca.errors import NonFiniteError
from streampca.kernels import Array, rank_k_update, symmetrize


class ByGroup(Accumulator):
    """An accumulator for each group of what is streamed; of a group that no block holds, none.

    inner : empty, of one group.  groups : how many.  starts : where runs of one group begin, of
    which the memory of a span depends; None where groups alternate.
    of_features : names of operands (p,) of ``inner``.
    The side input "group" holds numbers from 0; what has a negative one is left out.
    """

    settings = ("inner", "groups", "starts", "of_features")

    def __init__(
        self,
        *,
        inner: Accumulator,
        groups: int,
        starts: Array | None = None,
        of_features: tuple[str, ...] = (),
    ) -> None:
        self.inner, self.groups, self.starts = inner, groups, starts
        self.of_features = of_features
        self.axis = inner.axis  # type: ignore[misc]
        self.parts: dict[int, Any] = {}

    def update(self, block: Any) -> None:
        self._check(block)
        numbers = np.asarray(block["group"])
        for group in np.unique(numbers[numbers >= 0]).tolist():
            some = np.flatnonzero(numbers == group)
            part = self.parts.setdefault(group, self.inner.blank())
            try:
                part.update(block if len(some) == block.length else self._taken(block, some))
            except NonFiniteError:
                self.inner.blank().update(block)  # which knows the name of the feature
                raise

    def _taken(self, block: Any, some: Array) -> Any:
        if block.axis == 0:
            return replace(block.take_rows(some), start=0, stop=len(some))
        arrays = {name: block[name][block.columns][some] for name in self.of_features}
        return replace(block.take_columns(some, 0), arrays=arrays)

    def merge(self, other: Self) -> None:
        for group, part in other.parts.items():
            self.parts.setdefault(group, self.inner.blank()).merge(part)

    def settle(self) -> None:
        for part in self.parts.values():
            part.settle()

    def state(self) -> dict[str, Array]:
        return {
            f"{group} {name}": value
            for group, part in self.parts.items()
            for name, value in part.state().items()
        }

    def from_state(self, state: Mapping[str, Array]) -> Self:
        restored = self.blank()
        known: dict[int, dict[str, Array]] = {}
        for name, value in state.items():
            group, _, field = name.partition(" ")
            known.setdefault(int(group), {})[field] = value
        restored.parts = {group: self.inner.from_state(one) for group, one in known.items()}
        return restored

    def projected_nbytes(self, shape: tuple[int, int], itemsize: int) -> int:
        return self.groups * self.inner.projected_nbytes(shape, itemsize)

    def partial_nbytes(self, shape: tuple[int, int], itemsize: int) -> int:
        together = self.groups
        if self.starts is not None and len(self.starts):
            within = np.searchsorted(self.starts, self.starts + shape[self.inner.axis or 0])
            together = min(together, 1 + int((within - np.arange(len(self.starts))).max()))
        return together * self.inner.partial_nbytes(shape, itemsize)

    def scratch_nbytes(self, shape: tuple[int, int], block_length: int) -> int:
        copied = 8 * block_length * shape[1 - (self.inner.axis or 0)]
        return copied + self.inner.scratch_nbytes(shape, block_length)


class ScaledGram(Accumulator):
    """Z Z' of features that are centred and scaled by the numbers of a fit, (n, n).

    missing : "raise" refuses holes; else they are 0.  The operands "center" and "scale", (p,),
    hold the numbers; a scale of 0 leaves a feature out.
    """

    axis = 1
    settings = ("missing",)
    fields = ("closed",)

    def __init__(self, *, missing: str = "raise") -> None:
        self.missing = missing
        self._sum = OpenSum()

    @property
    def closed(self) -> Any:
        """(n, n) float64 sums, the lower triangle; None before the first are settled."""
        return self._sum.closed

    @closed.setter
    def closed(self, value: Any) -> None:
        self._sum = OpenSum(value)

    def update(self, block: Any) -> None:
        self._check(block)
        if self.missing == "raise":
            refuse_incomplete(block)
        dtype, n = block.work_dtype, block.shape[0]
        product = self._sum.open((n, n), dtype)
        center, scale = (block[name][block.columns] for name in ("center", "scale"))
        for tile in block.tiles(dtype, center=center, scale=scale):
            rank_k_update(product, tile.values, rows=False)

    def settle(self) -> None:
        self._sum.settle()

    def merge(self, other: Self) -> None:
        self._sum.merge(other._sum)

    def projected_nbytes(self, shape: tuple[int, int], itemsize: int) -> int:
        return shape[0] ** 2 * 8

    def partial_nbytes(self, shape: tuple[int, int], itemsize: int) -> int:
        return shape[0] ** 2 * itemsize

    def gram(self) -> Array:
        """(n, n) float64 symmetric."""
        if (total := self._sum.total()) is None:
            raise self._nothing_seen()
        return symmetrize(total)
