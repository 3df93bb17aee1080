"""The figures of :mod:`tests.house` do not get worse: what was reached is their limit."""

from __future__ import annotations

import pytest

from tests import house

LIMITS = {
    "files entered by PCA": 84,
    "files entered by HardImpute": 86,
    "files entered by GenotypePCA": 92,
    "longest file": 400,
    "functions, 90th percentile": 22,
    "longest function": 73,
    "settings dicts in signatures": 93,
    "settings read by name": 225,
    "files that read settings by name": 41,
    "given in one fit": 44,
    "Standardize.__post_init__ in one fit": 22,
    "files": 363,
    "lines of code": 34143,
    "import cycles": 6,
}


@pytest.mark.slow
def test_no_figure_is_worse_than_it_was() -> None:
    found = house.figures()
    assert set(LIMITS) == set(found)
    assert {name: found[name] for name in LIMITS if found[name] > LIMITS[name]} == {}
