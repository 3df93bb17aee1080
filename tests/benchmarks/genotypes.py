"""Genotype PCA beside its peers, in one run: ``python -m tests.benchmarks.genotypes``.

Proves the table of genotypes. One simulated matrix (five populations, 0.5 % missing) is
written once as .bed and as Zarr; every candidate is a whole command in a fresh process. The
reference is a float64 Gram matrix. The limit is decoding + standardising, then ssyrk, each
measured alone on both cores, added, plus eigh.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import shutil
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import scipy.linalg

from streampca.sources.genotypes.allele_counts import MISSING_CALL
from streampca.sources.genotypes.simulate import GenotypeRecipe
from tests.benchmarks.measure import plink2_blas, record, recordable

K = 10
VARIANTS_AT_ONCE = 1024
PEERS = ["meanimpute", "approx", "sgkit"]


# -- data ---------------------------------------------------------------------------


def write(folder: Path, recipe: GenotypeRecipe) -> None:
    """``x.bed``, ``x.bim``, ``x.fam`` and ``x.zarr`` (samples x variants) with the same calls."""
    import zarr
    import zarr.codecs

    n, p = recipe.samples, recipe.variants
    array = zarr.create_array(
        str(folder / "x.zarr"),
        shape=(n, p),
        chunks=(n, VARIANTS_AT_ONCE),
        dtype="int8",
        compressors=[
            zarr.codecs.BloscCodec(cname="zstd", clevel=3, shuffle="bitshuffle"),
            zarr.codecs.Crc32cCodec(),
        ],
    )
    code = np.array([3, 2, 0, 1], dtype=np.uint8)  # copies of A1 0, 1, 2, and -1 = missing
    with open(folder / "x.bed", "wb") as bed:
        bed.write(b"\x6c\x1b\x01")
        for start in range(0, p, VARIANTS_AT_ONCE):
            calls = recipe.block(start, min(start + VARIANTS_AT_ONCE, p))
            array[:, start : start + calls.shape[1]] = calls
            two = np.zeros((calls.shape[1], -(-n // 4) * 4), dtype=np.uint8)
            two[:, :n] = code[calls.T]
            four = two.reshape(len(two), -1, 4)
            bed.write((four << np.array([0, 2, 4, 6], np.uint8)).sum(2, dtype=np.uint8).tobytes())
    chromosome = np.arange(p) * 22 // p + 1
    with open(folder / "x.bim", "w") as bim:
        bim.writelines(f"{chromosome[j]} v{j} 0 {1000 + 500 * j} A G\n" for j in range(p))
    with open(folder / "x.fam", "w") as fam:
        fam.writelines(f"f{i} s{i} 0 0 0 -9\n" for i in range(n))


def standardized(calls: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """(samples, m) float64 of (samples, m) calls by the textbook, missing 0."""
    x = calls.astype(np.float64)
    hole = calls == MISSING_CALL
    x[hole] = 0
    count = len(x) - hole.sum(axis=0)
    f = x.sum(axis=0) / np.maximum(count, 1) / 2
    used = (f > 0) & (f < 1)
    z = (x - 2 * f) / np.sqrt(np.where(used, 2 * f * (1 - f), 1.0))
    z[hole] = 0
    return z[:, used]


def reference(folder: Path, recipe: GenotypeRecipe) -> dict[str, Any]:
    """Eigenvalues of ZZ'/M and leading vectors from a float64 Gram matrix."""
    import zarr

    array = zarr.open_array(str(folder / "x.zarr"), mode="r")
    gram, used = np.zeros((recipe.samples, recipe.samples)), 0
    for start in range(0, recipe.variants, VARIANTS_AT_ONCE):
        z = standardized(array[:, start : start + VARIANTS_AT_ONCE])
        gram += z @ z.T
        used += z.shape[1]
    np.save(folder / "gram.npy", gram / used)
    values, vectors = scipy.linalg.eigh(
        gram / used, subset_by_index=(recipe.samples - K, recipe.samples - 1)
    )
    return {"values": values[::-1], "vectors": vectors[:, ::-1]}


# -- candidates ---------------------------------------------------------------------


def ours(folder: Path, source: str, limit: str | None) -> list[str]:
    """A whole ``streampca fit`` without the pass for the loadings, as PLINK makes none either."""
    command = [sys.executable, "-m", "streampca", "fit", str(folder / source)]
    command += ["--scale", "hwe", "-k", str(K), "--no-components", "--missing-value", "-1"]
    command += ["--out", str(folder / f"ours-{source.partition('.')[2]}"), "--json"]
    return command + ([] if limit is None else ["--memory-limit", limit])


def plink(folder: Path, *words: str) -> list[str]:
    """``plink2 --pca``."""
    out = str(folder / ("plink-" + "-".join(words)))
    return [
        "plink2",
        "--bfile",
        str(folder / "x"),
        "--pca",
        str(K),
        *words,
        "--threads",
        "2",
        "--out",
        out,
    ]


def read_plink_tables(prefix: Path) -> dict[str, Any]:
    """Eigenvalues and unit vectors from .eigenval and .eigenvec, PLINK's or ours."""
    values = np.loadtxt(f"{prefix}.eigenval")
    text = Path(f"{prefix}.eigenvec").read_text().splitlines()
    head, *lines = [x.split() for x in text if not x.startswith("##")]
    rows = [x[head.index("PC1") :] for x in lines]
    vectors = np.array(rows, dtype=float)
    return {"values": values, "vectors": vectors / np.linalg.norm(vectors, axis=0)}


def sgkit(folder: Path, python: str) -> list[str]:
    """``sgkit.pca`` by the given interpreter, which need not have streampca."""
    script = Path(__file__).with_name("sgkit_pca.py")
    return [python, str(script), str(folder / "x"), str(folder / "sgkit"), str(K)]


# -- measuring ----------------------------------------------------------------------


def timed(command: list[str], limit: float) -> dict[str, Any]:
    """Wall and CPU seconds and peak memory of a whole command, killed after ``limit`` seconds.

    Also the passes, where it reports itself as our ``--json`` does.
    """
    begun = time.perf_counter()
    with tempfile.TemporaryFile("w+") as said, tempfile.TemporaryFile("w+") as printed:
        child = subprocess.Popen(command, stdout=printed, stderr=said, text=True)
        watch = threading.Timer(limit, child.kill)
        watch.start()
        _, status, usage = os.wait4(child.pid, 0)
        late = not watch.is_alive()
        watch.cancel()
        row: dict[str, Any] = {"seconds": time.perf_counter() - begun}
        row["cpu_seconds"] = usage.ru_utime + usage.ru_stime
        row["peak_mb"] = usage.ru_maxrss * 1024 / 1e6
        if late:
            row["error"] = f"still running after {limit:g} s ({row['peak_mb']:.0f} MB); killed"
        elif status:
            said.seek(0)
            row["error"] = (said.read().strip().splitlines() or ["no output"])[-1][:150]
        printed.seek(0)
        if (text := printed.read()).startswith("{"):
            row["passes"] = json.loads(text).get("measured", {"passes": 1})["passes"]
    return row


def both_cores(work: Callable[[int], None]) -> float:
    """Seconds that two threads take for the two halves of some work."""
    from concurrent.futures import ThreadPoolExecutor

    begun = time.perf_counter()
    with ThreadPoolExecutor(2) as pool:
        list(pool.map(work, range(2)))
    return time.perf_counter() - begun


def limit(folder: Path, source: str) -> dict[str, float]:
    """Decode; decode + standardise; ssyrk; eigh: each alone, on both cores."""
    import threadpoolctl

    import streampca
    from streampca.kernels import rank_k_update
    from streampca.matrix import Standardize

    matrix = streampca.open(str(folder / source), missing_value=MISSING_CALL)
    n, p = matrix.shape
    edges = np.append(np.arange(0, p, VARIANTS_AT_ONCE), p)
    laid = matrix.streamed(1, edges)
    hwe = Standardize(scale="hwe")
    buffers = [np.empty(laid.block_nbytes, np.uint8) for _ in range(2)]
    scratch: list[dict[Any, Any]] = [{}, {}]

    def blocks(half: int) -> range:
        return range(half, laid.n_blocks, 2)

    def decode(half: int) -> None:
        for i in blocks(half):
            laid.read_block(i, buffers[half] if laid.into_buffer else None)

    def standardize(half: int) -> None:
        for i in blocks(half):
            block = laid.read_block(i, buffers[half] if laid.into_buffer else None)
            block.scratch = scratch[half]
            scaling = hwe.resolve(block.stats, block.eps)
            for _ in block.tiles(np.dtype(np.float32), scaling.center, scaling.scale):
                pass

    first = laid.read_block(0)
    scaling = hwe.resolve(first.stats, first.eps)
    tiles = [
        t.values.copy("K") for t in first.tiles(np.dtype(np.float32), scaling.center, scaling.scale)
    ]
    grams = [np.zeros((n, n), np.float32) for _ in range(2)]

    def multiply(half: int) -> None:
        for _ in blocks(half):
            for z in tiles:
                rank_k_update(grams[half], z, rows=False)

    with threadpoolctl.threadpool_limits(1):
        decode(0), standardize(0)  # compiled and cached
        found = {
            "decode": both_cores(decode),
            "decode + standardise": both_cores(standardize),
            "ssyrk": both_cores(multiply),
        }
    gram = np.load(folder / "gram.npy")
    begun = time.perf_counter()
    scipy.linalg.eigh(gram, subset_by_index=(n - K, n - 1), overwrite_a=True)
    found["eigh"] = time.perf_counter() - begun
    found["limit"] = sum(found[x] for x in ("decode + standardise", "ssyrk", "eigh"))
    return found


def accuracy(answer: dict[str, Any], true: dict[str, Any], gram: Any) -> dict[str, float]:
    """1 - MEV, smallest |cos| of a component, largest relative eigenvalue error and residual."""
    v, u = answer["vectors"], true["vectors"]
    cosines = np.abs(np.sum(v * u, axis=0))
    angles = np.linalg.svd(u.T @ v, compute_uv=False)
    residual = np.linalg.norm(gram @ v - v * answer["values"], axis=0) / true["values"]
    return {
        "1-MEV": 1 - float(np.mean(np.linalg.norm(u.T @ v, axis=0))),
        "principal cos": float(angles.min()),
        "1-min|cos|": 1 - float(cosines.min()),
        "eigenvalue": float(np.abs(answer["values"] / true["values"] - 1).max()),
        "residual": float(residual.max()),
    }


def report(name: str, row: dict[str, Any], first: float | None) -> str:
    """One line of the table."""
    if "error" in row:
        return f"{name:<38} not run: {row['error']}"
    ratio = "" if first is None else f"{row['seconds'] / first:>7.2f}"
    line = f"{name:<38}{row['seconds']:>8.1f}{ratio:>7}{row['peak_mb']:>9.0f}"
    line += f"{row.get('passes', '?')!s:>7}"
    if "1-MEV" in row:
        line += f"{row['1-MEV']:>11.1e}{row['principal cos']:>10.6f}{row['1-min|cos|']:>11.1e}"
        line += f"{row['eigenvalue']:>11.1e}{row['residual']:>10.1e}"
    return line


def main() -> None:
    """Write the matrix once, run everything, print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--samples", type=int, default=3192)
    parser.add_argument("--variants", type=int, default=500_568)
    parser.add_argument("--runs", type=int, default=1, help="whole rounds of ours")
    parser.add_argument("--memory-limit", help="for ours")
    parser.add_argument("--folder", help="keep the data here, and use them again")
    parser.add_argument("--no-peers", action="store_true")
    parser.add_argument("--peers", nargs="*", default=PEERS, choices=PEERS)
    parser.add_argument("--timeout", type=float, default=1800, help="seconds for each command")
    parser.add_argument("--sgkit-python", default=sys.executable, help="interpreter with sgkit")
    recordable(parser, __file__)
    arguments = parser.parse_args()
    recipe = GenotypeRecipe(arguments.samples, arguments.variants)
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(arguments.folder or temporary)
        folder.mkdir(parents=True, exist_ok=True)
        if not (folder / "x.fam").exists():
            write(folder, recipe)
        true = kept_reference(folder, recipe)
        gram = np.load(folder / "gram.npy", mmap_mode="r")
        rows: dict[str, dict[str, Any]] = {}
        for turn in range(arguments.runs):
            for source in ("x.zarr", "x.bed"):
                name = f"streampca from {source[1:]}" + (f", run {turn + 1}" if turn else "")
                target = folder / f"ours-{source.partition('.')[2]}"
                for old in folder.glob(target.name + "*"):
                    shutil.rmtree(old) if old.is_dir() else old.unlink()
                rows[name] = timed(ours(folder, source, arguments.memory_limit), arguments.timeout)
                if "error" not in rows[name]:
                    rows[name] |= accuracy(read_plink_tables(target), true, gram)
                print(report(name, rows[name], None), file=sys.stderr)
        if not arguments.no_peers:
            peers(
                folder, arguments.peers, arguments.timeout, arguments.sgkit_python, rows, true, gram
            )
        limits = {source: limit(folder, source) for source in ("x.zarr", "x.bed")}
    print(f"\n{arguments.samples} x {arguments.variants}, top {K}, whole commands, 2 cores")
    print(
        f"{'':<38}{'seconds':>8}{'ratio':>7}{'peak MB':>9}{'passes':>7}{'1-MEV':>11}"
        f"{'princ.cos':>10}{'1-min|cos|':>11}{'eigenvalue':>11}{'residual':>10}"
    )
    ours_first = rows["streampca from .zarr"]
    first = None if "error" in ours_first else ours_first["seconds"]
    for name, row in rows.items():
        print(report(name, row, first))
    for source, found in limits.items():
        print(f"limit from {source}: " + ", ".join(f"{k} {v:.1f}" for k, v in found.items()))
    least = [{"name": f"limit from {s}", "seconds": x["limit"]} for s, x in limits.items()]
    whole = [{"name": name, **row} for name, row in rows.items()]
    record(arguments.record, [*whole, *least], "plink2", "sgkit")


def kept_reference(folder: Path, recipe: GenotypeRecipe) -> dict[str, Any]:
    """The reference, computed once for a folder that is kept."""
    path = folder / "reference.npz"
    if not path.exists():
        np.savez(path, **reference(folder, recipe))
    return dict(np.load(path))


def peers(
    folder: Path,
    names: list[str],
    limit: float,
    python: str,
    rows: dict[str, Any],
    true: Any,
    gram: Any,
) -> None:
    """Run those that are installed, each for at most ``limit`` seconds."""
    chosen = {
        f"plink2 --pca {K} {word}": (plink(folder, word), folder / f"plink-{word}")
        for word in ("meanimpute", "approx")
        if word in names
    }
    if "sgkit" in names:
        chosen["sgkit.pca"] = (sgkit(folder, python), folder / "sgkit")
    for name, (command, prefix) in chosen.items():
        rows[name] = absent(name, command[0])
        if not rows[name]:
            rows[name] = timed(command, limit)
        if "error" not in rows[name]:
            rows[name] |= accuracy(read_plink_tables(prefix), true, gram)
        print(report(name, rows[name], None), file=sys.stderr)


def absent(name: str, program: str) -> dict[str, Any]:
    """Why a peer cannot be run, as a row; its version is printed where it can."""
    if name == "sgkit.pca":
        ask = [program, "-c", "import sgkit; print('sgkit', sgkit.__version__)"]
        advice = "pip install sgkit into an environment of its own; --sgkit-python .../bin/python"
    else:
        ask, advice = [program, "--version"], "apt-get install plink2"
    try:
        done = subprocess.run(ask, capture_output=True, text=True, check=True, timeout=120)
    except FileNotFoundError:
        return {"error": f"{program} is not there ({advice})"}
    except subprocess.TimeoutExpired:
        return {"error": f"{' '.join(ask)} gave no answer in 120 s"}
    except subprocess.CalledProcessError as error:
        last = (error.stderr.strip().splitlines() or ["no output"])[-1]
        return {"error": f"{last[:80]} ({advice})"}
    print(done.stdout.strip().splitlines()[-1])
    if program == "plink2" and "reference" in plink2_blas():
        return {
            "error": "plink2 loads the reference BLAS, which takes five times as long "
            "(apt-get install libopenblas0-pthread)"
        }
    return {}


if __name__ == "__main__":
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    main()
