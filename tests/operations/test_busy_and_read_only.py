"""What a scheduler is told of sources that are being written, of stores that cannot be, and of
cluster sections that name no cluster."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

from streampca.cli import main

X = np.random.default_rng(0).standard_normal((60, 4))


def a_job(folder: Path, source: Path, **more: Any) -> str:
    job = {
        "source": {"path": str(source)},
        "model": {"n_components": 2},
        "store": str(folder / "models"),
        **more,
    }
    (folder / "job.yaml").write_text(json.dumps(job))
    return str(folder / "job.yaml")


def written(place: Path, end: str) -> Path:
    """A whole source; returns the file that a writer would leave half-written."""
    frame = pd.DataFrame(X, columns=[*"abcd"])
    if end == ".npy":
        np.save(place, X)
    elif end == "folder":
        place.mkdir()
        frame.to_parquet(place / "a.parquet")
        frame.to_parquet(place / "b.parquet")
        return place / "b.parquet"
    else:
        frame.to_parquet(place)
    return place


@pytest.mark.parametrize("end", [".parquet", ".npy", "folder"])
def test_a_half_written_file_is_retried_while_its_writer_may_be_busy(
    tmp_path: Path, end: str, capsys: pytest.CaptureFixture[str]
) -> None:
    place = tmp_path / f"x{end}"
    last = written(place, end)
    job = a_job(tmp_path, place)
    assert main(["refresh", job, "-q"]) == 0
    whole = last.read_bytes()
    for length in (5, len(whole) - 3) if end != ".npy" else (5,):
        last.write_bytes(whole[:length])
        assert main(["refresh", job, "-q"]) == 75
        assert "a writer may be busy (settle: 60 s)" in capsys.readouterr().err
    old = last.stat().st_mtime - 3600
    for one in (last, *place.glob("*")):
        os.utime(one, (old, old))
    assert main(["refresh", job, "-q"]) in (65, 66)
    assert "busy" not in capsys.readouterr().err
    last.write_bytes(whole)
    assert main(["refresh", job, "-q"]) == 0


@pytest.mark.skipif(not os.path.isdir("/proc/self"), reason="a folder that nobody can write to")
@pytest.mark.parametrize("store", ["/proc/models", "/proc/self/models"])
def test_a_dry_run_ends_as_the_job_does_where_nothing_can_be_written(
    tmp_path: Path, store: str, capsys: pytest.CaptureFixture[str]
) -> None:
    job = a_job(tmp_path, written(tmp_path / "x.npy", ".npy"), store=store)
    assert main(["refresh", job]) == main(["refresh", job, "--dry-run"]) == 74
    assert capsys.readouterr().err.count("/proc") == 2  # both name the place


def test_a_dry_run_leaves_nothing(tmp_path: Path) -> None:
    job = a_job(tmp_path, written(tmp_path / "x.npy", ".npy"))
    before = sorted(os.listdir(tmp_path))
    assert main(["refresh", job, "--dry-run", "-q"]) == 0
    assert sorted(os.listdir(tmp_path)) == before


NO_CLUSTERS = (
    "subprocess.Popen",
    "distributed.Client",
    "distributed.no.Cluster",
    "Nobody",
    "json.loads",
)


@pytest.mark.parametrize("name", NO_CLUSTERS)
def test_a_class_that_is_no_cluster_is_refused_by_config_check(
    tmp_path: Path, name: str, capsys: pytest.CaptureFixture[str]
) -> None:
    job = a_job(tmp_path, tmp_path / "x.npy", cluster={"class": name})
    assert main(["config", "check", job]) == 78
    assert "cluster.class" in capsys.readouterr().err


def test_a_class_that_is_installed_elsewhere_is_not_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    job = a_job(tmp_path, tmp_path / "x.npy", cluster={"class": "no_such_site.Cluster"})
    assert main(["config", "check", job]) == 0
    assert "not checked" in capsys.readouterr().err
    assert main(["config", "check", a_job(tmp_path, tmp_path / "x.npy", cluster={})]) == 0
