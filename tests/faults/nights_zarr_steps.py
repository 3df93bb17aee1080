"""Steps of a soak of nights on a Zarr store: what its writers do, and what happens to them."""

from __future__ import annotations

from typing import Any

import numpy as np
from nights_record import DAMAGED, NEVER, REMOVED, ROOM, WRITTEN, first
from nights_zarr import Died, P, ZarrStore

import streampca


class ZarrSource(ZarrStore):
    """Every step returns what it did."""

    steps = (
        "grow",
        "resize_alone",
        "grow_and_die",
        "append",
        "append_and_die",
        "rewrite",
        "shrink",
        "anew",
        "anew_and_die",
        "rechunk",
        "with_nan",
        "without_nan",
        "with_zeros",
        "lose_chunk",
        "cut_chunk",
        "commit_rows",
        "committed_attribute",
        "fill_gaps",
        "scribble",
        "shrink_and_grow",
        "to_xarray",
        "to_region",
        "times_1000",
    )

    def grow(self, lives: int | None = None) -> str:
        return self.write_behind(self.record.rows, self.random(self.new_rows()), lives)

    def write_behind(self, low: int, values: Any, lives: int | None = None) -> str:
        """Make the array longer, and write these rows from row ``low`` on."""
        with self.writing(lives) as store:
            array = self.array(store)
            self.extend(array, store, low + len(values))
            self.put(array, store, low, values)
            self.finish(store)
        return f"{len(values)} rows from {low}"

    def resize_alone(self) -> str:
        rows = self.record.rows + self.new_rows()
        with self.writing() as store:
            self.extend(self.array(store), store, rows)
            self.finish(store)
        return f"to {rows}"

    def grow_and_die(self) -> str:
        return self.grow(self.lives())

    def append(self, lives: int | None = None) -> str:
        if self.group and self.times:
            return self.to_xarray(lives)
        if self.record.committed is not None and self.record.committed < self.record.rows:
            return "not: the attribute is behind"
        low, values = self.record.rows, self.random(self.new_rows())
        with self.writing(lives) as store:
            try:
                rows = streampca.append(self.array(store), values.astype(self.dtype))
            except Died:
                now = self.length(0)
                self.note(store.keys, low, values, WRITTEN if now > low else REMOVED)
                if now > low:
                    self.appended(now)
                return f"died at {now} rows"
            self.record.write(low, values)
            self.appended(rows)
        return f"{len(values)} rows from {low}"

    def append_and_die(self) -> str:
        return self.append(self.lives())

    def to_xarray(self, lives: int | None = None) -> str:
        if not self.group:
            return self.grow(lives)
        low, values = self.record.rows, self.random(self.new_rows())
        with self.writing() as store:
            if self.stale:  # xarray would append after the rows that it is told of
                self.consolidate(store)
        with self.writing(lives) as store:
            try:
                more = {"consolidated": False} if self.layout == "icechunk" else {}
                self.dataset(low, values).to_zarr(store, append_dim="time", **more)
                self.stale = False
            finally:
                self.record.rows = self.length(low) if self.session is None else low + len(values)
                self.stale = self.stale or self.record.rows != low
                self.note(store.keys, low, values)
            self.stale = False
        return f"{len(values)} rows from {low}"

    def to_region(self) -> str:
        """The array is made longer first; regions follow in any order, and not always all."""
        if not self.group:
            return self.grow_and_die()
        low, values = self.record.rows, self.random(self.new_rows())
        pieces = [slice(a, a + 10) for a in range(0, len(values), 10)]
        self.rng.shuffle(pieces)  # type: ignore[arg-type]
        pieces = pieces[: int(self.rng.integers(0, len(pieces) + 1))]
        with self.writing() as store:
            self.extend(self.array(store), store, low + len(values))
            if self.times:
                self.array(store, name="time")[low:] = np.arange(low, low + len(values))
            more: dict[str, Any] = {"consolidated": False}
            for piece in pieces:
                data = (
                    self.dataset(low, values)[["x"]]
                    .isel(time=piece)
                    .drop_vars(["feature", "time"], errors="ignore")
                )
                before = len(store.keys)
                at = slice(low + piece.start, low + piece.start + data.sizes["time"])
                data.to_zarr(store, region={"time": at}, **more)
                self.note(store.keys[before:], at.start, values[piece])
            self.finish(store)
        return f"{pieces} of {len(values)} rows from {low}"

    def rewrite(self) -> str:
        if not self.record.rows:
            return "nothing"
        low = int(self.rng.integers(0, self.record.rows))
        values = self.random(int(min(self.record.rows - low, self.rng.integers(1, 25))))
        with self.writing() as store:
            self.put(self.array(store), store, low, values)
        return f"{len(values)} rows from {low}"

    def shrink(self) -> str:
        rows = int(self.record.rows * self.rng.choice([0.9, 0.8, 0.5, 0.97]))
        with self.writing() as store:
            self.array(store).resize((rows, P))
            if self.group and self.times:
                self.array(store, name="time").resize((rows,))
            self.consolidate(store)
            certified = self.record.certified.any()
            self.record.shrink(rows, self.outer[0])
            if certified:  # as the help of append says
                self.commit_to(store, self.written())
            if self.record.committed is not None and self.record.committed > rows:
                self.set_committed(store, self.written())
        return f"to {rows}"

    def shrink_and_grow(self) -> str:
        done = self.shrink()
        how = str(self.rng.choice(["grow", "grow_and_die", "append", "resize_alone"]))
        return f"{done}, then {how}: {getattr(self, how)()}"

    def anew(self, lives: int | None = None) -> str:
        self.form()
        rows = int(self.rng.integers(max(1, self.record.rows * 3 // 4), self.record.rows + 30))
        with self.writing(lives) as store:
            self.remove(store)
            self.record.rows = 0
            self.create(store, min(rows, ROOM - 10))
        return f"{rows} rows, chunks {self.chunks}"

    def anew_and_die(self) -> str:
        done = self.anew(int(self.rng.integers(3, 24)))
        self.times = self.times and (self.path / "time").exists()
        named = self.path / "x" / ".zattrs"
        if (
            self.group
            and self.format == 2
            and not (named.exists() and "_ARRAY_DIMENSIONS" in named.read_text())
        ):
            done += f"; again: {self.anew()}"  # xarray would not open it
        return done

    def rechunk(self) -> str:
        """The same rows in other chunks, put in place whole."""
        rows = self.record.rows
        if (self.record.state[:rows] != WRITTEN).any() or not rows:
            return "not: rows are missing"
        values = self.record.values[:rows].copy()
        self.form()
        with self.writing() as store:
            self.remove(store)
            self.create(store, rows, values)
        return f"{rows} rows, chunks {self.chunks}"

    def times_1000(self) -> str:
        """Other units."""
        rows = self.record.rows
        if (self.record.state[:rows] != WRITTEN).any() or not rows:
            return "not: rows are missing"
        factor = 1000.0 if self.unit == 1 else 0.001
        self.unit = 1000.0 if self.unit == 1 else 1.0
        values = (self.record.values[:rows] * factor).astype(self.dtype).astype("f8")
        with self.writing() as store:
            self.put(self.array(store), store, 0, values)
        return f"{factor}"

    def with_nan(self) -> str:
        low, values = self.record.rows, self.random(self.new_rows())
        if not len(values):
            return "not"
        # not in all features: PCA leaves such samples of a field out, and says so
        values[int(self.rng.integers(0, len(values))), : int(self.rng.integers(1, P))] = np.nan
        return self.write_behind(low, values)

    def without_nan(self) -> str:
        rows = np.flatnonzero(np.isnan(self.record.values[: self.record.rows]).any(1))
        return self.write_rows(rows)

    def fill_gaps(self) -> str:
        """The writer comes back and writes all that is missing."""
        state = self.record.state[: self.record.rows]
        return self.write_rows(np.flatnonzero((state != WRITTEN).any(1)))

    def write_rows(self, rows: Any) -> str:
        with self.writing() as store:
            array = self.array(store)
            for run in np.split(rows, np.flatnonzero(np.diff(rows) != 1) + 1):
                if len(run):
                    self.put(array, store, int(run[0]), self.random(len(run)))
            self.finish(store)
        return f"{len(rows)} rows"

    def with_zeros(self) -> str:
        low, values = self.record.rows, self.random(self.new_rows())
        if len(values) < 2:
            return "not"
        values[int(self.rng.integers(0, len(values)))] = 0
        return self.write_behind(low, values)

    def scribble(self) -> str:
        """Files that do not belong there."""
        if self.session is None:
            (self.path / ".tmp.c.0.0").write_bytes(b"x")
        return ""

    def lose_chunk(self, state: int = NEVER) -> str:
        self.repair()
        chosen = self.chunk_file()
        if chosen is None or not np.isin(self.record.state, (WRITTEN, NEVER)).all():
            return "not"
        file, rows, columns = chosen
        self.broken = {file: file.read_bytes()}
        self.kept = (self.record.state.copy(), self.record.values.copy())
        self.record.state[rows, columns] = state
        if state == DAMAGED:
            share = float(self.rng.choice([0, 0.25, 0.5, 0.9]))
            file.write_bytes(self.broken[file][: int(share * len(self.broken[file]))])
        else:
            file.unlink()
        return f"rows {rows.start} to {rows.stop}"

    def cut_chunk(self) -> str:
        return self.lose_chunk(DAMAGED)

    def written(self) -> int:
        """The rows before the first that is not written."""
        return first((self.record.state[: self.record.rows] != WRITTEN).any(1))

    def commit_rows(self) -> str:
        rows = self.written()
        with self.writing() as store:
            self.commit_to(store, rows)
        return f"{rows}"

    def committed_attribute(self) -> str:
        rows = None if self.record.committed is not None else self.written()
        with self.writing() as store:
            self.set_committed(store, rows)
        return f"{rows}"
