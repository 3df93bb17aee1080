"""How fast a machine does what passes consist of: by these rates candidates are ordered."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any, Self

import numpy as np

from streampca.errors import InvalidInputError
from streampca.matrix import ChunkedMatrix, work_dtype
from streampca.passes.plan import LANES, block_edges
from streampca.passes.specs import Candidate, PassSpec


@dataclass(frozen=True)
class Rates:
    """Per second, on all lanes together. The defaults are those of two cores of a small server.

    read : decoded bytes.  cells : centred, scaled and laid into a tile.
    update, skinny, factor : flops of symmetric updates, of products with a few columns, and of QR,
        of float32; of float64 ``double`` times that.
    stored : flops of products of the stored entries of sparse blocks.
    dense : flops of the dense solver (4/3 m^3 of a symmetric matrix), float64, one thread.

    A plan depends on the rates that it is given, and never on what the machine does at present.
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
    def of(cls, given: Any) -> Self:
        """From None (the defaults), a mapping, or a file that ``streampca calibrate`` wrote.

        Raises InvalidInputError for anything else, unknown names, and rates that are not positive.
        """
        if given is None:
            return cls()
        if isinstance(given, cls):
            return given
        if isinstance(given, (str, os.PathLike)):
            try:
                given = json.loads(Path(given).read_text())
            except (OSError, ValueError) as error:
                raise InvalidInputError(
                    f"rates={os.fspath(given)!r} cannot be read ({error}); make it with "
                    "'streampca calibrate -o FILE'"
                ) from None
        if not isinstance(given, Mapping):
            raise InvalidInputError(f"rates={given!r}; expected a file, a mapping or None")
        if unknown := set(given) - {one.name for one in fields(cls)}:
            raise InvalidInputError(f"rates: unknown names {sorted(unknown)}")
        for name, value in given.items():
            number = isinstance(value, (int, float)) and not isinstance(value, bool)
            if not number or not 0 < value < float("inf"):
                raise InvalidInputError(f"rates: {name}={value!r}; expected a positive number")
        return cls(**given)

    def to_dict(self) -> dict[str, float]:
        """JSON-ready form."""
        return asdict(self)

    def seconds(self, matrix: ChunkedMatrix, candidate: Candidate) -> float:
        """Predicted time of a candidate, its likely number of passes and its dense solver."""
        passes = sum(one.likely * self._once(matrix, one) for one in candidate.passes)
        return passes + candidate.solve_flops / self.dense

    def _once(self, matrix: ChunkedMatrix, spec: PassSpec) -> float:
        matrix = matrix if spec.matrix is None else spec.matrix
        rows = spec.rows or (0, matrix.shape[spec.axis])
        nbytes = int(matrix.spans_nbytes(spec.axis, np.array(rows)).sum())
        seconds = nbytes / self.read
        if spec.stored and matrix.sparse:
            seconds += spec.flops / self.stored
        else:
            double = self.double if work_dtype(matrix.dtype) == np.float64 else 1.0
            rate = {"update": self.update, "skinny": self.skinny, "factor": self.factor}
            cells = float(rows[1] - rows[0]) * matrix.shape[1 - spec.axis]
            seconds += cells / self.cells + spec.flops / (double * rate[spec.work])
        if len(block_edges(matrix, spec.axis, rows=spec.rows, stored=spec.stored)) == 2:
            seconds *= LANES  # one block: nothing runs beside anything
        return seconds
