"""The leading eigenpairs of a kernel matrix that is known by its products: block Krylov steps."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from streampca.accumulators.kernel_step import TILE
from streampca.errors import NonFiniteError
from streampca.kernels import CONFIDENCE, Array, probe, sum_error
from streampca.matrix import ChunkedMatrix, work_dtype
from streampca.models.decompose.krylov_plan import PIECES_NBYTES, Judge, Verdict
from streampca.models.kernel.functions import Kernel, remedy_of_rounding
from streampca.models.kernel.request import KernelEigenpairs, KernelRequest
from streampca.passes import Steps, all_threads
from streampca.solvers import KrylovSpace, Ritz, numerical_rank, orthonormalised, signs

BESIDE = 6  # vectors of a step in addition to the components that are wanted
VECTOR = 8  # widths are multiples of it
LIKELY = 5  # steps, for predicted times
PATIENCE = 4  # steps before it is judged how many more are needed: the start is random
BASES = (12, 6, 3)  # capacities of the searched space in blocks


@dataclass(frozen=True)
class Shape:
    """width : vectors of a step.  basis : those of the searched space, at most."""

    width: int
    basis: int


def iteration_nbytes(
    matrix: ChunkedMatrix, request: KernelRequest, blocks: int
) -> tuple[dict[str, int], dict[str, int], Shape]:
    """(terms that live during the passes, those of the solver, its shape), for a basis of so many
    blocks."""
    (n, p), count = matrix.shape, request.count or 1
    width = min(n - 1, -(-(count + BESIDE) // VECTOR) * VECTOR)
    shape = Shape(width, min(n, blocks * width))
    held = {"searched space": 2 * shape.basis * n * work_dtype(matrix.dtype).itemsize}
    solve = held | {
        "next vectors": 6 * n * width * 8,
        "pieces of the space": PIECES_NBYTES,
        "eigenvectors": 3 * n * count * 8,
        "training rows": p * n * 8 if matrix.given_nbytes else 0,
    }
    return held, solve, shape


class KernelProducts:
    """K V by passes, and the errors of it in some rows of K that are audited.

    shift : (p,) taken off the rows.  diagonal : (n,) of K.  squares : the sum of those of K, known
    with the first product.  rows : that are audited; weights : of the squares of their errors.
    """

    def __init__(self, kernel: Kernel, dtype: np.dtype[Any], n: int, p: int) -> None:
        self.kernel, self.dtype = kernel, dtype
        self.shift, self.diagonal, self.squares = np.zeros(p), np.zeros(n), 0.0
        self.rows, self.weights = np.zeros(0, np.int64), np.zeros(0)

    def product(self, number: int, vectors: Array) -> Steps[tuple[Array, Array]]:
        """(K V (n, b) float64, its errors in the audited rows (b, rows)).  number : from 1."""
        raise NotImplementedError


def refuse_overflow(largest: float, dtype: np.dtype[Any]) -> None:
    """Raise NonFiniteError where kernel values may leave the range of the dtype."""
    if not largest <= float(np.finfo(dtype).max):
        raise NonFiniteError(
            f"kernel values overflowed {dtype}; convert with X.astype('float64') or rescale the "
            "columns"
        )


def iterated(
    request: KernelRequest, shape: Shape, products: KernelProducts
) -> Steps[KernelEigenpairs]:
    """The leading eigenpairs of a centred K that is known by its products.

    Steps go on until every component is certified, or the next ones would not help.
    Source: Musco and Musco 2015, "Randomized block Krylov methods for stronger and faster
    approximate singular value decomposition", algorithm 2.
    """
    work = _Iteration(request, shape, products)
    while (yield from work.advance()):
        pass
    return work.eigenpairs()


class _Iteration:
    """The searched space, and the verdicts on it.

    Errors of the products are measured: by rows of K in float64, for each vector.
    """

    def __init__(self, request: KernelRequest, shape: Shape, products: KernelProducts) -> None:
        assert request.count is not None
        self.n = n = len(products.diagonal)
        self.products, self.request, self.k = products, request, request.count
        self.width, self.dtype = shape.width, products.dtype
        self.rng = np.random.default_rng(request.seed)
        self.space = KrylovSpace(n, shape.basis, self.dtype)
        self.errors = np.zeros((0, len(products.rows)))  # of the products, in the audited rows
        self.verdicts: list[Verdict] = []
        self.steps, self.stopped = 0, ""
        with all_threads():
            start = self.rng.standard_normal((n, self.width))
            self.block = orthonormalised(start - start.mean(axis=0)).astype(self.dtype)

    def advance(self) -> Steps[bool]:
        """One step. False if it was the last."""
        self.steps += 1
        vectors = self.block
        if self.steps == 1:  # the means of K are a product with ones
            vectors = np.hstack([vectors, np.ones((self.n, 1), self.dtype)])
        product, errors = yield from self.products.product(self.steps, vectors)
        refuse_overflow(float(np.abs(product).max()), self.dtype)
        if self.steps == 1:
            self.means = product[:, -1] / self.n
            self.judge = self._judge()
            product, errors = product[:, :-1], errors[:-1]
        product -= np.multiply.outer(self.means, self.block.sum(axis=0, dtype=np.float64))
        product -= product.mean(axis=0)
        rows = self.products.rows
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
        n, means, products = self.n, self.means, self.products
        self.trace = float(products.diagonal.sum() - means.sum())
        centred = products.squares - 2.0 * n * float(means @ means) + float(means.sum()) ** 2
        self.squares = centred + 2.0 * sum_error(self.dtype, TILE) * products.squares  # at most
        definite = products.kernel.definite
        return Judge(self.k, self.request.tol, self.trace, 1.0, self.dtype, (n, n), TILE, definite)

    def _ritz(self) -> Ritz:
        ritz = self.space.ritz()
        rotated = (self.errors.T @ ritz.rotation) ** 2
        # float64 rows measure it, whose values are rounded too: together at most |K|_F of that
        size = float(np.sqrt(self.products.squares))
        size = size if np.isfinite(size) else float(np.abs(self.products.diagonal).sum())
        values = float(np.finfo(np.float64).eps) * size
        measured = CONFIDENCE * np.sqrt(self.products.weights @ rotated) + values
        known = float(np.sum(ritz.values)) + np.sqrt(
            max(self.squares - float(np.sum(ritz.values**2)), 0.0)
        )
        total = known if not self.judge.multiplies else min(self.trace, known)
        self.judge = replace(self.judge, total=total)
        return replace(ritz, rounding=measured)

    def _prepared_next(self, ritz: Ritz) -> bool:
        """Decide whether to go on, and with what block."""
        room, left = self.n - 1 - self.space.size, self.request.steps - self.steps
        patient = self.steps < PATIENCE
        self.stopped = self.judge.stopped(
            self.verdicts, room, left, np.inf if patient else left, self.request.steps, "steps"
        )
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

    def eigenpairs(self) -> KernelEigenpairs:
        last = self.verdicts[-1]
        ritz, k = last.ritz, len(last.certified)
        with all_threads():
            vectors = self.space.multiplied(ritz, k, last.multiplied)
        rank = numerical_rank(ritz.values, self.n, last.floor)
        values = np.where(np.arange(k) < rank, ritz.values[:k], 0.0)
        certificate = last.certificate
        doubt = last.uncertain(self.stopped) or self._lost(values, certificate.variance_bound)
        return KernelEigenpairs(
            values,
            vectors * signs(vectors.T @ probe(0, self.n)),
            self.means,
            self.products.shift,
            self.products.kernel,
            certificate.angle_bound,
            certificate.variance_bound,
            ritz.lowest,
            doubt,
        )

    def _lost(self, values: Array, bound: Array) -> str:
        """What rounding hides: components of a semi-definite K that are 0 within a bound that is
        not small; "" without."""
        lost = (values == 0.0) & (bound > self.request.tol * float(values.max(initial=0.0)))
        if not (self.products.kernel.definite and lost.any() and self.trace):  # 0: rows are equal
            return ""
        return (
            f"{self.dtype} rounding of the {self.products.kernel.name} kernel, up to "
            f"{float(bound[lost].max()):.1e}, hides {np.count_nonzero(lost)} of {len(values)} "
            f"components. {remedy_of_rounding(self.dtype)}"
        )
