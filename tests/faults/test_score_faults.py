"""F1, F3, F4 of scores: they are those of the served model, or none are there; never another's."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml
import zarr

import streampca
from streampca.cli import main
from streampca.errors import InvalidInputError
from streampca.operations import scores as scores_of_jobs
from streampca.operations.config import check_job
from streampca.operations.refresh import _Run, refresh
from streampca.store.sinks import version_of

P = 12
SLOW = pytest.mark.slow


class Job:
    """A source that grows by rows of other directions each time, so that models differ."""

    def __init__(self, folder: Path, name: str) -> None:
        self.folder, self.name = folder, name
        self.rng = np.random.default_rng(7)
        self.array = zarr.create_array(
            str(folder / "x.zarr"), shape=(0, P), chunks=(64, P), dtype="f8"
        )
        self.entries = {
            "source": {"path": str(folder / "x.zarr")},
            "model": {"n_components": 3},
            "settle": 0,
            "store": str(folder / "models"),
            "scores": {"path": str(folder / name)},
        }
        self.path = str(folder / "job.yaml")
        Path(self.path).write_text(yaml.safe_dump(self.entries))
        self.append(60)

    def append(self, rows: int) -> None:
        turn = np.roll(np.linspace(9, 1, P), int(self.rng.integers(P)))
        self.array.append(self.rng.standard_normal((rows, P)) * turn + 3)

    @property
    def store(self) -> streampca.ModelStore:
        return streampca.ModelStore(self.entries["store"])

    def place(self) -> Path:
        return self.folder / self.name.replace("{version}", str(self.store.latest().number))

    def check(self, must_be_there: bool) -> None:
        """The scores are those of the served version: in it, and at their path if any are there."""
        assert self.store.verify() == {}
        served = self.store.latest()
        model, scores = self.store.load_with_scores()
        rows = self.array[: len(scores)]
        assert len(scores) == served.result().n_samples
        np.testing.assert_allclose(np.asarray(scores), model.transform(rows), atol=1e-10)
        if not self.place().exists():
            assert not must_be_there
            return
        assert version_of(str(self.place())) == {"number": served.number, "id": served.id}
        np.testing.assert_array_equal(zarr.open_array(str(self.place()))[...], scores[:])

    def left(self) -> set[str]:
        """What lies beside the outputs, and what lies in the store beside its versions."""
        beside = {one.name for one in self.folder.iterdir()} - {"x.zarr", "models", "job.yaml"}
        beside -= {"models.lock", "models.runs"} | {
            self.name.replace("{version}", str(n + 1)) for n in range(len(self.store.versions()))
        }
        folders = {one.name for one in (self.folder / "models" / "versions").iterdir()}
        claims = {p.name for p in (self.folder / "models" / "_staged").glob("*.claim")}
        new = {one for one in beside if one.endswith(".new")}  # empty: a minute later they go
        assert all(not any((self.folder / one).iterdir()) for one in new)
        beside -= new
        return beside | (folders - {one.id for one in self.store.versions()}) | claims


@pytest.mark.parametrize("name", ["scores.zarr", "scores-{version}.zarr"])
@pytest.mark.parametrize("stride", [13, pytest.param(1, marks=pytest.mark.soak)])
def test_killed_at_any_step_it_leaves_no_scores_of_another_model(
    name: str, stride: int, tmp_path: Path, server: Any
) -> None:
    job = Job(tmp_path, name)
    assert server(job=job.path)[0][0] == 0
    job.check(must_be_there=True)
    at = caught = 0
    while True:
        job.append(20)
        ((code, text),) = server(job=job.path, die_at=at)
        assert code in (0, -signal.SIGKILL), text
        job.check(must_be_there=code == 0)
        if code == 0:
            break
        caught += 1
        ((code, text),) = server(job=job.path)
        assert code == 0, text
        job.check(must_be_there=True)
        assert job.store.latest().result().n_samples == job.array.shape[0]
        assert job.left() == set(), f"step {at}"
        at += stride
    print(f"killed at {caught} of {at} steps")
    assert at > 20


@pytest.mark.parametrize("limit", [300, 700, 3000, pytest.param(9000, marks=SLOW)])
def test_a_full_disk_leaves_the_scores_of_the_served_version(
    limit: int, tmp_path: Path, server: Any
) -> None:
    job = Job(tmp_path, "scores.zarr")
    assert server(job=job.path)[0][0] == 0
    job.append(400)
    ((code, text),) = server(job=job.path, file_limit=limit)
    assert code == 74, text
    job.check(must_be_there=True)
    assert server(job=job.path)[0][0] == 0
    job.check(must_be_there=True)
    assert job.left() == set()


def test_after_a_rollback_the_scores_and_every_output_are_of_the_served_version(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    job = Job(tmp_path, "scores.zarr")
    run = lambda: refresh(check_job(job.entries, "job"))  # noqa: E731
    run()
    job.append(30)
    assert run().served == 2
    job.store.rollback()
    done = run()
    assert (done.status, done.version, done.served, done.scores["version"]) == (
        "unchanged",
        2,
        1,
        1,
    )
    job.check(must_be_there=True)
    assert main(["refresh", job.path]) == 0
    assert "version 1 is served" in capsys.readouterr().err
    assert main(["info", job.entries["store"]]) == 0
    assert "version    1 (" in capsys.readouterr().out


def publish_meanwhile(monkeypatch: pytest.MonkeyPatch, *others: Callable[[], Any]) -> None:
    """Call these once, when a refresh is about to compute its scores."""
    real, waiting = scores_of_jobs.estimator_of, [*others]

    def estimator_of(result: Any) -> Any:
        while waiting:
            waiting.pop(0)()
        return real(result)

    monkeypatch.setattr(scores_of_jobs, "estimator_of", estimator_of)


def candidate(job: Job) -> Callable[[], Any]:
    """Someone who publishes a version that is not served."""
    return lambda: job.store.publish(streampca.PCA(1).fit(np.eye(4)), promote=False)


@pytest.mark.parametrize("name", ["scores-{version}.zarr", "{version}/scores.zarr", "scores.zarr"])
def test_the_number_in_the_path_is_that_of_the_version(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    job = Job(tmp_path, name)
    refresh(check_job(job.entries, "job"))
    job.append(20)
    publish_meanwhile(monkeypatch, candidate(job))
    done = refresh(check_job(job.entries, "job"))
    assert (done.version, done.scores["version"], done.scores["path"]) == (3, 3, str(job.place()))
    told = job.store.latest().record["scores"]
    assert (told["version"], told["path"]) == (3, str(job.place()))
    job.check(must_be_there=True)
    assert [one.name for one in tmp_path.rglob("*.partial")] == []
    if name != "scores.zarr":
        assert not (tmp_path / name.replace("{version}", "2")).exists()
    assert refresh(check_job(job.entries, "job")).status == "unchanged"


def test_of_two_that_publish_the_same_both_name_the_scores_that_are_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    job = Job(tmp_path, "scores-{version}.zarr")
    refresh(check_job(job.entries, "job"))
    job.append(20)
    twin = lambda: _Run(check_job(job.entries, "job"), None, None).go()  # noqa: E731
    publish_meanwhile(monkeypatch, candidate(job), twin)
    done = refresh(check_job(job.entries, "job"))
    assert (done.version, done.scores["version"], done.scores["path"]) == (3, 3, str(job.place()))
    assert (done.status, done.served, done.exit_code) == ("already", 3, 0)
    assert f"process {os.getpid()}, " in done.by
    assert done.by == job.store.latest().record["by"]
    job.check(must_be_there=True)
    assert job.left() == set()


def test_what_lies_in_the_place_of_the_new_number_stays(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    job = Job(tmp_path, "scores-{version}.zarr")
    refresh(check_job(job.entries, "job"))
    job.append(20)
    (tmp_path / "scores-3.zarr").mkdir()
    (tmp_path / "scores-3.zarr" / "thesis.tex").write_text("thesis")
    publish_meanwhile(monkeypatch, candidate(job))
    with pytest.raises(InvalidInputError, match=r"scores-3\.zarr exists already"):
        refresh(check_job(job.entries, "job"))
    assert (tmp_path / "scores-3.zarr" / "thesis.tex").read_text() == "thesis"
    assert [one.number for one in job.store.versions()] == [1, 2]
    assert job.store.latest().number == 1
    assert job.left() == {"scores-3.zarr", "models.work"}  # its sums: the next refresh needs them


def test_scores_need_no_path_and_go_with_their_version(tmp_path: Path) -> None:
    job = Job(tmp_path, "unused")
    job.entries["scores"] = {"rows": "all"}
    job.entries["keep"] = 1
    for _ in range(3):
        assert refresh(check_job(job.entries, "job")).scores["path"] is None
        job.append(10)
    job.check(must_be_there=False)
    assert job.left() == set()
    assert [one.number for one in job.store.versions()] == [2, 3]  # one to roll back to


def test_gc_removes_the_scores_of_dropped_versions_and_nothing_else(tmp_path: Path) -> None:
    job = Job(tmp_path, "scores-{version}.zarr")
    for _ in range(3):
        refresh(check_job(job.entries, "job"))
        job.append(10)
    mine = tmp_path / ".scores-1.zarr.notes.partial"
    mine.write_text("of the user")
    dead = tmp_path / f".scores-1.zarr.{'0' * 32}.partial"
    dead.mkdir()
    other = tmp_path / "scores-2.zarr"
    other.rename(tmp_path / "taken")
    zarr.create_array(str(other), shape=(3,), dtype="f8")  # the user's own, of that name
    would = job.store.gc(1, grace=0, dry_run=True)
    assert (tmp_path / "scores-1.zarr").exists()
    assert job.store.gc(1, grace=0) == would
    assert {str(tmp_path / "scores-1.zarr"), str(dead)} <= {one.name for one in would}
    assert {one.name for one in tmp_path.iterdir()} == {
        "x.zarr",
        "models",
        "models.lock",
        "models.runs",
        "job.yaml",
        mine.name,
        "taken",
        "scores-2.zarr",
        "scores-3.zarr",
    }
    job.check(must_be_there=True)


def test_scores_and_model_are_of_one_version_beside_refreshes(tmp_path: Path) -> None:
    """A reader that asks for both gets both of one, whatever is published and removed meanwhile."""
    import threading

    job = Job(tmp_path, "scores.zarr")
    job.entries["keep"] = 2
    refresh(check_job(job.entries, "job"))
    done, seen = threading.Event(), []
    failures: list[BaseException] = []

    def read() -> None:
        try:
            while not done.is_set():
                version, scores = job.store.read_current(
                    lambda version: (version.number, np.asarray(version.scores()))
                )
                seen.append(version)
                assert len(scores) == 60 + 10 * (version - 1)
        except BaseException as error:
            failures.append(error)

    reader = threading.Thread(target=read)
    reader.start()
    try:
        for _ in range(5):
            job.append(10)
            before = len(seen)
            refresh(check_job(job.entries, "job"))
            while len(seen) == before and reader.is_alive():  # it has read one meanwhile, or reads
                time.sleep(0.001)
    finally:
        done.set()
        reader.join()
    assert not failures
    assert len(seen) >= 5
