"""A matrix that reads another one: what is asked about the source is asked there."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from streampca.matrix.chunked_matrix import ChunkedMatrix, ReadCount
from streampca.matrix.location import Location


class MatrixView(ChunkedMatrix):
    """Base of what selects from, or derives from, the matrix ``base``."""

    base: ChunkedMatrix

    def advice(self, axis: int) -> str:
        return self.base.advice(axis)

    def reach(self, axis: int) -> int:
        return self.base.reach(axis)

    def prepare_reads(self, axis: int) -> ReadCount:
        return self.base.prepare_reads(axis)

    def prepared(self) -> ReadCount:
        return self.base.prepared()

    def column(self, axis: int, name: str) -> Any:
        return self.base.column(axis, name)

    def column_names(self, axis: int) -> list[str]:
        return self.base.column_names(axis)

    @property
    def carried_nbytes(self) -> int:  # type: ignore[override]
        return self.base.carried_nbytes

    @property
    def computes(self) -> bool:  # type: ignore[override]
        return self.base.computes

    def futures(self) -> tuple[Any, ...]:
        return self.base.futures()

    def paths(self) -> tuple[str, ...]:
        return self.base.paths()

    def locations(self) -> tuple[Location, ...]:
        return self.base.locations()

    def reads(self) -> ReadCount:
        return self.base.reads()

    def restart_counts(self) -> None:
        self.base.restart_counts()

    def checksums(self) -> dict[str, int]:
        return self.base.checksums()

    def add_checksums(self, found: Mapping[str, int]) -> None:
        self.base.add_checksums(found)
