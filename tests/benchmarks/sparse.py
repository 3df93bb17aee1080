"""Sparse counts beside scikit-learn in core, in one run: ``python -m tests.benchmarks.sparse``.

Proves the table of sparse matrices. Simulated counts of 100,000 cells x 20,000 genes
(programmes of genes, uneven depth; about 5 % are not zero) lie on disk as AnnData
writes them, CSR in Zarr; every tool finds 30 components in a fresh process. scikit-learn is given
the matrix in memory, and the time of loading it is not counted. The reference is ARPACK to 1e-10
in float64. Errors are those of the worst component: of its variance, and, where its variance is
apart from the next by 1 %, of its direction.

With ``--projection``: ``RandomProjection`` of 1,000,000 x 100,000 with 30 entries a row, from disk
to disk, beside scikit-learn's in memory: time, memory, chunk reads of those stored, and the error
of the first rows.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
import time
import warnings
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import scipy.sparse
import zarr
import zarr.codecs

from tests.benchmarks.measure import child, measure, peak_mb, record, recordable

K = 30
APART = 0.01
PROGRAMMES = 40  # of genes; each is weaker than the one before
ROWS = 1000  # that are drawn at once
CHUNK = 1 << 20  # entries of a stored chunk
STORE = "counts.zarr"
WORDS = 30  # entries of a row of the matrix that is projected
PROJECTED = 100  # components of a random projection
# AnnData's for Zarr v2, which decodes three times as fast as zstd
COMPRESSION = (zarr.codecs.BloscCodec(cname="lz4", clevel=5, shuffle="shuffle"),)


# -- data ---------------------------------------------------------------------------


def counts(n: int, p: int, seed: int = 0) -> Iterator[Any]:
    """Blocks of counts of genes."""
    rng = np.random.default_rng(seed)
    programmes = rng.standard_normal((PROGRAMMES, p), dtype="f4")
    strength = 0.8 * 0.93 ** np.arange(PROGRAMMES, dtype="f4")
    rates = rng.gamma(0.3, 1.0, p).astype("f4")  # most genes are rare
    for start in range(0, n, ROWS):
        rows = min(ROWS, n - start)
        cells = rng.standard_normal((rows, PROGRAMMES), dtype="f4") * strength
        expected = rates * np.exp(cells @ programmes)
        depth = 0.13 * p * rng.lognormal(0.0, 0.3, (rows, 1)).astype("f4")
        expected *= depth / expected.sum(axis=1, keepdims=True)
        yield scipy.sparse.csr_array(rng.poisson(expected).astype("f4"))


def documents(n: int, p: int, seed: int = 0) -> Iterator[Any]:
    """Blocks of rows of WORDS entries each, at places that follow a power law."""
    rng = np.random.default_rng(seed)
    for start in range(0, n, 20 * ROWS):
        rows = min(20 * ROWS, n - start)
        places = (p * rng.random((rows, WORDS)) ** 3).astype(np.int32)
        values = rng.random(places.size, dtype="f4") + 0.5
        row = np.repeat(np.arange(rows), WORDS)
        yield scipy.sparse.coo_array((values, (row, places.ravel())), shape=(rows, p)).tocsr()


def write(path: Path, shape: Sequence[int], blocks: Iterator[Any]) -> int:
    """Blocks of rows as an AnnData in Zarr; how many entries are not zero."""
    (n, p), begun = shape, 0
    group = zarr.create_group(str(path))
    group.attrs["encoding-type"] = "anndata"
    for name in ("obs", "var"):
        group.create_group(name).attrs.update({"encoding-type": "dataframe", "_index": "none"})
    x = group.create_group("X")
    x.attrs.update({"encoding-type": "csr_matrix", "encoding-version": "0.1.0", "shape": [n, p]})
    kinds = {"data": "f4", "indices": "i4"}
    arrays = {
        name: x.create_array(name, shape=(0,), chunks=(CHUNK,), dtype=kind, compressors=COMPRESSION)
        for name, kind in kinds.items()
    }
    indptr = [np.zeros(1, np.int64)]
    waiting: dict[str, list[Any]] = {name: [] for name in kinds}
    written = 0
    for block in blocks:
        indptr.append(indptr[-1][-1] + block.indptr[1:].astype(np.int64))
        for name in kinds:
            waiting[name].append(getattr(block, name))
        begun += block.shape[0]
        last = begun == n
        while sum(map(len, waiting["data"])) >= CHUNK or (last and waiting["data"]):
            for name, array in arrays.items():
                held = np.concatenate(waiting[name])
                take = len(held) if last else CHUNK
                array.resize((written + take,))
                array[written:] = held[:take]
                waiting[name] = [] if last else [held[take:]]
            written += take
    pointers = np.concatenate(indptr)
    kind = "i4" if pointers[-1] < 2**31 else "i8"
    x.create_array("indptr", shape=pointers.shape, dtype=kind)[...] = pointers
    return int(pointers[-1])


def loaded(path: str) -> Any:
    """The matrix in memory."""
    x = zarr.open_group(path, mode="r")["X"]
    parts = tuple(x[name][...] for name in ("data", "indices", "indptr"))
    return scipy.sparse.csr_matrix(parts, shape=tuple(x.attrs["shape"]))


def reference(path: Path) -> dict[str, Any]:
    """Singular values and vectors of the counts, as they are and centred, by ARPACK to 1e-10."""
    kept = path.parent / "reference.npz"
    if not kept.exists():
        x = loaded(str(path)).astype(np.float64)
        mean = np.asarray(x.mean(axis=0)).ravel()
        centred = scipy.sparse.linalg.LinearOperator(
            x.shape,
            matvec=lambda v: x @ v - mean @ v,
            rmatvec=lambda u: x.T @ u - mean * u.sum(),
            dtype=np.float64,
        )
        found = {}
        for name, one in (("svd", x), ("pca", centred)):
            _, s, v = scipy.sparse.linalg.svds(one, K + 1, tol=1e-10, random_state=0)
            found |= {f"{name}_values": s[::-1], f"{name}_vectors": v[::-1]}
        np.savez(kept, **found)
    return dict(np.load(kept))


# -- tools --------------------------------------------------------------------------


def ours(path: str, kind: str, max_passes: int = 10) -> dict[str, Any]:
    """From disk, planned within 1 GiB; stops when certified, or after so many passes."""
    import streampca

    running: dict[str, Any] = {"memory_limit": "1GiB", "progress": False}
    warnings.simplefilter("ignore")
    begun = time.perf_counter()
    if kind == "svd":
        running |= {"algorithm": "randomized", "n_iter": max_passes - 2}
        model: Any = streampca.TruncatedSVD(K, **running).fit(path)
    else:
        running |= {"svd_solver": "randomized", "max_passes": max_passes}
        model = streampca.PCA(K, **running).fit(path)
    seconds = time.perf_counter() - begun
    bound = model.certificate_.angle_bound
    return {
        "seconds": seconds,
        "values": model.singular_values_,
        "vectors": model.components_,
        "passes": len(model.cost_),
        "note": f"planned {model.plan_.peak_nbytes / 1e6:.0f} MB, worst angle <= {bound.max():.0e}",
    }


def theirs(path: str, kind: str, estimator: Any) -> dict[str, Any]:
    """scikit-learn on the matrix in memory."""
    x = loaded(path)
    begun = time.perf_counter()
    model = estimator.fit(x)
    seconds = time.perf_counter() - begun
    return {
        "seconds": seconds,
        "values": model.singular_values_,
        "vectors": model.components_,
        "passes": "in core",
    }


def truncated_svd(path: str, kind: str, **settings: Any) -> dict[str, Any]:
    """``TruncatedSVD``."""
    from sklearn.decomposition import TruncatedSVD

    return theirs(path, kind, TruncatedSVD(K, random_state=0, **settings))


def pca_arpack(path: str, kind: str) -> dict[str, Any]:
    """``PCA(svd_solver="arpack")``, centred implicitly."""
    from sklearn.decomposition import PCA

    return theirs(path, kind, PCA(K, svd_solver="arpack", random_state=0))


TOOLS = {
    "streampca.TruncatedSVD": ("svd", ours),
    "streampca.TruncatedSVD, 5 passes": ("svd", lambda path, kind: ours(path, kind, 5)),
    "sklearn TruncatedSVD, default": ("svd", truncated_svd),
    "sklearn TruncatedSVD, arpack": (
        "svd",
        lambda path, kind: truncated_svd(path, kind, algorithm="arpack"),
    ),
    "streampca.PCA": ("pca", ours),
    "sklearn PCA, arpack": ("pca", pca_arpack),
}


# -- random projection ------------------------------------------------------------


def projected(path: str) -> dict[str, Any]:
    """Ours: from disk to disk, planned within 512 MiB."""
    import streampca

    begun = time.perf_counter(), time.process_time()
    source = streampca.open(path)
    model = streampca.RandomProjection(PROJECTED, memory_limit="512MiB", progress=False).fit(source)
    scores = model.transform(source, out=str(Path(path).parent / "scores.zarr"), overwrite=True)
    read, every = source.reads().chunks, source.count_chunks(0, 0, scores.shape[0])
    assert read == model.plan_.reads
    return {
        "seconds": time.perf_counter() - begun[0],
        "cpu": time.process_time() - begun[1],
        "passes": f"{read}/{every}",
    }


def off_by(path: str) -> float:
    """Largest error of the first scores that were written."""
    import streampca

    model = streampca.RandomProjection(PROJECTED, progress=False).fit(path)
    head = scipy.sparse.csr_array(streampca.open(path).read(0, 0, 200))
    scores = zarr.open_array(str(Path(path).parent / "scores.zarr"), mode="r")[:200]
    return float(np.abs(scores - head @ model.components_.T).max())


def projected_in_memory(path: str) -> dict[str, Any]:
    """scikit-learn's, which is given the matrix and keeps the scores in memory."""
    from sklearn.random_projection import GaussianRandomProjection

    x = loaded(path)
    begun = time.perf_counter(), time.process_time()
    GaussianRandomProjection(PROJECTED, random_state=0).fit_transform(x)
    return {
        "seconds": time.perf_counter() - begun[0],
        "cpu": time.process_time() - begun[1],
        "passes": "-",
    }


PROJECTIONS = {"streampca": projected, "scikit-learn, loaded": projected_in_memory}


def projections(folder: Path, shape: Sequence[int]) -> None:
    """Print what a random projection of a large sparse matrix takes."""
    path = folder / "documents.zarr"
    if not path.exists():
        print(f"{write(path, shape, documents(*shape))} entries are stored")
    print(f"\n{shape[0]} x {shape[1]}, about {WORDS} entries a row, {PROJECTED} components")
    print(f"{'':<34}{'seconds':>9}{'CPU s':>9}{'peak MB':>9}{'reads':>9}{'off by':>10}")
    for name in PROJECTIONS:
        row = measure("tests.benchmarks.sparse", name, str(path), python=sys.executable)
        if "error" in row:
            print(f"{name:<34}  not run: {row['error']}", flush=True)
            continue
        off = f"{off_by(str(path)):>10.1e}" if name == "streampca" else ""
        print(
            f"{name:<34}{row['seconds']:>9.1f}{row['cpu']:>9.1f}{row['peak_mb']:>9.0f}"
            f"{row['passes']!s:>9}{off}",
            flush=True,
        )


# -- measuring ----------------------------------------------------------------------


def run(name: str, path: str) -> None:
    """In the fresh process: one tool, then its errors against the reference."""
    base = peak_mb()
    kind, tool = TOOLS[name]
    row: dict[str, Any] = tool(path, kind)
    row |= {"peak_mb": peak_mb(), "base_mb": base}
    values, vectors = np.asarray(row.pop("values"), "f8"), np.asarray(row.pop("vectors"), "f8")
    true = reference(Path(path))
    row |= errors(values, vectors, true[f"{kind}_values"], true[f"{kind}_vectors"])
    print("RESULT " + json.dumps(row))


def errors(values: Any, vectors: Any, exact: Any, directions: Any) -> dict[str, float]:
    """Largest relative error of a variance; largest angle of a component that stands apart."""
    gaps = 1.0 - (exact[1:] / exact[:-1]) ** 2
    apart = np.minimum(np.append(np.inf, gaps[:-1]), gaps) > APART
    along = np.abs(np.sum(vectors * directions[:K], axis=1))
    beside = np.linalg.norm(
        vectors - directions[:K] * np.sum(vectors * directions[:K], axis=1, keepdims=True), axis=1
    )
    angles = np.arctan2(beside, along)
    return {
        "variance": float(np.max(np.abs((values / exact[:K]) ** 2 - 1.0))),
        "angle": float(np.max(angles[apart], initial=0.0)),
        "apart": int(apart.sum()),
    }


def main() -> None:
    """Write the counts once, run every tool, print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--shape", type=int, nargs=2, metavar=("ROWS", "COLUMNS"))
    parser.add_argument("--projection", action="store_true", help="instead: a random projection")
    parser.add_argument("--runs", type=int, default=3, help="processes of ours; peers run once")
    parser.add_argument("--only", nargs="*", choices=TOOLS)
    parser.add_argument("--folder", help="keep the data here, and use them again")
    recordable(parser, __file__)
    parser.add_argument("--child", nargs=2, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.child and arguments.child[0] in PROJECTIONS:
        child(PROJECTIONS[arguments.child[0]], arguments.child[1])
        return
    if arguments.child:
        run(*arguments.child)
        return
    if arguments.projection:
        with tempfile.TemporaryDirectory() as temporary:
            shape = arguments.shape or (1_000_000, 100_000)
            projections(Path(arguments.folder or temporary), shape)
        return
    n, p = arguments.shape or (100_000, 20_000)
    with tempfile.TemporaryDirectory() as temporary:
        path = Path(arguments.folder or temporary) / STORE
        if not path.exists():
            path.parent.mkdir(parents=True, exist_ok=True)
            entries = write(path, (n, p), counts(n, p))
            print(f"{entries} of {n * p} counts are not zero ({entries / n / p:.1%})")
        reference(path)
        print(f"\n{n} x {p} counts, {K} components")
        print(f"{'':<34}{'seconds':>9}{'peak MB':>9}{'passes':>9}{'variance':>10}{'angle':>9}")
        rows = []
        for name in arguments.only or TOOLS:
            own = name.startswith("streampca")
            row = measure(
                "tests.benchmarks.sparse",
                name,
                str(path),
                arguments.runs if own else 1,
                python=sys.executable,
            )
            rows.append({"name": name, **row})
            if "error" in row:
                print(f"{name:<34}  not run: {row['error']}", flush=True)
                continue
            print(
                f"{name:<34}{row['seconds']:>9.1f}{row['peak_mb']:>9.0f}{row['passes']!s:>9}"
                f"{row['variance']:>10.1e}{row['angle']:>9.1e}  {row.get('note', '')}",
                flush=True,
            )
        record(arguments.record, rows, "scikit-learn")


if __name__ == "__main__":
    main()
