"""What one fit leaves for the next one of the same matrix (``warm_start=True``)."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable
from typing import Any

import numpy as np

from streampca.matrix import ChunkedMatrix
from streampca.models.request import Request
from streampca.passes import PassCost, PassPlan, PassResult
from streampca.store import MemorySink


class WarmStart:
    """Folded first passes, and the searched space of an iteration, kept in memory.

    A first pass depends on the matrix and not on how many components are asked: fitting again
    with another ``n_components`` then reads nothing (but for loadings that are computed from the
    new vectors). Only for the matrix, its content as far as its stamp tells, weights and request
    of the fit that left it.
    """

    def __init__(self) -> None:
        self._of = ""
        self._passes: dict[str, tuple[PassResult, dict[str, Any]]] = {}
        self.iteration: Any = None  # what the iterative solver left

    def turn_to(self, matrix: ChunkedMatrix, request: Request) -> None:
        """Forget everything that was left by another matrix or by another request."""
        taken = (request.svd_solver, request.standardize, request.missing, matrix.missing_value)
        digest = hashlib.sha256(repr(taken).encode())
        digest.update(matrix.content_stamp().encode())
        for name, array in vars(request.side).items():
            if isinstance(array, np.ndarray):
                digest.update(f"{name} {array.dtype} {array.shape}".encode())
                digest.update(np.ascontiguousarray(array).tobytes())
        if digest.hexdigest() != self._of:
            self._of = digest.hexdigest()
            self._passes.clear()
            self.iteration = None

    def recall(self, plan: PassPlan, run: Callable[[], PassResult], more: dict[str, Any]) -> Any:
        """The result of a first pass: the one that was kept, or that of ``run``, which is kept."""
        accumulators = more.get("accumulators", plan.accumulators)
        settings = [(n, repr([getattr(a, s) for s in a.settings])) for n, a in accumulators.items()]
        key = json.dumps([plan.to_dict(), settings], sort_keys=True)
        sinks = more.get("sinks", {})
        if more.get("operands") or not all(isinstance(s, MemorySink) for s in sinks.values()):
            return run()
        if key not in self._passes:
            self._passes.clear()
            done = run()
            held = {name: sink.values.copy() for name, sink in sinks.items()}
            self._passes[key] = (_copied(done), held)
            return done
        kept, held = self._passes[key]
        for name, values in held.items():
            sinks[name].values[...] = values
        return _copied(kept)


def _copied(result: PassResult) -> PassResult:
    """A result that the caller may change; it cost nothing."""
    copies = {name: one.copied() for name, one in result.accumulators.items()}
    return PassResult(copies, PassCost(result.cost.name))
