"""Data frames of nullable and mixed columns; columns that are no numbers are named."""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd
import pytest

import streampca
from streampca.errors import InvalidInputError, InvalidTypeError, NonFiniteError
from streampca.sources.frames import frame_values

RNG = np.random.default_rng(0)
N = 40


def nullable() -> tuple[pd.DataFrame, np.ndarray]:
    """(columns of several nullable dtypes beside floats, the same as float64 with NaN)."""
    x = RNG.integers(0, 2, (N, 6)).astype("f8")
    x[:, :4] += RNG.integers(0, 100, (N, 4))
    x[RNG.random((N, 6)) < 0.1] = np.nan
    x[:, 3] = np.arange(N) % 7 + 0.5
    columns: dict[str, Any] = {
        name: pd.array(np.where(np.isnan(column), None, column), dtype=dtype)
        for name, dtype, column in zip(
            "abcdef", ["Int64", "Float32", "UInt8", "Float64", "boolean", "Int16"], x.T, strict=True
        )
    }
    columns["d"] = x[:, 3]
    return pd.DataFrame(columns), x


def test_nullable_columns_are_numbers_with_holes() -> None:
    frame, x = nullable()
    assert np.isnan(x).any()
    np.testing.assert_array_equal(frame_values(frame), x)
    found = streampca.PCA(2, missing="mean").fit(frame)
    expected = streampca.PCA(2, missing="mean").fit(x)
    np.testing.assert_allclose(found.explained_variance_, expected.explained_variance_)
    np.testing.assert_allclose(found.transform(frame), expected.transform(x))
    assert list(found.feature_names_in_) == list("abcdef")
    with pytest.raises(NonFiniteError, match="missing='mean'"):
        streampca.PCA(2).fit(frame)
    filled = streampca.HardImpute(1, max_passes=50, tol=1e-3).fit(frame).impute(frame)
    assert isinstance(filled, pd.DataFrame)
    assert not filled.isna().any().any()


@pytest.mark.parametrize(
    ("dtypes", "holes", "expected"),
    [
        (("Int64", "Int64"), False, "i8"),
        (("Int64", "Int64"), True, "f8"),
        (("Int8", "boolean"), True, "f4"),
        (("Float32", "UInt16"), True, "f4"),
        (("Float32", "Float32"), True, "f4"),
        (("float32", "Int32"), False, "f8"),
        (("bool", "float64"), False, "f8"),
        (("boolean", "boolean"), False, "?"),
        (("int8", "int16"), False, "i2"),
        (("Sparse[float64]", "float64"), False, "f8"),
    ],
)
def test_the_dtype_holds_every_value(dtypes: Any, holes: bool, expected: str) -> None:
    x = RNG.integers(0, 2, (12, 2))
    frame = pd.DataFrame({f"c{j}": pd.Series(x[:, j]).astype(d) for j, d in enumerate(dtypes)})
    x = x.astype("f8")
    if holes:
        frame.iloc[3, 0], x[3, 0] = None, np.nan
    values = frame_values(frame)
    assert values.dtype == np.dtype(expected)
    np.testing.assert_array_equal(values.astype("f8"), x)


def test_columns_that_are_no_numbers_are_named() -> None:
    frame = pd.DataFrame(RNG.standard_normal((N, 2)), columns=["x", "y"])
    frame["place"] = "here"
    frame["kind"] = pd.Categorical(["a", "b"] * (N // 2))
    frame["day"] = pd.date_range("2000-01-01", periods=N)
    frame["mixed"] = pd.Series([1, "two"] * (N // 2), dtype=object)
    frame["numbers"] = pd.Series([1, 2.5] * (N // 2), dtype=object)
    with pytest.raises(InvalidTypeError, match=r"'place'.*'kind'.*'day'.*'mixed'") as error:
        streampca.PCA(2).fit(frame)
    assert "'numbers'" not in str(error.value)
    assert "X.drop(columns=['place'])" in str(error.value)
    kept = frame[["x", "y", "numbers"]]
    np.testing.assert_allclose(
        streampca.PCA(2).fit(kept).explained_variance_,
        streampca.PCA(2).fit(kept.to_numpy(float)).explained_variance_,
    )


def test_no_column_is_rounded() -> None:
    large = 2**62 + np.arange(N)
    for column in (large, pd.array(large, dtype="Int64"), pd.Series(large, dtype=object)):
        frame = pd.DataFrame({"time": column, "x": RNG.standard_normal(N)})
        with pytest.raises(InvalidTypeError, match=r"column 'time'.*2\*\*53"):
            streampca.PCA(1).fit(frame)
    with pytest.raises(InvalidTypeError, match=r"2\*\*53"):
        streampca.PCA(1).fit(np.array([[2**62 + 1, 1.5], [3, 4]], dtype=object))


def test_holes_in_what_is_removed_are_no_level() -> None:
    x = RNG.standard_normal((N, 3))
    for gap, values in ((None, ["a", "b"]), (np.nan, [1.0, 2.0]), (pd.NA, [1, 2])):
        batch = pd.Series([*values * (N // 2 - 1), gap, values[0]], name="batch")
        if gap is pd.NA:
            batch = batch.astype("Int64")
        for remove in (batch, batch.to_frame()):
            with pytest.raises(InvalidInputError, match=f"'batch' for 1 samples.*place {N - 2}"):
                streampca.PCA(1, remove=remove).fit(x)
    whole = pd.Series([1, 2] * (N // 2), dtype="Int64", name="age")
    assert streampca.PCA(1, remove=whole).fit(x).result_.design.names == ("age",)
