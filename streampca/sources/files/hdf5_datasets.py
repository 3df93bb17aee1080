"""A dataset of an HDF5 file that is no AnnData: which one, decoded as its attributes say."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from streampca.errors import InvalidInputError, SourceError
from streampca.matrix import ChunkedMatrix
from streampca.sources.columns import is_group
from streampca.sources.files.array_files import HDF5Reader, hdf5_attributes
from streampca.sources.labelled.cf import Decoding, descriptive
from streampca.sources.stacked import Dim, stack


def open_dataset(file: Any, path: str, variable: str | None, dim: Dim, group: str) -> ChunkedMatrix:
    """The named dataset, or the only one of numbers with two dimensions. Lists those that are.

    group : where to look.
    """
    if "_NCProperties" in file.attrs:
        from streampca.sources.labelled.labelled import from_netcdf

        return from_netcdf(path, variable, dim, group)
    found: dict[str, Any] = {}
    file.visititems(lambda name, node: found.update({name: node}))
    if group and not is_group(found.get(group)):
        held = ", ".join(one for one, node in found.items() if is_group(node)) or "none"
        raise InvalidInputError(f"{path} has no group {group!r}; its groups: {held}")
    inside = f"{group}/" if group else ""
    arrays = {
        name: node
        for name, node in found.items()
        if name.startswith(inside)
        and hasattr(node, "shape")
        and node.dtype.kind in "biuf"
        and node.ndim
    }
    wide = [name for name, node in arrays.items() if node.ndim == 2]
    wide = wide or [name for name, node in arrays.items() if node.ndim > 2]
    only = wide[0] if variable is None and len(wide) == 1 else None
    name = only or inside + (variable or "").strip("/")
    if name not in arrays:
        held = ", ".join(f"{one} {node.shape}" for one, node in arrays.items()) or "nothing of them"
        asked = "has several" if variable is None else f"has no {variable!r} among its"
        asked = asked if arrays else "has no"
        raise (InvalidInputError if arrays else SourceError)(
            f"{path} {asked} datasets of numbers; it holds: {held}. Use streampca.open({path!r}, "
            f"variable={next(iter([*wide, *arrays]), 'name')!r})"
        )
    attributes = hdf5_attributes(arrays[name])
    decoding = Decoding.of(attributes, arrays[name].dtype)
    matrix = stack(HDF5Reader(arrays[name], decoding), dim)
    named = descriptive(attributes)
    kept = ("units", "standard_name", "long_name")
    described: dict[str, Any] = {one: named[one] for one in kept if one in named}
    matrix.labels = replace(matrix.labels, name=name.rpartition("/")[2], attrs=described)
    return matrix
