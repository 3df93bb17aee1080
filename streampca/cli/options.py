"""Options shared by several commands: source, side data, limits, progress."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Callable, Mapping
from dataclasses import asdict
from pathlib import Path
from shlex import quote
from typing import Any

import numpy as np

import streampca
from streampca.cli.fields import Spelling, one_or_several
from streampca.cli.score_files import OF_SCORES, SCORES
from streampca.cli.terminal import shown
from streampca.errors import InvalidInputError
from streampca.matrix import ChunkedMatrix, RowTotals, select
from streampca.matrix.labels import json_of
from streampca.operations.sections import SECTIONS
from streampca.passes import client_for, limited_threads, size
from streampca.passes.cluster.calls import address_of
from streampca.passes.cluster.worker_memory import need, shares
from streampca.passes.cluster.workers import workers_can_read
from streampca.passes.execution import TerminalProgress
from streampca.run_context import in_run
from streampca.sources.genotypes.formats import FORMATS
from streampca.sources.images import are_images
from streampca.sources.opening import TABLES
from streampca.sources.ratings.recognition import recognised
from streampca.sources.tables.text_options import TEXT_OPTIONS

# The source.

VZS = "vzs"  # of PLINK's --pfile: the table of variants is compressed


def _dimension(text: str) -> str | int:
    return int(text) if text.lstrip("-").isdigit() else text


SPELLED: dict[str, Spelling] = {  # entry of a source -> what its option takes
    "variable": {"action": "append", "metavar": "NAME"},
    "feature_types": {"action": "append", "metavar": "TYPE"},
    "dim": {"nargs": "+", "type": _dimension},
    "columns": {"nargs": "+", "metavar": "NAME"},
    "na_values": {"nargs": "+", "action": "extend", "metavar": "TEXT"},
    "missing_value": {"type": float, "metavar": "X"},
    "header": {"action": argparse.BooleanOptionalAction},
    "dosages": {"action": argparse.BooleanOptionalAction},
    "external_links": {"action": "store_true"},
}
OF_SOURCES = {name: value for name, value in SECTIONS["source"].items() if name != "path"}


def source_options(parser: argparse.ArgumentParser) -> None:
    """Options for opening a source: the entries that a job file has for it, and those of images."""
    texts = parser.add_argument_group("tables of text (CSV, TSV)")
    for name, entry in OF_SOURCES.items():
        said: dict[str, Any] = {"help": entry.meaning.replace("%", "%%")}
        if name in SPELLED:
            said |= SPELLED[name]
        elif entry.choices:
            said |= {"choices": entry.choices, "default": entry.default}
        else:
            said["metavar"] = "TEXT" if name in TEXT_OPTIONS else "NAME"
        group = texts if name in TEXT_OPTIONS else parser
        group.add_argument(f"--{name.replace('_', '-')}", **said)
    parser.add_argument(
        "--resize", nargs=2, type=int, metavar=("HEIGHT", "WIDTH"), help="of images, in pixels"
    )
    parser.add_argument(
        "--image-mode", choices=("grey", "rgb"), help="of images: bring all to this kind"
    )
    parser.add_argument("--json", action="store_true", help="machine-readable output")


def running_options(parser: argparse.ArgumentParser) -> None:
    """Options for the memory limit, the threads and the scheduler."""
    parser.add_argument("--memory-limit", metavar="SIZE", help="e.g. 512MiB; refuse to exceed it")
    parser.add_argument(
        "--threads",
        type=int,
        metavar="N",
        help="default: the cores that this process may use, or OMP_NUM_THREADS; "
        "results do not depend on it",
    )
    parser.set_defaults(limited=limited_threads)
    parser.add_argument(
        "--client",
        "--scheduler",
        dest="scheduler",
        metavar="ADDRESS",
        help="a Dask scheduler, tcp://host:port. Where its workers are silent or paused, or it is "
        "lost, a pass waits 180 s (3 times streampca.pause-timeout of Dask's configuration); for a "
        "first worker 1800 s (streampca.worker-timeout); then the command ends with code 69",
    )


def output_options(one: argparse.ArgumentParser) -> None:
    """What a fit writes, and where its options come from."""
    one.add_argument("-o", "--output", metavar="MODEL", help="save the model here")
    one.add_argument(
        "--scores",
        metavar=SCORES,
        help="write the scores of all samples here; of two views to s-x.zarr and s-y.zarr for "
        f"s.zarr; {OF_SCORES}",
    )
    one.add_argument("--overwrite", action="store_true", help="replace existing outputs")
    printing_options(one)
    one.add_argument(
        "--config", metavar="YAML", help="options from a file; those of the command line win"
    )


def printing_options(one: argparse.ArgumentParser) -> None:
    """How much a fit prints."""
    one.add_argument("-q", "--quiet", action="store_true", help="print nothing but errors")
    one.add_argument(
        "-v",
        "--verbose",
        action="store_true",
        help="print the plan too, and compare it with the fit",
    )


def print_plan(arguments: argparse.Namespace, plan: Callable[[], Any]) -> None:
    """Print the plan of a fit, for --verbose."""
    if arguments.verbose and not (arguments.json or arguments.quiet):
        print(plan(), end="\n\n")


def print_fit(
    arguments: argparse.Namespace,
    whole: Callable[[], Mapping[str, Any]],
    text: str,
    *written: str | None,
) -> None:
    """Print what a fit found, and the outputs that it wrote; with --json ``whole()`` alone."""
    if arguments.json:
        with in_run() as run:
            print(json_of({**whole(), "run": run.id}, indent=1))
    elif not arguments.quiet:
        print(text)
        for path in filter(None, written):
            print(f"written    {shown(path)}")


def print_answer(arguments: argparse.Namespace, whole: Any, text: Any) -> None:
    """Print a text, or with --json an object."""
    print(json_of(whole, indent=1) if arguments.json else text)


def refuse_ratings(path: str) -> None:
    """Raise InvalidInputError for a text or Parquet file with a line for each rating."""
    if "://" in path or not Path(path).is_file():
        return
    columns: Any = recognised(path) if path.lower().endswith(TABLES) else None
    if columns is None and not path.lower().endswith(".dat"):
        return
    user, item, rating = columns or (0, 1, 2)
    names = f"--user {quote(str(user))} --item {quote(str(item))} --rating {quote(str(rating))}"
    content = "holds ratings" if columns else "is not opened, unless it holds ratings"
    raise InvalidInputError(
        f"{path} {content}, one in each line: streampca impute {quote(path)} {names} -o model"
    )


def prefix_options(group: Any) -> None:
    """PLINK's options that name a source of genotypes."""
    for one in FORMATS:
        if one.option is not None:
            name, path = one.option
            if path == "{}":
                group.add_argument(f"--{name}", metavar="FILE", help=f"a {one.name}")
                continue
            stands_for = [os.path.basename(file) for file in one.files(path.format("PREFIX"))]
            group.add_argument(f"--{name}", metavar="PREFIX", help=", ".join(stands_for))


def files_read(arguments: argparse.Namespace) -> list[str]:
    """The sources that are named, by their paths or by an option of PLINK."""
    named = [one.option for one in FORMATS if one.option is not None]
    values = [(getattr(arguments, name, None), path) for name, path in named]
    prefixed = [path.format(value) for value, path in values if value]
    paths = [*(arguments.source or [])]
    if prefixed and VZS in paths and not os.path.exists(VZS):
        paths.remove(VZS)  # --pfile x vzs: a .pvar.zst is found without it
    return [*paths, *prefixed]


def open_source(arguments: argparse.Namespace) -> ChunkedMatrix:
    """The matrix that the arguments name: one path or URL, or several filesets.

    Raises InvalidInputError if they name none, and what ``streampca.open`` raises.
    """
    paths = files_read(arguments)
    if not paths:
        raise InvalidInputError("no source named; give a path, or --bfile PREFIX")
    source = paths[0] if len(paths) == 1 else paths
    if arguments.resize or arguments.image_mode:
        if not are_images(source):
            raise InvalidInputError(f"--resize and --image-mode are for images; {source} has none")
        size = tuple(arguments.resize) if arguments.resize else None
        return streampca.open_images(source, mode=arguments.image_mode or "auto", resize=size)
    values = {name: getattr(arguments, name) for name in OF_SOURCES}
    values["variable"] = one_or_several(arguments.variable)
    return streampca.open(source, **{n: value for n, value in values.items() if value is not None})


# Counts of cells: scanpy's steps before a PCA.

STEPS = ("normalize_total", "log1p", "highly_variable")
MEDIAN = "median"  # value of --normalize-total: of the totals of all cells


def counts_options(parser: argparse.ArgumentParser) -> None:
    """Options that prepare counts, in the order in which they are applied."""
    group = parser.add_argument_group("counts of cells (scanpy's steps, in this order)")
    group.add_argument(
        "--normalize-total",
        nargs="?",
        const=MEDIAN,
        type=_total,
        metavar="SUM",
        help="bring every cell to this total, such as 1e4; without a number, to the median",
    )
    group.add_argument("--log1p", action="store_true", help="take log(1 + x)")
    group.add_argument(
        "--highly-variable",
        type=int,
        metavar="N",
        help="keep the N most variable genes, and ties (scanpy's flavor seurat)",
    )


def prepared_counts(arguments: argparse.Namespace, matrix: ChunkedMatrix) -> ChunkedMatrix:
    """The matrix after the steps that the arguments name, lazily; the model remembers them.

    Cost: a pass for each of --normalize-total and --highly-variable.
    """
    running = settings_of_run(arguments)
    if (total := arguments.normalize_total) is not None:
        total = None if total == MEDIAN else total
        matrix = streampca.preprocess.normalize_total(matrix, total, **running)
    if arguments.log1p:
        matrix = streampca.preprocess.log1p(matrix)
    if (n_top := arguments.highly_variable) is not None:
        matrix = streampca.preprocess.highly_variable(matrix, n_top=n_top, **running).of(matrix)
    return matrix


def planned_counts(arguments: argparse.Namespace, matrix: ChunkedMatrix) -> ChunkedMatrix:
    """A matrix of the shape, kind and layout of ``prepared_counts``; reads nothing."""
    if arguments.normalize_total is not None:
        matrix = RowTotals(1.0).apply(matrix, lambda one, _: np.ones(one.shape[0]))
    if arguments.log1p:
        matrix = streampca.preprocess.log1p(matrix)
    if (n_top := arguments.highly_variable) is not None:
        matrix = select(matrix, features=np.arange(min(n_top, matrix.shape[1])))
    return matrix


def print_planned(arguments: argparse.Namespace, plan: Any, *matrices: ChunkedMatrix) -> None:
    """Print a plan, what each worker takes of it, and the passes over counts before its own.

    Raises ClusterError and MemoryLimitError where the fit would, as far as workers are there.
    """
    client = client_for(arguments.scheduler, matrices[0])
    there = None
    if client is not None and all(map(workers_can_read, matrices)):
        there = shares(client, plan)
    if arguments.json:
        workers = {} if there is None else {"workers": [asdict(one) for one in there]}
        print(json_of(plan.to_dict() | workers, sort_keys=True, indent=1))
        return
    print(plan)
    least = f"a worker of 1 thread needs {size(need(plan, 1))}"
    if there is not None:
        print(f"cluster   {address_of(client)}, {len(there)} workers there now; {least}")
        for one in there:
            print(f"worker    {one}")
    elif client is None and arguments.cluster:
        print(f"cluster   {arguments.cluster['class']}, which starts with the fit; {least}")
    for name in ("normalize_total", "highly_variable"):
        if getattr(arguments, name, None) is not None and not arguments.json:
            print(f"counts    a pass before these, for --{name.replace('_', '-')}")


def _total(text: str) -> float | str:
    try:
        total = float(text)
    except ValueError:
        total = 0.0
    if text != MEDIAN and not 0.0 < total < np.inf:
        raise argparse.ArgumentTypeError(
            f"{text!r} is no positive number such as 1e4; for the median, put the option last"
        )
    return MEDIAN if text == MEDIAN else total


# The model and its progress.

COMPONENTS = 10  # by default, or fewer for a smaller matrix


def components_wanted(arguments: argparse.Namespace, matrix: ChunkedMatrix) -> Any:
    """The value of -k; by default 10, or as many as the matrix allows."""
    if arguments.n_components is None:
        return min(COMPONENTS, *matrix.shape)
    return None if arguments.n_components == "all" else arguments.n_components


def scale_wanted(arguments: argparse.Namespace, default: str | None) -> str | None:
    """The value of --scale."""
    if arguments.scale is None:
        return default
    return None if arguments.scale == "none" else str(arguments.scale)


def progress_of(arguments: argparse.Namespace) -> Any:
    """A progress bar if stderr is a terminal, else False; with the note of the run, if any."""
    quiet = arguments.json or getattr(arguments, "quiet", False) or not sys.stderr.isatty()
    shown = False if quiet else TerminalProgress()
    return shown if arguments.note is None else arguments.note.showing(shown)


def settings_of_run(arguments: argparse.Namespace) -> dict[str, Any]:
    """``memory_limit``, ``scheduler`` and ``progress``, as whatever reads a source takes them."""
    return {
        "memory_limit": arguments.memory_limit,
        "scheduler": arguments.scheduler,
        "progress": progress_of(arguments),
    }
