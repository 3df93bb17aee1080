"""Zarr stores with symbolic links out of them, and modules in the folder where a job is run."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import zarr

import streampca
from streampca.cli import main
from streampca.errors import DamagedSourceError

X = np.random.default_rng(0).standard_normal((40, 6))


def store(place: Path, form: str) -> Path:
    """A store of X whose first chunk, or a folder or document above it, can be moved."""
    group = zarr.create_group(place, zarr_format=2 if form == "v2" else 3)
    shards = (20, 6) if form == "sharded" else None
    group.create_array("X", data=X, chunks=(10, 6), shards=shards)
    return place


PARTS = {
    "v2": "X/0.0",
    "v3": "X/c/0/0",
    "folder": "X/c",
    "sharded": "X/c/1/0",
    "array": "X",
    "metadata": "X/zarr.json",
}


def move_and_link(part: Path, to: Path) -> None:
    shutil.move(part, to)
    part.symlink_to(to)


@pytest.mark.parametrize("form", PARTS)
def test_what_links_put_outside_is_refused_unless_allowed(tmp_path: Path, form: str) -> None:
    place = store(tmp_path / "x.zarr", form)
    move_and_link(place / PARTS[form], tmp_path / "elsewhere")
    with pytest.raises(DamagedSourceError, match=r"lies outside the store.*external_links=True"):
        streampca.PCA(2).fit(streampca.open(place, variable="X"))
    found = streampca.open(place, variable="X", external_links=True)
    np.testing.assert_array_equal(found.read(0, 0, 40), X)


def test_links_within_a_store_and_to_a_store_are_read(tmp_path: Path) -> None:
    place = store(tmp_path / "x.zarr", "v3")
    move_and_link(place / "X/c/0/0", place / "X/c/first")
    shutil.copytree(place / "X", place / "Y", symlinks=True)
    shutil.rmtree(place / "Y" / "c")
    (place / "Y" / "c").symlink_to(place / "X" / "c")
    (tmp_path / "link.zarr").symlink_to(place)
    for source in (tmp_path / "link.zarr/Y", tmp_path / "link.zarr/X", place / "Y"):
        np.testing.assert_array_equal(streampca.open(source).read(0, 0, 40), X)


def test_the_command_and_the_job_name_their_own_option(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    place = store(tmp_path / "x.zarr", "v3")
    move_and_link(place / "X/c/2/0", tmp_path / "elsewhere")
    line = ["fit", str(place), "--variable", "X", "-k", "2", "-q", "-o", str(tmp_path / "m")]
    assert main(line) == 65
    assert "--external-links" in capsys.readouterr().err
    assert main([*line, "--external-links"]) == 0


EVIL = "open('ran', 'w').close()\nclass Cluster: scale = adapt = close = scheduler_address = 0\n"
JOB = "source: {path: x.zarr}\nmodel: {n_components: 2}\nstore: s\ncluster: {class: evil.Cluster}\n"


COMMAND = ["-m", "streampca", "refresh", "job.yaml"]
SCRIPT = [
    "-c",
    "from streampca.passes.cluster.clients import cluster_class; cluster_class('evil.Cluster')",
]


@pytest.mark.slow
@pytest.mark.parametrize("program", [COMMAND, SCRIPT])
def test_a_module_in_the_current_folder_is_not_imported(tmp_path: Path, program: list[str]) -> None:
    zarr.save_array(tmp_path / "x.zarr", X)
    (tmp_path / "evil.py").write_text(EVIL)
    if program is COMMAND:
        (tmp_path / "yaml.py").write_text(EVIL)
    (tmp_path / "job.yaml").write_text(JOB)
    home = os.path.dirname(os.path.dirname(streampca.__file__))
    ran = subprocess.run(
        [sys.executable, *program],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        env={**os.environ, "PYTHONPATH": home},
    )
    assert "evil.Cluster cannot be imported" in ran.stderr
    assert not (tmp_path / "ran").exists()
