"""``n_components=0``: the mean and the total variance, as scikit-learn has it."""

from __future__ import annotations

import numpy as np
import pytest
import sklearn.decomposition

import streampca
from streampca.errors import InvalidInputError

rng = np.random.default_rng(0)


@pytest.mark.parametrize("shape", [(50, 6), (6, 50)])
@pytest.mark.parametrize("solver", ["auto", "scatter", "tsqr", "gram"])
def test_it_is_the_mean_and_isotropic_noise(shape, solver, tmp_path):
    X, new = rng.standard_normal(shape) + 3, rng.standard_normal((9, shape[1]))
    model = streampca.PCA(0, svd_solver=solver).fit(X)
    theirs = sklearn.decomposition.PCA(0, svd_solver="full").fit(X)
    assert model.components_.shape == theirs.components_.shape == (0, shape[1])
    assert model.noise_variance_ == pytest.approx(theirs.noise_variance_, rel=1e-12)
    np.testing.assert_allclose(model.score_samples(new), theirs.score_samples(new), rtol=1e-10)
    np.testing.assert_allclose(model.get_covariance(), theirs.get_covariance(), atol=1e-12)
    np.testing.assert_allclose(model.get_precision(), theirs.get_precision(), atol=1e-10)
    scores = model.transform(new)
    assert scores.shape == (9, 0)
    assert model.fit_transform(X).shape == (len(X), 0)
    np.testing.assert_allclose(model.inverse_transform(scores), np.tile(X.mean(axis=0), (9, 1)))
    model.save(tmp_path / "model")
    again = streampca.load(tmp_path / "model")
    np.testing.assert_array_equal(again.mean_, model.mean_)
    assert again.n_components_ == 0
    assert again.result_.table()


def test_where_it_means_nothing_it_is_refused():
    X = rng.standard_normal((20, 5))
    with pytest.raises(InvalidInputError, match="number of components from 1"):
        streampca.PCA(0, svd_solver="sketch").fit(X)
    for model in (
        streampca.PCA(0, svd_solver="randomized"),
        streampca.PCA(0, svd_solver="arpack"),
        streampca.TruncatedSVD(0),
        streampca.IncrementalPCA(0),
        streampca.GenotypePCA(0),
        streampca.PCA(0, center=False),
        streampca.PCA(-1),
    ):
        with pytest.raises(InvalidInputError, match="must be between"):
            model.fit(X)
