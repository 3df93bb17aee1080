"""Labels of samples and variants that lie beside a genotype array in its Zarr group."""

from __future__ import annotations

from typing import Any

import numpy as np
import zarr

from streampca.errors import SourceError
from streampca.matrix.text import Text
from streampca.sources.variants import UNNAMED, plain_chromosome
from streampca.sources.zarr_whole import whole

COLUMNS = (
    "family",
    "individual",
    "father",
    "mother",
    "chromosome",
    "position",
    "counted_allele",
    "other_allele",
)  # as streampca.jobs.convert writes them


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
