"""Every benchmark answers a wrong word before it begins."""

from __future__ import annotations

import ast
import sys
from importlib import import_module
from pathlib import Path

import pytest

from tests.benchmarks.measure import blas_of

FOLDER = Path(__file__).parent / "benchmarks"
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
