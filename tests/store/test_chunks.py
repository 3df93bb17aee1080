"""Zarr is handed one chunk at a time: it would encode all chunks of an assignment at once."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import zarr

from streampca.store import GroupLayout, LabelledSink, PanelSink, ZarrSink, open_group_sink
from streampca.store.chunks import put
from streampca.store.sinks import append_rows, open_written

VALUES = np.random.default_rng(0).normal(size=(23, 11))


@pytest.fixture
def handed(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The number of chunks that each assignment to a Zarr array touched."""
    counts: list[int] = []
    assign = zarr.Array.__setitem__

    def counted(array: Any, where: Any, values: Any) -> None:
        parts = where if isinstance(where, tuple) else (where,)
        counts.append(1)
        for part, length, chunk in zip(parts, array.shape, array.chunks, strict=False):
            first, last, _ = part.indices(length)
            counts[-1] *= -(-last // chunk) - first // chunk
        assign(array, where, values)

    monkeypatch.setattr(zarr.Array, "__setitem__", counted)
    return counts


def rows(folder: Path) -> Any:
    sink = ZarrSink(folder / "a", 23, 11, chunk=4)
    sink.write(0, VALUES)
    return sink.array[...]


def panel(folder: Path) -> Any:
    whole = ZarrSink(folder / "a", 23, 11, chunk=4)
    for columns in (slice(0, 3), slice(3, 11)):
        PanelSink(whole, columns).write(0, VALUES[:, columns])
    return whole.array[...]


def labelled(folder: Path) -> Any:
    sink = LabelledSink(folder / "a", "a", (23, 11), ("x", "y"), {}, "f8", 5, across=3)
    sink.write(0, VALUES)
    return sink.array[...]


def columns(folder: Path) -> Any:
    sink = LabelledSink(folder / "a", "a", (23, 1), ("x", "y"), {}, "f8", 5)
    names = [f"c{i}" for i in range(11)]
    sink.columns(dict.fromkeys(names, "f8")).write(0, VALUES)
    group: Any = zarr.open_group(sink.group)
    return np.stack([group[name][...] for name in names], axis=1)


def converted(folder: Path, along: int) -> Any:
    shape = VALUES.shape
    layout = GroupLayout("a", shape, (4, 3), ("x", "y"), np.dtype("f8"), 0, along, "")
    sink = open_group_sink(str(folder / "a"), layout, {})
    sink.write(0, VALUES.T if along else VALUES)
    return sink.array[...]


def appended(folder: Path) -> Any:
    sink = ZarrSink(folder / "a", 6, 11, chunk=4)
    sink.write(0, VALUES[:6])
    sink.finish()
    append_rows(str(folder / "a"), 6, VALUES[6:])
    return open_written(str(folder / "a"))[...]


@pytest.mark.parametrize(
    "write",
    [
        rows,
        panel,
        labelled,
        columns,
        appended,
        *(
            pytest.param(lambda at, along=along: converted(at, along), id=f"along {along}")
            for along in (0, 1)
        ),
    ],
)
def test_each_sink_writes_a_chunk_at_a_time(
    write: Callable[[Path], Any], tmp_path: Path, handed: list[int]
) -> None:
    found = write(tmp_path)
    assert np.array_equal(found, VALUES)
    assert len(handed) > 1
    assert max(handed) == 1


def test_nothing_and_a_number(tmp_path: Path) -> None:
    number = zarr.create_array(tmp_path / "n", shape=(), dtype="f8")
    put(number, (), np.asarray(3.0))
    assert number[...] == 3.0
    none = zarr.create_array(tmp_path / "z", shape=(0, 4), chunks=(1, 4), dtype="f8")
    put(none, (0, 0), np.zeros((0, 4)))
    assert none.shape == (0, 4)
