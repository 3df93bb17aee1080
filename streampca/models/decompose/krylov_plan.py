"""When a Krylov iteration stops, and its plan: axis, vectors per step, size of the basis."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from streampca.accumulators import (
    Accumulator,
    CrossMoments,
    LeadingDirections,
    Moments,
    RowMissing,
    SubspaceStep,
)
from streampca.kernels import CONFIDENCE, PROBES, Array
from streampca.matrix import ChunkedMatrix, work_dtype
from streampca.models.contract.request import Request
from streampca.models.decompose.assemble import Fitted
from streampca.passes import Candidate, PassSpec, in_memory, pass_spec
from streampca.solvers import (
    Certificate,
    Ritz,
    certify_ritz,
    coherent_rounding,
    entry_rounding,
    hidden_rounding,
    known_count,
    product_floor,
    solver_floor,
    turned_by_rounding,
)

ROUNDED = 1.25  # a bound is rounding where it is at most so many times that of rounding alone
SMALL = 0.1  # residual over value: a product is taken instead of a vector that is good already


@dataclass(frozen=True)
class Judge:
    """The stopping rule, which is the same for all steps.

    k : components asked.  total : trace of the scatter.  divisor : n - ddof.
    dtype, shape, terms : of the products, as for :func:`product_floor`.
    multiplies : whether the vectors that are returned may be multiplied once more.
    hidden : as for :func:`hidden_rounding`.
    """

    k: int
    tol: float
    total: float
    divisor: float
    dtype: np.dtype[Any]
    shape: tuple[int, int]
    terms: int
    multiplies: bool = False
    hidden: float = 0.0

    def verdict(self, ritz: Ritz, passes: int, mature: int | None = None) -> Verdict:
        """The verdict on the Ritz pairs after so many passes.  mature : pairs that a restart kept,
        where those after them say nothing."""
        k = min(self.k, len(ritz.values))
        floor = product_floor(self.dtype, ritz.values, self.total, self.shape, self.terms)
        floor += float(hidden_rounding(self.hidden, ritz.values[:1].max(initial=0.0)))
        solver, measured = solver_floor(ritz.values, max(self.shape)), ritz.rounding is not None
        level = np.full(len(ritz.values), floor)
        if ritz.rounding is not None:
            level = solver + ritz.rounding / CONFIDENCE
        multiplied = ritz.residual[:k] < SMALL * ritz.values[:k] * self.multiplies
        multiplied &= ritz.residual[:k] > level[:k]  # else a product gains nothing
        certificate = certify_ritz(
            ritz.values,
            ritz.residual,
            k,
            self.total,
            solver if measured else floor,
            self.divisor,
            passes,
            entry_rounding(self.dtype) if measured else coherent_rounding(self.dtype),
            multiplied,
            ritz.rounding,
            mature,
            floor,
        )
        nothing = ritz.values[:k] <= 10.0 * level[:k]
        certified = (certificate.angle_bound <= self.tol) | nothing
        resolved = ritz.residual <= np.maximum(level, floor)
        following = resolved[k] if k < len(resolved) else True  # what separates the last of them
        rounding = np.zeros(len(level)) if ritz.rounding is None else ritz.rounding
        turned = turned_by_rounding(k, solver if measured else floor, rounding)
        bounded = certificate.angle_bound < np.pi / 2
        rounded = bounded & (
            np.sin(certificate.angle_bound) * certificate.gap * self.divisor <= ROUNDED * turned
        )
        stuck = certified | rounded | (resolved[:k] & following)
        return Verdict(ritz, certificate, level, certified, stuck, multiplied, self.tol)

    def stopped(
        self,
        verdicts: Sequence[Verdict],
        room: int,
        left: int,
        worthwhile: float,
        most: int,
        unit: str = "passes",
        back: int = 1,
    ) -> str:
        """Why an iteration ends after these verdicts, in words; "" where it goes on.

        room : dimensions that are not searched yet.  left : steps of at most ``most``.
        worthwhile : passes that are worth their time.  unit : of these.
        back : steps over which convergence is extrapolated, at least.
        """
        last = verdicts[-1]
        then = last.certificate.passes - back
        before = next((one for one in verdicts[::-1] if one.certificate.passes <= then), None)
        if room <= 0:
            return "the searched space is everything"
        if len(last.certified) < self.k and left > 0:  # it began with an earlier, smaller fit
            return ""
        if last.certified.all():
            return "certified"
        if left <= 0:
            return f"max_passes={most}"
        if last.stuck.all():
            return f"{self.dtype} arithmetic resolves no more"
        if (needed := last.passes_needed(before)) > worthwhile:
            return f"the next one would need about {needed} more {unit}"
        return ""


@dataclass(frozen=True)
class Verdict:
    """What one step has shown.

    floor : (d,) rounding of a product with each Ritz vector, in units of the spectrum.
    certified : (k,) whether the angle of each component is bounded by tol, or its variance is 0.
    stuck : (k,) whether more steps cannot improve a component.
    multiplied : (k,) whether its vector is S times the Ritz vector, which is nearer.
    """

    ritz: Ritz
    certificate: Certificate
    floor: Array
    certified: Array
    stuck: Array
    multiplied: Array
    tol: float

    def passes_needed(self, before: Verdict | None) -> int:
        """Passes until the next component is certified, if residuals fall as since ``before``."""
        if before is None or len(before.ritz.residual) < len(self.stuck) + 1:
            return 0
        k, todo = len(self.stuck), ~self.stuck
        values, residual = self.ritz.values, self._limiting(self.ritz)
        gain = np.log(self._limiting(before.ritz) / np.maximum(residual, 1e-300))[todo]
        gain /= self.certificate.passes - before.certificate.passes
        gap = np.maximum(values[:k] - np.append(values, 0.0)[1 : k + 1], self.floor[:k])
        excess = np.minimum(residual / gap, self.certificate.angle_bound) / self.tol
        excess = np.log(np.maximum(excess, 1.0))
        needed = excess[todo] / np.maximum(gain, 1e-3)
        return math.ceil(float(needed.min(initial=np.inf)) / 2)  # Krylov steps speed up

    def _limiting(self, ritz: Ritz) -> Array:
        """(k,) residual that limits each component: its own, or, once that is rounding, that of the
        vector after the last one, from which it is to be separated."""
        k = len(self.stuck)
        own = ritz.residual[:k]
        if k >= len(ritz.residual):
            return own
        return np.where(self.ritz.residual[:k] <= self.floor[:k], ritz.residual[k], own)

    def uncertain(self, stopped: str, exact: str = "") -> str:
        """Which components are not as certain as the arithmetic allows, and how far they may be
        off; "" where all are. (What it cannot resolve is in the certificate, and no failure.)

        exact : what would be certain, a sentence.
        """
        bad = np.flatnonzero(~self.stuck)
        if not bad.size:
            return ""
        bound = self.certificate.angle_bound
        words = [
            f"{i + 1} (angle <= {bound[i]:.1e})"
            if bound[i] < 1.5
            else f"{i + 1} (its direction is not determined)"
            for i in bad[:6]
        ]
        more = "" if bad.size <= 6 else f" and {bad.size - 6} more"
        return (
            f"{bad.size} of {len(bound)} components are not certified to "
            f"tol={self.tol:g} after {self.certificate.passes} passes ({stopped}): "
            f"component {', '.join(words)}{more}. Raise max_passes or tol; where neighbouring "
            f"variances are equal, only their common space is determined.{exact}"
        )


# The plan of an iterative PCA: which axis is streamed, how many vectors, how large a basis.

WIDTH = 32  # vectors per step, at least: reading and decoding cost more than products of fewer
# Of what lies in memory nothing is read, and more steps of fewer vectors find more.
NARROW = {True: 8, False: 16}  # sparse: whole registers; dense: products of fewer cost as much
VECTOR = 16  # widths are multiples of it: columns that a register holds
OVERSAMPLES = 10  # the default; who asks for more has them in memory too
RANDOM = 4  # columns of the start block that are random, against directions missed so far
STEPS = 3  # usually enough; for predicted times
ROOM = 4  # blocks of a basis that does well without
INDEX_NBYTES = 4
PIECES_NBYTES = 64 << 20  # of the searched space, multiplied in float64 at a time
BASES = (8, 6, 4, 3, 2)  # capacities of the basis in blocks, largest first


@dataclass(frozen=True)
class KrylovShape:
    """Sizes of an iteration.

    streamed : axis.  m : length of its vectors, the other axis.  width : vectors per step.
    capacity : most vectors of the basis.  keep : of them, what a restart keeps.
    images : whether products on the streamed axis are kept, so that loadings cost no pass.
    narrow : of what lies in memory, blocks are those of a Krylov space, and their residuals are
        not formed in every step.
    """

    streamed: int
    m: int
    width: int
    capacity: int
    keep: int
    images: bool
    narrow: bool = False

    @classmethod
    def of(
        cls,
        matrix: ChunkedMatrix,
        k: int,
        axis: int,
        blocks: int,
        images: bool,
        over: int = OVERSAMPLES,
        unbounded: bool = False,
    ) -> KrylovShape:
        """For k components, at least ``over`` vectors beside them, a basis of so many blocks.

        unbounded : as many steps may be taken as are worth their time.
        """
        m = matrix.shape[1 - axis]
        wide = min(m, max(WIDTH, _multiple(k + max(over, k // 2), VECTOR)))
        narrow = unbounded and in_memory(matrix) and over <= OVERSAMPLES
        least = NARROW[matrix.sparse]
        width = min(wide, _multiple(max(least, k // 4), least)) if narrow else wide
        capacity = min(m, blocks * wide // (1 + narrow))
        keep = max(1, min(max(wide, capacity // 2), capacity - width))
        return cls(axis, m, width, capacity, keep, images, narrow)

    def sizes(self) -> dict[str, int]:
        """The sizes, as the plan prints them."""
        return {
            "width": self.width,
            "basis": self.capacity,
            "keep": self.keep,
            "images": int(self.images),
        }

    def step(self, **more: Any) -> SubspaceStep:
        """The empty accumulator of the first step; later ones may have fewer vectors."""
        return SubspaceStep(
            streamed=self.streamed,
            width=self.width,
            images=self.images,
            probe=self.streamed == 1,
            **more,
        )


def iterations(
    matrix: ChunkedMatrix, request: Request
) -> Iterator[tuple[KrylovShape, Candidate[Fitted]]]:
    """Block Krylov along either axis, with bases of several sizes; no solver is bound yet.

    matrix : expanded, where a design is removed.
    """
    k = known_count(request.n_components, *matrix.shape)
    assert k
    axes: tuple[int, ...] = (1, 0)
    if request.unbounded and in_memory(matrix) and not matrix.sparse:
        axes = (0, 1)  # blocks of rows are views
    if request.side.basis is not None:
        axes = (1,) if request.missing == "mean" else axes
    for axis in axes:
        for images in (True, False) if axis and request.components else (False,):
            for blocks in BASES:
                over = int(request.n_oversamples)
                shape = KrylovShape.of(matrix, k, axis, blocks, images, over, request.unbounded)
                yield shape, _candidate(matrix, request, shape, k)


def held_dtype(matrix: ChunkedMatrix, shape: KrylovShape) -> np.dtype[Any]:
    """The dtype in which the searched space is held."""
    return np.dtype(np.float64) if shape.narrow else space_dtype(matrix)


def _multiple(count: int, of: int) -> int:
    return -(-count // of) * of


def space_dtype(matrix: ChunkedMatrix) -> np.dtype[Any]:
    """The dtype of the blocks, which is that of the products."""
    return np.dtype(np.float64) if matrix.sparse else work_dtype(matrix.dtype)


def stored_entries(matrix: ChunkedMatrix, axis: int) -> int:
    """About how many cells a pass multiplies: the stored ones if the matrix is sparse."""
    if not matrix.sparse:
        return matrix.shape[0] * matrix.shape[1]
    nbytes = int(matrix.spans_nbytes(axis, np.array([0, matrix.shape[axis]])).sum())
    return nbytes // (matrix.dtype.itemsize + INDEX_NBYTES)


def look_flops(matrix: ChunkedMatrix, shape: KrylovShape) -> float:
    """Flops of the first pass: products, and small eigenproblems, which are slow (x 5)."""
    taken = LeadingDirections.rows_at_once(shape.width, shape.m)
    stack = shape.width + taken
    once = 2.0 * shape.m * stack * (taken + 2 * shape.width) + 5 * 9.0 * stack**3
    return once * matrix.shape[shape.streamed] / taken


def _candidate(
    matrix: ChunkedMatrix, request: Request, shape: KrylovShape, k: int
) -> Candidate[Fitted]:
    p = matrix.shape[1]
    axis, itemsize = shape.streamed, space_dtype(matrix).itemsize
    cells = float(stored_entries(matrix, axis))
    extra = axis == 1 and request.components and not shape.images
    steps = max(1, int(request.max_passes) - 1 - extra)
    held = {
        "searched space": 2 * shape.capacity * shape.m * held_dtype(matrix, shape).itemsize,
        "images of the space": shape.capacity * matrix.shape[axis] * itemsize * shape.images,
        "column statistics": 12 * p * 8,
        "probes of rounding": 0 if matrix.sparse else 2 * shape.m * PROBES * 8,
    }
    look = _look_spec(matrix, request, shape, cells)
    step = pass_spec(
        "step",
        matrix,
        axis,
        {"step": shape.step(measure=True)},
        flops=4.0 * cells * shape.width,
        stored=matrix.sparse,
        kept_nbytes=sum(held.values()) + 2 * shape.m * shape.width * itemsize,
        work="skinny",
        thin=True,
    )
    if matrix.sparse:  # sums of their entries are float64 from the beginning
        look, step = (replace(one, partial_nbytes=one.total_nbytes) for one in (look, step))
    # The same whatever max_passes is: fewer steps do not make an axis the better one. Restarts lose
    # directions.
    likely = STEPS + max(0, ROOM - shape.capacity // shape.width)
    passes: tuple[PassSpec, ...] = (look, replace(step, times=steps, likely=likely))
    if extra:
        passes += (_loadings_spec(matrix, k, cells),)
    if (basis := request.side.basis) is not None:
        read = matrix.without(basis, None if axis else np.broadcast_to(0.0, (1 + len(basis.T), p)))
        passes = tuple(replace(one, matrix=read) for one in passes)
        if axis == 0:  # the look finds what is to be removed
            passes = (replace(look, matrix=matrix), *passes[1:])
    solve = held | {
        "next vectors": 5 * shape.m * shape.width * 8,
        "pieces of the space": PIECES_NBYTES,
        "components and scores": k * (shape.m + 2 * p) * 8,  # no scores of streamed samples
    }
    side = ("samples", "features")[axis]
    reason = (
        f"{side} streamed, 1 look and at most {steps} steps of {shape.width} vectors, a basis of "
        f"{shape.capacity}; stops when every component is certified to tol={request.tol:g}"
    )
    flops = 6.0 * STEPS * shape.m * 2 * shape.width**2
    return Candidate("krylov", reason, passes, solve, flops, shape.sizes())


def _look_spec(
    matrix: ChunkedMatrix, request: Request, shape: KrylovShape, cells: float
) -> PassSpec:
    """The first pass; of a sparse matrix, a step of random vectors."""
    start: Accumulator
    if matrix.sparse:
        start = shape.step(standardize=request.standardize if shape.streamed else None)
    else:
        start = LeadingDirections(
            streamed=shape.streamed,
            standardize=request.standardize,
            width=max(1, shape.width - RANDOM),
            missing=request.missing,
        )
    looking: dict[str, Accumulator] = {"start": start, "columns": Moments()}
    if request.missing == "mean" and shape.streamed:
        looking["rows"] = RowMissing()
    basis = request.side.basis
    if basis is not None and shape.streamed == 0:
        looking["design"] = CrossMoments(y="design", width=basis.shape[1])
    return pass_spec(
        "look",
        matrix,
        shape.streamed,
        looking,
        flops=4.0 * cells * shape.width if matrix.sparse else look_flops(matrix, shape),
        stored=matrix.sparse,
        work="skinny",
        thin=True,
    )


def _loadings_spec(matrix: ChunkedMatrix, k: int, cells: float) -> PassSpec:
    """The last pass, where features are streamed and the images of the steps were not kept."""
    n, p = matrix.shape
    return PassSpec(
        "loadings",
        1,
        0,
        0,
        scratch=lambda length: k * (n + 2 * length) * 8,
        kept_nbytes=4 * n * k * 8 + k * p * 8 + 20 * p * 8,
        flops=2.0 * cells * k,
        work="skinny",
        stored=matrix.sparse,
    )
