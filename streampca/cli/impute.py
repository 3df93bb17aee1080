"""``streampca impute``: complete a matrix with missing cells."""

from __future__ import annotations

import argparse
from collections.abc import Mapping, Sequence
from typing import Any

import streampca
from streampca.cli.commands import Parser
from streampca.cli.config import apply_config, cluster_options, on_cluster
from streampca.cli.fields import Spelling, add_fields, one_or_several
from streampca.cli.options import (
    open_source,
    output_options,
    print_fit,
    print_plan,
    print_planned,
    refuse_ratings,
    running_options,
    settings_of_run,
    source_options,
)
from streampca.cli.outputs import check_outputs, write_scores
from streampca.errors import InvalidInputError
from streampca.models.completion.request import SOLVERS
from streampca.sources.ratings.store import RULES, SPLITS


def add_options(parsers: Mapping[str, Parser], argv: Sequence[str]) -> None:
    """Add the options of the command."""
    one = parsers["impute"]
    one.set_defaults(run=on_cluster(run_impute), parser=one, apply_config=apply_config)
    cluster_options(one)
    one.add_argument("source", nargs="*", help="as for fit; sparse files are ratings")
    source_options(one)
    _rating_options(one)
    _model_options(one)
    _writing_options(one)
    running_options(one)


def _rating_options(one: argparse.ArgumentParser) -> None:
    """A file with a line for each rating."""
    ratings = one.add_argument_group("ratings", "a line each, in text or Parquet; ids are kept")
    for name, place in (("user", 0), ("item", 1), ("rating", 2)):
        ratings.add_argument(
            f"--{name}",
            type=_column,
            metavar="COLUMN",
            help=f"its name, or number from 0 (default {place})",
        )
    ratings.add_argument("--time", type=_column, metavar="COLUMN", help="for --test-by time")
    ratings.add_argument(
        "--duplicates",
        choices=RULES,
        default="last",
        help="which of several ratings of an item by a user counts",
    )
    ratings.add_argument(
        "--test", type=float, metavar="SHARE", help="of the ratings, to judge the model by"
    )
    ratings.add_argument(
        "--test-by",
        choices=SPLITS,
        default="random",
        help="which they are; time: the latest (default random)",
    )
    ratings.add_argument(
        "--relevant",
        type=float,
        metavar="X",
        help="the least rating of a good recommendation, for --test (default: the mean)",
    )


def _column(text: str) -> int | str:
    """The number or the name of a column."""
    return int(text) if text.isdigit() else text


def open_ratings_of(arguments: argparse.Namespace) -> tuple[Any, Any]:
    """(ratings to fit to, ratings to judge by or None); None where the source is a matrix."""
    columns = _used(arguments, ("user", "item", "rating", "time"))
    if arguments.relevant is not None and arguments.test is None:
        raise InvalidInputError("--relevant is for --test: say which share of the ratings, 0.1")
    if not columns:
        if arguments.test is not None:
            raise InvalidInputError("--test is for ratings: say --user, --item and --rating")
        if len(arguments.source) == 1:
            refuse_ratings(arguments.source[0])
        return None, None
    if len(arguments.source) != 1:
        raise InvalidInputError(f"{len(arguments.source)} files of ratings; expected one")
    text = _used(arguments, ("header", "delimiter", "decimal", "encoding"))
    ratings = streampca.open_ratings(
        arguments.source[0], duplicates=arguments.duplicates, **columns, **text
    )
    if arguments.test is None:
        return ratings, None
    return ratings.split(arguments.test, by=arguments.test_by, seed=arguments.random_state)


def _used(arguments: argparse.Namespace, names: Sequence[str]) -> dict[str, Any]:
    """The values of those of these options that are used."""
    values = {name: getattr(arguments, name) for name in names}
    return {name: value for name, value in values.items() if value is not None}


OF_BOTH: dict[str, Spelling] = {  # HardImpute and SoftImpute
    "rank": {
        "flags": ("-r", "--rank"),
        "nargs": "+",
        "metavar": "R",
        "help": "of the model (default 1; of ratings 2 4 8 16, judged by 5 %% of them); several "
        "are fitted in the same passes, and held-out cells decide; with --validation that without "
        "components is always a candidate",
    },
    "solver": {"choices": SOLVERS, "help": "default auto: als"},
    "bounds": {
        "nargs": "+",
        "metavar": "X",
        "help": "of imputed values: observed (the least and the largest cell), none, or LOW HIGH",
    },
    "scale": {"metavar": "none|std|both"},
    "absent": {
        "choices": ("missing", "zero"),
        "help": "meaning of cells that a sparse source does not store",
    },
    "validation": {"metavar": "SHARE", "help": "of the cells, held out for validation"},
    "early_stop": {"help": "stop by the held-out error"},
    "tol": {"help": "relative change at which to stop (default 1e-5)"},
    "max_passes": {},
    "random_state": {},
    "checkpoint": {"metavar": "FOLDER", "help": "resume from here if interrupted"},
    "scratch": {"metavar": "FOLDER", "help": "for arrays that do not fit into memory"},
}
PENALTY = {"nargs": "+", "metavar": "X", "default": None}
OF_HARD = {
    "alpha": {
        **PENALTY,
        "help": "penalty on the factors (Hard-Impute), or auto: with --validation several are "
        "tried, else none",
    }
}
OF_SOFT = {
    "lambda_": {
        **PENALTY,
        "help": "lower the singular values by this instead, or auto (Soft-Impute)",
    }
}


def _model_options(one: argparse.ArgumentParser) -> None:
    """The parameters of a completion."""
    add_fields(one, streampca.HardImpute, OF_BOTH | OF_HARD)
    add_fields(one, streampca.SoftImpute, OF_SOFT)
    center = one.add_mutually_exclusive_group()
    center.add_argument(
        "--no-center",
        dest="center",
        action="store_const",
        const=False,
        default="auto",
        help="do not subtract column means",
    )
    center.add_argument(
        "--center",
        choices=("auto", "columns", "both", "biases"),
        default="auto",
        help="columns: their means; biases: of rows and columns, fitted with the factors; both: "
        "means of both, alternating; auto: biases with --validation, else columns",
    )
    one.add_argument("--init", metavar="MODEL", help="begin with a saved model")


def _writing_options(one: argparse.ArgumentParser) -> None:
    """What is written where, and what is printed."""
    one.add_argument("--completed", metavar="ZARR", help="write the completed matrix here")
    one.add_argument("--plan", action="store_true", help="print what would be done; reads no data")
    output_options(one)


def run_impute(arguments: argparse.Namespace) -> int:
    """``streampca impute``: fit, report, write."""
    check_outputs(
        models=[arguments.output],
        scores=[arguments.scores],
        arrays=[arguments.completed],
        sources=arguments.source,
        overwrite=arguments.overwrite,
    )
    ratings, unseen = open_ratings_of(arguments)
    matrix = open_source(arguments) if ratings is None else ratings
    model = model_of(arguments)
    if arguments.plan:
        print_planned(arguments, model.plan(matrix), matrix)
        return 0
    print_plan(arguments, lambda: model.plan(matrix))
    model.fit(matrix)
    if arguments.output:
        model.save(arguments.output)
    if arguments.scores:
        write_scores(model, matrix, arguments.scores, arguments.overwrite)
    if arguments.completed:
        model.impute(matrix, out=arguments.completed, overwrite=arguments.overwrite)
    test = {} if unseen is None else tests_of(model, matrix, unseen, arguments.relevant)
    more = {"test": test["model"], "baseline": test["biases alone"]} if test else {}
    text = "\n".join([report(model), *([report_of_tests(test)] if test else [])])
    written = (arguments.output, arguments.scores, arguments.completed)
    print_fit(arguments, lambda: summary(model) | more, text, *written)
    return 0


def model_of(arguments: argparse.Namespace) -> streampca.HardImpute | streampca.SoftImpute:
    """The unfitted completion of the arguments. Raises InvalidInputError."""
    soft = arguments.lambda_ is not None
    if soft and arguments.alpha is not None:
        raise InvalidInputError("--alpha and --lambda are two models; choose one")
    names = [*OF_BOTH, *(OF_SOFT if soft else OF_HARD)]
    values = {name: one_or_several(getattr(arguments, name)) for name in names}
    values["center"] = True if arguments.center == "columns" else arguments.center
    if arguments.init is not None:
        values["init"] = streampca.load(arguments.init)
    if arguments.alpha is None:
        values.pop("alpha", None)
    values |= {"missing_value": arguments.missing_value, **settings_of_run(arguments)}
    return streampca.SoftImpute(**values) if soft else streampca.HardImpute(**values)


def summary(model: Any) -> dict[str, Any]:
    """The result of a completion, JSON-ready."""
    last, result = model.trace_[-1], model.result_
    return {
        "method": result.method,
        "rank": model.best_rank_,
        "penalty": model.best_penalty_,
        "samples": result.n_samples,
        "features": result.n_features,
        "passes": last.passes,
        "sweeps": model.n_iter_,
        "turns": model.turns_,
        "change": last.change[last.chosen],
        "bounds": model.bounds_,
        "singular_values": result.singular_values.tolist(),
        "candidates": model.validation_,
        "seconds": result.provenance["seconds"],
        "peak_bytes": result.provenance["peak_bytes"],
    }


def report(model: Any) -> str:
    """The result of a completion, as text."""
    found = summary(model)
    low_high = "none" if found["bounds"] is None else "{:g} to {:g}".format(*found["bounds"])
    lines = [f"{'rank':>5} {'penalty':>9} {'objective':>12} {'held-out RMSE':>14}"]
    for one in found["candidates"]:
        best = (one["rank"], one["penalty"]) == (found["rank"], found["penalty"])
        held = "-" if one["held_out"] != one["held_out"] else f"{one['held_out']:.6g}"
        lines.append(
            f"{one['rank']:>5} {one['penalty']:>9.4g} {one['objective']:>12.6g} {held:>14}"
            + ("  <" if best and len(found["candidates"]) > 1 else "")
        )
    errors = [candidate["held_out"] for candidate in found["candidates"]]
    if found["rank"] == 0 and min(errors) < errors[0]:
        lines.append("rank 0 is kept: no other rank is better by more than the standard error")
    lines.append(f"predictions are kept within the bounds: {low_high}")
    if found["turns"]:
        lines.append(
            f"{len(found['turns'])} turns for rows and columns; the last one moved their means and "
            f"scales by {found['turns'][-1]:.1e} of what they leave"
        )
    lines.append(
        f"{found['sweeps']} sweeps in {found['passes']} passes, {found['seconds']:.1f} s; the last "
        f"one changed the estimate by {found['change']:.1e}"
    )
    return "\n".join(lines)


def tests_of(model: Any, ratings: Any, unseen: Any, relevant: float | None) -> dict[str, Any]:
    """What ``evaluate`` says of the model, and of biases alone, which every model should beat."""
    alone = streampca.HardImpute(
        0,
        center="biases",
        absent=model.absent,
        progress=False,
        memory_limit=model.memory_limit,
        scheduler=model.scheduler,
        scratch=model.scratch,
    )
    models = {"biases alone": alone.fit(ratings), "model": model}
    return {name: one.evaluate(unseen, relevant=relevant) for name, one in models.items()}


def report_of_tests(found: dict[str, dict[str, Any]]) -> str:
    """Errors and ranks on ratings that the fits have not seen, as text."""
    one = found["model"]
    columns = ("rmse", "mae", "precision", "recall", "ndcg")
    names = ("RMSE", "MAE", "precision", "recall", "NDCG")
    lines = [
        f"{one['ratings']} ratings put aside, {one['cold']} of them of new users or items:",
        f"{'':<12}" + "".join(f"{name:>10}" for name in names),
        *(
            f"{name:<12}" + "".join(f"{row[column]:>10.4g}" for column in columns)
            for name, row in found.items()
        ),
        f"ranks: {one['n']} recommendations; good are ratings from {one['relevant']:.3g}; means "
        f"over {one['users']} users who gave one",
    ]
    return "\n".join(lines)
