"""``streampca lsa fit|search|similar``: from texts to ranked answers."""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from shlex import quote
from typing import Any

import streampca
from streampca.cli.commands import Parser
from streampca.cli.fields import Spelling, add_fields
from streampca.cli.info import report
from streampca.cli.options import print_answer, print_fit, running_options, settings_of_run
from streampca.cli.outputs import check_outputs
from streampca.errors import InvalidInputError, MemoryLimitError
from streampca.models.text.lsa_result import Match
from streampca.operations.yaml_files import scalar
from streampca.paths import PARQUET
from streampca.sources.texts.documents import is_texts
from streampca.sources.texts.records import TABLES, column_of_texts

OF_LSA: dict[str, Spelling] = {
    "n_components": {"flags": ("-k", "--n-components"), "help": "factors (default 100)"},
    "weighting": {},
    "coordinates": {
        "metavar": "ZARR",
        "help": "of the documents: write them here, and read them from here in a search; else "
        "they are held in memory",
    },
}


def add_options(parsers: Mapping[str, Parser], argv: Sequence[str]) -> None:
    """Add the three commands."""
    inner = parsers["lsa"].add_subparsers(required=True, metavar="COMMAND")
    fit = inner.add_parser("fit", help="fit to texts or counts", description="fit, report, save")
    fit.set_defaults(run=run_fit)
    fit.add_argument(
        "source",
        nargs="+",
        help="a folder of texts, a pattern, files of text, JSON or CSV; or counts: Zarr, "
        ".h5ad, .mtx, .npz",
    )
    fit.add_argument("-o", "--output", metavar="MODEL", help="save the model here")
    add_fields(fit, streampca.LSA, OF_LSA)
    _text_options(fit)
    fit.add_argument("--overwrite", action="store_true", help="replace existing counts")
    fit.add_argument("-q", "--quiet", action="store_true", help="print nothing but errors")
    running_options(fit)

    search = inner.add_parser("search", help="documents near to a text", description="rank")
    search.set_defaults(run=run_search)
    search.add_argument("model")
    search.add_argument("query", nargs="+", help="words")
    similar = inner.add_parser(
        "similar", help="documents near to a document, or terms near to a term", description="rank"
    )
    similar.set_defaults(run=run_similar)
    similar.add_argument("model")
    what = similar.add_mutually_exclusive_group(required=True)
    what.add_argument("--document", metavar="NAME", help="its name, or its number from 0")
    what.add_argument("--term", metavar="WORD")
    for one in (search, similar):
        one.add_argument("-n", type=int, default=10, help="how many (default 10)")
    for one in (fit, search, similar):
        one.add_argument("--json", action="store_true", help="machine-readable output")


def _text_options(fit: argparse.ArgumentParser) -> None:
    """How texts are read and counted."""
    fit.add_argument("--column", metavar="NAME", help="of JSON, CSV or Parquet: the text")
    fit.add_argument("--names", metavar="NAME", help="of such a file: names of documents")
    fit.add_argument("--encoding", metavar="NAME", help="of files (default utf-8)")
    fit.add_argument("--delimiter", metavar="C", help="of CSV (default: what its header has)")
    fit.add_argument("--lines", action="store_true", help="each line of the file is a document")
    fit.add_argument(
        "--missing",
        choices=("raise", "skip"),
        help="skip leaves out documents whose text is missing or empty (default raise)",
    )
    fit.add_argument("--stop-words", metavar="english|FILE", help="english, or a file of words")
    fit.add_argument("--min-df", metavar="N", help="documents with a term, at least; or a share")
    fit.add_argument("--max-df", metavar="N", help="documents with a term, at most; or a share")
    fit.add_argument("--max-features", type=int, metavar="P", help="the most frequent terms alone")
    fit.add_argument("--ngrams", type=int, nargs=2, metavar=("LOW", "HIGH"), help="default 1 1")
    fit.add_argument("--counts", metavar="ZARR", help="write the counts here, to fit to them again")


def run_fit(arguments: argparse.Namespace) -> int:
    """``streampca lsa fit``: count, fit, report, save."""
    check_outputs(
        models=[arguments.output],
        arrays=[arguments.coordinates],
        sources=arguments.source,
        overwrite=arguments.overwrite,
    )
    counts = _counts(arguments)
    values = {name: getattr(arguments, name) for name in OF_LSA}
    model = streampca.LSA(**values, **settings_of_run(arguments))
    matrix = streampca.open(counts)
    with _advice_to_count_first(arguments, matrix):
        if not (arguments.json or arguments.quiet):
            print(model.plan(matrix), end="\n\n")
        model.fit(matrix)
    if arguments.output:
        model.save(arguments.output)
    print_fit(arguments, model.result_.summary, report(model), arguments.output)
    return 0


@contextmanager
def _advice_to_count_first(arguments: argparse.Namespace, matrix: Any) -> Iterator[None]:
    """Add to a MemoryLimitError that counting in a process of its own leaves more memory."""
    try:
        yield
    except MemoryLimitError as error:
        if "sklearn" in matrix.loads:
            path = arguments.counts or "counts.zarr"
            first = "" if arguments.counts else f"give --counts {path}, then "
            error.add_note(
                "scikit-learn, which counted the texts, takes part of that. Fit to the counts in a "
                f"process of its own: {first}streampca lsa fit {path}"
            )
        raise


def _counts(arguments: argparse.Namespace) -> Any:
    """The counts of the texts that the arguments name, or the path of counts."""
    source: Any = arguments.source[0] if len(arguments.source) == 1 else arguments.source
    values = {
        "column": arguments.column,
        "names": arguments.names,
        "encoding": arguments.encoding,
        "delimiter": arguments.delimiter,
        "lines": arguments.lines or None,
        "missing": arguments.missing,
        "stop_words": _stop_words(arguments.stop_words),
        "min_df": None if arguments.min_df is None else scalar(arguments.min_df),
        "max_df": None if arguments.max_df is None else scalar(arguments.max_df),
        "max_features": arguments.max_features,
        "ngram_range": arguments.ngrams,
    }
    options = {name: value for name, value in values.items() if value is not None}
    table = isinstance(source, str) and source.lower().endswith((*TABLES, *PARQUET))
    counts = not (is_texts(source) or arguments.lines or (table and arguments.column))
    if counts and (column := column_of_texts(source)):
        raise InvalidInputError(
            f"{source} has a column of texts, {column!r}: --column {quote(column)} counts its "
            "words. To fit to the other columns, as counts of terms: streampca convert "
            f"{quote(source)} -o counts.zarr, then streampca lsa fit counts.zarr"
        )
    if counts and (options or arguments.counts):
        first = next(iter(options), "counts").replace("_", "-")
        raise InvalidInputError(
            f"--{first} is for texts, and {source} holds counts; leave it out. Of a CSV file "
            "with a column of texts: --column NAME"
        )
    if counts:
        return source
    return streampca.open_texts(
        source,
        arguments.counts,
        memory_limit=arguments.memory_limit,
        overwrite=arguments.overwrite,
        **options,
    )


def _stop_words(text: str | None) -> Any:
    if text in (None, "english"):
        return text
    try:
        with open(str(text), encoding="utf-8") as file:
            return file.read().split()
    except OSError as error:
        raise InvalidInputError(
            f"--stop-words {text}: expected english, or a file of words ({error.strerror})"
        ) from None


def _opened(path: str) -> streampca.LSA:
    model = streampca.load(path)
    if not isinstance(model, streampca.LSA):
        raise InvalidInputError(
            f"{path} is a {type(model).__name__}; expected what streampca lsa fit -o wrote"
        )
    return model


def run_search(arguments: argparse.Namespace) -> int:
    """``streampca lsa search``: documents near to a text."""
    model, query = _opened(arguments.model), " ".join(arguments.query)
    found = model.search(query, arguments.n)
    unknown = model.words(query)[1]
    rows = [one._asdict() for one in found]
    more = [f"not in the vocabulary: {', '.join(unknown)}"] if unknown else []
    whole = {"query": query, "unknown": unknown, "documents": rows}
    print_answer(arguments, whole, "\n".join([*_lines(found), *more]))
    return 0


def run_similar(arguments: argparse.Namespace) -> int:
    """``streampca lsa similar``: documents near to a document, or terms near to a term."""
    model = _opened(arguments.model)
    if arguments.term is not None:
        found = model.similar_terms(arguments.term, arguments.n)
    else:
        name = arguments.document
        known = name in set(model.result_.labels.samples.names())
        number = int(name) if name.isdecimal() and not known else name
        found = model.similar_documents(number, arguments.n)
    print_answer(arguments, [one._asdict() for one in found], "\n".join(_lines(found)))
    return 0


def _lines(found: list[Match]) -> list[str]:
    return [f"{rank:>3}  {one.score:>6.3f}  {one.name}" for rank, one in enumerate(found, 1)]
