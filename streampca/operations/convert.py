"""``streampca convert``: a matrix copied to the Zarr layout that passes read fastest."""

from __future__ import annotations

import os
import time
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np

from streampca.errors import InvalidInputError
from streampca.kernels import Array
from streampca.matrix import Block, ChunkedMatrix, regular_edges
from streampca.operations.convert_vcf import convert_vcf, vcf_files
from streampca.passes import (
    Candidate,
    PassCost,
    PassResult,
    PassSpec,
    Plan,
    Planned,
    Running,
    block_edges,
    choose,
    execute,
    with_arrays,
)
from streampca.passes.records import Map
from streampca.sources import as_matrix
from streampca.sources.genotypes.allele_counts import MISSING_CALL, PLOIDY
from streampca.sources.genotypes.vcf_zarr import GENOTYPES
from streampca.store import CHUNK_ENTRIES, CompressedGroupSink, GroupLayout, open_group_sink
from streampca.store.places import refuse_inside

CHUNK_NBYTES = 4 * 1024 * 1024
SLICE_NBYTES = 64 * 1024 * 1024  # of a row of chunks across the array: a block holds at least one
CHUNK_ROWS = 8192  # the most samples in a chunk of one-byte calls


@dataclass(frozen=True)
class Conversion:
    """What was written.

    path, array : the group and the array's name in it.  shape : (samples, features).
    chunks : of the array; for a sparse matrix (entries in a chunk, 1).
    """

    path: str
    array: str
    shape: tuple[int, int]
    chunks: tuple[int, int]
    missing_value: float | None
    reads: int  # stored chunks of the source that were read
    resumed: int  # features (samples, if those were streamed) of an earlier, interrupted run
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

    source : anything that ``streampca.open`` takes or returns. Genotypes (PLINK, VCF Zarr, int8
        Zarr) stay int8 calls with their missing code; other numbers keep their dtype. The path of a
        VCF or BCF, or of several of different variants, becomes a VCF Zarr with all of its fields,
        by vcf2zarr of bio2zarr: see ``operations.convert_vcf``.
    samples_major : store samples x features; False: features x samples.
    overwrite : replace the output of an earlier conversion; nothing else is ever replaced.
    resume : continue an unfinished conversion of the same source.

    The group holds the array ``call`` ("values" if the features are no variants) with Blosc zstd,
    bitshuffle and crc32c, and ``missing_value`` in its attributes. It also holds sample and variant
    ids, family, individual, chromosome, position, counted and other allele, as far as known.
    Chunks are about 4 MiB and serve both kinds of pass: a block of features holds all samples over
    a chunk's width, a block of samples all features over a chunk's height. Up to 8192 samples lie
    in one chunk (3192 x 1314 calls), so a wide matrix is read one chunk per block. With more
    samples a chunk is about 8192 x 512, and both kinds of block stay small while the other
    dimension is below 100,000.

    Sparse matrices other than genotypes stay sparse: an AnnData in Zarr, CSR if samples were
    streamed, CSC if features were. An interrupted conversion of these starts again.

    Cost: one pass, a few blocks of memory.
    Raises InvalidInputError if something else is at ``path``; SourceError if the source is damaged,
    or has changed since the conversion was begun. An unfinished output stays: ``open`` refuses it,
    and the same call continues it.
    """
    path = os.fspath(path)
    begun = time.perf_counter()
    if files := vcf_files(source):
        if not samples_major:
            raise InvalidInputError("samples_major=False: a VCF Zarr is variants x samples")
        shape, stored, seconds = convert_vcf(
            files, path, overwrite=overwrite, memory_limit=memory_limit, progress=bool(progress)
        )
        return Conversion(path, GENOTYPES, shape, stored, MISSING_CALL, 0, 0, seconds, None)
    matrix = as_matrix(source)
    refuse_inside(path, list(matrix.paths()), "the output")
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
    axes = [matrix.labels.samples, matrix.labels.features]
    labels = {
        dim: {} if side is axes[1] and layout.grid else side.columns(dim)
        for dim, side in zip(_dims(matrix), axes, strict=True)
    }
    sink = open_group_sink(path, layout, labels, overwrite=overwrite, resume=resume)
    resumed = sink.written
    plan, cost = copy_matrix(matrix, sink, axis, memory_limit=memory_limit, progress=progress)
    return Conversion(
        path,
        layout.name,
        matrix.shape,
        (chunks[0], chunks[1]),
        layout.missing_value,
        cost.reads,
        resumed,
        time.perf_counter() - begun,
        plan,
    )


def _convert_sparse(
    matrix: Any, path: str, overwrite: bool, memory_limit: Any, progress: Any, begun: float
) -> Conversion:
    axis = 1 if matrix.advice(0) else 0  # the axis along which the source is stored
    axes = (matrix.labels.samples, matrix.labels.features)
    names = tuple(one.names() if one.named else None for one in axes)
    code = matrix.missing_value
    attributes = {} if code is None else {"missing_value": code}
    whole = int(matrix.spans_nbytes(axis, np.array([0, matrix.shape[axis]])).sum())
    sink = CompressedGroupSink(
        path,
        matrix.shape,
        matrix.dtype,
        axis,
        (names[0], names[1]),
        attributes,
        overwrite,
        most_entries=whole // (matrix.dtype.itemsize + 4),
    )
    plan, cost = copy_sparse(matrix, sink, axis, memory_limit=memory_limit, progress=progress)
    return Conversion(
        path,
        "X",
        matrix.shape,
        (CHUNK_ENTRIES, 1),
        code,
        cost.reads,
        0,
        time.perf_counter() - begun,
        plan,
    )


def chunk_shape(shape: tuple[int, int], itemsize: int, axis: int) -> tuple[int, int]:
    """(samples, features) of a chunk of about CHUNK_NBYTES.

    axis : the streamed one; a row of chunks across the array has at most SLICE_NBYTES.
    """
    n, p = shape
    samples = _evenly(n, max(1, CHUNK_ROWS // itemsize))
    features = _evenly(p, max(1, CHUNK_NBYTES // (samples * itemsize)))
    most = max(1, SLICE_NBYTES // (shape[1 - axis] * itemsize))
    if axis == 1 and features > most:
        features = most
        samples = _evenly(n, max(1, CHUNK_NBYTES // (features * itemsize)))
    elif axis == 0 and samples > most:
        samples = most
        features = _evenly(p, max(1, CHUNK_NBYTES // (samples * itemsize)))
    return samples, features


def _evenly(length: int, most: int) -> int:
    """The length of equal parts that are at most ``most`` long."""
    if length > 8 * most:
        return most  # with many parts, a shorter last one does not matter
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
        _grid(matrix),
        matrix.labels.attrs.get(PLOIDY),
    )


def _grid(matrix: Any) -> tuple[tuple[str, int], ...]:
    """(name, length) of stacked features whose dimensions have no coordinates: pixels."""
    features = matrix.labels.features
    if len(features.dims) < 2 or features.named or features.grids:
        return ()
    return tuple(zip(features.dims, features.sizes, strict=True))


def _dims(matrix: Any) -> tuple[str, str]:
    """Names of the two dimensions."""
    samples = "-".join(matrix.labels.samples.dims) or "sample"
    features = "-".join(matrix.labels.features.dims) or "feature"
    return samples, features if features != samples else f"{features}_"


# Copies of a matrix into a sink: one pass in bounded memory.

LABEL_NBYTES = 160  # of one sample or variant: id, chromosome, position, two alleles


def copy_axis(matrix: ChunkedMatrix) -> int:
    """The axis whose blocks are clearly smaller. Where either will do: rows that may be cut
    anywhere lie one after another (``.npy``, CSR), else features as genotype stores hold them.
    """
    sizes = []
    for axis in (0, 1):
        longest = int(np.diff(block_edges(matrix, axis)).max(initial=0))
        sizes.append(longest * matrix.shape[1 - axis])
    if matrix.chunk_edges(0) is None:
        return int(sizes[1] < sizes[0] / 2)
    return int(sizes[1] <= 2 * sizes[0])


def copy_step(matrix: ChunkedMatrix, axis: int, wanted: int) -> int:
    """The length of slices to write, near ``wanted``, so that source blocks are whole slices."""
    edges = block_edges(matrix, axis)
    first = int(edges[1])
    regular = matrix.chunk_edges(axis) is not None and bool(np.all(edges[:-1] % first == 0))
    return first if regular and wanted <= 2 * first and first <= 2 * wanted else wanted


def copy_matrix(
    matrix: ChunkedMatrix,
    sink: Any,
    axis: int,
    *,
    memory_limit: int | str | None = None,
    progress: Any = None,
) -> tuple[Plan, PassCost]:
    """Write all of a matrix from ``sink.written`` on; the sink gets slices along axis.

    sink : with ``written``, ``chunk``, ``concurrent``, ``interrupted`` and ``finish``.
    Where blocks can be whole chunks of the sink, lanes encode at the same time; else one lane
    hands them over in order. Each stored chunk of the source is read once (one more time where an
    interrupted copy goes on inside it).
    """
    start, length = sink.written, matrix.shape[axis]
    itemsize = matrix.dtype.itemsize
    kept = sink.nbytes_in_memory() + LABEL_NBYTES * sum(matrix.shape)
    spec = PassSpec(
        "copy",
        axis,
        0,
        0,
        rows=(start, length),
        kept_nbytes=kept,
        scratch=lambda n: 2 * n * matrix.shape[1 - axis] * itemsize,  # in the stored order; encoded
    )
    laid: Any = _InSlices(matrix, axis, sink.chunk)
    planned = _choose_copy(laid, spec, _slices, sink, memory_limit)
    if start == length:
        sink.finish()
        return planned.plan, PassCost("copy")
    return _copied(
        planned, matrix, sink, progress, ordered=not sink.concurrent(planned.blocks(spec).edges)
    )


def copy_sparse(
    matrix: ChunkedMatrix,
    sink: Any,
    axis: int,
    *,
    memory_limit: int | str | None = None,
    progress: Any = None,
) -> tuple[Plan, PassCost]:
    """Write the stored entries of a sparse matrix, in order along axis, by one lane.

    sink : with ``nbytes_in_memory``, ``finish`` and ``interrupted``.
    """
    kept = sink.nbytes_in_memory() + LABEL_NBYTES * sum(matrix.shape)
    spec = PassSpec("copy", axis, 0, 0, kept_nbytes=kept, stored=True)
    planned = _choose_copy(matrix, spec, _entries, sink, memory_limit)
    return _copied(planned, matrix, sink, progress, ordered=True)


def _choose_copy(
    matrix: Any, spec: PassSpec, values: Map, sink: Any, memory_limit: int | str | None
) -> Planned[PassResult]:
    """One pass that hands ``values`` of every block to the sink, planned."""
    solver = partial(with_arrays, arrays={"maps": {"values": values}, "sinks": {"values": sink}})
    candidate = Candidate("copy", "one pass", (spec,), solve=solver)
    return choose(matrix, "copy", [candidate], memory_limit)


def _copied(
    planned: Planned[PassResult], matrix: ChunkedMatrix, sink: Any, progress: Any, ordered: bool
) -> tuple[Plan, PassCost]:
    """The plan and the cost of a copy.  ordered : by one lane."""
    plan = replace(planned.plan, lanes=1) if ordered else planned.plan
    try:
        planned = replace(planned, plan=plan, matrix=matrix)
        return plan, execute(planned, Running(scheduler="threads", progress=progress)).answer.cost
    except BaseException:
        sink.interrupted()
        raise


def _entries(block: Block) -> Any:
    """The block itself, still sparse."""
    return block.values.asformat("csc" if block.axis else "csr")


class _InSlices:
    """A matrix for the plan: if the source can be cut anywhere, it is cut between slices."""

    def __init__(self, matrix: ChunkedMatrix, axis: int, step: int) -> None:
        self.matrix, self.axis, self.step = matrix, axis, step

    def __getattr__(self, name: str) -> Any:
        return getattr(self.matrix, name)

    def chunk_edges(self, axis: int) -> Array | None:
        edges = self.matrix.chunk_edges(axis)
        if edges is None and axis == self.axis:
            return regular_edges(self.matrix.shape[axis], self.step)
        return edges


def _slices(block: Block) -> Array:
    """The values, streamed axis first."""
    values = block.dense()
    return values.T if block.axis else values
