"""F32: arrays are shortened, extended and half written, also with old handles, in any order.

Beside the array stands a model of it in plain NumPy: what was last written to every cell, and
whether that happened since a refresh last saw the array end before it. A version holds no row with
another cell. Once nothing is being written it holds all rows before the first such one, and says
that it is behind. Of some rows bytes cannot tell: those that were written again as they were, or
were written behind the end and never seen there. These may count, or not.
"""

from __future__ import annotations

import contextlib
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import xarray
import zarr
from dying_writers import Died, dying

import streampca
from streampca.errors import ChangingSourceError, DamagedSourceError, NonFiniteError, SourceError
from streampca.operations.config import check_job
from streampca.operations.refresh import refresh
from streampca.sources.zarr.marks import RowMark

P, CHUNK, LEAST, MOST = 4, (7, 2), 8, 120
LAYOUTS: dict[str, dict[str, Any]] = {
    "v2": {"zarr_format": 2},
    "v3": {},
    "sharded": {"shards": (14, 4)},
    "NaN": {"fill_value": np.nan},
    "consolidated v2": {"zarr_format": 2},
    "consolidated v3": {},
    "xarray": {},
    "icechunk": {},
}

SHORT = ("consolidated v2", "sharded")  # of the default tests


class Storage:
    """One array, opened anew by every writer but those that are stale."""

    def __init__(self, folder: Path, layout: str) -> None:
        self.place, self.layout = str(folder / "x"), layout
        self.path = "X" if layout in ("xarray", "icechunk") or "consolidated" in layout else ""
        more: dict[str, Any] = {"shape": (0, P), "chunks": CHUNK, "dtype": "f8", **LAYOUTS[layout]}
        if layout == "icechunk":
            import icechunk

            icechunk.set_logs_filter("icechunk=error")
            self.repository = icechunk.Repository.create(
                icechunk.local_filesystem_storage(self.place)
            )
            self.session = self.repository.writable_session("main")
            zarr.create_array(self.session.store, name=self.path, **more)
        elif layout == "xarray":
            rows = xarray.Dataset({"X": (("time", "x"), np.ones((1, P)))})
            rows.to_zarr(self.place, encoding={"X": {"chunks": CHUNK}}, consolidated=False)
            self.array.resize((0, P))
        else:
            zarr.create_array(self.place, name=self.path or None, **more)
            if self.path:
                zarr.consolidate_metadata(self.place)

    @property
    def array(self) -> Any:
        """As it is by itself, whatever the consolidated metadata say."""
        store = self.session.store if self.layout == "icechunk" else self.place
        return zarr.open_array(store, path=self.path, mode="r+")

    def commit(self) -> None:
        if self.layout == "icechunk" and self.session.has_uncommitted_changes:
            self.session.commit("more")
            self.session = self.repository.writable_session("main")

    def called(self, what: Any, *values: Any) -> None:
        """``append`` or ``commit_rows`` of streampca."""
        if self.layout == "icechunk":
            what(self.array, *values)
        else:
            what(self.place, *values, variable=self.path or None)


class History:
    """Random steps of writers and of the job that follows them, beside the model."""

    STEPS = (
        ("refresh", 6),
        ("rollback", 1),
        ("shrink", 3),
        ("resize", 3),
        ("append", 2),
        ("append_by_streampca", 2),
        ("append_by_xarray", 1),
        ("write_a_part", 4),
        ("write_the_end", 3),
        ("rewrite", 1),
        ("write_as_it_was", 1),
        ("write_what_is_left", 2),
        ("commit", 1),
        ("die", 2),
        ("stale", 2),
        ("consolidate", 1),
    )

    def __init__(self, folder: Path, layout: str, seed: int) -> None:
        self.rng, self.counts = np.random.default_rng(seed), Counter[str]()
        self.storage, self.layout = Storage(folder, layout), layout
        self.value, self.there = np.zeros((2 * MOST, P)), np.zeros((2 * MOST, P), bool)
        self.in_doubt = np.zeros(2 * MOST, bool)  # rows of which the bytes cannot tell
        self.committed = 0  # rows of which a writer has said so, whatever they hold
        self.old: list[Any] = []  # handles, with that number
        self.calls: set[str] = set()  # of streampca, that a refresh has seen
        self.entries: dict[str, Any] = {
            "source": {"path": self.storage.place},
            "model": {"n_components": 2},
            "store": str(folder / "models"),
            "keep": 4,
        }
        if self.storage.path:
            self.entries["source"]["variable"] = self.storage.path
        self.served: dict[int, bytes] = {}
        self.append(int(self.rng.integers(LEAST, 30)))
        self.storage.commit()

    # -- the model ------------------------------------------------------------------------------

    @property
    def size(self) -> int:
        return int(self.storage.array.shape[0])

    @property
    def cells(self) -> Any:
        return np.nan_to_num(self.storage.array[...])

    def rows(self, first: int, end: int) -> Any:
        return self.rng.standard_normal((end - first, P)) + 50

    def written(self, first: int, values: Any, columns: slice = slice(None)) -> None:
        """The model of a write within the array."""
        rows = slice(first, first + len(values))
        self.value[rows, columns], self.there[rows, columns] = values, True
        self.in_doubt[rows] &= columns != slice(None)

    def ends(self, cells: Any, doubtful: bool = False) -> int:
        """Rows before the first that was not written.  doubtful : take those in doubt."""
        n, there = len(cells), (cells != 0).all(axis=1)
        right = (self.there[:n] & (cells == self.value[:n])).all(axis=1) & there
        if doubtful:
            right |= self.in_doubt[:n] & there
            right[: self.committed] = True
        else:
            right &= ~self.in_doubt[:n]
        missing = np.flatnonzero(~right)
        return int(missing[0]) if len(missing) else n

    # -- writers --------------------------------------------------------------------------------

    def new_length(self, most: int = 25) -> int:
        return min(MOST, self.size + int(self.rng.integers(1, most)))

    def resize(self) -> None:
        self.storage.array.resize((self.new_length(), P))

    def shrink(self) -> None:
        """Within a chunk, or to the end of one."""
        size = int(self.rng.integers(LEAST, self.size + 1))
        if self.rng.random() < 0.3:
            size = max(14, size // 7 * 7)
        if size < self.size:
            self.storage.array.resize((size, P))
            if self.rng.random() < 0.3:
                self.committed = min(size, self.ends(self.cells))
                self.storage.called(streampca.commit_rows, self.committed)

    def append(self, n: int | None = None) -> None:
        first = self.size
        end = self.new_length() if n is None else first + n
        values = self.rows(first, end)
        self.storage.array.append(values)
        self.written(first, values)

    def append_by_streampca(self) -> None:
        first, end = self.size, self.new_length()
        values = self.rows(first, end)
        self.storage.called(streampca.append, values)
        self.written(first, values)

    def append_by_xarray(self) -> None:
        if self.layout != "xarray":
            return self.append()
        first, end = self.size, self.new_length()
        values = self.rows(first, end)
        xarray.Dataset({"X": (("time", "x"), values)}).to_zarr(
            self.storage.place,
            append_dim="time",
            consolidated=False,
            align_chunks=False,
            safe_chunks=False,
        )
        self.written(first, values)

    def write(self, first: int, end: int, columns: slice = slice(None)) -> None:
        values = self.rows(first, end)[:, columns]
        if self.layout == "xarray" and columns == slice(None) and first < end:
            xarray.Dataset({"X": (("time", "x"), values)}).to_zarr(
                self.storage.place,
                region={"time": slice(first, end)},
                consolidated=False,
                align_chunks=False,
                safe_chunks=False,
            )
        else:
            self.storage.array[first:end, columns] = values
        self.written(first, values, columns)

    def write_a_part(self) -> None:
        first = self.size
        self.resize()
        a, b = np.sort(self.rng.integers(max(0, first - 9), self.size + 1, 2)).tolist()
        halves = [slice(None), slice(0, 2), slice(2, 4)]
        one = int(self.rng.integers(3)) if self.layout != "sharded" else 0
        self.write(a, b, halves[one])

    def write_the_end(self) -> None:
        """A writer that goes on where an earlier one has ended, as it thinks."""
        first = int(self.rng.integers(max(0, self.size - 9), self.new_length(12) + 1))
        self.storage.array.resize((max(self.new_length(12), first), P))
        self.write(first, self.size)

    def rewrite(self) -> None:
        a, b = np.sort(self.rng.integers(0, min(self.size, self.ends(self.cells)) + 1, 2)).tolist()
        self.write(a, b)

    def write_as_it_was(self) -> None:
        """Rows that are there again, as they were when they were removed: bytes cannot tell."""
        cells = self.cells
        first = self.ends(cells)
        rows = [i for i in range(first, len(cells)) if (cells[i] != 0).all()][:5]
        for i in rows:
            self.storage.array[i : i + 1] = cells[i : i + 1]
            doubt = bool(self.in_doubt[i]) or not self.there[i].all()
            self.written(i, cells[i : i + 1])
            self.in_doubt[i] = doubt

    def write_what_is_left(self) -> None:
        """A writer that comes to its end."""
        cells = self.cells
        right = self.there[: len(cells)] & (cells == self.value[: len(cells)]) & (cells != 0)
        rows = np.flatnonzero(~right.all(axis=1) | self.in_doubt[: len(cells)])
        for some in np.split(rows, np.flatnonzero(np.diff(rows) > 1) + 1):
            self.write(int(some[0]), int(some[-1]) + 1) if len(some) else None

    def commit(self) -> None:
        """What is truly written, whatever bytes can tell."""
        cells = self.cells
        right = (self.there[: len(cells)] & (cells == self.value[: len(cells)])).all(axis=1)
        wrong = np.flatnonzero(~right)
        rows = int(wrong[0]) if len(wrong) else len(cells)
        self.storage.called(streampca.commit_rows, rows)
        self.in_doubt[:rows], self.committed = False, rows

    def die(self) -> None:
        """At some write of an append."""
        before, first = self.size, self.size
        end = self.new_length()
        values = self.rows(first, end)
        ours = self.rng.random() < 0.5
        if self.layout == "icechunk":  # a commit is whole or is not there
            return
        with dying(int(self.rng.integers(0, 6))), contextlib.suppress(Died):
            if ours:
                self.storage.called(streampca.append, values)
            else:
                self.storage.array.append(values)
        if self.size > before:
            done = self.cells[first:] == values
            self.value[first:end][done], self.there[first:end][done] = values[done], True
            self.in_doubt[first:end] &= ~done.all(axis=1)
        else:
            self.behind_the_end(first, values)

    def behind_the_end(self, first: int, values: Any) -> None:
        """Cells were written that the array does not have: that is no write of rows."""
        rows = slice(first, first + len(values))
        self.value[rows], self.there[rows], self.in_doubt[rows] = values, False, True

    def stale(self) -> None:
        """A writer whose handle has the length of an earlier day."""
        if len(self.old) < 3 or self.layout == "icechunk":
            self.old.append((self.storage.array, self.committed))
            return
        (array, committed), size = self.old.pop(0), self.size
        mark = RowMark.of(array.attrs)
        first = int(array.shape[0])
        values = self.rows(first, first + int(self.rng.integers(1, 12)))
        if self.rng.random() < 0.5:
            array.append(values)
            self.written(first, values)
            if not {*mark.ids} <= self.calls:  # a mark that nobody has seen comes back with it
                self.in_doubt[: mark.end] |= ~self.there[: mark.end].all(axis=1)
                self.committed = max(self.committed, committed)
            return
        first = max(0, first - len(values))
        values = values[: int(array.shape[0]) - first]
        array[first : first + len(values)] = values
        inside = max(0, min(size - first, len(values)))
        self.written(first, values[:inside])
        self.behind_the_end(first + inside, values[inside:])

    def consolidate(self) -> None:
        """Now and then: the copies of the metadata are old at most times."""
        if self.layout.startswith("consolidated"):
            zarr.consolidate_metadata(self.storage.place)

    # -- the job --------------------------------------------------------------------------------

    def go(self, steps: int) -> None:
        names = [name for name, weight in self.STEPS for _ in range(weight)]
        for _ in range(steps):
            name = str(self.rng.choice(names))
            self.counts[name] += 1
            if name in ("shrink", "refresh") or self.size < MOST - 30:
                getattr(self, name)()
                self.storage.commit()
        self.write_what_is_left()
        self.storage.commit()
        self.refresh(settle=0)
        assert self.ends(self.cells) == self.size

    def rollback(self) -> None:
        with contextlib.suppress(SourceError):
            streampca.ModelStore(self.entries["store"]).rollback()

    def refresh(self, settle: float | None = None) -> None:
        settle = float(self.rng.choice([0, 0, 60])) if settle is None else settle
        verify = str(self.rng.choice(["stat", "full"]))
        gate = {"max_removed": float(self.rng.choice([0.3, 1.0])) if settle else 1.0}
        job = check_job({**self.entries, "settle": settle, "verify": verify, "gate": gate}, "job")
        cells = self.cells
        least, most = self.ends(cells), self.ends(cells, True)
        there = streampca.ModelStore(self.entries["store"])
        served = there.latest().result().n_samples if self.served else 0
        try:
            done = refresh(job)
        except ChangingSourceError:
            self.counts["later"] += 1
            assert not served
            assert settle
        except NonFiniteError:  # of a row that a writer vouches for
            self.counts["NaN"] += 1
            assert self.layout in ("NaN", "xarray")
            assert least < self.committed
        except DamagedSourceError:
            self.counts["refused"] += 1
            assert least < served
        else:
            self.counts[f"{done.status} {done.how}"] += 1
            self.judge(done, settle, cells, least, most)
        self.calls |= {*RowMark.of(self.storage.array.attrs).ids}
        self.committed = min(self.committed, len(cells))
        self.there[len(cells) :] = False  # seen behind the end
        self.in_doubt[len(cells) :] = False

    def judge(self, done: Any, settle: float, cells: Any, least: int, most: int) -> None:
        assert done.samples + done.behind == len(cells)
        assert bool(done.behind) == bool(done.behind_since) == bool(done.note)
        assert done.samples <= most, "rows that were never written, or removed"
        if settle == 0:
            assert done.samples >= least, "rows that were written are not taken"
        held = cells[: done.samples].tobytes()
        if done.status == "published":
            self.served[done.version] = held
        if done.status == "refused" or "rolled back" in done.why:
            return
        version = streampca.ModelStore(self.entries["store"]).latest()
        assert version.number == done.version
        assert self.served[version.number] == held
        rows = cells[: done.samples]
        assert version.result().n_samples == len(rows)
        np.testing.assert_allclose(version.result().mean, rows.mean(axis=0), rtol=1e-12)


@pytest.mark.filterwarnings("ignore::streampca.errors.StaleMetadataWarning")
@pytest.mark.filterwarnings("ignore::streampca.errors.DominantFeatureWarning")
@pytest.mark.filterwarnings("ignore:Consolidated metadata is currently")
@pytest.mark.parametrize("histories", [1, pytest.param(250, marks=pytest.mark.soak)])
@pytest.mark.parametrize(
    "layout",
    [pytest.param(one, marks=[] if one in SHORT else [pytest.mark.slow]) for one in LAYOUTS],
)
def test_what_was_removed_does_not_count_before_it_is_written_again(
    layout: str, histories: int, tmp_path: Path
) -> None:
    """8 layouts x 250 histories of 30 steps, seeded: 2,000."""
    if layout == "icechunk":
        pytest.importorskip("icechunk")
    counts = Counter[str]()
    for seed in range(histories):
        folder = tmp_path / str(seed)
        folder.mkdir()
        history = History(folder, layout, seed)
        try:
            history.go(30)
        except BaseException as error:
            error.add_note(f"seed {seed} of {layout}, after {dict(history.counts)}")
            raise
        counts += history.counts
    print(dict(counts))
