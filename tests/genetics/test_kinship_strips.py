"""Kinship by strips of samples: the table of all pairs in one pass, byte for byte."""

from __future__ import annotations

import itertools
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import streampca
from streampca.cli.commands import main
from streampca.errors import MemoryLimitError
from streampca.genetics import kinship_strips
from streampca.genetics.kinship_strips import StripCounts, plan_relatives, strip_bounds
from streampca.matrix import Block, Standardize
from streampca.sources.genotypes.allele_counts import with_missing_calls
from tests.genetics.test_kinship import families
from tests.genotypes import random_calls, write_plink

EVERY = Standardize()


@pytest.fixture
def in_strips(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Takes samples in strips though all pairs would fit."""

    def strips(share: int) -> None:
        def plan(matrix: Any, wanted: Any, limit: Any, written: Any = None) -> Any:
            return plan_relatives(matrix, wanted, limit, written, shares=(share,), whole=False)

        monkeypatch.setattr(kinship_strips, "plan_relatives", plan)

    return strips


@pytest.mark.parametrize("missing", [0.0, 0.02, 0.5])
def test_table_and_pairs_are_those_of_one_pass(tmp_path, in_strips, missing):
    calls = families(70, 400, 3, missing)
    path = write_plink(tmp_path / "x", calls)
    whole = streampca.kinship(path)
    for share, listed in itertools.product((2, 5, 20), (None, 0.0, "first")):
        in_strips(share)
        found = streampca.relatives(path, tmp_path / "s", listed=listed, least=-1)
        assert len(found.plan["passes"]) > 1
        least = {"first": 0.177}.get(listed, listed)
        text = whole.write_table(tmp_path / "w", least).read_text()
        assert (tmp_path / "s").read_text() == text
        wanted = whole.related(-1)
        np.testing.assert_array_equal(found.pairs.kinship, wanted.kinship)
        np.testing.assert_array_equal(found.pairs.first, wanted.first)
        np.testing.assert_array_equal(found.unrelated("second"), whole.unrelated("second"))
        assert found.to_dict() == whole.to_dict()


def test_filters_hold_in_every_strip(tmp_path, in_strips):
    path = write_plink(tmp_path / "x", random_calls(40, 300, missing=0.05))
    whole = streampca.kinship(path, maf=0.1, max_missing=0.04)
    in_strips(4)
    found = streampca.relatives(path, tmp_path / "s", listed=None, maf=0.1, max_missing=0.04)
    assert found.n_variants == whole.n_variants < 300
    assert (tmp_path / "s").read_text() == whole.write_table(tmp_path / "w").read_text()


def test_bounds_hold_equal_counts():
    for n, share in ((140_000, 24), (1400, 3), (5, 512)):
        bounds = strip_bounds(n, share)
        assert bounds[0] == 0
        assert bounds[-1] == n
        areas = [(b - a) * b for a, b in itertools.pairwise(bounds)]
        assert max(areas) <= n * n / share + 2 * n


def test_the_sums_of_a_strip_merge_and_are_stored():
    calls = families(30, 400, 1, 0.05)

    def counted(first: int, last: int) -> StripCounts:
        sums = StripCounts(wanted=EVERY, first=10)
        block = Block(np.asfortranarray(calls[:, first:last]), 1, first, last, missing_value=-1)
        sums.update(block)
        return sums

    whole, total = counted(0, 400).state(), StripCounts(wanted=EVERY, first=10)
    for a, b in itertools.pairwise([0, 100, 130, 400]):
        part = counted(a, b)
        total.merge(part.from_state(part.state()))
        total.merge(StripCounts(wanted=EVERY, first=10))
    for name, value in total.state().items():
        np.testing.assert_array_equal(value, whole[name], name)


def test_interrupted_between_strips_and_within_one(tmp_path, in_strips, monkeypatch):
    path = write_plink(tmp_path / "x", families(70, 400, 3, 0.02))
    in_strips(5)
    wanted = streampca.relatives(path, tmp_path / "w")
    update, seen = StripCounts.update, []

    def stop(self: Any, block: Any) -> None:
        seen.append(self.first)
        if len(set(seen)) == 3:
            raise KeyboardInterrupt
        update(self, block)

    folder = str(tmp_path / "c")
    monkeypatch.setattr(StripCounts, "update", stop)
    with pytest.raises(KeyboardInterrupt):
        streampca.relatives(path, tmp_path / "s", checkpoint=folder)
    assert not (tmp_path / "s").exists()
    assert {one.name for one in Path(folder).iterdir()} >= {"pairs-1", "pairs-2"}
    monkeypatch.setattr(StripCounts, "update", update)
    again = streampca.relatives(path, tmp_path / "s", checkpoint=folder)
    assert (tmp_path / "s").read_text() == (tmp_path / "w").read_text()
    np.testing.assert_array_equal(again.pairs.kinship, wanted.pairs.kinship)
    assert len(again.provenance["passes"]) == len(wanted.plan["passes"]) - 2
    assert not [*Path(folder).iterdir()]


@pytest.mark.soak
def test_a_hundredth_of_a_biobank_by_the_memory_limit(tmp_path):
    path = write_plink(tmp_path / "x", families(1400, 1500, 3, 0.01))
    whole = str(tmp_path / "whole")
    assert main(["relate", path, "-o", whole, "--make-king-table"]) == 0
    with pytest.raises(MemoryLimitError) as refused:
        streampca.kinship(path, memory_limit="1MiB")
    limit = f"{refused.value.smallest // 2**20 - 8}MiB"
    found = streampca.relatives(path, tmp_path / "s.kin0", listed=None, memory_limit=limit)
    assert len(found.plan["passes"]) > 1
    assert (tmp_path / "s.kin0").read_bytes() == Path(f"{whole}.kin0").read_bytes()


@pytest.mark.soak
def test_the_plan_of_a_biobank_says_hours_and_bytes(tmp_path):
    """140,000 samples x 150,000 variants, of which nothing is read: the .bed is a hole on disk."""
    n, p = 140_000, 150_000
    with open(tmp_path / "x.bed", "wb") as bed:
        bed.write(b"\x6c\x1b\x01")
        bed.truncate(3 + p * (n // 4))
    (tmp_path / "x.bim").write_text("".join(f"1 v{j} 0 {j + 1} A G\n" for j in range(p)))
    (tmp_path / "x.fam").write_text("".join(f"0 s{i} 0 0 0 -9\n" for i in range(n)))
    matrix = with_missing_calls(streampca.open(str(tmp_path / "x.bed")))
    plan = plan_relatives(matrix, EVERY, "16GiB").plan
    print(plan)
    assert "strips of samples" in plan.reason
    assert "hours of one core" in plan.reason
    assert plan.peak_nbytes <= 2**34
    with pytest.raises(MemoryLimitError, match="smallest limit that would do"):
        plan_relatives(matrix, EVERY, "300MiB")
