"""Sparse PCA beyond the covariance: finite ridges, paths of penalties, groups of features."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import dask.array as da
import numpy as np
import pytest

import streampca
from streampca import SparsePCA
from streampca.errors import InvalidInputError
from streampca.models.sparse import sweeps as sparse_sweeps
from streampca.models.sparse.sweeps import WorkingSet
from streampca.solvers.sparse_components import Penalty
from tests.models.test_sparse_pca import FREE, quiet, spiked

GROUPS = np.repeat(np.arange(15), 4)


def correlated(seed: int, p: int = 24) -> np.ndarray:
    """Few factors: features that a regression takes up although they hardly vary with its image."""
    rng = np.random.default_rng(seed)
    return rng.normal(size=(80, 6)) @ rng.normal(size=(6, p)) + 0.5 * rng.normal(size=(80, p))


def blocks(x: np.ndarray) -> Any:
    return da.from_array(x, (40, x.shape[1]))


@pytest.mark.soak
@pytest.mark.parametrize("asked", [{"n_nonzero": 8}, {"alpha": 1.0}, {"alpha": (0.5, 4.0)}])
@pytest.mark.parametrize("ridge", [0.5, 1e-6])
def test_a_finite_ridge_needs_no_covariance_of_all(
    asked: dict[str, Any], ridge: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sparse_sweeps, "WORKING", 25)
    monkeypatch.setattr(sparse_sweeps, "SPARE", 1)
    for seed, scale in ((0, None), (2, "std")):
        x = spiked(seed)
        more = {"ridge": ridge, "tol": 1e-6, **asked}
        if scale:  # a spike is a share of variances that are all 1
            more |= {"scale": scale} | ({"alpha": 0.8} if "alpha" in asked else {})
        held = quiet(solver="covariance", **more).fit(x)
        read = quiet(solver="sweeps", max_passes=400, **more).fit(blocks(x))
        assert read.plan_.memory["columns"]["covariance of some features"] == 4 * 25**2 * 8
        np.testing.assert_allclose(read.components_, held.components_, atol=1e-10)
        assert np.array_equal(read.components_ == 0, held.components_ == 0)
        assert read.objective_[-1] == pytest.approx(held.objective_[-1], rel=1e-10)


class FromCovariance(WorkingSet):
    """Whose covariance of some features comes from one of all."""

    def __init__(self, S: np.ndarray, size: int) -> None:
        self.S, self.size, self.complete = S, size, True
        self.features, self.covariance = np.zeros(0, np.int64), np.zeros((0, 0))
        self.gathered, self.exhausted = 0, False

    def _take(self, scores: np.ndarray, work: Any) -> Any:
        self.gathered += 1
        self.features = np.sort(np.argsort(-scores)[: self.size])
        self.covariance = self.S[np.ix_(self.features, self.features)]
        yield from ()

    def of_loadings(self, b: np.ndarray) -> Any:
        yield from ()
        return self.S @ b


@pytest.mark.parametrize("asked", ["alpha", "nonzero"])
def test_features_that_were_left_out_are_taken_up(asked: str) -> None:
    """Some that hardly vary with the image enter where others stand beside them."""
    again = 0
    for seed in range(12):
        z = correlated(seed)
        S = z.T @ z / 80
        images = S @ np.linalg.qr(np.random.default_rng(seed).normal(size=(24, 2)))[0]
        if asked == "alpha":
            penalty = Penalty(None, np.array([1.0, 3.0]), 0.1)
        else:
            penalty = Penalty(np.array([4.0, 5.0]), None, 0.1)
        expected = penalty.regressed(S, images)
        working = FromCovariance(S, 16)
        steps = working.regressed(images, penalty, working)
        with pytest.raises(StopIteration) as done:
            next(steps)
        b, sb = done.value.value
        np.testing.assert_allclose(b, expected, atol=1e-11)
        np.testing.assert_allclose(sb, S @ expected, atol=1e-10)
        again += working.gathered > 1
    assert again >= 3
    few = FromCovariance(S, 6)
    penalty = Penalty(None, np.array([0.1, 0.1]), 0.1)
    with pytest.raises(InvalidInputError, match="covariance of 6 is held; give a larger alpha"):
        next(few.regressed(images, penalty, few))


@pytest.mark.parametrize("ridge", [FREE, 0.5])
def test_a_path_is_its_penalties_in_the_same_reads(ridge: float) -> None:
    x, alphas = spiked(0), [4.0, 2.0, (1.0, 1.5)]
    more = {"ridge": ridge, "tol": 1e-6}
    read = quiet(path=alphas, solver="sweeps", max_passes=300, **more).fit(blocks(x))
    held = quiet(path=alphas, solver="covariance", **more).fit(x)
    reads = []
    for alpha, a, b in zip(alphas, read.path_, held.path_, strict=True):
        alone = quiet(alpha=alpha, solver="sweeps", max_passes=300, **more).fit(blocks(x))
        reads.append(len(alone.cost_))
        for point in (a, b):
            np.testing.assert_array_equal(point.alpha, np.broadcast_to(alpha, 2))
            assert point.objective == pytest.approx(alone.objective_[-1], rel=1e-9)
            assert np.array_equal(point.nonzero, alone.result_.nonzero)
            np.testing.assert_allclose(point.explained_variance, alone.explained_variance_)
            np.testing.assert_allclose(
                point.explained_variance_ratio, alone.explained_variance_ratio_
            )
    np.testing.assert_allclose(alone.components_, read.components_, atol=1e-9)  # of the last
    assert len(read.cost_) <= max(reads) + 2 < sum(reads)


@pytest.mark.soak
def test_of_a_path_the_sparsest_that_explains_enough_is_taken(tmp_path: Path) -> None:
    x, alphas = spiked(0), [8.0, 4.0, 0.1]
    sums = [one.explained_variance.sum() for one in quiet(path=alphas).fit(x).path_]
    assert sums == sorted(sums)
    share = (sums[1] / sums[2] + sums[0] / sums[2]) / 2
    model = quiet(path=alphas, path_share=share).fit(x)
    one = quiet(alpha=4.0).fit(x)
    np.testing.assert_array_equal(model.components_, one.components_)
    assert np.array_equal(model.path_[1].nonzero, model.result_.nonzero)
    assert quiet(alpha=4.0).fit(x).path_ == []
    model.save(tmp_path / "m")
    loaded = streampca.load(tmp_path / "m")
    assert [p.objective for p in loaded.path_] == [p.objective for p in model.path_]
    S = np.cov(x.T)
    alone = SparsePCA.from_covariance(
        S, n_components=2, path=alphas, path_share=share, n_samples=150
    )
    np.testing.assert_allclose(alone.components_, model.components_, atol=1e-8)


@pytest.mark.parametrize("asked", [{"alpha": 1.0}, {"n_nonzero": 5}, {"path": [3.0, 1.0]}])
def test_groups_are_in_or_out_as_a_whole(asked: dict[str, Any]) -> None:
    for seed in (1, 2):
        x = spiked(seed)
        names = np.array([f"group {i % 7}{i}" for i in range(15)])[GROUPS]
        held = quiet(groups=names, solver="covariance", **asked).fit(x)
        read = quiet(groups=GROUPS, solver="sweeps", max_passes=300, **asked).fit(blocks(x))
        np.testing.assert_allclose(read.components_, held.components_, atol=1e-12)
        assert read.objective_[-1] == pytest.approx(held.objective_[-1], rel=1e-12)
        on = held.components_.reshape(2, 15, 4) != 0
        assert np.array_equal(on.any(axis=2), on.all(axis=2))
        assert not on.all()
        if "n_nonzero" in asked:
            assert on.any(axis=2).sum(axis=1).tolist() == [5, 5]
        if "alpha" in asked:
            assert np.all(np.diff(held.objective_) < 1e-9)


def test_a_group_threshold_is_the_proximal_point() -> None:
    """Zero is a subgradient of |b - s|^2 + alpha sum_g sqrt(p_g) |b_g| (Yuan and Lin, eq. 2.3)."""
    rng = np.random.default_rng(0)
    groups = rng.integers(0, 6, 40)
    groups[:6] = np.arange(6)
    s, alpha = rng.normal(size=40), 1.5
    b = Penalty(None, np.array([alpha]), np.inf, groups).thresholded(s[:, None])[:, 0]
    kept = 0
    for g in range(6):
        mine, level = groups == g, alpha * np.sqrt(np.count_nonzero(groups == g))
        if b[mine].any():
            kept += 1
            slope = 2 * (b - s)[mine] + level * b[mine] / np.linalg.norm(b[mine])
            np.testing.assert_allclose(slope, 0, atol=1e-12)
        else:
            assert 2 * np.linalg.norm(s[mine]) <= level
    assert 0 < kept < 6


def test_parameters_that_exclude_each_other_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    x = spiked(6)
    for parameters, words in (
        ({"path": [1.0], "alpha": 1.0}, "alpha= and path= are given"),
        ({"path": 3.0}, "expected a sequence of alphas"),
        ({"path": []}, "expected a sequence of alphas"),
        ({"path": [1.0, -1.0]}, "expected 0 or more"),
        ({"path_share": 0.5}, "of path="),
        ({"path": [1.0], "path_share": 2.0}, r"path_share=2\.0"),
        ({"groups": GROUPS[:5]}, "expected one for each of 60"),
        ({"groups": GROUPS, "ridge": 1.0}, r"give ridge=float\('inf'\)"),
        ({"groups": GROUPS, "n_nonzero": 16}, "from 1 to 15, that of the groups"),
    ):
        with pytest.raises(InvalidInputError, match=words):
            quiet(**parameters).fit(x)
    monkeypatch.setattr("streampca.models.sparse.sweeps.easier_axis", lambda matrix: 1)
    with pytest.raises(InvalidInputError, match="takes chunks that hold whole samples"):
        quiet(solver="sweeps", ridge=0.5).plan(x)
