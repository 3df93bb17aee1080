"""Labels and coordinates that lie beside an array in its Zarr group."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import zarr

from streampca.errors import SourceError
from streampca.matrix import AxisLabels, Labels
from streampca.matrix.columns import Text
from streampca.sources.variants import UNNAMED, plain_chromosome
from streampca.sources.zarr.cf import Packing, decode_times
from streampca.sources.zarr.guard import whole

# --------------------------------------------------------------------------------------------------
# Labels of samples and variants that lie beside a genotype array in its Zarr group.

COLUMNS = (
    "family",
    "individual",
    "father",
    "mother",
    "chromosome",
    "position",
    "counted_allele",
    "other_allele",
)  # as streampca.operations.convert writes them


def extra_columns(group: Any, dim: str, size: int) -> dict[str, np.ndarray[Any, Any]]:
    """Family, chromosome, position, alleles ... along one dimension of that size.

    Of the names that ``streampca convert`` writes, else of those of VCF Zarr (``variant_contig``,
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
# Coordinates that lie beside an array in its Zarr group, as xarray writes them.

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
    return Labels(rows, columns, array.path.rpartition("/")[2] or None, told_by(array))


def told_by(array: Any) -> dict[str, Any]:
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
        told = told_by(array)
        if (coords[name] if name in coords else grids[name][1]).dtype.kind == "M":
            told = {n: value for n, value in told.items() if n not in ("units", "calendar")}
        if told:
            attrs[name] = told
    extra = extra_columns(parent, dims[0], sizes[dims[0]]) if len(dims) == 1 else {}
    lengths = tuple(sizes[d] for d in dims)
    return AxisLabels(dims, lengths, coords, attrs, extra, grids)


def dims_of(array: Any) -> tuple[str, ...]:
    """Names of the dimensions of an array, where they are stored."""
    names = getattr(array.metadata, "dimension_names", None) or array.attrs.get("_ARRAY_DIMENSIONS")
    return tuple(str(name) for name in names or ())


def decoded(array: Any) -> Array:
    """A small array whole: text, packed numbers and times as what they mean."""
    values = whole(array)
    if values.dtype.kind in "SO":
        return text(values)
    attributes = dict(array.attrs)
    if (packing := Packing.from_attributes(attributes, values.dtype)) is not None:
        values = packing.decode(values)
    return decode_times(values, attributes) if _is_time(array) else values


def _is_time(array: Any) -> bool:
    return " since " in str(array.attrs.get("units", ""))
