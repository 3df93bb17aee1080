"""Time steps of a field without any observation: left out of the fit, NaN in the scores."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import xarray

import streampca
from streampca import MCA, PCA, SparsePCA
from streampca.cli import main
from streampca.errors import DroppedFeaturesWarning, EmptySamplesWarning, NonFiniteError

pytestmark = pytest.mark.filterwarnings(
    f"ignore::streampca.errors.{DroppedFeaturesWarning.__name__}"
)
EMPTY = [0, 7, 8, 39]


def field_of(n: int, *grid: int) -> xarray.DataArray:
    """A field over time with land (NaN throughout) and empty time steps."""
    rng = np.random.default_rng(0)
    p = int(np.prod(grid))
    x = rng.normal(size=(n, 5)) * [16, 8, 4, 2, 1] @ rng.normal(size=(5, p))
    x += 0.1 * rng.normal(size=x.shape)
    x[:, 1] = np.nan
    x[EMPTY] = np.nan
    return xarray.DataArray(
        x.reshape(n, *grid),
        dims=("time", "lat", "lon"),
        coords={
            "time": np.datetime64("2000-01-01") + np.arange(n) * np.timedelta64(30, "D"),
            "lat": np.linspace(-60, 60, grid[0]),
        },
        name="sst",
    )


TALL, WIDE = field_of(80, 3, 4), field_of(40, 10, 20)
FIELDS = {
    "tall": TALL,
    "wide": WIDE,
    "lazy": TALL.chunk(time=10),
    "lazy wide": WIDE.chunk(time=8, lat=5),
    "features streamed": WIDE.chunk(time=-1, lat=1),
}


def fitted(model: PCA, field: Any, **more: Any) -> PCA:
    with pytest.warns(EmptySamplesWarning, match=rf"4 of {field.sizes['time']} samples .* 2000"):
        return model.fit(field, **more)


def same(found: Any, expected: Any) -> None:
    np.testing.assert_allclose(found, expected, rtol=1e-7, atol=1e-7)


@pytest.mark.parametrize("name", FIELDS)
@pytest.mark.parametrize("scale", [None, "std"])
def test_a_field_without_them_gives_the_same(name: str, scale: str | None) -> None:
    field = FIELDS[name]
    left = field.dropna("time", how="all")
    found, direct = fitted(PCA(3, scale=scale), field), PCA(3, scale=scale).fit(left)
    for one in ("components_", "explained_variance_", "mean_", "explained_variance_ratio_"):
        same(getattr(found, one), getattr(direct, one))
    assert found.n_samples_ == direct.n_samples_ == field.sizes["time"] - 4
    assert list(np.flatnonzero(~found.result_.fitted)) == EMPTY
    scores = found.transform(field)
    assert scores.dims == ("time", "component")
    assert scores.sizes["time"] == field.sizes["time"]
    empty = np.isnan(scores.values)
    assert list(np.flatnonzero(empty.all(axis=1))) == EMPTY
    assert empty.sum() == 12
    same(scores.dropna("time"), direct.transform(left))
    same(found.transform(left), direct.transform(left))
    with pytest.warns(EmptySamplesWarning) as warned:
        same(PCA(3, scale=scale).fit_transform(field), scores)
    assert {one.filename for one in warned} == {__file__}


@pytest.mark.parametrize("solver", ["scatter", "gram", "tsqr", "randomized", "arpack"])
def test_every_way_leaves_them_out(solver: str) -> None:
    model = PCA(3, svd_solver=solver, random_state=0)
    same(
        fitted(model, TALL).explained_variance_,
        PCA(3).fit(TALL.dropna("time", how="all")).explained_variance_,
    )


def test_weights_and_what_is_removed_are_those_of_the_rest() -> None:
    keep = np.setdiff1d(np.arange(80), EMPTY)
    left, counts, index = TALL[keep], np.arange(80.0) % 5, np.sin(np.arange(80.0))
    for weight in (None, counts):
        found = fitted(PCA(3, weights="coslat", remove=[index]), TALL, sample_weight=weight)
        direct = PCA(3, weights="coslat", remove=[index[keep]])
        direct.fit(left, sample_weight=None if weight is None else weight[keep])
        same(found.components_, direct.components_)
        same(found.explained_variance_, direct.explained_variance_)
        scores = found.transform(TALL, remove=[index])
        same(scores[keep], direct.transform(left, remove=[index[keep]]))
        assert np.isnan(scores[EMPTY]).all()


def test_saved_views_and_rows_know_them(tmp_path: Path) -> None:
    model = fitted(PCA(3), WIDE)
    again = streampca.load(model.save(tmp_path / "model"))
    np.testing.assert_array_equal(again.result_.fitted, model.result_.fitted)
    pcs = again.eof_.pcs(1)
    assert pcs.sizes["time"] == 40
    assert np.isnan(pcs.isel(time=EMPTY)).all()
    same(pcs.dropna("time").var("time", ddof=1), np.ones(3))
    assert again.result_.to_xarray()["scores"].sizes["time"] == 40
    rows = again.reconstruct(3)
    assert np.isnan(rows.isel(time=EMPTY)).all()
    assert float(abs(rows - WIDE).max()) < 20.0


def test_new_fields_may_have_them_too() -> None:
    model = PCA(3).fit(TALL.dropna("time", how="all"))
    assert model.result_.fitted is None
    for field in (TALL, TALL.chunk(time=10), TALL.chunk(time=-1, lat=1)):
        scores = model.transform(field)
        assert np.isnan(scores[EMPTY]).all()
        same(scores[1:7], model.transform(TALL[1:7]))
    assert np.isnan(model.transform(TALL[:1])).all()


def test_a_stored_field_whose_features_are_streamed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("streampca.models.results.row_maps.easier_axis", lambda matrix: 1)
    path = tmp_path / "x.zarr"
    WIDE.chunk(time=-1, lat=1).to_dataset().to_zarr(path, consolidated=False)
    field = xarray.open_zarr(path, chunks=None, consolidated=False)["sst"]
    left = WIDE.dropna("time", how="all")
    direct = PCA(3).fit(left)
    model = fitted(PCA(3), field)
    same(model.explained_variance_, direct.explained_variance_)
    scores = model.transform(field)
    assert np.isnan(scores[EMPTY]).all()
    same(scores.dropna("time"), direct.transform(left))
    with pytest.raises(NonFiniteError, match="Input X contains NaN"):
        direct.transform(left.where(left.lat > 0))


def test_other_holes_are_refused_as_before() -> None:
    partly = TALL.copy()
    partly[20, 2, 3] = np.nan
    with pytest.raises(NonFiniteError, match="Input X contains NaN"):
        PCA(3).fit(partly)
    with pytest.raises(NonFiniteError, match="Input X contains NaN"):
        PCA(3).fit(partly.dropna("time", how="all"))
    model = PCA(3).fit(TALL.dropna("time", how="all"))
    for field in (partly, partly.chunk(time=10), partly[9:30]):
        with pytest.raises(NonFiniteError, match="Input X contains NaN"):
            np.asarray(model.transform(field))
    with pytest.raises(NonFiniteError, match="missing='mean'"):
        PCA(3).fit(TALL.values.reshape(80, -1))


def test_a_checkpoint_is_of_the_fit_that_is_made(tmp_path: Path) -> None:
    model = fitted(PCA(3, checkpoint=str(tmp_path / "c")), TALL.chunk(time=10))
    same(model.explained_variance_, PCA(3).fit(TALL.dropna("time", how="all")).explained_variance_)
    assert model.cost_[0].name == "empty samples"


@pytest.mark.parametrize("chunks", [{"time": 10, "lat": 10}, {"time": 40, "lat": 1}])
def test_the_path_of_a_store_gives_what_its_field_gives(
    tmp_path: Path, chunks: dict[str, int]
) -> None:
    path = str(tmp_path / "x.zarr")
    WIDE.chunk(chunks).to_dataset().to_zarr(path, consolidated=False)
    direct = PCA(3).fit(WIDE.dropna("time", how="all"))
    for source in (path, streampca.open(path)):
        with pytest.warns(EmptySamplesWarning, match=r"4 of 40 samples have no observation"):
            model = PCA(3).fit(source)
        same(model.explained_variance_, direct.explained_variance_)
        scores = np.asarray(model.transform(source))
        assert list(np.flatnonzero(np.isnan(scores).all(axis=1))) == EMPTY
        same(np.delete(scores, EMPTY, axis=0), direct.transform(WIDE.dropna("time", how="all")))


@pytest.mark.filterwarnings(f"default::streampca.errors.{EmptySamplesWarning.__name__}")
def test_the_command_line_leaves_them_out_and_counts_them(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path, model = str(tmp_path / "x.zarr"), str(tmp_path / "m")
    WIDE.chunk(time=10).to_dataset().to_zarr(path, consolidated=False)
    scores = str(tmp_path / "scores.zarr")
    assert main(["fit", path, "-k", "3", "-o", model, "--scores", scores]) == 0
    assert "4 of 40 samples have no observation" in capsys.readouterr().err
    direct = PCA(3).fit(WIDE.dropna("time", how="all"))
    same(streampca.load(model).explained_variance_, direct.explained_variance_)
    written = np.asarray(streampca.open(scores).read(0, 0, 40))
    assert list(np.flatnonzero(np.isnan(written).all(axis=1))) == EMPTY


@pytest.mark.slow
def test_sparse_components_leave_them_out() -> None:
    left = TALL.dropna("time", how="all")
    direct = SparsePCA(2, n_nonzero=5, progress=False).fit(left)
    with pytest.warns(EmptySamplesWarning, match=r"4 of 80 samples .* 2000"):
        model = SparsePCA(2, n_nonzero=5, progress=False).fit(TALL)
    same(model.components_, direct.components_)
    same(model.explained_variance_, direct.explained_variance_)
    scores = model.transform(TALL)
    assert list(np.flatnonzero(np.isnan(scores.values).all(axis=1))) == EMPTY
    same(scores.dropna("time"), direct.transform(left))


def test_pairs_of_fields_leave_out_what_is_empty_in_either() -> None:
    other = TALL[:, 1:] + TALL[:, :-1].values ** 2 / 50
    other[30] = np.nan
    rows = np.setdiff1d(np.arange(80), [*EMPTY, 30])
    weight = 1.0 + np.arange(80) % 3
    direct = MCA(2, progress=False).fit(TALL[rows], other[rows], sample_weight=weight[rows])
    model = MCA(2, progress=False)
    with pytest.warns(EmptySamplesWarning, match="5 of 80 samples"):
        model.fit(TALL, other, sample_weight=weight)
    same(model.result_.values, direct.result_.values)
    scores = model.transform(TALL, other)
    for found, expected in zip(scores, direct.transform(TALL[rows], other[rows]), strict=True):
        same(found[rows], expected)
        assert np.isnan(found[EMPTY]).all()
    assert np.isnan(scores[1][30]).all()
    assert not np.isnan(scores[0][30]).any()
