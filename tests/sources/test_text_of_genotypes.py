"""Tables and lists of genotypes as people's programs write them: marks, line ends, blanks."""

import numpy as np
import pytest

import streampca
from streampca import VariantFilter
from streampca.cli.commands import main
from streampca.errors import InvalidInputError, SourceError, UnknownChromosomeWarning
from streampca.genetics.filters import filter_genotypes
from streampca.sources.side_data import read_panel
from tests.genotypes import random_calls, write_plink

WAYS = {
    "byte order mark": lambda text: b"\xef\xbb\xbf" + text,
    "windows": lambda text: text.replace(b"\n", b"\r\n"),
    "both": lambda text: b"\xef\xbb\xbf" + text.replace(b"\n", b"\r\n"),
    "blanks behind": lambda text: text.replace(b"\n", b" \t\n"),
    "blanks before": lambda text: b"  " + text.replace(b"\n", b"\n \t"),
    "an empty line at the end": lambda text: text + b"\n",
    "empty lines": lambda text: b"\n" + text.replace(b"\n", b"\n \r\n", 5),
    "tabs for blanks": lambda text: text.replace(b" ", b"\t\t"),
    "blanks for tabs": lambda text: text.replace(b"\t", b"   "),
    "no end of the last line": lambda text: text.rstrip(b"\n"),
}


@pytest.mark.parametrize("way", WAYS)
def test_tables_and_lists_mean_the_same_in_any_form(way, tmp_path):
    bed = write_plink(tmp_path / "x", random_calls(9, 12))
    want = streampca.open(bed).labels
    keep, extract, panel = (tmp_path / name for name in ("keep", "extract", "panel"))
    keep.write_text("s1 s1\ns4 s4\n")
    extract.write_text("rs3\nrs5\nrs11\n")
    panel.write_text("sample\tpop\ns1\tX\ns4\tY\n")
    for path in (tmp_path / "x.fam", tmp_path / "x.bim", keep, extract, panel):
        path.write_bytes(WAYS[way](path.read_bytes()))
    matrix = streampca.open(bed)
    for axis in ("samples", "features"):
        mine, theirs = getattr(matrix.labels, axis), getattr(want, axis)
        assert mine.names() == theirs.names()
        for name, values in theirs.extra.items():
            np.testing.assert_array_equal(mine.extra[name], values)
    chosen = filter_genotypes(matrix, VariantFilter(extract=extract), keep=keep)
    assert chosen.labels.samples.names() == ["s1", "s4"]
    assert chosen.labels.features.names() == ["rs3", "rs5", "rs11"]
    assert read_panel(panel, chosen.labels.samples) == ["X", "Y"]


def test_empty_lines_of_a_long_bim_are_passed_over(tmp_path, monkeypatch):
    p = 2 * 8192
    bed = write_plink(tmp_path / "x", random_calls(2, p))
    want = streampca.open(bed).labels.features.names()
    monkeypatch.setattr("streampca.sources.genotypes.plink_tables.HELD", 0)
    lines = (tmp_path / "x.bim").read_text().splitlines(keepends=True)
    for at in (0, 8191, 8192, p):
        changed = [*lines[:at], "\n", " \n", *lines[at:]]
        (tmp_path / "x.bim").write_text("".join(changed))
        assert streampca.open(bed).labels.features.names() == want


@pytest.mark.parametrize("suffix", ["fam", "bim"])
def test_another_encoding_is_refused_with_the_command_that_changes_it(suffix, tmp_path):
    bed = write_plink(
        tmp_path / "x", random_calls(9, 12), ids=["ré"] * 12, samples=[f"é{i}" for i in range(9)]
    )
    path = tmp_path / f"x.{suffix}"
    text = path.read_text()
    path.write_bytes(text.encode("cp1252"))
    with pytest.raises(SourceError, match=rf"iconv -f cp1252 -t utf-8 .*x.{suffix}"):
        streampca.open(bed)
    path.write_bytes(text.encode() + b"\0\0")
    with pytest.raises(SourceError, match="byte 0x00 is not text"):
        streampca.open(bed)
    if suffix == "bim":  # read as bytes, since it may be long
        path.write_bytes(text.encode("utf-16"))
        with pytest.raises(SourceError, match=r"is utf-16. Write it again: iconv -f utf-16"):
            streampca.open(bed)
        path.write_bytes(text.encode().replace(b"\n", b"\r"))
        with pytest.raises(SourceError, match=r"old Macs. Write it again: tr '\\r' '\\n'"):
            streampca.open(bed)


def test_a_heading_of_a_keep_list_is_no_sample(tmp_path):
    bed = write_plink(tmp_path / "x", random_calls(9, 12))
    for heading in ("FID IID", "#FID\tIID", "fid iid"):
        (tmp_path / "keep").write_text(f"{heading}\ns1 s1\ns2 s2\n")
        chosen = filter_genotypes(streampca.open(bed), VariantFilter(), keep=tmp_path / "keep")
        assert chosen.labels.samples.names() == ["s1", "s2"]
    for text in ("s1,s1\ns2,s2\n", '"s1 s1"\n"s2 s2"\n'):
        (tmp_path / "keep").write_text(text)
        with pytest.raises(InvalidInputError, match=r"Separate ids by blanks or tabs, without"):
            filter_genotypes(streampca.open(bed), VariantFilter(), keep=tmp_path / "keep")


@pytest.mark.parametrize(
    "words",
    [
        "--cow",
        "--chr-set -29 no-xy no-mt",
        *(
            pytest.param(words, marks=pytest.mark.slow)
            for words in ("--chr-set=29 no-xy", "--autosome-num 29", "--dog --chr 1-29")
        ),
    ],
)
def test_the_autosomes_of_a_species_are_named_as_in_plink(words, tmp_path, capsys):
    chromosomes = ["1", "chr2", "Chr22", "23", "26", "29", "30", "31", "33", "X", "MT", "0"]
    calls = random_calls(40, 12, missing=0.0)
    bed = write_plink(tmp_path / "x", calls, chromosomes=chromosomes)
    to = tmp_path / "kept"
    assert main(["prune", bed, *words.split(), "-o", str(to), "--ld-r2", "0.99"]) == 0
    assert to.read_text().split() == [f"rs{j}" for j in range(6)]
    assert main(["relate", bed, *words.split(), "--make-king-table", "-o", str(to)]) == 0
    row = (tmp_path / "kept.kin0").read_text().splitlines()[1].split()
    assert row[4] == "6"  # NSNP
    out = ["--quiet", "--json", "-k", "1"]
    assert main(["fit", bed, *words.split(), *out, "-o", str(tmp_path / "model")]) == 0
    capsys.readouterr()


def test_a_number_of_autosomes_is_a_number(tmp_path, capsys):
    with pytest.raises(InvalidInputError, match="n_autosomes=0; expected a number from 1"):
        VariantFilter(n_autosomes=0)
    bed = write_plink(tmp_path / "x", random_calls(9, 4), chromosomes=["1", "38", "39", "40"])
    for text in ("0", "many"):
        with pytest.raises(SystemExit):
            main(["fit", bed, "--chr-set", text])
    assert "argument --autosome-num/--chr-set: invalid" in capsys.readouterr().err
    with pytest.warns(UnknownChromosomeWarning, match=r"n_autosomes=38 \(dog 38"):
        filter_genotypes(streampca.open(bed), VariantFilter())
