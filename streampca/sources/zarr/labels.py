"""Labels and coordinates beside an array in its Zarr group, and the missing codes of both."""

from __future__ import annotations

import base64
import struct
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np
import zarr
from zarr.storage import StorePath

from streampca.errors import InvalidInputError, SourceError
from streampca.matrix import AxisLabels, Labels
from streampca.matrix.columns import Text
from streampca.sources.genotypes.variants import UNNAMED, plain_chromosome
from streampca.sources.labelled.cf import FILLS, Decoding, decode_coordinate, descriptive, is_dates
from streampca.sources.zarr.guard import whole

# How the numbers of an array are to be decoded.


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
    """Of NaN, or of eight bytes in base64. Raises SourceError for anything else."""
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


# Absent chunks as missing cells: the fill value that Zarr puts in their place.


def absent_value(stored: np.dtype[Any], decoding: Decoding | None, hole: float | None) -> Any:
    """The stored number that means missing: NaN, a code that is decoded, or ``hole``.

    Raises InvalidInputError where integers have none.
    """
    if stored.kind == "f":
        return stored.type(np.nan)
    codes = np.array([] if decoding is None else decoding.codes, stored)
    if not codes.size and hole is not None and decoding is None and stored.kind in "iu":
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


# Labels and coordinates in the Zarr group of an array.

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


# Coordinates in the Zarr group of an array, as xarray writes them.

Array = np.ndarray[Any, Any]


def group_labels(
    group: Any, array: Any, names: tuple[str, ...], dims: tuple[tuple[int, ...], tuple[int, ...]]
) -> Labels:
    """Labels of an array of a group: coordinates of its dimensions and those that it names.

    names : of the dimensions.  dims : numbers of those of the samples, and of the features.
    """
    inside = array.path.removeprefix(f"{group.path}/" if group.path else "").rpartition("/")[0]
    parent = group[inside] if inside else group
    sizes = dict(zip(names, array.shape, strict=True))
    beside = str(array.attrs.get("coordinates", "")).split()
    rows, columns = (
        _axis(parent, tuple(names[d] for d in ds), sizes, beside, loose=number == 1)
        for number, ds in enumerate(dims)
    )
    name = array.path.rpartition("/")[2] or None
    return Labels(rows, columns, name, descriptive(dict(array.attrs)))


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
        described = descriptive(dict(array.attrs))
        if is_dates(coords[name] if name in coords else grids[name][1], described):
            described = {
                n: value for n, value in described.items() if n not in ("units", "calendar")
            }
        if described:
            attrs[name] = described
    extra = extra_columns(parent, dims[0], sizes[dims[0]]) if len(dims) == 1 else {}
    lengths = tuple(sizes[d] for d in dims)
    return AxisLabels(dims, lengths, coords, attrs, extra, grids)


def dims_of(array: Any) -> tuple[Any, ...]:
    """Names of the dimensions of an array, where they are stored; of Zarr 3, some may be None."""
    names: Any = getattr(array.metadata, "dimension_names", None)
    return tuple(names or array.attrs.get("_ARRAY_DIMENSIONS") or ())


def decoded(array: Any) -> Array:
    """A small array, read whole: text, and decoded numbers and times."""
    values = whole(array)
    if values.dtype.kind in "SO":
        return text(values)
    return decode_coordinate(values, coded_attributes(array, bool(dims_of(array))))
