"""Text tables as PLINK writes them, whole or not at all."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest

from streampca.errors import InvalidInputError
from streampca.genetics.tables import write_eigenval, write_eigenvec, write_lines


def test_eigenvec_and_eigenval(tmp_path) -> None:
    values = np.array([[0.1, -2.5e-7], [1 / 3, 4.0]])
    path = tmp_path / "new" / "x.eigenvec"
    write_eigenvec(path, [("FID", ["f", "g"]), ("IID", ["a", "b"])], values)
    lines = path.read_text().splitlines()
    assert lines[0] == "#FID\tIID\tPC1\tPC2"
    assert lines[1].split("\t") == ["f", "a", "0.1", "-2.5e-07"]
    table = pd.read_csv(path, sep="\t")
    assert table.columns.tolist() == ["#FID", "IID", "PC1", "PC2"]
    assert table["IID"].tolist() == ["a", "b"]
    np.testing.assert_allclose(table[["PC1", "PC2"]], values, rtol=1e-8)
    write_eigenval(tmp_path / "x.eigenval", np.array([3.0, 0.125]))
    assert (tmp_path / "x.eigenval").read_text() == "3\n0.125\n"


def test_an_interrupted_table_leaves_the_old_one(tmp_path) -> None:
    path = tmp_path / "t"
    path.write_text("old")

    def lines():
        yield "half\n"
        raise RuntimeError("stopped")

    with pytest.raises(RuntimeError, match="stopped"):
        write_lines(path, lines())
    assert path.read_text() == "old"
    assert [p.name for p in tmp_path.iterdir()] == ["t"]


def test_a_table_replaces_a_file_alone_and_only_where_it_may(tmp_path) -> None:
    (tmp_path / "elsewhere").mkdir()
    file = tmp_path / "elsewhere" / "t"
    link, dangling, folder = (tmp_path / name for name in ("link", "dangling", "folder"))
    file.write_text("old")
    link.symlink_to(file)
    dangling.symlink_to(tmp_path / "nowhere")
    folder.mkdir()
    for path in (file, link, dangling, folder):
        with pytest.raises(InvalidInputError, match="exists already"):
            write_lines(path, ["new\n"], overwrite=False)
    for path in (dangling, folder):
        with pytest.raises(InvalidInputError, match="exists already"):
            write_lines(path, ["new\n"])
    assert file.read_text() == "old"
    write_lines(link, ["new\n"])
    assert link.is_symlink()
    assert file.read_text() == "new\n"
    assert [p.name for p in file.parent.iterdir()] == ["t"]


@pytest.mark.parametrize("overwrite", [False, True])
@pytest.mark.parametrize("came", ["file", "folder"])
def test_what_came_meanwhile_is_not_replaced_by_a_table(came, overwrite, tmp_path) -> None:
    path = tmp_path / "t"
    if overwrite:
        path.write_text("old")

    def lines():
        yield "new\n"
        path.unlink(missing_ok=True)
        path.mkdir() if came == "folder" else path.write_text("another")

    if overwrite and came == "file":  # a file may be overwritten, this one or that one
        write_lines(path, lines(), overwrite)
        assert path.read_text() == "new\n"
    else:
        with pytest.raises(InvalidInputError, match="exists already"):
            write_lines(path, lines(), overwrite)
        assert path.is_dir() if came == "folder" else path.read_text() == "another"
    assert [p.name for p in tmp_path.iterdir()] == ["t"]
