"""64-bit integers beyond 2^53: refused on every path, since float64 would round them."""

from __future__ import annotations

from typing import Any

import dask.array
import numpy as np
import pytest
import scipy.sparse
import zarr

import streampca
from streampca.errors import InvalidTypeError
from streampca.matrix.block import inexact
from tests.each import each

RNG = np.random.default_rng(0)
NEAR = RNG.integers(-1000, 1000, (60, 5))
FAR = 2**62 + NEAR

ways = pytest.mark.parametrize("way", ["array", "dask", "zarr", "csr", "csc", "uint64", "list"])


def far(way: str, folder: Any) -> Any:
    """Integers near 2^62, as they may come."""
    if way == "zarr":
        zarr.create_array(f"{folder}/x.zarr", data=FAR, chunks=(20, 5))
        return f"{folder}/x.zarr"
    return {
        "array": lambda: FAR,
        "dask": lambda: dask.array.from_array(FAR, chunks=(20, 5)),
        "csr": lambda: scipy.sparse.csr_array(FAR),
        "csc": lambda: scipy.sparse.csc_array(FAR),
        "uint64": lambda: FAR.astype("u8") * np.uint64(3),
        "list": FAR.tolist,
    }[way]()


@ways
@each("solver", ["scatter", "tsqr", "gram", "randomized", "sketch"])
def test_no_solver_rounds(way: str, solver: str, tmp_path: Any) -> None:
    with pytest.raises(InvalidTypeError, match=r"2\*\*53.*X - X\.min\(axis=0\)"):
        streampca.PCA(2, svd_solver=solver).fit(far(way, tmp_path))


@ways
def test_no_model_rounds(way: str, tmp_path: Any) -> None:
    x = far(way, tmp_path)
    for model in (
        streampca.TruncatedSVD(2),
        streampca.IncrementalPCA(2),
        streampca.PPCA(2),
        streampca.FactorAnalysis(1),
        streampca.HardImpute(2),
        streampca.PCA(2, missing="impute"),
    ):
        with pytest.raises(InvalidTypeError, match="rounds larger ones"):
            model.fit(x)
    with pytest.raises(InvalidTypeError, match="rounds larger ones"):
        streampca.covariance(x)
    with pytest.raises(InvalidTypeError, match="rounds larger ones"):
        streampca.preprocess.normalize_total(x)


@ways
def test_a_fitted_model_rounds_no_new_rows(way: str, tmp_path: Any) -> None:
    x = far(way, tmp_path)
    for model in (
        streampca.PCA(2).fit(NEAR),
        streampca.HardImpute(2).fit(NEAR),
        streampca.PPCA(2).fit(NEAR),
    ):
        with pytest.raises(InvalidTypeError, match="rounds larger ones"):
            np.asarray(model.transform(x))
    with pytest.raises(InvalidTypeError, match="rounds larger ones"):
        streampca.HardImpute(2).fit(NEAR).impute(x)


@pytest.mark.parametrize("dtype", ["i8", "u8"])
def test_the_line_of_the_message_repairs_it(dtype: str) -> None:
    x = FAR.astype(dtype)
    found = streampca.PCA(2).fit(x - x.min(axis=0))
    np.testing.assert_allclose(
        found.explained_variance_, streampca.PCA(2).fit(NEAR).explained_variance_, rtol=1e-12
    )


def test_joined_and_derived_matrices_round_nothing() -> None:
    floats = RNG.standard_normal((60, 2))
    both = streampca.concat_features(streampca.open(FAR), streampca.open(floats))
    with pytest.raises(InvalidTypeError, match="rounds larger ones"):
        streampca.PCA(2).fit(both)
    with pytest.raises(InvalidTypeError, match="rounds larger ones"):
        streampca.PCA(2).fit(streampca.preprocess.log1p(FAR))


def test_the_missing_code_may_be_any_number() -> None:
    x = NEAR.astype("i8")
    x[3, 2] = np.iinfo("i8").min
    model = streampca.PCA(2, missing="mean", missing_value=-(2.0**63)).fit(x)
    holes = np.where(x == np.iinfo("i8").min, np.nan, x)
    expected = streampca.PCA(2, missing="mean").fit(holes)
    np.testing.assert_allclose(model.explained_variance_, expected.explained_variance_, rtol=1e-12)


@pytest.mark.parametrize("dtype", ["i8", "u8"])
def test_the_limit_itself_is_exact(dtype: str) -> None:
    x = np.array([[2**53, 1], [0, 2]], dtype)
    assert inexact(x) is None
    x[0, 0] += np.array(1, dtype)
    np.testing.assert_array_equal(inexact(x), [[True, False], [False, False]])
    assert inexact(np.array([[-(2**53)]])) is None
    assert inexact(np.array([[-(2**53) - 1]])) is not None
    assert inexact(np.array([[2**30]], "i4")) is None


def test_a_chunk_that_was_declared_as_floats() -> None:
    whole = dask.array.from_array(np.zeros(FAR.shape), chunks=(20, 5))
    late = whole.map_blocks(lambda block: FAR[: len(block)], dtype="f8", meta=np.empty((0, 0)))
    with pytest.raises(InvalidTypeError, match=r"declared as floats.*2\*\*53"):
        streampca.PCA(2).fit(late)
