"""Lineage: the events of a run, held to OpenLineage's own classes, and what takes them."""

from __future__ import annotations

import http.server
import json
import os
import socket
import threading
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import streampca
from streampca.errors import BusyError, ConfigError, SourceError, UnreportedRunWarning
from streampca.operations import lineage, runs
from streampca.operations.config import check_job
from streampca.operations.work_folder import only_one
from tests.operations.test_refresh import Nightly, data

pytestmark = pytest.mark.filterwarnings("ignore::streampca.errors.DominantFeatureWarning")


class Traced(Nightly):
    """A job whose lineage goes to a file."""

    def __init__(self, folder: Path, **changes: Any) -> None:
        self.file = folder / "lineage.jsonl"
        super().__init__(folder, lineage={"path": str(self.file), "namespace": "prod"}, **changes)

    def events(self) -> list[Any]:
        """Those of the last run; each run before has its two as well."""
        events = [json.loads(line) for line in self.file.read_text().splitlines()]
        ids = [one["run"]["runId"] for one in events]
        assert all(ids.count(one) == 2 for one in ids)  # one START, one end
        assert [one["eventType"] == "START" for one in events] == [True, False] * (len(events) // 2)
        return events[-2:]


@pytest.fixture
def traced(tmp_path: Path) -> Traced:
    return Traced(tmp_path)


def facets(where: Any) -> Any:
    """Facet -> what it says, without what every facet has."""
    return {
        name: {key: value for key, value in facet.items() if not key.startswith("_")}
        for name, facet in where.items()
    }


def test_a_run_that_published(tmp_path: Path) -> None:
    scores = str(tmp_path / "scores.zarr")
    traced = Traced(tmp_path, scores={"path": scores})
    traced.run()
    streampca.append(traced.place, data(30, 1))
    done = traced.run()
    begun, ended = traced.events()
    assert (begun["eventType"], ended["eventType"]) == ("START", "COMPLETE")
    assert begun["run"]["runId"] == ended["run"]["runId"] == done.run == str(uuid.UUID(done.run))
    assert begun["job"] == ended["job"]
    assert (ended["job"]["namespace"], ended["job"]["name"]) == ("prod", "job")
    assert begun["eventTime"] <= ended["eventTime"]
    source = {"namespace": "file", "name": traced.place}
    assert begun["inputs"] == [source | {"facets": {}}]
    (read,), (model, written) = ended["inputs"], ended["outputs"]
    version = traced.store.latest()
    assert {key: read[key] for key in source} == source
    assert facets(read["facets"]) == {
        "version": {"datasetVersion": version.record["source"]["fingerprint"]},
        "schema": {"fields": [{"name": "features", "type": "float64[8]"}]},
    }
    assert facets(read["inputFacets"]) == {"inputStatistics": {"rowCount": 30, "size": done.bytes}}
    assert (model["name"], written["name"]) == (traced.entries["store"], scores)
    assert facets(model["facets"])["version"] == {"datasetVersion": "2"}
    arrays = {one["name"]: one["type"] for one in model["facets"]["schema"]["fields"]}
    assert (arrays["components"], arrays["mean"]) == ("float64[3, 8]", "float64[8]")
    counted = facets(model["outputFacets"])["outputStatistics"]
    assert (counted["rowCount"], counted["fileCount"]) == (3, len(version.manifest["files"]))
    assert counted["size"] == sum(one["nbytes"] for one in version.manifest["files"].values())
    assert facets(written["outputFacets"]) == {"outputStatistics": {"rowCount": 130}}


def test_other_ends(traced: Traced) -> None:
    traced.entries["gate"] = {"max_angle": 0.01}
    traced.run()
    assert traced.run().status == "unchanged"
    ended = traced.events()[1]
    assert (ended["eventType"], ended["outputs"]) == ("COMPLETE", [])
    assert ended["inputs"][0]["inputFacets"]["inputStatistics"]["rowCount"] == 0
    with only_one(traced.entries["store"]), pytest.raises(BusyError):
        traced.run()
    assert traced.events()[1]["eventType"] == "ABORT"
    traced.array[...] = data(100, 5, turn=9.0)

    def stop(_: Any) -> None:
        raise SystemExit(143)

    with pytest.raises(SystemExit):
        traced.run(progress=stop)
    assert traced.events()[1]["eventType"] == "ABORT"
    refused = traced.run()
    ended = traced.events()[1]
    assert (ended["eventType"], ended["outputs"]) == ("FAIL", [])
    message = {"message": refused.gate, "programmingLanguage": "python"}
    assert facets(ended["run"]["facets"])["errorMessage"] == message
    Path(traced.place).rename(traced.folder / "away")
    with pytest.raises(SourceError):
        traced.run()
    ended = traced.events()[1]
    assert ended["eventType"] == "FAIL"
    assert "no such file" in ended["run"]["facets"]["errorMessage"]["message"]


def test_a_run_that_died_gets_its_end_from_the_next(traced: Traced) -> None:
    with pytest.MonkeyPatch.context() as patch:  # as if it were killed
        patch.setattr(runs.RunNote, "__exit__", lambda self, *_: self._ended.set())
        patch.setattr(lineage.Lineage, "end", lambda *_: "")
        traced.run()
    (begun,) = [json.loads(line) for line in traced.file.read_text().splitlines()]
    path = Path(traced.entries["store"] + runs.FOLDER) / runs.NAME
    note = json.loads(path.read_text())
    assert note["run"]["id"] == begun["run"]["runId"]
    note["run"]["pid"] = 2**22 + 5  # more than there are
    path.write_text(json.dumps(note))
    done = traced.run()
    events = [json.loads(line) for line in traced.file.read_text().splitlines()]
    ends = {one["run"]["runId"]: one["eventType"] for one in events if one["eventType"] != "START"}
    assert ends == {begun["run"]["runId"]: "FAIL", done.run: "COMPLETE"}
    note["run"]["id"] = "not an id"
    path.write_text(json.dumps(note))
    traced.run()
    assert len(traced.file.read_text().splitlines()) == len(events) + 2


def test_events_are_those_of_openlineage(tmp_path: Path) -> None:
    """Its classes take what we write, and have the schemas that we name."""
    client = pytest.importorskip("openlineage.client")
    from openlineage.client import event_v2, facet_v2

    for name, (_, kind) in lineage.FACETS.items():
        modules = vars(facet_v2).values()
        (known,) = {vars(one)[kind] for one in modules if kind in getattr(one, "__dict__", {})}
        assert lineage._facets(**{name: {"x": 1}})[name]["_schemaURL"] == known._get_schema()
    assert event_v2.RunEvent._get_schema() == lineage.EVENT
    traced = Traced(tmp_path, scores={"path": str(tmp_path / "scores.zarr")})
    traced.run()

    def made(kind: Any, values: Any, **more: Any) -> Any:
        known = {key: value for key, value in values.items() if not key.startswith("_")}
        return kind(**known | more)

    def faceted(where: Any) -> Any:
        modules = [one for one in vars(facet_v2).values() if hasattr(one, "__name__")]
        found = {}
        for name, values in where.items():
            kind = lineage.FACETS[name][1]
            cls = next(vars(one)[kind] for one in modules if kind in vars(one))
            found[name] = made(cls, values)
        return found

    def dataset(kind: Any, values: Any) -> Any:
        return kind(**{k: faceted(v) if "acets" in k else v for k, v in values.items()})

    for event in traced.events():
        run, job = event["run"], event["job"]
        again = event_v2.RunEvent(
            eventType=event_v2.RunState[event["eventType"]],
            eventTime=event["eventTime"],
            producer=event["producer"],
            run=made(event_v2.Run, run, facets=faceted(run["facets"])),
            job=made(event_v2.Job, job, facets=faceted(job["facets"])),
            inputs=[dataset(event_v2.InputDataset, one) for one in event["inputs"]],
            outputs=[dataset(event_v2.OutputDataset, one) for one in event["outputs"]],
        )
        theirs = json.loads(client.serde.Serde.to_json(again))
        assert without_producers(theirs) == without_producers(event)


def without_producers(value: Any) -> Any:
    """Facets of theirs are made by their default producer; empty facets are left out."""
    if isinstance(value, dict):
        kept = {k: without_producers(v) for k, v in value.items() if k != "_producer"}
        return {k: v for k, v in kept.items() if v not in ({}, [])}
    return [without_producers(one) for one in value] if isinstance(value, list) else value


# Where events go.


class Server(http.server.BaseHTTPRequestHandler):
    """Takes events; answers as the path says."""

    taken: list[tuple[str | None, Any]]

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["Content-Length"]))
        self.taken.append((self.headers["Authorization"], json.loads(body)))
        self.send_response(int(self.path.strip("/")))
        self.send_header("Location", "/200")
        self.end_headers()

    def do_GET(self) -> None:
        raise AssertionError("a redirection was followed")

    def log_message(self, *_: Any) -> None:
        pass


@pytest.fixture
def server() -> Iterator[str]:
    Server.taken = []
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Server) as one:
        thread = threading.Thread(target=one.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        yield f"http://127.0.0.1:{one.server_address[1]}"
        one.shutdown()
        thread.join()


def test_an_address(tmp_path: Path, server: str, monkeypatch: pytest.MonkeyPatch) -> None:
    job = Nightly(tmp_path, lineage={"url": f"{server}/201"})
    monkeypatch.setenv(lineage.KEY, "secret")
    job.run()
    keys, events = zip(*Server.taken, strict=True)
    assert [one["eventType"] for one in events] == ["START", "COMPLETE"]
    assert keys == ("Bearer secret",) * 2
    for answer in (302, 500):
        job.entries["lineage"] = {"url": f"{server}/{answer}"}
        with pytest.warns(UnreportedRunWarning, match=str(answer)):
            assert job.run().status == "unchanged"


def test_an_address_that_is_dead_or_silent(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lineage, "TIMEOUT", 0.05)
    monkeypatch.setattr(lineage, "PATIENCE", 0.5)
    job = Nightly(tmp_path)
    with socket.create_server(("127.0.0.1", 0)) as silent:  # it accepts, and says nothing
        job.entries["lineage"] = {"url": f"http://127.0.0.1:{silent.getsockname()[1]}/x"}
        with pytest.warns(UnreportedRunWarning, match="timed out|no answer"):
            assert job.run().status == "published"
    with pytest.warns(UnreportedRunWarning, match="refused"):
        assert job.run().status == "unchanged"


def test_a_file_that_cannot_be_written_or_was_cut_off(traced: Traced) -> None:
    os.mkfifo(traced.file)
    with pytest.warns(UnreportedRunWarning, match="lineage"):
        assert traced.run().status == "published"
    traced.file.unlink()
    traced.file.write_text('{"cut": ')
    traced.run()
    lines = traced.file.read_text().splitlines()
    assert lines[0] == '{"cut": '
    assert [json.loads(one)["eventType"] for one in lines[1:]] == ["START", "COMPLETE"]


@pytest.mark.parametrize(
    ("place", "expected"),
    [
        ("s3://bucket/a/x.zarr", ("s3://bucket", "a/x.zarr")),
        ("https://user:key@host/x.zarr?sig=1", ("https://host", "x.zarr")),
        ("/srv/x.zarr", ("file", "/srv/x.zarr")),
    ],
)
def test_names_of_datasets(place: str, expected: tuple[str, str]) -> None:
    named = lineage._dataset(place)
    assert (named["namespace"], named["name"]) == expected


def test_columns_that_have_names(tmp_path: Path) -> None:
    (tmp_path / "x.csv").write_text("a,b\n1.0,2\n3.0,5\n4.0,2\n")
    matrix = streampca.open(tmp_path / "x.csv")
    found = lineage.schema_of(matrix, streampca.PCA(1).fit(matrix).result_)
    assert found["source"] == {"a": "float64", "b": "float64"}


@pytest.mark.parametrize(
    "entries",
    [
        {},
        {"path": "http://host/x"},
        {"url": "ftp://host/x"},
        {"url": "http:///x"},
        {"url": "http://user:key@host/x"},
        {"url": "http://host/x?key=1"},
        {"url": "http://host:port/x"},
        {"path": "x.zarr/lineage.jsonl"},
    ],
)
def test_the_section(tmp_path: Path, entries: dict[str, str]) -> None:
    job = Nightly(tmp_path)
    if entries.get("path", "").startswith("x.zarr"):
        entries = {"path": str(tmp_path / entries["path"])}
    with pytest.raises(ConfigError, match="lineage"):
        check_job(job.entries | {"lineage": entries}, "job")
