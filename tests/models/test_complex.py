"""Models of real data refuse complex ones, with the line that takes them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import dask
import dask.array as da
import numpy as np
import pandas as pd
import pytest
import scipy.sparse
import xarray
import zarr

import streampca
from streampca import MCA, PCA, HardImpute, IncrementalPCA
from streampca.errors import InvalidTypeError
from streampca.models.contract.registry import all_kinds
from tests.each import each

rng = np.random.default_rng(0)
X = rng.normal(size=(30, 6)) + 1j * rng.normal(size=(30, 6))


def kinds_of(dtype: str) -> dict[str, Any]:
    """The same numbers as every kind of object."""
    x = X.astype(dtype)
    field = xarray.DataArray(
        x.reshape(30, 2, 3), dims=("time", "lat", "lon"), coords={"time": np.arange(30)}
    )
    return {
        "numpy": x,
        "list": x.tolist(),
        "frame": pd.DataFrame(x),
        "sparse": scipy.sparse.csr_array(x),
        "zarr": zarr.array(x, chunks=(10, 6)),
        "dask": da.from_array(x, chunks=(10, 3)),
        "xarray": field,
        "lazy xarray": field.chunk(time=10),
        "dataset": xarray.Dataset({"u": field}),
    }


KINDS = {dtype: kinds_of(dtype) for dtype in ("complex64", "complex128")}


def refused(model: Any, data: Any) -> str:
    """The message of a fit, of X or of X and Y."""
    more = [data] if getattr(type(model), "views", 1) == 2 else []
    with pytest.raises(InvalidTypeError, match=r"complex(64|128).*ComplexEOF") as found:
        model.fit(data, *more)
    return str(found.value)


@each("dtype", KINDS)
@pytest.mark.parametrize("kind", sorted(all_kinds()))
def test_every_estimator_of_real_data_refuses_complex_data(kind: str, dtype: str) -> None:
    for data in KINDS[dtype].values():
        model: Any = all_kinds()[kind]()
        if not model.takes_complex:
            refused(model, data)
            assert not hasattr(model, "result_")


@each("name", KINDS["complex64"])
def test_the_line_that_it_shows_runs(name: str) -> None:
    data = KINDS["complex128"][name]
    with pytest.raises(InvalidTypeError) as found:
        PCA(2).fit(data, dim="time" if "set" in name or "xarray" in name else None)
    line = str(found.value).partition("takes them: ")[2]
    model = eval(line, {"X": data, "streampca": streampca})
    np.testing.assert_allclose(model.explained_variance_, expected(), rtol=1e-9)


def expected() -> Any:
    s = np.linalg.svd(X - X.mean(axis=0), compute_uv=False)[:2]
    return s**2 / (len(X) - 1)


FITTED = PCA(2).fit(X.real)
ASKED = {
    "transform": lambda data: FITTED.transform(data),
    "project": lambda data: FITTED.project(data),
    "score": lambda data: FITTED.score(data),
    "inverse_transform": lambda data: FITTED.inverse_transform(data[:, :2]),
    "partial_fit": lambda data: IncrementalPCA(2).partial_fit(data),
    "impute": lambda data: HardImpute(2).fit_transform(data),
    "preprocess": lambda data: streampca.preprocess.log1p(data),
    "certify": lambda data: streampca.certify(FITTED, data),
    "covariance": lambda data: streampca.covariance(data),
    "Y": lambda data: MCA(1).fit(X.real, data),
}


@each("name", [*ASKED, "from_covariance"])
def test_new_rows_and_functions_refuse_them_too(name: str) -> None:
    """PCA.transform of a complex Dask array dropped the imaginary part."""
    if name == "from_covariance":
        with pytest.raises(InvalidTypeError, match="ComplexEOF"):
            PCA.from_covariance(X.T @ X.conj())
        return
    for kind in ("numpy", "dask"):
        with pytest.raises(InvalidTypeError, match="ComplexEOF"):
            ASKED[name](KINDS["complex128"][kind])


def test_nothing_is_read_before(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def read(*_: Any) -> Any:
        raise AssertionError("it was read")

    path = str(tmp_path / "x.zarr")
    zarr.save_array(path, X.astype("complex64"))
    monkeypatch.setattr(zarr.Array, "__getitem__", read)
    never = da.from_delayed(dask.delayed(read)(), (30, 6), dtype="complex64")
    lazy = xarray.DataArray(never, dims=("time", "x"))
    for data in (path, zarr.open_array(path), never, lazy):
        refused(PCA(2), data)
