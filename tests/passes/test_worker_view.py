"""What a worker reads, and writes, is what the client saw: else it is refused by name."""

from __future__ import annotations

import contextlib
import os
import shutil
import sys
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import dask.array
import h5py
import numpy as np
import pytest
import scipy.sparse
import xarray
import zarr

import streampca
from streampca.errors import ClusterError, LocalSourceWarning, SourceError
from streampca.passes.cluster.cluster import run_on_cluster

N, P, ROWS = 600, 12, 50


@pytest.fixture
def small_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Small data in many blocks."""
    monkeypatch.setattr("streampca.passes.blocks.BLOCK_NBYTES", 16 * 1024)


@pytest.fixture
def elsewhere(two_processes: Any, tmp_path_factory: Any) -> Iterator[Path]:
    """The folder of the workers, which is not that of the client."""
    folder = tmp_path_factory.mktemp("elsewhere")
    before = two_processes.run(os.getcwd)
    two_processes.run(os.chdir, str(folder))
    yield folder
    for worker, place in before.items():
        two_processes.run(os.chdir, place, workers=[worker])


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder of the client."""
    monkeypatch.chdir(tmp_path)
    return tmp_path


def values(seed: int = 0, scale: float = 1.0) -> np.ndarray:
    rng = np.random.default_rng(seed)
    return scale * rng.normal(size=(N, P)) * np.linspace(4, 1, P) + 3


def store(path: str | Path, x: np.ndarray, **more: Any) -> str:
    """Zarr without compression: another one of that shape has the same lengths."""
    zarr.create_array(str(path), data=x, chunks=(ROWS, P), compressors=None, **more)
    return str(path)


def pca(client: Any) -> Any:
    return streampca.PCA(3, scheduler=client, progress=False)


def expected(x: np.ndarray) -> np.ndarray:
    return streampca.PCA(3, scheduler="threads").fit(x).explained_variance_


def check_fit(client: Any, source: Any, x: np.ndarray) -> None:
    model = pca(client).fit(source)
    np.testing.assert_allclose(model.explained_variance_, expected(x), rtol=1e-10)
    scores = streampca.PCA(3, scheduler="threads").fit(x).transform(x)
    np.testing.assert_allclose(model.transform(source), scores, atol=1e-8)


# -- relative paths ----------------------------------------------------------------------------


def write_npy(path: str, x: np.ndarray) -> None:
    np.save(path, x)


def write_npz(path: str, x: np.ndarray) -> None:
    scipy.sparse.save_npz(path, scipy.sparse.csr_array(x), compressed=False)


def write_zip(path: str, x: np.ndarray) -> None:
    with zarr.storage.ZipStore(path, mode="w") as archive:
        zarr.create_array(archive, data=x, chunks=(ROWS, P))


def write_h5ad(path: str, x: np.ndarray) -> None:
    with h5py.File(path, "w") as file:
        file.attrs.update({"encoding-type": "anndata", "encoding-version": "0.1.0"})
        file["X"] = x
        file["X"].attrs.update({"encoding-type": "array", "encoding-version": "0.2.0"})


def write_netcdf(path: str, x: np.ndarray) -> None:
    xarray.Dataset({"v": (("time", "x"), x)}).to_netcdf(path)


WRITERS = {
    "x.zarr": store,
    "x.npy": write_npy,
    "x.npz": write_npz,
    "x.zip": write_zip,
    "x.h5ad": write_h5ad,
    "x.nc": write_netcdf,
}


@pytest.mark.parametrize("name", WRITERS)
def test_a_relative_path_is_that_of_the_client(
    two_processes: Any, here: Path, elsewhere: Path, small_blocks: None, name: str
) -> None:
    """Another store of that name lies where the workers are."""
    WRITERS[name](name, values())
    WRITERS[name](str(elsewhere / name), values(1, scale=100.0))
    check_fit(two_processes, name, values())


@pytest.mark.parametrize("lies_there", [True, False])
def test_a_zarr_array_of_a_relative_path(
    two_processes: Any, here: Path, elsewhere: Path, small_blocks: None, lies_there: bool
) -> None:
    store("x.zarr", values())
    if lies_there:
        store(elsewhere / "x.zarr", values(1, scale=100.0))
    check_fit(two_processes, zarr.open_array("x.zarr", mode="r"), values())
    source = streampca.open("x.zarr", missing_chunks="fill")
    check_fit(two_processes, source, values())


def test_a_relative_output_is_that_of_the_client(
    two_processes: Any, here: Path, elsewhere: Path, small_blocks: None
) -> None:
    x = values()
    source = store("x.zarr", x)
    model = pca(two_processes).fit(source)
    streampca.PCA(3, scheduler="threads").fit(x).transform(x, out=elsewhere / "scores")
    model.transform(source, out="scores")
    found = zarr.open_array("scores", mode="r")
    np.testing.assert_allclose(found[...], model.transform(x), atol=1e-10)
    assert found.attrs["streampca_complete"] is True
    assert "streampca_writer" not in found.attrs


# -- another store at the same place -----------------------------------------------------------


@contextlib.contextmanager
def swapped(path: str, there: Callable[[str], Any] | None) -> Iterator[None]:
    """What all workers find at a path, as on another file system.

    It is put there after the client has looked, and before they do.
    """

    def swapping(*args: Any) -> Any:
        shutil.rmtree(path) if os.path.isdir(path) else os.remove(path)
        if there is not None:
            there(path)
        return run_on_cluster(*args)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sys.modules["streampca.passes.execute"], "run_on_cluster", swapping)
        yield


def larger(path: str) -> None:
    store(path, values(1, scale=100.0))


def shorter(path: str) -> None:
    store(path, values()[: N // 2])


def other_chunks(path: str) -> None:
    zarr.create_array(path, data=values(), chunks=(2 * ROWS, P), compressors=None)


def no_chunks(path: str) -> None:
    store(path, values())
    shutil.rmtree(os.path.join(path, "c"))


OTHERS = {
    "none": None,
    "values": larger,
    "shape": shorter,
    "chunks": other_chunks,
    "no chunks": no_chunks,
}
SEES = r"worker tcp://127.0.0.1:\d+ sees another store at .*x\.\w+.*, or none: .* the client sees"


@pytest.mark.parametrize("missing_chunks", ["error", "fill"])
@pytest.mark.parametrize("there", OTHERS.values(), ids=OTHERS.keys())
def test_another_zarr_store_is_refused(
    two_processes: Any, tmp_path: Path, small_blocks: None, there: Any, missing_chunks: str
) -> None:
    path = store(tmp_path / "x.zarr", values())
    with swapped(path, there), pytest.raises(ClusterError, match=SEES):
        pca(two_processes).fit(streampca.open(path, missing_chunks=missing_chunks))


def open_dask(path: str) -> Any:
    return dask.array.from_zarr(path) * 2


def open_xarray(path: str) -> Any:
    return xarray.open_dataset(path, chunks=None).v


def open_xarray_dask(path: str) -> Any:
    return xarray.open_dataset(path, chunks={"time": ROWS}).v


SOURCES: dict[str, tuple[Any, Any, str]] = {
    "npy": (write_npy, str, "x.npy"),
    "npz": (write_npz, str, "x.npz"),
    "netcdf": (write_netcdf, str, "x.nc"),
    "dask": (store, open_dask, "x.zarr"),
    "xarray": (write_netcdf, open_xarray, "x.nc"),
    "xarray of dask": (write_netcdf, open_xarray_dask, "x.nc"),
}


@pytest.mark.parametrize("gone", [False, True])
@pytest.mark.parametrize(("write", "opened", "name"), SOURCES.values(), ids=SOURCES.keys())
def test_other_files_are_refused(
    two_processes: Any,
    tmp_path: Path,
    small_blocks: None,
    write: Any,
    opened: Any,
    name: str,
    gone: bool,
) -> None:
    path = str(tmp_path / name)
    write(path, values())
    source = opened(path)
    other = None if gone else lambda place: write(place, values(1, scale=100.0))
    with swapped(path, other), pytest.raises(ClusterError, match=SEES):
        pca(two_processes).fit(source)


def test_chunks_that_the_client_sees_are_missed(
    two_processes: Any, tmp_path: Path, small_blocks: None
) -> None:
    """Of a store of few chunks, none of which an even sample would meet."""

    def sparse(path: str, filled: bool = True) -> str:
        array = zarr.create_array(path, shape=(100 * ROWS, P), chunks=(ROWS, P), dtype="f8")
        if filled:
            array[7 * ROWS : 8 * ROWS] = values()[:ROWS]
        return path

    path = sparse(str(tmp_path / "x.zarr"))
    source = streampca.open(path, missing_chunks="fill")
    whole = np.zeros((100 * ROWS, P))
    whole[7 * ROWS : 8 * ROWS] = values()[:ROWS]
    check_fit(two_processes, source, whole)
    with (
        swapped(path, lambda place: sparse(place, filled=False)),
        pytest.raises(ClusterError, match=r"c/7/0 is absent; the client sees \d+ bytes"),
    ):
        pca(two_processes).fit(source)


def test_another_store_is_refused_in_passes_without_a_model(
    two_processes: Any, tmp_path: Path, small_blocks: None
) -> None:
    path = store(tmp_path / "x.zarr", values())
    model = pca(two_processes).fit(path)
    calls = {
        "transform": lambda: model.transform(path),
        "covariance": lambda: streampca.covariance(path, scheduler=two_processes),
        "impute": lambda: streampca.HardImpute(2, scheduler=two_processes).fit(path),
    }
    for call in calls.values():
        with swapped(path, larger), pytest.raises(ClusterError, match=SEES):
            call()
        store_again(path)


def store_again(path: str) -> None:
    shutil.rmtree(path)
    store(path, values())


def test_rows_that_are_appended_meanwhile_are_no_other_store(
    two_processes: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, small_blocks: None
) -> None:
    """A writer makes the array longer, and its last chunk fuller."""
    x = values()[: N - 10]
    path = store(tmp_path / "x.zarr", x)
    source = streampca.open(path)

    def growing(*args: Any) -> Any:
        array = zarr.open_array(path, mode="r+")
        array.append(values()[:70])
        array.attrs["history"] = "appended"
        return run_on_cluster(*args)

    monkeypatch.setattr(sys.modules["streampca.passes.execute"], "run_on_cluster", growing)
    model = pca(two_processes).fit(source)
    np.testing.assert_allclose(model.explained_variance_, expected(x), rtol=1e-10)


def test_another_output_is_refused(two_processes: Any, tmp_path: Path, small_blocks: None) -> None:
    """What lies at the place of the output on a worker's own disk stays as it was."""
    x, out = values(), str(tmp_path / "scores")
    path = store(tmp_path / "x.zarr", x)
    model = pca(two_processes).fit(path)
    rows = model.plan_.passes[0].edges[1]

    def earlier(place: str) -> None:
        zarr.create_array(place, data=np.ones((N, 3)), chunks=(rows, 3))

    with (
        swapped(out, earlier),
        pytest.raises(SourceError, match="is not the array here that is being written"),
    ):
        model.transform(path, out=out)
    assert np.all(zarr.open_array(out, mode="r")[...] == 1)


# -- what only the client can read ---------------------------------------------------------------


def in_a_zarr_memory_store(x: np.ndarray) -> Any:
    return zarr.create_array(store={}, data=x, chunks=(ROWS, P))


def in_fsspec_memory(x: np.ndarray) -> Any:
    url = f"memory://{uuid.uuid4().hex}/x.zarr"
    zarr.create_array(zarr.storage.FsspecStore.from_url(url), data=x, chunks=(ROWS, P))
    return url


def in_fsspec_memory_by_dask(x: np.ndarray) -> Any:
    return dask.array.from_zarr(in_fsspec_memory(x))


def in_obstore_memory(x: np.ndarray) -> Any:
    obstore = pytest.importorskip("obstore")
    inside = zarr.storage.ObjectStore(obstore.store.MemoryStore())
    return zarr.create_array(inside, data=x, chunks=(ROWS, P))


HELD = [in_a_zarr_memory_store, in_fsspec_memory, in_fsspec_memory_by_dask, in_obstore_memory]


@pytest.mark.parametrize("missing_chunks", ["error", "fill"])
@pytest.mark.parametrize("held", HELD)
def test_data_in_this_process_are_read_here(
    two_processes: Any, small_blocks: None, held: Any, missing_chunks: str
) -> None:
    x = values()
    source = streampca.open(held(x), missing_chunks=missing_chunks)
    with pytest.warns(LocalSourceWarning, match="is read here, not on the workers"):
        check_fit(two_processes, source, x)


def test_a_source_that_does_not_travel(two_processes: Any, tmp_path: Path) -> None:
    """An open file."""
    with h5py.File(tmp_path / "x.h5", "w") as file:
        file["x"] = values()
        source = dask.array.from_array(file["x"], chunks=(ROWS, P))
        with pytest.raises(ClusterError, match=r"cannot be sent to workers: .*h5py"):
            pca(two_processes).fit(source)
        check_fit("threads", source, values())
