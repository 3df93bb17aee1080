"""Many blocks on many workers: spans are the tasks, and the scheduler knows few at a time."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.benchmarks.cluster import many


@pytest.mark.soak
def test_10000_blocks_on_200_workers(tmp_path: Path) -> None:
    """The same bits as one thread; seconds are printed, two minutes were asked for."""
    found = many(str(tmp_path), blocks=10_000, n_workers=200)
    print(found)
    assert found["tasks"] <= 2 * 200 + 2  # in flight, of 625 spans, and those just let go of
    assert found["grown"] < 1 << 30


@pytest.mark.soak
def test_few_tasks_are_known_to_the_scheduler(tmp_path: Path) -> None:
    found = many(str(tmp_path), blocks=1000, n_workers=8)  # 63 spans
    assert 8 <= found["tasks"] <= 2 * 8 + 2
