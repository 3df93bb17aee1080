"""Kernel PCA of a kernel matrix that lies in a file: every step reads it once, block by block."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from streampca.accumulators import CrossProduct
from streampca.kernels import Array, row_pieces
from streampca.matrix import Block, ChunkedMatrix, work_dtype
from streampca.models.kernel_functions import (
    KernelFound,
    KernelRequest,
    refuse_asymmetric,
    refuse_holes,
)
from streampca.models.kernel_krylov import (
    AUDITED,
    BASES,
    LIKELY,
    iterated,
    iteration_nbytes,
    width_of,
)
from streampca.passes import Candidate, Pass, SolverInput, Steps, pass_spec
from streampca.store import MemorySink

PIECE_NBYTES = 8 << 20  # of columns of a block in float64


def stored_candidates(matrix: ChunkedMatrix, request: KernelRequest) -> list[Candidate]:
    """A precomputed K is read once for each step, and never held."""
    n = matrix.shape[0]
    if request.count is None or request.count + 1 >= n or request.kernel.name != "precomputed":
        return []
    found = []
    width = width_of(n, request.count)
    for blocks in BASES:
        held, solve, sizes = iteration_nbytes(matrix, request, blocks)
        across = {"across": CrossProduct(y="first", width=1)}
        step = pass_spec(
            "step", matrix, 0, across, flops=2.0 * n * n * (width + 1), work="skinny",
            kept_nbytes=8 * n * (2 * width + 8), kept=held, times=request.steps,
            likely=min(request.steps, LIKELY),
        )  # fmt: skip
        step = replace(step, scratch=product_nbytes(n, width))
        reason = (
            f"1 read of the kernel matrix for each of at most {request.steps} steps of {width} "
            f"vectors; stops when every component is certified to tol={request.tol:g}"
        )
        found.append(Candidate("stored", reason, (step,), solve, 0.0, sizes))
    return found


def product_nbytes(n: int, width: int) -> Callable[[int], int]:
    """Of the length of a block: what its products with so many vectors take."""
    return lambda length: 2 * max(PIECE_NBYTES, 8 * length) + 8 * (length + n) * width


@dataclass(frozen=True)
class BlockProduct:
    """(rows, width) float64 K V of a block of rows of K."""

    def __call__(self, block: Block) -> Array:
        refuse_holes(block)
        values, vectors = block.dense(), block["vectors"]
        out = np.zeros((len(values), vectors.shape[1]))
        for part in row_pieces(values.shape[1], 8 * len(values), PIECE_NBYTES):
            out += values[:, part].astype(np.float64) @ vectors[part].astype(np.float64)
        return out


@dataclass(frozen=True)
class BlockSums:
    """(rows, 2): the diagonal, and the sums of squares of the rows."""

    def __call__(self, block: Block) -> Array:
        values = block.dense()
        own = np.arange(len(values))
        squares = np.einsum("ij,ij->i", values, values, dtype=np.float64)
        return np.stack([values[own, block.start + own].astype(np.float64), squares], axis=1)


class _Stored:
    """K V by passes over the stored matrix; the interface of the tiles that are made."""

    def __init__(self, inputs: SolverInput[KernelRequest]) -> None:
        n = inputs.matrix.shape[0]
        self.n, self.kernel, self.dtype = n, inputs.request.kernel, work_dtype(inputs.matrix.dtype)
        self.shift, self.diagonal, self.squares = np.zeros(n), np.zeros(n), 0.0
        rng = np.random.default_rng(inputs.request.seed)
        self.rows = rng.choice(n, min(AUDITED, n))
        self.weights = np.full(len(self.rows), n / len(self.rows))

    def product(self, number: int, vectors: Array) -> Steps[tuple[Array, Array]]:
        """(K V (n, b), its errors in the audited rows (b, rows)), which float64 sums have not."""
        sink, sums = MemorySink(self.n, vectors.shape[1]), MemorySink(self.n, 2)
        maps: dict[str, Any] = {"image": BlockProduct()}
        sinks: dict[str, Any] = {"image": sink}
        more: dict[str, Any] = {"changed": {"across": None}}
        if number == 1:
            maps["sums"], sinks["sums"] = BlockSums(), sums
            more = {"side_inputs": {"first": vectors[:, :1].astype(np.float64)}}
        done = yield Pass("step", number, maps=maps, sinks=sinks, operands={"vectors": vectors},
                          **more)  # fmt: skip
        if number == 1:
            self.diagonal, self.squares = sums.values[:, 0], float(sums.values[:, 1].sum())
            refuse_asymmetric(sink.values[:, 0], done["across"].cross_product()[:, 0])
        return sink.values, np.zeros((vectors.shape[1], len(self.rows)))


def stored(inputs: SolverInput[KernelRequest]) -> Steps[KernelFound]:
    """The leading eigenpairs of a precomputed kernel matrix, centred."""
    return (yield from iterated(inputs, _Stored(inputs)))
