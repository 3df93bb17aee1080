"""Both sides large: ``python -m tests.benchmarks.square``, 20,000 x 60,000 genotypes, k = 10.

Proves the table of matrices with both sides large. One simulated matrix (five populations: four
separated components and a flat tail) is written once as .bed and as Zarr; every candidate is a
whole command in a fresh process. Every answer is then judged by one independent float64 pass:
the residual ||ZZ'u - value u|| of each vector, and with the gap to the flat tail its angle.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
from pathlib import Path
from typing import Any

import numpy as np

from streampca.sources.genotypes.simulate import GenotypeRecipe
from tests.benchmarks.genotypes import (
    VARIANTS_AT_ONCE,
    absent,
    plink,
    read_plink_tables,
    standardized,
    timed,
    write,
)
from tests.benchmarks.measure import record, recordable

K = 10
SEPARATED = 4  # five populations


def ours(folder: Path, source: str, limit: str) -> list[str]:
    """A whole ``streampca fit`` with the iterative solver."""
    return [
        sys.executable,
        "-m",
        "streampca",
        "fit",
        str(folder / source),
        "--scale",
        "hwe",
        "-k",
        str(K),
        "--solver",
        "randomized",
        "--tol",
        "1e-4",
        "--missing-value",
        "-1",
        "--memory-limit",
        limit,
        "--out",
        str(folder / f"ours-{source[2:]}"),
        "--json",
        "-o",
        str(folder / f"model-{source[2:]}"),
        "--overwrite",
    ]


def judged(folder: Path, answers: dict[str, Any], recipe: GenotypeRecipe) -> dict[str, Any]:
    """(k,) residual / value, and angle bound of the separated ones, by one float64 pass."""
    import zarr

    array = zarr.open_array(str(folder / "x.zarr"), mode="r")
    products = {name: np.zeros_like(one["vectors"]) for name, one in answers.items()}
    used = 0
    for start in range(0, recipe.variants, VARIANTS_AT_ONCE):
        z = standardized(array[:, start : start + VARIANTS_AT_ONCE])
        used += z.shape[1]
        for name, one in answers.items():
            products[name] += z @ (z.T @ one["vectors"])
    found = {}
    for name, one in answers.items():
        u, image = one["vectors"], products[name] / used
        values = np.sum(u * image, axis=0)
        residual = np.linalg.norm(image - u * values, axis=0)
        tail = values[SEPARATED:].max()
        apart = np.append(-np.diff(values[:SEPARATED]), values[SEPARATED - 1] - tail)
        gap = np.minimum(apart, np.append(np.inf, apart[:-1]))
        found[name] = {
            "residual": residual / values,
            "angle": residual[:SEPARATED] / gap,
            "value": np.abs(one["values"] / values - 1),
        }
    return found


def certified(folder: Path, source: str) -> np.ndarray[Any, Any]:
    """What our own certificate says of the angles."""
    import streampca

    certificate = streampca.load(folder / f"model-{source[2:]}").certificate_
    assert certificate is not None
    return np.asarray(certificate.angle_bound)


def main() -> None:
    """Write the matrix once, run everything, print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--samples", type=int, default=20_000)
    parser.add_argument("--variants", type=int, default=60_000)
    parser.add_argument("--runs", type=int, default=1, help="whole rounds of ours")
    parser.add_argument("--memory-limit", default="500MiB", help="for ours")
    parser.add_argument("--folder", help="keep the data here, and use them again")
    parser.add_argument("--timeout", type=float, default=1800, help="seconds for each command")
    parser.add_argument("--no-peers", action="store_true")
    recordable(parser, __file__)
    arguments = parser.parse_args()
    recipe = GenotypeRecipe(arguments.samples, arguments.variants, seed=3)
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(arguments.folder or temporary)
        folder.mkdir(parents=True, exist_ok=True)
        if not (folder / "x.fam").exists():
            write(folder, recipe)
        rows: dict[str, dict[str, Any]] = {}
        prefixes = {}
        for turn in range(arguments.runs):
            for source in ("x.zarr", "x.bed"):
                name = f"streampca from {source[1:]}" + (f", run {turn + 1}" if turn else "")
                rows[name] = timed(ours(folder, source, arguments.memory_limit), arguments.timeout)
                prefixes[name] = folder / f"ours-{source[2:]}"
                print(name, json.dumps(rows[name]), file=sys.stderr)
        if not arguments.no_peers:
            name = f"plink2 --pca {K} approx"
            rows[name] = absent(name, "plink2") or timed(plink(folder, "approx"), arguments.timeout)
            prefixes[name] = folder / "plink-approx"
            print(name, json.dumps(rows[name]), file=sys.stderr)
        answers = {
            name: read_plink_tables(prefixes[name])
            for name, row in rows.items()
            if "error" not in row
        }
        quality = judged(folder, answers, recipe)
    print(f"\n{arguments.samples} x {arguments.variants}, top {K}, whole commands, 2 cores")
    print(f"{'':<34}{'seconds':>8}{'peak MB':>9}{'passes':>7}{'angle 1-4':>11}{'values':>9}")
    for name, row in rows.items():
        if "error" in row:
            print(f"{name:<34} not run: {row['error']}")
            continue
        one = quality[name]
        print(
            f"{name:<34}{row['seconds']:>8.1f}{row['peak_mb']:>9.0f}{row.get('passes', '?')!s:>7}"
            f"{one['angle'].max():>11.1e}{one['value'].max():>9.0e}  residuals "
            + " ".join(f"{x:.0e}" for x in one["residual"])
        )
        row |= {key: float(one[key].max()) for key in ("angle", "value")}
    record(arguments.record, [{"name": name, **row} for name, row in rows.items()], "plink2")


if __name__ == "__main__":
    main()
