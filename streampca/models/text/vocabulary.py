"""Terms of documents counted while they are read, in bounded memory and exactly.

The dictionary from terms to numbers is written to disk when it is full, and another is begun. The
counts of a batch of documents use the numbers of the dictionary of its time. At the end the
dictionaries are merged in the order of the terms, which gives the exact frequencies of each.
A document may begin in one batch and end in another: its parts are added when they are read back,
and a term of it that stands in two of them has still one document.
"""

from __future__ import annotations

import heapq
import json
import os
import sys
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import groupby, islice, pairwise, zip_longest
from operator import itemgetter
from typing import Any, NamedTuple

import numpy as np
import scipy

from streampca.errors import InvalidInputError, MemoryLimitError
from streampca.kernels import Array
from streampca.sources.local_files import append_to
from streampca.store.places import writing

BATCH = 1 << 18  # tokens that are counted at once
ENTRY_NBYTES = 240  # of an entry of a dictionary of terms, with its numbers, without the term
TERM_NBYTES = 300  # with a term of ten characters


class Term(NamedTuple):
    """A term, in how many documents it occurs, how often, and its number in a dictionary.

    first, last : numbers of the first and the last document with it, of those of the dictionary.
    """

    term: str
    documents: int
    total: int
    number: int
    first: int
    last: int


class Batch(NamedTuple):
    """Where the counts of a batch lie: its dictionary, its rows, and its place in the file.

    joined : whether its first row continues the last of the batch before.
    """

    dictionary: int
    indptr: Array
    at: int
    joined: bool


class Kept(NamedTuple):
    """Which terms stay, as scikit-learn's vectorizers define it.

    min_df, max_df : a number of documents, or a share (float).  max_features : the most frequent.
    """

    min_df: float = 1
    max_df: float = 1.0
    max_features: int | None = None

    def check(self) -> None:
        """Raise InvalidInputError for values that no corpus could have."""
        for name, value in (("min_df", self.min_df), ("max_df", self.max_df)):
            share = isinstance(value, float) and 0.0 <= value <= 1.0
            whole = isinstance(value, (int, np.integer)) and not isinstance(value, bool)
            if not (share or (whole and value >= 1)):
                raise InvalidInputError(
                    f"{name}={value!r}; expected a number of documents from 1, or a share such as "
                    "0.5"
                )
        most = self.max_features
        if most is not None and (type(most) is bool or not isinstance(most, int) or most < 1):
            raise InvalidInputError(f"max_features={most!r}; expected a number from 1, or None")

    def of(self, terms: Iterator[Term], n: int, most: int | None = None) -> list[str]:
        """Those of n documents that stay, in alphabetical order.

        most : that there is memory for; None: any number. Raises MemoryLimitError beyond it.
        """
        low, high = (v * n if isinstance(v, float) else v for v in (self.min_df, self.max_df))
        if high < low:
            raise InvalidInputError(
                f"max_df={self.max_df!r} is fewer than min_df={self.min_df!r} of {n} documents"
            )
        inside: Iterator[Term] = (term for term in terms if low <= term.documents <= high)
        if self.max_features is not None:
            inside = iter(heapq.nlargest(self.max_features, inside, key=itemgetter(2)))
        stay = sorted(one.term for one in (inside if most is None else islice(inside, most + 1)))
        if most is not None and len(stay) > most:
            raise MemoryLimitError(
                f"more than {most} terms stay, which is what the memory limit has room for. Keep "
                "fewer, with min_df=2 or max_features=50000, or set a larger limit"
            )
        return stay


@dataclass
class TermCounts:
    """Takes documents as lists of terms, then gives their counts over the terms that stay.

    folder : for scratch files.  most_terms : that the dictionary holds before it is written out,
    terms of ten characters.  batch : tokens that are counted at once.
    fixed : the terms that count, in the order of their columns; None: any.
    on_batch : is called when a batch has been counted.
    """

    folder: str
    most_terms: int
    fixed: Sequence[str] | None = None
    batch: int = BATCH
    on_batch: Callable[[], None] = lambda: None
    documents: int = 0
    tokens: int = 0
    unknown: int = 0  # tokens that are not among ``fixed``
    largest: int = 0  # count of a term in a document, at most
    longest: int = 0  # bytes of the dictionary, at most
    dictionaries: int = 0  # that were written out
    _known: dict[str, int] = field(default_factory=dict)
    _sizes: list[int] = field(default_factory=list)  # of all dictionaries
    _batches: list[Batch] = field(default_factory=list)
    _waiting: list[int] = field(default_factory=list)
    _lengths: list[int] = field(default_factory=list)
    _joined: bool = False  # whether the first document that waits has begun in a batch before
    _within: int = 0  # largest count of a term in the parts of that document, added

    def __post_init__(self) -> None:
        self._file = open(os.path.join(self.folder, "counts"), "w+b", buffering=0)  # noqa: SIM115
        self._begin()

    def close(self) -> None:
        """Close the scratch file of counts."""
        self._file.close()

    def _begin(self) -> None:
        if self.fixed is not None:
            self._known = {term: i for i, term in enumerate(self.fixed)}
            size = len(self.fixed)
        else:
            self._known = defaultdict()
            self._known.default_factory = self._known.__len__
            size = 0
        self._in_documents, self._totals, self._first = np.zeros((3, size), np.int64)
        self._last = np.full(size, -1)
        self._nbytes = 0

    def add(self, terms: list[str]) -> None:
        """The terms of the next document."""
        self.add_parts([terms])

    def add_parts(self, parts: Iterable[list[str]]) -> None:
        """The terms of the next document, in lists that need not be in memory together."""
        known = self._known
        self._lengths.append(0)
        self.documents += 1
        for terms in parts:
            if self.fixed is None:
                numbers = [known[term] for term in terms]
            else:
                numbers = [known[term] for term in terms if term in known]
                self.unknown += len(terms) - len(numbers)
            self._waiting += numbers
            self._lengths[-1] += len(numbers)
            self.tokens += len(terms)
            if len(self._waiting) >= self.batch:
                self._count(within=True)
                known = self._known
        if len(self._lengths) >= self.batch:
            self._count()

    def _count(self, within: bool = False) -> None:
        """Count the batch that waits, and write its counts.

        within : whether the last of its documents may continue.
        """
        if not self._lengths:
            return
        size, rows = len(self._known), len(self._lengths)
        indptr = np.concatenate([[0], np.cumsum(self._lengths, dtype=np.int64)])
        numbers = np.array(self._waiting, np.int32)
        parts = (np.ones(len(numbers), np.int32), numbers, indptr.astype(np.int32))
        counts = scipy.sparse.csr_array(parts, shape=(rows, max(1, size)))
        counts.sum_duplicates()
        self._remember(counts, size)
        self._batches.append(
            Batch(self.dictionaries, counts.indptr, self._file.tell(), self._joined)
        )
        append_to(self._file, counts.indices)
        append_to(self._file, counts.data)
        self.on_batch()
        self._waiting, self._lengths, self._joined = [], [0] if within else [], within
        if self.fixed is None and self._nbytes > self.most_terms * TERM_NBYTES:
            self._write_out()

    def _remember(self, counts: Any, size: int) -> None:
        """Add the counts of a batch to the frequencies of the terms."""
        old = len(self._totals)
        if more := size - old:
            self._in_documents, self._totals, self._first = (
                np.pad(one, (0, more)) for one in (self._in_documents, self._totals, self._first)
            )
            self._last = np.pad(self._last, (0, more), constant_values=-1)
            if self.fixed is None:
                new = islice(reversed(self._known), more)
                self._nbytes += sum(map(sys.getsizeof, new)) + more * ENTRY_NBYTES
                self.longest = max(self.longest, self._nbytes)
        rows = np.diff(counts.indptr)
        first = self.documents - len(rows)  # number of the document of the first row
        of = np.repeat(np.arange(first, self.documents), rows)
        new = counts.indices >= old
        self._first[counts.indices[new][::-1]] = of[new][::-1]
        self._in_documents += np.bincount(counts.indices, minlength=size)[:size]
        if self._joined:
            begun = counts.indices[: counts.indptr[1]]
            self._in_documents[begun[self._last[begun] == first]] -= 1
        self._last[counts.indices] = of
        weights = np.bincount(counts.indices, counts.data, minlength=size)[:size]
        self._totals += weights.astype(np.int64)
        self._measure(counts)

    def _measure(self, counts: Any) -> None:
        """The largest count of a term in a document; of one in several batches, a bound."""
        begun = int(counts.data[: counts.indptr[1]].max(initial=0)) + self._within * self._joined
        last = int(counts.data[counts.indptr[-2] :].max(initial=0))
        self._within = begun if counts.shape[0] == 1 else last
        self.largest = max(self.largest, begun, int(counts.data.max(initial=0)))

    def _path(self, dictionary: int) -> str:
        return os.path.join(self.folder, f"terms-{dictionary}")

    def _sorted(self) -> Iterator[Term]:
        """The dictionary in memory, in alphabetical order."""
        for term in sorted(self._known):
            i = self._known[term]
            if i < len(self._totals):
                numbers = (self._in_documents[i], self._totals[i], i, self._first[i], self._last[i])
                yield Term(term, *map(int, numbers))

    def _write_out(self) -> None:
        path = self._path(self.dictionaries)
        with writing(path), open(path, "w", encoding="ascii") as file:
            file.writelines(json.dumps(one) + "\n" for one in self._sorted())
        self._sizes.append(len(self._known))
        self.dictionaries += 1
        self._begin()

    def _terms_of(self, dictionary: int) -> Iterator[Term]:
        if dictionary == self.dictionaries:
            yield from self._sorted()
            return
        with open(self._path(dictionary), encoding="ascii") as file:
            yield from (Term(*json.loads(line)) for line in file)

    def terms(self) -> Iterator[Term]:
        """All terms with their frequencies in all documents, in alphabetical order."""
        self._count()
        if self.dictionaries:  # and the last one gives its memory to the vocabulary
            self._write_out()
        parts = [self._terms_of(i) for i in range(self.dictionaries + 1)]
        for term, alike in groupby(heapq.merge(*parts, key=itemgetter(0)), key=itemgetter(0)):
            found = list(alike)
            shared = sum(a.last == b.first for a, b in pairwise(found))  # in two dictionaries
            documents = sum(one.documents for one in found) - shared
            total = sum(one.total for one in found)
            yield Term(term, documents, total, 0, found[0].first, found[-1].last)

    def counts(self, vocabulary: Sequence[str]) -> Iterator[Any]:
        """CSR blocks of all documents in order, over the terms of a vocabulary."""
        self._count()
        place = {term: i for i, term in enumerate(vocabulary)}
        columns, of, begun = np.zeros(0, np.int32), -1, None
        for one, following in zip_longest(self._batches, self._batches[1:]):
            if one.dictionary != of:
                columns, of = self._columns(one.dictionary, place), one.dictionary
            block = self._block(one.indptr, one.at, columns, len(vocabulary))
            if begun is not None:
                block = scipy.sparse.vstack([begun + block[:1], block[1:]], format="csr")
            begun = block[-1:] if following is not None and following.joined else None
            block = block if begun is None else block[:-1]
            if block.shape[0]:
                yield block

    def _columns(self, dictionary: int, place: dict[str, int]) -> Array:
        """The column of each number of a dictionary; -1 where its term does not stay."""
        here = dictionary == self.dictionaries
        columns = np.full(len(self._known) if here else self._sizes[dictionary], -1, np.int32)
        for one in self._terms_of(dictionary):
            columns[one.number] = place.get(one.term, -1)
        return columns

    def _block(self, indptr: Array, at: int, columns: Array, width: int) -> Any:
        entries = int(indptr[-1])
        self._file.seek(at)
        numbers, values = (np.fromfile(self._file, np.int32, entries) for _ in range(2))
        mine = columns[numbers]
        stay = mine >= 0
        before = np.concatenate([[0], np.cumsum(stay)])
        parts = (values[stay], mine[stay], before[indptr].astype(np.int32))
        block = scipy.sparse.csr_array(parts, shape=(len(indptr) - 1, width))
        block.sort_indices()
        return block
