"""Kinship and components in one read, beside PLINK: ``python -m tests.benchmarks.relatives``.

One simulated matrix (five populations, 0.5 % missing, with a duplicate and a child of two samples)
is written once as .bed. Every candidate is a whole command in a fresh process, ours and PLINK's in
turns. The tables of relatives must be the same, line by line. What is proven: kinship and
components together take at most RATIO times the CPU time of the components alone, in less than the
memory limit.
"""

from __future__ import annotations

import argparse
import shutil
import statistics
import sys
import tempfile
from pathlib import Path
from typing import Any

import numpy as np

from streampca.sources.genotypes.simulate import GenotypeRecipe
from tests.benchmarks.genotypes import timed
from tests.benchmarks.measure import record, recordable

RATIO = 1.6
VARIANTS_AT_ONCE = 1024
LEAST = "0.0442"  # kinship in the tables: third degree
PEERS = ["plink2"]


class Families(GenotypeRecipe):
    """The recipe, in which the last sample is a duplicate of the first, and the one before it a
    child of the second and the third."""

    def block(self, start: int, stop: int) -> np.ndarray[Any, Any]:
        """(samples, stop - start) int8 genotypes."""
        calls = super().block(start, stop)
        rng = np.random.default_rng([self.seed, 3, start])
        both = np.maximum(calls[1:3], 0)
        calls[-2] = (rng.random(both.shape) < both / 2).sum(axis=0)
        calls[-1] = calls[0]
        return calls


def write_bed(stem: Path, recipe: GenotypeRecipe) -> None:
    """A .bed, .bim and .fam."""
    n, p = recipe.samples, recipe.variants
    code = np.array([3, 2, 0, 1], dtype=np.uint8)  # copies of A1 0, 1, 2, and -1 = missing
    with open(f"{stem}.bed", "wb") as bed:
        bed.write(b"\x6c\x1b\x01")
        for start in range(0, p, VARIANTS_AT_ONCE):
            calls = recipe.block(start, min(start + VARIANTS_AT_ONCE, p))
            two = np.zeros((calls.shape[1], -(-n // 4) * 4), dtype=np.uint8)
            two[:, :n] = code[calls.T]
            four = two.reshape(len(two), -1, 4)
            bed.write((four << np.array([0, 2, 4, 6], np.uint8)).sum(2, dtype=np.uint8).tobytes())
    chromosome = np.arange(p) * 22 // p + 1
    with open(f"{stem}.bim", "w") as bim:
        bim.writelines(f"{chromosome[j]} v{j} 0 {1000 + 500 * j} A G\n" for j in range(p))
    with open(f"{stem}.fam", "w") as fam:
        fam.writelines(f"f{i} s{i} 0 0 0 -9\n" for i in range(n))


def candidates(folder: Path, limit: str, peers: list[str]) -> dict[str, list[str]]:
    """Name -> the command, whose tables begin with its name."""

    def ours(command: str, *words: str) -> list[str]:
        head = [sys.executable, "-m", "streampca", command, str(folder / "x.bed")]
        return [*head, *words, "--memory-limit", limit, "--json"]

    def of(name: str) -> str:
        return str(folder / name)

    table = ["--king-table-filter", LEAST]
    fit = ["-k", "10", "--no-components", "--out"]
    found = {
        "pca": ours("fit", *fit, of("pca")),
        "pca-king": ours("fit", *fit, of("pca-king"), *table),
        "king": ours("relate", *table, "-o", of("king")),
    }
    if "plink2" in peers:
        head = ["plink2", "--bfile", of("x"), "--threads", "2", "--out"]
        king, pca = ["--make-king-table", *table], ["--pca", "10", "meanimpute"]
        found["plink2-pca"] = [*head, of("plink2-pca"), *pca]
        found["plink2-king"] = [*head, of("plink2-king"), *king]
        found["plink2-pca-king"] = [*head, of("plink2-pca-king"), *pca, *king]
    return found


def run_all(
    commands: dict[str, list[str]], folder: Path, runs: int, timeout: float
) -> dict[str, dict[str, Any]]:
    """The run of each command with the median CPU time, in turns."""
    rows: dict[str, list[dict[str, Any]]] = {name: [] for name in commands}
    for _ in range(runs):
        for name, command in commands.items():
            for old in folder.glob(f"{name}.*"):
                old.unlink()
            rows[name].append(timed(command, timeout))
            print(f"{name:<18}{line_of(rows[name][-1])}", flush=True)
    return {name: median(some) for name, some in rows.items()}


def median(rows: list[dict[str, Any]]) -> dict[str, Any]:
    """The row of the median CPU time; a failure, where one failed."""
    if failed := [row for row in rows if "error" in row]:
        return failed[0]
    middle = statistics.median_low([row["cpu_seconds"] for row in rows])
    return next(row for row in rows if row["cpu_seconds"] == middle)


def line_of(row: dict[str, Any]) -> str:
    """CPU and wall seconds, and MB."""
    if "error" in row:
        return f"not run: {row['error']}"
    return f"{row['cpu_seconds']:>9.1f}{row['seconds']:>9.1f}{row['peak_mb']:>9.0f}"


def same_tables(folder: Path, names: list[str]) -> bool:
    """Whether all tables of kinship are the same, and the planted relatives are in them."""
    texts = {(folder / f"{name}.kin0").read_text() for name in names}
    return len(texts) == 1 and len(texts.pop().splitlines()) >= 4


def main() -> None:
    """Write the matrix once, run everything, print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--samples", type=int, default=3192)
    parser.add_argument("--variants", type=int, default=500_568)
    parser.add_argument("--runs", type=int, default=1, help="rounds; the median CPU time counts")
    parser.add_argument("--memory-limit", default="1GiB", help="for ours")
    parser.add_argument("--folder", help="keep the data here, and use them again")
    parser.add_argument("--peers", nargs="*", default=PEERS, choices=PEERS)
    parser.add_argument("--timeout", type=float, default=1800, help="seconds for each command")
    recordable(parser, __file__)
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(arguments.folder or temporary)
        folder.mkdir(parents=True, exist_ok=True)
        if not (folder / "x.fam").exists():
            write_bed(folder / "x", Families(arguments.samples, arguments.variants))
        peers = arguments.peers if shutil.which("plink2") else []
        print(f"{'':<18}{'CPU s':>9}{'wall s':>9}{'MB':>9}")
        commands = candidates(folder, arguments.memory_limit, peers)
        rows = run_all(commands, folder, arguments.runs, arguments.timeout)
        done = all("error" not in row for row in rows.values())
        if done:
            ratio = rows["pca-king"]["cpu_seconds"] / rows["pca"]["cpu_seconds"]
            same = same_tables(folder, [name for name in rows if "king" in name])
            print(f"kinship and components over components: {ratio:.2f}, at most {RATIO}")
            print(f"the tables of relatives are {'the same' if same else 'NOT the same'}")
            rows["claim"] = {"ratio": ratio, "same_tables": same}
        kept = [{"name": name, **row} for name, row in rows.items()]
        record(arguments.record, kept, "plink2")


if __name__ == "__main__":
    main()
