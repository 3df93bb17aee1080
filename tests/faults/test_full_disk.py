"""F4: a disk that is full, and a limit of file sizes, at any point of a refresh."""

from __future__ import annotations

import json
import os
import random
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml
import zarr

import streampca
from streampca.cli import main

P = 40
SIZE = 4 << 20


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of 4 MB."""
    place = tmp_path / "disk"
    place.mkdir()
    if os.geteuid() != 0:
        pytest.skip("mounting a small disk takes root")
    mount = ["mount", "-t", "tmpfs", "-o", f"size={SIZE}", "tmpfs", str(place)]
    if subprocess.run(mount, capture_output=True).returncode:
        pytest.skip("this machine does not let us mount a small disk")
    yield place
    # lazily: a model that maps its arrays, or a process that was killed, may not be gone yet
    subprocess.run(["umount", "--lazy", str(place)], check=True)


@pytest.mark.parametrize("rounds", [3, pytest.param(20, marks=pytest.mark.soak)])
def test_a_full_disk_keeps_the_old_version_and_is_made_good(
    rounds: int, small_disk: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    draw = random.Random(4)
    rng = np.random.default_rng(4)
    array = zarr.create_array(str(tmp_path / "x"), shape=(0, P), chunks=(64, P), dtype="f8")

    def append(rows: int) -> None:
        array.append(rng.standard_normal((rows, P)) * np.linspace(4, 1, P) + 3)

    entries = {
        "source": {"path": str(tmp_path / "x")},
        "model": {"n_components": 4},
        "store": str(small_disk / "models"),
        "settle": 0,
        "keep": 2,
    }
    job = tmp_path / "job.yaml"
    job.write_text(yaml.safe_dump(entries))
    ballast = small_disk / "ballast"

    def run() -> tuple[int, Any]:
        code = main(["refresh", str(job), "-q"])
        out = capsys.readouterr().out
        return code, json.loads(out) if out else None

    append(100)
    assert run()[0] == 0
    store = streampca.ModelStore(entries["store"])
    needed = sum(one.stat().st_size for one in (small_disk / "models").rglob("*") if one.is_file())
    full = 0
    for _ in range(rounds):
        before = store.latest()
        append(draw.randint(1, 60))
        stat = os.statvfs(small_disk)
        free = draw.randint(0, needed * 3 // 4)
        ballast.write_bytes(bytes(max(0, stat.f_bavail * stat.f_frsize - free)))
        code, told = run()
        assert code in (0, 74)
        full += code == 74
        assert (told is None) == (code == 74)
        served = store.latest()
        assert (served.id == before.id) == (code == 74)
        assert store.verify() == {}
        ballast.unlink()
        assert run()[0] == 0
        result = store.latest().result()
        X = array[...]
        expected = np.linalg.svd(X - X.mean(axis=0), compute_uv=False)[:4] ** 2 / (len(X) - 1)
        np.testing.assert_allclose(np.sort(result.explained_variance)[::-1], expected, rtol=1e-11)
    print(f"{full} of {rounds} met a full disk")
    assert full > rounds / 3
