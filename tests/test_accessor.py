"""``da.streampca``: registered in any order of imports, and the same numbers as PCA."""

from __future__ import annotations

import numpy as np
import pytest
import xarray as xr

from streampca import CCA, MCA, PCA, rotate
from streampca.errors import InvalidInputError
from tests.models.test_eof_views import field
from tests.test_imports import in_a_fresh_process

ASKED = "import sys; print(hasattr(xarray.DataArray, 'streampca'), 'xarray' in sys.modules)"


@pytest.mark.parametrize(
    "imports",
    [
        "import streampca, importlib.util as u; u.find_spec('xarray'); import xarray",
        "import streampca.sources.labelled.opening, xarray",  # as opening a NetCDF file does
        *(
            pytest.param(one, marks=pytest.mark.slow)
            for one in (
                "import xarray, streampca.xarray, importlib as i; i.reload(streampca)",
                "import streampca.sources.labelled.opening, xarray",
            )
        ),
    ],
)
def test_the_accessor_is_registered_once_both_are_imported(imports):
    """That streampca alone does not load xarray is for tests/test_imports.py."""
    code = f"{imports}; {ASKED}; assert not any('AfterX' in repr(f) for f in sys.meta_path)"
    assert in_a_fresh_process(code).split() == ["True", "True"]


def test_pca_and_plan_are_those_of_the_estimator():
    da = field(1)
    model = da.streampca.pca(2, weights="coslat", svd_solver="gram")
    other = PCA(2, weights="coslat", svd_solver="gram").fit(da, dim="time")
    np.testing.assert_array_equal(model.components_, other.components_)
    assert (
        da.streampca.plan(2, dim=["lat", "lon"]).solver
        == PCA(2).plan(da, dim=["lat", "lon"]).solver
    )
    with pytest.raises(InvalidInputError, match="dim='depth' does not exist"):
        da.streampca.pca(2, dim="depth")


@pytest.mark.parametrize("solver", ["gram", "scatter"])
def test_eof_returns_one_dataset(solver):
    da = field(2)
    found = da.streampca.eof(2, scaling=2, pc_scaling=1, svd_solver=solver)
    model = PCA(2, svd_solver=solver).fit(da, dim="time")
    assert set(found) == {"eofs", "pcs", "eigenvalues", "variance_fraction", "north_errors"}
    np.testing.assert_allclose(found.eofs, model.eof_.eofs(2))
    np.testing.assert_allclose(found.pcs, model.project(da, 1), atol=1e-12)
    np.testing.assert_allclose(found.north_errors, found.eigenvalues * np.sqrt(2 / 7))
    anomalies = (found.eofs * found.pcs).sum("component").transpose(*da.dims)
    np.testing.assert_allclose(anomalies, model.reconstruct(2, model.transform(da), mean=False))


def test_eof_rotated_and_of_several_variables():
    dataset = xr.Dataset({"sst": field(3), "slp": field(4)})
    found = dataset.streampca.eof(3, rotation="varimax", scaling=2)
    assert set(found) == {"eofs_sst", "eofs_slp", "pcs", "eigenvalues", "variance_fraction"}
    turned = rotate(PCA(3).fit(dataset, dim="time"), "varimax")
    np.testing.assert_allclose(found.eofs_slp, turned.eof_.eofs(2).slp)
    assert dataset[["sst"]].streampca.pca(2).n_features_in_ == 20


def test_cca_and_mca_are_those_of_the_estimators():
    rng = np.random.default_rng(0)
    da = field(1)
    times = da.sizes["time"]
    other = xr.DataArray(
        rng.standard_normal((times, 3)), dims=("time", "index"), coords={"time": da["time"]}
    )
    mca = da.streampca.mca(other, 2, weights=("coslat", None))
    expected = MCA(2, weights=("coslat", None)).fit(da, other, dim="time")
    np.testing.assert_array_equal(mca.x_patterns_, expected.x_patterns_)
    cca = other.streampca.cca(da, 1, pca=(2, 2))
    found = CCA(1, pca=(2, 2)).fit(other, da, dim="time").correlations_
    np.testing.assert_array_equal(cca.correlations_, found)
