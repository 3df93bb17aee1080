"""The CF conventions for all formats: packed values, missing values, times, as xarray reads them.

A variable of NetCDF is decoded by xarray when it is opened. Blocks of Zarr arrays and HDF5
datasets, and their coordinates, are decoded here, by the same coders. Source: CF Metadata
Conventions 1.11, sections 2.5.1, 4.4, 7.1 and 8.1.
"""

from __future__ import annotations

import base64
import re
import struct
import warnings
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Self

import numpy as np

from streampca.errors import InvalidInputError, SourceError

Array = np.ndarray[Any, Any]
FILLS = ("_FillValue", "missing_value")
PACKED = (*FILLS, "scale_factor", "add_offset", "_Unsigned")
LAYOUT = (*PACKED, "dtype", "coordinates", "grid_mapping")  # how values are stored, not what
RELATED = (
    "coordinates",
    "bounds",
    "climatology",
    "grid_mapping",
    "cell_measures",
    "formula_terms",
    "ancillary_variables",
)
PIECE = 1 << 16  # cells decoded at a time: copies stay in the cache, and their memory is reused


def related(attributes: Mapping[str, Any]) -> set[str]:
    """Names of the variables that describe the one with these attributes: bounds, for example."""
    text = " ".join(str(attributes.get(name, "")) for name in RELATED)
    return {word for word in text.split() if not word.endswith(":")}


def descriptive(attributes: Mapping[str, Any]) -> dict[str, Any]:
    """Attributes that say what an array is, without those that say how it is stored."""
    return {
        name: value
        for name, value in attributes.items()
        if name not in LAYOUT and not name.startswith(("_", "streampca_"))
    }


@dataclass(frozen=True)
class Decoding:
    """How the stored numbers of one array become values; for threads and pickles.

    attributes : those that xarray's coders take.
    codes : stored numbers that mean missing.  stored, dtype : before and after.
    packs : whether any value changes, and not its dtype alone.
    """

    attributes: Mapping[str, Any]
    codes: tuple[float, ...]
    stored: np.dtype[Any]
    dtype: np.dtype[Any]
    packs: bool

    @classmethod
    def of(cls, attributes: Mapping[str, Any], stored: np.dtype[Any]) -> Self | None:
        """The decoding that attributes ask for; None where stored numbers are the values.

        Cost: the import of xarray where there is one. Raises SourceError for attributes that
        cannot be decoded.
        """
        stored = np.dtype(stored).newbyteorder("=")
        known = _coded(attributes, stored)
        if not known or stored.kind not in "iuf":
            return None
        if any(name in known for name in FILLS):  # xarray has no integer that is NaN either
            for name in ("scale_factor", "add_offset"):
                if isinstance(known.get(name), (int, np.integer)):
                    known[name] = float(known[name])
        try:
            if "units" in known:  # times, which are no numbers
                times = _quietly(np.zeros(1, stored), known).dtype
                return cls(known, (), stored, times, True)
            probe = _probe(known, stored)
            values = _quietly(probe, known)
            packs = not np.array_equal(values.astype("f8"), probe.astype("f8"), equal_nan=True)
        except Exception as error:
            shown = ", ".join(f"{name}={value!r}" for name, value in known.items())
            raise SourceError(
                f"attributes that cannot be decoded as CF says ({shown}): {error}. Repair them, "
                "or remove them"
            ) from error
        codes = np.unique(probe[np.asarray(values != values) & (probe == probe)])
        if len(codes) > 1:
            known = _with_one_code(known, codes, probe, values)
        return cls(known, tuple(codes.tolist()), stored, values.dtype, packs)

    def decode(self, stored: Array) -> Array:
        """The values; the input is unchanged. Takes the memory of a few pieces in addition."""
        flat = stored.reshape(-1)
        if flat.size <= PIECE:
            return self._piece(flat).reshape(stored.shape)
        values = np.empty(flat.shape, self.dtype)
        for start in range(0, flat.size, PIECE):
            values[start : start + PIECE] = self._piece(flat[start : start + PIECE])
        return values.reshape(stored.shape)

    @property
    def scratch_nbytes(self) -> int:
        """Most bytes of the copies of a piece: masked, scaled, with a mask or two."""
        return PIECE * (self.stored.itemsize + 2 * self.dtype.itemsize + 3)

    def _piece(self, stored: Array) -> Array:
        if len(self.codes) > 1 and "missing_value" not in self.attributes:
            others = np.isin(stored, np.array(self.codes[1:], self.stored))
            if others.any():
                stored = np.where(others, self.stored.type(self.codes[0]), stored)
        return _by_xarray(stored, self.attributes)


def _coded(attributes: Mapping[str, Any], stored: np.dtype[Any]) -> dict[str, Any]:
    """The attributes that change something, without those that xarray drops with a warning."""
    known = {name: attributes[name] for name in PACKED if name in attributes}
    for name in ("scale_factor", "add_offset"):
        if np.ndim(value := known.get(name, 0)) and np.size(value) == 1:
            known[name] = np.asarray(value).item()  # of a list xarray takes the number, as object
    nothing = {name for name in FILLS if name in known and not _numbers(known[name])}
    scaled = "scale_factor" in known or "add_offset" in known
    if stored.kind != "f" or not scaled:  # of packed floats, it keeps their dtype
        known = {name: value for name, value in known.items() if name not in nothing}
    if stored.kind == "f":
        known.pop("_Unsigned", None)
    if attributes.get("dtype") == "bool":
        known["dtype"] = "bool"
    times = {name: attributes[name] for name in ("units", "calendar") if name in attributes}
    return known | times if _is_time(attributes) and _is_decodable(times) else known


def _is_decodable(times: Mapping[str, Any]) -> bool:
    """Whether xarray makes dates of numbers with these units; others stay numbers."""
    if _gregorian(times) is not None:
        return True
    try:
        return _quietly(np.zeros(1), times).dtype.kind in "MO"
    except (ValueError, OverflowError):
        return False


def _numbers(code: Any) -> list[Any]:
    """The codes of an attribute that are not NaN."""
    return [one for one in np.ravel(np.asarray(code)) if one == one]


def _probe(known: Mapping[str, Any], stored: np.dtype[Any]) -> Array:
    """Stored numbers that tell which codes count: these, and some others."""
    found: list[Any] = [0, 1, 2, 100]
    for one in (number for name in FILLS if name in known for number in _numbers(known[name])):
        if stored.kind == "f":
            found.append(float(one))
        elif one == int(one):  # of unsigned integers the code may be signed, and the reverse
            found += [int(one), int(one) % (1 << 8 * stored.itemsize)]
            found.append(found[-1] - (1 << 8 * stored.itemsize))
    if stored.kind == "f":
        return np.array(found).astype(stored)
    ends = np.iinfo(stored)
    found += [ends.min, ends.max]
    return np.array([one for one in found if ends.min <= one <= ends.max], stored)


def _with_one_code(known: dict[str, Any], codes: Array, probe: Array, values: Array) -> Any:
    """The same with the first code alone, if that is the same: xarray warns of several each time.

    ``Decoding.decode`` then puts the first in place of the others.
    """
    one = {name: value for name, value in known.items() if name not in FILLS}
    one["_FillValue"] = codes[0]
    try:
        same = _quietly(np.where(np.isin(probe, codes), codes[0], probe), one)
    except Exception:  # as attributes are, then
        return known
    alike = same.dtype == values.dtype and np.array_equal(same, values, equal_nan=True)
    return one if alike else known


def _quietly(values: Array, attributes: Mapping[str, Any]) -> Array:
    """Decoded, without xarray's warnings of oddities; not for several threads."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return _by_xarray(values, attributes)


def _by_xarray(values: Array, attributes: Mapping[str, Any]) -> Array:
    """Decoded by xarray. Durations stay numbers."""
    import xarray
    from xarray.conventions import decode_cf_variable

    dims = [f"dim_{d}" for d in range(values.ndim)]
    variable = xarray.Variable(dims, values, dict(attributes))
    return np.asarray(
        decode_cf_variable(
            "values",
            variable,
            concat_characters=False,
            decode_times=_is_time(attributes),
            decode_timedelta=False,
        ).values
    )


def refuse_undecoded(attributes: Mapping[str, Any], dtype: np.dtype[Any], name: Any) -> None:
    """Raises InvalidInputError where an xarray object still carries what decoding takes away."""
    left = {key: value for key, value in attributes.items() if key in PACKED}
    if not left or (found := Decoding.of(left, dtype)) is None or not found.packs:
        return
    shown = ", ".join(f"{key}={value}" for key, value in left.items())
    variable = repr(name or "X")
    raise InvalidInputError(
        f"{variable} has {shown} in its attributes: its numbers are as stored. Decode them, "
        f"X = xarray.decode_cf(X.to_dataset(name={variable}))[{variable}]; or, if that is done, "
        "X = X.drop_attrs()"
    )


# Coordinates, and times among them.
#
# xarray's import takes 0.7 s and 82 MB (with pandas, and what that loads), which the fit of a Zarr
# store that has whole days or hours of the Gregorian calendar does without: their sum is exact.
# All other times are xarray's: ``python -m tests.benchmarks.libraries``.

STEPS = {
    "day": 86_400_000_000_000,
    "hour": 3_600_000_000_000,
    "minute": 60_000_000_000,
    "second": 1_000_000_000,
}
CALENDARS = ("standard", "gregorian", "proleptic_gregorian")
SINCE = re.compile(
    r"\s*(days?|hours?|minutes?|seconds?) since (\d{4})-(\d{1,2})-(\d{1,2})"
    r"(?:[ T](\d{1,2}):(\d{2})(?::(\d{2})(?:\.0*)?)?)?(?: ?UTC|Z)?\s*",
    re.IGNORECASE,
)
FIRST, LAST = np.datetime64("1700-01-01", "ns"), np.datetime64("2200-01-01", "ns")


def decode_coordinate(values: Array, attributes: Mapping[str, Any]) -> Array:
    """Values of a coordinate, times as xarray has them: datetime64[ns], or objects of cftime."""
    if values.dtype.kind not in "iuf" or not (known := _coded(attributes, values.dtype)):
        return values
    if (times := _plain_times(values, known)) is not None:
        return times
    try:
        return _quietly(values, known)
    except (ValueError, OverflowError):
        plain = {name: value for name, value in known.items() if name in PACKED}
        return _quietly(values, plain)


def is_dates(values: Array, attributes: Mapping[str, Any]) -> bool:
    """Whether a coordinate was decoded to dates, whose units its attributes need not state."""
    return values.dtype.kind == "M" or (values.dtype.kind == "O" and _is_time(attributes))


def _is_time(attributes: Mapping[str, Any]) -> bool:
    return " since " in str(attributes.get("units", ""))


def _gregorian(times: Mapping[str, Any]) -> tuple[np.datetime64, int] | None:
    """(origin, step in ns) of times that are added up here; None of others."""
    found = SINCE.fullmatch(str(times.get("units", "")))
    if found is None or str(times.get("calendar", "standard")).lower() not in CALENDARS:
        return None
    step, year, month, day, *clock = found.groups(default="0")
    hours, minutes, seconds = (f"{int(part):02d}" for part in clock)
    text = f"{year}-{int(month):02d}-{int(day):02d}T{hours}:{minutes}:{seconds}"
    try:
        start = np.datetime64(text, "ns")
    except ValueError:  # 30 February
        return None
    return (start, STEPS[step.lower().removesuffix("s")]) if FIRST < start < LAST else None


def _plain_times(values: Array, known: Mapping[str, Any]) -> Array | None:
    """Whole days, hours ... of the Gregorian calendar as datetime64[ns]; None for others."""
    found = None if known.keys() & {*PACKED} or not values.size else _gregorian(known)
    if found is None or not np.array_equal(values, np.trunc(values)):  # NaN is not equal either
        return None
    start, step = found
    longest = max(abs(float(values.min())), abs(float(values.max()))) * step
    if not longest < float((LAST - FIRST).astype(np.int64)):
        return None
    times: Array = start + (values.astype(np.int64) * step).astype("m8[ns]")
    return times if times.min() > FIRST and times.max() < LAST else None


def coded_attributes(array: Any, by_xarray: bool) -> dict[str, Any]:
    """The attributes of a ``zarr.Array``, with the fill value that xarray takes of them.

    by_xarray : whether xarray reads this array, as its dimensions have names. Of Zarr 2 that is
        then the array's own fill value; of Zarr 3 the attribute, base64 for floats. The own fill
        value of other arrays means nothing: 0 is Zarr's default.
    """
    found, stored = dict(array.attrs), np.dtype(array.dtype)
    if by_xarray and array.metadata.zarr_format == 2:
        return found if array.fill_value is None else {**found, "_FillValue": array.fill_value}
    for name in FILLS:
        if isinstance(found.get(name), str) and stored.kind == "f":
            found[name] = _float_of(name, found[name])
        if isinstance(found.get(name), float) and stored.kind == "f" and not by_xarray:
            found[name] = float(stored.type(found[name]))  # JSON has doubles only
    scales = () if by_xarray else ("scale_factor", "add_offset")
    return found | {name: float(found[name]) for name in scales if type(found.get(name)) is int}


def _float_of(name: str, text: str) -> float:
    """The number of a text: NaN, or eight bytes in base64. Raises SourceError for other texts."""
    try:
        return float(text)
    except ValueError:
        pass
    try:
        return float(struct.unpack("<d", base64.standard_b64decode(text))[0])
    except (ValueError, struct.error):
        raise SourceError(
            f"the attribute {name} is {text!r}; expected a number, or one of 64 bits in base64"
        ) from None


def plain_code(
    attributes: Mapping[str, Any], stored: np.dtype[Any], by_xarray: bool
) -> float | None:
    """The missing code of unpacked one-byte calls, if there is exactly one; else None.

    Such calls (genotypes) stay integers with a code, a quarter of the floats that CF asks for.
    by_xarray : as for :func:`coded_attributes`: xarray reads it as floats, and so it is read here
    unless ``streampca.convert`` has written it.
    """
    if stored.kind not in "iu" or stored.itemsize != 1:
        return None
    if by_xarray and "streampca_samples" not in attributes:
        return None
    found = Decoding.of(attributes, stored)
    if found is None or len(found.codes) != 1 or found.attributes.keys() - {*FILLS}:
        return None
    return found.codes[0]
