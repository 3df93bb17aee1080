"""Lineage of a run: an OpenLineage event when it begins, and one when it ends.

The events go to a file, a line of JSON each, and to an HTTP address, as the section ``lineage`` of
the job file says. They are plain JSON. ``openlineage-python`` would make the same, but importing it
takes 0.3 s of CPU time, more than 1 % of a refresh; the tests hold the events to its classes.

Source: OpenLineage 2-0-2, "Object Model", "Run Cycle" and "Naming".
"""

from __future__ import annotations

import contextlib
import datetime
import os
import queue
import threading
import uuid
from collections.abc import Mapping
from dataclasses import fields
from pathlib import PurePath
from typing import Any
from urllib.parse import urlsplit

import numpy as np

from streampca.errors import BusyError, StreamPCAError, hide_secrets
from streampca.matrix.labels import json_of
from streampca.model_store.model_store import ModelStore
from streampca.operations.config import Job
from streampca.operations.outcome import ALREADY, PUBLISHED, REFUSED, Outcome
from streampca.passes.cluster.versions import our_versions
from streampca.paths import refuse_special

SPEC = "https://openlineage.io/spec/"
EVENT = f"{SPEC}2-0-2/OpenLineage.json#/$defs/RunEvent"
FACETS = {  # facet -> (version of its schema, its class)
    "jobType": ("2-0-4", "JobTypeJobFacet"),
    "processing_engine": ("1-1-1", "ProcessingEngineRunFacet"),
    "errorMessage": ("1-0-1", "ErrorMessageRunFacet"),
    "version": ("1-0-1", "DatasetVersionDatasetFacet"),
    "schema": ("1-2-0", "SchemaDatasetFacet"),
    "inputStatistics": ("1-0-0", "InputStatisticsInputDatasetFacet"),
    "outputStatistics": ("1-0-2", "OutputStatisticsOutputDatasetFacet"),
}
KEY = "OPENLINEAGE_API_KEY"  # environment variable, as of OpenLineage's own clients
TIMEOUT = 2.0  # seconds that an address has to answer
PATIENCE = 5.0  # seconds that the end of a run waits for what was not delivered yet
MOST_NAMES = 100  # of features, in a schema


def schema_of(matrix: Any, result: Any) -> dict[str, dict[str, str]]:
    """For the record of a version: the columns of its source and the arrays of its model.

    Each is a name -> a type, such as "float64[3, 8]". Features that have no names, or too many,
    are one column.
    """
    features, dtype = matrix.labels.features, str(matrix.dtype)
    if features.named and len(features) <= MOST_NAMES:
        source = {str(name): dtype for name in features.names()}
    else:
        source = {"features": f"{dtype}[{matrix.shape[1]}]"}
    arrays = {one.name: getattr(result, one.name) for one in fields(result)}
    return {
        "source": source,
        "model": {
            name: f"{array.dtype}{list(array.shape)}"
            for name, array in arrays.items()
            if isinstance(array, np.ndarray)
        },
    }


class Lineage:
    """The events of one run of a job.  run : its id, a UUID.

    ``begin`` and ``end`` never raise; ``end`` says why an event was not delivered.
    """

    def __init__(self, job: Job, run: str) -> None:
        self.job, self.run, self.problem = job, run, ""
        url = job.lineage.get("url")
        self.delivery = None if url is None else Delivery(url)

    def begin(self) -> None:
        """The run has begun."""
        self._emit("START", [_dataset(one) for one in _paths(self.job)], [])

    def end(self, end: Outcome | BaseException) -> str:
        """The run has ended. Returns why events were not delivered, or "".

        Cost: the record of the version; at most ``PATIENCE`` seconds for an address.
        """
        kind, why = _how_it_ended(end)
        inputs: list[Any] = [_dataset(one) for one in _paths(self.job)]
        outputs: list[Any] = []
        try:
            if isinstance(end, Outcome):
                inputs, outputs = _datasets(self.job, end)
        except (StreamPCAError, OSError) as error:  # the event is sent without its facets
            self.problem = f"the version cannot be read: {error}"
        failed = {"message": hide_secrets(why), "programmingLanguage": "python"}
        self._emit(kind, inputs, outputs, _facets(errorMessage=failed) if why else {})
        if self.delivery is not None:
            self.problem = self.delivery.finish() or self.problem
        return self.problem and f"lineage {self.problem}"

    def end_dead(self, run: Any) -> None:
        """An earlier run has died, as its note says: it has an end too.  run : its id."""
        with contextlib.suppress(ValueError, TypeError, AttributeError):
            died = {"message": "the process died", "programmingLanguage": "python"}
            facets = _facets(errorMessage=died)
            inputs = [_dataset(one) for one in _paths(self.job)]
            self._emit("FAIL", inputs, [], facets, run=str(uuid.UUID(run)))

    def _emit(
        self,
        kind: str,
        inputs: list[Any],
        outputs: list[Any],
        more: Mapping[str, Any] = {},
        run: str = "",
    ) -> None:
        ours = {"name": "streampca", "version": our_versions()["streampca"]}
        job = {"processingType": "BATCH", "integration": "STREAMPCA", "jobType": "JOB"}
        event = {
            "eventType": kind,
            "eventTime": datetime.datetime.now(datetime.UTC).isoformat(timespec="milliseconds"),
            "producer": _producer(),
            "schemaURL": EVENT,
            "run": {
                "runId": run or self.run,
                "facets": {**_facets(processing_engine=ours), **more},
            },
            "job": {
                "namespace": self.job.lineage["namespace"],
                "name": name_of(self.job),
                "facets": _facets(jobType=job),
            },
            "inputs": inputs,
            "outputs": outputs,
        }
        line = json_of(event)
        if (path := self.job.lineage.get("path")) is not None:
            try:
                _add_line(path, line)
            except (OSError, StreamPCAError) as error:
                self.problem = f"{path}: {error}"
        if self.delivery is not None:
            self.delivery.put(line.encode())


def name_of(job: Job) -> str:
    """The name of a job: that of its file, without folder and suffix."""
    return PurePath(job.file).stem or "refresh"


def _how_it_ended(end: Outcome | BaseException) -> tuple[str, str]:
    """(type of the event, why it is no success)."""
    if isinstance(end, Outcome):
        return ("FAIL", end.gate) if end.status == REFUSED else ("COMPLETE", "")
    if isinstance(end, (KeyboardInterrupt, SystemExit)):
        return "ABORT", "it was terminated"
    return "ABORT" if isinstance(end, BusyError) else "FAIL", str(end) or repr(end)


# Datasets.


def _paths(job: Job) -> list[str]:
    path = job.source["path"]
    return [path] if isinstance(path, str) else list(path)


def _datasets(job: Job, outcome: Outcome) -> tuple[list[Any], list[Any]]:
    """(inputs, outputs) of a run with an outcome."""
    paths = _paths(job)
    if outcome.version is None:
        return [_dataset(one) for one in paths], []
    version = ModelStore(job.store).find(outcome.version)
    record, files = version.record, version.manifest["files"]
    source, schema = record.get("source", {}), record.get("schema", {})
    read = {"append": outcome.new_samples, "full": outcome.samples, "nothing": 0}
    counted = {"rowCount": read.get(outcome.how), "size": outcome.bytes + outcome.verified_bytes}
    about = {"version": {"datasetVersion": source.get("snapshot") or source.get("fingerprint")}}
    about["schema"] = {"fields": _fields(schema.get("source", {}))}
    statistics = {"inputStatistics": counted} if len(paths) == 1 else {}  # of several: not known
    inputs = [_dataset(one, about, inputFacets=statistics) for one in paths]
    number, outputs = {"version": {"datasetVersion": str(version.number)}}, []
    if outcome.status in (PUBLISHED, ALREADY):
        size = sum(one["nbytes"] for one in files.values())
        counted = {"rowCount": record.get("components"), "size": size, "fileCount": len(files)}
        about = number | {"schema": {"fields": _fields(schema.get("model", {}))}}
        outputs.append(_dataset(job.store, about, outputFacets={"outputStatistics": counted}))
    if outcome.scores and outcome.scores.get("path"):
        counted = {"rowCount": outcome.scores["rows"]}
        outputs.append(
            _dataset(outcome.scores["path"], number, outputFacets={"outputStatistics": counted})
        )
    return inputs, outputs


def _dataset(place: str, about: Mapping[str, Any] = {}, **more: Mapping[str, Any]) -> Any:
    """A dataset by its place, with facets."""
    place = hide_secrets(place)
    if "://" in place:
        parts = urlsplit(place)
        named = {"namespace": f"{parts.scheme}://{parts.netloc}", "name": parts.path.strip("/")}
    else:
        named = {"namespace": "file", "name": os.path.abspath(place)}
    return {**named, "facets": _facets(**about)} | {
        kind: _facets(**facets) for kind, facets in more.items()
    }


def _fields(schema: Mapping[str, str]) -> list[dict[str, str]]:
    return [{"name": name, "type": kind} for name, kind in schema.items()]


def _facets(**facets: Mapping[str, Any]) -> dict[str, Any]:
    """Facets with their schemas; what is not known is left out."""
    found = {}
    for name, values in facets.items():
        number, kind = FACETS[name]
        known = {key: value for key, value in values.items() if value not in (None, [])}
        if known:
            schema = f"{SPEC}facets/{number}/{kind}.json#/$defs/{kind}"
            found[name] = {"_producer": _producer(), "_schemaURL": schema, **known}
    return found


def _producer() -> str:
    return f"urn:streampca:{our_versions()['streampca']}"


# Where events go.


def _add_line(path: str, line: str) -> None:
    """Add a line to a file; a line that was cut off stays one of its own."""
    refuse_special(path)
    with open(path, "a+b") as file:
        file.seek(max(file.tell() - 1, 0))
        cut_off = file.read(1) not in (b"", b"\n")
        file.write(b"\n" * cut_off + line.encode() + b"\n")


class Delivery:
    """Posts events to an address, in order, on a thread of its own. Redirections are refused."""

    def __init__(self, url: str) -> None:
        self.url, self.problem = url, ""
        self.events: queue.SimpleQueue[bytes | None] = queue.SimpleQueue()
        self.thread = threading.Thread(target=self._post_all, daemon=True, name="streampca-lineage")
        self.thread.start()

    def put(self, event: bytes) -> None:
        """Send an event soon."""
        self.events.put(event)

    def finish(self) -> str:
        """Wait for what was not sent yet, at most ``PATIENCE`` seconds. Returns what failed."""
        self.events.put(None)
        self.thread.join(PATIENCE)
        late = f"no answer within {PATIENCE:g} s" if self.thread.is_alive() else ""
        problem = self.problem or late
        return problem and f"{hide_secrets(self.url)}: {problem}"

    def _post_all(self) -> None:
        while (event := self.events.get()) is not None:
            try:
                self._post(event)
            except Exception as error:  # whatever a server makes of it
                self.problem = f"{type(error).__name__}: {error}"

    def _post(self, event: bytes) -> None:
        from urllib import request

        class Direct(request.HTTPRedirectHandler):
            def redirect_request(self, *_: Any) -> None:
                return None  # a redirected POST would become a GET

        headers = {"Content-Type": "application/json"}
        if key := os.environ.get(KEY):
            headers["Authorization"] = f"Bearer {key}"
        asked = request.Request(self.url, event, headers, method="POST")
        with contextlib.closing(request.build_opener(Direct).open(asked, timeout=TIMEOUT)):
            return
