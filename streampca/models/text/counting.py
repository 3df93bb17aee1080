"""``streampca.open_texts``: texts as a sparse matrix of documents x terms, counted into Zarr."""

from __future__ import annotations

import copy
import json
import os
import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, fields, replace
from functools import cached_property
from typing import Any, NamedTuple, Self

import numpy as np
import scipy

from streampca.errors import InvalidInputError, MissingDependencyError, SourceError
from streampca.imported import weighing
from streampca.matrix import AxisLabels, ChunkedMatrix
from streampca.models.text.vocabulary import TERM_NBYTES, Kept, TermCounts
from streampca.passes import parse_nbytes
from streampca.sources import open
from streampca.sources.anndata import TOKENS
from streampca.sources.sparse_files import ScratchFolder
from streampca.sources.texts import Document, documents
from streampca.store import CompressedGroupSink

CHUNK = 1 << 18  # entries: larger blocks leave a limited fit fewer vectors, and so fewer digits


@dataclass(frozen=True)
class Tokens:
    """Settings of ``sklearn.feature_extraction.text.CountVectorizer``, with its defaults.

    They are plain values, so that they are saved: functions of one's own are not among them.
    """

    lowercase: bool = True
    strip_accents: str | None = None
    stop_words: str | tuple[str, ...] | None = None
    token_pattern: str = r"(?u)\b\w\w+\b"
    ngram_range: tuple[int, int] = (1, 1)
    analyzer: str = "word"

    @classmethod
    def checked(cls, **arguments: Any) -> Self:
        """Of arguments, lists and sets of words among them. Raises InvalidInputError."""
        made = cls(**arguments)
        words = made.stop_words
        if isinstance(words, Iterable) and not isinstance(words, str):
            made = replace(made, stop_words=tuple(sorted(map(str, words))))
        if isinstance(made.ngram_range, Iterable):
            low_high: Any = tuple(made.ngram_range)
            made = replace(made, ngram_range=low_high)
        made._check()
        return made

    @classmethod
    def of(cls, vectorizer: Any) -> Self:
        """Those of a vectorizer of scikit-learn. Raises InvalidInputError for its own functions."""
        own = [n for n in ("tokenizer", "preprocessor") if getattr(vectorizer, n, None) is not None]
        own += ["analyzer"] * callable(getattr(vectorizer, "analyzer", None))
        if own:
            raise InvalidInputError(
                f"the vectorizer has a function as its {own[0]}, which cannot be saved: give "
                "terms=vectorizer.get_feature_names_out(), and search with rows of counts, "
                "model.search(vectorizer.transform([query]))"
            )
        return cls.checked(**{one.name: getattr(vectorizer, one.name) for one in fields(cls)})

    def _check(self) -> None:
        allowed: dict[str, Any] = {
            "lowercase": (True, False), "strip_accents": (None, "ascii", "unicode"),
            "analyzer": ("word", "char", "char_wb"),
        }  # fmt: skip
        for name, choices in allowed.items():
            if getattr(self, name) not in choices:
                raise InvalidInputError(f"{name}={getattr(self, name)!r:.60}; expected one of "
                                        f"{choices}")  # fmt: skip
        if not isinstance(self.stop_words, tuple) and self.stop_words not in (None, "english"):
            raise InvalidInputError(
                f"stop_words={self.stop_words!r:.60}; expected 'english', a list of words, or None"
            )
        low_high = self.ngram_range
        numbers = isinstance(low_high, tuple) and all(type(n) is int for n in low_high)
        if not (numbers and len(low_high) == 2 and 1 <= low_high[0] <= low_high[1]):
            raise InvalidInputError(f"ngram_range={low_high!r:.60}; expected such as (1, 2)")
        try:
            groups = re.compile(self.token_pattern).groups
        except (re.error, TypeError) as error:
            raise InvalidInputError(
                f"token_pattern={self.token_pattern!r:.60} is no regular expression ({error})"
            ) from None
        if groups > 1:
            raise InvalidInputError(
                f"token_pattern={self.token_pattern!r:.60} has {groups} groups; expected one at "
                "most, which is the term. Write the others as (?:...)"
            )

    @cached_property
    def split(self) -> Callable[[str], list[str]]:
        """The function from a text to its terms. Raises MissingDependencyError."""
        try:
            with weighing():
                from sklearn.feature_extraction.text import CountVectorizer
        except ImportError:
            raise MissingDependencyError(
                "texts are split by scikit-learn, which is not installed: "
                "pip install 'streampca[text]'"
            ) from None
        words = list(self.stop_words) if isinstance(self.stop_words, tuple) else self.stop_words
        vectorizer = CountVectorizer(**asdict(self) | {"stop_words": words})
        analyse: Callable[[str], list[str]] = vectorizer.build_analyzer()
        return analyse

    def to_json(self) -> str:
        return json.dumps(asdict(self))

    @classmethod
    def from_json(cls, text: str, where: str) -> Self:
        """The inverse of ``to_json``. Raises SourceError.  where : for messages."""
        try:
            saved = json.loads(text)
            if not isinstance(saved, Mapping):
                raise TypeError("not an object")
            known = {one.name for one in fields(cls)}
            return cls.checked(**{name: saved[name] for name in known if name in saved})
        except (TypeError, ValueError) as error:
            raise SourceError(f"{where}: how its texts were split is damaged ({error})") from None


MOST_TERMS = 1_000_000  # in memory at a time, without a limit
LEAST_TERMS = 20_000
SHARE = 4  # a dictionary takes a part of the limit, beside its sorted terms and the process


def open_texts(
    source: Any,
    out: str | os.PathLike[str] | None = None,
    *,
    column: str | None = None,
    names: Any = None,
    encoding: str = "utf-8",
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
        such as ``docs/*.txt``, a list of files, a file of JSON lines or CSV (``.gz`` too), or an
        iterable of texts: a list, a Series, a generator, an open file of a document a line.
    out : a new Zarr directory for the counts, which ``streampca.open`` opens again; None: a scratch
        folder, which is removed with the matrix.
    column : of JSON lines or CSV, the key or title of the text.
    names : of the documents: of JSON lines or CSV the key or title, else a name for each.
    encoding : of files.
    vocabulary : the terms that count, in this order; None finds them.
    min_df, max_df : a term counts if so many documents hold it, or such a share of them (float).
    max_features : the most frequent terms alone.
    stop_words, lowercase, strip_accents, token_pattern, ngram_range, analyzer : as scikit-learn's
        ``CountVectorizer`` takes them, which splits the texts. They are kept with the counts, and
        by a model of them: queries are split in the same way.
    memory_limit : bytes or such as "512MiB". The dictionary is kept within a quarter of it, and
        its parts are merged on disk beyond: the counts are the same.

    Cost: texts are read and split once; their counts lie in a scratch file meanwhile, 8 bytes for
    each term of a document. In memory is the dictionary, and the names of the documents.
    Raises InvalidInputError or SourceError (nothing there, another encoding, no term left),
    MissingDependencyError without scikit-learn, OccupiedError where something is at ``out``.
    """
    tokens = Tokens.checked(
        lowercase=lowercase, strip_accents=strip_accents, stop_words=stop_words,
        token_pattern=token_pattern, ngram_range=ngram_range, analyzer=analyzer,
    )  # fmt: skip
    kept = Kept(min_df, max_df, max_features)
    kept.check()
    fixed = None if vocabulary is None else _checked(vocabulary, kept)
    texts = documents(source, column=column, names=names, encoding=encoding)
    return counted(texts, tokens, kept, fixed, out, memory_limit, overwrite).matrix


class Counted(NamedTuple):
    """Counts of texts, and the share of their words that a given vocabulary does not have."""

    matrix: ChunkedMatrix
    unknown: float


def counted(
    texts: Iterator[Document],
    tokens: Tokens,
    kept: Kept,
    fixed: list[str] | None,
    out: str | os.PathLike[str] | None = None,
    memory_limit: int | str | None = None,
    overwrite: bool = False,
) -> Counted:
    """Count documents over a fixed vocabulary, or over the terms that stay of all."""
    folder = ScratchFolder()
    path = os.path.join(folder.path, "counts.zarr") if out is None else os.fspath(out)
    terms = TermCounts(folder.path, _most_terms(memory_limit), fixed)
    try:
        _write(texts, tokens, kept, terms, path, overwrite)
    finally:
        terms.close()
    matrix: ChunkedMatrix = open(path)
    matrix.loads = (*matrix.loads, "sklearn")  # which split the texts, and stays in this process
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
        twice = next(one for one, count in Counter(terms).items() if count > 1)
        raise InvalidInputError(f"vocabulary has the term {twice!r:.60} twice")
    return terms


def _most_terms(memory_limit: int | str | None) -> int:
    limit = parse_nbytes(memory_limit)
    if limit is None:
        return MOST_TERMS
    return max(LEAST_TERMS, min(MOST_TERMS, limit // SHARE // TERM_NBYTES))


def _write(
    texts: Iterator[Document], tokens: Tokens, kept: Kept, terms: TermCounts, path: str,
    overwrite: bool,
) -> None:  # fmt: skip
    """Count all documents and write them."""
    split, names = tokens.split, []
    for document in texts:
        terms.add(split(document.text))
        if document.name is not None:
            names.append(document.name)
    n = terms.documents
    if not n:
        raise InvalidInputError("there is no document; expected one or more")
    vocabulary = terms.fixed
    if vocabulary is None:
        vocabulary = kept.of(terms.terms(), n)
    if not vocabulary:
        raise InvalidInputError(
            f"no term is left of {terms.tokens} tokens in {n} documents: "
            f"min_df={kept.min_df!r}, max_df={kept.max_df!r}, and {tokens}. Widen them"
        )
    sink = CompressedGroupSink(
        path, (n, len(vocabulary)), np.uint16 if terms.largest < 1 << 16 else np.int32, 0,
        (names or None, vocabulary), {TOKENS: tokens.to_json()}, overwrite,
        most_entries=terms.tokens, chunk=CHUNK,
    )  # fmt: skip
    try:
        for block in terms.counts(vocabulary):
            sink.write(sink.written, block.astype(sink.dtype))
        sink.finish()
    except BaseException:
        sink.interrupted()
        raise


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
    told = {**labels.attrs, **tokens}
    named.labels = replace(labels, samples=axes[0], features=axes[1], attrs=told)
    return named
