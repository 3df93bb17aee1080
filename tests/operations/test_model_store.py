"""Model stores of fitted models."""

from __future__ import annotations

import json
import shutil
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import zarr

import streampca
from streampca.cli import main
from streampca.errors import InvalidInputError, SourceError
from streampca.models.results.drift import align, compare, permuted, principal_angles


@pytest.fixture
def X() -> Any:
    rng = np.random.default_rng(5)
    return rng.standard_normal((40, 6)) @ np.diag([6, 5, 4, 3, 2, 1.0]) + 3


# -- the store ---------------------------------------------------------------------------------


def test_publish_and_load(X: Any, tmp_path: Path) -> None:
    store = streampca.ModelStore(tmp_path / "models")
    pca = streampca.PCA(3, scale="std").fit(X)
    version = store.publish(pca, reason="the first")
    record = version.record
    assert (version.number, record["samples"], record["components"]) == (1, 40, 3)
    assert record["settings"]["scale"] == "std"
    assert record["plan"]["solver"] == "scatter"
    assert record["cost"]["reads"] == pca.plan_.reads
    assert record["libraries"]["numpy"] == np.__version__
    assert record["certificate"]["angle_bound"] == pca.certificate_.angle_bound.tolist()
    assert len(record["source"]["fingerprint"]) == 64
    for model in (store.load(), streampca.load(tmp_path / "models"), store.latest().load()):
        np.testing.assert_array_equal(model.transform(X), pca.transform(X))
    assert streampca.load(tmp_path / "models").get_params() == pca.get_params()
    # a version's part is what model.save writes, and opens as that
    part = tmp_path / "models" / "versions" / version.id / "model"
    np.testing.assert_array_equal(streampca.load(part).components_, pca.components_)
    saved = pca.save(tmp_path / "saved")
    packed = zipfile.ZipFile(part.parent / "files.zip").namelist()
    written = [p for p in saved.rglob("*") if p.is_file()]
    assert sorted(packed) == sorted(f"model/{p.relative_to(saved).as_posix()}" for p in written)
    assert version.state() is None
    with pytest.raises(InvalidInputError, match="cannot publish ndarray"):
        store.publish(X)


def test_a_state_goes_on_after_the_store_bit_for_bit(X: Any, tmp_path: Path) -> None:
    store = streampca.ModelStore(tmp_path / "models")
    model = streampca.IncrementalPCA(3).partial_fit(X[:25])
    version = store.publish(model)
    again = version.state()
    assert again is not None
    np.testing.assert_array_equal(
        again.partial_fit(X[25:]).components_, model.partial_fit(X[25:]).components_
    )
    assert store.publish(model, state=False).state() is None


def test_a_decomposition_and_an_object_store(X: Any) -> None:
    store = streampca.ModelStore("memory:///nightly")
    pca = streampca.PCA(2).fit(X)
    store.publish(pca.result_)
    np.testing.assert_array_equal(store.load().components_, pca.components_)


def test_what_is_no_model_says_so(tmp_path: Path) -> None:
    with pytest.raises(SourceError, match="no streampca model"):
        streampca.load(tmp_path)
    assert list(tmp_path.iterdir()) == []


# -- drift -------------------------------------------------------------------------------------


def test_principal_angles_are_those_of_a_known_rotation() -> None:
    for angle in (0.0, 1e-9, 1e-4, 0.3, 1.2, np.pi / 2):
        v = np.eye(5)[:2]
        w = v.copy()
        w[1] = np.cos(angle) * np.eye(5)[1] + np.sin(angle) * np.eye(5)[3]
        turn = np.array([[0.6, 0.8], [-0.8, 0.6]])
        found = principal_angles(v, turn @ w)
        np.testing.assert_allclose(found, [0, angle], atol=1e-15, rtol=1e-10)


def test_swapped_and_turned_components_are_matched(X: Any) -> None:
    from dataclasses import replace

    old = streampca.PCA(3).fit(X).result_
    order, sign = [1, 0, 2], np.array([1.0, -1.0, 1.0])
    new = replace(
        old,
        components=old.components[order] * sign[:, None],
        explained_variance=old.explained_variance[order] * 2,
    )
    drift = compare(old, new)
    assert drift.match.tolist() == order
    np.testing.assert_allclose(drift.cosine, [-1, 1, 1])
    np.testing.assert_allclose(drift.variance_ratio, 2)
    assert drift.max_angle < 1e-14
    assert (drift.total_ratio, drift.mean_shift) == (1.0, 0.0)
    with pytest.raises(InvalidInputError, match="5 features cannot be compared with 6"):
        compare(old, streampca.PCA(3).fit(X[:, :5]).result_)


# -- the command line --------------------------------------------------------------------------


@pytest.fixture
def place(X: Any, tmp_path: Path) -> str:
    store = streampca.ModelStore(tmp_path / "models")
    store.publish(streampca.PCA(2).fit(X[:20]), reason="half of it")
    store.publish(streampca.PCA(3).fit(X))
    store.publish(streampca.PCA(3, ddof=0).fit(X), promote=False)
    return str(tmp_path / "models")


def told(capsys: pytest.CaptureFixture[str], *words: str, code: int = 0) -> Any:
    assert main(["models", *words, "--json"]) == code
    return json.loads(capsys.readouterr().out)


def test_the_commands(place: str, capsys: pytest.CaptureFixture[str]) -> None:
    rows = told(capsys, "list", place)
    assert [(r["version"], r["state"], r["samples"], r["components"]) for r in rows] == [
        (1, "earlier", 20, 2),
        (2, "promoted", 40, 3),
        (3, "candidate", 40, 3),
    ]
    assert rows[0]["reason"] == "half of it"
    assert told(capsys, "show", place)["version"] == 2
    assert told(capsys, "show", place, "1")["samples"] == 20
    assert told(capsys, "verify", place) == {"versions": 3, "damaged": {}, "log": {}, "mended": []}
    assert told(capsys, "rollback", place)["promoted"] == 1
    assert told(capsys, "promote", place, rows[2]["id"][:8])["promoted"] == 3
    diff = told(capsys, "diff", place, "3", "2")
    assert diff["settings"] == {"ddof": [1, 0]}
    assert diff["max_angle"] < 1e-12
    np.testing.assert_allclose(diff["total_ratio"], 39 / 40)
    gone = told(capsys, "gc", place, "--keep", "1", "--grace", "0", "--dry-run")
    assert [row["version"] for row in told(capsys, "list", place)] == [1, 2, 3]
    assert told(capsys, "gc", place, "--keep", "1", "--grace", "0") == gone | {"dry_run": False}
    assert (gone["removed"], gone["bytes"]) == ([rows[1]["id"]], gone["versions"][0]["bytes"])
    assert [row["version"] for row in told(capsys, "list", place)] == [1, 3]  # to roll back to


def test_saved_models_are_published(
    X: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    saved, place = str(streampca.PCA(2).fit(X).save(tmp_path / "saved")), str(tmp_path / "models")
    assert told(capsys, "publish", place, saved)["promoted"] == 1
    assert told(capsys, "publish", place, saved, "--candidate")["candidate"] == 2
    assert streampca.ModelStore(place).latest().number == 1
    assert main(["models", "publish", place, str(tmp_path)]) == 66


def test_words(place: str, capsys: pytest.CaptureFixture[str]) -> None:
    for command in ("list", "show", "verify", "diff"):
        more = ["1"] if command == "diff" else []
        assert main(["models", command, place, *more]) == 0
    printed = capsys.readouterr().out
    assert "*       2" in printed
    assert "3 of 3 versions are whole" in printed
    assert "from version 2 to version 1" in printed
    assert main(["info", place]) == 0
    assert "40 samples" in capsys.readouterr().out


def test_damage_is_told_with_its_exit_code(place: str, capsys: pytest.CaptureFixture[str]) -> None:
    served = streampca.ModelStore(place).latest()
    Path(place, "versions", served.id, "files.zip").write_bytes(b"altered")
    assert list(told(capsys, "verify", place, code=65)["damaged"]) == ["2"]
    assert told(capsys, "verify", place, "1")["damaged"] == {}
    with pytest.raises(SourceError, match="absent or altered"):
        streampca.load(place)
    assert told(capsys, "rollback", place)["promoted"] == 1
    assert streampca.load(place).n_components == 2
    Path(place, "_head.json").write_text("{}")
    for command in (["models", "list", place], ["models", "rollback", place, "1"], ["info", place]):
        assert main(command) == 0
        assert "_head.json" in capsys.readouterr().err
    assert list(told(capsys, "verify", place, code=65)["log"]) == ["_head.json"]
    found = told(capsys, "verify", place, "--mend", code=65)
    assert (found["log"], list(found["damaged"]), found["mended"]) == ({}, ["2"], ["_head.json"])
    assert main(["models", "list", place]) == 0
    assert capsys.readouterr().err == ""
    shutil.rmtree(place)
    assert main(["models", "list", place]) == 66
    assert "no model store there" in capsys.readouterr().err


# -- scores ------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["local", "memory"])
def test_a_version_holds_its_scores(kind: str, X: Any, tmp_path: Path) -> None:
    store = streampca.ModelStore(tmp_path / "models" if kind == "local" else "memory:///m")
    first, second = (streampca.PCA(k).fit(X) for k in (2, 3))
    store.publish(first, scores=first.transform(X))
    version = store.publish(second, scores=second.transform(X))
    model, scores = store.load_with_scores()
    expected = second.transform(X)
    np.testing.assert_array_equal(model.transform(X), expected)
    assert (scores.shape, scores.dtype, scores.ndim, len(scores)) == ((40, 3), "f8", 2, 40)
    np.testing.assert_array_equal(np.asarray(scores), expected)
    np.testing.assert_array_equal(scores[7:19], expected[7:19])
    np.testing.assert_array_equal(scores[-1], expected[-1])
    np.testing.assert_array_equal(scores[:, 1], expected[:, 1])
    np.testing.assert_array_equal(scores[3, 1], expected[3, 1])
    assert scores[40:].shape == (0, 3)
    with pytest.raises(IndexError):
        scores[40]
    with pytest.raises(InvalidInputError, match="without steps"):
        scores[::2]
    assert version.parts == ("model", "scores")
    store.rollback()
    assert store.load_with_scores()[1].shape == (40, 2)
    assert store.verify() == {}
    with pytest.raises(InvalidInputError, match=r"scores of shape \(40, 2\); expected \(rows, 3\)"):
        store.publish(second, scores=expected[:, :2])
    assert store.publish(second).parts == ("model",)
    with pytest.raises(SourceError, match="has no scores; it has model"):
        store.load_with_scores()


def test_large_scores_are_read_chunk_by_chunk_and_checked(X: Any, tmp_path: Path) -> None:
    store = streampca.ModelStore(tmp_path / "models")
    pca = streampca.PCA(3).fit(X)
    many = np.random.default_rng(1).standard_normal((700_000, 3))  # three chunks
    version = store.publish(pca, scores=many)
    rows = store.latest().scores()
    np.testing.assert_array_equal(rows[349_000:350_001], many[349_000:350_001])
    np.testing.assert_array_equal(np.asarray(rows, np.float32), many.astype("f4"))
    files = sorted((tmp_path / "models" / "versions" / version.id / "scores").rglob("0"))
    last = max(files, key=lambda one: int(one.parent.name) if one.parent.name.isdigit() else -1)
    data = bytearray(last.read_bytes())
    data[len(data) // 2] ^= 1
    last.write_bytes(data)
    np.testing.assert_array_equal(store.latest().scores()[:10], many[:10])
    with pytest.raises(SourceError, match="absent or altered"):
        store.latest().scores()[350_000]
    assert list(store.verify()) == [1]


def test_both_are_published_and_copied_by_the_command_line(
    X: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    place, scores = str(tmp_path / "models"), str(tmp_path / "s.zarr")
    for k in (2, 3):
        pca = streampca.PCA(k).fit(X)
        pca.transform(X, out=scores)
        saved = str(pca.save(tmp_path / f"saved {k}"))
        assert told(capsys, "publish", place, saved, "--scores", scores)["promoted"] == k - 1
        (tmp_path / "s.zarr").rename(tmp_path / f"s{k}.zarr")
    assert main(["models", "publish", place, saved, "--scores", str(tmp_path)]) == 66
    assert "no scores that streampca wrote" in capsys.readouterr().err
    outputs = ["--model", str(tmp_path / "m"), "--scores", str(tmp_path / "copy.zarr")]
    assert told(capsys, "export", place, *outputs)["version"] == 2
    assert streampca.load(tmp_path / "m").n_components == 3
    assert zarr.open_array(tmp_path / "copy.zarr").attrs["streampca_version"]["number"] == 2
    assert main(["models", "export", place, "1", *outputs]) == 73
    assert "--overwrite" in capsys.readouterr().err
    assert told(capsys, "export", place, "1", *outputs, "--overwrite")["version"] == 1
    model, copy = streampca.load(tmp_path / "m"), zarr.open_array(tmp_path / "copy.zarr", mode="r")
    np.testing.assert_allclose(np.asarray(copy[...]), model.transform(X), atol=1e-12)
    assert main(["models", "export", place]) == 65
    assert "nothing to copy" in capsys.readouterr().err


def test_scores_follow_components_that_change_places_and_signs() -> None:
    X = np.random.default_rng(0).standard_normal((12, 30)) * np.linspace(1, 3, 30)
    model = streampca.PCA(3, solver="gram", progress=False).fit(X)
    turned = permuted(model.result_, np.array([2, 0, 1]), np.array([1.0, -1.0, 1.0]))
    centred = X - X.mean(axis=0)
    np.testing.assert_allclose(turned.scores, centred @ turned.components.T, atol=1e-10)
    back = align(turned, model.result_)
    np.testing.assert_allclose(back.scores, model.result_.scores, atol=1e-12)
    np.testing.assert_allclose(back.components, model.components_, atol=1e-12)
