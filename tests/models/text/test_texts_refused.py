"""Texts, settings and labels that are odd: read, or refused in words."""

from __future__ import annotations

import os
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import streampca
from streampca import LSA, PCA
from streampca.errors import InvalidInputError, MemoryLimitError

TEXTS = [f"alpha beta{i % 50} gamma{i % 7} delta{i % 13}" for i in range(300)]


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"ngram_range": 3}, "ngram_range=3; expected such as"),
        ({"stop_words": 5}, "stop_words=5; expected 'english'"),
        ({"token_pattern": "(a)(b)"}, "has 2 groups; expected one at most"),
    ],
)
def test_settings_are_checked(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(InvalidInputError, match=message):
        streampca.open_texts(TEXTS, **settings)


def test_a_byte_order_mark_is_no_part_of_a_title(tmp_path: Path) -> None:
    path = tmp_path / "texts.csv"
    path.write_bytes("\ufeffname,text\na,alpha beta\n".encode())
    counts = streampca.open_texts(str(path), column="text", names="name")
    assert counts.labels.samples.names() == ["a"]
    with pytest.raises(InvalidInputError, match="encoding='nope'; expected one of Python's"):
        streampca.open_texts(str(path), column="text", encoding="nope")


@pytest.mark.skipif(os.name == "nt", reason="names of files are text there")
def test_a_file_whose_name_is_no_text_is_a_document(tmp_path: Path) -> None:
    for name, held in ((b"\xff.txt", "alpha beta"), (b"b.txt", "beta gamma")):
        (tmp_path / os.fsdecode(name)).write_text(held)
    counts = streampca.open_texts(str(tmp_path))
    assert counts.labels.samples.names() == ["b.txt", "\ufffd.txt"]


def test_a_refusal_names_the_method() -> None:
    counts = streampca.open_texts(TEXTS)
    with pytest.raises(MemoryLimitError, match="too small for LSA of 300 x 71"):
        LSA(3, memory_limit="1MiB").fit(counts)
    with pytest.raises(MemoryLimitError, match="too small for TruncatedSVD of"):
        streampca.TruncatedSVD(3, memory_limit="1MiB").fit(counts)


def test_a_report_of_odd_scores(tmp_path: Path) -> None:
    rows = np.random.default_rng(0).standard_normal((30, 5))
    model = PCA(2).fit(rows)
    scores = np.asarray(model.transform(rows))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert "<td>none</td>" in model.report(scores=scores * [1.0, np.nan]).html
        model.report(scores=scores * [1.0, np.inf])
    report = model.report(scores=scores, labels=["\udcff"] * 30)
    assert report.save(tmp_path / "report.html").exists()
    assert repr(report)
    for odd in (scores[:0], scores.astype(str), scores.astype(complex)):
        with pytest.raises(InvalidInputError, match=r"scores are .* expected real numbers"):
            model.report(scores=odd)
