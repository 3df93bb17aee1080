"""The state of an interrupted completion at rest, and where factors lie that are not in memory."""

from __future__ import annotations

import hashlib
import os
import pickle
import shutil
import tempfile
import weakref
from dataclasses import fields
from pathlib import Path
from typing import Any

import numpy as np

from streampca.errors import SourceError
from streampca.kernels import Array, ColumnStats
from streampca.matrix import ChunkedMatrix
from streampca.models.completion.request import CompletionRequest
from streampca.passes import Plan
from streampca.store import is_bundle, read_bundle, remove_bundle, write_bundle

State = tuple[dict[str, Array], dict[str, Any]]  # arrays, JSON-ready document


class SavedSweeps:
    """A bundle ``sweeps`` in the checkpoint folder, keyed by data, plan and request."""

    def __init__(self, path: Path, key: str) -> None:
        self.path, self.key = path, key

    @classmethod
    def of(
        cls, folder: str, plan: Plan, matrix: ChunkedMatrix, request: CompletionRequest
    ) -> SavedSweeps:
        """The saved sweeps of this fit."""
        digest = hashlib.sha256(plan.to_json().encode())
        digest.update(f"{matrix.content_stamp()} {matrix.absent}".encode())
        digest.update(pickle.dumps(request))
        return cls(Path(folder) / "sweeps", digest.hexdigest())

    def write(self, arrays: dict[str, Array], document: dict[str, Any]) -> None:
        """Replace what is saved."""
        write_bundle(self.path, arrays, {**document, "key": self.key})

    def read(self) -> State | None:
        """What is saved; None if there is nothing, or if it is damaged or of another fit."""
        if not is_bundle(self.path):
            return None
        try:
            arrays, document = read_bundle(self.path)
        except SourceError:
            return None
        return (arrays, document) if document.get("key") == self.key else None

    def clear(self) -> None:
        """Remove it: the fit is done."""
        remove_bundle(self.path)


def columns_to_saved(stats: ColumnStats) -> Array:
    """Statistics of columns as one array, (statistics, p)."""
    columns = [getattr(stats, field.name) for field in fields(ColumnStats)]
    return np.stack([np.asarray(column, np.float64) for column in columns])


def columns_from_saved(table: Array) -> ColumnStats:
    """The inverse of ``columns_to_saved``."""
    columns = list(table)
    return ColumnStats(*(column.astype(np.int64) for column in columns[:2]), *columns[2:])


def scratch_folder(owner: object, wanted: str | None) -> str:
    """A folder for scratch stores; a temporary one is removed with its owner."""
    if wanted is not None:
        os.makedirs(wanted, exist_ok=True)
        return wanted
    made = tempfile.mkdtemp(prefix="streampca-")
    weakref.finalize(owner, shutil.rmtree, made, ignore_errors=True)
    return made
