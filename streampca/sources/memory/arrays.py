"""Arrays in memory: NumPy, masked ones too, lists and data frames."""

from __future__ import annotations

import copy
import hashlib
import warnings
from typing import Any, cast

import numpy as np

from streampca.errors import InvalidTypeError
from streampca.matrix import ChunkedMatrix, Labels, ReadCount
from streampca.matrix.block import check_dtype
from streampca.matrix.kinds import from_tensor, refuse_gpu
from streampca.sources.stacked import Dim, Index, Reader, Tally, stack
from streampca.sources.tables.frames import (
    feature_names,
    frame_values,
    held_nbytes,
    is_frame,
    refuse_rounded_objects,
    without_index,
)
from streampca.sources.tables.row_names import FIRST_ROWS, ask_about, suspects

# Arrays in memory.

SAMPLED_NBYTES = 1 << 16


class ArrayReader(Reader):
    """An array in memory.  loads : libraries of the object that holds it."""

    plain = True

    def __init__(self, array: np.ndarray[Any, Any], loads: tuple[str, ...] = ()) -> None:
        self.array, self.loads = array, loads
        self.given_nbytes, self.carried_nbytes = resident_part(array), array.nbytes
        self.shape = array.shape
        self.dtype = array.dtype.newbyteorder("=")
        self.offset: tuple[int, int] | None = None  # (dim, start) of a part
        self.tally = Tally()

    def read(self, index: Index) -> np.ndarray[Any, Any]:
        values = self.array[self._inside(index)]
        self.tally.add(ReadCount(1, values.nbytes))
        return values if values.dtype == self.dtype else values.astype(self.dtype)

    def _inside(self, index: Index) -> Index:
        """A hyperrectangle relative to the array of a part."""
        if self.offset is None:
            return index
        dim, start = self.offset
        moved = slice(index[dim].start - start, index[dim].stop - start)
        return (*index[:dim], moved, *index[dim + 1 :])

    def edges(self, dim: int) -> np.ndarray[Any, Any] | None:
        return None

    def part(self, dim: int, start: int, stop: int) -> Reader:
        smaller = copy.copy(self)
        smaller.array = self.array[self._cut(dim, start, stop)]
        smaller.offset, smaller.tally = (dim, start), Tally()
        return smaller

    def _cut(self, dim: int, start: int, stop: int) -> Index:
        base = self.offset[1] if self.offset is not None else 0
        return tuple(
            slice(start - base, stop - base) if d == dim else slice(None)
            for d in range(self.array.ndim)
        )

    def fingerprint(self) -> str:
        digest = hashlib.sha256(f"{self.shape} {self.dtype}".encode())
        flat = self.array.reshape(-1) if self.array.flags.c_contiguous else self.array.ravel("K")
        step = max(1, len(flat) * flat.itemsize // SAMPLED_NBYTES)
        digest.update(np.ascontiguousarray(flat[::step]).tobytes())
        return digest.hexdigest()

    def content_stamp(self) -> str:
        digest = hashlib.sha256(self.fingerprint().encode())
        for row in self.array:
            digest.update(np.ascontiguousarray(row).view(np.uint8).data)
        return digest.hexdigest()


def resident_part(array: np.ndarray[Any, Any]) -> int:
    """Bytes of an array that are in memory; 0 for one that is mapped from a file."""
    base: Any = array
    while isinstance(base, np.ndarray):
        if isinstance(base, np.memmap):
            return 0
        base = base.base
    return array.nbytes


# NumPy masked arrays: masked cells are missing.

Array = np.ndarray[Any, Any]
PIECE_NBYTES = 1 << 20  # of an array that are scanned at a time
WIDER = {1: np.int16, 2: np.int32, 4: np.int64}


class MaskedReader(ArrayReader):
    """An array in memory with a mask.

    Masked floats are read as NaN, masked integers as ``code``, a number that no observed cell
    holds. Integers keep their dtype; booleans are read as uint8. Blocks are copies; the whole array
    is never copied.
    """

    plain = False

    def __init__(self, array: Array, mask: Array, missing_value: float | None = None) -> None:
        """array, mask : of one shape; True = missing.  missing_value : the code to use, if any."""
        super().__init__(array.view(np.uint8) if array.dtype == np.bool_ else array)
        self.mask = mask
        self.code: int | None = None
        if self.dtype.kind in "iu":
            self.dtype, self.code = free_code(self.array, mask, missing_value)

    def read(self, index: Index) -> Array:
        values, hole = super().read(index), self.mask[self._inside(index)]
        return np.where(hole, self._fill, values) if hole.any() else values

    @property
    def _fill(self) -> Any:
        """The value of masked cells, in the dtype of the others."""
        return self.dtype.type(np.nan if self.code is None else self.code)

    def scratch_nbytes(self, index: Index) -> int:
        return int(np.prod([s.stop - s.start for s in index])) * self.dtype.itemsize

    def part(self, dim: int, start: int, stop: int) -> Reader:
        smaller: Any = super().part(dim, start, stop)
        smaller.mask = self.mask[self._cut(dim, start, stop)]
        return cast(Reader, smaller)

    def fingerprint(self) -> str:
        mask = ArrayReader(self.mask).fingerprint()
        return hashlib.sha256(f"{super().fingerprint()} {mask}".encode()).hexdigest()

    def content_stamp(self) -> str:
        mask = ArrayReader(self.mask).content_stamp()
        return hashlib.sha256(f"{super().content_stamp()} {mask}".encode()).hexdigest()


def free_code(
    array: Array, mask: Array, missing_value: float | None = None
) -> tuple[np.dtype[Any], int]:
    """(dtype, a number of that dtype that no observed cell holds), for integer arrays.

    The dtype is that of the array, or a wider one where both of its limits are in use.
    missing_value : preferred where the dtype can hold it: those cells are missing too.
    Cost: one scan of the array. Raises InvalidTypeError for 64-bit integers beyond 2**53.
    """
    dtype: np.dtype[Any] = array.dtype.newbyteorder("=")
    ends = np.iinfo(dtype)
    whole = missing_value is not None and float(missing_value).is_integer()
    if missing_value is not None and whole and ends.min <= missing_value <= ends.max:
        return dtype, int(missing_value)
    low, high = _observed_ends(array, mask)
    if ends.min < 0 <= low:
        return dtype, -1
    if low > ends.min:
        return dtype, int(ends.min)
    if high < ends.max:
        return dtype, int(ends.max)
    if dtype.itemsize in WIDER:
        wider: np.dtype[Any] = np.dtype(WIDER[dtype.itemsize])
        return wider, int(np.iinfo(wider).min)
    raise InvalidTypeError(
        f"X holds the {dtype} {high}; expected integers up to 2**53 in size, since float64 rounds "
        "larger ones. Subtract a whole number first, or convert with X.astype('float64')"
    )


def _observed_ends(array: Array, mask: Array) -> tuple[int, int]:
    """(smallest, largest) of the observed cells; (0, 0) if there are none."""
    step = max(1, PIECE_NBYTES // max(1, array[:1].nbytes))
    low, high = None, None
    for start in range(0, len(array), step):
        seen = array[start : start + step][~mask[start : start + step]]
        if seen.size:
            here = int(seen.min()), int(seen.max())
            low = here[0] if low is None else min(low, here[0])
            high = here[1] if high is None else max(high, here[1])
    return low or 0, high or 0


def unmasked(values: Any) -> tuple[Array, Array | None]:
    """(the data of an array, its mask or None where it hides nothing)."""
    if not isinstance(values, np.ma.MaskedArray) or values.dtype.names:
        return np.asarray(values), None
    return values.data, np.ma.getmaskarray(values) if np.ma.is_masked(values) else None


def joined(rows: Any) -> Any:
    """A list with masked arrays or the masked constant as one masked array."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "Warning: converting a masked element to nan")
        return np.ma.array(rows)


def holds_masked(values: Any) -> bool:
    """Whether a list or tuple contains a masked array or the masked constant at any depth."""
    if isinstance(values, (list, tuple)):
        return any(map(holds_masked, values))
    return isinstance(values, np.ma.MaskedArray)


# NumPy arrays, masked ones too, lists and data frames.

LOADS = {"pandas": ("pandas",), "pyarrow": ("pandas",), "polars": ("polars",)}  # by a frame's kind


def from_array(array: Any, dim: Dim = None, missing_value: float | None = None) -> ChunkedMatrix:
    """NumPy, a masked array, a list of lists, a data frame, or a tensor in main memory.

    missing_value : a number that means missing, in addition to masked cells.
    Cost: none; for a data frame a copy, for masked integers a scan for a free code.
    """
    refuse_gpu(array)
    array = from_tensor(array)
    names, samples, mask, held = None, None, None, 0
    loads: tuple[str, ...] = ()
    if is_frame(array):
        array, samples = without_index(array)
        names = feature_names(array)
        values = frame_values(array)
        if names is not None and all(isinstance(name, str) for name in names):
            places = {name: names.index(name) for name in suspects(names)}
            first = {name: values[:FIRST_ROWS, j] for name, j in places.items()}
            ask_about(first, f"the {type(array).__name__} X", *_repairs(array), total=len(names))
        loads = LOADS.get(type(array).__module__.split(".")[0], ())
        if values.base is None:  # a copy in addition to the frame
            held = held_nbytes(array)
    else:
        values, mask = unmasked(joined(array) if holds_masked(array) else array)
    if values.dtype.kind == "O":
        values = _numbers(values, mask)
    check_dtype(values.dtype)
    reader = ArrayReader(values, loads)
    if mask is not None:
        reader = MaskedReader(values, mask, missing_value)
    matrix = stack(reader, dim)
    matrix.given_nbytes += held
    matrix.missing_value = missing_value
    if isinstance(matrix.reader, MaskedReader) and matrix.reader.code is not None:
        matrix.missing_value = matrix.reader.code
    if names is not None or samples is not None:
        matrix.labels = Labels.plain(matrix.shape, names, samples)
    return matrix


def _repairs(frame: Any) -> tuple[str, str]:
    """What makes a column the names of the rows, and what makes it a feature."""
    names = "X.set_index({})" if hasattr(frame, "set_index") else "streampca.open(X, index={})"
    columns = "X.column_names" if hasattr(frame, "column_names") else "list(X.columns)"
    return names, f"streampca.open(X, columns={columns}) makes all of them features"


def _numbers(values: Array, mask: Array | None) -> Array:
    """An object array whose entries are all numbers, as float64 (as scikit-learn accepts)."""
    if mask is not None:
        values = np.where(mask, np.nan, values)
    try:
        made = values.astype(np.float64)
    except (TypeError, ValueError) as error:
        raise InvalidTypeError(
            f"dtype object cannot be used: {error}; argument must be a string or a number. "
            "Convert with X.astype('float64')."
        ) from None
    refuse_rounded_objects(values, "X")
    return made
