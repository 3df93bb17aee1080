"""Sparse sources through the estimators: the same numbers as the dense matrix, nothing expanded."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import scipy.sparse

import streampca
from streampca.errors import NonFiniteError
from streampca.matrix import Block
from tests.each import each

rng = np.random.default_rng(0)
COUNTS = rng.poisson(0.3, size=(90, 40)).astype(np.float64)
GENOTYPES = rng.binomial(2, rng.uniform(0.03, 0.3, 120), size=(60, 120)).astype(np.int8)
KINDS = ("csr_array", "csc_array", "csr_matrix", "coo_array")


def fitted(x: Any, **settings: Any) -> streampca.PCA:
    return streampca.PCA(5, **settings).fit(x)


def same(sparse: streampca.PCA, dense: streampca.PCA, rtol: float = 1e-9) -> None:
    np.testing.assert_allclose(sparse.explained_variance_, dense.explained_variance_, rtol=rtol)
    np.testing.assert_allclose(sparse.components_, dense.components_, rtol=0, atol=rtol * 100)
    np.testing.assert_allclose(sparse.mean_, dense.mean_, rtol=rtol)


@each("kind", KINDS)
@each("solver", ["scatter", "gram", "tsqr"])
@each("settings", [{}, {"scale": "std"}, {"center": False}])
def test_a_sparse_fit_is_that_of_the_dense_matrix(
    kind: str, solver: str, settings: dict[str, Any]
) -> None:
    x = getattr(scipy.sparse, kind)(COUNTS)
    same(fitted(x, svd_solver=solver, **settings), fitted(COUNTS, svd_solver=solver, **settings))


@pytest.mark.parametrize("scale", ["hwe", "eigensoft", "std"])
@pytest.mark.parametrize("dtype", ["int8", "float64"])
def test_allele_scalings(scale: str, dtype: str) -> None:
    x = GENOTYPES.astype(dtype)
    dense = fitted(x, scale=scale, svd_solver="gram")
    same(fitted(scipy.sparse.csc_array(x), scale=scale, svd_solver="gram"), dense)


@pytest.mark.parametrize("by", ["samples", "features"])
@pytest.mark.parametrize("whiten", [False, True])
def test_scores_errors_and_likelihoods(
    by: str, whiten: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nothing that is applied to sparse rows makes a tile of them."""
    model = fitted(COUNTS, scale="std", whiten=whiten)
    x = scipy.sparse.csr_array(COUNTS[::2])
    expected = (
        model.transform(COUNTS[::2]),
        model.r2_curve(COUNTS[::2]),
        model.score_samples(COUNTS[::2]),
    )
    monkeypatch.setattr(Block, "tiles", None)
    axis = ("samples", "features").index(by)
    monkeypatch.setattr("streampca.models.results.row_maps.easier_axis", lambda matrix: axis)
    for found, wanted in zip(
        (model.transform(x), model.r2_curve(x), model.score_samples(x)), expected, strict=True
    ):
        np.testing.assert_allclose(found, wanted, rtol=1e-10, atol=1e-10)


def test_loadings_and_moments_of_features_take_no_tiles(monkeypatch: pytest.MonkeyPatch) -> None:
    from streampca.models.results.projection import FeatureLoadings

    dense = Block(GENOTYPES, 1, 0, 120, arrays={"u": np.eye(60, 3), "s": np.ones(3)})
    sparse = Block(scipy.sparse.csc_array(GENOTYPES), 1, 0, 120, arrays=dense.arrays)
    loadings = FeatureLoadings(streampca.matrix.Standardize(scale="hwe"))
    expected = loadings(dense)
    monkeypatch.setattr(Block, "tiles", None)
    np.testing.assert_allclose(loadings(sparse), expected, atol=2e-6)


def test_holes_among_stored_values_follow_the_policy() -> None:
    x = COUNTS.copy()
    x[3, 7] = np.nan
    sparse = scipy.sparse.csr_array(x)
    same(fitted(sparse, missing="mean"), fitted(x, missing="mean"))
    model = fitted(COUNTS)
    with pytest.raises(NonFiniteError, match="feature 7; so far 1 missing and 89 observed"):
        model.transform(sparse)
    filled = fitted(x, missing="mean")
    np.testing.assert_allclose(filled.transform(sparse), filled.transform(x), atol=1e-10)


def test_a_matrix_of_exact_rank_leaves_nothing() -> None:
    low = np.outer(np.arange(30.0) % 4, np.arange(20.0) % 3)
    model = streampca.PCA(1, center=False).fit(low)
    left = model.reconstruction_error(scipy.sparse.csr_array(low))
    assert left <= 1e-14 * np.mean(np.sum(low**2, axis=1))


def test_fewer_steps_do_not_choose_the_longer_vectors() -> None:
    """Streamed features would leave one step of three passes, with vectors of 4000 entries."""
    x = scipy.sparse.random(4000, 1000, 0.05, "csr", np.float32, rng=np.random.default_rng(0))
    many = streampca.PCA(5, svd_solver="randomized").plan(x)
    few = streampca.PCA(5, svd_solver="randomized", max_passes=3).plan(x)
    assert many.named("step").axis == few.named("step").axis == 0


def test_a_flat_spectrum_is_iterated_while_that_costs_less_than_the_exact_solver() -> None:
    random = np.random.default_rng(3)
    x = scipy.sparse.random(
        1500, 400, 0.03, format="csr", random_state=3, data_rvs=random.standard_normal
    )
    model = fitted(x, rates={"update": 1e7, "stored": 1e8, "dense": 1e7})
    assert model.plan_.solver == "krylov"
    assert model.plan_.then is not None
    assert 8 < len(model.cost_) < 60  # and it never went over
    assert {cost.name.split()[0] for cost in model.cost_} == {"look", "step"}
    dense = x.toarray() - x.toarray().mean(axis=0)
    _, _, v = np.linalg.svd(dense, full_matrices=False)
    cosine = np.abs(np.einsum("ij,ij->i", v[:5], model.components_))
    angle = np.arccos(np.minimum(cosine, 1.0))
    assert model.certificate_ is not None
    assert (angle <= model.certificate_.angle_bound).all()
    assert model.certificate_.angle_bound.max() < 1e-3


def test_an_iteration_over_a_network_keeps_to_few_passes() -> None:
    from streampca.models.decompose.routes import most_passes
    from streampca.sources import as_matrix

    class Remote:
        name, remote = "s3://bucket/x", True

    matrix = as_matrix(COUNTS)
    assert most_passes(matrix) > 100
    matrix.carried_nbytes, matrix.locations = 0, lambda: (Remote(),)  # type: ignore
    assert most_passes(matrix) == 0
