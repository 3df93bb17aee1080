"""Cards in notebooks: what they say is what the object is, and nothing of the data is markup."""

from __future__ import annotations

from html.parser import HTMLParser
from typing import Any

import numpy as np
import pandas as pd
import pytest

from streampca import PCA, KernelPCA
from streampca.html import memory_bar, sparkline
from streampca.sources import as_matrix

HOSTILE = "<img src=x onerror=alert(1)>"


class Tags(HTMLParser):
    """The tags of a text, and whether those of tables and SVG are closed in order."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.seen: set[str] = set()
        self.feed(page)

    def handle_starttag(self, tag: str, attrs: Any) -> None:
        self.seen.add(tag)
        if tag not in ("rect", "circle", "path", "img"):
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        if tag not in ("rect", "circle", "path"):
            assert self.open.pop() == tag


@pytest.fixture(scope="module")
def frame() -> pd.DataFrame:
    values = np.random.default_rng(0).normal(size=(40, 6))
    return pd.DataFrame(values, columns=[HOSTILE, "b", "c", "d", "e", "f"]).assign(same=1.0)


@pytest.fixture(scope="module")
def fitted(frame: pd.DataFrame) -> PCA:
    return PCA(3, memory_limit="300MiB").fit(frame)


def things(fitted: PCA, frame: pd.DataFrame) -> dict[str, Any]:
    return {
        "estimator": fitted,
        "unfitted": PCA(n_components=HOSTILE),
        "result": fitted.result_,
        "plan": fitted.plan_,
        "certificate": fitted.certificate_,
        "cost": fitted.cost_[0],
        "matrix": as_matrix(frame),
        "kernel": KernelPCA(2).fit(frame),
        "report": fitted.report(title=HOSTILE),
    }


def test_cards_are_well_formed_and_have_no_script(fitted: PCA, frame: pd.DataFrame) -> None:
    for name, thing in things(fitted, frame).items():
        card = thing._repr_html_()
        found = Tags(card)
        assert not found.open, name
        assert not {"script", "img", "link"} & found.seen, name
        assert len(card) < 20_000, name


def test_a_fitted_estimator_says_what_matters(fitted: PCA, frame: pd.DataFrame) -> None:
    card = fitted._repr_html_()
    assert fitted.certificate_ is not None
    share = 100 * fitted.explained_variance_ratio_.sum()
    for words in (
        "3 components of 40 samples x 7 features",
        "left out: 1 constant",
        "scatter",
        fitted.certificate_.in_words(),
        f"carry {share:.1f} % of the variance",
        str(fitted.result_.provenance["source"])[:16],
        "numpy",
    ):
        assert words in card
    assert "not fitted" in PCA(3)._repr_html_()
    assert "&lt;img" in as_matrix(frame)._repr_html_()


def test_a_certificate_counts_what_is_determined(fitted: PCA) -> None:
    from dataclasses import replace

    assert fitted.certificate_ is not None
    angles = np.array([1e-8, 1.2, 0.03])
    found = replace(fitted.certificate_, angle_bound=angles)
    assert found.determined.tolist() == [True, False, True]
    assert found.in_words() == (
        "The directions of 2 of 3 components are determined, to 0.03 radians or better"
    )
    none = replace(found, angle_bound=np.full(3, 1.5))
    assert none.in_words() == "No direction of 3 components is determined"


def test_bars_have_the_heights_of_the_values() -> None:
    drawn = sparkline([4.0, 2.0, 1.0], "three shares", [True, False, True])
    assert "<title>three shares</title>" in drawn
    assert [drawn.count(f'height="{h}"') for h in ("24.0", "12.0", "6.0")] == [1, 1, 1]
    assert drawn.count('fill="none"') == 1
    bar = memory_bar({"X": 300, "sums": 100}, 800, "400 of 800 B")
    assert 'width="112.5"' in bar  # of 300 pixels for 800 bytes
    assert 'width="37.5"' in bar
