"""A comparison: what ours and another tool make of the same data, and how far they are apart."""

from __future__ import annotations

import platform
import re
import shutil
import subprocess
import tempfile
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cache
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import numpy as np

DATA = Path(__file__).parents[2].parent / "shared" / "data"
Pairs = Iterator[tuple[Any, Any]]


@dataclass(frozen=True)
class Comparison:
    """within : the largest difference that is accepted, relative to the largest number compared.
    why : of a difference beyond rounding.  pairs : of a folder of data, (ours, theirs)."""

    tool: str
    reference: str
    data: str
    ours: str
    compared: str
    within: float
    why: str
    pairs: Callable[[Path], Pairs]

    def difference(self, folder: Path) -> float:
        """The largest over all pairs; NaN stands where NaN stands."""
        apart = 0.0
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            for mine, other in self.pairs(folder):
                a, b = np.asarray(mine), np.asarray(other)
                if a.shape != b.shape or not np.array_equal(np.isnan(a), np.isnan(b)):
                    return float("inf")
                apart = max(apart, float(np.nanmax(abs(a - b)) / np.nanmax(abs(b))))
        return apart


COMPARISONS: dict[str, Comparison] = {}


def compared(
    tool: str, reference: str, data: str, ours: str, what: str, within: float, why: str = ""
) -> Callable[[Callable[[Path], Pairs]], Callable[[Path], Pairs]]:
    """Put a function that yields pairs on the list, by its name."""

    def listed(pairs: Callable[[Path], Pairs]) -> Callable[[Path], Pairs]:
        COMPARISONS[pairs.__name__] = Comparison(
            tool, reference, data, ours, what, within, why, pairs
        )
        return pairs

    return listed


# -- tools -------------------------------------------------------------------------


@cache
def installed(tool: str) -> str | None:
    """The version of a tool that is here, or None; of what is published there is nothing to run."""
    if tool == "published":
        return ""
    if tool == "R" or tool.startswith("R "):
        return _version_in_r(tool.removeprefix("R").strip())
    if tool in ("plink2", "smartpca"):
        return _version_of_program(tool)
    try:
        return f"{tool} {version(tool)}"
    except PackageNotFoundError:
        return None


def _version_in_r(package: str) -> str | None:
    if shutil.which("Rscript") is None:
        return None
    asked = "cat(as.character(getRversion()))"
    if package:
        asked += f"; cat(' {package}', as.character(packageVersion('{package}')))"
    done = subprocess.run(["Rscript", "-e", asked], capture_output=True, text=True, check=False)
    return f"R {done.stdout}" if done.returncode == 0 else None


def _version_of_program(name: str) -> str | None:
    path = program(name)
    if path is None:
        return None
    with tempfile.TemporaryDirectory() as folder:  # smartpca says it before it misses its files
        (Path(folder) / "none.par").write_text("genotypename: none\n")
        words = [path, "--version"] if name == "plink2" else [path, "-p", "none.par"]
        done = subprocess.run(words, cwd=folder, capture_output=True, text=True, check=False)
    if name == "plink2":
        return " ".join(done.stdout.split()[:2])
    found = re.search(r"version: (\w+)", done.stdout)
    return f"smartpca {found[1]}" if found else "smartpca"


def program(name: str) -> str | None:
    """Its path. Debian's smartpca is a script of EIGENSOFT that calls the program of that name."""
    path = shutil.which(name)
    if path is None:
        return None
    within = Path(path).parents[1] / "lib" / "eigensoft" / name
    return str(within) if within.is_file() else path


def with_versions(tool: str) -> str:
    """Of the tool, and of what computes ours."""
    ours = [
        f"Python {platform.python_version()}",
        *(f"{x} {version(x)}" for x in ("numpy", "scipy")),
    ]
    return ", ".join(one for one in (installed(tool), *ours) if one)


def by_r(script: str, *results: str, **matrices: Any) -> list[np.ndarray]:
    """What R makes of matrices: each expression of ``results`` as a matrix."""
    with tempfile.TemporaryDirectory() as folder:
        lines = []
        for name, values in matrices.items():
            np.savetxt(f"{folder}/{name}.csv", np.atleast_2d(values), fmt="%.17g", delimiter=",")
            lines.append(f"{name} <- as.matrix(read.csv('{name}.csv', header=FALSE))")
        for i, expression in enumerate(results):
            written = f"formatC(as.matrix({expression}), digits=17, format='g')"
            lines.append(f"ours_{i} <- {written}")
            options = "row.names=FALSE, col.names=FALSE, quote=FALSE, sep=','"
            lines.append(f"write.table(ours_{i}, '{i}.out', {options})")
        parts = [*lines[: len(matrices)], script, *lines[len(matrices) :]]
        Path(folder, "run.R").write_text("\n".join(parts))
        words = ["Rscript", "--vanilla", "run.R"]
        done = subprocess.run(words, cwd=folder, capture_output=True, text=True, check=False)
        if done.returncode:
            raise RuntimeError(done.stderr)
        read = [
            np.loadtxt(f"{folder}/{i}.out", delimiter=",", ndmin=2) for i in range(len(results))
        ]
    return [one[:, 0] if one.shape[1] == 1 else one for one in read]


# -- numbers -----------------------------------------------------------------------


def turned(ours: Any, theirs: Any) -> tuple[np.ndarray, np.ndarray]:
    """Columns of ours with the signs (or phases) of theirs, which nothing fixes."""
    a, b = np.asarray(ours), np.asarray(theirs)
    inner = np.nansum(a.conj() * b, axis=0)
    return a * (inner / abs(inner)), b


def unit(columns: Any) -> np.ndarray:
    """Columns of length 1, for what tools scale in different ways."""
    values = np.asarray(columns)
    return np.asarray(values / np.sqrt(np.nansum(abs(values) ** 2, axis=0)))


def table(path: Path, first: int = 0) -> np.ndarray:
    """The numbers of a CSV file with one line of names, from column ``first``."""
    names = path.open().readline().split(",")
    return np.loadtxt(path, delimiter=",", skiprows=1, usecols=range(first, len(names)))
