"""``<store>.work``: made, marked and removed by refreshes; a user's folder of that name is kept."""

from __future__ import annotations

import contextlib
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import zarr

from streampca.errors import ConfigError, InvalidInputError
from streampca.operations.config import check_job
from streampca.operations.refresh import refresh
from streampca.operations.work_folder import MARKER, WorkFolder
from streampca.store import write_bundle


@pytest.fixture
def entries(tmp_path: Path) -> dict[str, Any]:
    array = zarr.create_array(str(tmp_path / "x"), shape=(20, 3), chunks=(8, 3), dtype="f8")
    array[...] = np.random.default_rng(0).standard_normal((20, 3))
    return {
        "source": {"path": str(tmp_path / "x")},
        "model": {"n_components": 2, "scale": "std"},
        "store": str(tmp_path / "models"),
        "settle": 0,
    }


def foreign(folder: Path, kind: str) -> None:
    if kind == "file":
        folder.write_text("thesis")
        return
    if kind == "link":
        folder.with_name("elsewhere").mkdir()
        (folder.with_name("elsewhere") / "thesis").write_text("thesis")
        folder.symlink_to(folder.with_name("elsewhere"))
        return
    folder.mkdir()
    if kind == "thesis":
        (folder / "thesis.tex").write_text("thesis")
    if kind == "another mark":
        (folder / MARKER).write_text("{}")
    if kind == "models of the user":
        write_bundle(folder / "pass-1", {"x": np.ones(2)}, {"kind": "PCA"})


@pytest.mark.parametrize("kind", ["thesis", "file", "link", "another mark", "models of the user"])
@pytest.mark.parametrize("resume", [True, False])
def test_a_folder_that_is_not_ours_is_refused_and_kept(
    kind: str, resume: bool, entries: dict[str, Any], tmp_path: Path
) -> None:
    folder = tmp_path / "models.work"
    foreign(folder, kind)
    before = sorted(tmp_path.rglob("*"))
    for dry_run in (True, False):
        with pytest.raises(InvalidInputError, match=r"models\.work was not made by streampca"):
            refresh(check_job(entries, "job"), dry_run=dry_run, resume=resume)
    ours = {tmp_path / "models.lock", *(runs := tmp_path / "models.runs").rglob("*"), runs}
    after = set(tmp_path.rglob("*")) - ours
    assert sorted(after) == before


@pytest.mark.parametrize("kind", ["empty", "marked"])
def test_ours_is_used_and_removed(kind: str, entries: dict[str, Any], tmp_path: Path) -> None:
    folder = tmp_path / "models.work"
    if kind == "marked":
        assert WorkFolder(str(tmp_path / "models")).make() == str(folder)
        (folder / "anything").write_text("left by a pass")
    else:
        folder.mkdir()
    assert refresh(check_job(entries, "job")).status == "published"
    assert {one.name for one in tmp_path.iterdir()} == {"x", "models", "models.lock", "models.runs"}


@pytest.mark.parametrize("which", ["store", "scores"])
def test_a_store_or_scores_within_the_source_are_refused(
    which: str, entries: dict[str, Any], tmp_path: Path
) -> None:
    if which == "store":
        entries["store"] = str(tmp_path / "x" / "models")
    else:
        entries["scores"] = {"path": str(tmp_path / "x" / "scores-{version}")}
    with pytest.raises(ConfigError, match="lie within one another"):
        check_job(entries, "job")


def test_a_refresh_that_looks_while_another_removes_it_takes_it_for_ours(tmp_path: Path) -> None:
    work, done = WorkFolder(str(tmp_path / "models")), threading.Event()

    def others() -> None:
        while not done.is_set():
            work.make()
            for one in range(20):
                with contextlib.suppress(FileNotFoundError):  # the other thread has removed it
                    (Path(str(work.path)) / f"part-{one}").touch()
            work.clear()

    with ThreadPoolExecutor(2) as pool:
        running = [pool.submit(others) for _ in range(2)]
        try:
            for _ in range(2000):
                work.check()
        finally:
            done.set()  # else a failure would wait for the others for ever
        for one in running:
            one.result()
    work.clear()
    assert not list(tmp_path.iterdir())
