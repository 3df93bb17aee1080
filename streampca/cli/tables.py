"""Options of tables: which columns are features, and how a text is written."""

from __future__ import annotations

import argparse


def table_options(parser: argparse.ArgumentParser) -> None:
    """Options for opening a table."""
    parser.add_argument(
        "--columns", nargs="+", metavar="NAME", help="of a table, the features (default: numbers)"
    )
    parser.add_argument("--index", metavar="NAME", help="of a table, the names of the samples")
    parser.add_argument(
        "--categorical", choices=("onehot",), help="of a table, a feature of each category"
    )
    _text_options(parser)


def _text_options(parser: argparse.ArgumentParser) -> None:
    """How a table of text is written, where it is not recognised."""
    group = parser.add_argument_group("tables of text (CSV, TSV)")
    for option, value in (("--header", True), ("--no-header", False)):
        group.add_argument(
            option,
            action="store_const",
            const=value,
            dest="header",
            help=f"the first line holds {'the names of the columns' if value else 'data'}",
        )
    group.add_argument(
        "--na-values", nargs="+", action="extend", metavar="TEXT", help="cells that mean missing"
    )
    for name, what in (
        ("decimal", "the decimal mark, such as ,"),
        ("thousands", "the mark between thousands"),
        ("strip", "characters that do not belong to numbers, such as $ or %%"),
        ("comment", "begins what is ignored of a line, such as #"),
        ("delimiter", "between columns: a character, tab or blanks; of ratings any text, as ::"),
        ("encoding", "such as cp1252 or utf-16"),
    ):
        group.add_argument(f"--{name}", metavar="TEXT", help=what)
