"""F5, F6, F7, F14: chunks that are lost, cut, altered, rewritten, or empty on purpose."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import zarr
from zarr.codecs import BloscCodec, Crc32cCodec, GzipCodec, ZstdCodec

import streampca
from streampca.cli import main
from streampca.errors import DamagedSourceError
from streampca.operations.config import check_job
from streampca.operations.refresh import refresh
from streampca.sources.ledger import Ledger
from streampca.sources.zarr.ledger import LedgerSource

N, P, ROWS = 60, 6, 20
CODECS: dict[str, Any] = {
    "none": [],
    "zstd": [ZstdCodec()],
    "zstd with checksum": [ZstdCodec(checksum=True)],
    "gzip": [GzipCodec()],
    "blosc": [BloscCodec(cname="zstd", shuffle="bitshuffle")],
    "crc32c": [Crc32cCodec()],
    "zstd, crc32c": [ZstdCodec(), Crc32cCodec()],
    "gzip, crc32c": [GzipCodec(), Crc32cCodec()],
    "blosc, crc32c": [BloscCodec(), Crc32cCodec()],
}
CHECKED = [name for name in CODECS if "crc32c" in name or name in ("zstd with checksum", "gzip")]
SOME = [
    pytest.param(name, marks=[] if name in ("none", "zstd", "blosc, crc32c") else pytest.mark.slow)
    for name in CODECS
]
pytestmark = pytest.mark.filterwarnings("ignore::streampca.errors.DominantFeatureWarning")


def data(seed: int = 0) -> Any:
    return np.random.default_rng(seed).standard_normal((N, P)).round(1) * np.linspace(4, 1, P) + 3


def make(place: Path, codec: str, sharded: bool = False) -> Any:
    more = {"chunks": (5, P), "shards": (ROWS, P)} if sharded else {"chunks": (ROWS, P)}
    array = zarr.create_array(
        str(place), shape=(N, P), dtype="f8", compressors=CODECS[codec], **more
    )
    array[...] = data()
    return array


@pytest.mark.parametrize("sharded", [False, True], ids=["chunk", "shard"])
@pytest.mark.parametrize("codec", SOME)
def test_a_lost_chunk_is_never_zeros(
    codec: str, sharded: bool, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """F5: whichever; the error has its name, and the exit code is 65."""
    make(tmp_path / "x", codec, sharded)
    for i in range(3):
        path = tmp_path / "x" / "c" / str(i) / "0"
        held = path.read_bytes()
        path.unlink()
        words = ["fit", str(tmp_path / "x"), "-k", "2", "-o", str(tmp_path / "model")]
        assert main(words) == 65
        assert f"'c/{i}/0' is absent" in capsys.readouterr().err
        assert not (tmp_path / "model").exists()
        path.write_bytes(held)
    np.testing.assert_array_equal(streampca.open(str(tmp_path / "x")).read(0, 0, N), data())


def a_ledger(place: Path) -> Ledger:
    matrix = streampca.open(str(place))
    source = LedgerSource.of(matrix)
    assert source is not None
    source.keep_checksums()
    seen = source.look()
    matrix.read(0, 0, N)
    return source.make(N, seen)


def compared(place: Path, old: Ledger, full: bool) -> str:
    source = LedgerSource.of(streampca.open(str(place)))
    assert source is not None
    return source.compare(old, N, source.look(), full).kind


def first_read(place: Path) -> str:
    """What the first read says of the chunks: "refused", "right" or "wrong"."""
    try:
        values = streampca.open(str(place)).read(0, 0, N)
    except DamagedSourceError:
        return "refused"
    return "right" if np.array_equal(values, data()) else "wrong"


@pytest.mark.parametrize("flips", [8, pytest.param(100, marks=pytest.mark.soak)])
@pytest.mark.parametrize("codec", SOME)
def test_an_altered_chunk_is_noticed(codec: str, flips: int, tmp_path: Path) -> None:
    """F6: by its checksum when it is read first; by the ledger of the last fit always, by the time
    of the file, or where that is the old one under the full check."""
    rng = np.random.default_rng(6)
    make(tmp_path / "x", codec)
    old = a_ledger(tmp_path / "x")
    path = tmp_path / "x" / "c" / "1" / "0"
    whole, about = path.read_bytes(), path.stat()
    for at in rng.integers(len(whole), size=flips):
        text = bytearray(whole)
        text[at] ^= 1 << int(rng.integers(8))
        path.write_bytes(text)
        told = first_read(tmp_path / "x")
        assert told in (("refused", "right") if codec in CHECKED else ("refused", "right", "wrong"))
        assert compared(tmp_path / "x", old, full=False) == "changed"
        os.utime(path, ns=(about.st_atime_ns, about.st_mtime_ns))
        assert compared(tmp_path / "x", old, full=False) == "nothing"
        assert compared(tmp_path / "x", old, full=True) == "changed"
    for text in (whole[: len(whole) // 2], b""):
        path.write_bytes(text)
        assert first_read(tmp_path / "x") == "refused"
        assert compared(tmp_path / "x", old, full=False) == "changed"


def test_where_a_flip_cannot_be_noticed_it_is_said(tmp_path: Path) -> None:
    for i, codec in enumerate(CODECS):
        make(tmp_path / f"{i}", codec)
        make(tmp_path / f"{i}s", codec, sharded=True)
        for name in (f"{i}", f"{i}s"):
            job = {
                "source": {"path": str(tmp_path / name)},
                "model": {"n_components": 2},
                "store": str(tmp_path / "models" / name),
                "settle": 0,
            }
            why = refresh(check_job(job, "job"), dry_run=True).why
            assert ("have no checksums" in why) == (codec not in CHECKED)


def test_a_chunk_that_is_empty_on_purpose(tmp_path: Path) -> None:
    """F7: where absent chunks are the fill value, none is missed and none is made up."""
    values = data()
    values[ROWS : 2 * ROWS] = 0
    place = tmp_path / "x"
    array = make(place, "none")
    array[...] = values
    assert not (place / "c" / "1" / "0").exists()
    with pytest.raises(DamagedSourceError, match=r"'c/1/0' is absent.*missing_chunks='fill'"):
        streampca.PCA(2).fit(str(place))
    found = streampca.PCA(2).fit(streampca.open(str(place), missing_chunks="fill"))
    np.testing.assert_array_equal(found.components_, streampca.PCA(2).fit(values).components_)
    job = check_job(
        {
            "source": {"path": str(place), "missing_chunks": "fill"},
            "model": {"n_components": 2},
            "store": str(tmp_path / "models"),
            "settle": 0,
        },
        "job",
    )
    refresh(job)
    assert refresh(job).status == "unchanged"
    assert refresh(job, verify="full").status == "unchanged"
    (place / "c" / "0" / "0").unlink()
    done = refresh(job)
    assert (done.change, done.status) == ("vanished", "published")
    array[0:ROWS] = values[0:ROWS]
    array[ROWS, 0] = 3.0  # one that was empty holds something
    values[ROWS, 0] = 3.0
    assert refresh(job).status == "published"
    expected = np.linalg.svd(values - values.mean(axis=0), compute_uv=False)[:2] ** 2 / (N - 1)
    served = streampca.ModelStore(tmp_path / "models").latest().result()
    np.testing.assert_allclose(np.sort(served.explained_variance)[::-1], expected, rtol=1e-12)
    assert refresh(job).status == "unchanged"


@pytest.mark.parametrize("rounds", [5, pytest.param(100, marks=pytest.mark.soak)])
def test_an_old_chunk_that_is_rewritten_is_in_the_next_version(rounds: int, tmp_path: Path) -> None:
    """F14: whatever cell, of whatever chunk, alone or with an append or with the old time."""
    rng = np.random.default_rng(14)
    array = make(tmp_path / "x", "zstd, crc32c")
    job = check_job(
        {
            "source": {"path": str(tmp_path / "x")},
            "model": {"n_components": 2},
            "store": str(tmp_path / "models"),
            "settle": 0,
        },
        "job",
    )
    refresh(job)
    for round_ in range(rounds):
        row, column = int(rng.integers(array.shape[0])), int(rng.integers(P))
        path = tmp_path / "x" / "c" / str(row // ROWS) / "0"
        about = path.stat()
        array[row, column] = float(array[row, column]) + 1
        hidden = round_ % 3 == 2 and path.stat().st_size == about.st_size
        if hidden:
            os.utime(path, ns=(about.st_atime_ns, about.st_mtime_ns))
        if round_ % 3 == 1:
            array.append(data(round_)[: int(rng.integers(1, ROWS))])
        done = refresh(job, verify="full" if hidden else "stat")
        assert (done.status, done.change) == ("published", "changed"), round_
        X = array[...]
        expected = np.linalg.svd(X - X.mean(axis=0), compute_uv=False)[:2] ** 2 / (len(X) - 1)
        found = streampca.ModelStore(tmp_path / "models").latest().result()
        np.testing.assert_allclose(np.sort(found.explained_variance)[::-1], expected, rtol=1e-12)
        assert found.n_samples == len(X)
