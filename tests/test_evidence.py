"""The tables of the evidence pages are what their data make, and the tests in them exist."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests import evidence


def test_the_pages_are_what_their_data_make() -> None:
    assert evidence.complaints() == []


def test_a_figure_that_somebody_typed_is_noticed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    page = evidence.FAULTS / "README.md"
    other = tmp_path / "README.md"
    other.write_text(page.read_text().replace("| 400 | 400 |", "| 500 | 500 |"))
    assert other.read_text() != page.read_text()
    monkeypatch.setattr(evidence, "PAGES", [*evidence.PAGES[:2], other])
    monkeypatch.setattr(evidence, "ROOT", tmp_path.parent)
    monkeypatch.setattr(evidence, "wrong_trials", lambda: ())
    assert [one for one in evidence.complaints() if "is not what its data make" in one]


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"tests": ["faults/test_no_such.py"]}, "does not exist"),
        ({"tests": ["faults/test_damaged_log.py::test_no_such"]}, "has no test_no_such"),
        ({"tried": 500}, "tries 400, not 500"),
        ({"counts": [401], "tried": 401}, "no 401 in"),
    ],
)
def test_trials_that_no_test_makes_are_noticed(
    change: dict[str, object], words: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    row = {
        "fault": "F28",
        "tried": 400,
        "counts": [400],
        "tests": ["faults/test_damaged_log.py::test_every_intact_version_stays_reachable"],
    }
    monkeypatch.setattr(evidence, "trials", lambda: [row])
    assert list(evidence.wrong_trials()) == []
    monkeypatch.setattr(evidence, "trials", lambda: [row | change])
    assert words in next(evidence.wrong_trials())


def test_rows_that_no_script_makes_are_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    told = json.loads((evidence.BENCHMARKS / "wide.json").read_text())
    told["rows"][0]["name"] = "a rival"
    monkeypatch.setattr(evidence, "CANDIDATES", {"wide": "CANDIDATES"})
    monkeypatch.setattr(evidence, "recorded", lambda _: told)
    assert "'a rival'" in next(evidence.wrong_rows())


@pytest.mark.parametrize(
    ("n", "failures", "bound"), [(200, 0, 0.0149), (20, 0, 0.139), (20_000, 1, 2.37e-4)]
)
def test_the_bound_is_that_of_clopper_and_pearson(n: int, failures: int, bound: float) -> None:
    assert evidence.upper_bound(n, failures) == pytest.approx(bound, rel=0.01)
