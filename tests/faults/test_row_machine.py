"""F27: rows are resized, written, half written, lost, rewritten, in any order, beside refreshes.

A record of every value that was ever written stands beside: a version holds nothing else, and once
nothing is being written it holds all rows before the first one that was not.
"""

from __future__ import annotations

import contextlib
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import xarray
import zarr
from dying_writers import Died, dying

import streampca
from streampca.errors import ChangingSourceError, DamagedSourceError
from streampca.operations.config import check_job
from streampca.operations.refresh import refresh
from streampca.sources.zarr.marks import RowMark

P, CHUNK, LEAST = 4, (7, 2), 8
LAYOUTS: dict[str, dict[str, Any]] = {
    "v2": {"zarr_format": 2},
    "v3": {},
    "sharded": {"shards": (14, 4)},
    "xarray": {},
}


def prefix_of(cells: Any) -> int:
    """How many rows there are before the first one that was not written."""
    blank = np.flatnonzero((cells == 0).any(axis=1))
    return int(blank[0]) if len(blank) else len(cells)


class Writer:
    """All that writers do to an array, and every value that they wrote."""

    def __init__(self, folder: Path, layout: str, seed: int) -> None:
        self.rng, self.layout = np.random.default_rng(seed), layout
        self.place = str(folder / "x")
        self.path = "X" if layout == "xarray" else ""
        self.told: set[tuple[int, int, float]] = set()
        self.left: dict[tuple[int, int], float] = {}  # behind the end, when a refresh looked
        if layout == "xarray":
            rows = self.rows(0, 10)
            encoding = {"X": {"chunks": CHUNK}}
            self.dataset(rows).to_zarr(self.place, encoding=encoding, consolidated=False)
        else:
            array = zarr.create_array(
                self.place, shape=(10, P), chunks=CHUNK, dtype="f8", **LAYOUTS[layout]
            )
            array[...] = self.rows(0, 10)

    @staticmethod
    def dataset(rows: Any) -> Any:
        return xarray.Dataset({"X": (("time", "x"), rows)})

    @property
    def array(self) -> zarr.Array:
        return zarr.open_array(self.place, path=self.path, mode="r+")

    @property
    def cells(self) -> Any:
        """What is stored: 0 where nothing was written, as no value is 0, nor again."""
        cells = np.nan_to_num(self.array[...])
        for place, value in self.left.items():
            if place[0] < len(cells) and cells[place] == value:
                cells[place] = 0
        return cells

    def seen(self) -> None:
        """A refresh has looked at the array, and at what lies behind its end."""
        array = self.array.async_array
        size = array.shape[0]
        longer = array.metadata.update_shape((size + 40, P))
        whole = zarr.Array(zarr.AsyncArray(longer, array.store_path, array.config))
        behind = np.nan_to_num(whole[size:])
        for i, j in np.argwhere(behind).tolist():
            self.left[size + i, j] = behind[i, j]

    @property
    def prefix(self) -> int:
        """See ``prefix_of``: of what is stored now."""
        return prefix_of(self.cells)

    def rows(self, first: int, n: int) -> Any:
        """New rows, which are about to be written there."""
        values = self.rng.standard_normal((n, P)) + 50
        places = np.indices(values.shape)
        self.told |= set(zip((places[0] + first).flat, places[1].flat, values.flat))
        return values

    def grow(self) -> tuple[zarr.Array, int, int]:
        """As an append begins; (the array, its old length, the new one)."""
        array = self.array
        first = array.shape[0]
        array.resize((first + int(self.rng.integers(1, 13)), P))
        return array, first, array.shape[0]

    # -- steps ----------------------------------------------------------------------------------

    def resize(self) -> None:
        self.grow()

    def append(self) -> None:
        array, n = self.array, int(self.rng.integers(1, 13))
        array.append(self.rows(array.shape[0], n))

    def append_by_xarray(self) -> None:
        if self.layout != "xarray":
            return self.append()
        rows = self.rows(self.array.shape[0], int(self.rng.integers(1, 13)))
        self.dataset(rows).to_zarr(
            self.place, append_dim="time", consolidated=False, align_chunks=False, safe_chunks=False
        )

    def append_by_streampca(self) -> None:
        rows = self.rows(self.array.shape[0], int(self.rng.integers(1, 13)))
        streampca.append(self.place, rows, variable=self.path or None)

    def write_a_part(self) -> None:
        array, first, end = self.grow()
        a, b = np.sort(self.rng.integers(first, end + 1, 2))
        values, columns = self.rows(first, end - first), slice(None)
        if self.layout != "sharded" and self.rng.random() < 0.5:  # a shard is written as a whole
            columns = slice(0, 2) if self.rng.random() < 0.5 else slice(2, 4)
        array[a:b, columns] = values[a - first : b - first, columns]

    def die(self) -> None:
        """At some write of an append."""
        act = self.rng.choice([self.append, self.append_by_streampca, self.append_by_xarray])
        with dying(int(self.rng.integers(0, 6))), contextlib.suppress(Died):
            act()

    def rewrite(self) -> None:
        n = self.prefix
        a, b = np.sort(self.rng.integers(0, n + 1, 2))
        self.array[a:b] = self.rows(a, b - a)

    def repair(self) -> None:
        """The writer comes to its end."""
        array = self.array
        for row in np.flatnonzero((self.cells == 0).any(axis=1)):
            array[row : row + 1] = self.rows(row, 1)

    def shrink(self) -> None:
        array = self.array
        size = int(self.rng.integers(LEAST, array.shape[0] + 1))
        array.resize((size, P))
        if RowMark.of(array.attrs).end > size:
            rows = min(self.prefix, size)
            streampca.commit_rows(self.place, rows, variable=self.path or None)


class Walk:
    """Random steps of one writer and of the job that follows it."""

    STEPS = (
        ("refresh", 8),
        ("settled", 8),
        ("rollback", 2),
        ("promote", 1),
        ("resize", 2),
        ("append", 4),
        ("append_by_xarray", 3),
        ("append_by_streampca", 4),
        ("write_a_part", 3),
        ("die", 4),
        ("rewrite", 2),
        ("repair", 5),
        ("shrink", 1),
    )

    def __init__(self, folder: Path, layout: str, seed: int) -> None:
        self.writer = Writer(folder, layout, seed)
        self.rng, self.counts = np.random.default_rng(seed + 10**6), Counter[str]()
        self.entries: dict[str, Any] = {
            "source": {"path": self.writer.place},
            "model": {"n_components": 2},
            "store": str(folder / "models"),
            "keep": 4,
        }
        if layout == "xarray":
            self.entries["source"]["variable"] = "X"
        self.published: dict[int, bytes] = {}  # the rows that each version holds

    @property
    def store(self) -> streampca.ModelStore:
        return streampca.ModelStore(self.entries["store"])

    def go(self, steps: int) -> None:
        names = [name for name, weight in self.STEPS for _ in range(weight)]
        for _ in range(steps):
            name = str(self.rng.choice(names))
            self.counts[name] += 1
            act: Callable[[], Any] = getattr(self, name, None) or getattr(self.writer, name)
            act()
        self.writer.repair()
        self.settled()
        assert self.writer.prefix == self.writer.array.shape[0]

    def rollback(self) -> None:
        with contextlib.suppress(streampca.errors.SourceError):
            self.store.rollback()

    def promote(self) -> None:
        if self.published:
            there = self.store.versions()
            self.store.promote(there[int(self.rng.integers(len(there)))].number)

    def settled(self) -> None:
        self.refresh(settle=0)

    def refresh(self, settle: float = 60) -> None:
        verify = str(self.rng.choice(["stat", "full"]))
        job = check_job({**self.entries, "settle": settle, "verify": verify}, "job")
        before = self.store.latest().number if self.published else None
        cells = self.writer.cells
        prefix = prefix_of(cells)
        self.writer.seen()
        try:
            done = refresh(job)
        except ChangingSourceError:  # nothing is served yet, and the writer may still be at it
            self.counts["later"] += 1
            assert before is None
            assert settle
            return None
        except DamagedSourceError:  # rows that were served are gone: the array was made shorter
            self.counts["refused"] += 1
            assert before is not None
            assert prefix < self.store.latest().result().n_samples
            return self.writer.repair()
        held = cells[: done.samples].tobytes()
        assert done.samples + done.behind == len(cells)
        assert bool(done.behind) == bool(done.behind_since) == bool(done.note)
        assert done.samples <= prefix, "rows that were never written"
        if settle == 0:
            assert done.samples == prefix, "rows that were written are not taken"
        if done.status == "published":
            assert before is None or self.published[before] != held, "the same rows again"
            self.published[done.version] = held
        self.counts[f"{done.status} {done.how}"] += 1
        assert self.published[done.version] == held
        if "rolled back" not in done.why:
            self.check(done.version, cells[: done.samples])

    def check(self, number: int, rows: Any) -> None:
        """The served version is of these rows, all of which were written."""
        result = self.store.latest()
        assert result.number == number
        model = result.result()
        assert model.n_samples == len(rows)
        np.testing.assert_allclose(model.mean, rows.mean(axis=0), rtol=1e-12)
        places = np.indices(rows.shape)
        assert set(zip(places[0].flat, places[1].flat, rows.flat)) <= self.writer.told


@pytest.mark.filterwarnings("ignore::streampca.errors.DominantFeatureWarning")
@pytest.mark.parametrize(
    ("walks", "steps"), [(1, 30), pytest.param(50, 50, marks=pytest.mark.soak)]
)
@pytest.mark.parametrize("layout", LAYOUTS)
def test_rows_that_were_written_and_no_others(
    layout: str, walks: int, steps: int, tmp_path: Path
) -> None:
    """4 layouts x 50 walks x 50 steps, seeded: 10,000."""
    counts = Counter[str]()
    for seed in range(walks):
        folder = tmp_path / str(seed)
        folder.mkdir()
        walk = Walk(folder, layout, seed)
        try:
            walk.go(steps)
        except BaseException as error:
            error.add_note(f"seed {seed} of {layout}, after {dict(walk.counts)}")
            raise
        counts += walk.counts
    print(dict(counts))
    assert counts["published append"]
