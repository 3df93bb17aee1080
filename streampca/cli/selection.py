"""The samples and variants of a genotype fit, filtered in PLINK's order."""

from __future__ import annotations

import argparse
from dataclasses import asdict, dataclass, fields, replace
from typing import Any

import numpy as np

import streampca
from streampca.cli.king_tables import king_wanted
from streampca.cli.options import settings_of_run
from streampca.cli.side_data import left_out_samples
from streampca.errors import InvalidInputError
from streampca.genetics.counts import well_called
from streampca.genetics.filters import VariantFilter, filter_genotypes
from streampca.genetics.fit_samples import AUTO, finding_unrelated, samples_to_fit
from streampca.genetics.ld_pruning import (
    PRUNE_IN,
    LDPruning,
    PruningRules,
    default_step,
    ld_scan,
    prune_ld,
)
from streampca.genetics.pcair import SamplePartition
from streampca.matrix import ChunkedMatrix, select
from streampca.models.results.result import provenance
from streampca.passes import PassCost, Plan, Running, execute
from streampca.sources.genotypes.allele_counts import with_missing_calls
from streampca.sources.genotypes.variants import refuse_repeated_ids

# First by lists, then by counts, then by pruning, as PLINK does.

SHARES = ("maf", "max_missing", "max_sample_missing")  # of calls and alleles, which counts decide


@dataclass(frozen=True)
class Selection:
    """The samples and variants to fit, and their numbers after each step.

    source : (samples, variants) of the source.  listed : after chromosomes, lists and regions.
    multiallelic : variants of the source that have more than two alleles and were dropped.
    called : after --mind, --geno and --maf, if these came before a pruning.
    partition : of the samples by --unrelated auto, if that came before a pruning.
    before : plans and costs of these passes and of the pruning.
    fitted : (variants,) True for those of the matrix that are fitted, or their ids in a file, where
        kinship is counted over more; None = all.
    """

    matrix: ChunkedMatrix
    source: tuple[int, int]
    listed: tuple[int, int]
    multiallelic: int = 0
    called: tuple[int, int] | None = None
    pruning: LDPruning | None = None
    partition: SamplePartition | None = None
    before: tuple[tuple[Plan, PassCost], ...] = ()
    fitted: Any = None

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
        listed = self.listed[1] if self.pruning is not None else result.n_features
        lists = self.source[1] - listed - self.multiallelic
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
            **{name: getattr(arguments, name) for name in SHARES},
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
    names = (field.name for field in fields(streampca.VariantFilter))
    return streampca.VariantFilter(**{name: getattr(arguments, name) for name in names})


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
    fitted = getattr(arguments, "pca_extract", None)
    return Selection(listed, (samples, variants + dropped), listed.shape, dropped, fitted=fitted)


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

    Frequencies and correlations are those of the samples to fit: --fit-samples, --unrelated.
    Cost: 1 to 4 passes. Raises InvalidInputError if no variant is left.
    """
    rules = pruning_rules(arguments, chosen.matrix)
    if arguments.out:
        refuse_repeated_ids(chosen.matrix.labels.features, PRUNE_IN)
    running = settings_of_run(arguments)
    shares = {name: getattr(arguments, name) for name in SHARES}
    before: list[tuple[Plan, PassCost]] = []
    matrix, partition = chosen.matrix, None
    if arguments.unrelated == AUTO:
        matrix, partition = _find_unrelated(arguments, matrix, before)
        shares["max_sample_missing"] = 1.0
    judges = _judges(arguments, matrix, partition)
    called = well_called(matrix, arguments.ploidy, **shares, rows=judges, made=before, **running)
    judges = _judges(arguments, called, partition)
    judged = called if judges is None else select(called, samples=judges)
    pruning = prune_ld(judged, **asdict(rules), **running)
    if not len(pruning.kept):
        raise InvalidInputError(f"LD pruning leaves none of {called.shape[1]} variants")
    before += [*pruning.before, (pruning.plan, pruning.cost)]
    fitted = None
    if king_wanted(arguments):  # of all that are called, in the read of the fit
        fitted = np.zeros(called.shape[1], np.bool_)
        fitted[pruning.kept] = True
    return replace(
        chosen,
        matrix=called if fitted is not None else select(called, features=pruning.kept),
        called=called.shape,
        pruning=pruning,
        partition=partition,
        before=tuple(before),
        fitted=fitted,
    )


def _find_unrelated(
    arguments: argparse.Namespace, matrix: ChunkedMatrix, before: list[tuple[Plan, PassCost]]
) -> tuple[ChunkedMatrix, SamplePartition]:
    """The well-called samples, and their partition by kinship over all variants.

    before : takes plan and cost of every pass.
    """
    shares = {name: getattr(arguments, name) for name in (*SHARES, "ploidy")}
    autosomes = VariantFilter(n_autosomes=arguments.n_autosomes)
    running = settings_of_run(arguments)
    model = streampca.GenotypePCA(unrelated=AUTO, variants=autosomes, **shares, **running)
    done = execute(finding_unrelated(model, matrix), Running(**running))
    for one, cost in zip(done.plan.passes, done.costs, strict=True):
        before.append((replace(done.plan, passes=(one,)), cost))
    return done.answer.matrix, done.answer.partition


def _judges(
    arguments: argparse.Namespace, matrix: ChunkedMatrix, partition: SamplePartition | None
) -> Any:
    """(samples,) boolean, True for samples that count in filtering variants; None for all."""
    fit_samples, unrelated = arguments.fit_samples, arguments.unrelated
    if fit_samples is None and unrelated is None:
        return None
    judges = np.zeros(matrix.shape[0], bool)
    judges[samples_to_fit(matrix, fit_samples, unrelated, partition)[0]] = True
    return judges
