"""PCA of large complex matrices by block Krylov iteration, and the choice among all ways."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np

from streampca.accumulators import (
    Accumulator,
    LeadingDirections,
    Moments,
    PairedStep,
    RowMissing,
    SubspaceStep,
)
from streampca.errors import InvalidInputError
from streampca.kernels import Array, ColumnStats
from streampca.matrix import ChunkedMatrix
from streampca.matrix.complex import PartsMatrix, complex_dtype, joined, of_pairs, packed
from streampca.models.contract.request import Request
from streampca.models.decompose.assemble import Fitted
from streampca.models.decompose.hermitian import (
    JoinedSink,
    as_complex,
    hermitian_gram_candidates,
    hermitian_scatter_candidates,
    hermitian_tsqr_candidates,
    of_columns,
)
from streampca.models.decompose.krylov import Iteration, krylov
from streampca.models.decompose.krylov_plan import BASES, RANDOM, STEPS, KrylovShape, look_flops
from streampca.models.decompose.routes import most_passes, ordered
from streampca.models.results.projection import FeatureLoadings
from streampca.passes import Candidate, Pass, PassSpec, Rates, Steps, pass_spec
from streampca.solvers import Ritz, known_count

WAYS = {
    "scatter": hermitian_scatter_candidates,
    "tsqr": hermitian_tsqr_candidates,
    "gram": hermitian_gram_candidates,
}


def hermitian_candidates(matrix: ChunkedMatrix, request: Request) -> list[Candidate[Fitted]]:
    """The ways to a requested complex PCA, the preferred first, with the weights of the request.

    matrix : complex or real (n, p), not yet read as its parts. As of a real PCA: exact ones that
    are affordable come before the iteration, which may go over to one.
    Raises InvalidInputError for an unsuitable solver.
    """
    side, solver = request.side, request.solver
    names = ("scatter", "gram") if solver == "auto" else tuple(WAYS.keys() & {solver})
    if request.missing == "mean" and side.basis is not None:
        if solver not in ("auto", "gram"):
            raise InvalidInputError(
                f"missing='mean' with remove= and solver={solver!r}: a hole holds what the design "
                "says there, which streamed samples cannot know in one pass. Use solver='gram', "
                "which streams features"
            )
        names = ("gram",)
    if solver == "randomized" and not request.count:
        raise InvalidInputError(
            "solver='randomized' needs a number of components from 1, not n_components="
            f"{request.n_components!r}: the whole spectrum is not computed"
        )
    weights = None if side.weights is None else np.repeat(side.weights, 2)
    timed = partial(Rates.of(request.rates).timed, PartsMatrix(matrix))
    exact = [one for name in names for one in WAYS[name](matrix, request)]
    found = timed([one.weighted(side.sample_weight, weights) for one in exact])
    if solver not in ("auto", "randomized") or not request.count or len(names) == 1:
        return found
    iterations = list(hermitian_krylov_candidates(matrix, request))
    iterative = timed([one.weighted(side.sample_weight, weights) for one in iterations])
    most = most_passes(matrix) if request.unbounded else 0
    return ordered(found, iterative, request.iterate, request.may_go_over, most)


def hermitian_krylov_candidates(
    matrix: ChunkedMatrix, request: Request
) -> Iterator[Candidate[Fitted]]:
    """A look, and steps of an iteration, over either axis.  matrix : complex (n, p)."""
    k = known_count(request.n_components, *matrix.shape)
    assert k
    for axis in (1, 0) if request.side.basis is None else (1,):
        for blocks in BASES:
            over = int(request.n_oversamples)
            shape = KrylovShape.of(matrix, k, axis, blocks, False, over)
            yield _candidate(matrix, request, shape, k)


def _candidate(
    matrix: ChunkedMatrix, request: Request, shape: KrylovShape, k: int
) -> Candidate[Fitted]:
    (n, p), axis, parts = matrix.shape, shape.streamed, PartsMatrix(matrix)
    columns, basis = of_columns(request), request.side.basis
    read = parts if basis is None else parts.without(basis)
    itemsize = complex_dtype(matrix.dtype).itemsize
    loads = bool(axis and request.components)
    steps = max(1, int(request.max_passes) - 1 - loads)
    step: Accumulator = (PairedStep if axis else SubspaceStep)(
        streamed=axis, width=2 * shape.width, probe=axis == 1
    )
    start = LeadingDirections(
        streamed=axis,
        standardize=columns.standardize,
        width=max(1, shape.width - RANDOM),
        missing=request.missing,
    )
    looking: dict[str, Accumulator] = {"start": start, "columns": Moments()}
    if request.missing == "mean" and axis:
        looking["rows"] = RowMissing()
    held = {
        "searched space": 2 * shape.capacity * shape.m * itemsize,
        "column statistics": 36 * p * 8,
    }
    wide = replace(shape, m=parts.shape[1 - axis])
    cells, skinny = 2.0 * n * p, {"work": "skinny", "thin": True}
    look = pass_spec("look", parts, axis, looking, flops=look_flops(parts, wide), **skinny)
    stepping = pass_spec(
        "step",
        parts,
        axis,
        {"step": step},
        flops=8.0 * cells * shape.width,
        kept_nbytes=sum(held.values()) + 4 * shape.m * shape.width * itemsize,
        **skinny,
    )
    passes = [look, replace(stepping, times=steps, likely=STEPS)]
    if loads:
        passes.append(_loadings_pass((n, p), k))
    reads = tuple(replace(one, matrix=read) for one in passes)
    solve = held | {
        "next vectors": 80 * shape.m * shape.width,
        "components and scores": 16 * k * (shape.m + 2 * p),
    }
    reason = (
        f"{('samples', 'features')[axis]} streamed, 1 look and at most {steps} steps of "
        f"{shape.width} complex vectors, a basis of {shape.capacity}; stops when every component "
        f"is certified to tol={request.tol:g}"
    )
    solver = partial(
        krylov, matrix=parts, request=request, shape=shape, passes=reads, kind=HermitianIteration
    )
    flops = 48.0 * STEPS * shape.m * shape.width**2
    return Candidate("krylov", reason, reads, solve, flops, shape.sizes(), solve=solver)


def _loadings_pass(shape: tuple[int, int], k: int) -> PassSpec:
    """The pass for the components of a fit that streams features, by its scores."""
    n, p = shape
    return PassSpec(
        "loadings",
        1,
        0,
        0,
        scratch=lambda length: 16 * k * (n + 3 * length),
        kept_nbytes=64 * n * k + 16 * k * p + 36 * p * 8,
        flops=8.0 * n * p * k,
        work="skinny",
    )


class HermitianIteration(Iteration):
    """The iteration over the parts of complex features: its vectors, over samples or features, are
    complex, and a step multiplies two real ones for each.

    Of streamed samples the matrix is Z^T conj(Z), whose eigenvectors are components; of streamed
    features ZZ^H.
    """

    def __init__(self, *known: Any) -> None:
        super().__init__(*known)
        self.dtype = complex_dtype(self.dtype)

    def _of_features(self, stats: ColumnStats) -> ColumnStats:
        return of_pairs(stats)

    def _as_vectors(self, directions: Array) -> Array:
        if self.shape.streamed:
            return np.asarray(directions + 0j)
        return np.asarray(directions[::2] + 1j * directions[1::2])

    def _column_weights(self, weights: Array) -> Array:
        return np.repeat(weights, 2)

    def _halve(self) -> None:
        if self.missing_by_sample is not None:
            self.missing_by_sample = self.missing_by_sample // 2
        if self.removed is not None:
            self.removed = as_complex(self.removed)

    def _operands(self, center: Array | None, scale: Array | None) -> dict[str, Any]:
        found = {"q": self._pairs(self.block) if self.shape.streamed else packed(self.block)}
        if center is not None:
            found["center"] = np.ascontiguousarray(center, np.complex128).view(np.float64)
        return found if scale is None else found | {"scale": np.repeat(scale, 2)}

    @staticmethod
    def _pairs(u: Array) -> Array:
        """(2n, 2k) as :class:`PairedStep` expects them."""
        return np.block([[u.real, u.imag], [u.imag, -u.real]])

    def _as_probe(self, z_probe: Array) -> Array:
        return np.asarray(_stacked(z_probe))

    def _joined(self, product: Array) -> Array:
        if not self.shape.streamed:
            return joined(product)
        re, im = np.split(_stacked(product), 2, axis=1)
        return np.asarray(re + 1j * im)

    def _loadings(self, ritz: Ritz, u: Array, s: Array, turn: Array) -> Steps[Array]:
        components = np.empty((len(s), self.matrix.shape[1] // 2), np.complex128)
        (loadings,) = self.last
        standardize = of_columns(self.request).standardize
        yield Pass(
            loadings,
            matrix=self.matrix,
            operands={"u": np.hstack([u.real, u.imag]), "s": np.append(s, s)},
            sinks={"loadings": JoinedSink(components.T, 0)},
            maps={"loadings": FeatureLoadings(standardize)},
        )
        return components


def _stacked(halves: Array) -> Array:
    """Complex entries, from their real parts and the imaginary ones below."""
    re, im = np.split(halves, 2)
    return np.asarray(re + 1j * im)
