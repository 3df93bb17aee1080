"""The comparisons of the page hold today, as far as their tools are installed."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.validation import COMPARISONS
from tests.validation.comparing import installed
from tests.validation.record import GROUPS, recorded


def test_the_record_is_of_these_comparisons_and_all_of_them() -> None:
    rows = recorded()
    assert [row["name"] for row in rows] == list(COMPARISONS)
    for row in rows:
        made = COMPARISONS[row["name"]]
        declared = (made.tool, made.reference, made.data, made.ours, made.compared, made.why)
        kept = ("tool", "reference", "data", "ours", "compared", "why")
        assert tuple(row[key] for key in kept) == declared
        assert row["difference"] <= made.within
        assert sum(made.tool.split()[0] in tools for tools in GROUPS.values()) == 1


def marked(name: str) -> object:
    """What is published by default; programs in the slow run; what takes libraries by hand."""
    tool = COMPARISONS[name].tool
    marks = {"published": (), "plink2": (pytest.mark.slow,), "smartpca": (pytest.mark.slow,)}
    return pytest.param(name, marks=marks.get(tool, (pytest.mark.soak,)))


@pytest.mark.parametrize("name", [marked(name) for name in COMPARISONS])
def test_ours_is_as_near_as_the_page_says(name: str, shared_data: Path) -> None:
    made = COMPARISONS[name]
    if installed(made.tool) is None:
        pytest.skip(f"{made.tool} is not installed")
    assert made.difference(shared_data) <= made.within
