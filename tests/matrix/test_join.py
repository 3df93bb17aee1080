"""Matrices side by side or one under another."""

from __future__ import annotations

import copy
import pickle
from typing import Any

import numpy as np
import pytest
import scipy.sparse

from streampca.accumulators import Gram, MeanImputedScatter, Moments, Scatter
from streampca.errors import InvalidInputError, InvalidTypeError
from streampca.matrix import (
    ChunkedMatrix,
    Labels,
    ReadCount,
    Standardize,
    concat_features,
    concat_samples,
    regular_edges,
)
from tests.each import each


class Stored(ChunkedMatrix):
    """An array that pretends to be stored in chunks, and records every read."""

    def __init__(
        self,
        array: Any,
        chunks: tuple[int, int] | None = None,
        missing_value: Any = None,
        names: Any = None,
    ) -> None:
        self.array, self.chunks, self.missing_value = array, chunks, missing_value
        self.shape, self.dtype = array.shape, array.dtype
        self.labels = Labels.plain(self.shape, names)
        self.log: list[tuple[int, int, int]] = []

    def read(self, axis: int, start: int, stop: int) -> Any:
        self.log.append((axis, start, stop))
        return self.array[:, start:stop] if axis else self.array[start:stop]

    def chunk_edges(self, axis: int) -> Any:
        return None if self.chunks is None else regular_edges(self.shape[axis], self.chunks[axis])

    def count_chunks(self, axis: int, start: int, stop: int) -> int:
        if self.chunks is None:
            return 1
        step, other = self.chunks[axis], self.chunks[1 - axis]
        return (-(-stop // step) - start // step) * -(-self.shape[1 - axis] // other)

    def fingerprint(self) -> str:
        return f"{id(self.array)}"

    def reads(self) -> ReadCount:
        return ReadCount(len(self.log), 10 * len(self.log))

    def read_scratch_nbytes(self, axis: int, length: int) -> int:
        return 7 * length

    def prepare_reads(self, axis: int) -> ReadCount:
        return ReadCount(1 + axis, 3)

    def prepared(self) -> ReadCount:
        return ReadCount(2, 5)

    def part(self, axis: int, start: int, stop: int) -> ChunkedMatrix:
        smaller = copy.copy(self)
        smaller.log = []
        return smaller

    def restart_counts(self) -> None:
        self.log.clear()


def random(n: int, p: int, dtype: str = "float64", seed: int = 0) -> np.ndarray:
    rng = np.random.default_rng(seed)
    return (
        rng.integers(0, 3, (n, p)).astype(dtype)
        if dtype == "int8"
        else rng.normal(size=(n, p)).astype(dtype)
    )


def joined(axis: int, *arrays: Any, **more: Any) -> tuple[ChunkedMatrix, list[Stored]]:
    parts = [Stored(a, **more) for a in arrays]
    return (concat_features if axis else concat_samples)(*parts), parts


def pieces(axis: int) -> list[np.ndarray]:
    """Three arrays that fit together along axis."""
    shapes = [(4, 6), (1, 6), (5, 6)]
    return [random(*(s[::-1] if axis else s), seed=i) for i, s in enumerate(shapes)]


both_axes = pytest.mark.parametrize("axis", [0, 1])
streamed_axes = pytest.mark.parametrize("streamed", [0, 1])


@both_axes
@streamed_axes
@each("step", [1, 3, 4, 100])
def test_reading_is_reading_the_joined_array(axis: int, streamed: int, step: int) -> None:
    arrays = pieces(axis)
    whole = np.concatenate(arrays, axis=axis)
    matrix, _ = joined(axis, *arrays)
    assert matrix.shape == whole.shape
    laid = matrix.streamed(streamed, regular_edges(whole.shape[streamed], step))
    for i in range(laid.n_blocks):
        block = laid.read_block(i)
        part = slice(block.start, block.stop)
        assert np.array_equal(block.values, whole[:, part] if streamed else whole[part])
        assert block.axis == streamed
        assert block.index == i


@both_axes
def test_a_read_touches_only_the_parts_that_it_crosses(axis: int) -> None:
    matrix, parts = joined(axis, *pieces(axis))
    assert parts[0].log == []
    matrix.read(axis, 1, 3)
    matrix.read(axis, 3, 5)
    matrix.read(axis, 4, 7)
    assert parts[0].log == [(axis, 1, 3), (axis, 3, 4)]
    assert parts[1].log == [(axis, 0, 1), (axis, 0, 1)]
    assert parts[2].log == [(axis, 0, 2)]


@both_axes
@streamed_axes
@each("chunks", [None, (2, 3), (3, 2), (100, 100)])
def test_every_stored_chunk_is_read_once(axis: int, streamed: int, chunks: Any) -> None:
    matrix, parts = joined(axis, *pieces(axis), chunks=chunks)
    edges = matrix.chunk_edges(streamed)
    if edges is None:
        edges = regular_edges(matrix.shape[streamed], 2)
    else:
        assert edges[0] == 0
        assert edges[-1] == matrix.shape[streamed]
        assert np.all(np.diff(edges) > 0)
    laid = matrix.streamed(streamed, edges)
    counted = 0
    for i in range(laid.n_blocks):
        laid.read_block(i)
        counted += laid.count_chunks(streamed, int(edges[i]), int(edges[i + 1]))
    for part in parts:
        read = sorted((start, stop) for _, start, stop in part.log)
        assert [a for a, _ in read] == [0, *(b for _, b in read[:-1])], "no gap and no overlap"
        assert read[-1][1] == part.shape[streamed]
        if chunks is not None:
            ends = [*range(0, part.shape[streamed], chunks[streamed]), part.shape[streamed]]
            assert set(sum(read, ())) <= set(ends), "no chunk is cut"
    if chunks is not None:
        exact = sum(-(-p.shape[0] // chunks[0]) * -(-p.shape[1] // chunks[1]) for p in parts)
        assert counted == exact


def test_chunk_edges_across_the_join_are_those_that_all_parts_share() -> None:
    a, b = Stored(random(12, 2), (2, 1)), Stored(random(12, 5), (3, 5))
    free = Stored(random(12, 3))
    assert concat_features(a, b).chunk_edges(0).tolist() == [0, 6, 12]
    assert concat_features(a, free, b).chunk_edges(0).tolist() == [0, 6, 12]
    assert concat_features(free, a).chunk_edges(0).tolist() == [0, 2, 4, 6, 8, 10, 12]
    assert concat_features(free, free).chunk_edges(0) is None
    # along the join: those of each part, and a free part is free only at its ends
    assert concat_features(a, b).chunk_edges(1).tolist() == [0, 1, 2, 7]
    assert concat_features(a, free, b).chunk_edges(1).tolist() == [0, 1, 2, 5, 10]
    assert concat_features(free, free).chunk_edges(1) is None


@both_axes
@streamed_axes
@each(
    "dtypes", [("int8", "float32"), ("float32", "float64"), ("int8", "float64"), ("int8", "int8")]
)
def test_dtypes_are_joined_and_every_block_has_that_dtype(
    axis: int, streamed: int, dtypes: Any
) -> None:
    arrays = [random(4, 4, dtype, i) for i, dtype in enumerate(dtypes)]
    matrix, _ = joined(axis, *arrays)
    whole = np.concatenate(arrays, axis=axis)
    assert matrix.dtype == whole.dtype
    laid = matrix.streamed(streamed, regular_edges(whole.shape[streamed], 1))
    for i in range(laid.n_blocks):
        values = laid.read_block(i).values
        assert values.dtype == matrix.dtype, "also where the block lies in one part"
        assert np.array_equal(values, whole[:, i : i + 1] if streamed else whole[i : i + 1])


@both_axes
@streamed_axes
def test_missing_codes_become_nan(axis: int, streamed: int) -> None:
    arrays = [random(5, 5, "int8", 1), random(5, 5, "int8", 2), random(5, 5, "float32", 3)]
    first = Stored(arrays[0], missing_value=0)
    second = Stored(arrays[1], missing_value=2)
    matrix = (concat_features if axis else concat_samples)(first, second, Stored(arrays[2]))
    assert matrix.dtype == np.float32
    assert matrix.missing_value is None
    decoded = [
        np.where(arrays[0] == 0, np.nan, arrays[0]),
        np.where(arrays[1] == 2, np.nan, arrays[1]),
    ]
    whole = np.concatenate([*decoded, arrays[2]], axis=axis).astype(np.float32)
    for start in range(whole.shape[streamed]):
        part = slice(start, start + 1)
        found = matrix.read(streamed, start, start + 1)
        assert found.dtype == np.float32
        assert np.array_equal(found, whole[:, part] if streamed else whole[part], equal_nan=True)
    assert np.array_equal(arrays[0], first.array), "what was read is left alone"


@both_axes
@streamed_axes
@pytest.mark.parametrize("dtype", ["int8", "uint8", "int16"])
def test_integers_that_share_a_missing_code_keep_it(axis: int, streamed: int, dtype: str) -> None:
    arrays = [random(5, 5, "int8", seed).astype(dtype) for seed in (1, 2, 3)]
    matrix, _ = joined(axis, *arrays, missing_value=2)
    assert (matrix.dtype, matrix.missing_value) == (np.dtype(dtype), 2)
    whole = np.concatenate(arrays, axis=axis)
    for start, stop in ((0, 3), (3, 7), (0, whole.shape[streamed])):
        found = matrix.read(streamed, start, stop)
        assert found.dtype == dtype
        assert np.array_equal(found, whole[:, start:stop] if streamed else whole[start:stop])
    stats = matrix.streamed(streamed, regular_edges(whole.shape[streamed], 4)).read_block(0).stats
    piece = whole[:, :4] if streamed else whole[:4]
    assert np.array_equal(stats.missing, np.count_nonzero(piece == 2, axis=0))


@both_axes
@pytest.mark.parametrize(
    "codes", [(2, None), (2, 1), (None, None)], ids=["one has none", "two codes", "no code"]
)
def test_integers_whose_codes_differ_are_decoded(axis: int, codes: Any) -> None:
    arrays = [random(5, 5, "int8", seed) for seed in (1, 2)]
    parts = [Stored(a, missing_value=code) for a, code in zip(arrays, codes, strict=True)]
    matrix = (concat_features if axis else concat_samples)(*parts)
    assert matrix.missing_value is None
    coded = any(code is not None for code in codes)
    assert matrix.dtype == (np.float32 if coded else np.int8)
    expected = [
        np.where(a == code, np.nan, a) if code is not None else a
        for a, code in zip(arrays, codes, strict=True)
    ]
    found = matrix.read(axis, 0, 10)
    assert np.array_equal(found, np.concatenate(expected, axis=axis), equal_nan=True)


def test_codes_of_one_dtype_only_are_shared() -> None:
    """The same code in int8 and int16, or in floats, is decoded as ever."""
    small, wide = random(4, 4, "int8", 1), random(4, 4, "int8", 2).astype(np.int16)
    for parts in ((small, wide), (small.astype("f4"), small.astype("f4"))):
        matrix, _ = joined(1, *parts, missing_value=2)
        assert matrix.missing_value is None
        assert matrix.dtype == np.float32
        whole = np.concatenate(parts, axis=1).astype("f4")
        whole[whole == 2] = np.nan
        assert np.array_equal(matrix.read(1, 0, 8), whole, equal_nan=True)


class ByFeature(Stored):
    """Features one after another in memory, as variant-major files hold them."""

    into_buffer = True

    def read(self, axis: int, start: int, stop: int, buffer: Any = None) -> Any:
        values = super().read(axis, start, stop)
        if not axis or buffer is None:
            return np.asfortranarray(values)
        out = buffer[: values.size].view(values.dtype).reshape(values.shape[::-1]).T
        out[...] = values
        return out


def test_features_stay_one_after_another_and_in_the_buffer() -> None:
    arrays = [random(6, width, "int8", width) for width in (5, 1, 7)]
    matrix = concat_features(*[ByFeature(a, missing_value=-1) for a in arrays])
    assert matrix.into_buffer
    whole = np.concatenate(arrays, axis=1)
    buffer = np.zeros(whole.size, np.uint8)
    for start, stop in ((0, 4), (2, 5), (3, 9), (0, 13), (6, 13)):
        found = matrix.read(1, start, stop, buffer)
        assert found.flags.f_contiguous
        assert np.array_equal(found, whole[:, start:stop])
        one_part = stop <= 5 or start >= 6
        assert np.shares_memory(found, buffer) == one_part
    assert np.array_equal(matrix.read(0, 2, 4, buffer), whole[2:4])


def test_a_buffer_is_not_used_where_values_are_decoded() -> None:
    arrays = [random(6, 5, "int8", seed) for seed in (1, 2)]
    parts = [ByFeature(a, missing_value=code) for a, code in zip(arrays, (1, 2), strict=True)]
    matrix = concat_features(*parts)
    assert not matrix.into_buffer
    found = matrix.read(1, 0, 3, np.zeros(100, np.uint8))
    assert np.array_equal(found, np.where(arrays[0] == 1, np.nan, arrays[0])[:, :3], equal_nan=True)


def test_stamps_and_paths_are_those_of_all_parts() -> None:
    class Stamped(Stored):
        def content_stamp(self) -> str:
            return f"stamp of {self.shape}"

        def paths(self) -> tuple[str, ...]:
            return (f"/{self.shape[1]}",)

    a, b = Stamped(random(3, 2)), Stamped(random(3, 4))
    assert concat_features(a, b).paths() == ("/2", "/4")
    assert concat_features(a, b).content_stamp() != concat_features(b, a).content_stamp()
    assert concat_features(a, b).content_stamp() != concat_features(a, b).fingerprint()


@both_axes
@streamed_axes
@pytest.mark.parametrize("mixed", [False, True])
def test_sparse_parts(axis: int, streamed: int, mixed: bool) -> None:
    arrays = [random(4, 4, "float32", i) * (random(4, 4, "int8", i + 9) > 1) for i in range(2)]
    first = Stored(scipy.sparse.csr_array(arrays[0]))
    second = Stored(arrays[1] if mixed else scipy.sparse.csr_array(arrays[1]))
    matrix = (concat_features if axis else concat_samples)(first, second)
    whole = np.concatenate(arrays, axis=axis)
    if mixed and axis == streamed:
        found = matrix.read(streamed, 0, 8)
    else:
        found = matrix.read(streamed, 0, whole.shape[streamed])
    assert scipy.sparse.issparse(found)
    assert found.format == ("csc" if streamed else "csr")
    assert found.dtype == np.float32
    assert np.array_equal(found.toarray(), whole)


def test_labels_of_the_joined_axis_follow_each_other() -> None:
    a, b = Stored(random(3, 2), names=["x", "y"]), Stored(random(3, 2))
    both = concat_features(a, b)
    assert both.labels.features.names() == ["x", "y", "feature 0", "feature 1"]
    assert len(both.labels.samples) == 3
    under = concat_samples(a, a)
    assert under.labels.features.names() == ["x", "y"]
    assert len(under.labels.samples) == 6


def test_what_does_not_fit_is_refused() -> None:
    a, b = Stored(random(3, 2)), Stored(random(4, 2))
    with pytest.raises(InvalidInputError, match=r"\[3, 4\] samples"):
        concat_features(a, b)
    with pytest.raises(InvalidInputError, match=r"\[2, 3\] features"):
        concat_samples(a, Stored(random(4, 3)))
    with pytest.raises(InvalidInputError, match="nothing to join"):
        concat_features()


def test_joins_nest() -> None:
    a, b, c, d = (random(3, 4, seed=i) for i in range(4))
    matrix = concat_samples(
        concat_features(Stored(a), Stored(b)), concat_features(Stored(c, (2, 2)), Stored(d, (3, 1)))
    )
    whole = np.block([[a, b], [c, d]])
    for axis in (0, 1):
        for start in range(whole.shape[axis] - 1):
            part = slice(start, start + 2)
            found = matrix.read(axis, start, start + 2)
            assert np.array_equal(found, whole[:, part] if axis else whole[part])
    assert matrix.chunk_edges(0).tolist() == [0, 3, 6]


def test_an_empty_part_adds_nothing() -> None:
    a, none = random(3, 4), random(0, 4)
    matrix, _ = joined(0, none, a, none)
    assert matrix.shape == (3, 4)
    for start in range(3):
        assert np.array_equal(matrix.read(0, start, start + 1), a[start : start + 1])
    assert np.array_equal(matrix.read(1, 0, 2), a[:, :2])


@both_axes
def test_counts_estimates_and_fingerprints_are_those_of_all_parts(axis: int) -> None:
    matrix, parts = joined(axis, *pieces(axis), chunks=(2, 2))
    matrix.read(1 - axis, 0, 2)
    assert matrix.reads().chunks == 3
    assert matrix.reads().nbytes == 30
    assert (matrix.reads() - ReadCount(1, 10)).chunks == 2
    matrix.restart_counts()
    assert matrix.reads() == ReadCount()
    assert matrix.prepare_reads(1) == ReadCount(6, 9)
    assert matrix.prepared() == ReadCount(6, 15)
    own = 2 * matrix.shape[1 - axis] * 8
    assert matrix.read_scratch_nbytes(axis, 2) == own + 14
    other = (concat_features if axis else concat_samples)(*parts[::-1])
    assert matrix.fingerprint() != other.fingerprint()
    assert matrix.fingerprint() == matrix.fingerprint()
    assert matrix.nbytes == sum(p.nbytes for p in parts)
    assert "10" in repr(matrix)


@both_axes
@streamed_axes
def test_a_part_reads_the_same(axis: int, streamed: int) -> None:
    arrays = pieces(axis)
    matrix, _ = joined(axis, *arrays)
    whole = np.concatenate(arrays, axis=axis)
    smaller = pickle.loads(pickle.dumps(matrix.part(streamed, 2, 6)))
    assert np.array_equal(smaller.read(streamed, 3, 5), whole[:, 3:5] if streamed else whole[3:5])
    assert smaller.shape == matrix.shape


@both_axes
@pytest.mark.parametrize(
    ("kind", "streamed"), [("scatter", 0), ("gram", 1), ("moments", 0), ("moments", 1)]
)
def test_accumulators_see_the_joined_matrix(axis: int, streamed: int, kind: str) -> None:
    """Of integers with a code, floats and free edges together."""
    arrays = [random(9, 9, "int8", 1), random(9, 9, "float32", 2)]
    parts = [Stored(arrays[0], missing_value=2), Stored(arrays[1])]
    matrix = (concat_features if axis else concat_samples)(*parts)
    x = np.concatenate([np.where(arrays[0] == 2, np.nan, arrays[0]), arrays[1]], axis=axis)
    accumulator = {
        "scatter": MeanImputedScatter(),
        "gram": Gram(standardize=Standardize(), missing="mean"),
        "moments": Moments(),
    }[kind]
    laid = matrix.streamed(streamed, regular_edges(matrix.shape[streamed], 4))
    for i in range(laid.n_blocks):
        accumulator.update(laid.read_block(i))
    y = np.where(np.isnan(x), 0, x - np.nanmean(x, axis=0))
    if kind == "moments":
        assert np.allclose(accumulator.mean(), np.nanmean(x, axis=0))
    elif kind == "gram":
        assert np.allclose(accumulator.gram(), y @ y.T, atol=1e-4)
    else:
        assert np.allclose(accumulator.scatter(), y.T @ y, atol=1e-4)


def test_blocks_of_the_joined_matrix_do_not_depend_on_where_it_is_cut() -> None:
    """One dtype for all blocks: the working precision may not depend on the edges."""
    arrays = [random(40, 3, "int8", 1), random(40, 3, "float64", 2)]
    exact = np.cov(np.concatenate(arrays), rowvar=False)
    for step in (1, 7, 40, 80):
        matrix, _ = joined(0, *arrays)
        laid = matrix.streamed(0, regular_edges(80, step))
        scatter = Scatter()
        for i in range(laid.n_blocks):
            scatter.update(laid.read_block(i))
        assert np.allclose(scatter.covariance(), exact, rtol=1e-13, atol=1e-14)


@pytest.mark.parametrize("join", [concat_features, concat_samples])
def test_what_is_no_matrix_is_refused_with_the_line_that_repairs_it(join: Any) -> None:
    matrix, array = Stored(np.ones((3, 2))), np.ones((3, 2))
    for parts, name in (([[matrix, matrix]], "list"), ([matrix, array], "ndarray")):
        said = rf"cannot join a {name}; .*: {join.__name__}\(streampca\.open\(X\), "
        with pytest.raises(InvalidTypeError, match=said):
            join(*parts)
