"""What one pass does to one block: the part that travels to workers."""

from __future__ import annotations

import threading
import warnings
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from streampca.accumulators import Accumulator
from streampca.errors import ClusterError, LocalSourceWarning
from streampca.matrix import Block, ChunkedMatrix, SpotCheck, residual_block
from streampca.store import Sink

Map = Callable[[Block], np.ndarray[Any, Any]]


@dataclass
class Work:
    """All that a lane needs. ``accumulators`` are empty; each span folds into fresh ones.

    side_inputs : name -> array aligned with the streamed axis; blocks get their slice.
    weights : (samples,) row weights, or None.  hidden : boolean (samples, features), True =
    treat as missing.  design : (samples, r), projected out of every block before it is folded; the
    operand "removed" says what that takes away where samples are streamed.
    """

    matrix: ChunkedMatrix
    accumulators: Mapping[str, Accumulator]
    operands: Mapping[str, Any] = field(default_factory=dict)
    side_inputs: Mapping[str, Any] = field(default_factory=dict)
    maps: Mapping[str, Map] = field(default_factory=dict)
    sinks: Mapping[str, Sink] = field(default_factory=dict)
    weights: Any = None
    hidden: Any = None
    halo: int = 0
    offset: int = 0  # of side inputs, weights and mask that were cut for one span
    design: Any = None
    hold: tuple[str, ...] = ()  # sinks that the folding process writes itself
    checks: Mapping[str, SpotCheck] = field(default_factory=dict)  # of workers, by location

    def fresh(self) -> dict[str, Accumulator]:
        """Empty accumulators for one span."""
        return {name: a.blank() for name, a in self.accumulators.items()}

    def read(self, i: int, buffer: Any = None) -> Block:
        """Read block i and lay what is aligned with it beside it."""
        block = self.matrix.read_block(i, buffer)
        part = slice(block.start - self.offset, block.stop - self.offset)
        block.arrays = {
            **self.operands,
            **{n: np.ascontiguousarray(values[part]) for n, values in self.side_inputs.items()},
        }
        if self.weights is not None:
            weights = self.weights if block.axis else self.weights[part]
            block.weights = np.ascontiguousarray(weights, dtype=float)
        if self.hidden is not None:
            block.hidden = np.asarray(self.hidden[:, part] if block.axis else self.hidden[part])
        return block

    def process(self, block: Block, into: Mapping[str, Accumulator]) -> list[tuple[str, int, Any]]:
        """Maps, then accumulators, then sinks. Returns the pieces that were not written here."""
        try:
            if self.design is not None:
                block = self._residual(block)
            # A kernel of OpenBLAS may set the flag for finite numbers; what is read was checked.
            with np.errstate(invalid="ignore"):
                return self._process(block, into)
        except Exception as error:
            error.add_note(f"while folding {block.describe()}")
            raise

    def _process(self, block: Block, into: Mapping[str, Accumulator]) -> list[tuple[str, int, Any]]:
        pieces = []
        arrays = dict(block.arrays)
        block.arrays = arrays
        for name, function in self.maps.items():
            arrays[name] = function(block)
        for accumulator in into.values():
            accumulator.update(block)
        for name, sink in self.sinks.items():
            if name in self.hold:  # a copy: the map may have returned a view of the block
                pieces.append((name, block.start, np.array(arrays[name])))
            else:
                sink.write(block.start, arrays[name])
        return pieces

    def _residual(self, block: Block) -> Block:
        """The block without what the design explains."""
        removed = self.operands.get("removed")
        if block.axis:
            removed = None if removed is None else removed[:, block.columns]
            return residual_block(block, self.design, removed)
        rows = slice(block.start - self.offset, block.stop - self.offset)
        return residual_block(block, self.design[rows], removed)

    def cut(self, blocks: range) -> Work:
        """The same work for these blocks only, carrying no more data than they need."""
        matrix = self.matrix
        start, stop = int(matrix.edges[blocks[0]]), int(matrix.edges[blocks[-1] + 1])
        axis = matrix.streamed_axis
        part = slice(start - self.offset, stop - self.offset)
        sides = {name: np.asarray(values[part]) for name, values in self.side_inputs.items()}
        weights = self.weights if self.weights is None or axis else self.weights[part]
        hidden = self.hidden
        if hidden is not None:
            hidden = np.asarray(hidden[:, part] if axis else hidden[part])
        design = self.design if self.design is None or axis else self.design[part]
        cut_out = matrix.part(axis, start, stop)
        read = {one.name for one in cut_out.locations()}
        checks = {name: check for name, check in self.checks.items() if name in read}
        sinks: dict[str, Any] = {n: None if n in self.hold else s for n, s in self.sinks.items()}
        return replace(
            self, matrix=cut_out, side_inputs=sides, weights=weights, hidden=hidden,
            offset=start, sinks=sinks, design=design, checks=checks,
        )  # fmt: skip


# --------------------------------------------------------------------------------------------------
# What a worker reads is what the client saw: checked before its first span.

REMEMBERED = 10_000

_passed: dict[str, None] = {}  # tokens of checks that passed in this process, oldest first
_lock = threading.Lock()


def workers_can_read(matrix: ChunkedMatrix) -> bool:
    """Whether they can: not what lies in the memory of this process alone. Then a warning says so.

    Its threads read that.
    """
    for one in matrix.locations():
        if one.in_process:
            warnings.warn(
                f"{one.name} is {one.in_process}, which only this process can read: it is read "
                "here, not on the workers. Write it to a path that the workers share, or use "
                "scheduler='threads'.", LocalSourceWarning, stacklevel=4,
            )  # fmt: skip
            return False
    return True


def confirm(checks: Iterable[SpotCheck], worker: str) -> None:
    """Raise ClusterError where this process finds something else. Each check is made once.

    worker : the address of this one.
    """
    for check in checks:
        if check.token in _passed:
            continue
        if difference := check.difference():
            raise ClusterError(
                f"worker {worker} sees another store at {check.location.name}, or none: "
                f"{difference}. The same files must lie at this path on every worker (a shared "
                "file system, or object storage); or use scheduler='threads'."
            )
        with _lock:
            _passed[check.token] = None
            while len(_passed) > REMEMBERED:
                del _passed[next(iter(_passed))]
