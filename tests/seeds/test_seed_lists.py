"""What is listed as not built is not there, and every slip has a test of the right form."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

import streampca
from tests.seeds.documents import ERRATA, NOT_BUILT


@pytest.mark.parametrize(("what", "name"), sorted({row[:2] for row in NOT_BUILT}))
def test_not_built(what: str, name: str) -> None:
    said = f"{what} is there now: assert its formulas, and take it off NOT_BUILT in documents.py"
    assert not hasattr(streampca, name), said


def test_every_slip_is_asserted_in_its_right_form() -> None:
    defined: dict[str, set[str]] = {}
    for path in Path(__file__).parent.glob("test_seed_0*.py"):
        document = path.stem.split("_")[2]
        nodes = ast.walk(ast.parse(path.read_text()))
        names = {node.name for node in nodes if isinstance(node, ast.FunctionDef)}
        defined[document] = defined.get(document, set()) | names
    assert sorted(defined) == ["000", "001", "002", "003", "004"]
    lost = [row for row in ERRATA if row[4] not in defined[row[0]]]
    assert not lost
