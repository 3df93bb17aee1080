"""Rows that are taken: those that were written, all of them, and what is said of the others."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import zarr

import streampca
from streampca.cli import main
from streampca.errors import ChangingSourceError, DamagedSourceError
from streampca.operations.config import check_job
from streampca.operations.refresh import refresh

pytestmark = pytest.mark.filterwarnings("ignore::streampca.errors.DominantFeatureWarning")
P, ROWS = 8, 250


def data(n: int, seed: int = 0) -> Any:
    return np.random.default_rng(seed).standard_normal((n, P)) + 50


class Night:
    """An array with the layout of the trial that found it, and the job that follows it."""

    def __init__(self, folder: Path, rows: int, **changes: Any) -> None:
        self.place = str(folder / "x.zarr")
        self.array = zarr.create_array(self.place, shape=(rows, P), chunks=(ROWS, 4), dtype="f8")
        self.array[...] = data(rows)
        self.entries: dict[str, Any] = {
            "source": {"path": self.place},
            "model": {"n_components": 2},
            "store": str(folder / "models"),
            "settle": 0,
            **changes,
        }

    def run(self, **more: Any) -> Any:
        return refresh(check_job({**self.entries, **more}, "job"))

    @property
    def served(self) -> Any:
        return streampca.ModelStore(self.entries["store"]).latest().result()

    def check(self, X: Any) -> None:
        """The served version is that of these rows."""
        assert self.served.n_samples == len(X)
        expected = np.linalg.svd(X - X.mean(axis=0), compute_uv=False)[:2] ** 2 / (len(X) - 1)
        found = np.sort(self.served.explained_variance)[::-1]
        np.testing.assert_allclose(found, expected, rtol=1e-9)


def test_appends_beside_refreshes_are_all_taken(tmp_path: Path) -> None:
    """It published 1033 of 1407 rows again, as changed, and never took another."""
    night = Night(tmp_path, 1033)
    night.run()
    night.array.append(data(237, 1))
    night.array.append(data(137, 2))
    done = night.run(settle=60)
    assert (done.status, done.behind) == ("unchanged", 374)
    assert "may still be being written" in done.note
    done = night.run()
    assert (done.change, done.how, done.new_samples, done.behind) == ("appended", "append", 374, 0)
    night.check(night.array[...])
    night.array.append(data(20, 3))
    assert night.run().new_samples == 20
    night.check(night.array[...])


def test_an_append_after_a_rollback_is_taken(tmp_path: Path) -> None:
    night = Night(tmp_path, 1033)
    night.run()
    night.array.append(data(237, 1))
    night.run()
    streampca.ModelStore(night.entries["store"]).rollback()
    night.array.append(data(137, 2))
    night.run(settle=60)
    assert night.run().new_samples == 374
    night.check(night.array[...])


@pytest.mark.parametrize("first", [False, True], ids=["a version is there", "the first"])
@pytest.mark.parametrize("model", ["IncrementalPCA", "PCA"])
def test_rows_that_were_never_written_are_not_taken(
    model: str, first: bool, tmp_path: Path
) -> None:
    """An append that dies, then one that does not: 137 rows of zeros were taken as data."""
    night = Night(tmp_path, 1000, model={"kind": model, "n_components": 2})
    if not first:
        night.run()
    night.array.resize((1137, P))
    night.array.append(data(200, 1))
    done = night.run()
    assert (done.samples, done.behind) == (1000, 337)
    assert done.status == ("published" if first else "unchanged")
    assert "row 1000 holds only the fill value" in done.note
    night.check(night.array[:1000])
    again = night.run()
    assert (again.status, again.behind, again.behind_since) == ("unchanged", 337, done.behind_since)
    night.array[1000:1137] = data(137, 2)
    assert night.run().behind == 0
    night.check(night.array[...])


def test_one_chunk_of_a_row_is_not_enough(tmp_path: Path) -> None:
    """The writer died between two chunks of the same rows; all are there."""
    night = Night(tmp_path, 1033)
    night.run()
    night.array.resize((1100, P))
    night.array[1033:, :4] = data(67, 1)[:, :4]
    assert night.run().behind == 67
    night.array[1033:, 4:] = data(67, 1)[:, 4:]
    assert night.run().behind == 0
    night.check(night.array[...])


def test_a_gap_beyond_the_border_is_found_when_it_is_read(tmp_path: Path) -> None:
    night = Night(tmp_path, 1000)
    night.run()
    night.array.append(data(300, 1))
    night.array.resize((1400, P))
    night.array.append(data(200, 2))
    done = night.run()
    assert (done.how, done.new_samples, done.behind) == ("append", 300, 300)
    night.check(night.array[:1300])
    night.array[1300:1400] = data(100, 3)
    assert night.run().new_samples == 300
    night.check(night.array[...])


def test_values_among_which_zeros_are_common_count(tmp_path: Path) -> None:
    """A row of zeros in one chunk is nothing then; in all chunks it is."""
    night = Night(tmp_path, 1000)
    rng = np.random.default_rng(0)
    calls = rng.integers(0, 2, (1000, P)) * 1.0
    assert (calls[:, :4] == 0).all(axis=1).any()
    calls[(calls == 0).all(axis=1), 0] = 1
    night.array[...] = calls
    assert night.run().behind == 0
    more = rng.integers(0, 2, (300, P)) * 1.0
    more[:, 7] = 1
    more[100] = 0
    night.array.append(more)
    done = night.run()
    assert (done.new_samples, done.behind) == (100, 200)
    done = night.run(source={"path": night.place, "missing_chunks": "fill"})
    assert (done.samples, done.behind) == (1300, 0)


def test_a_chunk_that_is_blank_for_ever_is_not_in_the_way(tmp_path: Path) -> None:
    """A place on land, as writers leave it that store blank chunks too."""
    night = Night(tmp_path, 1033)
    night.array = zarr.open_array(night.place).with_config({"write_empty_chunks": True})
    X = data(1500)
    X[:, 4:] = 0
    night.array[...] = X[:1033]
    assert night.run().behind == 0
    for end in (1200, 1500):
        night.array.append(X[len(night.array[:]) : end])
        assert night.run().behind == 0
    night.check(X)


def test_who_is_behind_says_so_every_night(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    night = Night(tmp_path, 1000)
    job = tmp_path / "job.yaml"
    job.write_text(json.dumps(night.entries))

    def run(*words: str) -> tuple[int, Any, str]:
        code = main(["refresh", str(job), *words])
        printed = capsys.readouterr()
        return code, json.loads(printed.out), printed.err

    code, told, words = run("--fail-behind")
    assert (code, told["behind"], told["behind_since"]) == (0, 0, "")
    assert "behind" not in words
    night.array.resize((1137, P))
    _, first, _ = run()
    for flags, expected in (
        ((), 0),
        (("--fail-behind",), 79),
        (("--fail-behind", "3600"), 0),
        (("--dry-run",), 0),
    ):
        code, told, words = run(*flags)
        assert (code, told["exit"], told["status"]) == (expected, expected, "unchanged")
        assert (told["behind"], told["behind_since"]) == (137, first["behind_since"])
        assert "behind: 137 samples from 1000 on are not taken, since 20" in words
    assert streampca.ModelStore(night.entries["store"]).verify() == {}
    night.array[1000:] = data(137, 1)
    assert run("--fail-behind")[1]["behind"] == 0
    assert not (tmp_path / "models" / "behind.json").exists()


def test_a_jump_is_refused_unless_it_is_allowed(tmp_path: Path) -> None:
    """Whatever the rows hold: a writer that vouches for zeros, among data that are far from it."""
    night = Night(tmp_path, 1000)
    night.run()
    streampca.append(night.place, np.zeros((200, P)))
    for _ in range(2):
        done = night.run()
        assert (done.status, done.exit_code, done.behind) == ("refused", 65, 0)
        assert "is over gate.max_variance_ratio 20" in done.gate
    assert night.served.n_samples == 1000
    assert night.run(gate={"max_variance_ratio": 1000}).status == "published"
    night.check(zarr.open_array(night.place)[...])


@pytest.mark.parametrize(
    "layout", [{"fill_value": np.nan}, {"shards": (2 * ROWS, P)}], ids=["NaN", "shards"]
)
def test_a_gap_that_the_pass_cannot_read(layout: dict[str, Any], tmp_path: Path) -> None:
    """NaN is refused by the model, an absent chunk of a shard by the source: rows before count."""
    night = Night(tmp_path, 1000)
    night.array = zarr.create_array(
        night.place, shape=(1000, P), chunks=(ROWS, 4), dtype="f8", overwrite=True, **layout
    )
    night.array[...] = data(1000)
    night.run()
    night.array.append(data(300, 1))
    night.array.resize((1600, P))
    night.array.append(data(200, 2))
    night.array[1750:1751] = data(1, 3)
    done = night.run()
    assert (done.new_samples, done.behind) == (300, 500)
    night.array[1300:1600] = data(300, 4)
    assert night.run().new_samples == 500
    night.check(night.array[...])


def test_served_rows_that_are_lost_are_an_error(tmp_path: Path) -> None:
    """Made shorter, then longer by an append that wrote a part, between two nights."""
    night = Night(tmp_path, 1000)
    night.run()
    night.array.resize((400, P))
    night.array.resize((1100, P))
    night.array[600:] = data(500, 1)
    with pytest.raises(DamagedSourceError, match=r"row 500 of the source.*only the fill value"):
        night.run()
    assert night.served.n_samples == 1000
    streampca.commit_rows(night.place, 1100)
    assert night.run(gate={"max_variance_ratio": 1e6}).samples == 1100
    zarr.open_array(night.place).resize((900, P))
    assert night.run(gate={"max_variance_ratio": 1e6}).samples == 900


def test_a_first_version_waits_for_the_writer(tmp_path: Path) -> None:
    night = Night(tmp_path, 200, settle=60)
    night.array.attrs["units"] = "K"  # the metadata are newer than the rows
    with pytest.raises(ChangingSourceError, match="no row yet: rows from 0 on may still be"):
        night.run()
    assert night.run(settle=0).samples == 200


# -- rows that were removed ------------------------------------------------------------------------


def shrunk(folder: Path, **layout: Any) -> Night:
    """100 rows were served, then 90; the array has 120, of which 100 to 119 are written."""
    night = Night(folder, 1)
    options = {"chunks": (40, 4), "dtype": "f8", **layout}
    night.array = zarr.create_array(night.place, shape=(100, P), overwrite=True, **options)
    night.array[...] = data(100)
    assert night.run().samples == 100
    night.array.resize((90, P))
    assert (night.run().samples, night.run().status) == (90, "unchanged")
    night.array.resize((120, P))
    night.array[100:] = data(20, 1)
    return night


LAYOUTS: dict[str, dict[str, Any]] = {
    "chunks": {},
    "v2": {"zarr_format": 2},
    "of 20": {"chunks": (20, 4)},
    "shards": {"shards": (80, P)},
    "NaN": {"fill_value": np.nan},
    "-1": {"fill_value": -1.0},
}


@pytest.mark.parametrize(
    "layout", [pytest.param(one, marks=[] if "s" in one else [pytest.mark.slow]) for one in LAYOUTS]
)
def test_removed_rows_do_not_count_before_they_are_written_again(
    layout: str, tmp_path: Path
) -> None:
    """The chunk of rows 90 to 99 still held them, and 120 rows were served."""
    night = shrunk(tmp_path, **LAYOUTS[layout])
    np.testing.assert_array_equal(night.array[90:100], data(100)[90:])
    done = night.run(verify="full")
    assert (done.samples, done.behind, done.status) == (90, 30, "unchanged")
    assert "row 90 is, in one chunk at least, as it lay behind the end" in done.note
    night.array[90:95, :4] = data(5, 2)[:, :4]  # a half of the columns is not enough
    assert night.run().behind == 30
    night.array[90:95] = data(5, 2)
    assert night.run().behind == 25
    night.array[95:100] = data(5, 3)
    assert night.run().behind == 0
    night.check(night.array[...])


def test_removed_rows_that_are_written_as_they_were_need_a_word(tmp_path: Path) -> None:
    """Bytes cannot tell; the line of the note can."""
    night = shrunk(tmp_path)
    night.array[90:100] = data(100)[90:]
    assert night.run().behind == 30
    streampca.commit_rows(night.place, 120)
    assert (night.run().samples, night.run().behind) == (120, 0)
    night.check(night.array[...])


def test_a_rollback_does_not_bring_removed_rows_back(tmp_path: Path) -> None:
    night = shrunk(tmp_path)
    streampca.ModelStore(night.entries["store"]).rollback()
    assert night.served.n_samples == 100
    assert night.run().behind == 30
    night.array[90:100] = data(10, 2)
    assert (night.run().samples, night.run().behind) == (120, 0)
    night.check(night.array[...])


def test_neither_does_a_mark_from_before(tmp_path: Path) -> None:
    """Rows 0 to 99 were vouched for once: that says nothing of rows that were removed since."""
    night = Night(tmp_path, 1)
    night.array = zarr.create_array(
        night.place, shape=(40, P), chunks=(40, 4), dtype="f8", overwrite=True
    )
    night.array[...] = data(40)
    streampca.append(night.place, data(60, 1))
    assert night.run().samples == 100
    array = zarr.open_array(night.place)
    array.resize((90, P))
    assert night.run().samples == 90
    array.resize((120, P))
    array[100:] = data(20, 2)
    assert night.run().behind == 30
    streampca.append(night.place, data(10, 3))  # a new mark, of other rows
    assert night.run().behind == 40
    streampca.append(night.place, np.zeros((10, P)))
    zarr.open_array(night.place)[90:100] = data(10, 4)
    assert night.run(gate={"max_variance_ratio": 1e6}).samples == 140


def test_a_mark_does_not_hide_that_served_rows_are_lost(tmp_path: Path) -> None:
    """Removed with their chunk, which a writer made anew for later rows: zeros were served."""
    night = Night(tmp_path, 1)
    night.array = zarr.create_array(
        night.place, shape=(40, P), chunks=(40, 4), dtype="f8", overwrite=True
    )
    night.array[...] = data(40)
    streampca.append(night.place, data(60, 1))
    night.run()
    array = zarr.open_array(night.place)
    array.resize((80, P))
    array.resize((120, P))
    array[100:] = data(20, 2)
    with pytest.raises(DamagedSourceError, match=r"row 80 of the source.*only the fill value"):
        night.run()
    array[80:100] = data(20, 3)
    assert night.run().samples == 120
    night.check(array[...])


def test_whole_chunks_behind_the_end_do_not_count_either(tmp_path: Path) -> None:
    """A writer with an old handle made the array shorter, and left its chunks where they were."""
    night = Night(tmp_path, 1)
    night.array = zarr.create_array(
        night.place, shape=(40, P), chunks=(20, 4), dtype="f8", overwrite=True
    )
    night.array[...] = data(40)
    old = zarr.open_array(night.place)
    night.array.append(data(80, 1))
    night.run()
    old.append(data(10, 2))
    assert night.run(gate={"max_removed": 1}).samples == 50
    old.resize((130, P))
    old[125:] = data(5, 3)
    assert night.run().behind == 80
    old[50:60], old[61:125] = data(10, 4), data(64, 5)
    assert night.run().behind == 70
    old[60:61] = data(1, 6)
    assert (night.run().samples, night.run().behind) == (130, 0)
    night.check(old[...])


def test_an_append_that_died_has_left_no_rows(tmp_path: Path) -> None:
    night = Night(tmp_path, 200)
    night.run()
    metadata = (tmp_path / "x.zarr" / "zarr.json").read_bytes()
    streampca.append(night.place, data(30, 1))
    (tmp_path / "x.zarr" / "zarr.json").write_bytes(metadata)
    assert night.run().samples == 200
    array = zarr.open_array(night.place)
    array.resize((240, P))
    array[230:] = data(10, 2)
    assert night.run().behind == 40
    array.resize((200, P))
    assert streampca.append(night.place, data(30, 1)) == 230  # once more, the same rows
    assert (night.run().samples, night.run().behind) == (230, 0)


def test_a_look_that_cannot_be_read_is_as_none(tmp_path: Path) -> None:
    night = shrunk(tmp_path)
    kept = tmp_path / "models" / "last_look.json"
    known = json.loads(kept.read_text())
    assert known["parts"]
    for name, value in (
        ("parts", [[[-1, 0], 1, "AAAA"]]),
        ("parts", 3),
        ("committed", "x"),
        ("length", 1e999),
        ("vouched", [[0]]),
        ("stat", None),
        ("more", 1),
        ("grid", []),
    ):
        kept.write_text(json.dumps({**known, name: value}))
        assert night.run().exit_code == 0
    for text in ("", "[]", "{", "[" * 10**5):
        kept.write_text(text)
        assert night.run().exit_code == 0


def test_a_dry_run_and_a_move_forget_nothing(tmp_path: Path) -> None:
    night = shrunk(tmp_path)
    job = check_job({**night.entries}, "job")
    assert (refresh(job, dry_run=True).behind, refresh(job).behind) == (30, 30)
    (tmp_path / "x.zarr").rename(tmp_path / "y.zarr")
    assert night.run(source={"path": str(tmp_path / "y.zarr")}).behind == 30
