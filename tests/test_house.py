"""The figures of :mod:`tests.house` do not get worse: what was reached is their limit."""

from __future__ import annotations

import pytest

from tests import house

LIMITS = {
    "files entered by PCA": 70,
    "files entered by HardImpute": 70,
    "files entered by GenotypePCA": 74,
    "longest file": 400,
    "functions, 90th percentile": 18,
    "longest function": 73,
    "settings dicts in signatures": 3,
    "settings read by name": 19,
    "files that read settings by name": 13,
    "Request.check in one fit": 1,
    "Standardize.__post_init__ in one fit": 2,
    "files": 282,
    "lines of code": 39450,
    "import cycles": 5,
}


@pytest.mark.slow
def test_no_figure_is_worse_than_it_was() -> None:
    found = house.figures()
    assert set(LIMITS) == set(found)
    assert {name: found[name] for name in LIMITS if found[name] > LIMITS[name]} == {}
