"""F31: chunks that were cut short, for every codec, both formats of Zarr, and in shards."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import numcodecs
import numpy as np
import pytest
import zarr
from zarr.codecs import (
    BloscCodec,
    BytesCodec,
    Crc32cCodec,
    GzipCodec,
    ShardingCodec,
    TransposeCodec,
    ZstdCodec,
)

import streampca
from streampca.errors import DamagedSourceError
from streampca.operations.config import check_job
from streampca.operations.refresh import refresh

N, P, ROWS = 60, 40, 20
CUT = r"damaged|cut off"
SHARES = (0, 0.25, 0.5, 0.75, 0.9, 0.99)
DELTA = numcodecs.Delta("f8")
CASES: dict[str, tuple[int, dict[str, Any]]] = {  # Zarr format, how it is made
    **{
        f"v2 {name}": (2, {"compressors": codec})
        for name, codec in {
            "none": None,
            "blosc lz4": numcodecs.Blosc("lz4"),
            "blosc zstd": numcodecs.Blosc("zstd", shuffle=2),
            "blosc zlib": numcodecs.Blosc("zlib", shuffle=0),
            "blosc stored": numcodecs.Blosc("lz4", clevel=0),
            "zstd": numcodecs.Zstd(),
            "lz4": numcodecs.LZ4(),
            "gzip": numcodecs.GZip(),
            "zlib": numcodecs.Zlib(),
            "bz2": numcodecs.BZ2(),
            "lzma": numcodecs.LZMA(),
        }.items()
    },
    "v2 blosc, delta": (2, {"compressors": numcodecs.Blosc(), "filters": [DELTA]}),
    "v2 zstd, delta": (2, {"compressors": numcodecs.Zstd(), "filters": [DELTA]}),
    "v2 none, delta": (2, {"compressors": None, "filters": [DELTA]}),
    "v2 none, packed bits": (
        2,
        {"compressors": None, "filters": [numcodecs.FixedScaleOffset(0, 8, "f8", "i2")]},
    ),
    **{
        f"v3 {name}": (3, {"compressors": codecs})
        for name, codecs in {
            "none": [],
            "blosc": [BloscCodec(cname="lz4")],
            "zstd": [ZstdCodec()],
            "gzip": [GzipCodec()],
            "crc32c": [Crc32cCodec()],
            "blosc, crc32c": [BloscCodec(), Crc32cCodec()],
        }.items()
    },
    "v3 blosc, turned": (
        3,
        {"compressors": [BloscCodec()], "filters": [TransposeCodec(order=(1, 0))]},
    ),
    "v3 numcodecs.blosc": (3, {"compressors": [lambda: zarr.codecs.numcodecs.Blosc()]}),
    "v3 numcodecs.lz4": (3, {"compressors": [lambda: zarr.codecs.numcodecs.LZ4()]}),
    "v3 zstd twice": (3, {"compressors": [ZstdCodec(), ZstdCodec()]}),
    "v3 blosc twice": (3, {"compressors": [BloscCodec(), BloscCodec()]}),
    **{
        f"v3 shard of {name}": (3, {"compressors": codecs, "shards": (ROWS, P)})
        for name, codecs in {"none": [], "blosc": [BloscCodec()], "zstd": [ZstdCodec()]}.items()
    },
}
BLOSC = ("v2 blosc lz4", "v2 blosc, delta", "v3 blosc", "v3 shard of blosc")


def data() -> Any:
    rng = np.random.default_rng(31)
    return (rng.integers(-99, 99, (N, P)) / 8).astype("f8")


def make(place: Path, case: str, **more: Any) -> Any:
    zarr_format, how = CASES[case]
    if "numcodecs" in case:  # which warns when it is made
        how = {"compressors": [one() for one in how["compressors"]]}
    chunks = (5, P) if "shards" in how else (ROWS, P)
    array = zarr.create_array(
        str(place),
        shape=(N, P),
        dtype="f8",
        chunks=chunks,
        zarr_format=zarr_format,
        **{**how, **more},
    )
    array[...] = data()
    return array


def chunk_of(place: Path) -> Path:
    return place / "1.0" if (place / "1.0").exists() else place / "c" / "1" / "0"


@pytest.mark.filterwarnings("ignore:Numcodecs codecs are not")
@pytest.mark.parametrize(
    "case",
    [
        pytest.param(case, marks=[] if number % 4 == 1 or case in BLOSC else [pytest.mark.slow])
        for number, case in enumerate(CASES)
    ],
)
def test_a_cut_chunk_is_refused(case: str, tmp_path: Path) -> None:
    """By name, whatever is left of it; by a read of a few rows, too."""
    make(tmp_path / "x", case)
    matrix = streampca.open(str(tmp_path / "x"))
    np.testing.assert_array_equal(matrix.read(0, 0, N), data())
    path = chunk_of(tmp_path / "x")
    whole = path.read_bytes()
    cuts = {int(share * len(whole)) for share in SHARES} | {len(whole) - 1, len(whole) - 4}
    for end in sorted(cuts):
        path.write_bytes(whole[:end])
        for first, last in ((0, N), (ROWS, 2 * ROWS), (ROWS + 5, ROWS + 10), (38, 39)):
            with pytest.raises(DamagedSourceError, match=CUT):
                streampca.open(str(tmp_path / "x")).read(0, first, last)


LABELS = pytest.mark.parametrize("name", ["v2 none", "v2 blosc lz4", "v2 zstd", "v3 blosc"])


@LABELS
def test_a_cut_chunk_of_labels_is_refused(name: str, tmp_path: Path) -> None:
    zarr_format, how = CASES[name]
    group = zarr.create_group(str(tmp_path / "x"), zarr_format=zarr_format)
    for array, values in (("t", data()), ("time", np.arange(N))):
        dims: Any = ["time", "x"][: values.ndim]
        named: dict[str, Any] = {"dimension_names": dims}
        if zarr_format == 2:
            named = {"attributes": {"_ARRAY_DIMENSIONS": dims}}
        fill = {"fill_value": None if zarr_format == 2 else 0}
        made = group.create_array(
            array,
            shape=values.shape,
            dtype=values.dtype,
            chunks=values.shape,
            **how,
            **named,
            **fill,
        )
        made[...] = values
    assert streampca.open(str(tmp_path / "x")).labels.samples.coords["time"][-1] == N - 1
    path = next(p for p in (tmp_path / "x" / "time").rglob("0") if p.is_file())
    whole = path.read_bytes()
    for share in SHARES:
        path.write_bytes(whole[: int(share * len(whole))])
        with pytest.raises(DamagedSourceError, match=CUT):
            streampca.open(str(tmp_path / "x"))


@pytest.mark.parametrize("index", ["start", "end", "end, no checksum"])
@pytest.mark.parametrize(
    "compressors", [[], [BloscCodec()], [ZstdCodec()]], ids=["none", "blosc", "zstd"]
)
def test_a_shard_that_is_cut_anywhere_is_refused(
    compressors: Any, index: str, tmp_path: Path
) -> None:
    """The index may be whole: it says where the chunks were."""
    index_codecs = [BytesCodec()] if "no" in index else [BytesCodec(), Crc32cCodec()]
    codec = ShardingCodec(
        chunk_shape=(5, P),
        codecs=[BytesCodec(), *compressors],
        index_codecs=index_codecs,
        index_location=index[:5].strip(", "),
    )
    array = zarr.create(
        store=str(tmp_path / "x"),
        shape=(N, P),
        chunks=(ROWS, P),
        dtype="f8",
        zarr_format=3,
        codecs=[codec],
    )
    array[...] = data()
    np.testing.assert_array_equal(streampca.open(str(tmp_path / "x")).read(0, 0, N), data())
    path = chunk_of(tmp_path / "x")
    whole = path.read_bytes()
    for share in SHARES:
        path.write_bytes(whole[: int(share * len(whole))])
        for missing in ("error", "fill"):
            matrix = streampca.open(str(tmp_path / "x"), missing_chunks=missing)
            with pytest.raises(DamagedSourceError):
                matrix.read(0, ROWS, 2 * ROWS)
        if index == "start":
            with pytest.raises(DamagedSourceError):
                streampca.open(str(tmp_path / "x")).read(0, 2 * ROWS - 1, 2 * ROWS)


@pytest.mark.parametrize("name", ["v2 blosc lz4", "v3 zstd"])
def test_a_cut_chunk_is_not_published(name: str, tmp_path: Path) -> None:
    """Whether it was read before or is new, and with the old time of its file: 65, and why."""
    place = tmp_path / "x"
    array = make(place, name)
    job = check_job(
        {
            "source": {"path": str(place)},
            "model": {"n_components": 2},
            "store": str(tmp_path / "models"),
            "settle": 0,
        },
        "job",
    )
    refresh(job)
    assert refresh(job).status == "unchanged"
    path = chunk_of(place)
    whole, about = path.read_bytes(), path.stat()
    for share in SHARES[1:]:
        path.write_bytes(whole[: int(share * len(whole))])
        os.utime(path, ns=(about.st_atime_ns, about.st_mtime_ns))
        with pytest.raises(DamagedSourceError, match="damaged"):
            refresh(job)
    path.write_bytes(whole)
    array.append(data()[:ROWS])
    path = path.with_name("3.0") if path.name == "1.0" else place / "c" / "3" / "0"
    path.write_bytes(path.read_bytes()[:-5])
    with pytest.raises(DamagedSourceError, match="damaged"):
        refresh(job)
    assert len(streampca.ModelStore(tmp_path / "models").versions()) == 1
