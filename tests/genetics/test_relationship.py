"""The relationship matrix against a plain NumPy reading of its definition, and against PLINK 2."""

from __future__ import annotations

import itertools
import json
import shutil
import subprocess
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import streampca
from streampca.cli.commands import main
from streampca.errors import InvalidInputError, MemoryLimitError
from streampca.genetics.joint_calls import JointCalls
from streampca.matrix import Block
from tests.genetics.test_kinship import families
from tests.genotypes import random_calls, write_plink, write_vcf_zarr

FILES = ("grm.bin", "grm.N.bin", "grm.id")


def oracle(calls: np.ndarray, scale: Any = "hwe") -> tuple[np.ndarray, np.ndarray]:
    """(n, n) relationship and number of variants, in float64 by the definition."""
    x, seen = calls.astype(float), calls >= 0
    with np.errstate(invalid="ignore", divide="ignore"):
        f = np.where(seen, x, 0).sum(axis=0) / (2 * seen.sum(axis=0))
        z = np.where(seen, x - 2 * f, 0)
        if scale == "hwe":
            z = np.where((f > 0) & (f < 1), z / np.sqrt(2 * f * (1 - f)), 0)
        count = seen.astype(float) @ seen.T
        return z @ z.T / count, count


def check(found: Any, calls: np.ndarray, scale: Any = "hwe") -> None:
    """Compare with the oracle: counts exactly, values to the rounding of float32."""
    wanted, count = oracle(calls, scale)
    np.testing.assert_allclose(found.relationship, wanted, rtol=1e-6, atol=1e-6)
    np.testing.assert_array_equal(found.relationship, found.relationship.T)
    for i in range(len(calls)):
        np.testing.assert_array_equal(found.shared(i), count[i, : i + 1])


def test_the_matrix_is_that_of_the_definition_in_every_layout(tmp_path):
    calls = families(70, 200, 3, 0.1)
    calls[5], calls[:, 3], calls[:, 4], calls[:, 6], calls[1:, 7] = -1, 0, 2, -1, -1
    numbers = np.where(calls < 0, np.nan, calls)
    nine = np.where(calls < 0, 9, calls).astype(np.uint8)
    whole = families(70, 200, 3, 0.0)
    for scale in ("hwe", None):
        check(streampca.grm(calls, scale=scale), calls, scale)
        check(streampca.grm(np.asfortranarray(calls), scale=scale), calls, scale)
        check(streampca.grm(numbers, scale=scale), calls, scale)
        check(streampca.grm(whole, scale=scale), whole, scale)
    check(streampca.grm(calls.astype(np.int64)), calls)
    check(streampca.grm(numbers.astype("f4")), calls)
    check(streampca.grm(np.asfortranarray(nine), missing_value=9), calls)
    check(streampca.grm(write_plink(tmp_path / "x", calls)), calls)
    check(streampca.grm(write_vcf_zarr(tmp_path / "x.zarr", calls)), calls)
    assert streampca.grm(whole).lost_both is None  # nothing is counted that is not there


def test_counts_beyond_a_piece_and_means_in_holes():
    calls = random_calls(5, 9001, missing=0.3)
    check(streampca.grm(calls), calls)
    mean = streampca.grm(calls, missing="mean")
    wanted, count = oracle(calls)
    np.testing.assert_allclose(mean.relationship, wanted * count / 9001, atol=1e-6)
    assert mean.shared(2).tolist() == [9001] * 3


def test_dosages_have_a_matrix_too():
    calls = families(30, 100, 3, 0.05)
    calls[5] = families(1, 100, 4, 0)
    dosages = np.where(calls < 0, np.nan, calls * 0.9 + 0.05)
    found = streampca.grm(dosages, scale=None)
    np.testing.assert_allclose(found.relationship, oracle(calls, None)[0] * 0.81, atol=1e-9)


def test_the_counts_do_not_depend_on_how_blocks_are_cut_merged_and_stored():
    calls = families(30, 400, 1, 0.05)
    calls[:, :150] = families(30, 150, 2, 0.0)

    def counted(first: int, last: int) -> JointCalls:
        sums = JointCalls()
        block = Block(np.asfortranarray(calls[:, first:last]), 1, first, last, missing_value=-1)
        sums.update(block)
        return sums

    whole = counted(0, 400).state()
    for edges in ([0, 150, 400], [0, 10, 160, 399, 400]):
        total = JointCalls()
        for a, b in itertools.pairwise(edges):
            part = counted(a, b)
            total.merge(part.from_state(part.state()))
            total.merge(JointCalls())
        for name, value in total.state().items():
            np.testing.assert_array_equal(value, whole[name], name)
    with pytest.raises(InvalidInputError, match="width"):
        total.merge(JointCalls().from_state({"n_samples": np.array(3)}))
    with pytest.raises(InvalidInputError, match="features"):
        total.update(Block(calls, 0, 0, 30))


def test_filters_are_those_of_a_fit_in_the_same_pass(tmp_path):
    calls = random_calls(40, 300, missing=0.05)
    calls[7, :60] = calls[:25, 11] = -1
    calls[:, 20], calls[:, 21] = 0, 1
    path = write_plink(tmp_path / "x", calls, chromosomes=["X"] * 5 + ["2"] * 295)
    kept = np.arange(40) != 7
    kept[3] = False
    with pytest.warns(UserWarning, match="s7"):
        found = streampca.grm(
            path, maf=0.1, max_missing=0.3, max_sample_missing=0.2, exclude=["s3"]
        )
    some = calls[kept][:, 5:]
    copies, seen = np.maximum(some, 0).sum(axis=0), (some >= 0).sum(axis=0)
    share = copies / (2 * seen)
    wanted = (np.minimum(share, 1 - share) >= 0.1) & (seen >= 0.7 * len(some))
    check(found, some[:, wanted])
    assert found.settings["missing"] == "pairwise"
    assert len(found.provenance["passes"]) == len(found.plan["passes"]) == 2


@pytest.mark.parametrize(
    ("calls", "more", "message"),
    [
        (np.zeros((1, 9), np.int8), {}, "a relationship matrix needs at least 2 samples"),
        (np.full((3, 4), 3, np.int8), {}, "expects allele counts from 0 to 2"),
        (np.zeros((3, 4), np.int8), {"maf": 0.1}, "leave none of 4 variants"),
        (np.zeros((3, 4), np.int8), {"missing": "raise"}, "'pairwise', 'mean'"),
        (np.zeros((3, 4), np.int8), {"scale": "std"}, "'hwe', 'eigensoft'"),
    ],
)
def test_what_has_no_matrix_is_refused(calls, more, message):
    with pytest.raises(InvalidInputError, match=message):
        streampca.grm(calls, **more)


def test_the_smallest_limit_does(tmp_path):
    path = write_plink(tmp_path / "x", random_calls(900, 50))
    with pytest.raises(MemoryLimitError, match="too small for grm of 900 x 50") as refused:
        streampca.grm(path, memory_limit="1MiB")
    found = streampca.grm(path, memory_limit=refused.value.smallest)
    assert found.plan["memory"]["solver"]["Gram matrix and counts of pairs"] > 12 * 900**2


def test_labelled():
    found = streampca.grm(families(8, 50, 4, 0.1))
    labelled = found.to_xarray()
    assert labelled.relationship.dims == ("sample", "sample_2")
    np.testing.assert_array_equal(labelled.relationship.values, found.relationship)
    assert labelled.attrs["n_variants"] == found.n_variants == 50
    assert "8 samples by 50 variants; mean of the diagonal" in str(found)
    assert repr(found) == "<Relationship: 8 samples by 50 variants>"


# -- PLINK -----------------------------------------------------------------------------------------


def plink2(path: str, out: Path, *options: str) -> bool:
    """Whether PLINK writes OUT.grm.bin, .grm.N.bin and .grm.id."""
    if (program := shutil.which("plink2")) is None:
        pytest.skip("needs plink2")
    stem = path.removesuffix(".bed")
    words = [program, "--bfile", stem, "--threads", "1", "--bad-freqs", "--out", str(out)]
    done = subprocess.run([*words, *options], capture_output=True, text=True, check=False)
    refused = ("at least two samples", "No variants remaining", "variants remaining")
    if done.returncode and any(one in done.stderr for one in refused):
        return False
    assert not done.returncode, done.stdout + done.stderr
    return True


def compare_files(ours: str, theirs: str, name: Any) -> None:
    """Numbers of variants and names to the last byte, values to float32 rounding."""
    mine, plinks = (np.fromfile(f"{one}.grm.bin", "<f4") for one in (ours, theirs))
    np.testing.assert_allclose(mine, plinks, rtol=1e-6, atol=1e-6, err_msg=str(name))
    for end in FILES[1:]:
        assert Path(f"{ours}.{end}").read_bytes() == Path(f"{theirs}.{end}").read_bytes(), name


def compared(seed: int, folder: Path) -> None:
    """A random file by both commands, with filters and modifiers drawn from the seed."""
    rng = np.random.default_rng(seed)
    n, p = rng.integers((1, 1), (40, 300))
    n = seed % 11 + 1 if seed % 11 < 2 else n
    calls = families(int(n), int(p), seed, rng.choice([0, 0, 0.01, 0.1, 0.5]))
    path = write_plink(folder / "x", calls, families=["0"] * len(calls) if seed % 2 else None)
    modifiers = [one for one in ("cov", "meanimpute") if rng.random() < 0.25]
    words = ["--make-grm-bin", *modifiers]
    if seed % 8 == 3:
        words += ["--maf", "0.1", "--geno", "0.2"]
    theirs, ours = str(folder / "theirs"), str(folder / "ours")
    written = plink2(path, Path(theirs), *words)
    code = main(["relate", path, "-o", ours, "--overwrite", *words])
    assert code == (0 if written else 65), seed
    if written:
        compare_files(ours, theirs, seed)


def test_files_are_those_of_plink(tmp_path):
    for seed in (0, 1, 3, 4, 12, 30, 1051):
        compared(seed, tmp_path)


@pytest.mark.soak
def test_files_are_those_of_plink_in_many_files(tmp_path):
    for seed in range(1000, 1200):
        compared(seed, tmp_path)


@pytest.mark.slow
@pytest.mark.parametrize(
    "name", ["data", "1kg.ref.phase1_release_v3.20101123_thinned_autosomal_overlap"]
)
def test_hapmap3_and_1000_genomes(name, shared_data, tmp_path):
    path = str(shared_data / "hapmap3" / f"{name}.bed")
    assert plink2(path, tmp_path / "theirs", "--make-grm-bin")
    streampca.grm(path).write(tmp_path / "ours")
    compare_files(str(tmp_path / "ours"), str(tmp_path / "theirs"), name)


# -- the command -----------------------------------------------------------------------------------


def test_relate_writes_both_kinds_of_matrices(tmp_path, capsys):
    path = write_plink(tmp_path / "x", families(20, 500, 6, 0.02))
    out = str(tmp_path / "o")
    assert main(["relate", path, "-o", out, "--make-grm-bin"]) == 0
    said = capsys.readouterr().out
    assert "relationship matrix of 20 samples by 500 variants" in said
    assert f"written    {out}.grm.N.bin" in said
    assert not Path(f"{out}.kin0").exists()
    assert main(["relate", path, "-o", out, "--make-grm-bin"]) == 73
    assert "add --overwrite" in capsys.readouterr().err
    words = [
        "relate",
        path,
        "-o",
        out + "2",
        "--make-grm-bin",
        "cov",
        "--make-king-table",
        "--json",
    ]
    assert main([*words, "--json"]) == 0
    said = json.loads(capsys.readouterr().out)
    assert said["written"] == [f"{out}2.{end}" for end in ("kin0", *FILES)]
    assert said["relationship"]["variants"] == said["variants"] == 500
