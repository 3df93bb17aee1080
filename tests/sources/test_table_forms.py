"""Sixty forms of a table beside pandas: the same matrix, or a refusal that names the line and the
option, which is then typed, in Python and on the command line."""

from __future__ import annotations

import re
import shlex
import subprocess
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import streampca
from streampca.cli.commands import main
from streampca.errors import (
    IncompleteSourceWarning,
    InvalidInputError,
    InvalidTypeError,
    StreamPCAError,
    UncertainHeaderWarning,
)
from streampca.sources.tables import text
from streampca.sources.tables.header import decide
from tests.sources.table_forms import FORMS, PLAIN, ROWS, Form, lines

pa = pytest.importorskip("pyarrow")
pd = pytest.importorskip("pandas")

LINE = re.compile(r"streampca\.open\w*\((?:'[^']*'|\"[^\"]*\"|[^()'\"])*\)")
PARTS = re.compile(r"; or without it: |; or name|; if .*?: |\. |\n")


def values(matrix: Any) -> Any:
    return matrix.read(0, 0, matrix.shape[0])


def expected(path: Path, form: Form) -> Any:
    """The numbers that pandas reads."""
    frame = pd.read_csv(path, **form.pandas)
    return frame.select_dtypes(["number", "bool"]).to_numpy(float)


def typed(message: str) -> list[Any]:
    """What the lines of a message open."""
    return [eval(line, {"streampca": streampca}) for line in LINE.findall(message)]


def options_in(said: str) -> list[list[str]]:
    """The options that a message of the command line names, as they would be typed."""
    whole = said[said.index(" --") :]
    return [shlex.split(part) for part in PARTS.split(whole) if "--" in part]


@pytest.fixture(autouse=True)
def _columns_of_text_are_left_out() -> Any:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", IncompleteSourceWarning)
        yield


@pytest.mark.parametrize("form", FORMS, ids=lambda form: form.name)
def test_the_matrix_of_pandas_or_a_line_that_gives_it(
    form: Form, tmp_path: Path, capsys: Any
) -> None:
    path = tmp_path / form.name
    path.write_bytes(form.data)
    if form.known:
        with pytest.raises(StreamPCAError, match=form.known):
            streampca.open(path)
        return
    wanted = expected(path, form)
    more = form.doubt * (-1 if "header" in form.pandas else 1)  # rows, read the other way
    if not (form.refused or form.doubt):
        np.testing.assert_allclose(values(streampca.open(path)), wanted, rtol=1e-15)
        return
    if form.doubt:
        with pytest.warns(UncertainHeaderWarning, match="line 1") as told:
            found = streampca.open(path)
        np.testing.assert_array_equal(values(found), wanted)
        (other,) = typed(str(told[0].message))
        assert other.shape == (wanted.shape[0] + more, wanted.shape[1])
    else:
        with pytest.raises(StreamPCAError, match=r"line \d+") as refused:
            streampca.open(path)
        first, *others = typed(str(refused.value))
        np.testing.assert_allclose(values(first), wanted, rtol=1e-15)
        assert all(other.shape[0] == len(wanted) for other in others)
    warnings.simplefilter("always")
    assert main(["info", str(path)]) == (0 if form.doubt else pytest.approx(65, abs=1))
    ways = options_in(capsys.readouterr().err)
    assert ways
    for i, way in enumerate(ways):
        assert main(["info", str(path), *way]) == 0, way
        found = re.search(r"samples +(\d+)\nfeatures +(\d+)", capsys.readouterr().out)
        assert int(found[1]) == len(wanted) + more
        assert i or int(found[2]) == wanted.shape[1]


def test_sixty_forms() -> None:
    assert len(FORMS) >= 60
    assert len({form.name for form in FORMS}) == len(FORMS)


def write_frames(folder: Path) -> dict[str, Any]:
    """Binary forms: path -> the numbers that pandas reads."""
    frame = pd.DataFrame(ROWS, columns=list("abc"))
    frame["n"] = pd.array([1, None, 3, 4, 5, 6], dtype="Int64")
    frame["f"] = pd.array([True, False, None, True, True, False], dtype="boolean")
    frame["small"] = np.arange(6, dtype=np.uint8)
    numbers = frame.astype(float).to_numpy()
    frame.to_parquet(folder / "x.parquet")
    frame.to_parquet(folder / "X.PARQUET")
    frame.to_feather(folder / "x.feather")
    frame.set_index(pd.Index([f"s{i}" for i in range(6)])).to_parquet(folder / "i.pq")
    frame.assign(g=pd.Categorical(list("xyxyxy")), t="text").to_parquet(folder / "t.parquet")
    return {one.name: (one, numbers) for one in folder.iterdir()}


def test_binary_forms(tmp_path: Path) -> None:
    for path, wanted in write_frames(tmp_path).values():
        np.testing.assert_array_equal(values(streampca.open(path)), wanted)
        with pytest.raises(InvalidInputError, match=r"decimal=: .* is not text"):
            streampca.open(path, decimal=",")


def test_a_number_that_is_none_far_below_the_first_lines(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(text, "HEAD_NBYTES", 1000)
    monkeypatch.setattr(text, "RANGE_NBYTES", 2000)
    path = tmp_path / "x.csv"
    words = {"?": "?", "1,5": "1,5", "$3": "$3", "<LOD": "<LOD"}
    for word in words:
        rows = [f"n{i}\n;{i}.5;{i * 7 % 11}\n".replace("\n", "", 1) for i in range(700)]
        rows[600] = f'"n\n600";{word};1\n'
        path.write_text("name;a;b\n" + "".join(rows))
        with pytest.raises(InvalidTypeError, match=r"x.csv, line 602: column 'a'") as refused:
            values(streampca.open(path))
        again = values(typed(str(refused.value))[0])
        assert again.shape == (700, 2)
        kind = {"1,5": {"decimal": ","}, "$3": {}}.get(word, {"na_values": word})
        if word in ("?", "<LOD"):
            wanted = pd.read_csv(path, sep=";", **kind)[["a", "b"]].to_numpy(float)
            np.testing.assert_array_equal(again, wanted)


@pytest.mark.parametrize("data", [PLAIN.encode(), PLAIN.replace(",", "   ").encode()])
def test_ranges_of_any_form_are_read_in_any_order(
    data: bytes, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    head, _, body = data.partition(b"\n")
    row = b'"a\nb" ' if b"  " in data else b'"a\nb",'
    body = b"".join(row + line + b"\n" for line in body.splitlines())
    mark = b"name " if b"  " in data else b"name,"
    path = tmp_path / "x.csv"
    path.write_bytes(mark + head + b"\n" + body * 40)
    wanted = np.tile(ROWS, (40, 1))
    for size in (100, 333, 5000):
        monkeypatch.setattr(text, "RANGE_NBYTES", size)
        matrix = streampca.open(path)
        np.testing.assert_array_equal(values(matrix), wanted)
        np.testing.assert_array_equal(matrix.read(0, 100, 177), wanted[100:177])
        np.testing.assert_array_equal(matrix.read(0, 3, 90), wanted[3:90])


@pytest.mark.parametrize(
    ("first", "rows", "names", "sure"),
    [
        ("0,1,2", "1,2,3;4,5,6;7,8,9", False, False),  # rows alike: counting alone is no evidence
        ("1,2", "3,4;5,6", False, True),
        ("3,9,1", "5,6,7;4,4,2;3,1,1", False, True),
        ("1,1,2", "1.5,2.5,3.5;2.5,3.5,4.5", False, False),  # names are different, mostly
        ("1,1,2", "1,2,3;4,5,5;7,8,9", False, True),
        ("1e-3,1e-2", "0.5,1.5;0.25,2.5", True, False),
        ("1e-3,1e-2,1e-1", "0.5,1.5,7;0.25,2.5,3", True, True),
        ("1e-3,2e-2", "3e-3,1e-2;5e-1,0.7", False, True),
        ("0.001,0.01,0.1", "0.515,1.235,2.523;0.252,2.522,1.234", False, False),
        ("0,0.5,1", "0,1.5,1;0,2.5,2", False, False),  # even steps of three
        ("400,401,402,403,404", "1,2,9,4,5;3,1,2,5,1", True, True),
        ("12,7,99,3,4", "1.5,2,3,4,5;2.5,1,1,3,2", True, False),  # finer alone
        ("id,1.5,2.5", "a,2.5,3.5;b,1.5,0.5", True, False),
        ("ann,1.5,2.5", "bob,2.5,3.5;cid,1.5,0.5", False, False),
        ("x,1.5", "x,2.5;y,3.5", False, True),
        ("a,1", "3,2;4,5", True, True),
        (",1,2", "r1,3,4;r2,5,6", True, True),
        (",1,2", ",3,4;1,5,6", False, True),
        ("5", "", False, True),
        ("a", "", True, True),
        ("-3,-2,-1,0,1,2,3", "5,1,7,2,9,3,1;1,5,2,8,3,1,1", True, False),
    ],
)
def test_names_or_data(first: str, rows: str, names: bool, sure: bool) -> None:
    found = decide(first.split(","), [row.split(",") for row in rows.split(";") if row])
    assert (found.names, found.sure) == (names, sure)


def test_what_the_caller_says_of_the_first_line_holds(tmp_path: Path) -> None:
    path = tmp_path / "x.csv"
    path.write_text(lines("0,1,2"))
    assert streampca.open(path, header=False).shape == (7, 3)
    path.write_text(lines(None))
    named = streampca.open(path, header=True)
    assert named.labels.features.names() == ["1.5", "2.25", "-3.125"]
    path.write_text("a,b\nx,1\n")
    with pytest.raises(InvalidTypeError, match=r"'c1' .*are numbers, and line 1 holds 'b'"):
        streampca.open(path, header=False, columns=["c1"])


def test_headers_of_numbers_in_transform_pairs_convert_and_jobs(
    tmp_path: Path, capsys: Any
) -> None:
    x = np.random.default_rng(0).standard_normal((40, 4))
    path, other, copy = (str(tmp_path / name) for name in ("x.csv", "y.csv", "x.zarr"))
    pd.DataFrame(x).to_csv(path, index=False)
    pd.DataFrame(x[:, ::-1] * 2, columns=[2001, 2002, 2003, 2004]).to_csv(other, index=False)
    model = streampca.PCA(2).fit(path)
    np.testing.assert_allclose(
        model.explained_variance_, np.linalg.svd(x - x.mean(0))[1][:2] ** 2 / 39, rtol=1e-12
    )
    assert np.asarray(model.transform(path)).shape == (40, 2)
    assert streampca.CCA(1).fit(path, other).n_samples_ == 40
    assert main(["convert", path, "-o", copy]) == 0
    np.testing.assert_array_equal(values(streampca.open(copy)), x)
    assert main(["fit", path, "-k", "2", "--no-header", "-o", str(tmp_path / "m")]) == 0
    assert "41" in capsys.readouterr().out
    job = tmp_path / "job.yaml"
    options = tmp_path / "options.yaml"
    options.write_text(f"source: {path}\nheader: false\nna-values: ['?', '-']\nn-components: 2\n")
    assert main(["fit", "--config", str(options), "-o", str(tmp_path / "m2")]) == 0
    assert "41" in capsys.readouterr().out
    job.write_text(
        f"source:\n  path: {other}\n  header: true\n  na_values: ['?']\n  decimal: '.'\n"
        f"  delimiter: ','\nmodel:\n  n_components: 2\nstore: {tmp_path / 'store'}\n"
    )
    assert main(["config", "check", str(job)]) == 0


def test_ratings_with_a_header_of_numbers(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    frame = pd.DataFrame({0: rng.integers(10, 30, 50), 1: np.arange(50) + 100, 2: rng.random(50)})
    path = tmp_path / "r.csv"
    frame.to_csv(path, index=False)
    assert streampca.open_ratings(path).entries == 50
    frame.to_csv(path, index=False, header=False)
    assert streampca.open_ratings(path).entries == 50
    frame[2] = rng.integers(1, 6, 50)
    frame.to_csv(path, index=False)
    with pytest.warns(UncertainHeaderWarning, match="line 1 .0; 1; 2. is read as names") as told:
        assert streampca.open_ratings(path).entries == 50
    (other,) = typed(str(told[0].message))
    assert other.entries == 51
    path.write_text("sep=;\nuser;item;rating\n1;7;3.5\n2;8;4.5\n")  # as for Excel
    assert streampca.open_ratings(path).entries == 2
    path.write_bytes('"Nutzer";"B\xfccher";"Note"\n"1";"x";"3,5"\n"2";"y";"4"\n'.encode("latin-1"))
    with pytest.raises(StreamPCAError, match="line 1") as refused:
        streampca.open_ratings(path)
    (line,) = LINE.findall(str(refused.value))
    line = line.replace("encoding=", "decimal=',', encoding=")
    found = eval(line, {"streampca": streampca})
    assert found.read(0, 0, 2).toarray().max() == 4


def test_columns_of_which_some_cells_are_numbers(tmp_path: Path) -> None:
    path = tmp_path / "x.csv"
    path.write_text("chr,a\n" + "1,1.5\n" * 30 + "X,2.5\n" + "Y,1\n" * 3)
    said = r"'chr' \(text: 30 of 34 cells are numbers, and line 32 holds 'X'.*=\['X', 'Y'\]"
    with pytest.warns(IncompleteSourceWarning, match=said) as told:
        assert streampca.open(path).shape == (34, 1)
    assert "onehot" not in str(told[0].message)
    assert typed(str(told[0].message))[0].shape == (34, 2)
    with pytest.raises(InvalidTypeError, match="line 32 holds 'X'"):
        streampca.open(path, columns=["chr", "a"])
    onehot = streampca.open(path, columns=["chr", "a"], categorical="onehot")
    assert onehot.shape == (34, 4)


@pytest.mark.parametrize(
    ("options", "why"),
    [
        ({"header": 0}, "header=0; expected True or False"),
        ({"decimal": ",,"}, "expected one character"),
        ({"decimal": ",", "thousands": ","}, "are the same"),
        ({"delimiter": "::"}, "expected one character, 'tab' or 'blanks'"),
        ({"encoding": "utf-5"}, "expected one of Python's"),
        ({"strip": ""}, "expected text"),
    ],
)
def test_options_are_checked(options: Any, why: str, tmp_path: Path) -> None:
    (tmp_path / "x.csv").write_text(PLAIN)
    with pytest.raises((InvalidInputError, InvalidTypeError), match=why):
        streampca.open(tmp_path / "x.csv", **options)


def test_repeated_names_of_a_frame(tmp_path: Path) -> None:
    X = pd.DataFrame(np.eye(3), columns=["a", "b", "a"])
    with pytest.raises(InvalidInputError, match="columns a occur twice") as refused:
        streampca.open(X, columns=["a"])
    repaired = eval(str(refused.value).rpartition(": ")[2], {"X": X})
    assert streampca.open(repaired, columns=["a"]).shape == (3, 1)


def test_marks_and_encodings_of_lists(tmp_path: Path) -> None:
    from streampca.genetics.id_lists import read_names

    path = tmp_path / "keep.txt"
    for encoding in ("utf-8", "utf-8-sig", "utf-16"):
        path.write_text("F1 Jos\xe9\nF2 b\n", encoding=encoding)
        assert read_names(path, 2) == ["F1 Jos\xe9", "F2 b"]
    for encoding in ("latin-1", "utf-16-le"):
        path.write_text("F1 Jos\xe9\nF2 b\n", encoding=encoding)
        with pytest.raises(StreamPCAError, match=r"line 1: .*iconv -f") as refused:
            read_names(path, 2)
        subprocess.run(str(refused.value).rpartition(": ")[2], shell=True, check=True)
        assert read_names(f"{path}.utf8", 2) == ["F1 Jos\xe9", "F2 b"]


def test_a_mark_before_a_fileset(tmp_path: Path) -> None:
    bed = tmp_path / "X.BED"
    bed.write_bytes(b"\x6c\x1b\x01" + bytes([0b00_11_10_00, 0b00_00_00_11]))
    mark = b"\xef\xbb\xbf"
    (tmp_path / "X.bim").write_bytes(mark + b"1 rs1 0 5 A C\n2 rs2 0 7 G T\n")
    (tmp_path / "X.FAM").write_bytes(mark + b"f1 a 0 0 0 0\nf2 b 0 0 0 0\nf3 c 0 0 0 0\n")
    matrix = streampca.open(bed)
    assert matrix.labels.features.names() == ["rs1", "rs2"]
    assert [str(one) for one in matrix.labels.features.extra["chromosome"]] == ["1", "2"]
    assert matrix.labels.samples.names()[0].endswith("a")
    assert str(matrix.labels.samples.extra["family"][0]) == "f1"


def test_weights_with_a_header_of_numbers(tmp_path: Path, capsys: Any) -> None:
    rng = np.random.default_rng(0)
    x, weights = rng.standard_normal((30, 3)), np.array([1.0, 2.0, 0.5])
    pd.DataFrame(x).to_csv(tmp_path / "x.csv", index=False)
    pd.DataFrame(weights).to_csv(tmp_path / "w.csv", index=False)
    argv = ["fit", str(tmp_path / "x.csv"), "-k", "1", "--weights", str(tmp_path / "w.csv")]
    warnings.simplefilter("always")
    assert main([*argv, "-o", str(tmp_path / "m")]) == 0
    found = streampca.load(tmp_path / "m").explained_variance_
    centred = (x - x.mean(0)) * weights
    np.testing.assert_allclose(found, np.linalg.svd(centred)[1][:1] ** 2 / 29, rtol=1e-10)
