"""Columns of a table that name its rows: by what they are called, and by what they hold."""

from __future__ import annotations

import copy
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

import numpy as np

from streampca.errors import InvalidInputError, RowNumbersWarning, shorten, warn_caller
from streampca.matrix import AxisLabels, ChunkedMatrix
from streampca.matrix.names import comparable

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
    """A context in which features are those of a fit, which nobody questions."""
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
    for suspected, why in (
        (padded, "with zeros in front"),
        (named, "and has the name of an identifier"),
    ):
        if suspected:
            raise InvalidInputError(
                f"{where}: column {shorten([*map(repr, suspected)])} holds a different whole "
                f"number in every row, {why}; expected features. "
                f"{names.format(repr(suspected[0]))} makes it name the rows; {leave}"
            )
    if ordered:
        warn_caller(
            f"{where}: column {shorten([repr(name) for name in ordered])} holds whole numbers that "
            "only go up or down from row to row, and counts as a feature. "
            f"{names.format(repr(ordered[0]))} makes it name the rows; {leave}",
            RowNumbersWarning,
        )


MOST_KEYS = 8  # columns of a table that are tried


def named_rows(parts: Sequence[ChunkedMatrix], titles: Sequence[str]) -> Sequence[ChunkedMatrix]:
    """Matrices over the same samples; tables without names have those of a column that tells.

    That is the column of text, dates or whole numbers, which is no feature, that has the names of
    the rows of another part; or the one of the same name in all, each of whose values is there
    once. Where rows agree in it one after another nothing is needed.
    Raises InvalidInputError where columns tell that rows are in another order, but not which.
    """
    keys = [_keys(part) for part in parts]
    if not any(keys):
        _refuse_numbers_of_rows(parts, titles)
        return parts
    known = next((_names(part) for part in parts if part.labels.samples.named), None)
    if known is not None:
        return [
            part if part.labels.samples.named else _named_as(part, key, known, title)
            for part, key, title in zip(parts, keys, titles, strict=True)
        ]
    if not all(keys):
        return parts
    shared = [name for name in keys[0] if all(name in key for key in keys[1:])]
    if not shared:
        return _named_alike(parts, keys)
    each = [[_column(part, name) for part in parts] for name in shared]
    agree = [_agree(columns) for columns in each]
    if any(same and _unique(columns[0]) for same, columns in zip(agree, each, strict=True)):
        return parts
    left = [j for j, same in enumerate(agree) if not same]
    together = [_tuples([columns[i] for columns in each]) for i in range(len(parts))]
    for columns in [*(each[j] for j in left), together] if left else []:
        if all(map(_unique, columns)) and _meet(columns):
            return [renamed(part, column) for part, column in zip(parts, columns, strict=True)]
    unclear = [j for j in left if called_id(shared[j]) or _same_values(each[j])]
    if unclear:
        raise _unclear(titles, shared[unclear[0]])
    return parts


def _refuse_numbers_of_rows(parts: Sequence[ChunkedMatrix], titles: Sequence[str]) -> None:
    """Refuse tables with a feature of the same name that holds the same whole numbers, each once,
    in another order."""
    if not all(hasattr(part.annotations, "key_names") for part in parts):
        return
    features = [part.annotations.feature_names() for part in parts]
    shared = [name for name in features[0] if all(name in feature for feature in features[1:])]
    for name in shared[:MOST_KEYS]:
        columns = [_whole_numbers(part, name) for part in parts]
        if all(map(_unique, columns)) and _same_values(columns) and not _agree(columns):
            raise InvalidInputError(
                f"{' and '.join(titles)} both have the feature {name!r}, with the same whole "
                "numbers, each once, in another order: they may be the numbers of the rows. Name "
                f"the rows, index={name!r}; or say which are features, columns=[...], without it"
            )


def _whole_numbers(part: ChunkedMatrix, name: str) -> Array:
    """What a feature holds, where all are whole numbers; else twice nothing."""
    try:
        values = np.asarray(part.annotations.column(0, name), np.float64)
    except InvalidInputError:  # a cell is missing
        return np.zeros(2)
    whole = np.isfinite(values).all() and np.array_equal(values, np.trunc(values))
    return values.astype(np.int64) if whole else np.zeros(2)


def _named_alike(
    parts: Sequence[ChunkedMatrix], keys: Sequence[Sequence[str]]
) -> Sequence[ChunkedMatrix]:
    """Tables with names of columns of other names that hold the same values, each once."""
    columns = [[_column(part, name) for name in own] for part, own in zip(parts, keys, strict=True)]
    for first in filter(_unique, columns[0]):
        alike = [[one for one in own if _same_values([first, one])] for own in columns[1:]]
        if all(alike):
            found = [first, *(own[0] for own in alike)]
            return [renamed(part, one) for part, one in zip(parts, found, strict=True)]
    return parts


def _unclear(titles: Sequence[str], name: str) -> InvalidInputError:
    return InvalidInputError(
        f"{' and '.join(titles)} both have the column {name!r}, whose values differ from row "
        "to row and do not tell which rows belong together (they are there more than once, or in "
        f"one of them only). Name the rows, index=...; or leave {name!r} out of one of them, and "
        "rows go by their number"
    )


def rows_named_as(part: ChunkedMatrix, names: Any) -> AxisLabels:
    """The labels of the rows of a table that has no names, from the column that holds these."""
    if names is None or part.labels.samples.named:
        return part.labels.samples
    return _named_as(part, _keys(part), np.asarray(names), "X").labels.samples


def _names(part: ChunkedMatrix) -> Array | None:
    samples = part.labels.samples
    return np.asarray(samples.coords[samples.dims[0]]) if len(samples.dims) == 1 else None


def _keys(part: ChunkedMatrix) -> list[str]:
    """The columns of a table that may name its rows; none where they have names."""
    if part.labels.samples.named or not hasattr(part.annotations, "key_names"):
        return []
    return sorted(part.annotations.key_names(), key=lambda name: not called_id(name))[:MOST_KEYS]


def _column(part: ChunkedMatrix, name: str) -> Array:
    """What a key holds; of one with gaps that is not called as names are, nothing."""
    try:
        return np.asarray(part.annotations.row_names(name))
    except InvalidInputError:
        if called_id(name):
            raise
        return np.full(part.shape[0], "")


def _named_as(part: ChunkedMatrix, keys: list[str], known: Array, title: str) -> ChunkedMatrix:
    """A table with the names of its column that has those of another part, if there is one."""
    for name in keys:
        values = _column(part, name)
        if not _meet([known, values]):
            if called_id(name) and _unique(values):
                mine, others = (shorten([repr(str(x)) for x in one[:2]]) for one in (values, known))
                raise InvalidInputError(
                    f"the column {name!r} of {title} ({mine}; ...) has none of the names of the "
                    f"rows that it is paired with ({others}; ...); expected the same names. Rename "
                    "them, or leave the names of both out"
                )
            continue
        return renamed(part, values)
    return part


def _agree(columns: Sequence[Array]) -> bool:
    """Whether rows have the same values one after another."""
    first = columns[0]
    same = (comparable(first, column) for column in columns[1:] if len(column) == len(first))
    return len({len(one) for one in columns}) == 1 and all(np.array_equal(a, b) for a, b in same)


def _unique(values: Array) -> bool:
    return len(set(values.tolist())) == len(values)


def _meet(columns: Sequence[Array]) -> bool:
    """Whether the first column has values of each other one: of numbers, all of them."""
    for column in columns[1:]:
        mine, others = (set(part.tolist()) for part in comparable(columns[0], column))
        numbers = columns[0].dtype.kind in "iuf" or column.dtype.kind in "iuf"
        if not (mine & others) or (numbers and not (mine <= others or others <= mine)):
            return False
    return True


def _same_values(columns: Sequence[Array]) -> bool:
    sorts = [sorted(map(str, column.tolist())) for column in columns]
    return all(one == sorts[0] for one in sorts)


def _tuples(columns: Sequence[Array]) -> Array:
    rows = list(zip(*(map(str, column.tolist()) for column in columns), strict=True))
    made = np.empty(len(rows), object)
    made[:] = rows
    return made


def renamed(matrix: ChunkedMatrix, names: Any) -> ChunkedMatrix:
    """The same matrix with these names of its rows."""
    made = copy.copy(matrix)
    samples = AxisLabels.plain("sample", matrix.shape[0], names)
    made.labels = matrix.labels.with_axes(samples, matrix.labels.features)
    return made
