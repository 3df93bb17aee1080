"""The speed of a machine at the operations of a pass: predicted times order the candidates."""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, fields, replace
from pathlib import Path
from typing import Any, Self

import numpy as np

from streampca.errors import InvalidInputError
from streampca.matrix import ChunkedMatrix, work_dtype
from streampca.passes.blocks import block_edges
from streampca.passes.candidates import LANES, Candidate, T
from streampca.passes.memory import in_memory
from streampca.passes.records import PassSpec


@dataclass(frozen=True)
class Rates:
    """Rates per second, on all threads together. Defaults: two cores of a small server, whatever
    this machine has: a choice depends on the rates, and never on the number of cores.

    read : decoded bytes, of what does not lie in memory.
    cells : cells centred, scaled and copied into a tile.
    update, skinny, factor : flops in float32 of symmetric updates, of products with a few columns,
        and of QR; in float64 they are ``double`` times that.
    stored : flops of products with the stored entries of sparse blocks.
    dense : flops of the dense solver (4/3 m^3 for a symmetric matrix), float64.

    A plan depends on the rates it is given, and never on the present speed of the machine.
    """

    read: float = 1.0e9
    cells: float = 1.5e9
    update: float = 1.0e11
    skinny: float = 7e10
    factor: float = 3e10
    double: float = 0.5
    stored: float = 1.2e10
    dense: float = 1.3e10

    @classmethod
    def of(cls, rates: Any) -> Self:
        """From None (the defaults), a mapping, or a file that ``streampca calibrate`` wrote.

        Raises InvalidInputError for anything else, unknown names, and rates that are not positive.
        """
        if rates is None:
            return cls()
        if isinstance(rates, cls):
            return rates
        if isinstance(rates, (str, os.PathLike)):
            try:
                rates = json.loads(Path(rates).read_text(encoding="utf-8"))
            except (OSError, ValueError) as error:
                raise InvalidInputError(
                    f"rates={os.fspath(rates)!r} cannot be read ({error}); make it with "
                    "'streampca calibrate -o FILE'"
                ) from None
        if not isinstance(rates, Mapping):
            raise InvalidInputError(f"rates={rates!r}; expected a file, a mapping or None")
        if unknown := set(rates) - {one.name for one in fields(cls)}:
            raise InvalidInputError(f"rates: unknown names {sorted(unknown)}")
        for name, value in rates.items():
            number = isinstance(value, (int, float)) and not isinstance(value, bool)
            if not number or not 0 < value < float("inf"):
                raise InvalidInputError(f"rates: {name}={value!r}; expected a positive number")
        return cls(**rates)

    def to_dict(self) -> dict[str, float]:
        """JSON-ready form."""
        return asdict(self)

    def seconds(self, matrix: ChunkedMatrix, candidate: Candidate[Any]) -> float:
        """Predicted time of a candidate: its likely number of passes, and its dense solver."""
        passes = sum(one.likely * self._once(matrix, one) for one in candidate.passes)
        return passes + candidate.solve_flops / self.dense

    def timed(
        self, matrix: ChunkedMatrix, candidates: Iterable[Candidate[T]]
    ) -> list[Candidate[T]]:
        """Candidates with their predicted seconds, the quickest first."""
        timed = [replace(one, seconds=self.seconds(matrix, one)) for one in candidates]
        return sorted(timed, key=lambda one: one.seconds)

    def _once(self, matrix: ChunkedMatrix, spec: PassSpec) -> float:
        matrix = matrix if spec.matrix is None else spec.matrix
        rows = spec.rows or (0, matrix.shape[spec.axis])
        nbytes = int(matrix.spans_nbytes(spec.axis, np.array(rows)).sum())
        seconds = 0.0 if in_memory(matrix) else nbytes / self.read
        if spec.stored and matrix.sparse:
            seconds += spec.flops / self.stored
        else:
            double = self.double if work_dtype(matrix.dtype) == np.float64 else 1.0
            rate = {"update": self.update, "skinny": self.skinny, "factor": self.factor}
            cells = float(rows[1] - rows[0]) * matrix.shape[1 - spec.axis]
            seconds += cells / self.cells + spec.flops / (double * rate[spec.work])
        if len(block_edges(matrix, spec.axis, rows=spec.rows, stored=spec.stored)) == 2:
            seconds *= LANES  # a single block is read and folded by one lane
        return seconds
