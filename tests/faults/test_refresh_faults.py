"""F1, F4, F12, F23: refreshes that are killed, run into a full disk, or race one another."""

from __future__ import annotations

import contextlib
import random
import shutil
import signal
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml
import zarr
from backends import FaultyBackend

import streampca
from streampca.model_store import model_store
from streampca.operations.config import check_job
from streampca.operations.refresh import refresh
from streampca.store import LocalBackend

P = 24


def slow(*values: Any) -> Any:
    return pytest.param(*values, marks=pytest.mark.slow)


def soak(*values: Any) -> Any:
    return pytest.param(*values, marks=pytest.mark.soak)


class Job:
    """A source that grows, a job that is shot at, and one beside it that is not."""

    def __init__(self, folder: Path, seed: int) -> None:
        print(f"seed {seed}")
        self.rng, self.draw = np.random.default_rng(seed), random.Random(seed)
        self.array = zarr.create_array(
            str(folder / "x.zarr"), shape=(0, P), chunks=(64, 12), dtype="f8"
        )
        self.append(90)
        entries = {
            "source": {"path": str(folder / "x.zarr")},
            "model": {"n_components": 4},
            "settle": 0,
            "keep": 3,
        }
        self.path = str(folder / "job.yaml")
        self.entries = {**entries, "store": str(folder / "models")}
        self.entries["scores"] = {"path": str(folder / "scores.zarr")}
        Path(self.path).write_text(yaml.safe_dump(self.entries))
        self.beside = check_job({**entries, "store": str(folder / "beside")}, "beside")

    def append(self, rows: int) -> None:
        self.array.append(self.rng.standard_normal((rows, P)) * np.linspace(4, 1, P) + 3)

    @property
    def store(self) -> streampca.ModelStore:
        return streampca.ModelStore(self.entries["store"])

    def whole(self) -> Any:
        """The served result, of a store in which every byte is what was written (I1)."""
        assert self.store.verify() == {}
        return self.store.latest().result()

    def uninterrupted(self) -> Any:
        refresh(self.beside)
        return streampca.ModelStore(self.beside.store).latest().result()

    def check_same(self, result: Any) -> None:
        """Bit for bit what nobody shot at (I3), of every row once (I4)."""
        expected = self.uninterrupted()
        np.testing.assert_array_equal(result.components, expected.components)
        np.testing.assert_array_equal(result.explained_variance, expected.explained_variance)
        assert result.n_samples == self.array.shape[0]


def kill_refreshes(folder: Path, server: Any, kills: int, how: int, seed: int) -> int:
    """How many of them were caught before they had ended."""
    job = Job(folder, seed)
    ((code, text),) = server(job=job.path)
    assert code == 0, text
    caught, before = 0, job.whole()
    job.check_same(before)
    for _ in range(kills):
        job.append(job.draw.randint(1, 90))
        after = job.draw.random() * 0.4
        ((code, _),) = server(job=job.path, kill=how, after=after)
        assert code in (0, -how, 128 + how)
        caught += code != 0
        found = job.whole()
        assert found.n_samples in (before.n_samples, job.array.shape[0])
        assert code != 0 or found.n_samples == job.array.shape[0]
        ((code, text),) = server(job=job.path)
        assert code == 0, text
        before = job.whole()
        job.check_same(before)
    job.store.gc(1, grace=0)
    left = {one.name.split("/")[0] for one in job.store.backend.list("")}
    assert left == {"versions", "_log", "_head.json", "streampca-store.json", "last_look.json"}
    assert len(job.store.versions()) == 2  # the served one, and that before it
    return caught


def test_a_killed_refresh_is_made_good_by_the_next(tmp_path: Path, server: Any) -> None:
    kill_refreshes(tmp_path, server, 2, signal.SIGKILL, seed=1)


@pytest.mark.parametrize(
    ("how", "kills"),
    [
        slow(signal.SIGKILL, 3),
        soak(signal.SIGKILL, 200),
        soak(signal.SIGTERM, 20),
        soak(signal.SIGINT, 20),
    ],
)
def test_many_killed_refreshes(how: int, kills: int, tmp_path: Path, server: Any) -> None:
    caught = kill_refreshes(tmp_path, server, kills, how, seed=2)
    print(f"{caught} of {kills} were caught at work")
    assert caught > kills / 4


def race(folder: Path, server: Any, rounds: int, locked: bool) -> None:
    """Eight refreshes of the same data at once: one version, and nobody fails otherwise."""
    job = Job(folder, seed=12)
    for round_ in range(rounds):
        answers = server(job=job.path, processes=8, locked=locked)
        codes = sorted(code for code, _ in answers)
        assert set(codes) <= {0, 75}, [one for one in answers if one[0] not in (0, 75)]
        assert codes[0] == 0
        assert job.store.history().table.count == round_ + 1
        job.check_same(job.whole())
        job.append(40)


@pytest.mark.parametrize("locked", [slow(True), False], ids=["with a lock", "by the log alone"])
def test_of_eight_at_once_one_publishes(locked: bool, tmp_path: Path, server: Any) -> None:
    race(tmp_path, server, 1, locked)


@pytest.mark.soak
@pytest.mark.parametrize("locked", [True, False], ids=["with a lock", "by the log alone"])
def test_of_eight_at_once_one_publishes_every_time(
    locked: bool, tmp_path: Path, server: Any
) -> None:
    race(tmp_path, server, 100, locked)


@pytest.mark.soak
def test_of_eight_that_make_the_store_one_publishes_every_time(tmp_path: Path, server: Any) -> None:
    """The first round again and again: there is no store yet, no log, no scores to exchange."""
    for trial in range(100):
        (tmp_path / str(trial)).mkdir()
        race(tmp_path / str(trial), server, 1, locked=False)


@pytest.mark.parametrize("limit", [slow(300), 700, slow(3000)])
def test_a_full_disk_leaves_the_old_version(limit: int, tmp_path: Path, server: Any) -> None:
    """No file may grow beyond the limit: whatever is written first fails."""
    job = Job(tmp_path, seed=4)
    assert server(job=job.path)[0][0] == 0
    before = job.whole()
    job.check_same(before)
    job.append(30)
    ((code, text),) = server(job=job.path, file_limit=limit)
    assert code == 74, text
    np.testing.assert_array_equal(job.whole().components, before.components)
    assert server(job=job.path)[0][0] == 0
    job.check_same(job.whole())


@pytest.mark.parametrize(
    ("kind", "stride"),
    [
        ("fails once", 9),
        slow("fails for ever", 4),
        slow("fails after", 4),
        *(soak(kind, 1) for kind in ("fails once", "fails for ever", "fails after")),
    ],
)
def test_every_step_of_the_store_may_fail(
    kind: str, stride: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """F2: an error, never success without a version; the old one served; and then all is well."""
    job = Job(tmp_path, seed=2)
    entries = {name: value for name, value in job.entries.items() if name != "scores"}
    checked = check_job(entries, "job")
    refresh(checked)
    job.check_same(job.whole())
    kept = tmp_path / "kept"
    for name in ("models", "beside", "x.zarr"):
        shutil.copytree(tmp_path / name, kept / name)
    at = steps = 0
    while True:
        for name in ("models", "beside", "x.zarr"):  # a longer log would have more steps each time
            shutil.rmtree(tmp_path / name)
            shutil.copytree(kept / name, tmp_path / name)
        job.array = zarr.open_array(str(tmp_path / "x.zarr"))
        job.append(3)
        before = job.whole()
        faulty: list[FaultyBackend] = []

        def open_faulty(place: str, options: Any, at: int = at, faulty: Any = faulty) -> Any:
            error = OSError(5, "Input/output error")
            how = {"after": "after" in kind, "for_ever": "ever" in kind}
            faulty.append(FaultyBackend(LocalBackend(place), at, error, **how))
            return faulty[-1]

        acknowledged = False
        with monkeypatch.context() as patch:
            patch.setattr(model_store, "open_backend", open_faulty)
            with contextlib.suppress(OSError):
                acknowledged = refresh(checked).status == "published"
        found = job.whole()
        rows = job.array.shape[0]
        assert found.n_samples in (before.n_samples, rows)
        assert not acknowledged or found.n_samples == rows
        refresh(checked)
        job.check_same(job.whole())
        if faulty[-1].count <= at:
            break
        at, steps = at + stride, steps + 1
    assert steps > 1
