"""PCA by block Krylov iteration: every read of a block feeds two products, and one certificate."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from streampca.accumulators import (
    OPEN_BLOCKS,
    Accumulator,
    CrossMoments,
    Moments,
    RowMissing,
    SubspaceStep,
)
from streampca.accumulators.base import refuse_partly_missing
from streampca.kernels import Array, ColumnStats
from streampca.matrix import ChunkedMatrix, Scaling, found
from streampca.models.carried import Carried
from streampca.models.fitted import Fitted, Resolution, Runner, freedom, standardization
from streampca.models.given import given
from streampca.models.gram_outputs import finish_components
from streampca.models.pca_dual import RowsSink, count_missing, unweighted_rows
from streampca.models.pca_krylov_plan import RANDOM, KrylovShape, space_dtype
from streampca.models.pca_removal import residual_stats
from streampca.models.projection import FeatureLoadings
from streampca.passes import Plan, single_threaded_blas
from streampca.solvers import (
    Certificate,
    KrylovSpace,
    Ritz,
    Spectrum,
    certify_ritz,
    coherent_rounding,
    known_count,
    numerical_rank,
    product_floor,
    signs,
    signs_of_components,
    start_block,
)
from streampca.store import MemorySink


def krylov(
    plan: Plan,
    matrix: ChunkedMatrix,
    settings: dict[str, Any],
    step: Runner,
    carried: Carried | None = None,
) -> Fitted:
    """Look at the matrix once, then take steps until every component is certified.

    The look gives column statistics, and directions to begin with; every step gives the products
    of a block of vectors, and with them Ritz vectors and their residuals. Stops when the bound
    of every component's angle is at most ``tol``, at ``max_passes``, or when the components that
    are not certified are not getting there.
    """
    if given(settings).basis is not None:
        matrix = matrix.expanded()
    work = _Iteration(plan, matrix, settings, step)
    if carried is not None and work.adopts(carried.iteration):
        going = work.judge()
    else:
        work.look()
        going = True
    while going:
        going = work.advance()
    if carried is not None:
        carried.iteration = work
    return work.fitted()


@dataclass
class _State:
    """What the last step told."""

    ritz: Ritz
    certificate: Certificate


class _Iteration:
    """One fit: the searched space, the column statistics, and what the steps have told."""

    def __init__(
        self, plan: Plan, matrix: ChunkedMatrix, settings: dict[str, Any], step: Runner
    ) -> None:
        self.plan, self.matrix, self.settings, self.step = plan, matrix, settings, step
        self.shape = KrylovShape.planned(plan, matrix)
        self.given = given(settings)
        self.weight = self.given.count(matrix.shape[0])
        k = known_count(settings["n_components"], *matrix.shape)
        assert k is not None  # the plan refuses others
        self.k = min(k, self.shape.m)
        self.rng = np.random.default_rng(settings["random_state"])
        self.dtype = space_dtype(matrix)
        self.steps = self.passes = 0
        self.block: Array  # the next operand
        self.stats: ColumnStats
        self.scaling: Scaling
        self.missing_by_sample: Array | None = None
        self.z_probe: Array | None = None
        self.removed: Array | None = None  # (1 + r, p) means, and coefficients of the design
        self.history: list[_State] = []
        self.stopped = ""

    # -- reading ----------------------------------------------------------------------------

    def look(self) -> None:
        """The first pass: column statistics, and where to begin."""
        self.passes += 1
        sparse = self.matrix.sparse
        accumulators: dict[str, Accumulator] = {
            "start": self.shape.look(self.settings, sparse),
            "columns": Moments(),
        }
        operands: dict[str, Any] = {}
        if sparse:
            operands["q"] = self.rng.standard_normal((self.shape.m, self.shape.width))
        if not self.shape.streamed and self.given.weights is not None:
            operands["feature_weights"] = self.given.weights
        more: dict[str, Any] = {"maps": {}, "sinks": {}, "side_inputs": {}}
        holes = MemorySink(self.matrix.shape[0], 1, np.int64)
        if self.settings["missing"] == "mean" and self.shape.streamed:
            accumulators["rows"] = RowMissing()
        elif self.settings["missing"] == "mean":
            more["maps"]["missing"], more["sinks"]["missing"] = count_missing, holes
        basis = self.given.basis
        if basis is not None and self.shape.streamed:
            self.matrix = self.matrix.without(basis)
            taken = MemorySink(self.matrix.shape[1], 1 + basis.shape[1])
            more["maps"]["removed"], more["sinks"]["removed"] = found, taken
        elif basis is not None:
            accumulators["design"] = CrossMoments(y="design", width=basis.shape[1])
            more["side_inputs"]["design"] = basis
        done = self.step(
            "look", matrix=self.matrix, accumulators=accumulators, operands=operands, **more
        )
        self.stats = done["columns"].columns()
        if basis is not None and self.shape.streamed:
            self.removed = taken.values.T
        elif basis is not None:
            self._remove(basis, done["design"].deviations().T)
        if self.settings["missing"] == "raise":
            refuse_partly_missing(self.stats.missing, self.matrix.shape[0])
        elif self.shape.streamed:
            self.missing_by_sample = done["rows"].counts()
        else:
            self.missing_by_sample = holes.values[:, 0]
        eps = Resolution.of(self.matrix.dtype).eps
        self.scaling = standardization(self.settings).resolve(self.stats, eps, self.given.weights)
        self.k = min(self.k, max(1, int(np.count_nonzero(self.live))))
        self.space = KrylovSpace(self.shape.m, self.shape.capacity, self.dtype)
        self.dimensions = int(np.count_nonzero(self._live_vectors()))
        width = min(self.shape.width, self.dimensions)
        with single_threaded_blas():
            directions = done["start"].directions() if not sparse else self._product(done["start"])
            block = start_block(
                directions[:, : max(1, width - RANDOM)], width, self._live_vectors(), self.rng
            )
        self.block = block.astype(self.dtype)

    def _product(self, step: SubspaceStep) -> Array:
        """(m, width) S times the block of a step."""
        product = step.finished(self.scaling.center, self.scaling.scale)
        product[~self._live_vectors()] = 0.0
        return product

    def _remove(self, basis: Array, slopes: Array) -> None:
        """From here on samples are read without what the design explains."""
        eps = Resolution.of(self.matrix.dtype).eps
        self.removed = np.vstack([self.stats.mean, slopes])
        self.stats = residual_stats(self.stats, slopes, eps)
        self.matrix = self.matrix.without(basis, self.removed)

    @property
    def live(self) -> Array:
        """(p,) features that can have a loading other than 0."""
        still = (
            self.scaling.still if self.settings["center"] else np.zeros(len(self.stats.m2), bool)
        )
        if self.scaling.scale is not None:
            still = still | (self.scaling.scale == 0.0)
        return np.asarray((self.stats.count > 0) & ~still)

    def _live_vectors(self) -> Array:
        """(m,) where vectors may differ from 0."""
        if self.shape.streamed:
            return np.ones(self.shape.m, bool)
        return self.live if self.live.any() else np.arange(self.shape.m) == 0  # a component of 0

    def advance(self) -> bool:
        """One step. False when it was the last."""
        self.steps += 1
        self.passes += 1
        center = self.scaling.center
        if self.removed is not None and not self.shape.streamed:
            center = np.zeros_like(center)  # residuals have no mean
        known = {"center": center, "scale": self.scaling.scale}
        standard = {name: value for name, value in known.items() if value is not None}
        accumulator = self.shape.step(self.block.shape[1], probe=self.steps == 1)
        one = self.step(
            "step",
            number=self.steps,
            matrix=self.matrix,
            accumulators={"step": accumulator},
            operands={"q": self.block, **standard},
        )["step"]
        product = self._product(one)
        if self.z_probe is None:
            self.z_probe = one.z_probe
        with single_threaded_blas():
            self.space.add(self.block, product, one.image() if self.shape.images else None)
        return self.judge()

    def judge(self) -> bool:
        """Take stock of the searched space, and prepare another step. False when it is enough."""
        with single_threaded_blas():
            ritz = self.space.ritz()
            self.history.append(_State(ritz, self._certificate(ritz)))
            return self._prepare_next(ritz)

    def adopts(self, other: _Iteration | None) -> bool:
        """Begin with the space that an earlier fit of the same matrix searched, if it fits."""
        if other is None or other.shape.streamed != self.shape.streamed:
            return False
        if self.shape.images and not other.shape.images:
            return False
        for name in ("matrix", "stats", "scaling", "missing_by_sample", "z_probe", "removed"):
            setattr(self, name, getattr(other, name))
        self.k = min(self.k, max(1, int(np.count_nonzero(self.live))))
        self.dimensions = other.dimensions
        self.space = KrylovSpace(self.shape.m, self.shape.capacity, self.dtype)
        self.space.adopt(other.space, other.history[-1].ritz, self.shape.capacity)
        return True

    def _prepare_next(self, ritz: Ritz) -> bool:
        """Decide whether to go on, and with what block."""
        most = self.plan.named("step").times
        room = self.dimensions - self.space.size
        if self._certified().all():
            self.stopped = "certified"
        elif not room:
            self.stopped = "the searched space is everything"
        elif self.steps >= most:
            self.stopped = f"max_passes={self.settings['max_passes']}"
        elif self._stuck().all():
            self.stopped = f"{self.dtype} arithmetic resolves no more"
        elif (needed := self._predicted()) > most - self.steps:
            self.stopped = f"the next one would need about {needed} more passes"
        if self.stopped:
            return False
        width = min(self.shape.width, room)
        fresh = self.space.next_block(ritz, width, self.rng)
        if self.space.size + width > self.space.capacity:
            self.space.restart(ritz, self.shape.keep)
        self.block = fresh
        return True

    # -- judging ----------------------------------------------------------------------------

    @property
    def total(self) -> float:
        """Trace of the scatter of the standardised matrix."""
        m2 = self.stats.m2
        if not self.settings["center"]:
            m2 = m2 + self.stats.weight * self.stats.mean**2
        scale = self.scaling.scale
        if scale is not None:
            m2 = np.divide(m2, scale**2, out=np.zeros_like(m2), where=scale > 0)
        return float(np.sum(m2[self.live]))

    def _spectrum(self, ritz: Ritz, vectors: Array) -> Spectrum:
        k = vectors.shape[1]
        following = float(ritz.values[k]) if k < len(ritz.values) else 0.0
        return Spectrum(ritz.values[:k], vectors, following, self.total, math.nan)

    def _floor(self, ritz: Ritz) -> float:
        terms = OPEN_BLOCKS * int(np.diff(self.plan.named("step").edges).max(initial=1))
        return product_floor(self.dtype, ritz.values, self.total, self.matrix.shape, terms)

    def _certificate(self, ritz: Ritz) -> Certificate:
        k = min(self.k, len(ritz.values))
        return certify_ritz(
            ritz.values,
            ritz.residual,
            k,
            self.total,
            self._floor(ritz),
            freedom(self.weight, self.settings),
            self.passes,
            coherent_rounding(self.dtype),
        )

    def _certified(self) -> Array:
        """(k,) whether the angle of each component is bounded by tol, or its variance is 0."""
        last = self.history[-1]
        k = len(last.certificate.angle_bound)
        nothing = last.ritz.values[:k] <= 10.0 * self._floor(last.ritz)
        return np.asarray((last.certificate.angle_bound <= self.settings["tol"]) | nothing)

    def _stuck(self) -> Array:
        """(k,) whether more steps would tell nothing more of a component."""
        last = self.history[-1]
        k = len(last.certificate.angle_bound)
        return np.asarray(self._certified() | (last.ritz.residual[:k] <= self._floor(last.ritz)))

    def _predicted(self) -> int:
        """Passes until the next component is certified, if residuals fall as they just did."""
        if len(self.history) < 2:
            return 0
        before, last = self.history[-2], self.history[-1]
        k = len(last.certificate.angle_bound)
        todo = ~self._stuck()
        gain = np.log(before.ritz.residual[:k] / np.maximum(last.ritz.residual[:k], 1e-300))[todo]
        floor = self._floor(last.ritz)
        gap = np.maximum(last.ritz.values[:k] - np.append(last.ritz.values, 0.0)[1 : k + 1], floor)
        excess = np.log(np.maximum(last.ritz.residual[:k] / (gap * self.settings["tol"]), 1.0))
        needed = excess[todo] / np.maximum(gain, 1e-3)
        return math.ceil(float(needed.min(initial=np.inf)) / 2)  # Krylov steps speed up

    # -- the result -------------------------------------------------------------------------

    def fitted(self) -> Fitted:
        """What the last step holds."""
        last = self.history[-1]
        ritz, k = last.ritz, len(last.certificate.angle_bound)
        with single_threaded_blas():
            vectors = self.space.vectors(ritz, k)
        spectrum = self._spectrum(ritz, vectors)
        dropped = np.flatnonzero(self.stats.count == 0)
        rank = numerical_rank(ritz.values, self.shape.m, self._floor(ritz))
        divisor = freedom(self.weight, self.settings)
        fitted = Fitted(
            spectrum,
            None,
            self.scaling.center,
            self.scaling.scale,
            self.weight,
            rank,
            dropped,
            np.setdiff1d(np.flatnonzero(self.scaling.constant), dropped),
            last.certificate,
            self.stats.m2 / divisor,
            filtered=np.flatnonzero(self.scaling.filtered),
            missing=self.stats.missing,
            missing_by_sample=self.missing_by_sample,
            column_mean=np.array(self.stats.mean),
            deviation=self.scaling.deviation,
            uncertain=self._uncertain(last.certificate),
        )
        if self.removed is not None:
            fitted.mean, fitted.removed = self.removed[0].copy(), self.removed[1:].copy()
        if self.shape.streamed == 0:
            vectors[:, rank:] = 0.0
            fitted.components = finish_components(
                np.array(vectors.T, order="C"), rank, fitted, self.settings["center"]
            )
            turn = signs_of_components(fitted.components.T)
            fitted.components *= turn[:, None]
            return fitted
        assert self.z_probe is not None
        turn = signs(vectors.T @ self.z_probe)
        u, s = vectors * turn, np.sqrt(spectrum.values)
        fitted.spectrum = replace(spectrum, vectors=u)
        fitted.scores = unweighted_rows(u * s, self.given.sample_weight)
        if self.settings["components"]:
            loadings = self._loadings(ritz, u, s, turn)
            fitted.components = finish_components(loadings, rank, fitted, self.settings["center"])
        return fitted

    def _loadings(self, ritz: Ritz, u: Array, s: Array, turn: Array) -> Array:
        """(k, p) Z'u / s from the products that were kept, or from another pass."""
        if self.shape.images:
            with single_threaded_blas():
                image = self.space.image_of(ritz, len(s)) * (turn / np.where(s > 0, s, 1.0))
            return np.array(image.T, order="C")
        components = np.empty((len(s), self.matrix.shape[1]))
        self.step(
            "loadings",
            matrix=self.matrix,
            operands={"u": u, "s": s},
            sinks={"loadings": RowsSink(components.T, 0)},
            maps={"loadings": FeatureLoadings(standardization(self.settings))},
        )
        return components

    def _uncertain(self, certificate: Certificate) -> str:
        """Which components are not certified, and how far they may be off; "" where all are."""
        bad = np.flatnonzero(~self._certified())
        if not bad.size:
            return ""
        words = [
            f"{i + 1} (angle <= {certificate.angle_bound[i]:.1e})"
            if certificate.angle_bound[i] < 1.5
            else f"{i + 1} (its direction is not determined)"
            for i in bad[:6]
        ]
        more = "" if bad.size <= 6 else f" and {bad.size - 6} more"
        return (
            f"{bad.size} of {len(certificate.angle_bound)} components are not certified to "
            f"tol={self.settings['tol']:g} after {certificate.passes} passes ({self.stopped}): "
            f"component {', '.join(words)}{more}. Raise max_passes or tol; where neighbouring "
            "variances are equal, only their common space is determined."
        )
