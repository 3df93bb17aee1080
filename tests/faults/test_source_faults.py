"""F13: rows that are being appended while they are read are counted once they are written."""

from __future__ import annotations

import threading
from pathlib import Path

import numpy as np
import pytest
import zarr

import streampca
from streampca.errors import SourceError
from streampca.sources.zarr.ledger import LedgerSource
from streampca.sources.zarr.watermark import rows_written


@pytest.mark.parametrize("reads", [30, pytest.param(300, marks=pytest.mark.soak)])
def test_no_read_takes_rows_that_are_not_written(reads: int, tmp_path: Path) -> None:
    """A writer appends without pause, seldom in whole chunks; no value that it writes is 0."""
    place = str(tmp_path / "x")
    array = zarr.create_array(place, shape=(10, 5), chunks=(512, 3), dtype="f8")
    array[...] = 1.0
    done = threading.Event()
    failures: list[BaseException] = []

    def write() -> None:
        rng = np.random.default_rng(13)
        try:
            while not done.is_set():
                array.append(np.ones((int(rng.integers(1, 700)), 5)))
        except BaseException as error:
            failures.append(error)

    writer = threading.Thread(target=write)
    writer.start()
    naive, last, old = 0, 0, None
    try:
        for i in range(reads):
            matrix = streampca.open(place, missing_chunks="fill")
            naive += not np.all(matrix.read(0, max(matrix.shape[0] - 200, 0), matrix.shape[0]))
            matrix = streampca.open(place)
            source = LedgerSource.of(matrix)
            assert source is not None
            seen = source.look()
            source.keep_checksums()
            rows = rows_written(source, seen, old).count
            assert rows >= last
            if rows == last:
                continue
            assert np.all(matrix.read(0, last, rows)), f"read {i}: rows {last} to {rows}"
            try:
                old = source.make(rows, seen, old)
            except SourceError:  # the last chunk was written anew meanwhile
                continue
            last = rows
    finally:
        done.set()
        writer.join()
    assert not failures
    assert last > 512
    if reads > 100:
        assert naive, "the writer was never caught half-way"
