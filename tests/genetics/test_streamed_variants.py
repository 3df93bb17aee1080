"""A fit that streams its components holds nothing of a variant: labels, statistics, loadings."""

from __future__ import annotations

import shutil

import numpy as np
import pytest
from genotypes import random_calls, write_plink

import streampca
from streampca import GenotypePCA, project_samples
from streampca.errors import InvalidInputError, SourceError
from streampca.genetics.local_loadings import LocalComponent, local_components
from streampca.matrix import Column

P = 20_000
pytestmark = pytest.mark.filterwarnings("ignore:.*have no observation")


@pytest.fixture
def path(tmp_path) -> str:
    calls = random_calls(12, P)
    calls[:, 5] = 0  # monomorphic
    calls[:, 9000] = -1  # without a call
    return write_plink(tmp_path / "x", calls, chromosomes=[str(1 + j // 7000) for j in range(P)])


@pytest.fixture
def unheld(monkeypatch) -> None:
    """Nothing of a variant is small enough to be kept."""
    monkeypatch.setattr("streampca.sources.genotypes.plink_tables.HELD", 0)
    monkeypatch.setattr("streampca.models.decompose.gram.HELD", 0)


SETTINGS = {"maf": 0.3, "solver": "gram"}
FIELDS = ("mean", "scale", "missing", "feature_variance", "dropped", "constant", "filtered")


def fits(path, tmp_path, **more):
    held = GenotypePCA(3, **SETTINGS, **more).fit(path)
    return held, GenotypePCA(3, loadings=tmp_path / "v.zarr", **SETTINGS, **more).fit(path)


@pytest.mark.parametrize("more", [{}, {"fit_samples": [f"s{i}" for i in range(9)]}])
def test_what_is_streamed_is_what_would_be_held(path, tmp_path, unheld, more) -> None:
    held, streamed = fits(path, tmp_path, **more)
    assert held.result_.filtered.size > 1000
    for name in FIELDS:
        stored, known = (getattr(one.result_, name) for one in (streamed, held))
        assert isinstance(stored, Column), name
        assert stored.dtype == known.dtype
        np.testing.assert_array_equal(stored, known, name)
    for name in ("mean_", "scale_", "frequencies_", "scores_", "eigenvalues_"):
        found = getattr(streamed, name)
        assert type(found) is np.ndarray
        np.testing.assert_array_equal(found, getattr(held, name), name)
    assert streamed.n_features_used_ == held.n_features_used_
    np.testing.assert_allclose(streamed.components_, held.components_, rtol=0, atol=1e-7)
    assert streamed.result_.components is None  # read, not kept


def test_a_model_of_it_is_the_same_at_rest(path, tmp_path, unheld) -> None:
    held, streamed = fits(path, tmp_path)
    streamed.save(tmp_path / "model")
    loaded = streampca.load(tmp_path / "model").result_
    for name in FIELDS:
        assert type(getattr(loaded, name)) is np.ndarray
        np.testing.assert_array_equal(getattr(loaded, name), getattr(held.result_, name), name)
    for name, values in held.result_.labels.features.extra.items():
        np.testing.assert_array_equal(loaded.labels.features.extra[name], values, name)
    held.save(tmp_path / "held")
    small, large = (
        sum(one.stat().st_size for one in (tmp_path / name).rglob("*") if one.is_file())
        for name in ("model", "held")
    )
    assert small < large - 3 * P  # without the components, and no larger otherwise


def test_new_samples_are_projected_on_it(path, tmp_path, unheld) -> None:
    held, streamed = fits(path, tmp_path)
    some = write_plink(tmp_path / "new", random_calls(5, P, seed=3)[:, :15_000])
    expected = project_samples(held.result_, some)
    streamed.save(tmp_path / "model")
    for result in (streamed.result_, streampca.load(tmp_path / "model").result_):
        found = project_samples(result, some)
        np.testing.assert_allclose(found.scores, expected.scores, rtol=0, atol=1e-5)
        assert found.match.n_matched == expected.match.n_matched
    np.testing.assert_allclose(streamed.transform(path), held.transform(path), rtol=0, atol=2e-4)


def test_to_xarray_says_the_same(path, tmp_path, unheld) -> None:
    held, streamed = (one.result_.to_xarray() for one in fits(path, tmp_path))
    for name in streamed.variables:
        np.testing.assert_array_equal(streamed[name], held[name], str(name))
    assert set(held.variables) - set(streamed.variables) == {"components"}


def test_components_that_were_moved_are_missed_by_name(path, tmp_path) -> None:
    _, model = fits(path, tmp_path)
    shutil.move(tmp_path / "v.zarr", tmp_path / "w.zarr")
    with pytest.raises(SourceError, match=r"streamed to .*v\.zarr.*with_components"):
        _ = model.components_
    again = model.result_.with_components(tmp_path / "w.zarr")
    assert again.components.shape == (3, P)
    GenotypePCA(3, **{**SETTINGS, "maf": 0.2}, loadings=tmp_path / "v.zarr").fit(path)
    with pytest.raises(InvalidInputError, match="another fit wrote"):
        _ = model.components_


def test_ten_times_the_variants_add_little_to_the_plan(tmp_path, monkeypatch, unheld) -> None:
    """Under a tenth where the components are streamed; named terms where they are held."""
    monkeypatch.setattr("streampca.passes.blocks.BLOCK_NBYTES", 1 << 18)
    plans = {}
    for p in (20_000, 200_000):
        calls = np.zeros((4, p), np.int8)
        source = write_plink(tmp_path / f"p{p}", calls)
        plans[p] = GenotypePCA(3, loadings=tmp_path / "v.zarr").plan(source)
        held = GenotypePCA(3, solver="gram").plan(source).memory
        assert held["loadings"]["components"] == 3 * p * 8
        assert held["gram"]["statistics of features"] == 48 * p
        assert held["solver"]["statistics of features"] == 48 * p
    assert plans[200_000].peak_nbytes < 1.01 * plans[20_000].peak_nbytes
    assert "statistics of features" not in plans[200_000].memory["solver"]


# -- windows of linkage, as the components pass -------------------------------------------------


def heaviest(v, chromosome, position, window) -> list[LocalComponent]:
    """The same from sums over all variants at once."""
    order = np.lexsort((position, chromosome))
    code, place = chromosome[order], position[order]
    line = code * (int(place.max()) + 2 * window) + place
    first = np.searchsorted(line, line - window)
    found = []
    for i, one in enumerate(v):
        weight = np.append(0.0, np.cumsum(one[order] ** 2))
        inside = weight[1:] - weight[first]
        last = int(np.argmax(inside))
        share = inside[last] / weight[-1]
        if share > 0.25 and share > 5 * (last - first[last] + 1) / len(line):
            found.append((i, str(code[last]), share))
    return found


@pytest.mark.parametrize("shuffled", [False, True])
@pytest.mark.parametrize("recent", [1, 8])
def test_windows_are_those_of_sums_over_everything(monkeypatch, shuffled, recent) -> None:
    monkeypatch.setattr("streampca.genetics.local_loadings.SQUARES", 1)  # 1024 variants at once
    monkeypatch.setattr("streampca.genetics.local_loadings.RECENT", recent)
    rng = np.random.default_rng(0)
    p, k = 9000, 6
    chromosome = np.repeat([3, 1, 2], [4000, 3000, 2000])
    ends = {4000: 10**8, 3000: 10**7, 2000: 10**8}  # a window of the second is over two blocks
    position = np.concatenate([np.sort(rng.integers(1, end, n)) for n, end in ends.items()])
    v = rng.standard_normal((k, p))
    v[1, 1000:1030] *= 30  # across the end of a piece
    v[2, 3990:4010] *= 40  # across the end of a chromosome
    v[4, 8990:] *= 60
    v /= np.linalg.norm(v, axis=1)[:, None]
    if shuffled:
        order = rng.permutation(p)
        chromosome, position, v = chromosome[order], position[order], v[:, order]
        monkeypatch.setattr("streampca.genetics.local_loadings.COLUMNS_NBYTES", 16 * p)
    found = local_components(v.T, chromosome, position)
    expected = heaviest(v, chromosome, position, 4_000_000)
    assert [(one.component, one.chromosome) for one in found] == [e[:2] for e in expected]
    np.testing.assert_allclose([one.share for one in found], [e[2] for e in expected], rtol=1e-9)
    assert [one.component for one in found if one.component != 2] == [1, 4]
    for one in found:
        inside = (chromosome == int(one.chromosome)) & (position >= one.start)
        inside &= position <= one.stop
        assert np.sum(v[one.component, inside] ** 2) > 0.9 * one.share


def test_float32_columns_are_summed_in_float64() -> None:
    """Two million float32 squares that are added in float32 lose half of a quarter."""
    p = 300_000
    v = np.full((p, 1), 1e-3, np.float32)
    v[-3:] = 0.3
    found = local_components(v, np.ones(p, np.int64), np.arange(p) * 1000)
    assert found[0].share == pytest.approx(0.27 / (0.27 + p * 1e-6), rel=0.02)
