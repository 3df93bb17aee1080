"""The tables of the evidence pages, checked by ``python -m tests.evidence``, made by ``--write``.

A page says where a table goes: ``<!-- made: dense_tall -->`` and ``<!-- end -->``. Tables of times
come from the JSON that a benchmark wrote beside itself (``--record``), those of faults from
``tests/faults/faults.json``. Nothing is timed here. What is checked: that a page holds the table
which its data make; that the rows of a benchmark are candidates of its script, and those of known
answers fits and cases of ``tests/conformance``; that every test
named in the table of faults exists, and repeats as often as the table says.
"""

from __future__ import annotations

import argparse
import ast
import importlib
import json
import math
import re
import sys
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path
from typing import Any

from tests.conformance.fits import OURS, PEERS
from tests.conformance.judge import WORDS
from tests.conformance.matrices import CASES
from tests.validation import record

ROOT = Path(__file__).parents[1]
BENCHMARKS, FAULTS = ROOT / "tests" / "benchmarks", ROOT / "tests" / "faults"
CONFORMANCE, VALIDATION = ROOT / "tests" / "conformance", ROOT / "tests" / "validation"
PAGES = [
    ROOT / "README.md",
    *(room / "README.md" for room in (BENCHMARKS, FAULTS, CONFORMANCE, VALIDATION)),
]
MARKED = re.compile(r"(<!-- made: ([\w ]+) -->\n).*?(<!-- end -->)", re.S)

# the rows that a script can make: a dictionary of it, or a pattern
CANDIDATES = {
    "dense_tall": "CANDIDATES",
    "wide": "CANDIDATES",
    "genotypes": re.compile(
        r"streampca from \.(zarr|bed)(, run \d)?|plink2 --pca 10 \w+|sgkit\.pca|limit from x\.\w+"
    ),
    "square": re.compile(r"streampca from \.(zarr|bed)(, run \d)?|plink2 --pca 10 approx"),
    "sparse": "TOOLS",
    "climate": "TOOLS",
    "completion": "CHILDREN",
    "text": "TOOLS",
    "images": "CANDIDATES",
    "embed": "CANDIDATES",
    "ratings": "CANDIDATES",
    "everyday": "ROWS",
}


def power(x: float) -> str:
    """An error to its order of magnitude."""
    return f"{x:.0e}".replace("e-0", "e-") if x < 0.1 else f"{x:.2f}"


COLUMNS: dict[str, tuple[str, Callable[[Any], str]]] = {
    "data": ("data", str),
    "layout": ("chunked", str),
    "cpu": ("CPU seconds", lambda x: f"{x:.1f}" if x < 100 else f"{x:.0f}"),
    "seconds": ("seconds", lambda x: f"{x:.1f}" if x < 100 else f"{x:.0f}"),
    "ratio": ("ratio", lambda x: f"{x:.1f}"),
    "peak_mb": ("peak memory", lambda x: f"{x / 1000:.{2 if x < 1000 else 1}f} GB"),
    "planned_mb": ("planned", lambda x: f"{x / 1000:.{2 if x < 1000 else 1}f} GB"),
    "trust": ("trustworthiness", lambda x: f"{x:.4f}"),
    "near": ("neighbours kept", lambda x: f"{x:.3f}"),
    "passes": ("passes", str),
    "sweep": ("seconds a pass", lambda x: f"{x:.1f}"),
    "reads": ("reads of a chunk", lambda x: f"{x:g}"),
    "1-min|cos|": ("1 - \\|cos\\|", power),
    "relative_error": ("error", power),
    "rmse": ("RMSE", lambda x: f"{x:.3f}"),
    "mae": ("MAE", lambda x: f"{x:.3f}"),
    "ndcg": ("NDCG at 10", lambda x: f"{x:.3f}"),
    "variance": ("variance", power),
    "eigenvalue": ("eigenvalue", power),
    "value": ("values", power),
    "angle": ("angle", power),
    "note": ("", str),
}
# README.md: what was done, the script, and the rows of ours and of the peer
SUMMARY = [
    (
        "500,000 x 512 float32, 20 components",
        "dense_tall",
        "streampca.PCA",
        "sklearn PCA, in core",
        "scikit-learn `PCA`, in memory",
    ),
    (
        "the same",
        "dense_tall",
        "streampca.PCA",
        "sklearn IncrementalPCA",
        "scikit-learn `IncrementalPCA`",
    ),
    (
        "the same",
        "dense_tall",
        "streampca.PCA",
        "dask-ml PCA, default (randomized)",
        "dask-ml `PCA`, randomized",
    ),
    (
        "3,192 x 500,568 genotypes from `.bed`, 10 components",
        "genotypes",
        "streampca from .bed",
        "plink2 --pca 10 meanimpute",
        "`plink2 --pca 10 meanimpute`",
    ),
    (
        "20,000 x 60,000 genotypes from `.bed`, 10 components",
        "square",
        "streampca from .bed",
        "plink2 --pca 10 approx",
        "`plink2 --pca 10 approx`",
    ),
    (
        "100,000 x 20,000 sparse counts, 30 components",
        "sparse",
        "streampca.TruncatedSVD",
        "sklearn TruncatedSVD, arpack",
        "scikit-learn `TruncatedSVD`, ARPACK, in memory",
    ),
    (
        "2,000 x 360 x 720 field, 5 EOFs",
        "climate",
        "streampca.PCA",
        "xeofs EOF, default",
        "xeofs `EOF`",
    ),
]


# each implementation as it is by default
DEFAULTS = {
    "streampca": "streampca PCA auto",
    "scikit-learn": "scikit-learn PCA auto",
    "dask-ml": "dask-ml PCA auto",
    "xeofs": "xeofs EOF auto",
    "scanpy": "scanpy pca arpack",
}


# -- times -------------------------------------------------------------------------


@cache
def recorded(name: str) -> dict[str, Any]:
    """What the benchmark wrote."""
    told: dict[str, Any] = json.loads((BENCHMARKS / f"{name}.json").read_text())
    return told


def has_record(name: str) -> bool:
    """Whether a benchmark was recorded; one that was not has no table yet."""
    return (BENCHMARKS / f"{name}.json").is_file()


def times(name: str) -> str:
    """The table of a benchmark, and the command, machine, day and commit of its run."""
    told = recorded(name)
    rows = [with_ratio(row, told["rows"]) for row in told["rows"] if "error" not in row]
    used = [key for key in COLUMNS if any(key in row for row in rows)]
    head = ["", *(COLUMNS[key][0] for key in used)]
    body = [[shown(row["name"]), *(cell(row, key) for key in used)] for row in rows]
    failed = [f"Not run: {row['name']} ({row['error']})." for row in told["rows"] if "error" in row]
    return "\n".join([grid(head, body), "", source(told), *failed])


def source(told: dict[str, Any]) -> str:
    """The command, machine, day, commit and versions of a run."""
    versions = f" {told['versions']}." if "versions" in told else ""
    return (
        f"`{told['command']}` on {told['machine']}, {told['date']}, commit {told['commit']}."
        f"{versions}"
    )


def with_ratio(row: dict[str, Any], rows: list[dict[str, Any]]) -> dict[str, Any]:
    """A row with its time over that of the first row, which is ours, of the same data and layout.

    Times are wall seconds, or those of processors where a benchmark has no others.
    """
    alike = [other for other in rows if all(other.get(x) == row.get(x) for x in ("data", "layout"))]
    time = "seconds" if "seconds" in alike[0] else "cpu"
    first = row.get("beside", alike[0].get(time))
    comparable = first and time in row and not row["name"].endswith("ratings")  # other data
    return row | ({"ratio": row[time] / first} if comparable else {})


def shown(name: str) -> str:
    """Names of ours stand out."""
    return f"**{name}**" if name.startswith("streampca") else name


def cell(row: dict[str, Any], key: str) -> str:
    return COLUMNS[key][1](row[key]) if key in row else ""


def everyday(name: str) -> str:
    """Ours beside the peer of each row, in turns."""
    told = recorded(name)
    head = ["", "peer", "ours, CPU", "peer's", "ratio", "goal", "ours, wall", "peer's"]
    body = [
        [
            row["work"],
            row["peer"],
            *(duration(row[key]) for key in ("cpu", "peer_cpu")),
            f"{row['cpu'] / row['peer_cpu']:.{1 if row['cpu'] > 10 * row['peer_cpu'] else 2}f}",
            row["goal"],
            *(duration(row[key]) for key in ("seconds", "peer_seconds")),
        ]
        for row in told["rows"]
        if "error" not in row
    ]
    failed = [f"Not run: {row['work']} ({row['error']})." for row in told["rows"] if "error" in row]
    busy = max(row["load"] for row in told["rows"])
    load = f"The load average was at most {busy:g}; on a busy machine wall times mean little."
    return "\n".join([grid(head, body), "", source(told), load, *failed])


def duration(seconds: float) -> str:
    """In milliseconds where it is short."""
    return f"{seconds:.2f} s" if seconds >= 0.1 else f"{1000 * seconds:.2g} ms"


def summary(_: str) -> str:
    """README's table: ours beside a peer, in one run."""
    body = []
    for task, name, ours, theirs, words in SUMMARY:
        rows = {row["name"]: row for row in reversed(recorded(name)["rows"])}
        mine, other = rows[ours], rows[theirs]
        body.append(
            [
                task,
                words,
                cell(mine, "seconds") + " s",
                cell(other, "seconds") + " s",
                f"{other['seconds'] / mine['seconds']:.1f}",
                cell(mine, "peak_mb"),
                cell(other, "peak_mb"),
            ]
        )
    return grid(["task", "peer", "ours", "peer's", "ratio", "our memory", "peer's"], body)


def wrong_rows() -> Iterator[str]:
    """Rows of a benchmark that its script does not make, and files that no script wrote."""
    for name, known in CANDIDATES.items():
        if not has_record(name):
            continue
        script = importlib.import_module(f"tests.benchmarks.{name}")
        for row in recorded(name)["rows"]:
            made = (
                row["name"] in getattr(script, known)
                if isinstance(known, str)
                else known.fullmatch(row["name"])
            )
            if not made:
                yield f"tests/benchmarks/{name}.json: the script makes no row {row['name']!r}"
        if not recorded(name)["command"].startswith(f"python -m tests.benchmarks.{name}"):
            yield f"tests/benchmarks/{name}.json: {recorded(name)['command']} is another script"


# -- known answers -----------------------------------------------------------------


def answered() -> dict[str, Any]:
    """What ``python -m tests.conformance --record`` kept."""
    told: dict[str, Any] = json.loads((CONFORMANCE / "table.json").read_text())
    return told


def verdicts(_: str) -> str:
    """How many matrices each fit answers, and how."""
    body = [[shown(row["name"]), *(str(row[word]) for word in WORDS)] for row in answered()["rows"]]
    return f"{grid(['', *WORDS], body)}\n\n{source(answered())}"


def cases(_: str) -> str:
    """What each implementation, as it is by default, makes of each matrix."""
    rows = {row["name"]: row for row in answered()["rows"]}
    body = [
        [name, case.why, *(rows[fit]["other"].get(name, "pass") for fit in DEFAULTS.values())]
        for name, case in CASES.items()
    ]
    return grid(["matrix", "what is hard", *DEFAULTS], body)


def wrong_answers() -> Iterator[str]:
    """Fits and matrices that are none."""
    for row in answered()["rows"]:
        if row["name"] not in OURS | PEERS or not CASES.keys() >= row["other"].keys():
            yield f"tests/conformance/table.json: no such fit or matrix: {row['name']!r}"
        if sum(row[word] for word in WORDS) != len(CASES):
            yield f"tests/conformance/table.json: {row['name']!r} is not of all matrices"


# -- faults ------------------------------------------------------------------------


def faults(_: str) -> str:
    """The table of faults, by number."""
    head = ["", "injected", "tried", "survived", "95 % bound", "test"]
    return grid(head, [fault_row(one) for one in trials()])


def trials() -> list[dict[str, Any]]:
    """One dictionary for each row."""
    told: list[dict[str, Any]] = json.loads((FAULTS / "faults.json").read_text())
    return told


def fault_row(one: dict[str, Any]) -> list[str]:
    tried, survived = one["tried"], one["survived"]
    bound = ""
    if isinstance(tried, int):
        bound = f"{100 * upper_bound(tried, tried - survived):.2g} %"
    tests = dict.fromkeys(name.partition("::")[0].removesuffix(".py") for name in one["tests"])
    counted = "" if "counts" in one or isinstance(tried, str) else "*"
    return [
        one["fault"],
        one["injected"],
        number(tried) + counted,
        number(survived),
        bound,
        ", ".join(f"`{name.removeprefix('faults/')}`" for name in tests),
    ]


def number(value: int | str) -> str:
    return f"{value:,}" if isinstance(value, int) else value


def upper_bound(n: int, failures: int) -> float:
    """The largest rate of failure with which 5 % of such runs do as well (Clopper-Pearson)."""
    low, high = 0.0, 1.0
    for _ in range(60):
        rate = (low + high) / 2
        terms = (math.comb(n, i) * rate**i * (1 - rate) ** (n - i) for i in range(failures + 1))
        low, high = (rate, high) if sum(terms) > 0.05 else (low, rate)
    return high


def wrong_trials() -> Iterator[str]:
    """Tests that do not exist, and numbers of repetitions that are not those of the test."""
    for one in trials():
        for name in one["tests"]:
            path, _, function = name.partition("::")
            if not (ROOT / "tests" / path).is_file():
                yield f"{one['fault']}: tests/{path} does not exist"
            elif function and function not in functions(path):
                yield f"{one['fault']}: tests/{path} has no {function}"
            elif function and "counts" in one and name == one["tests"][0]:
                yield from wrong_count(one, path, function)


def wrong_count(one: dict[str, Any], path: str, function: str) -> Iterator[str]:
    """The factors of a number of trials: numbers that stand in the test, and lengths of lists."""
    product, test = 1, functions(path)[function]
    for factor in one["counts"]:
        if isinstance(factor, str):
            product *= length(path, test, factor)
        elif factor in constants(test):
            product *= factor
        else:
            yield f"{one['fault']}: no {factor} in {path}::{function}"
    if product != one["tried"]:
        yield f"{one['fault']}: {path}::{function} tries {product}, not {one['tried']}"


@cache
def parsed(path: str) -> ast.Module:
    return ast.parse((ROOT / "tests" / path).read_text())


def functions(path: str) -> dict[str, ast.FunctionDef]:
    return {one.name: one for one in parsed(path).body if isinstance(one, ast.FunctionDef)}


def constants(test: ast.FunctionDef) -> set[Any]:
    return {one.value for one in ast.walk(test) if isinstance(one, ast.Constant)}


def length(path: str, test: ast.FunctionDef, name: str) -> int:
    """The number of values that ``@name`` is parametrized with, or of entries of ``NAME``."""
    if name.startswith("@"):
        for call in test.decorator_list:
            if isinstance(call, ast.Call) and ast.unparse(call.args[0]) == repr(name[1:]):
                return len(call.args[1].elts)  # type: ignore[attr-defined]
    for one in parsed(path).body:
        if isinstance(one, ast.Assign | ast.AnnAssign) and one.value is not None:
            targets = one.targets if isinstance(one, ast.Assign) else [one.target]
            if name in map(ast.unparse, targets):
                return len(getattr(one.value, "keys", getattr(one.value, "elts", ())))
    raise LookupError(f"{path} has no {name}")


# -- pages -------------------------------------------------------------------------


def grid(head: list[str], body: list[list[str]]) -> str:
    """A table of Markdown."""
    return "\n".join(f"| {' | '.join(row)} |" for row in [head, ["---"] * len(head), *body])


MAKERS: dict[str, Callable[[str], str]] = {
    **dict.fromkeys(CANDIDATES, times),
    "everyday": everyday,
    "summary": summary,
    "verdicts": verdicts,
    "cases": cases,
    "faults": faults,
    "validation": record.tables,
}


def written(page: str) -> str:
    """The page with its tables made anew."""
    return MARKED.sub(lambda m: f"{m[1]}{MAKERS[m[2]](m[2])}\n{m[3]}", page)


def complaints() -> list[str]:
    """All that is wrong with the pages."""
    texts = {path: path.read_text() for path in PAGES}
    made = {m[2] for text in texts.values() for m in MARKED.finditer(text)}
    return [
        *wrong_rows(),
        *wrong_trials(),
        *wrong_answers(),
        *(
            f"no page has the table {name}"
            for name in MAKERS
            if name not in made and (name not in CANDIDATES or has_record(name))
        ),
        *(
            f"{path.relative_to(ROOT)} is not what its data make: python -m tests.evidence --write"
            for path, text in texts.items()
            if text != written(text)
        ),
    ]


def write_pages() -> None:
    """Make the tables of all pages anew."""
    for path in PAGES:
        path.write_text(written(path.read_text()))


def main() -> int:
    """Check the pages, or write their tables."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--check", action="store_true", help="what it does without --write")
    parser.add_argument("--write", action="store_true", help="write the tables into their pages")
    if parser.parse_args().write:
        write_pages()
    found = complaints()
    print(*found, sep="\n", end="\n" if found else "")
    return min(len(found), 1)


if __name__ == "__main__":
    sys.exit(main())
