"""``streampca impute``, end to end in this process."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import scipy.io
import scipy.sparse
import zarr

import streampca
from streampca.cli import main
from streampca.cli.impute import report

pytestmark = pytest.mark.filterwarnings("ignore::streampca.errors.ConvergenceWarning")


@pytest.fixture
def ratings(tmp_path: Path) -> tuple[np.ndarray, np.ndarray]:
    """A rank-2 matrix with holes, in a Zarr store and as a sparse file; and the whole one."""
    rng = np.random.default_rng(0)
    whole = rng.standard_normal((120, 2)) @ rng.standard_normal((2, 20)) + 1.0
    x = np.where(rng.random(whole.shape) < 0.3, np.nan, whole)
    zarr.create_array(str(tmp_path / "x.zarr"), data=x, chunks=(50, 20))
    seen = ~np.isnan(x)
    stored = scipy.sparse.coo_matrix((x[seen], np.nonzero(seen)), x.shape)
    scipy.io.mmwrite(tmp_path / "x.mtx", stored)
    return x, whole


def test_impute_completes_saves_and_reports(tmp_path: Path, ratings: Any, capsys: Any) -> None:
    x, whole = ratings
    out = {name: str(tmp_path / name) for name in ("model", "full.zarr", "scores.zarr")}
    command = [
        "impute",
        str(tmp_path / "x.zarr"),
        "--rank",
        "1",
        "2",
        "3",
        "--validation",
        "0.1",
        "-o",
        out["model"],
        "--completed",
        out["full.zarr"],
        "--scores",
        out["scores.zarr"],
        "--verbose",
    ]
    assert main(command) == 0
    printed = capsys.readouterr().out
    assert "projected peak" in printed
    assert "held-out RMSE" in printed
    model: Any = streampca.load(out["model"])
    completed = zarr.open_array(out["full.zarr"])[...]
    seen = ~np.isnan(x)
    np.testing.assert_array_equal(completed[seen], x[seen])
    np.testing.assert_allclose(completed, np.clip(whole, *model.bounds_), atol=0.1)
    np.testing.assert_array_equal(completed, model.impute(x))
    assert zarr.open_array(out["scores.zarr"]).shape == (120, model.best_rank_)
    assert main(command) == 73  # the outputs exist already
    assert main([*command, "--overwrite", "--json", "--init", out["model"]]) == 0
    said = json.loads(capsys.readouterr().out)
    assert [one["rank"] for one in said["candidates"]] == [0] + 5 * [1] + 5 * [2] + 5 * [3]
    assert said["bounds"] == [np.nanmin(x), np.nanmax(x)]
    assert main(["info", out["model"]]) == 0
    picture = tmp_path / "curve.png"
    assert main(["plot", out["model"], "--kind", "validation", "-o", str(picture)]) == 0
    assert picture.stat().st_size > 5000


def test_ratings_by_a_config_file(tmp_path: Path, ratings: Any, capsys: Any) -> None:
    (tmp_path / "impute.yaml").write_text(
        f"source: {tmp_path / 'x.mtx'}\nrank: [2, 3]\nlambda: [0.1, 2.0]\nvalidation: 0.1\n"
    )
    assert main(["impute", "--config", str(tmp_path / "impute.yaml"), "--json"]) == 0
    said = json.loads(capsys.readouterr().out)
    assert said["method"] == "SoftImpute"
    assert [(one["rank"], one["penalty"]) for one in said["candidates"]] == [
        (0, 0.0),
        (2, 0.1),
        (2, 2.0),
        (3, 0.1),
        (3, 2.0),
    ]
    assert main(["impute", str(tmp_path / "x.mtx"), "--plan", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["solver"] == "als"
    assert main(["impute", str(tmp_path / "x.mtx"), "--alpha", "1", "--lambda", "1"]) == 65
    assert "choose one" in capsys.readouterr().err


def test_impute_takes_bounds_and_centres(tmp_path: Path, ratings: Any, capsys: Any) -> None:
    x, _ = ratings
    hole = np.isnan(x)
    for given, low, high in (
        (["-0.5", "2"], -0.5, 2.0),
        (["observed"], x[~hole].min(), x[~hole].max()),
    ):
        out = str(tmp_path / f"{given[0]}.zarr")
        command = ["impute", str(tmp_path / "x.zarr"), "--rank", "2", "--completed", out]
        assert main([*command, "--bounds", *given, "-q"]) == 0
        filled = zarr.open_array(out)[...][hole]
        assert low <= filled.min()
        assert filled.max() <= high
    assert (filled.min() == low) | (filled.max() == high)
    assert (
        main(
            [
                "impute",
                str(tmp_path / "x.zarr"),
                "--bounds",
                "none",
                "--json",
                "--lambda",
                "auto",
                "--center",
                "biases",
                "-r",
                "0",
            ]
        )
        == 0
    )
    said = json.loads(capsys.readouterr().out)
    assert (said["bounds"], said["rank"], said["method"]) == (None, 0, "SoftImpute")
    for wrong in (["1"], ["5", "1"], ["low", "high"]):
        assert main(["impute", str(tmp_path / "x.zarr"), "--bounds", *wrong]) == 65
        assert "bounds" in capsys.readouterr().err
    with pytest.raises(SystemExit):
        main(["impute", str(tmp_path / "x.zarr"), "--no-center", "--center", "biases"])
    assert "--center: not allowed with argument --no-center" in capsys.readouterr().err


@pytest.mark.parametrize(("seed", "less"), [(2, True), (3, False)])
def test_the_report_says_why_rank_0_is_kept_despite_a_smaller_error(seed: int, less: bool) -> None:
    x = np.random.default_rng(seed).standard_normal((60, 20))
    x[np.random.default_rng(seed + 100).random(x.shape) < 0.2] = np.nan
    model = streampca.HardImpute([1, 2], alpha=20.0, validation=0.1, max_passes=20).fit(x)
    assert model.best_rank_ == 0
    first, *others = (one["held_out"] for one in model.validation_)
    assert (min(others) < first) == less
    assert ("rank 0 is kept: no other rank" in report(model)) == less


@pytest.mark.parametrize("scale", ["none", "std"])
def test_columns_are_divided_as_asked(scale: str, tmp_path: Path, ratings: Any) -> None:
    place, out = str(tmp_path / "x.zarr"), str(tmp_path / "model")
    assert main(["impute", place, "--rank", "2", "--scale", scale, "-o", out, "-q"]) == 0
    model: Any = streampca.load(out)
    expected = streampca.HardImpute(2, scale=None if scale == "none" else scale).fit(place)
    assert model.scale == expected.scale
    np.testing.assert_array_equal(model.components_, expected.components_)


def test_the_config_file_that_comes_with_it_is_understood(tmp_path: Path, capsys: Any) -> None:
    shipped = Path(__file__).parents[1] / "configs" / "impute.yaml"
    assert main(["impute", "--config", str(shipped), "--plan"]) == 66
    assert "ratings.mtx" in capsys.readouterr().err
