"""One file a chromosome, of any format of genotypes: patterns, joined variants, checked samples."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from genotypes import (
    random_calls,
    sample_names,
    variant_names,
    write_pgen,
    write_plink,
    write_vcf_zarr,
)

import streampca
from streampca.cli import main
from streampca.errors import InvalidInputError, SourceError

NAMES = ["1", "2", "10", "X"]
WRITERS = {"bed": write_plink, "pgen": write_pgen}


@pytest.fixture(params=WRITERS)
def kind(request: Any) -> str:
    if request.param == "pgen":
        pytest.importorskip("pgenlib")
    return str(request.param)


def files(folder: Path, kind: str, calls: np.ndarray, **labels: Any) -> list[str]:
    """chr1, chr2, chr10 and chrX of calls, in near-equal parts."""
    cuts = np.linspace(0, calls.shape[1], len(NAMES) + 1).astype(int)
    return [
        WRITERS[kind](
            folder / f"chr{name}",
            calls[:, a:b],
            ids=variant_names(b - a, a),
            chromosomes=[name] * (b - a),
            **labels,
        )
        for name, (a, b) in zip(NAMES, pairwise(cuts), strict=True)
    ]


def whole(folder: Path, kind: str, calls: np.ndarray) -> str:
    cuts = np.diff(np.linspace(0, calls.shape[1], len(NAMES) + 1).astype(int))
    names = np.repeat(NAMES, cuts).tolist()
    return WRITERS[kind](folder / "all", calls, chromosomes=names)


def test_patterns_lists_and_braces_are_one_matrix(kind, tmp_path):
    calls = random_calls(11, 50)
    paths = files(tmp_path, kind, calls)
    expected = streampca.open(whole(tmp_path, kind, calls))
    stem = f"{tmp_path}/chr"
    sources = [paths, list(map(Path, paths)), f"{stem}{{1,2,10,X}}.{kind}", f"{stem}*.{kind}"]
    sources.append([f"{stem}{{1..2}}.{kind}", f"{stem}10.{kind}", f"{stem}X.{kind}"])
    for source in sources:
        matrix = streampca.open(source)
        np.testing.assert_array_equal(matrix.read(1, 0, 50), calls)
    matrix = streampca.open(sources[3])
    assert matrix.labels.features.names() == expected.labels.features.names()
    for name in ("chromosome", "counted_allele"):
        found = [np.asarray(one.labels.features.extra[name]) for one in (matrix, expected)]
        np.testing.assert_array_equal(*found)
    assert matrix.labels.attrs["ploidy"] == 2


def test_results_are_those_of_one_file(kind, tmp_path):
    calls = random_calls(40, 400)
    files(tmp_path, kind, calls)
    one, joined = whole(tmp_path, kind, calls), f"{tmp_path}/chr*.{kind}"
    fits = [streampca.GenotypePCA(3, maf=0.1).fit(source) for source in (one, joined)]
    for name in ("scores_", "components_", "eigenvalues_"):
        np.testing.assert_array_equal(*(getattr(fit, name) for fit in fits))
    found = [streampca.kinship(source).kinship for source in (one, joined)]
    np.testing.assert_array_equal(*found)
    kept = [streampca.prune_ld(source, window=20).ids for source in (one, joined)]
    np.testing.assert_array_equal(*kept)
    projected = [streampca.project_samples(fits[0], source).scores for source in (one, joined)]
    np.testing.assert_array_equal(*projected)


@pytest.mark.slow
def test_on_the_command_line(kind, tmp_path, capsys):
    calls = random_calls(30, 300)
    paths = files(tmp_path, kind, calls)
    one, joined = whole(tmp_path, kind, calls), f"{tmp_path}/chr{{1,2,10,X}}.{kind}"
    tables = []
    for i, source in enumerate(([one], [joined], paths)):
        out = str(tmp_path / f"out{i}")
        assert main(["fit", *source, "-k", "2", "--out", out, "-q", "--ld-r2", "0.3"]) == 0
        assert main(["relate", *source, "-o", out, "--make-king-table"]) == 0
        assert main(["prune", *source, "-o", f"{out}.prune"]) == 0
        assert main(["plan", *source, "-k", "2"]) == 0
        ends = ("eigenvec", "eigenval", "kin0", "prune", "prune.in")
        tables.append([Path(f"{out}.{end}").read_text() for end in ends])
    assert tables[0] == tables[1] == tables[2]
    capsys.readouterr()
    table = {"bed": "fam", "pgen": "psam"}[kind]
    for output in (paths[1], str(Path(paths[1]).with_suffix(f".{table}"))):
        for source in ([joined], paths):
            assert main(["prune", *source, "-o", output, "--overwrite"]) != 0
            assert f"{output} is the source" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("labels", "message"),
    [
        ({"samples": [*sample_names(6)[:4], "s5", "s4"]}, "s4.* in one and .*s5.* in the other"),
        ({"families": [*"fffffx"]}, "s5"),
    ],
)
def test_other_samples_are_refused_by_name(kind, labels, message, tmp_path):
    calls = random_calls(6, 20)
    first = WRITERS[kind](tmp_path / "chr1", calls, families=["f"] * 6)
    families = {"families": ["f"] * 6, **labels}
    second = WRITERS[kind](
        tmp_path / "chr2", calls, ids=variant_names(20, 50), chromosomes=["2"] * 20, **families
    )
    with pytest.raises(
        SourceError, match=rf"chr1.* and .*chr2.* differ: .*({message}).* same order"
    ):
        streampca.open([first, second])


def test_other_numbers_of_samples_and_shared_variants_are_refused(kind, tmp_path):
    calls = random_calls(6, 20)
    first = WRITERS[kind](tmp_path / "chr1", calls)
    second = WRITERS[kind](tmp_path / "chr2", calls[:5], ids=variant_names(20, 50))
    with pytest.raises(SourceError, match="6 and 5 samples"):
        streampca.open([first, second])
    again = WRITERS[kind](tmp_path / "chr3", calls)
    with pytest.raises(InvalidInputError, match="20 variants lie in two of the files"):
        streampca.open([first, again])


def test_formats_may_differ(tmp_path):
    pytest.importorskip("pgenlib")
    calls = random_calls(6, 30)
    parts = [
        write_plink(tmp_path / "chr1", calls[:, :10]),
        write_pgen(tmp_path / "chr2", calls[:, 10:20], ids=variant_names(10, 10)),
        write_vcf_zarr(tmp_path / "chr3.vcz", calls[:, 20:], ids=variant_names(10, 20)),
    ]
    matrix = streampca.open(parts)
    assert (matrix.dtype, matrix.missing_value) == (np.int8, -1)
    np.testing.assert_array_equal(matrix.read(1, 0, 30), calls)
