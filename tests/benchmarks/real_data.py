"""Reference numbers of real data beside ours: ``python -m tests.benchmarks.real_data``.

The data lie beside the repository, in ``../shared/data``; ``--record`` keeps what was found for the
table of the page. Each function takes that folder and gives numbers of the first components.
"""

from __future__ import annotations

import argparse
import csv
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from tests.benchmarks.measure import record, recordable

DATA = Path(__file__).parents[2].parent / "shared" / "data"


def table(path: Path, first: int = 0) -> Any:
    """The numbers of a CSV file with one line of names, from column ``first``."""
    with path.open() as file:
        return np.array([row[first:] for row in list(csv.reader(file))[1:]], dtype=float)


def us_arrests(folder: Path) -> Any:
    import streampca

    x = table(folder / "usarrests" / "USArrests.csv", 1)
    return streampca.PCA(scale="std").fit(x).explained_variance_ratio_


def nci60(folder: Path) -> Any:
    import streampca

    path = folder / "nci60" / "NCI60data.npy"
    return streampca.PCA(5, scale="std").fit(path).explained_variance_ratio_


def deerwester(folder: Path) -> Any:
    import streampca

    x = table(folder / "deerwester9" / "counts.csv", 1)
    return streampca.TruncatedSVD(4, algorithm="tsqr").fit(x).singular_values_


def hapmap(folder: Path) -> Any:
    import streampca

    everything = streampca.VariantFilter(chromosomes="all")
    model = streampca.GenotypePCA(6, scale="hwe", variants=everything)
    return model.fit(folder / "hapmap3" / "data.bed").eigenvalues_


def mmreg(folder: Path) -> Any:
    import streampca

    x = table(folder / "cca" / "mmreg.csv")
    return streampca.CCA(3).fit(x[:, :3], x[:, 3:]).correlations_


def linnerud(folder: Path) -> Any:
    import streampca

    views = ("physiological", "exercise")
    x, y = (table(folder / "cca" / f"linnerud_{view}.csv", 1) for view in views)
    return streampca.CCA(3).fit(x, y).correlations_


def pit_props(folder: Path) -> Any:
    import streampca

    s = table(folder / "pitprops" / "pitprops_corr.csv", 1)
    penalties = (0.06, 0.16, 0.1, 0.5, 0.5, 0.5)
    model = streampca.SparsePCA.from_covariance(s, n_components=6, n_samples=180, alpha=penalties)
    return 100 * model.explained_variance_ratio_


@dataclass(frozen=True)
class Case:
    """What is computed, and what others found, to as many digits as they print."""

    numbers: str
    ours: Callable[[Path], Any]
    reference: Sequence[str]
    source: str

    def found(self, folder: Path) -> list[str]:
        """Ours, printed with the digits of the reference."""
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            values = np.asarray(self.ours(folder))[: len(self.reference)]
        digits = [len(text.partition(".")[2]) for text in self.reference]
        return [f"{value:.{n}f}" for value, n in zip(values, digits, strict=True)]


CASES = {
    "US arrests, 50 x 4": Case(
        "shares of variance, scaled",
        us_arrests,
        ("0.62006", "0.24744", "0.08914", "0.04336"),
        "James et al., *ISLP*, chapter 12",
    ),
    "NCI60, 64 x 6,830": Case(
        "shares of variance, scaled",
        nci60,
        ("0.113589", "0.067562", "0.057518", "0.042476", "0.037350"),
        "James et al., *ISLP*, chapter 12",
    ),
    "nine titles, 12 x 9": Case(
        "singular values",
        deerwester,
        ("3.3409", "2.5417", "2.3539", "1.6445"),
        "Deerwester et al. 1990",
    ),
    "HapMap3, 957 x 14,389": Case(
        "eigenvalues of ZZ'/M",
        hapmap,
        ("26.468", "23.514", "6.958", "6.086", "4.426", "2.664"),
        "NumPy, as flashpca defines it, all chromosomes",
    ),
    "mmreg, 600 x (3 + 5)": Case(
        "canonical correlations",
        mmreg,
        ("0.46409", "0.16751", "0.10399"),
        "UCLA (4 digits), NumPy (5)",
    ),
    "Linnerud, 20 x (3 + 3)": Case(
        "canonical correlations", linnerud, ("0.79561", "0.20056", "0.07257"), "SAS `PROC CANCORR`"
    ),
    "pit props, 13 x 13": Case(
        "% of variance, sparse components",
        pit_props,
        ("28.0", "14.0", "13.3", "7.4", "6.8", "6.2"),
        "Zou, Hastie and Tibshirani 2006, table 3",
    ),
}


def measured(folder: Path = DATA) -> list[dict[str, Any]]:
    """A row for each case."""
    return [
        {
            "name": name,
            "numbers": case.numbers,
            "ours": " ".join(case.found(folder)),
            "reference": " ".join(case.reference),
            "source": case.source,
        }
        for name, case in CASES.items()
    ]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    recordable(parser, __file__)
    arguments = parser.parse_args()
    rows = measured()
    for row in rows:
        print(f"{row['name']:24} {row['ours']}\n{'reference':>24} {row['reference']}")
    record(arguments.record, rows)


if __name__ == "__main__":
    main()
