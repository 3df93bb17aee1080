"""Lists of ids: whom they mean where families share individual ids, and repeated variant ids."""

import numpy as np
import pytest

import streampca
from streampca import GenotypePCA
from streampca.cli.commands import main
from streampca.errors import InvalidInputError
from streampca.genetics.id_lists import read_names, sample_mask
from streampca.operations.convert import convert
from streampca.sources.side_data import UNKNOWN, read_panel
from tests.genotypes import random_calls, write_plink

FAMILIES = ["f1", "f1", "f2", "f2", "f3", "f4", "f5", "f6"]
SAMPLES = ["a", "b", "a", "c", "a", "d", "e", "f"]


@pytest.fixture
def shared(tmp_path):
    """Eight samples, three of which are called a, in three families."""
    calls = random_calls(8, 40)
    return write_plink(tmp_path / "x", calls, families=FAMILIES, samples=SAMPLES)


def test_an_individual_id_of_several_samples_is_refused_wherever_samples_are_chosen(shared):
    whom = r"a is f1:a; f2:a; f3:a\. Name family and individual: f1:a, or in a file 'f1 a'"
    for chosen in ("keep", "remove", "fit_samples"):
        with pytest.raises(InvalidInputError, match=rf"^{chosen}: 1 of 2 ids .*{whom}"):
            GenotypePCA(2, **{chosen: ["b", "a"]}).plan(shared)
        GenotypePCA(1, **{chosen: ["b", "c", "f2:a", "f3 a"]}).plan(shared)
    labels = streampca.open(shared).labels.samples
    assert np.flatnonzero(sample_mask(labels, ["b", "f2:a", "f3 a"])).tolist() == [1, 2, 4]
    model = GenotypePCA(1, keep=["f1:a", "b", "c", "d", "e"], fit_samples=["a", "b", "c", "d"])
    assert model.fit(shared).result_.fitted.tolist() == [True, True, True, True, False]


def test_so_it_is_on_the_command_line_and_after_a_conversion(shared, tmp_path, capsys):
    ids = tmp_path / "ids"
    ids.write_text("b\na\n")
    store, model = str(tmp_path / "z"), str(tmp_path / "m")
    convert(shared, store)
    assert main(["fit", shared, "-k", "1", "-q", "-o", model]) == 0
    project = ["project", model, shared, "-o", str(tmp_path / "t")]
    commands = [["fit", shared], ["fit", store], ["plan", shared], project,
                ["prune", shared, "-o", str(tmp_path / "p")]]  # fmt: skip
    for command in commands:
        for option in ("--keep", "--remove", "--fit-samples"):
            if option != "--fit-samples" or command[0] in ("fit", "plan"):
                assert main([*command, option, str(ids)]) == 65
                assert "a is f1:a; f2:a; f3:a" in capsys.readouterr().err
    ids.write_text("f1 b\nf1 a\n")  # as the message says
    assert main([*project, "--keep", str(ids)]) == 0
    assert "2 samples" in capsys.readouterr().out


def test_plink_2_lists_have_a_header_and_further_columns(tmp_path):
    path = tmp_path / "ids"
    path.write_text("#IID SEX\na 1\nb 2\n")
    assert read_names(path, columns=2) == ["a", "b"]
    path.write_text("#FID IID SEX\nf a 1\nf b 2\n")
    assert read_names(path, columns=2) == ["f a", "f b"]


def test_a_panel_names_families_where_they_share_ids(shared, tmp_path):
    labels = streampca.open(shared).labels.samples
    panel = tmp_path / "panel"
    panel.write_text("FID IID pop\nf1 a X\nf2 a Y\nf9 a Z\nf4 d W\n")
    assert read_panel(panel, labels) == ["X", UNKNOWN, "Y", *[UNKNOWN] * 2, "W", *[UNKNOWN] * 2]
    panel.write_text("IID pop\nb X\na Y\n")
    with pytest.raises(InvalidInputError, match="a is the id of several samples"):
        read_panel(panel, labels)
