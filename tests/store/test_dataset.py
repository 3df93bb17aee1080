"""Labelled results in files: what they may replace, and what a death leaves of it."""

from __future__ import annotations

import errno
import os
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import xarray as xr

from streampca.errors import InvalidInputError
from streampca.store import bundle
from streampca.store.labelled import write_dataset


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
        monkeypatch.setattr(bundle, "exchange", exchange)
    with pytest.raises(InvalidInputError, match="exists already"):
        write_dataset(Slow(), path, overwrite=True)
    assert names(tmp_path) == ["out.zarr"]
    assert (path / "thesis.tex").read_text() == "thesis"


@pytest.mark.parametrize("overwrite", [False, True])
@pytest.mark.parametrize("came", ["file", "folder", "link", "empty folder"])
def test_what_came_to_the_place_of_a_file_meanwhile_is_not_replaced(
    came: str, overwrite: bool, tmp_path: Path
) -> None:
    path = tmp_path / "out.nc"
    if overwrite:
        write_dataset(dataset(0), path)
    (tmp_path / "notes").write_text("thesis")

    def put() -> None:
        path.unlink(missing_ok=True)
        if came in ("folder", "empty folder"):
            path.mkdir()
            if came == "folder":
                (path / "thesis.tex").write_text("thesis")
        elif came == "link":
            path.symlink_to(tmp_path / "notes")
        else:
            path.write_text("another")

    class Slow:
        def to_netcdf(self, place: Path, **more: Any) -> None:
            dataset(1).to_netcdf(place, **more)
            put()

    if overwrite and came == "file":
        write_dataset(Slow(), path, overwrite=True)
        assert value(path) == 1  # a file may be overwritten, this one or that one
    else:
        with pytest.raises(InvalidInputError, match="exists already"):
            write_dataset(Slow(), path, overwrite=overwrite)
        assert path.is_symlink() == (came == "link")
        assert path.is_dir() == came.endswith("folder")
        assert came != "file" or path.read_text() == "another"
        assert came != "folder" or names(path) == ["thesis.tex"]
    assert (tmp_path / "notes").read_text() == "thesis"
    assert names(tmp_path) == ["notes", "out.nc"]


@pytest.mark.parametrize("swaps", [True, False])
@pytest.mark.parametrize("linked", [True, False])
def test_a_file_comes_and_is_replaced(
    swaps: bool, linked: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also where the system exchanges nothing, and where the file system has no links."""
    if not swaps:
        monkeypatch.setattr(bundle.ctypes, "CDLL", lambda name: None)
    if not linked:

        def refused(*names: Any) -> None:
            raise OSError(errno.EPERM, "Operation not permitted")

        monkeypatch.setattr(os, "link", refused)
    path = tmp_path / "out.nc"
    for i in range(3):
        write_dataset(dataset(i), path, overwrite=True)
        assert value(path) == i
        assert names(tmp_path) == ["out.nc"]


def test_what_comes_at_the_exchange_of_files_is_put_back(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "out.nc"
    write_dataset(dataset(0), path)
    put: list[Path] = []

    def swap(staged: Path, target: Path, real: Any = bundle.swap) -> bool:
        if not put:
            put.append(target)
            path.unlink()
            path.mkdir()
            (path / "thesis.tex").write_text("thesis")
        return bool(real(staged, target))

    monkeypatch.setattr(bundle, "swap", swap)
    with pytest.raises(InvalidInputError, match="exists already"):
        write_dataset(dataset(1), path, overwrite=True)
    assert put
    assert names(path) == ["thesis.tex"]
    assert names(tmp_path) == ["out.nc"]
