"""The command line, end to end in this process."""

from __future__ import annotations

import json

import numpy as np
import pytest
import zarr

import streampca
from streampca.cli import main


@pytest.fixture
def store(tmp_path):
    X = np.random.default_rng(0).standard_normal((300, 12)) @ np.diag(np.linspace(3, 1, 12)) + 7
    array = zarr.create_array(str(tmp_path / "x.zarr"), shape=X.shape, chunks=(64, 12), dtype="f8")
    array[:] = X
    return str(tmp_path / "x.zarr"), X


@pytest.fixture(autouse=True)
def _restore_warnings():
    import warnings

    with warnings.catch_warnings():
        yield


def test_plan_prints_and_reads_nothing(store, capsys):
    path, X = store
    assert main(["plan", path, "-k", "3", "--json"]) == 0
    plan = json.loads(capsys.readouterr().out)
    assert plan["solver"] == "scatter"
    assert plan["reads"] == 5
    assert plan["bytes"] == X.nbytes
    assert main(["plan", path]) == 0
    assert "projected peak" in capsys.readouterr().out


def test_fit_transform_info_plot(store, tmp_path, capsys):
    path, X = store
    model, scores = str(tmp_path / "model"), str(tmp_path / "scores.zarr")
    assert main(["fit", path, "-k", "0.5", "-o", model, "--scores", scores]) == 0
    printed = capsys.readouterr().out
    assert "planned" in printed
    assert "measured" in printed
    loaded = streampca.load(model)
    expected = streampca.PCA(0.5).fit(X)
    np.testing.assert_allclose(loaded.explained_variance_, expected.explained_variance_, rtol=1e-12)
    np.testing.assert_allclose(zarr.open_array(scores)[:], expected.transform(X), atol=1e-10)
    again = str(tmp_path / "again.zarr")
    assert main(["transform", model, path, "-o", again, "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["rows"] == 300
    np.testing.assert_array_equal(zarr.open_array(again)[:], zarr.open_array(scores)[:])
    assert main(["info", model]) == 0
    assert "scatter" in capsys.readouterr().out
    assert main(["info", path, "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["samples"] == 300
    for kind in ("scree", "scores", "loadings"):
        picture = tmp_path / f"{kind}.png"
        options = ["--scores", scores] if kind == "scores" else []
        assert main(["plot", model, "--kind", kind, "-o", str(picture), *options]) == 0
        assert picture.stat().st_size > 5000


def test_json_summary_has_plan_and_cost(store, capsys):
    path, _ = store
    assert main(["fit", path, "-k", "2", "--json"]) == 0
    summary = json.loads(capsys.readouterr().out)
    assert summary["planned"]["reads"] == summary["measured"]["reads"] == 5
    assert len(summary["explained_variance"]) == 2


def test_exit_codes_and_messages(store, tmp_path, capsys):
    path, _ = store
    assert main(["fit", "nowhere.zarr"]) == 66
    assert "no such file" in capsys.readouterr().err
    assert main(["fit", path, "-k", "50"]) == 65
    assert main(["fit", path, "--memory-limit", "50MiB"]) == 69
    assert "smallest limit that would do" in capsys.readouterr().err
    (tmp_path / "there").mkdir()
    assert main(["fit", path, "-o", str(tmp_path / "there")]) == 65
    assert "--overwrite" in capsys.readouterr().err
    with pytest.raises(SystemExit):
        main(["fit", path, "-k", "several"])


def test_a_bad_cell_names_its_block(store, capsys):
    path, _ = store
    zarr.open_array(path, mode="r+")[100, 3] = np.nan
    assert main(["fit", path, "-k", "2"]) == 65
    message = capsys.readouterr().err
    assert "feature 3" in message
    assert "block 0" in message
    assert main(["fit", path, "-k", "2", "--missing", "mean", "--quiet"]) == 0


def test_demo_genotypes_small(tmp_path, capsys):
    folder = str(tmp_path / "demo")
    assert main(["demo", "--samples", "200", "--variants", "3000", "-o", folder]) == 0
    printed = capsys.readouterr().out
    assert "planned" in printed
    assert (tmp_path / "demo" / "scores.png").exists()
    share = float(printed.split("check: ")[1].split("%")[0])
    assert share > 95
    assert main(["demo", "digits", "-o", str(tmp_path / "digits"), "--json"]) == 0
    summary = json.loads(capsys.readouterr().out)
    assert float(summary["check"].rsplit(" ", 1)[1]) < 1e-12


def test_the_recipe_gives_the_same_block_anywhere():
    from streampca.sources.simulate import GenotypeRecipe

    recipe = GenotypeRecipe(100, 5000, seed=3)
    block = recipe.block(1024, 2048)
    np.testing.assert_array_equal(block, recipe.block(1024, 2048))
    assert set(np.unique(block)) == {-1, 0, 1, 2}
    assert np.mean(block == -1) == pytest.approx(0.005, abs=0.001)
