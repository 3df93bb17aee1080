"""Long arrays of short text (ids, chromosomes, alleles), processed in pieces.

They are NumPy ``StringDType`` arrays: 16 bytes an entry where fixed-width ones would take 4 bytes
a character of the longest. Sorting them without ``kind="stable"`` crashes NumPy 2.4 on some input,
and ``np.unique`` and ``np.isin`` do so: hence dictionaries here.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

import numpy as np
from numpy.lib.mixins import NDArrayOperatorsMixin

Text = np.ndarray[Any, Any]
TEXT_PIECE = 65536  # entries converted to Python strings at a time
WIDE = 64 << 20  # most bytes of labels of fixed width


def label_array(names: Any) -> Text:
    """``np.asarray`` of labels, or text where one long label would widen all of them too much."""
    text = isinstance(names, (list, tuple)) and all(isinstance(name, str) for name in names)
    if text and 4 * len(names) * max(map(len, names), default=0) > WIDE:
        return as_text(names)
    return np.asarray(names)


def as_text(names: Any) -> Text:
    """Any names as an array of text, of the same shape. Bytes are UTF-8."""
    kind, text = getattr(getattr(names, "dtype", None), "kind", "O"), np.dtypes.StringDType()
    if kind in "TUS":
        return np.asarray(np.strings.decode(names, "utf-8") if kind == "S" else names, dtype=text)
    shape = names.shape if isinstance(names, np.ndarray) else (-1,)
    every = names.flat if isinstance(names, np.ndarray) else names
    found = [name.decode() if isinstance(name, bytes) else str(name) for name in every]
    return np.array(found, dtype=text).reshape(shape)


def is_number(text: str) -> bool:
    """Whether a text is a number."""
    try:
        float(text)
    except ValueError:
        return False
    return True


def compact(names: list[str]) -> Text:
    """An array of text; names of one or two characters (chromosomes, bases) take 8 bytes each."""
    short = all(len(name) <= 2 for name in names)
    return np.array(names, dtype="U2" if short else np.dtypes.StringDType())


def joined(parts: Sequence[Text]) -> Text:
    """The arrays concatenated; text where any of them is."""
    if any(part.dtype.kind == "T" for part in parts):
        parts = [as_text(part) for part in parts]
    return np.concatenate(parts)


def pieces(values: Text) -> Iterator[list[str]]:
    """The entries as lists of Python strings."""
    for start in range(0, len(values), TEXT_PIECE):
        yield values[start : start + TEXT_PIECE].tolist()


def is_among(values: Text, wanted: Iterable[str]) -> Text:
    """(n,) bool: whether each entry is in ``wanted``."""
    among = frozenset(wanted)
    return np.fromiter((v in among for piece in pieces(values) for v in piece), bool, len(values))


def numbered(values: Text) -> tuple[list[str], Text]:
    """(distinct entries in the order of their first occurrence, (n,) number of each entry)."""
    number: dict[str, int] = {}
    codes = np.fromiter(
        (number.setdefault(v, len(number)) for piece in pieces(values) for v in piece),
        np.int64,
        len(values),
    )
    return list(number), codes


def repeated(values: Text, hashes: Text | None = None) -> list[str]:
    """Entries that occur more than once. Costs 8 bytes an entry: hashes are compared first.

    hashes : (n,) int64 of the entries' UTF-8 bytes, if known; sorted in place.
    """
    known = hashes is not None
    if hashes is None:
        hashes = np.fromiter(
            (hash(v) for piece in pieces(values) for v in piece), np.int64, len(values)
        )
    hashes.sort()
    suspects = frozenset(hashes[1:][hashes[1:] == hashes[:-1]].tolist())
    if not suspects:
        return []
    seen: dict[str, int] = {}
    for piece in pieces(values):
        for v in piece:
            if hash(v.encode() if known else v) in suspects:
                seen[v] = seen.get(v, 0) + 1
    return [v for v, count in seen.items() if count > 1]


# Annotation columns of an axis that are read on demand: labels of millions of variants.
#
# A :class:`Column` behaves as a one-dimensional array. Slices, numbers and ``np.asarray`` read the
# requested entries and keep nothing. Iterating over :meth:`Column.pieces` needs the memory of one
# piece.

Array = np.ndarray[Any, Any]
PIECE = 8192  # entries that are read at once


class Column(NDArrayOperatorsMixin, ABC):
    """(n,) values that are read on demand. A subclass defines ``dtype``, length and ``read``.

    Operators, NumPy functions and array methods read all of it into memory first.
    """

    dtype: np.dtype[Any]
    ndim = 1
    nbytes = 0  # of its arrays in memory
    piece = PIECE  # entries to read at a time

    @abstractmethod
    def __len__(self) -> int: ...

    @abstractmethod
    def read(self, start: int, stop: int) -> Array:
        """(stop - start,) entries of ``dtype``, 0 <= start <= stop <= n."""

    @property
    def shape(self) -> tuple[int]:
        """(n,)."""
        return (len(self),)

    @property
    def size(self) -> int:
        """n."""
        return len(self)

    def pieces(self) -> Iterator[Array]:
        """All entries in order, (m,) at a time."""
        length = self.piece
        for start in range(0, len(self), length):
            yield self.read(start, min(start + length, len(self)))

    def pick(self, numbers: Array) -> Column:
        """A column of the entries of these increasing numbers (m,), not read yet."""
        return Picked(self, numbers)

    def gather(self, numbers: Array) -> Array:
        """(m,) entries of any m numbers, read piece by piece."""
        numbers = np.asarray(numbers)
        found = np.empty(len(numbers), self.dtype)
        order = np.argsort(numbers, kind="stable") if np.any(np.diff(numbers) < 0) else None
        ordered = numbers if order is None else numbers[order]
        place = 0
        while place < len(ordered):
            first = int(ordered[place])
            last = min(first - first % self.piece + self.piece, len(self))
            end = int(np.searchsorted(ordered, last, side="left"))
            values = self.read(first, int(ordered[end - 1]) + 1)[ordered[place:end] - first]
            found[slice(place, end) if order is None else order[place:end]] = values
            place = end
        return found

    def sum(self) -> Any:
        """The sum of all entries; of integers, piece by piece."""
        if self.dtype.kind not in "iub":
            return np.asarray(self).sum()
        return sum((int(piece.sum()) for piece in self.pieces()), 0)

    def __iter__(self) -> Iterator[Any]:
        for piece in self.pieces():
            yield from piece

    def __getitem__(self, key: Any) -> Any:
        if isinstance(key, (int, np.integer)):
            place = int(key) + len(self) if key < 0 else int(key)
            if not 0 <= place < len(self):
                raise IndexError(f"entry {key} of {len(self)}")
            return self.read(place, place + 1)[0]
        if isinstance(key, slice):
            start, stop, step = key.indices(len(self))
            if step == 1:
                return self.read(start, max(start, stop))
            return np.asarray(self)[key]
        chosen = np.asarray(key)
        if chosen.dtype == bool:
            if chosen.shape != self.shape:
                raise IndexError(f"mask of {chosen.shape} for {self.shape} entries")
            chosen = np.flatnonzero(chosen)
        if chosen.ndim != 1:
            return np.asarray(self)[key]
        return self.gather(np.where(chosen < 0, chosen + len(self), chosen).astype(np.int64))

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> Array:
        whole = np.empty(len(self), self.dtype)
        for start in range(0, len(self), self.piece):
            stop = min(start + self.piece, len(self))
            whole[start:stop] = self.read(start, stop)
        return whole if dtype is None else whole.astype(dtype, copy=False)

    def __array_ufunc__(self, ufunc: Any, method: str, *inputs: Any, **more: Any) -> Any:
        values = [np.asarray(x) if isinstance(x, Column) else x for x in inputs]
        return getattr(ufunc, method)(*values, **more)

    def __getattr__(self, name: str) -> Any:
        """Methods and attributes of the array."""
        if name.startswith("_") or name not in dir(np.ndarray):
            raise AttributeError(f"{type(self).__name__} has no {name}")
        return getattr(np.asarray(self), name)

    def __repr__(self) -> str:
        return f"<{type(self).__name__} of {len(self)} {self.dtype}>"


class Picked(Column):
    """Some entries of another column, by increasing numbers."""

    def __init__(self, base: Column, numbers: Array) -> None:
        self.base, self.numbers = base, numbers
        self.dtype = base.dtype

    def __len__(self) -> int:
        return len(self.numbers)

    def read(self, start: int, stop: int) -> Array:
        return self.base.gather(self.numbers[start:stop])


class Joined(Column):
    """Columns concatenated."""

    def __init__(self, parts: Sequence[Any]) -> None:
        self.parts = list(parts)
        self.dtype = joined([np.empty(0, part.dtype) for part in parts]).dtype
        self.ends = np.cumsum([0, *map(len, parts)])

    @property
    def nbytes(self) -> int:  # type: ignore[override]
        return sum(int(part.nbytes) for part in self.parts)

    def __len__(self) -> int:
        return int(self.ends[-1])

    def read(self, start: int, stop: int) -> Array:
        found = [np.empty(0, self.dtype)]
        for part, first in zip(self.parts, self.ends.tolist(), strict=False):
            low, high = max(start - first, 0), min(stop - first, len(part))
            if low < high:
                found.append(part[low:high].astype(self.dtype, copy=False))
        return np.concatenate(found)


class Runs(Column):
    """Few distinct values in long runs, held in memory: the chromosomes of a sorted table.

    values : (r,) of each run.  starts : (r,) increasing, from 0.  length : n.
    """

    def __init__(self, values: Array, starts: Array, length: int) -> None:
        self.values, self.starts, self.length = values, starts, length
        self.dtype = values.dtype

    @classmethod
    def of(cls, values: Any) -> Runs:
        """The runs of an array, or of a column, which is read piece by piece."""
        if isinstance(values, cls):
            return values
        array = values if isinstance(values, Column) else np.asarray(values)
        parts, starts, place = [np.empty(0, array.dtype)], [np.empty(0, np.int64)], 0
        for piece in array.pieces() if isinstance(array, Column) else [array]:
            new = np.append(True, piece[1:] != piece[:-1])[: len(piece)]
            if place and len(piece) and piece[0] == parts[-1][-1]:
                new[0] = False
            if new.any():
                parts.append(piece[new])
                starts.append(np.flatnonzero(new) + place)
            place += len(piece)
        return cls(np.concatenate(parts), np.concatenate(starts), place)

    @property
    def nbytes(self) -> int:  # type: ignore[override]
        return int(self.values.nbytes + self.starts.nbytes)

    def __len__(self) -> int:
        return self.length

    def read(self, start: int, stop: int) -> Array:
        first = int(np.searchsorted(self.starts, start, side="right")) - 1
        last = int(np.searchsorted(self.starts, stop, side="left"))
        edges = np.clip(np.append(self.starts[first:last], stop), start, stop)
        return (
            np.repeat(self.values[first:last], np.diff(edges))
            if stop > start
            else (np.empty(0, self.dtype))
        )

    def mapped(self, function: Callable[[Array], Array]) -> Runs:
        """The runs with function(values) in place of the values."""
        return Runs(function(self.values), self.starts, self.length)


class Mapped(Column):
    """A function of columns of one length, applied when they are read."""

    def __init__(self, function: Callable[..., Array], dtype: Any, *columns: Any) -> None:
        self.function, self.columns, self.dtype = function, columns, np.dtype(dtype)

    @property
    def nbytes(self) -> int:  # type: ignore[override]
        return sum(int(column.nbytes) for column in self.columns)

    def __len__(self) -> int:
        return len(self.columns[0])

    def read(self, start: int, stop: int) -> Array:
        parts = (column[start:stop] for column in self.columns)
        return np.asarray(self.function(*parts), dtype=self.dtype)


def join(parts: Sequence[Any]) -> Any:
    """Arrays or columns concatenated; text where any of them is."""
    if len(parts) == 1:
        return parts[0]
    if all(isinstance(part, Runs) for part in parts):
        ends = np.cumsum([0, *map(len, parts)])
        starts = [part.starts + end for part, end in zip(parts, ends[:-1], strict=True)]
        values = joined([part.values for part in parts])
        return Runs(values, np.concatenate(starts), int(ends[-1]))
    if any(isinstance(part, Column) for part in parts):
        return Joined(parts)
    return joined(list(parts))


def by_pieces(function: Callable[..., Array], *columns: Any) -> Array:
    """A function of equally long arrays or columns, applied piece by piece."""
    if not any(isinstance(column, Column) for column in columns):
        return np.asarray(function(*columns))
    n = len(columns[0])
    parts = [function(*(c[i : i + PIECE] for c in columns)) for i in range(0, n, PIECE)]
    return np.concatenate(parts)


def textual(values: Any) -> Any:
    """Any names as text: an array in memory, or a column of text."""
    if not isinstance(values, Column) or values.dtype.kind == "T":
        return values if isinstance(values, Column) else as_text(values)
    return Mapped(as_text, np.dtypes.StringDType(), values)
