"""``streampca bootstrap``: how sure the sample makes the components of a saved model."""

from __future__ import annotations

import argparse
from collections.abc import Mapping, Sequence
from typing import Any

import streampca
from streampca.cli.commands import Parser
from streampca.cli.options import (
    open_source,
    print_answer,
    progress_of,
    running_options,
    source_options,
)
from streampca.cli.pictures import LABELS, draw, picture_path, read_labels, read_scores
from streampca.errors import InvalidInputError
from streampca.solvers.resampling import MATCHES


def add_options(parsers: Mapping[str, Parser], argv: Sequence[str]) -> None:
    """Add the options of the command."""
    one = parsers["bootstrap"]
    one.set_defaults(run=run_bootstrap)
    one.add_argument("model")
    one.add_argument(
        "source",
        nargs="*",
        help="the rows of the fit, for one pass that makes their scores; not needed where the "
        "model has them (wide fits) or with --scores",
    )
    one.add_argument("--scores", metavar="ZARR|TSV|H5AD", help="those of the rows of the fit")
    one.add_argument(
        "--method",
        choices=("bootstrap", "jackknife", "asymptotic"),
        default="bootstrap",
        help="asymptotic: formulas for normal rows, of the model alone",
    )
    one.add_argument("-k", "--n-components", type=int, metavar="K", help="default: at most 50")
    one.add_argument("--resamples", type=int, metavar="N", help="default 1000")
    one.add_argument(
        "--groups",
        metavar="FILE|NAME",
        help=f"draw, or leave out, whole groups of rows: family of PLINK files, or {LABELS}",
    )
    one.add_argument("--blocks", type=int, metavar="N", help="consecutive rows of a time series")
    one.add_argument(
        "--features",
        metavar="NAME",
        help="of the jackknife: leave features out instead, by this column, such as chromosome",
    )
    one.add_argument(
        "--exact",
        action="store_true",
        default=None,
        help="of the jackknife: a pass of the source keeps the sums of each group, and what the "
        "model did not keep counts too (--blocks, --groups or --features)",
    )
    one.add_argument(
        "--n-effective", type=float, metavar="N", help="independent rows, for asymptotic"
    )
    one.add_argument("--match", choices=MATCHES, help="of components with those of the model")
    one.add_argument("--seed", type=int, metavar="N", help="default 0")
    one.add_argument("--level", type=float, default=0.95, metavar="X", help="default 0.95")
    one.add_argument("--plot", metavar="PNG|PDF|SVG", help="draw the scree plot with intervals")
    running_options(one)
    source_options(one)


OF = {  # option -> (argument, methods)
    "scores": ("scores", ("bootstrap", "jackknife")),
    "n_components": ("n_components", ("bootstrap", "jackknife", "asymptotic")),
    "resamples": ("n_resamples", ("bootstrap",)),
    "groups": ("groups", ("bootstrap", "jackknife")),
    "blocks": ("blocks", ("bootstrap", "jackknife")),
    "features": ("features", ("jackknife",)),
    "exact": ("exact", ("jackknife",)),
    "n_effective": ("n_effective", ("asymptotic",)),
    "match": ("match", ("bootstrap", "jackknife")),
    "seed": ("random_state", ("bootstrap",)),
}
FUNCTIONS = {"asymptotic": "sampling_errors"}  # of methods that are named otherwise


def run_bootstrap(arguments: argparse.Namespace) -> int:
    """``streampca bootstrap``."""
    output = None if arguments.plot is None else picture_path(arguments.plot)
    method, options = arguments.method, _options_of(arguments)
    model: Any = streampca.load(arguments.model)
    result = model.result_
    if "scores" in options:
        options["scores"] = read_scores(arguments.scores, result.labels.samples, result)[1]
    if "groups" in options and arguments.groups not in result.labels.samples.extra:
        options["groups"] = read_labels(arguments.groups)
    if arguments.source:
        settings = getattr(model, "pca", None) or model  # a rotated model has those of its PCA
        settings.set_params(progress=progress_of(arguments), scheduler=arguments.scheduler)
        if arguments.memory_limit:
            settings.set_params(memory_limit=arguments.memory_limit)
        options["X"] = open_source(arguments)
    elif method != "asymptotic" and result.scores is None and "scores" not in options:
        raise InvalidInputError(
            f"{arguments.model} keeps no scores; name the rows of its fit, 'streampca bootstrap "
            "MODEL SOURCE', or their scores, --scores FILE"
        )
    found = getattr(streampca, FUNCTIONS.get(method, method))(model, **options)
    if output is not None:
        draw("scree", result, output, certainty=found)
    text = found.text(found.n_components, arguments.level)
    print_answer(arguments, found.to_dict(arguments.level), text)
    return 0


def _options_of(arguments: argparse.Namespace) -> dict[str, Any]:
    """Arguments of the function, by name. Raises InvalidInputError for those of another method."""
    method, options = arguments.method, {}
    if arguments.source and method == "asymptotic":
        raise InvalidInputError("--method asymptotic reads no rows; leave the source out")
    for option, (name, methods) in OF.items():
        value = getattr(arguments, option)
        if value is not None and method not in methods:
            said = option.replace("_", "-")
            raise InvalidInputError(f"--{said} is of --method {methods[0]}, not of {method}")
        if value is not None:
            options[name] = value
    return options
