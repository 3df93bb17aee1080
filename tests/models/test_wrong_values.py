"""Values of a wrong type: an error of our own that says what was expected, at every door."""

from __future__ import annotations

import numpy as np
import pytest
import sklearn.decomposition

import streampca
from streampca.errors import InvalidInputError, StreamPCAError

RNG = np.random.default_rng(0)
X, Y = RNG.standard_normal((20, 5)), RNG.standard_normal((20, 4))
WRONG = (
    np.arange(3.0),
    np.array(["a", "b"]),
    {"a": 1},
    [1, "x"],
    object(),
    "no such",
    float("nan"),
)
MODELS = (
    "PCA",
    "TruncatedSVD",
    "IncrementalPCA",
    "PPCA",
    "FactorAnalysis",
    "SparsePCA",
    "KernelPCA",
    "NystroemPCA",
    "RandomProjection",
    "CCA",
    "MCA",
    "TotalLeastSquares",
)


class Halves:
    """A layout: the first two columns."""

    def fit_transform(self, rows):
        return np.asarray(rows)[:, :2]

    transform = fit_transform


@pytest.mark.filterwarnings("ignore::UserWarning")
@pytest.mark.parametrize("name", MODELS)
def test_parameters_of_a_wrong_type_are_refused_in_our_words(name):
    kind = getattr(streampca, name)
    views = (X, Y) if kind.views == 2 else (X,)
    refused = 0
    for parameter, declared in kind.parameters.items():
        if declared.process or declared.inert:
            continue
        for value in WRONG:
            try:
                kind(**{parameter: value}).fit(*views)
            except StreamPCAError:
                refused += 1
    assert refused > 0


def test_the_expected_type_is_named():
    for settings, words in (
        ({"center": "yes"}, "center='yes'; expected True or False"),
        ({"svd_solver": [1]}, r"svd_solver=\[1\]; expected a name"),
        ({"tol": (1, 2)}, r"tol=\(1, 2\); expected a finite number or None"),
    ):
        for method in ("fit", "plan", "fit_transform"):
            with pytest.raises(InvalidInputError, match=words):
                getattr(streampca.PCA(2, **settings), method)(X)
    assert streampca.PCA(np.int64(2), center=np.True_, whiten=0).fit(X).result_.n_components == 2


NO_MODEL = (3, "x", X, object(), streampca.PCA, sklearn.decomposition.PCA(2))


@pytest.mark.parametrize("value", NO_MODEL, ids=lambda one: type(one).__name__)
def test_what_takes_a_model_refuses_other_things(value, tmp_path):
    with pytest.raises(InvalidInputError, match=r"expected a PCA of streampca.*RotatedPCA\(PCA"):
        streampca.RotatedPCA(value).fit(X)
    for call in (
        streampca.rotate,
        streampca.oscillation_patterns,
        lambda one: streampca.persistent_patterns(one, 2),
        lambda one: streampca.write_anndata(one, tmp_path / "cells.h5ad"),
    ):
        with pytest.raises(InvalidInputError, match="expected a fitted model"):
            call(value)
    with pytest.raises(StreamPCAError, match="expected a model"):
        streampca.embed(X, model=value, method=Halves())


def test_an_unfitted_model_is_not_fitted_yet():
    for call in (streampca.rotate,):
        with pytest.raises(streampca.errors.NotFittedError):
            call(streampca.PPCA(2))
    with pytest.raises(InvalidInputError, match="pca is sklearn's PCA"):
        streampca.RotatedPCA(sklearn.decomposition.PCA(2)).fit(X)


@pytest.mark.parametrize("n", [1, 2])
def test_a_picture_needs_three_rows(n):
    with pytest.raises(InvalidInputError, match=f"X has {n} rows; a picture needs at least 3"):
        streampca.embed(X[:n], n_components=1, method=Halves())
