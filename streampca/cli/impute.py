"""``streampca impute``: complete a matrix with holes."""

from __future__ import annotations

import argparse
import json
from typing import Any

import streampca
from streampca.cli.cluster import cluster_options, on_cluster
from streampca.cli.options import open_source, progress_of, running_options, source_options
from streampca.cli.outputs import check_outputs
from streampca.errors import InvalidInputError
from streampca.models.completion.task import SOLVERS
from streampca.store import ZarrSink

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
        help="of the model; several are fitted in the same passes, and held-out cells choose",
    )
    one.add_argument(
        "--ridge", type=float, nargs="+", metavar="X", help="penalty on the factors (Hard-Impute)"
    )
    one.add_argument(
        "--lambda",
        type=float,
        nargs="+",
        metavar="X",
        help="lower singular values by this instead: Soft-Impute",
    )
    one.add_argument("--solver", default="auto", choices=SOLVERS)
    one.add_argument("--no-center", action="store_true", help="do not subtract column means")
    one.add_argument(
        "--center", choices=("columns", "both"), default="columns", help="both: rows too, by turns"
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
    if arguments.no_center and arguments.center == "both":
        raise InvalidInputError("--no-center and --center both contradict each other; choose one")
    shared["center"] = "both" if arguments.center == "both" else not arguments.no_center
    shared["scale"] = None if arguments.scale == "none" else arguments.scale
    shared["progress"] = progress_of(arguments)
    if arguments.init is not None:
        shared["init"] = streampca.load(arguments.init)
    if penalty is not None:
        return streampca.SoftImpute(arguments.rank, penalty, **shared)
    return streampca.HardImpute(arguments.rank, ridge=arguments.ridge or 0.0, **shared)


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
        "change": max(last.change),
        "singular_values": result.singular_values.tolist(),
        "candidates": model.validation_,
        "seconds": result.provenance["seconds"],
        "peak_bytes": result.provenance["peak_bytes"],
    }


def words(model: Any) -> str:
    """The same, for people."""
    told = summary(model)
    lines = [f"{'rank':>5} {'penalty':>9} {'objective':>12} {'held-out RMSE':>14}"]
    for one in told["candidates"]:
        chosen = (one["rank"], one["penalty"]) == (told["rank"], told["penalty"])
        held = "-" if one["held_out"] != one["held_out"] else f"{one['held_out']:.6g}"
        lines.append(
            f"{one['rank']:>5} {one['penalty']:>9.4g} {one['objective']:>12.6g} {held:>14}"
            + ("  <" if chosen and len(told["candidates"]) > 1 else "")
        )
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
