"""Weights, removals, EOFs and AnnData from the command line, against the models and NumPy."""

from __future__ import annotations

import json
from pathlib import Path

import h5py
import numpy as np
import pandas as pd
import pytest
import scipy.sparse
import xarray as xr
import zarr

import streampca
from streampca.cli import main
from streampca.cli.pictures import read_labels
from streampca.errors import InvalidInputError, SourceError
from streampca.matrix import AxisLabels
from streampca.matrix.alignment import along
from tests.models.test_anndata_results import OBS, X, write

MONTHS = pd.date_range("2000-01-01", periods=48, freq="MS")


@pytest.fixture(scope="module")
def climate(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """c.nc and c.zarr: a field with a seasonal cycle and land, its areas, weights and batches."""
    rng = np.random.default_rng(0)
    lat, lon = np.linspace(-60.0, 60.0, 5), np.arange(0.0, 360.0, 60.0)
    values = rng.standard_normal((48, 5, 6)) @ np.diag(np.arange(6.0) + 1)
    values += 9 * np.cos(2 * np.pi * np.arange(48) / 12)[:, None, None]
    values[:, 0, 0] = np.nan
    grid = {"lat": ("lat", lat, {"units": "degrees_north"}), "lon": lon}
    sst = xr.DataArray(values, {"time": MONTHS, **grid}, ("time", "lat", "lon"))
    area = xr.DataArray(rng.uniform(1, 2, (6, 5)), {"lon": lon, "lat": lat}, ("lon", "lat"))
    often = xr.DataArray(rng.integers(1, 4, 48).astype(float), {"time": MONTHS}, ("time",))
    folder = tmp_path_factory.mktemp("climate")
    dataset = xr.Dataset({"sst": sst, "area": area, "often": often, "slp": 2 * sst[:, :2] + 1})
    dataset.to_netcdf(folder / "c.nc")
    dataset.to_zarr(folder / "c.zarr", consolidated=False)
    table = pd.DataFrame({"time": MONTHS, "enso": rng.random(48), "ship": list("abc") * 16})
    table[::-1].to_csv(folder / "covariates.csv", index=False)
    table[["enso"]].to_csv(folder / "enso.tsv", index=False, sep="\t")
    np.save(folder / "enso.npy", table["enso"])
    area.to_netcdf(folder / "area.nc")
    return folder


def fit(*words: object) -> int:
    return main(["fit", *map(str, words), "-q"])


@pytest.fixture
def dataset(climate: Path) -> xr.Dataset:
    with xr.open_dataset(climate / "c.nc") as found:
        return found.load()


pytestmark = pytest.mark.filterwarnings("ignore::streampca.errors.DroppedFeaturesWarning")
COSLAT = "--weights", "coslat"


@pytest.mark.parametrize("source", ["c.nc", "c.zarr"])
@pytest.mark.parametrize("output", ["eofs.nc", "eofs.zarr"])
def test_one_line_gives_eofs(climate, dataset, tmp_path, source, output):
    words = "--variable", "sst", "--dim", "time", "-k", 3, *COSLAT, "--remove", "month"
    assert fit(climate / source, *words, "--eof-scaling", 2, 1, "--eofs", tmp_path / output) == 0
    expected = dataset.sst.streampca.eof(
        3, "time", scaling=2, pc_scaling=1, weights="coslat", remove="month"
    )
    more = {"engine": "zarr", "consolidated": False} if output.endswith("zarr") else {}
    with xr.open_dataset(tmp_path / output, **more) as found:
        xr.testing.assert_allclose(found, expected)
        assert found.eofs.lat.attrs["units"] == "degrees_north"
    anomalies = dataset.sst.groupby("time.month") - dataset.sst.groupby("time.month").mean()
    anomalies = anomalies * np.sqrt(np.cos(np.deg2rad(anomalies.lat)))
    values = np.linalg.svd(anomalies.values.reshape(48, -1)[:, 1:], compute_uv=False)[:3] ** 2 / 47
    np.testing.assert_allclose(expected.eigenvalues, values)


def test_rotated_components_are_written_and_loaded(climate, dataset, tmp_path, capsys):
    words = "--variable", "sst", "--dim", "time", "-k", 3, *COSLAT, "--remove", "month"
    model, new = tmp_path / "model", tmp_path / "scores.zarr"
    made = "--rotate", "varimax", "--eofs", tmp_path / "eofs.nc", "-o", model
    assert fit(climate / "c.nc", *words, *made) == 0
    assert main(["info", str(model)]) == 0
    assert "varimax: 3 components" in capsys.readouterr().out
    pca = streampca.PCA(3, weights="coslat", remove="month").fit(dataset.sst, dim="time")
    with xr.open_dataset(tmp_path / "eofs.nc") as found:
        expected = streampca.rotate(pca).eof_.eofs()
        np.testing.assert_allclose(abs(found.eofs), abs(expected), atol=1e-4)
        assert (found.attrs["weights"], found.attrs["remove"]) == ("coslat", "month")
    words = "--variable", "sst", "--dim", "time", "-o", str(new), "--memory-limit", "1GiB"
    assert main(["transform", str(model), str(climate / "c.nc"), *words]) == 0
    refused = "--rotate", "varimax", "--no-components"
    assert fit(climate / "c.nc", "--variable", "sst", *refused) == 65


@pytest.mark.parametrize("name", ["area", "{}/area.nc", "{}/area.nc:__xarray_dataarray_variable__"])
@pytest.mark.parametrize("source", ["c.nc", "c.zarr"])
def test_weights_of_a_variable_or_a_file(climate, dataset, tmp_path, source, name):
    words = "--variable", "sst", "--dim", "time", "-k", 2
    more = "--weights", name.format(climate), "--sample-weight", "often"
    assert fit(climate / source, *words, *more, "-o", tmp_path / "model") == 0
    expected = streampca.PCA(2, weights=dataset.area)
    expected.fit(dataset.sst, dim="time", sample_weight=dataset.often)
    found = streampca.load(tmp_path / "model")
    np.testing.assert_allclose(found.components_, expected.components_, atol=1e-12)


@pytest.mark.parametrize("kind", ["covariates.csv", "enso.tsv", "enso.npy"])
def test_covariates_by_name_or_in_order(climate, dataset, tmp_path, kind):
    """The rows of the .csv are backwards: its dates say whose they are."""
    names = "--variable", "sst", "--dim", "time"
    words = *names, "--remove", climate / kind, "--remove", "trend", "-k", 2
    model, scores = tmp_path / "model", tmp_path / "scores.zarr"
    assert fit(climate / "c.zarr", *words, "-o", model, "--scores", scores) == 0
    table = pd.read_csv(climate / "covariates.csv")[::-1]
    columns = [np.ones(48), np.arange(48.0) * 0 + (MONTHS - MONTHS[0]).days, table.enso]
    if kind.endswith("csv"):
        columns += [table.ship == "a", table.ship == "b"]
    design = np.stack([np.asarray(one, float) for one in columns], axis=1)
    values = dataset.sst.values.reshape(48, -1)[:, 1:]
    left = values - design @ np.linalg.lstsq(design, values, rcond=None)[0]
    s = np.linalg.svd(left, compute_uv=False)[:2]
    np.testing.assert_allclose(streampca.load(model).singular_values_, s)
    again = tmp_path / "again.zarr"
    words = ["transform", str(model), str(climate / "c.zarr"), *names, "-o", str(again)]
    assert main([*words, "--remove", str(climate / kind)]) == 0
    np.testing.assert_allclose(zarr.open_array(again)[:], zarr.open_array(scores)[:], atol=1e-9)
    assert main([*words, "--overwrite"]) == 65
    assert main([*words, "--overwrite", "--remove", "none"]) == 0
    plain = (values - values.mean(axis=0)) @ streampca.load(model).components_[:, 1:].T
    np.testing.assert_allclose(zarr.open_array(again)[:], plain, atol=1e-9)


def test_several_variables_side_by_side(climate, dataset, tmp_path):
    words = "--variable", "sst", "--variable", "slp", "--dim", "time", "-k", 2
    assert fit(climate / "c.nc", *words, "--eofs", tmp_path / "e.nc") == 0
    with xr.open_dataset(tmp_path / "e.nc") as found:
        both = dataset[["sst", "slp"]].streampca.eof(2, "time")
        xr.testing.assert_allclose(found, both)


def test_plan_and_config_take_weights_and_covariates(climate, tmp_path, capsys):
    config = tmp_path / "job.yaml"
    config.write_text(
        f"source: {climate / 'c.nc'}\nvariable: sst\ndim: time\nweights: coslat\n"
        "remove: [month, trend]\nsample-weight: often\nn-components: 2\n"
    )
    assert main(["plan", "--config", str(config)]) == 0
    assert main(["fit", "--config", str(config), "-q", "-o", str(tmp_path / "model")]) == 0
    model = streampca.load(tmp_path / "model")
    assert model.result_.design.rank == 12
    assert (model.weights, model.remove) == ("coslat", ["month", "trend"])


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--weights", "height"], "nor a variable of .*which has sst, area"),
        (["--weights", "height.npy"], "no such file"),
        (["--weights", "time"], "holds no numbers"),
        (["--sample-weight", "{}/covariates.csv"], "has 2 columns; expected one"),
        (["--remove", "ship"], "nor a variable"),
        (["--remove", "{}/bad.csv"], "row 3 has 1 cells, the first 2"),
        (["--remove", "{}/short.csv"], "expected"),
        (["--remove", "{}/dates.csv"], "is not a name along 'time'"),
        (["--remove", "month", "--no-center"], "center"),
        (["--eofs", "eofs.txt"], "ends in .nc or .zarr"),
        (["--eofs", "{}/c.nc", "--overwrite"], "is the source"),
        (["--eofs", "e.nc", "--no-components"], "need components"),
        (["--anndata"], "not an AnnData|not a readable|obs and var"),
    ],
)
def test_unusable_weights_and_covariates_are_refused(climate, capsys, words, said):
    (climate / "bad.csv").write_text("a,b\n1,2\n3\n")
    (climate / "short.csv").write_text("a\n1\n2\n")
    (climate / "dates.csv").write_text("time,a\n" + "yesterday,1\n" * 48)
    given = [word.format(climate) for word in words]
    code = fit(climate / "c.nc", "--variable", "sst", "--dim", "time", "-k", 2, *given)
    assert code in (65, 66)
    import re

    assert re.search(said, capsys.readouterr().err)


def test_a_genotype_fit_takes_no_weights_or_covariates(tmp_path, capsys):
    calls = np.random.default_rng(0).integers(0, 3, (30, 40)).astype(np.int8)
    np.save(tmp_path / "calls.npy", calls)
    source = tmp_path / "calls.npy"
    assert fit(source, "--scale", "hwe", "--weights", "coslat") == 65
    assert "takes no --weights" in capsys.readouterr().err
    assert fit(source, "--scale", "hwe", "--remove", "month") == 65
    assert "one file of samples" in capsys.readouterr().err
    names = tmp_path / "leave-out.txt"
    names.write_text("nobody\n")
    assert fit(source, "--remove", names) == 65  # as PLINK means it, and no sample has a name
    assert "ids were given, and this source has none" in capsys.readouterr().err


# -- AnnData --------------------------------------------------------------------------------------


@pytest.fixture(params=["h5ad", "zarr"])
def cells(request, tmp_path):
    """An AnnData with a numeric, a text and a categorical column in obs."""
    path = tmp_path / f"cells.{request.param}"
    columns = {"depth": np.arange(40.0), "who": np.array(["p", "q"] * 20)}
    codes = np.repeat(np.arange(4, dtype=np.int8), 10)
    root = zarr.create_group(str(path)) if request.param == "zarr" else h5py.File(path, "w")
    write(root)
    as_text = np.dtypes.StringDType() if request.param == "zarr" else "S"
    columns |= {"batch/codes": codes, "batch/categories": np.array(["a", "b", "c", "d"])}
    for name, values in columns.items():
        values = values.astype(as_text) if values.dtype.kind == "U" else values
        if request.param == "zarr":
            array = root.create_array(f"obs/{name}", shape=values.shape, dtype=values.dtype)
            array[...] = values
        else:
            root.create_dataset(f"obs/{name}", data=values)
    symbols = np.array([f"SYM{i}" for i in range(X.shape[1])])
    if request.param == "h5ad":
        root.create_dataset("var/feature_name", data=symbols.astype("S"))
        root.close()
    else:
        named = root.create_array("var/feature_name", shape=symbols.shape, dtype=as_text)
        named[...] = symbols.astype(as_text)
    return path


COUNTS = pytest.mark.filterwarnings("ignore:these cells have raw counts")


@COUNTS
def test_one_line_puts_the_scores_into_the_source(cells, capsys):
    assert fit(cells, "-k", 3, "--anndata") == 0
    opened = h5py.File(cells) if cells.suffix == ".h5ad" else zarr.open_group(str(cells), mode="r")
    expected = streampca.PCA(3).fit(X)
    np.testing.assert_allclose(opened["obsm/X_pca"][...], expected.transform(X), atol=1e-5)
    np.testing.assert_allclose(opened["varm/PCs"][...], expected.components_.T, atol=1e-6)
    if cells.suffix == ".h5ad":
        opened.close()
    assert fit(cells, "-k", 2, "--anndata") == 73
    assert "is there already" in capsys.readouterr().err
    assert fit(cells, "-k", 2, "--anndata", cells, "--overwrite") == 0


@COUNTS
@pytest.mark.parametrize("column", ["depth", "who", "batch"])
def test_columns_of_obs_are_removed(cells, tmp_path, column):
    model = tmp_path / "model"
    assert fit(cells, "-k", 2, "--remove", column, "--anndata", "-o", model) == 0
    columns = {
        "depth": np.arange(40.0)[:, None],
        "who": np.arange(40)[:, None] % 2 == [0, 1],
        "batch": np.arange(40)[:, None] // 10 == np.arange(4),
    }
    design = np.column_stack([np.ones(40), columns[column]]).astype(float)
    left = X - design @ np.linalg.lstsq(design, X, rcond=None)[0]
    s = np.linalg.svd(left, compute_uv=False)[:2]
    np.testing.assert_allclose(streampca.load(model).singular_values_, s, rtol=1e-5)


@pytest.mark.filterwarnings("default:these cells have raw counts")
def test_the_steps_of_scanpy_come_before_the_fit(cells, tmp_path, capsys):
    steps, model = ("--normalize-total", "1e3", "--log1p", "--highly-variable", 8), tmp_path / "m"
    assert fit(cells, "-k", 2, *steps, "--anndata", "-o", model) == 0
    assert not capsys.readouterr().err
    assert main(["info", str(model)]) == 0
    assert "rows of total 1000, log1p, 8 highly variable of" in capsys.readouterr().out
    counts = streampca.preprocess.normalize_total(str(cells), 1e3)
    logs = streampca.preprocess.log1p(counts)
    chosen = streampca.preprocess.highly_variable(logs, n_top=8)
    expected = streampca.PCA(2).fit(chosen.of(logs))
    found = streampca.load(model)
    np.testing.assert_array_equal(found.components_, expected.components_)
    opened = h5py.File(cells) if cells.suffix == ".h5ad" else zarr.open_group(str(cells), mode="r")
    np.testing.assert_array_equal(opened["var/highly_variable"][...], chosen.highly_variable)
    np.testing.assert_array_equal(found.transform(str(cells)), opened["obsm/X_pca"][...])
    loadings = found.components_[1] * np.sqrt(found.explained_variance_[1])
    place = np.flatnonzero(chosen.highly_variable)[np.argmin(loadings)]
    assert found.result_.top_features(1, 1, sign=-1) == [(f"SYM{place}", loadings.min())]
    ends = [found.result_.top_features(0, 99, sign=s) for s in (1, -1)]
    assert [min(x for _, x in ends[0]) > 0, max(x for _, x in ends[1]) < 0] == [True, True]
    for wrong in ((2, 1, None), (0, 1, 5)):
        with pytest.raises(InvalidInputError, match="expected a component from 0 to 1"):
            found.result_.top_features(*wrong)
    labels = read_labels(f"{cells}:batch")
    assert labels.values.tolist() == [*"a" * 10, *"b" * 10, *"c" * 10, *"d" * 10]
    names = streampca.open(str(cells)).labels.samples.names()
    np.testing.assert_array_equal(labels.obs, np.array(names, object))
    turned = AxisLabels.plain("obs", len(names), names[::-1])
    np.testing.assert_array_equal(along(labels, turned, "labels"), labels.values[::-1])
    if cells.suffix == ".h5ad":
        opened.close()
    assert fit(cells, "-k", 2, "--normalize-total") == 0
    assert "these cells have raw counts" in capsys.readouterr().err
    with pytest.warns(UserWarning, match="raw counts") as caught:
        streampca.PCA(2).fit(str(cells))
    assert caught[0].filename == __file__
    assert main(["plan", str(cells), "-k", "2", *map(str, steps), "--json"]) == 0
    planned, made = json.loads(capsys.readouterr().out), found.result_.plan
    for name in ("solver", "shape", "peak_bytes"):
        assert planned[name] == made[name]
    assert main(["plan", str(cells), "--model", "ppca", "-k", "2", *map(str, steps)]) == 0
    assert "before these, for --highly-variable" in capsys.readouterr().out
    calls = tmp_path / "calls.npy"
    np.save(calls, np.ones((4, 3), np.int8))
    assert fit(calls, "--scale", "hwe", "--highly-variable", 2) == 65
    assert "takes no --highly-variable" in capsys.readouterr().err
    assert main(["embed", str(calls), "--scale", "hwe", "--log1p", "--plan"]) == 65
    assert "takes no --log1p" in capsys.readouterr().err


@pytest.mark.parametrize(
    "words",
    [
        "--model cca --log1p",
        "--model genotype-pca --log1p",
        "--normalize-total abc",
        "--normalize-total 0",
    ],
)
def test_useless_or_harmful_preprocessing_steps_are_refused(words, capsys):
    with pytest.raises(SystemExit):
        main(["fit", "x.zarr", *words.split()])
    said = capsys.readouterr().err
    assert "unrecognized arguments: --log1p" in said or "is no positive number" in said


def test_a_column_of_labels_that_is_not_there(tmp_path):
    with pytest.raises(InvalidInputError, match=r"name a column of obs, --labels x\.h5ad:NAME"):
        read_labels("x.h5ad")
    with pytest.raises(SourceError, match=r"no\.h5ad: no such file"):
        read_labels(str(tmp_path / "no.h5ad:batch"))


def test_an_anndata_of_other_cells_is_refused_before_the_fit(cells, tmp_path, capsys):
    scipy.sparse.save_npz(tmp_path / "x.npz", scipy.sparse.csr_array(X[:30]))
    output = tmp_path / "model"
    assert fit(tmp_path / "x.npz", "-k", 2, "--anndata", cells, "-o", output) == 65
    assert f"30 scores for an AnnData of {len(OBS)}" in capsys.readouterr().err
    assert not output.exists()


def drawn(monkeypatch):
    """What pictures are drawn of: a list of (kind, options), filled by ``streampca plot``."""
    found: list = []
    monkeypatch.setattr(
        "streampca.cli.pictures.draw", lambda kind, result, path, **more: found.append((kind, more))
    )
    return found


@COUNTS
@pytest.mark.parametrize("sparse", [True, False])
def test_scores_of_an_anndata_are_those_in_obsm(tmp_path, sparse, monkeypatch, capsys):
    path, model = tmp_path / "c.h5ad", tmp_path / "m"
    with h5py.File(path, "w") as file:
        write(file)
        if sparse:
            del file["X"]
            rows = scipy.sparse.csr_array(X)
            file.create_group("X").attrs.update({"encoding-type": "csr_matrix", "shape": X.shape})
            for name in ("data", "indices", "indptr"):
                file[f"X/{name}"] = getattr(rows, name)
    assert fit(path, "-k", 3, "--scale", "std", "-o", model) == 0
    assert main(["plot", str(model), "--scores", str(path)]) == 65
    assert "has no scores obsm['X_pca']; it has none at all" in capsys.readouterr().err
    assert fit(path, "-k", 3, "--scale", "std", "--anndata", "-o", model, "--overwrite") == 0
    with h5py.File(path, "a") as file:
        file["obsm/mine"] = file["obsm/X_pca"][...][:, ::-1]
        scores = file["obsm/X_pca"][...]
    calls = drawn(monkeypatch)
    picture = ["-o", str(tmp_path / "p.png"), "--kind", "pairs"]
    assert main(["plot", str(model), "--scores", str(path), *picture]) == 0
    assert main(["plot", str(model), "--scores", f"{path}:mine", *picture]) == 0
    np.testing.assert_array_equal(calls[0][1]["scores"], scores)
    np.testing.assert_array_equal(calls[1][1]["scores"], scores[:, ::-1])
    assert main(["plot", str(model), "--scores", f"{path}:X_tsne", *picture]) == 65
    assert f"it has X_pca, mine: {path}:X_pca" in capsys.readouterr().err
    monkeypatch.undo()
    if sparse:
        assert main(["plot", str(model), "--scores", str(path), "-o", picture[1]]) == 0
    np.save(tmp_path / "x.npy", X)  # the data are no scores
    assert main(["plot", str(model), "--scores", str(tmp_path / "x.npy"), *picture]) == 65
    assert (
        f"{len(X)} x {X.shape[1]} values are no scores of a model with 3" in capsys.readouterr().err
    )
