"""The state of a completion between its sweeps, so that an interrupted fit goes on in its sweep."""

from __future__ import annotations

import hashlib
import os
import pickle
from dataclasses import fields
from pathlib import Path
from typing import Any

import numpy as np

from streampca.errors import SourceError
from streampca.kernels import Array, ColumnStats
from streampca.matrix import ChunkedMatrix
from streampca.models.completion.line_factors import LineFactors
from streampca.models.completion.request import CompletionRequest
from streampca.models.completion.trace import Sweep
from streampca.models.completion.two_way import TwoWay
from streampca.passes import Plan
from streampca.store import is_bundle, read_bundle, remove_bundle, write_bundle

FOUND = tuple[int, ColumnStats, dict[str, Array], list[Sweep]]


class SavedSweeps:
    """A bundle ``sweeps`` in the checkpoint folder, keyed by data, plan and request."""

    def __init__(self, path: Path, key: str) -> None:
        self.path, self.key = path, key

    @classmethod
    def of(
        cls, folder: str | None, plan: Plan, matrix: ChunkedMatrix, request: CompletionRequest
    ) -> SavedSweeps | None:
        """That of this fit; None where no checkpoint is wanted."""
        if folder is None:
            return None
        digest = hashlib.sha256(plan.to_json().encode())
        digest.update(f"{matrix.content_stamp()} {matrix.absent}".encode())
        digest.update(pickle.dumps(request))
        return cls(Path(folder) / "sweeps", digest.hexdigest())

    def write(
        self,
        number: int,
        stats: ColumnStats,
        state: dict[str, Array],
        trace: list[Sweep],
        factors: LineFactors | None,
        effects: TwoWay | None = None,
    ) -> None:
        """After ``number`` sweeps.

        factors : of the lines, where the next sweep reads them.  effects : of rows and columns.

        Those in a scratch store stay there, and are known by their path.
        """
        arrays = {f"state {name}": value for name, value in state.items()}
        if effects is not None:
            arrays |= {f"effects {name}": value for name, value in effects.state().items()}
        columns = [getattr(stats, one.name) for one in fields(ColumnStats)]
        arrays["columns"] = np.stack([np.asarray(one, np.float64) for one in columns])
        document: dict[str, Any] = {"key": self.key, "number": number}
        document["trace"] = [one.to_dict() for one in trace]
        if factors is not None and number and factors.folder is not None:
            document["factors"] = os.path.abspath(factors.path(number % 2))
        elif factors is not None:
            arrays["factors"] = np.asarray(factors.values)
        write_bundle(self.path, arrays, document)

    def read(self, factors: LineFactors, effects: TwoWay | None = None) -> FOUND | None:
        """(sweeps made, column statistics, state, trace); factors and effects in their place.

        None where nothing is saved, it is of another fit, or damaged.
        """
        if not is_bundle(self.path):
            return None
        try:
            arrays, document = read_bundle(self.path)
        except SourceError:
            return None
        if document.get("key") != self.key:
            return None
        number = int(document["number"])
        if (path := document.get("factors")) is not None:
            if not os.path.isdir(path) or path != os.path.abspath(factors.path(number % 2)):
                return None
            factors.open(number)
        elif "factors" in arrays:
            factors.begin_with(arrays["factors"])
        if effects is not None:
            effects.restore({k[8:]: v for k, v in arrays.items() if k.startswith("effects ")})
        columns = list(arrays["columns"])
        counts = [one.astype(np.int64) for one in columns[:2]]
        stats = ColumnStats(*counts, *columns[2:])
        state = {k[6:]: v for k, v in arrays.items() if k.startswith("state ")}
        return number, stats, state, [Sweep.from_dict(one) for one in document["trace"]]

    def clear(self) -> None:
        """The fit is done."""
        remove_bundle(self.path)
