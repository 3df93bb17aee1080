"""NumPy masked arrays: what lies under the mask is missing, whatever is stored there."""

from __future__ import annotations

import pickle
from typing import Any

import dask.array
import numpy as np
import pytest
import xarray as xr

import streampca
from streampca.errors import InvalidInputError, InvalidTypeError, NonFiniteError
from streampca.sources.memory.arrays import MaskedReader, free_code

pytestmark = pytest.mark.filterwarnings("ignore::streampca.errors.ConvergenceWarning")
DTYPES = ["f2", "f4", "f8", ">f4", "i1", "u1", "i2", "u2", "i4", "i8", "u8", "?"]


def masked(dtype: str, shape: tuple[int, int] = (60, 6), seed: int = 0) -> Any:
    """(a masked array with rubbish under the mask, the same as float64 with NaN)."""
    rng = np.random.default_rng(seed)
    x = rng.integers(0, 2 if dtype == "?" else 90, shape).astype(dtype)
    mask = rng.random(shape) < 0.15
    holes = np.where(mask, np.nan, x.astype("f8"))
    if np.dtype(dtype).kind in "iu":
        x[mask] = np.iinfo(dtype).max
    elif dtype != "?":
        x[mask] = np.finfo(dtype).max
    return np.ma.masked_array(x, mask), holes


@pytest.mark.parametrize("dtype", DTYPES)
def test_the_mask_means_missing(dtype: str) -> None:
    x, holes = masked(dtype)
    with pytest.raises(NonFiniteError, match="missing='mean'"):
        streampca.PCA(2).fit(x)
    rtol = 2e-3 if dtype == "f2" else 1e-5
    for settings in ({}, {"svd_solver": "gram"}, {"svd_solver": "randomized"}, {"scale": "std"}):
        model = streampca.PCA(2, missing="mean", **settings)
        plain = streampca.PCA(2, missing="mean", **settings).fit(holes)
        assert model.plan(x).passes
        model.fit(x)
        np.testing.assert_allclose(model.explained_variance_, plain.explained_variance_, rtol=rtol)
        np.testing.assert_allclose(model.transform(x), plain.transform(holes), atol=1e-3)
        np.testing.assert_array_equal(model.result_.missing, np.isnan(holes).sum(axis=0))


@pytest.mark.parametrize("dtype", ["f4", "i1"])
def test_every_model_takes_it(dtype: str) -> None:
    x, holes = masked(dtype)
    sources = {"masked": x, "plain": holes.astype("f4") if dtype == "f4" else holes}
    found: dict[str, dict[str, Any]] = {}
    for name, one in sources.items():
        increments = streampca.IncrementalPCA(2, missing="mean")
        for part in (one[:20], one[20:]):
            increments.partial_fit(part)
        hard = streampca.HardImpute(1, tol=1e-6, max_passes=300).fit(one)
        found[name] = {
            "increments": increments.explained_variance_,
            "imputed": hard.impute(one),
            "completed": streampca.PCA(1, missing="impute").fit(one).explained_variance_,
            "soft": streampca.SoftImpute(1, lambda_=1.0).fit(one).transform(one),
            "ppca": streampca.PPCA(1, missing="em").fit(one).transform(one),
            "covariance": streampca.covariance(one, missing="mean"),
            "correlation": streampca.correlation(one, missing="mean"),
        }
        seen = ~np.isnan(holes)
        np.testing.assert_allclose(found[name]["imputed"][seen], holes[seen], rtol=1e-6)
    for quantity, expected in found["plain"].items():
        np.testing.assert_allclose(
            np.abs(found["masked"][quantity]),
            np.abs(expected),
            rtol=2e-3,
            atol=2e-4,
            err_msg=quantity,
        )


def test_an_integer_keeps_its_dtype_and_is_not_copied_whole() -> None:
    for dtype in ("i1", "u1", "i2", "i4", "i8", "u8"):
        x, _ = masked(dtype)
        matrix: Any = streampca.open(x)
        assert matrix.dtype == np.dtype(dtype)
        assert np.shares_memory(matrix.reader.array, x.data)
        assert matrix.missing_value not in x.compressed()
    x, _ = masked("?")
    assert streampca.open(x).dtype == np.uint8


def test_a_code_is_free_in_every_case() -> None:
    every = np.arange(-128, 128).astype("i1").reshape(16, 16)
    mask = np.zeros(every.shape, bool)
    dtype, code = free_code(every, mask)  # all values are in use
    assert (dtype, code) == (np.dtype("i2"), -(2**15))
    mask[every == -128] = True
    assert free_code(every, mask) == (np.dtype("i1"), -128)
    assert free_code(every, mask, -9) == (np.dtype("i1"), -9)
    assert free_code(every, mask, 1000) == (np.dtype("i1"), -128)
    assert free_code(every.view("u1"), mask) == (np.dtype("i2"), -(2**15))
    with pytest.raises(InvalidTypeError, match="2\\*\\*53"):
        free_code(np.array([[0, 2**64 - 1]], "u8"), np.zeros((1, 2), bool))


def test_a_missing_code_beside_the_mask() -> None:
    for dtype in ("i2", "u1", "f8"):
        x, holes = masked(dtype)
        code = 7.0
        holes = np.where(holes == code, np.nan, holes)
        model = streampca.PCA(2, missing="mean", missing_value=code).fit(x)
        plain = streampca.PCA(2, missing="mean").fit(holes)
        np.testing.assert_allclose(model.explained_variance_, plain.explained_variance_, rtol=1e-5)
        np.testing.assert_array_equal(model.result_.missing, np.isnan(holes).sum(axis=0))
    x, holes = masked("u1")  # a code that the dtype does not have
    model = streampca.PCA(2, missing="mean", missing_value=-9).fit(x)
    np.testing.assert_array_equal(model.result_.missing, np.isnan(holes).sum(axis=0))


def test_blocks_of_either_axis_and_parts_of_them() -> None:
    for dtype in ("f4", ">i4", "i1"):
        x, holes = masked(dtype, (30, 8))
        matrix: Any = pickle.loads(pickle.dumps(streampca.open(x)))
        for axis, (a, b) in ((0, (4, 19)), (1, (2, 7))):
            part = matrix.part(axis, a, b).part(axis, a + 1, b)
            read = part.read(axis, a + 1, b).astype("f8")
            if matrix.missing_value is not None:
                read[read == matrix.missing_value] = np.nan
            index = (slice(a + 1, b), slice(None))
            np.testing.assert_array_equal(read, holes[index if axis == 0 else index[::-1]])


def test_what_no_mask_makes_a_matrix_is_refused() -> None:
    with pytest.raises(InvalidTypeError, match="expected real numbers"):
        streampca.PCA(1).fit(np.ma.zeros((3, 2), dtype=[("a", "f8"), ("b", "f8")]))
    with pytest.raises(InvalidTypeError, match="Complex"):
        streampca.PCA(1).fit(np.ma.masked_array(np.ones((3, 2)) * 1j, np.eye(3, 2)))
    constant = [[1.0, 2.0], [np.ma.masked, 3.0], [4.0, 1.0]]
    found = streampca.PCA(1, missing="mean").fit(constant)
    np.testing.assert_array_equal(found.result_.missing, [1, 0])


def test_a_mask_tells_sources_apart() -> None:
    x, _ = masked("f8")
    other = np.ma.masked_array(x.data, ~x.mask)
    assert streampca.open(x).fingerprint() != streampca.open(other).fingerprint()
    assert streampca.open(x).content_stamp() != streampca.open(other).content_stamp()
    unhidden = streampca.open(np.ma.masked_array(x.data))
    assert not isinstance(unhidden.reader, MaskedReader)  # type: ignore[attr-defined]


def test_lists_and_labelled_arrays() -> None:
    x, holes = masked("f8")
    expected = streampca.PCA(2, missing="mean").fit(holes).explained_variance_
    cube = np.ma.masked_array(x.reshape(60, 2, 3))
    for source, dim in (
        (list(x), None),
        ([row.tolist() if not row.mask.any() else row for row in x], None),
        (xr.DataArray(x, dims=("time", "place")), None),
        (dask.array.from_array(x, chunks=(20, 6)), None),
        (xr.DataArray(x, dims=("time", "place")).chunk({"time": 20}), None),
        (cube, 0),
    ):
        model = streampca.PCA(2, missing="mean").fit(source, dim=dim)
        np.testing.assert_allclose(model.explained_variance_, expected, rtol=1e-9)
        with pytest.raises(NonFiniteError):
            streampca.PCA(2).fit(source, dim=dim)


def test_lazy_scores_of_masked_chunks() -> None:
    for dtype in ("f8", "i2"):
        x, holes = masked(dtype)
        model = streampca.PCA(2, missing="mean").fit(holes)
        lazy = dask.array.from_array(x, chunks=(20, 6))
        scores = np.asarray(model.transform(lazy))
        np.testing.assert_allclose(scores, model.transform(holes), rtol=1e-4, atol=1e-4)
        found = streampca.PCA(2, missing="mean").fit(lazy).explained_variance_
        np.testing.assert_allclose(found, model.explained_variance_, rtol=1e-5)


def test_joined_and_selected_parts_keep_it() -> None:
    (x, holes), (y, gaps) = masked("i2"), masked("f4", seed=1)
    joined = streampca.concat_features(streampca.open(x), streampca.open(y))
    expected = streampca.PCA(2, missing="mean").fit(np.hstack([holes, gaps]))
    model = streampca.PCA(2, missing="mean").fit(joined)
    np.testing.assert_allclose(model.explained_variance_, expected.explained_variance_, rtol=1e-5)


def test_arrays_beside_the_matrix_are_refused_by_name() -> None:
    x = np.random.default_rng(0).standard_normal((30, 4))
    rows, columns = np.ma.ones(30), np.ma.ones(4)
    streampca.PCA(2, weights=columns, remove=np.ma.arange(30.0)).fit(x, sample_weight=rows)
    rows[3] = columns[2] = np.ma.masked
    with pytest.raises(InvalidInputError, match="sample_weight is a masked array with 1 masked"):
        streampca.PCA(2).fit(x, sample_weight=rows)
    with pytest.raises(InvalidInputError, match="weights is a masked array"):
        streampca.PCA(2, weights=columns).fit(x)
    with pytest.raises(InvalidInputError, match="remove is a masked array"):
        streampca.PCA(2, remove=rows).fit(x)
    with pytest.raises(InvalidInputError, match="sample_weight is a masked array"):
        streampca.HardImpute(2).fit(x, sample_weight=rows)
    square = np.ma.masked_array(np.eye(4), np.eye(4, k=1))
    with pytest.raises(InvalidInputError, match="S is a masked array"):
        streampca.PCA(2).from_covariance(square)
    scores = np.ma.masked_array(np.ones((30, 2)), np.eye(30, 2))
    with pytest.raises(InvalidInputError, match="X is a masked array with 2 masked"):
        streampca.PCA(2).fit(x).inverse_transform(scores)
    with pytest.raises(InvalidInputError, match="init is a masked array"):
        streampca.HardImpute(2, init=(scores, None)).fit(x)


def test_genotypes() -> None:
    calls = np.random.default_rng(0).integers(0, 3, (40, 30)).astype("i1")
    coded = calls.copy()
    mask = np.random.default_rng(1).random(calls.shape) < 0.1
    calls[mask], coded[mask] = 99, -1
    found = streampca.GenotypePCA(2).fit(np.ma.masked_array(calls, mask))
    expected = streampca.GenotypePCA(2).fit(coded)
    np.testing.assert_allclose(found.explained_variance_, expected.explained_variance_)
