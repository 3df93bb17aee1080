"""Tables: every format reads the same, streams, plans and names what it leaves out."""

from __future__ import annotations

import gzip
import pickle
import sys
import warnings
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import streampca
from streampca.cli.commands import main
from streampca.errors import (
    ChangingSourceError,
    DamagedSourceError,
    IncompleteSourceWarning,
    InvalidInputError,
    InvalidTypeError,
    LocalSourceWarning,
    MissingDependencyError,
    SourceError,
)
from streampca.matrix.chunked_matrix import SpanCache, reading_with
from streampca.passes.blocks import between_entries
from streampca.sources.tables import parquet, text
from streampca.sources.tables import reader as table_reader
from tests.passes.pass_matrices import same_bits

pa = pytest.importorskip("pyarrow")
pl = pytest.importorskip("polars")
import pyarrow.csv  # noqa: E402
import pyarrow.dataset as ds  # noqa: E402
import pyarrow.feather as feather  # noqa: E402
import pyarrow.parquet as pq  # noqa: E402

N, P = 997, 6
NAMES = [f"x{j}" for j in range(P)]


def values() -> Any:
    """Holes in two columns; one of whole numbers, one of float32."""
    rng = np.random.default_rng(0)
    x = rng.standard_normal((N, P)) * np.linspace(3, 1, P) + 5
    x[:, 1] = rng.integers(0, 10, N)
    x[:, 2] = x[:, 2].astype("f4")
    x[rng.random(N) < 0.1, 3] = np.nan
    x[rng.random(N) < 0.1, 1] = np.nan
    return x


X = values()


def table(first: int = 0, last: int = N) -> Any:
    columns = {}
    for j, name in enumerate(NAMES):
        own = X[first:last, j]
        column = pa.array(own, mask=np.isnan(own))
        columns[name] = column.cast({1: pa.int16(), 2: pa.float32()}.get(j, pa.float64()))
    return pa.table(columns)


def one_file(folder: Path) -> Any:
    pq.write_table(table(), folder / "x.parquet", row_group_size=300)
    return str(folder / "x.parquet")


def long_group(folder: Path) -> Any:
    pq.write_table(table(), folder / "x.parquet")
    return str(folder / "x.parquet")


def several(folder: Path) -> Any:
    (folder / "t").mkdir()
    for i, (a, b) in enumerate([(0, 500), (500, 500), (500, 997)]):
        pq.write_table(table(a, b), folder / "t" / f"part-{8 + i}.parquet", row_group_size=170)
    (folder / "t" / "_SUCCESS").touch()
    return folder / "t"


def hive(folder: Path) -> Any:
    for year, (a, b) in {"year=9": (0, 400), "year=10": (400, 997)}.items():
        (folder / "h" / year).mkdir(parents=True)
        pq.write_table(table(a, b), folder / "h" / year / "0.parquet", row_group_size=150)
    return str(folder / "h")


def feather_file(folder: Path) -> Any:
    feather.write_feather(table(), folder / "x.feather", chunksize=128)
    return str(folder / "x.feather")


def arrow_file(folder: Path) -> Any:
    with pa.ipc.new_file(folder / "x.arrow", table().schema) as file:
        file.write_table(table(), max_chunksize=333)
    return str(folder / "x.arrow")


def csv_file(folder: Path) -> Any:
    wide = table().cast(pa.schema([(name, pa.float64()) for name in NAMES]))
    pyarrow.csv.write_csv(wide, folder / "x.csv")
    return str(folder / "x.csv")


def packed(folder: Path) -> Any:
    path = Path(csv_file(folder))
    lines = path.read_bytes().replace(b",", b"\t")
    with gzip.open(folder / "x.tsv.gz", "wb") as file:
        file.write(lines.replace(b"\n", b"\n\n", 3))  # blank lines do not count
    return str(folder / "x.tsv.gz")


def data_set(folder: Path) -> Any:
    parts = sorted(several(folder).glob("*.parquet"), key=lambda path: int(path.stem[5:]))
    return ds.dataset([str(path) for path in parts])


def by_lists(make: Callable[[Path], Any]) -> Callable[[Path], Any]:
    """Halves of a table in two files of a format, as a list of paths."""

    def made(folder: Path) -> Any:
        (folder / "a").mkdir()
        (folder / "b").mkdir()
        found = []
        whole = globals()["table"]
        for name, part in (("a", (0, 450)), ("b", (450, N))):
            globals()["table"] = lambda a=0, b=N, part=part: whole(*part)
            try:
                found.append(make(folder / name))
            finally:
                globals()["table"] = whole
        return found

    return made


FORMATS: dict[str, Callable[[Path], Any]] = {
    "Parquet": one_file,
    "one long row group": long_group,
    "a folder": several,
    "partitioned": hive,
    "a list": by_lists(one_file),
    "Feather": feather_file,
    "IPC": arrow_file,
    "two IPC files": by_lists(arrow_file),
    "CSV": csv_file,
    "compressed TSV": packed,
    "two CSV files": by_lists(csv_file),
    "data set": lambda folder: data_set(folder),
    "filtered data set": lambda folder: data_set(folder).filter(ds.field("x0") > -1e9),
    "lazy frame": lambda folder: pl.scan_parquet(one_file(folder)),
    "table": lambda folder: table(),
}


@pytest.fixture(autouse=True)
def _small_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    """Several pieces of every unit, and several ranges of text."""
    monkeypatch.setattr(table_reader, "PIECE_NBYTES", 64 * P * 8)
    monkeypatch.setattr(table_reader, "PIECE_ROWS", 1)
    monkeypatch.setattr(parquet, "BATCH_ROWS", 64)
    monkeypatch.setattr(text, "RANGE_NBYTES", 9000)
    monkeypatch.setattr("streampca.passes.blocks.BLOCK_NBYTES", 64 * P * 8)
    monkeypatch.setattr("streampca.passes.blocks.BLOCK_LENGTH", 16)


@pytest.fixture(params=FORMATS)
def source(request: Any, tmp_path: Path) -> Any:
    made = FORMATS[request.param](tmp_path)
    return streampca.open(made, columns=NAMES) if request.param == "table" else made


@pytest.fixture
def matrix(source: Any) -> Any:
    if "year" not in str(source) and not str(source).endswith("/h"):
        return streampca.open(source)
    with pytest.warns(IncompleteSourceWarning, match="'year' \\(partition key\\)"):
        return streampca.open(source)


def test_any_part_in_any_order(matrix: Any) -> None:
    assert matrix.shape == (N, P)
    assert matrix.dtype == np.float64
    assert matrix.labels.features.names() == NAMES
    held = streampca.open(X)
    for axis, cuts in ((0, [0, 1, 64, 299, 300, 301, 700, 700, N]), (1, [0, 1, 2, 5, P])):
        whole = X if axis == 0 else X.T
        parts = list(pairwise(cuts))
        with reading_with(SpanCache()):
            for a, b in [*parts, *parts[::-1], (cuts[1], cuts[-2])]:
                for buffer in (None, np.empty(held.nbytes, np.uint8)):
                    found = matrix.read(axis, a, b, buffer)
                    np.testing.assert_array_equal(found if axis == 0 else found.T, whole[a:b])


def test_a_fit_is_planned_read_once_and_has_the_same_bits(matrix: Any) -> None:
    expected = streampca.PCA(3, missing="mean", svd_solver="scatter").fit(X)
    model = streampca.PCA(3, missing="mean", svd_solver="scatter", memory_limit="2GiB")
    plan = model.plan(matrix)
    model.fit(matrix)
    assert model.cost_[0].reads == plan.reads
    np.testing.assert_allclose(model.explained_variance_, expected.explained_variance_, rtol=1e-10)
    if "filtered" in matrix.note:
        (held,) = matrix.locations()
        assert held.in_process == "a filtered data set"
        return
    again = pickle.loads(pickle.dumps(matrix))
    other = streampca.PCA(3, missing="mean", svd_solver="scatter", memory_limit="2GiB").fit(again)
    assert same_bits(model.components_, other.components_)
    assert same_bits(model.explained_variance_, other.explained_variance_)
    assert matrix.fingerprint() == again.fingerprint()


def mixed(folder: Path, **more: Any) -> str:
    """Text, a dictionary, dates and identifiers beside two columns of numbers."""
    columns = {
        "name": [f"s{i}" for i in range(6)],
        "x": [1.0, 2.0, None, 4.0, 5.5, 6.0],
        "city": pa.array(["b", "a", None, "b", "c", "a"]).dictionary_encode(),
        "day": np.arange("2020-01-01", "2020-01-07", dtype="M8[D]"),
        "y": pa.array([1, 0, 1, 1, 0, 0], pa.int8()),
        "flag": [True, False, None, True, True, False],
    }
    pq.write_table(pa.table(columns | more), folder / "mixed.parquet", row_group_size=4)
    return str(folder / "mixed.parquet")


def test_only_numbers_by_default_and_the_others_are_named(tmp_path: Path) -> None:
    with pytest.warns(IncompleteSourceWarning, match=r"'name' \(string\); 'city' .*; 'day'"):
        matrix = streampca.open(mixed(tmp_path))
    assert matrix.labels.features.names() == ["x", "y", "flag"]
    assert not matrix.labels.samples.named
    assert "'city'" in str(streampca.PCA(1, missing="mean").plan(matrix))
    nan = np.nan
    expected = [[1, 1, 1], [2, 0, 0], [nan, 1, nan], [4, 1, 1], [5.5, 0, 1], [6, 0, 0]]
    np.testing.assert_array_equal(matrix.read(0, 0, 6), expected)
    assert matrix.column(0, "name").tolist() == [f"s{i}" for i in range(6)]
    assert matrix.column(0, "day").dtype.kind == "M"
    assert set(matrix.column_names(0)) >= {"name", "city", "day", "x"}
    with pytest.raises(InvalidInputError, match="'city' is null at row 2"):
        matrix.column(0, "city")


def test_chosen_columns_an_index_and_categories(tmp_path: Path) -> None:
    path = mixed(tmp_path)
    matrix = streampca.open(path, columns=["y", "city", "x"], index="name", categorical="onehot")
    assert matrix.labels.features.names() == ["y", "city=a", "city=b", "city=c", "x"]
    assert matrix.labels.samples.names() == [f"s{i}" for i in range(6)]
    nan = np.nan
    expected = [[1, 0, 1, 0, 1], [0, 1, 0, 0, 2], [1, nan, nan, nan, nan], [1, 0, 1, 0, 4]]
    np.testing.assert_array_equal(matrix.read(0, 0, 4), expected)
    np.testing.assert_array_equal(matrix.read(1, 2, 5)[:4], np.array(expected)[:, 2:])
    text_too = streampca.open(path, columns=["x", "name"], categorical="onehot")
    assert text_too.shape == (6, 7)
    with pytest.warns(IncompleteSourceWarning, match="'name'"):
        found = streampca.open(path, index="day", categorical="onehot")
    assert found.labels.samples.coords["sample"].dtype.kind == "M"
    assert "city=c" in found.labels.features.names()


@pytest.mark.parametrize(
    ("options", "why"),
    [
        ({"columns": ["x", "city"]}, r"columns 'city' .*not numeric.*categorical='onehot'"),
        ({"columns": ["x", "day"], "categorical": "onehot"}, r"'day' \(timestamp\[s\]\)|'day'"),
        ({"columns": ["z"]}, "no column 'z'"),
        ({"columns": ["x,city"]}, r"Names stand apart: columns=\['x', 'city'\]"),
        ({"columns": []}, "names no column"),
        ({"columns": ["x", "x"]}, "twice"),
        ({"columns": "x"}, r"columns=\['x'\]"),
        ({"index": "z"}, "no column 'z'"),
        ({"index": "city", "columns": ["x"]}, "'city' is null at row 2"),
        ({"columns": ["x"], "categorical": "dummy"}, "expected 'onehot'"),
        ({"columns": ["x"], "dim": 1}, "the rows of a table are the samples"),
    ],
)
def test_what_is_refused_says_why(options: Any, why: str, tmp_path: Path) -> None:
    with pytest.raises((InvalidInputError, InvalidTypeError), match=why):
        streampca.open(mixed(tmp_path), **options)


def test_options_of_tables_for_other_sources() -> None:
    why = "columns=.*is not a table.*leave columns= out"
    with pytest.raises(InvalidInputError, match=why):
        streampca.open(np.ones((3, 2)), columns=["a"])


def test_frames_in_memory_take_them_too(tmp_path: Path) -> None:
    pd = pytest.importorskip("pandas")
    frame = pd.DataFrame({"a": [1.0, 2.0], "b": ["x", "y"], "c": [3, 4]})
    for one in (frame, pl.from_pandas(frame), pa.Table.from_pandas(frame)):
        matrix = streampca.open(one, columns=["c", "a"], index="b")
        np.testing.assert_array_equal(matrix.read(0, 0, 2), [[3, 1], [4, 2]])
        assert matrix.labels.samples.names() == ["x", "y"]
        assert matrix.given_nbytes > 0
    frame.set_index("b").to_parquet(tmp_path / "x.parquet")
    matrix = streampca.open(tmp_path / "x.parquet")
    assert matrix.labels.samples.names() == ["x", "y"]  # the index that pandas stored
    assert matrix.labels.features.names() == ["a", "c"]


def test_large_identifiers_are_refused_by_name(tmp_path: Path) -> None:
    path = mixed(tmp_path, id=[2**60 + i for i in range(6)])
    matrix = streampca.open(path, columns=["x", "id"])
    with pytest.raises(InvalidTypeError, match=r"column 'id' is int64.*index="):
        matrix.read(0, 0, 6)


def test_files_of_one_table_need_the_same_columns(tmp_path: Path) -> None:
    folder = tmp_path / "t"
    folder.mkdir()
    pq.write_table(pa.table({"a": [1.0], "b": [2]}), folder / "0.parquet")
    pq.write_table(pa.table({"b": [2.5], "a": [1]}), folder / "1.parquet")  # another order is fine
    matrix = streampca.open(folder)
    np.testing.assert_array_equal(matrix.read(0, 0, 2), [[1, 2], [1, 2.5]])
    pq.write_table(pa.table({"a": [1.0], "b": ["text"]}), folder / "2.parquet")
    with pytest.raises(InvalidTypeError, match=r"has the numeric column 'b' and .*2.parquet does"):
        streampca.open(folder)
    assert streampca.open(folder, columns=["a"]).shape == (3, 1)
    (folder / "3.parquet").write_bytes(b"PAR1 no")
    with pytest.raises(SourceError, match=r"3\.parquet: not readable"):
        streampca.open(folder, columns=["a"])
    pq.write_table(pa.table({"a": ["x"]}), tmp_path / "text.parquet")
    with pytest.raises(InvalidTypeError, match="has no numeric column; it has 'a' "):
        streampca.open(tmp_path / "text.parquet")


def test_partition_keys_are_features_if_asked_for(tmp_path: Path) -> None:
    matrix = streampca.open(hive(tmp_path), columns=["x0", "year"])
    years = np.repeat([9.0, 10.0], [400, 597])
    np.testing.assert_array_equal(matrix.read(0, 0, N)[:, 1], years)
    np.testing.assert_array_equal(matrix.column(0, "year"), years)


def test_a_file_that_is_replaced_meanwhile(tmp_path: Path) -> None:
    path = one_file(tmp_path)
    matrix = streampca.open(path)
    pq.write_table(table(0, 450), path, row_group_size=300)
    with pytest.raises(ChangingSourceError, match="was replaced"):
        matrix.read(0, 350, 500)
    Path(path).write_bytes(Path(path).read_bytes()[:5000])
    with pytest.raises(SourceError, match="not readable"):
        matrix.read(0, 0, 10)


# -- text ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("lines", "names", "rows"),
    [
        ("a,b\n1,2\n3,4", ["a", "b"], [[1, 2], [3, 4]]),
        ("a;b\r\n1;2\r\n\r\n3;NA\r\n", ["a", "b"], [[1, 2], [3, np.nan]]),
        ("1\t2\n3\t4\n", ["c0", "c1"], [[1, 2], [3, 4]]),
        ("\ufeffa,b\n1,\n3,4\n", ["a", "b"], [[1, np.nan], [3, 4]]),
    ],
)
def test_text_as_it_comes(lines: str, names: Any, rows: Any, tmp_path: Path) -> None:
    (tmp_path / "x.csv").write_bytes(lines.encode())
    matrix = streampca.open(tmp_path / "x.csv")
    assert matrix.labels.features.names() == names
    np.testing.assert_array_equal(matrix.read(0, 0, 2), rows)
    assert "every pass parses" in matrix.note
    assert "streampca convert" in matrix.note


def test_row_names_of_text(tmp_path: Path) -> None:
    (tmp_path / "x.csv").write_text(',x,y\nfirst,1,2\n"second",3,4\n')
    matrix = streampca.open(tmp_path / "x.csv")
    assert matrix.labels.samples.names() == ["first", "second"]
    assert matrix.labels.features.names() == ["x", "y"]


@pytest.mark.parametrize(
    ("lines", "why"),
    [
        ("a,b\n" + "1,2\n" * 3000 + "3,x\n", r"line 3002: column 'b' holds 'x'.*na_values=\['x'\]"),
        ("a,b\n" + "1,2\n" * 3000 + "3,4,5\n", "line 3002: '3,4,5' has 3 fields; expected 2"),
        ("a,b\n1,2,3,4\n", "line 1 has 2 names of columns, and the rows after it have 4 fields"),
        ("a,b\n", "has no row"),
        ("\n", "the first line is empty"),
        ("", "the first line is empty"),
        ("a,b\nx,y\n", "no numeric column"),
    ],
)
def test_text_that_does_not_parse(
    lines: str, why: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(text, "HEAD_NBYTES", 1000)
    (tmp_path / "x.csv").write_text(lines)
    with pytest.raises((InvalidInputError, InvalidTypeError, SourceError), match=why):
        streampca.PCA(1).fit(tmp_path / "x.csv")


# -- elsewhere -----------------------------------------------------------------------------------


def test_the_command_line(tmp_path: Path, capsys: Any) -> None:
    path, csv = one_file(tmp_path), csv_file(tmp_path)
    assert main(["fit", path, "-k", "2", "--missing", "mean", "-o", str(tmp_path / "m")]) == 0
    assert main(["info", csv, "--columns", "x0", "x2"]) == 0
    said = capsys.readouterr().out
    assert "samples                997\nfeatures               2\n" in said
    assert "every pass parses" in said
    assert main(["plan", csv, "--missing", "mean"]) == 0
    assert "streampca convert" in capsys.readouterr().out
    assert main(["convert", csv, "-o", str(tmp_path / "x.zarr")]) == 0
    again = streampca.open(tmp_path / "x.zarr")
    np.testing.assert_array_equal(again.read(0, 0, N), X)
    assert again.labels.features.names() == NAMES
    assert main(["info", path, "--columns", "nothing"]) == 65
    assert main(["info", str(tmp_path / "none.parquet")]) == 66


def test_without_pyarrow(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = one_file(tmp_path)
    for name in [name for name in sys.modules if name.startswith("streampca.sources.tables.")]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    with pytest.raises(MissingDependencyError, match=r"pip install 'streampca\[tables\]'"):
        streampca.open(path)


def test_in_object_storage(s3: str, tmp_path: Path) -> None:
    obstore = pytest.importorskip("obstore")
    from streampca.object_storage import open_objects

    store = open_objects(s3)
    hive(tmp_path)
    for path in (tmp_path / "h").rglob("*.parquet"):
        obstore.put(store, f"h.parquet/{path.relative_to(tmp_path / 'h')}", path.read_bytes())
    obstore.put(store, "x.csv", Path(csv_file(tmp_path)).read_bytes())
    obstore.put(store, "x.feather", Path(feather_file(tmp_path)).read_bytes())
    folder = streampca.open(f"{s3}/h.parquet/", columns=NAMES)
    for matrix in (folder, *(streampca.open(f"{s3}/x.{end}") for end in ("csv", "feather"))):
        np.testing.assert_array_equal(matrix.read(0, 290, 700), X[290:700])
        assert matrix.paths() == ()
        (where, *_) = matrix.locations()
        assert "bytes" in where.look(where.sample())[where.name]
        assert pickle.loads(pickle.dumps(matrix)).shape == (N, P)


def fitted(matrix: Any, **more: Any) -> Any:
    """PCA of the table in one pass of many blocks."""
    model = streampca.PCA(3, missing="mean", svd_solver="scatter", memory_limit="2GiB", **more)
    return model.fit(matrix)


def test_the_plan_counts_the_dictionaries_that_there_are(tmp_path: Path) -> None:
    path = str(tmp_path / "x.parquet")
    values = np.tile(np.arange(1000.0), 9)
    pq.write_table(pa.table({"x": values, "plain": values}), path, use_dictionary=["x"])
    group = pq.ParquetFile(path).metadata.row_group(0)
    with pa.OSFile(path) as file:
        assert [parquet._dictionary_nbytes(group.column(i), file) for i in (0, 1)] == [8000, 0]
    within = group.column(0).total_uncompressed_size  # where no look is taken
    assert parquet._dictionary_nbytes(group.column(0), None) == within > 8000


def test_a_damaged_dictionary_is_named(tmp_path: Path) -> None:
    path = tmp_path / "x.parquet"
    pq.write_table(pa.table({"a": np.arange(400.0) % 7, "b": np.arange(400.0) % 5}), path)
    column = pq.ParquetFile(path).metadata.row_group(0).column(1)
    held = bytearray(path.read_bytes())
    where = column.dictionary_page_offset + 3
    held[where : where + 8] = b"\xff" * 8
    path.write_bytes(held)
    with pytest.raises(DamagedSourceError, match=r"x.parquet.*damaged"):
        streampca.PCA(1).fit(path)


@pytest.mark.parametrize("make", [several, csv_file], ids=["Parquet", "CSV"])
def test_an_interrupted_fit_resumes_with_the_same_bits(make: Any, tmp_path: Path) -> None:
    source = make(tmp_path)
    expected = fitted(streampca.open(source))

    def stop(advance: Any) -> None:
        if advance.blocks_done >= 9:
            raise KeyboardInterrupt

    folder = str(tmp_path / "checkpoint")
    with pytest.raises(KeyboardInterrupt):
        fitted(streampca.open(source), checkpoint=folder, progress=stop)
    model = fitted(streampca.open(source), checkpoint=folder)
    assert 0 < model.cost_[0].resumed_blocks < expected.cost_[0].blocks
    assert same_bits(model.components_, expected.components_)


@pytest.mark.slow
def test_workers_find_the_same_bits(tmp_path: Path, two_workers: Any) -> None:
    for name, make in FORMATS.items():
        (tmp_path / name).mkdir()
        source = make(tmp_path / name)
        if name in ("partitioned", "table"):
            source = streampca.open(source, columns=NAMES)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", LocalSourceWarning)  # of the filtered data set
            found = fitted(source, scheduler=two_workers)
        assert same_bits(found.components_, fitted(source).components_), name


def test_spans_begin_where_row_groups_do(tmp_path: Path) -> None:
    """Else each span would decode again what the one before it has."""
    pq.write_table(table(0, 960), tmp_path / "x.parquet", row_group_size=320)
    matrix = streampca.open(tmp_path / "x.parquet")
    plan = streampca.PCA(2, missing="mean", svd_solver="scatter").plan(matrix)
    (one,) = plan.passes
    assert one.reads == 3
    edges = np.array([0, 100, 200, 300, 400, 500, 600, 700, 800])
    entries = np.array([0, 300, 600, 800])
    assert between_entries(edges, entries, 1) == 3
    assert between_entries(edges, entries, 4) == 6
    assert between_entries(edges, entries[:1], 2) == 8
    assert between_entries(edges, edges, 2) == 2
