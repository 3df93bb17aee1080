"""``streampca impute`` of a file of ratings, and ``streampca recommend``."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import streampca
from streampca.cli import main
from streampca.matrix.labels import json_of
from tests.models.completion.ratings import movielens_like

COLUMNS = ["--user", "who", "--item", "item", "--rating", "stars"]


@pytest.fixture
def path(tmp_path: Path) -> str:
    every = movielens_like(2, 0, 120, 80, 4000).tocoo()
    lines = zip(every.row, every.col, every.data, range(every.nnz), strict=True)
    text = "".join(f"p{i},{j + 500},{x:g},{t}\n" for i, j, x, t in lines)
    (tmp_path / "r.csv").write_text(f"who,item,stars,day\n{text}")
    return str(tmp_path / "r.csv")


def test_ratings_file_to_recommendations(path: str, tmp_path: Path, capsys: Any) -> None:
    model = str(tmp_path / "model")
    fit = ["impute", path, *COLUMNS, "--rank", "2", "--validation", "0.1", "--tol", "1e-2"]
    assert main([*fit, "--test", "0.1", "--test-by", "time", "--time", "day", "-o", model]) == 0
    shown = capsys.readouterr().out
    rows = {line[:12].strip(): line.split()[-5:] for line in shown.splitlines()}
    assert rows[""] == ["RMSE", "MAE", "precision", "recall", "NDCG"]
    known: Any = streampca.load(model)
    given, unseen = streampca.open_ratings(
        path, user="who", item="item", rating="stars", time="day"
    ).split(0.1, by="time")
    assert known.result_.settings.get("validation") is None  # it has the held-out ratings too
    assert rows["model"][0] == f"{known.evaluate(unseen)['rmse']:.4g}"
    alone = streampca.HardImpute(0, center="biases").fit(given)
    assert rows["biases alone"][0] == f"{alone.evaluate(unseen)['rmse']:.4g}"
    pairs = tmp_path / "pairs.csv"
    pairs.write_text('item,who\n503,"p3"\n504,nobody\n')
    assert main(["recommend", model, "--predict", str(pairs), "--json"]) == 0
    values = known.predict(["p3", "nobody"], [503, 504]).tolist()
    assert json.loads(capsys.readouterr().out) == [
        ["p3", "503", values[0]],
        ["nobody", "504", values[1]],
    ]
    assert main(["recommend", model, "p3", "p4", "-n", "2", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found == {user: [list(one) for one in known.recommend(user, 2)] for user in ("p3", "p4")}
    assert main(["recommend", model, "p3", "-n", "2"]) == 0
    assert capsys.readouterr().out.split()[:2] == ["p3", str(found["p3"][0][0])]
    assert main(["recommend", model, "--similar", "503", "-n", "2", "--json"]) == 0
    assert [item for item, _ in json.loads(capsys.readouterr().out)["503"]] == [
        item for item, _ in known.similar_items(503, 2)
    ]


def test_errors_of_ratings_name_the_repair(path: str, tmp_path: Path, capsys: Any) -> None:
    named = str(tmp_path / "named.csv")
    Path(named).write_text("userId,movieId,rating\n1,2,3\n")
    short = str(tmp_path / "short.csv")
    Path(short).write_text("who,item\np3,503\np4\n")
    lines, other, model = (str(tmp_path / name) for name in ("u.dat", "pca", "model"))
    Path(lines).write_text("1::2::3\n")
    assert main(["impute", path, *COLUMNS, "--rank", "1", "-q", "-o", model]) == 0
    streampca.PCA(1, scale="std").fit([[1.0, 2.0], [2.0, 1.0], [4.0, 3.0]]).save(other)
    for words, arguments in {
        "--user userId --item movieId --rating rating": ["impute", named],
        "--test is for ratings": ["impute", path, "--test", "0.1"],
        "--relevant is for --test": ["impute", path, *COLUMNS, "--relevant", "4"],
        "relevant=nan": [
            "impute",
            path,
            *COLUMNS,
            "--rank",
            "1",
            "--test",
            "0.1",
            "--relevant",
            "nan",
        ],
        "the line 'p4' has 1 of 2 columns": ["recommend", model, "--predict", short],
        "--user whom": ["impute", path, "--user", "whom"],
        "--user userId --item movieId": ["fit", named],
        "--user 0 --item 1 --rating 2": ["impute", lines],
        "with those of the fit": ["recommend", model, "--predict", named],
        "name users, or one item": ["recommend", other],
        "expected a HardImpute": ["recommend", other, "p3"],
    }.items():
        assert main(arguments) == 65
        assert words in capsys.readouterr().err


def test_json_has_null_for_what_is_no_number(tmp_path, capsys):
    """Python reads NaN in JSON, other languages refuse it."""
    values = np.random.default_rng(0).standard_normal((30, 6))
    values[3, 2] = np.nan
    np.save(tmp_path / "holes.npy", values)
    assert main(["impute", str(tmp_path / "holes.npy"), "--rank", "1", "--json", "-q"]) == 0

    def refuse(name):
        raise AssertionError(name)

    found = json.loads(capsys.readouterr().out, parse_constant=refuse)
    assert found["candidates"][0]["held_out"] is None
    assert json_of({"a": np.float32("inf"), "b": [np.array([1.0, np.nan])], "c": (2, True)}) == (
        '{"a": null, "b": [[1.0, null]], "c": [2, true]}'
    )
