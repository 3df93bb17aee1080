"""What the nodes of a Dask graph read: Zarr arrays and files that lie in them."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from typing import Any

import zarr
from dask._task_spec import DataNode, Task

from streampca.matrix import Location
from streampca.sources.file_location import FileLocation
from streampca.sources.zarr_location import ZarrLocation

DEPTH = 12  # of tasks in tasks, and of xarray's wrappers in wrappers


def locations_of(nodes: Iterable[Any]) -> tuple[Location, ...]:
    """Zarr arrays, and local files that xarray opened, each once."""
    found: dict[str, Location] = {}
    for one in leaves_of(nodes):
        if (location := _location(one)) is not None:
            found.setdefault(location.name, location)
    return tuple(found.values())


def leaves_of(nodes: Iterable[Any]) -> list[Any]:
    """The objects in nodes, and in tasks in them, that may be read from, each once."""
    known: dict[int, Any] = {}
    for node in nodes:
        for one in _leaves(node, DEPTH):
            known.setdefault(id(one), one)
    return list(known.values())


def _leaves(node: Any, depth: int) -> Iterator[Any]:
    """Objects in a node that may be read from, without what plain values there are."""
    if not depth or node is None or isinstance(node, (str, int, float, slice)):
        return
    if isinstance(node, Task):
        parts: Iterable[Any] = (*node.args, *node.kwargs.values())
    elif isinstance(node, DataNode):
        parts = (node.value,)
    elif isinstance(node, dict):
        parts = node.values()
    elif isinstance(node, (tuple, list)):
        parts = node
    else:
        yield node
        return
    for part in parts:
        yield from _leaves(part, depth - 1)


def _location(wrapper: Any) -> Location | None:
    """Of a Zarr array or a lazily indexed file, as such or in xarray's wrappers."""
    for _ in range(DEPTH):
        if wrapper is None:
            return None
        if isinstance(wrapper, zarr.Array):
            return ZarrLocation.of(wrapper)
        path = getattr(getattr(wrapper, "datastore", None), "_filename", None)
        if isinstance(path, str) and os.path.isfile(path):
            return FileLocation(path)
        inner = getattr(wrapper, "_array", None)
        wrapper = getattr(wrapper, "array", None) if inner is None else inner
    return None
