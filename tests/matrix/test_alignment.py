"""Arrays beside an axis: by name where both sides have names, else by number."""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pytest
import xarray as xr

import streampca
from streampca.errors import InvalidInputError
from streampca.matrix import AxisLabels, Labels
from streampca.matrix.alignment import along, table_along
from streampca.matrix.names import comparable, places

pytestmark = pytest.mark.filterwarnings("ignore::streampca.errors.DominantFeatureWarning")

N = 12
IDS = [f"s{i}" for i in range(N)]
VALUES = np.arange(1.0, N + 1)
ORDER = np.random.default_rng(0).permutation(N)
AXIS = AxisLabels.plain("sample", N, IDS)
SERIES = pd.Series(VALUES, index=IDS).iloc[ORDER]
DAYS = pd.date_range("2000-01-01", periods=N)
OTHER_CALENDAR = xr.date_range("2000-01-01", periods=N, calendar="noleap", use_cftime=True)

BY_NAME: dict[str, Any] = {
    "series": SERIES,
    "frame of one column": SERIES.to_frame("w"),
    "dict": SERIES.to_dict(),
    "bytes": SERIES.set_axis(SERIES.index.to_numpy().astype("S")),
    "categories": SERIES.set_axis(pd.CategoricalIndex(SERIES.index)),
    "more names": pd.concat([SERIES, pd.Series([0.0], index=["z"])]),
    "DataArray": xr.DataArray(SERIES.to_numpy(), dims="sample", coords={"sample": SERIES.index}),
    "other dimension": xr.DataArray(SERIES.to_numpy(), dims="cell", coords={"cell": SERIES.index}),
    "polars": pl.DataFrame({"id": SERIES.index.tolist(), "w": SERIES.to_numpy()}),
    "Arrow": pa.table({"w": SERIES.to_numpy(), "id": SERIES.index.tolist()}),
    "in order": pd.Series(VALUES, index=IDS),
    "no names": VALUES,
    "list": VALUES.tolist(),
    "an index that counts": pd.Series(VALUES),
    "polars series": pl.Series(VALUES),
    "Arrow array": pa.array(VALUES),
    "nameless dimension": xr.DataArray(VALUES),
}


@pytest.mark.parametrize("kind", BY_NAME)
def test_values_go_by_name_and_without_names_by_number(kind: str) -> None:
    np.testing.assert_array_equal(along(BY_NAME[kind], AXIS, "w"), VALUES)


@pytest.mark.parametrize(
    ("values", "message"),
    [
        (SERIES.drop("s3"), r"w has no entry for s3; expected the names of the data.*to_numpy"),
        (SERIES.add_prefix("q"), "w has no entry for s0; s1; s2; s3 and 8 more"),
        (SERIES.set_axis(range(5, 5 + N)), "w has no entry for s0"),
        (pd.concat([SERIES, SERIES.iloc[:1]]), "w names 's.*' twice"),
        (VALUES[1:], "shape"),
        (SERIES.to_frame("a").assign(b=1), "frame of 2 columns; expected one"),
        (pl.DataFrame({"a": VALUES, "b": VALUES}), "columns.*at most one more with the names"),
    ],
)
def test_other_names_are_refused(values: Any, message: str) -> None:
    with pytest.raises(InvalidInputError, match=message):
        along(values, AXIS, "w")


@pytest.mark.parametrize(
    ("known", "wanted"),
    [
        (np.arange(3), ["0", "1", "2"]),
        (np.arange(3), np.arange(3.0)),
        (DAYS[:3].as_unit("s"), DAYS[:3].as_unit("ns")),
        (DAYS[:3], DAYS[:3].strftime("%Y-%m-%d")),
        (DAYS[:3], OTHER_CALENDAR[:3]),
        (np.array(["a", "b", "c"], "S"), np.array(["a", "b", "c"], np.dtypes.StringDType())),
        (DAYS[:3], DAYS[:3].to_pydatetime()),
    ],
)
def test_the_same_names_are_found_whatever_their_type(known: Any, wanted: Any) -> None:
    found = places(np.asarray(wanted)[::-1], np.asarray(known), "w")
    np.testing.assert_array_equal(found, [2, 1, 0])


def test_leading_zeros_and_blanks_belong_to_a_name() -> None:
    a, b = comparable(np.array([1, 2]), np.array(["001", " 2"]))
    assert not set(a.tolist()) & set(b.tolist())


def test_numbers_from_0_in_another_order_are_refused_where_labels_count() -> None:
    """They may be meant by index, as pandas does, or by position."""
    counted, values = AxisLabels.plain("sample", N), pd.Series(VALUES, index=ORDER)
    with pytest.raises(InvalidInputError, match=r"By index: w\.loc"):
        along(values, counted, "w")
    shuffled = AxisLabels.plain("sample", N, ORDER)
    with pytest.raises(InvalidInputError, match="the index of X holds the numbers from 0"):
        along(pd.Series(VALUES), shuffled, "w")
    np.testing.assert_array_equal(along(values, shuffled, "w"), VALUES)


def test_a_table_of_all_cells_goes_by_both_names() -> None:
    cells = np.arange(3.0 * N).reshape(N, 3)
    labels = Labels(AXIS, AxisLabels.plain("feature", 3, ["a", "b", "c"]))
    frame = pd.DataFrame(cells, index=IDS, columns=["a", "b", "c"])
    turned = frame.iloc[ORDER][["c", "a", "b"]]
    np.testing.assert_array_equal(table_along(turned, labels, "w"), cells)
    array = xr.DataArray(
        turned.to_numpy().T,
        dims=("feature", "sample"),
        coords={"feature": ["c", "a", "b"], "sample": turned.index},
    )
    np.testing.assert_array_equal(table_along(array, labels, "w"), cells)
    with pytest.raises(InvalidInputError, match="w has no entry for s5"):
        table_along(turned.drop("s5"), labels, "w")


# -- arguments of models --------------------------------------------------------------------------

X = pd.DataFrame(np.random.default_rng(1).normal(size=(N, 3)), index=IDS, columns=["a", "b", "c"])
WEIGHTS = pd.Series([1.0, 2.0, 3.0], index=["a", "b", "c"])
Y = pd.Series(X.to_numpy() @ [1.0, 2.0, 0.5] + 0.01 * VALUES, index=IDS)
TURNED = ["c", "a", "b"]

ARGUMENTS: dict[str, tuple[Any, Any, Any]] = {  # what is made, of an argument by name, by number
    "sample_weight": (
        lambda w: streampca.PCA(2).fit(X, sample_weight=w).components_,
        SERIES,
        VALUES,
    ),
    "covariance": (lambda w: streampca.covariance(X, sample_weight=w), SERIES, VALUES),
    "weights": (
        lambda w: streampca.PCA(2, weights=w).fit(X).components_,
        WEIGHTS[TURNED],
        WEIGHTS.to_numpy(),
    ),
    "remove": (lambda w: streampca.PCA(2, remove=w).fit(X).components_, SERIES, VALUES),
    "groups": (
        lambda g: streampca.SparsePCA(1, n_nonzero=1, groups=g).fit(X).components_,
        pd.Series([0, 0, 1], index=["a", "b", "c"])[TURNED],
        [0, 0, 1],
    ),
    "mean": (
        lambda m: streampca.PCA.from_covariance(X.cov(), mean=m).mean_,
        WEIGHTS[TURNED],
        WEIGHTS.to_numpy(),
    ),
    "rows of a covariance": (
        lambda s: streampca.PCA.from_covariance(s).components_,
        X.cov().loc[TURNED],
        X.cov(),
    ),
    "y": (lambda y: streampca.TotalLeastSquares().fit(X, y).coef_, Y.iloc[ORDER], Y.to_numpy()),
    "y of score": (
        lambda y: streampca.TotalLeastSquares().fit(X, Y).score(X, y, VALUES),
        Y.iloc[ORDER],
        Y.to_numpy(),
    ),
    "weights of score": (
        lambda w: streampca.TotalLeastSquares().fit(X, Y).score(X, Y, w),
        SERIES,
        VALUES,
    ),
}


@pytest.mark.parametrize("name", ARGUMENTS)
def test_every_argument_of_rows_or_columns_is_matched_by_name(name: str) -> None:
    made, by_name, by_number = ARGUMENTS[name]
    np.testing.assert_allclose(made(by_name), made(by_number), rtol=1e-9, atol=1e-12)


def test_held_out_cells_go_by_name() -> None:
    rng = np.random.default_rng(2)
    low = pd.DataFrame(rng.normal(size=(N, 1)) @ rng.normal(size=(1, 3)), IDS, ["a", "b", "c"])
    mask = pd.DataFrame(rng.random((N, 3)) < 0.2, IDS, ["a", "b", "c"])
    mask.iloc[0, 0] = True

    def errors(cells: Any) -> list[float]:
        model = streampca.HardImpute(1, center=False, validation=cells).fit(low)
        return [one["held_out"] for one in model.validation_]

    np.testing.assert_allclose(errors(mask.iloc[ORDER][TURNED]), errors(mask.to_numpy()))


def test_features_of_whole_numbers_have_names_too() -> None:
    waves = X.set_axis([410, 420, 430], axis=1)
    weights = pd.Series([3.0, 1.0, 2.0], index=[430, 410, 420])
    by_name = streampca.PCA(2, weights=weights).fit(waves).components_
    np.testing.assert_allclose(by_name, streampca.PCA(2, weights=[1, 2, 3.0]).fit(X).components_)
    with pytest.raises(InvalidInputError, match="another order"):
        streampca.PCA(2).fit(waves).transform(waves[[430, 410, 420]])


def test_joined_matrices_have_the_same_names() -> None:
    one, other = streampca.open(X), streampca.open(X.iloc[ORDER])
    with pytest.raises(InvalidInputError, match="other samples, or in another order"):
        streampca.concat_features(one, other)
    with pytest.raises(InvalidInputError, match="feature 1 is a in one and c in the other"):
        streampca.concat_samples(one, streampca.open(X[TURNED]))
    assert streampca.concat_features(one, streampca.open(X.to_numpy())).shape == (N, 6)
