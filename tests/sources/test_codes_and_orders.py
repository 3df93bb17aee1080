"""Numbers that stand for names, levels or missing values, however they are written."""

from __future__ import annotations

import re
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import xarray as xr

import streampca
from streampca.errors import InvalidInputError, SourceError

RNG = np.random.default_rng(4)
N = 24
VALUES = RNG.normal(size=(N, 4))
COLUMNS = pd.DataFrame(VALUES)


@pytest.mark.parametrize("options", [{}, {"strip": "%"}, {"decimal": ","}, {"columns": ["b", "a"]}])
@pytest.mark.parametrize("code", [-99, "-99", ["?", -99.0]])
def test_a_code_is_missing_however_it_is_written(
    code: Any, options: dict[str, Any], tmp_path: Path
) -> None:
    """-99 is -99.0 and -9.9e1 too, as in pandas; names of rows stay."""
    path = tmp_path / "x.csv"
    text = "n;a;b\n-99;-99.0;2\np;2;-99\nq;3;4\nr;-9.9e1;5\n"
    path.write_text(text.replace(".", options.get("decimal", ".")))
    matrix = streampca.open(path, index="n", na_values=code, **options)
    frame = pd.read_csv(
        path, sep=";", index_col="n", na_values=code, decimal=options.get("decimal", ".")
    )
    wanted = frame[options.get("columns", ["a", "b"])].to_numpy(float)
    np.testing.assert_array_equal(matrix.read(0, 0, 4), wanted)
    assert list(matrix.labels.samples.coords["sample"]) == ["-99", "p", "q", "r"]


@pytest.mark.parametrize("fitted", [[0, 1, 2, 3], [3, 0, 2, 1]])
@pytest.mark.parametrize("kind", [int, str])
def test_columns_of_numbers_in_another_order_are_refused(fitted: list[int], kind: type) -> None:
    model = streampca.PCA(2).fit(COLUMNS[fitted])
    wanted = model.transform(VALUES[:, fitted])
    np.testing.assert_array_equal(model.transform(COLUMNS[fitted].rename(columns=kind)), wanted)
    X = COLUMNS[[3, 2, 1, 0]].rename(columns=kind)
    with pytest.raises(InvalidInputError, match="in another order") as caught:
        model.transform(X)
    line = re.search(r"X\[\[.*?\]\]", str(caught.value))
    assert line is not None
    np.testing.assert_array_equal(model.transform(eval(line[0])), wanted)


@pytest.mark.parametrize(
    "kind",
    [
        pd.Categorical,
        pd.CategoricalIndex,
        lambda one: pd.Series(pd.Categorical(one)),
        lambda one: pd.DataFrame({"batch": pd.Categorical(one)}),
    ],
)
def test_categories_of_numbers_are_levels(kind: Any) -> None:
    batch = np.arange(N) % 5 * 7
    rest = VALUES - np.array([VALUES[batch == one].mean(axis=0) for one in batch])
    found = streampca.PCA(2, remove=kind(batch)).fit(VALUES).singular_values_
    np.testing.assert_allclose(found, np.linalg.svd(rest)[1][:2])


def test_names_of_a_time_zone_are_paired_without_a_warning() -> None:
    days, order = pd.date_range("2000-01-01", periods=N), RNG.permutation(N)
    X, Y = COLUMNS.set_axis(days.tz_localize("UTC")), COLUMNS.iloc[:, :2].set_axis(days)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        found = streampca.cross_correlation(X, Y.iloc[order])
    np.testing.assert_allclose(np.diag(np.asarray(found)), 1.0)


def test_rows_of_bins_are_lazy_too() -> None:
    """Intervals stand beside the rows; Dask has no array of them."""
    X = xr.DataArray(
        VALUES, dims=("time", "x"), coords={"time": pd.date_range("2000", periods=N, freq="MS")}
    ).chunk(time=5)
    grouped = X.groupby_bins("time.month", [0, 3, 6, 12])
    anomaly = grouped - grouped.mean()
    model = streampca.PCA(2).fit(anomaly)
    scores = model.transform(anomaly)
    assert scores.chunks is not None
    rest = anomaly.load().values - anomaly.values.mean(axis=0)
    np.testing.assert_allclose(np.linalg.norm(scores, axis=0), np.linalg.svd(rest)[1][:2])


def test_a_scale_of_whole_numbers_beside_a_fill_value_is_refused(tmp_path: Path) -> None:
    """xarray fails at it, when it reads; the line of the message reads it."""
    path = str(tmp_path / "x.nc")
    attributes = {"scale_factor": np.int32(2), "_FillValue": np.int16(3)}
    stored = np.arange(18).reshape(6, 3).astype("i2")
    xr.Dataset({"t": (("time", "x"), stored, attributes)}).to_netcdf(path, engine="h5netcdf")
    with pytest.raises(SourceError, match="scale_factor=2 is a whole number") as caught:
        streampca.open(path, variable="t")
    held: dict[str, Any] = {"xarray": xr, "path": path}
    for line in re.findall(r"(X(?:\[.*?\]\.attrs.*?)? = .*?|X\[.*?)(?:; |$)", str(caught.value)):
        exec(line.replace("...", "path"), held)
    wanted = np.where(stored == 3, np.nan, stored * 2.0)
    np.testing.assert_array_equal(streampca.open(held["X"]).read(0, 0, 6), wanted)


def two_tables(folder: Path, kind: str) -> list[Any]:
    """The same samples in two tables, in two orders."""
    names, order = [f"s{i}" for i in range(N)], RNG.permutation(N)
    X, Y = COLUMNS.add_prefix("x"), COLUMNS.add_prefix("y")
    if kind == "numbers":
        return [X, Y.iloc[order]]
    if kind == "index":
        return [X.set_axis(names), Y.set_axis(names).iloc[order]]
    X, Y = X.assign(sample=names), Y.assign(**{kind: names}).iloc[order]
    paths = [str(folder / "x.csv"), str(folder / "y.csv")]
    for frame, path in zip((X, Y), paths, strict=True):
        frame.to_csv(path, index=False)
    return paths


@pytest.mark.filterwarnings("ignore::streampca.errors.IncompleteSourceWarning")
@pytest.mark.parametrize("kind", ["numbers", "index", "sample", "patient"])
def test_features_of_samples_in_another_order_are_not_joined(kind: str, tmp_path: Path) -> None:
    parts = [streampca.open(one) for one in two_tables(tmp_path, kind)]
    with pytest.raises(InvalidInputError, match="another order"):
        streampca.concat_features(*parts)


def test_samples_of_other_features_are_not_joined() -> None:
    def join(X: Any, Y: Any) -> Any:
        return streampca.concat_samples(*(streampca.open(one, dim=0) for one in (X, Y)))

    with pytest.raises(InvalidInputError, match=r"sort_index\(axis=1\)"):
        join(COLUMNS, COLUMNS[[3, 2, 1, 0]])
    field = xr.DataArray(VALUES.reshape(N, 2, 2), dims=("time", "x", "y"), attrs={"units": "K"})
    turned = field.transpose("time", "y", "x")
    with pytest.raises(InvalidInputError, match=r"X.transpose\(..., 'x', 'y'\)"):
        join(field, turned)
    with pytest.raises(InvalidInputError, match="units 'K' and part 2 has 'degC'"):
        join(field, field.assign_attrs(units="degC"))
    assert join(field, turned.transpose(..., "x", "y")).shape == (2 * N, 4)


@pytest.mark.parametrize("suffix", ["parquet", "feather"])
def test_categories_of_numbers_in_a_file_are_no_feature(suffix: str, tmp_path: Path) -> None:
    path = str(tmp_path / f"x.{suffix}")
    frame = COLUMNS.add_prefix("x").assign(batch=pd.Categorical(np.arange(N) % 3 * 7))
    getattr(frame, f"to_{suffix}")(path)
    with pytest.warns(streampca.errors.IncompleteSourceWarning, match="'batch'"):
        matrix = streampca.open(path)
    np.testing.assert_array_equal(matrix.read(0, 0, N), VALUES)
    coded = streampca.open(path, columns=["batch"], categorical="onehot").read(0, 0, N)
    np.testing.assert_array_equal(coded, pd.get_dummies(frame["batch"]).to_numpy(float))
