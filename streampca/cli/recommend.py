"""``streampca recommend``: items for users, or like an item, from a saved completion of ratings."""

from __future__ import annotations

import argparse
import json
from collections.abc import Mapping, Sequence
from typing import Any

import streampca
from streampca.cli.commands import Parser
from streampca.errors import InvalidInputError


def add_options(parsers: Mapping[str, Parser], argv: Sequence[str]) -> None:
    """Add the options of the command."""
    one = parsers["recommend"]
    one.set_defaults(run=run_recommend, parser=one)
    one.add_argument("model", help="a saved fit of ratings: streampca impute ratings.csv --user ..")
    one.add_argument("user", nargs="*", help="ids of users")
    one.add_argument("-n", type=int, default=10, metavar="N", help="items for each user")
    one.add_argument("--seen", action="store_true", help="items that the user has rated, too")
    one.add_argument("--similar", metavar="ITEM", help="items that are liked by the same people")
    one.add_argument("--json", action="store_true", help="print JSON")


def run_recommend(arguments: argparse.Namespace) -> int:
    """``streampca recommend``: print lists of items."""
    if bool(arguments.user) == (arguments.similar is not None):
        raise InvalidInputError("name users, or one item: recommend MODEL USER, or --similar ITEM")
    model: Any = streampca.load(arguments.model)
    if not hasattr(model, "recommend"):
        raise InvalidInputError(
            f"{arguments.model} is a {type(model).__name__}; expected a HardImpute or SoftImpute "
            "of ratings: streampca impute ratings.csv --user user --item item --rating rating -o m"
        )
    if arguments.similar is not None:
        lists = {arguments.similar: model.similar_items(arguments.similar, arguments.n)}
    else:
        lists = model.recommend(arguments.user, arguments.n, seen=arguments.seen)
    if arguments.json:
        print(json.dumps(lists, indent=1))
        return 0
    print("\n\n".join(_table(name, found) for name, found in lists.items()))
    return 0


def _table(name: str, found: list[tuple[Any, float]]) -> str:
    """A list with its heading."""
    width = max((len(str(item)) for item, _ in found), default=0)
    lines = [f"  {item!s:<{width}}  {value:8.4g}" for item, value in found]
    return "\n".join([name, *(lines or ["  nothing is left"])])
