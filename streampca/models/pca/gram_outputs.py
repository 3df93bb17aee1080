"""What a Gram matrix fit writes to disk: the relationship matrix, and streamed components."""

from __future__ import annotations

import os
from typing import Any

import numpy as np

from streampca.errors import InvalidInputError
from streampca.kernels import Array
from streampca.matrix import AxisLabels, ChunkedMatrix, work_dtype
from streampca.passes import single_threaded_blas
from streampca.solvers import orthonormal_columns, signs_of_components
from streampca.store import LabelledSink, read_labelled
from streampca.store.sinks import CHUNK_NBYTES, chunk_for

RELATIONSHIP, COMPONENTS = "relationship", "components"  # names of the arrays


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
        {
            dim: matrix.labels.features.columns(dim),
            "component": {"component": np.arange(1, k + 1)},
        },
        dtype,
        chunk_for(edges, max(1, CHUNK_NBYTES // (k * dtype.itemsize))),
        {"component": {"explained_variance": variance}},
        {"rank": rank},
    )


def read_components(path: str | os.PathLike[str], result: Any) -> Array:
    """(k, p) float64 that the fit of this result streamed, orthonormal and completed after the
    rank, as they are where a fit holds them.

    Raises SourceError where they are not there, InvalidInputError where they are of another fit.
    """
    stored, variance = read_labelled(path, COMPONENTS, "explained_variance")
    shape = (result.n_features, result.n_components)
    if stored.shape != shape or not np.array_equal(variance, result.explained_variance):
        raise InvalidInputError(
            f"{path}: components of {stored.shape[0]} features x {stored.shape[1]} that another "
            f"fit wrote; expected those of this one, {shape[0]} x {shape[1]}"
        )
    columns = np.array(stored, dtype=np.float64, order="F")
    return finish_components(columns.T, result.rank, result, True)


def finish_components(components: Array, rank: int, fitted: Any, centered: bool) -> Array:
    """(k, p) orthonormal rows from Z'u / s, in place; directions beyond the numerical rank are
    completed.

    fitted : any object with ``dropped``, ``scale`` and ``constant``.
    """
    dead = fitted.dropped
    if fitted.scale is not None:
        dead = np.union1d(dead, np.flatnonzero(fitted.scale == 0.0))
    if centered:
        dead = np.union1d(dead, fitted.constant)
    columns = components.T
    if not columns.shape[1]:
        return components
    with single_threaded_blas():
        orthonormal_columns(columns, rank, dead)
    columns[:, rank:] *= signs_of_components(columns[:, rank:])
    return components


def streamed_nbytes(k: int, itemsize: int, length: int) -> int:
    """Scratch of writing blocks of that length: in the stored dtype, encoded, and chunks that two
    blocks share, which are read again."""
    return 2 * k * itemsize * length + 2 * CHUNK_NBYTES
