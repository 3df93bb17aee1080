"""What public docstrings say, counted: ``python -m tests.docstrings`` prints it.

Public is what ``streampca.__all__`` names, the members of those classes, and the functions of
``plots``, ``embedding`` and ``preprocess``. Shapes, cost and errors are asked for where they apply:

- shapes: of a function that takes X or Y, or whose annotations name an array;
- cost: of a function that takes X or Y, and so may read them; of ``fit`` and its like that of the
  class will do;
- errors: each that a function raises itself, by name.
"""

from __future__ import annotations

import ast
import inspect
import re
import textwrap
from collections.abc import Iterator
from types import ModuleType
from typing import Any

import streampca

SIDE = r"[\w.']+(?:\s*[-+*/]\s*[\w.']+)*"
SHAPE = re.compile(rf"\(\s*{SIDE}\s*,(?:\s*{SIDE}\s*,?)*\s*\)|\bshapes?\b")
COST = re.compile(r"\bcosts?\b|\bpass(es)?\b|\breads (nothing|no|texts)\b|\bsecond read\b", re.I)
ARRAYS = ("Array", "ndarray")
FITS = ("fit", "partial_fit", "fit_transform")
MODULES = ("plots", "embedding", "preprocess")
OUR_ERRORS = {name for name in dir(streampca.errors) if name.endswith("Error")} | {"AttributeError"}

Found = dict[str, list[str]]


def public() -> Iterator[tuple[str, Any, str, str]]:
    """(name, function or class, its docstring, that of its class) of each, once."""
    seen: set[int] = set()
    for name in streampca.__all__:
        one = getattr(streampca, name)
        if inspect.isclass(one):
            yield name, one, inspect.getdoc(one) or "", ""
            for member, function, doc in members(one):
                if id(function) not in seen:
                    seen.add(id(function))
                    yield f"{name}.{member}", function, doc, inspect.getdoc(one) or ""
        elif callable(one):
            yield name, one, inspect.getdoc(one) or "", ""
    for room in MODULES:
        module: ModuleType = getattr(streampca, room)
        for name in module.__all__:
            if inspect.isfunction(one := getattr(module, name)):
                yield f"{room}.{name}", one, inspect.getdoc(one) or "", ""


def members(cls: type) -> Iterator[tuple[str, Any, str]]:
    """Its public functions of this package, those of properties too, with their docstrings."""
    for name, one in inspect.getmembers_static(cls):
        function = inspect.unwrap(getattr(one, "fget", None) or getattr(one, "__func__", one))
        if name.startswith("_") or not inspect.isfunction(function):
            continue
        if function.__module__.startswith("streampca."):
            yield name, function, inspect.getdoc(one) or ""


def raised(function: Any) -> set[str]:
    """The errors of this package that it raises itself."""
    if function.__name__ == "<lambda>":
        return set()
    tree = ast.parse(textwrap.dedent(inspect.getsource(function)))
    names = {
        ast.unparse(node.exc.func)
        for node in ast.walk(tree)
        if isinstance(node, ast.Raise) and isinstance(node.exc, ast.Call)
    }
    return names & OUR_ERRORS


def figures() -> tuple[dict[str, int], Found]:
    """(how many there are that each applies to, the names of those without)."""
    counts = dict.fromkeys(("docstrings", "shapes", "cost", "errors"), 0)
    missing: Found = {name: [] for name in counts}

    def asked(what: str, name: str, found: bool) -> None:
        counts[what] += 1
        if not found:
            missing[what].append(name)

    for name, one, doc, of_class in public():
        asked("docstrings", name, bool(doc))
        if inspect.isclass(one):
            continue
        signature = inspect.signature(one)
        reads = not {"X", "Y"}.isdisjoint(signature.parameters)
        noted = [str(one.annotation) for one in signature.parameters.values()]
        noted.append(str(signature.return_annotation))
        if reads or any(kind in text for kind in ARRAYS for text in noted):
            asked("shapes", name, bool(SHAPE.search(doc)))
        if reads:
            fits = name.rpartition(".")[2] in FITS
            asked("cost", name, bool(COST.search(doc)) or (fits and "\nCost" in of_class))
        if errors := raised(one):
            asked("errors", name, "Raises" in doc and all(error in doc for error in errors))
    return counts, missing


if __name__ == "__main__":
    counts, missing = figures()
    for what, count in counts.items():
        print(f"{what:12} {count - len(missing[what])} of {count}", *missing[what])
