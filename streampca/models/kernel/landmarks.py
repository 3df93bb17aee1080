"""Landmarks of a kernel: how they are chosen, what they span, and the way to its sums."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np

from streampca.accumulators import Scatter
from streampca.errors import InvalidInputError, NonFiniteError
from streampca.kernels import Array, row_pieces
from streampca.matrix import ChunkedMatrix, FeatureMap, MappedMatrix, select
from streampca.models.kernel.functions import SHIFTED, Kernel, Rows, squares
from streampca.models.kernel.request import sample_passes, with_width
from streampca.passes import (
    Candidate,
    Pass,
    PassSpec,
    Planned,
    Steps,
    all_threads,
    pass_spec,
    single_threaded_blas,
)
from streampca.solvers import eigh_lower, numerical_rank, signs_of_components
from streampca.store import MemorySink

CANDIDATES = 4  # rows for each landmark, among which those that depend on the data are chosen
PIECE_NBYTES = 4 << 20  # of kernel values at a time
RELATIVE = 4.0 * float(np.finfo(np.float64).eps)  # of the largest eigenvalue and m: rounding
INDEFINITE = "; Nystroem's method needs a positive semidefinite kernel. KernelPCA takes any"
NEGATIVE = 1e-8  # share of the largest eigenvalue, below 0, that is more than rounding


@dataclass(frozen=True)
class LandmarkRequest:
    """Landmarks as they were requested, checked.

    numbers : (c,) increasing rows among which the m landmarks are chosen.  count : k components.
    """

    kernel: Kernel
    method: str
    m: int
    count: int
    numbers: Array
    seed: int


def candidate_rows(n: int, m: int, method: str, seed: int) -> Array:
    """(c,) rows drawn without replacement, increasing.

    Where landmarks are chosen by the data, half of all rows at least are left out: only rows that
    nothing depends on estimate the error of unseen ones.
    """
    count = m if method == "uniform" else max(m, min(CANDIDATES * m, n // 2))
    return np.sort(np.random.default_rng(seed).choice(n, count, replace=False))


@dataclass(frozen=True)
class LandmarkFeatures(FeatureMap):
    """Coordinates of phi(x) in the span of the landmarks, and what is left of it.

    Column j < r is <phi(x), u_j> for an orthonormal basis u of the span; the last is
    k(x, x) - |these|^2, the squared distance of phi(x) from the span.
    landmarks : (m, p) after ``shift`` (p,), and one more where :func:`features_of` adds it.
    root : (m, r), features are k(x, landmarks) root.
    """

    kernel: Kernel
    shift: Array
    landmarks: Array
    root: Array

    @property
    def n_features(self) -> int:  # type: ignore[override]
        return int(self.root.shape[1]) + 1

    def features(self, rows: Array) -> Array:
        if not np.isfinite(rows).all():
            raise NonFiniteError(
                "a missing cell in X; a kernel takes whole rows: leave such rows out, or fill them "
                "(PCA(missing='mean').reconstruct, SoftImpute)"
            )
        out = np.empty((len(rows), self.n_features), rows.dtype)
        for piece in landmark_pieces(len(rows), len(self.landmarks), rows.shape[1]):
            x = rows[piece] - self.shift
            inside = self.kernel.of_rows(x, self.landmarks) @ self.root
            lengths = self.kernel.diagonal(self.kernel.prepared(x))
            left = lengths - np.einsum("ij,ij->i", inside, inside)
            if (left < -NEGATIVE * np.abs(lengths).max(initial=0.0)).any():
                raise InvalidInputError(
                    f"k(x, x) of a row is less than its part in a span{INDEFINITE}"
                )
            out[piece, :-1], out[piece, -1] = inside, np.maximum(left, 0.0)
        return out

    @property
    def held_nbytes(self) -> int:
        return int(self.landmarks.nbytes + self.root.nbytes + self.shift.nbytes)

    def scratch_nbytes(self, length: int, width: int) -> int:
        return landmark_nbytes(length, len(self.landmarks), width)

    def digest(self) -> bytes:
        found = hashlib.sha256(repr(replace(self.kernel, function=None)).encode())
        for one in (self.shift, self.landmarks, self.root):
            found.update(np.ascontiguousarray(one).tobytes())
        return found.digest()


def landmark_nbytes(length: int, m: int, p: int) -> int:
    """Bytes that features of so many rows take while they are computed, without the result."""
    longest = max((piece.stop - piece.start for piece in landmark_pieces(length, m, p)), default=0)
    return 8 * longest * (2 * p + 5 * m)


def landmark_pieces(length: int, m: int, p: int) -> list[slice]:
    """Rows whose kernel with m landmarks is computed at a time."""
    return row_pieces(length, 8 * (m + p), PIECE_NBYTES)


@dataclass(frozen=True)
class PlannedFeatures(FeatureMap):
    """Features of landmarks that are not chosen yet, for plans: so many, of so many inputs."""

    m: int
    inputs: int

    @property
    def n_features(self) -> int:  # type: ignore[override]
        return self.m + 1

    def features(self, rows: Array) -> Array:
        raise NotImplementedError

    @property
    def held_nbytes(self) -> int:
        return 8 * (self.m + 1) * (self.m + self.inputs) + 8 * self.inputs

    def scratch_nbytes(self, length: int, width: int) -> int:
        return landmark_nbytes(length, self.m + 1, width)

    def digest(self) -> bytes:
        return repr(self).encode()


# Which rows: each function gives places among the candidates, increasing.


def _uniform(kernel: Kernel, rows: Array, m: int, rng: np.random.Generator) -> Array:
    """All candidates, if they are so few."""
    return np.sort(rng.choice(len(rows), m, replace=False))


def _kmeans(kernel: Kernel, rows: Array, m: int, rng: np.random.Generator) -> Array:
    """The start of k-means in the feature space: each with a probability in proportion to its
    squared distance from the nearest one before.

    Source: Arthur and Vassilvitskii 2007, SODA, section 2.2.
    """
    lengths = kernel.diagonal(kernel.prepared(rows))
    chosen = [int(rng.integers(len(rows)))]
    nearest = np.full(len(rows), np.inf)
    while len(chosen) < m:
        last = chosen[-1]
        products = kernel.of_rows(rows, rows[last : last + 1])[:, 0]
        nearest = np.minimum(nearest, np.maximum(lengths - 2.0 * products + lengths[last], 0.0))
        nearest[chosen] = 0.0
        chosen.append(_drawn(nearest, chosen, rng))
    return np.sort(np.array(chosen))


def _leverage(kernel: Kernel, rows: Array, m: int, rng: np.random.Generator) -> Array:
    """With a probability in proportion to ridge leverage, estimated from m uniform rows.

    The ridge is what those rows leave of the others, over m.
    Source: Musco and Musco 2017, NeurIPS 30, definition 1 and algorithm 2, by one level.
    """
    pilot = np.sort(rng.choice(len(rows), m, replace=False))
    lengths, values = kernel.diagonal(kernel.prepared(rows)), kernel.of_rows(rows, rows[pilot])
    own = values[pilot]
    root = _root(own)
    inside = values @ root
    squares = np.einsum("ij,ij->i", inside, inside)
    ridge = max(float(np.maximum(lengths - squares, 0.0).sum()) / m, RELATIVE * lengths.max())
    # (K' K / share + ridge)^-1 in the basis of the pilot rows, which stand for all candidates
    share = m / len(rows)
    gram = inside[pilot].T @ inside[pilot] / share
    shrunk = np.linalg.solve(gram + ridge * np.eye(len(gram)), inside.T)
    kept = np.einsum("ji,ij->i", shrunk, inside) + np.maximum(lengths - squares, 0.0) / ridge
    chosen: list[int] = []
    while len(chosen) < m:
        kept[chosen] = 0.0
        chosen.append(_drawn(kept, chosen, rng))
    return np.sort(np.array(chosen))


def _drawn(weights: Array, chosen: list[int], rng: np.random.Generator) -> int:
    """A place with a probability in proportion to its weight; any other where all weights are 0."""
    total = weights.sum()
    if total > 0:
        return int(rng.choice(len(weights), p=weights / total))
    left = np.setdiff1d(np.arange(len(weights)), chosen)
    return int(rng.choice(left))


METHODS: dict[str, Callable[[Kernel, Array, int, np.random.Generator], Array]] = {
    "uniform": _uniform,
    "kmeans++": _kmeans,
    "leverage": _leverage,
}


def _root(own: Array) -> Array:
    """(m, r) K^(-1/2) on the eigenvectors whose eigenvalues stand above rounding.

    Raises InvalidInputError where K is not positive semidefinite.
    """
    values, vectors = np.linalg.eigh((own + own.T) / 2.0)
    top = float(values[-1])
    if not top > 0 or values[0] < -NEGATIVE * top:
        raise InvalidInputError(
            f"the kernel of the landmarks has eigenvalues from {values[0]:.3g} to {top:.3g}"
            + INDEFINITE
        )
    kept = values > RELATIVE * len(values) * top
    return np.asarray((vectors[:, kept] / np.sqrt(values[kept]))[:, ::-1])


def features_of(kernel: Kernel, rows: Array) -> LandmarkFeatures:
    """The features of these landmarks, (m, p).

    Rows about their mean keep all digits, but under the linear kernel span a dimension less than
    the rows themselves: their mean joins them, as long as they are.
    """
    shift = rows.mean(axis=0) if kernel.name in SHIFTED else np.zeros(rows.shape[1])
    landmarks = rows - shift
    if kernel.name == "linear" and (length := float(np.linalg.norm(shift))) > 0.0:
        usual = float(np.sqrt(np.mean(squares(landmarks))))
        landmarks = np.vstack([landmarks, shift * ((usual or length) / length)])
    return LandmarkFeatures(kernel, shift, landmarks, _root(kernel.of_rows(landmarks, landmarks)))


# The way to their sums.


@dataclass(frozen=True)
class LandmarkSums:
    """What two passes found.

    places : (m,) rows that are landmarks.  scatter : of the features of all rows, and their
    residuals last.  residuals : (c,) of the candidates.
    """

    features: LandmarkFeatures
    places: Array
    scatter: Scatter
    residuals: Array

    def components(self, k: int) -> tuple[Array, Array, Array]:
        """(k,) eigenvalues of the centred approximate kernel matrix, (m, k) vectors of unit
        components, sum_j vectors_j phi(landmark j), and (k,) the mean score of all rows.

        Values and vectors that are rounding are 0.
        """
        lower = np.array(self.scatter.lower()[:-1, :-1])
        with all_threads():
            spectrum = eigh_lower(lower, min(k, len(lower)))
        rank = min(k, numerical_rank(spectrum.values, len(lower)))
        values, directions = np.zeros(k), np.zeros((len(lower), k))
        values[:rank] = spectrum.values[:rank]
        directions[:, :rank] = spectrum.vectors[:, :rank]
        vectors = self.features.root @ directions
        turned = signs_of_components(vectors)
        mean = np.asarray(self.scatter.mean)[:-1] @ directions
        return values, vectors * turned, mean * turned

    def errors(self) -> dict[str, Any]:
        """What the landmarks leave of rows: of those that nothing depends on, and of all."""
        n, held_out = self.scatter.count, self.scatter.count - len(self.residuals)
        lower = self.scatter.lower()
        mean = np.asarray(self.scatter.mean)
        excess, trace = n * float(mean[-1]), float(np.trace(lower)) - float(lower[-1, -1])
        sums = excess - float(self.residuals.sum())
        squares = float(lower[-1, -1]) + n * float(mean[-1]) ** 2 - float(np.sum(self.residuals**2))
        error = se = float("nan")
        if held_out > 1:
            error = max(sums / held_out, 0.0)
            se = float(np.sqrt(max(squares / held_out - error**2, 0.0) / (held_out - 1)))
        return {
            "error": error,
            "error_se": se,
            "n_held_out": held_out,
            "excess": excess,
            "total": trace + excess,
            "mean_length": trace / n + float(mean[:-1] @ mean[:-1]) + float(mean[-1]),
        }


@dataclass(frozen=True)
class LandmarkPasses:
    """sampled : see :func:`sample_passes`.  candidates : over the rows among which landmarks are
    chosen.  features : over all rows."""

    sampled: tuple[PassSpec, ...]
    candidates: PassSpec
    features: PassSpec


def landmark_candidates(
    matrix: ChunkedMatrix, request: LandmarkRequest
) -> list[Candidate[LandmarkSums]]:
    """A read of the rows among which landmarks are chosen, and one of all rows."""
    (n, p), m, c = matrix.shape, request.m, len(request.numbers)
    some, rows = select(matrix, samples=request.numbers), Rows(np.zeros(p), np.dtype(np.float64))
    first = PassSpec(
        "landmarks", 0, scratch=rows.scratch_nbytes(some), kept_nbytes=8 * c * p, matrix=some
    )
    view = MappedMatrix(matrix, PlannedFeatures(m, p))
    flops = float(n) * m * (2 * p + 3 * m)
    features = pass_spec(
        "features", view, 0, {"scatter": Scatter()}, flops=flops, kept_nbytes=8 * c * p
    )
    choosing = 3 * c * m * 8 if request.method == "leverage" else 8 * c
    terms = {
        "scatter": 2 * (m + 1) ** 2 * 8,
        "eigenproblem": 3 * m * m * 8,
        "choice of landmarks": choosing,
        "landmarks": 2 * m * (p + m) * 8,
    }
    reason = (
        f"{m} landmarks of {n} rows, {request.method}{f' among {c}' if c > m else ''}; one read "
        f"for them, one for the {m} x {m} scatter of their features, then eigh"
    )
    passes = LandmarkPasses(
        sample_passes(matrix, request.kernel), first, replace(features, matrix=view)
    )
    specs = (*passes.sampled, passes.candidates, passes.features)
    solver = partial(landmark_sums, request=request, passes=passes)
    return [Candidate("landmarks", reason, specs, terms, 12.0 * m**3, solve=solver)]


def landmark_sums(
    planned: Planned[Any], *, request: LandmarkRequest, passes: LandmarkPasses
) -> Steps[LandmarkSums]:
    """Choose the landmarks, and sum the scatter of the features of all rows."""
    matrix = planned.matrix
    p, c = matrix.shape[1], len(request.numbers)
    kernel = yield from with_width(matrix, request.kernel, passes.sampled)
    sink = MemorySink(c, p, np.float64)
    yield Pass(
        passes.candidates,
        maps={"rows": Rows(np.zeros(p), np.dtype(np.float64))},
        sinks={"rows": sink},
    )
    rng, rows = np.random.default_rng([request.seed, 1]), sink.values
    with single_threaded_blas():
        near = rows - rows.mean(axis=0) if kernel.name in SHIFTED else rows
        chosen = METHODS[request.method](kernel, near, request.m, rng)
        found = features_of(kernel, rows[chosen])
        residuals = found.features(rows)[:, -1]
    done = (yield Pass(passes.features, matrix=MappedMatrix(matrix, found))).accumulators
    return LandmarkSums(found, request.numbers[chosen], done.pop("scatter"), residuals)
