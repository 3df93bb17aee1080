"""Columns that are read when they are asked for answer as the arrays that they stand for."""

from __future__ import annotations

import pickle

import numpy as np
import pytest

from streampca.matrix import AxisLabels
from streampca.matrix.columns import (
    PIECE,
    Column,
    Joined,
    Mapped,
    Runs,
    as_text,
    by_pieces,
    is_among,
    join,
    numbered,
    repeated,
)

N = 2 * PIECE + 100


class Counted(Column):
    """A column that knows how much of it was read."""

    def __init__(self, values) -> None:
        self.values, self.dtype = values, values.dtype
        self.longest = 0

    def __len__(self) -> int:
        return len(self.values)

    def read(self, start, stop):
        self.longest = max(self.longest, stop - start)
        return self.values[start:stop].copy()


def columns():
    numbers = np.random.default_rng(0).integers(-50, 50, N)
    names = np.array([f"rs{i}" for i in numbers], np.dtypes.StringDType())
    runs = np.repeat(np.array(["1", "2", "X"]), [5, N - 9, 4])
    some = np.arange(3, N, 2)
    return [
        (Counted(numbers), numbers),
        (Counted(names), names),
        (Runs.of(runs), runs),
        (Runs.of(Counted(runs)), runs),
        (Counted(numbers).pick(some), numbers[some]),
        (Joined([Counted(numbers), numbers[:7]]), np.append(numbers, numbers[:7])),
        (join([Runs.of(runs), Runs.of(runs)]), np.append(runs, runs)),
        (Mapped(lambda a, b: a + b, np.int64, Counted(numbers), numbers), 2 * numbers),
    ]


@pytest.mark.parametrize("case", range(8))
def test_a_column_is_its_array(case) -> None:
    column, array = columns()[case]
    assert (len(column), column.shape, column.dtype) == (len(array), array.shape, array.dtype)
    np.testing.assert_array_equal(np.asarray(column), array)
    np.testing.assert_array_equal(column[2 : PIECE + 3], array[2 : PIECE + 3])
    np.testing.assert_array_equal(column[PIECE - 1 : PIECE - 1], array[:0])
    np.testing.assert_array_equal(column[::-3], array[::-3])
    chosen = np.array([len(array) - 1, 0, -2, 7, 7])
    np.testing.assert_array_equal(column[chosen], array[chosen])
    mask = np.arange(len(array)) % 1000 == 1
    np.testing.assert_array_equal(column[mask], array[mask])
    assert column[-1] == array[-1]
    assert list(column) == list(array)
    np.testing.assert_array_equal(column == array[3], array == array[3])
    np.testing.assert_array_equal(np.concatenate([column, column]), np.append(array, array))
    assert column.tolist() == array.tolist()
    for wrong in (len(array), -len(array) - 1):
        with pytest.raises(IndexError):
            column[wrong]


def test_operations_on_columns_read_one_piece_at_a_time() -> None:
    names = Counted(np.array([f"rs{i}" for i in range(N)], np.dtypes.StringDType()))
    here = by_pieces(lambda part: is_among(part, ["rs5", "rs9000"]), names)
    assert np.flatnonzero(here).tolist() == [5, 9000]
    assert Runs.of(names).starts[-1] == N - 1
    assert names.gather(np.array([N - 1, 0])).tolist() == [f"rs{N - 1}", "rs0"]
    assert names.longest <= PIECE
    assert repeated(names) == []
    assert numbered(names)[0][-1] == f"rs{N - 1}"


def test_numbers_sum_piece_by_piece() -> None:
    values = Counted(np.arange(N))
    assert values.sum() == np.arange(N).sum()
    assert values.longest == PIECE
    assert Counted(np.full(N, 0.1)).sum() == np.full(N, 0.1).sum()


def test_labels_of_columns_pick_join_and_name_as_arrays_do() -> None:
    names = np.array([f"rs{i}" for i in range(N)], np.dtypes.StringDType())
    places = np.arange(N)
    held = AxisLabels(("variant",), (N,), {"variant": names}, extra={"position": places})
    lazy = AxisLabels(
        ("variant",), (N,), {"variant": Counted(names)}, extra={"position": Counted(places)}
    )
    assert lazy.nbytes == 0 < held.nbytes
    some = np.arange(0, N, 3)
    picked, expected = lazy.pick(some), held.pick(some)
    assert isinstance(picked.extra["position"], Column)
    assert len(picked) == len(expected)
    assert picked.names(range(4000, 4010)) == expected.names(range(4000, 4010))
    assert picked.name(17) == expected.name(17)
    both = AxisLabels.concat([lazy, held])
    np.testing.assert_array_equal(both.extra["position"], np.append(places, places))
    assert both.name(N + 2) == "rs2"
    assert lazy.take(5, 9).names() == held.take(5, 9).names()


def test_a_column_travels() -> None:
    runs = Runs.of(np.repeat(["1", "X"], [3, 4]))
    again = pickle.loads(pickle.dumps(runs))
    assert again.tolist() == ["1"] * 3 + ["X"] * 4
    assert as_text(again).dtype.kind == "T"
