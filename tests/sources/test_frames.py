"""Data frames of nullable and mixed columns; columns that are no numbers are named."""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd
import pytest

import streampca
from streampca.errors import InvalidInputError, InvalidTypeError, NonFiniteError
from streampca.sources.tables.frames import frame_values

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


def arrow_kinds() -> list[Any]:
    """What makes a table of each library from columns with nulls."""
    pl, pa = pytest.importorskip("polars"), pytest.importorskip("pyarrow")
    return [
        pl.DataFrame,
        pa.table,
        lambda columns: pa.table(columns).combine_chunks().to_batches()[0],
    ]


@pytest.mark.parametrize("kind", range(3), ids=["polars", "table", "batch"])
def test_polars_and_pyarrow(kind: int) -> None:
    make = arrow_kinds()[kind]
    x = RNG.integers(-2, 3, (N, 4)).astype(float)
    x[RNG.random((N, 4)) < 0.1] = np.nan
    x[:, 0] = RNG.normal(size=N)
    x[:, 3] = np.where(np.isnan(x[:, 3]), np.nan, x[:, 3] > 0)
    columns = {
        name: [None if np.isnan(v) else to(v) for v in column]
        for name, to, column in zip("abcd", (float, int, int, bool), x.T, strict=True)
    }
    frame = make(columns)
    np.testing.assert_array_equal(frame_values(frame), x)
    matrix = streampca.open(frame)
    assert matrix.labels.features.names() == list("abcd")
    assert matrix.given_nbytes > x.nbytes
    found = streampca.PCA(2, missing="mean").fit(frame)
    expected = streampca.PCA(2, missing="mean").fit(x)
    np.testing.assert_allclose(found.explained_variance_, expected.explained_variance_)
    np.testing.assert_allclose(found.transform(frame), expected.transform(x))
    with pytest.raises(InvalidInputError, match="feature names should match"):
        found.transform(make({name: columns[name] for name in "bacd"}))
    filled = streampca.HardImpute(1, max_passes=50, tol=1e-3).fit(frame).impute(frame)
    assert type(filled) is type(frame)
    assert not np.isnan(frame_values(filled)).any()


@pytest.mark.parametrize("kind", range(3), ids=["polars", "table", "batch"])
def test_polars_and_pyarrow_columns_that_are_no_numbers(kind: int) -> None:
    make = arrow_kinds()[kind]
    columns: dict[str, Any] = {"x": [1.0, 2.0], "place": ["a", "b"]}
    columns["day"] = np.array(["2000-01-01", "2000-01-02"], "M8[us]")
    frame = make(columns)
    with pytest.raises(InvalidTypeError, match=r"'place'.*'day'.*not numeric") as error:
        streampca.open(frame)
    line = "X.drop('place')" if kind == 0 else "X.drop_columns(['place'])"
    assert line in str(error.value)
    assert streampca.open(make({"x": columns["x"]})).shape == (2, 1)
    with pytest.raises(InvalidTypeError, match=r"column 'id'.*2\*\*53"):
        streampca.open(make({"id": [2**62 + 1, None], "x": [1.0, 2.0]}))


def test_text_and_dates_of_an_index_name_the_samples() -> None:
    x = RNG.normal(size=(3, 2))
    names = pd.DataFrame(x, index=["a", "b", "c"])
    assert streampca.open(names).labels.samples.names() == ["a", "b", "c"]
    days = pd.DataFrame(x, index=pd.date_range("2000-01-01", periods=3))
    (found,) = streampca.open(days).labels.samples.coords.values()
    np.testing.assert_array_equal(found, days.index.to_numpy())
    numbers = streampca.open(pd.DataFrame(x, index=[5, 3, 4])).labels.samples
    np.testing.assert_array_equal(numbers.coords["sample"], [5, 3, 4])
    assert not streampca.open(pd.DataFrame(x)).labels.samples.named
