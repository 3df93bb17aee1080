"""MatrixMarket files against scipy.io."""

from __future__ import annotations

import gc
import gzip
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import scipy.io
import scipy.sparse
from hypothesis import given
from hypothesis import strategies as st

import streampca
from streampca.errors import InvalidInputError, SourceError
from streampca.sources.sparse import matrix_market

X = np.random.default_rng(0).poisson(0.3, size=(31, 17)).astype(float)
X[4] = 0


def write(path: Path, x: np.ndarray, order: str, field: str = "real") -> str:
    """The entries of x sorted by rows, by columns, or shuffled; the path."""
    sparse = scipy.sparse.coo_array(x)
    i, j, v = sparse.row, sparse.col, sparse.data
    keys = {
        "rows": np.lexsort((j, i)),
        "columns": np.lexsort((i, j)),
        "shuffled": np.random.default_rng(1).permutation(len(i)),
    }[order]
    lines = [f"%%MatrixMarket matrix coordinate {field} general\n% a comment\n"]
    lines.append(f"{x.shape[0]} {x.shape[1]} {len(i)}\n")
    for n in keys:
        value = {"pattern": "", "integer": f" {int(v[n])}", "real": f" {float(v[n])!r}"}[field]
        lines.append(f"{i[n] + 1} {j[n] + 1}{value}\n")
    text = "".join(lines).encode()
    path.write_bytes(gzip.compress(text) if path.suffix == ".gz" else text)
    return str(path)


@pytest.mark.parametrize("name", ["a.mtx", "a.mtx.gz"])
@pytest.mark.parametrize("order", ["rows", "columns"])
@pytest.mark.parametrize("dim", [None, 1])
def test_entries_equal_those_of_scipy(
    tmp_path: Path, name: str, order: str, dim: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(matrix_market, "TEXT_NBYTES", 97)  # lines are cut between pieces of text
    path = write(tmp_path / name, X, order)
    matrix = streampca.open(path, dim=dim)
    whole = scipy.io.mmread(path, spmatrix=False).toarray()
    whole = whole.T if dim == 1 else whole
    for axis in (0, 1):
        found = matrix.read(axis, 2, 14).toarray()
        np.testing.assert_array_equal(found, whole[:, 2:14] if axis else whole[2:14])
    assert matrix.stored == (order == "columns") ^ (dim == 1)


@given(
    st.integers(1, 12),
    st.integers(1, 9),
    st.floats(0, 1),
    st.sampled_from(["rows", "columns"]),
    st.sampled_from(["real", "integer", "pattern"]),
    st.integers(0, 99),
)
def test_any_shape_and_field(
    tmp_path_factory: pytest.TempPathFactory,
    n: int,
    p: int,
    density: float,
    order: str,
    field: str,
    seed: int,
) -> None:
    rng = np.random.default_rng(seed)
    x = (rng.random((n, p)) < density) * (
        1.0 if field == "pattern" else rng.integers(-9, 9, (n, p))
    )
    path = write(tmp_path_factory.mktemp("mtx") / "x.mtx", x, order, field)
    found = streampca.open(path)
    np.testing.assert_array_equal(found.read(0, 0, n).toarray(), x)
    assert found.dtype == {"real": "f8", "integer": "i4", "pattern": "i1"}[field]


@pytest.mark.parametrize(("genes", "end"), [("features.tsv", ".gz"), ("genes.tsv", "")])
def test_the_columns_of_a_10x_folder_are_cells(tmp_path: Path, genes: str, end: str) -> None:
    path = write(tmp_path / f"matrix.mtx{end}", X, "columns", "integer")
    assert streampca.open(path).shape == X.shape  # nothing beside it says what the columns are
    symbols = [f"G{i}\tGene Expression" for i in range(28)] + ["G3", "G4-1", "G4"]
    ids = [f"ENSG{i}\t{symbol}" for i, symbol in enumerate(symbols)]
    cells = [f"cell{i}\tanother name" for i in range(17)]
    for name, rows in ((genes, ids), ("barcodes.tsv", cells)):
        text = "".join(f"{row}\n" for row in rows).encode()
        (tmp_path / f"{name}{end}").write_bytes(gzip.compress(text) if end else text)
    matrix = streampca.open(path)
    np.testing.assert_array_equal(matrix.read(0, 0, 17).toarray(), X.T)
    assert matrix.labels.samples.name(16) == "cell16"
    expected = [f"G{i}" for i in range(28)] + ["G3-1", "G4-1", "G4-2"]  # as scanpy names them
    assert matrix.labels.features.names() == expected
    turned = streampca.open(path, dim=0)
    assert turned.shape == X.shape
    assert turned.labels.samples.names() == expected


@pytest.mark.slow
def test_scratch_goes_with_the_matrix_and_the_plan_names_it(tmp_path: Path) -> None:
    matrix: Any = streampca.open(write(tmp_path / "a.mtx", X, "rows"))
    folder = Path(matrix.folder.path)
    assert folder.is_dir()
    assert "converted once into" in str(streampca.PCA(2).plan(matrix))
    twin = matrix.streamed(0, np.array([0, 31]))
    again = streampca.open(str(tmp_path / "a.mtx"))
    assert again.fingerprint() == matrix.fingerprint()
    del matrix
    gc.collect()
    assert twin.read(0, 0, 31).sum() == X.sum()
    del twin
    gc.collect()
    assert not folder.exists()


REAL = "%%MatrixMarket matrix coordinate real general\n"
WRONG = [
    ("%%MatrixMarket matrix array real general\n1 1\n1\n", InvalidInputError, "mmread"),
    (REAL.replace("general", "symmetric") + "2 2 0\n", InvalidInputError, "mmread"),
    ("hello\n", SourceError, "not a MatrixMarket file"),
    (REAL + "2 x 1\n", SourceError, "three numbers"),
    (REAL + "2 2 3\n1 1 1\n2 2 1\n", SourceError, "has 2 entries"),
    (REAL + "2 2 1\n1 1 1\n2 2 1\n", SourceError, "has 2 entries"),
    (REAL + "2 2 1\n3 1 1\n", SourceError, "entry 1 lies outside"),
    (REAL + "2 2 1\n1.5 1 1\n", SourceError, "entry 1 lies outside"),
    (REAL + "2 2 1\n1 a 1\n", SourceError, "not numbers"),
    (REAL + "2 2 1\n1 1\n", SourceError, "does not have 3 numbers"),
    (REAL + "2 2 1\nnan 1 1\n", SourceError, "outside"),
    (REAL.replace("real", "integer") + "2 2 1\n1 1 3000000000\n", InvalidInputError, "2.31"),
    (REAL + "3 3 3\n2 1 1\n1 2 1\n3 1 1\n", InvalidInputError, "neither by rows nor by col"),
]


@pytest.mark.parametrize(("text", "kind", "words"), WRONG)
def test_what_cannot_be_streamed_is_refused(
    tmp_path: Path, text: str, kind: type[Exception], words: str
) -> None:
    path = tmp_path / "a.mtx"
    path.write_text(text)
    with pytest.raises(kind, match=words):
        streampca.open(str(path))


def test_a_gzip_file_that_is_cut_off(tmp_path: Path) -> None:
    path = tmp_path / "a.mtx.gz"
    write(path, X, "rows")
    path.write_bytes(path.read_bytes()[:-40])
    with pytest.raises(SourceError, match="cut off or damaged"):
        streampca.open(str(path))
