"""Factor analysis: R's outputs, scikit-learn, the likelihood equations; every source and path."""

from __future__ import annotations

import re

import dask.array as da
import numpy as np
import pytest
import scipy.sparse
import xarray as xr
from scipy.optimize import minimize
from scipy.stats import multivariate_normal
from sklearn.decomposition import FactorAnalysis as Reference
from sklearn.exceptions import ConvergenceWarning as SklearnConvergenceWarning

import streampca
from streampca import FactorAnalysis
from streampca.errors import AccuracyWarning, HeywoodWarning, InvalidInputError
from streampca.models.results.drift import compare, permuted
from streampca.solvers import maximum_likelihood, varimax_of_r
from tests.data import planted, simple_factors

HARMAN = [("Harman74", 145, k) for k in range(1, 6)] + [("Harman23", 305, k) for k in range(1, 5)]


def measured(n=300, p=8, k=2, seed=0):
    """Features in units of their own, none with a Heywood case."""
    rng = np.random.default_rng(seed)
    factors, noise = simple_factors(k, p, rng), rng.uniform(0.8, 1.5, p)
    return 4.0 + rng.uniform(1, 9, p) * planted(
        n, p, factors=factors, noise=noise, mean=0, seed=rng
    )


# -- R ---------------------------------------------------------------------------------------


def correlations_of_r(shared_data, name):
    """(names, S) of a ``.R`` file of dput text."""
    text = (shared_data / "r_datasets" / f"{name}.cor.R").read_text()
    numbers = re.search(r"cov = structure\(c\((.*?)\), ", text, re.DOTALL)[1]
    values = np.array([float(one) for one in numbers.split(",")])
    p = int(np.sqrt(len(values)))
    names = re.findall(r'"([^"]+)"', re.split(r"list\(\s*c\(", text)[1])[:p]
    return names, values.reshape(p, p)


def printed_by_r(shared_data, name, k):
    """(uniquenesses, loadings with 0 for blanks, statistic, degrees of freedom, p-value)."""
    text = (shared_data / "r_datasets" / "R_reference_outputs.txt").read_text()
    part = text.split(f'nameEx("{name}.cor")')[1].split("nameEx(")[0]
    part = part.split("Uniquenesses:")[k]
    first, rest = part.split("Loadings:")[:2]
    uniquenesses = [float(one) for one in re.findall(r"(?<![\w.])\d\.\d{3}", first)]
    rows = rest.split("SS loadings")[0].splitlines()[2:]
    width = max(map(len, rows))
    table = []
    for row in rows:
        if not re.match(r"[A-Za-z]", row):
            continue
        start = rest.splitlines()[1].index("Factor1") - 1
        cells = [row.ljust(width + 8)[start + 8 * i :][:8].strip() for i in range(k)]
        table.append([float(one) if one else 0.0 for one in cells])
    statistic, freedom = re.search(r"statistic is ([\d.]+) on (\d+) degrees", rest).groups()
    p_value = float(re.search(r"p-value is ([\d.e-]+)", rest)[1])
    return np.array(uniquenesses), np.array(table), float(statistic), int(freedom), p_value


@pytest.mark.parametrize(("name", "n", "k"), HARMAN)
@pytest.mark.filterwarnings("ignore::streampca.errors.HeywoodWarning")
def test_factanal_of_r(shared_data, name, n, k):
    names, S = correlations_of_r(shared_data, name)
    model = FactorAnalysis.from_covariance(
        S, n_samples=n, names=names, n_components=k, rotation="varimax"
    )
    uniquenesses, loadings, statistic, freedom, p_value = printed_by_r(shared_data, name, k)
    np.testing.assert_allclose(model.uniquenesses_, uniquenesses, atol=1e-3)
    blank = loadings == 0
    turned = np.sign(np.sum(loadings * model.loadings_, axis=0))
    np.testing.assert_allclose((model.loadings_ * turned)[~blank], loadings[~blank], atol=2e-3)
    assert np.all(np.abs(model.loadings_[blank]) < 0.1 + 1e-3)
    assert model.test_statistic_ == pytest.approx(statistic, abs=0.011)
    assert model.degrees_of_freedom_ == freedom
    assert model.p_value_ == pytest.approx(p_value, rel=0.01)
    assert model.converged_
    assert list(model.feature_names_in_) == names


def test_heywood_case_of_r(shared_data):
    names, S = correlations_of_r(shared_data, "Harman23")
    with pytest.warns(HeywoodWarning, match=r"arm\.span lies at its lower bound"):
        model = FactorAnalysis.from_covariance(S, n_samples=305, names=names, n_components=3)
    assert [names[i] for i in model.heywood_] == ["arm.span"]
    assert model.uniquenesses_[1] == pytest.approx(0.005)


@pytest.mark.parametrize("rotation", ["varimax", "promax"])
def test_swiss_of_r(shared_data, rotation):
    lines = (shared_data / "r_datasets" / "swiss.tab").read_text().splitlines()[1:]
    X = np.array([re.split(r"\t", line)[1:] for line in lines], dtype=float)
    with pytest.warns(HeywoodWarning, match="feature 3"):  # Education
        model = FactorAnalysis(2, rotation=rotation).fit(X)
    text = (shared_data / "r_datasets" / "R_reference_outputs.txt").read_text()
    call = {"varimax": "varimax(loadings(fa), normalize = FALSE)", "promax": "promax(loadings(fa))"}
    rows = text.split(f"> {call[rotation]}")[1].splitlines()[5:11]
    theirs = np.array([[float(c or 0) for c in (r[17:24].strip(), r[24:32].strip())] for r in rows])
    ours = model.loadings_
    if rotation == "varimax":  # R rotated once more, without Kaiser's normalisation
        ours = varimax_of_r(ours, normalize=False).loadings
    blank = theirs == 0
    order = np.argmax(np.abs(theirs.T @ ours), axis=1)
    ours = ours[:, order] * np.sign(np.sum(theirs * ours[:, order], axis=0))
    np.testing.assert_allclose(ours[~blank], theirs[~blank], atol=2e-3)
    assert np.all(np.abs(ours[blank]) < 0.1)


# -- the maximum -----------------------------------------------------------------------------


@pytest.mark.parametrize(("n", "p", "k", "seed"), [(300, 6, 2, 0), (80, 20, 3, 1), (25, 40, 2, 2)])
def test_no_other_optimiser_finds_more(n, p, k, seed):
    S = np.corrcoef(measured(n, p, k, seed).T)

    def discrepancy(log):
        root = np.exp(-log / 2)
        values = np.linalg.eigvalsh(S * root[:, None] * root)[::-1]
        kept = np.count_nonzero(values[:k] > 1)
        return np.sum(np.log(values[:kept]) + 1) + np.sum(values[kept:]) + log.sum()

    found = maximum_likelihood(S, k)
    bounds = [(np.log(0.005), 0.0)] * p
    other = minimize(discrepancy, np.full(p, -0.7), bounds=bounds, method="L-BFGS-B")
    assert found.converged
    assert found.discrepancy <= other.fun + 1e-9
    sigma = found.loadings @ found.loadings.T + np.diag(found.uniquenesses)
    direct = np.linalg.slogdet(sigma)[1] + np.trace(np.linalg.solve(sigma, S))
    assert found.discrepancy == pytest.approx(direct, rel=1e-10)
    inverse = np.linalg.inv(sigma)
    equations = inverse @ (sigma - S) @ inverse
    np.testing.assert_allclose(equations @ found.loadings, 0, atol=1e-6 * np.abs(inverse).max())
    inside = found.uniquenesses > 0.005 * (1 + 1e-9)
    slope = np.diagonal(equations) * found.uniquenesses
    np.testing.assert_allclose(slope[inside], 0, atol=1e-7)
    assert np.all(slope[~inside] > -1e-7)


def test_scikit_learn_finds_the_same():
    X = measured(400, 10, 3)
    theirs = Reference(3, tol=1e-11, max_iter=20000, svd_method="lapack").fit(X)
    ours = FactorAnalysis(3).fit(X)
    np.testing.assert_allclose(ours.noise_variance_, theirs.noise_variance_, rtol=2e-4)
    np.testing.assert_allclose(ours.get_covariance(), theirs.get_covariance(), rtol=1e-4, atol=1e-3)
    np.testing.assert_allclose(ours.get_precision(), theirs.get_precision(), atol=1e-4)
    assert ours.score(X) == pytest.approx(theirs.score(X), rel=1e-10)
    assert ours.score(X) >= theirs.score(X) - 1e-12
    assert ours.log_likelihood_ == pytest.approx(400 * ours.score(X), rel=1e-12)
    turn = np.linalg.lstsq(ours.components_.T, theirs.components_.T, rcond=None)[0]
    np.testing.assert_allclose(turn @ turn.T, np.eye(3), atol=1e-4)
    np.testing.assert_allclose(ours.transform(X) @ turn, theirs.transform(X), atol=1e-3)
    assert ours.bic_ == pytest.approx(-2 * ours.log_likelihood_ + np.log(400) * (30 - 3 + 20))


@pytest.mark.parametrize("solver", ["scatter", "streamed"])
@pytest.mark.parametrize("ddof", [0, 1, 20])
def test_variances_divide_by_the_degrees_of_freedom(solver, ddof):
    """Of 60 samples, so that each count shows. Correlations and likelihood are of the samples."""
    X = measured(60, 8, 2)
    model = FactorAnalysis(2, solver=solver, ddof=ddof).fit(X)
    deviation = X.std(axis=0, ddof=ddof)
    np.testing.assert_allclose(model.result_.scale, deviation)
    assert model.result_.ddof == ddof
    sigma = model.get_covariance()
    np.testing.assert_allclose(np.diagonal(sigma), deviation**2, rtol=1e-6)
    plain = FactorAnalysis(2, ddof=1).fit(X)
    np.testing.assert_allclose(model.uniquenesses_, plain.uniquenesses_, rtol=1e-4)
    density = multivariate_normal(X.mean(axis=0), sigma).logpdf(X)
    assert model.log_likelihood_ == pytest.approx(density.sum(), rel=1e-9)
    assert model.log_likelihood_ == pytest.approx(60 * model.score(X), rel=1e-9)


@pytest.mark.parametrize("rotation", [None, "varimax", "promax"])
def test_rotation_leaves_the_model_as_it_was(rotation, tmp_path):
    X = measured(200, 9, 3, seed=3)
    plain, model = FactorAnalysis(3).fit(X), FactorAnalysis(3, rotation=rotation).fit(X)
    np.testing.assert_allclose(model.get_covariance(), plain.get_covariance(), rtol=1e-9)
    np.testing.assert_allclose(model.score_samples(X), plain.score_samples(X), rtol=1e-9)
    result = model.result_
    order = np.diff(result.explained_variance)
    assert np.all(order <= 1e-12)
    phi = model.correlations_
    np.testing.assert_allclose(np.diagonal(phi), 1.0, rtol=1e-12)
    assert (rotation == "promax") == (np.abs(phi - np.eye(3)).max() > 1e-3)
    fitted = model.loadings_ @ phi @ model.loadings_.T + np.diag(model.uniquenesses_)
    np.testing.assert_allclose(np.diagonal(fitted), 1.0, atol=1e-8)
    np.testing.assert_allclose(result.communalities, 1 - model.uniquenesses_, atol=1e-8)
    Z = (X - X.mean(axis=0)) / X.std(axis=0)
    sigma = np.linalg.inv(fitted)
    np.testing.assert_allclose(
        model.transform(X), Z @ sigma @ model.loadings_ @ phi, atol=1e-8
    )  # E f = C L' Sigma^-1 z
    model.save(tmp_path / "m")
    again = streampca.load(tmp_path / "m")
    assert isinstance(again, FactorAnalysis)
    assert again.rotation == rotation
    np.testing.assert_array_equal(again.transform(X), model.transform(X))
    assert again.p_value_ == model.p_value_


def test_bartlett_scores_are_without_bias():
    X = measured(500, 12, 2, seed=5)
    model = FactorAnalysis(2, scores="bartlett").fit(X)
    Z = (X - X.mean(axis=0)) / X.std(axis=0)
    root = np.sqrt(model.uniquenesses_)
    expected = np.linalg.lstsq(model.loadings_ / root[:, None], (Z / root).T, rcond=None)[0].T
    np.testing.assert_allclose(model.transform(X), expected, atol=1e-9)


# -- sources, edges --------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["dask", "sparse", "float32", "int8", "zarr", "panels"])
def test_every_source_gives_the_same(kind, tmp_path):
    X = np.rint(measured(150, 7, 2, seed=6))
    expected = FactorAnalysis(2).fit(X)
    given = {
        "dask": lambda: da.from_array(X, chunks=(40, 7)),
        "sparse": lambda: scipy.sparse.csr_array(X),
        "float32": lambda: X.astype(np.float32),
        "int8": lambda: np.clip(X, -128, 127).astype(np.int8),
        "zarr": lambda: write(X, tmp_path, (30, 3)),
        "panels": lambda: write(X, tmp_path, (150, 2)),
    }[kind]()
    if kind == "int8":
        expected = FactorAnalysis(2).fit(np.clip(X, -128, 127))
    model = FactorAnalysis(2).fit(given)
    atol = 1e-3 if kind in ("float32", "int8") else 1e-6
    np.testing.assert_allclose(model.uniquenesses_, expected.uniquenesses_, atol=atol)
    assert len(model.cost_) == model.plan_.n_passes == 1
    scores = np.asarray(model.transform(given))
    values = np.clip(X, -128, 127) if kind == "int8" else X
    np.testing.assert_allclose(scores, expected.transform(values), atol=20 * atol)
    mine = model.score_samples(given)
    np.testing.assert_allclose(mine, expected.score_samples(values), rtol=10 * atol)


def write(X, folder, chunks):
    import zarr

    array = zarr.create_array(str(folder / "x.zarr"), shape=X.shape, chunks=chunks, dtype=X.dtype)
    array[...] = X
    return str(folder / "x.zarr")


def test_results_carry_the_labels_of_the_data(tmp_path):
    X = measured(60, 4, 1, seed=7)
    table = xr.DataArray(
        X, dims=("person", "test"), coords={"test": list("abcd"), "person": np.arange(60)}
    )
    model = FactorAnalysis(1).fit(table)
    scores = model.transform(table)
    assert scores.dims == ("person", "component")
    assert list(model.sample(3, random_state=0)["test"].values) == list("abcd")
    back = model.inverse_transform(scores)
    assert back.dims == ("person", "test")
    fitted = X.mean(axis=0) + scores.values @ model.components_
    np.testing.assert_allclose(back.values, fitted, rtol=1e-9)
    assert "components" in model.result_.to_xarray()


def test_constant_features_and_weights():
    X = measured(90, 6, 2, seed=8)
    wider = np.insert(X, 2, 7.0, axis=1)
    plain, model = FactorAnalysis(2).fit(X), FactorAnalysis(2).fit(wider)
    np.testing.assert_allclose(np.delete(model.uniquenesses_, 2), plain.uniquenesses_, rtol=1e-9)
    assert model.uniquenesses_[2] == 0.0
    assert np.all(model.components_[:, 2] == 0.0)
    np.testing.assert_allclose(model.score_samples(wider), plain.score_samples(X), rtol=1e-9)
    assert np.all(model.sample(4)[:, 2] == 7.0)
    weights = np.random.default_rng(0).integers(0, 4, 90)
    weighted = FactorAnalysis(2).fit(X, sample_weight=weights)
    repeated = FactorAnalysis(2).fit(np.repeat(X, weights, axis=0))
    np.testing.assert_allclose(weighted.uniquenesses_, repeated.uniquenesses_, rtol=1e-8)
    assert weighted.log_likelihood_ == pytest.approx(repeated.log_likelihood_)
    assert weighted.test_statistic_ == pytest.approx(repeated.test_statistic_)


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"n_components": 7}, "from 0 to 6, that of the features"),
        ({"n_components": 0.5}, "None or a number from 0"),
        ({"min_uniqueness": 0}, "min_uniqueness=0"),
        ({"rotation": "oblimin"}, "rotation='oblimin'"),
        ({"scores": "sum"}, "scores='sum'"),
        ({"missing": "drop"}, "missing='drop'"),
        ({"solver": "tsqr"}, "solver='tsqr'"),
    ],
)
def test_settings_that_cannot_be_met(settings, words):
    with pytest.raises(InvalidInputError, match=words):
        FactorAnalysis(**settings).fit(measured(30, 6))


def test_covariances_that_are_none():
    with pytest.raises(InvalidInputError, match="negative eigenvalue"):
        FactorAnalysis.from_covariance([[1.0, 2.0], [2.0, 1.0]])
    with pytest.raises(InvalidInputError, match="not symmetric"):
        FactorAnalysis.from_covariance([[1.0, 0.2], [0.1, 1.0]])
    with pytest.warns(AccuracyWarning, match="too many for 2 features"):
        model = FactorAnalysis.from_covariance([[4.0, 1.0], [1.0, 1.0]])
    assert np.isnan(model.log_likelihood_)
    assert np.isnan(model.p_value_)
    np.testing.assert_allclose(model.get_covariance(), [[4.0, 1.0], [1.0, 1.0]], atol=1e-7)


@pytest.mark.parametrize("rotation", [None, "varimax", "promax"])
def test_factors_change_places_with_all_that_they_have(rotation):
    X = measured(400, 12, 3)
    model = FactorAnalysis(3, rotation=rotation).fit(X)
    order, sign = np.array([1, 2, 0]), np.array([1.0, -1.0, 1.0])
    moved = permuted(model.result_, order, sign)
    again = FactorAnalysis.from_result(moved)
    np.testing.assert_allclose(again.get_covariance(), model.get_covariance(), atol=1e-12)
    np.testing.assert_allclose(again.transform(X), model.transform(X)[:, order] * sign, atol=1e-10)
    np.testing.assert_allclose(again.score(X), model.score(X))


@pytest.mark.parametrize("rotation", [None, "varimax", "promax"])
def test_factors_do_not_drift_from_themselves(rotation):
    result = FactorAnalysis(3, rotation=rotation).fit(measured(400, 12, 3)).result_
    assert compare(result, result).max_angle < 1e-6


def test_the_likelihood_on_the_way_rises_to_that_of_the_fit():
    X = measured(seed=3)
    model = FactorAnalysis(2).fit(X)
    assert len(model.loglike_) == model.n_iter_ + 1 > 3
    assert np.all(np.diff(model.loglike_) > 0)
    assert model.loglike_[-1] == pytest.approx(model.score_samples(X).sum(), rel=1e-12)
    assert len(model.trace_) == model.n_iter_ + 1
    assert FactorAnalysis(2, ddof=1).fit(X).log_likelihood_ < model.log_likelihood_


def test_swiss_is_as_likely_as_by_scikit_learn(shared_data):
    """R's data of `factanal` examples; the covariance model is that of divisor n."""
    rows = (shared_data / "r_datasets" / "swiss.tab").read_text().splitlines()[1:]
    X = np.array([row.split()[-6:] for row in rows], float)
    theirs = Reference(1, tol=1e-12, max_iter=50000, svd_method="lapack").fit(X)
    ours = FactorAnalysis(1).fit(X)
    assert ours.score(X) == pytest.approx(theirs.score(X), rel=1e-9)
    model = multivariate_normal(X.mean(axis=0), ours.get_covariance())
    assert ours.log_likelihood_ == pytest.approx(model.logpdf(X).sum(), rel=1e-10)
    scaled = [
        multivariate_normal(X.mean(axis=0), c * ours.get_covariance()).logpdf(X).sum()
        for c in (0.97, 47 / 46)
    ]
    assert ours.log_likelihood_ > max(scaled)


def test_max_iter_and_the_initial_noise_are_respected():
    X = measured(seed=3)
    whole = FactorAnalysis(2).fit(X)
    with pytest.warns(SklearnConvergenceWarning, match="max_iter=1 "):
        short = FactorAnalysis(2, max_iter=1).fit(X)
    assert (short.n_iter_, short.converged_) == (1, False)
    near = FactorAnalysis(2, noise_variance_init=whole.noise_variance_).fit(X)
    assert near.n_iter_ <= 1 < whole.n_iter_
    np.testing.assert_allclose(near.uniquenesses_, whole.uniquenesses_, atol=1e-8)
    for wrong in (np.ones(2), -np.ones(X.shape[1])):
        with pytest.raises(InvalidInputError, match="noise_variance_init has shape"):
            FactorAnalysis(2, noise_variance_init=wrong).fit(X)
    with pytest.raises(InvalidInputError, match="need solver='scatter'"):
        FactorAnalysis(0, solver="streamed").fit(X)


def test_no_factor_is_noise_alone():
    X = measured(seed=3)
    model = FactorAnalysis(0).fit(X)
    np.testing.assert_allclose(model.get_covariance(), np.diag(X.var(axis=0)), rtol=1e-9)
    assert model.transform(X).shape == (len(X), 0)
    with pytest.warns(AccuracyWarning, match="too many"):
        assert FactorAnalysis(None).fit(X).n_components_ == X.shape[1]


@pytest.mark.parametrize("rotation_tol", [0.0, 1e-7])
def test_quartimax_makes_the_sum_of_fourth_powers_largest(rotation_tol):
    X = measured(seed=3)
    plain = FactorAnalysis(2).fit(X)
    model = FactorAnalysis(2, rotation="quartimax", normalize=False, rotation_tol=rotation_tol).fit(
        X
    )
    np.testing.assert_allclose(model.get_covariance(), plain.get_covariance(), rtol=1e-9)
    angles = np.linspace(0, np.pi, 20001)
    turned = [
        plain.loadings_ @ np.array([[np.cos(t), -np.sin(t)], [np.sin(t), np.cos(t)]])
        for t in angles
    ]
    best = max(float(np.sum(one**4)) for one in turned)
    assert np.sum(model.loadings_**4) == pytest.approx(best, rel=1e-6)
