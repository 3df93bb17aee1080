"""What a fit through the Gram matrix writes, scores and sums in addition to the components."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any, Self

import numpy as np

from streampca.accumulators import Accumulator, RowMissing
from streampca.errors import InvalidInputError, OccupiedError
from streampca.kernels import Array
from streampca.matrix import AxisLabels, Block, ChunkedMatrix, Standardize, work_dtype
from streampca.models.results.linear_result import COMPONENTS
from streampca.models.results.projection import ScoresOfAllSamples
from streampca.passes import PassSpec, pass_spec
from streampca.store import LabelledSink, occupied
from streampca.store.chunks import writing_nbytes
from streampca.store.sinks import CHUNK_NBYTES, chunk_for

RELATIONSHIP = "relationship"  # the name of the array
Path = str | os.PathLike[str]


@dataclass(frozen=True)
class Cohort:
    """Samples that are scored in addition to the fitted ones.

    everyone : the matrix of all of them.  rows : increasing numbers of the fitted ones.
    residuals : whether the squares of everyone's values are summed, too.
    """

    everyone: ChunkedMatrix
    rows: Array
    residuals: bool = False

    def sums(self, standardize: Standardize) -> dict[str, Accumulator]:
        """What the pass for the loadings sums of all samples."""
        scores = ScoresOfAllSamples(
            standardize=standardize, rows=self.rows, residuals=self.residuals
        )
        return {"scores": scores, "rows": RowMissing()}


@dataclass(frozen=True)
class SameRead:
    """What else the pass for the Gram matrix sums, perhaps of more than is fitted.

    matrix : all that it reads.  sums : the accumulators, by name.
    parts : name -> map to a part of a block, for those that take one.
    fitted : the part that is fitted, and the place of a block's first feature in it; None = all.
    """

    matrix: ChunkedMatrix
    sums: Mapping[str, Accumulator]
    parts: Mapping[str, Callable[[Block], Any]]
    fitted: str | None = None
    place: Callable[[int], int] = int

    def nbytes(self) -> int:
        """Of the sums, and of the labels of what is read in addition."""
        itemsize = work_dtype(self.matrix.dtype).itemsize
        sums = (one.projected_nbytes(self.matrix.shape, itemsize) for one in self.sums.values())
        return sum(sums) + self.matrix.labels.features.nbytes

    def scratch(self, length: int) -> int:
        """Bytes of the parts of a block."""
        return len(self.parts) * length * self.matrix.shape[0] * self.matrix.dtype.itemsize


@dataclass(frozen=True)
class GramOutputs:
    """What the fit makes of the Gram matrix on its way.

    loadings, relationship : paths of new Zarr groups for components and relationship matrix.
    cohort : all samples, where some are fitted and all are scored in the pass for the loadings.
    same_read : what else is summed in the pass for the Gram matrix.
    joint : counts the features that both of two samples have, ``shared(i)`` for those up to i; the
        entries of the Gram matrix are then means over these, times the features used.
    """

    loadings: str | None = None
    relationship: str | None = None
    cohort: Cohort | None = None
    same_read: SameRead | None = None
    joint: Any = None

    @classmethod
    def at(cls, loadings: Path | None, relationship: Path | None, **more: Any) -> Self:
        """The same, of paths of any kind."""
        v, grm = (None if one is None else os.fspath(one) for one in (loadings, relationship))
        return cls(v, grm, **more)

    def refuse_occupied(self) -> None:
        """Refuse outputs that exist, or that share a path, before reading."""
        named = {"loadings": self.loadings, "relationship": self.relationship}
        paths = {name: path for name, path in named.items() if path is not None}
        for name, path in paths.items():
            if occupied(path):
                raise OccupiedError(f"{name}: {path} exists already; remove it or name another")
        if len({os.path.realpath(path) for path in paths.values()}) < len(paths):
            raise InvalidInputError(f"{' and '.join(paths)} are one path; name two")


def write_relationship(path: str, lower: Array, n_used: int, samples: AxisLabels) -> LabelledSink:
    """The relationship matrix ZZ'/M as a Zarr group, M features used; in place when finished.

    ``relationship`` (sample, sample_2) float32, beside the samples' names and families.
    """
    n = len(lower)
    labels = {"sample": samples.columns("sample")}
    if "sample" in labels["sample"]:
        labels["sample_2"] = {"sample_2": labels["sample"]["sample"]}
    about = {"n_features_used": n_used}
    sink = LabelledSink(
        path, RELATIONSHIP, (n, n), ("sample", "sample_2"), labels, attributes=about
    )
    for start in range(0, n, sink.chunk):
        stop = min(start + sink.chunk, n)
        rows = np.empty((stop - start, n))
        rows[:, :stop] = np.tril(lower[start:stop, :stop], start)
        rows[:, start:stop] += np.tril(lower[start:stop, start:stop], -1).T
        rows[:, stop:] = lower[stop:, start:stop].T
        sink.write(start, (rows / max(n_used, 1)).astype(np.float32))
    return sink


def components_sink(
    path: str, rank: int, variance: Array, matrix: ChunkedMatrix, edges: Array
) -> LabelledSink:
    """The sink of components, block by block: (p, k) in the working dtype of the matrix.

    ``components`` (feature, component), unit columns, 0 in those after the rank; beside it the
    features' labels and ``explained_variance``; the pass adds the statistics of the features.
    edges : block boundaries of the pass that writes them.
    """
    p, k = matrix.shape[1], len(variance)
    dim = "-".join(matrix.labels.features.dims)
    dtype = work_dtype(matrix.dtype)
    return LabelledSink(
        path,
        COMPONENTS,
        (p, k),
        (dim, "component"),
        {dim: matrix.labels.features.columns(dim), "component": {"component": np.arange(1, k + 1)}},
        dtype,
        chunk_for(edges, max(1, CHUNK_NBYTES // (k * dtype.itemsize))),
        {"component": {"explained_variance": variance}},
        {"rank": rank},
    )


def streamed_nbytes(k: int, itemsize: int, length: int) -> int:
    """Scratch of writing blocks of that length: in the stored dtype, and what Zarr holds."""
    return k * itemsize * length + writing_nbytes(min(CHUNK_NBYTES, k * itemsize * length))


def with_others(first: PassSpec, others: SameRead) -> PassSpec:
    """The pass for the Gram matrix, with the other sums that it makes."""
    (n, p), fitted = others.matrix.shape, first.accumulators
    sums = {**fitted, **others.sums}
    both = pass_spec(first.name, others.matrix, 1, sums, flops=first.flops + n * n * p / 16)
    return replace(
        both, kept=first.kept, scratch=lambda length: both.scratch(length) + others.scratch(length)
    )


def mean_over_pairs(lower: Array, joint: Any, used: int, samples: AxisLabels) -> float:
    """Divide the sums for each pair, in place, by the features that both have, times those used.

    joint : as in :class:`GramOutputs`.  Returns the largest factor.
    Raises InvalidInputError where two samples have no feature in common.
    """
    largest = 1.0
    for i in range(len(lower)):
        shared = joint.shared(i)
        if not shared.all():
            j = int(np.argmin(shared))
            raise InvalidInputError(
                f"{samples.name(j)} and {samples.name(i)} have no variant called in both: "
                "missing='pairwise' has no relationship of them. Leave out ill-called samples, "
                "max_sample_missing=0.1, or take missing='mean'"
            )
        lower[i, : i + 1] *= used / shared
        largest = max(largest, used / int(shared.min()))
    return largest


def lengths_of_images(lower: Array, joint: Any, used: int, u: Array) -> Array:
    """(k,) lengths of Z'u, from the Gram matrix after :func:`mean_over_pairs`.

    u : (n, k).  Cost: 2 n^2 k flops.
    """
    squares = np.zeros(u.shape[1])
    for i in range(len(lower)):
        row = lower[i, : i + 1] * (joint.shared(i) / used)
        squares += u[i] * (2.0 * (row @ u[: i + 1]) - row[i] * u[i])
    return np.sqrt(np.maximum(squares, 0.0))
