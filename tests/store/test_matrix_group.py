"""Slices become whole chunks, in any order or in sequence, and a group knows how far it is."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import numpy as np
import pytest
import zarr
from hypothesis import given
from hypothesis import strategies as st

from streampca.errors import InvalidInputError, SourceError
from streampca.store import GroupLayout, GroupSink, open_group_sink

X = np.arange(120, dtype="i2").reshape(20, 6)  # 20 along, 6 across


def opened(path: Any, along: int = 0, chunk: int = 3, **more: Any) -> GroupSink:
    settings_ = {key: more.pop(key) for key in ("overwrite", "resume") if key in more}
    turn = slice(None, None, -1 if along else 1)
    layout = GroupLayout(
        name="call",
        shape=(20, 6)[turn],
        chunks=(chunk, 6)[turn],
        dims=("a", "b")[turn],
        dtype=X.dtype,
        samples=0,
        along=along,
        **{"fingerprint": "f", "missing_value": -1, **more},
    )
    return open_group_sink(str(path), layout, {"a": {"a": np.arange(20)}}, **settings_)


def content(sink: GroupSink) -> np.ndarray:
    values = zarr.open_group(sink.path)["call"][...]
    return values.T if sink.layout.along else values


@given(cuts=st.sets(st.integers(1, 19)), chunk=st.integers(1, 25), along=st.sampled_from([0, 1]))
def test_slices_in_order_of_any_length(tmp_path_factory: Any, cuts: Any, chunk: int, along: int):
    sink = opened(tmp_path_factory.mktemp("g") / "g", along, min(chunk, 20))
    edges = [0, *sorted(cuts), 20]
    block = np.empty_like(X)
    for start, stop in pairwise(edges):
        block[: stop - start] = X[start:stop]  # one buffer for all, as lanes have it
        sink.write(start, block[: stop - start])
        assert sink.written <= stop
        assert sink.written % sink.chunk == 0 or sink.written == 20
    assert sink.concurrent(np.array(edges)) == all(e % sink.chunk == 0 for e in edges[:-1])
    sink.finish()
    assert np.array_equal(content(sink), X)
    attributes = zarr.open_group(sink.path)["call"].attrs
    assert attributes["streampca_complete"] is True
    assert attributes["streampca_written"] == 20


@pytest.mark.parametrize("along", [0, 1])
def test_whole_chunks_in_any_order(tmp_path: Any, along: int) -> None:
    sink = opened(tmp_path / "g", along)
    for start, written in ((6, 0), (18, 0), (0, 3), (3, 9), (12, 9), (15, 9), (9, 20)):
        sink.write(start, X[start : start + 3])
        assert sink.written == written
    sink.write(9, X[9:12])  # again: a retried task does no harm
    sink.finish()
    assert np.array_equal(content(sink), X)


def test_gaps_are_refused(tmp_path: Any) -> None:
    sink = opened(tmp_path / "g")
    sink.write(0, X[:4])
    with pytest.raises(InvalidInputError, match="does not follow 4"):
        sink.write(9, X[9:12])
    other = opened(tmp_path / "h")
    with pytest.raises(InvalidInputError, match="does not begin with a chunk"):
        other.write(4, X[4:6])
    with pytest.raises(SourceError, match="only 0 of 20"):
        other.finish()
    assert zarr.open_group(other.path)["call"].attrs["streampca_complete"] is False


def test_going_on(tmp_path: Any) -> None:
    sink = opened(tmp_path / "g")
    sink.write(0, X[:7])
    sink.interrupted()
    again = opened(tmp_path / "g")
    assert again.written == 6
    again.write(6, np.zeros_like(X[6:12]))  # a chunk of zeros is stored too
    again.write(12, X[12:])
    again.finish()
    assert np.array_equal(content(again)[12:], X[12:])
    assert (tmp_path / "g" / "call" / "c" / "2" / "0").exists()
    with pytest.raises(InvalidInputError, match="exists already"):
        opened(tmp_path / "g")


@pytest.mark.parametrize(
    ("change", "error", "match"),
    [
        ({"fingerprint": "other"}, SourceError, "another source"),
        ({"chunk": 4}, InvalidInputError, "another layout"),
        ({"along": 1}, InvalidInputError, "another layout"),
        ({"resume": False}, InvalidInputError, "unfinished"),
    ],
)
def test_what_cannot_be_gone_on_with(tmp_path: Any, change: Any, error: Any, match: str) -> None:
    opened(tmp_path / "g").write(0, X[:3])
    with pytest.raises(error, match=match):
        opened(tmp_path / "g", **change)
    assert opened(tmp_path / "g", **change, overwrite=True).written == 0


def test_a_disk_that_fails_is_named(tmp_path: Any) -> None:
    class Full:
        attrs = {"streampca_written": 0}  # noqa: RUF012
        chunks = (3, 6)

        def __setitem__(self, *_: Any) -> None:
            raise OSError(28, "No space left on device")

    sink = opened(tmp_path / "g")
    sink.array = Full()
    with pytest.raises(OSError, match=rf"No space left on device: '{tmp_path}/g'"):
        sink.write(0, X[:3])
    assert sink.written == 0


def test_labels_of_every_kind(tmp_path: Any) -> None:
    columns = {
        "bytes": np.array(["a", "bc"], "S2"),
        "objects": np.array(["x", 3], object),
        "dates": np.array(["2000-01-01", "2000-01-02"], "M8[D]"),
        "numbers": np.array([1.5, 2.5]),
        "nothing": np.array([], np.float64),
    }
    layout = GroupLayout("x", (2, 2), (2, 2), ("a", "b"), X.dtype, 0, 0, "f")
    open_group_sink(str(tmp_path / "g"), layout, {"a": columns})
    group = zarr.open_group(str(tmp_path / "g"))
    assert "missing_value" not in group["x"].attrs
    assert group["objects"][...].tolist() == ["x", "3"]
    assert group["dates"][...].tolist() == ["2000-01-01", "2000-01-02"]
    assert group["numbers"][...].tolist() == [1.5, 2.5]
    assert group["bytes"][...].tolist() == ["a", "bc"]
