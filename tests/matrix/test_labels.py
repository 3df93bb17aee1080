"""Names of rows and columns."""

from __future__ import annotations

import numpy as np
import pytest

from streampca.matrix import AxisLabels, Labels

GRID = AxisLabels(
    ("lat", "lon"), (2, 3), {"lat": np.array([10.0, 20.0])}, {"lat": {"units": "degrees_north"}}
)


def test_plain_axes() -> None:
    labels = Labels.plain((3, 2), features=["a", "b"])
    assert labels.axis(0) is labels.samples
    assert labels.axis(1) is labels.features
    assert labels.samples.names() == ["sample 0", "sample 1", "sample 2"]
    assert labels.features.names() == ["a", "b"]
    assert not labels.samples.named
    assert labels.features.named
    assert (len(labels.samples), len(labels.features)) == (3, 2)


@pytest.mark.parametrize(
    "names", [[1, 2], np.array([1.5, 2.5]), np.array(["x", "y"], dtype=object)]
)
def test_names_are_strings(names: object) -> None:
    axis = AxisLabels.plain("gene", 2, names)  # type: ignore[arg-type]
    assert axis.names() == [str(name) for name in names]  # type: ignore[attr-defined]
    assert all(type(name) is str for name in axis.names())


def test_stacked_dimensions() -> None:
    assert len(GRID) == 6
    assert GRID.name(4) == "lat=20.0, lon=1"
    assert GRID.names([0, 5]) == ["lat=10.0, lon=0", "lat=20.0, lon=2"]
    assert len(GRID.names()) == len(set(GRID.names())) == 6
    assert GRID.named


def test_stacking_is_in_c_order() -> None:
    """As NumPy's reshape: the last dimension runs fastest."""
    axis = AxisLabels(("a", "b", "c"), (2, 3, 4))
    flat = np.arange(24).reshape(2, 3, 4)
    for i in range(24):
        a, b, c = np.argwhere(flat == i)[0]
        assert axis.name(i) == f"a={a}, b={b}, c={c}"
    assert not axis.named


def test_stacked_datetimes_read_well() -> None:
    days = np.array(["2020-01-01", "2020-01-02"], dtype="M8[D]")
    axis = AxisLabels(("day", "x"), (2, 2), {"day": days})
    assert axis.name(2) == "day=2020-01-02, x=0"
    assert AxisLabels.plain("day", 2, days).name(1) == "2020-01-02"


def test_taking_all_changes_nothing() -> None:
    assert GRID.take(0, 6) is GRID
    plain = AxisLabels.plain("gene", 4, list("abcd"))
    assert plain.take(0, 4) is plain


def test_taking_a_part_of_one_dimension_keeps_its_coordinate() -> None:
    axis = AxisLabels(("t",), (4,), {"t": np.arange(4) * 1.5}, {"t": {"units": "s"}})
    part = axis.take(1, 3)
    assert part.dims == ("t",)
    assert part.sizes == (2,)
    assert part.coords["t"].tolist() == [1.5, 3.0]
    assert part.attrs == axis.attrs
    assert part.names() == axis.names()[1:3]
    assert len(axis.take(2, 2)) == 0


def test_taking_a_part_of_stacked_dimensions_keeps_the_names() -> None:
    part = GRID.take(2, 5)
    assert part.dims == ("lat-lon",)
    assert part.names() == GRID.names()[2:5]
    assert part.take(1, 3).names() == GRID.names()[3:5]


def test_concat() -> None:
    a, b = AxisLabels.plain("gene", 2, ["a", "b"]), AxisLabels.plain("gene", 2)
    both = AxisLabels.concat([a, b])
    assert both.dims == ("gene",)
    assert both.names() == ["a", "b", "gene 0", "gene 1"]
    nameless = AxisLabels.concat([b, b])
    assert not nameless.named
    assert len(nameless) == 4
    assert nameless.names()[3] == "gene 3"
    assert AxisLabels.concat([GRID, a]).names() == [*GRID.names(), "a", "b"]
    assert AxisLabels.concat([GRID, a]).dims == ("lat-lon",)
    assert AxisLabels.concat([a]).names() == a.names()


def test_concat_of_unnamed_stacked_dimensions_counts_through() -> None:
    axis = AxisLabels(("a", "b"), (2, 2))
    both = AxisLabels.concat([axis, axis])
    assert len(both) == 8
    assert len(set(both.names())) == 8


def test_nothing_has_no_names() -> None:
    for axis in (
        AxisLabels.plain("x", 0),
        AxisLabels(("a", "b"), (0, 3)),
        AxisLabels.plain("x", 0, []),
    ):
        assert len(axis) == 0
        assert axis.names() == []


def test_the_length_of_many_dimensions_does_not_overflow() -> None:
    assert len(AxisLabels(("a", "b"), (2**20, 2**20))) == 2**40


def test_columns_of_any_axis() -> None:
    grid = AxisLabels(("lat", "lon"), (1, 2), {"lat": np.array([5.0])})
    assert grid.columns("cell")["cell"].tolist() == ["lat=5.0, lon=0", "lat=5.0, lon=1"]
    both = AxisLabels.of_variables({"sst": AxisLabels.plain("x", 1), "ice": grid})
    assert both.columns("f")["f"].tolist() == ["sst: x 0", *(f"ice: {n}" for n in grid.names())]
    one = AxisLabels(("v",), (1,), {"v": np.array(["rs1"])}, extra={"position": np.array([7])})
    assert {name: values.tolist() for name, values in one.columns("w").items()} == {
        "w": ["rs1"],
        "position": [7],
    }
    assert AxisLabels.plain("v", 3).columns("v") == {}
