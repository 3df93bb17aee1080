"""CCA and MCA of two views beside their peers: ``python -m tests.benchmarks.two_views``.

``cca``: float32 samples x (p + q) with common factors and column means near 50, from two Zarr
stores, beside PCA's scatter of the joined matrix (what the read should cost) and in-core peers.
``mca``: two wide fields, chunked by time, within ``--memory-limit``. Every candidate runs in a
fresh process; the reference is the closed form in float64.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
import zarr

from tests.benchmarks.measure import child, measure, relative_error, table

K = 5
ROWS = 8192


def write(folder: str, n: int, widths: tuple[int, int], rows: int) -> None:
    """Two seeded matrices of K common factors plus noise, in chunks of ``rows`` whole rows."""
    rng = np.random.default_rng(0)
    stores, loadings = [], []
    for name, width in zip("xy", widths, strict=True):
        store = zarr.create_array(
            f"{folder}/{name}.zarr",
            shape=(n, width),
            chunks=(rows, width),
            dtype="f4",
            compressors=None,
        )
        stores.append(store)
        weights = np.linspace(0.5, 0.2, K, dtype=np.float32)[:, None]
        loadings.append(weights * rng.standard_normal((K, width), dtype=np.float32))
    for i in range(0, n, rows):
        m = min(rows, n - i)
        factors = rng.standard_normal((m, K), dtype=np.float32)
        for store, one in zip(stores, loadings, strict=True):
            noise = rng.standard_normal((m, one.shape[1]), dtype=np.float32)
            store[i : i + m] = factors @ one + noise + np.float32(50)


def paths(folder: str) -> tuple[str, str]:
    return f"{folder}/x.zarr", f"{folder}/y.zarr"


def timed(function: Any) -> tuple[float, Any]:
    begun = time.perf_counter()
    made = function()
    return time.perf_counter() - begun, made


def both(folder: str) -> list[Any]:
    """Both stores as xarray, in memory."""
    import xarray

    made = []
    for name, path in zip("ab", paths(folder), strict=True):
        values = zarr.open_array(path, mode="r")[:]
        times = {"time": np.arange(len(values)), name: np.arange(values.shape[1])}
        made.append(xarray.DataArray(values, dims=("time", name), coords=times))
    return made


# -- canonical correlations ------------------------------------------------------------------------


def reference_cca(folder: str) -> dict[str, Any]:
    """Two passes in float64, then Cholesky factors and an SVD."""
    x, y = (zarr.open_array(path, mode="r") for path in paths(folder))
    n, p = x.shape
    parts = [slice(i, i + ROWS) for i in range(0, n, ROWS)]
    mean = sum(np.hstack([x[i], y[i]]).sum(axis=0, dtype="f8") for i in parts) / n
    s = np.zeros((len(mean), len(mean)))
    for i in parts:
        z = np.hstack([x[i], y[i]]).astype("f8") - mean
        s += z.T @ z
    a, b = np.linalg.cholesky(s[:p, :p]), np.linalg.cholesky(s[p:, p:])
    k = np.linalg.solve(b, np.linalg.solve(a, s[:p, p:]).T)
    return {"values": np.linalg.svd(k)[1][:K].tolist()}


def cca(folder: str) -> dict[str, Any]:
    import streampca

    seconds, model = timed(lambda: streampca.CCA(K, progress=False).fit(*paths(folder)))
    return {
        "seconds": seconds,
        "passes": len(model.cost_),
        "values": model.correlations_.tolist(),
        "pass_seconds": model.cost_[0].seconds,
        "bound": float(model.correlation_bound_.max()),
    }


def cca_held_out(folder: str) -> dict[str, Any]:
    import streampca

    model = streampca.CCA(K, alpha="cv", progress=False)
    seconds, _ = timed(lambda: model.fit(*paths(folder)))
    return {"seconds": seconds, "passes": len(model.cost_)}


def pca_scatter(folder: str) -> dict[str, Any]:
    """One read of the joined matrix for its scatter, and eigh."""
    import streampca

    joined = streampca.concat_features(*map(streampca.open, paths(folder)))
    model = streampca.PCA(K, svd_solver="scatter", progress=False)
    seconds, _ = timed(lambda: model.fit(joined))
    return {"seconds": seconds, "passes": 1, "pass_seconds": model.cost_[0].seconds}


def numpy_qr(folder: str) -> dict[str, Any]:
    """As R's cancor: QR of both in memory, float64."""

    def fit() -> Any:
        factors = []
        for path in paths(folder):
            z = zarr.open_array(path, mode="r")[:].astype("f8")
            z -= z.mean(axis=0)
            factors.append(np.linalg.qr(z)[0])
        return np.linalg.svd(factors[0].T @ factors[1])[1][:K]

    seconds, values = timed(fit)
    return {"seconds": seconds, "values": values.tolist(), "passes": 1}


def sklearn_cca(folder: str) -> dict[str, Any]:
    """scikit-learn CCA (NIPALS), in core; it gives scores, and no correlations."""
    from sklearn.cross_decomposition import CCA

    def fit() -> Any:
        x, y = (zarr.open_array(path, mode="r")[:] for path in paths(folder))
        a, b = CCA(K, max_iter=2000).fit_transform(x, y)
        return np.array([np.corrcoef(a[:, i], b[:, i])[0, 1] for i in range(K)])

    seconds, values = timed(fit)
    return {"seconds": seconds, "values": values.tolist(), "passes": 1}


# -- maximum covariance ----------------------------------------------------------------------------


def reference_mca(folder: str) -> dict[str, Any]:
    """Singular values of X'Y / (n - 1) from both n x n Gram matrices in float64."""
    grams = []
    for path in paths(folder):
        whole = zarr.open_array(path, mode="r")[:]
        n, p = whole.shape
        gram = np.zeros((n, n))
        for i in range(0, p, 8192):
            z = whole[:, i : i + 8192].astype("f8")
            z -= z.mean(axis=0)
            gram += z @ z.T
        values, vectors = np.linalg.eigh(gram)
        grams.append(vectors * np.sqrt(np.maximum(values, 0.0)))
    return {"values": (np.linalg.svd(grams[0].T @ grams[1])[1][:K] / (n - 1)).tolist()}


def mca(folder: str) -> dict[str, Any]:
    import streampca

    limit = (Path(folder) / "limit").read_text()
    model = streampca.MCA(K, memory_limit=limit, progress=False)
    seconds, _ = timed(lambda: model.fit(*paths(folder)))
    return {
        "seconds": seconds,
        "passes": len(model.cost_),
        "solver": model.plan_.solver,
        "values": model.singular_values_.tolist(),
        "planned_mb": model.plan_.peak_nbytes / 1e6,
        "bound": float((model.value_bound_ / model.singular_values_).max()),
    }


def xeofs_mca(folder: str, **parameters: Any) -> dict[str, Any]:
    """xeofs MCA with its defaults, a truncated PCA of both first; in core, needs statsmodels."""
    from xeofs.cross import MCA

    def fit() -> Any:
        model = MCA(n_modes=K, **parameters)
        model.fit(*both(folder), dim="time")
        return np.asarray(model.data["singular_values"])

    seconds, values = timed(fit)
    return {"seconds": seconds, "values": values.tolist(), "passes": 1}


def xeofs_whole(folder: str) -> dict[str, Any]:
    """The same without a PCA first: the p x q cross-covariance."""
    return xeofs_mca(folder, use_pca=False)


def sklearn_plssvd(folder: str) -> dict[str, Any]:
    """scikit-learn PLSSVD: the explicit p x q cross-covariance, in core; it gives scores alone."""
    from sklearn.cross_decomposition import PLSSVD

    def fit() -> Any:
        x, y = (zarr.open_array(path, mode="r")[:] for path in paths(folder))
        a, b = PLSSVD(K, scale=False).fit_transform(x, y)
        return np.array([np.cov(a[:, i], b[:, i])[0, 1] for i in range(K)])

    seconds, values = timed(fit)
    return {"seconds": seconds, "values": np.abs(values).tolist(), "passes": 1}


CCA = {
    "streampca.CCA": cca,
    "PCA's scatter of [X, Y]": pca_scatter,
    "streampca.CCA, held-out ridge": cca_held_out,
    "NumPy QR, in core (as cancor)": numpy_qr,
    "scikit-learn CCA, in core": sklearn_cca,
}
MCA = {
    "streampca.MCA": mca,
    "xeofs MCA, in core (PCA first)": xeofs_mca,
    "xeofs MCA, in core, no PCA": xeofs_whole,
    "scikit-learn PLSSVD, in core": sklearn_plssvd,
}
REFERENCES = {"reference_cca": reference_cca, "reference_mca": reference_mca}


def compare(folder: str, candidates: dict[str, Any], reference: str, arguments: Any) -> str:
    """Run everything, and give the table."""
    module, rows = "tests.benchmarks.two_views", []
    truth = measure(module, reference, folder)["values"]
    for name in candidates:
        if arguments.only and name not in arguments.only:
            continue
        runs = arguments.runs if name.startswith(("streampca.CCA", "PCA's")) else 1
        row = measure(module, name, folder, runs, timeout=arguments.timeout)
        if "values" in row:
            row["relative_error"] = relative_error(row["values"], truth)
        rows.append({"name": name, **row})
        print(name, {k: v for k, v in row.items() if k != "values"}, file=sys.stderr)
    return table(rows)


def main() -> None:
    """Write the views once, run everything, print the tables."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--samples", type=int, default=2_000_000)
    parser.add_argument("--features", type=int, nargs=2, default=(200, 100))
    parser.add_argument("--times", type=int, default=2000)
    parser.add_argument("--cells", type=int, nargs=2, default=(259_200, 65_160))
    parser.add_argument("--memory-limit", default="1GiB", help="of MCA")
    parser.add_argument("--method", choices=("cca", "mca"), help="only this one")
    parser.add_argument("--runs", type=int, default=3, help="of CCA and of PCA's scatter")
    parser.add_argument("--timeout", type=float, default=600, help="seconds for a candidate")
    parser.add_argument("--only", nargs="*", choices={**CCA, **MCA})
    parser.add_argument("--scratch", help="folder for the data")
    parser.add_argument("--child", nargs=2, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.child:
        child({**CCA, **MCA, **REFERENCES}[arguments.child[0]], arguments.child[1])
        return
    if arguments.method != "mca":
        with tempfile.TemporaryDirectory(dir=arguments.scratch) as folder:
            n, (p, q) = arguments.samples, arguments.features
            write(folder, n, (p, q), ROWS)
            print(f"{n} x ({p} + {q}) float32, k = {K}")
            print(compare(folder, CCA, "reference_cca", arguments))
    if arguments.method != "cca":
        with tempfile.TemporaryDirectory(dir=arguments.scratch) as folder:
            n, (p, q) = arguments.times, arguments.cells
            write(folder, n, (p, q), 20)
            (Path(folder) / "limit").write_text(arguments.memory_limit)
            print(f"{n} x {p} and {n} x {q} float32, k = {K}, limit {arguments.memory_limit}")
            print(compare(folder, MCA, "reference_mca", arguments))


if __name__ == "__main__":
    main()
