"""A store that is written anew by a writer that is not done, or died; and its first night."""

from __future__ import annotations

import shutil
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

P = 4
ROWS = np.random.default_rng(5).standard_normal((60, P)) + 3


def job(folder: Path, settle: float = 0) -> Any:
    entries = {
        "source": {"path": str(folder / "x.zarr")},
        "model": {"n_components": 2},
        "store": str(folder / "models"),
        "settle": settle,
    }
    return check_job(entries, "job")


def stored(folder: Path, rows: int, written: int, **form: Any) -> Any:
    """An array made anew, of which the first rows are written."""
    place = folder / "x.zarr"
    shutil.rmtree(place, ignore_errors=True)
    form = {"chunks": (10, 2), "dtype": "f8", **form}
    array = zarr.create_array(str(place), shape=(rows, P), **form)
    array[:written] = ROWS[:written]
    return array


def served(folder: Path) -> int:
    result = streampca.ModelStore(str(folder / "models")).latest().result()
    np.testing.assert_allclose(result.mean, ROWS[: result.n_samples].mean(axis=0), rtol=1e-6)
    return int(result.n_samples)


OTHERWISE = {
    "other chunks": {"chunks": (20, 2)},
    "another dtype": {"dtype": "f4"},
    "shards": {"shards": (20, 4)},
    "Zarr 2": {"zarr_format": 2},
    "another codec": {"compressors": None},
}


TRIED = [("other chunks", 45), ("another dtype", 40)]
OTHERS = [
    (form, written) for form in OTHERWISE for written in (45, 40) if (form, written) not in TRIED
]


@pytest.mark.parametrize(
    ("form", "written"), [*TRIED, *(pytest.param(*one, marks=pytest.mark.slow) for one in OTHERS)]
)
def test_rows_that_a_writer_of_a_new_store_has_not_written_are_lost(
    form: str, written: int, tmp_path: Path
) -> None:
    stored(tmp_path, 50, 50)
    refresh(job(tmp_path))
    array = stored(tmp_path, 60, written, **OTHERWISE[form])
    with pytest.raises(DamagedSourceError, match=r"\d\d of its 60 rows count.*has 50"):
        refresh(job(tmp_path))
    assert served(tmp_path) == 50
    array[written:] = ROWS[written:]
    done = refresh(job(tmp_path))
    assert (done.status, done.samples, done.behind) == ("published", 60, 0)
    assert served(tmp_path) == 60


def test_what_repairs_it(tmp_path: Path) -> None:
    """An array as short as what is written, or the word of its writer."""
    stored(tmp_path, 50, 50)
    refresh(job(tmp_path))
    array = stored(tmp_path, 60, 40, chunks=(20, 2))
    array.attrs["streampca_rows_committed"] = 40
    assert refresh(job(tmp_path)).behind == 20
    assert served(tmp_path) == 40
    stored(tmp_path, 36, 36, chunks=(10, 4))
    assert refresh(job(tmp_path)).status == "published"
    assert served(tmp_path) == 36


def test_a_writer_of_a_new_store_may_be_busy(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    stored(tmp_path, 56, 56)
    refresh(job(tmp_path))
    array = stored(tmp_path, 59, 0, chunks=(20, 2))
    array[:] = ROWS[:59]
    array.resize((60, P))  # all chunks are older than this
    with pytest.raises(ChangingSourceError, match=r"40 of its 60 rows count.*has 56.*Try again"):
        refresh(job(tmp_path, settle=60))
    text = f"source: {{path: {tmp_path}/x.zarr}}\nmodel: {{n_components: 2}}\n"
    (tmp_path / "job.yaml").write_text(f"{text}store: {tmp_path}/models\n")
    assert main(["refresh", str(tmp_path / "job.yaml")]) == 75
    assert "Try again later" in capsys.readouterr().err
    assert served(tmp_path) == 56
    array[59:] = ROWS[59:]
    assert refresh(job(tmp_path)).status == "published"
    assert served(tmp_path) == 60


@pytest.mark.parametrize("rows", [21, 30], ids=lambda rows: f"behind {rows}")
def test_rows_of_an_append_count_on_the_first_night(rows: int, tmp_path: Path) -> None:
    """Its last chunk is older than the length, and its rows are vouched for."""
    stored(tmp_path, rows, rows)
    streampca.append(str(tmp_path / "x.zarr"), ROWS[rows:47])
    done = refresh(job(tmp_path, settle=60))
    assert (done.samples, done.behind) == (47, 0)
    assert served(tmp_path) == 47


def test_rows_before_an_append_in_the_same_chunk_still_wait(tmp_path: Path) -> None:
    """Nobody vouches for them: their chunk was written before the length."""
    stored(tmp_path, 43, 43)
    streampca.append(str(tmp_path / "x.zarr"), ROWS[43:47])
    done = refresh(job(tmp_path, settle=60))
    assert (done.samples, done.behind) == (40, 7)
    assert refresh(job(tmp_path)).samples == 47


def test_a_candidate_is_judged_beside_the_version_that_is_served(tmp_path: Path) -> None:
    """It was refused for ever for what another version had once been."""
    array = stored(tmp_path, 50, 50)
    refresh(job(tmp_path))
    array[:] = ROWS[:50] * 1000
    assert refresh(job(tmp_path)).status == "refused"
    array[:10] = ROWS[50:] * 1000
    done = refresh(job(tmp_path))
    assert (done.status, done.version) == ("refused", 3)
    assert (again := refresh(job(tmp_path))).how == "nothing"
    assert (again.status, again.version) == ("refused", 3)
    streampca.ModelStore(str(tmp_path / "models")).promote(2)
    done = refresh(job(tmp_path))
    assert (done.status, done.served, done.gate) == ("published", 4, "")
    streampca.ModelStore(str(tmp_path / "models")).rollback(2)
    done = refresh(job(tmp_path))
    assert (done.status, done.served) == ("unchanged", 2)
    assert "rolled back" in done.why


def test_chunks_of_rows_that_the_attribute_leaves_out_are_not_lost(tmp_path: Path) -> None:
    array = stored(tmp_path, 55, 55)
    refresh(job(tmp_path))
    array.resize((42, P))
    array.resize((60, P))
    with pytest.raises(DamagedSourceError, match="are gone"):
        refresh(job(tmp_path))
    array.attrs["streampca_rows_committed"] = 42
    done = refresh(job(tmp_path))
    assert (done.status, done.samples, done.behind) == ("published", 42, 18)
    assert served(tmp_path) == 42
    shutil.rmtree(tmp_path / "x.zarr" / "c" / "4")
    with pytest.raises(DamagedSourceError, match="are gone"):
        refresh(job(tmp_path))


@pytest.mark.parametrize(("before", "after"), [((4, 4), (4, 2)), ((4, 2), (4, 4))])
def test_shards_written_anew_with_other_chunks_in_them(
    before: tuple[int, int], after: tuple[int, int], tmp_path: Path
) -> None:
    """What a look at the old ones left has another shape: it ended with a ValueError and 70."""
    stored(tmp_path, 60, 60, chunks=before, shards=(16, 4)).resize((50, P))
    refresh(job(tmp_path))
    stored(tmp_path, 60, 60, chunks=after, shards=(16, 4))
    done = refresh(job(tmp_path))
    assert (done.status, done.samples, done.behind) == ("published", 60, 0)
    assert served(tmp_path) == 60
