"""The figures of :mod:`tests.house` do not get worse: what was reached is their limit."""

from __future__ import annotations

import pytest

from tests import house

LIMITS = {
    "files entered by PCA": 39,
    "files entered by HardImpute": 45,
    "files entered by GenotypePCA": 55,
    "longest file": 500,
    "functions, 90th percentile": 18,
    "longest function": 59,
    "settings dicts in signatures": 0,
    "settings read by name": 0,
    "saved settings read by name": 9,
    "Request.check in one fit": 1,
    "Standardize.__post_init__ in one fit": 1,
    "files": 494,
    "lines of code": 79150,
    "import cycles": 0,
}


@pytest.mark.slow
def test_house_figures_stay_within_their_limits() -> None:
    found = house.figures()
    assert set(LIMITS) == set(found)
    assert {name: found[name] for name in LIMITS if found[name] > LIMITS[name]} == {}
