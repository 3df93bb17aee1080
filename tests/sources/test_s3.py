"""Sources, model stores and refreshes in object storage, on a real server (``s3_server.py``)."""

from __future__ import annotations

import json
import os
import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml
import zarr

import streampca
from streampca.cli import main
from streampca.errors import DamagedSourceError, InvalidInputError, SourceError
from streampca.object_storage import open_objects
from streampca.operations.config import check_job
from streampca.operations.refresh import refresh
from streampca.sources.zarr import stores
from streampca.store import open_backend

N, P, ROWS = 200, 12, 64


def slow(*values: Any) -> Any:
    return pytest.param(*values, marks=pytest.mark.slow)


def soak(*values: Any) -> Any:
    return pytest.param(*values, marks=pytest.mark.soak)


def data(n: int = N, seed: int = 0) -> Any:
    return np.random.default_rng(seed).standard_normal((n, P)) * np.linspace(4, 1, P) + 3


def written(place: str, values: Any) -> Any:
    """An array in object storage, to be read and appended to."""
    store = zarr.storage.ObjectStore(open_objects(place))
    array = zarr.create_array(store, shape=values.shape, chunks=(ROWS, P), dtype="f8")
    array[...] = values
    return array


@pytest.mark.parametrize(
    ("url", "words"),
    [
        ("ftp://host/x", "ftp:// is not read; expected a path, or one of s3://"),
        ("reference::https://host/x.json", "chained URLs are not taken"),
        ("simplecache::s3://bucket/x", "chained URLs are not taken"),
        ("ssh://host/x.zarr", "give the zarr.Array"),
    ],
)
def test_schemes_that_are_not_read(url: str, words: str) -> None:
    with pytest.raises(InvalidInputError, match=words):
        streampca.open(url)


def test_options_that_are_not_known_are_refused() -> None:
    with pytest.raises(InvalidInputError, match=r"bucket/x cannot be opened: .*'colour'"):
        streampca.open("s3://me:pw@bucket/x?sig=1", storage_options={"colour": "red"})


def test_a_server_elsewhere_is_not_asked_in_plain_text(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of this machine alone HTTP is enough; another one gets keys through TLS, or none."""
    monkeypatch.delenv("AWS_ENDPOINT_URL", raising=False)
    keys = {"key": "a", "secret": "b", "region_name": "us-east-1"}
    far = open_objects("s3://bucket/x", {**keys, "endpoint_url": "http://192.0.2.1:9000"})
    near = open_objects("s3://bucket/x", {**keys, "endpoint_url": "http://127.0.0.1:9000"})
    assert far.client_options is None
    assert str(near.client_options["allow_http"]).lower() == "true"


@pytest.mark.parametrize("races", [slow(50), soak(500)])
def test_of_two_conditional_puts_one_wins(races: int, s3: str) -> None:
    """What a commit is made of; four at once, each with a connection of its own."""
    backends = [open_backend(s3) for _ in range(4)]
    for race in range(races):
        won: list[int] = []
        start = threading.Barrier(4)

        def put(i: int, race: int = race, won: list[int] = won, start: Any = start) -> None:
            start.wait()
            if backends[i].put_if_absent(f"race/{race}", b"%d" % i):
                won.append(i)

        threads = [threading.Thread(target=put, args=(i,)) for i in range(4)]
        [t.start() for t in threads]
        [t.join() for t in threads]
        assert len(won) == 1
        assert backends[0].get(f"race/{race}") == b"%d" % won[0]


@pytest.mark.slow
@pytest.mark.parametrize("how", ["environment", "obstore's names", "s3fs's names"])
def test_a_fit_reads_it_as_from_disk(
    how: str, s3: str, s3_server: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    written(s3, data())
    options: dict[str, Any] | None = None
    if how != "environment":
        region, key, secret = (
            os.environ[f"AWS_{name}"] for name in ("REGION", "ACCESS_KEY_ID", "SECRET_ACCESS_KEY")
        )
        for name in [name for name in os.environ if name.startswith("AWS_")]:
            monkeypatch.delenv(name)
        options = {
            "endpoint": s3_server,
            "access_key_id": key,
            "secret_access_key": secret,
            "region": region,
        }
        if how == "s3fs's names":
            options = {
                "key": key,
                "secret": secret,
                "client_kwargs": {"endpoint_url": s3_server, "region_name": region},
            }
    zarr.create_array(str(tmp_path / "x"), shape=(N, P), chunks=(ROWS, P), dtype="f8")[...] = data()
    there = streampca.PCA(3).fit(streampca.open(s3, storage_options=options))
    here = streampca.PCA(3).fit(str(tmp_path / "x"))
    np.testing.assert_array_equal(there.components_, here.components_)
    assert there.cost_[0].reads == 4
    there.save(tmp_path / "model")
    told = "".join(p.read_text(errors="replace") for p in (tmp_path / "model").rglob("*.json"))
    told += repr(there.cost_) + str(there.plan(streampca.open(s3, storage_options=options)))
    assert "very-secret" not in told
    assert "AKIATEST" not in told
    with pytest.raises(SourceError, match="no Zarr array or group at s3://bucket"):
        streampca.open(s3 + "/nowhere", storage_options=options)


@pytest.mark.slow
def test_damage_in_object_storage_is_named_as_on_disk(
    s3: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    written(s3, data())
    backend = open_backend(s3)
    backend.delete("c/1/0")
    with pytest.raises(DamagedSourceError, match="'c/1/0' is absent"):
        streampca.PCA(2).fit(s3)
    backend.put("c/1/0", b"xx")
    with pytest.raises(DamagedSourceError, match="'c/1/0' is damaged"):
        streampca.PCA(2).fit(s3)
    size = len(backend.get("zarr.json") or b"")
    monkeypatch.setattr(stores, "MOST_METADATA_BYTES", size)
    streampca.open(s3)
    monkeypatch.setattr(stores, "MOST_METADATA_BYTES", size - 1)
    with pytest.raises(DamagedSourceError, match=r"'zarr.json' in .* is not opened"):
        streampca.open(s3)


class Night:
    """A source and a model store, both in object storage."""

    def __init__(self, place: str) -> None:
        self.array = written(f"{place}/x", data())
        self.entries = {
            "source": {"path": f"{place}/x"},
            "model": {"n_components": 3},
            "store": f"{place}/models",
            "settle": 0,
        }

    def run(self, **more: Any) -> Any:
        return refresh(check_job(self.entries, "job"), **more)

    def check(self) -> None:
        X = self.array[...]
        store = streampca.ModelStore(self.entries["store"])
        expected = np.linalg.svd(X - X.mean(axis=0), compute_uv=False)[:3] ** 2 / (len(X) - 1)
        found = store.load()
        np.testing.assert_allclose(found.explained_variance_, expected, rtol=1e-12)
        assert store.verify() == {}


@pytest.mark.slow
def test_a_refresh_between_two_places_in_object_storage(s3: str) -> None:
    night = Night(s3)
    assert night.run().how == "full"
    assert night.run().status == "unchanged"
    night.array.append(data(100, seed=1))
    done = night.run()
    assert (done.how, done.new_samples, done.chunk_reads) == ("append", 100, 2)
    night.check()
    night.array[3, 3] = 50.0
    done = night.run()
    assert (done.change, done.how) == ("changed", "full")
    night.check()
    assert night.run(verify="full").status == "unchanged"
    backend = open_backend(f"{s3}/x")
    held = backend.get("c/1/0")
    assert held is not None
    backend.delete("c/1/0")
    with pytest.raises(DamagedSourceError, match="c/1/0"):
        night.run()
    backend.put("c/1/0", held)
    assert night.run().status == "unchanged"


@pytest.mark.slow
def test_scores_are_a_part_of_their_version_there_too(
    s3: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They are written among temporary files first; nothing of these stays."""
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    array = written(f"{s3}/x", data())
    entries = {
        "source": {"path": f"{s3}/x"},
        "model": {"n_components": 3},
        "settle": 0,
        "store": f"{s3}/models",
        "scores": {"rows": "all"},
    }
    store = streampca.ModelStore(f"{s3}/models")
    for rows in (N, N + 30):
        assert refresh(check_job(entries, "job")).scores["rows"] == rows
        model, scores = store.load_with_scores()
        np.testing.assert_allclose(np.asarray(scores), model.transform(array[...]), atol=1e-10)
        array.append(data(30, seed=rows))
    store.rollback()
    assert len(store.load_with_scores()[1]) == N
    assert store.verify() == {}
    assert list(tmp_path.iterdir()) == []


@pytest.mark.slow
def test_rows_that_are_not_written_yet_wait_there_too(s3: str) -> None:
    night = Night(s3)
    night.run()
    night.array.resize((N + 30, P))  # within the last chunk, which is there
    done = night.run()
    assert (done.status, done.samples) == ("unchanged", N)
    night.array[N:] = data(30, seed=2)
    done = night.run()
    assert (done.change, done.new_samples) == ("appended", 30)
    night.check()


@pytest.mark.parametrize(("jobs", "rounds"), [(3, 1), slow(4, 2), soak(8, 25)])
def test_of_refreshes_at_once_one_publishes(jobs: int, rounds: int, s3: str) -> None:
    """F12 on object storage, without a lock: the log decides."""
    night = Night(s3)
    for round_ in range(rounds):
        start, done, failures = threading.Barrier(jobs), [], []

        def one(start: Any = start, done: Any = done, failures: Any = failures) -> None:
            start.wait()
            try:
                done.append(night.run())
            except streampca.errors.BusyError as error:
                failures.append(error)

        threads = [threading.Thread(target=one) for _ in range(jobs)]
        [t.start() for t in threads]
        [t.join() for t in threads]
        assert len(done) + len(failures) == jobs
        assert {one.version for one in done} == {round_ + 1}
        assert [one.status for one in done].count("published") == 1
        recorded = streampca.ModelStore(night.entries["store"]).latest().record["by"]
        for one in done:
            assert one.status in ("published", "already", "unchanged")
            assert one.status != "already" or one.by == recorded
        assert len(streampca.ModelStore(night.entries["store"]).versions()) == round_ + 1
        night.check()
        night.array.append(data(40, seed=round_))


@pytest.mark.parametrize(
    "line",
    [
        "refresh {job}",
        "fit {x} -k 2",
        "fit {x}.parquet -k 2",
        "models list {x}",
        "transform {model} {x} -o s.zarr",
    ],
)
def test_a_bucket_that_is_not_there_is_no_such_input(
    s3: str,
    tmp_path: Path,
    line: str,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """66 for a source and for a model store, in one line without XML."""
    monkeypatch.chdir(tmp_path)  # the store "m" is there
    np.save(tmp_path / "x.npy", data())
    for source, store in ((tmp_path / "x.npy", "s3://no-bucket/m"), ("s3://no-bucket/x", "m")):
        job = {"source": {"path": str(source)}, "model": {"n_components": 2}, "store": store}
        (tmp_path / "job.yaml").write_text(yaml.safe_dump(job))
        places = {
            "job": tmp_path / "job.yaml",
            "x": "s3://no-bucket/x",
            "model": "s3://no-bucket/m",
        }
        assert main([word.format(**places) for word in line.split()]) == 66
        told = capsys.readouterr().err
        assert "no-bucket" in told
        assert "<" not in told
        assert told.count("\n") == 1


@pytest.mark.soak
def test_a_server_that_is_not_there_is_a_failed_read(
    s3: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("AWS_ENDPOINT_URL", "http://127.0.0.1:9")
    job = {"source": {"path": f"{s3}/x"}, "model": {"n_components": 2}, "store": f"{s3}/m"}
    (tmp_path / "job.yaml").write_text(yaml.safe_dump(job))
    assert main(["refresh", str(tmp_path / "job.yaml")]) == 74
    told = capsys.readouterr().err
    assert "127.0.0.1:9" in told
    assert "very-secret" not in told
    assert json.dumps(told).count("\\n") < 3
