"""What this process imports: names of the package on first use, and the memory of libraries.

Libraries load others if these are installed: pandas loads pyarrow. A plan must not depend on that;
a fit must not overlook it.
"""

from __future__ import annotations

import ast
import mmap
import pkgutil
import sys
import threading
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import contextmanager
from importlib import import_module
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec
from pathlib import Path
from types import ModuleType

# Names of the package: their modules load when they are first used.

_homes: dict[str, str] = {}  # public class or function -> the module that defines it


def public_names(
    package: str,
) -> tuple[Callable[[str], object], Callable[[], list[str]], list[str]]:
    """``__getattr__``, ``__dir__`` and ``__all__`` of a package, from the imports of its stub.

    The stub is ``__init__.pyi``, which type checkers read in place of ``__init__.py``. What it
    imports is loaded when it is first used. Source: the idea is that of SPEC 1, "Lazy loading".
    """
    stub = ast.parse(pkgutil.get_data(package, "__init__.pyi") or b"")
    imports = [node for node in stub.body if isinstance(node, ast.ImportFrom)]
    homes = {alias.name: str(node.module) for node in imports for alias in node.names}
    _homes.update({name: home for name, home in homes.items() if home != package})
    namespace = vars(sys.modules[package])

    def __getattr__(name: str) -> object:
        if name not in homes:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        if homes[name] == package:
            return import_module(f"{package}.{name}")
        namespace[name] = getattr(import_module(homes[name]), name)
        return namespace[name]

    return __getattr__, lambda: sorted({*namespace, *homes}), sorted(homes)


def home_of(name: str) -> str | None:
    """The module that defines a public name of the package; does not load it."""
    return _homes.get(name)


def load_public(name: str | None = None) -> None:
    """Load the module of a public name, if it is one; without a name, those of all."""
    for home in dict.fromkeys(_homes.values() if name is None else filter(None, [home_of(name)])):
        import_module(home)


# What waits for a library that this package does not import by itself.


class _AfterImport(MetaPathFinder):
    """Lets the other finders find a library, and acts once it has loaded."""

    def __init__(self, library: str, act: Callable[[], object]) -> None:
        self.library, self.act = library, act

    def find_spec(
        self, name: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if name != self.library:
            return None
        others = [finder for finder in sys.meta_path if finder is not self]
        specs = (finder.find_spec(name, path, target) for finder in others)
        spec = next((spec for spec in specs if spec is not None), None)
        if spec is None or spec.loader is None:
            return None
        load = spec.loader.exec_module

        def exec_module(module: ModuleType) -> None:
            load(module)
            if self in sys.meta_path:
                sys.meta_path.remove(self)
            self.act()

        spec.loader.exec_module = exec_module  # type: ignore[method-assign]
        return spec


def when_imported(library: str, act: Callable[[], object]) -> None:
    """Act now if a library is loaded, else as soon as other code loads it."""
    if library in sys.modules:
        act()
    elif not any(getattr(finder, "library", None) == library for finder in sys.meta_path):
        sys.meta_path.insert(0, _AfterImport(library, act))


# The memory of libraries, measured when they are imported.

HEAVY = (
    "anndata",
    "dask",
    "dask.dataframe",
    "distributed",
    "h5py",
    "numba",
    "pandas",
    "polars",
    "pyarrow",
    "sklearn",
    "sparse",
    "xarray",
)

_weights: dict[frozenset[str], int] = {}  # libraries imported together -> bytes
_open = threading.local()


def resident_nbytes(proc: str | Path = "/proc") -> int:
    """Resident memory of this process now; 0 if the system does not tell."""
    try:
        with open(f"{proc}/self/statm", "rb", buffering=0) as file:
            pages = int(file.read().split()[1])
    except (OSError, IndexError, ValueError):
        return by_psutil("rss")
    return pages * mmap.PAGESIZE


def by_psutil(figure: str) -> int:
    """A figure of this process or machine where there is no /proc (macOS, Windows); else 0."""
    import psutil

    try:
        about = psutil.virtual_memory() if figure == "available" else psutil.Process().memory_info()
    except (OSError, psutil.Error):  # a Linux that hides /proc
        return 0
    return int(getattr(about, figure, 0))


@contextmanager
def weighing() -> Iterator[None]:
    """A context that measures the memory of the heavy libraries imported inside it, in total.

    Nested contexts measure nothing: the outer one does.
    """
    if getattr(_open, "depth", 0):
        yield
        return
    _open.depth = 1
    known, before = _loaded(), resident_nbytes()
    try:
        yield
    finally:
        _open.depth = 0
        if new := _loaded() - known:
            _weights[new] = max(0, resident_nbytes() - before)


def weight_of(projected: dict[str, int]) -> int:
    """Bytes of these libraries and those that they loaded: measured if possible, else projected.

    projected : library -> bytes. Libraries that other code imported were not measured.
    """
    measured = {names: nbytes for names, nbytes in _weights.items() if names & projected.keys()}
    seen: Collection[str] = frozenset().union(*measured)
    rest = sum(nbytes for name, nbytes in projected.items() if name not in seen)
    return sum(measured.values()) + rest


def _loaded() -> frozenset[str]:
    return frozenset(name for name in HEAVY if name in sys.modules)
