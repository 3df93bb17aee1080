"""The header of a .pgen: how many variants and samples it holds, and whether all of it is there.

Source: PGEN specification, "Header".
"""

from __future__ import annotations

import os
import struct
from dataclasses import dataclass
from typing import Any, BinaryIO

import numpy as np

from streampca.errors import SourceError

MAGIC = b"\x6c\x1b"
FIXED = {2: (0, False), 3: (2, True), 4: (4, True)}  # mode -> further bytes of a call, dosages
VARIABLE, INDEXED = (0x10, 0x11), (0x20, 0x21)  # the latter with a header of its own, a .pgi
INDEX_MODES = (0x30, 0x31)
BLOCK = 65536  # variants of a part of the header
SEVERAL, DOSAGE = 0x08, 0x60  # bits of the type of a record
OFFSET = 12  # bytes before the tables of a header


@dataclass(frozen=True)
class Header:
    """What a .pgen says of itself.

    several : numbers of the variants with calls of further alleles than the first two.
    largest : bytes of the longest record.
    """

    n_variants: int
    n_samples: int
    dosages: bool
    several: np.ndarray[Any, Any]
    largest: int


def read_header(path: str) -> Header:
    """The header of a .pgen, compared with the length of the file.

    Cost: 1 to 5 bytes read for each variant.
    Raises SourceError for other files, for truncated ones and for headers that contradict
    themselves.
    """
    try:
        with open(path, "rb") as file:
            head, size = file.read(OFFSET), os.fstat(file.fileno()).st_size
            mode = _mode(path, head, size)
            if mode in INDEXED:
                return _of_index(path, mode, size)
            if mode in VARIABLE:
                return _of_records(path, file, head, size, mode == VARIABLE[0])
            return _of_fixed(path, head, mode, size)
    except OSError as error:
        raise SourceError(f"{path}: {error.strerror or error}") from None


def _mode(path: str, head: bytes, size: int) -> int:
    if head[:2] != MAGIC:
        raise SourceError(
            f"{path} does not begin with the two bytes of a .pgen (6c 1b); got "
            f"{head[:2].hex(' ') or 'nothing'}"
        )
    mode = head[2] if len(head) > 2 else -1
    if mode in (0, 1):
        raise SourceError(
            f"{path} is a .bed of PLINK 1 by its third byte; name it {path[:-5]}.bed, and its "
            "tables .bim and .fam"
        )
    if len(head) < OFFSET and mode not in INDEXED:
        raise SourceError(f"{path} is truncated: {size} bytes, the header alone has {OFFSET}")
    if mode not in (*FIXED, *VARIABLE, *INDEXED):
        raise SourceError(f"{path}: layout byte {mode:02x}; expected 02, 03, 04, 10, 11, 20 or 21")
    return mode


def _of_fixed(path: str, head: bytes, mode: int, size: int) -> Header:
    n_variants, n_samples, control = struct.unpack("<IIB", head[3:OFFSET])
    further, dosages = FIXED[mode]
    record = -(-n_samples // 4) + further * n_samples
    flags = -(-n_variants // 8) if control >> 6 == 3 else 0
    _compare(path, size, OFFSET + flags + n_variants * record, exactly=True)
    return Header(n_variants, n_samples, dosages, np.zeros(0, np.int64), record)


def _of_index(path: str, mode: int, size: int) -> Header:
    index = f"{path}.pgi"
    if not os.path.isfile(index):
        raise SourceError(f"{index}: no such file; {path} has its header there")
    with open(index, "rb") as file:
        head = file.read(OFFSET)
        if len(head) < OFFSET or head[:2] != MAGIC or head[2] not in INDEX_MODES:
            raise SourceError(f"{index} is not the header of a .pgen")
        return _of_records(path, file, head, size, mode == INDEXED[0])


def _of_records(path: str, file: BinaryIO, head: bytes, size: int, exactly: bool) -> Header:
    """The header of records of any length: it lists their types and lengths, in blocks."""
    n_variants, n_samples, control = struct.unpack("<IIB", head[3:OFFSET])
    storage, counts, flags = control & 15, control >> 4 & 3, control >> 6
    if storage & 8:  # one sample, or few: types and lengths share bits; pgenlib checks them
        return Header(n_variants, n_samples, storage in (12, 14), np.zeros(0, np.int64), n_samples)
    wide, length = storage & 4 > 0, (storage & 3) + 1
    n_blocks = -(-n_variants // BLOCK)
    if 8 * n_blocks > size:
        raise _truncated(path)
    places = np.frombuffer(_exactly(path, file, 8 * n_blocks), "<u8").astype(np.int64)
    several, dosages, end, largest = [np.zeros(0, np.int64)], False, 0, 0
    for block in range(n_blocks):
        first, m = block * BLOCK, min(BLOCK, n_variants - block * BLOCK)
        types = np.frombuffer(_exactly(path, file, m if wide else -(-m // 2)), np.uint8)
        if not wide:
            types = np.stack([types & 15, types >> 4], axis=1).reshape(-1)[:m]
        each = np.frombuffer(_exactly(path, file, m * length), np.uint8).reshape(m, length)
        lengths = each.astype(np.int64) @ (1 << 8 * np.arange(length, dtype=np.int64))
        _exactly(path, file, m * counts + (-(-m // 8) if flags == 3 else 0))
        if places[block] < end:
            raise SourceError(f"{path}: variants {first} to {first + m} overlap those before them")
        end, largest = int(places[block] + lengths.sum()), max(largest, int(lengths.max()))
        several.append(first + np.flatnonzero(types & SEVERAL))
        dosages = dosages or bool(np.any(types & DOSAGE))
    _compare(path, size, end, exactly)
    return Header(n_variants, n_samples, dosages, np.concatenate(several), largest)


def _exactly(path: str, file: BinaryIO, size: int) -> bytes:
    data = file.read(size)
    if len(data) < size:
        raise _truncated(path)
    return data


def _truncated(path: str) -> SourceError:
    return SourceError(f"{path} is truncated: it ends within its header")


def _compare(path: str, size: int, expected: int, exactly: bool) -> None:
    if size < expected or (exactly and size > expected):
        kind = "truncated" if size < expected else "longer than its header says"
        raise SourceError(f"{path} is {kind}: {size} bytes, expected {expected}")
