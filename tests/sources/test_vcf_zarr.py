"""VCF Zarr: alleles become counts, in any grid; and the same calls through every source."""

from __future__ import annotations

import json
import pickle
import shutil
from itertools import pairwise

import numpy as np
import pytest
import zarr
from genotypes import (
    diploid,
    random_calls,
    sample_names,
    variant_names,
    write_calls,
    write_plink,
    write_vcf_zarr,
)
from hypothesis import given
from hypothesis import strategies as st

import streampca
from streampca.cli import main
from streampca.errors import InvalidInputError, SourceError
from streampca.kernels.calls import UNEVEN, sum_alleles
from streampca.matrix import regular_edges

MASK = "call_genotype_mask"
DIMS = ("variants", "samples")


def read_all(matrix, axis=1, step=7):
    """All of a matrix in slices along axis, each read into the same buffer."""
    n = matrix.shape[axis]
    buffer = np.empty(matrix.nbytes, np.uint8)
    cuts = [(i, min(i + step, n)) for i in range(0, n, step)]
    return np.concatenate([np.array(matrix.read(axis, *cut, buffer)) for cut in cuts], axis=axis)


def counted(alleles):
    """What ``sum_alleles`` should give, cell by cell: (m, n) from (m, n, ploidy)."""
    out = np.full(alleles.shape[:2], -1, np.int8)
    for place in np.ndindex(*out.shape):
        present = [a for a in alleles[place] if a != -2]
        if present and min(present) >= 0:
            whole = max(alleles.shape[2], 2)
            out[place] = sum(a == 1 for a in present) * (whole // len(present))
    return out


@given(
    shape=st.tuples(st.integers(1, 5), st.integers(1, 40), st.integers(1, 4)),
    dtype=st.sampled_from(["i1", "i2", "i4"]),
    seed=st.integers(0, 99),
    masks=st.booleans(),
    fills=st.booleans(),
)
def test_alleles_are_summed(shape, dtype, seed, masks, fills):
    rng = np.random.default_rng(seed)
    alleles = rng.choice(np.array([-2, -1, 0, 1, 1, 0], dtype)[0 if fills else 1 :], shape)
    mask = (rng.random(shape) < 0.2).astype(np.uint8) if masks else None
    expected = alleles.copy()
    if masks:
        expected[(mask != 0) & (alleles != -2)] = -1
    out = np.empty(shape[:2], np.int8)
    present = (expected != -2).sum(axis=2)[(expected != -1).all(axis=2)]
    uneven = np.any(max(shape[2], 2) % np.maximum(present, 1))
    assert sum_alleles(alleles, mask, out) == (UNEVEN if uneven else max(alleles.max(), -1))
    np.testing.assert_array_equal(out, counted(expected))


@given(
    n=st.integers(1, 21),
    p=st.integers(1, 40),
    chunks=st.tuples(st.integers(1, 45), st.integers(1, 25)),
    mask_chunks=st.none() | st.tuples(st.integers(1, 45), st.integers(1, 25)),
    zarr_format=st.sampled_from([2, 3]),
    axis=st.sampled_from([0, 1]),
    step=st.integers(1, 40),
)
def test_any_grid_reads_the_same(
    tmp_path_factory, n, p, chunks, mask_chunks, zarr_format, axis, step
):
    calls = random_calls(n, p)
    path = tmp_path_factory.mktemp("v") / "v.vcz"
    more = {"chunks": chunks, "mask_chunks": mask_chunks, "zarr_format": zarr_format}
    matrix = streampca.open(write_vcf_zarr(path, calls, **more))
    np.testing.assert_array_equal(read_all(matrix, axis, step), calls)


@pytest.mark.parametrize("axis", [0, 1])
@pytest.mark.parametrize("mask_chunks", [(16, 8), (8, 4), (32, 8), (5, 8), None])
def test_every_stored_chunk_is_read_once(tmp_path, axis, mask_chunks):
    calls = random_calls(20, 70)
    mask = mask_chunks is not None
    path = write_vcf_zarr(tmp_path / "v", calls, mask=mask, mask_chunks=mask_chunks)
    matrix = streampca.open(path)
    edges = matrix.chunk_edges(axis)
    laid = matrix.streamed(axis, edges)
    for i in range(laid.n_blocks):
        laid.read_block(i)
    group = zarr.open_group(path)
    stored = sum(group[one].nchunks for one in ("call_genotype", MASK) if one in group)
    planned = sum(matrix.count_chunks(axis, int(a), int(b)) for a, b in pairwise(edges))
    assert matrix.reads().chunks == planned
    if mask_chunks != (5, 8):  # a grid that shares no cuts cannot be read once in small blocks
        assert planned == stored
    matrix.restart_counts()
    assert matrix.reads().chunks == 0


def test_blocks_lie_by_feature_in_the_buffer(tmp_path):
    matrix = streampca.open(write_vcf_zarr(tmp_path / "v", random_calls(9, 30)))
    buffer = np.zeros(9 * 30, np.uint8)
    values = matrix.read(1, 3, 20, buffer)
    assert values.flags.f_contiguous
    assert np.shares_memory(values, buffer)
    assert matrix.missing_value == -1
    assert matrix.read_scratch_nbytes(1, 16) >= 2 * 2 * 16 * 9  # alleles and mask of a chunk's row


def test_labels_are_those_of_the_fileset(tmp_path):
    """Of the .bed that plink2 --make-bed writes from the same VCF: A1 is ALT."""
    calls = random_calls(6, 5)
    ids = ["rs1", ".", "rs3", "", "rs5"]
    names = [("A", "G"), ("C", "T"), ("AT", "A"), ("G",), ("T", "")]
    vcf = streampca.open(write_vcf_zarr(tmp_path / "v", calls, ids=ids, names=names))
    pairs = [("G", "A"), ("T", "C"), ("A", "AT"), (".", "G"), (".", "T")]
    ids = ["rs1", ".", "rs3", ".", "rs5"]
    bed = streampca.open(write_plink(tmp_path / "b", calls, ids=ids, alleles=pairs))
    assert vcf.labels.features.names() == bed.labels.features.names()
    assert vcf.labels.features.names()[1] == "1:101:T:C"
    for name, values in bed.labels.features.extra.items():
        np.testing.assert_array_equal(vcf.labels.features.extra[name], values)
    assert vcf.labels.samples.names() == bed.labels.samples.names()
    assert vcf.labels.features.extra["chromosome"].tolist() == ["1"] * 5


def test_mixed_ploidy_missing_and_masked_calls(tmp_path):
    alleles = np.array(
        [
            [[0, 1], [1, 1], [0, -2], [1, -2], [-1, -2]],
            [[-1, 1], [0, -1], [0, 0], [-2, -2], [1, 0]],
        ],
        np.int8,
    )
    calls = np.zeros((5, 2), np.int8)
    plain = streampca.open(write_vcf_zarr(tmp_path / "v", calls, alleles=alleles))
    expected = [[1, 2, 0, 2, -1], [-1, -1, 0, -1, 1]]
    np.testing.assert_array_equal(read_all(plain).T, expected)
    mask = np.zeros(alleles.shape, bool)
    mask[0, 1, 0] = mask[1, 2, 1] = mask[0, 2, 1] = True  # the last one hides a fill: nothing
    masked = streampca.open(write_vcf_zarr(tmp_path / "m", calls, alleles=alleles, mask=mask))
    expected[0][1] = expected[1][2] = -1
    np.testing.assert_array_equal(read_all(masked).T, expected)


def test_an_absent_mask_chunk_hides_nothing(tmp_path):
    calls = random_calls(9, 30, missing=0.0)
    path = write_vcf_zarr(tmp_path / "v", calls, zarr_format=3)
    shutil.rmtree(tmp_path / "v" / MASK / "c")
    np.testing.assert_array_equal(read_all(streampca.open(path)), calls)
    shutil.rmtree(tmp_path / "v" / "call_genotype" / "c")
    with pytest.raises(SourceError, match="missing_chunks='fill'"):
        read_all(streampca.open(path))
    filled = streampca.open(path, missing_chunks="fill")
    np.testing.assert_array_equal(read_all(filled), np.zeros((9, 30)))


@pytest.mark.parametrize("bad", [[0], [29], [3, 4, 17], list(range(16)), list(range(14, 30))])
@pytest.mark.parametrize("axis", [0, 1])
def test_multiallelic_variants_are_refused_or_dropped(tmp_path, bad, axis):
    calls = random_calls(10, 30)
    alleles = diploid(calls)
    alleles[bad, 0] = [0, 2]
    names = [("A", "G", "T") if j in bad else ("A", "G") for j in range(30)]
    path = write_vcf_zarr(tmp_path / "v", calls, alleles=alleles, names=names)
    with pytest.raises(InvalidInputError, match=r"chr1:1\d\d A,G,T.*multiallelic='drop'"):
        streampca.open(path)
    with pytest.raises(InvalidInputError, match="multiallelic='split'"):
        streampca.open(path, multiallelic="split")
    matrix = streampca.open(path, multiallelic="drop")
    assert matrix.note.startswith(f"{len(bad)} of 30 variants have more than two alleles")
    kept = np.delete(np.arange(30), bad)
    assert matrix.shape == (10, len(kept))
    assert matrix.labels.features.names() == [f"rs{j}" for j in kept]
    for step in (1, 5, 30):
        np.testing.assert_array_equal(read_all(matrix, axis, step), calls[:, kept])
    matrix.restart_counts()
    edges = matrix.chunk_edges(1)
    laid = pickle.loads(pickle.dumps(matrix)).streamed(1, edges)
    found = np.concatenate([laid.read_block(i).values for i in range(laid.n_blocks)], axis=1)
    np.testing.assert_array_equal(found, calls[:, kept])
    assert laid.reads().chunks <= 2 * 2 * 2  # genotypes and mask in 2 x 2 chunks, each once


def test_dropped_multiallelic_variants_are_counted(tmp_path, capsys):
    calls = random_calls(10, 30)
    names = [("A", "G", "T") if j < 4 else ("A", "G") for j in range(30)]
    path = write_vcf_zarr(tmp_path / "v", calls, names=names)
    words = ["fit", path, "-k", "2", "--multiallelic", "drop", "--maf", "0.01"]
    assert main(words) == 0
    said = capsys.readouterr().out
    assert "source: 4 of 30 variants have more than two alleles and are left out" in said
    assert "of 30 used; left out: 4 of more than two alleles" in said
    assert main([*words, "--json"]) == 0
    variants = json.loads(capsys.readouterr().out)["left_out"]["variants"]
    assert (variants.pop("source"), variants["multiallelic"]) == (30, 4)
    assert sum(variants.values()) == 30


def test_what_is_no_vcf_zarr_is_refused(tmp_path):
    calls = random_calls(6, 8)
    names = [("A", "C", "G")] * 8
    path = write_vcf_zarr(tmp_path / "all", calls, names=names)
    with pytest.raises(InvalidInputError, match="all 8 variants"):
        streampca.open(path, multiallelic="drop")
    alleles = diploid(calls)
    alleles[5, 2] = [2, 0]
    path = write_vcf_zarr(tmp_path / "unlisted", calls, alleles=alleles)
    with pytest.raises(SourceError, match=r"stored variant 5 .*variant_allele"):
        read_all(streampca.open(path))
    path = write_vcf_zarr(tmp_path / "short", calls)
    del zarr.open_group(path)["variant_allele"]
    with pytest.raises(SourceError, match="no variant_allele"):
        streampca.open(path)
    path = write_vcf_zarr(tmp_path / "sizes", calls)
    zarr.open_group(path)["sample_id"].resize((5,))
    with pytest.raises(SourceError, match="sample_id has 5 entries"):
        streampca.open(path)
    path = write_vcf_zarr(tmp_path / "contigs", calls)
    zarr.open_group(path)["variant_contig"][3] = 7
    with pytest.raises(SourceError, match="variant_contig goes from 0 to 7"):
        streampca.open(path)
    path = write_vcf_zarr(tmp_path / "people", calls, samples=["x"] * 6)
    with pytest.raises(InvalidInputError, match="sample ids occur more than once"):
        streampca.open(path)


def test_labels_beside_a_plain_array(tmp_path):
    """In either orientation, by the names of VCF Zarr too; and it is read without a copy."""
    calls = random_calls(6, 20)
    path = write_vcf_zarr(tmp_path / "v", calls, zarr_format=3)
    group = zarr.open_group(path)
    group.create_array(
        "call_DS",
        shape=(20, 6),
        chunks=(5, 6),
        dtype="int8",
        dimension_names=DIMS,
        attributes={"missing_value": -1},
        config={"write_empty_chunks": True},
    )[...] = calls.T
    matrix = streampca.open(path, variable="call_DS", dim="samples")
    assert matrix.dtype == np.int8
    assert matrix.missing_value == -1
    values = matrix.read(1, 0, 20)
    assert values.flags.f_contiguous
    assert matrix.read_scratch_nbytes(1, 5) < 5 * 6 * 2
    np.testing.assert_array_equal(values, calls)
    extra = matrix.labels.features.extra
    assert extra["chromosome"].tolist() == ["1"] * 20
    assert extra["position"].tolist() == list(range(100, 120))
    assert extra["counted_allele"].tolist() == ["G"] * 20
    assert extra["other_allele"].tolist() == ["A"] * 20


# -- the same calls through every source ------------------------------------------------------


def stores(folder, calls):
    """name -> what to open: one file and three, of every kind."""
    n, p = calls.shape
    cuts = [0, p // 3, p // 2, p]
    parts = [(i, calls[:, a:b], a) for i, (a, b) in enumerate(pairwise(cuts))]
    by_chromosome = {
        "bed": [
            write_plink(folder / f"b{i}", c, ids=variant_names(c.shape[1], a)) for i, c, a in parts
        ],
        "vcf": [
            write_vcf_zarr(folder / f"v{i}.vcz", c, ids=variant_names(c.shape[1], a))
            for i, c, a in parts
        ],
    }
    return {
        "bed": write_plink(folder / "b", calls),
        "vcf": write_vcf_zarr(folder / "v.vcz", calls, chunks=(16, n)),
        "vcf v3": write_vcf_zarr(folder / "w.vcz", calls, zarr_format=3, mask=False),
        "beds": by_chromosome["bed"],
        "bed pattern": str(folder / "b?.bed"),
        "vcfs": by_chromosome["vcf"],
        "vcf pattern": str(folder / "v?.vcz"),
        "zarr by variant": write_calls(folder / "pv.zarr", calls, True),
        "zarr by sample": write_calls(folder / "ps.zarr", calls, False),
    }


def opened(name, source):
    more = {"missing_value": -1} if "zarr" in name else {}
    return streampca.open(source, dim=1 if name == "zarr by variant" else None, **more)


@pytest.mark.parametrize("missing", [0.0, 0.1])
def test_every_source_gives_the_same_components(tmp_path, missing):
    calls = random_calls(61, 400, missing=missing)
    results = {}
    for name, source in stores(tmp_path, calls).items():
        matrix = opened(name, source)
        np.testing.assert_array_equal(read_all(matrix, 1, 100), calls)
        if name != "zarr by sample":
            assert matrix.read(1, 100, 300).flags.f_contiguous, name
        assert (matrix.dtype, matrix.missing_value) == (np.int8, -1), name
        model = streampca.PCA(3, scale="hwe", missing="mean", svd_solver="gram").fit(matrix)
        results[name] = model
    first = results["bed"]
    for name, model in results.items():
        if name == "zarr by sample":  # the other layout in memory: sums in another order
            scale = first.explained_variance_[0]
            np.testing.assert_allclose(
                model.explained_variance_, first.explained_variance_, rtol=0, atol=1e-7 * scale
            )
            np.testing.assert_allclose(model.components_, first.components_, atol=1e-5)
            continue
        np.testing.assert_array_equal(model.explained_variance_, first.explained_variance_, name)
        np.testing.assert_array_equal(model.components_, first.components_, name)
        np.testing.assert_array_equal(model.result_.scores, first.result_.scores, name)


def test_several_stores_need_the_same_samples(tmp_path):
    calls = random_calls(6, 8)
    one = write_vcf_zarr(tmp_path / "chr1.vcz", calls)
    ids = variant_names(8, 8)
    other = write_vcf_zarr(
        tmp_path / "chr2.vcz", calls, ids=ids, samples=["x", *sample_names(6)[1:]]
    )
    with pytest.raises(SourceError, match="sample 1 is s0 in one and x in the other"):
        streampca.open([one, other])
    fewer = write_vcf_zarr(tmp_path / "chr3.vcz", calls[:5], ids=ids)
    with pytest.raises(SourceError, match="6 and 5 samples"):
        streampca.open([one, fewer])
    same = write_vcf_zarr(tmp_path / "again.vcz", calls)
    with pytest.raises(InvalidInputError, match="one of them only"):
        streampca.open([one, same])
    with pytest.raises(InvalidInputError, match="named twice"):
        streampca.open([one, one])
    with pytest.raises(SourceError, match="no file matches"):
        streampca.open(str(tmp_path / "nothing*.vcz"))
    nameless = [write_calls(tmp_path / f"p{i}.zarr", calls, False) for i in (1, 2)]
    with pytest.raises(InvalidInputError, match="join='samples' or join='features'"):
        streampca.open(nameless)
    assert streampca.open(nameless, join="features").shape == (6, 16)


def test_stores_come_in_the_order_of_their_numbers(tmp_path):
    calls = random_calls(4, 3)
    for i in (1, 2, 10):
        write_vcf_zarr(tmp_path / f"chr{i}.vcz", calls, ids=[f"v{i}.{j}" for j in range(3)])
    names = streampca.open(str(tmp_path / "chr*.vcz")).labels.features.names()
    assert [name.split(".")[0] for name in names[::3]] == ["v1", "v2", "v10"]


def test_pickled_and_stamped(tmp_path):
    calls = random_calls(9, 40)
    path = write_vcf_zarr(tmp_path / "v", calls)
    matrix = streampca.open(path)
    again = pickle.loads(pickle.dumps(matrix.part(1, 8, 24)))
    np.testing.assert_array_equal(again.read(1, 10, 20), calls[:, 10:20])
    assert again.fingerprint() == matrix.fingerprint()
    stamp = matrix.content_stamp()
    assert stamp == streampca.open(path).content_stamp()
    zarr.open_group(path)["call_genotype"][0] = 0
    assert streampca.open(path).content_stamp() != stamp
    assert streampca.open(path).fingerprint() == matrix.fingerprint()
    assert all(str(tmp_path) in place for place in matrix.paths())
    laid = matrix.streamed(1, regular_edges(40, 16))
    assert laid.read_block(2).values.shape == (9, 8)
