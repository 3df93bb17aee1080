"""Tables: every format reads the same, streams, plans and names what it leaves out."""

from __future__ import annotations

import gzip
import pickle
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import streampca
from streampca.errors import (
    IncompleteSourceWarning,
)
from streampca.matrix.location import SpanCache, reading_with
from streampca.sources.tables import reader as table_reader
from streampca.sources.tables import text
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
    monkeypatch.setattr(text, "RANGE_NBYTES", 9000)


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
