"""README.md beside this has a table of changes: every row is carried out here, both ways."""

from __future__ import annotations

import itertools
import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import xarray
import zarr

import streampca
from streampca.errors import SourceError
from streampca.models.pca import kept_spans
from streampca.operations.config import check_job
from streampca.operations.refresh import refresh

pytestmark = pytest.mark.filterwarnings("ignore::streampca.errors.DominantFeatureWarning")
README = Path(__file__).with_name("README.md")
N, P, ROWS = 80, 8, 8


def data(n: int, seed: int = 0) -> Any:
    """Calls of 0, 1 and 2, which every kind of source can hold."""
    return np.random.default_rng(seed).integers(0, 3, (n, P)).astype("f8")


class Zarr:
    """What is done to a source; ``values`` says what it then holds."""

    def __init__(self, folder: Path) -> None:
        self.entries: dict[str, Any] = {"path": str(folder / "x.zarr")}
        self.array = zarr.create_array(
            self.entries["path"], shape=(N, P), chunks=(ROWS, 4), dtype="f8", compressors=None
        )
        self.array[...] = data(N)

    def values(self) -> Any:
        return self.array[...]

    def append(self) -> None:
        self.array.append(data(20, seed=1))

    def change(self) -> None:
        self.array[3, 3] += 5

    def change_quietly(self) -> None:
        path = Path(self.entries["path"], "c", "0", "0")
        about = path.stat()
        self.change()
        os.utime(path, ns=(about.st_atime_ns, about.st_mtime_ns))

    def lose(self) -> None:
        Path(self.entries["path"], "c", "1", "0").unlink()

    def shorten(self) -> None:
        self.array.resize((N - 20, P))

    def store_otherwise(self) -> None:
        values = self.values()
        self.array = zarr.create_array(
            self.entries["path"], shape=(N, P), chunks=(10, P), dtype="f8", overwrite=True
        )
        self.array[...] = values


class Icechunk(Zarr):
    """The same in an Icechunk repository: every change is a commit."""

    def __init__(self, folder: Path) -> None:
        icechunk = pytest.importorskip("icechunk", reason="pip install 'streampca[icechunk]'")
        self.entries = {"path": str(folder / "repository")}
        storage = icechunk.local_filesystem_storage(self.entries["path"])
        self.repository = icechunk.Repository.create(storage)
        session = self.repository.writable_session("main")
        made = zarr.create_array(
            session.store, name="X", shape=(N, P), chunks=(ROWS, 4), dtype="f8"
        )
        made[...] = data(N)
        session.commit("first")

    def values(self) -> Any:
        store = self.repository.readonly_session("main").store
        return zarr.open_array(store, path="X", mode="r")[...]

    def _commit(self, act: Callable[[Any], None]) -> None:
        session = self.repository.writable_session("main")
        self.array = zarr.open_array(session.store, path="X")
        act(self)
        session.commit("next")

    def append(self) -> None:
        self._commit(Zarr.append)

    def change(self) -> None:
        self._commit(Zarr.change)

    def shorten(self) -> None:
        self._commit(Zarr.shorten)


class Files:
    """A source of whole files, written anew by every change."""

    suffix = "npy"

    def __init__(self, folder: Path) -> None:
        self.path = folder / f"x.{self.suffix}"
        self.entries: dict[str, Any] = {"path": str(self.path)}
        self.held = data(N)
        self.write()

    def values(self) -> Any:
        return self.held

    def write(self) -> None:
        np.save(self.path, self.held)

    def append(self) -> None:
        self.held = np.concatenate([self.held, data(20, seed=1)])
        self.write()

    def change(self) -> None:
        self.held = self.held.copy()
        self.held[3, 3] = (self.held[3, 3] + 1) % 3
        self.write()

    def change_quietly(self) -> None:
        names = list(self.path.parent.glob("x.*"))
        before = [one.stat() for one in names]
        self.change()
        for one, about in zip(names, before, strict=True):
            assert one.stat().st_size == about.st_size
            os.utime(one, ns=(about.st_atime_ns, about.st_mtime_ns))

    def lose(self) -> None:
        self.path.unlink()

    def shorten(self) -> None:
        self.held = self.held[:60]
        self.write()


class NetCDF(Files):
    """By xarray."""

    suffix = "nc"

    def write(self) -> None:
        self.entries["dim"] = "t"
        array = xarray.DataArray(self.held, dims=("t", "x"), name="v")
        array.to_netcdf(self.path, engine="h5netcdf")


class Plink(Files):
    """A .bed of A1 counts, with its .bim and .fam."""

    suffix = "bed"

    def write(self) -> None:
        codes = np.array([0b11, 0b10, 0b00])[self.held.astype(int)].T  # A1/A1 is 00
        quarters = np.pad(codes, ((0, 0), (0, -len(self.held) % 4))).reshape(P, -1, 4)
        packed = (quarters << [0, 2, 4, 6]).sum(axis=2).astype("u1")
        self.path.write_bytes(bytes([0x6C, 0x1B, 1]) + packed.tobytes())
        variants = "".join(f"1 v{i} 0 {i + 1} A C\n" for i in range(P))
        self.path.with_suffix(".bim").write_text(variants)
        people = "".join(f"f s{i} 0 0 0 -9\n" for i in range(len(self.held)))
        self.path.with_suffix(".fam").write_text(people)


class Parquet:
    """A folder of files of 16 rows, in row groups of 8. Other values take as many bytes."""

    def __init__(self, folder: Path) -> None:
        pytest.importorskip("pyarrow", reason="pip install 'streampca[tables]'")
        self.folder = folder / "rows"
        self.folder.mkdir()
        self.entries: dict[str, Any] = {"path": str(self.folder)}
        self.held = [data(N)[i : i + 16] for i in range(0, N, 16)]
        for i in range(len(self.held)):
            self.write(i)

    def path(self, i: int) -> Path:
        return self.folder / f"{i if i < 5 else 'and'}.parquet"  # the new one is read last

    def write(self, i: int, names: str = "abcdefgh") -> None:
        import pyarrow as pa
        import pyarrow.parquet as pq

        table = pa.table(dict(zip(names, self.held[i].T, strict=True)))
        pq.write_table(
            table,
            self.path(i),
            row_group_size=8,
            use_dictionary=False,
            compression="none",
            write_statistics=False,
        )

    def values(self) -> Any:
        return np.concatenate(self.held)

    def append(self) -> None:
        self.held.append(data(20, seed=1))
        self.write(5)

    def change(self) -> None:
        self.held[0] = self.held[0].copy()
        self.held[0][3, 3] += 5
        self.write(0)

    def change_quietly(self) -> None:
        about = self.path(0).stat()
        self.change()
        assert self.path(0).stat().st_size == about.st_size
        os.utime(self.path(0), ns=(about.st_atime_ns, about.st_mtime_ns))

    def shorten(self) -> None:
        self.path(2).unlink()
        del self.held[2]

    def rename(self) -> None:
        for i in range(5):
            self.write(i, "abcdefgx")


SOURCES = {
    "Parquet": Parquet,
    "Zarr": Zarr,
    "Icechunk": Icechunk,
    "`.npy`": Files,
    "NetCDF": NetCDF,
    "PLINK": Plink,
}
ACTS: dict[str, Callable[[Any], None]] = {
    "nothing": lambda source: None,
    "rows appended": lambda source: source.append(),
    "old chunk changed": lambda source: source.change(),
    "changed, no sums kept": lambda source: source.change(),
    "changed, size and time kept": lambda source: source.change_quietly(),
    "old chunk gone": lambda source: source.lose(),
    "file gone": lambda source: source.lose(),
    "rows removed": lambda source: source.shorten(),
    "stored otherwise": lambda source: source.store_otherwise(),
    "a column renamed": lambda source: source.rename(),
    "settings changed": lambda source: None,
}
ROUNDING, BITS, FULL = "the full fit, to rounding", "the bits of a full fit", "a full fit"
NOTHING, STOPS = "nothing is published", "an error; the old version is served"
OTHER = "refused, or a full fit: --accept-source"


@dataclass(frozen=True)
class Row:
    """One row of the table."""

    source: str
    model: str
    change: str
    read: str
    result: str
    stat: str = "yes"
    full: str = "yes"

    def line(self) -> str:
        return f"| {' | '.join(vars(self).values())} |"


I, O = "`IncrementalPCA`", "others"  # noqa: E741
NEW, SPAN, ALL, NONE = "the new rows", "its span of rows", "all rows", "nothing"
TABLE = [
    Row("Zarr", I, "nothing", NONE, NOTHING, "-", "-"),
    Row("Zarr", I, "rows appended", NEW, ROUNDING),
    Row("Zarr", I, "old chunk changed", SPAN, BITS),
    Row("Zarr", I, "changed, no sums kept", ALL, FULL),
    Row("Zarr", I, "changed, size and time kept", SPAN, BITS, "no"),
    Row("Zarr", I, "old chunk gone", NONE, STOPS),
    Row("Zarr", I, "rows removed", ALL, FULL),
    Row("Zarr", I, "stored otherwise", ALL, FULL),
    Row("Zarr", I, "settings changed", ALL, FULL),
    Row("Zarr", O, "rows appended", ALL, FULL),
    Row("Zarr", O, "old chunk changed", ALL, FULL),
    Row("Zarr", O, "changed, size and time kept", ALL, FULL, "no"),
    Row("Zarr", O, "old chunk gone", NONE, STOPS),
    Row("Zarr", O, "rows removed", ALL, FULL),
    Row("Zarr", O, "settings changed", ALL, FULL),
    Row("Icechunk", I, "rows appended", NEW, ROUNDING),
    Row("Icechunk", I, "old chunk changed", SPAN, BITS),
    Row("Icechunk", I, "rows removed", ALL, FULL),
    Row("Icechunk", O, "rows appended", ALL, FULL),
    Row("Parquet", I, "rows appended", NEW, ROUNDING),
    Row("Parquet", I, "old chunk changed", SPAN, BITS),
    Row("Parquet", I, "changed, size and time kept", SPAN, BITS, "no"),
    Row("Parquet", I, "rows removed", ALL, FULL),
    Row("Parquet", I, "a column renamed", ALL, OTHER),
    Row("Parquet", O, "rows appended", ALL, FULL),
    *(
        Row(source, "any", *more)
        for source in ("`.npy`", "NetCDF", "PLINK")
        for more in (
            ("rows appended", ALL, FULL),
            ("changed, size and time kept", ALL, FULL, "no"),
            ("rows removed", ALL, FULL),
            ("file gone", NONE, STOPS),
        )
    ),
]
HEAD = "| source | model | change | what is read | what comes of it | seen by `stat` | by `full` |"


def test_the_readme_has_this_table() -> None:
    lines = README.read_text().splitlines()
    first = lines.index(HEAD) + 2
    told = list(itertools.takewhile(lambda line: line.startswith("|"), lines[first:]))
    assert told == [row.line() for row in TABLE]


def variances(X: Any) -> Any:
    return np.linalg.svd(X - X.mean(axis=0), compute_uv=False)[:3] ** 2 / (len(X) - 1)


def cases() -> list[Any]:
    """Every row under both checks; by default those of the check and the model that are usual, and
    by hand those of neither."""
    marks = {(I, "stat"): (), (O, "full"): pytest.mark.soak}
    return [
        pytest.param(
            row,
            verify,
            id=f"{row.source}-{row.model}-{row.change}-{verify}",
            marks=marks.get((row.model, verify), pytest.mark.slow),
        )
        for row in TABLE
        for verify in ("stat", "full")
    ]


@pytest.mark.parametrize(("row", "verify"), cases())
def test_what_the_table_says_is_so(
    row: Row, verify: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(kept_spans, "LEAST_NBYTES", 0)
    monkeypatch.setattr(kept_spans, "MOST", 5)
    source = SOURCES[row.source](tmp_path)
    entries: dict[str, Any] = {
        "source": source.entries,
        "store": str(tmp_path / "models"),
        "model": {"kind": "PCA" if row.model == O else "IncrementalPCA", "n_components": 3},
        "settle": 0,
        "spans": 0 if "no sums" in row.change else "64MiB",
    }
    run = lambda: refresh(check_job(entries, "job"), verify=verify)  # noqa: E731
    run()
    if verify == "full" and row.model == "any":
        run()  # the first full check of files notes their checksum
    store = streampca.ModelStore(tmp_path / "models")
    before, version = len(store.versions()), store.latest().id
    ACTS[row.change](source)
    if row.change == "settings changed":
        entries["model"]["ddof"] = 0
    if row.result == STOPS:
        with pytest.raises(SourceError):
            run()
        assert store.latest().id == version
        return
    done = run()
    if row.result == OTHER:
        assert (done.status, store.latest().id) == ("refused", version)
        assert "--accept-source" in done.gate
        done = refresh(check_job(entries, "job"), verify=verify, accept_source=True)
        assert (done.status, done.chunk_reads, store.latest().number) == ("published", 0, 2)
        return
    assert (done.verified_bytes > 0) >= (verify == "full" and done.how == "spans")
    if getattr(row, verify) != "yes":
        assert (done.status, done.chunk_reads, len(store.versions())) == ("unchanged", 0, before)
        return
    how = {NEW: "append", SPAN: "spans", ALL: "full"}[row.read]
    assert (done.status, done.how, store.latest().number) == ("published", how, before + 1)
    X = source.values()
    factor = len(X) / (len(X) - 1) if row.change == "settings changed" else 1.0
    found = np.sort(store.latest().result().explained_variance)[::-1]
    rtol = 1e-6 if row.source == "PLINK" else 1e-12  # calls are summed in float32
    np.testing.assert_allclose(found * factor, variances(X), rtol=rtol)
    if how != "full":
        assert 0 < done.chunk_reads <= 6 < 20
    if row.result == BITS:
        entries["store"] = str(tmp_path / "another")
        assert run().how == "full"
        a, b = (
            streampca.ModelStore(tmp_path / name).latest().state().state_to_saved()[0]
            for name in ("models", "another")
        )
        assert a.keys() == b.keys()
        assert all(np.array_equal(a[name], b[name]) for name in a)
    assert run().status == "unchanged"


if __name__ == "__main__":
    print("\n".join([HEAD, "|---" * 7 + "|", *(row.line() for row in TABLE)]))
