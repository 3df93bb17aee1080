"""Where the spans of a pass on a cluster are merged: on a worker while many come, else here."""

from __future__ import annotations

from typing import Any

from streampca.passes.execution import Execution
from streampca.passes.flight import Flight
from streampca.passes.fold import Fold
from streampca.passes.remote_total import LostError, RemoteTotal
from streampca.passes.settings import setting
from streampca.passes.workers import roomy, running

LAST_SECONDS = 10.0  # that a pass which failed waits for its total


class Merging:
    """Sends the total of a pass to a worker, and fetches it.

    As long as there are more spans than those in flight, they are merged on one of the workers
    that have room for it, so that what comes to the client does not grow with their number. The
    total is fetched once per checkpoint interval, and before the last spans, which are merged
    here. Where it is lost, those that were merged or in flight are merged here too: workers may
    be dying of one of them.
    """

    def __init__(self, client: Any, fold: Fold, execution: Execution, can_leave: bool) -> None:
        self.client, self.fold, self.execution = client, fold, execution
        self.can_leave = can_leave
        self.total: RemoteTotal | None = None
        self._sent = 0  # spans before it were sent to workers
        self._here = 0  # those before it are merged here

    def place(self, flight: Flight, more: bool) -> RemoteTotal | None:
        """Where the next span is merged; None is here.  more : than those in flight are to come."""
        self._sent = max(self._sent, flight.spans[-1].number + 1)
        if not (self.can_leave and more and self.fold.next >= self._here):
            self._fetch()
        elif self.total is None and (keeper := self._keeper(flight)):
            self.fold.leave()
            self.total = RemoteTotal(
                self.client, keeper, self.fold.total, self.fold.next, 4 * setting("pause-timeout")
            )
        return self.total

    def fetch_if_due(self) -> None:
        """Have it here for a moment, once per checkpoint interval."""
        if self.total is not None and self.fold.overdue():
            self.fold.bring(self.total.fetched(self.fold.next))
            self.fold.leave()

    def lost(self) -> None:
        """It is not to be had any more."""
        self._let_go()
        self.fold.go_back()
        self._here = self._sent

    def saved(self) -> None:
        """The pass was stopped, or begins anew: fetch it if it can be had."""
        try:
            self._fetch(LAST_SECONDS)
        except LostError:
            self.lost()

    def _fetch(self, patience: float | None = None) -> None:
        if self.total is not None:
            self.fold.bring(self.total.fetched(self.fold.next, patience))
            self._let_go()

    def _let_go(self) -> None:
        if self.total is not None:
            self.total.release()
            self.total = None

    def _keeper(self, flight: Flight) -> str | None:
        """A worker that is well and has room."""
        well = {one for one, ill in running(self.client).items() if not ill}
        well &= roomy(self.client, self.execution.plan, self.fold.plan)
        return min(well - flight.avoided - flight.strange, default=None)
