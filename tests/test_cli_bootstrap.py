"""``streampca bootstrap``: the table of a saved model, and what it does not take."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import streampca
from streampca.cli import main
from tests.each import each


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model of tall rows, x.npy, and one of wide rows, which keeps its scores."""
    path, rng = tmp_path_factory.mktemp("bootstrap"), np.random.default_rng(0)
    X = rng.normal(size=(40, 6)) * [6, 5, 4, 3, 2, 1]
    np.save(path / "x.npy", X)
    (path / "families.txt").write_text("\n".join(f"f{i // 4}" for i in range(40)))
    streampca.PCA(6, progress=False).fit(X).save(path / "tall")
    streampca.PCA(3, progress=False).fit(rng.normal(size=(20, 50))).save(path / "wide")
    return path


def test_the_command_says_what_the_function_finds(folder: Path, capsys: Any) -> None:
    def said(*words: str) -> Any:
        assert main(["bootstrap", str(folder / "tall"), str(folder / "x.npy"), *words]) == 0
        return capsys.readouterr().out

    X, model = np.load(folder / "x.npy"), streampca.load(folder / "tall")
    groups = (folder / "families.txt").read_text().splitlines()
    found = streampca.bootstrap(
        model, X, n_resamples=30, groups=groups, n_components=2, random_state=4
    )
    words = [
        "--resamples",
        "30",
        "--groups",
        str(folder / "families.txt"),
        "-k",
        "2",
        "--seed",
        "4",
    ]
    assert json.loads(said(*words, "--json")) == json.loads(json.dumps(found.to_dict()))
    picture = folder / "scree.png"
    text = said(*words, "--level", "0.8", "--plot", str(picture))
    assert found.table(level=0.8) in text
    assert "30 resamples of 10 groups of 40 rows" in text
    assert picture.stat().st_size > 2000
    jackknife = streampca.jackknife(model, X, blocks=5)
    assert str(jackknife) in said("--method", "jackknife", "--blocks", "5")


def test_formulas_and_kept_scores_need_no_rows(folder: Path, capsys: Any) -> None:
    assert main(["bootstrap", str(folder / "wide"), "--resamples", "20"]) == 0
    assert "20 resamples of 20 rows" in capsys.readouterr().out
    words = ["--method", "asymptotic", "--n-effective", "11", "--json"]
    assert main(["bootstrap", str(folder / "tall"), *words]) == 0
    found = json.loads(capsys.readouterr().out)
    np.testing.assert_allclose(found["variance_error"], np.array(found["variance"]) * 0.2**0.5)


@each(
    "words, said",
    [
        (["tall"], "name the rows of its fit"),
        (["tall", "--method", "asymptotic", "--blocks", "3"], "--blocks is of --method bootstrap"),
        (["tall", "x.npy", "--method", "asymptotic"], "leave the source out"),
        (["wide", "--method", "jackknife", "--features", "chromosome"], "no column"),
        (["wide", "--groups", "families.txt"], "40"),
        (["tall", "x.npy", "--plot", "scree.txt"], "ends in .png"),
    ],
)
def test_what_the_command_does_not_take(
    words: list[str], said: str, folder: Path, capsys: Any
) -> None:
    names = ("tall", "wide", "x.npy", "families.txt", "scree.txt")
    placed = [str(folder / one) if one in names else one for one in words]
    assert main(["bootstrap", *placed]) != 0
    assert said in capsys.readouterr().err
