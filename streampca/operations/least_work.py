"""The least work that updates a model exactly: read new rows, changed spans, or all rows."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

from streampca.errors import InvalidInputError, MemoryLimitError, SourceError
from streampca.model_store.model_store import Version
from streampca.models.contract.linear import LinearModel
from streampca.models.pca import kept_spans
from streampca.models.pca.incremental_pca import IncrementalPCA
from streampca.models.pca.kept_spans import Rows, Span
from streampca.operations.config import Job
from streampca.operations.state import State, digest_of
from streampca.passes import MemoryUse, Plan
from streampca.passes.memory import own_peak
from streampca.sources.ledger import APPENDED, CHANGED, Ledger
from streampca.store import is_bundle, read_bundle, understood, write_bundle

EVERY = 60.0  # seconds between saves of finished spans
LINKS = 8  # consecutive versions that store only their new span, before one stores all spans again


@dataclass
class Work:
    """A fit, or the part of it that suffices.

    current, old : the promoted version and its ledger.  change : the kind of change, as in a
    ledger.  estimator : unfitted; every pass uses a clone of it.  folder : where an interrupted
    refresh saves its results, or None.
    did, costs, spans, error : set by ``do``: what was done ("full" also where the sums of spans
    cannot be read), costs of the passes, the sums to keep, and the mean squared error of the new
    rows under the old model.
    plan, peak : the plan with the largest peak, and the bytes that the work took at most.
    resumed_blocks : blocks of spans that an interrupted refresh had finished.
    versions : id -> existing version.  base, links : the version that stores the spans before
    ``spans``, or None, and the number of versions back to one that stores all.
    """

    job: Job
    found: State
    current: Version | None
    old: Ledger | None
    change: str
    estimator: Any = None
    folder: str | None = None
    did: str = ""
    costs: list[Any] = field(default_factory=list)
    plan: Plan | None = None
    peak: int | None = None
    spans: tuple[Span, ...] = ()
    error: float | None = None
    resumed_blocks: int = 0
    versions: Mapping[str, Version] = field(default_factory=dict)
    base: str | None = None
    links: int = 0

    def how(self, why: str) -> tuple[str, str]:
        """("append", "spans" or "full", reason)."""
        kind = self.job.model["kind"]
        if self.change == APPENDED and kind != "IncrementalPCA":
            return "full", (
                f"{why}; {kind} keeps no state to which rows can be added exactly: all rows are "
                "read (model.kind: IncrementalPCA appends)"
            )
        if self.change not in (APPENDED, CHANGED) or kind != "IncrementalPCA":
            return "full", why
        if self.current is None or "state" not in self.current.parts:
            return "full", f"{why}; the promoted version was stored without its state"
        if self.change == APPENDED:
            return "append", why
        chain = chain_of(self.current, self.versions) if self._most() else []
        if not chain:
            return "full", f"{why}; no sums of spans were kept (they are of large sources: spans)"
        rows = [row for version in chain for row in version.record["spans"]["rows"]]
        count = sum(
            any(a < last and b > first for a, b in self.found.changed) for first, last in rows
        )
        return "spans", f"{why}; {count} of {len(rows)} spans of rows are read again"

    def do(self, how: str) -> Any:
        """Do the work; returns the fitted model.  how : from :meth:`how`; see ``did``."""
        use = MemoryUse.begun()
        if how == "spans" and not self._kept:
            how = "full"
        self.did = how
        if how == "full" and self.job.model["kind"] == "IncrementalPCA":
            model = self._full()
        elif how == "full":
            model = self.estimator.fit(self.found.matrix)
            self.error = self._error_of_new_rows()
        else:
            model = self._appended() if how == "append" else self._mended()
            model.cost_ = self.costs
        self.costs = list(getattr(model, "cost_", []))
        self._note_plan(model)
        if self.plan is not None:
            self.peak = own_peak(self.plan.memory, use.peak_nbytes(), use.held)
        return model

    def _note_plan(self, model: Any) -> None:
        plan: Plan | None = getattr(model, "plan_", None)
        if plan is not None and (self.plan is None or plan.peak_nbytes > self.plan.peak_nbytes):
            self.plan = plan

    # -- all rows ---------------------------------------------------------------------------

    def _full(self) -> IncrementalPCA:
        rows = self._divided()
        try:
            states = self._fit_each(rows) if len(rows) > 1 else []
        except MemoryLimitError:  # the limit has no room for the sums of all spans
            states = []
        if states:
            self.spans = tuple(Span((row,), s) for row, s in zip(rows, states, strict=True))
            model = self._total()
            model.cost_ = self.costs
        else:
            model = self.estimator.fit(self.found.matrix)
        self.error = self._error_of_new_rows()
        return model

    def _divided(self) -> tuple[Rows, ...]:
        source, shape = self.found.source, self.found.matrix.shape
        if source is None:
            return ()
        row_nbytes = source.inner * shape[1] * self.found.matrix.dtype.itemsize
        return kept_spans.divide(self.found.rows, source.step, row_nbytes, self._most())

    def _most(self) -> int:
        model = self.job.estimator(memory_limit=self.job.memory_limit)
        return kept_spans.most_spans(model, self.found.matrix.shape, self.job.spans)

    def _fit_each(self, rows: tuple[Rows, ...]) -> list[IncrementalPCA]:
        """The sums of each span; finished ones are saved, for a refresh that resumes this one."""
        key = digest_of(self.found.stat, repr(rows), repr(self.job.memory_limit))
        done = self._left_over(key)
        written, saved = len(done), time.monotonic()
        try:
            for row in rows[len(done) :]:
                done.append(self._fit(row))
                if time.monotonic() - saved >= EVERY:
                    self._leave(key, rows, done)
                    written, saved = len(done), time.monotonic()
        except BaseException as error:
            try:
                if len(done) > written:
                    self._leave(key, rows, done)
            except Exception as failure:  # the first error is the one to report
                error.add_note(f"and finished spans could not be kept: {failure}")
            raise
        return done

    def _leave(self, key: str, rows: tuple[Rows, ...], done: list[IncrementalPCA]) -> None:
        if self.folder is None:
            return
        spans = [Span((row,), state) for row, state in zip(rows, done, strict=False)]
        arrays, document = kept_spans.to_saved(spans)
        first, state = done[0].state_to_saved()
        arrays |= {f"first {name}": values for name, values in first.items()}
        blocks = sum(cost.blocks + cost.resumed_blocks for cost in self.costs)
        blocks += self.resumed_blocks
        whole = {**document, "key": key, "first": state, "blocks": blocks}
        Path(self.folder).mkdir(mode=0o700, parents=True, exist_ok=True)  # sums reveal the data
        write_bundle(Path(self.folder) / "spans", arrays, whole)

    def _left_over(self, key: str) -> list[IncrementalPCA]:
        """The first spans, if an interrupted refresh of the same data has saved them."""
        place = Path(self.folder or "") / "spans"
        if self.folder is None or not is_bundle(place):
            return []
        try:
            arrays, document = read_bundle(place)
            if document.get("key") != key:
                return []
            with understood(str(place)):
                return self._spans_of(arrays, document, str(place))
        except SourceError:  # damaged: this costs only time
            return []

    def _spans_of(self, arrays: Any, document: Any, place: str) -> list[IncrementalPCA]:
        first = {n.removeprefix("first "): a for n, a in arrays.items() if n.startswith("first ")}
        model = IncrementalPCA.state_from_saved(first, document["first"], place)
        spans = kept_spans.from_saved(arrays, document, model)
        self.resumed_blocks = int(document["blocks"])
        return [span.state for span in spans]

    # -- some rows --------------------------------------------------------------------------

    def _appended(self) -> IncrementalPCA:
        assert self.old is not None
        new = (self.old.rows, self.found.rows)
        state, batch = self._state(), self._fit(new)
        self._judge(batch)
        saved = self._saved()
        if saved is not None and saved["links"] < min(LINKS, (self.job.keep or LINKS + 1) - 1):
            assert self.current is not None
            self.spans = (Span((new,), batch),)
            self.base, self.links = self.current.id, saved["links"] + 1
        elif saved is not None and (kept := self._kept):
            self.spans = kept_spans.merge_neighbours([*kept, Span((new,), batch)], self._most())
            return self._total()
        state.merge(batch)  # the same as merging all spans in order
        return state

    def _mended(self) -> IncrementalPCA:
        """Fold changed spans again, and rows that were appended as well."""
        assert self.old is not None
        kept = list(self._kept)
        for i in kept_spans.changed_spans(kept, self.found.changed):
            kept[i] = kept_spans.refolded(kept[i], self._fit)
        if self.found.rows > self.old.rows:
            new = (self.old.rows, self.found.rows)
            kept.append(Span((new,), self._fit(new)))
            self._judge(kept[-1].state)
        self.spans = kept_spans.merge_neighbours(kept, self._most())
        return self._total()

    def _total(self) -> IncrementalPCA:
        model = kept_spans.merged([span.state for span in self.spans])
        return model.set_params(memory_limit=self.job.memory_limit)

    def _fit(self, rows: Rows) -> IncrementalPCA:
        assert self.found.source is not None
        shape = self.found.matrix.shape
        model = kept_spans.with_room_for(self.estimator, shape, 1 + self._most())
        model.partial_fit(self.found.source.rows_from(*rows))
        self.costs += model.cost_
        self._note_plan(model)
        return model

    def _state(self) -> IncrementalPCA:
        assert self.current is not None
        state = self.current.state()
        assert state is not None
        return state

    def _saved(self) -> Any:
        """The record of the promoted version's spans; None if there is none or none are wanted."""
        if self.current is None or not self._most():
            return None
        return self.current.record.get("spans")

    @cached_property
    def _kept(self) -> tuple[Span, ...]:
        """All spans of the promoted version, or ()."""
        if self.current is None or not self._most():
            return ()
        return spans_of(self.current, self.versions)

    def record(self) -> dict[str, Any] | None:
        """The record of the new version's spans."""
        if not self.spans:
            return None
        rows = [list(span.rows) for span in self.spans]
        return {"base": self.base, "links": self.links, "rows": rows}

    # -- how well the old model explains the new rows ----------------------------------------

    def _judge(self, batch: IncrementalPCA) -> None:
        assert self.current is not None
        try:
            self.error = batch.error_under(self.current.result())
        except InvalidInputError:  # the state does not allow it
            self.error = None

    def _error_of_new_rows(self) -> float | None:
        """The error of appended rows under the old model, if the gate needs it. Reads them."""
        if self.change != APPENDED or "max_error_ratio" not in self.job.gate:
            return None
        assert self.current is not None
        assert self.old is not None
        assert self.found.source is not None
        new = self.found.source.rows_from(self.old.rows, self.found.rows)
        model = self.current.load()
        return model.reconstruction_error(new) if isinstance(model, LinearModel) else None


def chain_of(version: Version, versions: Mapping[str, Version]) -> list[Version]:
    """The versions that store the spans of this one, in order; [] if one is gone or damaged."""
    chain: list[Version] = []
    one: Version | None = version
    with contextlib.suppress(SourceError):
        while one is not None and (spans := one.record.get("spans")):
            chain.insert(0, one)
            if spans["base"] is None:
                return chain
            one = versions.get(spans["base"])
    return []


def spans_of(version: Version, versions: Mapping[str, Version]) -> tuple[Span, ...]:
    """All spans of a version, or () if some are not stored any more, or damaged."""
    chain = chain_of(version, versions)
    state = version.state() if chain else None
    if state is None:
        return ()
    try:
        saved = [one.read("spans") for one in chain]
    except SourceError:  # that costs only time: all rows are read
        return ()
    return tuple(span for one in saved for span in kept_spans.from_saved(*one, state))
