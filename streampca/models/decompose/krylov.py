"""PCA by block Krylov iteration: every read of a block feeds two products, and one certificate."""

from __future__ import annotations

import math
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np

from streampca.accumulators import OPEN_BLOCKS, SubspaceStep
from streampca.accumulators.base import refuse_partly_missing
from streampca.errors import NonFiniteError
from streampca.kernels import Array, ColumnStats, probe_vectors, reciprocal
from streampca.matrix import ChunkedMatrix, Resolution, Scaling, found, work_dtype
from streampca.models.contract.request import Request
from streampca.models.decompose.assemble import (
    OVERFLOWED,
    FeatureSummary,
    Fitted,
    finish_components,
    hidden_squares,
)
from streampca.models.decompose.eigenproblem import RowsSink, count_missing, unweighted_rows
from streampca.models.decompose.krylov_plan import (
    RANDOM,
    Judge,
    KrylovShape,
    Verdict,
    held_dtype,
    iterations,
    space_dtype,
)
from streampca.models.results.projection import FeatureLoadings
from streampca.models.side_data.design import residual_stats
from streampca.passes import Candidate, Pass, PassSpec, Planned, Steps, single_threaded_blas
from streampca.solvers import (
    KrylovSpace,
    Ritz,
    Spectrum,
    known_count,
    numerical_rank,
    of_products,
    orthonormalised,
    signs,
    signs_of_components,
    start_block,
    undetermined_after,
)
from streampca.store import MemorySink

EVALUATED = 2  # of so many steps in memory one: it costs half as much as a step
BACK = 8  # steps in memory over which convergence is extrapolated: restarts interrupt it


def krylov_candidates(matrix: ChunkedMatrix, request: Request) -> list[Candidate[Fitted]]:
    """A look and steps of a block Krylov iteration, with bases of several sizes."""
    if request.side.basis is not None:
        matrix = matrix.expanded()
    made = []
    for shape, one in iterations(matrix, request):
        solver = partial(krylov, matrix=matrix, request=request, shape=shape, passes=one.passes)
        made.append(replace(one, solve=solver))
    return made


def krylov(
    planned: Planned[Any],
    *,
    matrix: ChunkedMatrix,
    request: Request,
    shape: KrylovShape,
    passes: tuple[PassSpec, ...],
    kind: type[Iteration] | None = None,
) -> Steps[Fitted]:
    """Look at the matrix once, then take steps until every component is certified.

    The look gives column statistics, and directions to begin with; every step gives the products
    of a block of vectors, and with them Ritz vectors and their residuals. Stops when the bound
    of every component's angle is at most ``tol``, at ``max_passes``, or when the components that
    are not certified are not getting there.
    kind : of iteration, where the matrix is complex.
    """
    earlier = planned.start
    work = (kind or Iteration)(planned, matrix, request, shape, passes)
    if earlier is not None and work.adopts(earlier.iteration):
        going = work.evaluate()
    else:
        yield from work.look()
        going = True
    while going:
        going = yield from work.advance()
    if earlier is not None:
        earlier.iteration = work
    return (yield from work.fitted())


class Iteration:
    """One fit: the searched space, the column statistics, and the results of its steps."""

    def __init__(
        self,
        planned: Planned[Any],
        matrix: ChunkedMatrix,
        request: Request,
        shape: KrylovShape,
        passes: tuple[PassSpec, ...],
    ) -> None:
        self.plan, self.candidate = planned.plan, planned.candidate
        self.matrix, self.request, self.shape = matrix, request, shape
        self.first, self.step, *self.last = passes
        self.blocks = planned.blocks(self.step)
        self.side = request.side
        self.weight = self.side.count(matrix.shape[0])
        k = known_count(request.n_components, *matrix.shape)
        assert k is not None  # the plan refuses others
        self.k = min(k, self.shape.m)
        self.rng = np.random.default_rng(request.random_state)
        self.dtype = space_dtype(matrix)
        self.steps = self.passes = 0
        self.block: Array  # the next operand
        self.stats: ColumnStats
        self.scaling: Scaling
        self.missing_by_sample: Array | None = None
        self.z_probe: Array | None = None
        self.removed: Array | None = None  # (1 + r, p) means, and coefficients of the design
        self.verdicts: list[Verdict] = []  # one per step
        self.stopped = ""
        self.patience = 0  # steps before those after a random block are judged
        self.krylov = shape.narrow  # every block so far followed from the product of the last

    # -- reading ----------------------------------------------------------------------------

    def look(self) -> Steps[None]:
        """The first pass: column statistics, and where to begin."""
        self.passes += 1
        sparse = self.matrix.sparse
        operands: dict[str, Any] = {}
        if sparse:
            operands["q"] = self.rng.standard_normal((self.shape.m, self.shape.width))
        if not self.shape.streamed and self.side.weights is not None:
            operands["feature_weights"] = self._column_weights(self.side.weights)
        more: dict[str, Any] = {"maps": {}, "sinks": {}, "side_inputs": {}}
        holes = MemorySink(self.matrix.shape[0], 1, np.int64)
        if self.request.missing == "mean" and not self.shape.streamed:
            more["maps"]["missing"], more["sinks"]["missing"] = count_missing, holes
        basis = self.side.basis
        if basis is not None and self.shape.streamed:
            self.matrix = self.matrix.without(basis)
            taken = MemorySink(self.matrix.shape[1], 1 + basis.shape[1])
            more["maps"]["removed"], more["sinks"]["removed"] = found, taken
        elif basis is not None:
            more["side_inputs"]["design"] = basis
        done = yield Pass(self.first, matrix=self.matrix, operands=operands, **more)
        self.stats = self._of_features(done["columns"].columns())
        if basis is not None and self.shape.streamed:
            self.removed = taken.values.T
        elif basis is not None:
            self._remove(basis, done["design"].deviations().T)
        if self.request.missing == "raise":
            refuse_partly_missing(self.stats.missing, self.matrix.shape[0])
        elif self.shape.streamed:
            self.missing_by_sample = done["rows"].counts()
        else:
            self.missing_by_sample = holes.values[:, 0]
        self._halve()
        eps = Resolution.of(self.matrix.dtype).eps
        self.scaling = self.request.standardize.resolve(self.stats, eps, self.side.weights)
        self._begin()
        width = min(self.shape.width, self.dimensions)
        with single_threaded_blas():
            directions = (
                self._product(done["start"], operands["q"])
                if sparse
                else self._as_vectors(done["start"].directions()[0])
            )
            known = width if sparse and self.shape.narrow else max(1, width - RANDOM)
            block = start_block(directions[:, :known], width, self.live_vectors, self.rng)
            # with the mean removed, as many vectors as dimensions may be dependent
            block = orthonormalised(self._centred(block), self.live_vectors)
        self.block = self._centred(block).astype(self.dtype)

    # Of a complex matrix, what is read are the parts of its features: these are other there.

    def _of_features(self, stats: ColumnStats) -> ColumnStats:
        """Statistics of features from those of columns."""
        return stats

    def _as_vectors(self, directions: Array) -> Array:
        """(m, count) vectors of the space from directions of rows."""
        return directions

    def _column_weights(self, weights: Array) -> Array:
        """Weights of columns from those of features."""
        return weights

    def _halve(self) -> None:
        """Make what the look found of columns that of features."""

    def _operands(self, center: Array | None, scale: Array | None) -> dict[str, Any]:
        """Those of a step."""
        known = {"center": center, "scale": scale}
        return {"q": self.block} | {n: value for n, value in known.items() if value is not None}

    def _as_probe(self, z_probe: Array) -> Array:
        """(m,) Z h of the sums of a step."""
        return z_probe

    def _joined(self, product: Array) -> Array:
        """(m, width) S times the block, of the sums of a step."""
        return product

    # -- the space --------------------------------------------------------------------------

    def _product(self, step: SubspaceStep, q: Array | None = None) -> Array:
        """(m, width) S times the block of a step, q if it is not the present one."""
        with np.errstate(over="ignore", invalid="ignore"):
            product = self._joined(step.finished(self.scaling.center, self.scaling.scale))
        if not np.isfinite(product).all():
            raise NonFiniteError(OVERFLOWED)
        return self._corrected(product, self.block if q is None else q)

    def _corrected(self, product: Array, q: Array) -> Array:
        """S q without the error of rounded column means, and 0 for constant features."""
        product = self._centred(product)
        product[~self.live_vectors] = 0.0
        low = np.asarray(self.stats.mean_low)
        if self.shape.streamed or self.removed is not None or not np.any(low):
            return product
        if not self.request.center:
            return product
        low = low if self.scaling.scale is None else low * reciprocal(self.scaling.scale)
        return np.asarray(product - np.multiply.outer(self.weight * low, low.conj() @ q))

    def _centred(self, columns: Array) -> Array:
        """Columns over the samples without their weighted mean, where features are streamed."""
        if not self.shape.streamed or not self.request.center:
            return columns
        weight = self.side.sample_weight
        unit = np.ones(self.shape.m) if weight is None else np.sqrt(weight)
        unit /= np.linalg.norm(unit)
        return columns - np.multiply.outer(unit, unit @ columns)

    def _remove(self, basis: Array, slopes: Array) -> None:
        """From here on samples are read without what the design explains."""
        eps = Resolution.of(self.matrix.dtype).eps
        self.removed = np.vstack([self.stats.mean, slopes])
        self.stats = residual_stats(self.stats, slopes, eps)
        self.matrix = self.matrix.without(basis, self.removed)

    def _begin(self) -> None:
        """Set up what follows from the statistics: live features, the trace, an empty space."""
        live = self._live()
        self.live_vectors = np.ones(self.shape.m, bool) if self.shape.streamed else live
        if not self.live_vectors.any():
            self.live_vectors = np.arange(self.shape.m) == 0  # a component of 0
        self.dimensions = int(np.count_nonzero(self.live_vectors))
        if self.shape.streamed and self.request.center:  # samples without their mean
            self.dimensions = max(1, self.dimensions - 1)
        held = np.result_type(self.dtype, held_dtype(self.matrix, self.shape))
        self.space = KrylovSpace(
            self.shape.m, self.shape.capacity, self.dtype, self.live_vectors, held
        )
        self.judge = Judge(
            min(self.k, max(1, int(np.count_nonzero(live)))),
            self.request.tol,
            self._total(live),
            self.request.divisor(self.weight),
            self.dtype,
            self.matrix.shape,
            OPEN_BLOCKS * int(np.diff(self.blocks.edges).max(initial=1)),
            multiplies=not self.shape.streamed,  # else images of the vectors are needed too
            hidden=hidden_squares(
                self.matrix, self.scaling.center, self.scaling.scale, self.weight
            ),
        )

    def _live(self) -> Array:
        """(p,) True for features that can have a non-zero loading."""
        still = self.scaling.still if self.request.center else np.zeros(len(self.stats.m2), bool)
        if self.scaling.scale is not None:
            still = still | (self.scaling.scale == 0.0)
        return np.asarray((self.stats.count > 0) & ~still)

    @np.errstate(over="ignore", invalid="ignore")  # the solver checks for overflow
    def _total(self, live: Array) -> float:
        """Trace of the scatter of the standardised matrix."""
        m2 = self.stats.m2
        if not self.request.center:
            m2 = m2 + self.stats.weight * np.abs(self.stats.mean) ** 2
        scale = self.scaling.scale
        if scale is not None:
            m2 = np.divide(m2, scale**2, out=np.zeros_like(m2), where=scale > 0)
        return float(np.sum(m2[live]))

    def advance(self) -> Steps[bool]:
        """One step. False when it was the last."""
        self.steps += 1
        self.passes += 1
        center = self.scaling.center
        if self.removed is not None and not self.shape.streamed:
            center = np.zeros_like(center)  # residuals have no mean
        operands = self._operands(center, self.scaling.scale)
        changed: dict[str, Any] = {"width": operands["q"].shape[1]}
        if self.space.probed is not None:  # summed once
            changed |= {"probe": False, "measure": False}
        done = yield Pass(
            self.step, self.steps, self.matrix, changed={"step": changed}, operands=operands
        )
        one = done["step"]
        product = self._product(one)
        if self.z_probe is None and one.z_probe is not None:
            self.z_probe = self._centred(self._as_probe(one.z_probe)[:, None])[:, 0]
        if one.probed is not None:
            self.space.probed = self._corrected(one.probed, probe_vectors(self.shape.m))
        with single_threaded_blas():
            self.space.add(self.block, product, one.image() if self.shape.images else None)
        return self.evaluate()

    def evaluate(self) -> bool:
        """Evaluate the searched space, and prepare another step. False if it was the last."""
        with single_threaded_blas():
            fresh = self._following()
            if fresh is not None and not self._due(fresh.shape[1]):
                self.block = fresh
                return True
            exact = fresh is None or self.patience > 0
            ritz = self._judged(exact)
            if self.stopped and not exact:  # by norms that leave out some rounding
                self.verdicts.pop()
                ritz = self._judged(exact=True)
                fresh = fresh if self.stopped else None
            if self.stopped and self._may_miss(ritz):
                if self.steps >= self.patience:
                    self.patience, fresh = 2 * self.steps, self._random()
                self.stopped = ""
            if self.stopped:
                return False
            self._prepare_next(ritz, fresh)
            return True

    def _may_miss(self, ritz: Ritz) -> bool:
        """Whether to go on, though all components that were found are as good as they can be."""
        last, left = self.verdicts[-1], self.blocks.times - self.steps
        room = self.dimensions - self.space.size
        if not (self.shape.narrow and last.stuck.all() and left > 0 and room >= self.shape.width):
            return False
        level = 10.0 * float(last.floor.max())
        return self.steps < self.patience or self.space.crowded(ritz, self.judge.k, level)

    def _random(self) -> Array:
        """A block that begins another Krylov space."""
        self.krylov = True
        fresh = self.space.random(self.shape.width, self.rng)
        return self._centred(fresh).astype(self.dtype)

    def _due(self, width: int) -> bool:
        """Whether the space is evaluated after this step: where that is cheap next to a step, the
        basis is full, no step is left, or, of the steps in between, after a few."""
        space, made = self.space, len(self.verdicts)
        full = space.size + width > min(space.capacity, self.dimensions - width)
        due = self.verdicts[-1].certificate.passes + EVALUATED if made else 0
        return full or self.steps >= self.blocks.times or self.passes >= due

    def _following(self) -> Array | None:
        """The next block of a Krylov space, if the blocks so far were such."""
        if not self.krylov or self.dimensions - self.space.size < self.block.shape[1]:
            return None
        return self._centred(self.space.following(self.rng)).astype(self.dtype)

    def _judged(self, exact: bool) -> Ritz:
        """The Ritz pairs; with them a verdict, and whether to stop."""
        ritz = self.space.ritz(exact)
        mature = self.space.mature if self.shape.narrow else None
        self.verdicts.append(self.judge.verdict(ritz, self.passes, mature))
        self.stopped = self.judge.stopped(
            self.verdicts,
            self.dimensions - self.space.size,
            self.blocks.times - self.steps,
            self._passes_worth_making(),
            self.request.max_passes,
            back=BACK if self.shape.narrow else 1,
        )
        return ritz

    def adopts(self, other: Iteration | None) -> bool:
        """Begin with the space that an earlier fit of the same matrix searched, if it fits."""
        if other is None or other.shape.streamed != self.shape.streamed:
            return False
        if self.shape.images and not other.shape.images:
            return False
        for name in ("matrix", "stats", "scaling", "missing_by_sample", "z_probe", "removed"):
            setattr(self, name, getattr(other, name))
        self._begin()
        self.krylov = False
        self.space.adopt(other.space, other.verdicts[-1].ritz, self.shape.capacity)
        return True

    def _prepare_next(self, ritz: Ritz, fresh: Array | None) -> None:
        """Have the next block, and room for it.  fresh : the block, where it is known."""
        if fresh is None:
            self.krylov = False
            width = min(self.shape.width, self.dimensions - self.space.size)
            floor = float(self.verdicts[-1].floor.min())
            fresh = self.space.next_block(ritz, width, self.rng, floor)
            fresh = self._centred(fresh).astype(self.dtype)
        if self.space.size + fresh.shape[1] > self.space.capacity:
            self.space.restart(ritz, self.shape.keep)
        self.block = fresh

    def _passes_worth_making(self) -> int:
        """The number of further passes that would still be faster than an exact solver."""
        left = self.blocks.times - self.steps
        exact = self.candidate.then
        return left if exact is None else min(left, self.candidate.passes_within(exact.seconds))

    # -- the result -------------------------------------------------------------------------

    def _exact(self) -> str:
        """A sentence that names the exact solver to use instead; "" if none was considered."""
        for solver, seconds in self.plan.considered:
            fits = not any(why.startswith(f"{solver}:") for why in self.plan.rejected)
            if solver in ("scatter", "gram") and fits:
                return f" solver={solver!r} is exact, in about {seconds:.2g} s."
        return ""

    def fitted(self) -> Steps[Fitted]:
        """The result of the last step."""
        last = self.verdicts[-1]
        ritz, k = last.ritz, len(last.certified)
        with single_threaded_blas():
            vectors = self.space.multiplied(ritz, k, last.multiplied)
        following = float(ritz.values[k]) if k < len(ritz.values) else 0.0
        spectrum = Spectrum(ritz.values[:k], vectors, following, self.judge.total, math.nan)
        rank = numerical_rank(ritz.values, self.shape.m, last.floor)
        features = FeatureSummary.of_scaling(self.stats, self.scaling, self.judge.divisor)
        fitted = Fitted(
            spectrum=spectrum,
            weight=self.weight,
            rank=rank,
            certificate=undetermined_after(last.certificate, rank),
            missing_by_sample=self.missing_by_sample,
            doubt=last.uncertain(self.stopped, self._exact()),
            features=features if self.removed is None else features.without(self.removed),
            squared_in=str(work_dtype(self.matrix.dtype)),
        )
        if self.shape.streamed == 0:
            vectors[:, rank:] = 0.0
            fitted.components = finish_components(
                np.array(vectors.T, order="C"), rank, features, self.request.center
            )
            turn = signs_of_components(fitted.components.T)
            fitted.components *= turn[:, None]
            return fitted
        assert self.z_probe is not None
        turn = signs(vectors.conj().T @ self.z_probe)
        u, s = vectors * turn, np.sqrt(spectrum.values)
        fitted.spectrum = replace(spectrum, vectors=u)
        fitted.scores = unweighted_rows(u * s, self.side.sample_weight)
        if self.request.components:
            loadings = yield from self._loadings(ritz, u, s, turn)
            certificate, hidden = fitted.certificate, self.judge.hidden
            fitted.certificate = of_products(certificate, spectrum, self.dtype, hidden)
            fitted.components = finish_components(loadings, rank, features, self.request.center)
        return fitted

    def _loadings(self, ritz: Ritz, u: Array, s: Array, turn: Array) -> Steps[Array]:
        """(k, p) Z'u / s from the products that were kept, or from another pass."""
        if self.shape.images:
            with single_threaded_blas():
                image = self.space.image_of(ritz, len(s)) * (turn / np.where(s > 0, s, 1.0))
            return np.array(image.T, order="C")
        components = np.empty((len(s), self.matrix.shape[1]))
        (loadings,) = self.last
        yield Pass(
            loadings,
            matrix=self.matrix,
            operands={"u": u, "s": s},
            sinks={"loadings": RowsSink(components.T, 0)},
            maps={"loadings": FeatureLoadings(self.request.standardize)},
        )
        return components
