"""``streampca plan``, ``fit`` and ``transform``."""

from __future__ import annotations

import argparse
import contextlib
from collections.abc import Mapping, Sequence
from typing import Any

import streampca
from streampca.cli.commands import Parser
from streampca.cli.config import apply_config, cluster_options, on_cluster
from streampca.cli.fields import Spelling, add_fields
from streampca.cli.genotypes import genotype_model, genotype_options, is_genotypes
from streampca.cli.info import left_out, summary
from streampca.cli.kinds import (
    kind_options,
    named_kind,
    option_name,
    rotated_and_saved,
    run_fit_of_kind,
    run_plan_of_kind,
    two_sources,
)
from streampca.cli.options import (
    components_wanted,
    counts_options,
    files_read,
    open_source,
    output_options,
    planned_counts,
    prepared_counts,
    print_answer,
    print_fit,
    print_plan,
    print_planned,
    progress_of,
    refuse_ratings,
    running_options,
    scale_wanted,
    settings_of_run,
    source_options,
)
from streampca.cli.outputs import (
    check_labelled,
    check_outputs,
    labelled_options,
    labelled_paths,
    score_paths,
    write_both,
    write_labelled,
    write_scores,
)
from streampca.cli.plink_tables import tables, write_outputs, zarr_outputs
from streampca.cli.score_files import OF_SCORES, SCORES, scores_in
from streampca.cli.selection import Selection, choose, prune_selection, pruning_rules
from streampca.cli.side_data import (
    removal_wanted,
    sample_weight_wanted,
    side_data_options,
    weights_wanted,
)
from streampca.cli.terminal import shown
from streampca.errors import InvalidInputError, MemoryLimitError
from streampca.matrix import SCALES, ChunkedMatrix
from streampca.models.contract.registry import all_kinds, kind_named
from streampca.models.decompose.routes import SOLVERS
from streampca.solvers.rotation import METHODS as ROTATIONS

PLINK = (
    "PLINK's options (--mind, --geno, --ld-r2, --chr, --extract, --out) are those of a fit\n"
    "without --model, which recognises genotypes: 'streampca fit --help'."
)


def add_options(parsers: Mapping[str, Parser], argv: Sequence[str]) -> None:
    """Add the options of ``plan``, ``fit`` and ``transform``."""
    kind = named_kind(argv)
    for name, function, of_kind in (
        ("plan", run_plan, run_plan_of_kind),
        ("fit", run_fit, run_fit_of_kind),
    ):
        one = parsers[name]
        one.set_defaults(
            run=on_cluster(function), plan=name == "plan", parser=one, apply_config=apply_config
        )
        one.add_argument(
            "source",
            nargs="*",
            help="Zarr, VCF Zarr, .bed, .nc, .h5ad, .npy, .parquet, .csv; several are joined",
        )
        source_options(one)
        one.add_argument(
            "--model",
            metavar="NAME",
            help=f"another model{_known(argv)}; --model NAME --help shows its options",
        )
        one.add_argument(
            "--rotate",
            choices=ROTATIONS,
            help="turn the components towards simple structure; what is written is then rotated",
        )
        if kind is not None:
            running_options(one)
        else:
            model_options(one)
            labelled_options(one)
            genotype_options(one)
        if kind is None or _takes_counts(kind):
            counts_options(one)
        cluster_options(one)
        output_options(one)
        if kind is not None:
            if kind == "GenotypePCA":
                one.epilog = f"{PLINK}\n\n{one.epilog}"
            kind_options(one, kind)
            one.set_defaults(kind=kind, run=on_cluster(of_kind))

    one = parsers["transform"]
    one.set_defaults(run=on_cluster(run_transform))
    cluster_options(one)
    one.add_argument("model")
    one.add_argument("source", nargs="+")
    one.add_argument("-o", "--output", required=True, metavar=SCORES, help=OF_SCORES)
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


def _takes_counts(kind: str) -> bool:
    """Whether the matrix of a kind of model can be prepared as counts of cells."""
    return kind != "GenotypePCA" and kind_named(kind).views == 1


def _n_components(text: str) -> int | float | str:
    if text in ("all", "gap", "tracy-widom"):
        return text
    try:
        return float(text) if "." in text or "e" in text else int(text)
    except ValueError:
        raise argparse.ArgumentTypeError(
            f"{text!r}: expected a number, a share such as 0.9, 'gap', 'tracy-widom' or 'all'"
        ) from None


OF_PCA: dict[str, Spelling] = {
    "n_components": {
        "flags": ("-k", "--n-components"),
        "type": _n_components,
        "help": "a number, a share of the variance such as 0.9, 'gap', 'tracy-widom' or 'all' "
        "(default 10)",
    },
    "scale": {
        "type": str,
        "choices": [s or "none" for s in SCALES],
        "help": "divide columns; hwe and eigensoft are for allele counts (default: hwe for "
        "genotypes, else none)",
    },
    "center": {"help": "do not subtract column means"},
    "ddof": {},
    "missing": {
        "default": None,
        "choices": ("raise", "mean", "impute", "pairwise"),
        "help": "treatment of missing cells (default raise; genotypes: the mean of the variant, "
        "or pairwise as plink2 --pca: means over variants that both of two samples have); impute: "
        "predict them from the components",
    },
    "solver": {"choices": SOLVERS, "help": "default auto: the cheapest that fits"},
    "tol": {
        "metavar": "RADIANS",
        "help": "iterate until the angle of every component is certified to this (default 1e-4 "
        "if iterating is cheaper)",
    },
    "max_passes": {"help": "iterate, with at most this many reads of the data (default 8)"},
    "rates": {"metavar": "FILE"},
    "components": {"help": "scores and spectrum only: saves a pass on wide data"},
    "checkpoint": {"metavar": "FOLDER"},
}


def model_options(parser: argparse.ArgumentParser) -> None:
    """The parameters of a PCA."""
    add_fields(parser, streampca.PCA, OF_PCA)
    side_data_options(parser)
    running_options(parser)


def _known(argv: Sequence[str]) -> str:
    """The names of all kinds, for the text of ``--help``, which alone has to load them."""
    if not {"-h", "--help"} & {*argv}:
        return ""
    return f": {', '.join(sorted(map(option_name, all_kinds())))}"


def run_plan(arguments: argparse.Namespace) -> int:
    """``streampca plan``: print what a fit would do."""
    matrix = open_source(arguments)
    if is_genotypes(arguments, matrix):
        chosen = choose(arguments, matrix)
        if arguments.ld_r2 is not None:
            pruning_rules(arguments, chosen.matrix)
        plan, matrix = genotype_model(arguments, chosen, matrix).plan(chosen.matrix), chosen.matrix
    else:
        matrix = planned_counts(arguments, matrix)
        weight = sample_weight_wanted(arguments, matrix)
        plan = pca_model(arguments, matrix).plan(matrix, sample_weight=weight)
    print_planned(arguments, plan, matrix)
    if arguments.ld_r2 is not None and not arguments.json:
        by_variant = arguments.maf > 0.0 or arguments.max_missing < 1.0
        auto = arguments.unrelated == "auto"  # then samples are judged above, before the kinship
        counted = (arguments.max_sample_missing < 1.0 and not auto) + by_variant
        where = "after that of the kinship" if auto else "before these"
        print(
            f"pruning   {1 + counted} pass{'es' if counted else ''} {where}; the plan above is for "
            "all variants"
        )
    return 0


def run_fit(arguments: argparse.Namespace) -> int:
    """``streampca fit``: fit, report, save."""
    check_outputs(
        models=[arguments.output],
        scores=[arguments.scores],
        tables=tables(arguments),
        datasets=labelled_paths(arguments),
        new=zarr_outputs(arguments),
        sources=files_read(arguments),
        overwrite=arguments.overwrite,
    )
    if arguments.rotate and not arguments.components:
        raise InvalidInputError("--rotate needs components: leave out --no-components")
    if len(arguments.source) == 1 and not (arguments.columns or arguments.categorical):
        refuse_ratings(arguments.source[0])
    matrix = open_source(arguments)
    check_labelled(arguments, matrix)
    chosen, weight = None, {}
    if is_genotypes(arguments, matrix):
        if arguments.rotate:
            raise InvalidInputError("--rotate does not go with genotypes; leave it out")
        chosen = _choose(arguments, matrix)
        model: Any = genotype_model(arguments, chosen, matrix)
        matrix = chosen.matrix
    else:
        matrix = prepared_counts(arguments, matrix)
        model = pca_model(arguments, matrix)
        weight = {"sample_weight": sample_weight_wanted(arguments, matrix)}
    print_plan(arguments, lambda: model.plan(matrix, **weight))
    model.fit(matrix, **weight)
    if chosen is not None:
        chosen.record(model, arguments)
    model, text = rotated_and_saved(model, arguments)
    if arguments.scores:
        again = model.remove if chosen is None else None
        write_scores(model, matrix, arguments.scores, arguments.overwrite, again)
    written = write_labelled(model, matrix, arguments) if chosen is None else []
    written += [] if chosen is None else write_outputs(model, chosen, arguments)
    counts = {} if chosen is None else chosen.left_out(model.result_)
    related = getattr(model, "kinship_", None)
    lines = [left_out(counts)] if counts else []
    lines += [] if related is None else [f"kinship    {related}"]
    text = "\n".join([text, *lines])
    more: dict[str, Any] = {"left_out": counts} if counts else {}
    more |= {} if related is None else {"kinship": related.to_dict()}
    written = [arguments.output, arguments.scores, *written]
    print_fit(arguments, lambda: summary(model) | more, text, *written)
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
    check_outputs(
        scores=[arguments.output], sources=files_read(arguments), overwrite=arguments.overwrite
    )
    model: Any = streampca.load(arguments.model)
    paths = score_paths(arguments.output, len(arguments.source) if model.scored_views == 2 else 1)
    if len(paths) == 2:
        check_outputs(scores=paths, sources=files_read(arguments), overwrite=arguments.overwrite)
    settings = getattr(model, "pca", None) or model  # a rotated model has those of its PCA
    settings.set_params(progress=progress_of(arguments), scheduler=arguments.scheduler)
    if arguments.memory_limit:
        settings.set_params(memory_limit=arguments.memory_limit)
    if len(paths) == 2:
        x, y = two_sources(arguments, f"a {model.result_.method}")
        shape = write_both(model, (x, y), paths, arguments.overwrite)
    else:
        matrix = open_source(arguments)
        removed = removal_wanted(arguments, matrix)
        samples = matrix.labels.samples
        with scores_in(arguments.output, samples, arguments.overwrite) as (place, replaces):
            shape = model.transform(matrix, out=place, overwrite=replaces, remove=removed).shape
    output = " and ".join(paths)
    whole = {"rows": shape[0], "components": shape[1], "output": output}
    said = f"{shape[0]} x {shape[1]} scores written to {shown(output)}"
    print_answer(arguments, whole, said)
    return 0


def pca_model(arguments: argparse.Namespace, matrix: ChunkedMatrix) -> streampca.PCA:
    """The unfitted PCA of the arguments."""
    values = {name: getattr(arguments, name) for name in OF_PCA}
    values |= {
        "n_components": components_wanted(arguments, matrix),
        "scale": scale_wanted(arguments, None),
        "missing": arguments.missing or "raise",
        "weights": weights_wanted(arguments, matrix),
        "remove": removal_wanted(arguments, matrix),
    }
    return streampca.PCA(
        **values, missing_value=arguments.missing_value, **settings_of_run(arguments)
    )
