"""``streampca refresh``: find what changed since the promoted version, do the least exact work,
publish one version."""

from __future__ import annotations

import hashlib
import json
import time
from dataclasses import dataclass, field
from typing import Any

from streampca.errors import ChangingSourceError, DamagedSourceError, InvalidInputError, SourceError
from streampca.jobs.config import Job
from streampca.jobs.gate import against, refusal
from streampca.jobs.lock import only_one
from streampca.jobs.outcome import PLANNED, PUBLISHED, REFUSED, UNCHANGED, Outcome
from streampca.models.decomposition import Decomposition
from streampca.models.incremental_pca import IncrementalPCA
from streampca.models.loading import estimator_of
from streampca.models.model_store import ModelStore, Version
from streampca.models.saved_labels import plain
from streampca.sources import open as open_source
from streampca.sources.ledger import APPENDED, NOTHING, VANISHED, Change, Ledger, LedgerSource, Seen
from streampca.sources.watermark import COMMITTED, rows_written
from streampca.store import History

FIRST, SETTINGS, OTHER = "first", "settings", "other"  # kinds of change beside those of a ledger


def refresh(
    job: Job, *, verify: str | None = None, dry_run: bool = False, progress: Any = None
) -> Outcome:
    """Bring the model store of a job up to its source.

    verify : "stat" (length and time of every old chunk; the bytes of those that differ) or "full"
        (every byte), in place of what the job says.  dry_run : only find out what would be done.

    An append to a Zarr array is exact and reads the new rows alone, where the model is an
    ``IncrementalPCA``; every other change is a full fit. Nothing is published where nothing
    changed. A version that the gate refuses stays as a candidate and is not computed again.

    Raises BusyError where another job holds the lock or was first, ChangingSourceError where the
    source changed while it was read, twice; DamagedSourceError where old chunks are gone.
    """
    begun = time.perf_counter()
    if dry_run:
        outcome = _Run(job, verify, progress).go(dry_run=True)
    else:
        with only_one(job.store):
            try:
                outcome = _Run(job, verify, progress).go()
            except ChangingSourceError:  # a writer was at it: once more, of what is there now
                outcome = _Run(job, verify, progress).go()
    outcome.seconds = round(time.perf_counter() - begun, 3)
    return outcome


@dataclass
class _Found:
    """The source as it is now.

    matrix : ends at the rows that count.  key : digest of its state and of the settings.
    """

    matrix: Any
    source: LedgerSource | None
    seen: Seen | None
    rows: int
    note: str
    key: str = ""


@dataclass
class _Run:
    """One attempt."""

    job: Job
    verify: str | None
    progress: Any
    store: ModelStore = field(init=False)
    base: History = field(init=False)
    current: Version | None = field(init=False, default=None)
    old: Ledger | None = field(init=False, default=None)

    def __post_init__(self) -> None:
        self.store = ModelStore(self.job.store)
        self.mode = self.verify or self.job.verify
        self.base = self.store.history() if self.store.exists() else History((), "")
        if self.base.current is not None:
            found = self.store.find(history=self.base)
            assert isinstance(found, Version)
            self.current = found
            if "ledger" in found.parts:
                self.old = Ledger.from_saved(*found.read("ledger"))

    def go(self, dry_run: bool = False) -> Outcome:
        """Do it."""
        found = self._look()
        change, why, read = self._change(found)
        previous = None if self.current is None else self.current.number
        outcome = Outcome(
            UNCHANGED, self.job.store, change, why, checked=self.mode, verified_bytes=read,
            previous=previous, samples=found.matrix.shape[0], note=found.note,
        )  # fmt: skip
        if change == NOTHING:
            outcome.version = outcome.previous
            return outcome
        if (known := self._computed_before(found)) is not None:
            return self._judged_again(known, outcome, dry_run)
        outcome.how, outcome.why = self._how(change, why)
        outcome.new_samples = outcome.samples - (self._old_samples(found) if self.old else 0)
        if dry_run:
            outcome.status = PLANNED
            return outcome
        return self._work(found, outcome)

    # -- what there is ------------------------------------------------------------------------

    def _look(self) -> _Found:
        options = {name: value for name, value in self.job.source.items() if name != "path"}
        matrix = open_source(self.job.source["path"], **options)
        source = LedgerSource.of(matrix)
        if source is None:
            found = _Found(matrix, None, None, matrix.shape[0], "")
            found.key = _digest(self._settings(), matrix.content_stamp())
            return found
        seen = source.look()
        old = self.old if self.old is not None and self.old.layout == source.layout() else None
        rows, note = rows_written(source, seen, old, self.job.settle)
        if old is not None and COMMITTED not in source.reader.array.attrs:
            rows = max(rows, min(old.rows, source.shape[source.dim]))  # absent ones have vanished
        if rows == 0:
            raise SourceError(f"{self.job.source['path']} has no row that was written: {note}")
        part = tuple(slice(0, n) for n in source.grid(rows))
        state: list[Any] = [
            source.layout(),
            rows,
            seen.nbytes[part].tobytes(),
            seen.version[part].tobytes(),
        ]
        source.keep_checksums()
        found = _Found(source.first_rows(rows), source, seen, rows, note)
        found.key = _digest(self._settings(), *state)
        return found

    def _settings(self) -> str:
        """What of the job decides the result."""
        source = {name: value for name, value in self.job.source.items() if name != "path"}
        return json.dumps([self.job.model, source], sort_keys=True)

    def _change(self, found: _Found) -> tuple[str, str, int]:
        """(kind of change, in words, bytes read to find out)."""
        if self.current is None:
            return FIRST, "the store has no promoted version", 0
        told = self.current.record.get("job", {})
        if told.get("settings") != self._settings():
            return SETTINGS, "the settings are not those of the promoted version", 0
        if found.source is None or self.old is None or found.seen is None:
            if told.get("key") == found.key:
                return NOTHING, "the files are as they were (size and time)", 0
            return OTHER, "the source is not what it was (this kind has no ledger of chunks)", 0
        full = self.mode == "full"
        change = found.source.compare(self.old, found.rows, found.seen, full)
        if change.kind == VANISHED and found.source.reader.guard.missing == "error":
            raise DamagedSourceError(
                f"{self.job.source['path']}: {change}. Restore them, or source.missing_chunks: fill"
            )
        if change.content:  # times may hide it: what is there decides whether it is known
            found.key = _digest(found.key, repr(change.content))
        return change.kind, self._in_words(change), change.read

    def _in_words(self, change: Change) -> str:
        how = {"stat": "by length and time", "full": "byte by byte"}[change.checked]
        return f"{change}; old chunks were checked {how}"

    def _old_samples(self, found: _Found) -> int:
        return self.old.rows * found.source.inner if self.old and found.source else 0

    def _new_rows(self, found: _Found) -> Any:
        assert found.source is not None
        assert self.old is not None
        return found.source.rows_from(self.old.rows, found.rows)

    def _how(self, change: str, why: str) -> tuple[str, str]:
        """(append or full, why)."""
        if change != APPENDED:
            return "full", why
        if self.job.model["kind"] != "IncrementalPCA":
            return "full", (
                f"{why}; {self.job.model['kind']} keeps nothing that rows can be added to exactly: "
                "all are read (model.kind: IncrementalPCA appends)"
            )
        if self.current is None or "state" not in self.current.parts:
            return "full", f"{why}; the promoted version was stored without its state"
        return "append", why

    # -- what was done before -----------------------------------------------------------------

    def _computed_before(self, found: _Found) -> Version | None:
        """A version that was made of the same data by the same settings, and is still there."""
        for version in reversed(self.store.versions(self.base)):
            if version.entry.key == found.key and isinstance(version, Version):
                return version
        return None

    def _judged_again(self, known: Version, outcome: Outcome, dry_run: bool) -> Outcome:
        """What is to become of a version that was computed before and is not served."""
        outcome.version, outcome.drift = known.number, known.record.get("drift")
        if known.id in {one.current for one in self.base.entries}:
            outcome.why += f"; version {known.number} was made of these data and rolled back"
            return outcome
        lineage = known.record.get("lineage", {})
        same = self.current is not None and lineage.get("parent") == self.current.id
        outcome.gate = refusal(self.job.gate, outcome.drift) if same else known.entry.reason
        if outcome.gate:
            outcome.status = REFUSED
            outcome.why += f"; version {known.number} was made of these data before"
        elif dry_run:
            outcome.status = PLANNED
        else:
            self.store.promote(known.number, "the gate lets it through now")
            outcome.status = PUBLISHED
        return outcome

    # -- the work -----------------------------------------------------------------------------

    def _work(self, found: _Found, outcome: Outcome) -> Outcome:
        error: float | None = None
        if outcome.how == "append":
            model, error = self._append(found)
        else:
            model = self._estimator().fit(found.matrix)
            error = self._error_of_new_rows(found, outcome)
        costs = list(getattr(model, "cost_", []))
        outcome.chunk_reads = sum(cost.reads for cost in costs)
        outcome.bytes = sum(cost.nbytes for cost in costs)
        old = None if self.current is None else self.current.result()
        result, outcome.drift = against(old, model.result_, error, self.job.align)
        outcome.gate = "" if self.current is None else refusal(self.job.gate, outcome.drift)
        more = {}
        if found.source is not None and found.seen is not None:
            old_ledger = self.old if outcome.how == "append" else None
            more["ledger"] = found.source.make(found.rows, found.seen, old_ledger).to_saved()
        if isinstance(model, IncrementalPCA):
            more["state"] = model.state_to_saved()
        if not outcome.gate:
            outcome.scores = self._write_scores(result, found, outcome)
        version = self.store.publish(
            result, promote=not outcome.gate, key=found.key, base=self.base, more=more,
            reason=outcome.gate or outcome.why, record=self._record(found, outcome, costs),
        )  # fmt: skip
        outcome.version = version.number
        outcome.status = REFUSED if outcome.gate else PUBLISHED
        if self.job.keep is not None:
            outcome.removed = len(self.store.gc(self.job.keep))
        return outcome

    def _estimator(self) -> Any:
        return self.job.estimator(
            memory_limit=self.job.memory_limit, scheduler=self.job.scheduler, progress=self.progress
        )

    def _append(self, found: _Found) -> tuple[IncrementalPCA, float | None]:
        """(the model with the new rows, the error of these under the old one)."""
        assert self.current is not None
        state = self.current.state()
        assert state is not None
        batch = self._estimator().partial_fit(self._new_rows(found))
        try:
            error = batch.error_under(self.current.result())
        except InvalidInputError:  # a state that does not have it
            error = None
        state.merge(batch)
        state.cost_ = batch.cost_
        return state, error

    def _error_of_new_rows(self, found: _Found, outcome: Outcome) -> float | None:
        """The error of appended rows under the old model, where the gate asks: it reads them."""
        appended = outcome.change == APPENDED and self.current is not None
        if not appended or "max_error_ratio" not in self.job.gate or self.current is None:
            return None
        return float(self.current.load().reconstruction_error(self._new_rows(found)))

    def _write_scores(
        self, result: Decomposition, found: _Found, outcome: Outcome
    ) -> dict[str, Any] | None:
        if not self.job.scores:
            return None
        count = len(self.base.published)
        path = self.job.scores["path"].replace("{version}", str(count + 1))
        first = self._old_samples(found) if outcome.change == APPENDED else 0
        new_only = self.job.scores["rows"] == "new" and first > 0
        matrix = found.matrix
        if new_only:
            matrix = self._new_rows(found)
        model: Any = estimator_of(result)
        model.set_params(memory_limit=self.job.memory_limit, scheduler=self.job.scheduler)
        model.transform(matrix, out=path, overwrite=True)
        return {"path": path, "first_row": first if new_only else 0, "rows": matrix.shape[0],
                "old_rows_scored_anew": not new_only}  # fmt: skip

    def _record(self, found: _Found, outcome: Outcome, costs: list[Any]) -> dict[str, Any]:
        lineage = {"parent": self.current and self.current.id, "change": outcome.change,
                   "how": outcome.how, "why": outcome.why}  # fmt: skip
        return {
            "lineage": lineage,
            "drift": outcome.drift,
            "gate": {**self.job.gate, "refused": outcome.gate},
            "job": {"settings": self._settings(), "key": found.key, "verify": self.mode},
            "source": {"fingerprint": found.matrix.fingerprint(), "rows": found.rows,
                       "samples": found.matrix.shape[0], "note": found.note},
            "cost": {"passes": [plain(vars(cost)) for cost in costs],
                     "verified_bytes": outcome.verified_bytes},
        }  # fmt: skip


def _digest(*parts: str | bytes | int) -> str:
    digest = hashlib.sha256()
    for part in parts:
        data = part if isinstance(part, bytes) else str(part).encode()
        digest.update(len(data).to_bytes(8) + data)
    return digest.hexdigest()
