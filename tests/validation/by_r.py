"""Beside R: prcomp, factanal, varimax, promax, cancor, and packages of R."""

from __future__ import annotations

from pathlib import Path

import numpy as np

import streampca
from tests.validation.comparing import Pairs, by_r, compared, table, turned, unit

STOPS = "each iterates to a tolerance; the objectives are equal to 4e-10"


def nci60(folder: Path) -> np.ndarray:
    found: np.ndarray = np.load(folder / "nci60" / "NCI60data.npy")
    return found


def mental_tests(folder: Path) -> np.ndarray:
    """(301, 24) Holzinger and Swineford 1939."""
    path = folder / "r_datasets" / "holzinger_swineford.csv"
    return np.loadtxt(path, delimiter=",", skiprows=1, usecols=range(8, 32))


def mmreg(folder: Path) -> tuple[np.ndarray, np.ndarray]:
    x = table(folder / "cca" / "mmreg.csv")
    return x[:, :3], x[:, 3:]


@compared(
    "R", "prcomp", "US arrests, 50 x 4", 'PCA(scale="std")', "deviations, loadings, scores", 1e-12
)
def prcomp_of_arrests(folder: Path) -> Pairs:
    x = table(folder / "usarrests" / "USArrests.csv", 1)
    deviations, rotation, scores = by_r(
        "p <- prcomp(x, scale.=TRUE)", "p$sdev", "p$rotation", "p$x", x=x
    )
    model = streampca.PCA(scale="std").fit(x)
    yield np.sqrt(model.explained_variance_), deviations
    yield turned(model.components_.T, rotation)
    yield turned(model.transform(x), scores)


@compared(
    "R",
    "prcomp",
    "NCI60, 64 x 6,830",
    'PCA(10, scale="std")',
    "deviations, loadings, scores",
    1e-10,
)
def prcomp_of_genes(folder: Path) -> Pairs:
    x = nci60(folder)
    deviations, rotation, scores = by_r(
        "p <- prcomp(x, scale.=TRUE)", "p$sdev[1:10]", "p$rotation[,1:10]", "p$x[,1:10]", x=x
    )
    model = streampca.PCA(10, scale="std").fit(x)
    yield np.sqrt(model.explained_variance_), deviations
    yield turned(model.components_.T, rotation)
    yield turned(model.transform(x), scores)


@compared(
    "R",
    "factanal",
    "mental tests, 301 x 24",
    'FactorAnalysis(4, rotation="varimax")',
    "uniquenesses, varimax loadings, chi-square",
    1e-4,
    STOPS,
)
def factanal_of_tests(folder: Path) -> Pairs:
    x = mental_tests(folder)
    uniqueness, loadings, statistic, likelihood = by_r(
        "f <- factanal(x, 4)", "f$uniquenesses", "loadings(f)[,]", "f$STATISTIC", "f$dof", x=x
    )
    model = streampca.FactorAnalysis(4, rotation="varimax").fit(x)
    yield model.uniquenesses_, uniqueness
    yield turned(model.loadings_, loadings)
    yield [model.test_statistic_], statistic
    yield [model.degrees_of_freedom_], likelihood


@compared(
    "R",
    "factanal, scores",
    "mental tests, 301 x 24",
    'FactorAnalysis(2, scores="bartlett", ddof=1)',
    "Bartlett's scores",
    1e-4,
    STOPS,
)
def scores_of_factors(folder: Path) -> Pairs:
    x = mental_tests(folder)
    (scores,) = by_r("f <- factanal(x, 2, rotation='none', scores='Bartlett')", "f$scores", x=x)
    model = streampca.FactorAnalysis(2, scores="bartlett", ddof=1).fit(x)
    yield turned(model.transform(x), scores)


@compared(
    "R",
    "varimax, promax",
    "NCI60, 64 x 300",
    'rotate(PCA(4, scale="std"), "varimax"), "promax"',
    "rotated loadings",
    1e-4,
    "R's varimax stops when its criterion grows by less than 1e-5; eps=1e-15 is asked for here",
)
def rotations(folder: Path) -> Pairs:
    x = nci60(folder)[:, :300]
    model = streampca.PCA(4, scale="std").fit(x)
    loadings = model.components_.T * np.sqrt(model.explained_variance_)
    both = by_r(
        "v <- varimax(a, eps=1e-15)", "v$loadings[,]", "promax(v$loadings)$loadings[,]", a=loadings
    )
    for method, theirs in zip(("varimax", "promax"), both, strict=True):
        turn = streampca.rotate(model, method, restarts=0).result_
        ours = turn.loadings
        order = abs(unit(ours).T @ unit(theirs)).argmax(axis=0)
        yield turned(ours[:, order], theirs)


@compared(
    "R", "cancor", "mmreg, 600 x (3 + 5)", "CCA(3)", "correlations, canonical variates", 1e-12
)
def cancor(folder: Path) -> Pairs:
    x, y = mmreg(folder)
    correlations, u, v = by_r(
        "cc <- cancor(x, y)",
        "cc$cor",
        "scale(x, scale=FALSE) %*% cc$xcoef[,1:3]",
        "scale(y, scale=FALSE) %*% cc$ycoef[,1:3]",
        x=x,
        y=y,
    )
    model = streampca.CCA(3).fit(x, y)
    yield model.correlations_, correlations
    for ours, theirs in zip(model.transform(x, y), (u, v), strict=True):
        yield turned(unit(ours), theirs)


@compared(
    "R pls",
    "pcr",
    "NCI60, 64 x 500",
    "PrincipalComponentRegression(5)",
    "coefficients of 1 to 5 components",
    1e-10,
)
def pcr(folder: Path) -> Pairs:
    x = nci60(folder)[:, :500]
    script = "library(pls); f <- pcr(y ~ x, ncomp=5, data=list(x=x[,-1], y=x[,1]))"
    (coefficients,) = by_r(script, "matrix(f$coefficients, ncol=5)", x=x)
    model = streampca.PrincipalComponentRegression(5).fit(x[:, 1:], x[:, 0])
    yield model.all_coef_[:5].T, coefficients


@compared(
    "R vegan",
    "rda",
    "Linnerud, 20 x (3 + 3)",
    "CPCCA(3, alpha=(0, 1))",
    "singular values: roots of the canonical eigenvalues",
    1e-12,
)
def rda(folder: Path) -> Pairs:
    views = ("physiological", "exercise")
    x, y = (table(folder / "cca" / f"linnerud_{view}.csv", 1) for view in views)
    script = "suppressMessages(library(vegan)); f <- rda(y, x)"
    (values,) = by_r(script, "sqrt(f$CCA$eig)", x=x, y=y)
    yield streampca.CPCCA(3, alpha=(0.0, 1.0)).fit(x, y).singular_values_, values


@compared(
    "R kernlab",
    "kpca",
    "NCI60, 64 x 6,830",
    'KernelPCA(5, kernel="rbf")',
    "eigenvalues, components of the samples",
    1e-10,
)
def kpca(folder: Path) -> Pairs:
    x = nci60(folder)
    script = "suppressMessages(library(kernlab)); "
    script += "f <- kpca(x, kernel='rbfdot', kpar=list(sigma=1e-4), features=5)"
    values, scores = by_r(script, "eig(f)", "rotated(f)", x=x)
    model = streampca.KernelPCA(5, kernel="rbf", gamma=1e-4).fit(x)
    yield model.eigenvalues_, values * len(x)
    yield turned(unit(model.transform(x)), unit(scores))
