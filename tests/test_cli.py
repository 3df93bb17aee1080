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


# -- genotypes ------------------------------------------------------------------------------------


@pytest.fixture
def fileset(tmp_path):
    """A PLINK fileset of three populations, and its calls (copies of A1, -1 = missing)."""
    from tests.genotypes import write_plink

    rng = np.random.default_rng(1)
    frequency = np.clip(rng.uniform(0.1, 0.9, 400) + rng.normal(0, 0.15, (3, 400)), 0.05, 0.95)
    calls = rng.binomial(2, frequency[np.arange(90) % 3]).astype(np.int8)
    calls[rng.random(calls.shape) < 0.01] = -1
    stem = str(tmp_path / "x")
    write_plink(stem, calls)
    return stem, calls


def test_genotypes_with_plink_words(fileset, tmp_path, capsys):
    stem, _ = fileset
    keep = tmp_path / "keep"
    names = streampca.open(f"{stem}.bed").labels.samples.extra
    rows = np.arange(0, 90, 2)
    keep.write_text("".join(f"{names['family'][i]} {names['individual'][i]}\n" for i in rows))
    out = str(tmp_path / "out")
    words = ["--bfile", stem, "--keep", str(keep), "--maf", "0.05", "-k", "3", "--out", out]
    assert main(["fit", *words]) == 0
    printed = capsys.readouterr().out
    assert "written" in printed
    expected = streampca.GenotypePCA(3, maf=0.05).fit(
        streampca.matrix.select(streampca.open(f"{stem}.bed"), samples=rows)
    )
    np.testing.assert_allclose(np.loadtxt(out + ".eigenval"), expected.eigenvalues_, rtol=1e-8)
    first, head, *lines = (tmp_path / "out.eigenvec").read_text().splitlines()
    assert first == "##streampca eigenvectors"
    assert head.split("\t") == ["#FID", "IID", "PC1", "PC2", "PC3"]
    table = np.array([line.split("\t")[2:] for line in lines], dtype=float)
    np.testing.assert_allclose(table, expected.eigenvectors_, atol=1e-8)
    assert lines[1].split("\t")[1] == names["individual"][2]


def test_genotypes_from_a_config(fileset, tmp_path, capsys):
    stem, _ = fileset
    config = tmp_path / "job.yaml"
    config.write_text(
        f"source: {stem}.bed\nscale: hwe\nn_components: 4\nld-r2: 0.9\nld-window: 50\n"
        f"output: {tmp_path / 'model'}\nout: {tmp_path / 'o'}\nno-components: false\n"
    )
    assert main(["fit", "-k", "2", "--config", str(config)]) == 0
    assert streampca.load(tmp_path / "model").n_components_ == 2
    kept = (tmp_path / "o.prune.in").read_text().split()
    assert 0 < len(kept) <= 400
    config.write_text("sauce: x\n")
    assert main(["fit", "--config", str(config)]) == 65
    assert "no option 'sauce'" in capsys.readouterr().err
    config.write_text(f"source: {stem}.bed\nscale: sdt\n")
    assert main(["fit", "--config", str(config)]) == 65
    assert "expected one of std" in capsys.readouterr().err


def test_the_example_config_names_real_options(capsys):
    from pathlib import Path

    example = Path(__file__).parents[1] / "configs" / "genotypes.yaml"
    assert main(["plan", "--config", str(example)]) == 66  # its example filesets are not there
    assert "chr1" in capsys.readouterr().err


def test_prune_project_convert(fileset, tmp_path, capsys):
    stem, _ = fileset
    kept, model, table = (str(tmp_path / n) for n in ("kept", "model", "new.tsv"))
    assert main(["prune", f"{stem}.bed", "-o", kept, "--ld-r2", "0.5"]) == 0
    assert main(["fit", f"{stem}.bed", "--extract", kept, "-k", "2", "-q", "-o", model]) == 0
    assert main(["project", model, "--bfile", stem, "-o", table]) == 0
    text = (tmp_path / "new.tsv").read_text().splitlines()
    assert text[1].split("\t") == ["#FID", "IID", "COVERAGE", "PC1", "PC2"]
    projected = np.array([line.split("\t")[3:] for line in text[2:]], dtype=float)
    scores = streampca.load(model).scores_
    assert np.corrcoef(projected[:, 0], scores[:, 0])[0, 1] > 0.999
    store = str(tmp_path / "x.zarr")
    assert main(["convert", f"{stem}.bed", "-o", store]) == 0
    again = streampca.GenotypePCA(2).fit(store)
    assert again.eigenvalues_ == pytest.approx(
        streampca.GenotypePCA(2).fit(f"{stem}.bed").eigenvalues_, rel=1e-7
    )
    capsys.readouterr()


def test_a_panel_colours_the_scores(fileset, tmp_path, capsys):
    stem, _ = fileset
    names = streampca.open(f"{stem}.bed").labels.samples.extra["individual"]
    panel = tmp_path / "panel.txt"
    rows = [f"{name} pop{i % 3} x" for i, name in enumerate(names[:80])]
    panel.write_text("\n".join(["sample pop other", *rows]) + "\n")
    model = str(tmp_path / "model")
    assert main(["fit", f"{stem}.bed", "-k", "2", "-q", "-o", model]) == 0
    picture = str(tmp_path / "s.png")
    assert main(["plot", model, "--kind", "scores", "--panel", str(panel), "-o", picture]) == 0
    assert (tmp_path / "s.png").stat().st_size > 5000
    capsys.readouterr()


def test_outputs_in_the_way_are_refused_before_reading(store, tmp_path, capsys):
    path, _ = store
    (tmp_path / "folder").mkdir()
    (tmp_path / "folder" / "mine").write_text("x")
    words = ["fit", path, "-k", "2", "-o", str(tmp_path / "folder")]
    assert main(words) == 65
    assert main([*words, "--overwrite"]) == 65
    assert "not a model" in capsys.readouterr().err
    assert (tmp_path / "folder" / "mine").read_text() == "x"


def test_few_columns_and_numbered_dimensions(tmp_path, capsys):
    np.save(tmp_path / "four.npy", np.random.default_rng(0).standard_normal((50, 4)))
    assert main(["fit", str(tmp_path / "four.npy"), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["components"] == 4
    np.save(tmp_path / "cube.npy", np.random.default_rng(0).standard_normal((6, 5, 4)))
    assert main(["fit", str(tmp_path / "cube.npy"), "--dim", "0", "2", "-k", "1", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["samples"] == 24
