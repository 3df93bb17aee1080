"""Wide int8 PCA beside the limit: ``python -m tests.benchmarks.wide``.

Genotype-like int8 samples x variants from Zarr, features streamed, Gram matrix, scores and
spectrum (``components=False``), against the bare loop: read, cast to float32, ssyrk.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from tests.benchmarks.measure import child, measure, record, recordable, table

K = 10


def ours(path: str) -> dict[str, Any]:
    """The Gram pass of streampca.PCA, column standardisation included."""
    import streampca

    model = streampca.PCA(K, scale="std", components=False, progress=False).fit(path)
    return {"seconds": model.cost_[0].seconds, "passes": 1}


def ours_whole(path: str) -> dict[str, Any]:
    """The whole fit, eigh included."""
    import streampca

    begun = time.perf_counter()
    model = streampca.PCA(K, scale="std", components=False, progress=False).fit(path)
    return {"seconds": time.perf_counter() - begun, "passes": len(model.cost_)}


def bare(path: str) -> dict[str, Any]:
    """The limit."""
    import streampca
    from tests.benchmarks.bare import best_bare_loop

    matrix = streampca.open(path)
    plan = streampca.PCA(K, scale="std", components=False).plan(matrix)
    seconds, setting = best_bare_loop(matrix, 1, plan.passes[0].edges, matrix.shape[0])
    return {"seconds": seconds, "passes": 1, "note": setting}


CANDIDATES = {
    "streampca.PCA, the pass": ours,
    "bare loop (read + cast + ssyrk)": bare,
    "streampca.PCA, the whole fit": ours_whole,
}


def main() -> None:
    """Write the matrix once, run everything, print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--samples", type=int, default=3192)
    parser.add_argument("--variants", type=int, default=100_000)
    parser.add_argument("--runs", type=int, default=3)
    recordable(parser, __file__)
    parser.add_argument("--child", nargs=2, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.child:
        child(CANDIDATES[arguments.child[0]], arguments.child[1])
        return
    from streampca.sources.genotypes.simulate import GenotypeRecipe, write_genotypes

    with tempfile.TemporaryDirectory() as folder:
        path = str(Path(folder) / "wide.zarr")
        write_genotypes(path, GenotypeRecipe(arguments.samples, arguments.variants, missing=0.0))
        rows = []
        for name in CANDIDATES:
            row = measure("tests.benchmarks.wide", name, path, arguments.runs)
            rows.append({"name": name, **row})
            print(name, row, file=sys.stderr)
        print(f"{arguments.samples} x {arguments.variants} int8, k = {K}\n{table(rows)}")
        record(arguments.record, rows)


if __name__ == "__main__":
    main()
