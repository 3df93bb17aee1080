"""Columns of a table that name its rows: by what they are called, and by what they hold."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

import numpy as np

from streampca.errors import InvalidInputError, RowNumbersWarning, shorten, warn_caller

Array = np.ndarray[Any, Any]
CALLED = re.compile(
    r"(.*[^a-z])?(id|ids|iid|fid|uid|guid|uuid|idx|index|samples?|sampleid|subject|subjectid|"
    r"patient|patientid|participant|individual|specimen|barcode|key|names?|rownames?|row|rowid|"
    r"rownum|rownumber|caseid|recordid|observation)|unnamed: 0|__index_level_\d+__"
)
KNOWN: ContextVar[bool] = ContextVar("features are those of a fit", default=False)
FIRST_ROWS = 1024  # of a column that are looked at
SORTED_FROM = 8  # rows from which an increasing column is no chance (1 in 40,320)
MOST_COLUMNS = 64  # that are looked at; of a wider table those that are called so


def called_id(name: Any) -> bool:
    """Whether a column is called as one that names rows is: id, sample_id, SampleID, index."""
    text = re.sub(r"(?<=[a-z])(?=[A-Z])", "_", str(name).strip()).lower()
    return CALLED.fullmatch(text) is not None


@contextmanager
def known_features() -> Iterator[None]:
    """A context in which features are those of a fit, and nothing is asked about them."""
    token = KNOWN.set(True)
    try:
        yield
    finally:
        KNOWN.reset(token)


def suspects(names: Any) -> list[Any]:
    """The columns among these whose values are worth a look."""
    every = list(names)
    return every if len(every) <= MOST_COLUMNS else [name for name in every if called_id(name)]


def row_identifiers(columns: Mapping[Any, Array], total: int) -> tuple[list[Any], list[Any]]:
    """(columns of whole numbers that are called as names of rows are, those that only go up or
    down): each holds another number in every row. The second is empty where all features do."""
    named, ordered = [], []
    for name, values in columns.items():
        if len(values) < 2 or not _whole(values):
            continue
        if called_id(name):
            named += [name] if len(np.unique(values)) == len(values) else []
        elif len(values) >= SORTED_FROM and _monotonic(values):
            ordered.append(name)
    return named, ordered if len(ordered) < total else []


def _whole(values: Array) -> bool:
    if values.dtype.kind in "iu":
        return True
    return values.dtype.kind == "f" and bool(np.all(values == np.trunc(values)))


def _monotonic(values: Array) -> bool:
    rises = values[1:] > values[:-1]
    return bool(rises.all() or (values[1:] < values[:-1]).all())


def ask_about(
    columns: Mapping[Any, Array],
    where: str,
    names: str,
    leave: str,
    padded: Sequence[Any] = (),
    total: int = 0,
) -> None:
    """Refuse features that are names of rows; warn of those that may be.

    columns : the values of features, or of their first rows.
    names : the line that makes the names of the rows of a column, with {} for it.
    leave : how to say that it is a feature, or is none.
    padded : columns of different numbers that are written with zeros in front.
    total : how many features there are, if more.
    Raises InvalidInputError. Warns RowNumbersWarning.
    """
    if KNOWN.get():
        return
    named, ordered = row_identifiers(columns, total or len(columns))
    for told, why in ((padded, "with zeros in front"), (named, "and is called as names are")):
        if told:
            raise InvalidInputError(
                f"{where}: column {shorten([repr(name) for name in told])} holds another whole "
                f"number in every row, {why}; expected features. "
                f"{names.format(repr(told[0]))} makes it the names of the rows; {leave}"
            )
    if ordered:
        warn_caller(
            f"{where}: column {shorten([repr(name) for name in ordered])} holds whole numbers that "
            "only go up or down from row to row, and counts as a feature. "
            f"{names.format(repr(ordered[0]))} makes it the names of the rows; {leave}",
            RowNumbersWarning,
        )
