"""TruncatedSVD against scikit-learn's, and its contract."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import scipy.sparse
from sklearn.base import clone
from sklearn.decomposition import TruncatedSVD as Peer

import streampca
from streampca import TruncatedSVD
from streampca.errors import InvalidInputError

ALGORITHMS = ("scatter", "gram", "tsqr", "randomized")
rng = np.random.default_rng(0)
X = scipy.sparse.csr_array(rng.poisson(rng.gamma(0.5, 1.0, size=30), size=(70, 30)).astype(float))


def agree(mine: TruncatedSVD, x: Any, k: int, rtol: float = 1e-8, raw: Any = None) -> None:
    """Every attribute equals that of ARPACK in memory, signs apart.

    raw : the rows before preprocessing, where the model knows of any.
    """
    peer = Peer(k, algorithm="arpack", random_state=0).fit(x)
    np.testing.assert_allclose(mine.singular_values_, peer.singular_values_, rtol=rtol)
    np.testing.assert_allclose(mine.explained_variance_, peer.explained_variance_, rtol=rtol)
    ratio = peer.explained_variance_ratio_
    np.testing.assert_allclose(mine.explained_variance_ratio_, ratio, rtol=rtol)
    turn = np.sign(np.sum(mine.components_ * peer.components_, axis=1))
    np.testing.assert_allclose(mine.components_, turn[:, None] * peer.components_, atol=rtol * 10)
    scores = turn * peer.transform(x)
    mine_scores = mine.transform(x if raw is None else raw)
    np.testing.assert_allclose(mine_scores, scores, atol=rtol * 10 * abs(scores).max())


@pytest.mark.parametrize("algorithm", ALGORITHMS)
@pytest.mark.parametrize("format_", ["csr", "csc", "dense"])
def test_attributes_and_scores_are_those_of_scikit_learn(algorithm: str, format_: str) -> None:
    x: Any = X.toarray() if format_ == "dense" else X.asformat(format_)
    mine = TruncatedSVD(4, algorithm=algorithm, tol=1e-9, max_passes=30).fit(x)
    agree(mine, X, 4)
    np.testing.assert_allclose(mine.fit_transform(x), mine.transform(x), atol=1e-8)
    back = mine.inverse_transform(mine.transform(x))
    np.testing.assert_allclose(back, mine.transform(x) @ mine.components_, atol=1e-12)


@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_no_advice_to_scale_what_is_not_centred(algorithm: str) -> None:
    """A word in most documents is no unit; TruncatedSVD has no scale=."""
    frequent = X.toarray()[:, :8]
    frequent[:, 3] *= 50
    TruncatedSVD(2, algorithm=algorithm).fit(frequent)


def test_explained_variance_is_that_of_the_scores() -> None:
    model = TruncatedSVD(3).fit(X)
    scores = model.transform(X)
    np.testing.assert_allclose(model.explained_variance_, scores.var(axis=0), rtol=1e-10)
    whole = X.toarray().var(axis=0).sum()
    np.testing.assert_allclose(model.explained_variance_ratio_, scores.var(axis=0) / whole)


def test_saved_models_come_back(tmp_path: Path) -> None:
    model = TruncatedSVD(3, tol=1e-6).fit(X)
    model.save(tmp_path / "model")
    again = streampca.load(tmp_path / "model")
    assert isinstance(again, TruncatedSVD)
    assert again.get_params()["tol"] == 1e-6
    np.testing.assert_array_equal(again.explained_variance_, model.explained_variance_)
    np.testing.assert_array_equal(again.transform(X), model.transform(X))


def test_the_plan_names_it_and_what_is_asked_wrongly_is_refused() -> None:
    assert str(TruncatedSVD().plan(X)).startswith("TruncatedSVD of 70 samples")
    assert clone(TruncatedSVD(5)).n_components == 5
    with pytest.raises(InvalidInputError, match=r"n_components=0\.5"):
        TruncatedSVD(0.5).fit(X)  # type: ignore[arg-type]
    with pytest.raises(InvalidInputError, match="solver='qr'"):
        TruncatedSVD(algorithm="qr").fit(X)
    with pytest.raises(InvalidInputError, match="n_components"):
        TruncatedSVD(31).fit(X)


def test_deerwester(shared_data: Path) -> None:
    """The nine titles of Deerwester et al. 1990: two groups of documents in two dimensions."""
    text = (shared_data / "deerwester9" / "counts.csv").read_text().splitlines()
    counts = np.array([[float(v) for v in line.split(",")[1:]] for line in text[1:]])
    assert counts.shape == (12, 9)
    model = TruncatedSVD(2, algorithm="scatter").fit(counts)
    # published: table of S in the paper's appendix
    np.testing.assert_allclose(model.singular_values_, [3.34, 2.54], atol=0.005)
    agree(model, counts, 2)


def medlars(folder: Path) -> scipy.sparse.csr_array:
    """Documents x words that occur in more than one of the abstracts."""
    documents: list[list[str]] = []
    for line in (folder / "MED.ALL").read_text(errors="replace").splitlines():
        if line.startswith(".I"):
            documents.append([])
        elif not line.startswith(".W"):
            documents[-1] += re.findall(r"[a-z]{2,}", line.lower())
    words = sorted({word for one in documents for word in one})
    place = {word: j for j, word in enumerate(words)}
    rows = [i for i, one in enumerate(documents) for _ in one]
    columns = [place[word] for one in documents for word in one]
    counts = scipy.sparse.coo_array((np.ones(len(rows)), (rows, columns))).tocsr()
    return counts[:, np.flatnonzero((counts > 0).sum(axis=0) > 1)]


def test_medlars(shared_data: Path) -> None:
    terms = medlars(shared_data / "text_med")
    assert terms.shape[0] == 1033
    weighted = streampca.preprocess.tf_idf(terms)
    held = weighted.read(0, 0, 1033)
    model = TruncatedSVD(10, tol=1e-9, max_passes=30, algorithm="randomized").fit(weighted)
    agree(model, held, 10, raw=terms)
