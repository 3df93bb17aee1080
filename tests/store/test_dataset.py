"""Labelled results in files: what they may replace, and what a death leaves of it."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import xarray as xr

from streampca.errors import InvalidInputError
from streampca.store import bundle, replacing
from streampca.store.dataset import write_dataset


def dataset(value: float) -> xr.Dataset:
    return xr.Dataset({"x": ("t", np.full(3, value))})


def names(folder: Path) -> list[str]:
    return sorted(one.name for one in folder.iterdir())


def value(path: Path) -> float:
    opened: Any = (
        xr.open_zarr(path, consolidated=False) if path.suffix == ".zarr" else xr.open_dataset(path)
    )
    with opened as back:
        return float(back["x"][0])


@pytest.mark.parametrize("suffix", [".nc", ".zarr"])
@pytest.mark.parametrize("linked", [False, True])
def test_it_is_replaced_where_that_was_asked_for(suffix: str, linked: bool, tmp_path: Path) -> None:
    path = tmp_path / f"out{suffix}"
    if linked:
        (tmp_path / "elsewhere").mkdir()
        path.symlink_to(tmp_path / "elsewhere" / path.name)
        write_dataset(dataset(0), path.resolve())
    else:
        write_dataset(dataset(0), path)
    with pytest.raises(InvalidInputError, match="--overwrite"):
        write_dataset(dataset(1), path)
    write_dataset(dataset(1), path, overwrite=True)
    assert value(path) == 1
    assert path.is_symlink() == linked
    assert names(path.resolve().parent) == [path.name]


@pytest.mark.parametrize("swap", [True, False])
def test_the_old_one_is_there_until_the_new_one_is(
    swap: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nothing is removed before the new one is in its place, also without an atomic exchange."""
    path = tmp_path / "out.zarr"
    write_dataset(dataset(0), path)
    seen: list[float] = []
    removed = shutil.rmtree

    def remove(place: Any, *arguments: Any, **more: Any) -> None:
        seen.append(value(path))
        removed(place, *arguments, **more)

    monkeypatch.setattr(shutil, "rmtree", remove)
    if not swap:
        monkeypatch.setattr(bundle.ctypes, "CDLL", lambda name: None)
    write_dataset(dataset(1), path, overwrite=True)
    assert seen == [1]
    assert names(tmp_path) == ["out.zarr"]


@pytest.mark.parametrize("suffix", [".nc", ".zarr"])
@pytest.mark.parametrize("there", ["directory", "other kind", "dangling link"])
def test_what_is_no_such_output_is_never_replaced(suffix: str, there: str, tmp_path: Path) -> None:
    path = tmp_path / f"out{suffix}"
    if there == "directory":
        path.mkdir()
        (path / "thesis.tex").write_text("thesis")
    elif there == "dangling link":
        path.symlink_to(tmp_path / "nowhere")
    elif suffix == ".nc":
        write_dataset(dataset(0), tmp_path / "a.zarr")
        (tmp_path / "a.zarr").rename(path)
    else:
        path.write_text("thesis")
    before = sorted(tmp_path.rglob("*"))
    with pytest.raises(InvalidInputError, match="exists already"):
        write_dataset(dataset(1), path, overwrite=True)
    assert sorted(tmp_path.rglob("*")) == before


@pytest.mark.parametrize("when", ["before the exchange", "at the exchange"])
def test_what_came_there_meanwhile_is_not_replaced(
    when: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "out.zarr"
    write_dataset(dataset(0), path)

    def put() -> None:
        shutil.rmtree(path)
        path.mkdir()
        (path / "thesis.tex").write_text("thesis")

    class Slow:
        def to_zarr(self, place: Path, **more: Any) -> None:
            dataset(1).to_zarr(place, **more)
            if when == "before the exchange":
                put()

    def exchange(staged: Path, target: Path, real: Any = bundle.exchange) -> None:
        if not (path / "thesis.tex").exists() and not (staged / "thesis.tex").exists():
            put()
        real(staged, target)

    if when == "at the exchange":
        monkeypatch.setattr(replacing, "exchange", exchange)
    with pytest.raises(InvalidInputError, match="exists already"):
        write_dataset(Slow(), path, overwrite=True)
    assert names(tmp_path) == ["out.zarr"]
    assert (path / "thesis.tex").read_text() == "thesis"
