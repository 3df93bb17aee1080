"""``streampca impute``: complete a matrix with missing cells."""

from __future__ import annotations

import argparse
from collections.abc import Mapping, Sequence
from typing import Any

import streampca
from streampca.cli.commands import Parser
from streampca.cli.config import apply_config, cluster_options, on_cluster
from streampca.cli.options import (
    open_source,
    output_options,
    print_plan,
    progress_of,
    refuse_ratings,
    running_options,
    source_options,
)
from streampca.cli.outputs import check_outputs, write_scores
from streampca.cli.terminal import shown
from streampca.errors import InvalidInputError
from streampca.matrix.labels import json_of
from streampca.models.completion.request import SOLVERS
from streampca.sources.ratings.store import RULES, SPLITS

CENTERS = {"auto": "auto", "columns": True, "both": "both", "biases": "biases"}


def add_options(parsers: Mapping[str, Parser], argv: Sequence[str]) -> None:
    """Add the options of the command."""
    one = parsers["impute"]
    one.set_defaults(run=on_cluster(run_impute), parser=one, apply_config=apply_config)
    cluster_options(one)
    one.add_argument("source", nargs="*", help="as for fit; sparse files are ratings")
    source_options(one)
    _rating_options(one)
    _model_options(one)
    _stopping_options(one)
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
    given = _given(arguments, ("user", "item", "rating", "time"))
    if arguments.relevant is not None and arguments.test is None:
        raise InvalidInputError("--relevant is for --test: say which share of the ratings, 0.1")
    if not given:
        if arguments.test is not None:
            raise InvalidInputError("--test is for ratings: say --user, --item and --rating")
        if len(arguments.source) == 1:
            refuse_ratings(arguments.source[0])
        return None, None
    if len(arguments.source) != 1:
        raise InvalidInputError(f"{len(arguments.source)} files of ratings; expected one")
    given |= _given(arguments, ("header", "delimiter", "decimal", "encoding"))
    ratings = streampca.open_ratings(arguments.source[0], duplicates=arguments.duplicates, **given)
    if arguments.test is None:
        return ratings, None
    return ratings.split(arguments.test, by=arguments.test_by, seed=arguments.random_state)


def _given(arguments: argparse.Namespace, names: Sequence[str]) -> dict[str, Any]:
    found = {name: getattr(arguments, name) for name in names}
    return {name: one for name, one in found.items() if one is not None}


def _model_options(one: argparse.ArgumentParser) -> None:
    """Rank, penalty, centring and bounds."""
    one.add_argument(
        "-r",
        "--rank",
        type=int,
        nargs="+",
        metavar="R",
        help="of the model (default 1; of ratings 2 4 8 16, judged by 5 %% of them); several are "
        "fitted in the same passes, and held-out cells decide; with --validation the model without "
        "components is always a candidate",
    )
    one.add_argument(
        "--alpha",
        type=_penalty,
        nargs="+",
        metavar="X",
        help="penalty on the factors (Hard-Impute), or auto: with --validation several are tried, "
        "else none",
    )
    one.add_argument(
        "--lambda",
        type=_penalty,
        nargs="+",
        metavar="X",
        help="lower the singular values by this instead, or auto (Soft-Impute)",
    )
    one.add_argument("--solver", default="auto", choices=SOLVERS)
    one.add_argument("--no-center", action="store_true", help="do not subtract column means")
    one.add_argument(
        "--center",
        choices=tuple(CENTERS),
        default="auto",
        help="columns: their means; biases: of rows and columns, fitted with the factors; both: "
        "means of both, alternating; auto: biases with --validation, else columns",
    )
    one.add_argument(
        "--bounds",
        nargs="+",
        default=["observed"],
        metavar="X",
        help="of imputed values: observed (the least and the largest cell), none, or LOW HIGH",
    )
    one.add_argument("--scale", choices=("none", "std", "both"), default="none")
    one.add_argument(
        "--absent",
        choices=("missing", "zero"),
        default="missing",
        help="meaning of cells that a sparse source does not store",
    )


def _stopping_options(one: argparse.ArgumentParser) -> None:
    """Validation, and when to stop."""
    one.add_argument(
        "--validation", type=float, metavar="SHARE", help="of the cells, held out for validation"
    )
    one.add_argument("--early-stop", action="store_true", help="stop by the held-out error")
    one.add_argument("--tol", type=float, default=1e-5, help="relative change at which to stop")
    one.add_argument("--max-passes", type=int, default=100, metavar="N")
    one.add_argument("--random-state", type=int, default=0, metavar="SEED")
    one.add_argument("--init", metavar="MODEL", help="begin with a saved model")


def _writing_options(one: argparse.ArgumentParser) -> None:
    """What is written where, and what is printed."""
    one.add_argument("--completed", metavar="ZARR", help="write the completed matrix here")
    one.add_argument("--checkpoint", metavar="FOLDER", help="resume from here if interrupted")
    one.add_argument("--scratch", metavar="FOLDER", help="for arrays that do not fit into memory")
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
        plan = model.plan(matrix)
        print(plan.to_json() if arguments.json else plan)
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
    if arguments.json:
        whole = summary(model)
        found = {"test": test["model"], "baseline": test["biases alone"]} if test else {}
        print(json_of(whole | found, indent=1))
    elif not arguments.quiet:
        print(report(model))
        if test:
            print(report_of_tests(test))
        for path in (arguments.output, arguments.scores, arguments.completed):
            if path:
                print(f"written    {shown(path)}")
    return 0


def model_of(arguments: argparse.Namespace) -> streampca.HardImpute | streampca.SoftImpute:
    """The unfitted completion of the arguments. Raises InvalidInputError."""
    penalty = getattr(arguments, "lambda")  # a keyword of Python
    if arguments.alpha is not None and penalty is not None:
        raise InvalidInputError("--alpha and --lambda are two models; choose one")
    shared: dict[str, Any] = {
        name: getattr(arguments, name)
        for name in (
            "solver",
            "absent",
            "validation",
            "early_stop",
            "tol",
            "max_passes",
            "random_state",
            "missing_value",
            "memory_limit",
            "scheduler",
            "checkpoint",
            "scratch",
        )
    }
    if arguments.no_center and arguments.center != "auto":
        raise InvalidInputError(
            f"--no-center and --center {arguments.center} contradict each other; choose one"
        )
    shared["center"] = False if arguments.no_center else CENTERS[arguments.center]
    shared["bounds"] = _bounds(arguments.bounds)
    shared["scale"] = None if arguments.scale == "none" else arguments.scale
    shared["progress"] = progress_of(arguments)
    if arguments.init is not None:
        shared["init"] = streampca.load(arguments.init)
    rank = "auto" if arguments.rank is None else arguments.rank
    if penalty is not None:
        return streampca.SoftImpute(rank, _one_or_list(penalty), **shared)
    alpha = "auto" if arguments.alpha is None else _one_or_list(arguments.alpha)
    return streampca.HardImpute(rank, alpha=alpha, **shared)


def _penalty(text: str) -> float | str:
    """A number, or "auto"."""
    return text if text == "auto" else float(text)


def _one_or_list(penalties: list[float | str]) -> Any:
    return "auto" if penalties == ["auto"] else penalties


def _bounds(bounds: list[Any]) -> Any:
    """The parameter: "observed", None, or (low, high). Raises InvalidInputError."""
    if len(bounds) == 1 and str(bounds[0]).lower() in ("observed", "none"):
        return None if str(bounds[0]).lower() == "none" else "observed"
    try:
        low, high = map(float, bounds)
    except ValueError:
        raise InvalidInputError(
            f"--bounds {' '.join(map(str, bounds))}; expected observed, none, or two numbers such "
            "as --bounds 1 5"
        ) from None
    return low, high


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
    errors = [one["held_out"] for one in found["candidates"]]
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
