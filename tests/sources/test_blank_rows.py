"""Rows of nothing but the fill value, seen chunk by chunk."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from streampca.sources.zarr.reader import doubtful, note_of


def rows_of(bits: int, n: int) -> list[int]:
    return [row for row in range(n) if bits >> row & 1]


@given(st.data())
def test_notes_say_which_rows_are_blank(data: st.DataObject) -> None:
    """Of any dimension, type and fill value, and in whatever parts a chunk is read."""
    ndim = data.draw(st.integers(1, 3))
    shape = data.draw(st.tuples(*[st.integers(1, 20)] * ndim))
    dim = data.draw(st.integers(0, ndim - 1))
    fill = data.draw(st.sampled_from([0, 7, np.nan]))
    rng = np.random.default_rng(data.draw(st.integers(0, 99)))
    dtype = "f4" if fill != fill else data.draw(st.sampled_from(["f4", "i1", "u2"]))
    values: Any = np.moveaxis(rng.integers(1, 3, shape).astype(dtype), dim, 0)
    blank = np.flatnonzero(rng.random(len(values)) < 0.3)
    values[blank] = fill
    values = np.moveaxis(values, 0, dim)
    n = values.shape[dim]
    cut = data.draw(st.integers(0, n))
    note = note_of(values, dim, 0, fill)
    parts = np.split(values, [cut], axis=dim)
    assert note_of(parts[0], dim, 0, fill) | note_of(parts[1], dim, cut, fill) == note
    assert not note & 1
    assert rows_of(note >> 1, n) == blank.tolist()
    assert rows_of(doubtful([note], n), n) == blank.tolist()


def test_rows_without_evidence_of_a_write() -> None:
    """Rows that are blank in all chunks, and in one where no other row has the fill value."""
    dense = np.array([[1.0, 2], [0, 0], [3, 4], [0, 0]])
    sparse = np.array([[1.0, 0], [0, 0], [0, 4], [5, 1]])
    full, land = np.ones((4, 2)), np.zeros((4, 2))
    notes = {
        name: note_of(one, 0, 0, 0)
        for name, one in {"dense": dense, "sparse": sparse, "full": full, "land": land}.items()
    }
    for names, expected in (
        (("dense",), [1, 3]),
        (("sparse",), [1]),
        (("full",), []),
        (("dense", "full"), [1, 3]),
        (("sparse", "full"), []),
        (("sparse", "sparse"), [1]),
        (("sparse", "dense"), [1, 3]),
        (("land", "full"), []),
        (("land", "dense"), [1, 3]),
        (("land", "sparse"), [1]),
        (("land",), [0, 1, 2, 3]),
    ):
        assert rows_of(doubtful((notes[name] for name in names), 4), 4) == expected


@pytest.mark.parametrize("shape", [(0, 3), (3, 0), (5,)])
def test_edges(shape: tuple[int, ...]) -> None:
    assert note_of(np.ones(shape), 0, 0, 0) == 0
