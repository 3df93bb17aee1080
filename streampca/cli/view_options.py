"""Options of ``streampca plot`` for fields and for models of two views."""

from __future__ import annotations

import argparse
import re
from typing import Any

import numpy as np

import streampca
from streampca.cli.commands import Parser
from streampca.cli.outputs import score_paths
from streampca.errors import InvalidInputError
from streampca.matrix import VIEWS

OF_VIEW = (
    "scores",
    "projected",
    "pairs",
    "biplot",
    "pcs",
    "loadings",
    "manhattan",
    "correlation_circle",
    "map",
)
FURTHER = ("level", "lag", "member")  # dimensions of features that a map does not show


def field_options(one: Parser) -> None:
    one.add_argument("--view", choices=("x", "y"), help="of a model of two views, this one")
    one.add_argument(
        "--map-of",
        metavar="KIND",
        help="eof, correlation or covariance; homogeneous, heterogeneous or weights of two views",
    )
    one.add_argument("--variable", metavar="NAME", help="of --kind map: of several variables")
    for name in FURTHER:
        one.add_argument(f"--{name}", metavar="VALUE", help=f"of --kind map: at this {name}")
    one.add_argument(
        "--at", action="append", metavar="DIM=VALUE", help="of --kind map: at this of any dimension"
    )


def field_of(arguments: argparse.Namespace, kind: str) -> dict[str, Any]:
    """The options that choose a view, and those of a map.

    Raises InvalidInputError for a picture that does not take them.
    """
    options: dict[str, Any] = {}
    if arguments.view:
        if kind not in OF_VIEW:
            raise InvalidInputError(f"--view: --kind {kind} shows both views; leave it out")
        options["view"] = arguments.view
    further = _of_map(arguments)
    if further and kind != "map":
        first = next(iter(further))
        option = "map-of" if first == "kind" else first
        raise InvalidInputError(f"--{option} is of --kind map, and this is --kind {kind}")
    return options | further


def with_options(text: str) -> str:
    """A message with ``at={'depth': 10}`` as the option that says so."""
    return re.sub(r"\bat=\{'([^']+)': '?([^}']+)'?\}", r"--at \1=\2", text)


def _of_map(arguments: argparse.Namespace) -> dict[str, Any]:
    known = {"kind": arguments.map_of, "variable": arguments.variable}
    found = {name: value for name, value in known.items() if value is not None}
    for name in FURTHER:
        if (value := getattr(arguments, name)) is not None:
            found[name] = _value(value)
    for one in arguments.at or ():
        dim, equals, value = one.partition("=")
        if not equals:
            raise InvalidInputError(f"--at {one}: expected DIM=VALUE, such as depth=10")
        found.setdefault("at", {})[dim] = _value(value)
    return found


def _value(text: str) -> Any:
    """A number where it is one, else text."""
    try:
        return float(text)
    except ValueError:
        return text


def two_views_of(arguments: argparse.Namespace, kind: str, labels: Any) -> dict[str, Any]:
    """The scores of both views, or of one, that ``fit --scores`` wrote."""
    if kind == "projected":
        raise InvalidInputError("--kind projected is of one view; draw --kind scores")
    options: dict[str, Any] = {} if kind == "pcs" else {"labels": labels}
    if arguments.scores:
        both = scores_of_both(arguments.scores)
        one = VIEWS.index(arguments.view or "x")
        options["scores"] = both[one] if arguments.view or kind in ("pairs", "biplot") else both
    return options


def scores_of_both(path: str) -> list[Any]:
    """The scores of X and of Y that ``fit --scores`` wrote."""
    matrices = [streampca.open(one) for one in score_paths(path, len(VIEWS))]
    return [np.asarray(matrix.read(0, 0, matrix.shape[0])) for matrix in matrices]
