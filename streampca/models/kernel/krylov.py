"""Kernel PCA without the kernel matrix: block Krylov steps on tiles that are made and dropped."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from itertools import pairwise
from typing import Any

import numpy as np

from streampca.accumulators import KernelStep
from streampca.accumulators.kernel_step import TILE
from streampca.errors import NonFiniteError
from streampca.kernels import CONFIDENCE, Array, probe, row_pieces, sum_error
from streampca.matrix import ChunkedMatrix, work_dtype
from streampca.models.decompose.eigenproblem import RowsSink
from streampca.models.decompose.krylov_plan import Judge, Verdict
from streampca.models.kernel.functions import (
    SHIFTED,
    Kernel,
    KernelFound,
    KernelRequest,
    Rows,
    sample_passes,
    squares,
    with_width,
)
from streampca.models.kernel.plan import (
    AUDITED,
    BESIDE,
    COPIED_NBYTES,
    LIKELY,
    PanelPasses,
    Shape,
    audit_nbytes,
    divisions,
    iteration_nbytes,
    panel_load,
    value_flops,
)
from streampca.passes import Candidate, Pass, PassSpec, Planned, Steps, all_threads, pass_spec
from streampca.solvers import KrylovSpace, Ritz, numerical_rank, orthonormalised, signs

BLOCK = 1024  # rows of a block, where chunks are no longer
PATIENCE = 4  # steps before it is judged how many more are needed: the start is random


# The plan.


def matrix_free_candidates(
    matrix: ChunkedMatrix, request: KernelRequest
) -> list[Candidate[KernelFound]]:
    """Panels of rows are held while the rows from each on are read; tiles are never stored."""
    n, kernel = matrix.shape[0], request.kernel
    if request.count is None or request.count + 1 >= n or kernel.name == "precomputed":
        return []
    return [_candidate(matrix, request, *one) for one in divisions(matrix)]


def _candidate(
    matrix: ChunkedMatrix, request: KernelRequest, bounds: Array, blocks: int
) -> Candidate[KernelFound]:
    (n, p), kernel, size = matrix.shape, request.kernel, work_dtype(matrix.dtype).itemsize
    panels, w = len(bounds) - 1, int(np.diff(bounds).max())
    held, solve, shape = iteration_nbytes(matrix, request, blocks)
    held |= audit_nbytes(matrix, kernel)
    width = shape.width
    kept = w * p * size + 2 * n * (width + 2) * size + 16 * n
    loads: list[PassSpec] = []
    steps: list[PassSpec] = []
    often = 1 if panels == 1 else request.steps + 2
    for i, (first, last) in enumerate(pairwise(map(int, bounds)), 1):
        step = KernelStep(kernel=kernel, first=first, width=width + 1, n=n, w=last - first)
        pairs = (last - first) * (last - first) / 2.0 + (last - first) * float(n - last)
        loads.append(panel_load(i, (first, last), p, often, kept, held))
        one = pass_spec(
            f"step {i}",
            matrix,
            0,
            {"step": step},
            rows=(first, n),
            longest=BLOCK,
            flops=pairs * (2.0 * p + 4.0 * width + value_flops(kernel)),
            kept_nbytes=kept,
            kept=held,
        )
        steps.append(replace(one, times=request.steps, likely=min(request.steps, LIKELY)))
    passes = PanelPasses(sample_passes(matrix, kernel), tuple(loads), tuple(steps))
    reads = "1 read, and 1" if panels == 1 else f"2 reads, and {(panels + 3) / 2:g}"
    reason = (
        f"K is never stored: {reads} for each of at most {request.steps} steps of {width} vectors "
        f"with {panels} panel{'s' if panels > 1 else ''} of rows in memory; stops when every "
        f"component is certified to tol={request.tol:g}"
    )
    flops, sizes = 6.0 * LIKELY * n * 2 * width**2, {**vars(shape), "panels": panels}
    solver = partial(matrix_free, matrix=matrix, request=request, shape=shape, passes=passes)
    return Candidate("matrix-free", reason, passes.all(), held | solve, flops, sizes, solve=solver)


# The products of the kernel matrix.


class Tiles:
    """K V by passes, of rows that are held panel by panel, and some rows of it in float64.

    lengths : (n,) squared, of prepared rows.  rows : that are audited; weights : of the squares of
    their errors.  audited : (rows, n) of K in float64.  squares : the sum of those of K, known with
    the first product.
    """

    def __init__(self, matrix: ChunkedMatrix, kernel: Kernel, passes: PanelPasses) -> None:
        self.matrix, self.kernel, self.passes = matrix, kernel, passes
        (n, p), self.dtype = matrix.shape, work_dtype(matrix.dtype)
        self.shift, self.lengths = np.zeros(p), np.zeros(n)
        self.panels = len(passes.loads)
        self.loads = [0] * self.panels
        self.panel = np.zeros((0, p), self.dtype)
        self.diagonal = np.zeros(n)
        self.rows, self.weights = np.zeros(0, np.int64), np.zeros(0)
        self.audited, self.squares = np.zeros((0, n)), 0.0

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
        """Squared lengths of all rows, and the rows of K that are made in float64."""
        for i in range(self.panels):
            part = yield from self.load(i)
            self.lengths[part] = np.maximum(squares(self.panel), np.finfo(float).tiny)
            self.diagonal[part] = self.kernel.diagonal(self.panel)
        sizes = np.concatenate([4.0 * self.lengths, np.abs(self.diagonal)])
        _refuse_overflow(len(self.lengths) * float(sizes.max()), self.dtype)
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
        """(K V (n, b) float64, its errors in the rows that are audited (b, rows))."""
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
            one = done.accumulators.pop("step")
            total += one.product
            self.squares += one.squares
        errors = total[self.rows] - self.audited @ vectors.astype(np.float64)
        return total, errors.T


def _refuse_overflow(largest: float, dtype: np.dtype[Any]) -> None:
    if not largest <= float(np.finfo(dtype).max):
        raise NonFiniteError(
            f"kernel values overflowed {dtype}; convert with X.astype('float64') or rescale the "
            "columns"
        )


# The iteration.


def matrix_free(
    planned: Planned[Any],
    *,
    matrix: ChunkedMatrix,
    request: KernelRequest,
    shape: Shape,
    passes: PanelPasses,
) -> Steps[KernelFound]:
    """Steps until every component is certified, or the next ones would not help.

    Source: Musco and Musco 2015, "Randomized block Krylov methods for stronger and faster
    approximate singular value decomposition", algorithm 2.
    """
    kernel = yield from with_width(matrix, request.kernel, passes.sampled)
    tiles = Tiles(matrix, kernel, passes)
    yield from tiles.look(request.seed)
    return (yield from iterated(request, shape, tiles))


def iterated(request: KernelRequest, shape: Shape, tiles: Any) -> Steps[KernelFound]:
    """The leading eigenpairs of a centred K that is known by its products."""
    work = _Iteration(request, shape, tiles)
    while (yield from work.advance()):
        pass
    return work.found()


class _Iteration:
    """The searched space, and the verdicts on it.

    Errors of the products are measured: by rows of K in float64, for each vector.
    """

    def __init__(self, request: KernelRequest, shape: Shape, tiles: Any) -> None:
        assert request.count is not None
        self.n = n = len(tiles.diagonal)
        self.tiles, self.request, self.k = tiles, request, request.count
        self.width, self.dtype = shape.width, tiles.dtype
        self.rng = np.random.default_rng(request.seed)
        self.space = KrylovSpace(n, shape.basis, self.dtype)
        self.errors = np.zeros((0, len(tiles.rows)))  # of the products, in the audited rows
        self.verdicts: list[Verdict] = []
        self.steps, self.stopped = 0, ""
        with all_threads():
            start = self.rng.standard_normal((n, self.width))
            self.block = orthonormalised(start - start.mean(axis=0)).astype(self.dtype)

    def advance(self) -> Steps[bool]:
        """One step. False if it was the last."""
        self.steps += 1
        vectors = self.block
        if self.steps == 1:  # the means come along
            vectors = np.hstack([vectors, np.ones((self.n, 1), self.dtype)])
        product, errors = yield from self.tiles.product(self.steps, vectors)
        _refuse_overflow(float(np.abs(product).max()), self.dtype)
        if self.steps == 1:
            self.means = product[:, -1] / self.n
            self.judge = self._judge()
            product, errors = product[:, :-1], errors[:-1]
        product -= np.multiply.outer(self.means, self.block.sum(axis=0, dtype=np.float64))
        product -= product.mean(axis=0)
        rows = self.tiles.rows
        stored = product.astype(self.dtype)
        self.errors = np.vstack([self.errors, errors + (stored[rows] - product[rows]).T])
        with all_threads():
            self.space.add(self.block, stored)
            ritz = self._ritz()
            self.verdicts.append(self.judge.verdict(ritz, self.steps))
            return self._prepared_next(ritz)

    def _judge(self) -> Judge:
        """The stopping rule. The trace bounds what is left of a semi-definite K; of others, the
        root of the sum of squares does."""
        n, means, tiles = self.n, self.means, self.tiles
        self.trace = float(tiles.diagonal.sum() - means.sum())
        centred = tiles.squares - 2.0 * n * float(means @ means) + float(means.sum()) ** 2
        self.squares = centred + 2.0 * sum_error(self.dtype, TILE) * tiles.squares  # at most
        definite = tiles.kernel.definite
        return Judge(self.k, self.request.tol, self.trace, 1.0, self.dtype, (n, n), TILE, definite)

    def _ritz(self) -> Ritz:
        ritz = self.space.ritz()
        rotated = (self.errors.T @ ritz.rotation) ** 2
        # float64 rows measure it, whose values are rounded too: together at most |K|_F of that
        size = float(np.sqrt(self.tiles.squares))
        size = size if np.isfinite(size) else float(np.abs(self.tiles.diagonal).sum())
        values = float(np.finfo(np.float64).eps) * size
        measured = CONFIDENCE * np.sqrt(self.tiles.weights @ rotated) + values
        known = float(np.sum(ritz.values)) + np.sqrt(
            max(self.squares - float(np.sum(ritz.values**2)), 0.0)
        )
        total = known if not self.judge.multiplies else min(self.trace, known)
        self.judge = replace(self.judge, total=total)
        return replace(ritz, rounding=measured)

    def _prepared_next(self, ritz: Ritz) -> bool:
        """Decide whether to go on, and with what block."""
        last, before = self.verdicts[-1], self.verdicts[-2] if len(self.verdicts) > 1 else None
        room, left = self.n - 1 - self.space.size, self.request.steps - self.steps
        if room <= 0:
            self.stopped = "the searched space is everything"
        elif len(last.certified) < self.k and left:
            pass
        elif last.certified.all():
            self.stopped = "certified"
        elif not left:
            self.stopped = f"max_passes={self.request.steps}"
        elif last.stuck.all():
            self.stopped = f"{self.dtype} arithmetic resolves no more"
        elif self.steps >= PATIENCE and (needed := last.passes_needed(before)) > left:
            self.stopped = f"the next one would need about {needed} more steps"
        if self.stopped:
            return False
        width = min(self.width, room)
        block = self.space.next_block(ritz, width, self.rng).astype(np.float64)
        if self.space.size + width > self.space.capacity:
            keep = max(1, min(self.k + BESIDE, self.space.capacity - width))
            self.errors = ritz.rotation[:, :keep].T @ self.errors
            self.space.restart(ritz, keep)
        block -= block.mean(axis=0)
        if (constant := np.linalg.norm(block, axis=0) < 0.5).any():  # directions of rounding
            fresh = self.rng.standard_normal((self.n, np.count_nonzero(constant)))
            block[:, constant] = fresh - fresh.mean(axis=0)
            block = self.space.orthonormal(block).astype(np.float64)
            block -= block.mean(axis=0)
        self.block = block.astype(self.dtype)
        return True

    def found(self) -> KernelFound:
        last = self.verdicts[-1]
        ritz, k = last.ritz, len(last.certified)
        with all_threads():
            vectors = self.space.multiplied(ritz, k, last.multiplied)
        rank = numerical_rank(ritz.values, self.n, last.floor)
        values = np.where(np.arange(k) < rank, ritz.values[:k], 0.0)
        certificate = last.certificate
        doubt = last.uncertain(self.stopped) or self._lost(values, certificate.variance_bound)
        return KernelFound(
            values,
            vectors * signs(vectors.T @ probe(0, self.n)),
            self.means,
            self.tiles.shift,
            self.tiles.kernel,
            certificate.angle_bound,
            certificate.variance_bound,
            ritz.lowest,
            doubt,
        )

    def _lost(self, values: Array, bound: Array) -> str:
        """What rounding hides: components of a semi-definite K that are 0 within a bound that is
        not small; "" without."""
        lost = (values == 0.0) & (bound > self.request.tol * float(values.max(initial=0.0)))
        if not (self.tiles.kernel.definite and lost.any() and self.trace):  # 0: rows are equal
            return ""
        repair = "convert with X.astype('float64')"
        if self.dtype != np.float32:
            repair = "take off X what all rows share, or rescale it"
        return (
            f"{self.dtype} rounding of the {self.tiles.kernel.name} kernel, up to "
            f"{float(bound[lost].max()):.1e}, hides {np.count_nonzero(lost)} of {len(values)} "
            f"components. Rows are long beside their distances, or equal: {repair}"
        )
