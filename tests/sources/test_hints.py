"""A path that is no matrix: the message says what lies there, and the line that opens it."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import streampca
from streampca.cli.commands import main
from streampca.errors import SourceError


def message(path: Any) -> str:
    with pytest.raises(SourceError) as error:
        streampca.open(path)
    return str(error.value)


@pytest.mark.parametrize(
    ("names", "line"),
    [
        (("x.npy", "readme.txt"), "Use streampca.open('{folder}/x.npy')"),
        (("chr1.bed", "chr1.bim", "chr2.bed"), "Use streampca.open('{folder}/*.bed')"),
        (("sst.nc", "slp.nc"), "Use streampca.open('{folder}/slp.nc')"),
        (("matrix.mtx.gz", "barcodes.tsv.gz"), "Use streampca.open('{folder}/matrix.mtx.gz')"),
        (("part-0.parquet",), "{folder}/part-0.parquet: not readable"),
        (("x.csv", "readme.txt"), "Use streampca.open('{folder}/x.csv')"),
        (("calls.vcf.gz",), "Use streampca.open('{folder}/calls.vcf.gz')"),
        ((), "the folder is empty"),
        (("notes.txt",), "the folder holds notes.txt"),
        (tuple(f"{i}.txt" for i in range(9)), "0.txt, 1.txt, 2.txt, 3.txt, 4.txt and 4 more"),
    ],
)
def test_a_folder_says_what_it_holds(names: Any, line: str, tmp_path: Path) -> None:
    folder = tmp_path / "data"
    folder.mkdir()
    for name in names:
        (folder / name).touch()
    for path in (folder, f"{folder}/"):
        assert line.format(folder=folder) in message(path).replace("data//", "data/")


@pytest.mark.parametrize("suffix", [".bed", ".nc", ".h5ad", ".npy", ".zarr", ".vcf.gz", ".pgen"])
def test_a_stem_hints_at_the_file_beside(suffix: str, tmp_path: Path, capsys: Any) -> None:
    (tmp_path / f"data{suffix}").touch()
    hint = re.escape(f"did you mean {tmp_path}/data{suffix}?")
    assert re.search(hint, message(tmp_path / "data"))
    assert main(["fit", str(tmp_path / "data"), str(tmp_path / "model")]) != 0
    assert re.search(hint, capsys.readouterr().err)
    (tmp_path / "data").mkdir()  # a folder of that name
    assert re.search(hint, message(tmp_path / "data"))


def test_the_line_opens_it(tmp_path: Path) -> None:
    np.save(tmp_path / "x.npy", np.ones((4, 3)))
    line = re.search(r"streampca\.open\('(.*)'\)", message(tmp_path))
    assert line
    assert streampca.open(line.group(1)).shape == (4, 3)
