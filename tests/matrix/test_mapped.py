"""Features that a function makes of rows: from any source, and what identifies the function."""

from __future__ import annotations

import pickle
from functools import partial
from pathlib import Path
from typing import Any

import dask.array as da
import numpy as np
import pytest
import scipy.sparse
import zarr

import streampca
from streampca.errors import InvalidInputError, InvalidTypeError
from streampca.matrix import FourierFeatures, MappedMatrix, RowFunction
from streampca.matrix.mapped import code_of
from streampca.passes import block_edges

X = np.random.default_rng(0).integers(-2, 3, (23, 5)).astype(np.int8)


def products(x: np.ndarray) -> np.ndarray:
    """x and the products of neighbouring columns."""
    return np.hstack([x, x[:, 1:] * x[:, :-1]])


def mapped(source: Any, function: Any = products, count: int = 9) -> MappedMatrix:
    return MappedMatrix(
        streampca.open(source), RowFunction("products", 5, count, function=function)
    )


SOURCES = {
    "array": lambda: X,
    "dask": lambda: da.from_array(X, chunks=(4, 2)),
    "sparse": lambda: scipy.sparse.csr_array(X),
    "by feature": lambda: streampca.open(np.ascontiguousarray(X.T), dim=1),
}


@pytest.mark.parametrize("axis", [0, 1])
@pytest.mark.parametrize("source", SOURCES)
def test_the_function_of_all_rows(source: str, axis: int) -> None:
    matrix = mapped(SOURCES[source]())
    expected = products(X.astype(np.float32))
    assert (matrix.shape, matrix.dtype, matrix.sparse) == (expected.shape, np.float32, False)
    edges = block_edges(matrix, axis)
    laid = matrix.streamed(axis, edges)
    blocks = [laid.read_block(i).dense() for i in range(laid.n_blocks)]
    np.testing.assert_array_equal(np.concatenate(blocks, axis=axis), expected)
    last = matrix.part(axis, int(edges[-2]), int(edges[-1]))
    last = pickle.loads(pickle.dumps(last)).streamed(axis, edges)
    np.testing.assert_array_equal(last.read_block(laid.n_blocks - 1).dense(), blocks[-1])


def test_each_chunk_is_read_once_by_rows(tmp_path: Path) -> None:
    zarr.create_array(str(tmp_path / "x"), data=X, chunks=(4, 5))
    matrix = mapped(str(tmp_path / "x"))
    assert matrix.count_span(0, block_edges(matrix, 0)) == 6
    assert matrix.count_chunks(1, 0, 9) == 6
    np.testing.assert_array_equal(matrix.chunk_edges(0), [0, 4, 8, 12, 16, 20, 23])
    np.testing.assert_array_equal(matrix.chunk_edges(1), [0, 9])


def test_a_missing_code_becomes_nan() -> None:
    base = streampca.open(X, missing_value=2)
    read = MappedMatrix(base, RowFunction("same", 5, 5, function=lambda x: x)).read(0, 0, 23)
    np.testing.assert_array_equal(np.isnan(read), X == 2)


def test_a_function_that_gives_something_else_is_refused() -> None:
    with pytest.raises(InvalidInputError, match=r"shape \(23, 9\) for 23 rows; expected \(23, 8\)"):
        mapped(X, count=8).read(0, 0, 23)
    with pytest.raises(InvalidTypeError, match="gave complex"):
        mapped(X, lambda x: products(x) * 1j).read(0, 0, 23)


def test_a_fingerprint_is_of_the_code_and_what_it_encloses() -> None:
    def scaled(by: Any) -> Any:
        return lambda x: products(x) * by

    found = [
        mapped(X, one).fingerprint()
        for one in (
            scaled(2.0),
            scaled(3.0),
            scaled(np.arange(9)),
            products,
            partial(np.tile, reps=2),
            partial(np.tile, reps=3),
        )
    ]
    assert len(set(found)) == len(found)
    assert mapped(X, scaled(2.0)).fingerprint() == found[0]
    assert mapped(X + 1, scaled(2.0)).fingerprint() != found[0]
    assert code_of(scaled(object())) == code_of(scaled(object()))  # addresses say nothing


EVER = [[0.6921185247779336, -0.07267225275942463, 0.14481694534555312, -0.7033624554089237]]


def test_frequencies_follow_from_the_seed() -> None:
    """A saved model holds the seed alone: these numbers may never change."""
    step = FourierFeatures("rbf", 0.5, 2, 4, 0)
    np.testing.assert_allclose(step.features(np.array([[1.0, 2.0]])), EVER, atol=1e-8)
    more = FourierFeatures("rbf", 0.5, 2, 8, 0).features(np.array([[1.0, 2.0]]))
    np.testing.assert_allclose(more[:, [0, 1, 4, 5]] * np.sqrt(2), EVER, atol=1e-8)


@pytest.mark.parametrize("kernel", ["rbf", "laplacian"])
def test_frequencies_part_by_part(kernel: str, monkeypatch: pytest.MonkeyPatch) -> None:
    rows = np.random.default_rng(1).standard_normal((6, 70))
    step = FourierFeatures(kernel, 0.01, 70, 20, 3)
    expected = step.features(rows)
    monkeypatch.setattr("streampca.matrix.mapped.HELD_NBYTES", 0)
    monkeypatch.setattr("streampca.matrix.mapped.PANEL_NBYTES", 4 * 20 * 16)
    again = FourierFeatures(kernel, 0.01, 70, 20, 3)
    assert len(again._panels()) == 5
    np.testing.assert_allclose(again.features(rows), expected, atol=1e-12)
    assert "_kept" not in vars(pickle.loads(pickle.dumps(step)))


def test_float32_rows_lose_no_turns() -> None:
    rows = np.random.default_rng(1).standard_normal((6, 7)).astype(np.float32) * 1e4
    step = FourierFeatures("rbf", 1.0, 7, 200, 3)
    found = step.features(rows)
    assert found.dtype == np.float32
    np.testing.assert_allclose(found, step.features(rows.astype(float)), atol=1e-7)
