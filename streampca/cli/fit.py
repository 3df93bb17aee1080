"""``streampca plan``, ``fit``, ``transform`` and ``info``."""

from __future__ import annotations

import argparse
import contextlib
import json
from typing import Any

import streampca
from streampca.cli.config import cluster_options, on_cluster
from streampca.cli.genotypes import (
    genotype_model,
    genotype_options,
    is_genotypes,
)
from streampca.cli.kinds import (
    kind_options,
    option_name,
    run_fit_of_kind,
    run_plan_of_kind,
    two_sources,
)
from streampca.cli.options import (
    model_options,
    open_source,
    output_options,
    pca_model,
    progress_of,
    removal_wanted,
    running_options,
    sample_weight_wanted,
    source_options,
)
from streampca.cli.outputs import (
    check_labelled,
    check_outputs,
    describe,
    labelled_options,
    labelled_paths,
    left_out,
    print_damage,
    report,
    score_paths,
    summary,
    write_labelled,
    write_scores,
)
from streampca.cli.selection import (
    Selection,
    choose,
    prune_selection,
    pruning_rules,
    tables,
    write_outputs,
    zarr_outputs,
)
from streampca.errors import MemoryLimitError
from streampca.models.registry import KINDS
from streampca.operations.model_store import is_model
from streampca.passes import size
from streampca.store import is_bundle


def add_commands(commands: Any, kind: str | None = None) -> None:
    """Add the commands to the parser.  kind : of the model, if --model names one."""
    fitting = "fit a PCA or another model, report it, save it"
    for name, function, of_kind, text in (
        ("plan", run_plan, run_plan_of_kind, "what a fit would do; reads no data"),
        ("fit", on_cluster(run_fit), on_cluster(run_fit_of_kind), fitting),
    ):
        one = commands.add_parser(name, help=text, description=text)
        one.set_defaults(run=function, parser=one)
        one.add_argument(
            "source", nargs="*", help="Zarr, VCF Zarr, .bed (several are joined), .nc, .h5ad, .npy"
        )
        source_options(one)
        one.add_argument(
            "--model",
            metavar="NAME",
            help=f"another model: {', '.join(sorted(map(option_name, KINDS)))}; "
            "--model NAME --help shows its options",
        )
        if kind is not None:
            running_options(one)
        else:
            model_options(one)
            labelled_options(one)
            genotype_options(one)
        cluster_options(one)
        output_options(one)
        if kind is not None:
            kind_options(one, kind)
            one.set_defaults(kind=kind, run=of_kind)

    one = commands.add_parser("transform", help="scores of new rows on a saved model")
    one.set_defaults(run=run_transform)
    one.add_argument("model")
    one.add_argument("source", nargs="+")
    one.add_argument("-o", "--output", required=True, metavar="ZARR")
    one.add_argument("--overwrite", action="store_true")
    one.add_argument(
        "--remove",
        action="append",
        metavar="FILE|NAME|none",
        help="covariates or batches of these rows, if the fit removed any (cycles and trends "
        "follow from their dates); none: the rows are anomalies, nothing is removed",
    )
    running_options(one)
    source_options(one)

    one = commands.add_parser("info", help="describe a saved model or a source")
    one.set_defaults(run=run_info)
    one.add_argument("source", nargs="+", metavar="MODEL|SOURCE")
    source_options(one)


def run_plan(arguments: argparse.Namespace) -> int:
    """``streampca plan``: print what a fit would do."""
    matrix = open_source(arguments)
    if is_genotypes(arguments, matrix):
        chosen = choose(arguments, matrix)
        if arguments.ld_r2 is not None:
            pruning_rules(arguments, chosen.matrix)
        plan = genotype_model(arguments, chosen, matrix).plan(chosen.matrix)
    else:
        weight = sample_weight_wanted(arguments, matrix)
        plan = pca_model(arguments, matrix).plan(matrix, sample_weight=weight)
    print(plan.to_json() if arguments.json else plan)
    if arguments.ld_r2 is not None and not arguments.json:
        counted = (arguments.mind < 1.0) + (arguments.maf > 0.0 or arguments.geno < 1.0)
        print(
            f"pruning   {1 + counted} pass{'es' if counted else ''} before these; the plan above "
            "is for all variants"
        )
    return 0


def run_fit(arguments: argparse.Namespace) -> int:
    """``streampca fit``: fit, report, save."""
    check_outputs(
        models=[arguments.output],
        arrays=[arguments.scores],
        tables=tables(arguments),
        datasets=labelled_paths(arguments),
        new=zarr_outputs(arguments),
        sources=arguments.source,
        overwrite=arguments.overwrite,
    )
    matrix = open_source(arguments)
    check_labelled(arguments, matrix)
    chosen, weight = None, {}
    if is_genotypes(arguments, matrix):
        chosen = _choose(arguments, matrix)
        model: Any = genotype_model(arguments, chosen, matrix)
        matrix = chosen.matrix
    else:
        model = pca_model(arguments, matrix)
        weight = {"sample_weight": sample_weight_wanted(arguments, matrix)}
    if not (arguments.json or arguments.quiet):
        print(model.plan(matrix, **weight), end="\n\n")
    model.fit(matrix, **weight)
    if chosen is not None:
        chosen.record(model, arguments)
    text = report(model)  # now, for the memory peak of the fit without writing
    if arguments.output:
        model.save(arguments.output)
    if arguments.scores:
        again = model.remove if chosen is None else None
        write_scores(model, matrix, arguments.scores, arguments.overwrite, again)
    written = write_labelled(model, matrix, arguments) if chosen is None else []
    written += [] if chosen is None else write_outputs(model, chosen, arguments)
    counts = {} if chosen is None else chosen.left_out(model.result_)
    if arguments.json:
        whole = summary(model)
        print(json.dumps({**whole, "left_out": counts} if counts else whole, indent=1))
    elif not arguments.quiet:
        print(text)
        if counts:
            print(left_out(counts))
        if arguments.output:
            print(f"model saved to {arguments.output}")
        for path in written:
            print(f"written    {path}")
    return 0


def _choose(arguments: argparse.Namespace, matrix: Any) -> Selection:
    """The samples and variants of a genotype fit; pruned for --ld-r2, after checking the fit."""
    chosen = choose(arguments, matrix)
    if arguments.ld_r2 is None:
        return chosen
    with contextlib.suppress(MemoryLimitError):  # the pruned variants may fit
        genotype_model(arguments, chosen, matrix).plan(chosen.matrix)
    chosen = prune_selection(arguments, chosen)
    if not (arguments.json or arguments.quiet):
        print(chosen.pruning, end="\n\n")
    return chosen


def run_transform(arguments: argparse.Namespace) -> int:
    """``streampca transform``: scores of new rows on a saved model."""
    model: Any = streampca.load(arguments.model)
    paths = score_paths(arguments.output, len(arguments.source) if model.views == 2 else 1)
    check_outputs(arrays=paths, sources=arguments.source, overwrite=arguments.overwrite)
    model.set_params(progress=progress_of(arguments), scheduler=arguments.scheduler)
    if arguments.memory_limit:
        model.set_params(memory_limit=arguments.memory_limit)
    if len(paths) == 2:
        x, y = two_sources(arguments, f"a {model.result_.method}")
        scores = model.transform(x, y, out=paths, overwrite=arguments.overwrite)[0]
    else:
        matrix = open_source(arguments)
        removed = removal_wanted(arguments, matrix)
        scores = model.transform(
            matrix, out=arguments.output, overwrite=arguments.overwrite, remove=removed
        )
    output = " and ".join(paths)
    text = {"rows": scores.shape[0], "components": scores.shape[1], "output": output}
    print(
        json.dumps(text)
        if arguments.json
        else f"{text['rows']} x {text['components']} scores written to {output}"
    )
    return 0


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
