"""Rows of two matrices paired by label: order, losses, chunks that end at different rows."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import xarray as xr
import zarr

import streampca
from streampca.errors import InvalidInputError
from streampca.matrix import paired
from streampca.passes import block_edges
from streampca.sources import as_matrix

RNG = np.random.default_rng(0)
X, Y = RNG.standard_normal((40, 5)), RNG.standard_normal((40, 3))


def labelled(values: np.ndarray, names: list[str]) -> xr.DataArray:
    return xr.DataArray(values, dims=("person", "item"), coords={"person": names})


NAMES = [f"p{i}" for i in range(40)]


def test_rows_of_the_same_labels_are_read_as_they_are() -> None:
    x, y = as_matrix(labelled(X, NAMES)), as_matrix(labelled(Y, NAMES))
    pair = paired(x, y)
    assert pair.x is x
    assert pair.y is y
    assert (pair.left_out, pair.note) == ((0, 0), "")
    joint = pair.joint()
    np.testing.assert_array_equal(joint.read(0, 3, 9), np.hstack([X, Y])[3:9])
    assert joint.labels.features.slices == {"x": slice(0, 5), "y": slice(5, 8)}


def test_rows_in_another_order_and_without_a_partner() -> None:
    order = RNG.permutation(40)[:33]
    y = labelled(Y[order], [NAMES[i] for i in order])
    pair = paired(as_matrix(labelled(X[2:], NAMES[2:])), as_matrix(y))
    both = sorted(set(order) - {0, 1})
    assert pair.left_out == (38 - len(both), 33 - len(both))
    assert f"{len(both)} rows are in both" in pair.note
    joint = pair.joint()
    expected = np.hstack([X, Y])[both]
    np.testing.assert_array_equal(joint.read(0, 0, len(both)), expected)
    np.testing.assert_array_equal(joint.read(0, 7, 20), expected[7:20])
    np.testing.assert_array_equal(joint.read(1, 4, 7), expected[:, 4:7])
    assert [joint.labels.samples.name(i) for i in range(3)] == [NAMES[i] for i in both[:3]]


def test_reads_of_another_order_are_counted(tmp_path: Path) -> None:
    zarr.create_array(str(tmp_path / "y.zarr"), data=Y, chunks=(4, 3))
    y = streampca.open(str(tmp_path / "y.zarr"))
    plain = as_matrix(labelled(Y, NAMES[::-1]))
    y.labels = plain.labels
    pair = paired(as_matrix(labelled(X, NAMES)), y)
    assert pair.y.count_chunks(0, 0, 4) == 1  # the last rows of the store, which lie together
    assert pair.y.count_chunks(0, 2, 6) == 2
    shuffled = paired(as_matrix(labelled(X, list(RNG.permutation(NAMES)))), y).y
    assert shuffled.count_chunks(0, 0, 20) == len({int(i) // 4 for i in shuffled.order[:20]})
    before = y.reads().chunks
    shuffled.read(0, 0, 20)
    assert y.reads().chunks - before == shuffled.count_chunks(0, 0, 20)
    assert shuffled.fingerprint() != pair.y.fingerprint()


def test_pairs_of_unaligned_chunks_have_several_blocks(tmp_path: Path) -> None:
    n = 40_000
    for name, rows in (("x", 1024), ("y", 1000)):
        zarr.create_array(
            str(tmp_path / f"{name}.zarr"), shape=(n, 4), chunks=(rows, 4), dtype="f8"
        )
    x, y = (streampca.open(str(tmp_path / f"{name}.zarr")) for name in "xy")
    joint = paired(x, y).joint()
    assert np.diff(block_edges(joint, 0, share=0.0)).max() < 2048
    assert joint.count_span(0, joint.chunk_edges(0)) == 2 * 40 + 39


@pytest.mark.parametrize(
    ("x", "y", "message"),
    [
        (X, Y[1:], "X has 40 rows and Y 39; rows without labels are paired by their number"),
        (labelled(X, NAMES), labelled(Y, [f"q{i}" for i in range(40)]), "X has 'p0'; 'p1'"),
        (labelled(X, ["a"] * 40), labelled(Y, NAMES), r"rows of X share labels \('a'\)"),
        (labelled(X, NAMES), Y[:3], "X has 40 rows and Y 3"),
    ],
)
def test_rows_that_cannot_be_paired(x: object, y: object, message: str) -> None:
    with pytest.raises(InvalidInputError, match=message):
        paired(as_matrix(x), as_matrix(y))
