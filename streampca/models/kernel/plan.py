"""Kernel PCA by an iteration: what its ways have in common of passes, sizes and memory."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from itertools import chain, product

import numpy as np

from streampca.kernels import Array
from streampca.matrix import ChunkedMatrix, work_dtype
from streampca.models.decompose.krylov_plan import PIECES_NBYTES
from streampca.models.decompose.panels import panel_divisions
from streampca.models.kernel.functions import Kernel, KernelRequest
from streampca.passes import PassSpec

BESIDE = 6  # vectors of a step beyond those that are asked
VECTOR = 8  # widths are multiples of it
LIKELY = 5  # steps, for predicted times
BASES = (12, 6, 3)  # capacities of the searched space in blocks
AUDITED = 48  # rows whose products are made again in float64
EXP_FLOPS, CALL_FLOPS = 40.0, 1e6  # of one value, or one call, at the speed of products
COPIED_NBYTES = 8 << 20  # of rows that are copied in float64
COMPILED_NBYTES = 120 << 20  # Numba and its kernels


@dataclass(frozen=True)
class Shape:
    """width : vectors of a step.  basis : those of the searched space, at most."""

    width: int
    basis: int


@dataclass(frozen=True)
class PanelPasses:
    """The passes over panels of rows.

    sampled : see :func:`sample_passes`.  loads : of each panel, the pass that holds its rows.
    uses : of each panel, the pass that needs them held.
    """

    sampled: tuple[PassSpec, ...]
    loads: tuple[PassSpec, ...]
    uses: tuple[PassSpec, ...]

    def all(self) -> tuple[PassSpec, ...]:
        """In the order of the plan."""
        return (*self.sampled, *chain.from_iterable(zip(self.loads, self.uses, strict=True)))


def divisions(matrix: ChunkedMatrix) -> Iterable[tuple[Array, int]]:
    """(bounds of panels of rows, capacity of the searched space in blocks) of every candidate."""
    return product(panel_divisions(matrix), BASES)


def panel_load(
    number: int, rows: tuple[int, int], p: int, often: int, kept_nbytes: int, held: dict[str, int]
) -> PassSpec:
    """The pass that holds the rows of a panel.

    often : it is made at most.  kept_nbytes, held : what lives meanwhile.
    """
    return PassSpec(
        f"panel {number}",
        0,
        0,
        0,
        lambda length: 2 * length * p * 8,
        rows=rows,
        kept_nbytes=kept_nbytes,
        kept=held,
        times=often,
        likely=min(often, LIKELY + 2),
    )


def width_of(n: int, count: int) -> int:
    """Vectors of a step."""
    return min(n - 1, -(-(count + BESIDE) // VECTOR) * VECTOR)


def value_flops(kernel: Kernel) -> float:
    """What a value costs beside its inner product."""
    return EXP_FLOPS if kernel.function is None else CALL_FLOPS


def audit_nbytes(matrix: ChunkedMatrix, kernel: Kernel) -> dict[str, int]:
    """Terms of the tiles of K, and of some of its rows in float64."""
    compiled = kernel.name in ("rbf", "laplacian") and work_dtype(matrix.dtype) == np.float32
    checked = 8 * AUDITED * sum(matrix.shape) + 4 * COPIED_NBYTES
    return {"rows checked in float64": checked, "compiled kernels": COMPILED_NBYTES * compiled}


def iteration_nbytes(
    matrix: ChunkedMatrix, request: KernelRequest, blocks: int
) -> tuple[dict[str, int], dict[str, int], Shape]:
    """(terms that live during the passes, those of the solver, its shape), for a basis of so many
    blocks."""
    (n, p), count = matrix.shape, request.count or 1
    width, size = width_of(n, count), work_dtype(matrix.dtype).itemsize
    shape = Shape(width, min(n, blocks * width))
    held = {"searched space": 2 * shape.basis * n * size}
    solve = held | {
        "next vectors": 6 * n * width * 8,
        "pieces of the space": PIECES_NBYTES,
        "eigenvectors": 3 * n * count * 8,
        "training rows": p * n * 8 if matrix.given_nbytes else 0,
    }
    return held, solve, shape
