"""Compressed chunks that would grow beyond all bounds when Zarr decodes them.

Chunks of plain arrays are decoded here into buffers of the right size (``zarr_chunks``). Those in
shards, and labels, go through Zarr, which decodes whatever is there: 30 kB of zstd can be 1 GB of
zeros. Frames of zstd, Blosc, LZ4 and gzip say how long they are; that is looked at first.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import numcodecs
import numpy as np

from streampca.errors import DamagedSourceError
from streampca.sources.zarr_chunks import COMPRESSORS, declared_size, is_known

TEXT = 4096  # bytes that a label may have
SLACK = 1 << 20


def carries_checksum(array: Any) -> bool:
    """Whether altered bytes of a chunk are noticed by its codecs alone."""
    metadata = array.metadata
    if metadata.zarr_format == 2:
        return _checks(metadata.compressor.get_config()) if metadata.compressor else False
    codecs = [codec for one in metadata.codecs for codec in getattr(one, "codecs", (one,))]
    return any(_checks(codec.to_dict()) for codec in codecs)


def _checks(codec: Mapping[str, Any]) -> bool:
    settings = codec.get("configuration") or codec
    name = codec.get("name", codec.get("id"))
    return name in ("crc32c", "gzip", "zlib") or bool(settings.get("checksum"))


class FrameLimit:
    """The most bytes that a chunk of one array may decode to.

    compressor : the last that was applied.  trailing : bytes behind its frame (a checksum).
    """

    def __init__(self, compressor: Any, trailing: int, most: int) -> None:
        self.compressor, self.trailing, self.most = compressor, trailing, most

    @classmethod
    def of(cls, array: Any) -> FrameLimit | None:
        """Of a ``zarr.Array``; None where its frames do not say how long they are."""
        dtype = np.dtype(array.dtype)
        width = dtype.itemsize if dtype.kind in "biufcmMSU" else TEXT
        most = 8 * math.prod(int(c) for c in array.chunks) * width + SLACK
        metadata = array.metadata
        if metadata.zarr_format == 2:
            found = metadata.compressor
            return cls(found, 0, most) if found is not None and is_known(found) else None
        return cls.of_codecs(metadata.codecs, most)

    @classmethod
    def of_codecs(cls, codecs: Any, most: int) -> FrameLimit | None:
        """Of the codecs of a chunk, or of the chunks within a shard."""
        trailing = 0
        for codec in reversed(tuple(codecs)):
            name = codec.to_dict()["name"]
            if name in COMPRESSORS:
                return cls(COMPRESSORS[name](), trailing, most)
            if name != "crc32c":
                return None
            trailing += 4
        return None

    def check(self, key: str, encoded: Any) -> None:
        """Raises DamagedSourceError for a chunk that says it is longer."""
        view = memoryview(encoded).cast("B")
        view = view[: len(view) - self.trailing]
        if isinstance(self.compressor, numcodecs.GZip | numcodecs.Zlib):
            size = int.from_bytes(view[-4:], "little") if len(view) > 18 else 0
        else:
            try:
                size = declared_size(self.compressor, view) or 0
            except ValueError:  # no such frame: the codec says so itself
                return
        if size > self.most:
            raise DamagedSourceError(
                f"chunk {key!r} is damaged: it decodes to {size} bytes where at most {self.most} "
                "are expected"
            )
