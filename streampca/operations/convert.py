"""``streampca convert``: any matrix to the Zarr layout that passes read fastest."""

from __future__ import annotations

import os
import time
from dataclasses import dataclass
from typing import Any

import numpy as np

from streampca.errors import InvalidInputError
from streampca.models.copying import copy_axis, copy_matrix, copy_sparse, copy_step
from streampca.sources import as_matrix
from streampca.store import CHUNK_ENTRIES, CompressedGroupSink, GroupLayout, open_group_sink

CHUNK_NBYTES = 4 * 1024 * 1024
SLICE_NBYTES = 64 * 1024 * 1024  # of a slice of whole chunks, all across: what a block must hold
CHUNK_ROWS = 8192  # samples in a chunk of one-byte calls, at most


@dataclass(frozen=True)
class Conversion:
    """What was written: the array's place, name, shape (samples, features) and stored chunks
    (of a sparse matrix: entries in a chunk, and 1)."""

    path: str
    array: str
    shape: tuple[int, int]
    chunks: tuple[int, int]
    missing_value: float | None
    reads: int  # stored chunks of the source
    resumed: int  # features (or samples, where those were streamed) that were there already
    seconds: float
    plan: Any


def convert(
    source: Any,
    path: str | os.PathLike[str],
    *,
    samples_major: bool = True,
    overwrite: bool = False,
    resume: bool = True,
    memory_limit: int | str | None = None,
    progress: Any = None,
) -> Conversion:
    """Write a matrix as a Zarr v3 group that ``streampca.open`` reads fastest.

    source : anything that ``streampca.open`` takes, or what it returned. Genotypes (PLINK, VCF
        Zarr, int8 Zarr) stay int8 calls with their missing code; other numbers stay what they are.
    samples_major : the array is samples x features; False: features x samples, also as stored.
    overwrite : replace what an earlier conversion left there; nothing else is ever replaced.
    resume : go on with an unfinished conversion of the same source.

    The group holds ``call`` ("values" where the features are no variants), Blosc zstd, bitshuffle
    and crc32c, with ``missing_value`` in its attributes, and beside it sample and variant ids,
    family, individual, chromosome, position, counted and other allele, as far as known.
    Chunks are about 4 MiB, for both kinds of pass: one that streams features holds all samples of
    a chunk's width, one that streams samples holds all features of a chunk's height. All
    samples lie in one chunk up to 8192 of them (3192 x 1314 calls), so that a wide matrix is
    read one chunk, one block; with more samples a chunk is 8192 x 512 or so, and a block either
    way stays small while the other dimension is below 100,000.

    Sparse matrices that are not genotypes stay sparse: an AnnData in Zarr, CSR where samples were
    streamed, CSC where features were. One that was interrupted begins again.

    Cost: one pass, a few blocks of memory.
    Raises InvalidInputError where something lies at ``path``; SourceError for a source that is
    damaged, or that has changed since the conversion was begun. What was written by then stays,
    ``open`` refuses it, and the same call goes on with it.
    """
    path = os.fspath(path)
    begun = time.perf_counter()
    matrix = as_matrix(source)
    _refuse_own_source(matrix, path)
    if matrix.sparse and _dims(matrix)[1] != "variant":
        if not samples_major:
            raise InvalidInputError(
                "samples_major=False: a sparse matrix is stored as AnnData does"
            )
        return _convert_sparse(matrix, path, overwrite, memory_limit, progress, begun)
    axis = copy_axis(matrix)
    chunks = list(chunk_shape(matrix.shape, matrix.dtype.itemsize, axis))
    chunks[axis] = copy_step(matrix, axis, chunks[axis])
    layout = _layout(matrix, axis, chunks, samples_major)
    names = [matrix.labels.samples, matrix.labels.features]
    labels = {dim: one.columns(dim) for dim, one in zip(_dims(matrix), names, strict=True)}
    sink = open_group_sink(path, layout, labels, overwrite=overwrite, resume=resume)
    resumed = sink.written
    plan, cost = copy_matrix(matrix, sink, axis, memory_limit=memory_limit, progress=progress)
    return Conversion(
        path, layout.name, matrix.shape, (chunks[0], chunks[1]), layout.missing_value,
        cost.reads, resumed, time.perf_counter() - begun, plan,
    )  # fmt: skip


def _convert_sparse(
    matrix: Any, path: str, overwrite: bool, memory_limit: Any, progress: Any, begun: float
) -> Conversion:
    axis = int(bool(matrix.advice(0)))  # the axis that is stored
    axes = (matrix.labels.samples, matrix.labels.features)
    names = tuple(one.names() if one.named else None for one in axes)
    code = matrix.missing_value
    attributes = {} if code is None else {"missing_value": code}
    whole = int(matrix.spans_nbytes(axis, np.array([0, matrix.shape[axis]])).sum())
    sink = CompressedGroupSink(
        path, matrix.shape, matrix.dtype, axis, (names[0], names[1]), attributes, overwrite,
        most_entries=whole // (matrix.dtype.itemsize + 4),
    )  # fmt: skip
    plan, cost = copy_sparse(matrix, sink, axis, memory_limit=memory_limit, progress=progress)
    return Conversion(
        path, "X", matrix.shape, (CHUNK_ENTRIES, 1), code, cost.reads, 0,
        time.perf_counter() - begun, plan,
    )  # fmt: skip


def chunk_shape(shape: tuple[int, int], itemsize: int, axis: int) -> tuple[int, int]:
    """(samples, features) of a chunk of about CHUNK_NBYTES.

    axis : the streamed one: a slice of whole chunks, all across, holds at most SLICE_NBYTES.
    """
    n, p = shape
    samples = _evenly(n, max(1, CHUNK_ROWS // itemsize))
    features = _evenly(p, max(1, CHUNK_NBYTES // (samples * itemsize)))
    most = max(1, SLICE_NBYTES // (shape[1 - axis] * itemsize))
    if axis and features > most:
        features = most
        samples = _evenly(n, max(1, CHUNK_NBYTES // (features * itemsize)))
    elif not axis and samples > most:
        samples = most
        features = _evenly(p, max(1, CHUNK_NBYTES // (samples * itemsize)))
    return samples, features


def _evenly(length: int, most: int) -> int:
    """The length of equal parts of at most that length."""
    if length > 8 * most:
        return most  # the last part is small beside the others
    return -(-length // -(-length // most))


def _layout(matrix: Any, axis: int, chunks: list[int], samples_major: bool) -> GroupLayout:
    dims = _dims(matrix)
    order = (0, 1) if samples_major else (1, 0)
    code = matrix.missing_value
    if code is not None and matrix.dtype.kind in "iu":
        code = int(code) if float(code).is_integer() else None
    return GroupLayout(
        "call" if dims[1] == "variant" else "values",
        (matrix.shape[order[0]], matrix.shape[order[1]]),
        (chunks[order[0]], chunks[order[1]]),
        (dims[order[0]], dims[order[1]]),
        np.dtype(matrix.dtype).newbyteorder("="),
        order.index(0),
        order.index(axis),
        matrix.content_stamp(),
        code,
    )


def _dims(matrix: Any) -> tuple[str, str]:
    """Names of the two dimensions."""
    samples = "-".join(matrix.labels.samples.dims) or "sample"
    features = "-".join(matrix.labels.features.dims) or "feature"
    return samples, features if features != samples else f"{features}_"


def _refuse_own_source(matrix: Any, path: str) -> None:
    """Raise where the output would lie in the source, or the source in the output."""
    if "://" in path:
        return
    here = os.path.realpath(path)
    for there in matrix.paths():
        if os.path.commonpath([here, there]) in (here, there):
            raise InvalidInputError(f"{path} holds the source itself; choose another output")
