"""A fixed set of fits in under a minute: ``python -m tests.benchmarks.regress``.

Reads, passes and flops are asserted exactly. Times are compared with bare loops of the same run,
which do the same arithmetic on the same numbers with nothing around it, on one thread, in CPU
seconds: a busy machine slows both. The ratios are printed, and one fails only beyond 1.5 times the
stored one. ``--write`` stores those of this run.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
import time
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import scipy.linalg
import scipy.sparse
import zarr

import streampca as sp
from streampca.kernels import rank_k_update, triangular_factor
from streampca.passes import limited_threads, single_threaded_blas

STORED = Path(__file__).with_name("regress.json")
WORSE = 1.5
RUNS = 3

Array = np.ndarray[Any, Any]


@dataclass(frozen=True)
class Case:
    """model : unfitted.  data : in a folder.  bare : the loop beside it, of the same data."""

    model: Callable[[], Any]
    data: Callable[[Path], Any]
    bare: Callable[[Any], None]


# -- data -----------------------------------------------------------------------------


def numbers(n: int, p: int) -> Array:
    """float32 with a decaying spectrum."""
    rng = np.random.default_rng(0)
    scores = rng.standard_normal((n, 8), dtype=np.float32) * 0.6 ** np.arange(8, dtype=np.float32)
    noise = rng.standard_normal((n, p), dtype=np.float32)
    return 3 * scores @ rng.standard_normal((8, p), dtype=np.float32) + noise


def calls() -> Array:
    """1000 x 16,000 int8, by feature."""
    return np.random.default_rng(1).integers(0, 3, (16_000, 1000)).astype(np.int8).T


def stored(x: Array, chunks: tuple[int, int], folder: Path) -> str:
    """The path of a Zarr array."""
    zarr.create_array(str(folder / "x.zarr"), data=x, chunks=chunks)
    return str(folder / "x.zarr")


def holed() -> Array:
    """3000 x 400, a third missing."""
    x = numbers(3000, 400)
    x[np.random.default_rng(2).random(x.shape) < 0.3] = np.nan
    return x


# -- bare loops: blocks of rows or columns, float32, no centring ------------------------


def blocks(x: Any, rows: int, axis: int = 0) -> Any:
    """Slices of an array, or of one in Zarr."""
    x = zarr.open_array(x, mode="r") if isinstance(x, str) else x
    for start in range(0, x.shape[axis], rows):
        part = x[start : start + rows] if axis == 0 else x[:, start : start + rows]
        yield np.asarray(part, dtype=np.float32)


def products(x: Any, rows: int, axis: int = 0) -> None:
    """Read, and add symmetric products; then the leading eigenvectors."""
    total: Any = None
    for block in blocks(x, rows, axis):
        m = block.shape[1 - axis]
        total = np.zeros((m, m), np.float32) if total is None else total
        rank_k_update(total, block, rows=axis == 0)
    m = len(total)
    scipy.linalg.eigh(total.astype(float), subset_by_index=(m - 6, m - 1), driver="evr")


def factors(x: Any, rows: int) -> None:
    """Read, and factor each block below the factor so far."""
    r: Any = None
    for block in blocks(x, rows):
        stack = np.asfortranarray(block, dtype=float)
        stack = stack if r is None else np.asfortranarray(np.vstack([r, stack]))
        r = triangular_factor(stack)
    scipy.linalg.svd(r)


def steps(x: Any, width: int, times: int) -> None:
    """X'(X q), a few times."""
    q = np.ones((x.shape[1], width), np.float32)
    for _ in range(times):
        q = x.T @ (x @ q)
        q /= np.abs(q).max()


def sweeps(x: Array, rank: int, times: int) -> None:
    """The normal equations of every row and column, a few times."""
    seen = np.isfinite(x)
    filled, weight = np.where(seen, x, 0.0), seen.astype(np.float32)
    v = np.ones((x.shape[1], rank), np.float32)
    pairs = rank * (rank + 1) // 2
    for _ in range(times):
        weight @ np.ones((x.shape[1], pairs), np.float32)
        u = filled @ v
        weight.T @ np.ones((len(x), pairs), np.float32)
        v = filled.T @ u
        v /= np.abs(v).max()


def sparse() -> Any:
    """20,000 x 2000, a fiftieth stored."""
    return scipy.sparse.random(20_000, 2000, 0.02, "csr", np.float32, np.random.default_rng(3))


def case(solver: str, **more: Any) -> Callable[[], Any]:
    """A PCA of five components."""
    return partial(sp.PCA, 5, svd_solver=solver, **more)


CASES: dict[str, Case] = {
    "scatter": Case(
        case("scatter"),
        lambda folder: stored(numbers(60_000, 300), (6000, 300), folder),
        partial(products, rows=6000),
    ),
    "scatter, 1200 features": Case(
        case("scatter"), lambda folder: numbers(12_000, 1200), partial(products, rows=3000)
    ),
    "tsqr": Case(case("tsqr"), lambda folder: numbers(30_000, 200), partial(factors, rows=4000)),
    "gram, int8": Case(
        case("gram", components=False), lambda folder: calls(), partial(products, rows=2000, axis=1)
    ),
    "krylov": Case(
        case("randomized", max_passes=3),
        lambda folder: numbers(6000, 2000),
        partial(steps, width=15, times=3),
    ),
    "krylov, sparse": Case(
        case("randomized", max_passes=3), lambda folder: sparse(), partial(steps, width=15, times=3)
    ),
    "hard impute": Case(
        partial(sp.HardImpute, 4, max_passes=5),
        lambda folder: holed(),
        partial(sweeps, rank=4, times=5),
    ),
}


# -- the comparison ---------------------------------------------------------------------


def counted(model: Any) -> dict[str, Any]:
    """What a fit did, which is the same on every machine."""
    return {
        "passes": [one.name for one in model.cost_],
        "reads": sum(one.reads for one in model.cost_),
        "bytes": sum(one.nbytes for one in model.cost_),
        "flops": model.plan_.flops,
    }


def seconds(work: Callable[[], Any]) -> float:
    """CPU seconds, the least of a few runs."""
    taken = []
    for _ in range(RUNS):
        begun = time.process_time()
        work()
        taken.append(time.process_time() - begun)
    return min(taken)


def measured(one: Case, folder: Path) -> dict[str, Any]:
    """Counts, and the ratio of the times."""
    x = one.data(folder)
    model = one.model().set_params(progress=False)
    with warnings.catch_warnings(), limited_threads(1), single_threaded_blas():
        warnings.simplefilter("ignore")
        model.fit(x)
        ratio = seconds(lambda: model.fit(x)) / seconds(lambda: one.bare(x))
    return counted(model) | {"ratio": round(ratio, 2)}


def differences(old: dict[str, Any], new: dict[str, Any]) -> list[str]:
    """In words, what is not as it was."""
    found = [
        f"{what}: {old[what]} -> {new[what]}"
        for what in ("passes", "reads", "bytes", "flops")
        if old[what] != new[what]
    ]
    if new["ratio"] > WORSE * old["ratio"]:
        found.append(f"ratio to the bare loop: {old['ratio']} -> {new['ratio']}")
    return found


def main() -> int:
    """Print the ratios; 1 if something is worse."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--write", action="store_true", help="store what is measured")
    arguments = parser.parse_args()
    old = json.loads(STORED.read_text()) if STORED.exists() else {}
    made, worse = {}, False
    for name, one in CASES.items():
        with tempfile.TemporaryDirectory() as folder:
            made[name] = measured(one, Path(folder))
        wrong = [] if arguments.write else differences(old[name], made[name])
        worse |= bool(wrong)
        before = f" (stored {old[name]['ratio']:.2f})" if name in old else ""
        print(f"{name:<26}{made[name]['ratio']:>6.2f}{before}  {'; '.join(wrong)}", flush=True)
    if arguments.write:
        lines = [f"  {json.dumps(name)}: {json.dumps(one)}" for name, one in made.items()]
        STORED.write_text("{\n" + ",\n".join(lines) + "\n}\n")
    return int(worse)


if __name__ == "__main__":
    sys.exit(main())
