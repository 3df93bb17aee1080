"""What a pass does with each block; this is what is sent to workers."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from streampca.accumulators import Accumulator
from streampca.errors import ClusterError, LocalSourceWarning, warn_caller
from streampca.matrix import Block, ChunkedMatrix, SpotCheck, residual_block
from streampca.store import Sink

Map = Callable[[Block], np.ndarray[Any, Any]]


@dataclass
class Work:
    """Everything that a lane needs.

    accumulators : empty; each span folds into fresh copies.
    side_inputs : name -> array aligned with the streamed axis; blocks get their slice.
    weights : (samples,) row weights, or None.
    design : (samples, r), projected out of every block before it is folded. If samples are
        streamed, the operand "removed" holds what that subtracts.
    """

    matrix: ChunkedMatrix
    accumulators: Mapping[str, Accumulator]
    operands: Mapping[str, Any] = field(default_factory=dict)
    side_inputs: Mapping[str, Any] = field(default_factory=dict)
    maps: Mapping[str, Map] = field(default_factory=dict)
    sinks: Mapping[str, Sink] = field(default_factory=dict)
    weights: Any = None
    offset: int = 0  # streamed row at which side inputs and weights begin
    design: Any = None
    hold: tuple[str, ...] = ()  # sinks that the folding process writes itself
    checks: Mapping[str, SpotCheck] = field(default_factory=dict)  # of workers, by location

    def fresh(self) -> dict[str, Accumulator]:
        """Empty accumulators for one span."""
        return {name: a.blank() for name, a in self.accumulators.items()}

    def read(self, i: int, buffer: Any = None) -> Block:
        """Read block i, and attach operands and its slices of side inputs and weights."""
        block = self.matrix.read_block(i, buffer)
        part = slice(block.start - self.offset, block.stop - self.offset)
        block.arrays = {
            **self.operands,
            **{n: np.ascontiguousarray(values[part]) for n, values in self.side_inputs.items()},
        }
        if self.weights is not None:
            weights = self.weights if block.axis else self.weights[part]
            block.weights = np.ascontiguousarray(weights, dtype=float)
        return block

    def process(self, block: Block, into: Mapping[str, Accumulator]) -> list[tuple[str, int, Any]]:
        """Apply maps, accumulators and sinks. Returns (sink, start, values) of unwritten pieces."""
        try:
            if self.design is not None:
                block = self._residual(block)
            # OpenBLAS kernels may set this flag for finite numbers; the values were checked before
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
            if name in self.hold:  # copied: the map may have returned a view of the block
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
        """The same work for some blocks, with no more data than they need."""
        matrix = self.matrix
        start, stop = int(matrix.edges[blocks[0]]), int(matrix.edges[blocks[-1] + 1])
        axis = matrix.streamed_axis
        part = slice(start - self.offset, stop - self.offset)
        sides = {name: np.asarray(values[part]) for name, values in self.side_inputs.items()}
        weights = self.weights if self.weights is None or axis else self.weights[part]
        design = self.design if self.design is None or axis else self.design[part]
        cut_out = matrix.part(axis, start, stop)
        read = {one.name for one in cut_out.locations()}
        checks = {name: check for name, check in self.checks.items() if name in read}
        sinks: dict[str, Any] = {n: None if n in self.hold else s for n, s in self.sinks.items()}
        return replace(
            self,
            matrix=cut_out,
            side_inputs=sides,
            weights=weights,
            offset=start,
            sinks=sinks,
            design=design,
            checks=checks,
        )


# Workers must read what the client saw: checked before their first span.

REMEMBERED = 10_000

_passed: dict[str, None] = {}  # tokens of checks that passed in this process, oldest first
_lock = threading.Lock()


def workers_can_read(matrix: ChunkedMatrix) -> bool:
    """Whether workers can read a matrix; warns if parts of it are only in this process."""
    for one in matrix.locations():
        if one.in_process:
            warn_caller(
                f"{one.name} is {one.in_process}, which only this process can read: it is read "
                "here, not on the workers. Write it to a path that the workers share, or use "
                "scheduler='threads'.",
                LocalSourceWarning,
            )
            return False
    return True


def confirm(checks: Iterable[SpotCheck], worker: str) -> None:
    """Raise ClusterError if this process sees other data than the client. Each check runs once.

    worker : the address of this process.
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
