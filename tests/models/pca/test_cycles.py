"""remove= of cycles of the calendar, against anomalies by xarray's groupby and NumPy's SVD."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import xarray as xr

import streampca
from streampca import CCA, MCA, PCA
from streampca.cli.commands import main
from streampca.errors import InvalidInputError

pytestmark = pytest.mark.filterwarnings("ignore::streampca.errors.DominantFeatureWarning")


def field(time: Any, p: int = 5, seed: int = 0) -> xr.DataArray:
    """Noise on cycles of the day, the week and the year."""
    rng = np.random.default_rng(seed)
    index = xr.DataArray(time, dims="time")
    values = rng.normal(size=(len(time), p))
    for part in (index.dt.hour, index.dt.month, index.dt.dayofyear % 7):
        values += 4 * rng.normal(size=(400, p))[part.values]
    return xr.DataArray(values, {"time": time}, ("time", "cell"), "t2m")


def check(model: Any, anomalies: xr.DataArray) -> None:
    """A PCA of two components against the SVD of anomalies that others made."""
    Z = anomalies.values - anomalies.values.mean(axis=0)
    _, s, vt = np.linalg.svd(Z, full_matrices=False)
    np.testing.assert_allclose(model.explained_variance_, s[:2] ** 2 / (len(Z) - 1), rtol=1e-9)
    np.testing.assert_allclose(np.abs(np.sum(model.components_ * vt[:2], axis=1)), 1, atol=1e-9)
    np.testing.assert_allclose(model.result_.total_variance, (s**2).sum() / (len(Z) - 1), rtol=1e-9)


def anomalies(x: xr.DataArray, by: Any) -> xr.DataArray:
    groups = x.groupby(by)
    return groups - groups.mean()


SIX_HOURS = pd.date_range("2003-02-05", periods=1600, freq="6h")
DAYS = pd.date_range("2003-11-20", periods=1500, freq="D")


@pytest.mark.parametrize(
    "word", ["hour", "month", "season", "quarter", "dayofweek", "week", "dayofyear"]
)
def test_a_cycle_in_dates(word: str) -> None:
    x = field(SIX_HOURS if word == "hour" else DAYS)
    week = x.time.dt.isocalendar().week
    made = anomalies(x, week if word == "week" else f"time.{word}")
    model = PCA(2, remove=word).fit(x)
    check(model, made)
    later = x.isel(time=slice(100, 170))
    wanted = (made - made.mean("time")).isel(time=slice(100, 170)).values @ model.components_.T
    np.testing.assert_allclose(model.transform(later).values, wanted, atol=1e-8)


@pytest.mark.parametrize("calendar", ["noleap", "360_day"])
@pytest.mark.parametrize("word", ["hour", "dayofyear", "month"])
def test_a_cycle_of_another_calendar(calendar: str, word: str) -> None:
    every = "6h" if word == "hour" else "D"
    time = xr.date_range("2003-11-20", periods=1100, freq=every, calendar=calendar, use_cftime=True)
    x = field(time)
    check(PCA(2, remove=word).fit(x), anomalies(x, f"time.{word}"))
    with pytest.raises(InvalidInputError, match=r"no weeks of a year.*'dayofyear'"):
        PCA(2, remove="week").fit(x)


def numbered(word: str, x: xr.DataArray, how: str) -> tuple[xr.DataArray, Any]:
    """(the field without dates, what to remove): a cycle as whole numbers of its name."""
    numbers = getattr(x.time.dt, word)
    undated = x.drop_vars("time")
    beside = undated.assign_coords({word: ("time", numbers.values)})
    if how == "coordinate":
        return beside, word
    if how == "float coordinate":
        return undated.assign_coords({word: ("time", numbers.values.astype("f4"))}), word
    if how == "dimension":
        return beside.swap_dims(time=word), word
    if how == "array":
        return x, numbers
    return x, pd.DataFrame({word: numbers.values}, index=x.time.to_index())


@pytest.mark.parametrize("how", ["coordinate", "float coordinate", "dimension", "array", "frame"])
@pytest.mark.parametrize("word", ["hour", "month", "dayofyear", "dayofweek"])
def test_whole_numbers_of_that_name_are_a_cycle(word: str, how: str) -> None:
    x = field(SIX_HOURS if word == "hour" else DAYS)
    given, remove = numbered(word, x, how)
    model = PCA(2, remove=remove).fit(given)
    check(model, anomalies(x, f"time.{word}"))
    if how == "coordinate":
        few = given.isel(time=slice(3, 300))
        np.testing.assert_allclose(
            model.transform(few).values, model.transform(given).values[3:300], atol=1e-9
        )


def test_a_cycle_and_a_trend_and_both_views() -> None:
    x = field(SIX_HOURS)
    hours = anomalies(x, "time.hour")
    check(PCA(2, remove=["hour"]).fit(x), hours)
    design = np.column_stack([np.eye(4)[x.time.dt.hour.values // 6], np.arange(len(x))])
    left = x - design @ np.linalg.lstsq(design, x.values, rcond=None)[0]
    check(PCA(2, remove=["hour", "trend"]).fit(x), left)
    for kind in (MCA, CCA):
        views = kind(2, remove="hour").fit(x[:, :3], x[:, 3:])
        plain = kind(2).fit(hours[:, :3], hours[:, 3:])
        np.testing.assert_allclose(views.result_.values, plain.result_.values, rtol=1e-9)


@pytest.mark.parametrize("word", ["hour", "month"])
@pytest.mark.parametrize("kind", ["Asia/Kolkata", "Europe/Berlin", "UTC", "period", "objects"])
def test_dates_of_a_time_zone_and_periods_go_by_their_own_clock(kind: str, word: str) -> None:
    """Berlin leaves the winter time, and its hours of UTC move to other groups."""
    time = pd.date_range("2001-03-01", periods=900, freq="h")
    index = time.to_period("h") if kind == "period" else pd.Index(list(time), dtype=object)
    if kind not in ("period", "objects"):
        index = pd.date_range("2001-03-01", periods=900, freq="h", tz=kind)
    plain = field(time)
    part = getattr(pd.DatetimeIndex(index) if kind == "objects" else index, word)
    wanted = anomalies(plain.assign_coords(part=("time", np.asarray(part))), "part")
    frame = pd.DataFrame(plain.values, index=index)
    check(PCA(2, remove=word).fit(frame), wanted)
    labelled = plain.drop_vars("time").assign_coords(time=index)
    check(PCA(2, remove=word).fit(labelled, dim="time"), wanted)
    turned = frame.iloc[::-1]
    turned = turned if getattr(index, "tz", None) is None else turned.tz_convert("America/Lima")
    found, expected = MCA(1).fit(frame, turned), MCA(1).fit(plain.values, plain.values)
    np.testing.assert_allclose(found.result_.values, expected.result_.values, rtol=1e-9)


def test_numbers_that_are_no_cycle_are_asked_about() -> None:
    x = field(SIX_HOURS)
    hour = np.arange(len(x))
    since = x.drop_vars("time").assign_coords(hour=("time", hour))
    with pytest.raises(InvalidInputError, match=r"'hour' holds 0 to 1599.*whole, 0 to 24"):
        PCA(2, remove="hour").fit(since)
    half = since.assign_coords(hour=("time", hour % 24 + 0.5))
    with pytest.raises(InvalidInputError, match="for a straight line"):
        PCA(2, remove="hour").fit(half)
    line = hour[:, None] - hour.mean()
    left = x - line @ (line.T @ x.values) / (line**2).sum()
    check(PCA(2, remove=since.hour.values).fit(since), left)  # as the message says
    months = since.drop_vars("hour").rename(time="month")
    with pytest.raises(InvalidInputError, match=r"needs a coordinate"):  # 1, 2, ..., 12, 1, ...
        PCA(2, remove="trend").fit(months.assign_coords(month=hour % 12 + 1))
    check(PCA(2, remove="trend").fit(months.assign_coords(month=hour + 1)), left)


def test_a_column_that_contradicts_the_dates_is_asked_about() -> None:
    x = field(DAYS)
    months = x.time.dt.month.values
    same = x.assign_coords(month=("time", months % 12))  # other numbers, the same months
    check(PCA(2, remove="month").fit(same), anomalies(x, "time.month"))
    wet = np.where((months > 4) & (months < 9), "wet", "dry")
    other = x.assign_coords(season=("time", wet))
    with pytest.raises(InvalidInputError, match=r"could be the column 'season'.*drop_vars"):
        PCA(2, remove="season").fit(other)
    remove = other["season"].values.astype(str)
    check(PCA(2, remove=remove).fit(other), anomalies(other, "season"))
    check(PCA(2, remove="season").fit(other.drop_vars("season")), anomalies(x, "time.season"))


def test_on_the_command_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    x = field(SIX_HOURS)
    x.to_netcdf(tmp_path / "x.nc", engine="h5netcdf")
    made = anomalies(x, "time.hour")
    model = str(tmp_path / "model")
    command = ["fit", str(tmp_path / "x.nc"), "-k", "2", "-o", model, "--remove"]
    assert not main([*command, "hour"])
    check(streampca.load(model), made)
    hours = pd.DataFrame({"hour": x.time.dt.hour.values})
    hours.to_csv(tmp_path / "hours.csv", index=False)
    assert not main([*command[:-2], f"{model}2", "--remove", str(tmp_path / "hours.csv")])
    check(streampca.load(f"{model}2"), made)
    table = pd.DataFrame(x.values, columns=list("abcde")).assign(hour=hours)
    table.to_parquet(tmp_path / "x.parquet")
    source = [str(tmp_path / "x.parquet"), "--columns", *"abcde"]
    assert not main(["fit", *source, "-k", "2", "-o", f"{model}3", "--remove", "hour"])
    check(streampca.load(f"{model}3"), made)
    capsys.readouterr()
