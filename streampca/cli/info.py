"""``streampca info``: describe a saved model or a source."""

from __future__ import annotations

import argparse
import json
from collections.abc import Mapping, Sequence
from typing import Any

import streampca
from streampca.cli.commands import Parser
from streampca.cli.options import open_source, source_options
from streampca.cli.outputs import describe, print_damage, summary
from streampca.operations.model_store import is_model
from streampca.passes import size
from streampca.store import is_bundle


def add_options(parsers: Mapping[str, Parser], argv: Sequence[str]) -> None:
    """Add the options of the command."""
    one = parsers["info"]
    one.set_defaults(run=run_info)
    one.add_argument("source", nargs="+", metavar="MODEL|SOURCE")
    source_options(one)


def _info_of_model(arguments: argparse.Namespace) -> int:
    place = arguments.source[0]
    if is_bundle(place):
        model, served = streampca.load(place), {}
    else:
        store = streampca.ModelStore(place)
        print_damage(store.history())
        version: Any = store.latest()
        model, served = version.load(), {"version": version.number, "id": version.id}
    if arguments.json:
        print(json.dumps({**served, **summary(model)}, indent=1))
        return 0
    if served:
        print(f"version    {served['version']} ({served['id']}), promoted")
    print(describe(model.result_))
    return 0


def run_info(arguments: argparse.Namespace) -> int:
    """``streampca info``: describe a model or a source."""
    if len(arguments.source) == 1 and is_model(arguments.source[0]):
        return _info_of_model(arguments)
    matrix = open_source(arguments)
    n, p = matrix.shape
    text: dict[str, Any] = {
        "samples": n,
        "features": p,
        "dtype": str(matrix.dtype),
        "bytes": matrix.nbytes,
    }
    for axis, name in enumerate(("sample", "feature")):
        edges = matrix.chunk_edges(axis)
        text[f"chunks along {name}s"] = None if edges is None else len(edges) - 1
    print(
        json.dumps(text)
        if arguments.json
        else "\n".join(f"{key:<22} {size(v) if key == 'bytes' else v}" for key, v in text.items())
    )
    return 0
