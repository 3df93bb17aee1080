"""Samples and variants with enough calls, and the warnings of a genotype fit."""

from __future__ import annotations

from typing import Any

import numpy as np

from streampca.accumulators import Accumulator, Moments, RowMissing
from streampca.errors import (
    CallCodingWarning,
    InvalidInputError,
    LocalComponentWarning,
    NonFounderWarning,
    shorten,
    warn_caller,
)
from streampca.genetics.local_loadings import local_components
from streampca.kernels import Array, ColumnStats
from streampca.matrix import ALLELE_SCALES, AxisLabels, ChunkedMatrix, Standardize, select
from streampca.matrix.standardize import exceeds
from streampca.passes import (
    Candidate,
    PassCost,
    PassResult,
    Plan,
    Planned,
    Running,
    choose,
    execute,
    pass_spec,
)
from streampca.sources.genotypes.allele_counts import DIPLOID, code_is_assumed
from streampca.sources.genotypes.variants import NO_PARENT

SAMPLES = "calls by sample"  # the name of the pass, and of its sums

# Samples and variants that have enough calls, in PLINK's order, before anything else is done.


def well_called(
    matrix: ChunkedMatrix,
    ploidy: int = 2,
    maf: float = 0.0,
    max_missing: float = 1.0,
    max_sample_missing: float = 1.0,
    *,
    rows: Array | None = None,
    made: list[tuple[Plan, PassCost]] | None = None,
    memory_limit: int | str | None = None,
    scheduler: Any = None,
    progress: Any = None,
) -> ChunkedMatrix:
    """The samples and variants that pass PLINK's ``--mind``, ``--geno`` and ``--maf``.

    matrix : (n, p) allele counts.
    maf : variants whose rarer allele is less frequent are left out, also those without a call.
    max_missing, max_sample_missing : largest share of missing calls of a variant, of a sample.
    rows : (n,) True for the samples by which the variants are judged; None = all.
    made : takes plan and cost of every pass.

    Samples first, by all variants; then variants, by the calls of the samples that are left.

    Cost: a pass for the samples if max_sample_missing < 1, one for the variants if maf > 0 or
    max_missing < 1; else none.
    Warns UserWarning of the samples that are left out.
    Raises InvalidInputError where nothing is left and for settings that cannot be met.
    Source: Chang et al. 2015, GigaScience 4:7; PLINK 2, "Order of operations".
    """
    assumed = code_is_assumed(matrix)
    wanted = Standardize(
        scale="hwe",
        ploidy=ploidy,
        maf=maf,
        max_missing=max_missing,
        code_assumed=assumed,
        method="a filter by frequency or missing calls",
    )
    made = [] if made is None else made
    running = Running(memory_limit, scheduler, progress)
    if share_of(max_sample_missing) < 1.0:
        lost = counted(matrix, SAMPLES, RowMissing(), made, running).counts()
        kept = well_called_samples(matrix, lost, max_sample_missing)
        matrix = select(matrix, samples=kept)
        rows = None if rows is None else rows[kept]
    if wanted.filters:
        judges = matrix if rows is None else select(matrix, samples=rows)
        stats = counted(judges, "calls by variant", Moments(), made, running).columns()
        kept = enough_calls(stats, wanted)
        if not kept.any():
            raise InvalidInputError(
                f"maf={maf:g} and max_missing={max_missing:g} leave none of {len(kept)} variants"
            )
        matrix = select(matrix, features=kept)
    return matrix


def well_called_samples(matrix: ChunkedMatrix, lost: Array, limit: float) -> Array:
    """(n,) True for the samples of which at most this share of the calls is missing.

    lost : (n,) missing calls.  Warns of the others by name; raises InvalidInputError where none
    is left.
    """
    kept = ~exceeds(lost, limit, matrix.shape[1])
    if not kept.any():
        raise InvalidInputError(
            f"max_sample_missing={limit:g} leaves no sample: the best has "
            f"{lost.min() / matrix.shape[1]:.1%} of its calls missing"
        )
    if not kept.all():
        names = [matrix.labels.samples.name(int(i)) for i in np.flatnonzero(~kept)[:4]]
        warn_caller(
            f"{np.count_nonzero(~kept)} of {len(kept)} samples have more than {limit:.1%} of "
            f"their calls missing and were left out: "
            f"{shorten(names, int(np.count_nonzero(~kept)))}",
            UserWarning,
        )
    return np.asarray(kept)


def enough_calls(stats: ColumnStats, wanted: Standardize) -> Array:
    """(p,) True for variants that are neither rare nor poorly called.

    Those without a call or of one allele alone count among the rare, where rare ones are refused.
    """
    scaling = wanted.resolve(stats, 0.0)
    lost = scaling.filtered | exceeds(
        stats.missing, wanted.max_missing, stats.count + stats.missing
    )
    if wanted.maf > 0.0:
        lost |= scaling.constant
    return np.asarray(~lost)


def counting_samples(matrix: ChunkedMatrix, memory_limit: int | str | None) -> Planned[PassResult]:
    """The pass that counts the missing calls of each sample, planned."""
    return _counting(matrix, SAMPLES, RowMissing(), memory_limit)


def share_of(limit: Any) -> float:
    """The largest share of missing calls of a sample, checked."""
    if not 0.0 <= limit <= 1.0:
        raise InvalidInputError(f"max_sample_missing={limit!r}; expected a share in [0, 1]")
    return float(limit)


def _counting(
    matrix: ChunkedMatrix, name: str, accumulator: Accumulator, memory_limit: int | str | None
) -> Planned[PassResult]:
    """One pass over the variants that counts calls, planned."""
    spec = pass_spec(name, matrix, 1, {name: accumulator})
    return choose(matrix, "calls", [Candidate("calls", "one pass", (spec,))], memory_limit)


def frequencies(
    matrix: ChunkedMatrix, made: list[tuple[Plan, PassCost]], running: Running
) -> Array:
    """(p,) frequencies of the counted allele of diploids, in one pass; 0 without a call."""
    stats = counted(matrix, "allele frequencies", Moments(), made, running).columns()
    return np.asarray(np.where(stats.count > 0, stats.mean / DIPLOID, 0.0))


def counted(
    matrix: ChunkedMatrix,
    name: str,
    accumulator: Accumulator,
    made: list[tuple[Plan, PassCost]],
    running: Running,
) -> Any:
    """The accumulator after one pass over the variants."""
    done = execute(_counting(matrix, name, accumulator, running.memory_limit), running)
    made.append((done.plan, done.answer.cost))
    return done.answer[name]


# Warnings of a genotype fit: relatives among the samples, components of a single short region.


def warn_of_local_components(columns: Any, variants: AxisLabels) -> None:
    """Warn of components that a single short region dominates.

    columns : (p, k) unit columns, an array or one in Zarr; None = there are none.
    """
    if columns is None or "position" not in variants.extra:
        return
    found = local_components(columns, variants.extra["chromosome"], variants.extra["position"])
    if found:
        warn_caller(
            f"{'; '.join(map(str, found))}: likely linkage disequilibrium or an inversion, not "
            "ancestry. Prune, streampca.prune_ld(X), or leave such regions out, "
            "VariantFilter(exclude_long_range_ld=37) or 38.",
            LocalComponentWarning,
        )


def warn_of_inbred(result: Any, scale: str | None) -> None:
    """Warn of calls 0 and 2 without a 1, which Hardy-Weinberg scaling takes for too variable."""
    diploid = result.settings["ploidy"] == DIPLOID
    if scale not in ALLELE_SCALES or not diploid or result.feature_variance is None:
        return
    lost = 0 if result.missing is None else np.asarray(result.missing)
    calls, mean = result.n_samples - lost, np.asarray(result.mean)
    squares = np.asarray(result.feature_variance) * (result.n_samples - result.ddof)
    homozygous = mean * (DIPLOID - mean)  # mean of x (2 - x), 1 for each heterozygote
    heterozygous = np.maximum(homozygous * calls - squares, 0.0).sum()
    expected = float(np.sum(homozygous * calls) / 2.0)
    if expected > 15.0 and heterozygous < max(0.5, 1e-6 * expected):
        warn_caller(
            f"none of the calls is 1, where about {expected:.0f} are expected in outbred diploids: "
            f"scale={scale!r} gives eigenvalues twice as large. If these are inbred lines or "
            "haploids, X // 2 has their counts: GenotypePCA(ploidy=1)",
            CallCodingWarning,
        )


def warn_of_children(samples: AxisLabels) -> None:
    """Warn of samples whose parents are both in the data."""
    names = ("family", "individual", "father", "mother")
    if not set(names) <= set(samples.extra):
        return
    family, individual, father, mother = (np.asarray(samples.extra[c]).tolist() for c in names)
    there = set(zip(family, individual, strict=True))
    children = sum(
        NO_PARENT not in (f, m) and (home, f) in there and (home, m) in there
        for home, f, m in zip(family, father, mother, strict=True)
    )
    if children:
        warn_caller(
            f"{children} of {len(samples)} samples have both parents in the data; PLINK would use "
            "founders only for frequencies, and relatives make components of their own. Fit on "
            "unrelated samples: fit_samples='unrelated.txt'",
            NonFounderWarning,
        )
