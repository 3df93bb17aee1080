"""Panel files: a table of samples and what they are (population, batch), to colour a picture."""

from __future__ import annotations

import os
from pathlib import Path

from streampca.errors import InvalidInputError, SourceError, shorten
from streampca.matrix import AxisLabels

UNKNOWN = "not in the panel"


def read_panel(
    path: str | os.PathLike[str], samples: AxisLabels, column: str | None = None
) -> list[str]:
    """One label per sample, from a whitespace-separated table with a header line.

    The table may list samples in any order, and others; a sample is found by its id (IID) in any
    of the first two columns. column : which column holds the label; default: the first after the
    ids (named population, pop, super_pop or group if there is such a one).
    Raises SourceError for an unreadable table, InvalidInputError where no sample is found.
    """
    try:
        rows = [line.split() for line in Path(path).read_text().splitlines() if line.strip()]
    except OSError as error:
        raise SourceError(f"{path}: {error.strerror or error}") from None
    if len(rows) < 2 or len(rows[0]) < 2:
        raise SourceError(f"{path}: expected a header and at least two columns")
    head = [name.lstrip("#") for name in rows[0]]
    at = _label_column(head, column, str(path))
    names = samples.extra.get("individual")
    wanted = samples.names() if names is None else [str(name) for name in names]
    known: dict[str, str] = {}
    for row in rows[1:]:
        if len(row) > at:
            for cell in row[: min(2, at)]:
                known.setdefault(cell, row[at])
    labels = [known.get(name, UNKNOWN) for name in wanted]
    if all(label == UNKNOWN for label in labels):
        raise InvalidInputError(
            f"{path} names none of the samples ({shorten(wanted[:3], len(wanted))})"
        )
    return labels


def _label_column(head: list[str], column: str | None, path: str) -> int:
    if column is not None:
        if column in head:
            return head.index(column)
        raise InvalidInputError(f"{path} has no column {column!r}; it has {', '.join(head)}")
    for name in ("population", "pop", "super_pop", "group"):
        if name in head[1:]:
            return head.index(name)
    return 2 if len(head) > 2 and head[1].lower() in ("iid", "sample") else 1
