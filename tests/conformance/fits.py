"""The fits of the tables: ours by each solver and source, and those of peers.

A fit takes a NumPy matrix (n, p) and k, and returns singular values (k,) and right singular vectors
(k, p); ours also the bounds of their certificates (:func:`tests.conformance.judge.judged`).
Singular values are those of the centred matrix, or, of a truncated SVD, of the matrix as it is.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np

from tests.conformance.matrices import Array


@dataclass(frozen=True)
class Fit:
    """fit : (X, k) to (values, vectors).  centred : whether it subtracts means."""

    fit: Callable[[Array, int], tuple[Any, ...]]
    centred: bool = True


# -- ours --------------------------------------------------------------------------


def in_memory(x: Array, folder: str) -> Any:
    return x


def as_csr(x: Array, folder: str) -> Any:
    import scipy.sparse

    return scipy.sparse.csr_array(x)


def as_zarr(x: Array, folder: str) -> Any:
    """In chunks of a third of both sides."""
    import zarr

    chunks = tuple(-(-side // 3) for side in x.shape)
    whole = {"write_empty_chunks": True}
    zarr.create_array(f"{folder}/x.zarr", data=x, chunks=chunks, config=whole)
    return f"{folder}/x.zarr"


def as_dask(x: Array, folder: str) -> Any:
    import dask.array

    return dask.array.from_array(x, chunks=tuple(-(-side // 3) for side in x.shape)) * 1


def ours(
    model: str, source: Callable[[Array, str], Any], options: dict[str, Any], x: Array, k: int
) -> tuple[Any, ...]:
    """A model of streampca, with the bounds of its certificate."""
    import streampca

    with tempfile.TemporaryDirectory() as folder:
        made = getattr(streampca, model)(k, progress=False, **options).fit(source(x, folder))
    return with_bounds(made, len(x))


def in_batches(x: Array, k: int) -> tuple[Any, ...]:
    """IncrementalPCA, which sees a third of the rows at a time."""
    import streampca

    model = streampca.IncrementalPCA(k, progress=False)
    for rows in np.array_split(x, min(3, len(x))):
        model.partial_fit(rows)
    return with_bounds(model, len(x))


def with_bounds(model: Any, n: int) -> tuple[Any, ...]:
    """Errors of singular values, from those of variances."""
    values, bound = model.singular_values_, model.certificate_
    divisor = max(n - int(model.result_.settings.get("ddof", 0)), 1)
    squares = bound.variance_bound * divisor
    below = values - np.sqrt(np.maximum(values**2 - squares, 0.0))
    above = np.sqrt(values**2 + squares) - values
    return values, model.components_, (np.maximum(below, above), bound.angle_bound)


def _ours() -> dict[str, Fit]:
    solvers = ("auto", "scatter", "tsqr", "gram", "randomized")
    sources = {"": in_memory, ", Zarr": as_zarr, ", Dask": as_dask, ", sparse": as_csr}
    found = {}
    for model in ("PCA", "TruncatedSVD"):
        for solver in solvers:
            for words, source in sources.items():
                if not words or solver in ("auto", "randomized"):
                    fit = partial(ours, model, source, {"solver": solver})
                    found[f"streampca {model} {solver}{words}"] = Fit(fit, model == "PCA")
    sketch = Fit(partial(ours, "PCA", in_memory, {"solver": "sketch"}))
    return found | {"streampca PCA sketch": sketch, "streampca IncrementalPCA": Fit(in_batches)}


OURS = _ours()


# -- peers -------------------------------------------------------------------------


def by_numpy(centred: bool, x: Array, k: int) -> tuple[Any, ...]:
    _, values, vt = np.linalg.svd(x - x.mean(axis=0) if centred else x, full_matrices=False)
    return values[:k], vt[:k]


def by_scikit_learn(name: str, options: dict[str, Any], x: Array, k: int) -> tuple[Any, ...]:
    import sklearn.decomposition

    model = getattr(sklearn.decomposition, name)(k, **options).fit(x)
    return model.singular_values_, model.components_


def by_dask_ml(name: str, options: dict[str, Any], x: Array, k: int) -> tuple[Any, ...]:
    """In three chunks of rows, each with all columns."""
    import dask.array
    import dask_ml.decomposition

    chunks = (-(-len(x) // 3), x.shape[1])
    model = getattr(dask_ml.decomposition, name)(k, **options)
    model.fit(dask.array.from_array(x, chunks=chunks))
    return np.asarray(model.singular_values_), np.asarray(model.components_)


def by_xeofs(options: dict[str, Any], x: Array, k: int) -> tuple[Any, ...]:
    import xarray
    import xeofs

    places = {"t": np.arange(len(x)), "x": np.arange(x.shape[1])}
    model = xeofs.single.EOF(n_modes=k, **options).fit(xarray.DataArray(x, places), "t")
    vectors = model.components(normalized=True).transpose("mode", "x").values
    return model.singular_values().values, vectors


def by_scanpy(sparse: bool, options: dict[str, Any], x: Array, k: int) -> tuple[Any, ...]:
    import anndata
    import scanpy
    import scipy.sparse

    data = anndata.AnnData(scipy.sparse.csr_matrix(x) if sparse else x)
    scanpy.pp.pca(data, n_comps=k, dtype="float64", **options)
    variances = data.uns["pca"]["variance"]
    return np.sqrt(np.asarray(variances) * (len(x) - 1)), data.varm["PCs"].T


def _peers() -> dict[str, Fit]:
    seed = {"random_state": 0}
    found = {
        "NumPy svd(X - mean)": Fit(partial(by_numpy, True)),
        "NumPy svd(X)": Fit(partial(by_numpy, False), False),
    }
    for solver in ("auto", "full", "covariance_eigh", "arpack", "randomized"):
        fit = partial(by_scikit_learn, "PCA", {"svd_solver": solver} | seed)
        found[f"scikit-learn PCA {solver}"] = Fit(fit)
    found["scikit-learn IncrementalPCA"] = Fit(partial(by_scikit_learn, "IncrementalPCA", {}))
    for solver in ("randomized", "arpack"):
        fit = partial(by_scikit_learn, "TruncatedSVD", {"algorithm": solver} | seed)
        found[f"scikit-learn TruncatedSVD {solver}"] = Fit(fit, False)
    for solver in ("auto", "full", "randomized"):
        fit = partial(by_dask_ml, "PCA", {"svd_solver": solver} | seed)
        found[f"dask-ml PCA {solver}"] = Fit(fit)
    for solver in ("tsqr", "randomized"):
        fit = partial(by_dask_ml, "TruncatedSVD", {"algorithm": solver} | seed)
        found[f"dask-ml TruncatedSVD {solver}"] = Fit(fit, False)
    found["dask-ml IncrementalPCA"] = Fit(partial(by_dask_ml, "IncrementalPCA", {}))
    for solver in ("auto", "full", "randomized"):
        found[f"xeofs EOF {solver}"] = Fit(partial(by_xeofs, {"solver": solver} | seed))
    for solver in ("arpack", "covariance_eigh", "randomized"):
        fit = partial(by_scanpy, False, {"svd_solver": solver})
        found[f"scanpy pca {solver}"] = Fit(fit)
    found["scanpy pca, sparse"] = Fit(partial(by_scanpy, True, {}))
    return found


PEERS = _peers()
