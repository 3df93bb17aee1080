"""Refresh: what changed, the least exact work, one version; each row of the table is a test."""

from __future__ import annotations

import errno
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import filelock
import numpy as np
import pytest
import xarray
import zarr
from genotypes import write_pgen

import streampca
from streampca.cli import main
from streampca.cli.config import as_text
from streampca.errors import BusyError, ChangingSourceError, DamagedSourceError, InvalidInputError
from streampca.operations import refresh as refresh_module
from streampca.operations.config import check_job
from streampca.operations.outcome import Outcome
from streampca.operations.refresh import refresh
from streampca.operations.work_folder import only_one

pytestmark = pytest.mark.filterwarnings("ignore::streampca.errors.DominantFeatureWarning")
P, ROWS = 8, 32


def data(n: int, seed: int = 0, turn: float = 0.0) -> Any:
    rng = np.random.default_rng(seed)
    X = rng.standard_normal((n, P)) * np.linspace(4, 1, P)
    if turn:
        X[:, [0, -1]] = X[:, [-1, 0]] * turn
    return X + 5


class Nightly:
    """A store that grows, and the job that follows it."""

    def __init__(self, folder: Path, dtype: str = "f8", **changes: Any) -> None:
        self.folder, self.place = folder, str(folder / "x.zarr")
        self.array = zarr.create_array(
            self.place, shape=(100, P), chunks=(ROWS, 4), dtype=dtype, compressors=None
        )
        self.array[...] = data(100)
        self.entries: dict[str, Any] = {
            "source": {"path": self.place},
            "model": {"kind": "IncrementalPCA", "n_components": 3},
            "store": str(folder / "models"),
            "settle": 0,
        } | changes

    def run(self, **more: Any) -> Any:
        return refresh(check_job(self.entries, "job"), **more)

    @property
    def store(self) -> streampca.ModelStore:
        return streampca.ModelStore(self.entries["store"])

    def check(self, rtol: float = 1e-12) -> None:
        """The served version is that of all rows, by NumPy; I1, I4."""
        X = self.array[...].astype("f8")
        version = self.store.latest()
        result = version.result()
        C = X - X.mean(axis=0)
        variance = np.linalg.svd(C, compute_uv=False)[:3] ** 2 / (len(X) - 1)
        np.testing.assert_allclose(np.sort(result.explained_variance)[::-1], variance, rtol=rtol)
        assert result.n_samples == len(X)
        cells = C @ result.components.T
        np.testing.assert_allclose(
            np.var(cells, axis=0, ddof=1), result.explained_variance, rtol=max(rtol * 1e3, 1e-9)
        )
        assert self.store.verify() == {}
        if (state := version.state()) is not None:
            assert state.n_samples_seen_ == len(X)


@pytest.fixture
def nightly(tmp_path: Path) -> Nightly:
    return Nightly(tmp_path)


def test_the_first_publishes_and_the_second_has_nothing_to_do(nightly: Nightly) -> None:
    first = nightly.run()
    assert (first.status, first.change, first.how, first.version) == (
        "published",
        "first",
        "full",
        1,
    )
    assert first.chunk_reads == 8
    nightly.check()
    for verify in ("stat", "full"):
        again = nightly.run(verify=verify)
        assert (again.status, again.version, again.chunk_reads) == ("unchanged", 1, 0)
        assert (again.verified_bytes > 0) == (verify == "full")
    assert len(nightly.store.versions()) == 1
    record = nightly.store.latest().record
    assert record["source"]["rows"] == 100
    assert record["lineage"]["parent"] is None


@pytest.mark.parametrize(("dtype", "rtol"), [("f8", 1e-12), ("f4", 1e-6)])
def test_an_append_reads_the_new_rows_and_equals_the_full_fit(
    dtype: str, rtol: float, tmp_path: Path
) -> None:
    nightly = Nightly(tmp_path, dtype)
    nightly.run()
    for night in range(3):
        nightly.array.append(data(11, seed=night + 1).astype(dtype))
        done = nightly.run()
        assert (done.status, done.change, done.how) == ("published", "appended", "append")
        assert (done.new_samples, done.samples) == (11, 111 + 11 * night)
        assert done.chunk_reads <= 4  # those that hold the new rows
        assert done.drift["error_ratio"] == pytest.approx(1, abs=1)
        nightly.check(rtol)
    lineage = [v.record["lineage"]["parent"] for v in nightly.store.versions()]
    assert lineage == [None, *(v.id for v in nightly.store.versions()[:-1])]
    nightly.check(rtol)


def change_a_chunk(nightly: Nightly) -> None:
    nightly.array[3, 3] = 77.0


def change_a_chunk_and_append(nightly: Nightly) -> None:
    change_a_chunk(nightly)
    nightly.array.append(data(40, seed=9))


def change_the_last_chunk_and_append(nightly: Nightly) -> None:
    nightly.array[99, 3] = 77.0
    nightly.array.append(data(40, seed=9))


def remove_rows(nightly: Nightly) -> None:
    nightly.array.resize((70, P))


def lay_out_otherwise(nightly: Nightly) -> None:
    values = nightly.array[...]
    nightly.array = zarr.create_array(
        nightly.place, shape=values.shape, chunks=(50, P), dtype="f8", overwrite=True
    )
    nightly.array[...] = values


def change_settings(nightly: Nightly) -> None:
    nightly.entries["model"] = {"kind": "IncrementalPCA", "n_components": 3, "whiten": True}


def append(nightly: Nightly) -> None:
    nightly.array.append(data(40, seed=9))


TABLE = {
    "old chunk changed": (change_a_chunk, "changed"),
    "old chunk changed and rows appended": (change_a_chunk_and_append, "changed"),
    "last chunk changed and rows appended": (change_the_last_chunk_and_append, "changed"),
    "rows removed": (remove_rows, "removed"),
    "laid out otherwise": (lay_out_otherwise, "relaid"),
    "settings changed": (change_settings, "settings"),
}


@pytest.mark.parametrize("verify", ["stat", pytest.param("full", marks=pytest.mark.slow)])
@pytest.mark.parametrize("what", TABLE)
def test_every_other_change_is_a_full_fit(what: str, verify: str, nightly: Nightly) -> None:
    act, kind = TABLE[what]
    nightly.run()
    act(nightly)
    done = nightly.run(verify=verify)
    assert (done.status, done.change, done.how, done.version) == ("published", kind, "full", 2)
    nightly.check()
    assert nightly.run(verify=verify).status == "unchanged"


def test_models_without_a_state_read_all_rows_and_say_why(nightly: Nightly) -> None:
    nightly.entries["model"] = {"kind": "PCA", "n_components": 3}
    nightly.entries["gate"] = {"max_error_ratio": 100}
    nightly.run()
    append(nightly)
    done = nightly.run()
    assert (done.change, done.how) == ("appended", "full")
    assert "keeps no state to which rows can be added" in done.why
    assert done.drift["error_ratio"] == pytest.approx(1, abs=1)
    nightly.check()


def test_what_the_old_times_hide_is_found_by_the_full_check(nightly: Nightly) -> None:
    nightly.run()
    path = Path(nightly.place, "c", "0", "0")
    about = path.stat()
    change_a_chunk(nightly)
    os.utime(path, ns=(about.st_atime_ns, about.st_mtime_ns))
    assert path.stat().st_size == about.st_size
    done = nightly.run()
    assert done.status == "unchanged"
    assert "checked by length and time" in done.why
    done = nightly.run(verify="full")
    assert (done.status, done.change, done.how) == ("published", "changed", "full")
    nightly.check()


def test_a_chunk_that_is_gone_stops_it_and_the_old_version_is_served(
    nightly: Nightly, capsys: pytest.CaptureFixture[str]
) -> None:
    nightly.run()
    path = Path(nightly.place, "c", "1", "0")
    text = path.read_bytes()
    path.unlink()
    with pytest.raises(DamagedSourceError, match="c/1/0"):
        nightly.run()
    path.write_bytes(text)
    assert nightly.run().status == "unchanged"


def test_rows_that_are_not_written_yet_wait(nightly: Nightly) -> None:
    nightly.run()
    nightly.array.resize((150, P))  # as an append begins
    done = nightly.run()
    assert (done.status, done.samples) == ("unchanged", 100)
    assert "have not been written" in done.note
    nightly.array[100:] = data(50, seed=4)
    done = nightly.run()
    assert (done.change, done.new_samples) == ("appended", 50)
    nightly.check()


def test_a_dry_run_does_nothing(nightly: Nightly) -> None:
    assert nightly.run(dry_run=True).how == "full"
    assert not Path(nightly.entries["store"]).exists()
    nightly.run()
    append(nightly)
    done = nightly.run(dry_run=True)
    assert (done.status, done.how, done.new_samples) == ("planned", "append", 40)
    assert len(nightly.store.versions()) == 1


def test_the_gate_refuses_once_and_keeps_the_candidate(
    nightly: Nightly, monkeypatch: pytest.MonkeyPatch
) -> None:
    nightly.entries["gate"] = {"max_angle": 0.3, "max_error_ratio": 1.5}
    nightly.run()
    nightly.array.append(data(60, seed=3, turn=10.0))
    done = nightly.run()
    assert (done.status, done.exit_code, done.version) == ("refused", 65, 2)
    assert "is over gate.max_angle 0.3" in done.gate
    assert done.drift["error_ratio"] > 1.5
    assert nightly.store.latest().number == 1
    with monkeypatch.context() as patch:  # not computed again
        patch.setattr(refresh_module._Run, "_work", None)
        again = nightly.run()
    assert (again.status, again.version, again.gate) == ("refused", 2, done.gate)
    nightly.entries["gate"] = {"max_angle": 2}
    done = nightly.run()
    assert (done.status, done.version, done.chunk_reads) == ("published", 2, 0)
    assert nightly.store.latest().number == 2
    nightly.check()


def test_what_was_rolled_back_is_not_made_again(nightly: Nightly) -> None:
    nightly.run()
    append(nightly)
    nightly.run()
    nightly.store.rollback()
    done = nightly.run()
    assert (done.status, done.version) == ("unchanged", 2)
    assert "rolled back" in done.why
    assert nightly.store.latest().number == 1


def test_what_was_rolled_back_twice_is_not_made_again(nightly: Nightly) -> None:
    """Whichever version is served then: other chunks differ from it, the data are the same."""
    nightly.run()
    for cell in ((3, 3), (40, 0)):
        nightly.array[cell] = 77.0
        nightly.run()
    nightly.store.rollback()
    assert nightly.run().status == "unchanged"
    nightly.store.rollback()
    done = nightly.run()
    assert (done.status, done.version) == ("unchanged", 3)
    assert "rolled back" in done.why
    assert nightly.store.latest().number == 1


@pytest.mark.parametrize("name", ["manifest.json", "files.zip"])
def test_a_damaged_version_that_is_not_served_is_made_again(nightly: Nightly, name: str) -> None:
    nightly.run()
    append(nightly)
    damaged = nightly.store.find(nightly.run().version)
    nightly.store.rollback()
    assert nightly.run().status == "unchanged"  # it was rolled back
    Path(nightly.entries["store"], "versions", damaged.id, name).write_bytes(b"cut")
    done = nightly.run()
    assert (done.status, done.version, done.samples) == ("published", 3, 140)
    assert list(nightly.store.verify()) == [2]


def test_data_that_go_back_are_published_again(nightly: Nightly) -> None:
    nightly.run()
    append(nightly)
    nightly.run()
    nightly.array.resize((100, P))
    nightly.array[96:100] = data(100)[96:]
    done = nightly.run()
    assert (done.status, done.version, done.change) == ("published", 3, "removed")
    nightly.check()


def test_components_keep_their_signs_and_places(tmp_path: Path) -> None:
    """Two variances that cross from one night to the next."""
    nightly = Nightly(tmp_path, align="order")
    rng = np.random.default_rng(0)
    first = rng.standard_normal((100, P)) * [5.0, 4.0, 1, 1, 1, 1, 1, 1]
    nightly.array[...] = first
    nightly.run()
    nightly.array.append(rng.standard_normal((60, P)) * [3.0, 7.0, 1, 1, 1, 1, 1, 1])
    nightly.run()
    old, new = (v.result() for v in nightly.store.versions())
    cosine = np.einsum("kp,kp->k", old.components, new.components)
    assert np.all(cosine[:2] > 0.8)
    assert new.explained_variance[1] > new.explained_variance[0]
    nightly.check()
    nightly.entries["align"] = "none"
    nightly.array.append(data(1, seed=3))
    nightly.run()
    plain = nightly.store.latest().result()
    assert np.all(np.diff(plain.explained_variance) <= 0)


@pytest.mark.parametrize("rows", ["all", "new"])
def test_scores_are_published_and_it_says_of_which_rows(rows: str, nightly: Nightly) -> None:
    path = nightly.folder / "scores-{version}.zarr"
    nightly.entries["scores"] = {"path": str(path), "rows": rows}
    nightly.run()
    append(nightly)
    done = nightly.run()
    told = done.scores
    first = 100 if rows == "new" else 0
    assert told == {
        "path": str(path).replace("{version}", "2"),
        "version": 2,
        "first_row": first,
        "rows": 140 - first,
        "old_rows_scored_anew": rows == "all",
    }
    expected = nightly.store.load().transform(nightly.array[first:])
    np.testing.assert_allclose(zarr.open_array(told["path"])[...], expected, atol=1e-12)


def test_settings_that_go_back_are_published_again(nightly: Nightly) -> None:
    """The version of the old settings was replaced, not rolled back."""
    nightly.run()
    for number, k in ((2, 2), (3, 3), (4, 2)):
        nightly.entries["model"]["n_components"] = k
        done = nightly.run()
        assert (done.status, done.version, done.change) == ("published", number, "settings")
        assert len(nightly.store.latest().result().components) == k
    assert nightly.run().status == "unchanged"


def same_scores(nightly: Nightly, path: Path) -> None:
    """They are those of all rows under the served version."""
    expected = nightly.store.load().transform(nightly.array[...])
    np.testing.assert_allclose(zarr.open_array(str(path))[...], expected, atol=1e-12)


def test_a_candidate_that_is_let_through_later_has_scores_too(nightly: Nightly) -> None:
    path = nightly.folder / "scores.zarr"
    nightly.entries |= {"scores": {"path": str(path)}, "gate": {"max_angle": 0.01}}
    nightly.run()
    nightly.array.append(data(40, seed=3, turn=9.0))
    assert nightly.run().status == "refused"
    assert zarr.open_array(str(path)).shape == (100, 3)
    nightly.entries["gate"] = {"max_angle": 3.0}
    done = nightly.run()
    assert (done.status, done.version, done.chunk_reads) == ("published", 2, 0)
    assert "the gate lets it through now" in done.why
    assert done.scores["rows"] == 140
    same_scores(nightly, path)


@pytest.mark.parametrize("name", ["scores.zarr", "scores-{version}.zarr"])
def test_scores_follow_what_is_promoted_by_hand(name: str, nightly: Nightly) -> None:
    path = nightly.folder / name
    nightly.entries |= {"scores": {"path": str(path)}, "gate": {"max_angle": 0.01}}
    nightly.run()
    nightly.array.append(data(40, seed=3, turn=9.0))
    nightly.run()
    nightly.store.promote(2)
    assert nightly.run(dry_run=True).how == "scores"
    done = nightly.run()
    assert (done.status, done.how, done.scores["rows"]) == ("unchanged", "scores", 140)
    same_scores(nightly, Path(str(path).replace("{version}", "2")))
    assert nightly.run().scores is None
    assert len(nightly.store.versions()) == 2


def test_scores_that_are_asked_for_later_are_written_once(nightly: Nightly) -> None:
    nightly.run()
    path = nightly.folder / "scores-{version}.zarr"
    nightly.entries["scores"] = {"path": str(path)}
    assert nightly.run().scores["rows"] == 100
    append(nightly)
    assert nightly.run().status == "published"
    place = Path(str(path).replace("{version}", "2"))
    same_scores(nightly, place)
    place.rename(nightly.folder / "taken")  # by whoever they are for
    assert nightly.run().scores is None
    assert not place.exists()


@pytest.mark.parametrize("what", ["store is a file", "store is full", "scores"])
def test_occupied_places_are_found_before_the_fit(what: str, nightly: Nightly) -> None:
    place = nightly.folder / "occupied"
    if what == "store is a file":
        place.write_text("x")
    else:
        place.mkdir()
        (place / "file").write_text("x")
    if what == "scores":
        nightly.entries["scores"] = {"path": str(place)}
    else:
        nightly.entries["store"] = str(place)
    for dry_run in (True, False):
        with pytest.raises(InvalidInputError, match=r"occupied (is a file|holds|exists)") as caught:
            nightly.run(dry_run=dry_run)
        assert "fit" not in {one.name for one in caught.traceback}


def test_a_full_disk_is_told_with_what_it_was_for(
    nightly: Nightly, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def full(*_: Any, **__: Any) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(streampca.ModelStore, "publish", full)
    path = nightly.folder / "job.yaml"
    path.write_text(json.dumps(nightly.entries))
    assert main(["refresh", str(path)]) == 74
    said = capsys.readouterr().err
    assert "models: no version was published; what was served before is served still" in said


def test_a_version_is_shown_without_empty_lines(
    nightly: Nightly, capsys: pytest.CaptureFixture[str]
) -> None:
    nightly.run()
    append(nightly)
    nightly.run()
    assert main(["models", "show", nightly.entries["store"]]) == 0
    said = capsys.readouterr().out
    assert "data       140 samples, fingerprint " in said
    assert "cost " in said
    assert "-: -" not in said
    assert "source     ," not in said


def touch(nightly: Nightly) -> None:
    """As a copy that was put back leaves it: the same bytes, written another time."""
    for path in Path(nightly.place).rglob("*"):
        os.utime(path, ns=(0, os.stat(path).st_mtime_ns + 10**9))


@pytest.mark.parametrize("verify", ["stat", "full"])
def test_files_put_back_do_not_undo_a_rollback(verify: str, nightly: Nightly) -> None:
    nightly.run()
    append(nightly)
    nightly.run()
    nightly.store.rollback()
    touch(nightly)
    done = nightly.run(verify=verify)
    assert (done.status, done.version) == ("unchanged", 2)
    assert "rolled back" in done.why
    nightly.array[0, 0] += 1
    assert nightly.run(verify=verify).version == 3
    nightly.check()


def test_other_settings_are_fitted_though_the_bytes_are_those_of_a_rollback(
    nightly: Nightly,
) -> None:
    nightly.run()
    append(nightly)
    nightly.run()
    nightly.store.rollback()
    touch(nightly)
    nightly.entries["model"]["n_components"] = 2
    done = nightly.run()
    assert (done.status, done.version) == ("published", 3)
    assert len(nightly.store.latest().result().components) == 2


def test_of_two_versions_of_the_same_data_the_newer_one_counts(nightly: Nightly) -> None:
    nightly.run()
    for value in (77.0, 78.0, 77.0):
        nightly.array[0, 0] = value
        nightly.run()
    for _ in range(3):
        nightly.store.rollback()
    assert nightly.store.latest().number == 1
    touch(nightly)
    done = nightly.run()
    assert (done.status, done.version) == ("unchanged", 4)


def test_files_put_back_do_not_make_a_candidate_anew(nightly: Nightly) -> None:
    nightly.entries["gate"] = {"max_angle": 0.01}
    nightly.run()
    nightly.array.append(data(40, seed=3, turn=9.0))
    assert nightly.run().status == "refused"
    touch(nightly)
    done = nightly.run()
    assert (done.status, done.version, done.chunk_reads) == ("refused", 2, 0)
    assert len(nightly.store.versions()) == 2


@pytest.mark.parametrize("kind", ["npy", "netcdf", "plink"])
def test_sources_without_a_ledger_go_by_their_files(kind: str, tmp_path: Path) -> None:
    nightly = Nightly(tmp_path)
    nightly.entries["model"] = {"kind": "PCA", "n_components": 3}
    path = write_file(tmp_path, kind, seed=0)
    nightly.entries["source"] = {"path": str(path)} | ({"dim": "t"} if kind == "netcdf" else {})
    if kind == "plink":
        nightly.entries["model"] = {"kind": "GenotypePCA", "n_components": 3}
    assert nightly.run().how == "full"
    assert nightly.run().status == "unchanged"
    done = nightly.run(verify="full")
    assert (done.status, done.change) == ("published", "other")
    assert "no checksum" in done.why
    done = nightly.run(verify="full")
    assert (done.status, done.verified_bytes > 0) == ("unchanged", True)
    before = {one: one.stat() for one in tmp_path.glob("x.[!z]*")}
    write_file(tmp_path, kind, seed=1)
    for one, about in before.items():
        assert one.stat().st_size == about.st_size
        os.utime(one, ns=(about.st_atime_ns, about.st_mtime_ns))
    assert nightly.run().status == "unchanged"
    done = nightly.run(verify="full")
    assert "something else under the same sizes" in done.why
    assert (done.status, done.change, done.how) == ("published", "other", "full")
    assert nightly.run().status == "unchanged"
    assert nightly.store.verify() == {}


def test_a_pgen_goes_by_its_files(tmp_path: Path) -> None:
    """Also by its tables: other samples are another source."""
    pytest.importorskip("pgenlib")
    nightly = Nightly(tmp_path)
    nightly.entries["source"] = {"path": str(write_file(tmp_path, "pgen", seed=0))}
    nightly.entries["model"] = {"kind": "GenotypePCA", "n_components": 3}
    assert nightly.run().how == "full"
    assert nightly.run().status == "unchanged"
    write_file(tmp_path, "pgen", seed=1)
    done = nightly.run()
    assert (done.status, done.how) == ("published", "full")
    psam = tmp_path / "x.psam"
    psam.write_text(psam.read_text().replace("s1\t", "other\t"))
    assert nightly.run().status == "published"
    nightly.entries["source"]["dosages"] = False
    assert nightly.run().status == "published"
    assert nightly.run().status == "unchanged"


def write_file(folder: Path, kind: str, seed: int) -> Path:
    """50 rows of data in a file of this kind."""
    path = folder / f"x.{dict(npy='npy', netcdf='nc', plink='bed', pgen='pgen')[kind]}"
    if kind == "npy":
        np.save(path, data(50, seed))
    if kind == "netcdf":
        xarray.DataArray(data(50, seed), dims=("t", "x"), name="v").to_netcdf(
            path, engine="h5netcdf"
        )
    if kind == "pgen":
        calls = np.random.default_rng(seed).integers(0, 3, (50, 40))
        write_pgen(folder / "x", calls, dosages=calls * 0.97)
    if kind == "plink":
        calls = np.random.default_rng(seed).integers(0, 3, (50, 40))
        codes = np.array([0b11, 0b10, 0b00])[2 - calls].T  # A1/A1 is 00
        padded = np.pad(codes, ((0, 0), (0, 2))).reshape(40, 13, 4)
        rows = (padded << [0, 2, 4, 6]).sum(axis=2).astype("u1")
        path.write_bytes(bytes([0x6C, 0x1B, 1]) + rows.tobytes())
        path.with_suffix(".bim").write_text("".join(f"1 v{i} 0 {i + 1} A C\n" for i in range(40)))
        path.with_suffix(".fam").write_text("".join(f"f s{i} 0 0 0 -9\n" for i in range(50)))
    return path


def test_a_file_that_changes_while_it_is_read_is_read_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    nightly = Nightly(tmp_path)
    nightly.entries["source"] = {"path": str(write_file(tmp_path, "npy", seed=0))}
    fit, fits = streampca.IncrementalPCA.fit, []

    def fit_beside_a_writer(self: Any, X: Any) -> Any:
        fits.append(1)
        done = fit(self, X)
        if len(fits) == 1:
            write_file(tmp_path, "npy", seed=2)
        return done

    monkeypatch.setattr(streampca.IncrementalPCA, "fit", fit_beside_a_writer)
    assert nightly.run().status == "published"
    assert len(fits) == 2
    expected = np.linalg.svd(data(50, 2) - data(50, 2).mean(axis=0), compute_uv=False)[:3] ** 2 / 49
    np.testing.assert_allclose(nightly.store.load().explained_variance_, expected, rtol=1e-12)


def test_a_refusal_names_the_candidate_and_what_is_served() -> None:
    outcome = Outcome("refused", "models", version=3, served=2, gate="the mean moved")
    said = "version 3 is a candidate: the mean moved; version 2 is served"
    assert said in as_text(outcome)
    assert "streampca models promote models 3" in as_text(outcome)


def test_old_versions_go(nightly: Nightly) -> None:
    nightly.entries["keep"] = 2
    for night in range(4):
        nightly.run()
        nightly.array.append(data(5, seed=night))
    assert [v.number for v in nightly.store.versions()] == [3, 4]


def test_one_at_a_time(nightly: Nightly) -> None:
    with only_one(nightly.entries["store"]), pytest.raises(BusyError, match="another job holds"):
        nightly.run()
    assert nightly.run().status == "published"


def test_a_lock_is_the_systems(tmp_path: Path) -> None:
    """One by ``flock``, as earlier versions took it, is respected; a killed process holds none."""
    place = str(tmp_path / "store")
    program = f"""
import fcntl, time
handle = open({place + ".lock"!r}, "w")
fcntl.flock(handle, fcntl.LOCK_EX)
print(flush=True)
time.sleep(60)
"""
    with subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE) as other:
        assert other.stdout is not None
        other.stdout.readline()
        with pytest.raises(BusyError), only_one(place):
            pass
        other.kill()
    with only_one(place):
        pass


def test_without_locks_commits_decide(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def no_locks(handle: int, blocking: bool) -> bool:
        raise OSError(errno.ENOSYS, "no locks")

    monkeypatch.setattr(filelock, "lock_descriptor", no_locks)
    with only_one(str(tmp_path / "store")), only_one(str(tmp_path / "store")):
        pass


def test_a_source_that_changes_while_it_is_read_is_read_again(
    nightly: Nightly, monkeypatch: pytest.MonkeyPatch
) -> None:
    fit, fits = streampca.IncrementalPCA.fit, []

    def fit_beside_a_writer(self: Any, X: Any) -> Any:
        done = fit(self, X)
        fits.append(1)
        if len(fits) in writes:
            nightly.array[3, 3] = len(fits)
        return done

    monkeypatch.setattr(streampca.IncrementalPCA, "fit", fit_beside_a_writer)
    writes = {1}
    assert nightly.run().status == "published"
    assert len(fits) == 2
    nightly.check()
    nightly.array[5, 5] = 1.0
    writes = {3, 4}
    with pytest.raises(ChangingSourceError):
        nightly.run()
    assert len(nightly.store.versions()) == 1


def test_an_interrupted_refresh_goes_on_where_it_was(tmp_path: Path) -> None:
    nightly, beside = Nightly(tmp_path), Nightly(tmp_path / "beside")
    for one in (nightly, beside):
        one.entries["model"]["batch_size"] = ROWS
        one.array.append(data(3000, seed=7))
    seen = []

    def stop(at: Any) -> None:
        seen.append(at)
        if len(seen) == 60:
            raise SystemExit(143)

    work = Path(nightly.entries["store"] + ".work")
    with pytest.raises(SystemExit):
        nightly.run(progress=stop)
    assert not Path(nightly.entries["store"]).exists()
    whole = beside.run()
    done = nightly.run()
    assert 0 < done.resumed_blocks < 97
    assert done.chunk_reads < whole.chunk_reads
    assert not work.exists()
    for name in ("components", "explained_variance", "mean"):
        a, b = (getattr(one.store.latest().result(), name) for one in (nightly, beside))
        np.testing.assert_array_equal(a, b)
    nightly.check(1e-11)
    assert "checkpoint" not in nightly.store.latest().result().settings


# -- the command line --------------------------------------------------------------------------


def test_one_line_of_json_and_the_exit_codes(
    nightly: Nightly, capsys: pytest.CaptureFixture[str]
) -> None:
    import yaml

    job = nightly.folder / "job.yaml"
    nightly.entries["gate"] = {"max_angle": 0.3}
    job.write_text(yaml.safe_dump(nightly.entries))

    def run(*words: str) -> tuple[int, Any, str]:
        code = main(["refresh", str(job), *words])
        printed = capsys.readouterr()
        return code, json.loads(printed.out) if printed.out else None, printed.err

    code, told, words = run("--dry-run")
    assert (code, told["status"], told["how"]) == (0, "planned", "full")
    code, told, words = run()
    assert (code, told["status"], told["version"], told["exit"]) == (0, "published", 1, 0)
    assert "version 1 is served" in words
    code, told, words = run("--verify", "full", "-q")
    assert (code, told["status"], told["checked"], words) == (0, "unchanged", "full", "")
    nightly.array.append(data(60, seed=3, turn=10.0))
    code, told, words = run()
    assert (code, told["status"], told["exit"]) == (65, "refused", 65)
    assert "streampca models promote" in words
    Path(nightly.place, "c", "0", "0").unlink()
    assert run()[0] == 65
    job.write_text("store: 3")
    assert run()[0] == 78
    nightly.entries["source"]["path"] = "nowhere.zarr"
    job.write_text(yaml.safe_dump(nightly.entries))
    assert run()[0] == 66
    with only_one(nightly.entries["store"]):
        assert run()[0] == 75
