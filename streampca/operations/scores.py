"""The scores of a job: a part of their version, and a copy of those of the served one at a path.

They are written beside the path first, then into the version, with which they become visible. What
lies at the path is taken away before the version is committed, and the new ones are put there
after: a process that dies in between leaves no scores there, never those of another model, and the
next refresh puts those of the served version there.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any

from streampca.errors import InvalidInputError
from streampca.models.registry import estimator_of
from streampca.models.result import Result
from streampca.operations.config import Job
from streampca.operations.model_store import SCORES, Version
from streampca.operations.state import digest_of
from streampca.store.bundle import put_folder
from streampca.store.places import (
    discard,
    exists_already,
    left_over,
    release,
    set_aside,
    sweep,
    unfinished_name,
)
from streampca.store.sinks import (
    copy_rows,
    mark_written,
    marked,
    open_written,
    ours,
    refuse_occupied,
)


@dataclass
class Scores:
    """What a job wants of scores, if it has the section.  scheduler : see ``Client``."""

    job: Job
    scheduler: Any = None

    def place(self, number: int) -> str | None:
        """Where those of this version are copied to, if anywhere."""
        path = self.job.scores.get("path")
        return None if path is None else str(path).replace("{version}", str(number))

    def check_place(self, number: int) -> None:
        """Refuse a place where something else is, before anything is computed for it."""
        if (path := self.place(number)) is not None:
            refuse_occupied(path, overwrite=True)

    def lacking(self, served: Version) -> bool:
        """Whether those of the served version are to be written, though nothing else is.

        They are where others lie in their place (another version is served now), where a refresh
        died before they came there, or where none were made with it: the job did not ask for them.
        Those that were written to a place of their own and taken away are not written again.
        """
        if (path := self.place(served.number)) is None:
            return False
        if (there := marked(path)) is not None:
            return there != mark_of(served.result())
        if left_over(path) or path == self.job.scores["path"]:
            return True
        told = served.record
        gate = told.get("gate")
        written = told.get("scores", not (isinstance(gate, dict) and gate.get("refused")))
        return not (written.get("put", True) if isinstance(written, dict) else written)

    @contextlib.contextmanager
    def made(self, result: Result, matrix: Any, number: int) -> Iterator[Made]:
        """Those of all rows of ``matrix``, for what is about to be version ``number``."""

        def write(place: str) -> None:
            model: Any = estimator_of(result)
            model.set_params(memory_limit=self.job.memory_limit, scheduler=self.scheduler)
            model.transform(matrix, out=place)

        words = "the scores were not written, and nothing was promoted"
        with self._made(number, mark_of(result), write, words) as made:
            yield made

    @contextlib.contextmanager
    def of(self, version: Version) -> Iterator[Made]:
        """Those that lie in a version."""
        rows = version.scores()
        write = partial(copy_rows, rows)
        with self._made(version.number, mark_of(version.result()), write, "they stay") as made:
            yield made

    @contextlib.contextmanager
    def _made(self, number: int, mark: str, write: Any, words: str) -> Iterator[Made]:
        path = self.place(number)
        if path is not None:
            refuse_occupied(path, overwrite=True)
        with _scratch(self.job.store, path) as place:
            with told_where(f"{path or self.job.store}: {words}"):
                write(place)
                made = Made(path, place, mark, number, self.place)
            try:
                yield made
            finally:
                made.undo()


@dataclass
class Made:
    """Scores that are whole, on their way to ``path``.

    path_of : where those of a version of this number belong.  old : what lay there, moved aside.
    """

    path: str | None
    place: str
    mark: str
    number: int
    path_of: Callable[[int], str | None] = lambda number: None
    old: str | None = None

    @property
    def array(self) -> Any:
        """The Zarr array, unread."""
        return open_written(self.place)

    def told(self, first: int, anew: bool) -> dict[str, Any]:
        """For the record, and whoever started the job."""
        return {"path": self.path, "version": self.number, "first_row": first,
                "rows": self.array.shape[0], "old_rows_scored_anew": anew}  # fmt: skip

    def renumber(self, number: int) -> None:
        """Their version gets another number: someone else has published meanwhile.

        Raises InvalidInputError where something else lies in the place of that number.
        """
        if number == self.number:
            return
        self.undo()
        path = self.path_of(number)
        if path is not None:
            refuse_occupied(path, overwrite=True)
        self.path, self.number = path, number

    def clear_place(self) -> None:
        """Take away what lies at the path, if it is of another model."""
        if self.path is None or marked(self.path) in (None, self.mark):
            return
        try:
            old = set_aside(self.path)
        except FileNotFoundError:  # another process did
            return
        if not ours(old):  # it came there meanwhile
            os.rename(old, self.path)
            release(old)
            raise exists_already(self.path)
        self.old = old

    def put(self, version: Version) -> None:
        """Put them there: their version is served."""
        if self.path is None:
            return
        with told_where(f"{self.path}: the scores of version {version.number} were not put there"):
            mark_written(self.place, self.mark, {"number": version.number, "id": version.id})
            os.makedirs(os.path.dirname(os.path.realpath(self.path)), exist_ok=True)
            put_folder(self.place, self.path, ours)
            release(self.place)
        if self.old is not None:
            discard(self.old)
            self.old = None

    def undo(self) -> None:
        """Put back what lay at the path, unless something lies there."""
        if self.old is None or self.path is None:
            return
        try:
            os.rename(self.old, self.path)
            release(self.old)
        except OSError:
            discard(self.old)
        self.old = None


@contextlib.contextmanager
def _scratch(store: str, path: str | None) -> Iterator[str]:
    """A new folder beside the path, or the store, or among temporary ones if that is a URL."""
    if path is None and "://" in store:
        folder = tempfile.mkdtemp(prefix="streampca-")
        try:
            yield os.path.join(folder, SCORES)
        finally:
            shutil.rmtree(folder, ignore_errors=True)
        return
    place = unfinished_name(path or store.rstrip("/"))
    try:
        yield place
    finally:
        discard(place)


def sweep_places(job: Job, number: int) -> None:
    """Remove what killed refreshes left beside the store, and beside the scores of a version."""
    if "://" not in job.store:
        sweep(job.store.rstrip("/"))
    if (path := Scores(job).place(number)) is not None:
        sweep(path)


@contextlib.contextmanager
def told_where(words: str) -> Iterator[None]:
    """Add to a failure of writing what it means: that of a full disk names no file."""
    try:
        yield
    except (OSError, InvalidInputError) as error:
        error.add_note(f"{words}; what was served before is served still")
        raise


def mark_of(result: Result) -> str:
    """By which scores are known to be of this model."""
    return digest_of(*(b"" if part is None else part.tobytes() for part in result.identity))
