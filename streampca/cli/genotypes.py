"""Genotypes on the command line: PLINK's options, ``prune``, ``project`` and ``convert``."""

from __future__ import annotations

import argparse
from collections.abc import Mapping, Sequence
from dataclasses import asdict, fields, replace
from pathlib import Path
from typing import Any

import streampca
from streampca.cli.commands import Parser
from streampca.cli.fields import Spelling, add_fields
from streampca.cli.king_tables import king_options, king_wanted
from streampca.cli.options import (
    OF_SOURCES,
    components_wanted,
    files_read,
    open_source,
    prefix_options,
    print_answer,
    progress_of,
    running_options,
    scale_wanted,
    settings_of_run,
    source_options,
)
from streampca.cli.outputs import check_endings, check_outputs, check_writable
from streampca.cli.selection import SHARES, Selection, choose, pruning_rules
from streampca.cli.side_data import names_samples
from streampca.cli.terminal import announce, shown
from streampca.errors import InvalidInputError
from streampca.genetics.filters import VariantFilter, filter_genotypes
from streampca.genetics.ld_pruning import PRUNE_IN, WINDOW, prune_ld
from streampca.genetics.projection import project_samples
from streampca.genetics.tables import identifiers, write_eigenvec
from streampca.genetics.variant_matching import AMBIGUOUS, BY
from streampca.matrix import ALLELE_SCALES, ChunkedMatrix
from streampca.matrix.labels import json_of
from streampca.sources.genotypes.variants import refuse_repeated_ids

PLINK_NAMES = {  # parameter -> the option of PLINK that has its meaning
    "max_missing": "--geno",
    "max_sample_missing": "--mind",
    "chromosomes": "--chr",
    "n_autosomes": "--chr-set",
    "regions": "--region",
    "exclude_regions": "--exclude-region",
}
FROM_PCA = ("solver", "tol", "max_passes", "rates", "components", "checkpoint")
OF_GENOTYPES: dict[str, Spelling] = {
    "ploidy": {},
    "maf": {"help": "leave out rarer variants (by all fitted samples; PLINK counts only founders)"},
    "max_missing": {"help": "largest share of missing calls, or dosages, of a variant"},
    "max_sample_missing": {"help": "largest share of missing calls, or dosages, of a sample"},
    "fit_samples": {"metavar": "FILE", "help": "fit on these (unrelated) samples, score everyone"},
    "unrelated": {
        "metavar": "auto|FILE",
        "help": "fit on unrelated samples, by KING and PC-AiR (auto: one more pass) or as listed, "
        "and score everyone",
    },
    "shrinkage": {
        "choices": ("oadp",),
        "help": "correct the pull of the scores of those that are not fitted to the centre",
    },
    "loadings": {
        "metavar": "ZARR",
        "help": "stream the components here, block by block, instead of holding them in memory",
    },
    "relationship": {"metavar": "ZARR", "help": "write the relationship matrix here"},
}


def genotype_options(parser: argparse.ArgumentParser) -> None:
    """Options of a genotype fit, with PLINK's names if they mean the same."""
    group = parser.add_argument_group("genotypes (options named as in PLINK have its meaning)")
    filter_options(group)
    for name, own in OF_GENOTYPES.items():
        plink = {"flags": [PLINK_NAMES[name]]} if name in PLINK_NAMES else {}
        add_fields(group, streampca.GenotypePCA, {name: {**plink, **own}})
    group.add_argument(
        "--ld-r2",
        type=float,
        metavar="R2",
        help="first prune for linkage, after --mind, --geno and --maf; each step takes a pass",
    )
    pruning_options(group)
    group.add_argument(
        "--pca-extract",
        metavar="FILE",
        help="variants for the components alone, such as those that prune kept: kinship counts all",
    )
    king_options(
        group,
        "kinship is counted in the read of the fit, over all variants that pass "
        "the filters, also those that --ld-r2 and --pca-extract leave out; needs --out",
    )
    _table_options(group)
    parser.set_defaults(only_genotypes={one.dest: one.default for one in group._group_actions})


def _table_options(group: Any) -> None:
    """Tables of a genotype fit, in PLINK's and smartpca's formats."""
    group.add_argument(
        "--out",
        metavar="PREFIX",
        help="write PREFIX.eigenvec, .eigenval and .prune.in as PLINK does; with --fit-samples or "
        "--unrelated, with a column FITTED (1 or 0: projected) before PC1",
    )
    group.add_argument(
        "--freq",
        action="store_true",
        help="with --out, PREFIX.afreq: #CHROM ID REF ALT ALT_FREQS OBS_CT of every variant read, "
        "by the fitted samples; ALT is the allele whose copies are counted (A1 of a .bim)",
    )
    group.add_argument(
        "--missing-counts",
        action="store_true",
        help="with --out, PREFIX.smiss and .vmiss: MISSING_CT OBS_CT F_MISS of samples, and of "
        "variants by the fitted samples; of all that --maf and --geno judge, with --ld-r2 of those "
        "that are kept",
    )
    group.add_argument(
        "--allele-wts",
        action="store_true",
        help="with --out, PREFIX.eigenvec.allele and .acount: loadings with which plink2 --score "
        "gives the scores, for k = 10: plink2 --bfile y --read-freq PREFIX.acount --score "
        "PREFIX.eigenvec.allele 2 5 header-read no-mean-imputation variance-standardize "
        "cols=+scoresums --score-col-nums 6-15",
    )
    group.add_argument(
        "--eigenval-values",
        choices=("plink", "smartpca"),
        default="plink",
        help="scale of .eigenval: of the relationship matrix, or, as smartpca's, such that all "
        "n - 1 add up to n - 1",
    )
    group.add_argument(
        "--eigenvec-values",
        choices=("eigenvectors", "scores"),
        default="eigenvectors",
        help="content of .eigenvec: unit columns as in PLINK, or those times the singular values, "
        "the scale of streampca project",
    )


def filter_options(group: Any) -> None:
    """Options that choose samples and variants."""
    prefix_options(group)
    group.add_argument("--keep", metavar="FILE", help="samples to use")
    place = {"nargs": "+", "metavar": "CHR:FROM-TO"}
    spelled: dict[str, Spelling] = {
        "chromosomes": {
            "metavar": "LIST",
            "help": "e.g. 1-22,X, or 'all'; default: the autosomes and XY, as plink2 --pca. Every "
            "chromosome is treated as diploid in everyone, also X in males",
        },
        "n_autosomes": {
            "flags": ["--autosome-num"],
            "type": _autosomes,
            "metavar": "N",
            "help": "number of autosomes; N + 1 to N + 4 are then X, Y, XY and MT. Or --cow (29), "
            "--dog (38), --horse (31), --mouse (19), --rice (12), --sheep (26)",
        },
        "extract": {"metavar": "FILE", "help": "variants to use"},
        "exclude": {"metavar": "FILE", "help": "variants to leave out"},
        "regions": place,
        "exclude_regions": place,
        "exclude_long_range_ld": {
            "choices": ("37", "38"),
            "help": "known regions of that genome build",
        },
    }
    for field in fields(VariantFilter):
        option = PLINK_NAMES.get(field.name, f"--{field.name.replace('_', '-')}")
        settings = {"dest": field.name, "default": field.default, **spelled[field.name]}
        group.add_argument(*settings.pop("flags", []), option, **settings)


def _autosomes(text: str) -> int:
    """A number of autosomes; PLINK writes that of haploids as negative."""
    return abs(int(text)) or int("none")  # argparse names the value


def pruning_options(group: Any) -> None:
    """Options for the windows of LD pruning."""
    group.add_argument(
        "--ld-window",
        default=str(WINDOW),
        metavar="N|KB",
        help=f"number of variants, or e.g. 1000kb ({WINDOW})",
    )
    group.add_argument("--ld-step", type=int, metavar="N", help="a tenth of the window, or 1 (kb)")


def is_genotypes(arguments: argparse.Namespace, matrix: ChunkedMatrix) -> bool:
    """Whether to fit a GenotypePCA: allele scaling, an option of PLINK, or labelled calls."""
    named = any(getattr(arguments, n) != value for n, value in arguments.only_genotypes.items())
    return (
        named
        or arguments.scale in ALLELE_SCALES
        or names_samples(arguments)
        or "counted_allele" in matrix.labels.features.extra
    )


def check_missing(wanted: str | None) -> None:
    """Refuse a treatment of missing cells that genotypes do not take."""
    if wanted in ("raise", "impute"):
        raise InvalidInputError(
            f"--missing {wanted}: a missing genotype counts as its variant's mean; leave out "
            "--missing, or take means over the variants that both of two samples have: "
            "--missing pairwise"
        )


def genotype_model(
    arguments: argparse.Namespace, chosen: Selection, matrix: ChunkedMatrix
) -> streampca.GenotypePCA:
    """The unfitted GenotypePCA of the arguments, for the selected samples and variants.

    Those that were filtered before a pruning are not filtered again.
    Raises InvalidInputError for options that genotypes do not take.
    """
    if not arguments.center or arguments.ddof != 1:
        raise InvalidInputError("genotypes are centred, with ddof=1: leave out --no-center, --ddof")
    check_missing(arguments.missing)
    judged = chosen.pruning is not None
    taken = {*OF_GENOTYPES, *FROM_PCA} - (set(SHARES) if judged else set())
    values = {name: getattr(arguments, name) for name in taken}
    values["n_components"] = components_wanted(arguments, chosen.matrix if judged else matrix)
    values["scale"] = scale_wanted(arguments, "hwe")
    values["missing"] = arguments.missing or "mean"
    if chosen.partition is not None:
        values["unrelated"] = chosen.partition
    every = VariantFilter(chromosomes="all", n_autosomes=arguments.n_autosomes)
    fitted = every if chosen.fitted is None else replace(every, extract=chosen.fitted)
    kinship = every if king_wanted(arguments) else None
    return streampca.GenotypePCA(
        **values, variants=fitted, kinship=kinship, **settings_of_run(arguments)
    )


# -- commands of their own ------------------------------------------------------------------------


def add_options(parsers: Mapping[str, Parser], argv: Sequence[str]) -> None:
    """Add the options of ``prune``, ``project`` and ``convert``."""
    one = parsers["prune"]
    one.set_defaults(run=run_prune)
    one.add_argument("source", nargs="*")
    one.add_argument("-o", "--output", required=True, metavar="FILE", help="ids of the kept ones")
    one.add_argument("--overwrite", action="store_true", help="replace an existing one")
    one.add_argument("--ld-r2", type=float, default=0.2, metavar="R2")
    pruning_options(one)
    filter_options(one)
    one.add_argument("--remove", metavar="FILE", help="samples to leave out")
    running_options(one)
    source_options(one)

    one = parsers["project"]
    one.set_defaults(run=run_project)
    one.add_argument("model")
    one.add_argument("source", nargs="*")
    prefix_options(one)
    one.add_argument("--keep", metavar="FILE", help="samples to project, as in PLINK")
    one.add_argument("--remove", metavar="FILE", help="samples to leave out")
    one.add_argument("--loadings", metavar="ZARR", help="where the fit streamed the components")
    one.add_argument(
        "-o",
        "--output",
        required=True,
        metavar="TSV",
        help="coverage and scores, on the scale of the fit's scores: its .eigenvec has unit "
        "columns unless it was written with --eigenvec-values scores",
    )
    one.add_argument("--overwrite", action="store_true", help="replace an existing one")
    one.add_argument("--match", choices=BY, default="auto")
    one.add_argument(
        "--ambiguous",
        choices=AMBIGUOUS,
        default="auto",
        help="A/T and C/G variants: keep as written, drop, or keep if the others show one strand",
    )
    one.add_argument(
        "--min-coverage", type=float, default=0.5, help="least share of the model's variants"
    )
    one.add_argument(
        "--shrinkage", choices=("oadp",), help="correct the pull of projections to the centre"
    )
    running_options(one)
    source_options(one)

    one = parsers["convert"]
    one.set_defaults(run=run_convert)
    one.add_argument("source", nargs="*")
    prefix_options(one)
    one.add_argument("-o", "--output", required=True, metavar="ZARR")
    one.add_argument("--overwrite", action="store_true")
    one.add_argument("--memory-limit", metavar="SIZE", help="e.g. 512MiB; refuse to exceed it")
    source_options(one)


def run_prune(arguments: argparse.Namespace) -> int:
    """``streampca prune``."""
    check_outputs(
        tables=[arguments.output], sources=files_read(arguments), overwrite=arguments.overwrite
    )
    matrix = choose(arguments, open_source(arguments)).matrix
    refuse_repeated_ids(matrix.labels.features, PRUNE_IN)
    pruning = prune_ld(
        matrix, **asdict(pruning_rules(arguments, matrix)), **settings_of_run(arguments)
    )
    pruning.write(arguments.output, arguments.overwrite)
    print_answer(arguments, pruning.to_dict(), pruning)
    return 0


def run_project(arguments: argparse.Namespace) -> int:
    """``streampca project``."""
    check_outputs(
        tables=[arguments.output], sources=files_read(arguments), overwrite=arguments.overwrite
    )
    model = streampca.load(arguments.model)
    every = VariantFilter(chromosomes="all")
    matrix = filter_genotypes(
        open_source(arguments), every, arguments.keep, arguments.remove, option="remove"
    )
    result = model.result_
    if not isinstance(result, streampca.PrincipalComponents):
        raise InvalidInputError(f"{arguments.model} holds a {result.kind}; expected components")
    if arguments.loadings:
        result = result.with_components(arguments.loadings)
    projection = project_samples(
        result,
        matrix,
        ploidy=getattr(model, "ploidy", 2),
        match=arguments.match,
        ambiguous=arguments.ambiguous,
        min_coverage=arguments.min_coverage,
        shrinkage=arguments.shrinkage,
        **settings_of_run(arguments),
    )
    columns = identifiers(matrix.labels.samples)
    columns.append(("COVERAGE", [f"{x:.4f}" for x in projection.coverage]))
    write_eigenvec(arguments.output, columns, projection.scores, arguments.overwrite)
    (n, k), seen = projection.scores.shape, projection.coverage
    whole = {
        "samples": n,
        "components": k,
        "refused": int(projection.refused.sum()),
        "match": projection.match.to_dict(),
        "coverage": {"least": seen.min(), "mean": seen.mean(), "most": seen.max()},
        "output": arguments.output,
    }
    text = f"{n} samples on {k} components\n{projection.match}"
    print_answer(arguments, whole, f"{text}\nwritten    {shown(arguments.output)}")
    return 0


def run_convert(arguments: argparse.Namespace) -> int:
    """``streampca convert``."""
    from streampca.operations.convert import convert
    from streampca.operations.convert_vcf import vcf_cost, vcf_files

    check_endings(arrays=[arguments.output])
    if "://" not in arguments.output:
        check_writable(Path(arguments.output))
    source: Any = files_read(arguments)
    if files := vcf_files(source):
        for name, entry in OF_SOURCES.items():
            if getattr(arguments, name) not in (None, False, entry.default):
                raise InvalidInputError(
                    f"--{name.replace('_', '-')}: vcf2zarr keeps all variants and fields; say it "
                    f"where {arguments.output} is opened"
                )
        announce(f"{', '.join(files)}: {vcf_cost(files, arguments.output)}", head="")
    else:
        source = open_source(arguments)
    done = convert(
        source,
        arguments.output,
        overwrite=arguments.overwrite,
        memory_limit=arguments.memory_limit,
        progress=progress_of(arguments),
    )
    if not arguments.json:
        print(f"{shown(arguments.output)}: {streampca.open(arguments.output)}")
        return 0
    text = {
        "output": done.path,
        "array": done.array,
        "samples": done.shape[0],
        "features": done.shape[1],
        "chunks": done.chunks,
        "missing_value": done.missing_value,
        "reads": done.reads,
        "resumed": done.resumed,
        "seconds": done.seconds,
    }
    print(json_of(text))
    return 0
