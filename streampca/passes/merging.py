"""Where the spans of a pass on a cluster are merged: on a worker while many come, else here."""

from __future__ import annotations

import time
from typing import Any

from streampca.passes.execution import Execution
from streampca.passes.flight import COUNT_SECONDS, Flight
from streampca.passes.fold import Fold
from streampca.passes.kept_total import LostError
from streampca.passes.remote_total import RemoteTotal
from streampca.passes.settings import setting
from streampca.passes.worker_memory import roomy

LAST_SECONDS = 10.0  # that a pass which failed waits for its total


class Merging:
    """Sends the total of a pass to a worker, and fetches it.

    As long as there are more spans than those in flight, they are merged on one of the workers
    that have room for it, so that what comes to the client does not grow with their number. The
    total is fetched once per checkpoint interval, and before the last spans, which are merged
    here. Where it is lost, those that were merged or in flight are merged here too, as workers may
    be dying of one of them, and the worker that lost it gets none again.
    """

    def __init__(self, client: Any, fold: Fold, execution: Execution, can_leave: bool) -> None:
        self.client, self.fold, self.execution = client, fold, execution
        self.can_leave = can_leave
        self.total: RemoteTotal | None = None
        self._keeper = ""  # that has it, or had it last
        self._failed: set[str] = set()
        self._sent_until = 0  # spans before it were sent to workers
        self._here_until = 0  # those before it are merged here
        self._ask_again = -COUNT_SECONDS  # when workers are asked for room, if none had any

    def place(self, flight: Flight, more: bool) -> RemoteTotal | None:
        """Where the next span is merged; None is here.  more : than those in flight are to come."""
        self._sent_until = max(self._sent_until, flight.spans[-1].number + 1)
        if not (self.can_leave and more and self.fold.next >= self._here_until):
            self._fetch()
        elif self.total is None and (keeper := self._chosen(flight)):
            self._keeper = keeper
            self.fold.leave()
            self.total = RemoteTotal(
                self.client, keeper, self.fold.total, self.fold.next, 4 * setting("pause-timeout")
            )
        return self.total

    def fetch_if_due(self) -> None:
        """Have it here for a moment, once per checkpoint interval."""
        if self.total is not None and self.fold.overdue():
            found, _ = self.total.fetched(self.fold.next)
            self.fold.bring(found)
            self.fold.leave()

    def lost(self) -> None:
        """Go on without it, from what was fetched last."""
        self._failed.add(self._keeper)
        self._let_go()
        self.fold.go_back()
        self._here_until = self._sent_until

    def rescue(self, error: BaseException) -> None:
        """Fetch it if it can be had: the pass was stopped by this, or begins anew."""
        try:
            self._fetch(LAST_SECONDS)
        except LostError:
            self.lost()
        except Exception as failure:  # the first error is the one to report
            error.add_note(f"and no checkpoint could be written: {failure}")

    def _fetch(self, patience: float | None = None) -> None:
        if self.total is None:
            return
        number = self.fold.next
        found, ahead = self.total.fetched(number, last=True, patience=patience)
        self._let_go()
        if ahead is not None:  # it was merged, and nobody waited for the answer
            self.fold.take_remote(number, ahead)
        self.fold.bring(found)

    def _let_go(self) -> None:
        if self.total is not None:
            self.total.release()
            self.total = None

    def _chosen(self, flight: Flight) -> str | None:
        """Of the workers that are well and have room, the one that uses the least memory."""
        if time.monotonic() < self._ask_again:
            return None
        used = roomy(self.client, self.execution.plan, self.fold.plan)
        well = used.keys() & set(flight.well()) - self._failed
        if not well:  # which is not asked for every span
            self._ask_again = time.monotonic() + COUNT_SECONDS
        return min(well, key=lambda one: (used[one], one), default=None)
