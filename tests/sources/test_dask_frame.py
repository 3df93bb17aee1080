"""Data frames of Dask: rows known or counted, columns as labels, partitions as they were said."""

from __future__ import annotations

import subprocess
import sys
from itertools import pairwise
from pathlib import Path
from typing import Any

import dask.array as da
import numpy as np
import pandas as pd
import pytest

import streampca
from streampca.errors import InvalidInputError, InvalidTypeError, NonFiniteError
from streampca.sources.dask import frame as dask_frame

pytest.importorskip("pyarrow")  # dask.dataframe is not imported without it
dd = pytest.importorskip("dask.dataframe")

# Dask's own calls of pandas
pytestmark = pytest.mark.filterwarnings("ignore::pandas.errors.Pandas4Warning")

N = 90
RNG = np.random.default_rng(3)
NAMES = ["height", "width", "depth", "mass", "age"]


def table() -> pd.DataFrame:
    """Columns of several dtypes; the index is text."""
    x = RNG.normal(size=(N, 5)) * 3
    frame = pd.DataFrame(x, columns=NAMES, index=pd.Index([f"row {i:03d}" for i in range(N)]))
    frame["mass"] = frame["mass"].astype("f4")
    frame["age"] = frame["age"].round().astype("i2")
    return frame


TABLE = table()
LOG: list[int] = []


@pytest.fixture(autouse=True)
def _nothing_remembered() -> None:
    dask_frame._counted.clear()
    LOG.clear()


PROGRAM = """
import sys, time
import numpy as np
import dask, dask.array, dask.dataframe
import streampca

active, seen = [], []

def slow(chunk):
    active.append(1)
    seen.append(len(active))
    time.sleep(0.02)
    active.pop()
    return chunk

array = dask.array.ones((80, 3), chunks=(5, 3)).map_blocks(slow, dtype="f8", meta=np.empty((0, 0)))
with dask.config.set(num_workers=6):  # as on a machine with six cores
    frame = dask.dataframe.from_dask_array(array, columns=list("abc"))
    streampca.open(frame.map_partitions(lambda part: part))
print(max(seen), "distributed" in sys.modules)
"""


@pytest.mark.slow
def test_counting_holds_few_partitions_and_loads_no_cluster() -> None:
    """What opening a frame takes is in no plan: it must be less than what the fit does."""
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM], capture_output=True, text=True, check=False
    )
    assert done.stdout.split() == ["2", "False"], done.stderr[-2000:]


def test_partitions_of_files_are_planned_with_what_reads_them(tmp_path: Path) -> None:
    stored = streampca.open(dd.read_parquet(parquet(tmp_path)))
    held = streampca.open(dd.from_pandas(TABLE, npartitions=4))
    assert stored.read_scratch_nbytes(0, 20) > held.read_scratch_nbytes(0, 20)


def logged(part: pd.DataFrame) -> pd.DataFrame:
    """A partition that notes how many columns are computed of it."""
    if len(part):
        LOG.append(part.shape[1])
    return part


def counting(frame: Any) -> Any:
    return frame.map_partitions(logged, meta=frame._meta)


def parquet(folder: Path, frame: pd.DataFrame = TABLE, parts: int = 4) -> str:
    path = folder / "table.parquet"
    dd.from_pandas(frame, npartitions=parts).to_parquet(path)
    return str(path)


def check(frame: Any, values: Any, **more: Any) -> streampca.PCA:
    """The fit is that of the values, and reads every partition once."""
    model = streampca.PCA(2, svd_solver="scatter", progress=False, **more).fit(frame)
    expected = streampca.PCA(2, svd_solver="scatter", **more).fit(np.asarray(values, "f8"))
    np.testing.assert_allclose(model.mean_, expected.mean_, rtol=1e-12, atol=1e-15)
    np.testing.assert_allclose(model.explained_variance_, expected.explained_variance_, rtol=1e-12)
    scores = model.transform(frame)
    assert isinstance(scores, da.Array)
    np.testing.assert_allclose(scores.compute(), expected.transform(values), atol=1e-12)
    return model


def test_a_frame_from_memory_knows_its_rows() -> None:
    frame = counting(dd.from_pandas(TABLE, npartitions=4))
    matrix = streampca.open(dd.from_pandas(TABLE, npartitions=4))
    assert matrix.shape == (N, 5)
    assert matrix.labels.features.names() == NAMES
    assert matrix.note == ""
    np.testing.assert_array_equal(matrix.chunk_edges(0), [0, 23, 46, 68, 90])
    model = check(frame, TABLE.to_numpy("f8"))
    assert list(model.feature_names_in_) == NAMES
    assert model.cost_[0].reads == 4


FROM_ARRAY = {
    "plain": lambda x: x,
    "computed": lambda x: (x - x.mean(0)) * 2,
    "several chunks across": lambda x: x.rechunk((-1, 2)),
    "an empty chunk": lambda x: da.concatenate([x[:7], x[7:7], x[7:]]),
}


@pytest.mark.parametrize("build", FROM_ARRAY.values(), ids=FROM_ARRAY)
def test_a_frame_of_an_array_knows_its_rows(build: Any) -> None:
    values = TABLE.to_numpy("f8")
    x = build(da.from_array(values, chunks=((20, 30, 40), 5)))
    frame = dd.from_dask_array(x, columns=NAMES)
    for chosen in (frame, frame[["mass", "age"]] + 1):
        matrix = streampca.open(chosen)
        assert matrix.note == ""
        assert matrix.shape == (N, len(chosen.columns))
        check(chosen, chosen.compute().to_numpy("f8"))


def test_a_frame_of_an_array_with_an_index_or_a_filter_is_counted() -> None:
    x = da.from_array(TABLE.to_numpy("f8"), chunks=(30, 5))
    index = dd.from_pandas(pd.DataFrame({"a": np.zeros(N)}), npartitions=3).index
    made = dd.from_dask_array(x, columns=NAMES)
    for frame in (dd.from_dask_array(x, columns=NAMES, index=index), made[made.height > 0]):
        assert "counted first" in streampca.open(frame).note
        check(frame, frame.compute().to_numpy("f8"))


@pytest.mark.parametrize("filesystem", ["fsspec", "arrow"])
def test_parquet_knows_its_rows(tmp_path: Path, filesystem: str) -> None:
    """Dask joins partitions of which few columns are read, and their lengths are others then."""
    for i, (start, stop) in enumerate(pairwise((0, 5, 14, 16, 46, 57, N))):
        TABLE.iloc[start:stop].to_parquet(tmp_path / f"part.{i}.parquet")
    frame = dd.read_parquet(tmp_path, filesystem=filesystem)
    for chosen in (frame, frame[["width", "age"]], frame[["width", "mass"]].astype("f8") * 2):
        matrix = streampca.open(chosen)
        assert matrix.note == ""
        lengths = np.diff(matrix.chunk_edges(0))
        assert sorted(lengths) == [2, 5, 9, 11, 30, 33]
        check(chosen, chosen.compute().to_numpy("f8"))  # in the order that Dask has found


def test_rows_that_nobody_knows_are_counted_once_by_the_narrowest_column(tmp_path: Path) -> None:
    frame = dd.read_parquet(parquet(tmp_path))
    chosen = frame[frame.height > 0]
    values = TABLE[TABLE.height > 0].to_numpy("f8")
    plan = streampca.PCA(2).plan(chosen)
    assert "rows of 4 partitions were counted first, by computing column 'age'" in str(plan)
    check(chosen, values)
    noted = counting(dd.from_pandas(TABLE, npartitions=4))
    streampca.PCA(2).plan(noted)
    streampca.PCA(2, svd_solver="scatter").fit(noted)
    assert len(LOG) == 4 + 4  # counted once, read once
    assert sum(n == 5 for n in LOG) >= 4


def test_partitions_without_rows(tmp_path: Path) -> None:
    frame = dd.from_pandas(TABLE, npartitions=4)
    chosen = frame[frame.index > "row 060"]
    check(chosen, TABLE[TABLE.index > "row 060"].to_numpy("f8"))
    with pytest.raises(InvalidInputError, match="0 sample"):
        streampca.PCA(2).fit(frame[frame.index > "z"])


@pytest.mark.parametrize("dtype", ["Int64", "Float32", "int64[pyarrow]", "double[pyarrow]"])
def test_nulls_are_missing(dtype: str) -> None:
    holes = TABLE.round().astype("f8")
    holes.iloc[RNG.integers(0, N, 9), 1] = np.nan
    holes.iloc[:30, 4] = np.nan  # a partition without any
    frame = holes.copy()
    frame[["width", "age"]] = frame[["width", "age"]].astype(dtype)
    lazy = dd.from_pandas(frame, npartitions=4)
    values = frame.to_numpy("f8", na_value=np.nan)
    check(lazy, values, missing="mean")
    with pytest.raises(NonFiniteError, match="missing='mean'"):
        streampca.PCA(2).fit(lazy)


def test_integers_come_as_floats_that_hold_them() -> None:
    for dtypes, expected in (("i2", "f4"), ("bool", "f4"), ("i4", "f8"), ("f4", "f4")):
        values = pd.DataFrame(RNG.integers(0, 2, (20, 3)), columns=list("abc")).astype(dtypes)
        matrix = streampca.open(dd.from_pandas(values, npartitions=2))
        assert matrix.dtype == np.dtype(expected)
        np.testing.assert_array_equal(matrix.read(0, 0, 20), values.to_numpy("f8"))
    large = pd.DataFrame({"stars": 2**62 + np.arange(20), "x": RNG.normal(size=20)})
    with pytest.raises(InvalidTypeError, match=r"column 'stars'.*2\*\*53"):
        streampca.PCA(1).fit(dd.from_pandas(large, npartitions=2))


def test_columns_that_are_no_numbers_are_named() -> None:
    frame = TABLE.assign(
        place="here", day=pd.Timestamp("2000-01-01"), kind=pd.Categorical(["a"] * N)
    )
    lazy = dd.from_pandas(frame, npartitions=3)
    with pytest.raises(InvalidTypeError, match=r"'place'.*'day'.*'kind'") as error:
        streampca.PCA(2).fit(lazy)
    assert "X.drop(columns=['place'])" in str(error.value)
    check(lazy.drop(columns=["place", "day", "kind"]), TABLE.to_numpy("f8"))
    text = dd.from_pandas(pd.DataFrame({"a": ["1", "2", "3"], "b": [1.0, 2, 4]}), npartitions=1)
    with pytest.raises(InvalidTypeError, match=r"X\.astype\(\{'a': 'float64'\}\)"):
        streampca.open(text)
    assert streampca.open(text.astype({"a": "float64"})).shape == (3, 2)
    with pytest.raises(InvalidTypeError, match=r"X\.to_frame\(\)"):
        streampca.open(lazy["age"])
    with pytest.raises(InvalidInputError, match="dim=1"):
        streampca.open(dd.from_pandas(TABLE, npartitions=2), dim=1)


def test_partitions_that_are_not_what_was_said() -> None:
    frame = dd.from_pandas(TABLE, npartitions=3)
    part = dask_frame.FramePart(tuple(NAMES), np.dtype("f8"), 7, None)
    with pytest.raises(InvalidInputError, match=r"partition 7 .*part\[list\(X\.columns\)\]"):
        part(TABLE[NAMES[::-1]])
    wider = frame[["mass", "age"]].astype("f4")
    wider = wider.map_partitions(lambda part: part.astype("f8") / 3, meta=wider._meta)
    with pytest.raises(InvalidTypeError, match=r"'mass' is float64.*X\.astype"):
        streampca.PCA(2).fit(wider)
    shrinking = frame.map_partitions(_shrinking, meta=frame._meta)
    with pytest.raises(InvalidInputError, match=r"rows.*when they were counted.*persist"):
        streampca.PCA(2).fit(shrinking)


def _shrinking(part: pd.DataFrame) -> pd.DataFrame:
    """Fewer rows each time."""
    LOG.append(len(part))
    return part.iloc[: max(0, len(part) - len(LOG))]


def test_scores_stay_lazy_and_keep_the_index() -> None:
    frame = counting(dd.from_pandas(TABLE, npartitions=4))
    model = streampca.PCA(2).fit(TABLE)
    expected = model.transform(TABLE)
    scores = model.transform(frame)
    model.set_output(transform="pandas")
    framed = model.transform(frame)
    assert not LOG
    assert isinstance(scores, da.Array)
    assert isinstance(framed, dd.DataFrame)
    assert framed.divisions == frame.divisions
    found = framed.compute()
    assert list(found.index) == list(TABLE.index)
    assert list(found.columns) == ["pca0", "pca1"]
    np.testing.assert_allclose(found, expected, atol=1e-12)
    np.testing.assert_allclose(scores.compute(), expected, atol=1e-12)
    again = model.inverse_transform(framed)
    assert isinstance(again, da.Array)
    np.testing.assert_allclose(again.compute(), model.inverse_transform(expected), atol=1e-5)
    both = streampca.PCA(2).set_output(transform="pandas").fit_transform(frame)
    np.testing.assert_allclose(both.compute(), expected, atol=1e-10)
    unknown = frame[frame.height > 0]
    np.testing.assert_allclose(model.transform(unknown).compute(), expected[TABLE.height > 0])


def test_other_columns_are_refused_before_anything_is_computed() -> None:
    frame = counting(dd.from_pandas(TABLE, npartitions=4))
    model = streampca.PCA(2).fit(TABLE)
    with pytest.raises(InvalidInputError, match="feature names should match"):
        model.transform(frame[NAMES[::-1]])
    with pytest.raises(InvalidInputError, match="4 features"):
        model.transform(frame[NAMES[:4]])
    assert not LOG


def test_what_was_removed_from_a_frame() -> None:
    batch = np.arange(N) % 3
    model = streampca.PCA(2, remove=batch).fit(TABLE)
    expected = model.transform(TABLE, remove=batch)
    found = model.transform(dd.from_pandas(TABLE, npartitions=4), remove=batch)
    assert isinstance(found, da.Array)
    np.testing.assert_allclose(found.compute(), expected, atol=1e-12)


def test_a_frame_made_of_an_array_is_read_as_that_array(monkeypatch: pytest.MonkeyPatch) -> None:
    """Pandas would copy each chunk twice. Masked chunks and changed columns are its own."""
    x = da.from_array(RNG.normal(size=(40, 3)), chunks=(10, 3)) * 2
    frame = dd.from_dask_array(x, columns=list("abc"))
    plain, changed = streampca.open(frame), streampca.open(frame.assign(a=frame["a"] + 1))
    masked = streampca.open(dd.from_dask_array(da.ma.masked_greater(x, 1.0)))
    values = x.compute()
    np.testing.assert_array_equal(masked.read(0, 0, 40), np.where(values > 1, np.nan, values))
    np.testing.assert_array_equal(changed.read(0, 0, 40), values + np.array([1, 0, 0]))
    monkeypatch.setattr(pd.DataFrame, "__init__", None)
    np.testing.assert_array_equal(plain.read(0, 5, 35), values[5:35])
