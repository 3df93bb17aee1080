"""What a pass has cost, and its result."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from streampca.html import card, text
from streampca.matrix import ReadCount
from streampca.passes.memory import size


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
