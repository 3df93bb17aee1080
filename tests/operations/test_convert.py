"""``convert``: whole, unfinished and gone on with, in every layout."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import time
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
import scipy.sparse
import xarray as xr
import zarr
from genotypes import (
    random_calls,
    sample_names,
    variant_names,
    write_calls,
    write_pgen,
    write_plink,
    write_vcf_zarr,
)
from hypothesis import given, settings
from hypothesis import strategies as st

import streampca
from streampca.errors import InvalidInputError, MemoryLimitError, SourceError
from streampca.matrix import regular_edges
from streampca.operations.convert import (
    CHUNK_NBYTES,
    CHUNK_ROWS,
    SLICE_NBYTES,
    chunk_shape,
    convert,
)


@pytest.fixture
def small(monkeypatch):
    """Chunks of about 512 bytes and blocks of about 1 kB of calls."""
    monkeypatch.setattr(sys.modules["streampca.operations.convert"], "CHUNK_NBYTES", 512)
    monkeypatch.setattr("streampca.passes.blocks.BLOCK_NBYTES", 4096)
    monkeypatch.setattr("streampca.passes.blocks.BLOCK_LENGTH", 8)


def values_of(matrix):
    found = matrix.read(1, 0, matrix.shape[1])
    return found if isinstance(found, np.ndarray) else found.toarray()


def quietly(*arguments, **more):
    return convert(*arguments, progress=False, **more)


class Cut(Exception):
    """What stops a conversion."""


def cut_after(blocks):
    """A progress function that stops the pass once so many blocks are done."""

    def progress(advance):
        if advance.blocks_done >= blocks:
            raise Cut

    return progress


SOURCES = {
    "bed": lambda folder, calls: write_plink(folder / "b", calls, families=["f"] * len(calls)),
    "vcf": lambda folder, calls: write_vcf_zarr(folder / "v.vcz", calls),
    "pgen": lambda folder, calls: write_pgen(folder / "p", calls, families=["f"] * len(calls)),
    "by variant": lambda folder, calls: streampca.open(
        write_calls(folder / "pv", calls, True), dim=1, missing_value=-1
    ),
    "by sample": lambda folder, calls: streampca.open(
        write_calls(folder / "ps", calls, False), missing_value=-1
    ),
    "beds": lambda folder, calls: [
        write_plink(folder / "b1", calls[:, :50]),
        write_plink(folder / "b2", calls[:, 50:], ids=variant_names(calls.shape[1] - 50, 50)),
    ],
    "vcfs": lambda folder, calls: [
        write_vcf_zarr(folder / "v1.vcz", calls[:, :50]),
        write_vcf_zarr(
            folder / "v2.vcz", calls[:, 50:], ids=variant_names(calls.shape[1] - 50, 50)
        ),
    ],
}


@pytest.mark.parametrize("samples_major", [True, False])
@pytest.mark.parametrize("kind", SOURCES)
def test_genotypes_of_every_source_come_back(tmp_path, kind, samples_major, small):
    calls = random_calls(30, 200)
    source = streampca.open(SOURCES[kind](tmp_path, calls))
    done = quietly(source, tmp_path / "out.zarr", samples_major=samples_major)
    assert done.shape == (30, 200)
    assert done.missing_value == -1
    matrix = streampca.open(str(tmp_path / "out.zarr"))
    assert (matrix.dtype, matrix.missing_value, matrix.shape) == (np.int8, -1, (30, 200))
    assert matrix.read(1, 10, 40).flags.f_contiguous == (not samples_major)
    np.testing.assert_array_equal(values_of(matrix), calls)
    for axis in (0, 1):
        assert matrix.labels.axis(axis).names() == source.labels.axis(axis).names()
        extra = source.labels.axis(axis).extra
        assert matrix.labels.axis(axis).extra.keys() == extra.keys()
        for name, values in extra.items():
            np.testing.assert_array_equal(matrix.labels.axis(axis).extra[name], values)
    reads = source.reads()
    edges = source.chunk_edges(1)
    if edges is not None:
        cells = sum(source.count_chunks(1, int(a), int(b)) for a, b in pairwise(edges))
        assert done.reads == reads.chunks == cells, "each stored chunk is read once"


def test_what_lies_in_the_group(tmp_path, small):
    calls = random_calls(12, 100)
    stem = write_plink(tmp_path / "b", calls, families=[f"f{i}" for i in range(12)])
    done = quietly(stem, tmp_path / "out.zarr")
    group = zarr.open_group(str(tmp_path / "out.zarr"), mode="r")
    array = group["call"]
    assert array.metadata.dimension_names == ("sample", "variant")
    assert array.attrs["missing_value"] == -1
    assert array.attrs["streampca_complete"] is True
    assert array.attrs["source_fingerprint"] == streampca.open(stem).content_stamp()
    codecs = [codec.to_dict() for codec in array.metadata.codecs]
    assert [codec["name"] for codec in codecs] == ["bytes", "blosc", "crc32c"]
    assert codecs[1]["configuration"]["shuffle"] == "bitshuffle"
    assert array.chunks == done.chunks == (12, 34)  # 512 / 12 = 42, in three equal parts
    names = {"sample", "family", "individual", "variant", "chromosome", "position"}
    assert set(group) == {*names, "counted_allele", "other_allele", "call"}
    assert group["family"].metadata.dimension_names == ("sample",)
    with xr.open_zarr(str(tmp_path / "out.zarr"), consolidated=False) as dataset:
        found = dataset["call"].sel(sample="s3", variant="rs7")
        assert float(found) == calls[3, 7] or (np.isnan(found) and calls[3, 7] == -1)
        assert dataset["position"].dims == ("variant",)


@pytest.mark.parametrize("streamed", ["samples", "features"])
@pytest.mark.parametrize("dtype", ["float32", "float64", "int16", "uint8", "bool"])
def test_any_numbers_come_back(tmp_path, dtype, streamed, small):
    rng = np.random.default_rng(0)
    X = (10 * rng.standard_normal((60, 40)) + 50).astype(dtype)
    if X.dtype.kind == "f":
        X[3, 4] = np.nan
    chunks = (7, 40) if streamed == "samples" else (60, 7)
    zarr.create_array(str(tmp_path / "x"), shape=X.shape, chunks=chunks, dtype=dtype)[...] = X
    source = streampca.open(str(tmp_path / "x"), missing_chunks="fill")
    done = quietly(source, tmp_path / "out.zarr")
    assert done.array == "values"
    assert (
        done.reads
        == source.reads().chunks
        == len(source.chunk_edges(0)) * len(source.chunk_edges(1))
        - sum(len(source.chunk_edges(axis)) for axis in (0, 1))
        + 1
    )
    matrix = streampca.open(str(tmp_path / "out.zarr"))
    assert matrix.dtype == X.dtype
    np.testing.assert_array_equal(values_of(matrix), X)


def test_other_sources(tmp_path, small):
    rng = np.random.default_rng(0)
    X = rng.standard_normal((40, 6)) * (rng.random((40, 6)) < 0.3)
    quietly(scipy.sparse.csr_array(X), tmp_path / "sparse")
    np.testing.assert_array_equal(values_of(streampca.open(str(tmp_path / "sparse"))), X)
    quietly(X, tmp_path / "array", samples_major=False)
    np.testing.assert_array_equal(values_of(streampca.open(str(tmp_path / "array"))), X)
    np.save(tmp_path / "x.npy", X)
    quietly(tmp_path / "x.npy", tmp_path / "npy")
    np.testing.assert_array_equal(values_of(streampca.open(str(tmp_path / "npy"))), X)
    field = xr.DataArray(
        X.reshape(40, 2, 3),
        dims=("time", "lat", "lon"),
        coords={"time": np.datetime64("2000-01-01") + np.arange(40), "lat": [10.0, 20.0]},
    )
    quietly(streampca.open(field, dim="time"), tmp_path / "field", samples_major=False)
    matrix = streampca.open(str(tmp_path / "field"))
    np.testing.assert_array_equal(values_of(matrix), X)
    assert matrix.labels.features.name(4) == "lat=20.0, lon=1"
    assert matrix.labels.samples.name(3) == "2000-01-04T00:00:00"
    coded = np.array([[1.0, -9.0], [3.0, 4.0]])
    quietly(streampca.open(coded.astype("i2"), missing_value=-9), tmp_path / "i2")
    found = values_of(streampca.open(str(tmp_path / "i2")))
    np.testing.assert_array_equal(found, [[1.0, np.nan], [3.0, 4.0]])


def test_chunks_of_zeros_are_stored(tmp_path, small):
    """An absent chunk is an error when read: none may be left out for being all fill."""
    calls = np.zeros((12, 100), np.int8)
    calls[0, :50] = 1
    quietly(write_plink(tmp_path / "b", calls), tmp_path / "out.zarr")
    np.testing.assert_array_equal(values_of(streampca.open(str(tmp_path / "out.zarr"))), calls)


@pytest.mark.slow
@pytest.mark.parametrize("samples_major", [True, False])
@pytest.mark.parametrize("kind", ["bed", "vcf", "vcfs", "by sample"])
@pytest.mark.parametrize("blocks", [1, 6])
def test_an_interrupted_conversion_goes_on(tmp_path, kind, blocks, samples_major, small):
    calls = random_calls(30, 400)
    calls[:, 200:] = 0  # chunks that are all fill, also after the cut
    source = streampca.open(SOURCES[kind](tmp_path, calls))
    path = tmp_path / "out.zarr"
    with pytest.raises(Cut):
        convert(source, path, samples_major=samples_major, progress=cut_after(blocks))
    with pytest.raises(SourceError, match="not written to its end"):
        streampca.open(str(path))
    with pytest.raises(SourceError, match="not written to its end"):
        streampca.open(str(path), variable=zarr.open_group(str(path)).attrs["streampca_array"])
    with pytest.raises(InvalidInputError, match="unfinished; resume it"):
        quietly(source, path, samples_major=samples_major, resume=False)
    if kind != "by sample":  # which has the layout by samples, and "values"
        with pytest.raises(InvalidInputError, match="another layout"):
            quietly(source, path, samples_major=not samples_major)
    source.restart_counts()
    done = quietly(source, path, samples_major=samples_major)
    assert 0 <= done.resumed < 400
    assert done.resumed > 0 or blocks < 6, "what was written is not written again"
    np.testing.assert_array_equal(values_of(streampca.open(str(path))), calls)
    whole = quietly(source, tmp_path / "whole.zarr", samples_major=samples_major)
    assert done.reads <= whole.reads
    with pytest.raises(InvalidInputError, match="exists already"):
        quietly(source, path, samples_major=samples_major)


def test_a_changed_source_is_not_gone_on_with(tmp_path, small):
    calls = random_calls(12, 100)
    bed, path = write_plink(tmp_path / "b", calls), tmp_path / "out.zarr"
    with pytest.raises(Cut):
        convert(bed, path, progress=cut_after(1))
    other = write_plink(tmp_path / "other", calls)
    with pytest.raises(SourceError, match="another source, or the source has changed"):
        quietly(other, path)
    os.utime(bed, (1, 1))
    with pytest.raises(SourceError, match="overwrite=True"):
        quietly(bed, path)
    assert quietly(bed, path, overwrite=True).resumed == 0
    np.testing.assert_array_equal(values_of(streampca.open(str(path))), calls)


def test_a_failing_source_leaves_nothing_that_looks_whole(tmp_path, small):
    bed, path = write_plink(tmp_path / "b", random_calls(12, 100)), tmp_path / "out.zarr"
    source = streampca.open(bed)
    os.truncate(bed, 3 + 60 * 3)
    with pytest.raises(SourceError, match="ends"):
        quietly(source, path)
    with pytest.raises(SourceError, match="not written to its end"):
        streampca.open(str(path))
    with pytest.raises(SourceError, match="truncated"):
        quietly(bed, path)


def test_only_conversions_are_replaced(tmp_path, small):
    calls = random_calls(12, 100)
    bed = write_plink(tmp_path / "b", calls)
    other = write_calls(tmp_path / "precious.zarr", calls, False)
    (tmp_path / "file").write_text("x")
    (tmp_path / "folder").mkdir()
    (tmp_path / "folder" / "x").write_text("x")
    for name in ("precious.zarr", "file", "folder"):
        for overwrite in (False, True):
            with pytest.raises(InvalidInputError, match="exists already"):
                quietly(bed, tmp_path / name, overwrite=overwrite)
    np.testing.assert_array_equal(zarr.open_array(other)[...], calls)
    (tmp_path / "empty").mkdir()
    path = tmp_path / "empty"
    quietly(bed, path)
    with pytest.raises(InvalidInputError, match="exists already"):
        quietly(bed, path)
    assert quietly(bed, path, overwrite=True).resumed == 0
    for source in (path, streampca.open(str(path)), [str(path)]):
        with pytest.raises(InvalidInputError, match="lie within one another"):
            quietly(source, path, overwrite=True)
    np.testing.assert_array_equal(values_of(streampca.open(str(path))), calls)


def test_a_conversion_that_stopped_before_its_array_begins_anew(tmp_path, small):
    bed, path = write_plink(tmp_path / "b", random_calls(12, 100)), tmp_path / "out.zarr"
    zarr.create_group(str(path), attributes={"streampca_array": "call"})
    with pytest.raises(InvalidInputError):
        streampca.open(str(path))
    assert quietly(bed, path).resumed == 0
    group = zarr.open_group(str(path))
    group["call"].attrs["streampca_complete"] = False  # stopped before its last word
    assert quietly(bed, path).resumed == 100
    assert streampca.open(str(path)).shape == (12, 100)


def test_memory_is_planned(tmp_path):
    bed = write_plink(tmp_path / "b", random_calls(12, 100))
    with pytest.raises(MemoryLimitError, match="smallest limit"):
        quietly(bed, tmp_path / "out.zarr", memory_limit="100MiB")
    done = quietly(bed, tmp_path / "out.zarr", memory_limit="512MiB")
    assert done.plan.memory_limit == 512 << 20


@settings(max_examples=200, deadline=None)
@given(
    n=st.integers(1, 1_000_000),
    p=st.integers(1, 1_000_000),
    itemsize=st.sampled_from([1, 2, 4, 8]),
    axis=st.sampled_from([0, 1]),
)
def test_chunks_suit_both_kinds_of_pass(n, p, itemsize, axis):
    samples, features = chunk_shape((n, p), itemsize, axis)
    assert 1 <= samples <= n
    assert 1 <= features <= p
    assert samples * features * itemsize <= CHUNK_NBYTES
    across, along = ((p, samples), (n, features))[axis]
    assert across * along * itemsize <= max(SLICE_NBYTES, across * itemsize)
    if n <= CHUNK_ROWS // itemsize and axis:
        assert samples == n, "a wide matrix: one chunk is one block"
    if n * p * itemsize >= 8 * CHUNK_NBYTES and max(n, p) < 100 * min(n, p):
        assert samples * features * itemsize >= CHUNK_NBYTES // 8, "no crumbs"


def test_the_defining_case():
    assert chunk_shape((3192, 500_568), 1, 1) == (3192, 1314)


@pytest.mark.soak
def test_killed_at_any_time(tmp_path):
    """kill -9: what is left is unfinished or whole, and going on gives the same bytes."""
    calls = random_calls(40, 20_000)
    bed, path = write_plink(tmp_path / "b", calls), tmp_path / "out.zarr"
    script = (
        "import sys, streampca.passes.blocks as plan, streampca.operations.convert\n"
        "module = sys.modules['streampca.operations.convert']\n"
        "module.CHUNK_NBYTES, plan.BLOCK_NBYTES, plan.BLOCK_LENGTH = 2048, 8192, 8\n"
        "sys.modules['streampca.store.matrix_group'].MARK_SECONDS = 0.02\n"
        "print('begun', flush=True)\n"
        f"module.convert({bed!r}, {str(path)!r}, progress=False)\n"
    )
    environment = {**os.environ, "PYTHONPATH": str(Path(streampca.__file__).parents[1])}
    rng, resumed = random.Random(0), 0
    for _ in range(4):
        child = subprocess.Popen(
            [sys.executable, "-c", script], env=environment, stdout=subprocess.PIPE
        )
        child.stdout.readline()
        time.sleep(rng.uniform(0.1, 0.9))
        child.send_signal(signal.SIGKILL)
        child.wait()
        child.stdout.close()
        if (path / "call").exists():
            attributes = zarr.open_array(str(path / "call"), mode="r").attrs
            assert attributes["streampca_written"] >= resumed
            resumed = attributes["streampca_written"]
            if not attributes["streampca_complete"]:
                with pytest.raises(SourceError, match="not written to its end"):
                    streampca.open(str(path))
    last = subprocess.run([sys.executable, "-c", script], env=environment, capture_output=True)
    assert last.returncode == 0 or b"exists already" in last.stderr
    np.testing.assert_array_equal(values_of(streampca.open(str(path))), calls)


def test_components_are_those_of_the_source(tmp_path, small):
    calls = random_calls(30, 200)
    bed = write_plink(tmp_path / "b", calls, samples=sample_names(30))
    first = streampca.PCA(3, scale="hwe", missing="mean", solver="gram").fit(bed)
    for samples_major in (True, False):
        path = str(tmp_path / f"{samples_major}.zarr")
        quietly(bed, path, samples_major=samples_major)
        model = streampca.PCA(3, scale="hwe", missing="mean", solver="gram").fit(path)
        scale = first.explained_variance_[0]
        np.testing.assert_allclose(
            model.explained_variance_, first.explained_variance_, rtol=0, atol=1e-7 * scale
        )
        assert model.result_.labels.features.names() == first.result_.labels.features.names()


def by_chromosome(folder, source):
    """The matrix as one VCF Zarr and one .bed for each run of a chromosome."""
    calls, features = values_of(source), source.labels.features
    people = source.labels.samples.names()
    chromosome = features.extra["chromosome"]
    cuts = [0, *(1 + np.flatnonzero(chromosome[1:] != chromosome[:-1])).tolist(), len(features)]
    vcfs, beds = [], []
    for first, last in pairwise(cuts):
        more = {"ids": features.names(range(first, last)), "samples": people}
        part, stem = calls[:, first:last], folder / f"part{first}"
        vcfs.append(write_vcf_zarr(f"{stem}.vcz", part, chunks=(500, 957), **more))
        beds.append(write_plink(stem, part, **more))
    return vcfs, beds


@pytest.mark.soak
def test_hapmap(tmp_path, shared_data):
    """957 x 14,389 real calls, through .bed, VCF Zarr and both converted orientations."""
    bed = str(shared_data / "hapmap3" / "data.bed")
    source = streampca.open(bed)
    calls = values_of(source)
    models = {"bed": streampca.PCA(6, scale="hwe", missing="mean").fit(bed)}
    for major in (True, False):
        path = str(tmp_path / f"{major}.zarr")
        quietly(bed, path, samples_major=major)
        matrix = streampca.open(path)
        np.testing.assert_array_equal(values_of(matrix), calls)
        np.testing.assert_array_equal(
            matrix.labels.features.extra["chromosome"], source.labels.features.extra["chromosome"]
        )
        models[major] = streampca.PCA(6, scale="hwe", missing="mean").fit(path)
    vcfs, beds = by_chromosome(tmp_path, source)
    assert len(vcfs) >= 22
    for name, paths in (("vcfs", vcfs), ("beds", beds)):
        models[name] = streampca.PCA(6, scale="hwe", missing="mean").fit(paths)
    np.testing.assert_array_equal(models["beds"].components_, models["bed"].components_)
    published = np.array([26.468, 23.514, 6.958, 6.086, 4.426, 2.664])
    for model in models.values():
        eigenvalues = model.explained_variance_ * (957 - 1) / 14389
        np.testing.assert_allclose(eigenvalues, published, atol=6e-4)
        scale = models["bed"].explained_variance_[0]
        np.testing.assert_allclose(
            model.explained_variance_, models["bed"].explained_variance_, rtol=0, atol=1e-7 * scale
        )
    laid = source.streamed(1, regular_edges(14389, 5000))
    assert laid.read_block(2).values.shape == (957, 4389)
