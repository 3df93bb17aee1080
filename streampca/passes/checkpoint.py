"""Folded state at a span boundary, so that an interrupted pass goes on where it was."""

from __future__ import annotations

import hashlib
import json
import shutil
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from streampca.accumulators import Accumulator
from streampca.errors import SourceError
from streampca.passes.work import Work
from streampca.store import is_bundle, read_bundle, write_bundle


class Checkpoint:
    """One pass's checkpoint directory, keyed by what is being computed.

    A checkpoint of another plan, source, accumulator or operand is not used: the pass then
    starts from its beginning and overwrites it.
    """

    def __init__(self, path: Path, key: str, every: float) -> None:
        self.path, self.key, self.every = path, key, every
        self._saved = time.monotonic()

    @classmethod
    def open(cls, folder: str, plan: Mapping[str, Any], work: Work, every: float) -> Checkpoint:
        """The checkpoint of this pass inside ``folder``."""
        key = _key(plan, work)
        return cls(Path(folder) / f"pass-{plan['name']}", key, every)

    def resume(self, blank: Mapping[str, Accumulator]) -> tuple[int, dict[str, Accumulator]]:
        """(first span still to fold, accumulators folded so far)."""
        if not is_bundle(self.path):
            return 0, dict(blank)
        try:
            arrays, document = read_bundle(self.path)
        except SourceError:  # damaged while it was written: nothing is lost but time
            return 0, dict(blank)
        if document["key"] != self.key:
            return 0, dict(blank)
        restored = {}
        for name, accumulator in blank.items():
            prefix = name + "."
            state = {k[len(prefix) :]: v for k, v in arrays.items() if k.startswith(prefix)}
            restored[name] = accumulator.from_state(state)
        return int(document["next_span"]), restored

    def save_if_due(self, next_span: int, total: Mapping[str, Accumulator]) -> None:
        """Write, if the last one is old enough."""
        if time.monotonic() - self._saved >= self.every:
            arrays = {
                f"{name}.{field}": value
                for name, accumulator in total.items()
                for field, value in accumulator.state().items()
            }
            write_bundle(self.path, arrays, {"key": self.key, "next_span": next_span})
            self._saved = time.monotonic()

    def clear(self) -> None:
        """The pass is done."""
        shutil.rmtree(self.path, ignore_errors=True)


def _key(plan: Mapping[str, Any], work: Work) -> str:
    digest = hashlib.sha256(json.dumps(plan, sort_keys=True).encode())
    digest.update(work.matrix.fingerprint().encode())
    for name, accumulator in sorted(work.accumulators.items()):
        settings = {s: repr(getattr(accumulator, s)) for s in accumulator.settings}
        digest.update(f"{name} {type(accumulator).__name__} {settings}".encode())
    for group in (work.operands, work.side_inputs, {"w": work.weights, "hidden": work.hidden}):
        for name, value in sorted(group.items()):
            if value is not None:
                digest.update(name.encode() + np.ascontiguousarray(value).tobytes())
    return digest.hexdigest()
