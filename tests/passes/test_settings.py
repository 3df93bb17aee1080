"""Settings from Dask's configuration: where they come from, and what they do."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import dask
import pytest
from pass_matrices import Unread, by_hand

import streampca
from streampca.errors import InvalidInputError, MemoryLimitError
from streampca.passes import find_client
from streampca.passes.settings import SETTINGS, setting


def test_the_memory_limit_of_plans() -> None:
    matrix = Unread((200_000, 2000), "float32", (1000, 2000))
    free, bounded = streampca.PCA(5).plan(matrix), streampca.PCA(5, memory_limit="400MiB")
    with dask.config.set({"streampca.memory-limit": "400MiB"}):
        assert streampca.PCA(5).plan(matrix).to_dict() == bounded.plan(matrix).to_dict()
        assert streampca.PCA(5, memory_limit="4GiB").plan(matrix).peak_nbytes == free.peak_nbytes
    with (
        dask.config.set({"streampca.memory-limit": "1MiB"}),
        pytest.raises(MemoryLimitError, match="smallest limit that would do"),
    ):
        streampca.PCA(5).plan(matrix)


def test_scheduler_and_interval() -> None:
    with dask.config.set({"streampca.scheduler": "nowhere", "streampca.checkpoint-interval": 5}):
        with pytest.raises(InvalidInputError, match="scheduler='nowhere'"):
            find_client(None)
        assert find_client("threads") is None
        assert by_hand().every == 5
        assert by_hand(every=0).every == 0
    assert by_hand().every == 60


@pytest.mark.parametrize("value", ["soon", -1, float("nan"), [3]])
def test_settings_that_are_no_numbers_are_refused(value: Any) -> None:
    with (
        dask.config.set({"streampca.span-timeout": value}),
        pytest.raises(InvalidInputError, match=r"streampca.span-timeout .* expected at least 0.1"),
    ):
        setting("span-timeout")


@pytest.mark.parametrize("name", ["memory-limt", "memory_limt"])
def test_misspelt_settings_are_refused(name: str) -> None:
    with (
        dask.config.set({f"streampca.{name}": "1GiB"}),
        pytest.raises(InvalidInputError, match=r"unknown; .*; did you mean memory-limit\?"),
    ):
        setting("read-timeout")


@pytest.mark.slow
def test_environment_and_files(tmp_path: Path) -> None:
    """Dask is loaded only where one of them speaks of streampca."""
    (tmp_path / "site.yaml").write_text("streampca: {pause-timeout: 7}\n")
    code = """
import sys
from streampca.passes.settings import setting
print(setting("read-timeout"), setting("pause-timeout"), "dask" in sys.modules)
"""

    def said(**more: str) -> str:
        environment = {k: v for k, v in os.environ.items() if not k.startswith("DASK")}
        environment |= {
            "PYTHONPATH": str(Path(streampca.__file__).parents[1]),
            "HOME": str(tmp_path / "nobody"),
            **more,
        }
        return subprocess.run(
            [sys.executable, "-c", code],
            env=environment,
            check=True,
            text=True,
            capture_output=True,
        ).stdout.strip()

    assert said() == "600.0 60.0 False"
    both = said(DASK_STREAMPCA__READ_TIMEOUT="30", DASK_CONFIG=str(tmp_path))
    assert both == "30.0 7.0 True"


def test_the_documentation_names_all_settings() -> None:
    text = streampca.passes.__doc__ or ""
    assert not [name for name in SETTINGS if f"`{name}`" not in text]
