"""R^2 of PCA beside random directions and chosen features: rows made again, one read, a picture."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import zarr

from streampca import PCA, RandomProjection, plots, r2_baselines
from streampca.cli import main
from streampca.errors import InvalidInputError, InvalidTypeError, MemoryLimitError, NonFiniteError

RNG = np.random.default_rng(2)
N, P, K = 120, 15, 8
X = RNG.standard_normal((N, 4)) @ RNG.standard_normal((4, P)) + 0.3 * RNG.standard_normal((N, P))
X = X * np.linspace(1, 3, P) + 100.0
CURVES = ["PCA", "random projection", "random features", "highest-variance features"]


def r2_of(values: np.ndarray, directions: np.ndarray, regress: bool) -> float:
    """R^2 of rows made again from their scores, by explicit least squares."""
    z = values - values.mean(axis=0)
    scores = z @ directions if regress else None
    if regress:
        made = scores @ np.linalg.lstsq(scores, z, rcond=None)[0]
    else:
        made = z @ directions @ np.linalg.pinv(directions)
    return float(1.0 - np.sum((z - made) ** 2) / np.sum(z**2))


@pytest.mark.parametrize("scale", [None, "std"])
@pytest.mark.parametrize("how", ["projection", "regression"])
def test_every_curve_is_that_of_rows_made_again(how: str, scale: str | None) -> None:
    found = r2_baselines(X, K, reconstruction=how, scale=scale, n_draws=1, progress=False)
    assert list(found.curves) == CURVES
    z = X if scale is None else X / X.std(axis=0, ddof=1)
    variance = np.argsort(-X.var(axis=0))
    matrix = RandomProjection(K, progress=False).fit(X).components_.T
    chosen = np.random.default_rng((0, 0)).permutation(P)
    axes = np.eye(P)
    directions = dict(
        zip(
            CURVES,
            (np.linalg.svd(z - z.mean(axis=0))[2].T, matrix, axes[:, chosen], axes[:, variance]),
            strict=True,
        )
    )
    for name, vectors in directions.items():
        expected = [r2_of(z, vectors[:, :k], how == "regression") for k in range(1, K + 1)]
        np.testing.assert_allclose(found.curves[name][1:], expected, atol=1e-10, err_msg=name)
        assert found.curves[name][0] == 0.0
    np.testing.assert_allclose(found.curves["PCA"], PCA(K, scale=scale).fit(X).r2_curve())


def test_nothing_is_above_pca_and_random_directions_carry_their_share() -> None:
    for how in ("projection", "regression"):
        found = r2_baselines(X, P, reconstruction=how, n_draws=200, progress=False)
        for name in CURVES[1:]:
            assert np.all(found.curves[name] <= found.curves["PCA"] + 1e-12)
            assert np.all(np.diff(found.curves[name]) >= -1e-12)
            assert found.curves[name][-1] == pytest.approx(1.0)
    plain = r2_baselines(X, P, n_draws=200, progress=False)
    off = plain.curves["random projection"] - np.arange(P + 1) / P
    assert np.all(np.abs(off) <= 4 * plain.spread["random projection"] / np.sqrt(200) + 1e-12)


def test_one_read_and_the_same_for_any_chunks(tmp_path: Path) -> None:
    curves = []
    for rows in (7, 50, N):
        zarr.create_array(str(tmp_path / str(rows)), data=X, chunks=(rows, P))
        found = r2_baselines(str(tmp_path / str(rows)), K, progress=False)
        assert [one.reads for one in found.cost] == [-(-N // rows)]
        curves.append(np.array(list(found.curves.values())))
    np.testing.assert_allclose(curves[1:], [curves[0]] * 2, atol=1e-12)


def test_features_that_repeat_each_other_or_do_not_vary() -> None:
    twice = np.column_stack([X, X[:, 3], np.full(N, 7.0)])
    found = r2_baselines(twice, reconstruction="regression", n_draws=3, progress=False)
    assert found.n_components == P + 2
    for curve in found.curves.values():
        assert np.all(np.diff(curve) >= -1e-12)
        assert curve[-1] == pytest.approx(1.0)
    holes = np.where(RNG.random(X.shape) < 0.05, np.nan, X)
    filled = np.where(np.isnan(holes), np.nanmean(holes, axis=0), holes)
    one, other = (r2_baselines(v, K, missing="mean", progress=False) for v in (holes, filled))
    for name in CURVES:
        np.testing.assert_allclose(one.curves[name], other.curves[name], atol=1e-10)
    with pytest.raises(NonFiniteError):
        r2_baselines(holes, K)


def test_names_tables_and_pictures() -> None:
    frame = pd.DataFrame(X, columns=[f"f{i}" for i in range(P)])
    found = r2_baselines(frame, 3, progress=False)
    expected = frame.var().sort_values(ascending=False).index[:3]
    assert found.features == list(expected)
    table = found.to_xarray()
    assert table.r2.sel(curve="PCA", n_components=3) == found.curves["PCA"][3]
    assert table.standard_deviation.sel(curve="PCA").sum() == 0.0
    assert repr(found).splitlines()[1].split() == [
        "PCA",
        *(f"{found.curves['PCA'][i]:.2%}" for i in (1, 2, 3)),
    ]
    drawn = plots.baselines(found)
    assert [text.get_text() for text in drawn.get_legend().get_texts()] == CURVES
    assert len(drawn.lines) == 4
    assert len(drawn.collections) == 2
    with pytest.raises(InvalidTypeError, match=r"expected what r2_baselines\(X\) returns"):
        plots.baselines(PCA(2).fit(X))


def test_one_command_makes_one_picture(tmp_path: Path, capsys: Any) -> None:
    zarr.create_array(str(tmp_path / "x"), data=X, chunks=(50, P))
    command = ["baselines", str(tmp_path / "x"), "-k", "5", "-o", str(tmp_path / "r2.png")]
    assert main(command) == 0
    assert "highest-variance features" in capsys.readouterr().out
    assert (tmp_path / "r2.png").read_bytes()[:4] == b"\x89PNG"
    assert main([*command, "--json", "--reconstruction", "regression", "--scale", "std"]) == 0
    told = json.loads(capsys.readouterr().out)
    expected = r2_baselines(X, 5, scale="std", reconstruction="regression", progress=False)
    assert told["r2"]["random features"] == pytest.approx(expected.curves["random features"])


@pytest.mark.parametrize(
    ("parameters", "message"),
    [
        ({"n_components": 16}, "n_components=16; expected a number from 1 to 15"),
        ({"n_components": 2.5}, "n_components=2.5; expected a number from 1 to 15"),
        ({"n_draws": 0}, "n_draws=0; expected a number from 1"),
        ({"reconstruction": "pca"}, "reconstruction='pca'; expected one of"),
        ({"scale": "max"}, "scale='max'; expected one of"),
        ({"missing": "zero"}, "missing='zero'; expected one of"),
    ],
)
def test_what_cannot_be_asked(parameters: Any, message: str) -> None:
    with pytest.raises(InvalidInputError, match=message):
        r2_baselines(X, **parameters)
    with pytest.raises(InvalidInputError, match="no feature of X varies"):
        r2_baselines(np.ones((9, 3)))
    with pytest.raises(MemoryLimitError, match="too small for r2_baselines"):
        r2_baselines(X, memory_limit=1000)
