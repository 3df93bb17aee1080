"""Zarr sources: formats, codecs, grids, packing, and what is refused."""

from __future__ import annotations

import asyncio
import gzip
import pickle
import time
import tracemalloc
from pathlib import Path

import numcodecs
import numpy as np
import pytest
import zarr
import zarr.codecs
import zarr.storage
from zarr.codecs import BloscCodec, BytesCodec, Crc32cCodec, GzipCodec, ZstdCodec

import streampca
from streampca.errors import InvalidInputError, InvalidTypeError, SourceError, hide_secrets
from streampca.sources.stacked import StackedMatrix
from streampca.sources.zarr import location, opening
from streampca.sources.zarr.reader import ZarrReader
from tests.each import each

X = np.random.default_rng(0).standard_normal((53, 21)).astype("f4")


def everything(matrix, axis=0, step=7):
    """All of a matrix, read in slices along axis, each into the same buffer."""
    n = matrix.shape[axis]
    buffer = np.empty(matrix.nbytes, np.uint8)
    parts = [np.array(matrix.read(axis, i, min(i + step, n), buffer)) for i in range(0, n, step)]
    return np.concatenate(parts, axis=axis)


CODECS = {
    "plain": None,
    "zstd": [ZstdCodec(level=1)],
    "gzip and crc32c": [GzipCodec(), Crc32cCodec()],
    "blosc and crc32c": [BloscCodec(cname="zstd", shuffle="bitshuffle"), Crc32cCodec()],
    "crc32c": [Crc32cCodec()],
}


@each("axis", [0, 1])
@each("chunks", [(53, 21), (10, 21), (10, 4), (1, 21), (53, 5)])
@pytest.mark.parametrize("codec", CODECS.values(), ids=CODECS.keys())
def test_v3_codecs_and_grids(tmp_path, codec, chunks, axis):
    store = zarr.create_array(
        str(tmp_path / "x"), shape=X.shape, chunks=chunks, dtype="f4", compressors=codec
    )
    store[:] = X
    matrix = streampca.open(str(tmp_path / "x"))
    assert matrix.reader.decoder is not None
    np.testing.assert_array_equal(everything(matrix, axis), X)
    np.testing.assert_array_equal(matrix.read(1 - axis, 2, 3), X[:, 2:3] if axis == 0 else X[2:3])


@each("axis", [0, 1])
@each("order", ["C", "F"])
@each("dtype", ["<f4", ">f8", "i2", "u1", "bool"])
def test_v2_orders_and_dtypes(tmp_path, order, dtype, axis):
    values = (X > 0) if dtype == "bool" else (40 + 10 * X).astype(dtype)
    store = zarr.create_array(
        str(tmp_path / "x"), shape=X.shape, chunks=(9, 8), dtype=dtype, zarr_format=2, order=order
    )
    store[:] = values
    found = everything(streampca.open(store), axis)
    np.testing.assert_array_equal(found, values)
    assert found.dtype.isnative


def test_big_endian_v3_and_codecs_that_zarr_decodes_itself(tmp_path):
    big = zarr.create_array(
        str(tmp_path / "b"),
        shape=X.shape,
        chunks=(9, 8),
        dtype="f4",
        serializer=BytesCodec(endian="big"),
    )
    big[:] = X
    np.testing.assert_array_equal(everything(streampca.open(big)), X)
    filtered = zarr.create_array(
        str(tmp_path / "t"),
        shape=X.shape,
        chunks=(9, 8),
        dtype="f4",
        filters=[zarr.codecs.TransposeCodec(order=(1, 0))],
    )
    filtered[:] = X
    matrix = streampca.open(filtered)
    assert matrix.reader.decoder is None
    np.testing.assert_array_equal(everything(matrix), X)
    assert matrix.reads().nbytes == X.nbytes


def test_shards_are_read_whole(tmp_path):
    store = zarr.create_array(
        str(tmp_path / "s"), shape=(60, 20), chunks=(5, 20), shards=(20, 20), dtype="f8"
    )
    store[:] = np.arange(1200.0).reshape(60, 20)
    matrix = streampca.open(store)
    assert matrix.chunk_edges(0).tolist() == [0, 20, 40, 60]
    np.testing.assert_array_equal(everything(matrix, step=20), store[:])
    assert matrix.reads().chunks == 3


@pytest.mark.parametrize("location", ["start", "end"])
def test_chunks_never_written_into_a_shard_are_refused(tmp_path, location):
    codec = zarr.codecs.ShardingCodec(chunk_shape=(5, 8), index_location=location)
    path = str(tmp_path / "s")
    store = zarr.create_array(
        path,
        shape=X.shape,  # 53 x 21: inner chunks beyond the edge are not missed
        chunks=(20, 24),
        dtype="f4",
        serializer=codec,
        compressors=None,
    )
    assert store.shards == (20, 24)
    store[:] = X
    np.testing.assert_array_equal(everything(streampca.open(path), step=20), X)
    np.testing.assert_array_equal(streampca.open(path).read(1, 3, 6), X[:, 3:6])
    partly = zarr.open_array(path, mode="r+")
    partly[25:30, 8:16] = 0  # as if it had never been written: the fill value
    for axis, step in ((0, 20), (0, 10), (1, 5)):
        with pytest.raises(SourceError, match=r"chunk \(1, 1\) of shard 'c/1/0'.*never written"):
            everything(streampca.open(path), axis, step)
    filled = everything(streampca.open(path, missing_chunks="fill"), step=20)
    np.testing.assert_array_equal(filled, partly[:])


def test_nested_shards_cannot_be_checked_and_are_refused(tmp_path):
    inner = zarr.codecs.ShardingCodec(chunk_shape=(5, 21))
    path = str(tmp_path / "n")
    zarr.create_array(
        path,
        shape=X.shape,
        chunks=(20, 21),
        dtype="f4",
        serializer=zarr.codecs.ShardingCodec(chunk_shape=(10, 21), codecs=[inner]),
        compressors=None,
    )[:] = X
    with pytest.raises(InvalidInputError, match="nested"):
        streampca.open(path)
    np.testing.assert_array_equal(everything(streampca.open(path, missing_chunks="fill")), X)


class Hangs(zarr.storage.WrapperStore):
    """Never answers for one chunk."""

    async def get(self, key, prototype, byte_range=None):
        if key.endswith("c/2/0"):
            await asyncio.sleep(3600)
        return await self._store.get(key, prototype, byte_range)


@pytest.mark.parametrize("shards", [None, (10, 21)])
def test_a_read_that_gets_no_answer_fails(shards):
    store = Hangs(zarr.storage.MemoryStore())
    array = zarr.create_array(store, shape=X.shape, chunks=(5, 21), shards=shards, dtype="f4")
    array[:20] = X[:20]
    with zarr.config.set({"async.timeout": 0.3}):
        matrix = pickle.loads(pickle.dumps(StackedMatrix(ZarrReader(array))))
    assert ZarrReader(array).guard.timeout == 300
    begun = time.monotonic()
    with pytest.raises(SourceError, match=r"no answer for 'c/2/0'.*0\.3 s.*async.timeout"):
        everything(matrix, step=5)
    assert time.monotonic() - begun < 60  # and not an hour


def test_metadata_that_get_no_answer(monkeypatch):
    ended = []

    async def never(**settings):
        try:
            await asyncio.sleep(3600)
        finally:
            ended.append("cancelled")

    monkeypatch.setattr(opening, "store_at", lambda *_: None)  # needs aiohttp
    monkeypatch.setattr(opening.asynchronous, "open", never)
    with (
        zarr.config.set({"async.timeout": 0.2}),
        pytest.raises(SourceError, match="no answer for its metadata from https://host/x "),
    ):
        opening.open_array("https://me:pw@host/x?sig=1")
    assert ended == ["cancelled"]  # and not left to Zarr's event loop


def test_stores_that_are_not_files(tmp_path):
    store = zarr.storage.MemoryStore()
    array = zarr.create_array(store, shape=X.shape, chunks=(10, 4), dtype="f4")
    array[:] = X
    matrix = streampca.open(array)
    np.testing.assert_array_equal(everything(matrix, step=10), X)
    assert matrix.reads().chunks == 36
    assert matrix.reads().stored > 0
    path = str(tmp_path / "x.zip")
    with zarr.storage.ZipStore(path, mode="w") as packed:
        zarr.create_array(packed, shape=X.shape, chunks=(10, 21), dtype="f4")[:] = X
    np.testing.assert_array_equal(everything(streampca.open(path)), X)


def test_packed_data_are_decoded(tmp_path):
    stored = (10 * X).round().astype("i2")
    stored[3, 4] = -999
    array = zarr.create_array(
        str(tmp_path / "p"),
        shape=X.shape,
        chunks=(10, 21),
        dtype="i2",
        attributes={"scale_factor": 0.1, "add_offset": 5.0, "_FillValue": -999},
    )
    array[:] = stored
    expected = stored * 0.1 + 5.0
    expected[3, 4] = np.nan
    matrix = streampca.open(array)
    assert matrix.dtype == np.float64  # as xarray chooses
    np.testing.assert_array_equal(everything(matrix), expected)
    wide = zarr.create_array(
        str(tmp_path / "w"), shape=(4, 2), chunks=(4, 2), dtype="i4", attributes={"scale_factor": 2}
    )
    wide[:] = 7
    assert streampca.open(wide).dtype == np.float64
    np.testing.assert_array_equal(everything(streampca.open(wide)), np.full((4, 2), 14.0))
    code = zarr.create_array(
        str(tmp_path / "c"),
        shape=(3, 2),
        chunks=(3, 2),
        dtype="f4",
        attributes={"missing_value": 1e20},
    )
    code[:] = np.array([[1, 1e20], [2, 3], [4, 5]])
    assert np.isnan(everything(streampca.open(code))[0, 1])
    model = streampca.PCA(2, missing="mean").fit(array)
    np.testing.assert_allclose(model.mean_, np.nanmean(expected, axis=0), rtol=1e-5)


@pytest.mark.parametrize(
    ("dtype", "fill", "holes"),
    [
        ("i1", -9999, 0),
        ("i1", -15, 1),
        ("u1", -1, 0),
        ("i2", 1e20, 0),
        ("i2", -9999.5, 0),
        ("i8", 2**63 - 1, 1),
        ("f4", 1e20, 1),
    ],
)
def test_codes_that_the_dtype_cannot_hold_are_no_codes(tmp_path, dtype, fill, holes):
    fits = np.dtype(dtype).kind == "f" or (holes and fill not in (-15,))
    values = np.array([[3, fill if fits else (241 if dtype == "u1" else -15)], [1, 2]]).astype(
        dtype
    )
    array = zarr.create_array(
        str(tmp_path / "x"),
        shape=(2, 2),
        dtype=dtype,
        attributes={"_FillValue": fill, "add_offset": 4},
    )
    array[:] = values
    found = everything(streampca.open(array))
    assert np.isnan(found).sum() == holes
    np.testing.assert_array_equal(found[1], [5, 6])


def test_more_dimensions_and_their_names(tmp_path):
    group = zarr.open_group(str(tmp_path / "g.zarr"), mode="w")
    values = np.arange(4 * 6 * 5, dtype="f8").reshape(4, 6, 5)
    group.create_array(
        "t",
        shape=values.shape,
        chunks=(2, 3, 5),
        dtype="f8",
        dimension_names=("lat", "time", "lon"),
    )[:] = values
    group.create_array("lat", shape=(4,), dtype="f8", dimension_names=("lat",))[:] = [
        10,
        20,
        30,
        40,
    ]
    path = str(tmp_path / "g.zarr")
    for dim in ("time", 1, -2):
        matrix = streampca.open(path, dim=dim)
        assert matrix.shape == (6, 20)
        expected = values.transpose(1, 0, 2).reshape(6, 20)
        for axis in (0, 1):
            np.testing.assert_array_equal(everything(matrix, axis, 3), expected)
    assert matrix.labels.features.name(6) == "lat=20.0, lon=1"
    two = streampca.open(path, dim=["time", "lat"])
    np.testing.assert_array_equal(everything(two, 0, 4), values.transpose(1, 0, 2).reshape(24, 5))
    with pytest.raises(InvalidInputError, match=r"lat.*time.*lon"):
        streampca.open(path, dim="depth")
    np.testing.assert_array_equal(everything(streampca.open(path), 0, 3), expected)  # along "time"
    path = tmp_path / "untimed.zarr"
    zarr.create_array(
        str(path), shape=values.shape, dtype="f8", dimension_names=("lat", "level", "lon")
    )
    with pytest.raises(InvalidInputError, match=r"lat.*level.*lon.*dim='lat'"):
        streampca.open(str(path))


def test_absent_chunks_are_refused_or_filled(tmp_path):
    path = tmp_path / "x.zarr"
    zarr.create_array(str(path), shape=X.shape, chunks=(10, 21), dtype="f4", fill_value=3)[:] = X
    (path / "c" / "2" / "0").unlink()
    with pytest.raises(SourceError, match=r"'c/2/0' is absent.*missing_chunks='fill'"):
        streampca.PCA(2).fit(str(path))
    filled = everything(streampca.open(str(path), missing_chunks="fill"))
    assert np.all(filled[20:30] == 3)
    np.testing.assert_array_equal(filled[30:], X[30:])
    with pytest.raises(InvalidInputError, match="missing_chunks"):
        streampca.open(str(path), missing_chunks="ignore")


@pytest.mark.parametrize(
    ("codec", "damage"),
    [(name, "truncated") for name in CODECS]
    + [(name, "flipped") for name in CODECS if "crc32c" in name],  # others cannot tell
)
def test_damaged_chunks_are_refused(tmp_path, codec, damage):
    path = tmp_path / "x.zarr"
    zarr.create_array(
        str(path), shape=X.shape, chunks=(10, 21), dtype="f4", compressors=CODECS[codec]
    )[:] = X
    chunk: Path = path / "c" / "1" / "0"
    data = bytearray(chunk.read_bytes())
    if damage == "truncated":
        data = data[: len(data) // 2]
    else:
        data[len(data) // 2] ^= 16
    chunk.write_bytes(data)
    with pytest.raises(SourceError, match="'c/1/0' is damaged"):
        everything(streampca.open(str(path)))


SHORT = {
    "zstd": ([ZstdCodec(level=1)], numcodecs.Zstd(level=1).encode),
    "zstd with checksum": ([ZstdCodec(checksum=True)], numcodecs.Zstd(checksum=True).encode),
    "gzip": ([GzipCodec()], numcodecs.GZip().encode),
    "blosc": ([BloscCodec()], numcodecs.Blosc().encode),
    "plain": (None, bytes),
    "v2 lz4": (numcodecs.LZ4(), numcodecs.LZ4().encode),
    "v2 zlib": (numcodecs.Zlib(), numcodecs.Zlib().encode),
    "v2 zstd": (numcodecs.Zstd(), numcodecs.Zstd().encode),
    "v2 gzip": (numcodecs.GZip(), numcodecs.GZip().encode),
}


@each("nbytes", [0, 4, 836, 844, 1680])  # whole: 840
@pytest.mark.parametrize("name", SHORT)
def test_a_chunk_that_decodes_to_another_size_is_refused(tmp_path, name, nbytes):
    """Whole in itself, with a right checksum, and yet not a chunk of this array."""
    codec, encode = SHORT[name]
    v2 = name.startswith("v2")
    zarr.create_array(
        str(tmp_path / "x"),
        shape=X.shape,
        chunks=(10, 21),
        dtype="f4",
        compressors=codec,
        zarr_format=2 if v2 else 3,
    )[:] = X
    other = np.full(nbytes, 7, np.uint8)
    chunk = tmp_path / "x" / ("1.0" if v2 else "c/1/0")
    chunk.write_bytes(bytes(encode(other)))
    matrix = streampca.open(str(tmp_path / "x"))
    assert matrix.reader.decoder is not None
    with pytest.raises(SourceError, match="is damaged"):
        everything(matrix, step=10)


@pytest.mark.parametrize("codec", ["zstd", "gzip"])
def test_frames_of_other_writers(tmp_path, codec):
    """zstd that was streamed states no size; gzip may come in several members."""
    compressor = ZstdCodec() if codec == "zstd" else GzipCodec()
    path = tmp_path / "x"
    zarr.create_array(
        str(path), shape=X.shape, chunks=(53, 21), dtype="f4", compressors=[compressor]
    )[:] = X
    raw = X.tobytes()
    if codec == "zstd":
        data = streamed_zstd(raw)
    else:
        data = gzip.compress(raw[:1000]) + gzip.compress(raw[1000:])
    (path / "c" / "0" / "0").write_bytes(data)
    np.testing.assert_array_equal(everything(streampca.open(str(path))), X)
    (path / "c" / "0" / "0").write_bytes(data[:-1] if codec == "gzip" else streamed_zstd(raw[4:]))
    with pytest.raises(SourceError, match="is damaged"):
        everything(streampca.open(str(path)))


def streamed_zstd(raw):
    """One zstd frame of uncompressed blocks, no content size (as streaming encoders write)."""
    frame = bytes([0x28, 0xB5, 0x2F, 0xFD, 0x00, 0x38])
    pieces = [raw[i : i + 1000] for i in range(0, len(raw), 1000)]
    for i, piece in enumerate(pieces):
        frame += (len(piece) << 3 | (i == len(pieces) - 1)).to_bytes(3, "little") + piece
    return frame


def test_a_small_frame_cannot_grow_without_bound(tmp_path):
    path = tmp_path / "x"
    zarr.create_array(
        str(path), shape=X.shape, chunks=(53, 21), dtype="f4", compressors=[GzipCodec()]
    )[:] = X
    (path / "c" / "0" / "0").write_bytes(gzip.compress(bytes(100_000_000)))
    tracemalloc.start()
    with pytest.raises(SourceError, match="is damaged"):
        everything(streampca.open(str(path)))
    assert tracemalloc.get_traced_memory()[1] < 10_000_000
    tracemalloc.stop()


def test_what_is_not_a_source(tmp_path):
    (tmp_path / "empty").mkdir()
    with pytest.raises(SourceError, match="no Zarr array or group"):
        streampca.open(str(tmp_path / "empty"))
    (tmp_path / "x.dat").write_bytes(b"abc")
    with pytest.raises(SourceError, match="not a format"):
        streampca.open(str(tmp_path / "x.dat"))
    text = zarr.create_array(str(tmp_path / "t"), shape=(3,), dtype="i4")
    with pytest.raises(InvalidInputError, match="1D array"):
        streampca.open(text)
    compound = zarr.create_array(str(tmp_path / "c"), shape=(3, 2), dtype="complex64")
    with pytest.raises(InvalidTypeError, match="Complex"):
        streampca.PCA(1).fit(compound)


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("https://me:pw@host:81/a/b.zarr?sig=x&y=z", "https://host:81/a/b.zarr"),
        ("s3://bucket/key", "s3://bucket/key"),
        (
            "<FsspecStore(HTTPFileSystem, https://me:pw@host/x.zarr?sig=x)>",
            "<FsspecStore(HTTPFileSystem, https://host/x.zarr)>",
        ),
        (
            "simplecache::https://me:p@w@host/x and ftp://a@b/c#d",
            "simplecache::https://host/x and ftp://b/c",
        ),
        ("C:\\data\\x.zarr", "C:\\data\\x.zarr"),
        ("file:///data/me@home/x.zarr", "file:///data/me@home/x.zarr"),
        ("no url? really @home", "no url? really @home"),
    ],
)
def test_secrets_are_hidden_wherever_a_url_stands(text, shown):
    assert hide_secrets(text) == shown


def test_an_absent_remote_chunk_is_named_without_credentials():
    class Web(zarr.storage.WrapperStore):
        def __str__(self):
            return "<FsspecStore(HTTPFileSystem, https://me:pw@host/x.zarr?sig=s3cret)>"

    store = Web(zarr.storage.MemoryStore())
    zarr.create_array(store, shape=X.shape, chunks=(10, 21), dtype="f4")
    with pytest.raises(SourceError, match="is absent") as caught:
        everything(streampca.open(zarr.open_array(store, mode="r")))
    assert "pw" not in str(caught.value)
    assert "s3cret" not in str(caught.value)


@pytest.mark.parametrize("kind", ["local", "memory", "zip", "fsspec local", "fsspec memory"])
def test_the_stamp_of_a_store_follows_its_chunks(tmp_path, kind):
    def made(name):
        if kind == "memory":
            return zarr.storage.MemoryStore()
        if kind == "zip":
            return zarr.storage.ZipStore(tmp_path / name, mode="w")
        if kind == "local":
            return zarr.storage.LocalStore(tmp_path / name)
        scheme, options = ("file", {"auto_mkdir": True}) if "local" in kind else ("memory", {})
        return zarr.storage.FsspecStore.from_url(
            f"{scheme}://{tmp_path}/{name}", storage_options=options, read_only=False
        )

    store = made("a")
    array = zarr.create_array(store, name="inner/x", shape=X.shape, chunks=(10, 21), dtype="f4")
    array[:] = X
    first = location.stamp(store, "inner/x")
    assert first == location.stamp(store, "inner/x")
    time.sleep(0.02)
    if kind == "zip":
        store.close()
        (tmp_path / "a").touch()
    else:
        array[20:30] = X[20:30] + 1
    assert location.stamp(store, "inner/x") != first
    assert location.UNKNOWN not in first


def test_a_store_that_cannot_be_listed_is_known_to_this_process_only():
    class Opaque(zarr.storage.WrapperStore):
        pass

    assert location.stamp(Opaque(zarr.storage.MemoryStore()), "x") == location.UNKNOWN
