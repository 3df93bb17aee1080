"""Numbers that others published for real data, to all the digits that they print."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

import streampca
from tests.validation.by_genetics import EVERYTHING
from tests.validation.by_r import mmreg, nci60
from tests.validation.comparing import Pairs, compared, table, turned

ISLP = "James et al., *ISLP*, chapter 12"


def printed(source: str, data: str, ours: str, what: str, numbers: str) -> Any:
    """A comparison with ``numbers``: ours are rounded to as many digits."""
    texts = numbers.split()
    digits = [len(text.partition(".")[2]) for text in texts]

    def listed(found: Callable[[Path], Any]) -> Callable[[Path], Any]:
        def pairs(folder: Path) -> Pairs:
            values = np.asarray(found(folder), dtype=float)[: len(texts)]
            yield [round(x, n) for x, n in zip(values, digits, strict=True)], [*map(float, texts)]

        pairs.__name__ = found.__name__
        compared("published", source, data, ours, f"{what}: {numbers}", 0.0)(pairs)
        return found

    return listed


def arrests(folder: Path) -> np.ndarray:
    return table(folder / "usarrests" / "USArrests.csv", 1)


@printed(
    ISLP,
    "US arrests, 50 x 4",
    'PCA(scale="std")',
    "shares of variance",
    "0.62006 0.24744 0.08914 0.04336",
)
def shares_of_arrests(folder: Path) -> Any:
    return streampca.PCA(scale="std").fit(arrests(folder)).explained_variance_ratio_


@printed(
    ISLP,
    "US arrests, 20 of 200 cells left out",
    "HardImpute(1)",
    "correlation of imputed and true values",
    "0.711",
)
def imputed_arrests(folder: Path) -> Any:
    x = arrests(folder)
    x = (x - x.mean(axis=0)) / x.std(axis=0)
    old = np.random.RandomState(15)  # as the laboratory of the chapter draws
    rows, columns = old.choice(50, 20, replace=False), old.choice(4, 20, replace=True)
    given = x.copy()
    given[rows, columns] = np.nan
    imputed = streampca.HardImpute(1, center=False, tol=1e-9).fit(given).predict(rows, columns)
    return [np.corrcoef(imputed, x[rows, columns])[0, 1]]


@printed(
    ISLP,
    "NCI60, 64 x 6,830",
    'PCA(5, scale="std")',
    "shares of variance",
    "0.113589 0.067562 0.057518 0.042476 0.037350",
)
def shares_of_genes(folder: Path) -> Any:
    return streampca.PCA(5, scale="std").fit(nci60(folder)).explained_variance_ratio_


@printed(
    "Deerwester et al. 1990",
    "nine titles, 12 x 9",
    'TruncatedSVD(4, algorithm="tsqr")',
    "singular values",
    "3.3409 2.5417 2.3539 1.6445",
)
def nine_titles(folder: Path) -> Any:
    x = table(folder / "deerwester9" / "counts.csv", 1)
    return streampca.TruncatedSVD(4, algorithm="tsqr").fit(x).singular_values_


@printed(
    "NumPy, as flashpca defines it, all chromosomes",
    "HapMap3, 957 x 14,389",
    "GenotypePCA(6)",
    "eigenvalues of ZZ'/M",
    "26.468 23.514 6.958 6.086 4.426 2.664",
)
def hapmap(folder: Path) -> Any:
    model = streampca.GenotypePCA(6, variants=EVERYTHING)
    return model.fit(folder / "hapmap3" / "data.bed").eigenvalues_


@printed(
    "UCLA (4 digits), NumPy (5)",
    "mmreg, 600 x (3 + 5)",
    "CCA(3)",
    "canonical correlations",
    "0.46409 0.16751 0.10399",
)
def canonical(folder: Path) -> Any:
    return streampca.CCA(3).fit(*mmreg(folder)).correlations_


@printed(
    "SAS `PROC CANCORR`",
    "Linnerud, 20 x (3 + 3)",
    "CCA(3)",
    "canonical correlations",
    "0.79561 0.20056 0.07257",
)
def linnerud(folder: Path) -> Any:
    views = ("physiological", "exercise")
    x, y = (table(folder / "cca" / f"linnerud_{view}.csv", 1) for view in views)
    return streampca.CCA(3).fit(x, y).correlations_


@printed(
    "Zou, Hastie and Tibshirani 2006, table 3 (R's elasticnet)",
    "pit props, 13 x 13",
    "SparsePCA.from_covariance",
    "% of variance",
    "28.0 14.0 13.3 7.4 6.8 6.2",
)
def pit_props(folder: Path) -> Any:
    s = table(folder / "pitprops" / "pitprops_corr.csv", 1)
    penalties = (0.06, 0.16, 0.1, 0.5, 0.5, 0.5)
    model = streampca.SparsePCA.from_covariance(s, n_components=6, n_samples=180, alpha=penalties)
    return 100 * model.explained_variance_ratio_


@compared(
    "published",
    "the solutions that eofs keeps for its tests",
    "sea surface temperature, 15 x 11 x 18",
    "PCA(14)",
    "eigenvalues, EOFs, PCs, North's errors",
    1e-10,
)
def eofs_solutions(folder: Path) -> Pairs:
    import xarray as xr

    stored = lambda name: np.load(  # noqa: E731
        folder / "climate" / "eofs_reference" / "data" / f"{name}.npy"
    )
    dims = ("time", "latitude", "longitude")
    field = xr.DataArray(stored("sst"), dims=dims, coords={name: stored(name) for name in dims})
    views = streampca.PCA(14).fit(field, dim="time").eof_
    yield views.eigenvalues(), stored("eigenvalues.equal")
    yield views.north_errors(), stored("errors.equal")
    yield turned(*(x.reshape(14, -1).T for x in (views.eofs().values, stored("eofs.equal"))))
    yield turned(views.pcs(), stored("pcs.equal"))


@compared(
    "published",
    "the PCA that scanpy keeps with its data",
    "PBMC 68k reduced, 700 x 309",
    "PCA(5)",
    "leading variances",
    1e-5,
    "single precision; later components of the file are those of an approximate solver",
)
def scanpy_pbmc(folder: Path) -> Pairs:
    import h5py

    with h5py.File(folder / "pbmc68k_reduced" / "10x_pbmc68k_reduced.h5ad") as file:
        x = file["X"][()].astype("f8")
        used = ~np.isnan(file["varm"]["PCs"]).any(axis=1)
        variances = file["uns"]["pca"]["variance"][()]
    yield streampca.PCA(5).fit(x[:, used]).explained_variance_, variances[:5]
