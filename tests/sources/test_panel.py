"""Panel files give every sample its label."""

from __future__ import annotations

import numpy as np
import pytest

from streampca.errors import InvalidInputError, SourceError
from streampca.matrix import AxisLabels
from streampca.sources.side_data import UNKNOWN, read_panel

SAMPLES = AxisLabels.plain("sample", 3, np.array(["a", "b", "c"]))


def test_labels_in_the_order_of_the_samples(tmp_path) -> None:
    path = tmp_path / "panel"
    path.write_text("sample pop super_pop\nc X EUR\nz Y AFR\na Y AFR\n")
    assert read_panel(path, SAMPLES) == ["Y", UNKNOWN, "X"]
    assert read_panel(path, SAMPLES, "super_pop") == ["AFR", UNKNOWN, "EUR"]
    path.write_text("#FID IID batch\nf1 a one\nf2 b two\nf3 c one\n")
    assert read_panel(path, SAMPLES) == ["one", "two", "one"]


def test_what_is_no_panel(tmp_path) -> None:
    path = tmp_path / "panel"
    with pytest.raises(SourceError, match="No such file"):
        read_panel(path, SAMPLES)
    path.write_text("sample pop\n")
    with pytest.raises(SourceError, match="expected a header"):
        read_panel(path, SAMPLES)
    path.write_text("sample pop\nz X\n")
    with pytest.raises(InvalidInputError, match="names none of the samples"):
        read_panel(path, SAMPLES)
    path.write_text("sample pop\na X\n")
    with pytest.raises(InvalidInputError, match="no column 'group'"):
        read_panel(path, SAMPLES, "group")


def test_an_ind_of_eigensoft_is_a_panel(tmp_path) -> None:
    path = tmp_path / "x.ind"
    path.write_text("  a M X\n  c F Y\n")
    assert read_panel(path, SAMPLES) == ["X", UNKNOWN, "Y"]
    assert read_panel(path, SAMPLES, "sex") == ["M", UNKNOWN, "F"]
    path.write_text("f:a M X\nf:b F Y\n")  # convertf with familynames
    ids = np.array(["a", "b", "c"])
    extra = {"family": np.array(["f"] * 3), "individual": ids}
    families = AxisLabels(("sample",), (3,), {"sample": ids}, extra=extra)
    assert read_panel(path, families) == ["X", "Y", UNKNOWN]
