"""How the package is built, in figures: ``python -m tests.house`` prints them.

Lines, functions and imports are read from the source; the files that a fit enters, and how often
it checks the same thing, from a profile of a tiny fit in a fresh process. ``test_house.py`` keeps
the figures that were reached.
"""

from __future__ import annotations

import ast
import json
import subprocess
import sys
import tokenize
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import numpy as np

import streampca
from tests.test_imports import FILES, imports, parsed, resolve

PACKAGE = Path(streampca.__file__).parent

FITS = {
    "PCA": "PCA(20).fit(store)",
    "HardImpute": "HardImpute(2).fit(holes)",
    "GenotypePCA": "GenotypePCA(5).fit(calls)",
}

PROFILED = """
import sys, tempfile, threading, collections, json
import numpy as np, zarr
import streampca
from streampca.passes import memory
streampca.__version__; memory.load({{}})  # what a fit imports is not what it enters
from streampca import PCA, GenotypePCA, HardImpute

package = {package!r}
folder = tempfile.mkdtemp()
rng = np.random.default_rng(0)

def stored(name, values):
    path = folder + "/" + name
    zarr.create_array(path, data=values, chunks=(100, values.shape[1]))
    return path

x = rng.standard_normal((400, 40))
store = stored("x.zarr", x)
gaps = x.copy(); gaps[rng.random(x.shape) < .1] = np.nan
holes = stored("holes.zarr", gaps)
calls = stored("calls.zarr", rng.integers(0, 3, (100, 400)).astype("i1"))
entered, called = collections.defaultdict(set), collections.Counter()

def watch(frame, event, _):
    name = frame.f_code.co_filename
    if event == "call" and name.startswith(package) and frame.f_code.co_name != "<module>":
        inside = name[len(package) + 1:]
        entered[inside.partition("/")[0]].add(inside)
        called[inside + ":" + frame.f_code.co_qualname] += 1

threading.setprofile(watch); sys.setprofile(watch)
{fit}
sys.setprofile(None); threading.setprofile(None)
print(json.dumps(dict(rooms={{k: len(v) for k, v in sorted(entered.items())}}, called=called)))
"""


@cache
def nodes(module: str) -> list[ast.AST]:
    """Of its syntax tree, which most figures are counted from."""
    return [*ast.walk(parsed(module))]


CHECKS = ("Request.check", "Standardize.__post_init__")


@cache
def profile(fit: str) -> dict[str, dict[str, int]]:
    """rooms: files entered in each;  called: calls of each function, of a tiny fit."""
    code = PROFILED.format(package=str(PACKAGE), fit=FITS[fit])
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    found: dict[str, dict[str, int]] = json.loads(done.stdout)
    return found


def entered(fit: str) -> int:
    """Files of the package whose functions a fit calls."""
    return sum(profile(fit)["rooms"].values())


def checks(fit: str = "PCA") -> dict[str, int]:
    """How often one fit makes what it could make once."""
    called = profile(fit)["called"]
    return {
        one: sum(n for name, n in called.items() if name.rpartition(":")[2] == one)
        for one in CHECKS
    }


def functions() -> Iterator[tuple[int, str]]:
    """(lines without the docstring, name) of every function."""
    for module in FILES:
        for node in nodes(module):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                body = node.body[1:] if ast.get_docstring(node) is not None else node.body
                if body:
                    lines = (node.body[-1].end_lineno or 0) - body[0].lineno + 1
                    yield lines, f"{module}.{node.name}"


def settings_dicts() -> int:
    """Parameters called ``settings`` that are a dict of anything."""
    return sum(
        "[str, Any]" in ast.unparse(argument.annotation)
        for module in FILES
        for node in nodes(module)
        if isinstance(node, ast.FunctionDef)
        for argument in [*node.args.args, *node.args.kwonlyargs]
        if argument.arg == "settings" and argument.annotation is not None
    )


def settings_reads() -> tuple[int, int]:
    """Reads by name, ``settings["name"]`` or ``settings.get("name")``: of settings that are handed
    from function to function, and of ``result.settings``, which a saved model holds as JSON."""
    read = [one for module in FILES for node in nodes(module) if (one := _read(node))]
    return sum("." not in one for one in read), sum("." in one for one in read)


def _read(node: ast.AST) -> str:
    """The settings that are read here by a constant name; "" where none are."""
    if isinstance(node, ast.Subscript) and isinstance(node.ctx, ast.Load):
        holder, key = node.value, node.slice
    elif isinstance(node, ast.Call) and node.args:
        holder, key = node.func, node.args[0]
    else:
        return ""
    if not isinstance(key, ast.Constant):
        return ""
    whole = ast.unparse(holder)
    if isinstance(node, ast.Call):
        whole = whole.removesuffix(".get")
    return whole if whole.rpartition(".")[2] == "settings" else ""


def code_lines() -> int:
    """Lines with code: no blank ones, comments, docstrings or meanings of parameters."""
    total = 0
    for module, path in FILES.items():
        text = {
            line
            for node in nodes(module)
            if (isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant))
            or (isinstance(node, ast.keyword) and node.arg == "meaning")
            for line in range(node.lineno, (node.end_lineno or 0) + 1)
        }
        with open(path, "rb") as file:
            skipped = (
                tokenize.COMMENT,
                tokenize.NL,
                tokenize.NEWLINE,
                tokenize.INDENT,
                tokenize.DEDENT,
                tokenize.ENCODING,
                tokenize.ENDMARKER,
            )
            code = {
                line
                for token in tokenize.tokenize(file.readline)
                if token.type not in skipped
                for line in range(token.start[0], token.end[0] + 1)
            }
        total += len(code - text)
    return total


def import_cycles() -> list[set[str]]:
    """Groups of files that import each other, inside functions and for types counted too."""
    graph = {
        name: {m for one, _ in imports(name) if (m := resolve(one)) and m != name} for name in FILES
    }
    reach: dict[str, set[str]] = {}
    for name in graph:
        seen, todo = set(), list(graph[name])
        while todo:
            if (one := todo.pop()) not in seen:
                seen.add(one)
                todo.extend(graph[one])
        reach[name] = seen
    groups = {frozenset({m for m in reach[n] if n in reach[m]}) for n in graph if n in reach[n]}
    return sorted(map(set, groups), key=sorted)


def figures() -> dict[str, float]:
    """All of them by name."""
    lengths = sorted(n for n, _ in functions())
    passed_on, saved = settings_reads()
    made = checks()
    return {
        **{f"files entered by {name}": entered(name) for name in FITS},
        "longest file": max(len(p.read_text().splitlines()) for p in FILES.values()),
        "functions, 90th percentile": float(np.percentile(lengths, 90)),
        "longest function": lengths[-1],
        "settings dicts in signatures": settings_dicts(),
        "settings read by name": passed_on,
        "saved settings read by name": saved,
        **{f"{name} in one fit": n for name, n in made.items()},
        "files": len(FILES),
        "lines of code": code_lines(),
        "import cycles": len(import_cycles()),
    }


if __name__ == "__main__":
    for name, value in figures().items():
        print(f"{name:36} {value:g}")
    for name in FITS:
        print(name, profile(name)["rooms"])
    for group in import_cycles():
        print("cycle:", *sorted(group))
