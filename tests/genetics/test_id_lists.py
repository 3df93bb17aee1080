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
from tests.genotypes import random_calls, write_plink, write_vcf_zarr

FAMILIES = ["f1", "f1", "f2", "f2", "f3", "f4", "f5", "f6"]
SAMPLES = ["a", "b", "a", "c", "a", "d", "e", "f"]


@pytest.fixture
def shared(tmp_path):
    """Eight samples, three of which are called a, in three families."""
    calls = random_calls(8, 40)
    return write_plink(tmp_path / "x", calls, families=FAMILIES, samples=SAMPLES)


def test_an_individual_id_of_several_samples_is_refused_wherever_samples_are_chosen(shared):
    whom = r"a is f1:a; f2:a; f3:a\. Name family and individual: f1:a, or in a file 'f1 a'"
    for chosen in ("keep", "exclude", "fit_samples"):
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
    commands = [
        ["fit", shared],
        ["fit", store],
        ["plan", shared],
        project,
        ["prune", shared, "-o", str(tmp_path / "p")],
    ]
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


REPEATED = [f"rs{j % 30}" for j in range(40)]  # rs0 to rs9 name two variants each


def test_repeated_variant_ids_stop_nothing_that_needs_none(tmp_path):
    """Fits, filters by id (all variants of the id, as PLINK), places, projections by position."""
    calls = random_calls(20, 40, missing=0.0)
    bed = write_plink(tmp_path / "x", calls, ids=REPEATED)
    vcf = write_vcf_zarr(tmp_path / "v", calls, ids=REPEATED, names=[("A", "G")] * 40)
    unique = write_plink(tmp_path / "u", calls)
    whole = GenotypePCA(3).fit(unique)
    convert(bed, tmp_path / "z")
    for source in (bed, vcf, str(tmp_path / "z")):
        found = GenotypePCA(3).fit(source)
        np.testing.assert_array_equal(found.scores_, whole.scores_)
        projected = streampca.project_samples(found, streampca.open(source))
        assert (projected.match.by, projected.match.n_matched) == ("position", 40)
        np.testing.assert_allclose(projected.scores, whole.scores_, atol=1e-5)
        by_id = streampca.project_samples(found, streampca.open(source), match="id", min_coverage=0)
        assert (by_id.match.n_matched, by_id.match.n_duplicated) == (20, 20)
    for option, kept in (("exclude", np.r_[2:30, 32:40]), ("extract", np.r_[0, 1, 30, 31])):
        model = GenotypePCA(2, variants=streampca.VariantFilter(**{option: ["rs0", "rs1"]}))
        other = GenotypePCA(2).fit(streampca.open(calls[:, kept], missing_value=-1))
        np.testing.assert_array_equal(model.fit(bed).scores_, other.scores_)
    assert streampca.prune_ld(bed).kept.tolist() == streampca.prune_ld(unique).kept.tolist()


def test_a_list_of_pruned_ids_needs_one_for_each_after_the_filters(tmp_path, capsys):
    bed = write_plink(tmp_path / "x", random_calls(20, 40), ids=REPEATED)
    (tmp_path / "ids").write_text("\n".join(f"rs{j}" for j in range(10)))
    to = str(tmp_path / "p")
    for command in (
        ["prune", bed, "-o", to],
        ["fit", bed, "-k", "2", "--ld-r2", "0.9", "--out", to],
    ):
        assert main(command) == 65
        text = capsys.readouterr().err
        assert "10 ids are of several (rs0; rs1; rs2; rs3 and 6 more)" in text
        assert "--exclude ids.txt" in text
        assert main([*command, "--exclude", str(tmp_path / "ids"), "--overwrite"]) == 0
    with pytest.raises(InvalidInputError, match="an id for each variant"):
        streampca.prune_ld(bed).write(to)
