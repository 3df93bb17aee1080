"""The records of a pass: how a method declares it, its blocks, one making of it, and its cost.

- :class:`PassSpec` is what a method declares, before the memory is known. It holds no blocks.
- :class:`PassPlan` is the blocks and the predicted cost that a plan derives from it. It is printed
  and kept with a result, so it holds no data.
- :class:`Pass` is one making of it: the arrays of this time and what is done with each block. It
  travels to workers.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from streampca.accumulators import Accumulator
from streampca.html import card, text
from streampca.matrix import Block, ChunkedMatrix, ReadCount, SpotCheck, residual_block
from streampca.passes.memory import size
from streampca.store import Sink

KEPT = ("kept arrays", "components", "statistics of features", "eigenvectors and scores")
Map = Callable[[Block], np.ndarray[Any, Any]]


def no_scratch(length: int) -> int:
    """Blocks that need no memory of their own."""
    return 0


@dataclass(frozen=True)
class PassSpec:
    """A pass as a method declares it.

    axis : streamed, 0 for samples.
    accumulators : empty, by name; each span folds copies of them.
    total_nbytes : the folded accumulators.  partial_nbytes : those of one span.
    scratch : of the length of a block, the bytes that maps and accumulators need in addition to it.
    kept_nbytes : arrays of the caller that live during the pass (operands, results in memory).
    kept : further ones by their names, each of KEPT.
    rows : (first, last) of the streamed axis that are read, or None for all.
    longest : of a block on the streamed axis, where chunks are no longer; None leaves it to bytes.
    ordered : one lane takes all blocks in order and nothing is merged.
    matrix : what this pass reads, where it is not the plan's.
    stored : of sparse blocks the stored entries alone are taken, none is expanded: blocks are as
        long as their stored bytes allow.
    work : kind of its arithmetic, for the prediction of time: "update", "skinny" or "factor".
    thin : tiles are thin, see :func:`streampca.matrix.tiles.tile_length`.
    times : how often at most it is made, each time with other operands.  likely : how often it
        usually is, for predictions of time.
    final : it follows an answer without doubt: of a candidate and its ``then`` only one makes it.
    weights : (samples,) how often each sample counts, or None.
    feature_weights : (features,) a side input of streamed features, or None.
    key : the pass keeps it under ``dataclasses.replace``: a composition may rename a pass, or plan
        more memory for it, and the solver that declared it still finds the same one.
    """

    name: str
    axis: int
    total_nbytes: int = 0
    partial_nbytes: int = 0
    scratch: Callable[[int], int] = no_scratch
    accumulators: Mapping[str, Accumulator] = field(default_factory=dict)
    kept_nbytes: int = 0
    kept: Mapping[str, int] = field(default_factory=dict)
    flops: float = 0.0
    rows: tuple[int, int] | None = None
    longest: int | None = None
    ordered: bool = False
    matrix: ChunkedMatrix | None = None
    stored: bool = False
    work: str = "update"
    thin: bool = False
    times: int = 1
    likely: int = 1
    final: bool = False
    weights: Any = field(default=None, repr=False, compare=False)
    feature_weights: Any = field(default=None, repr=False, compare=False)
    key: object = field(default_factory=object, repr=False, compare=False)


@dataclass(frozen=True)
class PassPlan:
    """The blocks of a pass, and what it is predicted to cost.

    edges : (blocks + 1,) int64, where blocks begin and end.  span : blocks that one task folds.
    reads, nbytes, flops : stored chunks read, their decoded bytes, and arithmetic, each time.
    ordered, times, final : as in :class:`PassSpec`.
    thread_nbytes : that each thread takes beyond the lanes of the plan.
    """

    name: str
    axis: int
    edges: np.ndarray[Any, Any] = field(compare=False)
    span: int
    reads: int
    nbytes: int
    flops: float
    ordered: bool = False
    times: int = 1
    final: bool = False
    thread_nbytes: int = 0

    @property
    def n_blocks(self) -> int:
        """Blocks in this pass."""
        return len(self.edges) - 1

    @property
    def spans(self) -> list[range]:
        """Consecutive blocks that one task folds."""
        step = self.n_blocks if self.ordered else self.span
        return [
            range(i, min(i + step, self.n_blocks)) for i in range(0, self.n_blocks, max(step, 1))
        ]

    def to_dict(self) -> dict[str, Any]:
        """JSON-ready form; of the edges their count, longest block and digest."""
        digest = hashlib.sha256(np.ascontiguousarray(self.edges, dtype="<i8").tobytes())
        return {
            "name": self.name,
            "streamed_axis": ("samples", "features")[self.axis],
            "from": int(self.edges[0]),
            "to": int(self.edges[-1]),
            "blocks": self.n_blocks,
            "block_length": int(np.diff(self.edges).max(initial=0)),
            "edges_sha256": digest.hexdigest()[:16],
            "blocks_per_span": self.n_blocks if self.ordered else self.span,
            "reads": self.reads,
            "bytes": self.nbytes,
            "flops": self.flops,
            "times_at_most": self.times,
        }


@dataclass(frozen=True)
class Pass:
    """One making of a pass: its arrays, and what is done with each block.

    A solver yields it. :meth:`begun` makes the form that folds blocks, here and on workers.

    spec : as it was declared.  number : which of its repetitions it is, from 1.
    matrix : what is read, where it is not what ``spec`` names.
    changed : by accumulator, settings that differ from those declared; None leaves it out.
    operands : small arrays that every block needs: ``block["Q"]``.
    side_inputs : arrays aligned with the streamed axis; ``block["scores"]`` is the slice.
    maps : name -> function of a block; its result is ``block[name]`` for what follows.
    sinks : name of a map, or of rows that an accumulator makes -> where they are written.
        Idempotent.
    weighted : whether the weights of the samples count.
    after : number of passes before it, of a fit that saves its state itself, and may have been
        interrupted: then a finished pass leaves no checkpoint.

    Of a pass that has begun:

    weights : (samples,) row weights, or None.
    design : (samples, r), projected out of every block before it is folded. If samples are
        streamed, the operand "removed" holds what that subtracts.
    offset : streamed row at which side inputs, weights and design begin.
    hold : sinks that the merging thread writes.
    checks : of workers, by location.
    """

    spec: PassSpec
    number: int = 1
    matrix: ChunkedMatrix = None  # type: ignore[assignment]  # of a pass that has begun, never None
    changed: Mapping[str, Mapping[str, Any] | None] = field(default_factory=dict)
    operands: Mapping[str, Any] = field(default_factory=dict)
    side_inputs: Mapping[str, Any] = field(default_factory=dict)
    maps: Mapping[str, Map] = field(default_factory=dict)
    sinks: Mapping[str, Sink] = field(default_factory=dict)
    weighted: bool = True
    after: int | None = None
    weights: Any = None
    design: Any = None
    offset: int = 0
    hold: tuple[str, ...] = ()
    checks: Mapping[str, SpotCheck] = field(default_factory=dict)

    def accumulators(self) -> dict[str, Accumulator]:
        """Those that were declared as this pass wants them, empty: for one span."""
        known = self.spec.accumulators
        named = {**{name: {} for name in known}, **self.changed}
        return {name: known[name].blank(**new) for name, new in named.items() if new is not None}

    def begun(self, plan: PassPlan) -> Pass:
        """The pass over its matrix in the blocks of a plan, without what only planning needs."""
        spec, operands, sides = self.spec, dict(self.operands), dict(self.side_inputs)
        if self.matrix.removed is not None:
            operands["removed"] = self.matrix.removed
        if spec.feature_weights is not None:
            sides["feature_weights"] = spec.feature_weights
        return replace(
            self,
            spec=PassSpec(
                spec.name,
                spec.axis,
                partial_nbytes=spec.partial_nbytes,
                accumulators=self.accumulators(),
            ),
            changed={},
            matrix=self.matrix.without(None).streamed(plan.axis, plan.edges),
            operands={name: _without_gaps(values) for name, values in operands.items()},
            side_inputs=sides,
            weights=spec.weights if self.weighted else None,
            design=self.matrix.design,
        )

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

    def cut(self, blocks: range) -> Pass:
        """The same for some blocks, with no more data than they need."""
        matrix = self.matrix
        start, stop = int(matrix.edges[blocks[0]]), int(matrix.edges[blocks[-1] + 1])
        axis = matrix.streamed_axis
        part = slice(start - self.offset, stop - self.offset)
        cut_out = matrix.part(axis, start, stop)
        read = {one.name for one in cut_out.locations()}
        sinks: dict[str, Any] = {n: None if n in self.hold else s for n, s in self.sinks.items()}
        return replace(
            self,
            matrix=cut_out,
            side_inputs={n: np.asarray(values[part]) for n, values in self.side_inputs.items()},
            weights=self.weights if self.weights is None or axis else self.weights[part],
            design=self.design if self.design is None or axis else self.design[part],
            offset=start,
            sinks=sinks,
            checks={name: check for name, check in self.checks.items() if name in read},
        )


def _without_gaps(operand: Any) -> Any:
    """The operand without gaps in memory: travelling closes them, and BLAS rounds otherwise."""
    gaps = isinstance(operand, np.ndarray) and not operand.flags.forc
    return np.ascontiguousarray(operand) if gaps else operand


@dataclass
class PassCost:
    """The measured cost of a pass.

    moved : bytes of X sent over the network: chunks of a persisted or scattered array that were
        folded on another worker, and blocks of an array in memory that were sent to a cluster.
        It excludes what Dask moved to compute a chunk, and operands that all blocks share. It
        includes a chunk that was recomputed after its worker died.
    """

    name: str
    reads: int = 0
    nbytes: int = 0
    stored: int = 0
    moved: int = 0
    seconds: float = 0.0
    blocks: int = 0
    most_live_blocks: int = 0  # raw blocks in one lane
    resumed_blocks: int = 0  # taken from a checkpoint instead of read

    def _repr_html_(self) -> str:
        rate = size(self.nbytes / self.seconds) + "/s" if self.seconds else ""
        rows = [
            ("read", text(f"{self.reads:,} chunks, {size(self.nbytes)}, {self.blocks:,} blocks")),
            ("took", text(f"{self.seconds:.2f} s {rate}".rstrip())),
            ("sent", text(size(self.moved) if self.moved else "")),
            ("resumed", text(f"{self.resumed_blocks:,} blocks" if self.resumed_blocks else "")),
        ]
        return card(f"Cost of the pass {self.name!r}", "measured", rows)

    def add(self, reads: ReadCount) -> None:
        """Count reads of X."""
        self.reads += reads.chunks
        self.stored += reads.stored
        self.moved += reads.moved


@dataclass
class PassResult:
    """Folded accumulators by name, and the cost."""

    accumulators: dict[str, Any]
    cost: PassCost

    def __getitem__(self, name: str) -> Any:
        return self.accumulators[name]
