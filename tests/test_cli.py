"""The command line, end to end in this process."""

from __future__ import annotations

import json
import warnings

import numpy as np
import pytest
import xarray as xr
import zarr

import streampca
from streampca.cli import main
from streampca.cli.commands import build_parser
from streampca.cli.kinds import option_name
from streampca.cli.messages import as_options


@pytest.fixture
def store(tmp_path):
    X = np.random.default_rng(0).standard_normal((300, 12)) @ np.diag(np.linspace(3, 1, 12)) + 7
    array = zarr.create_array(str(tmp_path / "x.zarr"), shape=X.shape, chunks=(64, 12), dtype="f8")
    array[:] = X
    return str(tmp_path / "x.zarr"), X


@pytest.fixture(autouse=True)
def _restore_warnings():
    with warnings.catch_warnings():
        yield


@pytest.mark.parametrize("scale", [None, "none", "std"])
def test_columns_are_divided_as_asked(scale, store, tmp_path):
    path, X = store
    model = str(tmp_path / "model")
    words = [] if scale is None else ["--scale", scale]
    assert main(["fit", path, "-k", "2", "-o", model, "-q", *words]) == 0
    loaded = streampca.load(model)
    expected = streampca.PCA(2, scale="std" if scale == "std" else None).fit(X)
    assert loaded.scale == expected.scale
    np.testing.assert_allclose(loaded.explained_variance_, expected.explained_variance_, rtol=1e-12)


@pytest.mark.parametrize("scale", [None, "none", "eigensoft"])
def test_variants_are_divided_as_asked(scale, fileset, tmp_path):
    stem, _ = fileset
    out = str(tmp_path / "out")
    words = [] if scale is None else ["--scale", scale]
    assert main(["fit", "--bfile", stem, "-k", "2", "--out", out, "-q", *words]) == 0
    wanted = {None: "hwe", "none": None}.get(scale, scale)
    expected = streampca.GenotypePCA(2, scale=wanted).fit(f"{stem}.bed")
    np.testing.assert_allclose(np.loadtxt(out + ".eigenval"), expected.eigenvalues_, rtol=1e-8)


def test_plan_prints_and_reads_nothing(store, capsys):
    path, X = store
    assert main(["plan", path, "-k", "3", "--json"]) == 0
    plan = json.loads(capsys.readouterr().out)
    assert plan["solver"] == "scatter"
    assert plan["reads"] == 5
    assert plan["bytes"] == X.nbytes
    assert main(["plan", path]) == 0
    assert "projected peak" in capsys.readouterr().out


def test_scores_of_a_whitened_fit_are_whitened(tmp_path, capsys):
    X = np.random.default_rng(0).standard_normal((12, 30))  # wide: the fit knows its scores
    np.save(tmp_path / "x.npy", X)
    scores = str(tmp_path / "scores.zarr")
    words = ["--model", "pca", "-k", "2", "--whiten", "--svd-solver", "gram", "--scores", scores]
    assert main(["fit", str(tmp_path / "x.npy"), *words]) == 0
    np.testing.assert_allclose(zarr.open_array(scores)[:].std(axis=0, ddof=1), 1.0, rtol=1e-6)


def test_fit_transform_info_plot(store, tmp_path, capsys):
    path, X = store
    model, scores = str(tmp_path / "model"), str(tmp_path / "scores.zarr")
    assert main(["fit", path, "-k", "0.5", "-v", "-o", model, "--scores", scores]) == 0
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


def test_the_passes_of_an_iterative_fit_are_planned_at_most(store, capsys):
    path, _ = store
    words = ["fit", path, "-k", "2", "--solver", "randomized"]
    assert main([*words, "--json"]) == 0
    summary = json.loads(capsys.readouterr().out)
    planned, measured = summary["planned"], summary["measured"]
    assert measured["passes"] < planned["passes"]
    assert planned["reads"] == 5 * planned["passes"]
    assert measured["reads"] == 5 * measured["passes"]
    assert main([*words, "-v"]) == 0
    lines = [line.split() for line in capsys.readouterr().out.splitlines()]
    assert ["at", "most", "measured"] in lines
    assert ["passes", str(planned["passes"]), str(measured["passes"])] in lines


def test_exit_codes_and_messages(store, tmp_path, capsys):
    path, _ = store
    assert main(["fit", "nowhere.zarr"]) == 66
    assert "no such file" in capsys.readouterr().err
    assert main(["fit", path, "-k", "50"]) == 65
    assert main(["fit", path, "--memory-limit", "50MiB"]) == 69
    assert "smallest limit that would do" in capsys.readouterr().err
    (tmp_path / "there").mkdir()
    assert main(["fit", path, "-o", str(tmp_path / "there")]) == 73
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
    from streampca.sources.genotypes.simulate import GenotypeRecipe

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
    head, *lines = (tmp_path / "out.eigenvec").read_text().splitlines()
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
    assert "choose from" in capsys.readouterr().err


def test_the_example_config_names_real_options(capsys):
    from pathlib import Path

    example = Path(__file__).parents[1] / "configs" / "genotypes.yaml"
    assert main(["plan", "--config", str(example)]) == 66  # its example filesets are not there
    assert "chr1" in capsys.readouterr().err


def test_the_example_config_runs_in_a_fresh_folder(tmp_path, monkeypatch, capsys):
    from pathlib import Path

    from tests.genotypes import random_calls, variant_names, write_plink

    example = Path(__file__).parents[1] / "configs" / "genotypes.yaml"
    monkeypatch.chdir(tmp_path)
    for i in (1, 2):
        calls = random_calls(60, 400, seed=i, missing=0.01)
        ids = variant_names(400, 400 * i)
        write_plink(f"chr{i}", calls, ids=ids, chromosomes=[str(i)] * 400)
    assert main(["plan", "--config", str(example)]) == 0
    assert main(["fit", "--config", str(example)]) == 0
    written = sorted(path.name for path in (tmp_path / "models").iterdir())
    tables = [f"genotypes-tables.{end}" for end in ("eigenval", "eigenvec", "prune.in")]
    assert written == ["genotypes", *tables]
    assert streampca.load("models/genotypes").n_components_ == 10
    assert main(["fit", "--config", str(example)]) == 73
    assert "--overwrite" in capsys.readouterr().err
    assert main(["fit", "--config", str(example), "--overwrite", "-q"]) == 0


def test_the_command_line_goes_before_the_config(fileset, tmp_path, capsys):
    stem, _ = fileset
    config = tmp_path / "job.yaml"
    config.write_text(
        f"source: nowhere.bed\nmaf: 0.2\nscale: eigensoft\nn-components: 2\njson: true\n"
        f"exclude-region: ['1:100-150', '1:200-210']\nbfile: {stem}\nmissing-value: -1\n"
    )
    given = ["--config", str(config)]
    words = [f"{stem}.bed", "--maf", "0"]
    config.write_text(config.read_text().replace(f"bfile: {stem}\n", ""))
    for both in ([*words, *given], [*given, *words]):
        assert main(["fit", *both]) == 0
        said = json.loads(capsys.readouterr().out)
        assert said["filtered_features"] == 0
        assert said["components"] == 2
        assert said["left_out"]["variants"]["lists"] == 51 + 11
    assert main(["fit", f"{stem}.bed", *given]) == 0
    assert json.loads(capsys.readouterr().out)["filtered_features"] > 0


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("maf:\n", "maf: expected a value"),
        ("maf: [0.1, 0.2]\n", "maf: "),
        ("maf: much\n", "maf: argument --maf: 'much'; expected a finite number"),
        ("maf: true\n", "maf: expected a value"),
        ("quiet: 3\n", "true or false"),
        ("chr: {a: 1}\n", "chr: expected a value"),
        ("run: x\n", "no option 'run'"),
        ("- maf\n", "option: value"),
        ("maf: [\n", "not YAML"),
    ],
)
def test_entries_that_cannot_be_used(tmp_path, capsys, text, words):
    config = tmp_path / "job.yaml"
    config.write_text(text)
    assert main(["fit", "x.bed", "--config", str(config)]) == 65
    assert words in capsys.readouterr().err


def test_prune_project_convert(fileset, tmp_path, capsys):
    stem, _ = fileset
    kept, model, table = (str(tmp_path / n) for n in ("kept", "model", "new.tsv"))
    assert main(["prune", f"{stem}.bed", "-o", kept, "--ld-r2", "0.5"]) == 0
    assert main(["prune", f"{stem}.bed", "-o", kept]) == 73
    assert main(["prune", f"{stem}.bed", "-o", kept, "--ld-r2", "0.5", "--overwrite"]) == 0
    assert main(["fit", f"{stem}.bed", "--extract", kept, "-k", "2", "-q", "-o", model]) == 0
    assert main(["project", model, "--bfile", stem, "-o", table]) == 0
    text = (tmp_path / "new.tsv").read_text().splitlines()
    again = ["project", model, "--bfile", stem, "-o", table, "--ambiguous", "keep", "--json"]
    assert main(again) == 73
    assert "--overwrite" in capsys.readouterr().err
    assert main([*again, "--overwrite"]) == 0
    said = json.loads(capsys.readouterr().out)
    assert said["match"]["n_matched"] == said["match"]["n_model"]
    assert 0.9 < said["coverage"]["least"] <= said["coverage"]["mean"] <= 1
    assert text[0].split("\t") == ["#FID", "IID", "COVERAGE", "PC1", "PC2"]
    projected = np.array([line.split("\t")[3:] for line in text[1:]], dtype=float)
    scores = streampca.load(model).scores_
    assert np.corrcoef(projected[:, 0], scores[:, 0])[0, 1] > 0.999
    (tmp_path / "some").write_text("\n".join(line.split("\t")[1] for line in text[3:7]))
    assert main([*again[:-1], "--overwrite", "--keep", str(tmp_path / "some")]) == 0
    assert (tmp_path / "new.tsv").read_text().splitlines()[1:] == text[3:7]
    assert "4 samples on 2 components" in capsys.readouterr().out
    store = str(tmp_path / "x.zarr")
    words = ["convert", f"{stem}.bed", "-o", store, "--json", "--memory-limit"]
    assert main([*words, "1MiB"]) == 69
    assert json.loads(capsys.readouterr().out)["kind"] == "memory_limit"
    assert main([*words, "1GiB"]) == 0
    said = json.loads(capsys.readouterr().out)
    assert (said["samples"], said["features"], said["array"]) == (90, 400, "call")
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
    assert main(words) == 73
    assert main([*words, "--overwrite"]) == 73
    assert "not a model" in capsys.readouterr().err
    assert (tmp_path / "folder" / "mine").read_text() == "x"


def test_fits_of_few_columns_and_of_numbered_dimensions(tmp_path, capsys):
    np.save(tmp_path / "four.npy", np.random.default_rng(0).standard_normal((50, 4)))
    assert main(["fit", str(tmp_path / "four.npy"), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["components"] == 4
    np.save(tmp_path / "cube.npy", np.random.default_rng(0).standard_normal((6, 5, 4)))
    assert main(["fit", str(tmp_path / "cube.npy"), "--dim", "0", "2", "-k", "1", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["samples"] == 24


@pytest.fixture
def linked(tmp_path):
    """A fileset of linked variants with rare ones, ill-called ones and ill-called samples."""
    from tests.genotypes import write_plink

    rng = np.random.default_rng(4)
    pool = (rng.random((16, 600)) < rng.beta(0.7, 0.7, 600)).astype(np.int8)
    calls = np.zeros((120, 600), np.int8)
    for _ in range(2):
        who = rng.integers(0, 16, 120)
        for j in range(600):
            who = np.where(rng.random(120) < 0.1, rng.integers(0, 16, 120), who)
            calls[:, j] += pool[who, j] ^ (rng.random(120) < 0.01)
    calls[rng.random(calls.shape) < 0.02] = -1
    calls[:, ::25] = np.where(rng.random((120, 24)) < 0.12, -1, calls[:, ::25])
    calls[3::40] = np.where(rng.random((3, 600)) < 0.5, -1, calls[3::40])
    calls[:, 11], calls[:, 12], calls[:, 13] = 0, 2, -1
    write_plink(tmp_path / "linked", calls, chromosomes=["1"] * 400 + ["2"] * 200)
    return str(tmp_path / "linked")


SHARES = ["--mind", "0.1", "--geno", "0.1", "--maf", "0.05"]


@pytest.mark.filterwarnings("ignore:3 of 120 samples")
@pytest.mark.parametrize("shares", [SHARES, SHARES[:2], SHARES[2:4], SHARES[4:]])
def test_pruning_comes_after_the_counts_as_in_plink2(linked, tmp_path, capsys, shares):
    import shutil
    import subprocess

    program = shutil.which("plink2")
    if program is None:
        pytest.skip("plink2 is not installed (Debian: apt-get install plink2)")
    ask = subprocess.run([program, "--help", "indep-order"], capture_output=True, text=True)
    order = ["--indep-order", "1"] if "--indep-order" in ask.stdout else []
    theirs = tmp_path / "theirs"
    command = [program, "--bfile", linked, *shares, "--indep-pairwise", "50", "5", "0.2", *order]
    subprocess.run(
        [*command, "--threads", "1", "--out", str(theirs)], check=True, capture_output=True
    )
    words = ["--ld-r2", "0.2", "--ld-window", "50", "--ld-step", "5", "-k", "3", "--json"]
    ours = tmp_path / "ours"
    assert main(["fit", "--bfile", linked, *shares, *words, "--out", str(ours)]) == 0
    kept = (tmp_path / "ours.prune.in").read_text().split()
    assert kept == (tmp_path / "theirs.prune.in").read_text().split()
    said = json.loads(capsys.readouterr().out)
    assert said["features"] == said["used_features"] == len(kept) == said["ld"]["kept"]
    assert said["samples"] == (117 if "--mind" in shares else 120)


@pytest.mark.filterwarnings("ignore:3 of 120 samples", "ignore:1 of 400 features")
def test_what_was_left_out_and_why(linked, tmp_path, capsys):
    model = tmp_path / "model"
    words = ["--bfile", linked, "--chr", "1", "-k", "2", "--ld-r2", "0.2", "--ld-window", "50"]
    assert main(["fit", *words, *SHARES, "-o", str(model), "--json"]) == 0
    said = json.loads(capsys.readouterr().out)
    for of in ("variants", "samples"):
        causes = said["left_out"][of]
        assert causes["source"] == sum(n for name, n in causes.items() if name != "source")
    assert said["left_out"]["variants"]["lists"] == 200
    assert said["left_out"]["variants"]["linked"] > 10
    assert said["left_out"]["samples"]["ill_called"] == 3
    assert len(said["eigenvalues"]) == 2
    assert "tracy_widom_p" in said
    assert main(["info", str(model)]) == 0
    printed = capsys.readouterr().out
    assert "rs1" not in printed
    assert '"ld": {"kept": ' in printed
    assert '"maf": 0.05' in printed
    assert "rs1" not in (model / "bundle.json").read_text()
    assert main(["fit", *words, *SHARES]) == 0
    printed = capsys.readouterr().out
    assert "by LD pruning" in printed
    assert "3 ill-called" in printed
    assert main(["fit", *words[:6], *SHARES]) == 0
    printed = capsys.readouterr().out
    assert "200 by lists, chromosomes or regions" in printed
    assert "3 ill-called" in printed
    assert "LD pruning" not in printed


def test_a_pruned_fit_is_the_fit_of_the_kept(linked, tmp_path, capsys):
    out = str(tmp_path / "o")
    words = ["fit", "--bfile", linked, "-k", "2", "--ld-r2", "0.2", "--out", out, "-q"]
    assert main([*words, "--scale", "none"]) == 0
    kept = (tmp_path / "o.prune.in").read_text().split()
    expected = streampca.GenotypePCA(
        2, scale=None, variants=streampca.VariantFilter(extract=kept)
    ).fit(f"{linked}.bed")
    np.testing.assert_allclose(np.loadtxt(out + ".eigenval"), expected.eigenvalues_, rtol=1e-8)
    pruning = streampca.prune_ld(f"{linked}.bed", r2=0.2)
    assert kept == pruning.ids.tolist()


@pytest.mark.parametrize(
    "more",
    [
        ["--maf", "0.7"],
        ["-k", "5000"],
        ["--ld-step", "1000"],
        ["--ld-window", "wide"],
        ["--geno", "2"],
        ["--no-center"],
        ["--missing", "raise"],
        ["--keep", "nowhere"],
    ],
)
def test_a_pruned_fit_is_refused_before_it_reads(linked, tmp_path, monkeypatch, more, capsys):
    from streampca.cli import selection

    def read(*_, **__):
        raise AssertionError("calls were read")

    monkeypatch.setattr(selection, "well_called", read)
    monkeypatch.setattr(selection, "prune_ld", read)
    out = tmp_path / "tables" / "o"
    words = ["fit", "--bfile", linked, "--ld-r2", "0.2", "--out", str(out), *more]
    assert main(words) in (65, 66)
    assert not out.parent.exists()
    assert capsys.readouterr().err.startswith("streampca: ")


def test_missing_calls_hold_the_mean_and_nothing_else(fileset, capsys):
    stem, _ = fileset
    assert main(["fit", "--bfile", stem, "-k", "2", "--missing", "raise"]) == 65
    assert "leave out --missing" in capsys.readouterr().err
    assert main(["fit", "--bfile", stem, "-k", "2", "--missing", "mean", "-q"]) == 0


def test_outputs_that_cannot_be_written_are_refused_first(fileset, store, tmp_path, capsys):
    stem, _ = fileset
    path, _ = store
    old = tmp_path / "o.eigenval"
    old.write_text("mine")
    fit = ["fit", "--bfile", stem, "-k", "2", "-q"]
    assert main([*fit, "--out", str(tmp_path / "o")]) == 73
    assert "o.eigenval exists" in capsys.readouterr().err
    assert old.read_text() == "mine"
    assert main([*fit, "--out", str(tmp_path / "o"), "--overwrite"]) == 0
    nowhere = str(old / "x")  # a file is no folder
    for words in (
        [*fit, "--out", nowhere],
        [*fit, "-o", nowhere],
        [*fit, "--scores", nowhere],
        [*fit, "--relationship", nowhere],
        ["prune", f"{stem}.bed", "-o", nowhere],
        ["project", "absent", f"{stem}.bed", "-o", nowhere],
        ["convert", f"{stem}.bed", "-o", nowhere],
        ["transform", "absent", path, "-o", nowhere],
        ["plot", "absent", "-o", nowhere + ".png"],
    ):
        assert main(words) == 73, words
        assert capsys.readouterr().err.count("\n") == 1
    assert main([*fit, "-o", str(tmp_path / "o2"), "--scores", str(tmp_path / "o2")]) == 65
    assert "two outputs" in capsys.readouterr().err
    assert main([*fit, "--scores", path, "--overwrite"]) == 73  # a source, not scores of ours
    assert main([*fit, "--relationship", path, "--overwrite"]) == 73


def test_what_a_killed_run_left_is_removed_by_the_next(fileset, tmp_path, capsys):
    """Unfinished scores in their place, and unfinished outputs beside theirs; never others'."""
    stem, _ = fileset
    names = ("model", "s.zarr", "o.eigenvec", "v.zarr")
    for name in names:
        (tmp_path / f".{name}.{'0' * 32}.partial").mkdir()
    others = tmp_path / f".mine.{'0' * 32}.partial"
    others.mkdir()
    unfinished = {"attributes": {"streampca_complete": False}}
    for name in ("s.zarr", "v.zarr"):
        zarr.create_array(tmp_path / name, shape=(3, 2), dtype="f8", **unfinished)
    words = ["fit", "--bfile", stem, "-k", "2", "-q"]
    for option, name in zip(("-o", "--scores", "--out", "--loadings"), names, strict=True):
        words += [option, str(tmp_path / name.removesuffix(".eigenvec"))]
    assert main(words) == 0, capsys.readouterr().err
    assert [one.name for one in tmp_path.glob(".*")] == [others.name]
    assert zarr.open_array(tmp_path / "s.zarr").shape == (90, 2)
    assert main(words) == 73  # finished ones stay


def test_proc_is_no_place_for_outputs(fileset, capsys):
    from pathlib import Path

    if not Path("/proc/self").exists():
        pytest.skip("there is no /proc, a place where nobody may write")
    stem, _ = fileset
    assert main(["fit", "--bfile", stem, "--out", "/proc/x/y"]) == 73
    assert capsys.readouterr().err.count("\n") == 1


def test_pictures_that_cannot_be_drawn_say_why(fileset, tmp_path, capsys):
    stem, _ = fileset
    model = str(tmp_path / "model")
    assert main(["fit", "--bfile", stem, "-k", "2", "-q", "-o", model]) == 0
    plot = ["plot", model, "--kind", "scores", "-o"]
    assert main([*plot, str(tmp_path / "x.png"), "--labels", str(tmp_path / "nofile")]) == 66
    assert main([*plot, str(tmp_path / "x.xyz")]) == 65
    assert ".png, .pdf or .svg" in capsys.readouterr().err
    assert main([*plot, str(tmp_path / "new" / "x.svg")]) == 0
    assert (tmp_path / "new" / "x.svg").stat().st_size > 1000


@pytest.mark.filterwarnings("ignore:3 of 120 samples")
def test_variants_are_judged_and_pruned_by_the_fitted_samples(linked, tmp_path, capsys):
    matrix = streampca.open(f"{linked}.bed")
    names = [str(name) for name in matrix.labels.samples.extra["individual"][::2]]
    unrelated = tmp_path / "unrelated"
    unrelated.write_text("".join(f"{name} {name}\n" for name in names))
    out = str(tmp_path / "o")
    words = ["fit", "--bfile", linked, "-k", "2", "--ld-r2", "0.3", "--fit-samples", str(unrelated)]
    assert main([*words, *SHARES, "--out", out, "--json"]) == 0
    said = json.loads(capsys.readouterr().out)
    assert said["left_out"]["samples"]["used"] == 117
    kept = set((tmp_path / "o.prune.in").read_text().split())
    rows = np.arange(120) % 2 == 0
    rows[[3, 43, 83]] = False
    alone = streampca.matrix.select(matrix, samples=rows)
    calls = alone.read(1, 0, 600)
    seen = np.maximum((calls >= 0).sum(axis=0), 1)
    frequency = np.where(calls >= 0, calls, 0).sum(axis=0) / (2 * seen)
    judged = (np.minimum(frequency, 1 - frequency) >= 0.05) & ((calls < 0).mean(axis=0) <= 0.1)
    pruned = streampca.prune_ld(streampca.matrix.select(alone, features=judged), r2=0.3)
    assert kept == set(pruned.ids.tolist())


@pytest.mark.filterwarnings("ignore:3 of 120 samples")
def test_the_passes_before_a_pruned_fit_are_counted(linked, tmp_path, capsys):
    """calls by sample, calls by variant, the scan, the Gram matrix, the loadings."""
    words = ["fit", "--bfile", linked, "-k", "2", "--ld-r2", "0.2", "--solver", "gram"]
    assert main([*words, *SHARES, "-v", "--loadings", str(tmp_path / "v.zarr")]) == 0
    passes = next(
        line.split() for line in capsys.readouterr().out.splitlines() if line.startswith("passes")
    )
    assert passes == ["passes", "5", "5"]
    model = tmp_path / "model"
    relationship = ["--relationship", str(tmp_path / "r.zarr")]
    assert main([*words, *SHARES, *relationship, "--json", "-o", str(model)]) == 0
    said = json.loads(capsys.readouterr().out)
    assert said["planned"]["passes"] == said["measured"]["passes"] == 5
    assert said["planned"]["reads"] == said["measured"]["reads"]
    made = streampca.load(model).result_.provenance["passes"]
    names = ["calls by sample", "calls by variant", "LD scan", "gram", "loadings"]
    assert [one["name"] for one in made] == names


def test_fitted_samples_are_marked_in_the_table(fileset, tmp_path):
    stem, _ = fileset
    names = streampca.open(f"{stem}.bed").labels.samples.extra["individual"]
    (tmp_path / "some").write_text("\n".join(names[::3]))
    out = str(tmp_path / "o")
    words = ["fit", "--bfile", stem, "-k", "2", "--out", out, "-q"]
    assert main([*words, "--fit-samples", str(tmp_path / "some")]) == 0
    head, *rows = [line.split() for line in (tmp_path / "o.eigenvec").read_text().splitlines()]
    assert head == ["#FID", "IID", "FITTED", "PC1", "PC2"]
    assert [row[2] for row in rows] == ["1" if i % 3 == 0 else "0" for i in range(90)]
    unit = np.array([row[3:] for row in rows[::3]], float)
    np.testing.assert_allclose(unit.T @ unit, np.eye(2), atol=1e-5)


@pytest.mark.filterwarnings("ignore:1 of 600 features")
def test_frequencies_are_those_of_plink2(linked, tmp_path, capsys):
    import shutil
    import subprocess

    out = tmp_path / "o"
    words = ["fit", "--bfile", linked, "-k", "2", "-q", "--freq"]
    assert main(words) == 65
    assert "add --out" in capsys.readouterr().err
    assert main([*words, "--maf", "0.1", "--out", str(out)]) == 0
    head, *rows = [line.split("\t") for line in (tmp_path / "o.afreq").read_text().splitlines()]
    assert head == ["#CHROM", "ID", "REF", "ALT", "ALT_FREQS", "OBS_CT"]
    calls = streampca.open(f"{linked}.bed")
    calls = calls.read(1, 0, 600)
    observed = (calls >= 0).sum(axis=0)
    assert [int(row[5]) for row in rows] == (2 * observed).tolist()
    share = np.where(calls < 0, 0, calls).sum(axis=0) / np.where(observed, 2 * observed, np.nan)
    np.testing.assert_allclose([float(row[4]) for row in rows], share, rtol=1e-5)
    assert rows[13][4:] == ["nan", "0"]
    assert rows[500][:4] == ["2", "rs500", "A", "G"]
    if (program := shutil.which("plink2")) is None:
        pytest.skip("plink2 is not installed (Debian: apt-get install plink2)")
    theirs = str(tmp_path / "theirs")
    command = [program, "--bfile", linked, "--freq", "--out", theirs]
    subprocess.run(command, check=True, capture_output=True)
    lines = (tmp_path / "theirs.afreq").read_text().splitlines()
    assert [line.split("\t") for line in lines] == [head, *rows]


def test_new_samples_on_streamed_components(fileset, tmp_path, capsys):
    stem, _ = fileset
    model, store, table = (str(tmp_path / n) for n in ("model", "v.zarr", "new.tsv"))
    words = ["fit", "--bfile", stem, "-k", "2", "-q", "-o", model, "--loadings", store]
    assert main(words) == 0
    again = [*words, "--overwrite"]
    assert main(again) == 73
    assert "v.zarr exists already" in capsys.readouterr().err
    assert main(["project", model, "--bfile", stem, "-o", table]) == 0  # read from where they are
    there = (tmp_path / "new.tsv").read_text()
    moved = (tmp_path / "v.zarr").rename(tmp_path / "w.zarr")
    assert main(["project", model, "--bfile", stem, "-o", table, "--overwrite"]) != 0
    assert "--loadings PATH" in capsys.readouterr().err
    words = ["project", model, "--bfile", stem, "-o", table, "--loadings", str(moved)]
    assert main([*words, "--overwrite"]) == 0
    assert (tmp_path / "new.tsv").read_text() == there
    rows = [line.split("\t")[3:] for line in (tmp_path / "new.tsv").read_text().splitlines()[1:]]
    scores = streampca.load(model).scores_
    assert np.corrcoef(np.array(rows, float)[:, 0], scores[:, 0])[0, 1] > 0.999
    capsys.readouterr()


SAID = {  # command -> what Python is told, and what the command line says
    "fit x": [
        ("Use streampca.open('my file.nc', variable='sea ice').", "Use --variable 'sea ice'."),
        ("streampca.open(X, dim=0), and", "--dim 0, and"),
        ("streampca.open(..., missing_chunks='fill'), or", "--missing-chunks fill, or"),
        ("columns=[...], categorical='onehot'", "--columns ..., --categorical onehot"),
        ("(tol=1e-05). Choose n_components=0.9.", "(--tol 1e-05). Choose --n-components 0.9."),
        ("say missing_value=-0.14", "say --missing-value=-0.14"),
        ("solver='gram' center=False", "--solver gram --no-center"),
        ("fit with PCA(missing='impute')", "fit with --missing impute"),
        ("plots.map(x=3), HardImpute([1], tol=0.05)", "plots.map(x=3), HardImpute([1], tol=0.05)"),
        ("chromosomes='all', n_autosomes=... of", "--chr all, --chr-set ... of"),
        ("year=2000/a weights=np.ones(3)", "year=2000/a weights=np.ones(3)"),
    ],
    "impute x": [
        ("early_stop=True needs init=<a model>", "--early-stop needs --init <a model>"),
        ("scale=None, center=True or center='both'", "scale=None, center=True or --center both"),
        ("streampca.open_ratings('r.csv', user='u', item=1)", "--user u --item 1"),
    ],
    "transform m x": [("missing='mean' dim=1", "fit --missing mean --dim 1")],
    "fit x --model kernel-pca": [("missing='mean' gamma=0.1", "missing='mean' --gamma 0.1")],
}


@pytest.mark.parametrize("command", SAID)
def test_messages_name_options_in_the_place_of_parameters(command):
    parser = build_parser(command.split())
    for text, expected in SAID[command]:
        assert as_options(text, parser) == expected


def test_options_that_errors_and_warnings_name_are_taken(tmp_path, capsys):
    X = np.random.default_rng(0).standard_normal((40, 4, 3))
    X[0] *= 1e3
    data = {name: (("time", "lat", "lon"), X) for name in ("sst", "slp")}
    path, model, out = (str(tmp_path / name) for name in ("climate.nc", "model", "out.zarr"))
    xr.Dataset(data).to_netcdf(path)
    assert main(["fit", path, "-k", "2", "-o", model, "-q"]) == 65
    remedy = capsys.readouterr().err.split("Use ")[-1].rstrip(".\n").split()
    assert remedy == ["--variable", "sst"]
    assert main(["fit", path, *remedy, "-k", "2", "-o", model, "-q"]) == 0
    assert main(["transform", model, path, "-o", out]) == 65
    assert capsys.readouterr().err.endswith("Use --variable sst.\n")
    assert main(["transform", model, path, "-o", out, *remedy]) == 0
    np.save(tmp_path / "x.npy", X[:, :, 0] * [1e3, 1, 1, 1])
    warnings.simplefilter("always")
    assert main(["fit", str(tmp_path / "x.npy"), "-k", "2", "-q"]) == 0
    assert "use --scale std." in capsys.readouterr().err


@pytest.mark.parametrize("kind", ["PCA", "IncrementalPCA", "TruncatedSVD"])
def test_rotation_of_components_of_other_models(kind, store, tmp_path, capsys):
    path, X = store
    model = str(tmp_path / "model")
    words = ["--model", option_name(kind), "-k", "3", "--rotate", "quartimax"]
    assert main(["fit", path, *words, "-o", model]) == 0
    assert "quartimax: 3 components" in capsys.readouterr().out
    expected = streampca.rotate(getattr(streampca, kind)(3).fit(X), "quartimax")
    np.testing.assert_allclose(streampca.load(model).components_, expected.components_, atol=1e-7)


def test_models_that_cannot_be_rotated_are_refused_by_name(store, capsys):
    words = [store[0], "-k", "2", "--rotate", "varimax", "--model"]
    for command in ("fit", "plan"):
        assert main([command, *words, "ppca"]) == 65
        assert "it goes with pca, incremental-pca, truncated-svd" in capsys.readouterr().err
    assert main(["fit", *words, "factor-analysis"]) == 65
    assert "say --rotation varimax" in capsys.readouterr().err


@pytest.mark.parametrize("kind", [[], ["--model", "kernel-pca"], ["--model", "cca"]])
def test_plan_takes_the_options_of_fit(kind):
    taken = {one: build_parser([one, *kind]).commands[one].options() for one in ("plan", "fit")}
    assert taken["plan"] == taken["fit"]
