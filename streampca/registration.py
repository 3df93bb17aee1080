"""Register the accessor ``da.streampca`` once streampca and xarray are imported, in any order.

``import streampca`` does not load xarray: an import hook waits until other code does.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from importlib import import_module
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec
from types import ModuleType


class _AfterXarray(MetaPathFinder):
    """Lets the other finders find xarray, and registers the accessors once it has loaded."""

    def find_spec(
        self, name: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if name != "xarray":
            return None
        others = [finder for finder in sys.meta_path if finder is not self]
        found = (finder.find_spec(name, path, target) for finder in others)
        spec = next((one for one in found if one is not None), None)
        if spec is None or spec.loader is None:
            return None
        load = spec.loader.exec_module

        def exec_module(module: ModuleType) -> None:
            load(module)
            if self in sys.meta_path:
                sys.meta_path.remove(self)
            register_accessors()

        spec.loader.exec_module = exec_module  # type: ignore[method-assign]
        return spec


def register_accessors() -> None:
    """Register ``DataArray.streampca`` and ``Dataset.streampca``; loads xarray."""
    import_module("streampca.xarray")


def register_with_xarray() -> None:
    """Register the accessors now if xarray is loaded, else as soon as it is."""
    if "xarray" in sys.modules:
        register_accessors()
    elif not any(isinstance(finder, _AfterXarray) for finder in sys.meta_path):
        sys.meta_path.insert(0, _AfterXarray())
