"""NumPy masked arrays: what lies under the mask is missing."""

from __future__ import annotations

import hashlib
import warnings
from typing import Any, cast

import numpy as np

from streampca.errors import InvalidTypeError
from streampca.sources.memory import ArrayReader
from streampca.sources.stacked import Index, Reader

Array = np.ndarray[Any, Any]
PIECE_NBYTES = 1 << 20  # of an array that is looked through
WIDER = {1: np.int16, 2: np.int32, 4: np.int64}


class MaskedReader(ArrayReader):
    """An array in memory with a mask.

    Masked cells of floats are read as NaN, those of integers as ``code``, a number that no observed
    cell holds. Integers keep their dtype; booleans are read as uint8. Blocks are copies, the whole
    array is never copied.
    """

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
        """What masked cells are read as, in the dtype of the others."""
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
    """(dtype, a number of that dtype that no observed cell holds): for integers.

    The dtype is that of the array, or a wider one where both of its ends are in use.
    missing_value : taken where the dtype has it: those cells are missing too.
    Cost: one look through the array. Raises InvalidTypeError for 64-bit integers beyond 2**53.
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
    """(smallest, largest) of the observed cells; (0, 0) where there is none."""
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
    """A list of masked arrays, or with the masked constant in it, as one masked array."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "Warning: converting a masked element to nan")
        return np.ma.array(rows)


def holds_masked(values: Any) -> bool:
    """Whether a list or tuple has a masked array, or the masked constant, somewhere within."""
    if isinstance(values, (list, tuple)):
        return any(map(holds_masked, values))
    return isinstance(values, np.ma.MaskedArray)
