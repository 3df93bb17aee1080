"""What the documentation shows runs: its snippets and commands, in their order, on small data."""

from __future__ import annotations

import shlex
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import streampca
from streampca.cli.commands import main
from tests.readme_data import write_all
from tests.test_readme import BLOCK, PAGES, TEXT

CONFIGS = Path(__file__).parents[1] / "configs"
pytestmark = pytest.mark.filterwarnings("ignore")  # small data warn of much


@pytest.fixture
def desk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with all sources, in which the test runs."""
    write_all(tmp_path)
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.mark.slow
def test_every_snippet_runs(desk: Path) -> None:
    rng = np.random.default_rng(1)
    known: dict[str, Any] = {
        "streampca": streampca,
        "pca": streampca.PCA(4).fit("matrix.zarr"),
        "other": streampca.PCA(4).fit("new.zarr"),
        "new_rows": rng.normal(size=(3, 40)),
        "terms": rng.poisson(0.3, (150, 120)).astype(float),
        "queries": rng.poisson(0.3, (4, 120)).astype(float),
        "X": np.where(rng.random((60, 20)) < 0.1, np.nan, rng.normal(size=(60, 20))),
    }
    ran = 0
    for page in PAGES.values():
        names = dict(known)
        for kind, block in BLOCK.findall(page):
            if kind == "python":
                exec(block, names)
                ran += 1
    assert ran > 6


def rows() -> list[tuple[str, str]]:
    """(what to type, how to look at it) of README.md's first table, but for Slurm."""
    table = PAGES["README.md"].split("## What you have")[1].split("## ")[0]
    cells = [line.split(" | ") for line in table.splitlines() if "| `streampca " in line]
    found = [(fit.strip("`"), look.strip("`")) for _, fit, look, _ in cells]
    return [row for row in found if "slurm" not in row[0]]


@pytest.mark.soak
def test_every_row_leads_to_its_picture_and_report(desk: Path) -> None:
    """The commands of README.md's first table, one after the other, as a reader types them."""
    shutil.copytree(CONFIGS, desk / "configs")
    assert len(rows()) > 11
    pictures = 0
    for number, (fit, look) in enumerate(rows()):
        if "-o model" in fit:
            for made in ("model", "scores.zarr"):
                shutil.rmtree(made, ignore_errors=True)
        print(fit)
        assert not main(shlex.split(fit)[1:])
        if look.startswith("streampca"):
            print(look)
            assert not main([*shlex.split(look)[1:], "-o", f"{number}.png"])
            assert (desk / f"{number}.png").stat().st_size > 5000
            model = shlex.split(look)[2]
            assert not main(["report", model, "-o", f"{number}.html"])
            pictures += 1
    assert pictures > 9


@pytest.mark.soak
def test_every_command_runs(desk: Path) -> None:
    shutil.copytree(CONFIGS, desk / "configs")
    store = streampca.ModelStore("models/nightly")
    for _ in range(3):
        pca = streampca.PCA(10).fit("matrix.zarr")
        store.publish(pca, scores=pca.transform("matrix.zarr"))
    ran = 0
    for kind, block in BLOCK.findall(TEXT):
        shutil.rmtree("model", ignore_errors=True)  # of another section
        for line in block.splitlines() if kind == "sh" else ():
            if line.startswith("streampca "):
                print(line)
                assert not main(shlex.split(line, comments=True)[1:])
                ran += 1
    assert ran > 20
