"""Icechunk repositories: a snapshot is pinned, refresh goes by the diff of two."""

from __future__ import annotations

import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import zarr

import streampca
from streampca.errors import DamagedSourceError, InvalidInputError, SourceError
from streampca.operations.config import check_job
from streampca.operations.refresh import refresh
from streampca.sources.zarr.icechunk import Snapshots
from streampca.sources.zarr.ledger import LedgerSource

icechunk = pytest.importorskip("icechunk", reason="needs icechunk: pip install -e '.[test]'")
pytestmark = pytest.mark.filterwarnings("ignore::streampca.errors.DominantFeatureWarning")
N, P, ROWS = 100, 8, 16


def data(n: int = N, seed: int = 0) -> Any:
    return np.random.default_rng(seed).standard_normal((n, P)) * np.linspace(4, 1, P) + 3


class Repository:
    """One array in a repository on disk, changed commit by commit."""

    def __init__(self, place: Path) -> None:
        icechunk.set_logs_filter("icechunk=error")
        self.place = str(place)
        self.repository = icechunk.Repository.create(icechunk.local_filesystem_storage(self.place))
        session = self.repository.writable_session("main")
        array = zarr.create_array(
            session.store, name="g/X", shape=(N, P), chunks=(ROWS, 4), dtype="f8"
        )
        array[...] = data()
        self.first = session.commit("first")

    def commit(self, change: Callable[[Any], Any], branch: str = "main") -> str:
        session = self.repository.writable_session(branch)
        change(zarr.open_array(session.store, path="g/X"))
        return str(session.commit("more"))

    def append(self, n: int, seed: int = 1) -> str:
        return self.commit(lambda array: array.append(data(n, seed)))

    def values(self) -> Any:
        return zarr.open_array(self.repository.readonly_session("main").store, path="g/X")[...]


@pytest.fixture
def repository(tmp_path: Path) -> Repository:
    return Repository(tmp_path / "repository")


def everything(matrix: Any) -> Any:
    return matrix.read(0, 0, matrix.shape[0])


def test_known_formats_open_without_a_hint(repository: Repository) -> None:
    matrix = streampca.open(repository.place)
    again = pickle.loads(pickle.dumps(matrix))
    second = repository.append(30)
    repository.commit(lambda array: array.__setitem__((0, 0), 99.0))
    for one in (matrix, again):
        np.testing.assert_array_equal(everything(one), data())
    assert matrix.content_stamp() == again.content_stamp()
    assert matrix.content_stamp() != streampca.open(repository.place).content_stamp()
    np.testing.assert_array_equal(everything(streampca.open(repository.place)), repository.values())
    repository.repository.create_tag("v1", repository.first)
    repository.repository.create_branch("side", second)
    for which, rows in (
        ({"tag": "v1"}, N),
        ({"snapshot": second}, N + 30),
        ({"branch": "side"}, N + 30),
    ):
        found = streampca.open(repository.place, variable="g/X", **which)
        assert found.shape == (rows, P)
        assert found.read(0, 0, 1)[0, 0] == data()[0, 0]
    model = streampca.PCA(3).fit(streampca.open(repository.place, tag="v1"))
    np.testing.assert_array_equal(model.components_, streampca.PCA(3).fit(data()).components_)


def test_what_is_not_there_is_said(repository: Repository, tmp_path: Path) -> None:
    with pytest.raises(SourceError, match="no branch 'night': ref not found"):
        streampca.open(repository.place, branch="night")
    with pytest.raises(SourceError, match="no snapshot 'x'"):
        streampca.open(repository.place, snapshot="x")
    with pytest.raises(InvalidInputError, match="branch, tag: expected one of them"):
        streampca.open(repository.place, branch="main", tag="x")
    with pytest.raises(SourceError, match="no Icechunk repository at"):
        streampca.open(str(tmp_path / "nowhere"), branch="main")
    (tmp_path / "second" / "snapshots").mkdir(parents=True)
    (tmp_path / "second" / "repo").write_bytes(b"")  # of the second format, and damaged
    with pytest.raises(SourceError, match="no Icechunk repository at"):
        streampca.open(str(tmp_path / "second"))
    with pytest.raises(InvalidInputError, match="gs:// is not read as an Icechunk repository"):
        streampca.open("gs://bucket/x", branch="main")


def test_an_absent_chunk_is_an_error_here_too(repository: Repository) -> None:
    repository.commit(lambda array: array.resize((N + 40, P)))
    with pytest.raises(DamagedSourceError, match=r"'g/X/c/[78]/[01]' is absent"):
        everything(streampca.open(repository.place))
    filled = everything(streampca.open(repository.place, missing_chunks="fill"))
    assert np.all(filled[N:] == 0)


def test_an_array_of_a_session_is_read_but_has_no_ledger(repository: Repository) -> None:
    store = repository.repository.readonly_session("main").store
    matrix = streampca.open(zarr.open_array(store, path="g/X", mode="r"))
    assert LedgerSource.of(matrix) is None
    assert matrix.fingerprint() == pickle.loads(pickle.dumps(matrix)).fingerprint()
    np.testing.assert_array_equal(everything(matrix), data())


class Night:
    def __init__(self, repository: Repository, folder: Path) -> None:
        self.repository = repository
        self.entries: dict[str, Any] = {
            "source": {"path": repository.place, "variable": "g/X"},
            "model": {"n_components": 3},
            "store": str(folder / "models"),
        }

    def run(self, **more: Any) -> Any:
        return refresh(check_job(self.entries, "job"), **more)

    @property
    def version(self) -> Any:
        return streampca.ModelStore(self.entries["store"]).latest()

    def check(self, rtol: float = 1e-12) -> None:
        X = self.repository.values()
        expected = np.linalg.svd(X - X.mean(axis=0), compute_uv=False)[:3] ** 2 / (len(X) - 1)
        result = self.version.result()
        found = np.sort(result.explained_variance)[::-1]  # the order stays that of the old version
        np.testing.assert_allclose(found, expected, rtol=rtol)
        assert result.n_samples == len(X)


@pytest.fixture
def night(repository: Repository, tmp_path: Path) -> Night:
    return Night(repository, tmp_path)


def test_a_refresh_goes_by_snapshots(night: Night) -> None:
    first = night.run()
    assert (first.how, first.chunk_reads) == ("full", 14)
    assert night.version.record["source"]["snapshot"] == night.repository.first
    assert night.run().status == "unchanged"
    night.repository.append(30)
    done = night.run()
    assert (done.change, done.how, done.new_samples, done.chunk_reads) == (
        "appended",
        "append",
        30,
        6,
    )
    assert "by the diff of their snapshots" in done.why
    assert done.verified_bytes == 0
    night.check()
    for verify in ("stat", "full"):
        again = night.run(verify=verify)
        assert (again.status, again.verified_bytes > 0) == ("unchanged", verify == "full")


def rewrite(array: Any) -> None:
    array[0:ROWS] = array[0:ROWS]


def change(array: Any) -> None:
    array[3, 3] = 77.0


def change_and_append(array: Any) -> None:
    change(array)
    array.append(data(20, seed=4))


def change_the_tail_and_append(array: Any) -> None:
    array[N - 1, 3] = 77.0
    array.append(data(20, seed=4))


def shrink(array: Any) -> None:
    array.resize((60, P))


CHANGES = {
    "an old chunk is another": (change, "changed", "full"),
    "and rows were appended": (change_and_append, "changed", "full"),
    "an old row of the last chunk": (change_the_tail_and_append, "changed", "full"),
    "rows were removed": (shrink, "removed", "full"),
    "a chunk was written as it was": (rewrite, "nothing", "nothing"),
}


@pytest.mark.parametrize("verify", ["stat", pytest.param("full", marks=pytest.mark.slow)])
@pytest.mark.parametrize("what", CHANGES)
def test_changes_between_snapshots(what: str, verify: str, night: Night) -> None:
    act, kind, how = CHANGES[what]
    night.entries["gate"] = {"max_removed": 0.5}
    night.run()
    night.repository.commit(act)
    done = night.run(verify=verify)
    assert (done.change, done.how) == (kind, how)
    night.check()
    assert night.run(verify=verify).status == "unchanged"


def test_what_shrank_and_grew_again_has_lost_its_rows(
    night: Night, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The diff of Icechunk 1 names none of the chunks that are gone, that of 2 all of them."""
    night.run()
    night.repository.commit(lambda array: array.resize((50, P)))
    last = night.repository.commit(lambda array: array.resize((N, P)))
    gone = list(np.ndindex(7, 2))[8:]
    told = Snapshots(night.repository.place).changed("g/X", night.repository.first, last)
    assert told == ([] if icechunk.__version__.startswith("1.") else gone)
    for answer in ([], gone):
        monkeypatch.setattr(Snapshots, "changed", lambda *_, answer=answer: answer)
        with pytest.raises(DamagedSourceError, match="4/0"):
            night.run()


def test_a_region_that_was_never_written_gets_one_judgement(night: Night) -> None:
    """Half of it lies in a chunk that is there: its rows were served, and the others waited."""
    night.run()
    assert N % ROWS
    night.repository.commit(lambda array: array.resize((N + 40, P)))
    done = night.run()
    assert (done.status, done.samples, done.behind) == ("unchanged", N, 40)
    assert f"row {N} holds only the fill value" in done.note
    night.repository.commit(lambda array: array.__setitem__(slice(N, N + 30), data(30, 1)))
    assert (night.run().samples, night.run().behind) == (N + 30, 10)
    night.repository.commit(lambda array: streampca.append(array, data(20, 2)))
    assert night.run().behind == 30
    line = "streampca.commit_rows(array, rows) in a writable session, and session.commit(...)"
    assert line in night.run().note
    night.repository.commit(lambda array: array.__setitem__(slice(N + 30, N + 40), data(10, 3)))
    assert (night.run().samples, night.run().behind) == (N + 60, 0)
    night.check()
    with pytest.raises(InvalidInputError, match=r"an Icechunk repository: pass zarr\.open_array"):
        streampca.commit_rows(night.repository.place, 3)


def zeros(array: Any) -> None:
    """Rows of zeros, of which their writer says that they are written."""
    array = zarr.open_array(array.store, path=array.path)
    array.with_config({"write_empty_chunks": True}).append(np.zeros((9, P)))
    streampca.commit_rows(array, N + 9)


def test_rows_of_the_fill_value_need_commit_rows_in_icechunk_too(night: Night) -> None:
    night.run()
    night.repository.commit(zeros)
    assert (night.run().samples, night.run().behind) == (N + 9, 0)
    night.check()


def test_removed_rows_do_not_come_back(night: Night) -> None:
    """Each snapshot is whole, and the chunk of the removed rows is in all of them."""
    night.run()
    night.repository.commit(lambda array: array.resize((N - 5, P)))
    assert night.run().samples == N - 5
    night.repository.commit(lambda array: array.resize((N + 10, P)))
    night.repository.commit(lambda array: array.__setitem__(slice(N, N + 10), data(10, 1)))
    done = night.run()
    assert (done.samples, done.behind) == (N - 5, 15)
    assert "as it lay behind the end of the array" in done.note
    night.repository.commit(lambda array: array.__setitem__(slice(N - 5, N), data(5, 2)))
    assert (night.run().samples, night.run().behind) == (N + 10, 0)
    night.check()


def test_served_rows_that_are_blank_now_are_an_error(night: Night) -> None:
    night.run()
    night.repository.commit(lambda array: array.resize((ROWS, P)))
    night.repository.commit(lambda array: array.resize((N, P)))
    last = slice(ROWS, None, 3)
    night.repository.commit(lambda array: array.__setitem__(last, data(N)[last]))
    with pytest.raises(DamagedSourceError, match=f"row {ROWS + 1} of the source"):
        night.run()


def test_other_data_of_the_same_length_are_another_version(night: Night) -> None:
    """Twenty rows, taken back, and twenty others: the numbers alone are the same."""
    night.run()
    night.repository.append(20, seed=5)
    assert night.run().version == 2
    night.repository.repository.reset_branch("main", night.repository.first)
    night.repository.append(20, seed=6)
    done = night.run()
    assert (done.status, done.version, done.how) == ("published", 3, "full")
    night.check()


def test_where_no_diff_is_to_be_had_all_is_looked_at(night: Night) -> None:
    """As where the old snapshot has expired."""
    night.run()
    night.repository.repository.reset_branch("main", night.repository.first)
    session = night.repository.repository.writable_session("main")
    zarr.open_array(session.store, path="g/X").append(data(20, seed=5))
    session.amend("another history") if hasattr(session, "amend") else session.commit("more")
    told = Snapshots(night.repository.place)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Snapshots, "changed", lambda *_: None)
        done = night.run()
    assert told.changed("g/X", "0" * 20, night.repository.first) is None
    assert (done.how, done.new_samples) == ("append", 20)
    assert done.verified_bytes > 0
    night.check()


@pytest.mark.slow
def test_a_repository_on_an_s3_server(s3: str, s3_server: str, tmp_path: Path) -> None:
    storage = icechunk.s3_storage(
        bucket="bucket",
        prefix=s3.rpartition("/")[2],
        endpoint_url=s3_server,
        allow_http=True,
        force_path_style=True,
        from_env=True,
        region="us-east-1",
    )
    session = icechunk.Repository.create(storage).writable_session("main")
    zarr.create_array(session.store, name="X", shape=(N, P), chunks=(ROWS, P), dtype="f8")[...] = (
        data()
    )
    session.commit("first")
    job = {
        "source": {"path": s3, "branch": "main"},
        "model": {"n_components": 3},
        "store": str(tmp_path / "models"),
    }
    assert refresh(check_job(job, "job")).how == "full"
    session = icechunk.Repository.open(storage).writable_session("main")
    zarr.open_array(session.store, path="X").append(data(20, seed=1))
    session.commit("second")
    done = refresh(check_job(job, "job"))
    assert (done.how, done.new_samples, done.chunk_reads) == ("append", 20, 2)
