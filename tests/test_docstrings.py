"""Public docstrings name shapes, cost and errors where they apply: :mod:`tests.docstrings`."""

from __future__ import annotations

from typing import Any

import pytest

from streampca.errors import InvalidInputError
from tests import docstrings


def test_none_is_missing() -> None:
    counts, missing = docstrings.figures()
    assert counts["docstrings"] > 450  # 492
    assert not any(missing.values()), missing


def silent(X: Any) -> Any:
    """What is made of X, an array, (see elsewhere)."""
    if X is None:
        raise InvalidInputError("X is None")


def test_what_is_missing_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    found = ("silent", silent, silent.__doc__, "")
    monkeypatch.setattr(docstrings, "public", lambda: iter([found]))
    _, missing = docstrings.figures()
    assert [name for name, without in missing.items() if without] == ["shapes", "cost", "errors"]
