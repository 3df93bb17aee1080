"""Checkpoints: the folded state after a span, from which an interrupted pass resumes."""

from __future__ import annotations

import hashlib
import json
import pickle
import time
import uuid
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from streampca.accumulators import Accumulator
from streampca.errors import InvalidInputError, SourceError
from streampca.passes.records import Pass
from streampca.store import is_bundle, read_bundle, remove_bundle, understood, write_bundle

Array = np.ndarray[Any, Any]


class Checkpoint:
    """The checkpoint directory of one pass, keyed by what is being computed.

    It holds the accumulators and the arrays of sinks in memory. A checkpoint of another plan,
    source (by its files' sizes and times too), accumulator or operand is ignored: the pass starts
    at its beginning and overwrites it. The checkpoint of a finished pass stays until the fit ends.
    """

    def __init__(self, path: Path, key: str, every: float, held: Mapping[str, Array]) -> None:
        self.path, self.key, self.every = path, key, every
        self._held = held
        self._saved = time.monotonic()
        self._next = 0  # the first span that is not in the checkpoint on disk

    @classmethod
    def open(cls, folder: str, plan: Mapping[str, Any], work: Pass, every: float) -> Checkpoint:
        """The checkpoint of this pass inside ``folder``.

        Raises InvalidInputError if something else is at its path.
        """
        path = Path(folder) / f"pass-{plan['name']}"
        if path.parent.exists() and not path.parent.is_dir():
            raise InvalidInputError(f"checkpoint={folder!r} is a file; choose a folder")
        if path.exists() and not is_bundle(path):
            raise InvalidInputError(f"{path} is not a checkpoint; choose another folder")
        held = {name: sink.held() for name, sink in work.sinks.items()}
        kept = {name: values for name, values in held.items() if values is not None}
        return cls(path, _key(plan, work, kept), every, kept)

    @staticmethod
    def can_keep(work: Pass) -> bool:
        """Whether all outputs of the pass are in this process."""
        return all(sink.held() is not None for sink in work.sinks.values())

    def resume(self, blank: Mapping[str, Accumulator]) -> tuple[int, dict[str, Accumulator]]:
        """(first span still to fold, accumulators folded so far)."""
        if not is_bundle(self.path):
            return 0, dict(blank)
        try:
            arrays, document = read_bundle(self.path)
            if document.get("key") != self.key:
                return 0, dict(blank)
            with understood(str(self.path)):
                return self._restored(blank, arrays, document)
        except SourceError:  # a damaged checkpoint costs only time
            return 0, dict(blank)

    def _restored(
        self,
        blank: Mapping[str, Accumulator],
        arrays: Mapping[str, Array],
        document: Mapping[str, Any],
    ) -> tuple[int, dict[str, Accumulator]]:
        restored = {}
        for name, accumulator in blank.items():
            prefix = name + "."
            state = {k[len(prefix) :]: v for k, v in arrays.items() if k.startswith(prefix)}
            restored[name] = accumulator.from_state(state)
        for name, values in self._held.items():
            values[...] = arrays[f"sink {name}"]
        self._next = int(document["next_span"])
        return self._next, restored

    def save_if_due(self, next_span: int, total: Mapping[str, Accumulator]) -> None:
        """Write a checkpoint if the last one is old enough."""
        if time.monotonic() - self._saved >= self.every:
            self.save(next_span, total)

    def save(self, next_span: int, total: Mapping[str, Accumulator]) -> None:
        """Write a checkpoint, unless the one on disk has all these spans."""
        if next_span <= self._next:
            return
        arrays = {
            f"{name}.{field}": value
            for name, accumulator in total.items()
            for field, value in accumulator.state().items()
        }
        arrays |= {f"sink {name}": values for name, values in self._held.items()}
        self.path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)  # sums reveal the data
        write_bundle(self.path, arrays, {"key": self.key, "next_span": next_span})
        self._saved, self._next = time.monotonic(), next_span

    def clear(self) -> None:
        """Remove it."""
        remove_bundle(self.path)


def _key(plan: Mapping[str, Any], work: Pass, held: Mapping[str, Array]) -> str:
    digest = hashlib.sha256(json.dumps(plan, sort_keys=True).encode())
    digest.update(work.matrix.content_stamp().encode())
    digest.update(repr([(n, v.shape, str(v.dtype)) for n, v in sorted(held.items())]).encode())
    try:
        for name, accumulator in sorted(work.spec.accumulators.items()):
            settings = {s: getattr(accumulator, s) for s in accumulator.settings}
            digest.update(pickle.dumps((name, type(accumulator), settings)))
        digest.update(pickle.dumps(sorted(work.maps.items())))
        rows = {"w": work.weights, "design": work.design}
        for group in (work.operands, work.side_inputs, rows):
            for name, value in sorted(group.items()):
                if value is not None:
                    array = np.ascontiguousarray(value)
                    digest.update(f"{name} {array.dtype} {array.shape}".encode())
                    digest.update(array.reshape(-1).view(np.uint8).data)
    except (pickle.PicklingError, AttributeError, TypeError):
        digest.update(uuid.uuid4().bytes)  # a lambda, say: cannot be compared with the last one
    return digest.hexdigest()
