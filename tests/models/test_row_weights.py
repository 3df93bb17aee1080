"""What weights of samples mean: frequencies, or by ``relative_weights`` mere comparisons."""

from __future__ import annotations

import pickle
from typing import Any

import numpy as np
import pytest
from sklearn.model_selection import cross_val_score

import streampca
from streampca import (
    CCA,
    MCA,
    PCA,
    PPCA,
    FactorAnalysis,
    IncrementalPCA,
    TotalLeastSquares,
    relative_weights,
)
from streampca.cli.commands import main
from streampca.errors import InvalidInputError

RNG = np.random.default_rng(5)
F = RNG.standard_normal((60, 2))
X = F @ RNG.standard_normal((2, 6)) + 0.5 * RNG.standard_normal((60, 6))
Y = F @ RNG.standard_normal((2, 4)) + RNG.standard_normal((60, 4))
W = RNG.random(60) ** 2
EFFECTIVE = W.sum() ** 2 / (W @ W)
SHARES = W / W.sum()

FITS = {
    "PCA": lambda w: PCA(2).fit(X, sample_weight=w).explained_variance_,
    "PPCA": lambda w: PPCA(2).fit(X, sample_weight=w).bic_,
    "FactorAnalysis": lambda w: FactorAnalysis(2).fit(X, sample_weight=w).result_.p_value,
    "CCA": lambda w: CCA(2).fit(X, Y, sample_weight=w).test_.chi2_p_value,
    "MCA": lambda w: MCA(2).fit(X, Y, sample_weight=w).singular_values_,
    "TotalLeastSquares": lambda w: (
        TotalLeastSquares().fit(X[:, :2], Y[:, 0], sample_weight=w).standard_errors_
    ),
    "covariance": lambda w: streampca.covariance(X, sample_weight=w),
    "TruncatedSVD": lambda w: streampca.TruncatedSVD(2).fit(X, sample_weight=w).singular_values_,
    "IncrementalPCA": lambda w: (
        streampca.IncrementalPCA(2).fit(X, sample_weight=w).explained_variance_
    ),
}
every = pytest.mark.parametrize("name", FITS)
pytestmark = pytest.mark.filterwarnings("ignore::streampca.errors.HeywoodWarning")


@every
def test_relative_weights_have_no_unit_and_count_the_effective_rows(name: str) -> None:
    fit = FITS[name]
    expected = fit(W * EFFECTIVE / W.sum())
    for w in (W, SHARES, 1e3 * W, 1e-300 * W):
        np.testing.assert_allclose(fit(relative_weights(w)), expected, rtol=1e-6)
    np.testing.assert_allclose(fit(relative_weights(np.full(60, 7.0))), fit(None), rtol=1e-6)


@pytest.mark.parametrize("name", sorted(FITS.keys() - {"CCA", "MCA", "TotalLeastSquares"}))
def test_a_frequency_is_a_repeated_row(name: str) -> None:
    often = RNG.integers(0, 3, 60)
    global X
    kept, found = X, FITS[name](often)
    try:
        X = np.repeat(kept, often, axis=0)
        np.testing.assert_allclose(FITS[name](None), found, rtol=1e-6)
    finally:
        X = kept


@pytest.mark.parametrize(
    "name", ["PCA", "FactorAnalysis", "CCA", "MCA", "TotalLeastSquares", "covariance"]
)
def test_weights_that_sum_to_one_are_refused_with_what_to_write(name: str) -> None:
    with pytest.raises(
        InvalidInputError, match=r"sums to 1 and leaves no degree.*=streampca.relative_weights\(w\)"
    ):
        FITS[name](SHARES)
    assert np.all(np.isfinite(FITS[name](relative_weights(SHARES))))


def test_covariance_is_that_of_numpy() -> None:
    found = streampca.covariance(X, sample_weight=relative_weights(SHARES))
    np.testing.assert_allclose(found, np.cov(X.T, aweights=SHARES), rtol=1e-10)


@pytest.mark.slow
def test_tests_of_weighted_rows_keep_their_level() -> None:
    """Of 200 pairs of unrelated views, 5 % are below .05; by the number of rows it were 20 %."""
    below = 0
    for seed in range(200):
        rng = np.random.default_rng(seed)
        w, x, y = (
            draw(size=(100, k))
            for draw, k in (
                (rng.exponential, 1),
                (rng.standard_normal, 2),
                (rng.standard_normal, 1),
            )
        )
        model = CCA(1).fit(x, y, sample_weight=relative_weights(w[:, 0]))
        below += float(model.test_.chi2_p_value[0]) < 0.05
    assert 1 <= below <= 20  # 10 +- 3.2 standard deviations


def test_rows_without_weight_do_not_fit_a_line() -> None:
    weights = np.zeros(60)
    weights[:2] = 9.0
    with pytest.raises(InvalidInputError, match="2 rows have a weight above 0, and X has 2"):
        FITS["TotalLeastSquares"](weights)


def test_they_select_like_an_array_and_travel() -> None:
    w = relative_weights(list(W))
    np.testing.assert_array_equal(w[:5].values, W[:5])
    np.testing.assert_array_equal(pickle.loads(pickle.dumps(w)).values, W)
    assert (len(w), w.shape) == (60, (60,))
    scores = cross_val_score(TotalLeastSquares(), X[:, :2], Y[:, 0], params={"sample_weight": w})
    plain = cross_val_score(TotalLeastSquares(), X[:, :2], Y[:, 0], params={"sample_weight": 9 * W})
    np.testing.assert_allclose(scores, plain)


def test_rows_without_observation_take_their_weight_with_them() -> None:
    import xarray as xr

    field = xr.DataArray(X.copy(), dims=("time", "x"))
    field[3] = np.nan
    left = np.delete(np.arange(60), 3)
    with pytest.warns(streampca.errors.EmptySamplesWarning):
        found = PCA(2).fit(field, dim="time", sample_weight=relative_weights(W))
    expected = PCA(2).fit(X[left], sample_weight=relative_weights(W[left]))
    np.testing.assert_allclose(found.explained_variance_, expected.explained_variance_)


def test_on_the_command_line(tmp_path: Any, capsys: Any) -> None:
    np.save(tmp_path / "x.npy", X)
    np.save(tmp_path / "w.npy", SHARES)
    words = ["fit", str(tmp_path / "x.npy"), "-k", "2", "-q", "-o", str(tmp_path / "m")]
    weighted = [*words, "--sample-weight", str(tmp_path / "w.npy")]
    assert main(weighted) == 65
    assert "such as probabilities: --relative-weights" in capsys.readouterr().err
    assert main([*words, "--relative-weights"]) == 65
    assert main([*weighted, "--relative-weights"]) == 0
    found = streampca.load(tmp_path / "m").explained_variance_
    np.testing.assert_allclose(found, FITS["PCA"](relative_weights(SHARES)))


def test_what_is_said_of_bad_weights_works_when_typed() -> None:
    with pytest.raises(InvalidInputError, match=r"streampca\.relative_weights\(w\)"):
        streampca.IncrementalPCA(2).fit(X, sample_weight=SHARES)
    bad = np.where(np.arange(60) == 3, -1.0, W)
    with pytest.raises(InvalidInputError, match=r"np\.nan_to_num\(sample_weight\)\.clip\(0\)"):
        PCA(2).fit(X, sample_weight=bad)
    PCA(2).fit(X, sample_weight=np.nan_to_num(bad).clip(0))


def test_batches_take_weights_of_one_scale() -> None:
    """Relative weights of a batch would be scaled by the rows of that batch alone."""
    w = np.concatenate([W[:20], 9 * W[20:40], W[40:]])
    scaled = w * w.sum() / (w @ w)
    batched = IncrementalPCA(2)
    for rows in (slice(0, 20), slice(20, 40), slice(40, None)):
        with pytest.raises(InvalidInputError, match=r"sample_weight=w \* c, where c = w\.sum"):
            batched.partial_fit(X[rows], sample_weight=relative_weights(w[rows]))
        batched.partial_fit(X[rows], sample_weight=scaled[rows])
    mean = w @ X / w.sum()
    root = np.sqrt(scaled)[:, None] * (X - mean)  # n is the effective number, (sum w)^2 / sum w^2
    expected = np.linalg.svd(root, compute_uv=False)[:2] ** 2 / (w.sum() ** 2 / (w @ w) - 1)
    whole = IncrementalPCA(2).fit(X, sample_weight=relative_weights(w))
    for model in (batched, whole, PCA(2).fit(X, sample_weight=relative_weights(w))):
        np.testing.assert_allclose(model.explained_variance_, expected, rtol=1e-6)
