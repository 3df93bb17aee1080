"""What about two hundred fits give, to the bit: ``python -m tests.golden`` writes it down.

Reorganising code must change none of it. ``golden.json`` holds, for each fit, digests of its plan
and of its results, what it read, and its first variances. ``test_golden.py`` compares: plans and
reads everywhere, results to the bit where processor and libraries are those of the table, and
closely elsewhere. OpenBLAS runs its Haswell kernel in both.
"""

from __future__ import annotations

import hashlib
import json
import os
import platform
import re
import subprocess
import sys
import tempfile
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from itertools import product
from pathlib import Path
from typing import Any

import dask.array
import numpy as np
import scipy
import scipy.sparse
import zarr

import streampca as sp
from streampca.passes.memory import BROUGHT

TABLE = Path(__file__).with_name("golden.json")
KERNEL = "Haswell"

Record = dict[str, Any]


def environment() -> dict[str, str]:
    """What the bits of a result may depend on beside its data and its plan."""
    import numba

    flags = ""
    if (info := Path("/proc/cpuinfo")).exists():
        found = re.search(r"^flags\s*:(.*)$", info.read_text(), re.M)
        flags = "avx512" if found and " avx512f " in found.group(1) + " " else "avx2"
    return {
        "kernel": os.environ.get("OPENBLAS_CORETYPE", ""),
        "machine": f"{platform.machine()} {flags}".strip(),
        "python": platform.python_version().rpartition(".")[0],
        "numpy": np.__version__,
        "scipy": scipy.__version__,
        "numba": numba.__version__,
    }


# -- data ---------------------------------------------------------------------------


def numbers(n: int, p: int, dtype: str = "f8", seed: int = 0) -> np.ndarray[Any, Any]:
    """(n, p) with a decaying spectrum and an offset."""
    rng = np.random.default_rng(seed)
    scores = rng.standard_normal((n, 12)) * 0.7 ** np.arange(12)
    made = np.einsum("ij,jk->ik", scores, rng.standard_normal((12, p)))  # not by BLAS
    x = 5 * made + rng.standard_normal((n, p)) + 3
    return np.rint(x).astype(dtype) if dtype.startswith("i") else x.astype(dtype)


def holed(x: np.ndarray[Any, Any], share: float = 0.1) -> np.ndarray[Any, Any]:
    """With that share of its cells missing, none of its lines empty."""
    gaps = np.random.default_rng(1).random(x.shape) < share
    gaps[np.arange(len(x)), np.arange(len(x)) % x.shape[1]] = False
    gaps[np.arange(x.shape[1]) % len(x), np.arange(x.shape[1])] = False
    return np.where(gaps, np.nan, x)


def calls(n: int, p: int) -> np.ndarray[Any, Any]:
    """(n, p) int8 genotypes of three populations, 2 % missing, neighbours in disequilibrium."""
    rng = np.random.default_rng(2)
    common = rng.uniform(0.1, 0.9, p)
    near = np.clip(common + 0.15 * rng.standard_normal((3, p)), 0.02, 0.98)
    g = rng.binomial(2, near[np.arange(n) % 3]).astype(np.int8)
    g[:, 1::4] = np.where(rng.random((n, len(range(1, p, 4)))) < 0.8, g[:, 0:-1:4], g[:, 1::4])
    g[rng.random((n, p)) < 0.02] = -1
    return g


def sparse(n: int, p: int, kind: str = "csr") -> Any:
    """(n, p) with a tenth of its cells stored."""
    return scipy.sparse.random(n, p, 0.1, kind, random_state=np.random.default_rng(3))


def stored(folder: Path, x: np.ndarray[Any, Any], chunks: tuple[int, int]) -> str:
    """The path of a Zarr array."""
    path = str(folder / "x.zarr")
    zarr.create_array(path, data=x, chunks=chunks)
    return path


# -- cases --------------------------------------------------------------------------


@dataclass(frozen=True)
class Case:
    """One fit: of ``model()`` to ``data(folder)``, in an empty folder."""

    model: Callable[[], Any]
    data: Callable[[Path], Any]


Cases = Iterator[tuple[str, Case]]
SOLVERS = ("auto", "scatter", "tsqr", "gram", "randomized")


def in_memory(x: Any) -> Callable[[Path], Any]:
    """Data that need no folder."""
    return lambda _: x


def pca_cases() -> Cases:
    """PCA by every solver, dtype, shape and option that goes together."""
    shapes = {"tall": (600, 40), "wide": (40, 700), "square": (230, 210)}
    for solver, shape, dtype in product(SOLVERS, shapes, ("f4", "f8", "i1")):
        x = numbers(*shapes[shape], dtype)
        model = partial(sp.PCA, 4, svd_solver=solver)
        yield f"pca {solver} {shape} {dtype}", Case(model, in_memory(x))
    options: dict[str, dict[str, Any]] = {
        "scaled": {"scale": "std"},
        "not centred": {"center": False},
        "share": {"n_components": 0.8},
        "gap": {"n_components": "gap"},
        "all": {"n_components": None},
        "none": {"n_components": 0},
        "whitened": {"whiten": True},
        "without components": {"components": False},
        "ddof 0": {"ddof": 0},
        "weighted": {"weights": np.linspace(0.5, 2, 40)},
        "design": {"remove": np.arange(300) % 3},
        "tolerance": {"tol": 1e-3, "max_passes": 3},
        "limit": {"memory_limit": "400MiB"},
        "imputed": {"missing": "impute"},
    }
    x = numbers(300, 40)
    for name, solver in product(options, SOLVERS):
        model = partial(sp.PCA, **{"n_components": 3, "svd_solver": solver} | options[name])
        data = holed(x) if name == "imputed" else x
        yield f"pca {solver} {name}", Case(model, in_memory(data))
    for solver, dtype in product(("scatter", "gram", "randomized"), ("f4", "f8")):
        model = partial(sp.PCA, 3, svd_solver=solver, missing="mean")
        yield f"pca {solver} holes {dtype}", Case(model, in_memory(holed(x).astype(dtype)))


def source_cases() -> Cases:
    """Numbers from other sources than arrays in memory."""
    x = numbers(500, 60, "f4")
    for solver, chunks in product(SOLVERS, ((100, 60), (500, 10), (120, 25))):
        model = partial(sp.PCA, 3, svd_solver=solver)
        yield f"zarr {chunks} {solver}", Case(model, partial(stored, x=x, chunks=chunks))
    lazy = dask.array.from_array(numbers(500, 60), chunks=(90, 60))
    lazy = (lazy - lazy.mean(0)) / lazy.std(0)
    yield "dask standardised", Case(partial(sp.PCA, 3), in_memory(lazy))
    for kind, solver in product(("csr", "csc"), ("auto", "scatter", "gram", "randomized")):
        model = partial(sp.PCA, 3, svd_solver=solver)
        yield f"sparse {kind} {solver}", Case(model, in_memory(sparse(400, 90, kind)))
    yield "sparse truncated svd", Case(partial(sp.TruncatedSVD, 3), in_memory(sparse(400, 90)))


def other_cases() -> Cases:
    """The relatives of PCA."""
    kinds: list[tuple[str, Callable[..., Any], dict[str, Any]]] = [
        ("ppca", sp.PPCA, {}),
        ("ppca of holes", sp.PPCA, {"missing": "em"}),
        ("factor analysis", sp.FactorAnalysis, {}),
        ("truncated svd", sp.TruncatedSVD, {}),
        ("truncated svd, randomized", sp.TruncatedSVD, {"algorithm": "randomized"}),
        ("incremental", sp.IncrementalPCA, {}),
        ("incremental by tsqr", sp.IncrementalPCA, {"solver": "tsqr"}),
        ("incremental, truncated", sp.IncrementalPCA, {"state": "truncated"}),
    ]
    for (name, kind, options), dtype, shape in product(kinds, ("f4", "f8"), ((300, 40), (40, 300))):
        x = holed(numbers(*shape)) if "holes" in name else numbers(*shape)
        model = partial(kind, 3, **options)
        yield f"{name} {shape} {dtype}", Case(model, in_memory(x.astype(dtype)))
    for method in ("varimax", "promax"):
        model = partial(sp.RotatedPCA, sp.PCA(3), method)
        yield f"rotated {method}", Case(model, in_memory(numbers(300, 40)))


def completion_cases() -> Cases:
    """Completions."""
    x = holed(numbers(120, 50), 0.3)
    options: dict[str, dict[str, Any]] = {
        "plain": {},
        "biases": {"center": "biases"},
        "ridge": {"alpha": 0.5},
        "several ranks": {"rank": [1, 3], "validation": 0.1},
    }
    for name, dtype in product(options, ("f4", "f8")):
        model = partial(sp.HardImpute, **{"rank": 2, "max_passes": 30} | options[name])
        yield f"hard impute {name} {dtype}", Case(model, in_memory(x.astype(dtype)))
    for penalty in (1.0, 20.0, "auto"):
        model = partial(sp.SoftImpute, 3, penalty, max_passes=30)
        yield f"soft impute {penalty}", Case(model, in_memory(x))
    model = partial(sp.HardImpute, 2, max_passes=30)
    yield "hard impute sparse", Case(model, in_memory(sparse(200, 80)))


def genotype_cases() -> Cases:
    """Genotypes."""
    options: dict[str, dict[str, Any]] = {
        "plain": {},
        "standardised": {"scale": "std"},
        "filtered": {"maf": 0.2, "max_missing": 0.05},
        "without components": {"components": False},
        "iterated": {"solver": "randomized"},
    }
    for name, (n, p) in product(options, ((90, 800), (400, 150))):
        data = partial(stored, x=calls(n, p), chunks=(n, 100))
        model = partial(sp.GenotypePCA, **{"n_components": 3} | options[name])
        yield f"genotypes {name} {n} x {p}", Case(model, data)
    g = calls(90, 800)
    pruned = sp.prune_ld(g, window=50, step=5, missing_value=-1)
    yield "genotypes pruned", Case(partial(sp.GenotypePCA, 3), in_memory(g[:, pruned.kept]))


def cases() -> dict[str, Case]:
    """All by name."""
    made: dict[str, Case] = {}
    for group in (pca_cases, source_cases, other_cases, completion_cases, genotype_cases):
        made |= dict(group())
    return made


# -- records ------------------------------------------------------------------------

RESULTS = (
    "explained_variance_",
    "singular_values_",
    "components_",
    "mean_",
    "scores_",
    "noise_variance_",
    "loadings_",
    "n_components_",
)


def portable(plan: Any) -> str:
    """The plan as JSON, without libraries that count only where they are installed."""
    whole = plan.to_dict()
    for one, told in ((plan, whole), (plan.then, whole.get("then"))):
        if told is not None:
            for name in set(BROUGHT.values()):
                told["memory"]["process"].pop(name, None)
            told["peak_bytes"] = one.portable_nbytes
    return json.dumps(whole, sort_keys=True, indent=1)


def record(case: Case) -> Record:
    """What a fit gives, or the error that it ends in."""
    with tempfile.TemporaryDirectory() as name, warnings.catch_warnings():
        warnings.simplefilter("ignore")
        folder = Path(name)
        try:
            model = case.model()
            model.fit(case.data(folder))
        except sp.StreamPCAError as error:
            text = str(error).replace(name, "FOLDER")
            return {"error": f"{type(error).__name__}: {text[:60]}"}
        digest = hashlib.sha256()
        for result in RESULTS:
            if (value := _found(model, result)) is not None:
                value = getattr(value, "values", value)
                digest.update(result.encode() + np.ascontiguousarray(value).tobytes())
        made: Record = {"bits": digest.hexdigest()[:16]}
        if (cost := getattr(model, "cost_", None)) is not None:
            made["passes"] = [one.name for one in cost]
            made["reads"] = [sum(one.reads for one in cost), sum(one.nbytes for one in cost)]
        if (plan := getattr(model, "plan_", None)) is not None:
            text = re.sub(r'"source": "[^"]*"', "", portable(plan)).replace(name, "FOLDER")
            made["plan"] = hashlib.sha256(text.encode()).hexdigest()[:16]
        values = getattr(model, "explained_variance_", getattr(model, "singular_values_", ()))
        values = np.asarray(getattr(values, "values", values), dtype=float).ravel()[:4]
        made["values"] = [float(f"{v:.9g}") for v in values]
        return made


def _found(model: Any, name: str) -> Any:
    """A result, or None where this fit has none of that name."""
    try:
        return getattr(model, name, None)
    except sp.StreamPCAError:
        return None


def table() -> dict[str, Any]:
    """The table of this machine, made in a process of the kernel that it is for."""
    again = {**os.environ, "OPENBLAS_CORETYPE": KERNEL}
    command = [sys.executable, "-W", "ignore", "-m", "tests.golden", "--print"]
    done = subprocess.run(command, env=again, capture_output=True, text=True, check=True)
    found: dict[str, Any] = json.loads(done.stdout)
    return found


def main() -> None:
    """Write the table, or print what it would be (``--print``)."""
    if "--print" in sys.argv:
        fits = {name: record(case) for name, case in cases().items()}
        print(json.dumps({"environment": environment(), "fits": fits}))
        return
    made = table()
    lines = [f"  {json.dumps(name)}: {json.dumps(fit)}" for name, fit in made["fits"].items()]
    head = json.dumps(made["environment"])
    TABLE.write_text(f'{{"environment": {head},\n"fits": {{\n' + ",\n".join(lines) + "\n}}\n")
    print(f"{len(lines)} fits, {sum('error' in one for one in made['fits'].values())} refused")


if __name__ == "__main__":
    main()
