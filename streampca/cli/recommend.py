"""``streampca recommend``: items for users, or like an item, from a saved completion of ratings."""

from __future__ import annotations

import argparse
import csv
from collections.abc import Mapping, Sequence
from typing import Any

import streampca
from streampca.cli.commands import Parser
from streampca.cli.options import print_answer
from streampca.errors import InvalidInputError
from streampca.sources.ratings.recognition import DELIMITERS
from streampca.sources.text_files import read_text


def add_options(parsers: Mapping[str, Parser], argv: Sequence[str]) -> None:
    """Add the options of the command."""
    one = parsers["recommend"]
    one.set_defaults(run=run_recommend, parser=one)
    one.add_argument("model", help="a saved fit of ratings: streampca impute ratings.csv --user ..")
    one.add_argument("user", nargs="*", help="ids of users")
    one.add_argument("-n", type=int, default=10, metavar="N", help="items for each user")
    one.add_argument("--seen", action="store_true", help="items that the user has rated, too")
    one.add_argument("--similar", metavar="ITEM", help="items that are liked by the same people")
    one.add_argument(
        "--predict",
        metavar="FILE",
        help="the ratings of pairs: a text file with the columns of users and items of the fit",
    )
    one.add_argument("--json", action="store_true", help="print JSON")


def run_recommend(arguments: argparse.Namespace) -> int:
    """``streampca recommend``: print lists of items."""
    named = bool(arguments.user), arguments.similar is not None, arguments.predict is not None
    if sum(named) != 1:
        raise InvalidInputError(
            "name users, or one item, or a file of pairs: recommend MODEL USER, --similar ITEM, or "
            "--predict FILE"
        )
    model: Any = streampca.load(arguments.model)
    if not hasattr(model, "recommend"):
        raise InvalidInputError(
            f"{arguments.model} is a {type(model).__name__}; expected a HardImpute or SoftImpute "
            "of ratings: streampca impute ratings.csv --user user --item item --rating rating -o m"
        )
    if arguments.predict is not None:
        return _predict(model, arguments)
    if arguments.similar is not None:
        lists = {arguments.similar: model.similar_items(arguments.similar, arguments.n)}
    else:
        lists = model.recommend(arguments.user, arguments.n, seen=arguments.seen)
    text = "\n\n".join(_table(name, found) for name, found in lists.items())
    print_answer(arguments, lists, text)
    return 0


def _predict(model: Any, arguments: argparse.Namespace) -> int:
    """Print the pairs of a file with what the model predicts."""
    labels = model.result_.labels
    names = [labels.samples.dims[0], labels.features.dims[0]]
    columns = _columns(arguments.predict, names)
    predicted = model.predict(*columns).tolist()
    rows = [*zip(*columns, predicted, strict=True)]
    lines = [f"{user}\t{item}\t{value:.4g}" for user, item, value in rows]
    print_answer(arguments, rows, "\n".join(["\t".join([*names, "prediction"]), *lines]))
    return 0


def _columns(path: str, names: Sequence[str]) -> list[list[str]]:
    """Two columns of a text file, by the names in its first line."""
    lines = read_text(path).splitlines()
    mark = next((delimiter for delimiter in DELIMITERS if lines and delimiter in lines[0]), ",")
    split = csv.reader(lines, delimiter=mark) if len(mark) == 1 else (x.split(mark) for x in lines)
    rows = [row for row in split if row]
    head = rows[0] if rows else []
    if not {*names} <= {*head}:
        raise InvalidInputError(
            f"{path} begins with {', '.join(head)!r:.60}; expected a line of names with those of "
            f"the fit, {names[0]} and {names[1]}"
        )
    places = [head.index(name) for name in names]
    short = next((row for row in rows if len(row) <= max(places)), None)
    if short is not None:
        raise InvalidInputError(
            f"{path}: the line {mark.join(short)!r:.60} has {len(short)} of {len(head)} columns"
        )
    return [[row[at] for row in rows[1:]] for at in places]


def _table(name: str, found: list[tuple[Any, float]]) -> str:
    """A list with its heading."""
    width = max((len(str(item)) for item, _ in found), default=0)
    lines = [f"  {item!s:<{width}}  {value:8.4g}" for item, value in found]
    return "\n".join([name, *(lines or ["  nothing is left"])])
