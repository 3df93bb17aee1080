"""The page of all parameters is up to date, and classes agree on what they call a thing."""

from __future__ import annotations

import inspect

import pytest

from streampca.errors import InvalidInputError
from streampca.models.contract.registry import all_kinds
from streampca.models.pca.pca import PCA
from streampca.models.pca.truncated_svd import TruncatedSVD
from tests import parameters

KINDS = {name: cls for name, cls in all_kinds().items() if cls.__module__.startswith("streampca.")}


def test_the_page_is_as_the_classes_are() -> None:
    assert parameters.PAGE.read_text() == parameters.page(), "run python -m tests.parameters"


@pytest.mark.parametrize("kind", sorted(KINDS))
def test_a_plan_takes_what_a_fit_takes(kind: str) -> None:
    plan, fit = (
        dict(inspect.signature(getattr(KINDS[kind], name)).parameters) for name in ("plan", "fit")
    )
    if KINDS[kind].views == 1:
        fit.pop("y")  # scikit-learn's, which nothing uses
    assert list(plan) == list(fit)


@pytest.mark.parametrize("kind", sorted(KINDS))
def test_from_covariance_takes_the_same_everywhere(kind: str) -> None:
    made = getattr(KINDS[kind], "from_covariance", None)
    if made is not None:
        assert list(inspect.signature(made).parameters)[:2] == ["covariance", "n_samples"]


def test_other_libraries_names_are_theirs_alone() -> None:
    found = {
        (kind, name)
        for kind, cls in KINDS.items()
        for name in ("svd_solver", "algorithm")
        if name in cls.parameters
    }
    assert found == {("PCA", "svd_solver"), ("TruncatedSVD", "algorithm")}


def test_a_solver_goes_by_either_name() -> None:
    x = [[1.0, 2.0, 4.0], [2.0, 1.0, 0.5], [0.0, 3.0, 1.0], [1.0, 1.0, 1.5]]
    for model in (
        PCA(1, solver="gram"),
        PCA(1, svd_solver="gram"),
        PCA(1).set_params(svd_solver="gram"),
    ):
        assert model.plan(x).solver == "gram"
    for svd in (TruncatedSVD(1, solver="tsqr"), TruncatedSVD(1, algorithm="tsqr")):
        assert svd.plan(x).solver == "tsqr"
    with pytest.raises(InvalidInputError, match="say different things; leave svd_solver out"):
        PCA(1, solver="gram", svd_solver="scatter").plan(x)
