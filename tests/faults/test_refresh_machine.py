"""F24: append, change, refresh, die, promote, roll back, collect and read, in any order."""

from __future__ import annotations

import contextlib
import shutil
import tempfile
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pytest
import zarr
from backends import FaultyBackend, Killed
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)

import streampca
from streampca.errors import SourceError
from streampca.jobs.config import check_job
from streampca.jobs.refresh import refresh
from streampca.models import model_store
from streampca.store import LocalBackend

P, ROWS = 5, 16


class RefreshMachine(RuleBasedStateMachine):
    """A source, its model store, and beside them a list of what must be in there."""

    steps: ClassVar[int] = 0

    def __init__(self) -> None:
        super().__init__()
        self.folder = Path(tempfile.mkdtemp())
        self.rng = np.random.default_rng(24)
        self.array = zarr.create_array(
            str(self.folder / "x"), shape=(0, P), chunks=(ROWS, P), dtype="f8"
        )
        self.job = check_job(
            {"source": {"path": str(self.folder / "x")}, "model": {"n_components": 2},
             "store": str(self.folder / "models"), "settle": 0}, "job")  # fmt: skip
        self.state = 0  # of the data
        self.made: list[tuple[int, Any]] = []  # (state of the data, spectrum) by version
        self.removed: set[int] = set()
        self.stack: list[int] = []  # promoted numbers
        self.append(20)

    def teardown(self) -> None:
        shutil.rmtree(self.folder)

    @property
    def store(self) -> streampca.ModelStore:
        return streampca.ModelStore(self.job.store)

    @rule(rows=st.integers(1, 40))
    def append(self, rows: int) -> None:
        self.array.append(self.rng.standard_normal((rows, P)) * np.linspace(4, 1, P) + 3)
        self.state += 1

    @rule(where=st.floats(0, 0.999))
    def change(self, where: float) -> None:
        row = int(where * self.array.shape[0])
        self.array[row, 0] = float(self.array[row, 0]) + 1.0
        self.state += 1

    def published(self) -> None:
        X = self.array[...]
        spectrum = np.linalg.svd(X - X.mean(axis=0), compute_uv=False)[:2] ** 2 / (len(X) - 1)
        self.made.append((self.state, spectrum))
        self.stack.append(len(self.made))

    @property
    def known(self) -> bool:
        """A version of these data is there, served or rolled back."""
        there = [n for n in range(1, len(self.made) + 1) if n not in self.removed]
        return any(self.made[n - 1][0] == self.state for n in there)

    @rule()
    def refresh(self) -> None:
        known = self.known
        done = refresh(self.job)
        assert done.status == ("unchanged" if known else "published")
        if not known:
            self.published()

    @rule(at=st.integers(0, 25), after=st.booleans())
    def die_while_refreshing(self, at: int, after: bool) -> None:
        known = self.known

        def open_faulty(place: str, options: Any) -> Any:
            return FaultyBackend(LocalBackend(place), at, Killed(), after=after, for_ever=True)

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(model_store, "open_backend", open_faulty)
            with contextlib.suppress(Killed):
                refresh(self.job)
        if self.store.exists() and len(self.store.history().published) > len(self.made):
            assert not known
            self.published()

    @precondition(lambda self: self.made)
    @rule(data=st.data())
    def promote(self, data: st.DataObject) -> None:
        there = [n for n in range(1, len(self.made) + 1) if n not in self.removed]
        number = data.draw(st.sampled_from(there))
        self.store.promote(number)
        if self.stack[-1] != number:
            self.stack = [*(n for n in self.stack if n != number), number]

    @precondition(lambda self: self.made)
    @rule()
    def rollback(self) -> None:
        earlier = [n for n in self.stack[:-1] if n not in self.removed]
        if not earlier:
            with pytest.raises(SourceError):
                self.store.rollback()
            return
        assert self.store.rollback().number == earlier[-1]
        del self.stack[self.stack.index(earlier[-1]) + 1 :]

    @precondition(lambda self: self.made)
    @rule(keep=st.integers(1, 3))
    def gc(self, keep: int) -> None:
        self.store.gc(keep, grace=0)
        count = len(self.made)
        kept = {*range(count - keep + 1, count + 1), *self.stack[-keep:]}
        self.removed |= set(range(1, count + 1)) - kept

    @invariant()
    def all_is_as_told(self) -> None:
        RefreshMachine.steps += 1
        if not self.made:
            return
        assert self.store.verify() == {}
        numbers = [version.number for version in self.store.versions()]
        assert numbers == [n for n in range(1, len(self.made) + 1) if n not in self.removed]
        served = self.store.latest()
        assert served.number == self.stack[-1]
        found = np.sort(served.result().explained_variance)[::-1]
        np.testing.assert_allclose(found, self.made[served.number - 1][1], rtol=1e-10)


@pytest.mark.filterwarnings("ignore::streampca.errors.DominantFeatureWarning")
@pytest.mark.parametrize(
    ("runs", "length"), [(3, 10), pytest.param(50, 50, marks=pytest.mark.soak)]
)
def test_any_order_of_operations(runs: int, length: int) -> None:
    RefreshMachine.steps = 0
    slow = [HealthCheck.too_slow, HealthCheck.data_too_large, HealthCheck.filter_too_much]
    run_state_machine_as_test(
        RefreshMachine,
        settings=settings(max_examples=runs, stateful_step_count=length, deadline=None,
                          derandomize=True, suppress_health_check=slow),
    )  # fmt: skip
    print(f"{RefreshMachine.steps} steps")
    assert RefreshMachine.steps > runs * length / 2
