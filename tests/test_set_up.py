"""README's two commands, one after the other in one folder, as a new user types them."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sysconfig
from pathlib import Path

import pytest

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
