"""Latent semantic analysis against published numbers, NumPy, and what users ask of it."""

from __future__ import annotations

import csv
import json
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import scipy.io
import scipy.sparse
from sklearn.feature_extraction.text import CountVectorizer, TfidfTransformer

import streampca
from streampca import LSA
from streampca.cli import main
from streampca.errors import EmptyDocumentsWarning, InvalidInputError, MemoryLimitError, SourceError
from streampca.models.text.counting import count_texts
from streampca.passes.memory import LIBRARY_NBYTES

PUBLISHED = [3.3409, 2.5417, 2.3539, 1.6445, 1.5048, 1.3064, 0.8459, 0.5601, 0.3637]
TEXTS = [
    "The lens of the eye",
    "Lens and cornea of an eye",
    "cornea and retina",
    "graphs have trees",
    "trees and minors of graphs",
    "a survey of minors",
]
NAMES = ["e1", "e2", "e3", "g1", "g2", "g3"]


@pytest.fixture(scope="module")
def titles(shared_data: Path) -> dict[str, Any]:
    """The nine titles of Deerwester and others, as counts of documents x terms."""
    with open(shared_data / "deerwester9" / "counts.csv") as file:
        (_, *names), *rows = csv.reader(file)
    counts = np.array([[float(one) for one in row[1:]] for row in rows]).T
    return {"X": counts, "terms": [row[0].lower() for row in rows], "names": names}


@pytest.fixture(scope="module")
def small() -> LSA:
    """A model of six texts."""
    return LSA(4, stop_words="english", progress=False).fit(TEXTS, names=NAMES)


# -- published numbers -----------------------------------------------------------------------------


def test_the_nine_titles(titles: dict[str, Any]) -> None:
    every = LSA(9, weighting="raw").fit(**titles)
    np.testing.assert_allclose(every.singular_values_, PUBLISHED, atol=5e-5)
    model = LSA(2, weighting="raw").fit(**titles)
    found = model.search("Human computer interaction", 9)
    assert [one.name for one in found] == ["c3", "c1", "c4", "c2", "c5", "m4", "m3", "m2", "m1"]
    # of gensim's tutorial
    cosines = [
        0.9984453,
        0.998093,
        0.9865886,
        0.93748635,
        0.90755945,
        0.0500,
        -0.0988,
        -0.1064,
        -0.1242,
    ]
    np.testing.assert_allclose([one.score for one in found], cosines, atol=5e-5)
    np.testing.assert_allclose(
        np.abs(model.fold_in("human computer interaction")), [[0.4618, 0.0700]], atol=5e-5
    )
    first = np.abs(np.asarray(model.document_coordinates_)[0])
    np.testing.assert_allclose(first, [0.65946639, 0.14211544], atol=1e-8)


def test_a_relevant_document_without_a_word_of_the_query() -> None:
    """The table of the slide: document 1 is relevant, and shares no term with the query."""
    terms = [
        "access",
        "document",
        "retrieval",
        "information",
        "theory",
        "database",
        "indexing",
        "computer",
    ]
    counts = np.zeros((3, 8))
    counts[0, [0, 1, 2, 5, 6]] = 1
    counts[1, [3, 4, 7]] = 1
    counts[2, [2, 3, 7]] = 1
    query = "IDF in computer-based information look-up"
    model = LSA(2, weighting="raw").fit(counts, terms=terms, names=["d1", "d2", "d3"])
    assert model.words(query)[0] == ["computer", "information"]
    assert not counts[0, [terms.index(one) for one in ("computer", "information")]].any()
    scores = {one.name: one.score for one in model.search(query)}
    exact = LSA(3, weighting="raw").fit(counts, terms=terms, names=["d1", "d2", "d3"])
    by_terms = {one.name: one.score for one in exact.search(query)}
    assert by_terms["d1"] == pytest.approx(0.0, abs=1e-12)
    assert scores["d1"] > 1e-3  # little: three documents say that it is about retrieval, as d3 is
    assert scores["d2"] > scores["d3"] > scores["d1"]  # but not that d2 is not relevant


def entries(path: Path) -> list[str]:
    parts = re.split(r"^\.I \d+\s*$", path.read_text(), flags=re.MULTILINE)
    return [one.split(".W", 1)[1] for one in parts if ".W" in one]


def mean_precision(order: np.ndarray, relevant: set[int]) -> float:
    """At nine levels of recall, interpolated."""
    found = np.cumsum(np.isin(order, list(relevant)))
    precision, recall = found / np.arange(1, len(order) + 1), found / len(relevant)
    levels = np.arange(1, 10) / 10
    return float(np.mean([precision[recall >= one - 1e-9].max() for one in levels]))


@pytest.mark.soak
def test_medlars(shared_data: Path) -> None:
    folder = shared_data / "text_med"
    texts, queries = entries(folder / "MED.ALL"), entries(folder / "MED.QRY")
    relevant: dict[int, set[int]] = {}
    for line in (folder / "MED.REL").read_text().splitlines():
        if words := line.split():
            relevant.setdefault(int(words[0]) - 1, set()).add(int(words[1]) - 1)
    counts = streampca.open_texts(texts, stop_words="english", min_df=2)
    expected = {"raw": (0.46, 0.52), "log-entropy": (0.534, 0.716)}
    for weighting, (by_terms, by_lsa) in expected.items():
        model = LSA(100, weighting=weighting, progress=False).fit(counts)
        ranked = [[one.number for one in model.search(query, len(texts))] for query in queries]
        found = np.mean([mean_precision(np.array(r), relevant[i]) for i, r in enumerate(ranked)])
        assert found == pytest.approx(by_lsa, abs=0.005)
        d, q = weighted(model, counts), weighted(model, queries)
        lengths = np.linalg.norm(d, axis=1)
        cosines = (q @ d.T) / np.where(lengths > 0, lengths, 1)
        order = np.argsort(-cosines, axis=1, kind="stable")
        terms = np.mean([mean_precision(one, relevant[i]) for i, one in enumerate(order)])
        assert terms == pytest.approx(by_terms, abs=0.005)


def weighted(model: LSA, texts: Any) -> np.ndarray:
    """Texts or counts as the model weights them, dense."""
    if isinstance(texts, list):
        texts = streampca.open(count_texts(texts, model.result_.splitting, model.result_.places)[0])
    made = model.result_.preprocessing.apply(texts, lambda *_: np.ones(texts.shape[0]))
    return np.asarray(made.read(0, 0, made.shape[0]).toarray())


# -- against NumPy ---------------------------------------------------------------------------------


@pytest.mark.parametrize("weighting", ["raw", "tf-idf", "log-entropy"])
def test_against_numpy(weighting: str) -> None:
    counts = np.random.default_rng(2).poisson(0.4, (80, 30)).astype(float)
    counts[:, 0] += 1
    model = LSA(4, weighting=weighting, progress=False).fit(counts)
    a = counts
    if weighting == "tf-idf":
        a = TfidfTransformer().fit_transform(counts).toarray()
    if weighting == "log-entropy":
        p = counts / counts.sum(axis=0)
        logs = np.where(p > 0, p * np.log(np.where(p > 0, p, 1)), 0).sum(axis=0)
        a = np.log1p(counts) * (1 + logs / np.log(80))
    u, s, vt = np.linalg.svd(a, full_matrices=False)
    np.testing.assert_allclose(model.singular_values_, s[:4], rtol=1e-10)
    documents, terms = u[:, :4] * s[:4], vt[:4].T * s[:4]
    found = np.asarray(model.document_coordinates_)
    np.testing.assert_allclose(found @ found.T, documents @ documents.T, atol=1e-9)  # U S^2 U'
    found = model.term_coordinates_
    np.testing.assert_allclose(found @ found.T, terms @ terms.T, atol=1e-9)  # V S^2 V'
    shares = (s[:4] ** 2) / (a**2).sum()
    np.testing.assert_allclose(model.explained_variance_ratio_, shares, rtol=1e-10)
    np.testing.assert_allclose(model.fold_in(counts[7:9]), model.document_coordinates_[7:9])
    near = model.similar_documents(3, 79)
    assert 3 not in [one.number for one in near]
    cosines = documents @ documents[3] / np.linalg.norm(documents, axis=1)
    expected = cosines / np.linalg.norm(documents[3])
    for one in near:
        assert one.score == pytest.approx(expected[one.number], abs=1e-9)
    assert [one.score for one in near] == sorted([one.score for one in near], reverse=True)


def test_a_fitted_weighting_is_applied_as_it_is() -> None:
    rng = np.random.default_rng(3)
    corpus, more = rng.poisson(1.0, (60, 12)), rng.poisson(1.0, (30, 12))
    weighting = streampca.preprocess.LogEntropy(progress=False).fit(corpus)
    model = LSA(2, weighting=weighting, progress=False).fit(more)
    a = np.log1p(more) * weighting.weights_
    np.testing.assert_allclose(model.singular_values_, np.linalg.svd(a)[1][:2], rtol=1e-6)
    for refuse in (LSA(2).fit, LSA(2).plan):
        with pytest.raises(InvalidInputError, match="has been weighted already"):
            refuse(weighting.transform(more))


def test_every_pass_of_a_fit_is_planned_and_counted() -> None:
    """Those for the weights, and for the lengths of the rows, too."""
    rng = np.random.default_rng(4)
    corpus, more = rng.poisson(1.0, (60, 12)), rng.poisson(1.0, (30, 12))
    lengths = TfidfTransformer().fit(corpus)
    fitted = streampca.preprocess.TfIdf(progress=False).fit(corpus)
    for weighting in ("raw", "tf-idf", "log-entropy", fitted):
        model = LSA(2, weighting=weighting, progress=False).fit(more)
        names = [one.name for one in model.plan_.passes]
        assert [one.name for one in model.cost_] == names
        assert names == [one.name for one in LSA(2, weighting=weighting).plan(more).passes]
        assert ("row sums" in names) == (weighting in ("tf-idf", fitted))
    expected = np.linalg.svd(lengths.transform(more).toarray())[1][:2]
    np.testing.assert_allclose(model.singular_values_, expected, rtol=1e-10)


# -- what users ask --------------------------------------------------------------------------------


def test_answers_are_names_of_documents_and_terms(small: LSA) -> None:
    assert [one.name for one in small.search("eyes and an EYE", 2)] == ["e1", "e2"]
    assert small.similar_documents("g1", 1)[0].name == "g2"
    assert small.similar_terms("Graphs", 1)[0].name == "trees"
    assert small.words("the lens of a camera") == (["lens"], ["camera"])
    assert "lens" in small.vocabulary_
    assert small.transform(["a lens"]).shape == (1, 4)


def test_a_saved_lsa_answers_the_same(small: LSA, tmp_path: Path) -> None:
    small.save(tmp_path / "m")
    loaded = streampca.load(tmp_path / "m")
    assert isinstance(loaded, LSA)
    assert loaded.search("lens") == small.search("lens")
    assert loaded.similar_terms("lens") == small.similar_terms("lens")
    assert loaded.similar_documents("e1") == small.similar_documents("e1")
    assert loaded.words("the lens") == (["lens"], [])  # stop words are kept


def test_coordinates_on_disk(small: LSA, tmp_path: Path) -> None:
    place = tmp_path / "documents.zarr"
    options: dict[str, Any] = {"stop_words": "english", "progress": False}
    model = LSA(4, coordinates=str(place), **options).fit(TEXTS, names=NAMES)
    assert model.result_.scores is None
    assert model.search("lens") == small.search("lens")
    model.save(tmp_path / "m")
    loaded = streampca.load(tmp_path / "m")
    assert loaded.search("lens") == small.search("lens")
    loaded.add_documents(["eye and cornea"], names=["new"])
    assert "new" in [one.name for one in loaded.search("cornea", 7)]
    assert model.search("lens") == small.search("lens")  # which knows of none that were added
    other = LSA(4, coordinates=str(tmp_path / "o.zarr"), **options).fit([*TEXTS[::-1], "eye lens"])
    (tmp_path / "o.zarr").rename(tmp_path / "o2.zarr")
    with pytest.raises(SourceError, match="does not hold the coordinates"):
        other.search("lens")
    texts = iter(TEXTS)
    for taken in (place, tmp_path / "documents.csv"):
        with pytest.raises(InvalidInputError, match=r"exists already|a Zarr array is written here"):
            LSA(4, coordinates=str(taken), **options).fit(texts)
    assert len(list(texts)) == len(TEXTS)  # refused before any is read


def test_ready_matrices(small: LSA, tmp_path: Path) -> None:
    vectorizer = CountVectorizer(stop_words="english")
    counts = vectorizer.fit_transform(TEXTS)
    expected = [(one.number, pytest.approx(one.score, abs=1e-6)) for one in small.search("lens", 2)]
    scipy.io.mmwrite(tmp_path / "x.mtx", scipy.sparse.coo_matrix(counts))
    for X in (counts, scipy.sparse.csc_matrix(counts), counts.toarray(), str(tmp_path / "x.mtx")):
        model = LSA(4, progress=False).fit(X, terms=vectorizer, names=NAMES)
        assert [(one.number, one.score) for one in model.search("the lens", 2)] == expected
    nameless = LSA(4, progress=False).fit(counts)
    with pytest.raises(InvalidInputError, match=r"have no names.*fit\(X, terms="):
        nameless.search("lens")
    query = vectorizer.transform(["lens"])
    assert [(one.number, one.score) for one in nameless.search(query, 2)] == expected
    own = CountVectorizer(tokenizer=str.split, token_pattern=None).fit(TEXTS)
    with pytest.raises(InvalidInputError, match="has a function as its tokenizer"):
        LSA(4).fit(own.transform(TEXTS), terms=own)


# -- documents that come later ---------------------------------------------------------------------


def test_folding_in_says_what_it_loses(small: LSA, tmp_path: Path) -> None:
    model = LSA(4, stop_words="english", progress=False).fit(TEXTS, names=NAMES)
    again = model.add_documents(TEXTS[:2], names=["a", "b"])
    a = weighted(model, TEXTS[:2])
    held = (a @ model.components_.T) ** 2
    assert again.lost == pytest.approx(1 - held.sum() / (a**2).sum(), abs=1e-6)
    assert again.unknown == 0.0
    np.testing.assert_allclose(
        model.document_coordinates_[6:], model.document_coordinates_[:2], atol=1e-6
    )
    new = model.add_documents(["a lens of glass"])
    assert new.documents == 1
    assert new.unknown == 0.5
    assert new.lost_in_fit == pytest.approx(1 - model.explained_variance_ratio_.sum())
    assert model.result_.fitted.tolist() == [True] * 6 + [False] * 3
    model.save(tmp_path / "m")
    found = streampca.load(tmp_path / "m").search("lens", 9)
    assert "8" in [one.name for one in found]  # numbered on
    assert main(["info", str(tmp_path / "m")]) == 0
    with pytest.raises(InvalidInputError, match="e1: documents of these names are there"):
        model.add_documents(["lens"], names=["e1"])


def test_an_exact_refit_has_the_weights_of_all(small: LSA) -> None:
    model = LSA(4, stop_words="english", progress=False).fit(TEXTS[:5], names=NAMES[:5])
    terms = model.vocabulary_
    added = model.add_documents([TEXTS[5]], names=["g3"], corpus=TEXTS[:5])
    counts = streampca.open_texts(TEXTS, vocabulary=terms, stop_words="english")
    whole = LSA(4, progress=False).fit(counts)
    np.testing.assert_allclose(model.singular_values_, whole.singular_values_, rtol=1e-6)
    assert model.words("the lens") == (["lens"], [])
    assert added.documents == 1
    assert len(model.document_coordinates_) == 6


# -- bad input -------------------------------------------------------------------------------------


def test_empty_documents_are_named() -> None:
    with pytest.warns(EmptyDocumentsWarning, match=r"2 of 4 documents .*: empty; stops"):
        model = LSA(2, stop_words="english", progress=False).fit(
            ["lens eye", "", "of the", "lens cornea"], names=["x", "empty", "stops", "y"]
        )
    assert {one.name for one in model.search("lens")} == {"x", "y"}
    with pytest.raises(InvalidInputError, match="'empty' has no word that counts"):
        model.similar_documents("empty")


@pytest.mark.parametrize("query", ["lenz, corneaa", "retinas"])
def test_unknown_words_are_named(small: LSA, query: str) -> None:
    with pytest.raises(InvalidInputError, match=r"not among the \d+ terms.* Near to them are"):
        small.search(query)


@pytest.mark.parametrize("query", ["", "the of", "?"])
def test_queries_without_words_are_named(small: LSA, query: str) -> None:
    with pytest.raises(InvalidInputError, match="without a word that counts"):
        small.search(query)


def test_a_changed_vocabulary_is_refused(small: LSA) -> None:
    other = streampca.open_texts([*TEXTS, "another word"], stop_words="english")
    for answer in (small.transform, small.fold_in, small.add_documents):
        with pytest.raises(InvalidInputError, match="features"):
            answer(other)
    turned = streampca.open_texts(TEXTS, vocabulary=small.vocabulary_[::-1])
    with pytest.raises(InvalidInputError, match="features"):
        small.add_documents(turned)


def test_bad_arguments_are_named(small: LSA) -> None:
    counts = streampca.open_texts(TEXTS)
    for parameters, X, message in (
        ({"weighting": "bm25"}, counts, "expected 'log-entropy', 'tf-idf', 'raw'"),
        ({"min_df": 2}, counts, "min_df=2 is for texts, and X are counts"),
        ({"n_components": 50}, counts, "n_components=50"),
    ):
        with pytest.raises(InvalidInputError, match=message):
            LSA(**{"n_components": 2, **parameters}).fit(X)
    with pytest.raises(InvalidInputError, match="terms are 3; X has"):
        LSA(2).fit(counts, terms=["a", "b", "c"])
    with pytest.raises(InvalidInputError, match=r"'e9': none has this name.* Or give its number"):
        small.similar_documents("e9")
    with pytest.raises(InvalidInputError, match="expected a number below 6"):
        small.similar_documents(6)
    with pytest.raises(InvalidInputError, match="n=0; expected a number from 1"):
        small.search("lens", 0)
    with pytest.raises(MemoryLimitError):
        LSA(2, memory_limit="1MiB").fit(counts)


def test_what_split_the_texts_is_in_the_plan_of_this_process(tmp_path: Path) -> None:
    counts = streampca.open_texts(TEXTS, tmp_path / "c.zarr")
    assert LSA(2).plan(counts).memory["process"]["sklearn"] == LIBRARY_NBYTES["sklearn"]
    reopened = streampca.open(tmp_path / "c.zarr")
    assert "sklearn" not in LSA(2).plan(reopened).memory["process"]


@pytest.mark.soak
def test_counting_and_fitting_in_one_process_keep_to_the_plan(tmp_path: Path) -> None:
    """Measured from a fresh process, whose libraries the plan has to count."""
    draw = np.random.default_rng(0).zipf(1.3, (2500, 20)) % 5000
    lines = [json.dumps({"text": " ".join(f"w{i}" for i in row)}) for row in draw]
    (tmp_path / "texts.jsonl").write_text("\n".join(lines))
    script = (
        "import sys, streampca\n"
        "from streampca.passes.memory import peak_nbytes\n"
        "counts = streampca.open_texts(sys.argv[1], column='text')\n"
        "model = streampca.LSA(8, progress=False).fit(counts)\n"
        "print(peak_nbytes(), model.plan_.peak_nbytes)"
    )
    words = [sys.executable, "-c", script, str(tmp_path / "texts.jsonl")]
    done = subprocess.run(words, capture_output=True, text=True, check=True)
    peak, planned = map(int, done.stdout.split())
    assert 0 < peak <= planned


# -- the command line ------------------------------------------------------------------------------


def test_from_a_folder_to_an_answer(tmp_path: Path, small: LSA, capsys: Any) -> None:
    folder, model = tmp_path / "docs", str(tmp_path / "m")
    folder.mkdir()
    for name, text in zip(NAMES, TEXTS, strict=True):
        (folder / f"{name}.txt").write_text(text)
    words = ["lsa", "fit", str(folder), "-k", "4", "--stop-words", "english", "-o", model]
    assert main([*words, "--counts", str(tmp_path / "c.zarr")]) == 0
    assert "LSA of 6 samples" in capsys.readouterr().out
    assert main([*words[:-2], "--memory-limit", "9MiB"]) == 69
    assert "--memory-limit" in (said := capsys.readouterr().err)
    assert "too small for counting texts" in said
    assert main(["lsa", "search", model, "an", "eye", "lens", "camera", "-n", "2"]) == 0
    shown = capsys.readouterr().out.splitlines()
    assert [line.split()[-1] for line in shown[:2]] == ["e1.txt", "e2.txt"]
    assert shown[2] == "not in the vocabulary: camera"
    assert main(["lsa", "similar", model, "--term", "graphs", "-n", "1"]) == 0
    assert capsys.readouterr().out.split()[-1] == "trees"
    for document in ("e1.txt", "0"):
        assert main(["lsa", "similar", model, "--document", document, "-n", "1", "--json"]) == 0
        assert '"name": "e2.txt"' in capsys.readouterr().out
    assert main(["lsa", "search", model, "camera"]) == 65
    assert "camera: not among the" in capsys.readouterr().err
    assert main(["lsa", "fit", str(tmp_path / "c.zarr"), "-k", "4", "-q"]) == 0
    assert main(["lsa", "fit", str(tmp_path / "c.zarr"), "--min-df", "2"]) == 65
    assert "--min-df is for texts" in capsys.readouterr().err
