"""Kernel PCA without the kernel matrix: its products, of tiles that are computed and dropped."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from itertools import chain, pairwise, product
from typing import Any

import numpy as np

from streampca.accumulators import KernelStep
from streampca.kernels import Array, row_pieces
from streampca.matrix import ChunkedMatrix, work_dtype
from streampca.models.decompose.eigenproblem import RowsSink
from streampca.models.decompose.panels import panel_divisions
from streampca.models.kernel.functions import SHIFTED, Kernel, Rows, squares
from streampca.models.kernel.krylov import (
    BASES,
    LIKELY,
    KernelProducts,
    Shape,
    iterated,
    iteration_nbytes,
    refuse_overflow,
)
from streampca.models.kernel.request import (
    KernelEigenpairs,
    KernelRequest,
    sample_passes,
    with_width,
)
from streampca.passes import Candidate, Pass, PassSpec, Planned, Steps, all_threads, pass_spec

BLOCK = 1024  # rows of a block, where chunks are no longer
AUDITED = 48  # rows whose products are computed again in float64
EXP_FLOPS, CALL_FLOPS = 40.0, 1e6  # of one value, or one call, at the speed of products
COPIED_NBYTES = 8 << 20  # of rows that are copied in float64
COMPILED_NBYTES = 120 << 20  # Numba and its kernels


# The plan: panels of rows are held while others are read.


@dataclass(frozen=True)
class PanelPasses:
    """The passes over panels of rows.

    sampled : see :func:`sample_passes`.  loads : of each panel, the pass that holds its rows.
    uses : of each panel, the pass that needs them held.
    """

    sampled: tuple[PassSpec, ...]
    loads: tuple[PassSpec, ...]
    uses: tuple[PassSpec, ...]

    @classmethod
    def of(
        cls,
        matrix: ChunkedMatrix,
        kernel: Kernel,
        bounds: Array,
        use: Callable[[int, int, int], PassSpec],
        often: int,
        **kept: Any,
    ) -> PanelPasses:
        """Of the panels within these bounds.

        use : (number, first, last row) -> the pass that needs this panel held.
        often : a panel is loaded at most, where there are several.  kept : what lives meanwhile.
        """
        panels = list(enumerate(pairwise(map(int, bounds)), 1))
        p, times = matrix.shape[1], often if len(panels) > 1 else 1
        loads = tuple(
            PassSpec(
                f"panel {i}",
                0,
                scratch=lambda length: 2 * length * p * 8,
                rows=rows,
                times=times,
                likely=min(times, LIKELY + 2),
                **kept,
            )
            for i, rows in panels
        )
        uses = tuple(use(i, *rows) for i, rows in panels)
        return cls(sample_passes(matrix, kernel), loads, uses)

    def all(self) -> tuple[PassSpec, ...]:
        """In the order of the plan."""
        return (*self.sampled, *chain.from_iterable(zip(self.loads, self.uses, strict=True)))


def value_flops(kernel: Kernel) -> float:
    """What a value costs in addition to its inner product."""
    return EXP_FLOPS if kernel.function is None else CALL_FLOPS


def audit_nbytes(matrix: ChunkedMatrix, kernel: Kernel) -> dict[str, int]:
    """Terms of the tiles of K, and of some of its rows in float64."""
    compiled = kernel.name in ("rbf", "laplacian") and work_dtype(matrix.dtype) == np.float32
    checked = 8 * AUDITED * sum(matrix.shape) + 4 * COPIED_NBYTES
    return {"rows checked in float64": checked, "compiled kernels": COMPILED_NBYTES * compiled}


def divisions(matrix: ChunkedMatrix, request: KernelRequest) -> list[tuple[Array, int]]:
    """(bounds of panels of rows, capacity of the searched space in blocks) of each candidate; none
    where no iteration over rows can answer."""
    if not request.iterates(matrix.shape[0]) or request.kernel.name == "precomputed":
        return []
    return list(product(panel_divisions(matrix), BASES))


def matrix_free_candidates(
    matrix: ChunkedMatrix, request: KernelRequest
) -> list[Candidate[KernelEigenpairs]]:
    """Panels of rows are held while the rows from each on are read; tiles are never stored."""
    return [_candidate(matrix, request, *one) for one in divisions(matrix, request)]


def _candidate(
    matrix: ChunkedMatrix, request: KernelRequest, bounds: Array, blocks: int
) -> Candidate[KernelEigenpairs]:
    (n, p), kernel, size = matrix.shape, request.kernel, work_dtype(matrix.dtype).itemsize
    panels, w = len(bounds) - 1, int(np.diff(bounds).max())
    held, solve, shape = iteration_nbytes(matrix, request, blocks)
    held |= audit_nbytes(matrix, kernel)
    width = shape.width
    kept = w * p * size + 2 * n * (width + 2) * size + 16 * n

    def step(i: int, first: int, last: int) -> PassSpec:
        sums = KernelStep(kernel=kernel, first=first, width=width + 1, n=n, w=last - first)
        pairs = (last - first) * (last - first) / 2.0 + (last - first) * float(n - last)
        one = pass_spec(
            f"step {i}",
            matrix,
            0,
            {"step": sums},
            rows=(first, n),
            longest=BLOCK,
            flops=pairs * (2.0 * p + 4.0 * width + value_flops(kernel)),
            kept_nbytes=kept,
            kept=held,
        )
        return replace(one, times=request.steps, likely=min(request.steps, LIKELY))

    often = request.steps + 2
    passes = PanelPasses.of(matrix, kernel, bounds, step, often, kept_nbytes=kept, kept=held)
    reads = "1 read, and 1" if panels == 1 else f"2 reads, and {(panels + 3) / 2:g}"
    reason = (
        f"K is never stored: {reads} for each of at most {request.steps} steps of {width} vectors "
        f"with {panels} panel{'s' if panels > 1 else ''} of rows in memory; stops when every "
        f"component is certified to tol={request.tol:g}"
    )
    flops, sizes = 6.0 * LIKELY * n * 2 * width**2, {**vars(shape), "panels": panels}
    solver = partial(matrix_free, request=request, shape=shape, passes=passes)
    return Candidate("matrix-free", reason, passes.all(), held | solve, flops, sizes, solve=solver)


# The products.


class Tiles(KernelProducts):
    """K V of rows that are held panel by panel, and some rows of K in float64.

    lengths : (n,) squared, of prepared rows.  audited : (rows, n) of K in float64.
    """

    def __init__(self, matrix: ChunkedMatrix, kernel: Kernel, passes: PanelPasses) -> None:
        (n, p), self.matrix, self.passes = matrix.shape, matrix, passes
        super().__init__(kernel, work_dtype(matrix.dtype), n, p)
        self.lengths = np.zeros(n)
        self.panels = len(passes.loads)
        self.loads = [0] * self.panels
        self.panel = np.zeros((0, p), self.dtype)
        self.audited = np.zeros((0, n))

    @classmethod
    def looked(
        cls, matrix: ChunkedMatrix, request: KernelRequest, passes: PanelPasses
    ) -> Steps[Tiles]:
        """Those of a matrix, after a look at all of its rows."""
        kernel = yield from with_width(matrix, request.kernel, passes.sampled)
        tiles = cls(matrix, kernel, passes)
        yield from tiles.look(request.seed)
        return tiles

    def load(self, i: int) -> Steps[slice]:
        """Hold panel i, prepared; its rows."""
        spec = self.passes.loads[i]
        first, last = spec.rows or (0, len(self.lengths))
        if self.panels > 1 or not len(self.panel):
            self.loads[i] += 1
            self.panel = np.empty((last - first, self.matrix.shape[1]), self.dtype)
            yield Pass(
                spec,
                self.loads[i],
                maps={"rows": Rows(self.shift, self.dtype)},
                sinks={"rows": RowsSink(self.panel, first)},
            )
            if self.kernel.name in SHIFTED and not np.any(self.lengths):
                mean = self.panel.mean(axis=0, dtype=np.float64).astype(self.dtype)
                self.panel -= mean
                self.shift = mean.astype(np.float64)
            for piece in self._pieces():
                self.panel[piece] = self.kernel.prepared(self.panel[piece])
        return slice(first, last)

    def _pieces(self) -> list[slice]:
        """Rows of the panel that may be copied in float64."""
        return row_pieces(len(self.panel), 16 * self.panel.shape[1], COPIED_NBYTES)

    def audit(self, part: slice) -> None:
        """The kernel of the panel, which is these rows, with the chosen rows, in float64."""
        with all_threads():
            for piece in self._pieces():
                columns = slice(part.start + piece.start, part.start + piece.stop)
                self.audited[:, columns] = self.kernel.exact(self.chosen, self.panel[piece])

    def look(self, seed: int) -> Steps[None]:
        """Squared lengths of all rows, and the rows of K that are computed in float64."""
        for i in range(self.panels):
            part = yield from self.load(i)
            self.lengths[part] = np.maximum(squares(self.panel), np.finfo(float).tiny)
            self.diagonal[part] = self.kernel.diagonal(self.panel)
        sizes = np.concatenate([4.0 * self.lengths, np.abs(self.diagonal)])
        refuse_overflow(len(self.lengths) * float(sizes.max()), self.dtype)
        chosen = np.empty((min(AUDITED, len(self.lengths)), self.matrix.shape[1]), self.dtype)
        self._choose(len(chosen), seed)
        for i in range(self.panels):
            part = yield from self.load(i)
            here = np.flatnonzero((self.rows >= part.start) & (self.rows < part.stop))
            chosen[here] = self.panel[self.rows[here] - part.start]
        self.chosen = chosen
        self.audited = np.empty((len(chosen), len(self.lengths)))

    def _choose(self, count: int, seed: int) -> None:
        """Draw rows, half of them evenly, half by their part of the trace: there errors lie."""
        size = np.abs(self.diagonal)
        share = 0.5 / len(size) + 0.5 * size / max(size.sum(), 1e-300)
        share /= share.sum()
        rng = np.random.default_rng(seed)
        self.rows = rng.choice(len(size), count, p=share)
        self.weights = 1.0 / (count * share[self.rows])

    def product(self, number: int, vectors: Array) -> Steps[tuple[Array, Array]]:
        total = np.zeros(vectors.shape)
        for i in range(self.panels):
            part = yield from self.load(i)
            if number == 1:
                self.audit(part)
            step = {"kernel": self.kernel, "width": vectors.shape[1], "measure": number == 1}
            operands = {
                "panel": self.panel,
                "lengths": self.lengths,
                "shift": self.shift,
                "vectors": vectors,
            }
            spec = self.passes.uses[i]
            done = yield Pass(spec, number, operands=operands, changed={"step": step})
            one: KernelStep = done.accumulators.pop("step")
            total += one.product
            self.squares += one.squares
        errors = total[self.rows] - self.audited @ vectors.astype(np.float64)
        return total, errors.T


def matrix_free(
    planned: Planned[Any], *, request: KernelRequest, shape: Shape, passes: PanelPasses
) -> Steps[KernelEigenpairs]:
    """The leading eigenpairs of the kernel matrix, which is never stored."""
    tiles = yield from Tiles.looked(planned.matrix, request, passes)
    return (yield from iterated(request, shape, tiles))
