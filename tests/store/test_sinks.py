"""What a pass writes block by block."""

from __future__ import annotations

import fcntl
import gc
import os
import pickle
import shutil
from concurrent.futures import ThreadPoolExecutor
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import zarr

import streampca
from streampca.errors import InvalidInputError, SourceError
from streampca.store import MemorySink, Sink, ZarrSink, bundle, places, sinks
from streampca.store.sinks import chunk_for
from tests.each import each


def make(kind: str, folder: Path, length: int, width: int, **more: Any) -> Any:
    if kind == "memory":
        more.pop("chunk", None)
        return MemorySink(length, width, **more)
    return ZarrSink(folder / "out", length, width, **more)


def content(sink: Any) -> np.ndarray:
    return np.asarray(sink.values if isinstance(sink, MemorySink) else sink.array[...])


kinds = pytest.mark.parametrize("kind", ["memory", "zarr"])


@kinds
@each("dtype", ["float32", "float64", "int8"])
@each("chunk", [1, 3, 4, 10, 100])
@each("edges", [(0, 10), (0, 4, 8, 10), (0, 3, 9, 10), (0, 1, 1, 10)])
def test_blocks_arrive_where_they_belong(
    kind: str, dtype: str, chunk: int, edges: Any, tmp_path: Path
) -> None:
    """In any order, with a partial last chunk, and however often."""
    values = np.arange(20).reshape(10, 2).astype(dtype)
    sink: Sink = make(kind, tmp_path, 10, 2, dtype=dtype, chunk=chunk)
    parts = list(pairwise(edges))
    for start, stop in [*parts[::-1], *parts]:
        sink.write(start, values[start:stop])
    found = content(sink)
    assert found.dtype == np.dtype(dtype)
    assert np.array_equal(found, values)


@kinds
def test_writing_twice_is_writing_once(kind: str, tmp_path: Path) -> None:
    sink = make(kind, tmp_path, 6, 1, chunk=4)
    sink.write(0, np.full((5, 1), 9.0))  # a task that was cut off and tried again
    for _ in range(2):
        sink.write(0, np.ones((3, 1)))
        sink.write(3, np.full((3, 1), 2.0))
    assert content(sink).ravel().tolist() == [1, 1, 1, 2, 2, 2]


@kinds
@pytest.mark.parametrize(("length", "width"), [(0, 3), (4, 0), (1, 1)])
def test_degenerate_outputs(kind: str, length: int, width: int, tmp_path: Path) -> None:
    sink = make(kind, tmp_path, length, width)
    sink.write(0, np.ones((length, width)))
    assert content(sink).shape == (length, width)
    assert content(sink).all()


@pytest.mark.parametrize(
    ("chunk", "edges", "expected"),
    [
        (4, (0, 4, 8, 10), True),  # block for chunk, the last shorter
        (4, (0, 8, 10), True),  # several chunks to a block
        (4, (0, 4, 8, 12, 16), True),
        (4, (0, 10), True),  # one block
        (4, (0,), True),  # none
        (4, (0, 2, 4), False),  # two blocks would share a chunk
        (4, (0, 6, 10), False),
        (4, (0, 4, 6, 8), False),
        (1, (0, 3, 4, 9), True),
        (100, (0, 5, 10), False),
    ],
)
def test_concurrent(chunk: int, edges: Any, expected: bool, tmp_path: Path) -> None:
    length = max(edges[-1], 1)
    sink = ZarrSink(tmp_path / "out", 200, 2, chunk=chunk)
    assert sink.concurrent(np.array(edges)) is expected
    touched = [set(range(a // chunk, -(-b // chunk))) for a, b in pairwise(edges)]
    disjoint = sum(len(t) for t in touched) == len(set().union(*touched)) if touched else True
    assert disjoint is expected, "the table itself: no chunk belongs to two blocks"
    assert MemorySink(length, 2).concurrent(np.array(edges)) is False
    for one in (sink, MemorySink(length, 2)):
        assert one.concurrent_threads(np.array(edges)) is True


def test_a_chunk_is_never_longer_than_the_output(tmp_path: Path) -> None:
    assert ZarrSink(tmp_path / "a", 5, 2).chunk == 5
    assert ZarrSink(tmp_path / "b", 5, 2, chunk=3).chunk == 3
    assert ZarrSink(tmp_path / "c", 0, 2).chunk == 1
    assert ZarrSink(tmp_path / "d", 10**7, 10**6).chunk == 1


def test_what_is_stored_says_whether_it_is_whole(tmp_path: Path) -> None:
    sink = ZarrSink(tmp_path / "out", 5, 2, dtype="f4", dims=("feature", "component"))
    stored = zarr.open_array(tmp_path / "out", mode="r")
    assert stored.metadata.zarr_format == 3
    assert stored.metadata.dimension_names == ("feature", "component")
    assert stored.attrs["streampca_complete"] is False
    names = [codec["name"] for codec in stored.metadata.to_dict()["codecs"]]
    assert names == ["bytes", "zstd", "crc32c"]
    sink.write(0, np.ones((5, 2)))
    sink.finish()
    stored = zarr.open_array(tmp_path / "out", mode="r")
    assert stored.attrs["streampca_complete"] is True
    assert np.asarray(stored[...]).all()


@pytest.mark.parametrize("dtype", ["f4", "f8", "i2"])
def test_what_was_not_written_cannot_pass_for_a_result(tmp_path: Path, dtype: str) -> None:
    sink = ZarrSink(tmp_path / "out", 100, 2, dtype, chunk=10)
    sink.write(0, np.ones((10, 2)))
    found = np.asarray(zarr.open_array(tmp_path / "out", mode="r")[...])
    assert np.isnan(found[10:]).all() if dtype != "i2" else not found[10:].any()
    with pytest.raises(SourceError, match="not written to its end"):
        streampca.open(str(tmp_path / "out"))
    sink.write(10, np.zeros((90, 2)))
    sink.finish()
    assert streampca.open(str(tmp_path / "out")).read(0, 0, 100)[10:].sum() == 0


def test_zeros_and_holes_are_written_too(tmp_path: Path) -> None:
    """A chunk that is absent would be refused when the output is read again."""
    for name, value in (("zero", 0.0), ("nan", np.nan)):
        sink = pickle.loads(pickle.dumps(ZarrSink(tmp_path / name, 30, 2, chunk=10)))
        sink.write(0, np.full((30, 2), value))
        sink.finish()
        found = streampca.open(str(tmp_path / name)).read(0, 0, 30)
        np.testing.assert_array_equal(found, np.full((30, 2), value))


def test_what_is_overwritten_stays_until_the_new_one_is_whole(tmp_path: Path) -> None:
    def old() -> np.ndarray:
        return np.asarray(zarr.open_array(tmp_path / "out", mode="r")[...])

    first = ZarrSink(tmp_path / "out", 3, 1)
    first.write(0, np.full((3, 1), 7.0))
    first.finish()
    second = ZarrSink(tmp_path / "out", 4, 2, overwrite=True)
    second.write(0, np.ones((2, 2)))
    pickle.loads(pickle.dumps(second)).write(2, np.full((2, 2), 2.0))
    assert old().tolist() == [[7.0]] * 3
    second.finish()
    assert old().sum() == 12
    assert np.asarray(second.array[...]).sum() == 12
    assert [p.name for p in tmp_path.iterdir()] == ["out"]
    third = ZarrSink(tmp_path / "out", 9, 9, overwrite=True)
    del third  # given up
    assert old().sum() == 12
    assert [p.name for p in tmp_path.iterdir()] == ["out"]


@pytest.mark.parametrize("when", ["before", "at the exchange"])
def test_what_came_there_meanwhile_stays(
    when: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A user who put something at the path while the pass ran keeps it, and may finish again."""
    out = tmp_path / "out"
    ZarrSink(out, 3, 1).finish()
    sink = ZarrSink(out, 4, 2, overwrite=True)
    sink.write(0, np.ones((4, 2)))

    def put() -> None:
        shutil.rmtree(out)
        out.mkdir()
        (out / "thesis.tex").write_text("thesis")

    def exchange(staged: Path, target: Path, real: Any = bundle.exchange) -> None:
        monkeypatch.setattr(bundle, "exchange", real)
        put()
        real(staged, target)

    if when == "before":
        put()
    else:
        monkeypatch.setattr(bundle, "exchange", exchange)
    with pytest.raises(InvalidInputError, match="exists already"):
        sink.finish()
    assert (out / "thesis.tex").read_text() == "thesis"
    shutil.rmtree(out)
    sink.finish()
    assert content(sink).sum() == 8
    assert [p.name for p in tmp_path.iterdir()] == ["out"]


def test_a_sink_that_ended_does_not_unlock_the_next_one(tmp_path: Path) -> None:
    """The finalizer of the first runs late; the second is held, whatever handle it got."""
    out = tmp_path / "out"
    first = ZarrSink(out, 3, 1)
    first.write(0, np.ones((3, 1)))
    first.finish()
    shutil.rmtree(out)
    second = ZarrSink(out, 4, 1)
    del first
    gc.collect()
    with pytest.raises(InvalidInputError, match="exists already"):
        ZarrSink(out, 5, 1)
    second.write(0, np.ones((4, 1)))
    second.finish()
    assert content(second).sum() == 4


@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
@pytest.mark.parametrize("overwrite", [False, True])
def test_a_forked_child_gives_nothing_up(overwrite: bool, tmp_path: Path) -> None:
    out = tmp_path / "out"
    if overwrite:
        ZarrSink(out, 3, 1).finish()
    sink = ZarrSink(out, 4, 1, overwrite=overwrite)
    sink.write(0, np.ones((4, 1)))
    child = os.fork()
    if child == 0:
        try:
            del sink
            gc.collect()
        finally:
            os._exit(0)
    os.waitpid(child, 0)
    assert in_use_elsewhere(sink.place)
    sink.finish()
    assert content(sink).sum() == 4


def in_use_elsewhere(place: str) -> bool:
    """Whether the system has a lock on it, whatever this process remembers."""
    handle = os.open(place, os.O_RDONLY)
    try:
        fcntl.flock(handle, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    finally:
        os.close(handle)
    return False


@pytest.mark.parametrize("what", ["taken away", "another array", "another lock"])
def test_an_output_that_was_taken_before_it_was_held_is_refused(
    what: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    out, locks = tmp_path / "out", []

    def late(place: str) -> Any:
        if what == "another lock":
            locks.append(os.open(place, os.O_RDONLY))
            fcntl.flock(locks[0], fcntl.LOCK_EX)
            monkeypatch.setattr(places, "PATIENCE", 0.02)
            return places.hold(place)
        shutil.rmtree(place)
        if what == "another array":
            monkeypatch.setattr(sinks, "hold", places.hold)
            other.append(ZarrSink(out, 9, 1))
            places.release(place, other[0]._held)
        return places.hold(place)

    other: list[Any] = []
    monkeypatch.setattr(sinks, "hold", late)
    with pytest.raises(InvalidInputError, match="exists already"):
        ZarrSink(out, 4, 1)
    for handle in locks:
        os.close(handle)


def test_an_array_that_another_took_the_place_of_is_not_finished(tmp_path: Path) -> None:
    out = tmp_path / "out"
    sink = ZarrSink(out, 4, 1)
    sink.write(0, np.ones((4, 1)))
    out.rename(tmp_path / "elsewhere")
    other = ZarrSink(out, 9, 1)
    with pytest.raises(SourceError, match="not the array here"):
        sink.finish()
    stored = zarr.open_array(out, mode="r")
    assert (stored.shape, stored.attrs["streampca_complete"]) == ((9, 1), False)
    other.finish()


def test_threads_may_share_chunks(tmp_path: Path) -> None:
    sink = ZarrSink(tmp_path / "out", 200, 3, chunk=64)
    values = np.arange(600.0).reshape(200, 3)
    with ThreadPoolExecutor(8) as pool:
        list(pool.map(lambda i: sink.write(i, values[i : i + 7]), range(0, 200, 7)))
    np.testing.assert_array_equal(content(sink), values)


@pytest.mark.parametrize(
    ("edges", "most", "expected"),
    [
        ((0, 1000, 2000, 2500), None, 1000),  # block for chunk
        ((0, 300, 900, 1500), None, 300),  # all begin at a chunk
        ((0, 200, 300, 900), None, 100),  # a common divisor
        ((0, 1000, 2001, 3000), None, None),  # not a file for every row
        ((0, 1000, 2001, 3000), 500, 500),
        ((0, 1000, 2000), 300, 250),
        ((0, 1000, 2000), 50, 50),  # asked for
        ((0, 997, 1994), 300, 300),  # a prime
        ((0, 10), None, 10),  # an output of few rows
        ((0, 3, 10), None, None),
        ((0,), None, None),
    ],
)
def test_chunk_for(edges: Any, most: int | None, expected: int | None) -> None:
    assert chunk_for(np.array(edges), most) == expected


def test_a_damaged_chunk_is_noticed_when_read(tmp_path: Path) -> None:
    sink = ZarrSink(tmp_path / "out", 50, 2)
    sink.write(0, np.random.default_rng(0).normal(size=(50, 2)))
    file = tmp_path / "out" / "c" / "0" / "0"
    data = bytearray(file.read_bytes())
    data[len(data) // 2] ^= 4
    file.write_bytes(data)
    with pytest.raises(ValueError, match="checksum"):
        zarr.open_array(tmp_path / "out", mode="r")[...]


@pytest.mark.parametrize(
    "kind", ["sink", "foreign array", "group", "directory", "file", "dangling link"]
)
@pytest.mark.parametrize("overwrite", [False, True])
def test_an_existing_target_is_refused(kind: str, overwrite: bool, tmp_path: Path) -> None:
    """Only an output of ours is ever overwritten, and only where that was asked for."""
    target = tmp_path / "out"
    if kind == "sink":
        ZarrSink(target, 3, 1).finish()
    elif kind == "foreign array":
        zarr.create_array(target, shape=(3,), dtype="f8")[...] = 7
    elif kind == "group":
        zarr.create_group(target).create_array("x", shape=(3,), dtype="f8")
    elif kind == "directory":
        target.mkdir()
        (target / "thesis.tex").write_text("thesis")
    elif kind == "file":
        target.write_text("thesis")
    else:
        target.symlink_to(tmp_path / "nowhere")
    before = sorted(p for p in tmp_path.rglob("*"))
    if kind == "sink" and overwrite:
        ZarrSink(target, 4, 2, overwrite=True).finish()
        assert zarr.open_array(target, mode="r").shape == (4, 2)
        return
    with pytest.raises(InvalidInputError, match="exists already"):
        ZarrSink(target, 4, 2, overwrite=overwrite)
    assert sorted(p for p in tmp_path.rglob("*")) == before


def test_an_empty_directory_may_be_filled(tmp_path: Path) -> None:
    (tmp_path / "out").mkdir()
    ZarrSink(tmp_path / "out", 3, 1).write(0, np.ones((3, 1)))
    assert np.asarray(zarr.open_array(tmp_path / "out", mode="r")[...]).all()


@pytest.mark.parametrize("opened", [False, True])
def test_a_pickled_zarr_sink_writes_to_the_same_place(opened: bool, tmp_path: Path) -> None:
    sink = ZarrSink(tmp_path / "out", 10, 2, chunk=5)
    if opened:
        sink.write(0, np.ones((5, 2)))
    data = pickle.dumps(sink)
    assert len(data) < 1000
    copied = pickle.loads(data)
    copied.write(5, np.full((5, 2), 3.0))
    sink.write(0, np.ones((5, 2)))
    assert content(sink).sum() == 10 + 30
    assert (copied.chunk, copied.length, copied.path) == (sink.chunk, sink.length, sink.path)
    assert copied.concurrent(np.array([0, 5, 10]))
    copied.finish()
    assert zarr.open_array(tmp_path / "out", mode="r").attrs["streampca_complete"] is True


def test_a_pickled_memory_sink_is_a_copy() -> None:
    sink = MemorySink(4, 1)
    copied = pickle.loads(pickle.dumps(sink))
    copied.write(0, np.ones((4, 1)))
    assert not sink.values.any()
    assert copied.values.all()


def test_bytes_in_memory(tmp_path: Path) -> None:
    assert MemorySink(10, 3, np.float32).nbytes_in_memory() == 120
    assert ZarrSink(tmp_path / "out", 10, 3).nbytes_in_memory() == 0
