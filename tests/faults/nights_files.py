"""Writers of Icechunk repositories, Parquet and .npy files for a soak of nights."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import zarr
from nights_record import NEVER, REMOVED, ROOM, WRITTEN, Record
from nights_zarr import Died, P, Writing
from nights_zarr_steps import ZarrSource

import streampca


class IcechunkSource(ZarrSource):
    """Each writer commits, or is lost; what is committed may be a part of what was meant."""

    steps = (
        "grow",
        "resize_alone",
        "write_a_part",
        "grow_and_die",
        "append",
        "rewrite",
        "shrink",
        "anew",
        "rechunk",
        "with_nan",
        "without_nan",
        "commit_rows",
        "fill_gaps",
        "expire",
        "shrink_and_grow",
        "to_xarray",
        "to_region",
        "times_1000",
        "back",
    )

    def __init__(self, folder: Path, rng: np.random.Generator, layout: str) -> None:
        import icechunk

        config = icechunk.RepositoryConfig.default()
        config.inline_chunk_threshold_bytes = int(rng.choice([0, 512]))
        place = str(folder / "source.zarr")
        self.repository = icechunk.Repository.create(
            icechunk.local_filesystem_storage(place), config=config
        )
        self.past: list[tuple[str, Any]] = []
        super().__init__(folder, rng, layout)

    def form(self) -> None:
        self.group = self.group if hasattr(self, "session_") else bool(self.rng.random() < 0.5)
        self.session_ = True
        self.source = {"path": str(self.path)} | ({"variable": "x"} if self.group else {})
        super().form()

    def open_store(self) -> Any:
        if self.session is None:
            return self.repository.readonly_session("main").store
        return self.session.store

    def writing(self, lives: int | None = None) -> Any:
        self.session = self.repository.writable_session("main")
        self.before = self.kept_record()
        return CommitOrNothing(self, lives)

    def kept_record(self) -> Any:
        one = self.record
        return (
            one.values.copy(),
            one.state.copy(),
            one.rows,
            one.certified.copy(),
            one.chunk_columns,
            one.life,
            self.chunks,
            self.shards,
            self.outer,
            self.unit,
        )

    def restore(self, kept: Any) -> None:
        one = self.record
        (
            values,
            state,
            one.rows,
            one.certified,
            one.chunk_columns,
            one.life,
            self.chunks,
            self.shards,
            self.outer,
            self.unit,
        ) = kept
        one.values, one.state = values.copy(), state.copy()
        one.certified = one.certified.copy()

    def commit(self) -> None:
        if self.session.has_uncommitted_changes:
            name = self.session.commit("a writer")
            self.past.append((name, self.kept_record()))
        self.session = None

    def abandon(self) -> None:
        self.session = None
        self.restore(self.before)

    def put(self, array: Any, store: Any, low: int, values: np.ndarray[Any, Any]) -> None:
        if self.lives is not None:  # a part of it
            if self.lives == 0:
                raise Died
            high = min(len(values), self.lives * self.outer[0] - low % self.outer[0])
            array[low : low + high] = values[:high].astype(self.dtype)
            self.record.write(low, values[:high])
            if self.chunks[1] < P and self.rng.random() < 0.5:
                left = slice(0, self.chunks[1])
                more = values[high : high + self.outer[0]]
                array[low + high : low + high + len(more), left] = more[:, left].astype(self.dtype)
                self.record.write(low + high, more[:, left], left)
            return
        array[low : low + len(values)] = values.astype(self.dtype)
        self.record.write(low, values)

    def save_dataset(self, store: Any, values: np.ndarray[Any, Any]) -> None:
        encoding: dict[str, Any] = {"chunks": self.chunks}
        if np.isnan(self.record.fill):
            encoding["fill_value"] = np.nan
        self.dataset(0, values).to_zarr(
            store, mode="w", consolidated=False, encoding={"x": encoding}
        )
        self.record.rows = len(values)
        self.record.write(0, values)
        self.note_fill(store)

    def to_xarray(self, lives: int | None = None) -> str:
        if not self.group:
            return self.grow(lives)
        low, values = self.record.rows, self.random(self.new_rows())
        if not len(values):
            return "not"
        with self.writing(lives) as store:
            self.dataset(low, values).to_zarr(store, append_dim="time", consolidated=False)
            self.record.rows = low + len(values)
            self.record.write(low, values)
        return f"{len(values)} rows from {low}"

    def to_region(self) -> str:
        return self.write_a_part()

    def write_a_part(self) -> str:
        return self.grow(int(self.rng.integers(1, 4)))

    def grow_and_die(self) -> str:
        return self.grow(0)

    def append(self, lives: int | None = None) -> str:
        if self.group and self.times:
            return self.to_xarray(lives)
        low, values = self.record.rows, self.random(self.new_rows())
        if not len(values):
            return "not"
        with self.writing(lives) as store:
            rows = streampca.append(self.array(store), values.astype(self.dtype))
            self.record.write(low, values)
            self.appended(rows)
        return f"{len(values)} rows from {low}"

    def remove(self, store: Any) -> None:
        zarr.open_group(store, mode="w") if self.group else None

    def shrink(self) -> str:
        done = super().shrink()
        return done

    def back(self) -> str:
        """The branch is set back to an earlier snapshot."""
        if len(self.past) < 2:
            return "not"
        i = int(self.rng.integers(max(0, len(self.past) - 4), len(self.past) - 1))
        name, kept = self.past[i]
        self.repository.reset_branch("main", name)
        self.past = self.past[: i + 1]
        now = self.record.values.copy(), self.record.state.copy()
        self.restore(kept)
        again = (now[1] != WRITTEN) | (now[0] != self.record.values)
        # a refresh may have seen them removed: then nothing tells that they were written
        self.record.state[again & (self.record.state == WRITTEN)] = REMOVED
        return f"to snapshot {i}"

    def expire(self) -> str:
        """Snapshots before the last are removed."""
        import datetime

        now = datetime.datetime.now(datetime.UTC)
        self.repository.expire_snapshots(older_than=now)
        self.repository.garbage_collect(delete_object_older_than=now)
        self.past = self.past[-1:]
        return ""

    def repair(self) -> None:
        pass


class CommitOrNothing(Writing):
    def __enter__(self) -> Any:
        self.source.record.quiet = False
        self.source.lives = self.lives  # type: ignore[attr-defined]
        return self.source.open_store()

    def __exit__(self, kind: Any, error: Any, trace: Any) -> bool:
        self.source.lives = None  # type: ignore[attr-defined]
        return super().__exit__(kind, error, trace)


class FileSource:
    """Parquet files in a folder, or one, or one .npy: written whole."""

    def __init__(self, folder: Path, rng: np.random.Generator, layout: str) -> None:
        self.rng, self.layout = rng, layout
        self.dtype = str(rng.choice(["f8", "f4"]))
        self.many = layout == "parquet-folder"
        self.path = folder / ("source" if self.many else f"source.{layout}")
        self.source = {"path": str(self.path)}
        self.record = Record(P)
        self.record.by_commits = True  # a file is there, whole, or is not
        self.unit, self.stale = 1.0, False
        self.files: dict[str, np.ndarray[Any, Any]] = {}
        self.broken: dict[Path, bytes] = {}
        self.steps: tuple[str, ...] = (
            "grow",
            "rewrite",
            "shrink",
            "anew",
            "with_nan",
            "without_nan",
            "cut",
            "lose",
            "times_1000",
            "grow_in_place",
            "other_columns",
            "stored_otherwise",
        )
        if self.many:
            self.path.mkdir()
            self.steps += ("renamed", "scribble", "empty", "grow", "grow")
        for _ in range(3 if self.many else 1):
            self.grow()

    def random(self, rows: int) -> np.ndarray[Any, Any]:
        values = self.rng.standard_normal((rows, P)) * np.arange(1, P + 1) + 5
        return (values * self.unit).astype(self.dtype).astype("f8")

    def save(self, name: str, values: np.ndarray[Any, Any], in_place: bool = False) -> None:
        self.repair()
        self.record.quiet = False
        target = self.path / name if self.many else self.path
        place = target if in_place else target.with_name(f".{target.name}.tmp")
        rows = values.astype(self.dtype)
        if self.layout == "npy":
            with open(place, "wb") as file:
                np.save(file, rows)
        else:
            table = pa.table({f"f{i}": rows[:, i] for i in range(P)})
            pq.write_table(table, place, row_group_size=int(self.rng.choice([7, 30, 1000])))
        if not in_place:
            os.replace(place, target)
        self.files[name] = values
        self.counted()

    def counted(self) -> None:
        values = np.concatenate([*self.files.values(), np.zeros((0, P))])
        self.record.state[:] = NEVER
        self.record.rows = len(values)
        self.record.write(0, values)
        self.record.state[: len(values)] = WRITTEN

    def some(self) -> str:
        return str(self.rng.choice(sorted(self.files)))

    def new_rows(self) -> int:
        return int(min(self.rng.integers(1, 41), max(0, ROOM - 10 - self.record.rows)))

    def grow(self, in_place: bool = False) -> str:
        if self.many:
            name, values = f"{self.rng.integers(10**6):06d}.parquet", self.random(self.new_rows())
        else:
            name = ""
            old = self.files.get("", np.zeros((0, P)))
            values = np.concatenate([old, self.random(self.new_rows() if len(old) else 40)])
        self.save(name, values, in_place)
        return f"{name} {len(values)}"

    def grow_in_place(self) -> str:
        return self.grow(True)

    def rewrite(self) -> str:
        name = self.some()
        values = self.files[name].copy()
        if not len(values):
            return "not"
        low = int(self.rng.integers(len(values)))
        values[low : low + 5] = self.random(len(values[low : low + 5]))
        self.save(name, values, bool(self.rng.random() < 0.5))
        return f"{name} from {low}"

    def shrink(self) -> str:
        name = self.some()
        if self.many and len(self.files) > 2:
            self.repair()
            (self.path / name).unlink()
            del self.files[name]
            self.counted()
        else:
            values = self.files[name]
            self.save(name, values[: int(len(values) * self.rng.choice([0.5, 0.8, 0.95]))])
        return f"{name} to {self.record.rows}"

    def anew(self) -> str:
        for name in sorted(self.files):
            self.save(name, self.random(len(self.files[name])))
        return ""

    def with_nan(self) -> str:
        name = self.some()
        values = self.files[name].copy()
        if not len(values):
            return "not"
        values[int(self.rng.integers(len(values))), self.rng.random(P) < 0.6] = np.nan
        self.save(name, values)
        return name

    def without_nan(self) -> str:
        for name, values in sorted(self.files.items()):
            holes = np.isnan(values).any(1)
            if holes.any():
                values = values.copy()
                values[holes] = self.random(int(holes.sum()))
                self.save(name, values)
        return ""

    def times_1000(self) -> str:
        factor = 1000.0 if self.unit == 1 else 0.001
        self.unit = 1000.0 if self.unit == 1 else 1.0
        for name in sorted(self.files):
            self.save(name, (self.files[name] * factor).astype(self.dtype).astype("f8"))
        return f"{factor}"

    def stored_otherwise(self) -> str:
        name = self.some()
        self.save(name, self.files[name])
        return name

    def renamed(self) -> str:
        self.repair()
        old, new = self.some(), f"{self.rng.integers(10**6):06d}.parquet"
        os.rename(self.path / old, self.path / new)
        self.files[new] = self.files.pop(old)
        self.counted()
        return f"{old} to {new}"

    def scribble(self) -> str:
        (self.path / "_SUCCESS").touch()
        (self.path / ".half.parquet.tmp").write_bytes(b"PAR1")
        return ""

    def empty(self) -> str:
        name = f"{self.rng.integers(10**6):06d}.parquet"
        self.save(name, np.zeros((0, P)))
        return name

    def place(self, name: str) -> Path:
        return self.path / name if self.many else self.path

    def cut(self) -> str:
        self.repair()
        place = self.place(self.some())
        self.broken = {place: place.read_bytes()}
        share = float(self.rng.choice([0, 0.3, 0.6, 0.95]))
        place.write_bytes(self.broken[place][: int(share * len(self.broken[place]))])
        return f"{place.name} to {share}"

    def lose(self) -> str:
        if self.many:
            return self.shrink()
        self.repair()
        self.broken = {self.path: self.path.read_bytes()}
        self.path.unlink()
        return ""

    def other_columns(self) -> str:
        if self.layout == "npy":
            return "not"
        self.repair()
        place = self.place(self.some())
        self.broken = {place: place.read_bytes()}
        values = self.random(9)
        pq.write_table(pa.table({f"g{i}": values[:, i] for i in range(P)}), place)
        if not self.many:
            self.record.rows, self.record.values[:9] = 9, values
        return place.name

    def repair(self) -> None:
        for place, content in self.broken.items():
            place.write_bytes(content)
        if self.broken:
            self.counted()
        self.broken = {}

    def age(self, seconds: float) -> None:
        for place in [self.path, *self.path.rglob("*")] if self.many else [self.path]:
            if place.is_file():
                now = os.stat(place).st_mtime_ns - int(seconds * 1e9)
                os.utime(place, ns=(now, now))
