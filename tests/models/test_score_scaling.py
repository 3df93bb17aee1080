"""Scores that are handed back: by the labels of components and samples, with their scaling."""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd
import pytest
import xarray as xr

import streampca
from streampca.errors import InvalidInputError

N = 40
RNG = np.random.default_rng(3)
FIELD = xr.DataArray(
    RNG.normal(size=(N, 4, 3)) * [5.0, 3.0, 1.0],
    dims=("time", "lat", "lon"),
    coords={"time": pd.date_range("2000-01-01", periods=N), "lat": range(4), "lon": range(3)},
)
TURNED = [2, 0, 1]


@pytest.fixture(scope="module")
def pca() -> Any:
    return streampca.PCA(3).fit(FIELD, dim="time")


@pytest.fixture(scope="module")
def raw(pca: Any) -> Any:
    return pca.transform(FIELD)


@pytest.mark.parametrize("scaling", [0, 1, 2])
@pytest.mark.parametrize("pc_scaling", [0, 1, 2])
def test_a_dataset_undoes_the_scaling_that_scores_carry(
    pca: Any, raw: Any, scaling: int, pc_scaling: int
) -> None:
    given = pca.project(FIELD, scaling=scaling)
    found = pca.eof_.dataset(pc_scaling=pc_scaling, scores=given).pcs
    deviation = raw.values.std(axis=0, ddof=1)
    expected = raw.values * [1.0, 1.0 / deviation, deviation][pc_scaling]
    np.testing.assert_allclose(found.values, expected, rtol=1e-9, atol=1e-12)
    assert found.attrs["scaling"] == pc_scaling


@pytest.mark.parametrize("scaling", [1, 2])
def test_scaled_scores_without_attributes_are_told_by_their_spread(pca: Any, scaling: int) -> None:
    with pytest.raises(InvalidInputError, match=f"spread of PCs with scaling={scaling}"):
        pca.eof_.pcs(0, pca.project(FIELD, scaling=scaling).values)


def test_what_a_fit_without_scores_advises_is_right(pca: Any, raw: Any) -> None:
    with pytest.raises(InvalidInputError, match=r"scores=pca\.project\(X\)"):
        pca.eof_.dataset()
    np.testing.assert_allclose(pca.eof_.dataset(scores=pca.project(FIELD)).pcs, raw)


OTHERS = {
    "components 3, 1, 2": lambda raw: raw.isel(component=TURNED),
    "component first": lambda raw: raw.T,
    "both, chunked": lambda raw: raw.isel(component=TURNED).T.chunk(time=7),
}


@pytest.mark.parametrize("name", OTHERS)
def test_components_go_by_their_labels(pca: Any, raw: Any, name: str) -> None:
    given = OTHERS[name](raw)
    for made in (
        pca.inverse_transform,
        lambda s: pca.reconstruct([1, 3], s),
        lambda s: pca.reconstruct([2], s, lazy=True),
        lambda s: pca.eof_.pcs(0, s),
    ):
        np.testing.assert_allclose(made(given), made(raw), rtol=1e-12, atol=1e-12)


def test_samples_of_the_fit_go_by_their_labels(pca: Any, raw: Any) -> None:
    shuffled = raw.isel(time=RNG.permutation(N))
    np.testing.assert_array_equal(pca.eof_.pcs(0, shuffled), raw)
    with pytest.raises(InvalidInputError, match="has no entry for 2000-01-01"):
        pca.eof_.pcs(0, shuffled.assign_coords(time=shuffled.time + np.timedelta64(400, "D")))


def test_scaled_scores_are_reconstructed_and_drawn_as_they_are_meant(pca: Any, raw: Any) -> None:
    scaled = pca.project(FIELD, scaling=2)
    np.testing.assert_allclose(pca.inverse_transform(scaled), pca.inverse_transform(raw))


@pytest.mark.parametrize("kind", [streampca.PCA, streampca.PPCA])
def test_whitened_scores_go_back_to_the_same_rows(kind: Any) -> None:
    plain = kind(3).fit(FIELD, dim="time")
    whitened = kind(3, whiten=True).fit(FIELD, dim="time")
    raw = plain.transform(FIELD)
    expected = plain.inverse_transform(raw)
    unit = whitened.transform(FIELD)
    for scores in (unit, unit.values, raw.assign_attrs(scaling=0), whitened.project(FIELD)):
        rows = np.reshape(whitened.inverse_transform(scores), expected.shape)
        np.testing.assert_allclose(rows, expected)
    with pytest.raises(InvalidInputError, match="this fit removed nothing"):
        plain.inverse_transform(raw, remove=np.ones((N, 1)))


@pytest.fixture(scope="module")
def noisy() -> tuple[Any, Any, Any]:
    """A field in which PPCA's whitening is not division by the deviations, lambda, and v'x."""
    field = FIELD.isel(time=slice(10)) + RNG.normal(size=(10, 4, 3)) * 6.0
    x = field.values.reshape(10, -1)
    x = x - x.mean(axis=0)
    values, vectors = np.linalg.eigh(x.T @ x / 9)
    return field, values[::-1], x @ vectors[:, ::-1][:, :2]


@pytest.mark.parametrize("kind", ["PPCA", "PCA", "IncrementalPCA", "RotatedPCA"])
@pytest.mark.parametrize("solver", ["scatter", "gram"])  # "gram" keeps the scores of the fit
def test_whitened_scores_become_pcs_by_the_deviations_of_the_model(
    noisy: tuple[Any, Any, Any], kind: str, solver: str
) -> None:
    field, values, along = noisy
    options: dict[str, Any] = {"whiten": True}
    options |= {} if kind == "IncrementalPCA" else {"solver": solver}
    model: Any
    if kind == "RotatedPCA":
        model = streampca.RotatedPCA(streampca.PCA(2, **options)).fit(field, dim="time")
        along = model.project(field).values
        deviation = spread = np.sqrt(model.explained_variance_)
    else:
        model = getattr(streampca, kind)(2, **options).fit(field, dim="time")
        noise = values[2:].sum() / 10 if kind == "PPCA" else 0.0  # 12 features, 2 components
        along = along * (values[:2] - noise) / values[:2]  # Tipping and Bishop 1999, section 3.3
        deviation, spread = np.sqrt(values[:2] - noise), np.sqrt(values[:2])
    sign = np.sign((along * model.project(field).values).sum(axis=0))
    along = along * sign
    unit = model.transform(field)
    np.testing.assert_allclose(unit.values, along / deviation, rtol=1e-9)
    for pc_scaling, factor in ((0, 1.0), (1, 1 / spread), (2, spread)):
        pcs = model.eof_.pcs(pc_scaling, unit)
        np.testing.assert_allclose(pcs.values, along * factor, rtol=1e-9)
        np.testing.assert_allclose(model.eof_.pcs(pc_scaling, along), pcs.values, rtol=1e-9)
        np.testing.assert_allclose(model.project(field, pc_scaling), pcs.values, rtol=1e-9)
        rows = model.inverse_transform(model.project(field, pc_scaling))
        np.testing.assert_allclose(rows, model.inverse_transform(unit), rtol=1e-9)
    with pytest.raises(InvalidInputError, match="scores have the spread of PCs with"):
        model.eof_.pcs(0, unit.values)
    if model.result_.scores is not None:
        kept, given = model.reconstruct([1]), model.reconstruct([1], unit)
        np.testing.assert_allclose(kept.values, given.values, rtol=1e-9)


def test_other_components_are_refused(pca: Any, raw: Any) -> None:
    with pytest.raises(InvalidInputError, match=r"components \[4, 5, 6\]; expected"):
        pca.inverse_transform(raw.assign_coords(component=[4, 5, 6]))


def test_columns_of_a_frame_count_up() -> None:
    frame = pd.DataFrame(FIELD.values.reshape(N, -1)[:, :5], columns=list("abcde"))
    model = streampca.PCA(3).set_output(transform="pandas").fit(frame)
    scores = model.transform(frame)
    turned = scores[[scores.columns[i] for i in TURNED]]
    np.testing.assert_allclose(model.inverse_transform(turned), model.inverse_transform(scores))
