"""``streampca impute``: complete a matrix with holes."""

from __future__ import annotations

import argparse
import json
from typing import Any

import streampca
from streampca.cli.config import cluster_options, on_cluster
from streampca.cli.options import open_source, progress_of, running_options, source_options
from streampca.cli.outputs import check_outputs
from streampca.errors import InvalidInputError
from streampca.models.completion.request import SOLVERS
from streampca.store import ZarrSink

CENTERS = {"auto": "auto", "columns": True, "both": "both", "biases": "biases"}
WORDS = "complete a matrix with holes by a low-rank model; NaN, a code, or what is not stored"


def add_commands(commands: Any) -> None:
    """Declare it."""
    one = commands.add_parser("impute", help=WORDS, description=WORDS)
    one.set_defaults(run=on_cluster(run_impute), parser=one)
    cluster_options(one)
    one.add_argument("source", nargs="*", help="as for fit; sparse files are ratings")
    source_options(one)
    one.add_argument(
        "-r",
        "--rank",
        type=int,
        nargs="+",
        default=[1],
        metavar="R",
        help="of the model; several are fitted in the same passes, and held-out cells choose; "
        "with --validation the model without components is always one of them",
    )
    one.add_argument(
        "--ridge",
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
        help="lower singular values by this instead, or auto: Soft-Impute",
    )
    one.add_argument("--solver", default="auto", choices=SOLVERS)
    one.add_argument("--no-center", action="store_true", help="do not subtract column means")
    one.add_argument(
        "--center",
        choices=tuple(CENTERS),
        default="auto",
        help="columns: their means; biases: of rows and columns, with the factors; both: means of "
        "both, by turns; auto: biases with --validation, else columns",
    )
    one.add_argument(
        "--bounds",
        nargs="+",
        default=["observed"],
        metavar="X",
        help="of what is filled in: observed (the least and the largest cell), none, or LOW HIGH",
    )
    one.add_argument("--scale", choices=("none", "std", "both"), default="none")
    one.add_argument(
        "--absent",
        choices=("missing", "zero"),
        default="missing",
        help="what a cell is that a sparse source does not store",
    )
    one.add_argument(
        "--validation", type=float, metavar="SHARE", help="of the cells, held out to judge by"
    )
    one.add_argument("--early-stop", action="store_true", help="when held-out cells say so")
    one.add_argument("--tol", type=float, default=1e-5, help="relative change at which to stop")
    one.add_argument("--max-passes", type=int, default=100, metavar="N")
    one.add_argument("--random-state", type=int, default=0, metavar="SEED")
    one.add_argument("--init", metavar="MODEL", help="begin with a saved model")
    one.add_argument("--completed", metavar="ZARR", help="write the completed matrix here")
    one.add_argument("--scores", metavar="ZARR", help="write the scores of all samples here")
    one.add_argument("-o", "--output", metavar="MODEL", help="save the model here")
    one.add_argument("--overwrite", action="store_true", help="replace existing outputs")
    one.add_argument("--checkpoint", metavar="FOLDER", help="go on from here if interrupted")
    one.add_argument("--scratch", metavar="FOLDER", help="for what does not fit into memory")
    one.add_argument("--plan", action="store_true", help="say what would be done; reads no data")
    one.add_argument("-q", "--quiet", action="store_true", help="print nothing but errors")
    one.add_argument(
        "--config", metavar="YAML", help="options from a file; those of the command line win"
    )
    running_options(one)


def run_impute(arguments: argparse.Namespace) -> int:
    """``streampca impute``: fit, report, write."""
    check_outputs(
        models=[arguments.output],
        arrays=[arguments.scores, arguments.completed],
        sources=arguments.source,
        overwrite=arguments.overwrite,
    )
    matrix = open_source(arguments)
    model = model_of(arguments)
    if arguments.plan:
        plan = model.plan(matrix)
        print(plan.to_json() if arguments.json else plan)
        return 0
    talk = not (arguments.json or arguments.quiet)
    if talk:
        print(model.plan(matrix), end="\n\n")
    model.fit(matrix)
    if arguments.output:
        model.save(arguments.output)
    if arguments.scores:
        _write_scores(model, matrix, arguments)
    if arguments.completed:
        model.impute(matrix, out=arguments.completed, overwrite=arguments.overwrite)
    if arguments.json:
        print(json.dumps(summary(model), indent=1))
    elif talk:
        print(words(model))
        for what in (arguments.output, arguments.scores, arguments.completed):
            if what:
                print(f"written    {what}")
    return 0


def model_of(arguments: argparse.Namespace) -> streampca.HardImpute | streampca.SoftImpute:
    """The completion that the arguments describe. Raises InvalidInputError."""
    penalty = getattr(arguments, "lambda")  # a word of Python
    if arguments.ridge is not None and penalty is not None:
        raise InvalidInputError("--ridge and --lambda are two models; choose one")
    shared: dict[str, Any] = {
        name: getattr(arguments, name)
        for name in ("solver", "absent", "validation", "early_stop", "tol", "max_passes",
                     "random_state", "missing_value", "memory_limit", "scheduler", "checkpoint",
                     "scratch")
    }  # fmt: skip
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
    if penalty is not None:
        return streampca.SoftImpute(arguments.rank, _one_or_list(penalty), **shared)
    ridge = "auto" if arguments.ridge is None else _one_or_list(arguments.ridge)
    return streampca.HardImpute(arguments.rank, ridge=ridge, **shared)


def _penalty(text: str) -> float | str:
    """A number, or "auto"."""
    return text if text == "auto" else float(text)


def _one_or_list(penalties: list[float | str]) -> Any:
    return "auto" if penalties == ["auto"] else penalties


def _bounds(given: list[Any]) -> Any:
    """The parameter: "observed", None, or (low, high). Raises InvalidInputError."""
    if len(given) == 1 and str(given[0]).lower() in ("observed", "none"):
        return None if str(given[0]).lower() == "none" else "observed"
    try:
        low, high = map(float, given)
    except ValueError:
        raise InvalidInputError(
            f"--bounds {' '.join(map(str, given))}; expected observed, none, or two numbers such "
            "as --bounds 1 5"
        ) from None
    return low, high


def _write_scores(model: Any, matrix: Any, arguments: argparse.Namespace) -> None:
    if (scores := model.result_.scores) is None:
        model.transform(matrix, out=arguments.scores, overwrite=arguments.overwrite)
        return
    n, k = scores.shape
    sink = ZarrSink(arguments.scores, n, k, overwrite=arguments.overwrite)
    sink.write(0, scores)
    sink.finish()


def summary(model: Any) -> dict[str, Any]:
    """What a completion found, for machines."""
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


def words(model: Any) -> str:
    """The same, for people."""
    told = summary(model)
    low_high = "none" if told["bounds"] is None else "{:g} to {:g}".format(*told["bounds"])
    lines = [f"{'rank':>5} {'penalty':>9} {'objective':>12} {'held-out RMSE':>14}"]
    for one in told["candidates"]:
        chosen = (one["rank"], one["penalty"]) == (told["rank"], told["penalty"])
        held = "-" if one["held_out"] != one["held_out"] else f"{one['held_out']:.6g}"
        lines.append(
            f"{one['rank']:>5} {one['penalty']:>9.4g} {one['objective']:>12.6g} {held:>14}"
            + ("  <" if chosen and len(told["candidates"]) > 1 else "")
        )
    lines.append(f"predictions are kept within the bounds: {low_high}")
    if told["turns"]:
        lines.append(
            f"{len(told['turns'])} turns for rows and columns; the last one moved their means and "
            f"scales by {told['turns'][-1]:.1e} of what they leave"
        )
    lines.append(
        f"{told['sweeps']} sweeps in {told['passes']} passes, {told['seconds']:.1f} s; the last "
        f"one changed the estimate by {told['change']:.1e}"
    )
    return "\n".join(lines)
