"""Labels and coordinates beside an array in its Zarr group, and the CF conventions."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import zarr
from zarr.storage import StorePath

from streampca.errors import InvalidInputError, SourceError
from streampca.matrix import AxisLabels, Labels
from streampca.matrix.columns import Text
from streampca.sources.variants import UNNAMED, plain_chromosome
from streampca.sources.zarr.guard import whole

# --------------------------------------------------------------------------------------------------
# CF conventions for packed data, and absent chunks as missing cells.

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
        """The packing that the attributes describe, or None if values are not packed."""
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
        """Decoded values; the input is unchanged."""
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
    """The number; integers stay integers, since floats cannot hold large ones of 64 bits."""
    plain = code.item() if isinstance(code, np.generic) else code
    return plain if isinstance(plain, int) else float(plain)


def _codes_of(codes: tuple[float, ...], dtype: np.dtype[Any]) -> np.ndarray[Any, Any]:
    """The codes that the stored dtype can hold; -9999 in int8 would wrap to another value."""
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
    """Numbers with units such as "days since 1800-01-01" as datetime64; others unchanged.

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
    """The missing code of unpacked one-byte calls, if there is exactly one; else None.

    Such calls (genotypes) stay integers with a code, a quarter of the floats that CF asks for.
    """
    if stored.kind not in "iu" or stored.itemsize != 1:
        return None
    packing = Packing.from_attributes(attributes, stored)
    if packing is None or (packing.scale, packing.offset) != (1.0, 0.0):
        return None
    return packing.codes[0] if len(set(packing.codes)) == 1 else None


# --------------------------------------------------------------------------------------------------
# Absent chunks as missing cells: the fill value that Zarr puts in their place.


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
    """The same ``zarr.Array``, read through another store."""
    one = array.async_array
    place = StorePath(store, one.store_path.path)
    return zarr.Array(zarr.AsyncArray(one.metadata, place, one.config))


# --------------------------------------------------------------------------------------------------
# Labels and coordinates in the Zarr group of an array.

# --------------------------------------------------------------------------------------------------
# Labels of samples and variants in the Zarr group of a genotype array.

COLUMNS = (
    "family",
    "individual",
    "father",
    "mother",
    "chromosome",
    "position",
    "counted_allele",
    "other_allele",
    "label",
)  # as streampca.operations.convert writes them


def extra_columns(group: Any, dim: str, size: int) -> dict[str, np.ndarray[Any, Any]]:
    """Family, chromosome, position, alleles ... along one dimension of that size.

    Uses the names that ``streampca convert`` writes, else those of VCF Zarr (``variant_contig``,
    ``variant_position``, ``variant_allele``: the first alternate allele is the counted one).
    """
    found: dict[str, np.ndarray[Any, Any]] = {}
    for name in COLUMNS:
        if _along(group, name, dim, size):
            values = whole(group[name])
            found[name] = text(values) if values.dtype.kind in "TUSO" else values
    if "chromosome" not in found and _along(group, "variant_contig", dim, size):
        found["chromosome"] = plain_chromosome(contigs(group))
    if "position" not in found and _along(group, "variant_position", dim, size):
        found["position"] = whole(group["variant_position"])
    if "counted_allele" not in found and _along(group, "variant_allele", dim, size):
        found["other_allele"], found["counted_allele"] = first_two(text(group["variant_allele"]))
    return found


def _along(group: Any, name: str, dim: str, size: int) -> bool:
    """Whether the group has an array of that name along that dimension."""
    array = group.get(name)
    if not isinstance(array, zarr.Array) or not array.ndim or array.shape[0] != size:
        return False
    names: Any = getattr(array.metadata, "dimension_names", None)
    names = names or array.attrs.get("_ARRAY_DIMENSIONS")
    return names is not None and next(iter(names)) == dim


def contigs(group: Any) -> Text:
    """The contig name of every variant of a VCF Zarr."""
    number = whole(group["variant_contig"])
    old = group.attrs.get("contigs", [])  # sgkit before 0.6
    names = text(group.get("contig_id", old))
    if number.size and not 0 <= number.min() <= number.max() < len(names):
        raise SourceError(
            f"variant_contig goes from {number.min()} to {number.max()}, and {len(names)} contigs "
            "are named in contig_id"
        )
    result: Text = names[number]
    return result


def first_two(alleles: Text) -> tuple[Text, Text]:
    """(REF, first ALT) of (variants, alleles) strings; "." where there is none."""
    alleles = alleles.reshape(len(alleles), -1)
    absent = np.full(len(alleles), UNNAMED, alleles.dtype)
    alternate = alleles[:, 1] if alleles.shape[1] > 1 else absent
    return or_unnamed(alleles[:, 0]), or_unnamed(alternate)


def or_unnamed(names: Text) -> Text:
    """The names, "." instead of empty ones."""
    return np.where(names == "", np.array(UNNAMED, names.dtype), names)


def text(values: Any) -> Text:
    """Strings of any kind, a Zarr array among them, as NumPy's strings of variable length."""
    values = whole(values) if isinstance(values, zarr.Array) else np.asarray(values)
    if values.dtype.kind == "S":
        values = np.strings.decode(values, "utf-8")
    result: Text = values.astype(np.dtypes.StringDType())
    return result


# --------------------------------------------------------------------------------------------------
# Coordinates in the Zarr group of an array, as xarray writes them.

Array = np.ndarray[Any, Any]
PACKING = ("scale_factor", "add_offset", "missing_value", "coordinates", "grid_mapping", "dtype")


def group_labels(
    group: Any, array: Any, names: tuple[str, ...], dims: tuple[tuple[int, ...], tuple[int, ...]]
) -> Labels:
    """Labels of an array of a group: coordinates of its dimensions and those that it names.

    names : of the dimensions.  dims : numbers of those of the samples, and of the features.
    """
    parent = group[array.path.rpartition("/")[0]] if "/" in array.path else group
    sizes = dict(zip(names, array.shape, strict=True))
    beside = str(array.attrs.get("coordinates", "")).split()
    rows, columns = (
        _axis(parent, tuple(names[d] for d in ds), sizes, beside, loose=number == 1)
        for number, ds in enumerate(dims)
    )
    return Labels(
        rows, columns, array.path.rpartition("/")[2] or None, descriptive_attributes(array)
    )


def descriptive_attributes(array: Any) -> dict[str, Any]:
    """Attributes that say what an array is, without those that say how it is stored."""
    return {
        name: value
        for name, value in dict(array.attrs).items()
        if name not in PACKING and not name.startswith(("_", "streampca_"))
    }


def _axis(
    parent: Any, dims: tuple[str, ...], sizes: Mapping[str, int], beside: list[str], loose: bool
) -> AxisLabels:
    """loose : with coordinates that have no dimension."""
    coords: dict[str, Array] = {}
    grids: dict[str, tuple[tuple[str, ...], Array]] = {}
    attrs: dict[str, dict[str, Any]] = {}
    for name in (*dims, *beside):
        array = parent.get(name)
        if not isinstance(array, zarr.Array):
            continue
        along = dims_of(array)
        expected = tuple(sizes.get(d, -1) for d in along)
        if name in dims and array.shape == (sizes[name],):
            coords[name] = decoded(array)
        elif array.shape == expected and set(along) <= set(dims) and (along or loose):
            grids[name] = (along, decoded(array))
        else:
            continue
        described = descriptive_attributes(array)
        if (coords[name] if name in coords else grids[name][1]).dtype.kind == "M":
            described = {
                n: value for n, value in described.items() if n not in ("units", "calendar")
            }
        if described:
            attrs[name] = described
    extra = extra_columns(parent, dims[0], sizes[dims[0]]) if len(dims) == 1 else {}
    lengths = tuple(sizes[d] for d in dims)
    return AxisLabels(dims, lengths, coords, attrs, extra, grids)


def dims_of(array: Any) -> tuple[str, ...]:
    """Names of the dimensions of an array, where they are stored."""
    names = getattr(array.metadata, "dimension_names", None) or array.attrs.get("_ARRAY_DIMENSIONS")
    return tuple(str(name) for name in names or ())


def decoded(array: Any) -> Array:
    """A small array, read whole: text, and decoded numbers and times."""
    values = whole(array)
    if values.dtype.kind in "SO":
        return text(values)
    attributes = dict(array.attrs)
    if (packing := Packing.from_attributes(attributes, values.dtype)) is not None:
        values = packing.decode(values)
    return decode_times(values, attributes) if _is_time(array) else values


def _is_time(array: Any) -> bool:
    return " since " in str(array.attrs.get("units", ""))
