"""Ledgers of Zarr sources: what is noticed, by a look and by reading; and what was written."""

from __future__ import annotations

import os
import pickle
import time
from pathlib import Path
from typing import Any

import google_crc32c
import numpy as np
import obstore.store
import pytest
import zarr

import streampca
from streampca.errors import DamagedSourceError, SourceError
from streampca.sources.ledger import Ledger
from streampca.sources.zarr.ledger import LedgerSource
from streampca.sources.zarr.marks import COMMITTED
from streampca.sources.zarr.watermark import Rows, first_blank, rows_written
from streampca.store import read_bundle, write_bundle

N, P, ROWS = 50, 6, 16
KINDS = ("v3", "stacked", "objects", "v2", "sharded", "other axis", "3-D", "memory", "crc")


def data(n: int = N, seed: int = 0) -> Any:
    return np.random.default_rng(seed).standard_normal((n, P)) + 2


def expected_checksum(raw: bytes) -> int:
    return google_crc32c.value(raw[:-4]) * 2**31 ^ int.from_bytes(raw[-4:], "big")


class Source:
    """One array of each kind, grown and changed as a writer would."""

    def __init__(self, kind: str, folder: Path) -> None:
        self.kind, self.dim = kind, 1 if kind == "other axis" else 0
        self.place: Any = zarr.storage.MemoryStore() if kind == "memory" else str(folder / "x")
        if kind == "objects":
            self.place = zarr.storage.ObjectStore(obstore.store.MemoryStore())
        shapes = {"other axis": (P, N), "3-D": (N, 2, 3), "stacked": (N, 2, 3)}
        shape: tuple[int, ...] = shapes.get(kind, (N, P))
        chunks = {"other axis": (4, ROWS), "3-D": (ROWS, 1, 3), "stacked": (ROWS, 1, 3)}.get(
            kind, (ROWS, 4)
        )
        more: dict[str, Any] = {}
        if kind == "sharded":
            more, chunks = {"shards": (ROWS, 6)}, (8, 3)
        if kind == "crc":
            more = {"compressors": [zarr.codecs.ZstdCodec(), zarr.codecs.Crc32cCodec()]}
        if kind == "v2":
            more = {"zarr_format": 2}
        self.array = zarr.create_array(self.place, shape=shape, chunks=chunks, dtype="f8", **more)
        self.array[...] = self.laid(data())

    def laid(self, values: Any) -> Any:
        values = values.T if self.kind == "other axis" else values
        return values.reshape(-1, 2, 3) if self.kind in ("3-D", "stacked") else values

    def append(self, values: Any) -> None:
        self.array.append(self.laid(values), axis=self.dim)

    def open(self) -> Any:
        source = zarr.open_array(self.place, mode="r")
        return streampca.open(source, dim=(0, 1) if self.kind == "stacked" else self.dim)

    def fit(self, old: Ledger | None = None) -> tuple[Ledger, Any, Any]:
        """(ledger, the state, the source) of reading all of it once."""
        matrix = self.open()
        source = LedgerSource.of(matrix)
        assert source is not None
        source.keep_checksums()
        seen = source.look()
        model = streampca.IncrementalPCA(2).fit(matrix)
        rows = source.shape[source.dim]
        return source.make(rows, seen, old), model, source

    def compare(self, old: Ledger, full: bool = False) -> Any:
        source = LedgerSource.of(self.open())
        assert source is not None
        return source.compare(old, source.shape[source.dim], source.look(), full)

    def chunk_file(self, row: int) -> Path:
        place = tuple(row if d == self.dim else 0 for d in range(self.array.ndim))
        return Path(self.place) / self.array.metadata.encode_chunk_key(place)


@pytest.fixture(params=KINDS)
def source(request: pytest.FixtureRequest, tmp_path: Path) -> Source:
    return Source(request.param, tmp_path)


local = pytest.mark.parametrize(
    "source", [k for k in KINDS if k not in ("memory", "objects")], indirect=True
)


def test_a_ledger_is_taken_of_what_is_read_anyway(source: Source) -> None:
    ledger, model, seen = source.fit()
    assert ledger.rows == N
    keys = [seen.reader.key(tuple(p)) for p in np.ndindex(ledger.nbytes.shape)]
    stored = [seen.reader.guard.wrapped for _ in keys]
    for key, store, nbytes, crc in zip(keys, stored, ledger.nbytes.flat, ledger.crc32c.flat):
        from zarr.core.buffer import default_buffer_prototype
        from zarr.core.sync import sync

        raw = sync(store.get(key, default_buffer_prototype())).to_bytes()
        assert (nbytes, crc) == (len(raw), expected_checksum(raw))
    if source.kind != "sharded":  # of a shard at the edge Zarr reads parts
        assert set(seen.matrix.checksums()) == set(keys)
        assert model.cost_[0].reads == len(keys)
    tail = np.ascontiguousarray(data()[N // ROWS * ROWS :])
    assert ledger.tail == expected_checksum(tail.tobytes())


def test_checksums_differ_where_chunks_end_with_their_own(tmp_path: Path) -> None:
    """crc32c of something and its crc32c is one number for all; see ``checksum``."""
    ledger, _, source = Source("crc", tmp_path).fit()
    stored = [source.reader.encoded(tuple(p)) for p in np.ndindex(ledger.crc32c.shape)]
    assert len({google_crc32c.value(raw) for raw in stored}) == 1
    assert len(set(ledger.crc32c.flat)) == ledger.crc32c.size


def test_ledgers_rest_in_bundles(source: Source, tmp_path: Path) -> None:
    ledger, _, _ = source.fit()
    again = Ledger.from_saved(*read_bundle(write_bundle(tmp_path / "b", *ledger.to_saved())))
    assert again.digest() == ledger.digest()
    assert str(source.compare(again)) == f"nothing changed: {N} rows"
    with pytest.raises(SourceError, match="not a ledger"):
        Ledger.from_saved({}, {"kind": "model"})


@pytest.mark.parametrize("full", [False, True], ids=["stat", "full"])
def test_changes_are_told_apart(source: Source, full: bool) -> None:
    old, _, _ = source.fit()
    found = source.compare(old, full)
    assert (found.kind, found.checked) == ("nothing", "full" if full else "stat")
    assert (found.read > 0) == full
    source.append(data(5, seed=1))
    found = source.compare(old, full)
    assert (found.kind, found.rows) == ("appended", (N, N + 5))
    new, _, _ = source.fit(old)
    assert source.compare(new, full).kind == "nothing"
    assert new.digest() != old.digest()
    first = (0,) * source.array.ndim
    source.array[first] = 99.0
    found = source.compare(new, full)
    assert found.kind == "changed"
    assert len(found.chunks) == 1
    source.array.resize(
        tuple(30 if d == source.dim else n for d, n in enumerate(source.array.shape))
    )
    assert source.compare(new, full).kind == "removed"


def test_an_old_row_of_the_last_chunk_that_changes_while_rows_are_appended(source: Source) -> None:
    """Appending writes that chunk anew: its old rows are compared by their values."""
    old, _, _ = source.fit()
    last = tuple(N - 1 if d == source.dim else 0 for d in range(source.array.ndim))
    source.array[last] = 99.0
    source.append(data(20, seed=1))
    found = source.compare(old)
    assert found.kind == "changed"
    assert found.chunks == (f"rows {N // ROWS * ROWS} to {N - 1}",)


@local
def test_a_chunk_that_vanished(source: Source) -> None:
    old, _, _ = source.fit()
    source.chunk_file(1).unlink()
    found = source.compare(old)
    assert (found.kind, len(found.chunks)) == ("vanished", 1)


@local
def test_what_was_touched_alone_is_no_change(source: Source) -> None:
    old, _, _ = source.fit()
    path = source.chunk_file(1)
    os.utime(path, ns=(1, 1))
    found = source.compare(old)
    assert (found.kind, found.read) == ("nothing", path.stat().st_size)


@local
def test_a_flipped_bit_under_the_old_time_is_found_by_reading(source: Source) -> None:
    old, _, _ = source.fit()
    path = source.chunk_file(1)
    about, text = path.stat(), bytearray(path.read_bytes())
    rng = np.random.default_rng(3)
    for at in rng.integers(len(text), size=10):
        flipped = bytearray(text)
        flipped[at] ^= 1 << int(rng.integers(8))
        path.write_bytes(flipped)
        os.utime(path, ns=(about.st_atime_ns, about.st_mtime_ns))
        assert source.compare(old).kind == "nothing"
        assert source.compare(old, full=True).kind == "changed"


def test_other_columns_chunks_or_types_are_another_layout(tmp_path: Path) -> None:
    old, _, _ = Source("v3", tmp_path / "a").fit()
    place = str(tmp_path / "a" / "x")
    for shape, chunks, dtype in (
        ((N, P + 1), (ROWS, 4), "f8"),
        ((N, P), (ROWS, 3), "f8"),
        ((N, P), (ROWS, 4), "f4"),
    ):
        zarr.create_array(place, shape=shape, chunks=chunks, dtype=dtype, overwrite=True)[...] = 1
        source = LedgerSource.of(streampca.open(place))
        assert source is not None
        assert source.compare(old, N, source.look()).kind == "relaid"


def test_columns_that_change_places_are_another_layout(tmp_path: Path) -> None:
    group = zarr.create_group(str(tmp_path / "g"))
    for name, dims, values in (("X", ("row", "gene"), data()), ("gene", ("gene",), np.arange(P))):
        made = group.create_array(
            name, shape=values.shape, dtype=values.dtype, dimension_names=dims
        )
        made[...] = values
    layouts = []
    for order in (np.arange(P), np.arange(P)[::-1], np.arange(P)):
        group["gene"][...] = order
        source = LedgerSource.of(streampca.open(str(tmp_path / "g"), variable="X"))
        assert source is not None
        layouts.append(source.layout())
    assert layouts[0] == layouts[2] != layouts[1]


@local
def test_what_cannot_be_decoded_is_damage(source: Source) -> None:
    path = source.chunk_file(1)
    text = path.read_bytes()
    for damage in (text[: len(text) // 2], b"", text[:-9] + bytes(9)):
        path.write_bytes(damage)
        try:
            source.open().read(0, 0, source.open().shape[0])
        except DamagedSourceError:
            continue
        assert damage == text[:-9] + bytes(9), "cut off, and read all the same"


def test_a_chunk_that_changes_between_two_reads_is_refused(source: Source) -> None:
    matrix = source.open()
    seen = LedgerSource.of(matrix)
    assert seen is not None
    seen.keep_checksums()
    before = seen.look()
    matrix.read(0, 0, N)
    first = (0,) * source.array.ndim
    source.array[first] = 99.0
    with pytest.raises(SourceError, match="changed while it was read"):
        matrix.read(0, 0, N)
    with pytest.raises(SourceError, match="changed while it was read"):
        seen.make(N, before)


def test_what_is_no_single_zarr_array_has_no_ledger(tmp_path: Path) -> None:
    assert LedgerSource.of(streampca.open(data())) is None
    assert LedgerSource.of(streampca.open(Source("v3", tmp_path).place)) is not None


@pytest.mark.slow
def test_a_cluster_gives_the_same_ledger(tmp_path: Path, two_workers: Any) -> None:
    source = Source("v3", tmp_path)
    old, _, _ = source.fit()
    matrix = source.open()
    seen = LedgerSource.of(matrix)
    assert seen is not None
    seen.keep_checksums()
    listed = seen.look()
    streampca.IncrementalPCA(2, scheduler=two_workers, batch_size=ROWS).fit(matrix)
    assert len(matrix.checksums()) == old.crc32c.size
    assert seen.make(N, listed).digest() == old.digest()


# -- the watermark -----------------------------------------------------------------------------


def written(source: Source, old: Ledger | None = None, settle: float = 0.0) -> tuple[int, str]:
    seen = LedgerSource.of(source.open())
    assert seen is not None
    seen.keep_checksums()
    found = rows_written(seen, seen.look(), old, settle)
    return found.count, found.why


@local
def test_rows_count_once_they_are_written(source: Source) -> None:
    assert written(source) == (N, "")
    old, _, _ = source.fit()
    longer = tuple(n + 40 * (d == source.dim) for d, n in enumerate(source.array.shape))
    source.array.resize(longer)  # as an append begins
    rows, why = written(source, old)
    assert rows == N
    assert "have not been written" in why
    assert written(source)[0] == N  # without a ledger: its chunk is there, and holds no more
    assert "row 50 holds only the fill value" in written(source)[1]
    assert written(source, settle=60)[0] == N // ROWS * ROWS
    assert "may still be being written" in written(source, settle=60)[1]
    values = data(40, seed=2)
    source.array[
        tuple(slice(N, None) if d == source.dim else slice(None) for d in range(source.array.ndim))
    ] = source.laid(values)
    assert written(source, old) == (N + 40, "")


@local
def test_the_committed_attribute_decides(source: Source) -> None:
    source.array.attrs[COMMITTED] = 30
    assert written(source) == (30, f"{COMMITTED} says 30 of {N}")
    source.array.attrs[COMMITTED] = 10 * N
    assert written(source)[0] == N


def test_absent_chunks_that_are_meant_to_be_count(tmp_path: Path) -> None:
    source = Source("v3", tmp_path)
    source.chunk_file(1).unlink()
    assert written(source)[0] == ROWS
    seen = LedgerSource.of(streampca.open(source.place, missing_chunks="fill"))
    assert seen is not None
    assert rows_written(seen, seen.look(), None, 0.0) == Rows(N, "", N)


def test_a_clock_that_jumps_delays_rows_and_invents_none(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = Source("v3", tmp_path)
    old, _, _ = source.fit()
    source.append(data(20, seed=1))
    now = time.time()
    for jump in (-3600.0, 365 * 86400.0):
        monkeypatch.setattr(time, "time", lambda jump=jump: now + jump)
        assert written(source, old, settle=60)[0] in (48, N, N + 20)
        source.array.resize((N + 200, P))
        assert written(source, old, settle=60)[0] <= N + 30
        source.array.resize((N + 20, P))


def test_what_a_worker_saw_of_rows_is_known_here(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = Source("v3", tmp_path)
    source.array[37:40, :4] = 0
    here = LedgerSource.of(source.open())
    assert here is not None
    here.keep_checksums()
    there = pickle.loads(pickle.dumps(here.matrix))
    there.read(0, 0, 20)
    there.read(0, 20, N)
    here.matrix.add_checksums(there.checksums())
    with monkeypatch.context() as patch:
        patch.setattr(here.reader, "read", None)
        assert first_blank(here, 0, N) == 37
        assert first_blank(here, 38, N) == 38
        assert first_blank(here, 40, N) is None
    assert first_blank(here, 0, N, again=True) == 37
