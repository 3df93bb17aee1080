"""scikit-learn's own tests with our classes in their place: :mod:`tests.benchmarks.drop_in`."""

from __future__ import annotations

import inspect

import pytest
import sklearn.decomposition

import streampca
from streampca.models.contract.parameters import Kept
from tests.benchmarks.drop_in import SUITES, outcomes

CLASSES = ("PCA", "IncrementalPCA", "TruncatedSVD", "FactorAnalysis")


# of 216 fits of sparse data, by format, density, scale and solver, those that show every pair
PAIRS = "not (test_pca_sparse[ and (csc_matrix or csr_array or -0.1]))"


@pytest.mark.soak
@pytest.mark.parametrize(
    "chosen",
    [pytest.param(PAIRS, marks=pytest.mark.slow), pytest.param("", marks=pytest.mark.soak)],
)
def test_no_more_of_scikit_learns_tests_fail_than_are_known(chosen: str) -> None:
    suites = [*SUITES.values()]
    for suite, found in zip(suites, outcomes(suites, chosen=chosen), strict=True):
        assert chosen or found.ran >= suite.of
        assert found.promised(suite), found


@pytest.mark.parametrize("name", CLASSES)
def test_every_parameter_is_there_by_its_name(name: str) -> None:
    theirs = inspect.signature(getattr(sklearn.decomposition, name)).parameters
    ours = inspect.signature(getattr(streampca, name)).parameters
    assert set(theirs) <= set(ours)
    defaults = {one: parameter.default for one, parameter in theirs.items()}
    made = getattr(streampca, name)(**defaults)
    assert made.get_params().items() >= defaults.items()
    positional = [n for n, one in theirs.items() if one.kind is one.POSITIONAL_OR_KEYWORD]
    assert positional == [n for n in list(ours)[:1]]


@pytest.mark.parametrize("name", CLASSES)
@pytest.mark.filterwarnings("ignore::streampca.errors.AccuracyWarning")
@pytest.mark.filterwarnings("ignore::streampca.errors.DominantFeatureWarning")
@pytest.mark.filterwarnings("ignore::streampca.errors.HeywoodWarning")
def test_the_defaults_of_scikit_learn_fit(name: str) -> None:
    X = sklearn.datasets.load_iris().data
    theirs = getattr(sklearn.decomposition, name)()
    ours = getattr(streampca, name)(**theirs.get_params())
    assert ours.fit(X).n_components_ == theirs.fit(X).components_.shape[0]


@pytest.mark.parametrize("name", CLASSES)
def test_inert_parameters_say_so_and_are_not_saved(name: str) -> None:
    kind = getattr(streampca, name)
    inert = {n for n, one in kind.parameters.items() if one.inert}
    assert {"copy", "power_iteration_normalizer"} & set(kind.parameters) <= inert
    assert inert
    for one in inert:
        assert kind.parameters[one].kept is Kept.NOT
        assert kind.parameters[one].process
        assert f"{one} : accepted for scikit-learn" in kind.__doc__
