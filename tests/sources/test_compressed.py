"""Sparse matrices at rest: AnnData in Zarr and HDF5, .npz, Dask of sparse chunks."""

from __future__ import annotations

import pickle
import sys
import types
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest
import scipy.sparse
import zarr
from hypothesis import example, given
from hypothesis import strategies as st

import streampca
from streampca.errors import InvalidInputError, MemoryLimitError, SourceError
from streampca.sources.memory.arrays import ArrayReader
from streampca.sources.sparse.matrices import CompressedMatrix

rng = np.random.default_rng(0)
pytestmark = pytest.mark.filterwarnings("ignore:these cells have raw counts")
X = (rng.poisson(0.4, size=(57, 23)) * rng.integers(1, 5, size=(57, 23))).astype(np.float32)
X[11:15] = 0  # rows without an entry
OBS = np.array([f"cell {i}" for i in range(57)])
VAR = np.array([f"gene {i}" for i in range(23)])


def write_sparse(group: Any, values: Any, chunk: int | None = 40) -> None:
    """The element as AnnData writes it: attributes, data, indices and indptr."""
    group.attrs.update({"encoding-type": f"{values.format}_matrix", "encoding-version": "0.1.0"})
    group.attrs["shape"] = list(values.shape)
    for name in ("data", "indices", "indptr"):
        array = getattr(values, name)
        if isinstance(group, zarr.Group):
            size = max(1, len(array) if chunk is None else chunk)
            made = group.create_array(name, shape=array.shape, dtype=array.dtype, chunks=(size,))
            made[...] = array
        else:
            size = None if chunk is None or not len(array) else (min(chunk, len(array)),)
            group.create_dataset(name, data=array, chunks=size)


def write_names(group: Any, names: Any) -> None:
    group.attrs.update({"encoding-type": "dataframe", "_index": "names"})
    if isinstance(group, zarr.Group):
        text = names.astype(np.dtypes.StringDType())
        made = group.create_array("names", shape=text.shape, dtype=text.dtype, chunks=text.shape)
        made[...] = text
    else:
        group.create_dataset("names", data=names.astype("S"))


def write_anndata(root: Any, values: Any, chunk: int | None = 40) -> None:
    root.attrs["encoding-type"] = "anndata"
    if isinstance(values, np.ndarray):
        if isinstance(root, zarr.Group):
            root.create_array("X", shape=values.shape, dtype=values.dtype, chunks=(10, 23))[...] = (
                values
            )
        else:
            root.create_dataset("X", data=values)
    else:
        write_sparse(root.create_group("X"), values, chunk)
    layers = root.create_group("layers")
    write_sparse(layers.create_group("twice"), scipy.sparse.csr_array(2 * X), chunk)
    write_names(root.create_group("obs"), OBS)
    write_names(root.create_group("var"), VAR)


Store = Callable[[Any, int | None], str]


@pytest.fixture(params=["zarr 2", "zarr 3", "h5ad"])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> Store:
    """Writes an AnnData in one of the formats; its path."""

    def write(values: Any, chunk: int | None = 40) -> str:
        if request.param == "h5ad":
            path = str(tmp_path / "a.h5ad")
            with h5py.File(path, "w") as file:
                write_anndata(file, values, chunk)
        else:
            path = str(tmp_path / "a.zarr")
            number: Any = int(request.param[-1])
            write_anndata(zarr.create_group(path, zarr_format=number), values, chunk)
        return path

    return write


@pytest.mark.parametrize("format_", ["csr", "csc"])
@pytest.mark.parametrize("chunk", [40, None])
def test_slices_of_both_axes_labels_and_counts(
    store: Store, format_: str, chunk: int | None
) -> None:
    matrix = streampca.open(store(scipy.sparse.csr_array(X).asformat(format_), chunk))
    assert matrix.shape == X.shape
    assert matrix.dtype == np.float32
    assert matrix.labels.samples.name(3) == "cell 3"
    assert matrix.labels.features.names()[-1] == "gene 22"
    for axis in (0, 1):
        before = matrix.reads()
        found = matrix.read(axis, 10, 20)
        np.testing.assert_array_equal(found.toarray(), X[:, 10:20] if axis else X[10:20])
        assert found.format == ("csc" if axis else "csr")
        assert (matrix.reads() - before).chunks == matrix.count_chunks(axis, 10, 20)
    twin = pickle.loads(pickle.dumps(matrix.part(0, 5, 30)))
    np.testing.assert_array_equal(twin.read(0, 7, 25).toarray(), X[7:25])
    assert twin.fingerprint() == matrix.fingerprint()


def test_layers_and_dense_x(store: Store) -> None:
    path = store(X, 40)
    dense, layer = streampca.open(path), streampca.open(path, variable="layers/twice")
    np.testing.assert_array_equal(dense.read(0, 0, 57), X)
    np.testing.assert_array_equal(layer.read(0, 0, 57).toarray(), 2 * X)
    assert dense.labels.samples.name(0) == layer.labels.samples.name(0) == "cell 0"
    with pytest.raises(InvalidInputError, match="has no 'layers/none'; it has X, layers/twice"):
        streampca.open(path, variable="layers/none")


@pytest.mark.parametrize("format_", ["csr", "csc"])
def test_a_fit_reads_what_its_plan_says(store: Store, format_: str) -> None:
    path = store(scipy.sparse.csr_array(X).asformat(format_), 40)
    solver = "scatter" if format_ == "csr" else "gram"
    model = streampca.PCA(4, svd_solver=solver, scale="std")
    plan = model.plan(path)
    model.fit(path)
    cost = model.result_.provenance
    assert cost["reads"] == plan.reads
    dense = streampca.PCA(4, svd_solver=solver, scale="std").fit(X)
    np.testing.assert_allclose(model.explained_variance_, dense.explained_variance_, rtol=1e-6)
    assert list(model.result_.labels.features.names())[:2] == ["gene 0", "gene 1"]


@example(19, 21, 5)  # as many chunks of either
@given(st.integers(1, 90), st.integers(1, 70), st.integers(0, 2**32 - 1))
def test_blocks_end_where_chunks_do(chunk: int, other: int, seed: int) -> None:
    """No chunk is read for more than two blocks, whatever the chunks of the two arrays."""

    class Chunked(ArrayReader):
        size = 1

        def edges(self, dim: int) -> np.ndarray:
            return np.append(np.arange(0, len(self.array), self.size), len(self.array))

    values = scipy.sparse.csr_array(X[:, : 1 + seed % 23])
    data, indices = Chunked(values.data), Chunked(values.indices)
    data.size, indices.size = chunk, other
    matrix = CompressedMatrix(data, indices, values.indptr, 0, values.shape)
    edges = matrix.chunk_edges(0)
    assert edges[0] == 0
    assert edges[-1] == 57
    assert np.all(np.diff(edges) > 0)
    largest = max(chunk, other)
    whole = -(-values.nnz // largest)
    crossed = [
        range(values.indptr[a] // largest, -(-values.indptr[b] // largest))
        for a, b in pairwise(edges)
        if values.indptr[b] > values.indptr[a]
    ]
    seen = np.bincount([i for one in crossed for i in one], minlength=whole)
    lines = np.diff(values.indptr).max()
    assert seen.max() <= 2 + (lines > largest) * len(edges)
    found = [matrix.read(0, int(a), int(b)).toarray() for a, b in pairwise(edges)]
    np.testing.assert_array_equal(np.concatenate(found), values.toarray())


@pytest.mark.parametrize(
    ("name", "change", "words"),
    [
        ("indptr", lambda a: a[:-1], "indptr is int32 of shape"),
        ("indptr", lambda a: np.r_[a[:5], a[3], a[6:]], "falls 1 times"),
        ("indptr", lambda a: a.astype(float) * np.nan, "indptr is float64"),
        ("indptr", lambda a: np.r_[a[:-1], a[-1] + 9], "cut off or damaged"),
        ("indices", lambda a: a[:-3], "cut off or damaged"),
        ("indices", lambda a: np.r_[a[:50], 99, a[51:]].astype("i4"), "an index is 99"),
        ("indices", lambda a: np.r_[a[:50], -2, a[51:]].astype("i4"), "an index is -2"),
    ],
)
def test_damage_is_refused(store: Store, name: str, change: Any, words: str) -> None:
    values = scipy.sparse.csr_array(X)
    broken = scipy.sparse.csr_array(X)
    broken.__dict__[name] = change(getattr(values, name))
    path = store(broken, 40)
    with pytest.raises(SourceError, match=words):
        streampca.PCA(2).fit(path)


def test_a_file_that_is_cut_off(tmp_path: Path) -> None:
    path = tmp_path / "a.h5ad"
    with h5py.File(path, "w") as file:
        write_anndata(file, scipy.sparse.csr_array(X))
    path.write_bytes(path.read_bytes()[:3000])
    with pytest.raises(SourceError, match="not a readable HDF5 file"):
        streampca.open(str(path))


def test_an_absent_chunk_is_no_zeros(tmp_path: Path) -> None:
    path = tmp_path / "a.zarr"
    write_anndata(zarr.create_group(str(path)), scipy.sparse.csr_array(X))
    (path / "X" / "data" / "c" / "2").unlink()
    with pytest.raises(SourceError, match=r"X/data/c/2' is absent"):
        streampca.PCA(2).fit(str(path))


def test_the_axis_that_is_not_stored_is_one_block_and_said_so(tmp_path: Path) -> None:
    big = scipy.sparse.random_array((3000, 900), density=0.5, rng=1, format="csr")
    scipy.sparse.save_npz(tmp_path / "a.npz", big, compressed=False)
    matrix = streampca.open(str(tmp_path / "a.npz"))
    np.testing.assert_array_equal(matrix.chunk_edges(1), [0, 900])
    assert matrix.chunk_edges(0) is None
    model = streampca.PCA(3, svd_solver="gram", memory_limit="290MiB")
    with pytest.raises(MemoryLimitError, match=r"stored by samples, so that blocks of features"):
        model.plan(matrix)


@pytest.mark.parametrize("compressed", [False, True])
@pytest.mark.parametrize("format_", ["csr", "csc", "coo"])
def test_npz(tmp_path: Path, compressed: bool, format_: str) -> None:
    path = str(tmp_path / "x.npz")
    scipy.sparse.save_npz(path, scipy.sparse.csr_array(X).asformat(format_), compressed=compressed)
    matrix = streampca.open(path)
    assert isinstance(matrix, CompressedMatrix) == (not compressed and format_ != "coo")
    for axis in (0, 1):
        found = matrix.read(axis, 3, 17).toarray()
        np.testing.assert_array_equal(found, X[:, 3:17] if axis else X[3:17])
    assert matrix.resident_nbytes > 0
    assert streampca.PCA(2).plan(path).memory["process"]["source"] == matrix.resident_nbytes


def test_npz_of_something_else_is_refused(tmp_path: Path) -> None:
    np.savez(tmp_path / "d.npz", a=X[0, 0], b="text")
    with pytest.raises((InvalidInputError, SourceError), match=r"d\.npz"):
        streampca.open(str(tmp_path / "d.npz"))
    (tmp_path / "e.npz").write_bytes(b"PK\x03\x04 nothing")
    with pytest.raises(SourceError, match="not a readable"):
        streampca.open(str(tmp_path / "e.npz"))


def test_the_densest_block_is_planned(tmp_path: Path) -> None:
    """All entries lie in few rows: the mean block says nothing of the largest."""
    dense = np.zeros((4000, 300), np.float32)
    dense[-100:] = 1.0
    matrix = streampca.open(scipy.sparse.csr_array(dense))
    edges = np.arange(0, 4001, 500)
    sizes = matrix.spans_nbytes(0, edges)
    blocks = [matrix.read(0, int(a), int(b)) for a, b in pairwise(edges)]
    exact = [b.data.nbytes + b.indices.nbytes + b.indptr.nbytes for b in blocks]
    np.testing.assert_array_equal(sizes, exact)
    assert matrix.streamed(0, edges).block_nbytes == max(exact)


@pytest.mark.parametrize("kind", ["csr_matrix", "csc_array", "coo_array"])
@pytest.mark.parametrize("dim", [0, 1])
def test_dask_of_sparse_chunks(kind: str, dim: int) -> None:
    import dask.array as da

    compress = getattr(scipy.sparse, kind)
    lazy = da.from_array(X, chunks=(20, 9)).map_blocks(
        compress, dtype=X.dtype, meta=scipy.sparse.csr_array((0, 0), dtype=X.dtype)
    )
    matrix = streampca.open(lazy, dim=dim)
    whole = X.T if dim else X
    assert matrix.sparse
    for axis in (0, 1):
        found = matrix.read(axis, 4, 21)
        assert found.format == ("csc" if axis else "csr")
        np.testing.assert_array_equal(found.toarray(), whole[:, 4:21] if axis else whole[4:21])
    model = streampca.PCA(3).fit(lazy, dim=dim)
    expected = streampca.PCA(3).fit(whole)
    np.testing.assert_allclose(model.explained_variance_, expected.explained_variance_, rtol=1e-6)
    assert model.result_.provenance["reads"] == model.plan_.reads


def test_dask_chunks_of_another_shape_are_refused() -> None:
    import dask.array as da

    lazy = da.from_array(X, chunks=(20, 23)).map_blocks(
        lambda x: scipy.sparse.csr_array(x[1:]),
        dtype=X.dtype,
        meta=scipy.sparse.csr_array((0, 0), dtype=X.dtype),
    )
    with pytest.raises(InvalidInputError, match="declared as"):
        streampca.open(lazy).read(0, 0, 20)


def test_sparse_columns_as_samples() -> None:
    np.testing.assert_array_equal(
        streampca.open(scipy.sparse.csr_array(X), dim=1).read(0, 2, 9).toarray(), X.T[2:9]
    )
    with pytest.raises(InvalidInputError, match="dim='obs'"):
        streampca.open(scipy.sparse.csr_array(X), dim="obs")


def test_the_group_raw_is_its_matrix_with_its_own_names(store: Store) -> None:
    path = store(scipy.sparse.csr_array(X), 40)
    held = path.endswith("h5ad")
    file: Any = h5py.File(path, "r+") if held else zarr.open_group(path, mode="r+")
    raw = file.create_group("raw")
    wide = np.hstack([X, X[:, :4]])
    if held:
        raw.create_dataset("X", data=wide)
    else:
        raw.create_array("X", data=wide)
    names = raw.create_group("var")
    names.attrs["_index"] = "gene"
    text = np.array([f"raw {i}" for i in range(27)], "S8")
    if held:
        names.create_dataset("gene", data=text)
        file.close()
    else:
        names.create_array("gene", data=text.astype(np.dtypes.StringDType()))
    for name in ("raw", "raw/X"):
        matrix = streampca.open(path, variable=name)
        np.testing.assert_array_equal(matrix.read(0, 0, 57), wide)
        assert matrix.labels.features.name(26) == "raw 26"
    with pytest.raises(InvalidInputError, match="layers is a group of twice; expected an array"):
        streampca.open(path, variable="layers")


def test_real_files(shared_data: Path) -> None:
    """Older AnnData (tables, h5sparse), Zarr 3 in a zip, and 10x Genomics .h5 and .mtx."""
    old = shared_data / "pbmc68k_reduced" / "10x_pbmc68k_reduced.h5ad"
    zipped = shared_data / "pbmc68k_reduced" / "10x_pbmc68k_reduced.zarr.zip"
    first, second = streampca.open(str(old)), streampca.open(str(zipped))
    np.testing.assert_array_equal(first.read(0, 0, 700), second.read(0, 0, 700))
    assert first.labels.features.names() == second.labels.features.names()
    raw = streampca.open(str(old), variable="raw.X")
    with h5py.File(old) as file:
        whole = scipy.sparse.csr_array(
            tuple(file["raw.X"][n][...] for n in ("data", "indices", "indptr")), shape=(700, 765)
        )
    np.testing.assert_array_equal(raw.read(0, 0, 700).toarray(), whole.toarray())
    folder = shared_data / "scanpy_10x10k" / "10x_data" / "3.0.0"
    ten = streampca.open(str(folder / "filtered_feature_bc_matrix.h5"))
    market = streampca.open(str(folder / "filtered_feature_bc_matrix" / "matrix.mtx.gz"), dim=1)
    n = ten.shape[0]
    np.testing.assert_array_equal(ten.read(0, 0, n).toarray(), market.read(0, 0, n).toarray())
    assert ten.labels.samples.names() == market.labels.samples.names()
    assert ten.labels.features.names() == market.labels.features.names()


def test_an_anndata_object_in_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    """Told by its module: the package itself is needed for nothing."""
    module = types.ModuleType("anndata")

    raw_counts = scipy.sparse.csc_array(2 * X)
    content = {
        "X": scipy.sparse.csr_matrix(X),
        "layers": {"dense": 3 * X},
        "obs_names": OBS,
        "var_names": VAR,
        "raw": types.SimpleNamespace(X=raw_counts, var_names=VAR, obs_names=OBS),
        "isbacked": False,
        "__module__": "anndata",
    }
    AnnData = type("AnnData", (), content)
    monkeypatch.setitem(sys.modules, "anndata", module)
    whole = streampca.open(AnnData())
    np.testing.assert_array_equal(whole.read(0, 0, 57).toarray(), X)
    assert whole.labels.features.name(4) == "gene 4"
    layer = streampca.open(AnnData(), variable="layers/dense")
    np.testing.assert_array_equal(layer.read(0, 0, 57), 3 * X)
    raw = streampca.open(AnnData(), variable="raw/X")
    np.testing.assert_array_equal(raw.read(1, 0, 23).toarray(), 2 * X)
    with pytest.raises(InvalidInputError, match="variable='obsm/X_pca'"):
        streampca.open(AnnData(), variable="obsm/X_pca")


def test_a_backed_anndata_is_read_from_its_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "a.h5ad"
    with h5py.File(path, "w") as file:
        write_anndata(file, scipy.sparse.csr_array(X))
    backed = type("AnnData", (), {"isbacked": True, "filename": path, "__module__": "anndata"})
    monkeypatch.setitem(sys.modules, "anndata", types.ModuleType("anndata"))
    matrix = streampca.open(backed())
    assert matrix.paths() == (str(path),)
    np.testing.assert_array_equal(matrix.read(0, 0, 57).toarray(), X)
