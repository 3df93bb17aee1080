"""Kinship and components from one read: both equal to those that are made alone."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import streampca
from streampca.cli.commands import main
from streampca.errors import InvalidInputError, UncertainKinshipWarning
from tests.genetics.test_kinship import families
from tests.genotypes import write_plink

pytestmark = pytest.mark.filterwarnings("ignore::streampca.errors.RelatedSamplesWarning")
EVEN = [f"s{i}" for i in range(0, 60, 2)]
EVERY = streampca.VariantFilter(chromosomes="all")


@pytest.fixture(scope="module")
def bed(tmp_path_factory: pytest.TempPathFactory) -> str:
    """60 samples with relatives, 900 variants, 100 of them on X."""
    calls = families(60, 900, 3, 0.05)
    chromosomes = ["1"] * 600 + ["2"] * 200 + ["X"] * 100
    return write_plink(tmp_path_factory.mktemp("calls") / "x", calls, chromosomes=chromosomes)


def same_fit(one: Any, other: Any) -> None:
    """Bit for bit."""
    for name in ("scores", "explained_variance", "mean", "scale", "missing", "missing_by_sample"):
        left, right = getattr(one.result_, name), getattr(other.result_, name)
        np.testing.assert_array_equal(left, right, name)
    if other.result_.components is not None:
        np.testing.assert_array_equal(one.components_, other.components_)
    assert one.result_.labels.features.names() == other.result_.labels.features.names()


def same_kinship(found: Any, wanted: Any) -> None:
    """All counts."""
    for name in ("shared", "het", "lost", "lost_het", "lost_both", "n_variants"):
        np.testing.assert_array_equal(getattr(found, name), getattr(wanted, name), name)
    assert found.samples.names() == wanted.samples.names()


third = np.arange(900) % 3 == 0
gap = (np.arange(900) < 50) | (np.arange(900) > 700)


@pytest.mark.parametrize(
    ("fit", "kinship"),
    [
        ({}, True),
        ({}, EVERY),
        ({"variants": streampca.VariantFilter(extract=third)}, True),
        ({"variants": streampca.VariantFilter(extract=gap), "fit_samples": EVEN}, True),
        ({"variants": EVERY}, streampca.VariantFilter(chromosomes=["2"])),
        ({"components": False, "keep": EVEN}, True),
        ({"fit_samples": EVEN}, True),
    ],
)
def test_both_are_those_of_a_read_of_their_own(bed, fit, kinship):
    model = streampca.GenotypePCA(3, kinship=kinship, **fit).fit(bed)
    same_fit(model, streampca.GenotypePCA(3, **fit).fit(bed))
    more = {"keep": fit["keep"]} if "keep" in fit else {}
    variants = streampca.VariantFilter() if kinship is True else kinship
    same_kinship(model.kinship_, streampca.kinship(bed, variants=variants, **more))
    reads = 1 + model.components
    assert len(model.cost_) == len(model.plan_.passes) == reads
    assert model.kinship_.settings["variants"] == kinship


def test_filters_by_calls_hold_for_both(bed, tmp_path):
    shares = {"maf": 0.2, "max_missing": 0.06}
    variants = streampca.VariantFilter(extract=third)
    loadings = str(tmp_path / "v.zarr")
    model = streampca.GenotypePCA(3, variants=variants, kinship=True, loadings=loadings, **shares)
    model.fit(bed)
    alone = streampca.GenotypePCA(3, variants=variants, **shares).fit(bed)
    np.testing.assert_allclose(model.components_, alone.components_, atol=1e-7)
    same_kinship(model.kinship_, streampca.kinship(bed, **shares))
    with pytest.warns(UserWarning, match="left out"):
        model = streampca.GenotypePCA(3, kinship=True, max_sample_missing=0.055).fit(bed)
    assert len(model.kinship_.samples) == len(model.scores_) < 60


def test_interrupted_and_resumed(bed, tmp_path, monkeypatch):
    """In the middle of the read, where the other sums are in the checkpoint too."""
    from streampca.genetics.kinship_counts import KinshipCounts

    monkeypatch.setattr("streampca.passes.blocks.BLOCK_NBYTES", 4 * 60 * 50)
    monkeypatch.setattr("streampca.passes.blocks.BLOCK_LENGTH", 50)
    variants = streampca.VariantFilter(extract=third)
    settings = {"variants": variants, "kinship": True, "memory_limit": "400MiB"}
    wanted = streampca.GenotypePCA(3, **settings).fit(bed)
    update, seen = KinshipCounts.update, []

    def stop(self: Any, block: Any) -> None:
        seen.append(block)
        if len(seen) == 10:
            raise KeyboardInterrupt
        update(self, block)

    folder = str(tmp_path / "c")
    assert wanted.plan_.passes[0].n_blocks == 16
    monkeypatch.setattr(KinshipCounts, "update", stop)
    with pytest.raises(KeyboardInterrupt):
        streampca.GenotypePCA(3, checkpoint=folder, **settings).fit(bed)
    monkeypatch.setattr(KinshipCounts, "update", update)
    again = streampca.GenotypePCA(3, checkpoint=folder, **settings).fit(bed)
    same_fit(again, wanted)
    same_kinship(again.kinship_, wanted.kinship_)
    assert again.cost_[0].resumed_blocks > 0


def test_what_cannot_be_read_together_is_refused(bed):
    with pytest.raises(
        InvalidInputError, match="kinship=, shrinkage= and missing='pairwise' need the matrix"
    ):
        streampca.GenotypePCA(3, kinship=True, solver="randomized").fit(bed)
    with pytest.raises(InvalidInputError, match="kinship needs at least 2 samples"):
        streampca.GenotypePCA(1, kinship=True, keep=["s1"]).fit(bed)
    wrong = streampca.VariantFilter(extract=np.ones(5, bool))
    with pytest.raises(InvalidInputError, match=r"an array of \(5,\) booleans for 900 variants"):
        streampca.GenotypePCA(3, variants=wrong).fit(bed)
    assert streampca.GenotypePCA(3, kinship=False).fit(bed).kinship_ is None


def test_the_command_writes_both_kinds_of_tables(bed, tmp_path, capsys):
    out, alone = str(tmp_path / "o"), str(tmp_path / "alone")
    words = ["--ld-r2", "0.05", "--ld-window", "50", "-k", "3"]
    king = ["--make-king-table", "--king-cutoff", "second"]
    assert main(["fit", bed, *words, *king, "--out", out, "--json"]) == 0
    said = json.loads(capsys.readouterr().out)
    assert main(["fit", bed, *words, "--out", alone, "-q"]) == 0
    assert main(["relate", bed, *king, "-o", alone]) == 0
    ends = ("eigenvec", "eigenval", "prune.in", "kin0", "king.cutoff.in.id", "king.cutoff.out.id")
    for end in ends:
        assert Path(f"{out}.{end}").read_text() == Path(f"{alone}.{end}").read_text(), end
    assert said["kinship"]["variants"] == 800
    assert said["left_out"]["variants"]["linked"] > 0
    assert sum(said["left_out"]["variants"].values()) == 2 * 900
    kept = f"{alone}.prune.in"
    capsys.readouterr()
    assert main(["fit", bed, "--pca-extract", kept, *king, "-k", "3", "--out", f"{out}2"]) == 0
    assert "kinship    60 samples by 800 variants" in capsys.readouterr().out
    for end in ("eigenvec", "kin0"):
        assert Path(f"{out}2.{end}").read_text() == Path(f"{alone}.{end}").read_text(), end
    assert main(["fit", bed, *king]) == 65
    assert "add --out" in capsys.readouterr().err
    assert main(["fit", bed, *words, "--pca-extract", kept, "--out", f"{out}3"]) == 65
    assert "leave one out" in capsys.readouterr().err


def test_unrelated_samples_are_fitted_in_the_read_that_counts_kinship(bed: str) -> None:
    """As alone: the partition, the scores of all, and the kinship."""
    settings: dict[str, Any] = {"unrelated": "auto", "progress": False, "max_sample_missing": 0.2}
    some = streampca.VariantFilter(extract=third)
    with pytest.warns(UncertainKinshipWarning):
        joint = streampca.GenotypePCA(3, variants=some, kinship=True, **settings).fit(bed)
    king = streampca.kinship(bed, max_sample_missing=0.2)
    same_kinship(joint.kinship_, king)
    with pytest.warns(UncertainKinshipWarning):
        parts = streampca.pcair_partition(king)
    np.testing.assert_array_equal(joint.result_.fitted, parts.unrelated)
    alone = streampca.GenotypePCA(
        3, variants=some, unrelated=parts, progress=False, max_sample_missing=0.2
    )
    alone.fit(bed)
    np.testing.assert_allclose(joint.scores_, alone.scores_, rtol=0, atol=1e-4)  # float32 sums
