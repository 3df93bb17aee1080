"""Cross-correlations of two views: NumPy's numbers by both ways, Zarr groups, labels."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import xarray as xr
import zarr

from streampca import cross_correlation
from streampca.errors import InvalidInputError, MemoryLimitError, NonFiniteError
from streampca.models.two_views import cross_correlation as module
from tests.forks import forked

RNG = np.random.default_rng(0)
X = RNG.standard_normal((80, 30)) + 100.0
Y = RNG.standard_normal((80, 17)) + X[:, :17]
X[:, 4] = 3.0
with np.errstate(invalid="ignore", divide="ignore"):
    EXPECTED = np.corrcoef(np.hstack([X, Y]).T)[:30, 30:]
EXPECTED[4] = np.nan


def only(route: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "WAYS", {route: module.WAYS[route]})


@pytest.mark.parametrize("panels", [(1,), (4,), (16,)])
@pytest.mark.parametrize("route", ["scatter", "panels"])
def test_correlations_of_numpy(
    route: str, panels: tuple[int, ...], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    only(route, monkeypatch)
    monkeypatch.setattr(module, "PANELS", panels)
    zarr.create_array(str(tmp_path / "x"), data=X, chunks=(80, 7))
    zarr.create_array(str(tmp_path / "y"), data=Y, chunks=(80, 3))
    paths = str(tmp_path / "x"), str(tmp_path / "y")
    np.testing.assert_allclose(cross_correlation(*paths), EXPECTED, atol=1e-13)
    written = cross_correlation(*paths, out=tmp_path / "r")
    np.testing.assert_allclose(written[:], EXPECTED, atol=1e-13)
    again = xr.open_zarr(tmp_path / "r", consolidated=False)["cross_correlation"]
    np.testing.assert_array_equal(again, written[:])
    assert again.dims == ("x", "y")
    with pytest.raises(InvalidInputError, match="exists already"):
        cross_correlation(*paths, out=tmp_path / "r")


@pytest.mark.parametrize("route", ["scatter", "panels"])
def test_float32_is_written_as_it_is(
    route: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    only(route, monkeypatch)
    written = cross_correlation(X.astype("f4"), Y.astype("f4"), out=tmp_path / "r")
    assert written.dtype == np.float32
    np.testing.assert_allclose(written[:], EXPECTED, atol=1e-5)


def test_names_of_features_and_rows(tmp_path: Path) -> None:
    rows = [f"r{i}" for i in range(80)]
    x = xr.DataArray(X, dims=("row", "a"), coords={"row": rows, "a": [f"x{i}" for i in range(30)]})
    y = xr.DataArray(Y, dims=("row", "b"), coords={"row": rows})[::-1]
    found = cross_correlation(x, y)
    np.testing.assert_allclose(found, EXPECTED, atol=1e-13)
    np.testing.assert_allclose(found.sel(x="x7"), EXPECTED[7], atol=1e-13)
    cross_correlation(x, y, out=tmp_path / "r")
    again = xr.open_zarr(tmp_path / "r", consolidated=False)["cross_correlation"]
    np.testing.assert_allclose(again.sel(x="x7"), EXPECTED[7], atol=1e-13)


def test_holes_and_too_little_memory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(MemoryLimitError, match="too small for cross_correlation"):
        cross_correlation(X, Y, out=tmp_path / "r", memory_limit=1000)
    assert not (tmp_path / "r").exists()
    holes = Y.copy()
    holes[3, 2] = np.nan
    for route in ("scatter", "panels"):
        with monkeypatch.context() as patch:
            only(route, patch)
            with pytest.raises(NonFiniteError, match="missing"):
                cross_correlation(X, holes)


@pytest.mark.soak
@pytest.mark.parametrize("limit", ["224MiB", "320MiB"])
def test_a_fresh_process_takes_what_was_planned(limit, tmp_path):
    """A fit that takes more than its plan warns, and the warning is an error here."""
    rng = np.random.default_rng(0)
    for name, p in (("x", 10_000), ("y", 8000)):
        array = zarr.create_array(
            tmp_path / f"{name}.zarr", shape=(200, p), chunks=(200, 1000), dtype="f4"
        )
        array[:] = rng.normal(size=(200, p))
    code = (
        "import warnings; warnings.simplefilter('error')\n"
        "import streampca\n"
        f"import os; os.chdir({str(tmp_path)!r})\n"
        f"streampca.cross_correlation('x.zarr', 'y.zarr', out='r.zarr', memory_limit='{limit}')"
    )
    forked(code)


@pytest.mark.parametrize("dtypes", [("f4", "f8"), ("f8", "f4"), ("i4", "f4"), ("f2", "i8")])
@pytest.mark.parametrize("route", ["scatter", "panels"])
def test_two_dtypes_are_correlated_in_the_finer(dtypes, route, tmp_path, monkeypatch):
    only(route, monkeypatch)
    x, y = ((10.0 * one).astype(dtype) for one, dtype in zip((X, Y), dtypes, strict=True))
    with np.errstate(divide="ignore", invalid="ignore"):
        both = np.corrcoef(x.T.astype("f8"), y.T.astype("f8"))[:30, 30:]
    np.testing.assert_allclose(cross_correlation(x, y), both, atol=1e-13)
    np.testing.assert_allclose(cross_correlation(x, y, out=tmp_path / "r")[:], both, atol=1e-13)
