"""A .bim that is too long to hold: the same labels, read again where they are asked for."""

from __future__ import annotations

import pickle
from pathlib import Path

import numpy as np
import pytest
from genotypes import random_calls, write_plink

import streampca
from streampca.errors import IncompleteSourceWarning, InvalidInputError, SourceError
from streampca.matrix import Column

P = 20_000  # more than two pieces


@pytest.fixture
def unheld(monkeypatch) -> None:
    monkeypatch.setattr("streampca.sources.genotypes.plink_tables.HELD", 0)


def write(stem: Path, **more) -> str:
    chromosomes = [f"chr{1 + j // 7000}" for j in range(P)]
    alleles = [("G", "A") if j % 3 else ("T", "ACG" if j > 9000 else "C") for j in range(P)]
    ids = more.pop("ids", None) or [f"rs{j}" if j % 5 else "." for j in range(P)]
    calls = random_calls(4, P)
    return write_plink(stem, calls, chromosomes=chromosomes, alleles=alleles, ids=ids, **more)


def test_labels_that_are_not_held_are_the_same(tmp_path, monkeypatch) -> None:
    path = write(tmp_path / "x")
    held = streampca.open(path).labels.features
    monkeypatch.setattr("streampca.sources.genotypes.plink_tables.HELD", 0)
    lazy = streampca.open(path).labels.features
    assert held.nbytes > 10 * P > 1000 > lazy.nbytes
    columns = {**held.coords, **held.extra}
    for name, values in {**lazy.coords, **lazy.extra}.items():
        assert isinstance(values, Column)
        assert values.dtype == columns[name].dtype, name
        np.testing.assert_array_equal(values, columns[name], name)
    assert lazy.name(10) == "1:110:G:A"
    assert lazy.extra["other_allele"][9000:9003].tolist() == ["C", "A", "A"]


def test_several_filesets_and_left_out_variants_too(tmp_path, monkeypatch) -> None:
    paths = [write(tmp_path / "a", ids=[f"a{j}" for j in range(P)])]
    paths.append(write(tmp_path / "b", ids=[f"b{j}" for j in range(P)]))
    held = streampca.open(paths).labels.features
    monkeypatch.setattr("streampca.sources.genotypes.plink_tables.HELD", 0)
    lazy = streampca.open(paths).labels.features
    for name, values in {**lazy.coords, **lazy.extra}.items():
        np.testing.assert_array_equal(values, {**held.coords, **held.extra}[name], name)
    rows = (tmp_path / "b.bim").read_text().splitlines(keepends=True)
    rows[3] = rows[3].replace("\t103\t", "\t-103\t")
    (tmp_path / "b.bim").write_text("".join(rows))
    with pytest.warns(IncompleteSourceWarning, match="1 of 20000 variants .* b3"):
        matrix = streampca.open(paths[1])
    assert matrix.labels.features.names([2, 3]) == ["b2", "b4"]


def test_a_variant_that_lies_in_two_filesets_is_found(tmp_path, unheld) -> None:
    ids = [[f"{name}{j}" for j in range(P)] for name in "ab"]
    ids[1][17_000] = ids[0][17_000]
    ids[1][9], ids[1][12] = ids[0][5], ids[1][3]  # elsewhere, or in one file: other variants
    paths = [write(tmp_path / name, ids=own) for name, own in zip("ab", ids, strict=True)]
    with pytest.raises(InvalidInputError, match=r"1 variants lie in two .*\(a17000\)"):
        streampca.open(paths)
    write(tmp_path / "b", ids=[*ids[1][:17_000], *ids[1][17_001:], "b"])
    assert streampca.open(paths).shape == (4, 2 * P)


def test_filters_choose_the_same(tmp_path, monkeypatch) -> None:
    path = write(tmp_path / "x", ids=[f"rs{j}" for j in range(P)])
    held = streampca.open(path).labels.features
    monkeypatch.setattr("streampca.sources.genotypes.plink_tables.HELD", 0)
    lazy = streampca.open(path).labels.features
    for settings in (
        {"chromosomes": "2-3"},
        {"regions": ["2:7,200-7,300", "3"]},
        {"exclude_regions": ["chr1:1-9000"]},
        {"extract": ["rs3", "rs19999"]},
        {"chromosomes": "all", "exclude_long_range_ld": 37},
    ):
        chosen = streampca.VariantFilter(**settings)
        np.testing.assert_array_equal(chosen.mask(lazy), chosen.mask(held), str(settings))


def test_a_file_that_changed_is_refused(tmp_path, unheld) -> None:
    path = write(tmp_path / "x")
    labels = streampca.open(path).labels.features
    assert labels.name(1) == "rs1"
    with open(tmp_path / "x.bim", "a") as file:
        file.write("1 late 0 5 A C\n")
    assert labels.name(2) == "rs2"  # of the piece that is known
    with pytest.raises(SourceError, match=r"x\.bim has changed since it was opened.*open it again"):
        labels.name(P - 1)
    (tmp_path / "x.bim").unlink()
    with pytest.raises(SourceError, match=r"x\.bim"):
        labels.extra["position"][P - 1]


def test_the_matrix_travels_without_its_labels(tmp_path, unheld) -> None:
    matrix = streampca.open(write(tmp_path / "x"))
    sent = pickle.dumps(matrix)
    assert len(sent) < 5000
    again = pickle.loads(sent)
    assert again.labels.features.names([7, 19_999]) == ["rs7", "rs19999"]


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("1 rs9 0 12 A", r"line 9001: 5 fields, a \.bim has 6"),
        ("1 rs9 0 x A C", "a position .* is not a number"),
        ("1 rs9 0 12 A C,G", r"1 variants have more than two alleles \(rs9\)"),
    ],
)
def test_a_bad_line_is_named_wherever_it_is(tmp_path, unheld, line, message) -> None:
    path = write(tmp_path / "x")
    rows = (tmp_path / "x.bim").read_text().splitlines()
    rows[9000] = line
    (tmp_path / "x.bim").write_text("\n".join(rows) + "\n")
    with pytest.raises(SourceError, match=message):
        streampca.open(path)
