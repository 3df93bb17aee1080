"""Complex data are refused by name, with the line that makes features of both parts."""

from __future__ import annotations

import ast
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

from streampca import PCA
from streampca.errors import InvalidTypeError
from streampca.models.contract.registry import all_kinds
from tests.each import each

rng = np.random.default_rng(0)
X = rng.normal(size=(30, 6)) + 1j * rng.normal(size=(30, 6))
PARTS = np.concatenate([X.real, X.imag], axis=1)


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
    with pytest.raises(InvalidTypeError, match=r"complex(64|128).*Complex data") as found:
        model.fit(data, *more)
    return str(found.value)


@each("dtype", KINDS)
@pytest.mark.parametrize("kind", sorted(all_kinds()))
def test_every_estimator_refuses_complex_data(kind: str, dtype: str) -> None:
    for data in KINDS[dtype].values():
        model: Any = all_kinds()[kind]()
        assert "parts can be features. Use " in refused(model, data)
        assert not hasattr(model, "result_")


@pytest.mark.parametrize("name", [name for name in KINDS["complex64"] if name != "dataset"])
def test_the_line_that_it_shows_runs(name: str) -> None:
    data = KINDS["complex128"][name]
    line = refused(PCA(2), data).partition(" Use ")[2].removesuffix(".")
    code, _, dim = line.partition(" with dim=")
    known: dict[str, Any] = {"X": data, "numpy": np, "scipy": scipy, "dask": dask, "xarray": xarray}
    before, _, last = code.rpartition("; ")
    exec(before, known)
    model = PCA(2).fit(eval(last, known), dim=ast.literal_eval(dim or "None"))
    np.testing.assert_allclose(
        model.explained_variance_, PCA(2).fit(PARTS).explained_variance_, rtol=1e-9
    )


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
