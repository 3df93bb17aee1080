"""``streampca refresh``: find what changed since the promoted version, do the least exact work, and
publish one version.
"""

from __future__ import annotations

import contextlib
import logging
import os
import socket
import time
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from typing import Any

from streampca.errors import AbsentChunkError, ChangingSourceError, NonFiniteError, hide_secrets
from streampca.matrix.labels import plain
from streampca.model_store.history import History, now
from streampca.model_store.model_store import MONITOR, SCORES, ModelStore, Version, record_of_scores
from streampca.model_store.stored_version import Part, new_id
from streampca.models.pca import kept_spans
from streampca.models.pca.incremental_pca import IncrementalPCA
from streampca.models.results.result import Result
from streampca.operations.config import Job
from streampca.operations.gates import Facts, against, other_source, refusal, share_gone
from streampca.operations.least_work import Work
from streampca.operations.lineage import schema_of
from streampca.operations.monitoring import distances_of_fit, new_rows_under
from streampca.operations.observers import check_places, observed
from streampca.operations.outcome import (
    ALREADY,
    PLANNED,
    PUBLISHED,
    REFUSED,
    UNCHANGED,
    Outcome,
    behind_since,
    collect,
    first_behind,
    note_behind,
)
from streampca.operations.runs import RunNote
from streampca.operations.scores import Made, Scores, explained, sweep_places
from streampca.operations.state import (
    State,
    change_of,
    computed_before,
    in_words_of_job,
    keep_look,
    ledger_of,
    look,
    place_of_source,
    settings_of,
    stamp_of,
)
from streampca.operations.work_folder import WorkFolder, check_store
from streampca.passes import started
from streampca.paths import full_disk_noted
from streampca.run_context import in_run
from streampca.sources.ledger import APPENDED, NOTHING, Ledger
from streampca.sources.local_files import files_checksum
from streampca.store.places import left_over

logger = logging.getLogger(__name__)
TRIALS = 4  # of one refresh, if a writer changes the source meanwhile


def refresh(
    job: Job,
    *,
    verify: str | None = None,
    dry_run: bool = False,
    resume: bool = True,
    accept_source: bool = False,
    progress: Any = None,
) -> Outcome:
    """Update the model store of a job from its source.

    verify : "stat" (length and time of every old chunk, and the bytes of those that differ) or
        "full" (every byte); overrides the job's setting.
    dry_run : only find out what would be done, and whether files can be made where the store is.
    resume : continue an interrupted refresh of the same data; else start again.
    accept_source : the source may be another one than that of the promoted version (another place
        with other rows, other features); the other gates judge it as any version.

    For a Zarr array, an ``IncrementalPCA`` takes appended rows exactly and reads only these. If old
    chunks changed, it reads the spans of rows that contain them, if their sums were kept. Every
    other change is a full fit. If nothing changed, nothing is published. A version that the gate
    refuses stays as a candidate and is not computed again. An interrupted pass leaves its state in
    ``<store>.work``; at most the work of one checkpoint interval is lost. What a run did is noted
    in ``<store>.runs``, for ``streampca status``.

    Raises BusyError if another job holds the lock or was first; ChangingSourceError if the source
    changed twice while it was read; DamagedSourceError if old chunks are gone.
    """
    begun = time.perf_counter()
    check_places(job)
    with in_run(job.file, hide_secrets(job.store)) as run:
        logger.info("looks for changes%s", ": a dry run" if dry_run else "")
        if dry_run:
            check_store(job.store)
            outcome = foreseen(job, verify, progress, accept_source)
        else:
            with (
                full_disk_noted(job.store, job.scores.get("path")),
                observed(job, progress) as note,
            ):
                if not resume:
                    WorkFolder(job.store).clear()
                outcome = _tried(job, verify, note, accept_source)
                outcome.behind_since = note_behind(job.store, outcome.samples, outcome.behind)
                note.done(outcome)
        outcome.run, outcome.seconds = run.id, round(time.perf_counter() - begun, 3)
        run.version = outcome.served
        outcome.log()
    return outcome


def foreseen(
    job: Job, verify: str | None = None, progress: Any = None, accept_source: bool = False
) -> Outcome:
    """What a refresh would do, also for a user who may not write where the job does."""
    with in_run(job.file, hide_secrets(job.store)):
        outcome = _tried(job, verify, progress, accept_source, dry_run=True)
        outcome.behind_since = behind_since(job.store, outcome.samples, outcome.behind)
    return outcome


def _tried(
    job: Job, verify: str | None, progress: Any, accept: bool, dry_run: bool = False
) -> Outcome:
    """One attempt, and another one if the source changed, or rows turned out to be blank."""
    limit, changed = None, False
    for trial in range(TRIALS):
        if isinstance(progress, RunNote):
            progress.retries = trial
        try:
            return _Run(job, verify, progress, accept, limit).go(dry_run)
        except ChangingSourceError as error:  # once more, with the present source
            if changed:
                raise
            logger.warning("tried once more: %s", error)
            limit, changed = None, True
        except _BlankRow as found:
            logger.warning("tried once more without it: %s", found)
            limit = found.row
    raise ChangingSourceError(f"rows of {job.source['path']} were taken back while they were read")


class _BlankRow(Exception):
    """A row that was read may never have been written."""

    def __init__(self, row: int) -> None:
        super().__init__(f"row {row} holds only the fill value")
        self.row = row


@dataclass
class _Run:
    """One attempt.  accept : another source.  limit : a row that may never have been written."""

    job: Job
    verify: str | None
    progress: Any
    accept: bool = False
    limit: int | None = None
    store: ModelStore = field(init=False)
    base: History = field(init=False)
    current: Version | None = field(init=False, default=None)
    old: Ledger | None = field(init=False, default=None)
    scheduler: Any = field(init=False, default=None)  # the cluster of the job

    def __post_init__(self) -> None:
        self.store = ModelStore(self.job.store)
        self.mode = self.verify or self.job.verify
        self.work_folder = WorkFolder(self.job.store)
        self.base = self.store.history() if self.store.exists() else History()
        if self.base.current is not None:
            self.current = self.store.find(history=self.base)
            if "ledger" in self.current.parts:
                self.old = ledger_of(self.current)

    def go(self, dry_run: bool = False) -> Outcome:
        """Find out what changed, do the work, publish."""
        found = look(self.job, self.store, self.old, self.limit, not dry_run)
        recorded = None if self.current is None else self.current.record.get("job", {})
        self.work_folder.check()
        if not dry_run:
            self.store.sweep()
            self._repair_scores()
        change, why, read = change_of(self.job, found, recorded, self.old, self.mode)
        previous = None if self.current is None else self.current.number
        with in_run() as run:
            run.version = previous
            logger.info("found: %s", why, extra={"change": change})
        outcome = Outcome(
            UNCHANGED,
            self.job.store,
            change,
            why,
            checked=self.mode,
            verified_bytes=read,
            previous=previous,
            served=previous,
            samples=found.matrix.shape[0],
            note=found.note,
            behind=found.behind,
        )
        if change == NOTHING:
            outcome.version = outcome.previous
            if not dry_run:
                self.work_folder.clear()  # of a refresh that died after it had published
            return self._lacking_scores(found, outcome, dry_run)
        there = [one for one in self.store.versions(self.base) if isinstance(one, Version)]
        known = computed_before(found, self.job, there, self.current, self.base, self.mode)
        if known is not None:
            return self._judged_again(known, found, outcome, dry_run)
        versions = {version.id: version for version in there}
        self.store.check_place()
        Scores(self.job).check_place(self.base.count + 1)
        work = Work(self.job, found, self.current, self.old, change, versions=versions)
        outcome.how, outcome.why = work.how(why)
        logger.info("does %s: %s", outcome.how, outcome.why, extra={"how": outcome.how})
        outcome.new_samples = outcome.samples - (self._old_samples(found) if self.old else 0)
        if dry_run:
            if (row := found.likely_blank(first_behind(self.job.store))) is not None:
                raise _BlankRow(row)
            outcome.status = PLANNED
            if self.base.n and not self.base.damage:
                collect(self.store, self.job.keep, outcome, dry_run=True)
            return outcome
        with started(self.job.cluster, self.job.scheduler) as self.scheduler:
            work.estimator, work.folder = self._estimator(), self.work_folder.make()
            return self._work(found, outcome, work)

    def _old_samples(self, found: State) -> int:
        return self.old.rows * found.source.inner if self.old and found.source else 0

    def _new_rows(self, found: State) -> Any:
        assert found.source is not None
        assert self.old is not None
        return found.source.rows_from(self.old.rows, found.rows)

    # -- what was done before -----------------------------------------------------------------

    def _judged_again(
        self, known: Version, found: State, outcome: Outcome, dry_run: bool
    ) -> Outcome:
        """Decide on a version that was computed before and is not served."""
        outcome.version, outcome.drift = known.number, known.record.get("drift")
        if known.id in self.base.served:
            outcome.why += f"; version {known.number} was made of these data and rolled back"
            return self._lacking_scores(found, outcome, dry_run)
        lineage = known.record.get("lineage", {})
        facts = Facts(outcome.drift, lineage.get("removed", 0.0), lineage.get("other_source", ""))
        outcome.gate = self._refusal(facts)
        outcome.why += f"; version {known.number} was made of these data before"
        if outcome.gate:
            outcome.status = REFUSED
            return outcome
        outcome.why += ", and the gate lets it through now"
        if dry_run:
            outcome.status = PLANNED
            return outcome
        with self._scores_of(known, found, outcome) as made:
            made.clear_place()
            self.store.promote(known.number, "the gate lets it through now")
            made.put(known)
        outcome.status, outcome.served = PUBLISHED, known.number
        return outcome

    # -- the work -----------------------------------------------------------------------------

    def _model(self, found: State, outcome: Outcome, work: Work) -> Any:
        """The model of the present rows; the outcome says what was read for it."""
        try:
            model = work.do(outcome.how)
        except (NonFiniteError, AbsentChunkError) as error:  # perhaps rows that were never written
            if (row := found.blank_row(again=True)) is not None:
                raise _BlankRow(row) from None
            if isinstance(error, NonFiniteError):
                first = self._old_samples(found) if outcome.how == "append" else 0
                raise in_words_of_job(error, self.job, found.matrix, first) from error
            raise
        if work.did != outcome.how:
            outcome.how = work.did
            outcome.why += "; their sums cannot be read any more: all rows are read"
        outcome.chunk_reads = sum(cost.reads for cost in work.costs)
        outcome.bytes = sum(cost.nbytes for cost in work.costs)
        outcome.passes, outcome.peak_bytes = len(work.costs), work.peak
        outcome.planned_bytes = None if work.plan is None else work.plan.peak_nbytes
        outcome.resumed_blocks = sum(one.resumed_blocks for one in work.costs) + work.resumed_blocks
        if (row := found.blank_row(again=outcome.resumed_blocks > 0)) is not None:
            raise _BlankRow(row)
        return model

    def _work(self, found: State, outcome: Outcome, work: Work) -> Outcome:
        """Fit, judge and publish."""
        model = self._model(found, outcome, work)
        old = None if self.current is None else self.current.result()
        shared = self._old_samples(found) if outcome.change == APPENDED else 0
        result, outcome.drift = against(old, model.result_, work.error, self.job.align, shared)
        more = self._watch(result, found, outcome)
        facts = self._facts(old, result, found, outcome)
        outcome.gate = self._refusal(facts)
        if found.source is None and stamp_of(self.job, found.matrix) != found.stat:
            raise ChangingSourceError(f"{self.job.source['path']} was changed while it was read")
        if found.source is not None and found.seen is not None:
            old_ledger = None if outcome.how == "full" else self.old
            more["ledger"] = found.source.make(found.rows, found.seen, old_ledger).to_saved()
        if isinstance(model, IncrementalPCA):
            more["state"] = model.state_to_saved()
        if work.spans:
            more["spans"] = kept_spans.to_saved(work.spans)
        with self._new_scores(result, found, outcome) as made:

            def record(number: int) -> dict[str, Any]:
                if made and outcome.scores:
                    made.renumber(number)
                    outcome.scores |= {"path": made.path, "version": number}
                schema = schema_of(found.matrix, result)
                return {**self._record(found, outcome, work, facts), "schema": schema}

            with explained(f"{self.job.store}: no version was published"):
                version = self.store.publish(
                    result,
                    promote=not outcome.gate,
                    key=found.key,
                    base=self.base,
                    more=more,
                    reason=outcome.gate or outcome.why,
                    scores=made and made.array,
                    record=record,
                    version=(mine := new_id()),
                    just_before=None if outcome.gate or not made else made.clear_place,
                )
            if version.id != mine:  # another refresh has published the same
                recorded = record_of_scores(version)
                outcome.scores = {k: v for k, v in recorded.items() if k != "put"} or None
            elif made and not outcome.gate:
                made.put(version)
        outcome.version = version.number
        outcome.status = REFUSED if outcome.gate else PUBLISHED if version.id == mine else ALREADY
        outcome.by = str(version.record.get("by", ""))
        outcome.served = outcome.previous if outcome.gate else version.number
        keep_look(self.store, found.look)  # there was no store before the first version
        self.work_folder.clear()
        collect(self.store, self.job.keep, outcome)
        return outcome

    def _watch(self, result: Result, found: State, outcome: Outcome) -> dict[str, Part]:
        """New rows as the promoted version sees them, in the outcome; the part of the new one."""
        wanted = bool(self.job.monitor)
        if (wanted or "max_outliers" in self.job.gate) and outcome.change == APPENDED:
            assert self.current is not None
            new = self._new_rows(found)
            seen = new_rows_under(self.job, self.current, new, self.scheduler)
            outcome.drift = {**(outcome.drift or {}), "outliers": seen}
        if not wanted:
            return {}
        return {MONITOR: distances_of_fit(self.job, result, found.matrix, self.scheduler)}

    def _facts(self, old: Result | None, new: Result, found: State, outcome: Outcome) -> Facts:
        """What the gates judge by."""
        if self.current is None or old is None:
            return Facts()
        before, place = self.current.record.get("source", {}), place_of_source(self.job, found)
        other = other_source(old, new, (before.get("place", ""), place), found.same_rows)
        return Facts(outcome.drift, share_gone(before.get("samples", 0), outcome.samples), other)

    def _refusal(self, facts: Facts) -> str:
        """Why the gates refuse a version, or ""."""
        return refusal(self.job.gate, replace(facts, other_source="") if self.accept else facts)

    def _estimator(self) -> Any:
        return self.job.estimator(
            memory_limit=self.job.memory_limit,
            scheduler=self.scheduler,
            progress=self.progress,
            checkpoint=self.work_folder.path,
        )

    @contextlib.contextmanager
    def _new_scores(self, result: Result, found: State, outcome: Outcome) -> Iterator[Made | None]:
        """The scores of the version that is about to be published, if the job asks for them."""
        if not self.job.scores:
            yield None
            return
        first = self._old_samples(found) if outcome.change == APPENDED else 0
        new_only = self.job.scores["rows"] == "new" and first > 0
        matrix = self._new_rows(found) if new_only else found.matrix
        number = self.base.count + 1
        with Scores(self.job, self.scheduler).made(result, matrix, number) as made:
            outcome.scores = made.record(first if new_only else 0, not (new_only and first))
            yield made
            if outcome.gate:
                outcome.scores = None

    @contextlib.contextmanager
    def _scores_of(self, version: Version, found: State, outcome: Outcome) -> Iterator[Made]:
        """The scores of an existing version: its own, or computed now if it has none."""
        if SCORES in version.parts:
            with Scores(self.job).of(version) as made:
                recorded = record_of_scores(version).get("first_row")
                first = recorded if type(recorded) is int else 0
                outcome.scores = made.record(first, not first)
                yield made
            return
        with started(self.job.cluster, self.job.scheduler) as self.scheduler:
            scores = Scores(self.job, self.scheduler)
            with scores.made(version.result(), found.matrix, version.number) as made:
                outcome.scores = made.record(0, True)
                yield made

    def _lacking_scores(self, found: State, outcome: Outcome, dry_run: bool) -> Outcome:
        """Nothing is published, but the scores of the served version may be missing: write them."""
        if self.current is None or not Scores(self.job).lacking(self.current):
            return outcome
        outcome.how = "scores"
        outcome.why += f"; the scores of version {self.current.number} were not there yet"
        if dry_run:
            outcome.status = PLANNED
            return outcome
        with self._scores_of(self.current, found, outcome) as made:
            made.put(self.current)
        return outcome

    def _repair_scores(self) -> None:
        """Put the scores of the served version in their place, if a refresh died before that."""
        number = 0 if self.current is None else self.current.number
        path = Scores(self.job).place(number)
        died = path is not None and left_over(path) and not os.path.lexists(path)
        if died and self.current is not None and SCORES in self.current.parts:
            with Scores(self.job).of(self.current) as made:
                made.put(self.current)
        sweep_places(self.job, number)

    def _record(self, found: State, outcome: Outcome, work: Work, facts: Facts) -> dict[str, Any]:
        lineage = {
            "parent": self.current and self.current.id,
            "change": outcome.change,
            "how": outcome.how,
            "why": outcome.why,
            "removed": facts.removed,
            "other_source": facts.other_source,
        }
        if found.source is None and self.mode == "full" and found.content is None:
            found.content, _ = files_checksum(found.matrix.paths())
        job = {"settings": settings_of(self.job), "stat": found.stat, "content": found.content}
        return {
            "by": f"{socket.gethostname()}, process {os.getpid()}, {now()}",
            "lineage": lineage,
            "drift": outcome.drift,
            "gate": {**self.job.gate, "refused": outcome.gate},
            "scores": outcome.scores and {**outcome.scores, "put": not outcome.gate},
            "job": {**job, "verify": self.mode},
            "source": {
                "place": place_of_source(self.job, found),
                "fingerprint": found.matrix.fingerprint(),
                "rows": found.rows,
                "samples": found.matrix.shape[0],
                "note": found.note,
                "snapshot": found.seen.snapshot if found.seen else "",
            },
            "cost": {
                "passes": [plain(vars(cost)) for cost in work.costs],
                "verified_bytes": outcome.verified_bytes,
            },
            "spans": work.record(),
        }
