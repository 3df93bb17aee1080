"""``streampca.open_texts``: texts as a sparse matrix of documents x terms, counted into Zarr."""

from __future__ import annotations

import copy
import json
import os
import sys
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from itertools import chain
from typing import Any, NamedTuple

import numpy as np
import scipy

from streampca.errors import InvalidInputError, InvalidTypeError, MemoryLimitError
from streampca.matrix import AxisLabels, ChunkedMatrix
from streampca.models.text.counting_plan import (
    Budget,
    CountingRecord,
    documents_nbytes,
    plan_of_counts,
)
from streampca.models.text.splitting import Pieces, Tokens
from streampca.models.text.vocabulary import Kept, TermCounts
from streampca.passes import MemoryUse
from streampca.sources import as_matrix, open
from streampca.sources.local_files import ScratchFolder
from streampca.sources.sparse.anndata import TOKENS
from streampca.sources.texts.documents import Texts
from streampca.sources.texts.records import column_of_texts
from streampca.store import CompressedGroupSink

NAME_NBYTES = 24  # of a name without its characters: in a list, and as a label
CHUNK = 1 << 18  # entries: larger blocks leave a limited fit fewer vectors, and so fewer digits


def open_texts(
    source: Any,
    out: str | os.PathLike[str] | None = None,
    *,
    column: str | None = None,
    names: Any = None,
    encoding: str = "utf-8",
    delimiter: str | None = None,
    lines: bool = False,
    missing: str = "raise",
    vocabulary: Sequence[str] | None = None,
    min_df: float = 1,
    max_df: float = 1.0,
    max_features: int | None = None,
    stop_words: str | Sequence[str] | None = None,
    lowercase: bool = True,
    strip_accents: str | None = None,
    token_pattern: str = r"(?u)\b\w\w+\b",
    ngram_range: tuple[int, int] = (1, 1),
    analyzer: str = "word",
    memory_limit: int | str | None = None,
    overwrite: bool = False,
) -> ChunkedMatrix:
    """Count the terms of texts: a sparse matrix (documents, terms) that every model takes.

    source : a folder of files (a document each; sub-folders are part of their names), a pattern
        such as ``docs/*.txt``, a list of files, a file of JSON, CSV (``.gz`` too) or Parquet,
        or an iterable of texts: a list, a Series, a generator, an open file of a document a line.
    out : a new Zarr directory for the counts, which ``streampca.open`` opens again; None: a scratch
        folder, which is removed with the matrix.
    column : of JSON, CSV or Parquet, the key or title of the text.
    names : of the documents: of such a file the key or title, else a name for each.
    encoding : of files.  delimiter : of CSV; None: the one that its header has.
    lines : whether each line of the file is a document.
    missing : "raise" refuses a text that is missing (None, NaN); "skip" leaves out those and empty
        ones, whose number is kept with the counts.
    vocabulary : the terms that count, in this order; None finds them.
    min_df, max_df : a term counts if so many documents hold it, or such a share of them (float).
    max_features : the most frequent terms alone.
    stop_words, lowercase, strip_accents, token_pattern, ngram_range, analyzer : as scikit-learn's
        ``CountVectorizer`` takes them, which splits the texts. They are kept with the counts, and
        by a model of them: queries are split in the same way.
    memory_limit : bytes or such as "512MiB", for this process while it counts. Texts are counted
        in pieces, and the dictionary is merged on disk beyond its part: the counts are the same.

    Cost: texts are read and split once; their counts lie in a scratch file meanwhile, 8 bytes for
    each term of a document. In memory are a piece of a text, the dictionary, and the names of the
    documents; a record of a table, and a text with a ``token_pattern`` that may match blanks, are
    held whole.
    Raises InvalidInputError or SourceError (nothing there, another encoding, no term left),
    MemoryLimitError before reading, or at a record, a stretch without blanks, names or terms that
    have no room; MissingDependencyError without scikit-learn, OccupiedError where something is at
    ``out``.

    Examples
    --------
    >>> from streampca import open_texts
    >>> counts = open_texts(["a cat and a dog", "a dog"])
    >>> counts.labels.features.names()
    ['and', 'cat', 'dog']
    """
    tokens = Tokens.checked(
        lowercase=lowercase,
        strip_accents=strip_accents,
        stop_words=stop_words,
        token_pattern=token_pattern,
        ngram_range=ngram_range,
        analyzer=analyzer,
    )
    kept = Kept(min_df, max_df, max_features)
    kept.check()
    if missing not in ("raise", "skip"):
        raise InvalidInputError(f"missing={missing!r:.60}; expected 'raise' or 'skip'")
    fixed = None if vocabulary is None else _checked(vocabulary, kept)
    texts = Texts(source, column, names, encoding, delimiter, lines)
    return counted(
        texts, tokens, kept, fixed, out, memory_limit, overwrite, skip=missing == "skip"
    ).matrix


class Counted(NamedTuple):
    """Counts of texts, and the share of their words that a given vocabulary does not have."""

    matrix: ChunkedMatrix
    unknown: float


def counted(
    texts: Texts,
    tokens: Tokens,
    kept: Kept,
    fixed: list[str] | None,
    out: str | os.PathLike[str] | None = None,
    memory_limit: int | str | None = None,
    overwrite: bool = False,
    skip: bool = False,
) -> Counted:
    """Count documents over a fixed vocabulary, or over the terms that stay of all."""
    use = MemoryUse.begun()
    budget = Budget.within(memory_limit, tokens.a_character)
    folder = ScratchFolder()
    path = os.path.join(folder.path, "counts.zarr") if out is None else os.fspath(out)
    terms = TermCounts(folder.path, budget.terms, fixed, budget.batch, use.sample)
    try:
        names = _read(texts, tokens, terms, budget, skip)
        vocabulary, sink = _write(tokens, kept, terms, names, path, budget, overwrite)
    finally:
        terms.close()
    matrix: ChunkedMatrix = open(path)
    matrix.loads = (*matrix.loads, "sklearn")  # which split the texts, and stays in this process
    plan = plan_of_counts(
        terms,
        vocabulary,
        names.nbytes,
        sink.nbytes_in_memory(),
        texts.held,
        tokens.a_character,
        memory_limit,
    )
    matrix.opening = CountingRecord.of(plan, use)
    if out is None:
        vars(matrix)["folder"] = folder
        matrix.note = "counted into a scratch folder; streampca.open_texts(texts, out=...) keeps it"
    return Counted(matrix, terms.unknown / (terms.tokens or 1))


def count_texts(
    texts: Iterable[str], tokens: Tokens, places: Mapping[str, int]
) -> tuple[Any, list[list[str]]]:
    """CSR counts of texts in memory, and for each the terms that have no column.

    places : the column of each term.
    """
    indices: list[int] = []
    indptr, unknown = [0], []
    for text in texts:
        terms = tokens.split(text)
        indices += [places[term] for term in terms if term in places]
        indptr.append(len(indices))
        unknown.append([term for term in dict.fromkeys(terms) if term not in places])
    parts = (np.ones(len(indices)), np.array(indices, np.int32), np.array(indptr, np.int32))
    counts = scipy.sparse.csr_array(parts, shape=(len(unknown), len(places)))
    counts.sum_duplicates()
    return counts, unknown


def _checked(vocabulary: Sequence[str], kept: Kept) -> list[str]:
    """The terms of a given vocabulary. Raises InvalidInputError."""
    if kept != Kept():
        raise InvalidInputError(
            "vocabulary= and min_df, max_df or max_features: a given vocabulary stays as it is; "
            "leave them out"
        )
    terms = [str(one) for one in vocabulary]
    if len(set(terms)) < len(terms):
        twice = next(name for name, count in Counter(terms).items() if count > 1)
        raise InvalidInputError(f"vocabulary has the term {twice!r:.60} twice")
    return terms


@dataclass
class Names:
    """Names of documents as they come, and what they take.  skipped : documents left out."""

    names: list[str] = field(default_factory=list)
    nbytes: int = 0
    skipped: int = 0

    def add(self, name: str | None) -> None:
        if name is not None:
            self.names.append(name)
            self.nbytes += sys.getsizeof(name) + NAME_NBYTES


def _read(texts: Texts, tokens: Tokens, terms: TermCounts, budget: Budget, skip: bool) -> Names:
    """Count all documents, each in pieces."""
    texts.room, names, split = budget.texts, Names(), tokens.split
    pieces = Pieces(tokens.vectorizer, budget.texts)
    for document in texts:
        parts = iter(document.parts or ())
        first = next(parts, "")
        if skip and not first:
            names.skipped += 1
            continue
        if document.parts is None:
            raise InvalidTypeError(
                f"{document.where} is missing; expected text. streampca.open_texts(..., "
                "missing='skip') leaves such documents out"
            )
        second = next(parts, None)
        if second is None:
            terms.add(split(first))
        else:
            terms.add_parts(pieces.terms(chain((first, second), parts), document.where))
        names.add(document.name)
        held = documents_nbytes(terms, names.nbytes)
        if budget.documents is not None and held > budget.documents:
            raise MemoryLimitError(
                f"the names and lengths of the first {terms.documents} documents take "
                f"{held >> 20} MiB, which is their part of the memory limit. Set a larger "
                "limit, or leave out names="
            )
    return names


def _write(
    tokens: Tokens,
    kept: Kept,
    terms: TermCounts,
    names: Names,
    path: str,
    budget: Budget,
    overwrite: bool,
) -> tuple[list[str], CompressedGroupSink]:
    """Write the counts of all documents over the terms that stay."""
    n = terms.documents
    if not n:
        skipped = f" apart from the {names.skipped} that were skipped" if names.skipped else ""
        raise InvalidInputError(f"there is no document{skipped}; expected one or more")
    vocabulary = terms.fixed
    if vocabulary is None:
        most = budget.kept(terms, documents_nbytes(terms, names.nbytes))
        vocabulary = kept.of(terms.terms(), n, most)
    if not vocabulary:
        raise InvalidInputError(
            f"no term is left of {terms.tokens} tokens in {n} documents: "
            f"min_df={kept.min_df!r}, max_df={kept.max_df!r}, and {tokens}. Widen them"
        )
    settings = asdict(tokens) | kept._asdict() | {"skipped": names.skipped}
    settings |= {} if terms.fixed is None else {"vocabulary": "given"}
    sink = CompressedGroupSink(
        path,
        (n, len(vocabulary)),
        np.uint16 if terms.largest < 1 << 16 else np.int32,
        0,
        (names.names or None, vocabulary),
        {TOKENS: json.dumps(settings)},
        overwrite,
        most_entries=terms.tokens,
        chunk=CHUNK,
    )
    try:
        for block in terms.counts(vocabulary):
            sink.write(sink.written, block.astype(sink.dtype))
        sink.finish()
    except BaseException:
        sink.interrupted()
        raise
    return list(vocabulary), sink


def opened_counts(
    X: Any,
    given: Mapping[str, Any],
    dim: Any = None,
    terms: Any = None,
    names: Any = None,
    missing_value: float | None = None,
) -> ChunkedMatrix:
    """X that are counts already, with names of columns and rows.

    given : options of texts that were set. Raises InvalidInputError for them, and for tables with a
    column of texts, whose numbers are no counts.
    """
    if isinstance(X, (list, tuple)) and not X:
        raise InvalidInputError("X is an empty list: there is no document; expected one or more")
    for name, value in given.items():
        raise InvalidInputError(
            f"{name}={value!r:.60} is for texts, and X are counts: leave it "
            "out, or give it to streampca.open_texts or the vectorizer that counts"
        )
    if (column := column_of_texts(X)) is not None:
        path = repr(os.fspath(X)) if isinstance(X, (str, os.PathLike)) else None
        words = f"streampca.open_texts({path}, column={column!r})" if path else f"X[{column!r}]"
        raise InvalidInputError(
            f"the column {column!r} of {path or 'X'} holds texts, whose words are not counted yet: "
            f"fit to {words}. To fit to the other columns, as counts of terms: "
            f"streampca.open({path or 'X'})"
        )
    return labelled(as_matrix(X, dim=dim, missing_value=missing_value), terms, names)


def labelled(matrix: ChunkedMatrix, terms: Any, names: Any) -> ChunkedMatrix:
    """Counts with names of their columns and rows, where they are given.

    terms : names, or a fitted vectorizer of scikit-learn, whose settings are kept too.
    """
    labels = matrix.labels
    tokens = {}
    if hasattr(terms, "get_feature_names_out"):
        tokens = {TOKENS: Tokens.of(terms).to_json()}
        terms = terms.get_feature_names_out()
    axes = []
    for what, axis, given in (("names", labels.samples, names), ("terms", labels.features, terms)):
        if given is not None and len(given) != len(axis):
            raise InvalidInputError(f"{what} are {len(given)}; X has {len(axis)} of them")
        dim = "-".join(axis.dims)
        axes.append(axis if given is None else AxisLabels.plain(dim, len(axis), list(given)))
    named = copy.copy(matrix)
    attrs = {**labels.attrs, **tokens}
    named.labels = replace(labels, samples=axes[0], features=axes[1], attrs=attrs)
    return named
