"""Genotypes on the command line: PLINK's words, ``prune``, ``project`` and ``convert``."""

from __future__ import annotations

import argparse
import json
from typing import Any

import streampca
from streampca.cli.options import (
    components_wanted,
    open_source,
    progress_of,
    running_options,
    source_options,
)
from streampca.errors import InvalidInputError
from streampca.matrix import ALLELE_SCALES, ChunkedMatrix
from streampca.models.genotype_filters import filter_genotypes
from streampca.models.genotype_projection import project_samples
from streampca.models.ld_pruning import prune_ld
from streampca.store.tables import write_eigenval, write_eigenvec

# any of these says that the matrix holds genotypes
SIGNS = ("bfile", "maf", "geno", "mind", "keep", "remove", "extract", "exclude", "chr",
         "fit_samples", "exclude_long_range_ld", "ld_r2", "out", "relationship", "region",
         "exclude_region")  # fmt: skip


def genotype_options(parser: argparse.ArgumentParser) -> None:
    """What a genotype fit takes, in PLINK's words where they mean the same."""
    group = parser.add_argument_group("genotypes (PLINK's words mean what they mean there)")
    filter_options(group)
    group.add_argument("--ploidy", type=int, default=2)
    group.add_argument("--maf", type=float, default=0.0, help="leave out rarer variants")
    group.add_argument("--geno", type=float, default=1.0, help="most missing calls of a variant")
    group.add_argument("--mind", type=float, default=1.0, help="most missing calls of a sample")
    group.add_argument(
        "--fit-samples", metavar="FILE", help="fit on these (unrelated) samples, score everyone"
    )
    group.add_argument(
        "--ld-r2", type=float, metavar="R2", help="prune for linkage first, by one more pass"
    )
    pruning_options(group)
    group.add_argument("--relationship", metavar="ZARR", help="write the relationship matrix here")
    group.add_argument(
        "--out", metavar="PREFIX", help="write PREFIX.eigenvec, .eigenval and .prune.in as PLINK"
    )
    group.add_argument(
        "--eigenvec-values",
        choices=("eigenvectors", "scores"),
        default="eigenvectors",
        help="what .eigenvec holds: unit columns as PLINK's, or those times the singular values",
    )


def filter_options(group: Any) -> None:
    """Which samples and variants."""
    group.add_argument("--bfile", metavar="PREFIX", help="PREFIX.bed, .bim and .fam")
    group.add_argument("--keep", metavar="FILE", help="samples to use")
    group.add_argument("--remove", metavar="FILE", help="samples to leave out")
    group.add_argument("--extract", metavar="FILE", help="variants to use")
    group.add_argument("--exclude", metavar="FILE", help="variants to leave out")
    group.add_argument(
        "--chr", metavar="LIST", help="such as 1-22,X; 'all'; default: the autosomes"
    )
    group.add_argument("--chr-set", type=int, default=22, metavar="N", help="number of autosomes")
    group.add_argument("--region", nargs="+", default=[], metavar="CHR:FROM-TO")
    group.add_argument("--exclude-region", nargs="+", default=[], metavar="CHR:FROM-TO")
    group.add_argument(
        "--exclude-long-range-ld", choices=("37", "38"), help="known regions of that genome build"
    )


def pruning_options(group: Any) -> None:
    """Windows of LD pruning."""
    group.add_argument(
        "--ld-window", default="500", metavar="N|KB", help="variants, or such as 1000kb (500)"
    )
    group.add_argument("--ld-step", type=int, metavar="N", help="a tenth of the window, or 1 (kb)")


def is_genotypes(arguments: argparse.Namespace, matrix: ChunkedMatrix) -> bool:
    """Whether to fit a GenotypePCA: an allele scaling, one of PLINK's words, or labelled calls."""
    if getattr(arguments, "scale", None) in ALLELE_SCALES:
        return True
    defaults = {"maf": 0.0, "geno": 1.0, "mind": 1.0}
    named = any(
        getattr(arguments, name, None) not in (None, [], defaults.get(name)) for name in SIGNS
    )
    return named or "counted_allele" in matrix.labels.features.extra


def variant_filter(arguments: argparse.Namespace) -> streampca.VariantFilter:
    """The variants that the arguments name."""
    return streampca.VariantFilter(
        chromosomes=arguments.chr or "autosomes",
        n_autosomes=arguments.chr_set,
        extract=arguments.extract,
        exclude=arguments.exclude,
        regions=tuple(arguments.region),
        exclude_regions=tuple(arguments.exclude_region),
        exclude_long_range_ld=arguments.exclude_long_range_ld,
    )


def genotype_model(
    arguments: argparse.Namespace, matrix: ChunkedMatrix, pruning: Any = None
) -> streampca.GenotypePCA:
    """The fit that the arguments describe, on the variants that a pruning keeps if one is given."""
    if arguments.no_center or arguments.ddof != 1:
        raise InvalidInputError("genotypes are centred, with ddof=1: leave out --no-center, --ddof")
    variants = variant_filter(arguments)
    if pruning is not None:
        kept = [str(name) for name in pruning.ids]
        variants = streampca.VariantFilter(chromosomes="all", extract=kept)
    return streampca.GenotypePCA(
        components_wanted(arguments, matrix),
        scale=arguments.scale or "hwe",
        ploidy=arguments.ploidy,
        maf=arguments.maf,
        max_missing=arguments.geno,
        max_sample_missing=arguments.mind,
        variants=variants,
        keep=arguments.keep,
        remove=arguments.remove,
        fit_samples=arguments.fit_samples,
        components=not arguments.no_components,
        relationship=arguments.relationship,
        svd_solver=arguments.solver,
        memory_limit=arguments.memory_limit,
        scheduler=arguments.scheduler,
        progress=progress_of(arguments),
        checkpoint=arguments.checkpoint,
    )


def prune_first(arguments: argparse.Namespace, matrix: ChunkedMatrix) -> Any:
    """The pruning that --ld-r2 asks for, made now (one pass), or None."""
    if arguments.ld_r2 is None:
        return None
    variants = variant_filter(arguments)
    pruning = _prune(
        arguments, filter_genotypes(matrix, variants, arguments.keep, arguments.remove)
    )
    if not (arguments.json or arguments.quiet):
        print(pruning, end="\n\n")
    if arguments.out:
        pruning.write(f"{arguments.out}.prune.in")
    return pruning


def _prune(arguments: argparse.Namespace, matrix: ChunkedMatrix) -> Any:
    window: int | str = arguments.ld_window
    if str(window).isdigit():
        window = int(window)
    step = arguments.ld_step
    if step is None:
        step = max(1, window // 10) if isinstance(window, int) else 1
    return prune_ld(
        matrix,
        r2=arguments.ld_r2,
        window=window,
        step=step,
        memory_limit=arguments.memory_limit,
        scheduler=arguments.scheduler,
        progress=progress_of(arguments),
    )


def write_outputs(model: streampca.GenotypePCA, arguments: argparse.Namespace) -> list[str]:
    """PLINK's tables, where --out asks for them. Returns their paths."""
    if not arguments.out:
        return [arguments.relationship] if arguments.relationship else []
    samples = model.result_.labels.samples
    kind = arguments.eigenvec_values
    values = model.eigenvectors_ if kind == "eigenvectors" else model.scores_
    paths = [f"{arguments.out}.eigenvec", f"{arguments.out}.eigenval"]
    write_eigenvec(paths[0], identifiers(samples), values, kind)
    write_eigenval(paths[1], model.eigenvalues_)
    if arguments.ld_r2 is not None:
        paths.append(f"{arguments.out}.prune.in")
    return [*paths, arguments.relationship] if arguments.relationship else paths


def identifiers(samples: Any) -> list[tuple[str, Any]]:
    """FID and IID columns; IID alone where there are no families, numbers from 1 without names."""
    if "family" in samples.extra:
        return [("FID", samples.extra["family"]), ("IID", samples.extra["individual"])]
    if not samples.named:
        return [("IID", range(1, len(samples) + 1))]
    return [("IID", [name.replace(" ", "_") for name in samples.names()])]


# -- commands of their own ------------------------------------------------------------------------


def add_commands(commands: Any) -> None:
    """Declare ``prune``, ``project`` and ``convert``."""
    one = commands.add_parser("prune", help="variants in approximate linkage equilibrium")
    one.set_defaults(run=run_prune)
    one.add_argument("source", nargs="*")
    one.add_argument("-o", "--output", required=True, metavar="FILE", help="ids of the kept ones")
    one.add_argument("--ld-r2", type=float, default=0.2, metavar="R2")
    pruning_options(one)
    filter_options(one)
    running_options(one)
    source_options(one)

    one = commands.add_parser("project", help="new samples onto a saved genotype model")
    one.set_defaults(run=run_project)
    one.add_argument("model")
    one.add_argument("source", nargs="*")
    one.add_argument("--bfile", metavar="PREFIX")
    one.add_argument("-o", "--output", required=True, metavar="TSV", help="scores and coverage")
    one.add_argument("--match", choices=("auto", "id", "position"), default="auto")
    one.add_argument(
        "--min-coverage", type=float, default=0.5, help="least share of the model's variants"
    )
    one.add_argument(
        "--shrinkage", choices=("oadp",), help="correct the pull of projections to the centre"
    )
    running_options(one)
    source_options(one)

    one = commands.add_parser("convert", help="genotypes to the Zarr layout that is fastest here")
    one.set_defaults(run=run_convert)
    one.add_argument("source", nargs="*")
    one.add_argument("--bfile", metavar="PREFIX")
    one.add_argument("-o", "--output", required=True, metavar="ZARR")
    one.add_argument("--overwrite", action="store_true")
    source_options(one)


def run_prune(arguments: argparse.Namespace) -> int:
    """``streampca prune``."""
    matrix = filter_genotypes(
        open_source(arguments), variant_filter(arguments), arguments.keep, arguments.remove
    )
    pruning = _prune(arguments, matrix)
    pruning.write(arguments.output)
    print(json.dumps(pruning.to_dict()) if arguments.json else pruning)
    return 0


def run_project(arguments: argparse.Namespace) -> int:
    """``streampca project``."""
    model = streampca.load(arguments.model)
    matrix = open_source(arguments)
    projection = project_samples(
        model.result_,
        matrix,
        ploidy=getattr(model, "ploidy", 2),
        match=arguments.match,
        min_coverage=arguments.min_coverage,
        shrinkage=arguments.shrinkage,
        memory_limit=arguments.memory_limit,
        scheduler=arguments.scheduler,
        progress=progress_of(arguments),
    )
    columns = identifiers(matrix.labels.samples)
    columns.append(("COVERAGE", [f"{x:.4f}" for x in projection.coverage]))
    write_eigenvec(arguments.output, columns, projection.scores, "scores (projected)")
    if arguments.json:
        print(json.dumps({"samples": len(projection.scores), "output": arguments.output}))
    else:
        print(projection)
        print(f"written    {arguments.output}")
    return 0


def run_convert(arguments: argparse.Namespace) -> int:
    """``streampca convert``."""
    from streampca.jobs import convert

    progress = progress_of(arguments)
    convert(open_source(arguments), arguments.output, overwrite=arguments.overwrite,
            progress=progress)  # fmt: skip
    print(f"{arguments.output}: {streampca.open(arguments.output)}")
    return 0
