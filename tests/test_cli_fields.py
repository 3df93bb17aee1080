"""``streampca plot`` of fields and of two views: levels, lags, both kinds of maps."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import xarray as xr

import streampca
from streampca import plots
from streampca.cli import pictures
from streampca.cli.commands import main


@pytest.fixture
def drawn(monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, dict[str, Any]]]:
    """(kind, options) of the pictures; they are drawn, and not written."""
    found: list[tuple[str, dict[str, Any]]] = []

    def draw(kind: str, result: Any, path: Path, /, **options: Any) -> None:
        getattr(plots, kind)(result, **options)
        found.append((kind, options))

    monkeypatch.setattr(pictures, "draw", draw)
    return found


def test_levels_and_other_dimensions(tmp_path: Path, drawn: Any, capsys: Any) -> None:
    field = xr.DataArray(
        np.random.default_rng(0).normal(size=(30, 2, 2, 3, 4)),
        {"plev": [850.0, 500.0], "lat": np.arange(3.0), "lon": np.arange(4.0)},
        ("time", "plev", "season", "lat", "lon"),
    )
    model = streampca.PCA(2).fit(field, dim="time")
    model.save(tmp_path / "model")
    plot = ["plot", str(tmp_path / "model"), "--kind", "map", "-o", str(tmp_path / "p.png")]
    assert main(plot) == 65
    said = capsys.readouterr().err
    assert "--level 850.0 (plev: 850.0, 500.0) and --at season=0 (season: 0, 1)" in said
    assert not main([*plot, "--level", "500", "--at", "season=1", "--map-of", "covariance"])
    options = {"kind": "covariance", "level": 500.0, "at": {"season": 1.0}}
    assert drawn == [("map", options)]
    assert main([*plot, "--level", "700", "--at", "season=1"]) == 65
    assert "plev has 850.0, 500.0" in capsys.readouterr().err
    assert main([*plot, "--at", "season"]) == 65
    assert "expected DIM=VALUE" in capsys.readouterr().err
    scree = ["plot", str(tmp_path / "model"), "--level", "500"]
    assert main(scree) == 65
    assert "--level is of --kind map" in capsys.readouterr().err


def test_two_views(tmp_path: Path, drawn: Any, capsys: Any) -> None:
    rng = np.random.default_rng(0)
    x, y = rng.normal(size=(40, 6)), rng.normal(size=(40, 5))
    np.save(tmp_path / "x.npy", x)
    np.save(tmp_path / "y.npy", y)
    place = str(tmp_path / "model")
    scores = str(tmp_path / "s.zarr")
    files = [str(tmp_path / "x.npy"), str(tmp_path / "y.npy")]
    command = ["fit", *files, "--model", "mca", "-k", "2", "-o", place, "--scores", scores]
    assert not main(command)
    model = streampca.load(place)
    plot = ["plot", place, "-o", str(tmp_path / "p.png")]
    assert not main([*plot, "--scores", scores])
    kind, options = drawn[-1]
    assert kind == "scores"
    for one, expected in zip(options["scores"], model.transform(x, y), strict=True):
        np.testing.assert_allclose(one, expected, atol=1e-12)
    assert not main([*plot, "--scores", scores, "--view", "y", "--kind", "pairs"])
    np.testing.assert_allclose(drawn[-1][1]["scores"], model.transform(x, y)[1], atol=1e-12)
    for kind in ("scree", "spectrum", "loadings", "correlation_circle"):
        assert not main([*plot, "--kind", kind])
    assert not main([*plot, "--kind", "loadings", "--view", "y"])
    assert main([*plot, "--kind", "scree", "--view", "y"]) == 65
    assert main([*plot, "--kind", "scores"]) == 65
    assert "--scores FILE" in capsys.readouterr().err
