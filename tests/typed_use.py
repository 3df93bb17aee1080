"""What users write, for type checkers: ``mypy`` reads it beside the package. Nothing runs it."""

from __future__ import annotations

from typing import assert_type

import numpy as np

import streampca
from streampca import (
    PCA,
    PPCA,
    FactorAnalysis,
    HardImpute,
    IncrementalPCA,
    KernelPCA,
    RotatedPCA,
    TruncatedSVD,
)
from streampca.plots import scree


def numbers(X: np.ndarray) -> float:
    """Parameters and attributes under scikit-learn's names."""
    pca = PCA(n_components=2, copy=False, svd_solver="arpack", tol=0.0, random_state=None)
    assert_type(pca.fit(X), PCA)
    assert_type(pca.result_.n_components, int)
    svd = TruncatedSVD(3, algorithm="randomized", n_iter=5).fit(X)
    batches = IncrementalPCA(2, batch_size=100).partial_fit(X)
    factors = FactorAnalysis(2, rotation="quartimax", svd_method="lapack", max_iter=100).fit(X)
    assert_type(factors.loglike_, list[float])
    total = pca.components_.sum() + svd.explained_variance_ratio_.sum() + batches.mean_.sum()
    total += factors.result_.uniquenesses.sum() + PPCA(2).fit(X).result_.noise
    total += HardImpute(2).fit(X).result_.penalty + KernelPCA(2).fit(X).result_.eigenvalues.sum()
    if pca.certificate_ is not None:
        total += pca.certificate_.angle_bound.sum()
    return float(total)


def rotated(X: np.ndarray) -> np.ndarray:
    """Results of several kinds."""
    pca = PCA(3).fit(X)
    assert_type(streampca.rotate(pca), RotatedPCA)
    assert_type(streampca.rotate(pca.result_, "quartimax"), streampca.RotatedDecomposition)
    return RotatedPCA(pca).fit(X).result_.rotation


def pictures(X: np.ndarray) -> None:
    """Of Matplotlib."""
    pca = PCA(2).fit(X)
    scree(pca).set_title("variances")
    streampca.plots.scores(pca, components=(1, 2)).set_xlim(0.0, 1.0)
    print(pca.plan(X).n_passes, streampca.open("x.zarr").shape)


PCA(n_componets=2)  # type: ignore[call-arg]
