"""Is the plan's choice right? ``python -m tests.benchmarks.choice``: 60 matrices, each solver.

Proves the page's sentences on ``svd_solver="auto"``. Dense and sparse matrices, with spiked, steep
and flat spectra, in memory, in Zarr and in .h5ad, are fitted by "auto" and by every solver that it
chooses from, in turns, in a fresh process each, by CPU seconds with one BLAS thread:

- "scatter" and "gram", where their side is at most LONGEST, beyond which they take many seconds;
- "iteration": ``tol=1e-4``, with which no exact solver comes first;
- "randomized", with its default of 8 passes.

An answer is sound where the fit does not warn of its accuracy, and every component that another
solver certifies to ``tol`` is certified to ``tol``. Printed for each matrix: CPU seconds, those
predicted, and those of "auto" over those of the best sound solver; then how many are within 1.3 and
2, and how predictions of each solver compare with what was measured. A prediction is wall time on
two cores, so that only its error relative to other solvers matters. Variances of solvers must agree
within their bounds. ``--large`` does the same with twelve larger matrices in Zarr, ``--shapes``
takes numbers of matrices, ``--rates`` what ``streampca calibrate`` wrote.
"""

from __future__ import annotations

import argparse
import tempfile
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np

from tests.benchmarks import simulated
from tests.benchmarks.measure import ONE_THREAD, child, in_turns, measure
from tests.benchmarks.sparse import write as write_sparse

TOL = 1e-4  # radians, the default
LONGEST = 3000
COUNTS = (10, 20, 50)
SPECTRA = ("spiked", "steep", "flat")
WITHIN = (1.3, 2.0)
SOLVERS: dict[str, dict[str, Any]] = {
    "auto": {},
    "scatter": {"svd_solver": "scatter"},
    "gram": {"svd_solver": "gram"},
    "iteration": {"tol": TOL},
    "randomized": {"svd_solver": "randomized"},
}
PREDICTED = {"scatter": "scatter", "gram": "gram", "gram by panels": "gram", "krylov": "iteration"}


@dataclass(frozen=True)
class Cell:
    """A matrix, and how many components are asked of it.

    place : "memory", "zarr" or "h5ad".  stored : share of the cells of a sparse matrix; 1 of a
        dense one.  chunks : of a dense one in Zarr; (0, 0) for the usual ones.
    longest : side for which an exact solver is run.
    """

    shape: tuple[int, int]
    spectrum: str
    place: str = "memory"
    dtype: str = "f4"
    stored: float = 1.0
    k: int = 10
    chunks: tuple[int, int] = (0, 0)
    longest: int = LONGEST

    def __str__(self) -> str:
        n, p = self.shape
        kind = f"{np.dtype(self.dtype)}" if self.stored == 1 else f"{self.stored:.1%} stored"
        return f"{n} x {p} {kind} {self.spectrum} in {self.place}, k={self.k}"

    def made(self, folder: Path, share: float) -> Any:
        """The array, or the path of its file.  share : of the rows."""
        n, p = max(60, round(self.shape[0] * share)), self.shape[1]
        if self.stored < 1:
            x = simulated.sparse(n, p, self.spectrum, self.stored)
        else:
            x = simulated.dense(n, p, self.dtype, self.spectrum)
        path = folder / f"{share:g}.{self.place}"
        if self.place == "memory":
            return x
        if self.place == "h5ad":
            return simulated.h5ad(path, x)
        if self.stored < 1:
            write_sparse(path, x.shape, iter([x]))
            return str(path)
        rows, columns = self.chunks if any(self.chunks) else (1000, 1000)
        return simulated.zarr_store(path, x, (min(rows, n), min(columns, p)))

    @property
    def solvers(self) -> list[str]:
        """Those that are run."""
        n, p = self.shape
        left_out = {"scatter": p > self.longest, "gram": n > self.longest}
        return [name for name in SOLVERS if not left_out.get(name, False)]


DENSE: list[dict[str, Any]] = [
    {"shape": (20_000, 100)},
    {"shape": (50_000, 200)},
    {"shape": (5000, 1000)},
    {"shape": (2000, 2000)},
    {"shape": (3000, 3000), "dtype": "f8"},
    {"shape": (1000, 8000)},
    {"shape": (300, 20_000), "dtype": "i1"},
    {"shape": (20_000, 200), "place": "zarr"},
    {"shape": (4000, 2000), "place": "zarr"},
    {"shape": (500, 20_000), "place": "zarr"},
    {"shape": (5000, 1000), "place": "h5ad"},
]
SPARSE = [((20_000, 1000), 0.02), ((3000, 3000), 0.02), ((2000, 10_000), 0.01)]
GRID = [
    Cell(spectrum=spectrum, k=COUNTS[i % 3], **made)
    for i, made in enumerate(DENSE)
    for spectrum in SPECTRA
] + [
    Cell(shape, spectrum, place, stored=stored, k=COUNTS[i % 3])
    for i, (shape, stored) in enumerate(SPARSE)
    for place in ("memory", "zarr", "h5ad")
    for spectrum in SPECTRA
]
LARGE = [
    Cell(shape, "spiked", "zarr", dtype, chunks=chunks, longest=10_000)
    for shape, dtype, chunks in (
        ((200_000, 256), "f4", (8000, 256)),
        ((50_000, 1000), "f4", (2000, 1000)),
        ((30_000, 2000), "f4", (2000, 2000)),
        ((20_000, 3000), "f8", (1000, 3000)),
        ((10_000, 5000), "f4", (1000, 5000)),
        ((5000, 5000), "f4", (1000, 1000)),
        ((8000, 12_000), "i1", (8000, 1024)),
        ((2000, 20_000), "f4", (2000, 1000)),
        ((3000, 30_000), "f4", (100, 30_000)),
        ((1000, 50_000), "f4", (25, 50_000)),
        ((1000, 100_000), "i1", (1000, 2048)),
        ((500, 200_000), "f4", (500, 4096)),
    )
]
CELLS = GRID + LARGE


# -- one matrix ---------------------------------------------------------------------


def fit(x: Any, k: int, rates: Any, **parameters: Any) -> tuple[Any, bool]:
    """(a fitted model, whether it warned of its accuracy)."""
    import streampca

    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        model = streampca.PCA(k, rates=rates, progress=False, **parameters).fit(x)
    return model, any("Accuracy" in one.category.__name__ for one in caught)


def judged(cell: Cell, folder: str, budget: float, rates: Any) -> dict[str, Any]:
    """All solvers of one matrix; in a fresh process."""
    place = Path(folder)

    def calls(x: Any) -> dict[str, Callable[[], Any]]:
        return {name: partial(fit, x, cell.k, rates, **SOLVERS[name]) for name in cell.solvers}

    in_turns(calls(cell.made(place, 0.03)), 0.0, 0)  # loads and compiles
    found = in_turns(calls(cell.made(place, 1)), budget, most=5)
    models = {name: one["last"][0] for name, one in found.items()}
    bounds = {name: model.certificate_.angle_bound for name, model in models.items()}
    certain = np.min([*bounds.values()], axis=0) <= TOL
    sound = {
        name: not one["last"][1] and bool(np.all(bounds[name][certain] <= TOL))
        for name, one in found.items()
    }
    cpu = {name: one["cpu"] for name, one in found.items()}
    best = min((name for name in cpu if sound[name]), key=lambda name: cpu[name], default="auto")
    chosen = models["auto"]
    return {
        "seconds": sum(cpu.values()),
        "cpu": cpu,
        "sound": sound,
        "warned": {name: one["last"][1] for name, one in found.items()},
        "predicted": dict(chosen.plan_.considered),
        "chosen": chosen.plan_.solver,
        "passes": [one.name for one in chosen.cost_],
        "ratio": cpu["auto"] / cpu[best],
        "best": best,
        "agree": all(agree(models["auto"], other) for other in models.values()),
    }


def agree(a: Any, b: Any) -> bool:
    """Whether the variances of two fits differ by no more than both bounds."""
    bound = a.certificate_.variance_bound + b.certificate_.variance_bound
    rounding = 1e-13 * a.explained_variance_[0]
    return bool(np.all(np.abs(a.explained_variance_ - b.explained_variance_) <= bound + rounding))


# -- all of them --------------------------------------------------------------------


def shown(number: int, cell: Cell, row: dict[str, Any]) -> str:
    """A line of text."""
    if "error" in row:
        return f"{number:3} {cell!s:<52} not run: {row['error']}"
    times = "  ".join(
        f"{name} {cpu:.3f}{'' if row['sound'][name] else '!'}" for name, cpu in row["cpu"].items()
    )
    predicted = ", ".join(f"{name} {seconds:.3g}" for name, seconds in row["predicted"].items())
    passes = dict.fromkeys(one.split()[0] for one in row["passes"])
    return (
        f"{number:3} {cell!s:<52}{row['ratio']:6.2f} x {row['best']:<11}{times}  "
        f"[{predicted}] {row['chosen']}: {len(row['passes'])} ({', '.join(passes)})"
        + " DISAGREE"
        * (not row["agree"])
    )


def summed_up(cells: list[Cell], rows: list[dict[str, Any]]) -> str:
    """How many choices are right, and how far predictions are off."""
    done = [(cell, row) for cell, row in zip(cells, rows, strict=True) if "error" not in row]
    counts = [sum(row["ratio"] <= most for _, row in done) for most in WITHIN]
    ours = sum(row["cpu"]["auto"] for _, row in done)
    best = sum(row["cpu"][row["best"]] for _, row in done)
    said = [
        f"{len(done)} matrices: {counts[0]} within {WITHIN[0]} of the best sound solver, "
        f"{counts[1]} within {WITHIN[1]}, the worst {max(row['ratio'] for _, row in done):.2f}; "
        f"{ours:.1f} CPU s, {ours / best:.2f} x the best of each. "
        f"auto: {sum(row['warned']['auto'] for _, row in done)} warn, "
        f"{sum(not row['sound']['auto'] for _, row in done)} are not sound; "
        f"{sum(not row['agree'] for _, row in done)} disagree with another solver."
    ]
    off: dict[tuple[str, str, str], list[float]] = {}
    for cell, row in done:
        for name, seconds in row["predicted"].items():
            if (measured := row["cpu"].get(PREDICTED[name])) is not None:
                kind = "sparse" if cell.stored < 1 else "dense"
                off.setdefault((kind, cell.place, name), []).append(measured / seconds)
    for (kind, place, name), factors in sorted(off.items()):
        middle = float(np.exp(np.mean(np.log(factors))))
        said.append(
            f"  measured / predicted, {kind:<6} {place:<6} {name:<14} {middle:6.2f} "
            f"({min(factors):.2f} to {max(factors):.2f}, {len(factors)} matrices)"
        )
    return "\n".join(said)


def main() -> None:
    """Run the matrices, and print a line for each."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--child", nargs=4, help=argparse.SUPPRESS)
    parser.add_argument("--large", action="store_true", help="twelve larger ones instead")
    parser.add_argument("--shapes", type=int, nargs="*", choices=range(len(CELLS)), metavar="N")
    parser.add_argument("--budget", type=float, default=3.0, help="CPU seconds of a matrix")
    parser.add_argument("--rates", default="", help="from 'streampca calibrate'")
    arguments = parser.parse_args()
    if arguments.child:
        number, folder, budget, rates = arguments.child
        cell = CELLS[int(number)]
        child(lambda place: judged(cell, place, float(budget), rates or None), folder)
        return
    usual = range(len(GRID), len(CELLS)) if arguments.large else range(len(GRID))
    cells, rows = [], []
    for number in arguments.shapes or usual:
        cell = CELLS[number]
        cells.append(cell)
        if cell.place == "h5ad" and find_spec("h5py") is None:
            rows.append({"error": "h5py is not installed"})
        else:
            more = (str(arguments.budget), arguments.rates)
            with tempfile.TemporaryDirectory() as folder:
                rows.append(
                    measure(__spec__.name, str(number), folder, environment=ONE_THREAD, more=more)
                )
        print(shown(number, cell, rows[-1]), flush=True)
    print(summed_up(cells, rows))


if __name__ == "__main__":
    main()
