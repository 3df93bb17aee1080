"""CF conventions for packed data, and absent chunks as missing cells."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import zarr
from zarr.storage import StorePath

from streampca.errors import InvalidInputError

# --------------------------------------------------------------------------------------------------
# CF conventions for packed data (scale_factor, add_offset, fill and missing values) and times.
#
# Decoded without xarray, which the fit of a Zarr store does not import: that takes 0.4 s and 46
# MB, and a small fit 91 MB in all. xarray decodes a block of 33 MB in twice the time with 2.3
# times the peak, because it makes float64 of packed integers that have an offset (``python -m
# tests.benchmarks.libraries``).


@dataclass(frozen=True)
class Packing:
    """How stored numbers become values: value = stored * scale + offset, codes become NaN.

    Source: CF Metadata Conventions 1.11, sections 2.5.1 and 8.1.
    """

    scale: float
    offset: float
    codes: tuple[float, ...]
    dtype: np.dtype[Any]  # of the decoded values

    @classmethod
    def from_attributes(
        cls, attributes: Mapping[str, Any], stored: np.dtype[Any], fill: Any = None
    ) -> Packing | None:
        """The packing that the attributes state, or None where values are stored plainly."""
        packed = "scale_factor" in attributes or "add_offset" in attributes
        codes = [attributes[k] for k in ("_FillValue", "missing_value") if k in attributes]
        if packed and not codes and fill is not None and stored.kind in "iu":
            codes = [fill]
        flat = tuple(
            _number(c)
            for code in codes
            for c in np.atleast_1d(np.asarray(code, dtype=object))
            if isinstance(c, (int, float, np.number)) and not np.isnan(float(c))
        )
        if not packed and not flat:
            return None
        small = (stored.itemsize <= 2 and stored.kind in "iu") or stored == np.float32
        return cls(
            float(attributes.get("scale_factor", 1.0)),
            float(attributes.get("add_offset", 0.0)),
            flat,
            np.dtype(np.float32 if small else np.float64),
        )

    def decode(self, stored: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
        """Decoded values; the input is left alone."""
        values = stored.astype(self.dtype)
        codes = _codes_of(self.codes, stored.dtype)
        holes = np.isin(stored, codes) if codes.size else None
        if self.scale != 1.0:
            values *= self.dtype.type(self.scale)
        if self.offset != 0.0:
            values += self.dtype.type(self.offset)
        if holes is not None and holes.any():
            values[holes] = np.nan
        return values

    def stored_codes(self, stored: np.dtype[Any]) -> np.ndarray[Any, Any]:
        """The codes that the stored dtype can hold."""
        return _codes_of(self.codes, stored)


def _number(code: Any) -> float:
    """An integer stays one: the largest of 64 bits has no float."""
    plain = code.item() if isinstance(code, np.generic) else code
    return plain if isinstance(plain, int) else float(plain)


def _codes_of(codes: tuple[float, ...], dtype: np.dtype[Any]) -> np.ndarray[Any, Any]:
    """The codes that the stored dtype can hold; -9999 in int8 would wrap to a value of its own."""
    if dtype.kind not in "iu":
        return np.asarray(codes).astype(dtype)
    info = np.iinfo(dtype)
    fit = [int(c) for c in codes if info.min <= c <= info.max and c == int(c)]
    return np.array(fit, dtype)


STEPS = {
    "day": 86_400_000_000,
    "hour": 3_600_000_000,
    "minute": 60_000_000,
    "second": 1_000_000,
    "millisecond": 1_000,
    "microsecond": 1,
}
CALENDARS = ("standard", "gregorian", "proleptic_gregorian")
GREGORIAN = np.datetime64("1582-10-15")


def decode_times(
    values: np.ndarray[Any, Any], attributes: Mapping[str, Any]
) -> np.ndarray[Any, Any]:
    """Numbers with units such as "days since 1800-01-01" as datetime64; else as they are.

    Other calendars than the Gregorian, months, and dates before it stay numbers.
    """
    step, _, origin = str(attributes.get("units", "")).partition(" since ")
    scale = STEPS.get(step.strip().lower().removesuffix("s"))
    known = str(attributes.get("calendar", "standard")).lower() in CALENDARS
    if scale is None or not known or not np.all(np.isfinite(values)):
        return values
    try:
        start = np.datetime64(_iso(origin), "us")
    except ValueError:
        return values
    whole = np.asarray(values, dtype=np.longdouble) * scale
    times = start + np.rint(whole).astype(np.int64).astype("m8[us]")
    return values if start < GREGORIAN or np.any(times < GREGORIAN) else times


def _iso(origin: str) -> str:
    """``1800-1-1 00:00:0.0`` as NumPy reads dates."""
    day, _, hours = origin.strip().removesuffix("Z").removesuffix(" UTC").partition(" ")
    year, month, rest = day.partition("T")[0].split("-")
    clock = (hours or day.partition("T")[2] or "0").split(":")
    parts = [float(part) for part in (*clock, "0", "0")[:3]]
    return (
        f"{int(year):04d}-{int(month):02d}-{int(rest):02d}T"
        f"{int(parts[0]):02d}:{int(parts[1]):02d}:{parts[2]:09.6f}"
    )


def plain_code(attributes: Mapping[str, Any], stored: np.dtype[Any]) -> float | None:
    """The one missing code of calls of one byte that are not packed; else None.

    Such calls (genotypes) stay integers with a code, a quarter of the floats that CF asks for.
    """
    if stored.kind not in "iu" or stored.itemsize != 1:
        return None
    packing = Packing.from_attributes(attributes, stored)
    if packing is None or (packing.scale, packing.offset) != (1.0, 0.0):
        return None
    return packing.codes[0] if len(set(packing.codes)) == 1 else None


# --------------------------------------------------------------------------------------------------
# Absent chunks as missing cells: what Zarr is to put where a chunk is not there.


def absent_value(stored: np.dtype[Any], packing: Packing | None, hole: float | None) -> Any:
    """The stored number that means missing: NaN, a code of the packing, or ``hole``.

    Raises InvalidInputError where integers have none.
    """
    if stored.kind == "f":
        return stored.type(np.nan)
    codes = packing.stored_codes(stored) if packing is not None else np.array([])
    if not codes.size and hole is not None and packing is None and stored.kind in "iu":
        info = np.iinfo(stored)
        if hole == int(hole) and info.min <= hole <= info.max:
            codes = np.array([int(hole)], stored)
    if not codes.size:
        raise InvalidInputError(
            f"missing_chunks='mask' of {stored}: no number means missing. Name one that {stored} "
            "holds: streampca.open(..., missing_value=-9); or missing_chunks='fill'."
        )
    return codes[0]


def with_fill(array: Any, value: Any) -> Any:
    """The same ``zarr.Array`` with another fill value; nothing is written."""
    one = array.async_array
    metadata = replace(one.metadata, fill_value=value)
    return zarr.Array(zarr.AsyncArray(metadata, one.store_path, one.config))


def on_store(array: Any, store: Any) -> Any:
    """The same ``zarr.Array``, read by way of another store."""
    one = array.async_array
    place = StorePath(store, one.store_path.path)
    return zarr.Array(zarr.AsyncArray(one.metadata, place, one.config))
