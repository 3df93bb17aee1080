"""A disk that is full: the error names the output, and nothing unfinished is left."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import scipy.sparse

import streampca
from streampca.cli.pictures import draw
from streampca.errors import StreamPCAError
from streampca.genetics.tables import write_eigenval, write_eigenvec, write_lines
from streampca.operations.convert import convert
from streampca.report.document import Report
from streampca.sources import as_matrix
from streampca.sources.local_files import append_to
from streampca.store.backend import LocalBackend
from streampca.store.bundle import write_bundle
from streampca.store.labelled import write_dataset
from streampca.store.sinks import copy_rows

resource = pytest.importorskip("resource", reason="no limits on the size of files")
xarray = pytest.importorskip("xarray")

MOST = 4096  # bytes of a file
X = np.random.default_rng(0).standard_normal((200, 20))
TALL = np.tile(X, (20, 1))


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


def scratch_of_ratings(path: Path) -> None:
    with open(path, "wb", buffering=0) as file:
        append_to(file, np.zeros(MOST, [("user", "<i4"), ("rating", "<f4")]))


WRITERS: dict[str, Callable[[Path], Any]] = {
    "x.eigenvec": lambda path: write_eigenvec(str(path), [("IID", range(len(X)))], X),
    "x.eigenval": lambda path: write_eigenval(str(path), np.arange(float(MOST))),
    "x.prune.in": lambda path: write_lines(path, [f"rs{i}\n" for i in range(MOST)]),
    "converted.zarr": lambda path: convert(as_matrix(TALL), str(path)),
    "sparse.zarr": lambda path: convert(as_matrix(scipy.sparse.csr_array(TALL)), str(path)),
    "store": lambda path: LocalBackend(path).put("versions/1", X.tobytes()),
    "scratch": scratch_of_ratings,
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


@pytest.mark.parametrize(
    "name", ["x.eigenvec", "x.eigenval", "x.prune.in", "report.html", "scree.png"]
)
def test_a_full_disk_leaves_the_file_that_was_there(name: str, tmp_path: Path) -> None:
    path = tmp_path / name
    path.write_text("of yesterday")
    with small_disk(), pytest.raises(OSError, match=re.escape(str(path))):
        WRITERS[name](path)
    assert path.read_text() == "of yesterday"
    assert list(tmp_path.iterdir()) == [path]


def test_a_pipe_is_written_to_as_it_is(tmp_path: Path) -> None:
    os.mkfifo(path := tmp_path / "pipe")
    reader = os.open(path, os.O_RDONLY | os.O_NONBLOCK)
    try:
        Report("title", "page").save(path)
        assert os.read(reader, 100) == b"page"
    finally:
        os.close(reader)
    assert path.is_fifo()


def test_a_checkpoint_on_a_full_disk_is_named_beside_what_ended_the_fit(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("streampca.passes.blocks.BLOCK_NBYTES", 16 * 1024)
    folder = tmp_path / "checkpoints"

    def stop(advance: Any) -> None:
        if advance.blocks_done == advance.n_blocks - 1:
            raise InterruptedError("the night is over")

    model = streampca.PCA(2, checkpoint=str(folder), progress=stop)
    with small_disk(), pytest.raises(InterruptedError) as caught:
        model.fit(TALL.reshape(-1, 50))
    (note,) = caught.value.__notes__
    assert f"File too large: '{folder}" in note
    assert not list(folder.iterdir())


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
