"""F24: append, change, refresh, die, promote, roll back, collect and read, in any order."""

from __future__ import annotations

import contextlib
import shutil
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import zarr
from backends import FaultyBackend, Killed
from expected_versions import ExpectedVersions, go_on
from hypothesis import strategies as st
from hypothesis.stateful import rule

import streampca
from streampca.model_store import model_store
from streampca.operations.config import check_job
from streampca.operations.refresh import refresh
from streampca.store import LocalBackend

P, ROWS = 5, 16


class RefreshMachine(ExpectedVersions):
    """A source that changes, and refreshes of it. Values are (state of the data, spectrum)."""

    def __init__(self) -> None:
        super().__init__()
        self.folder = Path(tempfile.mkdtemp())
        self.rng = np.random.default_rng(24)
        self.array = zarr.create_array(
            str(self.folder / "x"), shape=(0, P), chunks=(ROWS, P), dtype="f8"
        )
        self.job = check_job(
            {
                "source": {"path": str(self.folder / "x")},
                "model": {"n_components": 2},
                "store": str(self.folder / "models"),
                "settle": 0,
            },
            "job",
        )
        self.state = 0  # of the data
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

    def refreshed(self) -> None:
        X = self.array[...]
        spectrum = np.linalg.svd(X - X.mean(axis=0), compute_uv=False)[:2] ** 2 / (len(X) - 1)
        self.published((self.state, spectrum))

    def check(self, version: Any, value: Any) -> None:
        found = np.sort(version.result().explained_variance)[::-1]
        np.testing.assert_allclose(found, value[1], rtol=1e-10)

    @property
    def known(self) -> bool:
        """A version of these data is there, served or rolled back."""
        return any(self.values[n - 1][0] == self.state for n in self.there)

    @rule()
    def refresh(self) -> None:
        known = self.known
        done = refresh(self.job)
        assert done.status == ("unchanged" if known else "published")
        if not known:
            self.refreshed()

    @rule(at=st.integers(0, 25), after=st.booleans())
    def die_while_refreshing(self, at: int, after: bool) -> None:
        known = self.known

        def open_faulty(place: str, options: Any) -> Any:
            return FaultyBackend(LocalBackend(place), at, Killed(), after=after, for_ever=True)

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(model_store, "open_backend", open_faulty)
            with contextlib.suppress(Killed):
                refresh(self.job)
        if self.was_published():
            assert not known
            self.refreshed()


@pytest.mark.filterwarnings("ignore::streampca.errors.DominantFeatureWarning")
@pytest.mark.parametrize(
    ("runs", "length"), [(3, 10), pytest.param(50, 50, marks=pytest.mark.soak)]
)
def test_any_order_of_operations(runs: int, length: int) -> None:
    go_on(RefreshMachine, runs, length)
