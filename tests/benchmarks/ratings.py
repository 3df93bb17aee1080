"""Ratings beside the SVD of Surprise and biases alone: ``python -m tests.benchmarks.ratings``.

Proves the table of ratings. Every candidate reads the same text file of (user, item, rating) in a
fresh process, fits, and predicts a tenth of the ratings that nobody was given. The recipe of ours
is the default one: 18 candidates, judged by held-out ratings, and the best fitted to all. The SVD
of Surprise runs with its defaults, and tuned: 20 candidates, judged by as many held-out ratings,
and the best fitted to all. It needs ``pip install scikit-surprise``.

``jester`` and ``bfi`` are real (``../shared/data``), ``simulated`` is as sparse as MovieLens-100k.
``--large`` adds 20 million ratings with ids as text, under a memory limit, ours alone: few users
and items have most of them, and the error of the simulated truth says what there is to reach.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import tempfile
import time
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np

from tests.benchmarks.measure import child, measure, record, recordable
from tests.models.completion.ratings import bfi, jester, movielens_like, parted

SHARED = Path(__file__).parents[3] / "shared" / "data"
SCALES = {"jester": (-10.0, 10.0), "bfi": (1.0, 6.0), "simulated": (1.0, 5.0)}
HELD = 0.05  # of the given ratings, by which Surprise is tuned; ours holds out as many by itself
GRID = list(product((5, 20), (0.02, 0.06, 0.12, 0.2, 0.3), (0.002, 0.006)))  # factors, reg, rate
LARGE = {"users": 138_000, "items": 27_000, "ratings": 20_000_000, "limit": "1500MiB"}

# -- data ---------------------------------------------------------------------------------------


def write(folder: Path, name: str) -> None:
    """``given.csv`` and ``unseen.csv`` of one set."""
    if name == "simulated":
        whole = movielens_like()
    else:
        whole = {"jester": jester, "bfi": bfi}[name](SHARED)
    given, unseen = parted(whole)
    every = given.tocoo()
    folder.mkdir()
    for file, cells in (("given", (every.row, every.col, every.data)), ("unseen", unseen)):
        with (folder / f"{file}.csv").open("w") as out:
            out.write("user,item,rating\n")
            out.writelines(f"u{i},i{j},{x:g}\n" for i, j, x in zip(*cells, strict=True))


def write_large(folder: Path) -> None:
    """Half stars by biases, ten tastes and noise; those who rate, and what, follow power laws."""
    import pyarrow as pa
    import pyarrow.csv

    n, p, rank, rng = LARGE["users"], LARGE["items"], 10, np.random.default_rng(1)
    active, popular = np.minimum(rng.pareto(1.3, n) + 0.35, 20), 1 / (20.0 + rng.permutation(p))
    ends = [np.cumsum(one / one.sum()) for one in (active, popular**0.8)]
    a, b = rng.normal(0, 0.42, n), rng.normal(0, 0.5, p)
    sizes = np.linspace(1.0, 0.3, rank)
    u, v = rng.normal(size=(n, rank)), rng.normal(size=(p, rank))
    v *= 0.55 * sizes / np.linalg.norm(sizes)
    folder.mkdir()
    names = (
        pa.array([f"user-{i:07d}" for i in rng.permutation(n)]),
        pa.array([f"B{j:06d}" for j in range(p)]),
    )
    schema = pa.schema([("user", pa.string()), ("item", pa.string()), ("rating", pa.float32())])
    sinks = {
        file: pa.csv.CSVWriter(str(folder / f"{file}.csv"), schema) for file in ("given", "unseen")
    }
    squares = cells = 0.0
    for _ in range(40):
        count = LARGE["ratings"] // 40
        i, j = (np.minimum(np.searchsorted(end, rng.random(count)), len(end) - 1) for end in ends)
        truth = 3.5 + a[i] + b[j] + np.einsum("ij,ij->i", u[i], v[j])
        x = np.clip(np.round(2 * (truth + 0.75 * rng.normal(size=count))), 1, 10) / 2
        kept = rng.random(count) > 0.005
        squares += float(((np.clip(truth, 0.5, 5.0) - x)[~kept] ** 2).sum())
        cells += float(np.count_nonzero(~kept))
        for file, some in (("given", kept), ("unseen", ~kept)):
            columns = [
                names[0].take(pa.array(i[some])),
                names[1].take(pa.array(j[some])),
                x[some].astype("f4"),
            ]
            sinks[file].write_table(pa.table(columns, schema=schema))
    for sink in sinks.values():
        sink.close()
    (folder / "truth.json").write_text(json.dumps(np.sqrt(squares / cells)))


# -- candidates ---------------------------------------------------------------------------------


def ours(path: str, model: str) -> dict[str, Any]:
    """Opened by ids, fitted by the default recipe, judged."""
    import streampca

    ratings = streampca.open_ratings(f"{path}/given.csv")
    opened = time.perf_counter()
    fitted = getattr(streampca, model)(progress=False).fit(ratings)
    done = time.perf_counter()
    found = fitted.evaluate(streampca.open_ratings(f"{path}/unseen.csv"), 10)
    return {
        "passes": len(fitted.cost_),
        "rank": fitted.best_rank_,
        "fit": done - opened,
        "rmse": found["rmse"],
        "mae": found["mae"],
        "ndcg": found["ndcg"],
        "planned_mb": fitted.plan_.peak_nbytes / 1e6,
    }


def large(path: str, rank: Any) -> dict[str, Any]:
    """Ten items for 1,000 users, and the errors; nobody ranks 27,000 items for 138,000 users."""
    import streampca

    ratings = streampca.open_ratings(f"{path}/given.csv")
    opened = time.process_time()
    center = "auto" if rank == "auto" else "biases"
    fitted = streampca.HardImpute(
        rank, center=center, tol=1e-3, memory_limit=LARGE["limit"], progress=False
    )
    fitted.fit(ratings)
    done = time.process_time()
    unseen = streampca.open_ratings(f"{path}/unseen.csv")
    users, items = (
        np.asarray(one.coords[one.dims[0]])
        for one in (unseen.labels.samples, unseen.labels.features)
    )
    some = list(users[:: max(1, len(users) // 1000)])
    assert all(len(found) == 10 for found in fitted.recommend(some, 10).values())
    squares = absolute = 0.0
    for i, j, x in unseen.pieces():
        errors = fitted.predict(users[i], items[j]) - x
        squares, absolute = squares + float(errors @ errors), absolute + float(np.abs(errors).sum())
    truth = json.loads((Path(path) / "truth.json").read_text())
    return {
        "passes": len(fitted.cost_),
        "rank": fitted.best_rank_,
        "fit": done - opened,
        "ratings": ratings.entries,
        "duplicates": ratings.duplicates,
        "rmse": float(np.sqrt(squares / unseen.entries)),
        "mae": absolute / unseen.entries,
        "planned_mb": fitted.plan_.peak_nbytes / 1e6,
        "note": f"{ratings.entries:,} cells; the truth: {truth:.3f}",
    }


def surprise(path: str, tuned: bool | None) -> dict[str, Any]:
    """SVD with its defaults, or tuned; ``None``: BaselineOnly with its defaults."""
    import pandas as pd
    from surprise import SVD, BaselineOnly, Dataset, Reader

    given, unseen = (pd.read_csv(f"{path}/{name}.csv") for name in ("given", "unseen"))
    reader = Reader(rating_scale=SCALES[Path(path).name])
    fit = lambda model, frame: model.fit(  # noqa: E731
        Dataset.load_from_df(frame, reader).build_full_trainset()
    )

    def errors(model: Any, frame: Any) -> Any:
        return np.array([model.predict(i, j).est - x for i, j, x in frame.itertuples(index=False)])

    if tuned is None:
        model = fit(BaselineOnly(verbose=False), given)
    elif not tuned:
        model = fit(SVD(random_state=0), given)
    else:
        held = np.random.default_rng(0).random(len(given)) < HELD
        tried = []
        for one in GRID:
            kind = {"n_factors": one[0], "reg_all": one[1], "lr_all": one[2], "n_epochs": 30}
            model = fit(SVD(random_state=0, **kind), given[~held])
            tried.append((float(np.mean(errors(model, given[held]) ** 2)), kind))
        model = fit(SVD(random_state=0, **min(tried, key=lambda one: one[0])[1]), given)
    left = errors(model, unseen)
    return {"rmse": float(np.sqrt(np.mean(left**2))), "mae": float(np.mean(np.abs(left)))}


CANDIDATES = {
    "streampca HardImpute": lambda path: ours(path, "HardImpute"),
    "streampca SoftImpute": lambda path: ours(path, "SoftImpute"),
    "Surprise SVD": lambda path: surprise(path, False),
    "Surprise SVD, tuned": lambda path: surprise(path, True),
    "Surprise BaselineOnly": lambda path: surprise(path, None),
}
AT_LARGE = {
    "streampca HardImpute, in 1500 MiB": lambda path: large(path, "auto"),
    "streampca biases, in 1500 MiB": lambda path: large(path, 0),
}
CANDIDATES |= AT_LARGE


def kept(found: dict[str, Any]) -> dict[str, Any]:
    """What the table shows: seconds of processors, whatever else the machine does."""
    names = ("error", "cpu", "peak_mb", "passes", "rmse", "mae", "ndcg", "note")
    return {name: found[name] for name in names if name in found}


def main() -> None:
    """Write, run every candidate in a fresh process, print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--data", nargs="*", default=list(SCALES), choices=SCALES)
    parser.add_argument("--large", action="store_true", help="20 million ratings, too")
    parser.add_argument("--timeout", type=float, default=900)
    recordable(parser, __file__)
    parser.add_argument("--child", nargs=2)
    arguments = parser.parse_args()
    if arguments.child:
        name, path = arguments.child
        child(lambda path: CANDIDATES[name](path) | {"cpu": time.process_time()}, path)
        return
    rows = []
    with tempfile.TemporaryDirectory() as place:
        for data in [*arguments.data, *["20 million"] * arguments.large]:
            folder, big = Path(place) / data, data not in SCALES
            write_large(folder) if big else write(folder, data)
            for name in CANDIDATES:
                if (name in AT_LARGE) != big:
                    continue
                try:
                    found = measure(
                        "tests.benchmarks.ratings", name, str(folder), timeout=arguments.timeout
                    )
                except subprocess.TimeoutExpired:  # an answer, too
                    found = {"error": f"more than {arguments.timeout:g} s"}
                print(f"{data:<12}{name:<34}", json.dumps(found), flush=True)
                rows.append({"data": data, "name": name, **kept(found)})
    record(arguments.record, rows, "scikit-surprise")


if __name__ == "__main__":
    main()
