"""The samples and variants of a genotype fit, filtered in PLINK's order, and its text files."""

from __future__ import annotations

import argparse
from dataclasses import asdict, dataclass, replace
from functools import partial
from typing import Any

import numpy as np

import streampca
from streampca.cli.options import progress_of
from streampca.cli.side_data import left_out_samples
from streampca.errors import InvalidInputError
from streampca.genetics.counts import well_called
from streampca.genetics.filters import filter_genotypes
from streampca.genetics.genotype_result import used_variants
from streampca.genetics.id_lists import sample_mask
from streampca.genetics.ld_pruning import (
    PRUNE_IN,
    LDPruning,
    PruningRules,
    default_step,
    ld_scan,
    prune_ld,
)
from streampca.genetics.tables import (
    allele_weights,
    eigensoft_eigenvalues,
    write_acount,
    write_afreq,
    write_allele_weights,
    write_eigenval,
    write_eigenvec,
    write_smiss,
    write_vmiss,
)
from streampca.matrix import ChunkedMatrix, select
from streampca.models.results.linear_result import COMPONENTS
from streampca.models.results.result import provenance
from streampca.passes import PassCost, Plan
from streampca.sources.genotypes.allele_counts import with_missing_calls
from streampca.sources.genotypes.variants import refuse_repeated_ids
from streampca.store import labelled_rows

# Selecting samples and variants: first by lists, then by counts, then by pruning, as PLINK does.


@dataclass(frozen=True)
class Selection:
    """The samples and variants to fit, and their numbers after each step.

    source : (samples, variants) of the source.  listed : after chromosomes, lists and regions.
    multiallelic : variants of the source that have more than two alleles and were dropped.
    called : after --mind, --geno and --maf, if these came before a pruning.
    before : plans and costs of these passes and of the pruning.
    """

    matrix: ChunkedMatrix
    source: tuple[int, int]
    listed: tuple[int, int]
    multiallelic: int = 0
    called: tuple[int, int] | None = None
    pruning: LDPruning | None = None
    before: tuple[tuple[Plan, PassCost], ...] = ()

    def left_out(self, result: Any) -> dict[str, dict[str, int]]:
        """Numbers of variants and samples that were used, and left out by cause.

        They add up to "source".
        """
        samples = len(result.labels.samples)
        counts = {
            "rare_or_ill_called": len(result.filtered),
            "monomorphic": len(result.constant),
            "without_a_call": len(result.dropped),
        }
        if self.pruning is not None and self.called is not None:
            pruning = self.pruning
            counts["rare_or_ill_called"] += self.listed[1] - self.called[1]
            counts["monomorphic"] += pruning.n_constant
            counts["unplaced"] = pruning.n_unplaced
            counts["linked"] = (
                self.called[1] - len(pruning.kept) - pruning.n_constant - pruning.n_unplaced
            )
        if self.multiallelic:
            counts["multiallelic"] = self.multiallelic
        lists = self.source[1] - self.listed[1] - self.multiallelic
        variants = {"source": self.source[1], "lists": lists, **counts}
        return {
            "variants": {**variants, "used": result.n_features_used},
            "samples": {
                "source": self.source[0],
                "lists": self.source[0] - self.listed[0],
                "ill_called": self.listed[0] - samples,
                "used": samples,
            },
        }

    def record(self, model: Any, arguments: argparse.Namespace) -> None:
        """Record all settings of the selection in a fitted model, and the passes before its own."""
        result = model.result_
        settings = {
            **result.settings,
            "maf": arguments.maf,
            "max_missing": arguments.geno,
            "max_sample_missing": arguments.mind,
            "variants": variant_filter(arguments),
            "keep": arguments.keep,
            "exclude": left_out_samples(arguments),
        }
        if self.pruning is not None:
            rules = {name: self.pruning.settings[name] for name in ("r2", "window", "step")}
            settings["ld"] = {**rules, "kept": len(self.pruning.kept)}
        model.result_ = result = replace(result, settings=settings)
        if self.before:
            plans, costs = zip(*self.before, strict=True)
            model.plan_ = model.plan_.after(*plans)
            model.cost_ = [*costs, *model.cost_]
            made = provenance(model.cost_, result.provenance["source"])
            made |= {name: result.provenance[name] for name in ("peak_bytes", "held_bytes")}
            model.result_ = replace(result, plan=model.plan_.to_dict(), provenance=made)


def variant_filter(arguments: argparse.Namespace) -> streampca.VariantFilter:
    """The filter of the variants that the arguments name."""
    return streampca.VariantFilter(
        chromosomes=arguments.chr or "autosomes",
        n_autosomes=arguments.chr_set,
        extract=arguments.extract,
        exclude=arguments.exclude,
        regions=tuple(arguments.region),
        exclude_regions=tuple(arguments.exclude_region),
        exclude_long_range_ld=arguments.exclude_long_range_ld,
    )


def choose(arguments: argparse.Namespace, matrix: ChunkedMatrix) -> Selection:
    """The selection by lists. Reads only labels."""
    (samples, variants), dropped = matrix.shape, matrix.multiallelic
    matrix = with_missing_calls(matrix)
    leave_out = left_out_samples(arguments)
    listed = filter_genotypes(
        matrix, variant_filter(arguments), arguments.keep, leave_out, option="remove"
    )
    if getattr(arguments, "allele_wts", False):
        refuse_repeated_ids(listed.labels.features, "a table of loadings (--allele-wts)")
    return Selection(listed, (samples, variants + dropped), listed.shape, dropped)


def pruning_rules(arguments: argparse.Namespace, matrix: ChunkedMatrix) -> PruningRules:
    """The rules of --ld-r2, --ld-window and --ld-step. Raises if the matrix does not suit them."""
    window: int | str = arguments.ld_window
    window = int(window) if str(window).isdigit() else window
    step = default_step(window) if arguments.ld_step is None else arguments.ld_step
    rules = PruningRules(arguments.ld_r2, window, step)
    ld_scan(matrix, rules)
    return rules


def prune_selection(arguments: argparse.Namespace, chosen: Selection) -> Selection:
    """Leave out ill-called samples and ill-called or rare variants, then prune.

    Frequencies and correlations are those of the --fit-samples, if there are any.
    Cost: 1 to 3 passes. Raises InvalidInputError if no variant is left.
    """
    rules = pruning_rules(arguments, chosen.matrix)
    if arguments.out:
        refuse_repeated_ids(chosen.matrix.labels.features, PRUNE_IN)
    running = {
        "memory_limit": arguments.memory_limit,
        "scheduler": arguments.scheduler,
        "progress": progress_of(arguments),
    }
    shares = (arguments.maf, arguments.geno, arguments.mind)
    judges = _judges(arguments, chosen.matrix)
    before: list[tuple[Plan, PassCost]] = []
    called = well_called(
        chosen.matrix, arguments.ploidy, *shares, rows=judges, made=before, **running
    )
    judges = _judges(arguments, called)
    judged = called if judges is None else select(called, samples=judges)
    pruning = prune_ld(judged, **asdict(rules), **running)
    if not len(pruning.kept):
        raise InvalidInputError(f"LD pruning leaves none of {called.shape[1]} variants")
    matrix = select(called, features=pruning.kept)
    before.append((pruning.plan, pruning.cost))
    return replace(
        chosen, matrix=matrix, called=called.shape, pruning=pruning, before=tuple(before)
    )


def _judges(arguments: argparse.Namespace, matrix: ChunkedMatrix) -> Any:
    """(samples,) boolean, True for samples that count in filtering variants; None for all."""
    if arguments.fit_samples is None:
        return None
    return sample_mask(matrix.labels.samples, arguments.fit_samples, "fit_samples")


# The text files of a genotype fit, in PLINK's layouts.


def tables(arguments: argparse.Namespace) -> list[str]:
    """Paths of the text files that --out asks for."""
    asked = {
        "freq": (".afreq",),
        "missing_counts": (".smiss", ".vmiss"),
        "allele_wts": (".eigenvec.allele", ".acount"),
    }
    if not arguments.out:
        if option := next((one for one in asked if getattr(arguments, one)), None):
            option, suffix = option.replace("_", "-"), asked[option][0]
            raise InvalidInputError(f"--{option} writes PREFIX{suffix}: add --out PREFIX")
        return []
    if arguments.allele_wts and (arguments.no_components or arguments.ploidy != 2):
        option = "--no-components" if arguments.no_components else "--ploidy"
        raise InvalidInputError(
            f"--allele-wts needs components of diploid calls: leave out {option}"
        )
    pruned = [] if arguments.ld_r2 is None else [".prune.in"]
    more = [one for option, some in asked.items() if getattr(arguments, option) for one in some]
    return [f"{arguments.out}{suffix}" for suffix in (".eigenvec", ".eigenval", *more, *pruned)]


def zarr_outputs(arguments: argparse.Namespace) -> list[str]:
    """Paths of the Zarr groups that the fit itself writes."""
    return [one for one in (arguments.loadings, arguments.relationship) if one]


def write_outputs(
    model: streampca.GenotypePCA, chosen: Selection, arguments: argparse.Namespace
) -> list[str]:
    """Write PLINK's tables if --out asks for them. Returns all written paths."""
    result, may = model.result_, arguments.overwrite
    variants, who = result.labels.features, identifiers(result.labels.samples)
    counted = (result.frequency_column, result.observed_alleles)
    for path in (written := tables(arguments)):
        if path.endswith(".eigenvec"):
            unit = arguments.eigenvec_values == "eigenvectors"
            values = model.eigenvectors_ if unit else model.scores_
            columns = list(who)
            if result.fitted is not None:
                columns.append(("FITTED", result.fitted.astype(int)))
            write_eigenvec(path, columns, values, may)
        elif path.endswith(".eigenval"):
            plain = arguments.eigenval_values == "plink"
            values = model.eigenvalues_ if plain else eigensoft_eigenvalues(result)
            write_eigenval(path, values, may)
        elif path.endswith(".afreq"):
            write_afreq(path, variants, *counted, may)
        elif path.endswith(".acount"):
            write_acount(path, variants, *counted, may)
        elif path.endswith(".smiss"):
            write_smiss(path, who, result.missing_by_sample, result.n_features, may)
        elif path.endswith(".vmiss"):
            lost = np.zeros(len(variants), int) if result.missing is None else result.missing
            write_vmiss(path, variants, lost, result.n_samples, may)
        elif path.endswith(".allele"):
            streamed = result.streamed_to
            loadings = (
                result.require_components().T
                if streamed is None
                else (labelled_rows(streamed, COMPONENTS))
            )
            weights = partial(allele_weights, result, columns=loadings)
            used = used_variants(result)
            write_allele_weights(path, variants, used, weights, result.n_components, may)
        elif chosen.pruning is not None:
            chosen.pruning.write(path, may)
    return [*written, *zarr_outputs(arguments)]


def identifiers(samples: Any) -> list[tuple[str, Any]]:
    """The columns FID and IID; only IID without families, and numbers from 1 without names."""
    if "family" in samples.extra:
        return [("FID", samples.extra["family"]), ("IID", samples.extra["individual"])]
    if not samples.named:
        return [("IID", range(1, len(samples) + 1))]
    return [("IID", [name.replace(" ", "_") for name in samples.names()])]
