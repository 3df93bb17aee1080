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
    "settings dicts in signatures": 2,
    "settings read by name": 19,
    "files that read settings by name": 13,
    "Request.check in one fit": 1,
    "Standardize.__post_init__ in one fit": 2,
    "files": 364,
    "lines of code": 34230,
    "import cycles": 6,
}


@pytest.mark.slow
def test_no_figure_is_worse_than_it_was() -> None:
    found = house.figures()
    assert set(LIMITS) == set(found)
    assert {name: found[name] for name in LIMITS if found[name] > LIMITS[name]} == {}
