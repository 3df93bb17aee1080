"""Long, missing and tabular texts: counted within the limit, asked about, and told as they ran."""

from __future__ import annotations

import gzip
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

import streampca
from streampca import LSA
from streampca.cli import main
from streampca.errors import InvalidInputError, InvalidTypeError, MemoryLimitError, SourceError
from streampca.passes.memory import peak_nbytes
from streampca.sources.texts import records as text_records
from streampca.sources.texts.records import Records

ROWS = [(f"d{i}", 1990 + i, 3 * i, f"lens of eye w{i % 4} {i % 5}x, and cornea") for i in range(12)]
TABLE = pd.DataFrame(ROWS, columns=["id", "year", "citations", "abstract"])


@pytest.fixture
def tables(tmp_path: Path) -> dict[str, Any]:
    """One table as CSV with commas and semicolons, TSV and Parquet; and a file of lines."""
    found = {one: str(tmp_path / f"table.{one}") for one in ("csv", "tsv", "parquet", "txt")}
    found["semicolons"] = str(tmp_path / "semicolons.csv")
    TABLE.to_csv(found["csv"], index=False)
    TABLE.to_csv(found["semicolons"], index=False, sep=";")
    TABLE.to_csv(found["tsv"], index=False, sep="\t")
    TABLE.to_parquet(found["parquet"])
    Path(found["txt"]).write_text("\n".join(TABLE["abstract"]) + "\n")
    return found


@pytest.mark.parametrize("kind", ["csv", "semicolons", "tsv", "parquet", "txt"])
def test_a_column_of_texts_is_counted_alike_from_every_form(kind: str, tables: Any) -> None:
    expected = streampca.open_texts(list(TABLE["abstract"]))
    options: dict[str, Any] = {"lines": True} if kind == "txt" else {"column": "abstract"}
    found = streampca.open_texts(tables[kind], **options)
    np.testing.assert_array_equal(*(one.read(0, 0, 12).toarray() for one in (found, expected)))
    assert found.labels.features.names() == expected.labels.features.names()


@pytest.mark.parametrize("kind", ["csv", "semicolons", "tsv", "parquet", "frame"])
def test_numbers_next_to_texts_are_not_taken_for_counts(kind: str, tables: Any) -> None:
    source = TABLE if kind == "frame" else tables[kind]
    with pytest.raises(InvalidInputError, match=r"the column 'abstract' of .* holds texts"):
        LSA(1).fit(source)


def test_the_shell_asks_for_the_column_and_its_repairs_work(tables: Any, capsys: Any) -> None:
    assert main(["lsa", "fit", tables["csv"], "-k", "1"]) == 65
    assert "--column abstract counts its words" in capsys.readouterr().err
    fit = ["lsa", "fit", "-k", "1", "-q"]
    assert main([*fit, tables["csv"], "--column", "abstract"]) == 0
    assert main([*fit, tables["csv"], "--column", "abstract", "--delimiter", ";"]) == 65
    assert "it has id,year,citations,abstract" in capsys.readouterr().err
    assert main([*fit, tables["semicolons"], "--column", "abstract", "--names", "id"]) == 0
    assert main([*fit, tables["txt"]]) == 66
    assert "With a document a line: --lines" in capsys.readouterr().err
    assert main([*fit, tables["txt"], "--lines"]) == 0


def test_missing_texts_are_named_or_left_out(tmp_path: Path) -> None:
    path = tmp_path / "texts.jsonl"
    records = [{"text": "lens eye"}, {"text": None}, {}, {"text": ""}, {"text": "eye cornea"}]
    path.write_text("\n".join(json.dumps({"id": i, **one}) for i, one in enumerate(records)))
    table = tmp_path / "texts.csv"
    table.write_text("id,text\n0,lens eye\n1,\n4,eye cornea\n")
    with pytest.raises(InvalidTypeError, match=r"line 2: 'text' is missing.* missing='skip'"):
        streampca.open_texts(path, column="text")
    for source, skipped in ((path, 3), (table, 1)):
        found = streampca.open_texts(source, column="text", names="id", missing="skip")
        assert found.labels.samples.names() == ["0", "4"]
        assert json.loads(found.labels.attrs["streampca_tokens"])["skipped"] == skipped
    for texts in ([None, "lens eye", "eye"], pd.Series([np.nan, "lens eye", "eye"])):
        with pytest.raises(InvalidTypeError, match="document 0 is missing"):
            LSA(1).fit(texts)
        assert streampca.open_texts(texts, missing="skip").shape == (2, 2)
    with pytest.raises(InvalidInputError, match="there is no document apart from the 1 that were"):
        streampca.open_texts([None], missing="skip")
    with pytest.raises(InvalidInputError, match="there is no document; expected one or more"):
        LSA(2).fit([])


def test_reported_options_are_those_of_the_counts(tables: Any, tmp_path: Path, capsys: Any) -> None:
    model, counts = str(tmp_path / "m"), str(tmp_path / "c.zarr")
    options = ["--stop-words", "english", "--min-df", "2", "--ngrams", "1", "2", "--counts", counts]
    fit = ["lsa", "fit", "-k", "1", "-q", "-o", model]
    assert main([*fit, tables["csv"], "--column", "abstract", *options]) == 0
    for _ in ("counted here", "opened again"):
        assert main(["info", model]) == 0
        (line,) = (one for one in capsys.readouterr().out.splitlines() if "settings" in one)
        told = json.loads(line.removeprefix("settings"))
        assert (told["stop_words"], told["min_df"], told["ngram_range"]) == ("english", 2, [1, 2])
        assert '"min_df": 2' in streampca.load(model).report().html.replace("&quot;", '"')
        assert main([*fit, counts, "--overwrite"]) == 0


@pytest.mark.parametrize("record", ["jsonl", "csv"])
def test_a_record_without_room_is_refused_by_its_line(
    record: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(text_records, "PIECE", 100)
    path = tmp_path / f"texts.{record}"
    long = "word " * 5000
    text = [json.dumps({"text": one}) for one in ("lens eye", long)]
    path.write_text("\n".join(text) if record == "jsonl" else f"id,text\n1,lens eye\n2,{long}\n")
    line = 2 if record == "jsonl" else 3
    with pytest.raises(MemoryLimitError, match=f"line {line} has a record"):
        list(Records(str(path), "utf-8", None, 10_000))
    assert len(list(Records(str(path), "utf-8", None, None))) == 2


def test_a_limit_too_small_to_count_is_refused_before_reading(tmp_path: Path) -> None:
    for source in (["lens eye"], str(tmp_path / "absent.txt")):
        with pytest.raises(MemoryLimitError, match="too small for counting texts") as refused:
            streampca.open_texts(source, memory_limit="100MiB")
    assert streampca.open_texts(["lens eye"], memory_limit=refused.value.smallest).shape == (1, 2)


@pytest.mark.soak
@pytest.mark.skipif(not peak_nbytes(), reason="/proc is not there to measure with")
@pytest.mark.parametrize("kind", ["lines", pytest.param("jsonl", marks=pytest.mark.soak)])
def test_a_long_line_keeps_to_the_limit_and_the_printed_peak_is_the_systems(
    kind: str, tmp_path: Path
) -> None:
    """4 MB in a line: its tokens alone would take 50 MB. Measured in a fresh process."""
    draw = np.minimum(np.random.default_rng(0).zipf(1.3, 800_000), 100_000)
    text = " ".join(map("w{}".format, draw.tolist()))
    path = tmp_path / ("texts.txt" if kind == "lines" else "texts.jsonl")
    texts = [text, "w1 w2 w3", "w2 w3 w4"]
    path.write_text("\n".join(texts if kind == "lines" else [json.dumps({"t": x}) for x in texts]))
    options = {"lines": True} if kind == "lines" else {"column": "t"}
    script = (
        "import re, sys, streampca\n"
        f"counts = streampca.open_texts(sys.argv[1], memory_limit='500MiB', **{options})\n"
        "model = streampca.LSA(1, memory_limit='500MiB', progress=False).fit(counts)\n"
        "told = model.result_.provenance['peak_bytes']\n"
        "high = re.search(r'VmHWM:\\s*(\\d+)', open('/proc/self/status').read())[1]\n"
        "print(int(high) << 10, told,\n"
        "      model.plan_.peak_nbytes, int(counts.read(0, 0, 1).sum()))"
    )
    words = [sys.executable, "-W", "error", "-c", script, str(path)]
    done = subprocess.run(words, capture_output=True, text=True, check=True)
    peak, told, planned, tokens = map(int, done.stdout.split())
    assert tokens == int(np.count_nonzero(draw > -1))
    assert peak <= planned <= 500 << 20
    assert abs(peak - told) < 8 << 20


@pytest.mark.parametrize("form", ["lines", "array", "indented", "texts"])
@pytest.mark.parametrize("suffix", [".json", ".jsonl", ".json.gz"])
def test_json_is_an_array_or_an_object_a_line(
    form: str, suffix: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(text_records, "PIECE", 37)  # records are cut at every place
    records = TABLE.to_dict("records")
    if form == "texts":
        records = list(TABLE["abstract"])
    text = json.dumps(records, indent=2 if form == "indented" else None)
    if form == "lines":
        text = "\n".join(map(json.dumps, records))
    data = f"\ufeff\n {text}\n".encode()
    path = tmp_path / f"table{suffix}"
    path.write_bytes(gzip.compress(data) if suffix.endswith(".gz") else data)
    expected = streampca.open_texts(list(TABLE["abstract"]))
    found = streampca.open_texts(path, column="text" if form == "texts" else "abstract")
    np.testing.assert_array_equal(*(one.read(0, 0, 12).toarray() for one in (found, expected)))


def test_json_that_is_none_is_named(tmp_path: Path, capsys: Any) -> None:
    path = tmp_path / "b.json"
    path.write_text(json.dumps(TABLE.to_dict("records")))
    assert main(["lsa", "fit", str(path), "-k", "1"]) == 65
    assert "which is the text? --column abstract" in capsys.readouterr().err
    assert main(["lsa", "fit", str(path), "-k", "1", "--column", "abstract", "-q"]) == 0
    for text, told in (
        ("[{}, 7]", "record 1 of its array: 7; expected an object"),
        ('[{"a": "b"}, {"a"', "record 1 of its array: not JSON"),
    ):
        path.write_text(text)
        with pytest.raises(SourceError, match=told):
            list(Records(str(path), "utf-8", None, None))


def test_a_first_line_for_excel_states_the_delimiter(tables: Any) -> None:
    path = Path(tables["semicolons"])
    path.write_text("sep=;\n" + path.read_text())
    expected = streampca.open_texts(tables["csv"], column="abstract")
    found = streampca.open_texts(path, column="abstract", names="id")
    np.testing.assert_array_equal(*(one.read(0, 0, 12).toarray() for one in (found, expected)))
