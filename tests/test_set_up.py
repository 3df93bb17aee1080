"""README's two commands, one after the other in one folder, as a new user types them; the wheel."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sysconfig
import tomllib
from pathlib import Path

import h5py
import numpy as np
import pandas as pd
import pytest
import scipy.io
import scipy.sparse
import xarray as xr
import zarr
from PIL import Image

from tests.data import planted
from tests.genotypes import random_calls, write_plink, write_vcf_zarr

ROOT = Path(__file__).parents[1]
COMMANDS = re.findall(
    r"^python3 -m venv .*$", (ROOT / "README.md").read_text(encoding="utf-8"), re.M
)


@pytest.fixture
def clone(tmp_path: Path) -> Path:
    """The files of this checkout in a folder of their own."""
    left_out = shutil.ignore_patterns(".git", ".*venv*", ".*cache", "__pycache__", "*.egg-info")
    return Path(shutil.copytree(ROOT, tmp_path / "clone", ignore=left_out))


@pytest.fixture
def machine(tmp_path: Path) -> dict[str, str]:
    """Variables of a machine that has all dependencies at hand, no network and an empty home."""
    libraries = tmp_path / "libraries"
    libraries.mkdir()
    for path in Path(sysconfig.get_path("purelib")).iterdir():
        if "streampca" not in path.name and path.suffix != ".pth":
            (libraries / path.name).symlink_to(path)
    quiet = {"PIP_NO_INDEX": "1", "PIP_NO_BUILD_ISOLATION": "0", "PIP_ROOT_USER_ACTION": "ignore"}
    clean = {k: v for k, v in os.environ.items() if k not in ("VIRTUAL_ENV", "NUMBA_CACHE_DIR")}
    return {
        **clean,
        **quiet,
        "PYTHONPATH": str(libraries),
        "XDG_CACHE_HOME": str(tmp_path / "home"),
    }


def typed(line: str, folder: Path, machine: dict[str, str]) -> str:
    done = subprocess.run(
        ["sh", "-c", line], cwd=folder, env=machine, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.mark.soak
def test_the_second_command_leaves_a_package_that_works(
    clone: Path, machine: dict[str, str]
) -> None:
    demo, tests = COMMANDS
    said = typed(f"{demo} --variants 2000 --samples 300", clone, machine)
    assert "check: 100.0% of the samples" in said
    typed(f"{tests} tests/matrix/test_labels.py -n 0 -q", clone, machine)
    # nothing is left of the installed package: it would be imported in place of the checkout
    assert not list(clone.glob(".venv/lib/*/site-packages/streampca"))
    assert typed(".venv/bin/streampca --version", clone, machine).startswith("streampca ")
    assert list(Path(machine["XDG_CACHE_HOME"]).rglob("*.nbi"))  # where compiled kernels lie now


def write_sources(folder: Path) -> list[str]:
    """A file of each kind, and the words that follow ``streampca fit``."""
    x, names = planted(40, 12), [f"f{j}" for j in range(12)]
    counts = np.random.default_rng(0).poisson(1.0, (40, 12))
    rows = [f"s{i}" for i in range(40)]
    np.save(folder / "x.npy", x)
    zarr.create_array(folder / "x.zarr", data=x, chunks=(10, 12))
    with h5py.File(folder / "x.h5", "w") as file:
        file["x"] = x
    frame = pd.DataFrame(x, rows, names)
    frame.to_csv(folder / "x.csv")
    frame.to_parquet(folder / "x.parquet")
    scipy.sparse.save_npz(folder / "x.npz", scipy.sparse.csr_array(counts))
    scipy.io.mmwrite(folder / "x.mtx", scipy.sparse.coo_array(counts))
    field = xr.DataArray(x.reshape(40, 3, 4), dims=("time", "lat", "lon"), name="sst")
    field.to_netcdf(folder / "x.nc", engine="h5netcdf")
    calls = random_calls(40, 60)
    write_plink(folder / "x", calls)
    write_vcf_zarr(folder / "calls.zarr", calls)
    (folder / "texts").mkdir()
    (folder / "images").mkdir()
    for i, line in enumerate(counts):
        words = " ".join(f"word{chr(97 + j)} " * n for j, n in enumerate(line))
        (folder / "texts" / f"{i}.txt").write_text(words)
        Image.fromarray((counts[i].reshape(3, 4) * 20).astype("u1")).save(
            folder / f"images/{i}.png"
        )
    return [
        *("x.npy", "x.zarr", "x.h5", "x.csv", "x.parquet", "x.npz", "x.mtx", "x.bed", "calls.zarr"),
        *("x.nc --variable sst --dim time", "images"),
    ]


@pytest.mark.soak
def test_the_wheel_works_without_the_repository_and_leaves_nothing(
    clone: Path, machine: dict[str, str], tmp_path: Path
) -> None:
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    typed(f"python3 -m venv env && env/bin/pip wheel -q --no-deps -w . {clone}", elsewhere, machine)
    shutil.rmtree(clone)
    everything = lambda: {one for one in elsewhere.glob("env/**/*") if one.suffix != ".pyc"}  # noqa: E731
    before = everything()
    typed("env/bin/pip install -q --no-deps streampca-*.whl", elsewhere, machine)
    declared = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    said = typed("env/bin/streampca --version", elsewhere, machine)
    assert said.split() == ["streampca", declared["version"]]
    said = typed("env/bin/streampca demo --variants 2000 --samples 300", elsewhere, machine)
    assert "check: 100.0% of the samples" in said
    for i, words in enumerate(write_sources(elsewhere)):
        typed(f"env/bin/streampca fit {words} -k 2 -q -o model{i}", elsewhere, machine)
        assert "streampca" in typed(f"env/bin/streampca info model{i}", elsewhere, machine)
    typed("env/bin/streampca lsa fit texts -k 2 -q -o topics", elsewhere, machine)
    inside = "import streampca; print(streampca.__file__)"
    assert "/env/lib/" in typed(f"env/bin/python -c '{inside}'", elsewhere, machine)
    typed("env/bin/pip uninstall -q -y streampca", elsewhere, machine)
    assert everything() == before
