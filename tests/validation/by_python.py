"""Beside scikit-learn, scanpy, gensim and Surprise."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import scipy.sparse

import streampca
from tests.benchmarks import ratings
from tests.validation.by_r import mental_tests, mmreg, nci60
from tests.validation.comparing import Pairs, compared, table, turned, unit

CELLS = "PBMC, 1,000 cells x 9,015 genes, sparse"


def cells(folder: Path) -> scipy.sparse.csr_matrix:
    """(cells, genes) counts."""
    found = np.load(folder / "harmony_cells" / "pbmc.ctrl.npz")
    parts = (found["data"], found["indices"], found["indptr"])
    return scipy.sparse.csc_matrix(parts, tuple(found["shape"])).T.tocsr().astype("f8")


def faces(folder: Path) -> np.ndarray:
    """(400, 10304)"""
    return np.asarray(streampca.open_images(folder / "faces_orl_pgm").read(0, 0, 400), dtype="f8")


@compared(
    "scikit-learn",
    'PCA(20, svd_solver="full")',
    "ORL faces, 400 x 10,304",
    "PCA(20)",
    "variances, shares, components, scores",
    1e-10,
)
def pca_of_faces(folder: Path) -> Pairs:
    from sklearn.decomposition import PCA

    x = faces(folder)
    theirs, model = PCA(20, svd_solver="full").fit(x), streampca.PCA(20).fit(x)
    yield model.explained_variance_, theirs.explained_variance_
    yield model.explained_variance_ratio_, theirs.explained_variance_ratio_
    yield turned(model.components_.T, theirs.components_.T)
    yield turned(model.transform(x), theirs.transform(x))


@compared(
    "scikit-learn",
    "PCA.score_samples",
    "US arrests, 50 x 4",
    "PPCA(2)",
    "noise variance, log-likelihood of each row",
    1e-10,
)
def ppca(folder: Path) -> Pairs:
    from sklearn.decomposition import PCA

    x = table(folder / "usarrests" / "USArrests.csv", 1)
    theirs, model = PCA(2).fit(x), streampca.PPCA(2).fit(x)
    yield [model.noise_variance_], [theirs.noise_variance_]
    yield model.score_samples(x), theirs.score_samples(x)


@compared(
    "scikit-learn",
    "IncrementalPCA(10, batch_size=100)",
    "ORL faces, 400 x 10,304",
    "IncrementalPCA(10)",
    "variances",
    0.05,
    "scikit-learn truncates after each batch: up to 5 % off PCA's variances; ours equal them",
)
def incremental(folder: Path) -> Pairs:
    from sklearn.decomposition import IncrementalPCA

    x = faces(folder)[:, ::4]
    model = streampca.IncrementalPCA(10)
    for first in range(0, 400, 100):
        model.partial_fit(x[first : first + 100])
    theirs = IncrementalPCA(10, batch_size=100).fit(x)
    yield model.explained_variance_, theirs.explained_variance_


@compared(
    "scikit-learn",
    'TruncatedSVD(20, algorithm="arpack", tol=0)',
    CELLS,
    "TruncatedSVD(20)",
    "singular values, components",
    1e-6,
    "ours ends where its certificate says so",
)
def truncated_svd(folder: Path) -> Pairs:
    from sklearn.decomposition import TruncatedSVD

    x = cells(folder)
    x.data = np.log1p(x.data)
    theirs, model = TruncatedSVD(20, algorithm="arpack").fit(x), streampca.TruncatedSVD(20).fit(x)
    yield model.singular_values_, theirs.singular_values_
    yield turned(model.components_.T, theirs.components_.T)


@compared(
    "scikit-learn",
    'FactorAnalysis(4, svd_method="lapack", tol=1e-10)',
    "mental tests, 301 x 24",
    "FactorAnalysis(4)",
    "uniquenesses over variances",
    1e-3,
    "each iterates to a tolerance; the likelihoods are equal to 1e-12",
)
def factor_analysis(folder: Path) -> Pairs:
    from sklearn.decomposition import FactorAnalysis

    x = mental_tests(folder)
    theirs = FactorAnalysis(4, svd_method="lapack", tol=1e-10, max_iter=20_000).fit(x)
    model = streampca.FactorAnalysis(4).fit(x)
    yield model.uniquenesses_, theirs.noise_variance_ / x.var(axis=0)


@compared(
    "scikit-learn",
    'KernelPCA(5, kernel="rbf")',
    "NCI60, 64 x 6,830",
    'KernelPCA(5, kernel="rbf", solver="matrix-free")',
    "eigenvalues, components of the samples",
    1e-6,
    "ours ends where its certificate says so",
)
def kernel_pca(folder: Path) -> Pairs:
    from sklearn.decomposition import KernelPCA

    x = nci60(folder)
    theirs = KernelPCA(5, kernel="rbf").fit(x)
    model = streampca.KernelPCA(5, kernel="rbf", solver="matrix-free").fit(x)
    yield model.eigenvalues_, theirs.eigenvalues_
    yield turned(unit(model.transform(x)), unit(theirs.transform(x)))


@compared(
    "scikit-learn",
    "CCA(3, tol=1e-12)",
    "mmreg, 600 x (3 + 5)",
    "CCA(3)",
    "canonical variates",
    1e-4,
    "scikit-learn iterates by NIPALS",
)
def cca(folder: Path) -> Pairs:
    from sklearn.cross_decomposition import CCA

    x, y = mmreg(folder)
    theirs = CCA(3, tol=1e-12, max_iter=100_000).fit(x, y).transform(x, y)
    model = streampca.CCA(3).fit(x, y)
    for ours, other in zip(model.transform(x, y), theirs, strict=True):
        yield turned(unit(ours), unit(other))


@compared(
    "scanpy",
    'normalize_total, log1p, pca(svd_solver="arpack")',
    CELLS,
    "PCA(20).fit(log1p(normalize_total(counts)))",
    "variances, components",
    1e-4,
    "scanpy computes in single precision",
)
def scanpy_pca(folder: Path) -> Pairs:
    import anndata
    import scanpy

    counts = cells(folder).astype("f4")
    data = anndata.AnnData(counts.copy())
    scanpy.pp.normalize_total(data, target_sum=1e4)
    scanpy.pp.log1p(data)
    scanpy.pp.pca(data, n_comps=20, svd_solver="arpack")
    prepared = streampca.preprocess.log1p(streampca.preprocess.normalize_total(counts, 1e4))
    model = streampca.PCA(20).fit(prepared)
    yield model.explained_variance_, data.uns["pca"]["variance"]
    yield turned(model.components_.T, data.varm["PCs"])


@compared(
    "gensim",
    "LsiModel(num_topics=2)",
    "nine titles, 9 x 12",
    'LSA(2, weighting="raw")',
    "singular values, documents, cosines of a query",
    1e-6,
    "gensim computes in single precision",
)
def lsi(folder: Path) -> Pairs:
    from gensim.matutils import Dense2Corpus
    from gensim.models import LsiModel
    from gensim.similarities import MatrixSimilarity

    counts = table(folder / "deerwester9" / "counts.csv", 1)  # terms x documents
    corpus = list(Dense2Corpus(counts))
    theirs: Any = LsiModel(corpus, num_topics=2)
    model = streampca.LSA(2, weighting="raw").fit(counts.T)
    yield model.singular_values_, theirs.projection.s
    documents = np.array([[value for _, value in theirs[one]] for one in corpus])
    yield turned(model.document_coordinates_, documents)
    query = counts[:, 1]
    cosines = MatrixSimilarity(theirs[corpus])[theirs[corpus[1]]]
    found = model.search(query, 9)
    yield [one.score for one in found], np.sort(cosines)[::-1]


@compared(
    "scikit-surprise",
    "SVD, the best of 20 candidates",
    "Jester, 5,000 x 100, a tenth of the ratings unseen",
    "HardImpute()",
    "error of the unseen ratings (RMSE)",
    0.01,
    "two models of the same rank; ours chooses among 18 candidates by itself",
)
def jester(folder: Path) -> Pairs:
    with tempfile.TemporaryDirectory() as place:
        ratings.write(Path(place) / "jester", "jester")
        path = f"{place}/jester"
        yield [ratings.ours(path, "HardImpute")["rmse"]], [ratings.surprise(path, True)["rmse"]]


@compared(
    "scipy",
    "odr",
    "US arrests, 50 x 4",
    "TotalLeastSquares()",
    "coefficients",
    1e-3,
    "ODRPACK iterates to a tolerance",
)
def total_least_squares(folder: Path) -> Pairs:
    from scipy import odr

    x = table(folder / "usarrests" / "USArrests.csv", 1)
    x = (x - x.mean(axis=0)) / x.std(axis=0)
    data = odr.Data(x[:, 1:].T, x[:, 0])
    theirs = (
        odr.ODR(data, odr.multilinear, beta0=[0.0, 1.0, 0.1, 0.1], partol=1e-14, sstol=1e-15)
        .run()
        .beta
    )
    model = streampca.TotalLeastSquares().fit(x[:, 1:], x[:, 0])
    yield [*np.ravel(model.coef_)], theirs[1:]
