"""Who may import whom, and what ``import streampca`` costs."""

from __future__ import annotations

import ast
import os
import subprocess
import sys
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

import streampca
from streampca.passes.memory import peak_nbytes

PACKAGE = Path(streampca.__file__).parent
ANYTHING = {"*"}

# room -> rooms that it may import (itself is understood); a dotted name means that module only
ALLOWED: dict[str, set[str]] = {
    "errors": set(),
    "__main__": {"cli"},  # python -m streampca
    "paths": {"errors"},  # where data lie, files that are read back: a file beside errors
    "object_storage": {"errors", "paths"},  # a file beside errors
    "html": {"errors"},  # how things look in a notebook: a file beside errors
    "run_context": set(),  # which run this is: a file beside errors
    "imported": set(),  # what libraries weigh: a file beside errors
    "kernels": {"errors"},
    "accumulators": {"errors", "kernels"},
    "solvers": {"errors", "html", "kernels"},
    "store": {"errors", "paths", "object_storage"},
    "matrix": {"errors", "html", "kernels"},
    "sources": {
        "errors",
        "kernels",
        "matrix",
        "paths",
        "object_storage",
        "imported",
        "passes.cluster.calls",  # what lies on a cluster is asked for in the way of the passes
        "passes.settings",
        "passes.cluster.workers",
    },
    "passes": {"errors", "html", "matrix", "accumulators", "store", "kernels", "imported"},
    "report": {"errors", "html", "matrix", "passes", "store"},  # how models look: a room below them
    "models": {
        "errors",
        "html",
        "report",
        "imported",
        "kernels",
        "sources",
        "passes",
        "matrix",
        "accumulators",
        "solvers",
        "store",
    },
    "plots": {"errors", "html", "matrix", "report", "models.text"},
    "genetics": {
        "errors",
        "kernels",
        "sources",
        "passes",
        "matrix",
        "accumulators",
        "solvers",
        "store",
        "models",
    },  # what only genotypes need
    "embedding": {
        "errors",
        "kernels",
        "sources",
        "passes",
        "matrix",
        "store",
        "models",
        "genetics",
    },  # genetics: its filters of variants
    "certification": {
        "errors",
        "html",
        "kernels",
        "sources",
        "passes",
        "matrix",
        "accumulators",
        "store",
        "models",
        "genetics",
    },  # of components that anyone computed; genetics: its tables and filters
    "model_store": {
        "errors",
        "run_context",
        "matrix",
        "models",
        "passes",
        "sources",
        "store",
        "paths",
    },  # versions and the log that says which is served
    "operations": {
        "errors",
        "run_context",
        "version",
        "kernels",
        "matrix",
        "models",
        "model_store",
        "passes",
        "sources",
        "store",
        "paths",
        "genetics",
    },  # refresh, jobs; passes: for the clusters of jobs
    "cli": ANYTHING,
    "xarray": {"models", "passes", "sources"},  # the accessor
    "preprocess": {"models"},  # names for users
    "version": set(),  # for __init__, cli, and logs
    "__init__": ANYTHING,
}

# room of models -> rooms of models that it may import: first what all share, then the families
SHARED = {"side_data", "results", "rows", "contract", "decompose"}
MODELS: dict[str, set[str]] = {
    "side_data": set(),
    "results": {"side_data"},
    "rows": {"side_data", "results"},
    "contract": {"side_data", "results", "rows"},
    "decompose": SHARED,
    "completion": SHARED,
    "pca": SHARED | {"completion"},
    "kernel": SHARED,
    "two_views": SHARED,
    "sparse": SHARED,
    "regression": SHARED,
    "eof": SHARED | {"pca"},
    "coupled": SHARED | {"pca", "eof", "two_views"},
    "latent": SHARED | {"pca"},
    "text": SHARED | {"pca"},
    "explore": SHARED | {"pca", "kernel"},
}

# library -> rooms that may import it, at the top of a module or inside a function
KEPT_IN: dict[str, set[str]] = {
    "dask": {"passes", "sources"},
    "distributed": {"passes", "sources"},
    "zarr": {"sources", "store"},
    "matplotlib": {"plots"},
    "bokeh": {"plots"},
    "umap": {"embedding"},
    "openTSNE": {"embedding"},
    "pacmap": {"embedding"},
    "xarray": {"sources", "xarray"},
    "threadpoolctl": {"passes"},
    "pyarrow": {"sources"},
    "polars": {"sources", "models"},  # models: set_output
}

LIMIT_MB = 90  # with what a PCA needs


def module_name(path: Path) -> str:
    """``streampca.matrix.block`` of its file; a package is its own name."""
    parts = path.relative_to(PACKAGE.parent).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


FILES = {module_name(path): path for path in sorted(PACKAGE.rglob("*.py"))}


def room_of(name: str) -> str:
    """``matrix`` of ``streampca.matrix.block``."""
    parts = name.split(".")
    return parts[1] if len(parts) > 1 else "__init__"


def for_types_only(node: ast.AST) -> bool:
    return isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test)


@cache
def parsed(name: str) -> ast.Module:
    return ast.parse(FILES[name].read_text(), str(FILES[name]))


@cache
def imports(name: str, *, at_load: bool = False) -> list[tuple[str, int]]:
    """See :func:`find_imports`; every test asks for the same ones."""
    return list(find_imports(name, at_load))


def find_imports(name: str, at_load: bool) -> Iterator[tuple[str, int]]:
    """(absolute name, line) of all that a module imports; ``from a import b`` gives ``a.b``.

    at_load : only what is imported when the module is, not what its functions import.
    """
    path = FILES[name]
    waiting: list[ast.AST] = [parsed(name)]
    while waiting:
        node = waiting.pop()
        if isinstance(node, ast.Import):
            yield from ((alias.name, node.lineno) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            base = node.module or ""
            if node.level:
                package = name.split(".") if path.name == "__init__.py" else name.split(".")[:-1]
                base = ".".join(
                    [*package[: len(package) - node.level + 1], *([base] if base else [])]
                )
            yield from ((f"{base}.{alias.name}", node.lineno) for alias in node.names)
        elif (
            isinstance(node, ast.Call)
            and node.args
            and isinstance(node.args[0], ast.Constant)
            and ast.unparse(node.func).endswith(("import_module", "__import__"))
        ):
            yield str(node.args[0].value), node.lineno
        inside = isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda)
        if not (at_load and (inside or for_types_only(node))):
            waiting.extend(ast.iter_child_nodes(node))


def resolve(imported: str) -> str | None:
    """The module of ours that an imported name lies in, or None."""
    while imported:
        if imported in FILES:
            return imported
        imported = imported.rpartition(".")[0]
    return None


def test_every_room_has_its_row() -> None:
    """A new room must say here what it may import."""
    assert {room_of(name) for name in FILES} <= set(ALLOWED)


@pytest.mark.parametrize("room", ALLOWED)
def test_modules_import_only_what_their_room_may(room: str) -> None:
    allowed = ALLOWED[room] | {room}
    wrong = []
    for name in (one for one in FILES if room_of(one) == room and "*" not in allowed):
        for imported, line in imports(name):
            if imported.split(".")[0] != "streampca":
                continue
            target = resolve(imported) or imported
            inner = target.partition(".")[2]
            if not any(inner == ok or inner.startswith(ok + ".") for ok in allowed):
                wrong.append(f"{name}:{line} {imported}")
    assert not wrong, f"{room} may import {sorted(allowed)}, but not {wrong}"


@pytest.mark.parametrize("room", MODELS)
def test_a_room_of_models_imports_only_those_below_it(room: str) -> None:
    inside = [name for name in FILES if name.startswith(f"streampca.models.{room}.")]
    assert inside
    wrong = [
        f"{name}:{line} {imported}"
        for name in inside
        for imported, line in imports(name)
        for other in MODELS.keys() - MODELS[room] - {room}
        if imported.startswith(f"streampca.models.{other}.")
    ]
    assert not wrong, f"models/{room} may import {sorted(MODELS[room])} of the rooms of models"


@pytest.mark.parametrize("library", KEPT_IN)
def test_a_library_stays_in_its_rooms(library: str) -> None:
    wrong = [
        f"{name}:{line}"
        for name in FILES
        for imported, line in imports(name)
        if imported.split(".")[0] == library and room_of(name) not in KEPT_IN[library]
    ]
    assert not wrong, f"{library} belongs in {sorted(KEPT_IN[library])}"


def test_no_module_imports_itself_in_a_circle() -> None:
    """Of what is imported on loading; a package's ``__init__`` only gathers its modules."""
    after = {
        name: {
            t
            for imported, _ in imports(name, at_load=True)
            if (t := resolve(imported)) and t != name
        }
        for name in FILES
    }
    done: set[str] = set()

    def visit(name: str, trail: tuple[str, ...]) -> None:
        assert name not in trail, " -> ".join([*trail[trail.index(name) :], name])
        if name not in done:
            for target in sorted(after[name]):
                visit(target, (*trail, name))
            done.add(name)

    for name in FILES:
        visit(name, ())


def test_rooms_lie_in_layers() -> None:
    """The table itself has no circle."""
    done: set[str] = set()

    def visit(room: str, trail: tuple[str, ...]) -> None:
        assert room not in trail, " -> ".join([*trail, room])
        if room in ALLOWED and room not in done:
            for target in ALLOWED[room] - ANYTHING:
                visit(target.split(".")[0], (*trail, room))
            done.add(room)

    for room in ALLOWED:
        visit(room, ())


def in_a_fresh_process(code: str) -> str:
    environment = {**os.environ, "PYTHONPATH": str(PACKAGE.parent)}
    result = subprocess.run(
        [sys.executable, "-W", "error", "-c", code], capture_output=True, text=True, env=environment
    )
    assert result.returncode == 0, result.stderr
    return result.stdout


@pytest.mark.skipif(not peak_nbytes(), reason="/proc is not there to measure with")
def test_importing_stays_small() -> None:
    code = "from streampca import PCA; print(open('/proc/self/status').read())"
    (line,) = [row for row in in_a_fresh_process(code).splitlines() if row.startswith("VmHWM")]
    assert int(line.split()[1]) / 1024 <= LIMIT_MB, line
