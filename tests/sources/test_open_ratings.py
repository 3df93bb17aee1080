"""Ratings from text, Parquet and frames: the same cells under the same ids, sorted in pieces."""

from __future__ import annotations

import gzip
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import polars
import pyarrow as pa
import pytest

import streampca
from streampca.errors import InvalidInputError, SourceError
from streampca.sources.ratings import opening as ratings
from streampca.sources.ratings import store as rating_store

NAMES = {"user": "userId", "item": "movieId", "rating": "rating"}


def frame_of(cells: int = 3000, seed: int = 0) -> pd.DataFrame:
    rng = np.random.default_rng(seed)
    return pd.DataFrame(
        {
            "userId": rng.integers(1, 120, cells),
            "movieId": [f"m{i}" for i in rng.zipf(1.3, cells)],
            "rating": rng.integers(1, 11, cells) / 2,
            "time": rng.permutation(cells) + 1_000_000,
        }
    )


def cells_of(matrix: Any) -> dict[tuple[Any, Any], float]:
    users, items = (
        np.asarray(one.coords[one.dims[0]]).tolist()
        for one in (matrix.labels.samples, matrix.labels.features)
    )
    return {
        (users[i], items[j]): float(x)
        for some in matrix.pieces()
        for i, j, x in zip(*some, strict=True)
    }


def expected(frame: pd.DataFrame, rule: str, timed: bool) -> dict[tuple[Any, Any], float]:
    if timed and rule != "mean":
        frame = frame.sort_values("time", kind="stable")
    found = frame.groupby(["userId", "movieId"])["rating"].agg(rule)
    return {(user, item): np.float32(x) for (user, item), x in found.items()}


def written(frame: pd.DataFrame, folder: Path, kind: str) -> Any:
    path = folder / f"ratings.{kind}"
    if kind == "csv":
        frame.to_csv(path, index=False)
    elif kind == "tsv.gz":
        path.write_bytes(gzip.compress(frame.to_csv(sep="\t", index=False).encode()))
    elif kind == "dat":
        path.write_text(
            "".join("::".join(map(str, row)) + "\n" for row in frame.itertuples(index=False))
        )
    elif kind == "parquet":
        frame.to_parquet(path)
    else:
        return {
            "pandas": lambda: frame,
            "polars": lambda: polars.from_pandas(frame),
            "arrow": lambda: pa.Table.from_pandas(frame),
        }[kind]()
    return path


@pytest.mark.parametrize("kind", ["csv", "tsv.gz", "dat", "parquet", "pandas", "polars", "arrow"])
def test_the_same_ratings_from_any_source(kind: str, tmp_path: Path) -> None:
    frame = frame_of()
    names: Any = {} if kind == "dat" else NAMES
    matrix = streampca.open_ratings(written(frame, tmp_path, kind), **names)
    assert cells_of(matrix) == expected(frame, "last", timed=False)
    assert matrix.labels.samples.dims == (("user",) if kind == "dat" else ("userId",))
    first = np.asarray(matrix.labels.samples.coords[matrix.labels.samples.dims[0]])
    assert first[:5].tolist() == frame["userId"].unique()[:5].tolist()
    assert matrix.duplicates == 3000 - matrix.entries > 0
    assert str(matrix.duplicates) in matrix.note


@pytest.mark.parametrize("rule", ["last", "first", "mean"])
@pytest.mark.parametrize("timed", [False, True])
def test_which_of_several_ratings_counts(rule: str, timed: bool) -> None:
    frame = frame_of(seed=1)
    time = "time" if timed else None
    matrix = streampca.open_ratings(frame, **NAMES, time=time, duplicates=rule)
    assert cells_of(matrix) == pytest.approx(expected(frame, rule, timed))


def test_ratings_are_the_same_for_any_size_of_pieces(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Many pieces of text, many ranges of users that are sorted apart, a delimiter cut in two."""
    path = written(frame_of(seed=2), tmp_path, "dat")
    whole = streampca.open_ratings(path, time=3)
    monkeypatch.setattr(ratings, "PIECE_NBYTES", 1 << 10)
    monkeypatch.setattr(rating_store, "SORTED", 100)
    monkeypatch.setattr(rating_store, "LINES", 70)
    cut = streampca.open_ratings(path, time=3)
    assert cut.fingerprint() == whole.fingerprint()
    assert cells_of(cut) == cells_of(whole)
    np.testing.assert_array_equal(cut.read(0, 0, 50).toarray(), whole.read(0, 0, 50).toarray())


@pytest.mark.parametrize("size", [1, 2, 3, 5, 64])
def test_a_delimiter_of_several_characters_is_found_wherever_a_read_ends(size: int) -> None:
    text = b"a::b:c::d:\n1::2::3::4:\n::"

    class Slowly:
        def __init__(self) -> None:
            self.left = text

        def read(self, n: int) -> bytes:
            n = min(n, size)
            data, self.left = self.left[:n], self.left[n:]
            return data

    found, buffer = b"", bytearray(64)
    file = ratings.Replaced(Slowly(), b"::")
    while count := file.readinto(buffer):
        found += bytes(buffer[:count])
    assert found == text.replace(b"::", b"\x1f")


def test_ids_are_whole_numbers_only_where_all_are() -> None:
    for ids, kept in (
        (["7", "10"], [7, 10]),
        (["007", "10"], ["007", "10"]),
        (["7", "x"], ["7", "x"]),
    ):
        frame = pd.DataFrame({"user": ids, "item": ["a", "b"], "rating": [1.0, 2.0]})
        labels = streampca.open_ratings(frame).labels.samples
        assert np.asarray(labels.coords["user"]).tolist() == kept


def test_a_split_parts_all_ratings() -> None:
    frame = frame_of(seed=3)
    matrix = streampca.open_ratings(frame, **NAMES, time="time")
    every = cells_of(matrix)
    for by in ("random", "time"):
        given, unseen = matrix.split(0.25, by=by, seed=4)
        assert given.shape == unseen.shape == matrix.shape
        first, second = cells_of(given), cells_of(unseen)
        assert first | second == every
        assert not first.keys() & second.keys()
        assert len(second) == pytest.approx(0.25 * len(every), rel=0.1)
    times = [one.times.read((slice(0, one.entries),)) for one in (given, unseen)]
    assert times[0].max() <= times[1].min()
    again = matrix.split(0.25, seed=4)[1]
    assert again.fingerprint() == matrix.split(0.25, seed=4)[1].fingerprint()
    assert again.fingerprint() != matrix.split(0.25, seed=5)[1].fingerprint()


def test_dates_are_times() -> None:
    days = pd.date_range("2024-01-01", periods=10)
    frame = pd.DataFrame({"user": range(10), "item": 0, "rating": 1.0, "day": days})
    for one in (frame, frame.astype({"day": str})):
        unseen = streampca.open_ratings(one, time="day").split(0.3, by="time")[1]
        assert sorted(user for user, _ in cells_of(unseen)) == [7, 8, 9]


def test_errors_of_ratings_name_the_repair(tmp_path: Path) -> None:
    frame = frame_of()
    path = written(frame, tmp_path, "csv")
    cases: list[tuple[Any, dict[str, Any], str]] = [
        (path, {"user": "userid"}, "user='userid': .* 4 columns.*did you mean userId"),
        (path, {"user": 9}, "user=9"),
        (path, {"user": 0, "item": 0}, "expected three columns"),
        (path, {"duplicates": "any"}, "expected one of"),
        (frame, {**NAMES, "duplicates": "error"}, "more than once"),
        (frame.assign(rating=np.inf), NAMES, "rating 1 is not finite"),
        (frame.assign(userId=[None, *frame["userId"][1:]]), NAMES, "no 'userId' in rating 1"),
        (np.zeros((3, 3)), {}, "matrix of users x items needs no open_ratings"),
    ]
    for source, options, words in cases:
        with pytest.raises(InvalidInputError, match=words):
            streampca.open_ratings(source, **options)
    with pytest.raises(SourceError, match="no such file"):
        streampca.open_ratings(tmp_path / "none.csv")
    (tmp_path / "bad.csv").write_text("user,item,rating\na,b,3\na,c,good\n")
    with pytest.raises(InvalidInputError, match=r"bad\.csv: .*good"):
        streampca.open_ratings(tmp_path / "bad.csv")
    with pytest.raises(InvalidInputError, match="opened without times"):
        streampca.open_ratings(frame, **NAMES).split(by="time")


@pytest.mark.parametrize("kind", ["csv", "parquet", "pandas", "polars", "arrow"])
def test_a_table_of_ratings_is_no_matrix(kind: str, tmp_path: Path) -> None:
    source = written(frame_of().astype({"userId": str}), tmp_path, kind)
    line = r"open_ratings\(.*user='userId', item='movieId', rating='rating'\)"
    for model in (streampca.PCA(1), streampca.HardImpute()):
        with pytest.raises(InvalidInputError, match=line):
            model.fit(source)
    plain = pd.DataFrame(np.random.default_rng(0).normal(size=(9, 3)), columns=list("abc"))
    assert streampca.PCA(1, scale="std").fit(plain).n_features_in_ == 3
    named = plain.set_axis(["user", "item", "rating"], axis=1)
    assert streampca.PCA(1, scale="std").fit(streampca.open(named)).n_features_in_ == 3
