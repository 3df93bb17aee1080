"""What users write, for type checkers: ``mypy`` reads it beside the package. Nothing runs it."""

from __future__ import annotations

from typing import Any, assert_type

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

import streampca
from streampca import (
    CCA,
    LSA,
    MCA,
    PCA,
    PPCA,
    FactorAnalysis,
    HardImpute,
    IncrementalPCA,
    KernelPCA,
    NystroemPCA,
    PrincipalComponentRegression,
    RandomProjection,
    RotatedPCA,
    SparsePCA,
    TotalLeastSquares,
    TruncatedSVD,
    plots,
)


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


def other_results(X: np.ndarray, Y: np.ndarray) -> float:
    """Results of two views, of texts, of landmarks; what is made beside a model."""
    cca, mca = CCA(2).fit(X, Y), MCA(2).fit(X, Y)
    total = cca.result_.values.sum() + mca.result_.vectors.sum()
    total += SparsePCA(2).fit(X).result_.components.sum()
    total += NystroemPCA(2).fit(X).result_.eigenvalues.sum()
    total += RandomProjection(2).fit(X).result_.n_components
    lines = TotalLeastSquares().fit(X, Y).result_
    total += lines.coef.sum() + PrincipalComponentRegression(2).fit(X, Y).coef_.sum()
    assert_type(streampca.GenotypePCA(2).fit(X).eigenvalues_.sum(), Any)
    total += streampca.covariance(X).matrix.sum()
    PCA(2).fit(X).report().save("report.html")
    return float(total)


def pictures(X: np.ndarray) -> None:
    """Of Matplotlib: every public one."""
    pca, completed = PCA(2).fit(X), HardImpute([1, 2], validation=0.1).fit(X)
    axes: list[Axes] = [
        plots.scree(pca, n=2),
        plots.spectrum(pca.result_),
        plots.dimension(streampca.intrinsic_dimension(X)),
        plots.r2(pca.r2_curve(), held_out=pca.r2_curve(X)),
        plots.baselines(streampca.r2_baselines(X, 2)),
        plots.validation(completed),
        plots.sweeps(completed.result_),
        plots.scores(pca, components=(1, 2), labels=["a", "b"], ellipses=True),
        plots.projected(pca, X, new_labels=None),
        plots.pairs(pca, components=(1, 2)),
        plots.loadings(pca, component=2, n=3),
        plots.biplot(pca, n=3),
        plots.correlation_circle(pca),
        plots.manhattan(pca, component=1),
        plots.map(pca, (1, 2), kind="eof"),
        plots.hovmoeller(pca.reconstruct(2), between=(-5.0, 5.0)),
        plots.pcs(pca, 1),
        plots.texts(LSA(2).fit(X), n=5),
        plots.embedding(streampca.embed(X, method="umap")),
    ]
    axes[0].set_title("variances")
    sheet: Figure = plots.images(pca, X, shape=(8, 8))
    sheet.savefig("faces.png")
    print(plots.loadings_table(pca, 3).shape, pca.plan(X).n_passes, streampca.open("x").shape)
    plots.embedding_page(streampca.embed(X), "page.html")


PCA(n_componets=2)  # type: ignore[call-arg]
