"""F30: every kind of change, under every gate: nothing is published past a gate that it breaks."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow
import pyarrow.parquet
import pytest
import zarr

import streampca
from streampca.operations.config import check_job
from streampca.operations.refresh import refresh

pytestmark = pytest.mark.filterwarnings("ignore::streampca.errors.DominantFeatureWarning")
N, P = 200, 6
BASE = np.random.default_rng(0).standard_normal((N, P)) * [9, 7, 1, 1, 1, 1] + 50
MORE = np.random.default_rng(1).standard_normal((40, P)) * [9, 7, 1, 1, 1, 1] + 50
BREAKS: dict[str, Callable[[Any], Any]] = {
    "units": lambda x: x * 1000.0,
    "fills": lambda x: np.where(np.arange(len(x))[:, None] % 2, x, -99.0),
    "turned": lambda x: x[:, [2, 3, 0, 1, 4, 5]],
}
GATES: dict[str, tuple[dict[str, float], str]] = {
    "units": ({}, "gate.max_variance_ratio 20"),
    "fills": ({"max_variance_ratio": 3.0}, "gate.max_variance_ratio 3"),
    "turned": ({"max_angle": 0.3}, "gate.max_angle 0.3"),
}


class Zarr:
    """A source, and the ways in which it is written anew."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.path = folder, str(folder / "x.zarr")

    def write(self, x: Any, chunks: int = 20, dtype: str = "f8") -> None:
        shutil.rmtree(self.path, ignore_errors=True)
        made = zarr.create_array(self.path, shape=x.shape, chunks=(chunks, P), dtype=dtype)
        made[...] = x

    def place(self, x: Any) -> None:
        zarr.open_array(self.path)[: len(x)] = x

    def append(self, x: Any) -> None:
        self.place(x[:N])
        streampca.append(self.path, x[N:])


class Npy(Zarr):
    def __init__(self, folder: Path) -> None:
        self.folder, self.path = folder, str(folder / "x.npy")

    def write(self, x: Any, chunks: int = 0, dtype: str = "f8") -> None:
        np.save(self.path, x.astype(dtype))

    place = append = write


class Parquet(Npy):
    def __init__(self, folder: Path) -> None:
        self.folder, self.path = folder, str(folder / "x.parquet")

    def write(self, x: Any, chunks: int = 50, dtype: str = "f8") -> None:
        columns = {f"c{j}": x[:, j].astype(dtype) for j in range(x.shape[1])}
        pyarrow.parquet.write_table(pyarrow.table(columns), self.path, row_group_size=chunks)

    place = append = write


KINDS: dict[str, Callable[[Any, Any], None]] = {
    "cells changed": lambda source, change: source.place(change(BASE)),
    "rows appended": lambda source, change: source.append(change(np.concatenate([BASE, MORE]))),
    "rows removed": lambda source, change: source.write(change(BASE)[: N - 10]),
    "other chunks": lambda source, change: source.write(change(BASE), chunks=25),
    "other dtype": lambda source, change: source.write(change(BASE), dtype="f4"),
    "all of it": lambda source, change: source.write(
        change(np.concatenate([BASE, MORE])[: N + 9]), chunks=25, dtype="f4"
    ),
}
SOURCES = {"Zarr": Zarr, "npy": Npy, "Parquet": Parquet}


class Night:
    """A job that has published its first version."""

    def __init__(self, folder: Path, source: str = "Zarr", model: str = "IncrementalPCA") -> None:
        self.source = SOURCES[source](folder)
        self.source.write(BASE)
        self.entries: dict[str, Any] = {
            "source": {"path": self.source.path},
            "store": str(folder / "models"),
            "settle": 0,
            "model": {"kind": model, "n_components": 2},
        }
        self.store = streampca.ModelStore(folder / "models")
        assert self.run().status == "published"

    def run(self, **options: Any) -> Any:
        return refresh(check_job(self.entries, "job"), **options)

    def refused(self, words: str) -> None:
        """The old version is served, now and after another run, and it is said why."""
        done = self.run()
        assert (done.status, done.exit_code, done.served) == ("refused", 65, 1)
        assert words in done.gate
        assert self.store.latest().number == 1
        again = self.run()
        assert (again.status, again.chunk_reads, again.gate) == ("refused", 0, done.gate)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("broken", BREAKS)
@pytest.mark.parametrize(
    "source",
    [
        "Zarr",
        pytest.param("npy", marks=pytest.mark.slow),
        pytest.param("Parquet", marks=pytest.mark.slow),
    ],
)
def test_no_kind_of_change_passes_a_gate_that_it_breaks(
    source: str, broken: str, kind: str, tmp_path: Path
) -> None:
    night = Night(tmp_path, source)
    gate, words = GATES[broken]
    night.entries["gate"] = gate
    KINDS[kind](night.source, BREAKS[broken])
    night.refused(words)


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("source", SOURCES)
def test_a_change_that_breaks_no_gate_is_published(source: str, kind: str, tmp_path: Path) -> None:
    night = Night(tmp_path, source)
    night.entries["gate"] = {"max_angle": 0.3, "max_variance_ratio": 3.0, "max_removed": 0.1}
    KINDS[kind](night.source, lambda x: x + 1e-3)
    done = night.run()
    assert (done.status, done.served) == ("published", 2)


@pytest.mark.parametrize("model", ["IncrementalPCA", "PCA"])
def test_a_setting_does_not_lead_past_a_gate(model: str, tmp_path: Path) -> None:
    night = Night(tmp_path, model=model)
    night.source.write(BASE * 1000)
    night.entries["model"]["n_components"] = 3
    night.refused("gate.max_variance_ratio 20")


@pytest.mark.parametrize("source", SOURCES)
def test_a_source_that_shrank_is_refused(source: str, tmp_path: Path) -> None:
    night = Night(tmp_path, source)
    night.source.write(BASE[:50])
    night.refused("0.75 of the samples are gone, which is over gate.max_removed 0.3")
    night.entries["gate"] = {"max_removed": 0.8}
    assert (night.run().status, night.store.latest().result().n_samples) == ("published", 50)


@pytest.mark.parametrize("length", [N - 5, N, N + 30])
@pytest.mark.parametrize("source", SOURCES)
def test_other_data_at_another_place_are_another_source(
    source: str, length: int, tmp_path: Path
) -> None:
    night = Night(tmp_path, source)
    (tmp_path / "there").mkdir()
    other = SOURCES[source](tmp_path / "there")
    other.write(np.concatenate([MORE, BASE])[:length])
    night.entries["source"] = {"path": other.path}
    night.refused("the source is another one: it is ")
    done = night.run(accept_source=True)
    assert (done.status, done.served, done.samples) == ("published", 2, length)
    assert night.run().status == "unchanged"


def test_an_accepted_source_passes_the_other_gates(tmp_path: Path) -> None:
    night = Night(tmp_path)
    (tmp_path / "there").mkdir()
    other = Zarr(tmp_path / "there")
    other.write(BASE * 1000)
    night.entries["source"] = {"path": other.path}
    done = night.run(accept_source=True)
    assert (done.status, done.served) == ("refused", 1)
    assert "max_variance_ratio" in done.gate


@pytest.mark.parametrize("longer", [False, True])
def test_a_store_that_moved_is_the_same_source(longer: bool, tmp_path: Path) -> None:
    night = Night(tmp_path)
    if longer:
        night.source.append(np.concatenate([BASE, MORE]))
    moved = str(tmp_path / "moved.zarr")
    shutil.move(night.source.path, moved)
    night.entries["source"] = {"path": moved}
    done = night.run()
    assert (done.status, done.served) == ("published", 2)
    assert f"moved from {night.source.path} to {moved}, and its 200 rows are there" in done.why
    assert night.run().status == "unchanged"


@pytest.mark.parametrize("source", SOURCES)
def test_other_features_are_another_source(source: str, tmp_path: Path) -> None:
    night = Night(tmp_path, source)
    if source == "Zarr":
        shutil.rmtree(night.source.path)
        zarr.create_array(night.source.path, data=BASE[:, :4], chunks=(20, 4))
    else:
        night.source.write(BASE[:, :4])
    night.refused("4 features")
    assert night.run(accept_source=True).status == "published"
