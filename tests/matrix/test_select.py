"""Selected rows and columns equal NumPy's, whatever the source, and read no more than they need."""

from __future__ import annotations

import pickle

import numpy as np
import pytest
import scipy.sparse
import zarr
from hypothesis import given
from hypothesis import strategies as st

import streampca
from streampca.errors import InvalidInputError
from streampca.matrix import select
from streampca.passes import block_edges


def entries(draw: st.DrawFn, size: int) -> np.ndarray | None:
    mask = np.array(draw(st.lists(st.booleans(), min_size=size, max_size=size)))
    return mask if mask.any() and draw(st.booleans()) else None


@st.composite
def cases(draw: st.DrawFn) -> tuple:
    n, p = draw(st.integers(1, 12)), draw(st.integers(1, 12))
    kind = draw(st.sampled_from(["array", "dask", "sparse", "by feature"]))
    return n, p, kind, entries(draw, n), entries(draw, p), draw(st.integers(0, 1))


def opened(x: np.ndarray, kind: str) -> streampca.ChunkedMatrix:
    if kind == "dask":
        import dask.array as da

        return streampca.open(da.from_array(x, chunks=(3, 4)))
    if kind == "sparse":
        return streampca.open(scipy.sparse.csr_array(x))
    if kind == "by feature":
        return streampca.open(np.ascontiguousarray(x.T), dim=1)
    return streampca.open(x)


@given(cases())
def test_a_selection_equals_numpy(case: tuple) -> None:
    n, p, kind, rows, columns, axis = case
    x = np.random.default_rng(n * 13 + p).integers(-1, 3, (n, p)).astype(np.int8)
    chosen = select(opened(x, kind), rows, columns)
    wanted = x[slice(None) if rows is None else rows][
        :, slice(None) if columns is None else columns
    ]
    assert chosen.shape == wanted.shape
    edges = block_edges(chosen, axis)
    laid = chosen.streamed(axis, edges)
    blocks = [laid.read_block(i).dense() for i in range(laid.n_blocks)]
    np.testing.assert_array_equal(np.concatenate(blocks, axis=axis), wanted)
    last = chosen.part(axis, int(edges[-2]), int(edges[-1]))
    last = pickle.loads(pickle.dumps(last)).streamed(axis, edges)
    np.testing.assert_array_equal(last.read_block(laid.n_blocks - 1).dense(), blocks[-1])


def test_labels_of_a_selection() -> None:
    import xarray as xr

    table = xr.DataArray(
        np.arange(12.0).reshape(3, 4),
        dims=("sample", "variant"),
        coords={"variant": list("abcd"), "position": ("variant", [10, 20, 30, 40])},
    )
    chosen = select(streampca.open(table), features=np.array([True, False, False, True]))
    features = chosen.labels.features
    assert features.names() == ["a", "d"]
    assert features.extra["position"].tolist() == [10, 40]


def test_chunks_without_a_selected_entry_are_not_read(tmp_path) -> None:
    x = np.arange(60.0).reshape(6, 10)
    zarr.create_array(str(tmp_path / "x"), data=x, chunks=(2, 2))
    chosen = select(streampca.open(str(tmp_path / "x")), features=np.array([0, 1, 8]))
    assert chosen.count_chunks(1, 0, 3) == 6
    np.testing.assert_array_equal(chosen.read(1, 0, 3), x[:, [0, 1, 8]])
    assert chosen.reads().chunks == 6


def test_a_selection_of_a_selection_is_one() -> None:
    x = np.arange(60.0).reshape(6, 10)
    twice = select(select(streampca.open(x), np.arange(1, 6)), np.array([0, 4]), np.array([9]))
    np.testing.assert_array_equal(twice.read(0, 0, 2), x[[1, 5]][:, [9]])
    assert type(twice.base).__name__ == "StackedMatrix"
    assert twice.fingerprint() != streampca.open(x).fingerprint()


def test_everything_is_the_matrix_itself() -> None:
    matrix = streampca.open(np.eye(3))
    assert select(matrix, np.ones(3, bool), np.arange(3)) is matrix


@pytest.mark.parametrize(
    ("rows", "match"),
    [
        (np.zeros(3, bool), "no samples are left"),
        (np.array([2, 1]), "must increase"),
        (np.array([1, 3]), "must increase within"),
        (np.ones(4, bool), "mask of 4"),
    ],
)
def test_bad_selections(rows: np.ndarray, match: str) -> None:
    with pytest.raises(InvalidInputError, match=match):
        select(streampca.open(np.eye(3)), rows)


def test_a_selection_takes_four_bytes_an_entry_and_the_plan_knows() -> None:
    base = streampca.open(np.zeros((3, 1000)))
    chosen = select(base, features=np.arange(0, 1000, 2))
    assert chosen.resident_nbytes == base.resident_nbytes + 4 * 500
    again = select(chosen, features=np.arange(500) % 2 == 0)
    np.testing.assert_array_equal(again.chosen[1], np.arange(0, 1000, 4))
    assert select(base, features=np.ones(1000, np.bool_)) is base
