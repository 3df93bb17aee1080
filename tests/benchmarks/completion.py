"""Matrices with holes, larger than the memory limit: ``python -m tests.benchmarks.completion``.

Proves the table of missing data. A dense store (rank 10 and noise, 30 % NaN, float32) is
completed under a memory limit, and its time per sweep set beside one pass of a PCA over the same
store; ratings (a few values in popular and rare columns) are completed with everything that is not
stored missing. Beside ours, where they can run: a plain in-memory NumPy Hard-Impute and
scikit-learn's IterativeImputer. Errors are those of cells that nobody was given.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import scipy.sparse
import zarr

from tests.benchmarks.measure import measure, record, recordable

RANK, HOLES, NOISE = 10, 0.3, 0.5
RATED = 20  # rank of the ratings
TOLD = 100_000  # cells that the errors are taken over
CHUNK = 2000
LIMIT = "512MiB"


# -- data ---------------------------------------------------------------------------------------


def write_dense(folder: Path, n: int, p: int) -> None:
    """The store, and some cells of the matrix that lie in its holes."""
    rng = np.random.default_rng(0)
    v = rng.standard_normal((RANK, p), dtype="f4")
    store = zarr.create_array(str(folder / "x.zarr"), shape=(n, p), chunks=(CHUNK, p), dtype="f4")
    rows, columns, values = [], [], []
    for start in range(0, n, CHUNK):
        count = min(CHUNK, n - start)
        x = rng.standard_normal((count, RANK), dtype="f4") @ v + 1.0
        whole = x.copy()
        x += NOISE * rng.standard_normal(x.shape, dtype="f4")
        x[rng.random(x.shape, dtype="f4") < HOLES] = np.nan
        store[start : start + count] = x
        i, j = np.nonzero(np.isnan(x))
        some = rng.choice(len(i), max(1, TOLD * count // n), replace=False)
        rows.append(start + i[some])
        columns.append(j[some])
        values.append(whole[i[some], j[some]])
    told = {"rows": rows, "columns": columns, "values": values}
    np.savez(folder / "told.npz", **{k: np.concatenate(v) for k, v in told.items()})


def write_ratings(folder: Path, n: int, p: int, cells: int) -> None:
    """Ratings from 0.5 to 5 of a rank-10 taste, columns unevenly popular; and some left out."""
    rng = np.random.default_rng(1)
    u = rng.standard_normal((n, RANK)).astype("f4")
    v = rng.standard_normal((RANK, p)).astype("f4") / np.sqrt(RANK)
    pieces, told = [], []
    per_row = cells // n
    for start in range(0, n, CHUNK):
        count = min(CHUNK, n - start)
        rows = np.repeat(np.arange(count), per_row)
        columns = (p * rng.random(len(rows)) ** 2).astype(np.int64)
        cell = np.unique(rows * p + columns)
        rows, columns = cell // p, cell % p
        taste = np.einsum("ij,ji->i", u[start + rows], v[:, columns])
        rated = np.clip(np.round(2 * (3.0 + taste + NOISE * rng.standard_normal(len(rows)))), 1, 10)
        rated = (rated / 2).astype("f4")
        kept = rng.random(len(rows)) > min(0.1, TOLD / cells)
        told.append((start + rows[~kept], columns[~kept], rated[~kept]))
        piece = (rated[kept], (rows[kept], columns[kept]))
        pieces.append(scipy.sparse.csr_matrix(piece, shape=(count, p)))
    whole = scipy.sparse.vstack(pieces, format="csr")
    scipy.sparse.save_npz(folder / "ratings.npz", whole, compressed=False)
    rows, columns, values = (np.concatenate(one) for one in zip(*told, strict=True))
    np.savez(folder / "told-ratings.npz", rows=rows, columns=columns, values=values)


def rmse(predicted: Any, told: Any) -> float:
    """Of cells that nobody was given."""
    return float(np.sqrt(np.mean((predicted - told["values"]) ** 2)))


# -- candidates ---------------------------------------------------------------------------------


def ours(path: str, solver: str = "als") -> dict[str, Any]:
    """HardImpute under the limit."""
    import streampca

    model = streampca.HardImpute(RANK, solver=solver, memory_limit=LIMIT, tol=1e-3, progress=False)
    model.fit(f"{path}/x.zarr")
    told = np.load(f"{path}/told.npz")
    sweeps = [cost.seconds for cost in model.cost_[1:]]
    return {
        "passes": len(model.cost_),
        "sweep": float(np.median(sweeps)),
        "chunk reads": sorted({cost.reads for cost in model.cost_}),
        "relative_error": rmse(model.predict(told["rows"], told["columns"]), told),
        "planned_mb": model.plan_.peak_nbytes / 1e6,
    }


def pca(path: str) -> dict[str, Any]:
    """What one pass of a PCA over the same store takes."""
    import streampca

    model = streampca.PCA(RANK, missing="mean", memory_limit=LIMIT, progress=False)
    model.fit(f"{path}/x.zarr")
    return {"passes": len(model.cost_), "sweep": float(np.median([c.seconds for c in model.cost_]))}


def classic(path: str) -> dict[str, Any]:
    """Everything in memory; as many iterations as it takes to change by less than 1e-3."""
    y = zarr.open_array(f"{path}/x.zarr", mode="r")[...]
    hole = np.isnan(y)
    mean = np.sum(y, axis=0, where=~hole, dtype=float) / np.sum(~hole, axis=0)
    y -= mean.astype(y.dtype)
    y[hole] = 0.0
    steps, change = 0, 1.0
    while steps < 200 and change >= 1e-3:
        steps += 1
        v = np.linalg.eigh(y.T @ y)[1][:, -RANK:]
        moved = size = 0.0
        for start in range(0, len(y), CHUNK):  # or five such matrices would be in memory
            part = slice(start, start + CHUNK)
            estimate = (y[part] @ v) @ v.T
            moved += float(np.sum((estimate - y[part])[hole[part]] ** 2, dtype=float))
            size += float(np.sum(estimate**2, dtype=float))
            np.copyto(y[part], estimate, where=hole[part])
        change = np.sqrt(moved / size)
    told = np.load(f"{path}/told.npz")  # cells in holes, where y is the estimate
    found = y[told["rows"], told["columns"]] + mean[told["columns"]]
    return {"passes": steps, "relative_error": rmse(found, told)}


def iterative_imputer(path: str) -> dict[str, Any]:
    """scikit-learn's, one round of regressions on 20 neighbours."""
    from sklearn.experimental import enable_iterative_imputer  # noqa: F401
    from sklearn.impute import IterativeImputer

    x = zarr.open_array(f"{path}/x.zarr", mode="r")[...]
    filled = IterativeImputer(max_iter=1, n_nearest_features=20).fit_transform(x)
    told = np.load(f"{path}/told.npz")
    return {"passes": 1, "relative_error": rmse(filled[told["rows"], told["columns"]], told)}


def ratings(path: str) -> dict[str, Any]:
    """Ratings with what is not stored missing."""
    import streampca

    source = scipy.sparse.load_npz(f"{path}/ratings.npz")
    model = streampca.HardImpute(RATED, alpha=5.0, tol=1e-3, max_passes=20, progress=False)
    model.fit(source)
    told = np.load(f"{path}/told-ratings.npz")
    return {
        "passes": len(model.cost_),
        "sweep": float(np.median([cost.seconds for cost in model.cost_[1:]])),
        "relative_error": rmse(model.predict(told["rows"], told["columns"]), told),
        "planned_mb": model.plan_.peak_nbytes / 1e6,
    }


CHILDREN = {
    "streampca als": ours,
    "streampca impute": lambda path: ours(path, "impute"),
    "PCA of the same store, missing='mean'": pca,
    "NumPy Hard-Impute in memory": classic,
    "scikit-learn IterativeImputer": iterative_imputer,
    "streampca, ratings": ratings,
}
IN_MEMORY = {"NumPy Hard-Impute in memory", "scikit-learn IterativeImputer"}


def main() -> None:
    """Write, run every candidate in a fresh process, print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--samples", type=int, default=100_000)
    parser.add_argument("--features", type=int, default=2000)
    parser.add_argument("--users", type=int, default=200_000)
    parser.add_argument("--items", type=int, default=20_000)
    parser.add_argument("--ratings", type=int, default=20_000_000)
    parser.add_argument("--timeout", type=float, default=900)
    parser.add_argument("--without-in-memory", action="store_true")
    recordable(parser, __file__)
    parser.add_argument("--child", nargs=2)
    arguments = parser.parse_args()
    if arguments.child:
        from tests.benchmarks.measure import child

        name, path = arguments.child
        child(CHILDREN[name], path)
        return
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place)
        write_dense(folder, arguments.samples, arguments.features)
        write_ratings(folder, arguments.users, arguments.items, arguments.ratings)
        print(
            f"{arguments.samples} x {arguments.features} float32, {HOLES:.0%} missing, rank "
            f"{RANK}, limit {LIMIT}; {arguments.ratings} ratings of {arguments.users} x "
            f"{arguments.items}, rank {RATED}"
        )
        rows = []
        for name in CHILDREN:
            if name in IN_MEMORY and arguments.without_in_memory:
                continue
            try:
                found = measure(
                    "tests.benchmarks.completion", name, place, timeout=arguments.timeout
                )
            except Exception as error:  # a time-out is an answer too
                found = {"error": type(error).__name__}
            print(f"{name:<40}", json.dumps(found), flush=True)
            rows.append({"name": name, **found})
        record(arguments.record, rows, "scikit-learn")


if __name__ == "__main__":
    sys.exit(main())
