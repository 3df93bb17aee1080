"""Ordinary work beside its peer: ``python -m tests.benchmarks.everyday [--rows NAME ...]``.

Ours and the peer (scikit-learn, or the bare loop) are called in turns in one fresh process a row,
after both ran on a small part of the data. Figures are medians of CPU seconds, user and system,
with one BLAS thread for both sides: threads that wait spin, and a busy machine charges that to the
peer. Wall seconds of the same calls stand beside them; they mean something on a quiet machine
alone. "difference" is the largest of the variances, relative to the first variance.

``--budget`` CPU seconds of a row, after which no turn begins, decide how many turns there are;
``--rows`` takes names of rows or the first words of several, such as ``calls`` or ``sparse``.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np

from tests.benchmarks import dense_tall, simulated
from tests.benchmarks.measure import ONE_THREAD, child, in_turns, measure, record, recordable

K = 10
TOL = 1e-4  # radians, to which components are certified by default
SHARE = 0.02  # of the rows, for what is loaded and compiled when it is first used
LANES, AHEAD = 2, 1  # of the bare loop
BUDGET = "STREAMPCA_BENCHMARK_BUDGET"  # the variable that tells a child
FIRST = "import streampca; streampca.PCA({k}, progress=False).fit({path!r})"
Make = Callable[[Path, float], Any]  # of a folder, and the share of the rows that is made


@dataclass(frozen=True)
class Row:
    """A row of the table: what is compared, and on what.

    make : the data.  ours, theirs : the two calls, of the data.  peer : its name.
    goal : most that ours may take, of the peer's time, or in milliseconds.
    needs : packages without which there is no such row.
    """

    work: str
    make: Make
    ours: Callable[[Any], Any]
    theirs: Callable[[Any], Any]
    peer: str = "scikit-learn"
    goal: str = ""
    needs: tuple[str, ...] = ("sklearn",)


# -- the two sides ----------------------------------------------------------------


def pca(x: Any, k: int = K, method: str = "fit") -> Any:
    """A fit of ours."""
    import streampca

    return getattr(streampca.PCA(k, progress=False), method)(x)


def their_pca(x: Any, k: int = K, method: str = "fit", solver: str = "auto") -> Any:
    """A fit of scikit-learn's."""
    from sklearn.decomposition import PCA

    return getattr(PCA(k, svd_solver=solver, random_state=0), method)(x)


def stored(path: str) -> Any:
    """The whole file in memory."""
    if path.endswith(".npy"):
        return np.load(path)
    if path.endswith(".csv"):
        import pandas

        return pandas.read_csv(path)
    if path.endswith(".h5ad"):
        return simulated.h5ad_in_memory(path)
    import zarr

    return zarr.open_array(path, mode="r")[...]


def bare(path: str) -> None:
    """The limit: read and symmetric update."""
    import streampca
    from tests.benchmarks.bare import bare_loop

    matrix = streampca.open(path)
    edges = np.arange(0, matrix.shape[0] + 8191, 8192).clip(max=matrix.shape[0])
    bare_loop(matrix, 0, edges, matrix.shape[1], LANES, AHEAD, 1)


def first_fit(path: str) -> None:
    """A process that fits once and ends."""
    code = FIRST.format(k=dense_tall.K, path=path)
    subprocess.run([sys.executable, "-W", "ignore", "-c", code], check=True)


# -- data -------------------------------------------------------------------------


def of(maker: Callable[..., Any], n: int, p: int, *more: Any) -> Make:
    """An array in memory."""
    return lambda folder, share: maker(max(50, round(share * n)), p, *more)


def in_file(name: str, write: Callable[[Path, Any], Any], made: Make) -> Make:
    """A file of such an array, written once."""

    def make(folder: Path, share: float) -> str:
        path = folder / (name if share == 1 else f"part-{name}")
        if not path.exists():
            write(path, made(folder, share))
        return str(path)

    return make


def tall(folder: Path, share: float) -> str:
    """The Zarr store of :mod:`tests.benchmarks.dense_tall`."""
    path = folder / f"tall-{share:g}.zarr"
    if not path.exists():
        dense_tall.write(str(path), round(500_000 * share), 512)
    return str(path)


def csv(path: Path, x: Any) -> None:
    head = ",".join(f"x{j}" for j in range(x.shape[1]))
    np.savetxt(path, x, fmt="%.6g", delimiter=",", header=head, comments="")


# -- rows -------------------------------------------------------------------------


def fit(n: int, p: int, dtype: str, goal: str = "1.3") -> Row:
    made = of(simulated.dense, n, p, dtype)
    return Row(f"{n:,} x {p:,} {np.dtype(dtype)}", made, pca, their_pca, goal=goal)


def sparse(spectrum: str) -> Row:
    return Row(
        f"sparse 20,000 x 5,000, 1 %, {spectrum}, k = 20",
        of(simulated.sparse, 20_000, 5000, spectrum),
        partial(pca, k=20),
        partial(their_pca, k=20, solver="arpack"),
        "ARPACK",
        "1.5",
    )


def square(spectrum: str) -> Row:
    return Row(
        f"5,000 x 5,000 float32, {spectrum}",
        of(simulated.dense, 5000, 5000, "f4", spectrum),
        pca,
        partial(their_pca, solver="arpack"),
        "ARPACK",
        "1.2",
    )


def in_store(work: str, name: str, write: Callable[[Path, Any], Any], n: int, p: int) -> Row:
    """A file beside reading it whole, and fitting that."""
    return Row(
        f"{n:,} x {p:,} float32 in {work}",
        in_file(name, write, of(simulated.dense, n, p)),
        pca,
        lambda path: their_pca(stored(path)),
        "read whole + scikit-learn",
        needs=("sklearn", *(["pandas"] if name.endswith("csv") else [])),
    )


def in_zarr(work: str, codec: str, rows: int) -> Row:
    write = lambda path, x: simulated.zarr_store(path, x, (min(rows, len(x)), x.shape[1]), codec)  # noqa: E731
    return in_store(f"Zarr, {work}", f"{codec}-{rows}.zarr", write, 200_000, 100)


@dataclass(frozen=True)
class Fitted:
    """A model of ours, one of theirs, and rows to apply them to."""

    ours: Any
    theirs: Any
    x: Any
    folder: Path


def both_fitted(folder: Path, share: float) -> Fitted:
    x = simulated.dense(200, 10, "f8")
    return Fitted(pca(x, 3), their_pca(x, 3), x, folder)


def on_row(method: str) -> Row:
    """A method of a fitted model, of one row."""

    def call(side: str, data: Fitted) -> Any:
        model = getattr(data, side)
        row = data.x[:1] if method != "inverse_transform" else np.ones((1, 3))
        return getattr(model, method)(row)

    goal = "0.5 ms" if method == "transform" else ""
    sides = (partial(call, side) for side in ("ours", "theirs"))
    return Row(f"{method} of one row", both_fitted, *sides, goal=goal)


def small(method: str, goal: str = "") -> Row:
    """A method of a new model, of few data."""
    ours, theirs = partial(pca, k=3, method=method), partial(their_pca, k=3, method=method)
    return Row(f"{method} of 200 x 10", of(simulated.dense, 200, 10, "f8"), ours, theirs, goal=goal)


def batches(rows: int, goal: str) -> Row:
    """partial_fit, of batches that go on."""

    def make(folder: Path, share: float) -> Any:
        import sklearn.decomposition

        import streampca

        x = simulated.dense(1000, 64, "f8")
        models = [streampca.IncrementalPCA(5), sklearn.decomposition.IncrementalPCA(5)]
        for model in models:
            model.partial_fit(x)
        return *models, x[:rows]

    return Row(
        f"partial_fit of {rows} x 64",
        make,
        lambda data: data[0].partial_fit(data[2]),
        lambda data: data[1].partial_fit(data[2]),
        goal=goal,
    )


def kept(data: Fitted) -> Any:
    """Save and load, ours."""
    import streampca

    path = data.folder / "model"
    data.ours.save(path)
    return streampca.load(path)


def their_kept(data: Fitted) -> Any:
    """Save and load as scikit-learn's page says."""
    import joblib

    path = data.folder / "model.joblib"
    joblib.dump(data.theirs, path)
    return joblib.load(path)


CELLS = in_file("cells.h5ad", simulated.h5ad, of(simulated.sparse, 20_000, 5000, "topics"))
ROWS = {
    "tall-warm": Row(
        "500,000 x 512 float32 Zarr, k = 20, warm",
        tall,
        partial(pca, k=dense_tall.K),
        bare,
        "bare loop",
        "1.15",
        (),
    ),
    "tall-first": Row(
        "the same, a process that fits once", tall, first_fit, bare, "bare loop", "+0.5 s", ()
    ),
    **{f"sparse-{spectrum}": sparse(spectrum) for spectrum in ("steep", "flat", "topics")},
    "sparse-h5ad": Row(
        "sparse 20,000 x 5,000, topics, in .h5ad, k = 20",
        CELLS,
        partial(pca, k=20),
        lambda path: their_pca(stored(path), 20, solver="arpack"),
        "read whole + ARPACK",
        needs=("sklearn", "h5py"),
    ),
    **{f"dense-{spectrum}": square(spectrum) for spectrum in ("spiked", "flat")},
    "memory-2000x100": fit(2000, 100, "f8", "2"),
    "memory-20000x20": fit(20_000, 20, "f8", "2"),
    "memory-100000x200": fit(100_000, 200, "f4"),
    "memory-2000000x50": fit(2_000_000, 50, "f4"),
    "memory-20000x1000": fit(20_000, 1000, "f4"),
    "memory-200000x1000": fit(200_000, 1000, "f4"),
    "memory-1000x200000": fit(1000, 200_000, "f4"),
    "memory-int8": fit(100_000, 200, "i1", ""),
    "calls-fit": small("fit", "3 ms"),
    "calls-fit_transform": small("fit_transform"),
    "calls-transform": on_row("transform"),
    "calls-inverse": on_row("inverse_transform"),
    "calls-score": on_row("score"),
    "calls-partial10": batches(10, ""),
    "calls-partial100": batches(100, "1.2"),
    "calls-save": Row("save + load", both_fitted, kept, their_kept, "joblib", "5 ms"),
    "files-raw": in_zarr("not compressed", "raw", 8192),
    "files-blosc": in_zarr("blosc", "blosc", 8192),
    "files-chunk": in_zarr("one huge chunk", "blosc", 1 << 30),
    "files-csv": in_store("CSV", "x.csv", csv, 20_000, 50),
    "files-npy": in_store(".npy", "x.npy", np.save, 200_000, 100),
}
GROUPS = tuple(dict.fromkeys(name.partition("-")[0] for name in ROWS))


# -- measuring ----------------------------------------------------------------------


def measured(name: str, folder: str, budget: float) -> dict[str, Any]:
    """In the fresh process: one row."""
    row, place = ROWS[name], Path(folder)
    sides = {"ours": row.ours, "theirs": row.theirs}
    in_turns({side: partial(call, row.make(place, SHARE)) for side, call in sides.items()}, 0.0, 0)
    data = row.make(place, 1)
    found = in_turns({side: partial(call, data) for side, call in sides.items()}, budget)
    ours, theirs = (found[side].pop("last") for side in sides)
    told = found["ours"] | {f"peer_{key}": value for key, value in found["theirs"].items()}
    if name.startswith("calls") or not hasattr(ours, "certificate_"):
        return told
    if hasattr(theirs, "explained_variance_"):
        mine, other = (np.asarray(one.explained_variance_) for one in (ours, theirs))
        told["difference"] = float(np.abs(mine - other).max() / other[0])
    if not name.startswith("files"):
        bound = ours.certificate_.angle_bound
        told["note"] = f"{ours.plan_.solver}, {len(ours.cost_)} passes, "
        told["note"] += f"{int(np.sum(bound <= TOL))} of {len(bound)} certified to {TOL:g}"
    return told


def line(row: dict[str, Any]) -> str:
    """A row as text."""
    if "error" in row:
        return f"{row['work']:<48}  not run: {row['error']}"
    difference = f"{row['difference']:.0e}" if "difference" in row else ""
    ratio = row["cpu"] / row["peer_cpu"]
    return (
        f"{row['work']:<48}{row['cpu']:>9.4f}{row['peer_cpu']:>9.4f}{ratio:>7.2f}"
        f"{row['goal']:>7}{row['seconds']:>9.4f}{row['peer_seconds']:>9.4f}"
        f"{row['turns']:>4}{difference:>9}  {row.get('note', '')}"
    )


def chosen(words: list[str] | None) -> list[str]:
    """Names of rows, of names and groups."""
    return [name for name in ROWS if not words or {name, name.partition("-")[0]} & set(words)]


def main() -> None:
    """Run the rows, print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", nargs="+", choices=[*GROUPS, *ROWS], metavar="NAME")
    parser.add_argument("--budget", type=float, default=3.0, help="CPU seconds of a row")
    parser.add_argument("--folder", help="keep the files here, and use them again")
    recordable(parser, __file__)
    parser.add_argument("--child", nargs=2, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.child:
        name, folder = arguments.child
        child(lambda place: measured(name, place, float(os.environ[BUDGET])), folder)
        return
    print(
        f"{'CPU seconds, one BLAS thread':<48}{'ours':>9}{'peer':>9}{'ratio':>7}{'goal':>7}", end=""
    )
    print(f"{'wall':>9}{'peer':>9}{'n':>4}{'differ':>9}")
    rows = []
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(arguments.folder or temporary)
        folder.mkdir(parents=True, exist_ok=True)
        environment = {**ONE_THREAD, BUDGET: str(arguments.budget)}
        for name in chosen(arguments.rows):
            known = {"name": name, "work": ROWS[name].work, "peer": ROWS[name].peer}
            known |= {"goal": ROWS[name].goal, "load": round(os.getloadavg()[0], 1)}
            absent = [one for one in ROWS[name].needs if find_spec(one) is None]
            row = (
                {"error": f"{', '.join(absent)} not installed"}
                if absent
                else measure(__spec__.name, name, str(folder), environment=environment)
            )
            rows.append(known | row)
            print(line(rows[-1]), flush=True)
    record(arguments.record, rows, "scikit-learn", "pandas", "h5py")


if __name__ == "__main__":
    main()
