"""Which columns of a table are features, and the numbers of a record batch."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from streampca.errors import ChangingSourceError, InvalidInputError, InvalidTypeError, shorten
from streampca.matrix.columns import as_text
from streampca.paths import first_line
from streampca.sources.tables.frames import exact_float
from streampca.sources.tables.row_names import called_id
from streampca.sources.tables.text_options import TextOptions

Array = np.ndarray[Any, Any]
ONEHOT = "onehot"
MOST_CATEGORIES = 4096  # of one column: each is a feature
PARTITION = "partition key"  # shown as the type of a column that the names of folders hold
REASON = "reason"  # metadata of a field: what is to be said of a column that is left out
PARTLY = "cells are numbers"  # in what is said of a column of which some are


@dataclass(frozen=True)
class Column:
    """A column of the table. categories : of a one-hot column, each of which is a feature."""

    name: str
    categories: Any = None

    @property
    def width(self) -> int:
        return 1 if self.categories is None else len(self.categories)

    @property
    def features(self) -> list[str]:
        """The names of its features."""
        if self.categories is None:
            return [self.name]
        return [f"{self.name}={value}" for value in self.categories.to_pylist()]


@dataclass(frozen=True)
class Columns:
    """The columns that are read.  dtype : of their numbers, a float that holds all of them."""

    columns: tuple[Column, ...]
    dtype: np.dtype[Any]

    @property
    def width(self) -> int:
        """The number of features."""
        return sum(column.width for column in self.columns)

    @property
    def names(self) -> list[str]:
        """The names of the columns."""
        return [column.name for column in self.columns]

    @property
    def features(self) -> list[str]:
        """The names of the features."""
        return [name for column in self.columns for name in column.features]

    def part(self, features: slice) -> list[tuple[Column, slice, slice]]:
        """(column, its features among these, their places in the part) where there are any."""
        found, start = [], 0
        for column in self.columns:
            first, last = max(features.start, start), min(features.stop, start + column.width)
            if first < last:
                places = slice(first - features.start, last - features.start)
                found.append((column, slice(first - start, last - start), places))
            start += column.width
        return found


class Batch:
    """The numbers of a record batch.

    part : its columns, as of :meth:`Columns.part`.  dtype : that they are put into.
    A column that is stored as numbers, without nulls, is copied only into its place.
    """

    def __init__(
        self,
        batch: Any,
        part: Sequence[tuple[Column, slice, slice]],
        dtype: np.dtype[Any],
        where: str,
    ) -> None:
        self.rows, self.where = int(batch.num_rows), where
        columns = dict(zip(batch.schema.names, batch.columns, strict=True))
        self.stored: list[tuple[int, Array]] = []  # (place, numbers)
        self.others: list[tuple[Any, Column, slice, slice]] = []
        for column, chosen, places in part:
            values = columns[column.name]
            own = STORED.get(values.type.id) if column.categories is None else None
            if own is None or values.null_count or not np.can_cast(own, dtype):
                self.others.append((values, column, chosen, places))
            else:
                held, start = values.buffers()[1], values.offset * own.itemsize
                self.stored.append((places.start, np.frombuffer(held, own, self.rows, start)))

    def put(self, rows: slice, out: Array) -> None:
        """Put some of its rows into ``out`` (rows, features of the part)."""
        for place, numbers in self.stored:
            out[:, place] = numbers[rows]
        for values, column, chosen, places in self.others:
            some = values.slice(rows.start, rows.stop - rows.start)
            if column.categories is None:
                out[:, places.start] = _numbers(some, out.dtype, self.where, column.name)
            else:
                _put_categories(some, column, chosen, out[:, places], self.where)


STORED: dict[int, np.dtype[Any]] = {
    kind.id: np.dtype(kind.to_pandas_dtype())
    for kind in (
        pa.int8(),
        pa.uint8(),
        pa.int16(),
        pa.uint16(),
        pa.int32(),
        pa.uint32(),
        pa.float16(),
        pa.float32(),
        pa.float64(),
    )
}


def _numbers(values: Any, dtype: np.dtype[Any], where: str, name: str) -> Array:
    """The numbers of a column; NaN where it is null."""
    kind = values.type
    wanted = pa.float32() if dtype == np.float32 else pa.float64()
    if pa.types.is_boolean(kind):
        values = values.cast(pa.uint8())
    if not pa.types.is_floating(kind) or pa.types.is_float16(kind):
        try:
            values = values.cast(wanted)
        except pa.ArrowInvalid as error:
            raise InvalidTypeError(
                f"{where}: column {name!r} is {kind}, and {first_line(error).rstrip('.')}; "
                "expected integers up to 2**53 in size, since float64 rounds larger ones. Leave "
                "the column out: columns=[...]; an identifier is no feature: index=..."
            ) from None
    return plain(pc.fill_null(values, float("nan")) if values.null_count else values)


def plain(values: Any) -> Array:
    """The numbers of a column without nulls, not copied. (Arrow's own way there loads pandas.)"""
    kind = values.type
    if pa.types.is_boolean(kind):
        return plain(values.cast(pa.uint8())).view(bool)
    letter = "f" if pa.types.is_floating(kind) else "i" if pa.types.is_signed_integer(kind) else "u"
    held = np.frombuffer(values.buffers()[1], f"{letter}{kind.bit_width // 8}")
    return held[values.offset : values.offset + len(values)]


def _put_categories(values: Any, column: Column, chosen: slice, out: Array, where: str) -> None:
    """1 in the feature of a row's category, 0 in the others; NaN in all where it is null."""
    codes = codes_of(values, column.categories)
    null, known = plain(values.is_null()), plain(codes.is_valid())
    if (new := ~known & ~null).any():
        value = values[int(np.argmax(new))].as_py()
        raise ChangingSourceError(
            f"{where}: column {column.name!r} holds {value!r}, which it did not when it was "
            "opened; open it again"
        )
    number = plain(codes.fill_null(-1))
    for place, category in enumerate(range(chosen.start, chosen.stop)):
        out[:, place] = number == category
    out[null] = np.nan


def codes_of(values: Any, categories: Any) -> Any:
    """The place of each value among the categories; null where it is null or not among them."""
    if pa.types.is_dictionary(values.type):
        values = values.dictionary_decode()
    return pc.index_in(values.cast(categories.type), value_set=categories)


def categories_of(pieces: Iterable[Any], name: str, where: str) -> Any:
    """The distinct values of a column, sorted.  pieces : of the column."""
    found: Any = None
    for values in pieces:
        if pa.types.is_dictionary(values.type):
            values = values.dictionary_decode()
        own = pc.unique(values.drop_null())
        if found is not None:
            own = pc.unique(pa.concat_arrays([found, own.cast(found.type)]))
        found = own
        if len(found) > MOST_CATEGORIES:
            raise InvalidInputError(
                f"{where}: column {name!r} has more than {MOST_CATEGORIES} categories, each of "
                "which would be a feature; expected fewer. Leave it out: columns=[...]"
            )
    if found is None or not len(found):
        raise InvalidInputError(f"{where}: column {name!r} holds no value; leave it out")
    return found.take(pc.sort_indices(found))


# Which columns are features: those that are asked for, or all numeric ones.


@dataclass(frozen=True)
class Wanted:
    """What a caller asks of a table.

    columns : names of the features, or None for all numeric columns.  index : the column with the
    names of the samples.  categorical : "onehot" makes a feature of each category.
    written : how a text is written.
    """

    columns: tuple[str, ...] | None = None
    index: str | None = None
    categorical: str | None = None
    written: TextOptions = field(default_factory=TextOptions)

    def __post_init__(self) -> None:
        if self.categorical not in (None, ONEHOT):
            raise InvalidInputError(f"categorical={self.categorical!r}; expected {ONEHOT!r}")
        if self.columns is not None and not self.columns:
            raise InvalidInputError("columns=[] names no column; expected names such as ['x', 'y']")
        if self.columns is not None and len(set(self.columns)) < len(self.columns):
            twice = sorted({name for name in self.columns if self.columns.count(name) > 1})
            raise InvalidInputError(f"columns= names {shorten(twice)} twice; leave one out")


@dataclass(frozen=True)
class Choice:
    """The columns of one schema.

    numeric : name -> float dtype, in order.  categorical : those that become one-hot.
    index : with the names of the samples, or None.  left_out : ``'name' (type)`` of the others.
    """

    order: tuple[str, ...]
    numeric: dict[str, np.dtype[Any]]
    categorical: tuple[str, ...]
    index: str | None
    left_out: tuple[str, ...] = field(default=())
    by_default: bool = False  # nobody named the features

    @property
    def dtype(self) -> np.dtype[Any]:
        """The float dtype that holds all values."""
        return np.result_type(np.float32, *self.numeric.values())


def choose(
    schema: Any, wanted: Wanted, where: str, keys: Sequence[str] = (), own_index: Sequence[str] = ()
) -> Choice:
    """The columns of a table that are features.

    keys : columns of the schema that come from the names of folders: features only if asked for.
    own_index : the columns that the file itself calls its index: features only if asked for.
    Raises InvalidInputError (no such column) and InvalidTypeError (not numeric).
    """
    names = list(schema.names)
    refuse_repeated(names, where)
    index = wanted.index if wanted.index is not None else "".join(own_index[:1]) or None
    named = [*(wanted.columns or ()), *([] if index is None else [index])]
    if absent := [name for name in named if name not in names]:
        parts = absent[0].split(",") if isinstance(absent[0], str) else []
        apart = f". Names stand apart: columns={parts}" if {*parts} <= {*names} else ""
        raise InvalidInputError(
            f"{where} has no column {absent[0]!r}; it has {shorten([*map(repr, names)])}{apart}"
        )
    free = [name for name in names if name not in (index, *own_index)]
    candidates = free if wanted.columns is None else wanted.columns
    numeric: dict[str, np.dtype[Any]] = {}
    categorical, order, others = [], [], []
    for name in candidates:
        kind = schema.field(name).type
        dtype = float_of(kind)
        by_default = wanted.columns is None
        onehot = wanted.categorical == ONEHOT and _is_categorical(kind, explicit=not by_default)
        if by_default and name in keys:
            others.append(f"{name!r} ({PARTITION})")
        elif dtype is not None:
            numeric[name] = dtype
            order.append(name)
        elif onehot:
            categorical.append(name)
            order.append(name)
        else:
            reason = (schema.field(name).metadata or {}).get(REASON.encode())
            others.append(f"{name!r} ({reason.decode() if reason else kind})")
    if others and wanted.columns is not None:
        raise _not_numeric(others, where)
    if not order:
        raise InvalidTypeError(
            f"{where} has no numeric column; it has {shorten(others) or 'none at all'}. Convert "
            f"them to numbers, or make a feature of each category: columns=[...], "
            f"categorical={ONEHOT!r}"
        )
    by_default = wanted.columns is None
    return Choice(tuple(order), numeric, tuple(categorical), index, tuple(others), by_default)


def refuse_repeated(names: Sequence[Any], where: str, first: str = "") -> None:
    """Raise InvalidInputError where a name is there twice.  first : takes the first of them."""
    if len(set(names)) < len(names):
        twice = sorted({str(name) for name in names if names.count(name) > 1})
        repair = f". Take the first of each: {first}" if first else ""
        raise InvalidInputError(
            f"{where}: columns {shorten(twice)} occur twice; rename one{repair}"
        )


def _not_numeric(bad: list[str], where: str) -> InvalidTypeError:
    return InvalidTypeError(
        f"{where}: columns {shorten(bad)} are not numeric; expected numbers. Leave them out of "
        f"columns=, or make a feature of each category: categorical={ONEHOT!r}"
    )


def float_of(kind: Any) -> np.dtype[Any] | None:
    """The float dtype that holds the numbers of an Arrow type; None for other types."""
    types = pa.types
    if types.is_decimal(kind):
        return np.dtype(np.float64)
    if types.is_boolean(kind):
        return np.dtype(np.float32)
    if types.is_floating(kind):
        return exact_float(np.dtype(f"f{kind.bit_width // 8}"))
    return exact_float(np.dtype(str(kind))) if types.is_integer(kind) else None


def _is_categorical(kind: Any, explicit: bool) -> bool:
    """Whether a column can be one-hot: dictionaries, and text where it is asked for by name."""
    types = pa.types
    text = types.is_string(kind) or types.is_large_string(kind) or types.is_string_view(kind)
    return bool(types.is_dictionary(kind) or (explicit and text))


def may_name(kind: Any, name: str) -> bool:
    """Whether a column of an Arrow type may hold names: text, dates, whole numbers."""
    types = pa.types
    kind = kind.value_type if types.is_dictionary(kind) else kind
    text = types.is_string(kind) or types.is_large_string(kind) or types.is_string_view(kind)
    day = types.is_date(kind) or types.is_timestamp(kind)
    number = types.is_integer(kind) or (types.is_floating(kind) and called_id(name))
    return bool(text or day or number)


def agree(choices: Iterator[tuple[str, Choice]]) -> np.dtype[Any]:
    """The dtype of the files of one table. Raises InvalidTypeError where their columns differ."""
    where, first = next(choices)
    dtypes = [first.dtype]
    for other, choice in choices:
        if set(choice.order) != set(first.order):
            name = sorted(set(choice.order) ^ set(first.order))[0]
            has, lacks = (where, other) if name in first.order else (other, where)
            both = [n for n in first.order if n in choice.order]
            raise InvalidTypeError(
                f"{has} has the numeric column {name!r} and {lacks} does not; files of one table "
                f"need the same columns of numbers. Name those of all: columns={both[:4]!r}"
            )
        if set(choice.categorical) != set(first.categorical):
            name = sorted(set(choice.categorical) ^ set(first.categorical))[0]
            raise InvalidTypeError(
                f"column {name!r} is of numbers in one of {where} and {other}, and of text in the "
                "other; convert one of them, or leave it out: columns=[...]"
            )
        dtypes.append(choice.dtype)
    return np.result_type(*dtypes)


def plain_values(values: Any, name: str, where: str) -> Array:
    """A column without nulls as NumPy's numbers, dates or text."""
    if values.null_count:
        at = int(np.argmax(values.is_null().to_numpy()))
        raise InvalidInputError(
            f"{where}: column {name!r} is null at row {at}; expected a value for every one"
        )
    kind = values.type
    if pa.types.is_dictionary(kind):
        values, kind = values.combine_chunks().dictionary_decode(), kind.value_type
    if pa.types.is_date(kind):
        values = values.cast(pa.timestamp("s"))
    numbers = pa.types.is_integer(kind) or pa.types.is_floating(kind) or pa.types.is_boolean(kind)
    if numbers or pa.types.is_temporal(kind):
        return np.asarray(values.to_numpy())
    return np.asarray(as_text(np.asarray(values.to_pylist(), object)))
