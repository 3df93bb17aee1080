"""Texts counted into Zarr: the counts are those of scikit-learn, whatever the memory."""

from __future__ import annotations

import gzip
import json
import random
from collections import Counter
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from sklearn.feature_extraction.text import CountVectorizer

import streampca
from streampca.errors import InvalidInputError, InvalidTypeError, OccupiedError, SourceError
from streampca.models.text import vocabulary
from streampca.models.text.counting_plan import Budget
from streampca.models.text.splitting import Pieces
from streampca.sources.texts import documents

RNG = np.random.default_rng(5)


def corpus(n: int = 400) -> list[str]:
    """Texts of words by Zipf's law; some are empty."""
    ranks = [np.minimum(RNG.zipf(1.4, size), 5000) for size in RNG.integers(0, 25, n)]
    return [" ".join(f"w{i:03d}" for i in one) for one in ranks]


def whole(matrix: Any) -> np.ndarray:
    return matrix.read(0, 0, matrix.shape[0]).toarray()


@pytest.mark.parametrize(
    "settings",
    [
        {},
        {"min_df": 3, "max_df": 0.3},
        {"min_df": 0.02, "max_df": 100},
        {"ngram_range": (1, 2), "min_df": 2},
        {"analyzer": "char_wb", "ngram_range": (2, 3)},
        {"stop_words": ["w001", "w002"], "lowercase": False},
    ],
)
@pytest.mark.parametrize(
    ("budget", "piece"),
    [(Budget(batch=500), 1 << 16), (Budget(40, 500), 1 << 16), (Budget(40, 60), 7)],
)
def test_counts_are_those_of_scikit_learn(
    settings: dict[str, Any], budget: Budget, piece: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whatever the dictionary and a batch hold, and in however many pieces a text comes."""
    texts = [*corpus(100), " ".join(corpus(40)), "w001"]
    monkeypatch.setattr(Budget, "within", lambda *_: budget)
    monkeypatch.setattr(documents, "PIECE", piece)
    found = streampca.open_texts(texts, **settings)
    reference = CountVectorizer(**settings)
    np.testing.assert_array_equal(whole(found), reference.fit_transform(texts).toarray())
    assert found.labels.features.names() == list(reference.get_feature_names_out())


ALPHABET = "ab cd Σσ'ΑΣ  \n\t éÉ\u0301中文가ｶﾞ\xa0 ¨İI the of x-1.5,\u2003\u1d2cﬁ\u0e33\x1c"
PATTERNS = (r"(?u)\b\w\w+\b", r"\S+", r"\w+\s\w+", r"\b", r"\w*", r"[^\s,.]+", r"\w+(?=\s)")


@pytest.mark.parametrize("analyzer", ["word", "char", "char_wb"])
def test_terms_of_pieces_are_those_of_the_whole(analyzer: str) -> None:
    """Final sigmas, marks, runs of blanks and n-grams over the borders of pieces."""
    rng = random.Random(1)
    for trial in range(300):
        text = "".join(rng.choices(ALPHABET, k=rng.randrange(60)))
        words = {"token_pattern": rng.choice(PATTERNS), "stop_words": rng.choice([None, ["the"]])}
        vectorizer = CountVectorizer(
            analyzer=analyzer,
            lowercase=trial % 3 > 0,
            **(words if analyzer == "word" else {}),
            strip_accents=rng.choice([None, "ascii", "unicode"]),
            ngram_range=rng.choice([(1, 1), (1, 2), (2, 3), (3, 3)]),
        )
        size = rng.randrange(1, 8)
        parts = [text[i : i + size] for i in range(0, len(text), size)]
        found = Counter(chain.from_iterable(Pieces(vectorizer).terms(parts, "the text")))
        assert found == Counter(vectorizer.build_analyzer()(text)), (text, vectorizer)


def test_a_full_dictionary_is_written_out(tmp_path: Path) -> None:
    terms = vocabulary.TermCounts(str(tmp_path), most_terms=40, batch=500)
    for text in corpus():
        terms.add(text.split())
    assert terms.dictionaries > 3
    totals = {one.term: (one.documents, one.total) for one in terms.terms()}
    terms.close()
    assert sum(total for _, total in totals.values()) == terms.tokens
    assert max(documents for documents, _ in totals.values()) > 100


@pytest.mark.parametrize("most", [1, 7, 50])
def test_the_most_frequent_terms(most: int, monkeypatch: Any) -> None:
    texts = corpus()
    every = streampca.open_texts(texts)
    kept = streampca.open_texts(texts, max_features=most)
    totals = dict(zip(every.labels.features.names(), whole(every).sum(axis=0), strict=True))
    names = kept.labels.features.names()
    assert len(names) == most
    left = [total for name, total in totals.items() if name not in names]
    assert min(totals[name] for name in names) >= max(left)


def test_a_folder_of_folders(tmp_path: Path) -> None:
    for name, text in {
        "sci/a.txt": "lens eye",
        "sci/b": "eye",
        "rec/c.txt": "ball eye",
        "rec/.hidden": "secret",
    }.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(text)
    found = streampca.open_texts(tmp_path)
    assert found.labels.samples.names() == ["rec/c.txt", "sci/a.txt", "sci/b"]
    assert found.labels.features.names() == ["ball", "eye", "lens"]
    np.testing.assert_array_equal(whole(found), [[1, 1, 0], [0, 1, 1], [0, 1, 0]])
    some = streampca.open_texts(str(tmp_path / "*" / "*.txt"))
    assert some.labels.samples.names() == ["rec/c.txt", "sci/a.txt"]
    listed = streampca.open_texts([str(tmp_path / "sci" / "b")], names=["one"])
    assert listed.labels.samples.names() == ["one"]


@pytest.mark.parametrize("packed", [False, True])
@pytest.mark.parametrize("kind", ["jsonl", "csv"])
def test_a_column_of_a_table(kind: str, packed: bool, tmp_path: Path) -> None:
    records = [{"id": "x1", "body": "lens, eye"}, {"id": "x2", "body": "the\neye"}]
    lines = "\n".join(map(json.dumps, records))
    table = 'id,body\nx1,"lens, eye"\nx2,"the\neye"\n'
    text = (lines if kind == "jsonl" else table).encode()
    path = tmp_path / f"texts.{kind}{'.gz' * packed}"
    path.write_bytes(gzip.compress(text) if packed else text)
    found = streampca.open_texts(path, column="body", names="id", stop_words="english")
    assert found.labels.samples.names() == ["x1", "x2"]
    np.testing.assert_array_equal(whole(found), [[1, 1], [1, 0]])
    with pytest.raises(InvalidInputError, match=r"which is the text\? streampca.open_texts"):
        streampca.open_texts(path)
    with pytest.raises(InvalidInputError, match="there is no 'text'; it has id; body"):
        streampca.open_texts(path, column="text")


def test_counts_are_kept_and_opened_again(tmp_path: Path) -> None:
    path, lines = tmp_path / "counts.zarr", tmp_path / "lines"
    lines.write_text("Lens eye\neye\n")
    with open(lines) as file:
        made = streampca.open_texts(file, path, lowercase=False)
    again = streampca.open(path)
    np.testing.assert_array_equal(whole(again), whole(made))
    assert '"lowercase": false' in again.labels.attrs["streampca_tokens"]
    with pytest.raises(OccupiedError, match="is there already"):
        streampca.open_texts(["eye"], path)
    assert streampca.open_texts(["eye"], path, overwrite=True).shape == (1, 1)


def test_a_given_vocabulary_keeps_its_order() -> None:
    found = streampca.open_texts(["b a c a", "z"], vocabulary=["c", "a", "b"], token_pattern=r"\w")
    np.testing.assert_array_equal(whole(found), [[1, 2, 1], [0, 0, 0]])
    with pytest.raises(InvalidInputError, match="'a' twice"):
        streampca.open_texts(["b"], vocabulary=["a", "a"])
    with pytest.raises(InvalidInputError, match="a given vocabulary stays as it is"):
        streampca.open_texts(["b"], vocabulary=["a"], min_df=2)


def test_counts_beyond_16_bits() -> None:
    found = streampca.open_texts(["word " * 70_000])
    assert whole(found).tolist() == [[70_000]]


BAD: dict[str, tuple[dict[str, Any], str]] = {
    "nothing": ({"source": []}, "there is no document"),
    "no term": ({"source": ["a b", ""]}, "no term is left of 0 tokens in 2 documents"),
    "too rare": ({"source": ["one", "two"], "min_df": 2}, "no term is left of 2 tokens"),
    "contradiction": ({"source": ["one"], "min_df": 3, "max_df": 2}, "fewer than min_df=3"),
    "a share": ({"source": ["one"], "min_df": 1.5}, "min_df=1.5; expected a number"),
    "stop words": ({"source": ["one"], "stop_words": "german"}, "expected 'english', a list"),
    "pattern": ({"source": ["one"], "token_pattern": "("}, "is no regular expression"),
    "n-grams": ({"source": ["one"], "ngram_range": (2, 1)}, "expected such as"),
    "analyzer": ({"source": ["one"], "analyzer": len}, "expected one of"),
    "names": ({"source": ["one", "two"], "names": ["a"]}, "differ in number"),
    "column": ({"source": ["one"], "column": "text"}, "have no columns"),
}


@pytest.mark.parametrize("name", BAD)
def test_bad_settings_are_named(name: str) -> None:
    options, message = BAD[name]
    with pytest.raises(InvalidInputError, match=message):
        streampca.open_texts(**options)


def test_bad_sources_are_named(tmp_path: Path) -> None:
    with pytest.raises(InvalidTypeError, match=r"document 1 is missing.* missing='skip'"):
        streampca.open_texts(["one", None])
    with pytest.raises(InvalidTypeError, match="texts are a dict"):
        streampca.open_texts({"a": "text"})
    with pytest.raises(SourceError, match="no such file or folder; expected a folder, a pattern"):
        streampca.open_texts(tmp_path / "absent")
    with pytest.raises(SourceError, match="no file of text is there"):
        streampca.open_texts(tmp_path)
    (tmp_path / "a.txt").write_bytes("naïve".encode("latin-1"))
    with pytest.raises(SourceError, match=r"is not utf-8: byte 2 is 0xef.*encoding='latin-1'"):
        streampca.open_texts(tmp_path)
    assert streampca.open_texts(tmp_path, encoding="latin-1").labels.features.names() == ["naïve"]
    with pytest.raises(InvalidInputError, match="expected one of Python's"):
        streampca.open_texts(tmp_path, encoding="nonsense")
    (tmp_path / "b.jsonl").write_text("{")
    with pytest.raises(SourceError, match="line 1: not JSON"):
        streampca.open_texts(tmp_path / "b.jsonl", column="text")
    (tmp_path / "a.txt").unlink()
    (tmp_path / "a.txt").symlink_to("/dev/zero")
    with pytest.raises(SourceError, match="expected a regular file"):
        streampca.open_texts(tmp_path)
