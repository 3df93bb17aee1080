"""A disk that is full: the error names the output, and nothing unfinished is left."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import streampca
from streampca.cli.pictures import draw
from streampca.errors import StreamPCAError
from streampca.genetics.tables import write_lines
from streampca.report.document import Report
from streampca.store.bundle import write_bundle
from streampca.store.labelled import write_dataset
from streampca.store.sinks import copy_rows

resource = pytest.importorskip("resource", reason="no limits on the size of files")
xarray = pytest.importorskip("xarray")

MOST = 4096  # bytes of a file
X = np.random.default_rng(0).standard_normal((200, 20))


@contextmanager
def small_disk() -> Iterator[None]:
    """Files cannot grow: the error is that of a full disk, without a file name."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (MOST, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


def fitted() -> Any:
    return streampca.PCA(2, progress=False).fit(X)


WRITERS: dict[str, Callable[[Path], Any]] = {
    "x.eigenvec": lambda path: write_lines(path, [f"{row}\n" for row in X.tolist()]),
    "model": lambda path: write_bundle(path, {"x": X}, {}),
    "pca.model": lambda path: fitted().save(path),
    "scores.zarr": lambda path: copy_rows(X, str(path)),
    "eofs.zarr": lambda path: write_dataset(xarray.Dataset({"x": (("a", "b"), X)}), path),
    "report.html": lambda path: Report("title", "text " * MOST).save(path),
    "scree.png": lambda path: draw("scree", fitted(), path),
}
ALSO = {
    "eofs.nc": WRITERS["eofs.zarr"],  # HDF5 may crash where a file cannot grow
    "transformed.zarr": lambda path: fitted().transform(X, out=str(path)),
}


@pytest.mark.parametrize("name", WRITERS)
def test_a_full_disk_names_the_output(name: str, tmp_path: Path) -> None:
    path = tmp_path / name
    with small_disk(), pytest.raises(OSError, match=re.escape(str(path))):
        WRITERS[name](path)
    assert not list(tmp_path.glob(".*"))


@pytest.mark.parametrize("name", WRITERS | ALSO)
def test_a_folder_that_is_a_file_is_named(name: str, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("taken")
    with pytest.raises((OSError, StreamPCAError), match=re.escape(str(tmp_path / "file"))):
        (WRITERS | ALSO)[name](tmp_path / "file" / name)
    assert (tmp_path / "file").read_text() == "taken"


def test_a_full_disk_is_named_where_hdf5_says_it_in_words(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: Any, **__: Any) -> None:
        raise RuntimeError("Can't close (file write failed: errno = 28, error message = 'No space")

    monkeypatch.setattr(xarray.Dataset, "to_netcdf", full)
    path = tmp_path / "eofs.nc"
    with pytest.raises(OSError, match=re.escape(str(path))) as caught:
        write_dataset(xarray.Dataset({"x": (("a", "b"), X)}), path)
    assert caught.value.errno == 28
    assert not list(tmp_path.iterdir())
