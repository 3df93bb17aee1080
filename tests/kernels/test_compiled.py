"""Where compiled kernels are kept."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from streampca.kernels import compiled


@pytest.fixture(autouse=True)
def found_anew() -> Iterator[None]:
    compiled._folder.cache_clear()
    yield
    compiled._folder.cache_clear()


def double(x: float) -> float:
    return 2 * x


def test_the_variable_of_numba_names_the_directory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("NUMBA_CACHE_DIR", str(tmp_path))
    assert compiled.compiled()(double)(1.5) == 3.0
    assert list(tmp_path.rglob("*.nbc"))


@pytest.mark.parametrize("variable", ["NUMBA_CACHE_DIR", "XDG_CACHE_HOME"])
def test_kernels_compile_where_nothing_can_be_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, variable: str
) -> None:
    monkeypatch.delenv("NUMBA_CACHE_DIR", raising=False)
    (tmp_path / "file").touch()
    monkeypatch.setenv(variable, str(tmp_path / "file"))
    assert compiled.compiled()(double)(1.5) == 3.0
    assert [path.name for path in tmp_path.rglob("*")] == ["file"]
    assert not list(Path(__file__).parent.rglob("*.nb[ic]"))


def test_the_oldest_folders_go(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NUMBA_CACHE_DIR", str(tmp_path))
    for age in range(compiled.KEPT + 3):
        folder = tmp_path / f"kernels-0.0.{age}"
        folder.mkdir()
        os.utime(folder, (1000 - age, 1000 - age))
    (tmp_path / "mine").mkdir()
    new = compiled._folder()
    assert new is not None
    oldest = {f"kernels-0.0.{age}" for age in range(compiled.KEPT)}
    assert {path.name for path in tmp_path.iterdir()} == {"mine", new.name, *oldest}
