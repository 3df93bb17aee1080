"""Columns of tables that name their rows: asked about, and what two views are paired by."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pytest
import xarray as xr

import streampca
from streampca.errors import (
    AbsentNamesWarning,
    IncompleteSourceWarning,
    InvalidInputError,
    InvalidTypeError,
    RowNumbersWarning,
    SourceError,
)
from streampca.sources import as_pair
from streampca.sources.tables.row_names import called_id

pytestmark = pytest.mark.filterwarnings("ignore::streampca.errors.DominantFeatureWarning")

N = 24
RNG = np.random.default_rng(5)
Z = RNG.normal(size=(N, 1))
X = pd.DataFrame(Z * [1.0, 2, 3] + 0.1 * RNG.normal(size=(N, 3)), columns=["a", "b", "c"])
Y = pd.DataFrame(Z * [3.0, 1] + 0.1 * RNG.normal(size=(N, 2)), columns=["d", "e"])
ORDER = RNG.permutation(N)
IDS = np.array([f"s{i}" for i in range(N)], object)
EXPECTED = streampca.CCA(1).fit(X.to_numpy(), Y.to_numpy()).correlations_
LEFT_OUT = "ignore:.*are not numeric, and left out"


def stored(frame: pd.DataFrame, path: Path, kind: str) -> str:
    """The path of a table without an index of its own."""
    place = path.with_suffix(f".{kind}")
    if kind == "parquet":
        frame.to_parquet(place, index=False)
    elif kind == "arrow":
        frame.reset_index(drop=True).to_feather(place)
    else:
        frame.to_csv(place, index=False, sep="\t" if kind == "tsv" else ",")
    return str(place)


def correlation(x: Any, y: Any) -> Any:
    return streampca.CCA(1).fit(x, y).correlations_


def named(frame: pd.DataFrame, values: Any, column: str = "sample") -> pd.DataFrame:
    made = frame.copy()
    made.insert(0, column, values)
    return made


# -- numbers of rows ------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["csv", "tsv", "parquet", "arrow", "pandas", "polars", "Arrow"])
@pytest.mark.parametrize("column", ["id", "SampleID", "patient_id", "index", "Unnamed: 0"])
def test_numbers_that_name_rows_are_no_feature(kind: str, column: str, tmp_path: Path) -> None:
    table = named(X, 100 + ORDER, column)
    frames = {"pandas": table, "polars": pl.from_pandas(table), "Arrow": pa.table(dict(table))}
    source = frames[kind] if kind in frames else stored(table, tmp_path / "x", kind)
    with pytest.raises(InvalidInputError, match=rf"column '{column}' holds a different whole"):
        streampca.PCA(1).fit(source)
    repaired = streampca.open(source, index=column)
    np.testing.assert_array_equal(repaired.labels.samples.coords["sample"], 100 + ORDER)
    assert repaired.shape == (N, 3)
    assert streampca.open(source, columns=list(table.columns)).shape == (N, 4)


def test_numbers_with_zeros_in_front_are_names(tmp_path: Path) -> None:
    path = stored(named(X, [f"{i:03d}" for i in ORDER], "code"), tmp_path / "x", "csv")
    with pytest.raises(InvalidInputError, match=r"'code' .* zeros in front.*index='code'"):
        streampca.PCA(1).fit(path)
    assert streampca.open(path, index="code").labels.samples.names() == [f"{i:03d}" for i in ORDER]
    months = stored(named(X, [f"{i % 12:02d}" for i in ORDER], "month"), tmp_path / "y", "csv")
    assert streampca.open(months).shape == (N, 4)


def test_the_repair_of_a_frame_works() -> None:
    table = named(X, 100 + ORDER, "id")
    with pytest.raises(InvalidInputError, match=r"X\.set_index\('id'\) makes it name the rows"):
        streampca.PCA(1).fit(table)
    model = streampca.PCA(1).fit(table.set_index("id"))
    np.testing.assert_allclose(model.components_, streampca.PCA(1).fit(X).components_)


@pytest.mark.parametrize("kind", ["csv", "parquet"])
def test_new_rows_may_have_the_column_that_names_them(kind: str, tmp_path: Path) -> None:
    path = stored(named(X, 100 + ORDER, "id"), tmp_path / "x", kind)
    model = streampca.PCA(1).fit(streampca.open(path, index="id"))
    np.testing.assert_allclose(model.transform(path), model.transform(X), rtol=1e-12)
    wider = stored(named(X, Z[:, 0], "other"), tmp_path / "y", kind)
    with pytest.raises(InvalidInputError, match="4 features, but PCA is expecting 3"):
        model.transform(wider)


@pytest.mark.parametrize("kind", ["csv", "parquet", "pandas"])
def test_monotonic_integers_raise_a_warning(kind: str, tmp_path: Path) -> None:
    table = named(X, 1950 + np.arange(N), "year")
    source = table if kind == "pandas" else stored(table, tmp_path / "x", kind)
    with pytest.warns(RowNumbersWarning, match="'year' holds whole numbers that only go up"):
        assert streampca.open(source).shape == (N, 4)
    assert streampca.open(source, columns=["year", "a"]).shape == (N, 2)


def test_features_of_a_fit_are_not_questioned() -> None:
    every = pd.DataFrame(np.arange(3.0 * N).reshape(N, 3), columns=["a", "b", "c"])
    assert streampca.open(every).shape == (N, 3)
    assert streampca.open(named(X, ORDER, "count")).shape == (N, 4)
    assert streampca.open(named(X, ORDER // 2, "id")).shape == (N, 4)
    fitted = streampca.PCA(1, scale="std").fit(named(X, ORDER, "count"))
    assert fitted.transform(named(X, np.arange(N), "count")).shape == (N, 1)
    assert [called_id(name) for name in ("sampleId", "IID", "liquid", "width", "x")] == [
        True,
        True,
        False,
        False,
        False,
    ]


@pytest.mark.parametrize(
    "values",
    [
        [f"{i:03d}" for i in range(N)],
        pd.array([f"{i:03d}" for i in range(N)], dtype="string"),
        np.array([f"{i:03d}" for i in range(N)], object),
        pd.Categorical(np.arange(N) % 3),
    ],
)
def test_digits_in_text_and_categories_are_no_numbers(values: Any) -> None:
    table = named(X, values, "code")
    with pytest.raises(InvalidTypeError, match=r"'code' .*not numeric.*X\.set_index\('code'\)"):
        streampca.PCA(1).fit(table)
    assert streampca.open(table.set_index("code")).shape == (N, 3)


def test_names_of_text_keep_zeros_and_words_that_mean_missing(tmp_path: Path) -> None:
    words = ["NA", "null", "nan", "None", "NaN", "N/A", *(f"{i:03d}" for i in range(6, N))]
    path = stored(named(X, words), tmp_path / "x", "csv")
    assert streampca.open(path, index="sample").labels.samples.names() == words
    nothing = ["NA", "null", "nan", "None"]  # nothing else, and names yet
    path = stored(named(X[:4], nothing), tmp_path / "z", "csv")
    with pytest.warns(IncompleteSourceWarning, match="'sample' .string. are not numeric"):
        assert streampca.open(path).shape == (4, X.shape[1])
    assert streampca.open(path, index="sample").labels.samples.names() == nothing
    path = stored(named(X[:4], ["4", "NA", "2", "9"]), tmp_path / "n", "csv")
    with pytest.raises(InvalidInputError, match="'sample' holds a different whole number in every"):
        streampca.open(path)
    path = stored(named(X, ["", *words[1:]]), tmp_path / "y", "csv")
    with pytest.raises(InvalidInputError, match="column 'sample' is empty at row 0"):
        streampca.open(path, index="sample")


# -- pairs ----------------------------------------------------------------------------------------

PAIRS = {
    "text": (IDS, {}),
    "words that mean missing": (np.array(["NA", "null", "nan", "None", *IDS[4:]], object), {}),
    "dates": (pd.date_range("2000-01-01", periods=N).strftime("%Y-%m-%d").to_numpy(), {}),
    "zeros": (np.array([f"{i:03d}" for i in range(N)], object), {"index": "sample"}),
    "numbers": (np.arange(N) + 7, {"index": "sample"}),
}


@pytest.mark.filterwarnings(LEFT_OUT)
@pytest.mark.parametrize("kinds", [("csv", "csv"), ("parquet", "tsv"), ("arrow", "parquet")])
@pytest.mark.parametrize("name", PAIRS)
def test_views_are_paired_by_the_column_that_both_have(
    name: str, kinds: tuple[str, str], tmp_path: Path
) -> None:
    values, options = PAIRS[name]
    x = stored(named(X, values), tmp_path / "x", kinds[0])
    y = stored(named(Y, values).iloc[ORDER], tmp_path / "y", kinds[1])
    one, other = (streampca.open(path, **options) if options else path for path in (x, y))
    np.testing.assert_allclose(correlation(one, other), EXPECTED)
    np.testing.assert_allclose(
        correlation(one, named(Y, values).iloc[ORDER].set_index("sample")), EXPECTED
    )
    if not options:
        np.testing.assert_allclose(correlation(x, streampca.open(y, index="sample")), EXPECTED)


@pytest.mark.filterwarnings(LEFT_OUT)
def test_rows_are_paired_by_equal_columns_of_other_names(tmp_path: Path) -> None:
    shuffled = named(Y, IDS).iloc[ORDER]
    y = stored(shuffled, tmp_path / "y", "csv")
    x = stored(named(X, IDS, "patient"), tmp_path / "x", "csv")
    np.testing.assert_allclose(correlation(x, y), EXPECTED)
    array = xr.DataArray(X.to_numpy(), dims=("cell", "gene"), coords={"cell": IDS})
    np.testing.assert_allclose(correlation(array, y), EXPECTED)
    np.testing.assert_allclose(correlation(pl.from_pandas(named(X, IDS)).lazy(), y), EXPECTED)
    chosen = streampca.open(y, columns=["d", "e"])
    np.testing.assert_allclose(correlation(x, chosen), EXPECTED)
    twice = [
        stored(
            t.assign(day=np.arange(N) % 2).assign(sample=IDS[np.arange(N) // 2]),
            tmp_path / f"t{i}",
            "parquet",
        )
        for i, t in enumerate([X, Y])
    ]
    pd.read_parquet(twice[1]).iloc[ORDER].to_parquet(twice[1], index=False)
    views = [
        streampca.open(path, columns=c)
        for path, c in zip(twice, ["abc", "de"], strict=True)
        for c in [list(c)]
    ]
    np.testing.assert_allclose(correlation(*views), EXPECTED)
    with pytest.raises(SourceError, match="sample 1 is s0 in one"):
        streampca.open([stored(named(X, IDS), tmp_path / "z", "csv"), y], join="features")
    weights = pd.Series(np.arange(1.0, N + 1), index=IDS)
    by_name = streampca.PCA(1).fit(y, sample_weight=weights).components_
    plain = streampca.PCA(1).fit(shuffled[["d", "e"]], sample_weight=weights.iloc[ORDER].to_numpy())
    np.testing.assert_allclose(by_name, plain.components_)


@pytest.mark.filterwarnings(LEFT_OUT)
def test_columns_that_do_not_identify_rows_are_refused(tmp_path: Path) -> None:
    def pair(x: Any, y: Any, column: str = "sample") -> tuple[str, str]:
        return (
            stored(named(X, x, column), tmp_path / "x", "csv"),
            stored(named(Y, y, column), tmp_path / "y", "csv"),
        )

    halves = np.where(np.arange(N) < 9, "u", "v").astype(object)
    for names in (halves, IDS + "x"):
        with pytest.raises(InvalidInputError, match=r"X and Y both have the column 'sample'"):
            correlation(*pair(IDS if names is not halves else halves, names[ORDER]))
    with pytest.raises(InvalidInputError, match="both have the column 'species'"):
        correlation(*pair(halves, halves[ORDER], "species"))
    with pytest.raises(InvalidInputError, match=r"both have the feature 'count'.*index='count'"):
        correlation(*pair(ORDER, ORDER[::-1], "count"))
    indexed = X.set_axis(IDS + "q")
    with pytest.raises(InvalidInputError, match=r"'sample' of Y .* has none of the names"):
        correlation(indexed, pair(IDS, IDS)[1])
    assert correlation(*pair(halves, halves, "species")) == pytest.approx(EXPECTED)
    x, y = pair(IDS, IDS)
    pd.read_csv(x).iloc[4:].to_csv(x, index=False)
    with pytest.warns(AbsentNamesWarning, match="20 rows are in both; 0 of X and 4 of Y"):
        streampca.CCA(1).fit(x, y)


INDICES: dict[str, Any] = {
    "numbers": pd.Index(range(50, 50 + N)),
    "text": pd.Index(IDS),
    "dates": pd.date_range("2000-01-01", periods=N),
    "levels": pd.MultiIndex.from_product([["u", "v", "w"], range(N // 3)], names=["g", "k"]),
}


@pytest.mark.parametrize("name", INDICES)
def test_a_stored_index_of_pandas_names_the_rows(name: str, tmp_path: Path) -> None:
    x, y = X.set_axis(INDICES[name]), Y.set_axis(INDICES[name]).iloc[ORDER]
    paths = [str(tmp_path / one) for one in ("x.parquet", "y.parquet")]
    x.to_parquet(paths[0])
    y.to_parquet(paths[1])
    assert streampca.open(paths[0]).shape == (N, 3)
    table = pa.Table.from_pandas(y)
    for one, other in (paths, (x, y), (paths[0], y), (x, paths[1]), (x, table)):
        np.testing.assert_allclose(correlation(one, other), EXPECTED)


def test_the_index_of_a_dask_frame_is_computed_for_pairs() -> None:
    frames = pytest.importorskip("dask.dataframe")
    x = frames.from_pandas(X.set_axis(IDS), npartitions=3, sort=False)
    y = frames.from_pandas(Y.set_axis(IDS).iloc[ORDER], npartitions=2, sort=False)
    np.testing.assert_allclose(correlation(x, y), EXPECTED)
    with pytest.raises(InvalidInputError, match="'id' holds a different whole"):
        streampca.PCA(1).fit(frames.from_pandas(named(X, ORDER, "id"), npartitions=2))
    plain = [frames.from_pandas(one, npartitions=2) for one in (X, Y)]
    one, other = as_pair(*plain)
    assert not one.labels.samples.named
    assert not other.labels.samples.named
