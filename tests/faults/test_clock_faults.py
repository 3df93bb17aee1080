"""F22: clocks that jump, run backwards or stand still decide nothing."""

from __future__ import annotations

import datetime
import os
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import zarr

import streampca
from streampca.model_store import log
from streampca.operations.config import check_job
from streampca.operations.refresh import refresh

P = 6
JUMPS = {"an hour back": -3600.0, "a year on": 365 * 86400.0, "the year 1970": -1.7e9}


@pytest.mark.parametrize("rounds", [4, pytest.param(20, marks=pytest.mark.soak)])
def test_versions_are_ordered_by_the_log(
    rounds: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rng = np.random.default_rng(22)
    clock = [0.0]
    real = time.time
    monkeypatch.setattr(time, "time", lambda: max(0.0, real() + clock[0]))

    def now() -> str:
        return datetime.datetime.fromtimestamp(time.time(), datetime.UTC).isoformat()

    monkeypatch.setattr(log, "now", now)
    array = zarr.create_array(str(tmp_path / "x"), shape=(0, P), chunks=(16, P), dtype="f8")
    job = check_job(
        {
            "source": {"path": str(tmp_path / "x")},
            "model": {"n_components": 2},
            "store": str(tmp_path / "models"),
            "settle": 0,
            "keep": 3,
        },
        "job",
    )
    store = streampca.ModelStore(job.store)
    jumps, made = list(JUMPS.values()), 0
    for round_ in range(rounds):
        clock[0] = jumps[round_ % len(jumps)] if round_ else 0.0
        array.append(rng.standard_normal((20, P)) + 3)
        files = [one for one in (tmp_path / "x").rglob("*") if one.is_file()]
        if round_ % 2:  # all times of the source alike
            for one in files:
                os.utime(one, ns=(10**18, 10**18))
        done = refresh(job)
        if done.samples < 20 * (round_ + 1):  # rows wait, and it says so; none is skipped
            assert "may still be being written" in done.note
            made += done.status == "published"
            done = refresh(touched(job, files))
        made += 1
        assert (done.status, done.version) == ("published", made)
        assert store.latest().number == made
        assert store.latest().result().n_samples == 20 * (round_ + 1)
        assert refresh(job).status == "unchanged"
    assert store.rollback().number == made - 1
    numbers = [version.number for version in store.versions()]
    assert numbers == sorted(numbers)
    assert made in numbers
    assert store.verify() == {}


def touched(job: Any, files: list[Path]) -> Any:
    """Chunks written after the array was made longer, as their times have it: no doubt is left."""
    for one in files:
        os.utime(one, ns=(10**18, 10**18 + 10**9 * (one.name != "zarr.json")))
    return job
