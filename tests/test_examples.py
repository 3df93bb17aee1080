"""Each public class and function shows an example that runs: ``>>>`` lines in its docstring.

``np`` and ``streampca`` are imported. An example may write into its working directory, and does not
warn.
"""

from __future__ import annotations

import doctest
import inspect
import io
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import matplotlib
import matplotlib.pyplot
import numpy as np
import pytest

import streampca
from tests.docstrings import MODULES, members

OPTIONS = doctest.NORMALIZE_WHITESPACE | doctest.ELLIPSIS


def public() -> dict[str, Any]:
    """The classes and functions that users call by these names."""
    from streampca.xarray import StreampcaAccessor

    found = {name: getattr(streampca, name) for name in streampca.__all__}
    for room in MODULES:
        module = getattr(streampca, room)
        found |= {f"{room}.{name}": getattr(module, name) for name in module.__all__}
    found |= {f"da.streampca.{name}": method for name, method, _ in members(StreampcaAccessor)}
    first = {id(one): name for name, one in reversed(found.items()) if callable(one)}
    return {name: found[name] for name in reversed(first.values())}


def own_docstring(one: Any) -> str:
    """Its docstring; one that a class inherits is not its own."""
    return inspect.cleandoc(one.__doc__ or "")


def other_texts() -> Iterator[tuple[str, str]]:
    """(name, text) of methods of public classes. (``test_kinds`` runs the page of the rooms.)"""
    for name, one in public().items():
        if inspect.isclass(one):
            yield from ((f"{name}.{member}", doc) for member, _, doc in members(one))


def outcome(name: str, text: str) -> str:
    """What differs between an example and what it prints; nothing where it is as it says."""
    names = {"__name__": "__main__", "np": np, "streampca": streampca}
    test = doctest.DocTestParser().get_doctest(text, names, name, name, 0)
    printed = io.StringIO()
    doctest.DocTestRunner(optionflags=OPTIONS, verbose=False).run(test, out=printed.write)
    return printed.getvalue()


def test_every_public_name_has_an_example() -> None:
    without = {name for name, one in public().items() if ">>>" not in own_docstring(one)}
    assert not without, "public names need an example (>>>) in their docstrings"


def test_examples_print_what_they_say(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    matplotlib.use("Agg")
    texts = {name: own_docstring(one) for name, one in public().items()} | dict(other_texts())
    failures = []
    for number, (name, text) in enumerate(texts.items()):
        if ">>>" in text:
            (folder := tmp_path / str(number)).mkdir()
            monkeypatch.chdir(folder)
            failures.append(outcome(name, text))
            matplotlib.pyplot.close("all")
    assert not any(failures), "\n".join(filter(None, failures))


def test_an_example_that_prints_something_else_fails() -> None:
    assert not outcome("sum", ">>> 1 + 1\n2\n")
    assert "Expected:" in outcome("sum", ">>> 1 + 1\n3\n")
    warns = ">>> import warnings\n>>> warnings.warn('slowly')\n"
    assert "UserWarning: slowly" in outcome("warns", warns)
