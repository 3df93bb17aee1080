"""Labels, coordinates and annotations of an array in its Zarr group."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import zarr

from streampca.errors import SourceError
from streampca.matrix import AxisLabels, Labels
from streampca.matrix.columns import Text, as_text
from streampca.matrix.labels import encoded_dates
from streampca.sources.annotations import Annotations
from streampca.sources.cf import coded_attributes, decode_coordinate, descriptive, is_dates
from streampca.sources.genotypes.variants import UNNAMED, plain_chromosome
from streampca.sources.zarr.stores import dims_of, whole

# Labels of samples and variants in the Zarr group of a genotype array.

COLUMNS = tuple(  # as streampca.operations.convert writes them
    """
    family individual father mother chromosome position counted_allele other_allele label
    """.split()
)


def extra_columns(group: Any, dim: str, size: int) -> dict[str, np.ndarray[Any, Any]]:
    """Family, chromosome, position, alleles ... along one dimension of that size.

    Uses the names that ``streampca convert`` writes, else those of VCF Zarr (``variant_contig``,
    ``variant_position``, ``variant_allele``: the first alternate allele is the counted one).
    """
    found: dict[str, np.ndarray[Any, Any]] = {}
    for name in COLUMNS:
        if _along(group, name, dim, size):
            values = whole(group[name])
            found[name] = as_text(values) if values.dtype.kind in "TUSO" else values
    if "chromosome" not in found and _along(group, "variant_contig", dim, size):
        found["chromosome"] = plain_chromosome(contigs(group))
    if "position" not in found and _along(group, "variant_position", dim, size):
        found["position"] = whole(group["variant_position"])
    if "counted_allele" not in found and _along(group, "variant_allele", dim, size):
        found["other_allele"], found["counted_allele"] = first_two(
            as_text(whole(group["variant_allele"]))
        )
    return found


def _along(group: Any, name: str, dim: str, size: int) -> bool:
    """Whether the group has an array of that name along that dimension."""
    array = group.get(name)
    if not isinstance(array, zarr.Array) or not array.ndim or array.shape[0] != size:
        return False
    return dims_of(array)[:1] == (dim,)


def contigs(group: Any) -> Text:
    """The contig name of every variant of a VCF Zarr."""
    number = whole(group["variant_contig"])
    old = group.attrs.get("contigs", [])  # sgkit before 0.6
    listed = group.get("contig_id")
    names = as_text(old if listed is None else whole(listed))
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
    auxiliary = str(array.attrs.get("coordinates", "")).split()
    rows, columns = (
        _axis(parent, tuple(names[d] for d in ds), sizes, auxiliary, loose=number == 1)
        for number, ds in enumerate(dims)
    )
    name = array.path.rpartition("/")[2] or None
    return Labels(rows, columns, name, descriptive(dict(array.attrs)))


def _axis(
    parent: Any, dims: tuple[str, ...], sizes: Mapping[str, int], auxiliary: list[str], loose: bool
) -> AxisLabels:
    """Labels of one axis.  loose : with coordinates that have no dimension."""
    coords: dict[str, Array] = {}
    grids: dict[str, tuple[tuple[str, ...], Array]] = {}
    attrs: dict[str, dict[str, Any]] = {}
    for name in (*dims, *auxiliary):
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
            stored = encoded_dates(described)
            described = {
                n: value for n, value in described.items() if n not in ("units", "calendar")
            } | stored
        if described:
            attrs[name] = described
    extra = extra_columns(parent, dims[0], sizes[dims[0]]) if len(dims) == 1 else {}
    lengths = tuple(sizes[d] for d in dims)
    return AxisLabels(dims, lengths, coords, attrs, extra, grids)


def decoded(array: Any) -> Array:
    """A small array, read whole: text, and decoded numbers and times."""
    values = whole(array)
    if values.dtype.kind in "SO":
        return as_text(values)
    return decode_coordinate(values, coded_attributes(array, bool(dims_of(array))))


class GroupColumns(Annotations):
    """The arrays of a Zarr group, with the names of their dimensions if they have any."""

    def __init__(self, group: Any) -> None:
        self.group = group

    def column(self, axis: int, name: str) -> Any:
        """An array of the group, labelled where its dimensions have names; or None."""
        array = self.group.get(name)
        if not isinstance(array, zarr.Array):
            return None
        values, dims = decoded(array), dims_of(array)
        if not dims:
            return values
        import xarray

        members = {dim: self.group.get(dim) for dim in dims}
        coords = {
            dim: decoded(one)
            for (dim, one), size in zip(members.items(), values.shape, strict=True)
            if isinstance(one, zarr.Array) and one.shape == (size,)
        }
        return xarray.DataArray(values, coords=coords, dims=dims, name=name)

    def names(self, axis: int) -> list[str]:
        return sorted(self.group.array_keys())
