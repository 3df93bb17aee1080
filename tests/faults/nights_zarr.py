"""Zarr stores of a soak of nights, and writers that die, with a record of what they did."""

from __future__ import annotations

import os
import shutil
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import xarray as xr
import zarr
from nights_record import ROOM, WRITTEN, Record
from zarr.storage import LocalStore, WrapperStore

import streampca

P = 6


class Died(Exception):
    """The writer."""


class Mortal(WrapperStore):  # type: ignore[type-arg]
    """A store whose writer dies after so many writes, or lives; ``keys`` are the writes."""

    def __init__(self, store: Any, lives: int | None = None) -> None:
        super().__init__(store)
        self.lives = 10**9 if lives is None else lives
        self.keys: list[str] = []

    def _with_store(self, store: Any) -> Any:  # what is opened read-only
        other = type(self)(store, self.lives)
        other.keys = self.keys
        return other

    def _spend(self, key: str) -> None:
        if self.lives <= 0:
            raise Died
        self.lives -= 1
        self.keys.append(key)

    async def set(self, key: str, value: Any, *more: Any, **named: Any) -> None:
        self._spend(key)
        await self._store.set(key, value, *more, **named)

    async def delete(self, key: str) -> None:
        self._spend(key)
        await self._store.delete(key)


class ZarrStore:
    """A Zarr array alone, or in a group that xarray reads, and its writers."""

    def __init__(self, folder: Path, rng: np.random.Generator, layout: str) -> None:
        self.rng, self.layout = rng, layout
        self.path = folder / "source.zarr"
        self.group = layout.startswith("group")
        self.format = 2 if layout.endswith("v2") else 3
        self.dtype = str(rng.choice(["f8", "f4"]))
        fill = float(rng.choice([0.0, np.nan])) if self.group else 0.0
        self.record = Record(P, fill)
        self.record.by_commits = layout == "icechunk"
        self.times = bool(rng.random() < 0.5)  # a coordinate of the rows
        self.unit = 1.0
        self.broken: dict[Path, bytes] = {}
        self.session: Any = None
        self.stale = False
        self.source = {"path": str(self.path)} | ({"variable": "x"} if self.group else {})
        self.form()
        with self.writing() as store:
            self.create(store, int(rng.integers(20, 60)))

    # ---- the store ---------------------------------------------------------------------------
    def form(self) -> None:
        self.chunks = (int(self.rng.choice([4, 10, 16])), int(self.rng.choice([P, 3])))
        self.shards = None
        if self.layout == "sharded":
            self.shards = (self.chunks[0] * int(self.rng.choice([2, 4])), P)
        self.outer = self.shards or self.chunks
        self.record.chunk_columns = self.chunks[1]

    def writing(self, lives: int | None = None) -> Writing:
        return Writing(self, lives)

    def open_store(self) -> Any:
        return LocalStore(self.path)

    def commit(self) -> None:
        pass

    def abandon(self) -> None:
        pass

    @property
    def name(self) -> str:
        return "x" if self.group else ""

    def array(self, store: Any, mode: Any = "r+", name: str | None = None) -> Any:
        path = self.name if name is None else name
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return zarr.open_array(store, path=path, mode=mode, zarr_format=self.format)

    def random(self, rows: int) -> np.ndarray[Any, Any]:
        values = self.rng.standard_normal((rows, P)) * np.arange(1, P + 1) + 5
        return (values * self.unit).astype(self.dtype).astype("f8")

    def create(self, store: Any, rows: int, values: np.ndarray[Any, Any] | None = None) -> None:
        values = self.random(rows) if values is None else values
        self.record.anew()
        self.record.rows = 0
        if self.group:
            self.save_dataset(store, values)
            return
        more: dict[str, Any] = {"compressors": "auto"}
        if self.layout == "blosc-v2":
            import numcodecs

            more["compressors"] = numcodecs.Blosc("lz4")
        array = zarr.create_array(
            store,
            shape=(rows, P),
            chunks=self.chunks,
            shards=self.shards,
            dtype=self.dtype,
            zarr_format=self.format,
            overwrite=True,
            **more,
        )
        self.record.rows = rows
        self.put(array, store, 0, values)

    def dataset(self, low: int, values: np.ndarray[Any, Any]) -> xr.Dataset:
        coordinates: dict[str, Any] = {"feature": [f"f{i}" for i in range(P)]}
        if self.times:
            coordinates["time"] = np.arange(low, low + len(values))
        return xr.Dataset({"x": (("time", "feature"), values.astype(self.dtype))}, coordinates)

    def save_dataset(self, store: Any, values: np.ndarray[Any, Any]) -> None:
        encoding: dict[str, Any] = {"chunks": self.chunks}
        if np.isnan(self.record.fill):
            encoding["_FillValue" if self.format == 2 else "fill_value"] = np.nan
        elif self.format == 2:
            encoding["_FillValue"] = None
        before = len(getattr(store, "keys", []))
        try:
            self.dataset(0, values).to_zarr(
                store, mode="w", zarr_format=self.format, encoding={"x": encoding}
            )
        finally:
            self.record.rows = self.length(len(values))
            self.note(store.keys[before:], 0, values)
        self.note_fill(store)

    def note_fill(self, store: Any) -> None:
        """xarray chooses it where none was named."""
        self.record.fill = float(self.array(store, "r").fill_value or 0)

    def length(self, otherwise: int) -> int:
        try:
            return int(self.array(self.open_store(), "r").shape[0])
        except (FileNotFoundError, zarr.errors.NodeNotFoundError):
            return 0

    # ---- what was written ---------------------------------------------------------------------
    def put(self, array: Any, store: Any, low: int, values: np.ndarray[Any, Any]) -> None:
        before = len(store.keys)
        try:
            array[low : low + len(values)] = values.astype(self.dtype)
        finally:
            self.note(store.keys[before:], low, values)

    def note(
        self, keys: list[str], low: int, values: np.ndarray[Any, Any], state: int = WRITTEN
    ) -> None:
        for key in keys:
            name = key.removeprefix("x/") if self.group else key
            parts = name.removeprefix("c/").replace(".", "/").split("/")
            if len(parts) != 2 or not all(part.isdecimal() for part in parts):
                continue
            i, j = map(int, parts)
            top, bottom = i * self.outer[0], (i + 1) * self.outer[0]
            left = slice(j * self.outer[1], (j + 1) * self.outer[1])
            top, bottom = max(top, low), min(bottom, low + len(values))
            if top < bottom:
                self.record.write(top, values[top - low : bottom - low, left], left)
                self.record.state[top:bottom, left] = state

    def new_rows(self) -> int:
        most = ROOM - 10 - self.record.rows
        return int(min(self.rng.integers(1, 41), most))

    def lives(self) -> int:
        return int(self.rng.integers(0, 14))

    def repair(self) -> None:
        """Before the next writer: chunks that were lost or cut come back from the backup."""
        for file, content in self.broken.items():
            file.write_bytes(content)
            self.record.state, self.record.values = self.kept
        self.broken = {}

    def chunk_file(self) -> tuple[Path, slice, slice] | None:
        found = []
        base = self.path / "x" if self.group else self.path
        for file in base.rglob("*"):
            name = file.relative_to(base).as_posix().removeprefix("c/").replace(".", "/")
            parts = name.split("/")
            if file.is_file() and len(parts) == 2 and all(part.isdecimal() for part in parts):
                i, j = map(int, parts)
                found.append(
                    (
                        file,
                        slice(i * self.outer[0], (i + 1) * self.outer[0]),
                        slice(j * self.outer[1], (j + 1) * self.outer[1]),
                    )
                )
        return sorted(found)[int(self.rng.integers(len(found)))] if found else None

    def commit_to(self, store: Any, rows: int) -> None:
        streampca.commit_rows(self.array(store), rows)
        if self.record.committed is not None:
            self.record.committed = rows
            return
        self.record.certified[:rows] = True
        self.record.certified[rows:] = False

    def set_committed(self, store: Any, rows: int | None) -> None:
        array = self.array(store)
        attributes = {k: v for k, v in dict(array.attrs).items() if k != "streampca_rows_committed"}
        array.attrs.put(attributes | ({} if rows is None else {"streampca_rows_committed": rows}))
        self.record.committed = rows

    def age(self, seconds: float) -> None:
        for folder, _, files in os.walk(self.path):
            for file in files:
                path = os.path.join(folder, file)
                now = os.stat(path).st_mtime_ns - int(seconds * 1e9)
                os.utime(path, ns=(now, now))

    def remove(self, store: Any) -> None:
        if self.session is None:
            shutil.rmtree(self.path)
        self.stale = False

    def extend(self, array: Any, store: Any, rows: int) -> None:
        array.resize((rows, P))
        self.record.rows = rows
        if self.group:
            self.stale = self.layout != "icechunk"
            if self.times:
                self.array(store, name="time").resize((rows,))

    def finish(self, store: Any) -> None:
        """What a careful writer of a group does after growing it with plain Zarr."""
        if not self.group:
            return
        if self.times:
            times = self.array(store, name="time")
            times[:] = np.arange(times.shape[0])
        if self.rng.random() < 0.8:
            self.consolidate(store)

    def consolidate(self, store: Any) -> None:
        if self.group and self.layout != "icechunk":
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                zarr.consolidate_metadata(store, zarr_format=self.format)
            self.stale = False

    def appended(self, rows: int) -> None:
        if self.record.committed is not None:
            self.record.committed = rows
        else:
            self.record.certified[self.record.rows : rows] = True
        self.record.rows = rows


class Writing:
    """One writer: what it did before it died stands."""

    def __init__(self, source: ZarrStore, lives: int | None) -> None:
        self.source, self.lives = source, lives

    def __enter__(self) -> Mortal:
        self.source.repair()
        self.source.record.quiet = False
        self.store = Mortal(self.source.open_store(), self.lives)
        return self.store

    def __exit__(self, kind: Any, error: Any, trace: Any) -> bool:
        if kind is None:
            self.source.commit()
        elif issubclass(kind, Died):
            self.source.abandon()
            if self.source.session is None and self.source.layout != "icechunk":
                self.source.record.rows = self.source.length(0)  # it may be longer by now
                self.source.stale = self.source.group
            return True
        return False
