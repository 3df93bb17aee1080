"""Kernel PCA by a kernel matrix that is stored: precomputed, or written to scratch for the fit.

Tiles of wide rows cost more to compute again than to read.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from itertools import pairwise
from typing import Any

import numpy as np

from streampca.accumulators import CrossProduct
from streampca.accumulators.kernel_step import TILE
from streampca.kernels import Array, row_pieces
from streampca.matrix import Block, ChunkedMatrix, work_dtype
from streampca.matrix.mapped import code_of
from streampca.models.kernel.functions import Kernel, Rows, refuse_asymmetric, refuse_holes, squares
from streampca.models.kernel.krylov import (
    BASES,
    LIKELY,
    KernelProducts,
    Shape,
    iterated,
    iteration_nbytes,
)
from streampca.models.kernel.request import KernelEigenpairs, KernelRequest
from streampca.models.kernel.tiles import (
    AUDITED,
    PanelPasses,
    Tiles,
    audit_nbytes,
    divisions,
    value_flops,
)
from streampca.passes import Candidate, Pass, PassResult, PassSpec, Planned, Steps, pass_spec, size
from streampca.sources import as_matrix
from streampca.store import MemorySink, ZarrSink
from streampca.store.array_files import blank_array
from streampca.store.chunks import chunk_cuts, put, writing_nbytes
from streampca.store.places import discard, writing
from streampca.store.sinks import ChunkedSink, mark_written, marked

CHUNK_NBYTES = 16 << 20
PIECE_NBYTES = 8 << 20  # of columns of a block in float64


# Products with a kernel matrix that is stored.


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


class StoredKernel(KernelProducts):
    """K V by passes over a stored K."""

    def __init__(self, kernel: Kernel, step: PassSpec, stored: ChunkedMatrix, p: int) -> None:
        super().__init__(kernel, work_dtype(stored.dtype), stored.shape[0], p)
        self.step, self.stored = step, stored

    def _image(
        self, number: int, vectors: Array, **more: Any
    ) -> Steps[tuple[Array, Array, PassResult]]:
        """(K V, its :class:`BlockSums` with the first product, the result of the pass)."""
        n = self.stored.shape[0]
        image, sums = MemorySink(n, vectors.shape[1]), MemorySink(n, 2)
        maps: dict[str, Any] = {"image": BlockProduct()}
        sinks: dict[str, Any] = {"image": image}
        if number == 1:
            maps["sums"], sinks["sums"] = BlockSums(), sums
        done = yield Pass(
            self.step,
            number,
            self.stored,
            maps=maps,
            sinks=sinks,
            operands={"vectors": vectors},
            **more,
        )
        return image.values, sums.values, done


# Kernels of rows, written to scratch.


def scratch_candidates(
    matrix: ChunkedMatrix, request: KernelRequest
) -> list[Candidate[KernelEigenpairs]]:
    """Panels of rows are held while all rows are read, whose kernel with them is written."""
    if request.scratch is None:
        return []
    return [_candidate(matrix, request, *one) for one in divisions(matrix, request)]


def _candidate(
    matrix: ChunkedMatrix, request: KernelRequest, bounds: Array, blocks: int
) -> Candidate[KernelEigenpairs]:
    (n, p), itemsize = matrix.shape, work_dtype(matrix.dtype).itemsize
    panels, w = len(bounds) - 1, int(np.diff(bounds).max())
    held, solve, shape = iteration_nbytes(matrix, request, blocks)
    held |= audit_nbytes(matrix, request.kernel)
    width = shape.width
    kept: dict[str, Any] = {"kept_nbytes": w * p * itemsize + 24 * n, "kept": held}

    def write(i: int, first: int, last: int) -> PassSpec:
        flops = n * (last - first) * (2.0 * p + value_flops(request.kernel))
        return PassSpec(f"write {i}", 0, scratch=_writing(p, n, itemsize), flops=flops, **kept)

    passes = PanelPasses.of(matrix, request.kernel, bounds, write, 3, **kept)
    written = as_matrix(blank_array((n, n), _rows(n, itemsize), work_dtype(matrix.dtype)))
    step = PassSpec(
        "step",
        0,
        scratch=product_nbytes(n, width),
        flops=2.0 * n * n * (width + 1),
        work="skinny",
        kept_nbytes=8 * n * (2 * width + 8),
        kept=held,
        times=request.steps,
        likely=min(request.steps, LIKELY),
        matrix=written,
    )
    reads = "2 reads" if panels == 1 else f"{3 + panels} reads"
    reason = (
        f"the kernel matrix is written once to scratch, {size(n * n * itemsize)}, from {reads} of "
        f"X, and read once for each of at most {request.steps} steps of {width} vectors; stops "
        f"when every component is certified to tol={request.tol:g}"
    )
    solver = partial(scratch, request=request, shape=shape, passes=passes, step=step)
    return Candidate(
        "scratch",
        reason,
        (*passes.all(), step),
        held | solve,
        sizes={**vars(shape), "panels": panels},
        solve=solver,
    )


def _writing(p: int, n: int, itemsize: int) -> Callable[[int], int]:
    chunk = max(CHUNK_NBYTES, n * itemsize)
    return lambda length: 16 * length * p + writing_nbytes(chunk)


def _rows(n: int, itemsize: int) -> int:
    """Rows of a chunk of the scratch."""
    return max(1, CHUNK_NBYTES // (n * itemsize))


class KernelSink(ChunkedSink):
    """Rows whose kernel with a panel is written to some columns of a Zarr array."""

    def __init__(
        self, whole: ZarrSink, kernel: Kernel, panel: Array, lengths: Array, first: int
    ) -> None:
        super().__init__()
        self.whole, self.kernel, self.panel, self.first = whole, kernel, panel, first
        self.lengths = lengths.astype(panel.dtype)
        self.chunk, self.length = whole.chunk, whole.length

    def _put(self, start: int, stop: int, values: Array) -> None:
        rows = self.kernel.prepared(values)
        own = squares(rows).astype(rows.dtype)
        for begin, end in pairwise(chunk_cuts(start, stop, self.chunk)):
            part = slice(begin - start, end - start)
            made = np.empty((end - begin, len(self.panel)), rows.dtype)
            for piece in row_pieces(len(self.panel), 1, TILE):
                theirs = self.lengths[self.first + piece.start : self.first + piece.stop]
                made[:, piece] = self.kernel.tile(rows[part], self.panel[piece], own[part], theirs)
            with writing(self.whole.path):
                put(self.whole.array, (begin, self.first), made)

    def concurrent(self, edges: Array) -> bool:
        return False  # the panel stays here

    def paths(self) -> tuple[str, ...]:
        return self.whole.paths()


class _Written(StoredKernel):
    """K V by passes over the scratch, of which some rows are audited."""

    def __init__(self, tiles: Tiles, path: str, step: PassSpec) -> None:
        super().__init__(tiles.kernel, step, as_matrix(path), len(tiles.shift))
        self.audited = tiles.audited
        for name in ("shift", "diagonal", "rows", "weights"):
            setattr(self, name, getattr(tiles, name))

    def product(self, number: int, vectors: Array) -> Steps[tuple[Array, Array]]:
        image, sums, _ = yield from self._image(number, vectors)
        self.squares += float(sums[:, 1].sum())
        errors = image[self.rows] - self.audited @ vectors.astype(np.float64)
        return image, errors.T


def scratch(
    planned: Planned[Any],
    *,
    request: KernelRequest,
    shape: Shape,
    passes: PanelPasses,
    step: PassSpec,
) -> Steps[KernelEigenpairs]:
    """The leading eigenpairs by way of a kernel matrix in scratch, which is removed at the end.

    A fit that was interrupted finds it again, once it is complete.
    """
    tiles = yield from Tiles.looked(planned.matrix, request, passes)
    assert request.scratch is not None
    path = yield from _write(tiles, request.scratch)
    found = yield from iterated(request, shape, _Written(tiles, path, step))
    discard(path)
    return found


def _write(tiles: Tiles, folder: str) -> Steps[str]:
    """The path of the kernel matrix, written if it is not there."""
    matrix, kernel, n = tiles.matrix, tiles.kernel, tiles.matrix.shape[0]
    named = f"{replace(kernel, function=None)!r} {code_of(kernel.function)}"
    identity = f"{matrix.fingerprint()} {named} {n} {tiles.panels}"
    mark = hashlib.sha256(identity.encode()).hexdigest()[:16]
    path = os.path.join(folder, f"kernel-{mark}.zarr")
    there = marked(path) == mark
    whole = None
    if not there:
        os.makedirs(folder, exist_ok=True)
        whole = ZarrSink(
            path,
            n,
            n,
            tiles.dtype,
            _rows(n, tiles.dtype.itemsize),
            ("sample", "sample"),
            overwrite=True,
        )
    for i in range(tiles.panels):
        part = yield from tiles.load(i)
        tiles.audit(part)
        if whole is not None:
            sink = KernelSink(whole, kernel, tiles.panel, tiles.lengths, part.start)
            rows = Rows(tiles.shift, tiles.dtype)
            yield Pass(tiles.passes.uses[i], maps={"rows": rows}, sinks={"rows": sink})
    if whole is not None:
        whole.finish()
        mark_written(path, mark)
    return path


# A kernel matrix that was precomputed.


def stored_candidates(
    matrix: ChunkedMatrix, request: KernelRequest
) -> list[Candidate[KernelEigenpairs]]:
    """A precomputed K is read once for each step, and never held."""
    n = matrix.shape[0]
    if not request.iterates(n) or request.kernel.name != "precomputed":
        return []
    made = []
    for blocks in BASES:
        held, solve, shape = iteration_nbytes(matrix, request, blocks)
        width = shape.width
        across = {"across": CrossProduct(y="first", width=1)}
        step = pass_spec(
            "step",
            matrix,
            0,
            across,
            flops=2.0 * n * n * (width + 1),
            work="skinny",
            kept_nbytes=8 * n * (2 * width + 8),
            kept=held,
            times=request.steps,
            likely=min(request.steps, LIKELY),
        )
        step = replace(step, scratch=product_nbytes(n, width))
        reason = (
            f"1 read of the kernel matrix for each of at most {request.steps} steps of {width} "
            f"vectors; stops when every component is certified to tol={request.tol:g}"
        )
        solver = partial(stored, request=request, shape=shape, step=step)
        made.append(
            Candidate("stored", reason, (step,), solve, sizes=dict(vars(shape)), solve=solver)
        )
    return made


class _Precomputed(StoredKernel):
    """K V by passes over a precomputed kernel matrix."""

    def __init__(self, matrix: ChunkedMatrix, request: KernelRequest, step: PassSpec) -> None:
        n = matrix.shape[0]
        super().__init__(request.kernel, step, matrix, n)
        self.rows = np.random.default_rng(request.seed).choice(n, min(AUDITED, n))
        self.weights = np.full(len(self.rows), n / len(self.rows))

    def product(self, number: int, vectors: Array) -> Steps[tuple[Array, Array]]:
        """Errors are 0: sums are float64."""
        more: dict[str, Any] = {"changed": {"across": None}}
        if number == 1:
            more = {"side_inputs": {"first": vectors[:, :1].astype(np.float64)}}
        image, sums, done = yield from self._image(number, vectors, **more)
        if number == 1:
            self.diagonal, self.squares = sums[:, 0], float(sums[:, 1].sum())
            refuse_asymmetric(image[:, 0], done["across"].cross_product()[:, 0])
        return image, np.zeros((vectors.shape[1], len(self.rows)))


def stored(
    planned: Planned[Any], *, request: KernelRequest, shape: Shape, step: PassSpec
) -> Steps[KernelEigenpairs]:
    """The leading eigenpairs of a precomputed kernel matrix, centred."""
    return (yield from iterated(request, shape, _Precomputed(planned.matrix, request, step)))
