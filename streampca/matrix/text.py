"""Long arrays of short text (ids, chromosomes, alleles), worked on in pieces.

They are NumPy ``StringDType`` arrays: 16 bytes an entry where fixed-width ones would take 4 bytes
a character of the longest. Sorting them without ``kind="stable"`` crashes NumPy 2.4 on some input,
and ``np.unique`` and ``np.isin`` do so: hence dictionaries here.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import numpy as np

Text = np.ndarray[Any, Any]
PIECE = 65536  # entries that are Python strings at the same time
WIDE = 64 << 20  # bytes that labels may take when each is as wide as the longest


def label_array(names: Any) -> Text:
    """``np.asarray`` of labels, but for one long one among many: that would widen all of them."""
    text = isinstance(names, (list, tuple)) and all(isinstance(name, str) for name in names)
    if text and 4 * len(names) * max(map(len, names), default=0) > WIDE:
        return as_text(names)
    return np.asarray(names)


def as_text(names: Any) -> Text:
    """Any names as an array of text."""
    if getattr(names, "dtype", np.dtype("O")).kind in "TU":
        return np.asarray(names, dtype=np.dtypes.StringDType())
    return np.array([str(name) for name in names], dtype=np.dtypes.StringDType())


def compact(names: list[str]) -> Text:
    """As text; names of one or two characters (chromosomes, bases) in 8 bytes each."""
    short = all(len(name) <= 2 for name in names)
    return np.array(names, dtype="U2" if short else np.dtypes.StringDType())


def joined(parts: Sequence[Text]) -> Text:
    """One array after another; text where any of them is."""
    if any(part.dtype.kind == "T" for part in parts):
        parts = [as_text(part) for part in parts]
    return np.concatenate(parts)


def pieces(values: Text) -> Iterator[list[str]]:
    """The entries as lists of Python strings."""
    for start in range(0, len(values), PIECE):
        yield values[start : start + PIECE].tolist()


def is_among(values: Text, wanted: Iterable[str]) -> Text:
    """(n,) True where an entry is one of the wanted ones."""
    known = frozenset(wanted)
    return np.fromiter((v in known for piece in pieces(values) for v in piece), bool, len(values))


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

    hashes : (n,) int64 of the entries' UTF-8 bytes, where they are known: sorted in place.
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
