"""Results written into AnnData, and those that scanpy stored there."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import h5py
import numpy as np
import pandas as pd
import pytest
import scipy.sparse
import zarr

import streampca
from streampca.errors import InvalidInputError, SourceError

rng = np.random.default_rng(0)
pytestmark = pytest.mark.filterwarnings("ignore:these cells have raw counts")
X = rng.poisson(0.7, size=(40, 12)).astype(np.float32)
OBS = np.array([f"cell {i}" for i in range(40)])
VAR = np.array([f"gene {i}" for i in range(12)])


def write(root: Any) -> None:
    """A small AnnData, as the library writes one."""
    in_zarr = isinstance(root, zarr.Group)
    root.attrs["encoding-type"] = "anndata"
    arrays = {"X": X, "obs/names": OBS, "var/names": VAR}
    for name in ("obs", "var"):
        root.create_group(name).attrs.update({"encoding-type": "dataframe", "_index": "names"})
    for path, values in arrays.items():
        if in_zarr:
            values = values if path == "X" else values.astype(np.dtypes.StringDType())
            root.create_array(path, shape=values.shape, dtype=values.dtype)[...] = values
        else:
            root.create_dataset(path, data=values if path == "X" else values.astype("S"))


@pytest.fixture(params=["h5ad", "zarr 2", "zarr 3", "zarr 3 consolidated"])
def target(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    if request.param == "h5ad":
        path = str(tmp_path / "a.h5ad")
        with h5py.File(path, "w") as file:
            write(file)
        return path
    path = str(tmp_path / "a.zarr")
    number: Any = int(request.param.split()[1])
    write(zarr.create_group(path, zarr_format=number))
    if number == 2 or "consolidated" in request.param:
        consolidate(path)
    return path


def consolidate(path: str) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        zarr.consolidate_metadata(path)


def opened(path: str) -> Any:
    return h5py.File(path) if path.endswith(".h5ad") else zarr.open_group(path, mode="r")


@pytest.mark.parametrize("solver", ["scatter", "gram"])
def test_the_layout_is_that_of_scanpy(target: str, solver: str) -> None:
    matrix = streampca.open(target)
    model = streampca.PCA(3, svd_solver=solver).fit(matrix)
    streampca.write_anndata(model, target, None if solver == "gram" else matrix)
    root = opened(target)
    np.testing.assert_allclose(root["obsm/X_pca"][...], model.transform(X), atol=1e-5)
    np.testing.assert_array_equal(root["varm/PCs"][...], model.components_.T)
    np.testing.assert_array_equal(root["uns/pca/variance"][...], model.explained_variance_)
    ratio = root["uns/pca/variance_ratio"][...]
    np.testing.assert_array_equal(ratio, model.explained_variance_ratio_)
    assert bool(root["uns/pca/params/zero_center"][()]) is True
    assert root["obsm"].attrs["encoding-type"] == "dict"
    assert root["obsm/X_pca"].attrs["encoding-type"] == "array"
    assert root["uns/pca/params/solver"].attrs["encoding-type"] == "string"
    np.testing.assert_array_equal(streampca.open(target).read(0, 0, 40), X)


def test_nothing_is_replaced_unasked(target: str) -> None:
    model = streampca.PCA(2).fit(streampca.open(target))
    streampca.write_anndata(model, target, X)
    with pytest.raises(InvalidInputError, match="obsm/X_pca, varm/PCs, uns/pca is there already"):
        streampca.write_anndata(model, target, X)
    more = streampca.PCA(4).fit(streampca.open(target))
    streampca.write_anndata(more, target, X, key_added="four")
    streampca.write_anndata(more, target, X, overwrite=True)
    root = opened(target)
    assert root["obsm/X_pca"].shape == root["obsm/four"].shape == (40, 4)
    assert root["uns/four/variance"].shape == (4,)


def test_chosen_features_find_their_rows(target: str) -> None:
    matrix = streampca.open(target)
    chosen = streampca.matrix.select(matrix, features=np.arange(12) % 3 == 1)
    model = streampca.PCA(2).fit(chosen)
    streampca.write_anndata(model, target, chosen)
    pcs = opened(target)["varm/PCs"][...]
    np.testing.assert_array_equal(pcs[1::3], model.components_.T)
    assert not pcs[np.arange(12) % 3 != 1].any()


@contextmanager
def reading(path: str) -> Iterator[Any]:
    """The root, closed afterwards, so that it can be written to."""
    root = opened(path)
    yield root
    if path.endswith(".h5ad"):
        root.close()


def column(root: Any, name: str) -> Any:
    """A column of var with what anndata needs to read it."""
    order = [str(one) for one in root["var"].attrs["column-order"]]
    assert name in order
    assert root[f"var/{name}"].attrs["encoding-type"] == "array"
    assert root[f"var/{name}"].dtype == np.bool_
    return root[f"var/{name}"][...]


@pytest.mark.parametrize("named", [True, False])
def test_highly_variable_genes_are_written_as_scanpy_writes_them(target: str, named: bool) -> None:
    counts = streampca.open(target) if named else scipy.sparse.csr_array(X)
    logs = streampca.preprocess.log1p(streampca.preprocess.normalize_total(counts))
    genes = streampca.preprocess.highly_variable(logs, n_top=5, n_bins=2)
    used = genes.highly_variable
    model = streampca.PCA(2).fit(genes.of(logs))
    streampca.write_anndata(model, target, target)  # raw counts: prepared as in the fit
    root = opened(target)
    np.testing.assert_array_equal(column(root, "highly_variable"), used)
    pcs = root["varm/PCs"][...]
    np.testing.assert_array_equal(pcs[used], model.components_.T)
    assert pcs.shape == (12, 2)
    assert not pcs[~used].any()
    params = root["uns/pca/params"]
    assert bool(params["use_highly_variable"][()]) is True
    assert np.asarray(params["mask_var"]).item() in ("highly_variable", b"highly_variable")
    np.testing.assert_allclose(root["obsm/X_pca"][...], model.transform(genes.of(logs)), atol=1e-6)
    np.testing.assert_array_equal(streampca.open(target).read(0, 0, 40), X)
    assert list(streampca.open(target).labels.features.names()) == VAR.tolist()


def test_the_column_of_genes_is_kept_replaced_or_left_out(target: str) -> None:
    matrix = streampca.open(target)
    genes = streampca.preprocess.highly_variable(streampca.preprocess.log1p(matrix), n_top=5)
    model = streampca.PCA(2).fit(genes.of(matrix))
    streampca.write_anndata(model, target, matrix, mask_var=None)
    with reading(target) as root:
        assert "highly_variable" not in root["var"]
        assert bool(root["uns/pca/params/use_highly_variable"][()]) is False
        assert "mask_var" not in root["uns/pca/params"]
    streampca.write_anndata(model, target, matrix, key_added="first")
    streampca.write_anndata(model, target, matrix, key_added="again")  # the same column: kept
    four = streampca.matrix.select(matrix, features=np.arange(12) < 4)
    fewer = streampca.PCA(2).fit(four)
    with pytest.raises(InvalidInputError, match="5 features, and the fit used 4, not the same"):
        streampca.write_anndata(fewer, target, four, key_added="no", mask_var="highly_variable")
    streampca.write_anndata(fewer, target, four, key_added="plain")
    streampca.write_anndata(fewer, target, four, key_added="panel", mask_var="panel")
    with reading(target) as root:
        assert "no" not in root["obsm"]
        np.testing.assert_array_equal(column(root, "panel"), np.arange(12) < 4)
        np.testing.assert_array_equal(column(root, "highly_variable"), genes.highly_variable)
        for name in ("plain", "panel"):
            assert bool(root[f"uns/{name}/params/use_highly_variable"][()]) is False
    streampca.write_anndata(fewer, target, four, mask_var="highly_variable", overwrite=True)
    with reading(target) as root:
        np.testing.assert_array_equal(column(root, "highly_variable"), np.arange(12) < 4)
        assert bool(root["uns/pca/params/use_highly_variable"][()]) is True


def memory() -> Any:
    return SimpleNamespace(obs_names=OBS, var_names=VAR, obsm={}, varm={}, uns={})


def test_an_object_in_memory() -> None:
    adata = memory()
    model = streampca.TruncatedSVD(3).fit(scipy.sparse.csr_array(X))
    streampca.write_anndata(model, adata, X)
    np.testing.assert_allclose(adata.obsm["X_pca"], model.transform(X))
    assert adata.uns["pca"]["params"]["zero_center"] is False
    np.testing.assert_array_equal(adata.uns["pca"]["variance"], model.explained_variance_)
    with pytest.raises(InvalidInputError, match="X_pca, PCs, pca is there already"):
        streampca.write_anndata(model, adata, X)
    adata.var = pd.DataFrame(index=VAR)
    genes = streampca.preprocess.highly_variable(np.log1p(X), n_top=5)
    model = streampca.PCA(2).fit(genes.of(X))
    streampca.write_anndata(model, adata, X, overwrite=True)
    assert adata.uns["pca"]["params"]["use_highly_variable"] is True
    np.testing.assert_array_equal(adata.var["highly_variable"], genes.highly_variable)
    np.testing.assert_array_equal(adata.varm["PCs"][genes.highly_variable], model.components_.T)
    adata.var["highly_variable"] = False
    with pytest.raises(InvalidInputError, match="is there already with 0 features"):
        streampca.write_anndata(model, adata, X, key_added="other")
    assert "other" not in adata.obsm
    adata.var["highly_variable"] = "text"
    with pytest.raises(InvalidInputError, match="no booleans; use another mask_var="):
        streampca.write_anndata(model, adata, X, overwrite=True)


def test_what_does_not_fit_is_refused_before_anything_is_written(target: str) -> None:
    adata = memory()
    model = streampca.PCA(2, svd_solver="scatter").fit(X)
    with pytest.raises(InvalidInputError, match="kept no scores"):
        streampca.write_anndata(model, adata)
    with pytest.raises(InvalidInputError, match="39 scores for an AnnData of 40"):
        streampca.write_anndata(model, adata, X[1:])
    with pytest.raises(InvalidInputError, match="11 features without names, the AnnData 12"):
        streampca.write_anndata(streampca.PCA(2).fit(X[:, 1:]), adata, X[:, 1:])
    named = streampca.PCA(2).fit(streampca.open(target))
    adata.var_names = np.array([f"g{i}" for i in range(12)])
    with pytest.raises(InvalidInputError, match="12 features of the fit are not in the AnnData"):
        streampca.write_anndata(named, adata, X)
    adata.obs_names = OBS[::-1]
    with pytest.raises(InvalidInputError, match="40 observations have other names"):
        streampca.write_anndata(named, adata, X)
    assert not adata.obsm
    with pytest.raises(InvalidInputError, match="expected an AnnData"):
        streampca.write_anndata(model, 7, X)
    with pytest.raises(SourceError):
        streampca.write_anndata(model, str(target) + "x", X)


def test_a_file_of_an_old_form_is_left_as_it_was(tmp_path: Path) -> None:
    """Before version 0.7 obsm was one table; nothing is taken away before that shows."""
    path = tmp_path / "old.h5ad"
    with h5py.File(path, "w") as file:
        write(file)
        file["obsm"] = np.zeros(40, [("X_pca", "f4", (3,))])
        file.create_dataset("uns/pca/variance", data=[2.0, 1.0])
    model = streampca.PCA(3).fit(X)
    with pytest.raises(InvalidInputError, match=r"obsm of this AnnData is a table.*read_h5ad"):
        streampca.write_anndata(model, str(path), X, overwrite=True)
    with h5py.File(path) as file:
        np.testing.assert_array_equal(file["uns/pca/variance"], [2.0, 1.0])


def test_the_stored_pca_of_pbmc68k(shared_data: Path) -> None:
    """Scanpy's stored components of the 309 genes that it used: leading five to 1e-4."""
    path = shared_data / "pbmc68k_reduced" / "10x_pbmc68k_reduced.h5ad"
    with h5py.File(path) as file:
        stored = file["uns/pca/variance"][...], file["uns/pca/variance_ratio"][...]
        vectors = file["varm"]["PCs"]
        scores = file["obsm"]["X_pca"]
    used = ~np.isnan(vectors).any(axis=1) & vectors.any(axis=1)
    assert used.sum() == 309
    matrix = streampca.open(str(path))
    model = streampca.PCA(10).fit(streampca.matrix.select(matrix, features=used))
    np.testing.assert_allclose(model.explained_variance_[:5], stored[0][:5], rtol=1e-4)
    np.testing.assert_allclose(model.explained_variance_ratio_[:3], stored[1][:3], rtol=1e-4)
    agreement = np.abs(np.sum(model.components_[:5].T * vectors[used, :5], axis=0))
    np.testing.assert_allclose(agreement, 1.0, atol=1e-3)
    mine = model.transform(streampca.matrix.select(matrix, features=used))
    for j in range(5):
        assert abs(np.corrcoef(mine[:, j], scores[:, j])[0, 1]) > 0.9995


TWICE = np.array(["a", "b", "a", "c", "d", "b", "e", "a", "f", "g", "h", "g"])


def rename(path: str) -> None:
    """Names of genes that occur once to three times."""
    root = h5py.File(path, "r+") if path.endswith(".h5ad") else zarr.open_group(path, mode="r+")
    root["var/names"][...] = TWICE if path.endswith(".zarr") else TWICE.astype("S")
    if path.endswith(".h5ad"):
        root.close()


def test_genes_of_one_name_are_told_apart_by_their_place(target: str) -> None:
    rename(target)
    matrix = streampca.open(target)
    model = streampca.PCA(3).fit(matrix)
    streampca.write_anndata(model, target, X)
    logs = streampca.preprocess.log1p(matrix)
    genes = streampca.preprocess.highly_variable(logs, n_top=5, n_bins=2)
    chosen = streampca.PCA(2).fit(genes.of(logs))
    streampca.write_anndata(chosen, target, matrix, key_added="hv")
    with reading(target) as root:
        np.testing.assert_array_equal(root["varm/PCs"][...], model.components_.T)
        np.testing.assert_array_equal(column(root, "highly_variable"), genes.highly_variable)
        pcs = root["varm/hv"][...]
    np.testing.assert_array_equal(pcs[genes.highly_variable], chosen.components_.T)
    assert not pcs[~genes.highly_variable].any()


def test_some_genes_of_one_name_are_refused_and_all_of_them_are_found() -> None:
    adata = memory()
    adata.var_names = TWICE
    frame = pd.DataFrame(X, columns=TWICE)
    every = np.flatnonzero(np.isin(TWICE, ["a", "c", "h"]))
    model = streampca.PCA(2).fit(frame.iloc[:, every])
    streampca.write_anndata(model, adata, frame.iloc[:, every])
    np.testing.assert_array_equal(adata.varm["PCs"][every], model.components_.T)
    some = streampca.PCA(2).fit(frame.iloc[:, every[1:]])
    with pytest.raises(InvalidInputError, match=r"1 names .* too \(a\), .*var_names_make_unique"):
        streampca.write_anndata(some, adata, frame.iloc[:, every[1:]], overwrite=True)
