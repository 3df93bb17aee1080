"""Embeddings: filters, landmarks, memory and judgement, with a small layout in the place of a
library; and the libraries themselves, where they are installed."""

from __future__ import annotations

import sys
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import zarr
from sklearn.decomposition import PCA as Oracle
from sklearn.manifold import trustworthiness

import streampca
from streampca.cli import main
from streampca.embedding import plan_embedding, quality
from streampca.embedding.layouts import LIBRARIES, layout_of
from streampca.embedding.plan import FEWEST
from streampca.errors import (
    InvalidInputError,
    InvalidTypeError,
    MemoryLimitError,
    MissingDependencyError,
)

rng = np.random.default_rng(0)
CENTRES = 8 * rng.standard_normal((5, 12))
GROUPS = rng.integers(0, 5, 900)
X = CENTRES[GROUPS] + rng.standard_normal((900, 12))


class TwoAxes:
    """A layout as libraries offer them: the two widest directions of the rows of the fit."""

    def __init__(self) -> None:
        self.seen: list[int] = []

    def fit_transform(self, rows: np.ndarray) -> np.ndarray:
        assert rows.dtype == np.float32
        assert rows.flags.c_contiguous
        self.oracle = Oracle(2, svd_solver="full").fit(rows)
        return self.transform(rows)

    def transform(self, rows: np.ndarray) -> np.ndarray:
        self.seen.append(len(rows))
        return np.asarray(self.oracle.transform(rows))


def embed(data: Any = X, **options: Any) -> streampca.Embedding:
    return streampca.embed(data, **{"method": TwoAxes(), "progress": False, **options})


def test_all_rows_are_laid_out_on_the_components() -> None:
    found = embed(n_components=6)
    oracle = Oracle(6, svd_solver="full").fit_transform(X)
    np.testing.assert_allclose(np.abs(found.scores), np.abs(oracle), atol=1e-4)
    np.testing.assert_allclose(np.abs(found.coordinates), np.abs(oracle[:, :2]), atol=1e-4)
    assert found.coordinates.dtype == np.float32
    assert found.share == pytest.approx(Oracle(6).fit(X).explained_variance_ratio_.sum())


def test_landmarks_are_a_seeded_sample_and_the_others_are_placed() -> None:
    layout = TwoAxes()
    found = embed(n_components=6, landmarks=200, random_state=3, method=layout)
    assert layout.seen == [200, 700]
    assert found.landmarks.tolist() == embed(landmarks=200, random_state=3).landmarks.tolist()
    assert found.landmarks.tolist() != embed(landmarks=200, random_state=4).landmarks.tolist()
    expected = layout.oracle.transform(found.scores)
    np.testing.assert_allclose(found.coordinates, expected, atol=1e-5)


def test_other_rows_are_placed_in_the_picture() -> None:
    found = embed(filter="variance:7", n_components=4)
    np.testing.assert_allclose(found.transform(X[:50]), found.coordinates[:50], atol=1e-4)


def test_filters_of_one_pass(tmp_path: Path) -> None:
    x = X + 20
    x[rng.random(X.shape) < 0.02] = np.nan
    x[:300, 4] = np.nan
    zarr.create_array(str(tmp_path / "x.zarr"), data=x, chunks=(128, 12))
    model = streampca.PCA(4, missing="mean")
    wanted = ["variance:6", "missing:0.1"]
    found = embed(str(tmp_path / "x.zarr"), filter=wanted, model=model)
    variance = np.nanvar(x, axis=0)
    variance[4] = -1
    assert found.filtered.matrix.chosen[1].tolist() == sorted(np.argsort(-variance)[:6])
    assert found.filtered.steps == (("missing:0.1", 11), ("variance:6", 6))
    assert found.filtered.passes == 1
    assert not hasattr(model, "result_")
    dispersed = embed(x, filter="dispersion:5,missing:0.1", model=model)
    ratio = np.nanvar(x, axis=0, ddof=1) / np.abs(np.nanmean(x, axis=0))
    ratio[4] = -1
    assert dispersed.filtered.matrix.chosen[1].tolist() == sorted(np.argsort(-ratio)[:5])


def test_filters_of_genotypes() -> None:
    draw = np.random.default_rng(1)
    calls = draw.binomial(2, np.linspace(0.001, 0.5, 80), (400, 80)).astype(np.int8)
    calls[:, 41] = calls[:, 40]
    model = streampca.GenotypePCA(3, variants=streampca.VariantFilter(chromosomes="all"))
    found = embed(calls, filter=["ld:0.5", "maf:0.05"], model=model)
    share = calls.mean(axis=0) / 2
    common = np.minimum(share, 1 - share) >= 0.05
    assert found.filtered.steps == (("maf:0.05", common.sum()), ("ld:0.5", common.sum() - 1))
    with pytest.raises(InvalidInputError, match="needs allele counts from 0 to 2"):
        embed(X, filter="maf:0.05")


@pytest.mark.parametrize(
    "wanted",
    [
        "variance",
        "variance:0",
        "variance:2.5",
        "maf:2",
        "size:3",
        "ld:x",
        ["missing:0.1", "missing:0.2"],
        ["variance:3", "dispersion:3"],
    ],
)
def test_filters_that_cannot_be(wanted: Any) -> None:
    with pytest.raises(InvalidInputError, match="filter="):
        embed(filter=wanted)


def test_a_filter_that_leaves_nothing_is_named() -> None:
    with pytest.raises(InvalidInputError, match="missing:0 leaves none of 12"):
        embed(np.where(np.eye(900, 12, dtype=bool), np.nan, X), filter="missing:0")


def test_judgement_of_all_rows_is_scikit_learns() -> None:
    picture = X[:, :2] + rng.standard_normal((900, 2))
    for near in (5, 15):
        found = quality(X, picture, np.arange(900), near)
        assert found.trustworthiness == pytest.approx(
            trustworthiness(X, picture, n_neighbors=near), abs=1e-12
        )
        assert found.trustworthiness_error == found.knn_error == 0.0
    some = quality(X, picture, np.arange(0, 900, 3))
    whole = quality(X, picture, np.arange(900))
    assert 0 < abs(some.knn_preservation - whole.knn_preservation) < 4 * some.knn_error
    assert quality(X, X, np.arange(100)).knn_preservation == 1.0
    shuffled = quality(X, rng.permutation(X), np.arange(900))
    assert shuffled.knn_preservation == pytest.approx(shuffled.chance, abs=0.01)
    assert shuffled.trustworthiness == pytest.approx(0.5, abs=0.03)


def test_memory_is_planned_with_the_layout() -> None:
    class Wide(TwoAxes):
        pass

    plan = plan_embedding(X, method=Wide(), n_components=4, landmarks=100, filter="variance:5")
    assert (plan.landmarks, plan.features) == (100, 5)
    assert "100 rows; 800 rows are placed" in str(plan)
    with pytest.raises(MemoryLimitError, match=r"memory_limit='(.*?)'") as told:
        embed(memory_limit="200MiB", n_components=4)
    found = embed(memory_limit=told.value.smallest, n_components=4)
    assert found.plan.peak_nbytes <= found.plan.memory_limit


def test_a_limit_chooses_the_landmarks() -> None:
    class Fake:
        UMAP = staticmethod(lambda **settings: TwoAxes())

    sys.modules["umap"], before = Fake, sys.modules.get("umap")  # type: ignore[assignment]
    try:
        rows = np.lib.stride_tricks.as_strided(X, (300_000, 12), (0, 8))
        wide = plan_embedding(rows, n_components=3)
        assert wide.landmarks == 100_000
        small = plan_embedding(rows, n_components=3, memory_limit="1500MiB")
        assert FEWEST <= small.landmarks < 100_000
        assert small.peak_nbytes <= 1500 << 20
        with pytest.raises(MemoryLimitError, match="layout of 100,000 rows"):
            plan_embedding(rows, n_components=3, landmarks=100_000, memory_limit="1500MiB")
    finally:
        sys.modules.pop("umap")
        if before is not None:
            sys.modules["umap"] = before


def test_what_is_refused_before_reading(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(InvalidInputError, match="method='sne'"):
        embed(method="sne")
    with pytest.raises(InvalidTypeError, match="fit_transform"):
        embed(method=TwoAxes)
    with pytest.raises(InvalidInputError, match="min_dist to TwoAxes itself"):
        embed(min_dist=0.2)
    with pytest.raises(InvalidInputError, match="give k to the model"):
        embed(n_components=3, model=streampca.PCA(3))
    with pytest.raises(InvalidTypeError, match="model of one matrix"):
        embed(model=streampca.CCA(2))
    with pytest.raises(InvalidInputError, match="landmarks=1"):
        embed(landmarks=1)
    with pytest.raises(InvalidInputError, match="n_queries=0"):
        embed(n_queries=0)
    for method, library in LIBRARIES.items():
        monkeypatch.setitem(sys.modules, library.module, None)  # as where it is not installed
        with pytest.raises(MissingDependencyError, match=rf"pip install 'streampca\[{method}\]'"):
            embed(method=method)


def test_a_layout_of_another_shape_is_refused() -> None:
    class Three(TwoAxes):
        def transform(self, rows: np.ndarray) -> np.ndarray:
            return rows[:, :3]

    with pytest.raises(InvalidInputError, match=r"gave \(900, 3\)"):
        embed(method=Three())


def test_the_picture_carries_its_warnings(tmp_path: Path) -> None:
    found = embed(n_components=3)
    drawn = streampca.plots.embedding(found, labels=GROUPS)
    text = drawn.get_xlabel()
    for warning in ("Axes have no", "Cluster sizes have no", "Distances between clusters have no"):
        assert warning in text
    assert "trustworthiness" in text
    assert not len(drawn.get_xticks())
    streampca.plots.embedding_page(found, tmp_path / "map.html")
    page = (tmp_path / "map.html").read_text()
    assert "Distances between clusters have no meaning" in page
    assert 'alt="' in page
    assert "http" not in page
    with pytest.raises(InvalidTypeError, match=r"streampca.embed\(X\)"):
        streampca.plots.embedding(streampca.PCA(2).fit(X))


@pytest.mark.parametrize("method", LIBRARIES)
@pytest.mark.slow
def test_the_libraries(method: str) -> None:
    """Digits: the picture of 50 components is as good as that of the raw data, and repeats."""
    library = LIBRARIES[method]
    if find_spec(library.module) is None:
        pytest.skip(f"{library.package} is not installed: pip install 'streampca[{method}]'")
    from sklearn.datasets import load_digits

    digits = load_digits().data
    found = streampca.embed(digits, method=method, progress=False)
    again = streampca.embed(digits, method=method, progress=False)
    np.testing.assert_array_equal(found.coordinates, again.coordinates)
    raw = layout_of(method).make(0).fit_transform(digits.astype(np.float32))
    ours, theirs = (
        trustworthiness(digits, one, n_neighbors=15) for one in (found.coordinates, raw)
    )
    assert ours > theirs - 0.005
    placed = streampca.embed(digits, method=method, landmarks=900, progress=False)
    assert trustworthiness(digits, placed.coordinates, n_neighbors=15) > 0.95


def test_the_command(tmp_path: Path, capsys: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    class Fake:
        UMAP = staticmethod(lambda **settings: TwoAxes())

    monkeypatch.setitem(sys.modules, "umap", Fake)
    np.save(tmp_path / "x.npy", X)
    (tmp_path / "labels").write_text("\n".join(map(str, GROUPS)))
    command = ["embed", str(tmp_path / "x.npy"), "--filter", "variance:9", "-k", "5"]
    assert main([*command, "--plan"]) == 0
    assert "variance:9; at most 9 features" in capsys.readouterr().out
    outputs = ["-o", str(tmp_path / "e.zarr"), "--plot", str(tmp_path / "map.html")]
    assert main([*command, *outputs, "--labels", str(tmp_path / "labels")]) == 0
    told = capsys.readouterr().out
    assert "k-NN preservation" in told
    assert "variance:9 leaves 9" in told
    expected = embed(filter="variance:9", n_components=5).coordinates
    np.testing.assert_array_equal(zarr.open(str(tmp_path / "e.zarr"))[:], expected)
    assert main([*command, *outputs]) == 73
    holes = np.where(np.random.default_rng(5).random(X.shape) < 0.02, np.nan, X)
    np.save(tmp_path / "x.npy", holes)
    assert main(command) == 65
    assert "missing" in capsys.readouterr().err
    filled = ["-k", "4", "--missing", "impute", "-o", str(tmp_path / "f.zarr"), "--quiet"]
    assert main([*command, *filled]) == 0
    model = streampca.PCA(4, missing="impute")
    expected = embed(holes, filter="variance:9", model=model).coordinates
    np.testing.assert_array_equal(zarr.open(str(tmp_path / "f.zarr"))[:], expected)
    assert main([*command, "--scale", "hwe", "--missing", "impute"]) == 65
    assert "leave out --missing" in capsys.readouterr().err
    assert main([*command, "--plot", str(tmp_path / "map.docx")]) == 65
