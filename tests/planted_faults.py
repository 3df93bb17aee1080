"""Faults planted in the package, and the tests that catch them: ``python -m tests.planted_faults``.

    python -m tests.planted_faults            # all; ends with 1 where one survives
    python -m tests.planted_faults signs als  # those whose file or text has one of these words

A fault is a text that stands once in a file of the package, and what stands there instead. Each is
tried in a fork of a process that has imported the libraries: it reads that file with the fault, and
runs the tests that are to fail. A text that is not there any more is to be written anew.
"""

from __future__ import annotations

import importlib
import importlib.machinery
import os
import sys
from pathlib import Path
from typing import Any, NamedTuple

PACKAGE = Path(__file__).parents[1] / "streampca"
LIBRARIES = (
    "dask.array",
    "hypothesis",
    "numba",
    "pandas",
    "pytest",
    "scipy.linalg",
    "scipy.sparse",
    "scipy.stats",
    "sklearn.utils",
    "xarray",
    "zarr",
)


class Fault(NamedTuple):
    """file : of the package.  tests : below the folder of the tests, as pytest takes them."""

    file: str
    old: str
    new: str
    tests: str


def faults() -> list[Fault]:
    """Those of ``planted_faults.txt``: file and tests, the text, what stands there instead."""
    blocks = Path(__file__).with_suffix(".txt").read_text(encoding="utf-8").strip().split("\n\n")
    found = []
    for block in blocks:
        place, old, new = block.splitlines()
        file, _, tests = place.partition(" | ")
        found.append(Fault(file, old.removeprefix("- "), new.removeprefix("+ "), tests))
    return found


def planted(fault: Fault) -> tuple[Path, str] | None:
    """(the file, its text with the fault); also where the text has moved to another file."""
    for path in (PACKAGE / fault.file, *sorted(PACKAGE.rglob("*.py"))):
        text = path.read_text(encoding="utf-8") if path.exists() else ""
        if text.count(fault.old) == 1:
            return path, text.replace(fault.old, fault.new)
    return None


def read_with(path: Path, text: str) -> None:
    """From here on the module of this file is made of this text."""
    real = importlib.machinery.SourceFileLoader.get_code

    def get_code(loader: Any, name: str) -> Any:
        return compile(text, path, "exec") if loader.path == str(path) else real(loader, name)

    importlib.machinery.SourceFileLoader.get_code = get_code  # type: ignore[method-assign]


def caught(fault: Fault, path: Path, text: str) -> bool:
    """Whether a test fails, in a fork."""
    if not (process := os.fork()):
        import pytest

        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
        read_with(path, text)
        tests = [one for name in fault.tests.split() if (one := Path("tests", name)).exists()]
        words = ["-x", "-q", "-n", "0", "-p", "no:cacheprovider"]
        words += ["-W", "ignore::pytest.PytestAssertRewriteWarning"]  # plugins are imported already
        code = 70
        try:
            code = int(pytest.main([*words, *map(str, tests)]))
        finally:
            os._exit(code)
    code = os.waitstatus_to_exitcode(os.waitpid(process, 0)[1])
    if code not in (0, 1):  # pytest ran, and tests failed or not
        raise RuntimeError(f"pytest ended with {code}: {fault}")
    return code == 1


def main() -> int:
    """Plant each fault; 1 where one is not caught or cannot be planted."""
    for name in LIBRARIES:
        importlib.import_module(name)
    words, wrong = sys.argv[1:], 0
    for fault in faults():
        if words and not any(word in fault.file + fault.old for word in words):
            continue
        found = planted(fault)
        said = "not there" if found is None else "caught" if caught(fault, *found) else "SURVIVES"
        wrong += said != "caught"
        print(f"{said:9} {fault.file}: {fault.old}", flush=True)
    return int(wrong > 0)


if __name__ == "__main__":
    sys.exit(main())
