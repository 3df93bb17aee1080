"""The scores of a job: written beside their place, then put there, marked with their model."""

from __future__ import annotations

import contextlib
import os
import shutil
import uuid
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from streampca.jobs.config import Job
from streampca.jobs.state import digest_of
from streampca.models.decomposition import Decomposition
from streampca.models.loading import estimator_of
from streampca.models.model_store import Version
from streampca.store.bundle import exchange
from streampca.store.sinks import mark_written, marked, refuse_occupied


@dataclass
class Scores:
    """What a job wants of scores, if it has the section.  scheduler : see ``Client``."""

    job: Job
    scheduler: Any = None

    def place(self, number: int) -> str:
        """Of the scores of this version."""
        return str(self.job.scores["path"]).replace("{version}", str(number))

    def check_place(self, number: int) -> None:
        """Refuse a place where something else is, before anything is computed for it."""
        if self.job.scores:
            refuse_occupied(self.place(number), overwrite=True)

    def lacking(self, served: Version) -> bool:
        """Whether those of the served version are to be written, though nothing else is.

        They are where others lie in their place (another version was promoted by hand), or where
        none were written when it was published: it was a candidate, or the job did not ask for
        them. Those that were written and taken away are not written again.
        """
        if not self.job.scores:
            return False
        if (there := marked(self.place(served.number))) is not None:
            return there != _mark(served.result())
        told = served.record
        written = told.get("scores", not told.get("gate", {}).get("refused", ""))
        return not written

    def write(self, result: Decomposition, matrix: Any, number: int, first: int) -> dict[str, Any]:
        """Those of all rows of ``matrix``, of which the first has the number ``first``."""
        path = self.place(number)
        model: Any = estimator_of(result)
        model.set_params(memory_limit=self.job.memory_limit, scheduler=self.scheduler)

        def written(place: str) -> None:
            model.transform(matrix, out=place, overwrite=True)
            mark_written(place, _mark(result))

        with told_where(f"{path}: the scores were not written, and nothing was promoted"):
            _into_place(path, written)
        return {"path": path, "first_row": first, "rows": matrix.shape[0],
                "old_rows_scored_anew": not first}  # fmt: skip


@contextlib.contextmanager
def told_where(words: str) -> Iterator[None]:
    """Add to a failure of writing what it means: that of a full disk names no file."""
    try:
        yield
    except OSError as error:
        error.add_note(f"{words}; what was served before is served still")
        raise


def _mark(result: Decomposition) -> str:
    """By which scores are known to be of this model."""
    parts = (result.components, result.mean, result.explained_variance)
    return digest_of(*(b"" if part is None else part.tobytes() for part in parts))


def _into_place(path: str, write: Callable[[str], Any]) -> None:
    """Have an array written beside its place, then put there: others may be at the same."""
    refuse_occupied(path, overwrite=True)
    folder, name = os.path.split(os.path.abspath(path))
    staged = os.path.join(folder, f".{name}.{uuid.uuid4().hex}.partial")
    try:
        write(staged)
        try:
            os.rename(staged, path)
        except OSError:  # one is there
            exchange(Path(staged), Path(os.path.realpath(path)))
    finally:
        shutil.rmtree(staged, ignore_errors=True)
