"""Samples and variants with enough calls."""

from __future__ import annotations

from typing import Any

import numpy as np

from streampca.accumulators import Accumulator, Moments, RowMissing
from streampca.errors import InvalidInputError, shorten, warn_caller
from streampca.kernels import Array, ColumnStats
from streampca.matrix import ChunkedMatrix, Standardize, select
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


def all_read(opened: Any) -> ChunkedMatrix:
    """The matrix itself, or all that a :class:`JointRead` reads."""
    return opened if isinstance(opened, ChunkedMatrix) else opened.matrix


def of_samples(opened: Any, kept: Array) -> Any:
    """Some of the samples of a matrix, or of a :class:`JointRead`.  kept : (n,) True."""
    if isinstance(opened, ChunkedMatrix):
        return select(opened, samples=kept)
    return opened.with_samples(kept)


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


def counting_samples(
    matrix: ChunkedMatrix, limit: Any, memory_limit: int | str | None
) -> Planned[PassResult]:
    """The pass that counts the missing calls of each sample, planned.

    limit : the largest share of them. Raises InvalidInputError where it is no share.
    """
    share_of(limit)
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
