"""``streampca monitor``: rows that a saved PCA does not expect."""

from __future__ import annotations

import argparse
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

import streampca
from streampca.cli.commands import Parser
from streampca.cli.options import (
    files_read,
    open_source,
    print_answer,
    progress_of,
    running_options,
    source_options,
)
from streampca.cli.outputs import check_outputs
from streampca.cli.score_files import COLUMNS, OF_SCORES, SCORES, scores_in
from streampca.cli.side_data import removal_wanted
from streampca.cli.terminal import shown
from streampca.kernels import Array
from streampca.matrix import AxisLabels
from streampca.models.explore.monitor import AUTO, EMPIRICAL, FIT, NEW, NORMAL, SPE, T2
from streampca.store import ZarrSink

EXPLAINED, FEATURES = 5, 3  # rows whose features are named, and how many of these


def add_options(parsers: Mapping[str, Parser], argv: Sequence[str]) -> None:
    """Add the command."""
    one = parsers["monitor"]
    one.set_defaults(run=run_monitor)
    one.add_argument("model")
    one.add_argument("source", nargs="+")
    one.add_argument(
        "-o",
        "--output",
        metavar=SCORES,
        help=f"T2, SPE, missing cells, alarms; {OF_SCORES}. Rows without names are numbered from 0",
    )
    one.add_argument("--overwrite", action="store_true")
    one.add_argument(
        "--alpha",
        type=float,
        default=0.01,
        help="share of rows in control above each limit (default 0.01)",
    )
    one.add_argument(
        "--rows",
        choices=(NEW, FIT),
        default=NEW,
        help="fit: the source holds the rows of the fit, whose statistics are smaller",
    )
    one.add_argument(
        "--limits",
        choices=(AUTO, NORMAL, EMPIRICAL),
        default=AUTO,
        help="normal: for Gaussian rows; empirical: quantiles of --reference; auto: empirical if "
        "that has 10 / alpha rows or more",
    )
    one.add_argument("--reference", metavar="SOURCE", help="the rows of the fit: one more pass")
    one.add_argument(
        "--remove", action="append", metavar="FILE|NAME|none", help="as of streampca transform"
    )
    running_options(one)
    source_options(one)


def run_monitor(arguments: argparse.Namespace) -> int:
    """``streampca monitor``."""
    if arguments.output:
        check_outputs(
            scores=[arguments.output], sources=files_read(arguments), overwrite=arguments.overwrite
        )
    model: Any = streampca.load(arguments.model)
    model.set_params(progress=progress_of(arguments), scheduler=arguments.scheduler)
    if arguments.memory_limit:
        model.set_params(memory_limit=arguments.memory_limit)
    matrix = open_source(arguments)
    seen = streampca.monitor(
        model,
        matrix,
        alpha=arguments.alpha,
        rows=arguments.rows,
        limits=arguments.limits,
        reference=arguments.reference and _opened(arguments),
        remove=removal_wanted(arguments, matrix),
    )
    if arguments.output:
        limits = {name: one.value for name, one in seen.limits.items()}
        values = (seen.t2, seen.spe, seen.missing)
        write_distances(arguments.output, values, limits, seen.samples, arguments.overwrite)
    whole = seen.to_dict()
    rows = [one["row"] for one in whole["outliers"][:EXPLAINED]]
    for one, share in zip(whole["outliers"], seen.contributions_of(rows), strict=False):
        one["features"] = {name: dict(share.top(FEATURES, name)) for name in one["alarms"]}
    lines = [str(seen), *map(_line, whole["outliers"])]
    lines += [f"written    {shown(arguments.output)}"] if arguments.output else []
    print_answer(arguments, {**whole, "output": arguments.output}, "\n".join(lines))
    return 0


def _opened(arguments: argparse.Namespace) -> Any:
    """The reference, opened as the source is."""
    return open_source(argparse.Namespace(**{**vars(arguments), "source": [arguments.reference]}))


def _line(one: Mapping[str, Any]) -> str:
    features = one.get("features", {})
    blamed = "; ".join(f"{name.upper()}: {', '.join(features[name])}" for name in features)
    return f"{one['sample']:>16} T2 {one[T2]:<10.4g} SPE {one[SPE]:<10.4g} {blamed}".rstrip()


def write_distances(
    path: str,
    values: Sequence[Array],
    limits: Mapping[str, float],
    samples: AxisLabels,
    overwrite: bool,
) -> None:
    """Write a line for each row: T2, SPE, missing cells, and 1 for an alarm of either.

    values : the first three.
    """
    t2, spe, missing = values
    columns = {"T2": t2, "SPE": spe, "missing": missing}
    columns |= {"T2_alarm": ~(t2 <= limits[T2]), "SPE_alarm": ~(spe <= limits[SPE])}
    table = np.column_stack([one.astype(np.float64) for one in columns.values()])
    with scores_in(path, samples, overwrite) as (place, replaces):
        rows, width = table.shape
        sink = ZarrSink(place, rows, width, dims=("sample", "statistic"), overwrite=replaces)
        sink.array.attrs[COLUMNS] = list(columns)
        sink.write(0, table)
        sink.finish()
