"""The documents behind streampca, line by line: what is not built, and where the rest is asserted.

Each formula that streampca implements is an assertion against its own API in ``tests/seeds``, one
file a document, with the slips of the documents in their right form. What is not built stands in
NOT_BUILT, and leaves it when it is.
"""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

import streampca
from tests.seeds.documents import ERRATA

# name, public name that it would have, document, place
NOT_BUILT = (
    ("t-SNE", "TSNE", "000", "PCA is a linear method, modifications"),
    ("UMAP", "UMAP", "000", "Local dimension reduction: UMAP"),
    ("UMAP after filter and PCA", "UMAP", "000", "UMAP, practical aspects"),
)


@pytest.mark.parametrize(("what", "name"), sorted({row[:2] for row in NOT_BUILT}))
def test_not_built(what: str, name: str) -> None:
    said = f"{what} is there now: assert its formulas, and take it off NOT_BUILT"
    assert not hasattr(streampca, name), said


def test_every_slip_is_asserted_in_its_right_form() -> None:
    defined: dict[str, set[str]] = {}
    for path in (Path(__file__).parent / "seeds").glob("test_seed_0*.py"):
        document = path.stem.split("_")[2]
        nodes = ast.walk(ast.parse(path.read_text()))
        names = {node.name for node in nodes if isinstance(node, ast.FunctionDef)}
        defined[document] = defined.get(document, set()) | names
    assert sorted(defined) == ["000", "001", "002", "003", "004"]
    lost = [row for row in ERRATA if row[4] not in defined[row[0]]]
    assert not lost
