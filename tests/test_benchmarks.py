"""Every benchmark answers a wrong word before it begins."""

from __future__ import annotations

import ast
import re
import sys
import time
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest

from tests.benchmarks import everyday, split
from tests.benchmarks.measure import blas_of, in_turns

FOLDER = Path(__file__).parent / "benchmarks"
PACKAGE = Path(__file__).parents[1] / "streampca"
SCRIPTS = [
    path.stem
    for path in sorted(FOLDER.glob("*.py"))
    if "__main__" in path.read_text(encoding="utf-8")
    and path.stem not in ("measure", "sgkit_pca")  # it names the main module; a child of genotypes
]
NAMES = ("--only", "--rows", "--layouts", "--shapes", "--data", "--peers", "--method", "--on")


def wrong_words() -> list[list[str]]:
    """A script, and an option of names with a word that is none of them."""
    found = [[script, "nonsense"] for script in SCRIPTS]
    for script in SCRIPTS:
        tree = ast.parse((FOLDER / f"{script}.py").read_text(encoding="utf-8"))
        options = {node.value for node in ast.walk(tree) if isinstance(node, ast.Constant)}
        found += [[script, option, "nonsense"] for option in NAMES if option in options]
    return found


@pytest.mark.parametrize("words", wrong_words(), ids=" ".join)
def test_a_wrong_word_is_answered_with_the_choices(
    words: list[str], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    script, *arguments = words
    monkeypatch.setattr(sys, "argv", [script, *arguments])
    with pytest.raises(SystemExit) as ended:
        import_module(f"tests.benchmarks.{script}").main()
    assert ended.value.code == 2
    said = capsys.readouterr().err
    assert "nonsense" in said
    asked_by_name = arguments[0].startswith("--")
    assert not asked_by_name or "choose from" in said or "invalid int" in said


@pytest.mark.parametrize(
    ("libraries", "name"),
    [
        (["/lib/libblas.so.3.11.0", "/lib/liblapack.so.3"], "the reference BLAS"),
        (["/lib/openblas-pthread/libblas.so.3", "/lib/libopenblasp-r0.3.21.so"], "OpenBLAS"),
        (["/lib/libmkl_rt.so"], "MKL"),
        (["/lib/libc.so.6"], "its own BLAS"),
    ],
)
def test_the_blas_of_a_peer_is_named(libraries: list[str], name: str) -> None:
    assert blas_of(libraries) == name


def test_calls_are_made_in_turns() -> None:
    made: list[str] = []
    calls = {name: lambda name=name: made.append(name) or time.process_time() for name in "ab"}
    found = in_turns(calls, budget=0.0)
    assert made[:2] == ["a", "b"]
    assert {*found} == {"a", "b"}
    assert all(one["turns"] == 1 and one["last"] for one in found.values())


def test_rows_are_chosen_by_name_and_by_group() -> None:
    assert everyday.chosen(None) == [*everyday.ROWS]
    assert everyday.chosen(["tall", "calls-fit"]) == ["tall-warm", "tall-first", "calls-fit"]


def test_every_part_of_a_fit_is_some_function() -> None:
    functions = [
        f"{path.as_posix()}:{name}"
        for path in PACKAGE.rglob("*.py")
        for name in re.findall(r"def (\w+)\(", path.read_text(encoding="utf-8"))
    ]
    for part, pattern in {**split.WHOLE, **split.INNERMOST}.items():
        assert part == split.IMPORTS or any(re.search(pattern, one) for one in functions), part


def test_time_goes_to_the_part_of_a_stack() -> None:
    def loop(path: str) -> Any:
        names: dict[str, Any] = {}
        exec(compile("def f(until, call):\n    while not until(): call()\n", path, "exec"), names)
        return names["f"]

    end = time.monotonic() + 10.0
    decode, solve = loop("streampca/sources/npy.py"), loop("streampca/solvers/spectrum.py")
    with split.Sampler() as parts:
        decode(lambda: parts["read and decode"] > 0 or time.monotonic() > end, int)
        solve(
            lambda: parts["solve"] > 0 or time.monotonic() > end,
            lambda: decode(iter([False, True]).__next__, int),
        )
    assert parts["read and decode"] > 0
    assert parts["solve"] > 0  # the outermost of what is a part as a whole
    assert parts[split.SAMPLING] > 0
