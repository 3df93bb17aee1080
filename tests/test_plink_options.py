"""Options of PLINK on our command line: what they are here; and messages that can be typed."""

import re
import shlex

import numpy as np
import pytest

from streampca.cli.commands import build_parser, main
from streampca.cli.messages import as_options
from streampca.cli.plink_options import _BY_NAME, ANSWERS, VALUES, plink_answer
from tests.genotypes import random_calls, write_plink

OURS = {
    one: set(build_parser([one]).named._option_string_actions)
    for one in ("fit", "plan", "prune", "relate", "project", "convert")
}


def test_every_option_that_an_answer_names_is_ours():
    """Those after 'plink2', or of it, are PLINK's."""
    every = set.union(*OURS.values())
    for answer in [*ANSWERS, *VALUES.values()]:
        own = re.sub(r"plink(?:1\.9|2) .*?(?:--out y?x?|--score)", "", answer)
        for option in re.findall(r"--[a-z][a-z0-9-]*", own):
            assert option in every, answer
        for command in re.findall(r"streampca ([a-z]+)\b", own):
            assert command in OURS or command == "prune_ld"
    assert not set(_BY_NAME) & OURS["fit"]  # none is answered that we have
    assert "; ".join(ANSWERS.values()).count(";") + 1 == len(_BY_NAME)  # none twice


@pytest.mark.parametrize(
    "words",
    [
        "--hwe 1e-6",
        "--memory 4000",
        "--score w.txt",
        "--mac=5",
        "--grm-cutoff 0.1",
        "--autosome",
        "--missing --out y",
        "--haps x.haps",
        "--indep-pairwise 50 5 0.2",
    ],
)
def test_an_option_of_plink_is_answered_before_anything_is_read(words, capsys):
    option = words.split("=")[0].split()[0]
    for command in ("fit", "plan"):
        with pytest.raises(SystemExit):
            main([command, "x.bed", *words.split()])
        said = capsys.readouterr().err
        assert f"error: {option} of PLINK: " in said
        assert "did you mean" not in said


def test_an_option_of_another_command_is_said_to_be_of_it(capsys):
    with pytest.raises(SystemExit):
        main(["prune", "x.bed", "-o", "y", "--maf", "0.1"])
    assert (
        "unrecognized arguments: --maf 0.1; 'streampca fit' takes --maf" in capsys.readouterr().err
    )
    assert plink_answer(["x.bed", "--missing", "mean", "--freq"], OURS["fit"]) == ""


@pytest.mark.filterwarnings("default")
def test_what_a_genotype_fit_warns_of_can_be_typed(tmp_path, capsys):
    """Its options once each, and accepted by the same command."""
    calls = random_calls(60, 200, missing=0.0)
    calls[:, 40:70] = calls[:, [40]]  # one region makes a component
    bed = write_plink(tmp_path / "x", calls, chromosomes=["1"] * 150 + ["29"] * 50)
    assert main(["fit", bed, "-k", "2"]) == 0
    said = capsys.readouterr().err
    assert "Take them by --chr all, or say how many autosomes there are: --chr-set 29" in said
    for words in ("--chr all", "--chr-set 29", "--ld-r2 0.2", "--exclude-long-range-ld 37"):
        assert main(["plan", bed, "-k", "2", *shlex.split(words)]) == 0
    capsys.readouterr()


def test_messages_of_genotypes_name_each_option_once():
    parser = build_parser(["fit"])
    text = as_options(
        "Prune, streampca.prune_ld(X), or leave such regions out, "
        "VariantFilter(exclude_long_range_ld=37) or 38; maf=0.4 and max_missing=0 leave none; "
        "streampca.open(X, missing_value=-1); GenotypePCA(ploidy=1)",
        parser,
    )
    assert text == (
        "Prune, --ld-r2 0.2, or leave such regions out, --exclude-long-range-ld 37 or 38; "
        "--maf 0.4 and --geno 0 leave none; --missing-value=-1; --ploidy 1"
    )
    typed = "x.bed --ld-r2 0.2 --exclude-long-range-ld 37 --maf 0.4 --geno 0 --missing-value=-1"
    assert np.isclose(parser.parse_args(["fit", *typed.split(), "--ploidy", "1"]).maf, 0.4)
