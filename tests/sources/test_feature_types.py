"""Antibodies, guides and peaks beside genes: 10x files and AnnData, as scanpy reads them."""

from pathlib import Path

import h5py
import numpy as np
import pytest
import scipy.sparse
import zarr

import streampca
from streampca.cli import main
from streampca.errors import InvalidInputError
from streampca.sources.sparse.feature_types import GENES

pytestmark = pytest.mark.filterwarnings("ignore:these cells have raw counts")
rng = np.random.default_rng(0)
X = rng.poisson(0.8, (30, 9)).astype(np.int32)
X[:, [3, 8]] = rng.integers(500, 5000, (30, 2))
OTHER = "Antibody Capture"
TYPES = [GENES] * 3 + [OTHER] + [GENES] * 4 + ["CRISPR Guide Capture"]
IDS = [f"ENSG{i}" for i in range(9)]
NAMES = ["A", "B", "A", "CD3", "C", "D", "E", "F", "guide"]
IS_GENE = np.array([one == GENES for one in TYPES])


def tenx(path: Path, types=TYPES, genome: str | None = None, more: str | None = None) -> str:
    """A 10x .h5: of Cell Ranger 3, or with a group for each genome, as before."""
    counts = scipy.sparse.csc_array(X.T)
    with h5py.File(path, "a") as file:
        group = file.create_group(genome or "matrix")
        for name in ("data", "indices", "indptr"):
            group[name] = getattr(counts, name)
        group["shape"], group["barcodes"] = (
            counts.shape,
            np.array([f"c{i}" for i in range(30)], "S"),
        )
        if genome is None:
            features = group.create_group("features")
            for name, values in (("id", IDS), ("name", NAMES), ("feature_type", types)):
                features[name] = np.array(values, "S")
        else:
            group["genes"], group["gene_names"] = np.array(IDS, "S"), np.array(NAMES, "S")
    return tenx(path, genome=more) if more else str(path)


def folder(path: Path, types=TYPES) -> str:
    path.mkdir()
    i, j = np.nonzero(X)
    rows = [f"{b + 1} {a + 1} {X[a, b]}\n" for a, b in zip(i, j, strict=True)]
    head = f"%%MatrixMarket matrix coordinate integer general\n9 30 {len(rows)}\n"
    (path / "matrix.mtx").write_text(head + "".join(rows))
    (path / "barcodes.tsv").write_text("".join(f"c{i}\n" for i in range(30)))
    features = zip(IDS, NAMES, types, strict=True)
    (path / "features.tsv").write_text("".join("\t".join(one) + "\n" for one in features))
    return str(path / "matrix.mtx")


def anndata(path: Path, categorical: bool) -> str:
    in_zarr = path.suffix == ".zarr"
    root = zarr.create_group(str(path)) if in_zarr else h5py.File(path, "w")

    def put(place, values):
        values = np.asarray(values)
        if values.dtype.kind == "U":
            values = values.astype(np.dtypes.StringDType() if in_zarr else "S")
        if in_zarr:
            root.create_array(place, shape=values.shape, dtype=values.dtype)[...] = values
        else:
            root[place] = values

    root.attrs["encoding-type"] = "anndata"
    for name, names in (("obs", [f"c{i}" for i in range(30)]), ("var", NAMES)):
        root.create_group(name).attrs.update({"encoding-type": "dataframe", "_index": "_index"})
        put(f"{name}/_index", names)
    put("X", X)
    if categorical:
        kinds = sorted({*TYPES})
        root.create_group("var/feature_types").attrs["encoding-type"] = "categorical"
        put("var/feature_types/codes", np.array([kinds.index(one) for one in TYPES], np.int8))
        put("var/feature_types/categories", kinds)
    else:
        put("var/feature_types", TYPES)
    if not in_zarr:
        root.close()
    return str(path)


def values(matrix):
    found = matrix.read(0, 0, 30)
    return found if isinstance(found, np.ndarray) else found.toarray()


@pytest.mark.parametrize("make", [tenx, folder])
def test_a_10x_file_is_read_as_scanpy_reads_it(tmp_path, make):
    path = make(tmp_path / "x.h5")
    genes = streampca.open(path)
    np.testing.assert_array_equal(values(genes), X[:, IS_GENE])
    assert genes.labels.features.names() == ["A", "B", "A-1", "C", "D", "E", "F"]
    assert "7 features of Gene Expression out of 7 Gene Expression, 1 Antibody" in genes.note
    centred = X[:, IS_GENE] - X[:, IS_GENE].mean(0)
    model = streampca.PCA(2).fit(path)
    reference = np.linalg.svd(centred, compute_uv=False)[:2]
    np.testing.assert_allclose(model.singular_values_, reference, rtol=1e-5)
    every = np.ones(9, bool)
    for wanted, kept in (
        ("all", every),
        (["all"], every),
        (OTHER, [3]),
        ([OTHER, GENES], range(8)),
    ):
        found = streampca.open(path, feature_types=wanted)
        np.testing.assert_array_equal(values(found), X[:, kept])
    with pytest.raises(InvalidInputError, match=r"'Genes'; .* has 7 Gene Expression, 1 Antibody"):
        streampca.open(path, feature_types="Genes")


@pytest.mark.parametrize("make", [tenx, folder])
def test_what_is_meant_without_genes(tmp_path, make):
    peaks = make(tmp_path / "peaks.h5", types=["Peaks"] * 9)
    np.testing.assert_array_equal(values(streampca.open(peaks)), X)
    both = make(tmp_path / "both.h5", types=["Peaks"] * 5 + [OTHER] * 4)
    with pytest.raises(InvalidInputError, match=r"5 Peaks, 4 .*feature_types='Peaks'"):
        streampca.open(both)
    np.testing.assert_array_equal(values(streampca.open(both, feature_types="Peaks")), X[:, :5])


def test_files_of_cell_ranger_2(tmp_path):
    one = streampca.open(tenx(tmp_path / "one.h5", genome="GRCh38"))
    np.testing.assert_array_equal(values(one), X)
    assert one.labels.features.names()[:3] == ["A", "B", "A-1"]
    assert one.labels.samples.name(29) == "c29"
    two = tenx(tmp_path / "two.h5", genome="GRCh38", more="mm10")
    with pytest.raises(InvalidInputError, match=r"several genomes; .*variable='GRCh38'"):
        streampca.open(two)
    np.testing.assert_array_equal(values(streampca.open(two, variable="mm10")), X)
    with pytest.raises(InvalidInputError, match="does not say of what type"):
        streampca.open(two, variable="mm10", feature_types=GENES)
    with pytest.raises(InvalidInputError, match="no matrix 'X'"):
        streampca.open(tenx(tmp_path / "v3.h5"), variable="X")


@pytest.mark.parametrize("suffix", [".h5ad", ".zarr"])
@pytest.mark.parametrize("categorical", [True, False])
def test_an_anndata_keeps_all_says_so_and_takes_those_asked_for(tmp_path, suffix, categorical):
    path = anndata(tmp_path / f"x{suffix}", categorical)
    with pytest.warns(UserWarning, match=r"feature_types='Gene Expression'\); for all"):
        every = streampca.open(path)
    np.testing.assert_array_equal(values(every), X)
    np.testing.assert_array_equal(values(streampca.open(path, feature_types="all")), X)
    genes = streampca.open(path, feature_types=GENES)
    np.testing.assert_array_equal(values(genes), X[:, IS_GENE])
    model = streampca.PCA(2).fit(genes)
    streampca.write_anndata(model, path, genes)
    pcs = (h5py.File(path) if suffix == ".h5ad" else zarr.open_group(path))["varm/PCs"][...]
    np.testing.assert_array_equal(pcs[IS_GENE], model.components_.T)


@pytest.mark.filterwarnings("default:.* has 7 Gene Expression")
def test_the_option_on_the_command_line_and_where_it_does_not_apply(tmp_path, capsys):
    path, ad = tenx(tmp_path / "x.h5"), anndata(tmp_path / "x.h5ad", True)
    for words, width in (([], 7), (["--feature-types", "all"], 9), (["--feature-types", OTHER], 1)):
        assert main(["info", path, *words]) == 0
        assert f"features{width:>16}\n" in capsys.readouterr().out
    assert main(["info", ad]) == 0
    assert "--feature-types 'Gene Expression'; for all" in capsys.readouterr().err
    np.save(tmp_path / "x.npy", X)
    (tmp_path / "x.csv").write_text("a,b\n1,2\n3,4\n")
    for other in ("x.npy", "x.csv"):
        assert main(["info", str(tmp_path / other), "--feature-types", "all"]) == 0
        assert main(["info", str(tmp_path / other), "--feature-types", GENES]) == 65
    with pytest.raises(InvalidInputError, match="leave feature_types= out"):
        streampca.open(X, feature_types=GENES)
