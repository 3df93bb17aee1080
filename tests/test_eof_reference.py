"""Every stored solution of the eofs package: equal, latitude and area weights, two variables."""

from __future__ import annotations

import numpy as np
import pytest
import xarray as xr

from streampca import PCA

MODES = 14
WEIGHTS = ["equal", "latitude", "area", "area_multi", "area_multi_mix"]


@pytest.fixture(params=WEIGHTS)
def solved(request, shared_data):
    """(fitted model, the field, what the eofs package stored, by name)."""
    folder = shared_data / "climate" / "eofs_reference" / "data"

    def stored(name):
        return np.load(folder / f"{name}.npy")

    kind = request.param
    sst = xr.DataArray(
        stored("sst"),
        dims=("time", "latitude", "longitude"),
        coords={n: stored(n) for n in ("time", "latitude", "longitude")},
        name="sst",
    )
    settings = {}
    if kind != "equal":
        weights = xr.DataArray(stored(f"weights.{kind}"), dims=("latitude", "longitude"))
        settings["weights"] = weights
    model = PCA(MODES, svd_solver="gram", **settings)
    model.fit(sst, dim="time")  # land: no warning
    assert len(model.result_.dropped) == 21
    names = [
        "eigenvalues",
        "eofs",
        "eofscor",
        "eofscov",
        "errors",
        "pcs",
        "rcon",
        "scaled_errors",
        "variance",
    ]
    return model, sst, {name: stored(f"{name}.{kind}") for name in names}


def same(ours, theirs, signs=None):
    ours = np.asarray(ours)
    if signs is not None:
        ours = ours * signs
    np.testing.assert_allclose(ours, theirs, rtol=1e-5, atol=1e-5 * np.nanmax(np.abs(theirs)))


def signs_of(model, stored):
    """(modes,) the sign of each of their EOFs on ours; a sign rule is theirs or ours."""
    return np.sign(np.nansum(model.eof_.eofs().values * stored["eofs"], axis=(1, 2)))


def test_eigenvalues_and_errors(solved):
    model, _, stored = solved
    same(model.eof_.eigenvalues(), stored["eigenvalues"])
    same(100 * model.eof_.variance_fraction(), stored["variance"])
    same(model.eof_.north_errors(), stored["errors"])
    same(model.eof_.north_errors(scaled=True), stored["scaled_errors"])


@pytest.mark.parametrize("scaling", [0, 1, 2])
def test_eofs_and_pcs(solved, scaling):
    model, sst, stored = solved
    signs = signs_of(model, stored)
    factor = np.sqrt(stored["eigenvalues"]) ** {0: 0, 1: -1, 2: 1}[scaling]
    same(model.eof_.eofs(scaling), stored["eofs"] * factor[:, None, None], signs[:, None, None])
    assert model.eof_.eofs(scaling).dims == ("component", "latitude", "longitude")
    same(model.eof_.pcs(scaling), stored["pcs"] * factor, signs)
    same(model.project(sst, scaling), stored["pcs"] * factor, signs)
    same(model.project(sst.isel(time=3), scaling), stored["pcs"][3] * factor, signs)


def test_maps(solved):
    model, _, stored = solved
    signs = signs_of(model, stored)[:, None, None]
    same(model.eof_.as_correlation(), stored["eofscor"], signs)
    land = np.isnan(stored["eofs"])
    same(model.eof_.as_covariance(), np.where(land, np.nan, stored["eofscov"]), signs)


def test_reconstructions(solved):
    model, sst, stored = solved
    same(model.reconstruct([1, 2, 5], mean=False), stored["rcon"])
    xr.testing.assert_allclose(model.reconstruct(MODES), sst)
