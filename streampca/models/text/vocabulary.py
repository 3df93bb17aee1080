"""Terms of documents counted while they are read, in bounded memory and exactly.

The dictionary from terms to numbers is written to disk when it is full, and another is begun. The
counts of a batch of documents use the numbers of the dictionary of its time. At the end the
dictionaries are merged in the order of the terms, which gives the exact frequencies of each.
"""

from __future__ import annotations

import heapq
import json
import os
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import groupby
from operator import itemgetter
from typing import Any, NamedTuple

import numpy as np
import scipy

from streampca.errors import InvalidInputError
from streampca.kernels import Array
from streampca.sources.sparse_files import append_to
from streampca.store.places import writing

BATCH = 1 << 18  # tokens that are counted at once
TERM_NBYTES = 300  # of an entry of a dictionary of terms, with its numbers


class Term(NamedTuple):
    """A term, in how many documents it occurs, how often, and its number in a dictionary."""

    term: str
    documents: int
    total: int
    number: int


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

    def of(self, terms: Iterator[Term], n: int) -> list[str]:
        """Those of n documents that stay, in alphabetical order."""
        low, high = (v * n if isinstance(v, float) else v for v in (self.min_df, self.max_df))
        if high < low:
            raise InvalidInputError(
                f"max_df={self.max_df!r} is fewer than min_df={self.min_df!r} of {n} documents"
            )
        inside: Iterator[Term] = (one for one in terms if low <= one.documents <= high)
        if self.max_features is not None:
            inside = iter(heapq.nlargest(self.max_features, inside, key=itemgetter(2)))
        return sorted(one.term for one in inside)


@dataclass
class TermCounts:
    """Takes documents as lists of terms, then gives their counts over the terms that stay.

    folder : for scratch files.  most_terms : that the dictionary holds before it is written out.
    fixed : the terms that count, in the order of their columns; None: any.
    """

    folder: str
    most_terms: int
    fixed: Sequence[str] | None = None
    documents: int = 0
    tokens: int = 0
    unknown: int = 0  # tokens that are not among ``fixed``
    largest: int = 0  # count of a term in a document
    dictionaries: int = 0  # that were written out
    _known: dict[str, int] = field(default_factory=dict)
    _sizes: list[int] = field(default_factory=list)  # of all dictionaries
    _batches: list[tuple[int, Array, int]] = field(default_factory=list)  # dictionary, indptr, at
    _waiting: list[int] = field(default_factory=list)
    _lengths: list[int] = field(default_factory=list)

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
        self._in_documents, self._totals = np.zeros((2, size), np.int64)

    def add(self, terms: list[str]) -> None:
        """The terms of the next document."""
        known = self._known
        if self.fixed is None:
            numbers = [known[term] for term in terms]
        else:
            numbers = [known[term] for term in terms if term in known]
            self.unknown += len(terms) - len(numbers)
        self._waiting += numbers
        self._lengths.append(len(numbers))
        self.tokens += len(terms)
        self.documents += 1
        if len(self._waiting) >= BATCH or len(self._lengths) >= BATCH:
            self._count()
            if self.fixed is None and len(known) > self.most_terms:
                self._write_out()

    def _count(self) -> None:
        """Count the batch that waits, and write its counts."""
        if not self._lengths:
            return
        size = len(self._known)
        indptr = np.concatenate([[0], np.cumsum(self._lengths, dtype=np.int64)])
        numbers = np.array(self._waiting, np.int32)
        parts = (np.ones(len(numbers), np.int32), numbers, indptr.astype(np.int32))
        counts = scipy.sparse.csr_array(parts, shape=(len(self._lengths), max(1, size)))
        counts.sum_duplicates()
        more = size - len(self._totals)
        self._in_documents = np.pad(self._in_documents, (0, more))
        self._totals = np.pad(self._totals, (0, more))
        self._in_documents += np.bincount(counts.indices, minlength=size)[:size]
        weights = np.bincount(counts.indices, counts.data, minlength=size)[:size]
        self._totals += weights.astype(np.int64)
        self.largest = max(self.largest, int(counts.data.max(initial=0)))
        self._batches.append((self.dictionaries, counts.indptr, self._file.tell()))
        append_to(self._file, counts.indices)
        append_to(self._file, counts.data)
        self._waiting, self._lengths = [], []

    def _path(self, dictionary: int) -> str:
        return os.path.join(self.folder, f"terms-{dictionary}")

    def _sorted(self) -> Iterator[Term]:
        """The dictionary in memory, in alphabetical order."""
        for term in sorted(self._known):
            i = self._known[term]
            if i < len(self._totals):
                yield Term(term, int(self._in_documents[i]), int(self._totals[i]), i)

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
        parts = [self._terms_of(i) for i in range(self.dictionaries + 1)]
        for term, alike in groupby(heapq.merge(*parts, key=itemgetter(0)), key=itemgetter(0)):
            found = list(alike)
            yield Term(term, sum(one.documents for one in found), sum(one.total for one in found),
                       0)  # fmt: skip

    def counts(self, vocabulary: Sequence[str]) -> Iterator[Any]:
        """CSR blocks of all documents in order, over the terms of a vocabulary."""
        self._count()
        place = {term: i for i, term in enumerate(vocabulary)}
        columns, of = np.zeros(0, np.int32), -1
        for dictionary, indptr, at in self._batches:
            if dictionary != of:
                columns, of = self._columns(dictionary, place), dictionary
            yield self._block(indptr, at, columns, len(vocabulary))

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
