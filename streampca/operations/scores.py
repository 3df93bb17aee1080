"""The scores of a job: a part of their version, and a copy at a path if that version is served.

They are first written next to the path, then into the version, with which they become visible. Old
scores at the path are removed before the version is committed, and the new ones are put there
afterwards. So a process that dies in between leaves no scores there, never those of another model,
and the next refresh puts the scores of the served version there.
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
from streampca.model_store.model_store import SCORES, Version
from streampca.models.contract.registry import estimator_of
from streampca.models.results.result import Result
from streampca.operations.config import Job
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
    """The section ``scores`` of a job, which may be absent.  scheduler : as for a fit."""

    job: Job
    scheduler: Any = None

    def place(self, number: int) -> str | None:
        """The path for the scores of a version, or None."""
        path = self.job.scores.get("path")
        return None if path is None else str(path).replace("{version}", str(number))

    def check_place(self, number: int) -> None:
        """Refuse a path that holds something else, before anything is computed for it."""
        if (path := self.place(number)) is not None:
            refuse_occupied(path, overwrite=True)

    def lacking(self, served: Version) -> bool:
        """Whether the scores of the served version must be written, though nothing else changed.

        They must if the path holds those of another version, if a refresh died before it put them
        there, or if the job did not ask for scores when the version was made. Scores that were put
        at a path of their own, with {version}, and removed since are not written again.
        """
        if (path := self.place(served.number)) is None:
            return False
        if (there := marked(path)) is not None:
            return there != mark_of(served.result())
        if left_over(path) or path == self.job.scores["path"]:
            return True
        gate = served.record.get("gate")
        refused = isinstance(gate, dict) and gate.get("refused")
        written = served.record.get("scores", not refused)
        return not (written.get("put", True) if isinstance(written, dict) else written)

    @contextlib.contextmanager
    def made(self, result: Result, matrix: Any, number: int) -> Iterator[Made]:
        """The scores of all rows of ``matrix``, for the coming version ``number``."""

        def write(place: str) -> None:
            model: Any = estimator_of(result)
            model.set_params(memory_limit=self.job.memory_limit, scheduler=self.scheduler)
            model.transform(matrix, out=place)

        note = "the scores were not written, and nothing was promoted"
        with self._made(number, mark_of(result), write, note) as made:
            yield made

    @contextlib.contextmanager
    def of(self, version: Version) -> Iterator[Made]:
        """The scores stored in a version."""
        write = partial(copy_rows, version.scores())
        with self._made(version.number, mark_of(version.result()), write, "they stay") as made:
            yield made

    @contextlib.contextmanager
    def _made(self, number: int, mark: str, write: Any, note: str) -> Iterator[Made]:
        path = self.place(number)
        if path is not None:
            refuse_occupied(path, overwrite=True)
        with _scratch(self.job.store, path) as place:
            with explained(f"{path or self.job.store}: {note}"):
                write(place)
                made = Made(path, place, mark, number, self.place)
            try:
                yield made
            finally:
                made.undo()


@dataclass
class Made:
    """Complete scores at ``place``, to be put at ``path``.

    path_of : version number -> path of its scores.  old : what was at ``path``, moved aside.
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

    def record(self, first: int, anew: bool) -> dict[str, Any]:
        """For the version's record and the outcome of the refresh.

        first : the row of the first score.  anew : old rows were scored with the new model too.
        """
        return {
            "path": self.path,
            "version": self.number,
            "first_row": first,
            "rows": self.array.shape[0],
            "old_rows_scored_anew": anew,
        }

    def renumber(self, number: int) -> None:
        """Their version gets another number: another process has published meanwhile.

        Raises InvalidInputError if something else is at the path for that number.
        """
        if number == self.number:
            return
        self.undo()
        path = self.path_of(number)
        if path is not None:
            refuse_occupied(path, overwrite=True)
        self.path, self.number = path, number

    def clear_place(self) -> None:
        """Move away what is at the path, if it belongs to another model."""
        if self.path is None or marked(self.path) in (None, self.mark):
            return
        try:
            old = set_aside(self.path)
        except FileNotFoundError:  # another process did
            return
        if not ours(old):  # it was put there meanwhile
            os.rename(old, self.path)
            release(old)
            raise exists_already(self.path)
        self.old = old

    def put(self, version: Version) -> None:
        """Put the scores at the path: their version is served now."""
        if self.path is None:
            return
        with explained(f"{self.path}: the scores of version {version.number} were not put there"):
            mark_written(self.place, self.mark, {"number": version.number, "id": version.id})
            os.makedirs(os.path.dirname(os.path.realpath(self.path)), exist_ok=True)
            put_folder(self.place, self.path, ours)
            release(self.place)
        if self.old is not None:
            discard(self.old)
            self.old = None

    def undo(self) -> None:
        """Put back what was at the path, unless something else is there now."""
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
    """A new folder beside the path or the store; a temporary one if the store is a URL."""
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
def explained(note: str) -> Iterator[None]:
    """Add a note to failures of writing: the error for a full disk names no file."""
    try:
        yield
    except (OSError, InvalidInputError) as error:
        error.add_note(f"{note}; what was served before is served still")
        raise


def mark_of(result: Result) -> str:
    """A digest of a model, by which its scores are recognized."""
    return digest_of(*(b"" if part is None else part.tobytes() for part in result.identity))
